"""Graph and machine in, plan out: `place`, `compare`, `pipeline`."""

from collections.abc import Callable, Iterable, Mapping
from threading import Event
from typing import TYPE_CHECKING, TypeAlias

from dlplacer.api.subjects import (
    GraphLike,
    OptionsLike,
    PlanLike,
    TopologyLike,
    graph_of,
    machine_of,
    options_of,
    plan_of,
)
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect, expect_call, expect_number, expect_text, expect_whole, refuse, tuple_of
from dlplacer.core.result import Result

if TYPE_CHECKING:
    from dlplacer.planning.compare import Comparison
    from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
    from dlplacer.solvers.instance.outcome import Progress

Pins: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
"""Op, module or glob → name or type of a device."""

Together: TypeAlias = Iterable[str | Iterable[str]]
"""Sets of ops that run on one device, each a pattern or several."""


def place(
    graph: GraphLike,
    topology: TopologyLike,
    options: OptionsLike = None,
    *,
    method: str = "ilp",
    time_limit_s: float = 60.0,
    gap: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
    on_progress: "Callable[[Progress], None] | None" = None,
    stop: Event | None = None,
    pins: Pins = (),
    colocate: Together = (),
    warm_start: PlanLike | None = None,
    issue: str = "none",
) -> Result:
    """The best plan found for a graph on a machine, with a lower bound and a gap.

    Parameters
    ----------
    graph
        An `OpGraph`, a `Job` (which is captured), the path of a graph or ONNX file, or the name of a graph that ships.
    topology
        A `Topology`, the path of its file, or the name of one that ships.
    options
        What to assume: `Options`, words such as ``"paper"`` or ``"shortest, joint"``, or a dict; None for defaults.
    method
        ``ilp``, or a heuristic: ``heft``, ``list``, ``single``, …; the bound is the best known to any of them.
    time_limit_s, gap, workers
        Seconds for the whole call; (makespan − bound) ÷ makespan at which to stop before; threads (None: the cores).
    on_progress
        Called with incumbent, bound and elapsed seconds.
    stop
        Ends early with the best plan once set, as the first Ctrl-C does where the caller does not handle SIGINT.
    pins, colocate
        Op, module or glob → device or type of device: ``{"Mixed_5b.*": "gpu1"}``; patterns, or lists of patterns, of
        ops that stay together: ``["Mixed_6a", "fc, head"]``.
    warm_start
        A plan, a result or a plan file to begin with, for method ``ilp``; of the same problem or of one like it.
    issue
        ``eager`` if one process of eager PyTorch issues all ops, where the topology gives no cost of issuing.

    Raises
    ------
    InputError
        If an argument cannot be meant, or an op has no time on an allowed device.
    InfeasibleError
        If no plan can exist; names the constraint to blame.
    NoPlanError
        If none was found in time.
    KeyboardInterrupt
        At a Ctrl-C before the first plan, or at a second one.

    Examples
    --------
    >>> import dlplacer as dp
    >>> result = dp.place("inception_v3-infer", "dgx1-v100-2gpu", "paper", method="heft")
    >>> result.status, result.plan.options.contention, result.speedup > 1.2
    ('feasible', 'none', True)
    """
    from dlplacer.planning.place import place as place_graph

    expect_solving(method, time_limit_s, gap, seed, workers, on_progress, stop)
    return place_graph(
        graph_of(graph),
        machine_of(topology),
        options_of(options),
        method=method,
        time_limit_s=time_limit_s,
        gap=gap,
        seed=seed,
        workers=workers,
        on_progress=on_progress or _ignore,
        stop=stop,
        pins=_pins(pins),
        colocate=_together(colocate),
        warm_start=None if warm_start is None else plan_of(warm_start, "warm_start"),
        issue=issue,
    )


def compare(
    graph: GraphLike,
    topology: TopologyLike,
    options: OptionsLike = None,
    *,
    methods: str | Iterable[str] | None = None,
    time_limit_s: float = 60.0,
    seed: int = 0,
    workers: int | None = None,
    on_progress: "Callable[[Progress], None] | None" = None,
    stop: Event | None = None,
    pins: Pins = (),
    colocate: Together = (),
    issue: str = "none",
) -> "Comparison":
    """What every method makes of a graph on a machine: the best first, judged by the best bound of all.

    Parameters
    ----------
    methods
        Names of methods, as a series or as one text: ``"heft, peft"``; None means all.
    time_limit_s
        Seconds for each method. The heuristics need far less.
    graph, topology, options, seed, workers, on_progress, stop, pins, colocate, issue
        As for `place`.

    Raises
    ------
    InputError, InfeasibleError
        As `place` does.

    Examples
    --------
    >>> import dlplacer as dp
    >>> comparison = dp.compare("inception_v3-infer", "dgx1-v100-2gpu", methods="single, heft, etf")
    >>> comparison.to_frame()["method"].tolist()[-1]
    'single'
    """
    from dlplacer.planning.compare import compare as compare_methods

    chosen: Iterable[str] | None = methods
    if isinstance(methods, str):
        chosen = [name for name in methods.replace(",", " ").split() if name]
    elif methods is not None:
        chosen = tuple_of("", "methods", methods, str, "names of methods")
    expect_solving("", time_limit_s, 0.0, seed, workers, on_progress, stop)
    return compare_methods(
        graph_of(graph),
        machine_of(topology),
        options_of(options),
        methods=chosen,
        time_limit_s=time_limit_s,
        seed=seed,
        workers=workers,
        on_progress=on_progress or _ignore,
        stop=stop,
        pins=_pins(pins),
        colocate=_together(colocate),
        issue=issue,
    )


def pipeline(
    graph: GraphLike,
    topology: TopologyLike,
    *,
    stages: int | None = None,
    micro_batches: int | None = None,
    schedule: str | None = None,
) -> "PipelinePlan":
    """The pipeline of least predicted step time: contiguous stages, and the order of micro-batches on their devices.

    Parameters
    ----------
    graph, topology
        As for `place`.
    stages
        Devices that take part, each with one stage (two when interleaved); None tries all numbers from 2.
    micro_batches
        Parts of the batch; None tries the divisors of the batch up to 16 for each device.
    schedule
        ``gpipe``, ``1f1b``, ``interleaved`` or ``zero-bubble``; None tries all.

    Raises
    ------
    InputError
        If an argument cannot be meant, or an op has no time on a device.
    InfeasibleError
        If no split fits the memories; names the least that the fullest stage needs.

    Examples
    --------
    >>> import dlplacer as dp
    >>> plan = dp.pipeline("inception_v3-infer", "dgx1-v100-2gpu", stages=2, micro_batches=4)
    >>> len(plan.stages), plan.micro_batches
    (2, 4)
    """
    from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
    from dlplacer.planning.pipeline.schedule.schedules import SCHEDULES

    expect_whole("", optional=True, stages=stages, micro_batches=micro_batches)
    expect_text("", optional=True, schedule=schedule)
    if schedule is not None and schedule not in SCHEDULES:
        raise InputError(f"schedule is {schedule!r}; use one of {', '.join(SCHEDULES)}")
    for name, count in (("stages", stages), ("micro_batches", micro_batches)):
        if count is not None and count < 1:
            raise InputError(f"{name} is {count}; it must be at least 1")
    return plan_pipeline(
        graph_of(graph), machine_of(topology), stages=stages, micro_batches=micro_batches, schedule=schedule
    )


def expect_solving(
    method: object,
    time_limit_s: object,
    gap: object,
    seed: object,
    workers: object,
    on_progress: object = None,
    stop: object = None,
) -> None:
    """Return if the arguments of a solve are of their types; whether their values can be is for planning to say.

    Raises
    ------
    InputError
        Otherwise, naming the first that is not.
    """
    expect_text("", method=method)
    expect_number("", time_limit_s=time_limit_s, gap=gap)
    expect_whole("", seed=seed)
    expect_whole("", optional=True, workers=workers)
    expect_call("", optional=True, on_progress=on_progress)
    if stop is not None:
        expect("", "stop", stop, Event, "a threading.Event or None")


def _pins(pins: Pins) -> tuple[tuple[str, str], ...]:
    pairs = pins.items() if isinstance(pins, Mapping) else pins
    found = tuple_of("", "pins", tuple(pairs) if isinstance(pins, Mapping) else pairs, tuple, "(pattern, device) pairs")
    for pair in found:
        if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise refuse("", "pins", pair, "a dict from op, module or glob to device: {'Mixed_5b.*': 'gpu1'}")
    return found


def _together(colocate: Together) -> tuple[str | tuple[str, ...], ...]:
    entries = tuple_of("", "colocate", colocate, object, "patterns, or lists of patterns")
    return tuple(
        entry if isinstance(entry, str) else tuple_of("colocate", "a set", entry, str, "patterns of ops or modules")
        for entry in entries
    )


def _ignore(progress: "Progress") -> None:
    pass
