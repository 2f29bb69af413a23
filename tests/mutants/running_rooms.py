"""Mutants of the rooms around a plan: frontend, models, report, runtime, measure and the command line."""

from mutants.mutant import Mutant

FRONTEND_AND_MODELS = (
    Mutant(
        "frontend/torch/flops.py",
        "a product with a vector counts once per multiply-add",
        "return 2 * batch * rows * left[-1] * columns",
        "return batch * rows * left[-1] * columns",
        ("frontend/torch/test_flops.py",),
    ),
    Mutant(
        "frontend/torch/flops.py",
        "an expanded dimension travels in full",
        "if stride != 0)",
        "if True)",
        ("frontend/torch/test_flops.py", "frontend/torch/test_capture_structure.py"),
    ),
    Mutant(
        "models/perceptron.py",
        "hidden layers are never tied",
        "        if tied:\n",
        "        if False:\n",
        ("models/test_small.py",),
    ),
)

REPORT = (
    Mutant(
        "report/schedule_arcs.py",
        "ops wait for no other op of their device",
        "(*self._to_ops(), *self._on_devices(), ",
        "(*self._to_ops(), ",
        ("report/test_critical_path.py", "report/test_schedule_arcs.py"),
    ),
    Mutant(
        "report/schedule_arcs.py",
        "an op may take longer by what any of its successors leaves, not the least of them",
        "slack[arc.before] = min(slack[arc.before], max(0.0, arc.gap_s) + slack[event])",
        "slack[arc.before] = max(0.0, arc.gap_s) + slack[event]",
        ("report/test_schedule_arcs.py",),
    ),
    Mutant(
        "report/page/columns/texts.py",
        "characters that turn the writing direction go through",
        '{"Cc", "Cf", ',
        '{"Cc", ',
        ("report/page/test_page.py",),
    ),
    Mutant(
        "report/export/device_map.py",
        "a module goes where most of its tensors are, whatever their bytes",
        "sizes[find(_owner(tensor))][device] += size",
        "sizes[find(_owner(tensor))][device] += 1",
        ("report/export",),
    ),
    Mutant(
        "report/trace.py",
        "slices of one thread overlap",
        "if end_ns <= _ns(use.start_s)), len(free_ns))",
        "if True), len(free_ns))",
        ("report/test_trace.py",),
    ),
)

RUNTIME = (
    Mutant(
        "runtime/executor/function_source.py",
        "a freed value lives until the function ends",
        '            self.line(f"del {variable}")',
        "            pass",
        ("runtime/executor/test_straight_line.py",),
    ),
    Mutant(
        "runtime/executor/op_source.py",
        "tuples and bases of views are kept",
        "        if result not in wanted:",
        "        if False:",
        ("runtime/executor/test_straight_line.py",),
    ),
    Mutant(
        "runtime/executor/hand_over.py",
        "an inbox keeps what was taken",
        "value, self.slots[slot] = self.slots[slot], EMPTY",
        "value = self.slots[slot]",
        ("runtime/executor/test_hand_over.py",),
    ),
    Mutant(
        "runtime/program/dry_run.py",
        "a tensor may be copied and never sent",
        "        if self._copies:\n",
        "        if False:\n",
        ("runtime/program/test_stream_programs.py",),
    ),
    Mutant(
        "runtime/program/dry_run.py",
        "a tensor may be sent and never received",
        "        if self._sent:\n",
        "        if False:\n",
        ("runtime/program/test_programs.py",),
    ),
    Mutant(
        "runtime/program/lower.py",
        "a tensor is freed before its last reader",
        "if not self.uses_left[tensor, device] and tensor not in self.keep:",
        "if self.uses_left[tensor, device] <= 1 and tensor not in self.keep:",
        ("runtime/program/test_programs.py",),
    ),
    Mutant(
        "runtime/program/races.py",
        "memory may be given back before its last use",
        "            if not any(self._precedes(use, after) for after in memory.returned_after):",
        "            if False:",
        ("runtime/program/test_races.py", "runtime/program/test_stream_programs.py"),
    ),
    Mutant(
        "runtime/program/drop_redundant_waits.py",
        "holds are left out for copies that are under way",
        "if computed.get((device, stream), 0) > copy:",
        "if True:",
        ("runtime/program",),
    ),
    Mutant(
        "runtime/distributed/clocks.py",
        "the slowest round trip tells the offset",
        "min(readings, key=lambda reading: reading[2] - reading[0])",
        "max(readings, key=lambda reading: reading[2] - reading[0])",
        ("runtime/distributed/test_clocks.py",),
    ),
)

PLACED = (
    Mutant(
        "runtime/placed/editions.py",
        "freezing a parameter is no edit",
        "(one.shape, one.stride(), one.dtype, one.requires_grad)",
        "(one.shape, one.stride(), one.dtype, True)",
        ("runtime/placed/test_edits.py",),
    ),
    Mutant(
        "runtime/placed/number_inputs.py",
        "numbers on which a branch depends are inputs too",
        "or not only_flow_into_ops(job, differing)",
        "or False",
        ("runtime/placed/test_other_sizes.py",),
    ),
    Mutant(
        "runtime/placed/match.py",
        "a parameter that appears goes to the first device",
        "            if source not in home:\n",
        "            if False:\n",
        ("runtime/placed/test_placement_of_inference.py",),
    ),
    Mutant(
        "runtime/placed/draws.py",
        "the same seed once more is not seen",
        "or seed != self._seed or self._is_fresh(state, seed)",
        "or seed != self._seed",
        ("runtime/placed/test_other_sizes.py",),
    ),
    Mutant(
        "runtime/distributed/failure.py",
        "a failure is believed whoever posted it",
        "return hmac.compare_digest(posted.encode(), self._signed(posted[_SIGNATURE:]).encode())",
        "return True",
        ("runtime/distributed/test_processes.py",),
    ),
    Mutant(
        "runtime/distributed/launch.py",
        "whoever misses a message is blamed before the rank that is gone",
        "LostRankError.__name__: 2",
        "LostRankError.__name__: 0",
        ("runtime/distributed/test_processes.py",),
    ),
)

MEASURE = (
    Mutant(
        "measure/fidelity/alternation.py",
        "variants are timed in the same order every time",
        "names = list(steps) if number % 2 == 0 else list(steps)[::-1]",
        "names = list(steps)",
        ("measure/fidelity/test_run_report.py",),
    ),
)

API = (
    Mutant(
        "api/subjects.py",
        "a run stands for its measured step",
        "return value.predicted",
        "return value.measured",
        ("api/test_subjects.py",),
    ),
    Mutant(
        "api/strip.py",
        "an op fills all columns that it touches",
        "busy[entry.device][column, phase] += (end_s - begin_s) / column_s",
        "busy[entry.device][column, phase] += 1.0",
        ("api/test_looks.py",),
    ),
)

CLI = (
    Mutant(
        "cli/check.py",
        "a plan with violations ends with 0 under --json",
        "return CheckError.exit_code if found else 0",
        "return 0",
        ("cli/test_planning_commands.py", "cli/test_bad_input.py"),
    ),
)
