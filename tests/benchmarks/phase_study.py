"""What each phase of the default method earned, family by family: shorter plans and higher bounds.

From the repository's root, with the environment's Python::

    python tests/benchmarks/phase_study.py
    python tests/benchmarks/phase_study.py --seconds 30 --seeds 3 --markdown docs/solver_phases.md

A phase's *plan* figure is by how much it shortened the best plan, in percent of the last one; its *bound* figure by how
much it raised the bound, in percent of the last one. Both are medians over the seeds. The starts begin from all ops on
one device, or from nothing where they fit on none. A phase that did not run, or brought less than 0.005 %, has a dash.
Phases take what time is left: on a busy machine the later ones earn less.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.families import FAMILIES
from benchmarks.machines import limited, linked, mixed
from solvers.serial_chains import tight_chain

import dlplacer as dp
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Topology
from dlplacer.solvers import default_method, phases
from dlplacer.solvers.instance.incumbent import Incumbent

PHASES: Mapping[str, str] = {
    "_start_compiled": "compiled starts",
    "_start": "starts",
    "search_elsewhere": "parts, options",
    "_bound": "bounds",
    "_solve_serial": "ops in a row",
    "_solve_segments": "segments",
    "_reconcile_segments": "master",
    "_anneal": "annealing",
    "_draw_anew": "segments anew",
    "_restart": "restarts",
    "_search_windows": "windows",
    "_solve_whole": "whole model",
    "_solve_exactly": "exact model",
}
"""Function of the default method → column; `_contract` and `_find_segments` improve nothing themselves.

Starts that come late count as search elsewhere, and rounds at the end as restarts and windows, of which they consist.
"""

_SEEN = 0.005


@dataclass(frozen=True)
class Case:
    """A graph on a machine under options."""

    name: str
    build: Callable[[], tuple[OpGraph, Topology]]
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class Study:
    """One solve: [column] → percent of the last makespan and of the last bound, and what it ended with."""

    plan: Mapping[str, float]
    bound: Mapping[str, float]
    gap: float
    seconds: float


def _shipped(graph: str, machine: str) -> Callable[[], tuple[OpGraph, Topology]]:
    return lambda: (dp.load_graph(graph), dp.load_topology(machine))


def _drawn(family: str, op_count: int, machine: Topology, slack: float | None = None, ccr: float = 1.0) -> Any:
    def build() -> tuple[OpGraph, Topology]:
        graph = FAMILIES[family](op_count, 1, ccr)
        types = machine.device_types
        times = [{name: (op.time_on("fast") or 0.0) * 2.0**at for at, name in enumerate(types)} for op in graph.ops]
        if len(types) > 1:
            ops = (
                dp.Op(op.id, op.kind, row, output_bytes=op.output_bytes)
                for op, row in zip(graph.ops, times, strict=True)
            )
            graph = OpGraph(tuple(ops), graph.edges, name=graph.name)
        return graph, machine if slack is None else limited(machine, graph, slack)

    return build


CASES = (
    Case("Inception-V3 inference, 2 GPUs, paper", _shipped("inception_v3-infer", "dgx1-v100-2gpu"), Options.paper()),
    Case(
        "Inception-V3 colocated, 2 GPUs, paper",
        _shipped("inception_v3-train-colocated", "dgx1-v100-2gpu"),
        Options.paper(),
    ),
    Case("Inception-V3 training, 2 GPUs", _shipped("inception_v3-train", "dgx1-v100-2gpu")),
    Case("Inception-V3 training, 8 GPUs", _shipped("inception_v3-train", "dgx1-v100-8gpu")),
    Case("random layers, 300 ops, 8 devices", _drawn("layered", 300, linked(8))),
    Case("series-parallel, 300 ops, 4 devices", _drawn("series_parallel", 300, linked(4))),
    Case("transformer, 300 ops, 4 devices", _drawn("transformer_like", 300, linked(4))),
    Case("U-Net, 300 ops, 4 devices, memory 1.3 x", _drawn("u_net", 300, linked(4), 1.3)),
    Case("pipeline, 120 ops, 4 unequal devices", _drawn("pipeline", 120, mixed(linked(4), "fast", "slow"))),
    Case("chain, 100 ops, 4 unequal devices, memory 1.1 x", lambda: tight_chain(1, 100, 4, 1.1)),
    Case("fork-join, 14 ops, 2 devices", _drawn("fork_join", 14, linked(2))),
)


def study(case: Case, seconds: float, seed: int) -> Study:
    """One solve with a look at the incumbent before and after every phase."""
    graph, machine = case.build()
    outer: list[Incumbent] = []
    shorter: dict[str, float] = defaultdict(float)
    higher: dict[str, float] = defaultdict(float)
    single: list[int] = []

    inside: list[str] = []

    def watched(phase: Callable[..., Any], column: str) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            # A restricted problem goes through phases of its own: what they earn is that search's.
            if inside:
                return phase(*arguments)
            known = outer[0]
            best, bound = known.best, known.bound
            inside.append(column)
            result = phase(*arguments)
            inside.pop()
            before = best.makespan if best is not None else (single or [0])[0]
            if known.best is not None and before:
                shorter[column] += before - known.best.makespan
            higher[column] += known.bound - bound
            return result

        return run

    def watched_single(instance: Any, known: Incumbent) -> Any:
        alone = find_single(instance, known)
        # What is known before any phase are the simplest of the bounds.
        higher["bounds"] += known.bound
        if alone is not None:
            single.append(alone.makespan)
        return alone

    def with_outer(problem: Any, instance: Any, incumbent: Incumbent, starts: Any) -> None:
        outer.append(incumbent)
        run_phases(problem, instance, incumbent, starts)

    run_phases, find_single = default_method._run_phases, default_method.single_device
    with ExitStack() as stack:
        for name, column in PHASES.items():
            module = default_method if hasattr(default_method, name) else phases
            stack.enter_context(patch.object(module, name, watched(getattr(module, name), column)))
        stack.enter_context(patch.object(default_method, "_run_phases", with_outer))
        stack.enter_context(patch.object(default_method, "single_device", watched_single))
        began = time.monotonic()
        plan = dp.place(graph, machine, case.options, time_limit_s=seconds, seed=seed).plan
    ended = outer[0]
    makespan = ended.best.makespan if ended.best is not None else 0
    return Study(
        {column: 100 * ticks / (makespan or 1) for column, ticks in shorter.items()},
        {column: 100 * ticks / (ended.bound or 1) for column, ticks in higher.items()},
        plan.gap,
        time.monotonic() - began,
    )


def table(found: Mapping[str, Sequence[Study]]) -> list[list[str]]:
    """Rows of text, the heads first: plan and bound of every phase, the gap and the seconds."""
    rows = [["graph and machine", *PHASES.values(), "gap", "seconds"]]
    for name, studies in found.items():
        cells = []
        for column in PHASES.values():
            plan, bound = (median(side.get(column, 0.0) for side in sides) for sides in _sides(studies))
            cells.append(f"{_percent(plan)} / {_percent(bound)}" if max(plan, bound) >= _SEEN else "–")
        gap, seconds = (median(values) for values in ([s.gap for s in studies], [s.seconds for s in studies]))
        rows.append([name, *cells, f"{100 * gap:.2f} %", f"{seconds:.1f}"])
    return rows


def _sides(studies: Sequence[Study]) -> tuple[list[Mapping[str, float]], list[Mapping[str, float]]]:
    return [one.plan for one in studies], [one.bound for one in studies]


def _percent(value: float) -> str:
    return f"{value:.2f}" if value >= _SEEN else "–"


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """The table as a page of docs/ includes it."""
    head, *body = rows
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in body)]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="time limit of each solve (10)")
    parser.add_argument("--seeds", type=int, default=1, help="solves of each case, of which medians are shown (1)")
    parser.add_argument("--markdown", type=Path, help="file to write the table to")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    found: dict[str, list[Study]] = {}
    for case in CASES:
        if arguments.only in case.name:
            found[case.name] = [study(case, arguments.seconds, seed) for seed in range(arguments.seeds)]
            print(f"  {case.name}: gap {100 * found[case.name][0].gap:.2f} %", file=sys.stderr)
    rows = table(found)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    print("each phase: plan shorter by / bound higher by, in percent of the last makespan and of the last bound")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if arguments.markdown is not None:
        arguments.markdown.write_text(as_markdown(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
