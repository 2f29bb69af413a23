"""Mutants of the rooms that plan: from data and files to the planners."""

from mutants.mutant import Mutant

CORE = (
    Mutant(
        "core/op.py",
        "the footprint leaves out the optimizer's state",
        "return self.weight_bytes + self.gradient_bytes + self.state_bytes + self.output_bytes",
        "return self.weight_bytes + self.gradient_bytes + self.output_bytes",
        ("core/test_graph.py",),
    ),
    Mutant(
        "core/units.py",
        "times are rounded up to ticks",
        "return (value_s.numerator * tick_s.denominator) // (value_s.denominator * tick_s.numerator)",
        "return -((-value_s.numerator * tick_s.denominator) // (value_s.denominator * tick_s.numerator))",
        ("core/test_units.py",),
    ),
    Mutant(
        "core/units.py",
        "horizons may be as long as the limit",
        "if horizon >= unit * MAX_TICKS:",
        "if horizon > unit * MAX_TICKS:",
        ("core/test_units.py",),
    ),
)

FILES = (
    Mutant(
        "files/structure_hash.py",
        "the workspace belongs to the structure",
        '_COSTS = ("time_s", "flops", "bytes_accessed", "workspace_bytes", "meta")',
        '_COSTS = ("time_s", "flops", "bytes_accessed", "meta")',
        ("files/test_structure_hash.py",),
    ),
    Mutant(
        "files/disk.py",
        "a temporary file stays where writing fails",
        "            os.unlink(temporary)\n        raise",
        "            pass\n        raise",
        ("files/test_text.py",),
    ),
)

CHECK = (
    Mutant(
        "check/issues.py",
        "what was issued before the barrier counts behind it too",
        'process = device.process, "" if device.process else device.id, is_behind',
        'process = device.process, "" if device.process else device.id, False',
        ("problem/test_naive_step.py", "planning/test_schedules_on_hosts.py"),
    ),
    Mutant(
        "check/timing.py",
        "the order of ops of no time does not know the barrier",
        'if plan.options.step == "autograd":\n        for op',
        'if plan.options.step == "paper":\n        for op',
        ("check/test_check.py",),
    ),
    Mutant(
        "core/plan.py",
        "an infinite sum of durations excuses everything",
        "1e-9 * horizon_s if math.isfinite(horizon_s) else 0.0",
        "1e-9 * horizon_s",
        ("check/test_check_robustness.py",),
    ),
    Mutant(
        "check/memory.py",
        "eq. 13 allows twice the capacity",
        "if capacity is not None and peak > capacity:",
        "if capacity is not None and peak > 2 * capacity:",
        ("check",),
    ),
    Mutant(
        "check/memory.py",
        "workspace is no live memory",
        '        add(entry.device, LiveTensor("workspace", op.id, entry.start_s, entry.end_s, op.workspace_bytes))\n',
        "",
        ("check", "problem"),
    ),
    Mutant(
        "check/timing.py",
        "eq. 12 forgets a long op behind a short one",
        "            if latest is None or scheduled.end_s >= latest.end_s:\n                latest = scheduled",
        "            latest = scheduled",
        ("check",),
    ),
    Mutant(
        "check/timing.py",
        "the barrier lets optimizer ops pass",
        'plan.graph.op(entry.op).phase in ("backward", "optimizer")]',
        'plan.graph.op(entry.op).phase == "backward"]',
        ("check",),
    ),
    Mutant(
        "check/routing.py",
        "a half-duplex link carries both directions at once",
        'direction = hop if link.duplex == "full" else (min(hop), max(hop))',
        "direction = hop",
        ("check",),
    ),
    Mutant(
        "check/placement.py",
        "a colocation group may be torn apart",
        "if plan.placement[leader] != device:",
        "if False:",
        ("check",),
    ),
)

MACHINES = (
    Mutant(
        "machines/importers/measured_links.py",
        "copies that were delayed take part in the least squares",
        "if _error(rough, size, time_s) <= _ON_THE_LINE / 2",
        "if True",
        ("machines/importers/test_detecting.py",),
    ),
    Mutant(
        "machines/importers/measured_links.py",
        "a rate that a copy contradicts is written",
        "if len(off) > (1 - _LEAST_EXPLAINED) * len(times_s):",
        "if len(off) == len(times_s):",
        ("machines/importers/test_detecting.py",),
    ),
    Mutant(
        "machines/costs/gradient_codecs.py",
        "ternary gradients have twice their bytes",
        'Transport("all-gather", lambda workers: (("all-gather", workers * _CODE_BITS),), sums=False),',
        'Transport("all-gather", lambda workers: (("all-gather", 2 * workers * _CODE_BITS),), sums=False),',
        ("machines/costs/test_gradient_codecs.py",),
    ),
    Mutant(
        "machines/costs/gradient_exchange.py",
        "a push counts as one pass of the ring",
        '"push": workers / max(1, workers - 1), "pull": 0.0',
        '"push": 1.0, "pull": 0.0',
        ("examples/test_ternary_models.py", "machines/costs/test_gradient_codecs.py"),
    ),
    Mutant(
        "machines/costs/roofline.py",
        "the parts of a contracted op compute in its own dtype",
        "dtype=part[2],",
        "dtype=op.dtype,",
        ("machines/costs/test_roofline.py", "planning/coarsen/test_contract.py"),
    ),
    Mutant(
        "machines/costs/roofline.py",
        "the overhead is an addend",
        "    return max(floors_s)",
        "    return floors_s[0] + max(floors_s[1:])",
        ("machines/costs/test_roofline.py",),
    ),
    Mutant(
        "machines/costs/alpha_beta.py",
        "messages one after another have one latency",
        "return AlphaBeta(rounds * self.latency_s, rounds * share * self.s_per_byte)",
        "return AlphaBeta(self.latency_s, rounds * share * self.s_per_byte)",
        ("machines/costs/test_collectives.py",),
    ),
    Mutant(
        "machines/costs/collectives.py",
        "a ring takes a round too many",
        "for i in range(devices)), devices - 1),)",
        "for i in range(devices)), devices),)",
        ("machines/costs/test_collectives.py",),
    ),
    Mutant(
        "machines/costs/rings.py",
        "a ring minds only the one before it",
        "                used[direction] += ring.bytes_per_s",
        "                used[direction] = ring.bytes_per_s",
        ("machines/costs/test_links.py",),
    ),
)

DATA_PARALLEL = (
    Mutant(
        "data_parallel/groups/exact_groups.py",
        "groups after the first start for nothing",
        "latest_s = within_s - len(cuts) * chain.startup_s",
        "latest_s = within_s - chain.startup_s",
        ("data_parallel/test_groups.py",),
    ),
    Mutant(
        "data_parallel/groups/ddp_buckets.py",
        "a bucket that has reached its cap takes one more",
        "if sum(each.bytes for each in filled) >= caps_bytes[",
        "if sum(each.bytes for each in filled) > caps_bytes[",
        ("data_parallel/test_ddp_buckets.py",),
    ),
    Mutant(
        "data_parallel/groups/bucket_caps.py",
        "caps in the order of the forward pass",
        "for before, last in reversed(groups))",
        "for before, last in groups)",
        ("data_parallel/test_ddp_buckets.py",),
    ),
    Mutant(
        "data_parallel/epochs/runs_file.py",
        "a training that did not get there is never tried for longer",
        "return epochs is not None or limit >= max_epochs",
        "return True",
        ("data_parallel/epochs/test_resuming.py",),
    ),
    Mutant(
        "frontend/torch/tracing/parameter_uses.py",
        "a module that is called twice holds its parameters",
        "if often[path] == 1 and any(",
        "if any(",
        ("data_parallel/test_planned_groups.py",),
    ),
)

PLANNING = (
    Mutant(
        "planning/constrain.py",
        "pins of one group may contradict each other",
        "            left = now\n",
        "            left = left | now\n",
        ("planning/test_constrain.py",),
    ),
    Mutant(
        "planning/pipeline/device_chains.py",
        "devices that pins tell apart are twins",
        "if marks.get(name) == marks.get(leader) and _are_twins(wiring, name, leader, names):",
        "if _are_twins(wiring, name, leader, names):",
        ("planning/pipeline/test_pinned_stages.py",),
    ),
    Mutant(
        "planning/placement_of_plan.py",
        "a warm start puts ops where they may not run",
        "if choice is not None and choice in allowed[op]:",
        "if choice is not None:",
        ("planning/test_warm_start.py",),
    ),
    Mutant(
        "planning/pipeline/stages/stage_split.py",
        "both directions of a transfer share a link for nothing",
        "return routes[0] + routes[1] if shared else np.maximum(*routes)",
        "return np.maximum(*routes)",
        ("planning/pipeline",),
    ),
    Mutant(
        "planning/pipeline/stages/stage_split.py",
        "gradients travel for nothing in the sum",
        "total + routes[stage][0] + routes[stage][1], np.inf)",
        "total + routes[stage][0], np.inf)",
        ("planning/pipeline",),
    ),
    Mutant(
        "planning/pipeline/stages/blocks.py",
        "a backward op may run ahead of the gradients that it reads",
        "return min([wanted, *gradients])",
        "return wanted",
        ("planning/pipeline",),
    ),
    Mutant(
        "planning/pipeline/evaluate.py",
        "stages update their weights in no time",
        "update_s=sum(times[op] for op in updates),",
        "update_s=0.0,",
        ("planning/pipeline/test_evaluate.py",),
    ),
    Mutant(
        "planning/pipeline/schedule/schedules.py",
        "zero-bubble puts off one backward for weights too many",
        "if len(waiting) > rank:",
        "if len(waiting) > rank + 1:",
        ("planning/pipeline/test_orders.py",),
    ),
    Mutant(
        "planning/coarsen/contract.py",
        "members without arithmetic are no parts",
        "if op.flops or op.bytes_accessed else []",
        "if op.flops else []",
        ("planning/coarsen/test_contract.py",),
    ),
    Mutant(
        "planning/coarsen/fuse.py",
        "a chain holds two ops with FLOPs",
        "if self.has_flops and op.flops > 0:",
        "if False:",
        ("planning/coarsen/test_groups.py", "planning/coarsen/test_granularity.py"),
    ),
    Mutant(
        "planning/under_dispatch.py",
        "single devices are no candidates",
        "for schedule in singles(problem):",
        "for schedule in singles(problem)[:0]:",
        ("planning/test_under_dispatch.py",),
    ),
    Mutant(
        "planning/assemble.py",
        "a plan above its bound is optimal",
        'status="feasible" if gap else "optimal",',
        'status="optimal",',
        ("planning/test_assemble.py",),
    ),
    Mutant(
        "planning/hybrid/scaling_efficiency.py",
        "the overhead of a ring saturates in its latency too",
        "return 1 / (1 + (workers - 1) * (self.bandwidth / workers + self.latency))",
        "return 1 / (1 + (workers - 1) * (self.bandwidth + self.latency) / workers)",
        ("planning/hybrid/test_efficiency.py",),
    ),
)
