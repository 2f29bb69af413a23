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
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.families import FAMILIES
from benchmarks.suite import SETS, Instance

from dlplacer.core.errors import InfeasibleError, InternalError, NoPlanError
from dlplacer.core.options import Options
from dlplacer.planning.place import place
from dlplacer.solvers.methods import DEFAULT_METHOD, METHODS

_QUICK_LIMIT_S = 5.0
_TOLERANCE, _ROUNDING = 1e-9, 1e-4
_OVERRUN, _OVERRUN_S = 1.1, 0.5


@dataclass(frozen=True)
class Run:
    """One method on one instance; without a plan its makespan is infinite, and `status` says why."""

    method: str
    makespan_s: float
    lower_bound_s: float
    rounding_s: float
    wall_s: float
    status: str

    @property
    def least_s(self) -> float:
        """The makespan less what rounding may have added to it, of which no more than `_ROUNDING` is believed."""
        if math.isinf(self.makespan_s):
            return math.inf
        return self.makespan_s * (1 - _TOLERANCE) - min(self.rounding_s, _ROUNDING * self.makespan_s)


def defects(name: str, limit_s: float, runs: Sequence[Run]) -> Iterator[str]:
    """What must not be on an instance; see the top of this file."""
    highest = max(runs, key=lambda run: run.lower_bound_s)
    for run in runs:
        label = f"{name}: {run.method}"
        if run.status.startswith(InternalError.__name__):
            yield f"{label}: {run.status}"
        if run.wall_s > _OVERRUN * limit_s + _OVERRUN_S:
            yield f"{label} took {run.wall_s:.1f} s with a limit of {limit_s:g} s"
        if run.rounding_s > _ROUNDING * run.makespan_s:
            yield f"{label} calls {run.rounding_s:.3g} s of {run.makespan_s:.9g} s rounding"
        if highest.lower_bound_s * (1 - _TOLERANCE) > run.makespan_s:
            yield f"{label} found {run.makespan_s:.9g} s, {highest.method}'s bound is {highest.lower_bound_s:.9g} s"
    default = next(run for run in runs if run.method == DEFAULT_METHOD)
    baseline_s = min(run.makespan_s for run in runs if run is not default)
    if default.least_s > baseline_s * (1 + _TOLERANCE):
        yield f"{name}: a baseline found {baseline_s} s, {DEFAULT_METHOD} {default.makespan_s} s"


def solve(instance: Instance, limit_s: float, workers: int | None) -> list[Run]:
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
            told = f"{type(error).__name__}: {error}"
            runs.append(Run(method, math.inf, 0.0, 0.0, time.perf_counter() - began, told))
    return runs


def row(instance: Instance, runs: Sequence[Run]) -> dict[str, object]:
    """The figures of an instance, by which the tables are made."""
    default = next(run for run in runs if run.method == DEFAULT_METHOD)
    others = [run for run in runs if run is not default]
    bound_s, baseline_s = max(run.lower_bound_s for run in runs), min(run.makespan_s for run in others)
    gap = 1.0 if math.isinf(default.makespan_s) else 1 - default.lower_bound_s / default.makespan_s
    limits = ((21, "10-21"), (40, "22-40"), (150, "41-150"), (math.inf, "more"))
    return {
        "name": instance.name,
        "family": instance.family,
        "ops": next(name for limit, name in limits if instance.op_count <= limit),
        "ccr": instance.ccr,
        "machine": instance.machine,
        "all": "all",
        "ratio": default.makespan_s / baseline_s if max(default.makespan_s, baseline_s) < math.inf else math.nan,
        "open": all(run.least_s > bound_s for run in others),
        "proven": default.status == "optimal" and gap <= _ROUNDING,
        "gap": gap,
    }


def geometric_mean(values: pd.Series) -> float:
    """exp of the mean logarithm, without missing and infinite values."""
    return float(np.exp(np.log(values[np.isfinite(values)]).mean()))


def tables(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """By family, size, ratio, machine, and for all."""
    rows["open_ratio"] = rows["ratio"].where(rows["open"])
    for key in ("family", "ops", "ccr", "machine", "all"):
        yield rows.groupby(key).agg(
            instances=("ratio", "size"),
            ratio=("ratio", geometric_mean),
            worst=("ratio", "max"),
            open=("open", "sum"),
            ratio_of_open=("open_ratio", geometric_mean),
            proven=("proven", "mean"),
            mean_gap=("gap", "mean"),
        )


def main() -> int:
    """Runs the suite; 1 if there are defects, else 0."""
    parser = argparse.ArgumentParser(description="Runs every method on the benchmark instances.")
    parser.add_argument("--set", choices=sorted(SETS), default="full", dest="chosen", help="which instances (full)")
    parser.add_argument("--quick", action="store_const", const="quick", dest="chosen", help="the same as --set quick")
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES), help="only this family; may be repeated")
    parser.add_argument("--time-limit", type=float, help="seconds per method and instance (5 if quick, else 10 to 60)")
    parser.add_argument("--workers", type=int, help="threads of the solver (the cores)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the runs to this file")
    given = parser.parse_args()
    rows, runs, wrong = [], [], []
    for instance in SETS[given.chosen]:
        if given.family is None or instance.family in given.family:
            limit_s = given.time_limit or (_QUICK_LIMIT_S if given.chosen == "quick" else instance.limit_s)
            found = solve(instance, limit_s, given.workers)
            rows.append(row(instance, found))
            runs += [{"name": instance.name, **asdict(run)} for run in found]
            wrong += defects(instance.name, limit_s, found)
            print(f"{instance.name:60} ratio {rows[-1]['ratio']:.3f}  gap {rows[-1]['gap']:.2%}", flush=True)
    every = pd.DataFrame(runs)
    best = every.groupby("name")["makespan_s"].transform("min")
    every["to_best"] = every["makespan_s"] / best
    methods = every.groupby("method", sort=False).agg(
        to_best=("to_best", geometric_mean),
        without_plan=("makespan_s", lambda values: int(np.isinf(values).sum())),
        mean_s=("wall_s", "mean"),
    )
    for table in (*tables(pd.DataFrame(rows)), methods):
        print("", table.to_string(float_format="{:.3f}".format), sep="\n")
    print(f"\nDEFECTS: {len(wrong)}", *wrong, sep="\n  ")
    if given.json is not None:
        every.to_json(given.json, orient="records", indent=1)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
