"""The planner's result: strategies to train on some devices, and the best one for every number of devices."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dlplacer.core.abilities import Shown
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect, short_name
from dlplacer.core.table import Table
from dlplacer.planning.hybrid.step_times import StepTime
from dlplacer.planning.hybrid.workers import WorkerSplit
from dlplacer.planning.result import FITS_NONE

if TYPE_CHECKING:
    from dlplacer.planning.hybrid.epochs import CriticalBatch


@dataclass(frozen=True)
class Strategy:
    """Data-parallel workers of M devices each that exchange gradients with one codec and transport.

    `devices`: Number of devices in use. `degree`: M, the number of devices per worker. `effort_s`: Step time × steps ×
    epochs for a data set of one mini-batch, which ranks strategies for every data set.
    """

    devices: int
    degree: int
    split: WorkerSplit
    step: StepTime
    epochs: float

    @property
    def workers(self) -> int:
        """The number of data-parallel workers: devices ÷ M."""
        return self.devices // self.degree

    @property
    def effort_s(self) -> float:
        """T · E ÷ workers: seconds to converge ÷ mini-batches in the data set (Pal et al. 2019, eq. 1)."""
        return self.step.step_s * self.epochs / self.workers

    def time_s(self, mini_batches: float) -> float:
        """Seconds to converge, C = T · S · E (eq. 1), for a data set of this number of mini-batches."""
        return self.effort_s * mini_batches

    @property
    def label(self) -> str:
        """A short text: ``32 x 2``, with the codec and the period if they are not the defaults."""
        parts = [f"{self.workers} x {self.degree}"]
        if self.split.micro_batches > 1:
            parts.append(f"{self.split.micro_batches} micro-batches")
        if self.step.codec != "none":
            parts.append(f"{self.step.codec}/{self.step.transport}")
        if self.step.elastic:
            parts.append("elastic")
        if self.step.period > 1:
            parts.append(f"every {self.step.period} steps")
        return ", ".join(parts)

    def to_dict(self, reference_s: float | None, mini_batches: float | None) -> dict[str, Any]:
        """The strategy as JSON: times in seconds, speedup over the effort of one device."""
        return {
            "devices": self.devices,
            "workers": self.workers,
            "model_parallel": self.degree,
            "model_parallel_speedup": self.split.speedup,
            "model_parallel_method": self.split.method,
            "micro_batches": self.split.micro_batches,
            **asdict(self.step),
            "epochs": self.epochs,
            "time_s": None if mini_batches is None else self.time_s(mini_batches),
            "speedup": None if reference_s is None else reference_s / self.effort_s,
        }


@dataclass(frozen=True)
class BestOfDevices:
    """The best strategies within a budget of devices.

    `data_parallel`, `hybrid`: The best strategy on exactly `devices` devices, with workers of one device or of several;
    None if there is none. `best_data_parallel`, `best_hybrid`: The best on at most `devices` devices. `by_degree`:
    Model-parallel degree → the best on exactly `devices` devices. `is_compared`: True if the epochs with `devices`
    workers are known; else ratios are None. `is_best_compared`: True if the epochs up to `devices` workers are known.
    """

    devices: int
    data_parallel: Strategy | None
    hybrid: Strategy | None
    best_data_parallel: Strategy | None
    best_hybrid: Strategy | None
    by_degree: Mapping[int, Strategy] = field(default_factory=dict)
    is_compared: bool = True
    is_best_compared: bool = True

    @classmethod
    def of(
        cls, devices: int, strategies: Sequence[Strategy], smaller: "BestOfDevices | None", is_compared: bool
    ) -> "BestOfDevices":
        """The best of `strategies`, which use exactly `devices` devices, and of the strategies for smaller budgets."""
        by_degree: dict[int, Strategy] = {}
        for strategy in strategies:
            best = _best([by_degree.get(strategy.degree), strategy])
            by_degree[strategy.degree] = best or strategy
        alone = by_degree.get(1)
        several = _best([strategy for degree, strategy in by_degree.items() if degree > 1])
        before = (None, None) if smaller is None else (smaller.best_data_parallel, smaller.best_hybrid)
        bests = _best([before[0], alone]), _best([before[1], several])
        is_best_compared = is_compared and (smaller is None or smaller.is_best_compared)
        return cls(devices, alone, several, *bests, by_degree, is_compared, is_best_compared)

    @property
    def best(self) -> Strategy | None:
        """The best strategy on at most this number of devices."""
        return _best([self.best_data_parallel, self.best_hybrid])

    @property
    def idle(self) -> int:
        """The number of devices that the best strategy does not use."""
        return 0 if self.best is None else self.devices - self.best.devices

    @property
    def against_same_devices(self) -> float | None:
        """The hybrid's speedup over data parallelism on the same number of devices; above 1 the hybrid wins (eq. 6)."""
        return _ratio(self.data_parallel, self.hybrid) if self.is_compared else None

    @property
    def is_hybrid_win(self) -> bool:
        """True if a hybrid on all devices beats data parallelism on all or, if that is impossible, on fewer devices."""
        if self.hybrid is None or not self.is_compared:
            return False
        if self.data_parallel is None and not self.is_best_compared:
            return False
        rival = self.data_parallel or self.best_data_parallel
        return rival is None or self.hybrid.effort_s < rival.effort_s

    @property
    def against_best_data_parallel(self) -> float | None:
        """The best strategy's speedup over the best data parallelism on at most this number of devices."""
        return _ratio(self.best_data_parallel, self.best) if self.is_best_compared else None


@dataclass(frozen=True)
class Crossover:
    """A number of devices at which the best strategy gets another model-parallel degree."""

    devices: int
    workers: int
    degree: int


@dataclass(frozen=True, repr=False)
class HybridPlan(Shown):
    """The best strategies for every budget from 1 device on.

    `reference_s`: Effort of one device, the basis of speedups; None if the model fits on no single device.
    """

    budgets: tuple[BestOfDevices, ...]
    reference_s: float | None
    mini_batches: float | None = None
    name: str = ""
    warnings: tuple[str, ...] = ()
    epochs_fit: "CriticalBatch | None" = None

    def __repr__(self) -> str:
        best = self.budgets[-1].best
        faster = self.speedup(best)
        gain = FITS_NONE if faster is None else f"{faster:.2f}x"
        strategy = "none" if best is None else f"{best.label}, {gain}"
        win = "nowhere" if self.first_win is None else f"from {self.first_win} devices on"
        return (
            f"<HybridPlan {short_name(self.name)}: 1 to {len(self.budgets)} devices; best with all: {strategy}; "
            f"hybrid wins {win}>"
        )

    def at(self, devices: int) -> BestOfDevices:
        """The best strategies for this number of devices."""
        expect("", "devices", devices, int, "a number of devices")
        if not 1 <= devices <= len(self.budgets):
            raise InputError(f"{devices} devices: the plan is for 1 to {len(self.budgets)}")
        return self.budgets[devices - 1]

    def speedup(self, strategy: Strategy | None) -> float | None:
        """Time to converge on one device ÷ time with `strategy`; None if `strategy` or `reference_s` is None."""
        return None if strategy is None or self.reference_s is None else self.reference_s / strategy.effort_s

    def relative(self, strategy: Strategy) -> float:
        """The speedup in a chart: over one device or, if none fits the model, over the smallest budget that trains."""
        first = next(each.best for each in self.budgets if each.best is not None)
        return (self.reference_s or first.effort_s) / strategy.effort_s

    def lines(self, budgets: Sequence[BestOfDevices]) -> dict[str, list[tuple[int, Strategy | None]]]:
        """Name of a line in a chart → (devices, strategy on exactly this number, or None) for these budgets."""
        found = {"data parallelism": [(each.devices, each.data_parallel) for each in budgets]}
        for degree in sorted({degree for each in budgets for degree in each.by_degree if degree > 1}):
            points = [(each.devices, each.by_degree.get(degree)) for each in budgets]
            found[f"hybrid, {degree} devices per worker"] = points
        return found

    def speedup_needed(self, devices: int, degree: int = 2) -> float | None:
        """Speedup SU^M above which workers of `degree` devices beat data parallelism on equally many devices (eq. 6).

        None if there is no data-parallel strategy for this number of devices, or for this number ÷ `degree`.
        """
        if not 1 <= degree <= devices or devices % degree:
            return None
        alone, fewer = self.at(devices).data_parallel, self.at(devices // degree).data_parallel
        return _ratio(fewer, alone)

    @property
    def chart_label(self) -> str:
        """The axis label for `relative`."""
        if self.reference_s is not None:
            return "speedup over one device (time to converge)"
        least = next(each.devices for each in self.budgets if each.best is not None)
        return f"speedup over {least} devices (the model {FITS_NONE})"

    @property
    def first_win(self) -> int | None:
        """Least number of devices at which a hybrid wins (`BestOfDevices.is_hybrid_win`); None if none does."""
        return next((each.devices for each in self.budgets if each.is_hybrid_win), None)

    @property
    def crossovers(self) -> tuple[Crossover, ...]:
        """The budgets at which the best strategy's model-parallel degree changes, starting with the first budget."""
        found: list[Crossover] = []
        for budget in self.budgets:
            best = budget.best
            if best is not None and (not found or found[-1].degree != best.degree):
                found.append(Crossover(budget.devices, best.workers, best.degree))
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer hybrid --json`` prints: times in seconds, ratios above 1 if a hybrid wins."""
        return {
            "name": self.name,
            "devices": len(self.budgets),
            "best": self._strategy(self.budgets[-1].best),
            "first_win_devices": self.first_win,
            "crossovers": [vars(each) for each in self.crossovers],
            "budgets": [self._budget(each) for each in self.budgets],
            "warnings": list(self.warnings),
            **({} if self.epochs_fit is None else {"epochs_fit": self.epochs_fit.to_dict()}),
        }

    @property
    def table(self) -> Table:
        """A row per budget: best strategy, speedups and ratios."""
        rows = (
            (
                each.devices,
                *((None,) * 4 if best is None else (best.label, each.idle, best.step.step_s, best.epochs)),
                *(self.speedup(one) for one in (best, each.best_data_parallel, each.best_hybrid)),
                each.against_same_devices,
                each.against_best_data_parallel,
                self.speedup_needed(each.devices),
            )
            for each in self.budgets
            for best in (each.best,)
        )
        heads = ("devices", "best|best strategy", "idle", "step_s|step|seconds", "epochs||number", "speedup||times")
        more = ("data_parallel_speedup|data parallel|times", "hybrid_speedup|hybrid|times")
        last = ("against_same_devices|vs same|times", "against_best_data_parallel|vs best DP|times")
        needed = "speedup_needed_of_2|2 devices need|times"
        return Table.described(rows, *heads, *more, *last, needed, title=self.name)

    def _budget(self, budget: BestOfDevices) -> dict[str, Any]:
        return {
            "devices": budget.devices,
            "idle": budget.idle,
            "best": self._strategy(budget.best),
            "data_parallel": self._strategy(budget.data_parallel),
            "hybrid": self._strategy(budget.hybrid),
            "against_same_devices": budget.against_same_devices,
            "against_best_data_parallel": budget.against_best_data_parallel,
            "speedup_needed": {
                str(degree): needed
                for degree in sorted({2, *budget.by_degree} - {1})
                if (needed := self.speedup_needed(budget.devices, degree)) is not None
            },
        }

    def _strategy(self, strategy: Strategy | None) -> dict[str, Any] | None:
        return None if strategy is None else strategy.to_dict(self.reference_s, self.mini_batches)


def _best(strategies: Sequence[Strategy | None]) -> Strategy | None:
    """The strategy of least time to converge; ties go to fewer devices, then to the lower degree."""
    known = [strategy for strategy in strategies if strategy is not None]
    return min(known, key=lambda each: (each.effort_s, each.devices, each.degree), default=None)


def _ratio(base: Strategy | None, other: Strategy | None) -> float | None:
    return None if base is None or other is None else base.effort_s / other.effort_s
