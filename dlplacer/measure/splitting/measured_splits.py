"""Splits chosen by measurement: choose, profile, learn, choose again."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event

from dlplacer.measure.splitting.choose_splits import SplitChoice, choose_splits
from dlplacer.measure.splitting.estimated_times import measured_overhead, on_time_base_of
from dlplacer.measure.splitting.evaluate_splits import Evaluator, Prospect
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.profile.op_times import profile_ops, with_measured_times

_WORTH_PROFILING = 0.002
_ROUNDS, _STEPS = 2, 5
"""How often is profiled at most, and for how many timed steps."""


def measured_choice(
    evaluate: Evaluator,
    devices: Sequence[RuntimeDevice],
    time_limit_s: float = 30.0,
    stop: Event | None = None,
    on_progress: Callable[[Prospect], None] = lambda prospect: None,
) -> SplitChoice:
    """The splits of the shortest step among those that were profiled, or none; the graph has measured times.

    Times are on the base of the whole graph (`on_time_base_of`). After each profile the next round chooses with the
    times of the parts and joins that were measured; it ends when that promises nothing more.

    Parameters
    ----------
    time_limit_s
        For choosing, all rounds together; profiling comes on top.
    """
    whole = evaluate.whole
    whole_s = evaluate(()).makespan_s
    best = SplitChoice((), whole, whole_s, whole_s, 0)
    begin: tuple[str, ...] = ()
    tried = 0
    for _ in range(_ROUNDS):
        choice = choose_splits(evaluate, time_limit_s / _ROUNDS, stop, begin, on_progress)
        tried += choice.evaluated
        if choice.split_s > (1 - _WORTH_PROFILING) * best.split_s or (stop is not None and stop.is_set()):
            break
        captured = evaluate.step.captured(choice.splits)
        times = profile_ops(evaluate.step.job, captured, devices, _STEPS)
        graph = on_time_base_of(whole, with_measured_times(captured.graph, times))
        found_s = evaluate.makespan_s(graph)
        if found_s < best.split_s:
            best = replace(choice, graph=graph, split_s=found_s)
        for table in evaluate.tables:
            table.learn(graph)
        evaluate.overhead = max(measured_overhead(whole, graph, table.device_type) for table in evaluate.tables)
        evaluate.seen.clear()
        begin = tuple(split.op for split in best.splits)
    return replace(best, evaluated=tried)
