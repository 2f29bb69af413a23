"""Mutants of the problem and of its solvers."""

from mutants.mutant import Mutant

PROBLEM = (
    Mutant(
        "problem/dispatch.py",
        "an op is issued before its inputs have been",
        "if queue and queue[0].receives not in unsent",
        "if queue",
        ("problem/test_dispatch.py",),
    ),
    Mutant(
        "problem/dispatch.py",
        "turns of cores bound nothing",
        "min(self.seconds[device], time_s)",
        "0.0",
        ("planning/test_under_dispatch.py",),
    ),
    Mutant(
        "problem/simulate.py",
        "a core waits for its own turn too",
        "start_s = asked_s if other == here else max(",
        "start_s = max(",
        ("problem/test_dispatch_of_machines.py",),
    ),
    Mutant(
        "problem/segment_timing.py",
        "cut-through takes the rate of the widest link",
        "narrowest = min(number(link.bytes_per_s) * link.count for link in links)",
        "narrowest = max(number(link.bytes_per_s) * link.count for link in links)",
        ("problem",),
    ),
    Mutant(
        "core/topology.py",
        "a half-duplex link is two",
        'return hop if self.duplex == "full" else (min(hop), max(hop))',
        "return hop",
        ("problem", "check"),
    ),
    Mutant(
        "problem/live_memory.py",
        "a copy takes room from the end of its transfer on",
        "        target, begin, _ = lifetime.stops[-1]",
        "        target, _, begin = lifetime.stops[-1]",
        ("problem",),
    ),
)

SOLVERS = (
    Mutant(
        "solvers/bounds/memory_assignment.py",
        "devices that memory forces into use are joined for nothing",
        "for d in range(instance.device_count)) + path * tree",
        "for d in range(instance.device_count))",
        ("solvers/bounds/test_memory_assignment.py",),
    ),
    Mutant(
        "solvers/heuristics/contiguous.py",
        "the next device of a contiguous placement takes over for nothing",
        "    table = best + crossing\n",
        "    table = best\n",
        ("solvers/heuristics/test_contiguous.py",),
    ),
    Mutant(
        "solvers/decomposition/series.py",
        "what a series takes as a whole is dropped from the bound",
        "                total += max(0, self.incumbents[series.instance].bound - own[series.segments])\n",
        "                pass\n",
        ("solvers/decomposition",),
    ),
    Mutant(
        "solvers/decomposition/segments.py",
        "ops that only the barrier waits for hide the cut ops",
        "    instance = _without_leaves(instance)\n",
        "",
        (
            "solvers/test_strength.py",
            "solvers/decomposition",
        ),
    ),
    Mutant(
        "solvers/heuristics/randomized_restarts.py",
        "schedules are not justified",
        "                found = justified(instance, found)",
        "                found = found",
        ("solvers/test_strength.py", "solvers/heuristics", "solvers/test_default_method.py"),
    ),
    Mutant(
        "solvers/decomposition/segment_rows.py",
        "idle ends of a segment cost nothing",
        "                if 0 < lost < FAR:",
        "                if False:",
        ("solvers/decomposition", "solvers/test_default_method.py"),
    ),
    Mutant(
        "solvers/bounds/one_machine.py",
        "blocks may be interrupted by what comes later",
        "            heappush(there, (tail, left - spent))",
        "            end = max(end, now - tail)",
        ("solvers/bounds",),
    ),
    Mutant(
        "solvers/bounds/one_machine.py",
        "one block too few shares a device",
        "sums[k * count + 1] - sums[k * count - k]",
        "sums[k * count + 1] - sums[k * count - k + 1]",
        ("solvers/bounds",),
    ),
    Mutant(
        "solvers/bounds/heads_tails.py",
        "a head waits for the earliest of its predecessors",
        "head[op] = max(head[op], end + arc.least)",
        "head[op] = max(head[op], arc.least)",
        ("solvers/bounds",),
    ),
    Mutant(
        "solvers/bounds/heads_tails.py",
        "a bound that is too high: inputs always travel",
        "head[op] = max(head[op], _least_over_sets(entries))",
        "head[op] = max(head[op], entries[0][0])",
        ("solvers/bounds",),
    ),
    Mutant(
        "solvers/heuristics/heft.py",
        "HEFT takes the device of the earliest begin",
        "choice = end if ahead is None else end + ahead[op][device], end, device, begin",
        "choice = begin if ahead is None else end + ahead[op][device], end, device, begin",
        ("solvers/heuristics",),
    ),
    Mutant(
        "solvers/ilp/constraints.py",
        "eq. 13 leaves out the rows",
        "            model.add(used <= capacity // unit)",
        "            pass",
        ("solvers/ilp", "solvers/test_against_brute_force.py"),
    ),
    Mutant(
        "solvers/ilp/constraints.py",
        "eq. 10 without the least delay",
        "            model.add(variables.start[target] >= end + levels[0])\n",
        "            model.add(variables.start[target] >= end)\n",
        ("solvers/ilp", "solvers/test_against_brute_force.py"),
    ),
    Mutant(
        "solvers/instance/symmetry.py",
        "devices of unequal memory can change places",
        "if instance.capacity[a] != instance.capacity[b] or instance.component[a] != instance.component[b]:",
        "if instance.component[a] != instance.component[b]:",
        ("solvers/instance", "solvers/test_optimum_properties.py", "solvers/test_options_against_brute_force.py"),
    ),
)
