"""The benchmark suite: every method on every instance, geometric means per family.

From the repository's root, with the environment's Python::

    python tests/benchmarks/run_suite.py --quick
    PYTHONPATH=tests python -m benchmarks.run_suite --set full --json results.json

On two cores ``--quick`` takes about a minute, ``--set small`` three, ``--set full`` up to an hour. The paper's options
hold. `place` checks every plan against the specification before it hands it out; here the methods are also held
against each other. What fails is listed under DEFECTS, and the exit status is then 1: a plan of the default method that
is worse than a baseline's, a bound of one method above a plan of another, an internal error, a plan whose reported
rounding is more than 1e-4 of its makespan, a time limit overrun by more than a tenth and half a second.

A *baseline* is any method but the default. *Ratio* is the default method's makespan ÷ the best baseline's; *open* are
the instances whose best baseline is not proven optimal by any method's bound. *Gap* is (makespan − bound) ÷ makespan of
the default method, *proven* the share of its plans that are optimal but for rounding.
"""

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.families import FAMILIES
from benchmarks.suite import SETS, Instance

from dlplacer.core.errors import InfeasibleError, InternalError, NoPlanError
from dlplacer.core.options import Options
from dlplacer.planning.place import place
from dlplacer.solvers.methods import METHODS

DEFAULT = next(iter(METHODS))
_QUICK_LIMIT_S = 5.0
_TOLERANCE = 1e-9
_ROUNDING = 1e-4
_OVERRUN = 1.1
_OVERRUN_S = 0.5


@dataclass(frozen=True)
class Run:
    """One method on one instance; `makespan_s` is None where it found no plan, and `error` says why."""

    method: str
    makespan_s: float | None
    lower_bound_s: float
    rounding_s: float
    wall_s: float
    status: str = "none"
    error: str = ""

    @property
    def least_s(self) -> float:
        """The makespan less what rounding may have added to it, of which no more than `_ROUNDING` is believed."""
        if self.makespan_s is None:
            return math.inf
        return self.makespan_s * (1 - _TOLERANCE) - min(self.rounding_s, _ROUNDING * self.makespan_s)

    @property
    def gap(self) -> float:
        """(makespan − bound) ÷ makespan; 1 without a plan."""
        return 1.0 if self.makespan_s is None else (self.makespan_s - self.lower_bound_s) / self.makespan_s


@dataclass(frozen=True)
class Row:
    """All methods on one instance."""

    instance: Instance
    limit_s: float
    runs: tuple[Run, ...]

    @property
    def default(self) -> Run:
        """The default method's run."""
        return next(run for run in self.runs if run.method == DEFAULT)

    @property
    def baseline_s(self) -> float | None:
        """The best baseline's makespan; None if none found a plan."""
        found = [run.makespan_s for run in self.runs if run.method != DEFAULT and run.makespan_s is not None]
        return min(found, default=None)

    @property
    def ratio(self) -> float | None:
        """The default method's makespan ÷ the best baseline's; None if one of the two is missing."""
        if self.default.makespan_s is None or self.baseline_s is None:
            return None
        return self.default.makespan_s / self.baseline_s

    @property
    def proven(self) -> bool:
        """Whether the default method proved its plan optimal."""
        return self.default.status == "optimal" and self.default.gap <= _ROUNDING

    @property
    def is_open(self) -> bool:
        """Whether the best baseline is not proven optimal by any bound."""
        bound_s = max(run.lower_bound_s for run in self.runs)
        return all(run.makespan_s is None or run.least_s > bound_s for run in self.runs if run.method != DEFAULT)

    def defects(self) -> Iterator[str]:
        """What must not be; see the top of this file."""
        highest = max(self.runs, key=lambda run: run.lower_bound_s)
        for run in self.runs:
            label = f"{self.instance.name}: {run.method}"
            if run.error.startswith(InternalError.__name__):
                yield f"{label}: {run.error}"
            if run.wall_s > _OVERRUN * self.limit_s + _OVERRUN_S:
                yield f"{label} took {run.wall_s:.1f} s with a limit of {self.limit_s:g} s"
            if run.makespan_s is not None and run.rounding_s > _ROUNDING * run.makespan_s:
                yield f"{label} calls {run.rounding_s:.3g} s of {run.makespan_s:.9g} s rounding"
            if run.makespan_s is not None and highest.lower_bound_s * (1 - _TOLERANCE) > run.makespan_s:
                yield f"{label} found {run.makespan_s:.9g} s, {highest.method}'s bound is {highest.lower_bound_s:.9g} s"
        if self.baseline_s is not None and self.default.least_s > self.baseline_s * (1 + _TOLERANCE):
            yield f"{self.instance.name}: a baseline found {self.baseline_s} s, {DEFAULT} {self.default.makespan_s} s"


def solve(instance: Instance, limit_s: float, workers: int | None) -> Row:
    """All methods on an instance, each within the limit."""
    graph, machine = instance.build()
    runs = []
    for method in METHODS:
        began = time.perf_counter()
        try:
            plan = place(graph, machine, Options.paper(), method=method, time_limit_s=limit_s, workers=workers).plan
            figures = plan.makespan_s, plan.lower_bound_s, plan.rounding_s
            runs.append(Run(method, *figures, time.perf_counter() - began, plan.status))
        except (NoPlanError, InfeasibleError, InternalError) as error:
            text = f"{type(error).__name__}: {error}"
            runs.append(Run(method, None, 0.0, 0.0, time.perf_counter() - began, error=text))
    return Row(instance, limit_s, tuple(runs))


def geometric_mean(values: Sequence[float]) -> float | None:
    """exp of the mean logarithm; None without values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of one line of the tables."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    opened = [row.ratio for row in rows if row.ratio is not None and row.is_open]
    return {
        "instances": len(rows),
        "ratio": geometric_mean(ratios),
        "worst_ratio": max(ratios, default=None),
        "open": sum(row.is_open for row in rows),
        "open_ratio": geometric_mean(opened),
        "proven": sum(row.proven for row in rows) / len(rows),
        "mean_gap": sum(row.default.gap for row in rows) / len(rows),
    }


def summaries(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, Any]]]:
    """Table → line → figures: by family, size, ratio, machine, and for all."""
    keys: dict[str, Callable[[Instance], str]] = {
        "family": lambda instance: instance.family,
        "ops": lambda instance: _size_class(instance.op_count),
        "ccr": lambda instance: f"{instance.ccr:g}",
        "machine": lambda instance: instance.machine,
        "all": lambda instance: "all",
    }
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for table, key in keys.items():
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(key(row.instance), []).append(row)
        tables[table] = {line: summary(members) for line, members in groups.items()}
    return tables


def by_method(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Method → geometric mean of its makespan ÷ the best of all, how often it found no plan, mean seconds."""
    table = {}
    for number, method in enumerate(METHODS):
        ratios = []
        for row in rows:
            makespan_s = row.runs[number].makespan_s
            if makespan_s is not None:
                ratios.append(makespan_s / min(run.makespan_s for run in row.runs if run.makespan_s is not None))
        table[method] = {
            "to_best": geometric_mean(ratios),
            "no_plan": len(rows) - len(ratios),
            "mean_s": sum(row.runs[number].wall_s for row in rows) / len(rows),
        }
    return table


def _size_class(op_count: int) -> str:
    limits = ((21, "10-21"), (40, "22-40"), (150, "41-150"))
    return next((name for limit, name in limits if op_count <= limit), "more")


def _print_tables(rows: Sequence[Row]) -> None:
    for table, lines in summaries(rows).items():
        print(f"\n{table:20} instances   ratio   worst    open   ratio of open   proven   mean gap")
        for line, figures in lines.items():
            print(
                f"{line:20} {figures['instances']:9} {_shown(figures['ratio'])} {_shown(figures['worst_ratio'])} "
                f"{figures['open']:7} {_shown(figures['open_ratio'], 15)} {figures['proven']:8.0%} "
                f"{figures['mean_gap']:10.2%}"
            )
    print(f"\n{'method':20} ÷ best of all   without a plan   mean seconds")
    for method, figures in by_method(rows).items():
        print(f"{method:20} {_shown(figures['to_best'], 13)} {figures['no_plan']:16} {figures['mean_s']:14.2f}")


def _shown(value: float | None, width: int = 7) -> str:
    return f"{'-' if value is None else f'{value:.3f}':>{width}}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Runs every method on the benchmark instances.")
    parser.add_argument("--set", choices=sorted(SETS), default="full", dest="chosen", help="which instances (full)")
    parser.add_argument("--quick", action="store_const", const="quick", dest="chosen", help="the same as --set quick")
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES), help="only this family; may be repeated")
    parser.add_argument("--time-limit", type=float, help="seconds per method and instance (5 if quick, else 10 to 60)")
    parser.add_argument("--workers", type=int, help="threads of the solver (the cores)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the suite; 1 if there are defects, else 0."""
    given = _parser().parse_args(arguments)
    began = time.perf_counter()
    rows: list[Row] = []
    for instance in SETS[given.chosen]:
        if given.family is None or instance.family in given.family:
            limit_s = given.time_limit or (_QUICK_LIMIT_S if given.chosen == "quick" else instance.limit_s)
            rows.append(solve(instance, limit_s, given.workers))
            run = rows[-1].default
            print(
                f"{instance.name:60} ratio {_shown(rows[-1].ratio)}  gap {run.gap:7.2%}  {run.wall_s:6.1f} s",
                flush=True,
            )
    defects = [defect for row in rows for defect in row.defects()]
    _print_tables(rows)
    print(f"\nDEFECTS: {len(defects)}", *defects, sep="\n  ")
    print(f"\n{time.perf_counter() - began:.0f} s in all")
    if given.json is not None:
        _write(given.json, rows, defects)
    return 1 if defects else 0


def _write(path: Path, rows: Sequence[Row], defects: Sequence[str]) -> None:
    content = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rows": [{"name": row.instance.name, **asdict(row)} for row in rows],
        "summaries": summaries(rows),
        "methods": by_method(rows),
        "defects": defects,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
