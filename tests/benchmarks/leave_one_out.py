"""The gain from each phase, heuristic and bound of the default method: solves without it against solves with all.

From the repository's root, with the environment's Python::

    python tests/benchmarks/leave_one_out.py --rows rows.jsonl
    python tests/benchmarks/leave_one_out.py --rows rows.jsonl --table-only --markdown docs/leave_one_out.md

Every solve is a process with one worker, and its time limit counts processor seconds, so other work on the machine
changes little. Rows already in the file of rows are not solved again. The table has a line per part that was left out:
the geometric mean of makespan ÷ makespan of the full method, the worst of these ratios and its problem, the same mean
for the bounds, and how many proofs were lost or won.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.families import FAMILIES
from benchmarks.machines import limited, linked, mixed, timed_on
from benchmarks.suite import Instance
from solvers.serial_chains import tight_chain

import dlplacer as dp
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Topology
from dlplacer.solvers.local_search.compile_ahead import compile_all

Problem = tuple[OpGraph, Topology, Options]
ALL = "all parts"
GAP = 1e-6
SPREAD = 2
"""Percent between makespans of one problem above which the page names it."""


def equal_layers(count: int) -> OpGraph:
    """Layers of four branches of two ops, joined by a norm."""
    ops, edges = [dp.Op("norm0", "norm", 10e-6)], []
    for layer in range(count):
        norm, after = f"norm{layer}", f"norm{layer + 1}"
        ops.append(dp.Op(after, "norm", 10e-6))
        for branch in range(4):
            up, down = f"up{layer}.{branch}", f"down{layer}.{branch}"
            ops += [dp.Op(up, "matmul", 40e-6), dp.Op(down, "matmul", 30e-6)]
            edges += [
                dp.Edge(norm, up, 300_000, tensor=norm),
                dp.Edge(up, down, 600_000),
                dp.Edge(down, after, 300_000),
            ]
    return OpGraph(tuple(ops), tuple(edges), name="equal layers")


def _shipped(graph: str, machine: str, options: Options | None = None) -> Callable[[], Problem]:
    return lambda: (dp.load_graph(graph), dp.load_topology(machine), options or Options())


def _drawn(*arguments: Any, **more: Any) -> Callable[[], Problem]:
    return lambda: (*Instance(*arguments, **more).build(), Options())


def _unequal(family: str, count: int, slack: float) -> Callable[[], Problem]:
    def build() -> Problem:
        machine = mixed(linked(3), "fast", "slow", "tiny")
        graph = timed_on(FAMILIES[family](count, 0, 1.0), machine)
        return graph, limited(machine, graph, slack), Options()

    return build


def _parallel_layers(count: int, slack: float) -> Problem:
    """Layers of four parallel ops with weights, there and back, on four unequal devices that hardly hold them."""
    speeds = {"a": 1.0, "b": 1.6, "c": 2.5, "d": 4.0}
    ops, edges = list[dp.Op](), list[dp.Edge]()

    def add(name: str, time_s: float, **more: Any) -> str:
        ops.append(dp.Op(name, "x", {device: time_s / speed for device, speed in speeds.items()}, **more))
        return name

    def layer(last: str, name: str, scale: float, phase: str, weight_bytes: int) -> str:
        parts = range(4)
        made = [
            add(f"{name}.{part}", scale * (4e-3 + 8e-4 * part), phase=phase, weight_bytes=weight_bytes, colocate=block)
            for part, block in zip(parts, (f"{name[1:]}.{part}" for part in parts), strict=True)
        ]
        edges.extend(dp.Edge(last, op, 2_000_000, tensor=last) for op in made)
        norm = add(f"{name} norm", 1e-3, phase=phase)
        edges.extend(dp.Edge(op, norm, 500_000) for op in made)
        return norm

    last, weight_bytes = add("first", 1e-3, phase="forward"), 10**8
    for number in range(count):
        last = layer(last, f"f{number}", 1.0, "forward", weight_bytes)
    for number in reversed(range(count)):
        last = layer(last, f"b{number}", 2.0, "backward", 0)
    devices = tuple(dp.Device(name, name, memory_bytes=round(count * weight_bytes * slack)) for name in speeds)
    links = tuple(dp.Link(a, b, 1e9, 1e-5) for a, b in combinations(speeds, 2))
    return dp.OpGraph(tuple(ops), tuple(edges)), dp.Topology(devices, (), links), Options()


CASES: Mapping[str, Callable[[], Problem]] = {
    "Inception-V3 inference, 2 V100, paper": _shipped("inception_v3-infer", "dgx1-v100-2gpu", Options.paper()),
    "Inception-V3 colocated, 2 V100, paper": _shipped(
        "inception_v3-train-colocated", "dgx1-v100-2gpu", Options.paper()
    ),
    "Inception-V3 training, 2 V100": _shipped("inception_v3-train", "dgx1-v100-2gpu"),
    "Inception-V3 training, 4 V100": _shipped("inception_v3-train", "dgx1-v100-4gpu"),
    "Inception-V3 training, 8 V100": _shipped("inception_v3-train", "dgx1-v100-8gpu"),
    "equal layers 300, 4 V100": lambda: (equal_layers(33), dp.load_topology("dgx1-v100-4gpu"), Options()),
    "fork-join 14, ring": _drawn("fork_join", 14, 1.0, "ring-4"),
    "fork-join 40, linked 2": _drawn("fork_join", 40, 1.0, "linked-2"),
    "in-tree 30, star": _drawn("in_tree", 30, 1.0, "star-4"),
    "out-tree 150, tree": _drawn("out_tree", 150, 1.0, "tree-8"),
    "series-parallel 300, tree": _drawn("series_parallel", 300, 10.0, "tree-8"),
    "series-parallel 300, linked 3": _drawn("series_parallel", 300, 1.0, "linked-3"),
    "stencil 150, star, memory 1.2": _drawn("stencil", 150, 1.0, "star-4", slack=1.2),
    "pipeline 150, mixed": _drawn("pipeline", 150, 1.0, "mixed-linked-4"),
    "layered 100, linked 2": _drawn("layered", 100, 1.0, "linked-2"),
    "layered 1000, star": _drawn("layered", 1000, 1.0, "star-4"),
    "inception-like 150, linked 3": _drawn("inception_like", 150, 1.0, "linked-3"),
    "transformer-like 300, linked 3": _drawn("transformer_like", 300, 1.0, "linked-3"),
    "two towers 300, linked 3": _drawn("two_tower", 300, 0.1, "linked-3"),
    "mixture of experts 300, linked 3": _drawn("mixture_of_experts", 300, 1.0, "linked-3"),
    "U-Net 100, mixed, memory 1.5": _drawn("u_net", 100, 1.0, "mixed-linked-4", slack=1.5),
    "U-Net 21, ring, memory 1.2": _drawn("u_net", 21, 1.0, "ring-4", slack=1.2),
    "recurrent 150, ring": _drawn("recurrent", 150, 1.0, "ring-4"),
    "chain 100, 4 unequal, memory 1.1": lambda: (*tight_chain(1, 100, 4, 1.1), Options()),
    "transformer-like 300, 3 unequal, memory 1.2": _unequal("transformer_like", 300, 1.2),
    "parallel layers 24, 4 unequal, memory 1.15": lambda: _parallel_layers(24, 1.15),
    "layered 100, 3 unequal, memory 1.5": _unequal("layered", 100, 1.5),
}


def parts() -> list[str]:
    """Everything that may be left out."""
    from dlplacer.solvers.bounds import BOUNDS
    from dlplacer.solvers.methods import HEURISTICS
    from dlplacer.solvers.phases import PHASES

    phases = [phase.name for phase in PHASES if not phase.is_needed]
    return [*phases, *HEURISTICS, *(f"bound: {name}" for name in BOUNDS)]


def solve(case: str, without: str, seconds: float, seed: int) -> dict[str, Any]:
    """One solve in this process, whose clock is the processor's from here on."""
    from dlplacer.planning.place import place
    from dlplacer.solvers.bounds import BOUNDS

    graph, machine, options = CASES[case]()
    named = [] if without == ALL else without.split(" + ")
    bounds = [name for name in named if name.startswith("bound: ")]
    for name in bounds:
        del BOUNDS[name.removeprefix("bound: ")]
    left_out = [name for name in named if name not in bounds]
    time.monotonic = time.process_time
    plan = place(graph, machine, options, time_limit_s=seconds, seed=seed, workers=1, without=left_out).plan
    return {"makespan_s": plan.makespan_s, "lower_bound_s": plan.lower_bound_s, "gap": plan.gap}


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["case"], row["without"], row["seconds"], row["seed"]


def _wanted(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    names = [ALL, *(arguments.without or parts())]
    for seed in range(arguments.seeds):
        for without in names:
            for case in CASES:
                if arguments.only in case:
                    yield {"case": case, "without": without, "seconds": arguments.seconds, "seed": seed}


def _solved(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its results, from a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(row)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(ended.stdout) if ended.returncode == 0 else {"error": ended.stderr.strip().splitlines()[-1:]}
    return {**row, **found}


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Lines of text, the heads first."""
    found = {_key(row): row for row in rows if "makespan_s" in row}
    lines = [["without", "solves", "makespan", "worst", "where", "bound", "proofs lost", "proofs won"]]
    groups: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = defaultdict(list)
    for (case, without, seconds, seed), row in found.items():
        if without != ALL and (case, ALL, seconds, seed) in found:
            groups[without].append((row, found[case, ALL, seconds, seed]))
    for without, pairs in groups.items():
        ratios = [row["makespan_s"] / known["makespan_s"] for row, known in pairs]
        bounds = [row["lower_bound_s"] / known["lower_bound_s"] for row, known in pairs]
        worst = max(range(len(pairs)), key=ratios.__getitem__)
        lost = sum(known["gap"] < GAP <= row["gap"] for row, known in pairs)
        won = sum(row["gap"] < GAP <= known["gap"] for row, known in pairs)
        mean, mean_bound = (math.exp(sum(map(math.log, values)) / len(values)) for values in (ratios, bounds))
        where = pairs[worst][0]["case"] if ratios[worst] > 1.0005 else "–"
        lines.append(
            [
                without,
                str(len(pairs)),
                f"{mean:.4f}",
                f"{ratios[worst]:.3f}",
                where,
                f"{mean_bound:.4f}",
                str(lost),
                str(won),
            ]
        )
    return lines


def page(rows: Sequence[Mapping[str, Any]], lines: Sequence[Sequence[str]]) -> str:
    """The page of the docs: what was solved, the table, the problems."""
    head, *body = (" | ".join(line) for line in lines)
    rule = " | ".join("---" for _ in lines[0])
    told = {key: sorted({row[key] for row in rows}) for key in ("seconds", "seed")}
    seconds = ", ".join(f"{each:g}" for each in told["seconds"])
    problems = sorted({row["case"] for row in rows}, key=list(CASES).index)
    body_text = "".join(f"| {line} |\n" for line in (head, rule, *body))
    seeds = ", ".join(map(str, told["seed"]))
    ends: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if "makespan_s" in row:
            ends[row["case"]].append(row["makespan_s"])
    apart = {case: 100 * (max(ends[case]) / min(ends[case]) - 1) for case in problems}
    spread = "; ".join(f"{case} ({percent:.0f} %)" for case, percent in apart.items() if percent >= SPREAD)
    return f"""# What each part of the solver earns

Each row compares the default method without one phase, heuristic or bound with the full method. Every solve has one
worker and {seconds} s of processor time; seed {seeds}. Columns: number of solves; geometric mean of makespan ÷
makespan of the full method; the worst of these ratios and its problem; the same mean for lower bounds; proofs lost and
won. `tests/benchmarks/leave_one_out.py` makes this page.

{body_text}
Phases run until the time is up: a phase that is left out leaves its time to the others, and any change alters the
course of a search. A single ratio says little if all these solves of a problem differ by {SPREAD} % or more: {spread}.

The {len(problems)} problems: {"; ".join(problems)}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="processor seconds of each solve (10)")
    parser.add_argument("--seeds", type=int, default=1, help="solves of each case (1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (1)")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument(
        "--without", nargs="*", default=[], help="parts to leave out (each); several at once: 'restarts + annealing'"
    )
    parser.add_argument(
        "--rows", type=Path, default=Path("leave_one_out.jsonl"), help="file of rows, a JSON object each"
    )
    parser.add_argument("--markdown", type=Path, help="page to write")
    parser.add_argument("--table-only", action="store_true", help="show and write what the file of rows has")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        row = json.loads(arguments.one)
        print(json.dumps(solve(row["case"], row["without"], row["seconds"], row["seed"])))
        return
    if not arguments.table_only:
        compile_all()
    known = [json.loads(line) for line in arguments.rows.read_text().splitlines()] if arguments.rows.exists() else []
    seen = {_key(row) for row in known}
    wanted = [] if arguments.table_only else [row for row in _wanted(arguments) if _key(row) not in seen]
    with ThreadPoolExecutor(arguments.jobs) as pool, arguments.rows.open("a", encoding="utf-8") as file:
        for row in pool.map(_solved, wanted):
            known.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    lines = table(known)
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if arguments.markdown is not None:
        arguments.markdown.write_text(page(known, lines), encoding="utf-8")


if __name__ == "__main__":
    main()
