"""What a reader of a hybrid plan must know to trust it: claims that it does not make, and what it assumes."""

from collections.abc import Iterable, Iterator, Sequence

from dlplacer.core.graph import OpGraph
from dlplacer.planning.hybrid.hybrid_plan import BestOfDevices, HybridPlan, Strategy
from dlplacer.planning.pipeline.pipeline_workload import mixing_warnings


def plan_notes(plan: HybridPlan, graph: OpGraph | None = None) -> tuple[str, ...]:
    """A text for each: budgets without a comparison, parameter servers in place of workers, batch norm in pipelines.

    Parameters
    ----------
    graph
        Of a worker's step; None leaves batch norm out.
    """
    return (*_unknown_epochs(plan.budgets), *_servers(plan.budgets), *_mixing(plan.budgets, graph))


def _unknown_epochs(budgets: Sequence[BestOfDevices]) -> Iterator[str]:
    unknown = [each.devices for each in budgets if not each.is_compared]
    if unknown:
        yield (
            f"epochs of data parallelism are not known for {_ranges(unknown)} workers, so that no strategy is said to "
            "win against it there; measure them (dlplacer epochs, or dlplacer.data_parallel.measure_epochs), or give "
            "'critical_batch' in the epochs file"
        )


def _servers(budgets: Sequence[BestOfDevices]) -> Iterator[str]:
    served = [strategy for each in budgets if (strategy := each.data_parallel) is not None and strategy.step.servers]
    if served:
        yield (
            f"with {_ranges([each.devices for each in served])} devices the best data parallelism uses parameter "
            f"servers in place of workers (with {served[-1].devices}: {served[-1].label}); 'data parallel' stands for "
            "that"
        )


def _mixing(budgets: Sequence[BestOfDevices], graph: OpGraph | None) -> tuple[str, ...]:
    used: Iterable[Strategy | None] = (each.best for each in budgets)
    most = max((strategy.split.micro_batches for strategy in used if strategy is not None), default=1)
    return () if graph is None else mixing_warnings(graph, most)


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as text: ``3, 5 to 8``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
