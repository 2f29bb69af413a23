"""Many devices: `hybrid`, `advise_minibatch`, `advise_gpus`, `advise_servers`, `groups`, `epochs`."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Unpack

from dlplacer.api.jobs import fake_job, imported, is_entry, job_options, user_code
from dlplacer.api.parameters import StepOptions, checked
from dlplacer.api.subjects import (
    GraphLike,
    OptionsLike,
    TopologyLike,
    graph_of,
    is_job,
    machine_of,
    options_of,
    silent,
    topology_of,
)
from dlplacer.core.abilities import Shown
from dlplacer.core.errors import InputError
from dlplacer.core.table import Table
from dlplacer.core.topology import Topology
from dlplacer.data_parallel.groups.graph_groups import Groups, groups_of
from dlplacer.machines.costs.gradient_codecs import CODECS, exchanges
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.constrain import Together, constrained, together_of
from dlplacer.planning.hybrid import scaling as formulas
from dlplacer.planning.hybrid.minibatch import Batches, StepChoices, plan_batches, step_choices
from dlplacer.planning.hybrid.worker_layout import WorkerLayout, boxes_for

if TYPE_CHECKING:
    from dlplacer.data_parallel import MeasuredEpochs
    from dlplacer.planning.hybrid.epochs import EpochsLike
    from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
    from dlplacer.planning.hybrid.step_times import StepTimes
    from dlplacer.planning.hybrid.workers import ModelParallel, Placed

_MOST_DEVICES = 65536


@checked
def hybrid(
    graph: GraphLike,
    topology: TopologyLike,
    devices: int,
    epochs: "EpochsLike" = None,
    options: OptionsLike = None,
    *,
    network: float | str | None = None,
    scaling_efficiency: float | None = None,
    degrees: Sequence[int] | None = None,
    speedups: Mapping[int, float] | None = None,
    codecs: Sequence[str] | None = None,
    overlap: bool = True,
    colocate: Together = (),
    time_limit_s: float = 10.0,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Callable[[int, int], None] = silent,
    stop: Event | None = None,
    **step: Unpack[StepOptions],
) -> "HybridPlan":
    """The best strategy for every number of devices up to a budget: data parallelism, model parallelism or both.

    Raises InfeasibleError, with the reason, if no strategy trains the model.

    Examples
    --------
    >>> plan = dp.hybrid("inception_v3-train", "dgx1-v100-4gpu", 4, {1: 4, 4: 6}, speedups={2: 1.7})
    >>> plan.at(4).best.workers
    2
    """
    from dlplacer.planning.hybrid.epochs import epochs_of
    from dlplacer.planning.hybrid.hybrid import DEGREES, HybridProblem, plan_hybrid, plan_notes
    from dlplacer.planning.hybrid.step_times import ClosedForm, fastest_work
    from dlplacer.planning.hybrid.workers import Placed, SpeedupTable

    if devices > _MOST_DEVICES:
        raise InputError(f"devices is {devices}; give at most {_MOST_DEVICES}, because each budget up to it is planned")
    unused = {"network": network, "codecs": codecs, "overlap": None if overlap else "false"}
    for name, value in unused.items() if scaling_efficiency is not None else ():
        if value is not None:
            raise InputError(f"{name} has no effect if scaling_efficiency gives the step times; drop it")
    closed = None if scaling_efficiency is None else ClosedForm(formulas.constant_efficiency(scaling_efficiency))
    box, known = machine_of(topology), epochs_of(epochs)
    timed = with_times(constrained(graph_of(graph, step=step), box, colocate=together_of(colocate)), box)
    machine = box if closed is not None else boxes_for(box, devices, None if network is None else float(network))
    work = fastest_work(timed, box)
    known.require_mini_batch(work.mini_batch)
    chosen = tuple(degrees or speedups or DEGREES)
    assumed = options_of(options)
    assumed.require_makespan("hybrid")
    solving: dict[str, Any] = {"options": assumed, "time_limit_s": time_limit_s, "seed": seed, "workers": workers}
    placed = None if speedups else Placed(timed, work.step_s, stop, **solving)
    problem = HybridProblem(
        replace(work, mini_batch=work.mini_batch or known.mini_batch),
        known.efficiency,
        SpeedupTable(dict(speedups or {})) if placed is None else _either(placed),
        machine,
        _exchanges(machine, codecs, overlap) if closed is None else closed,
        chosen,
        placed,
        known.samples,
        f"{timed.name or 'graph'} on {devices} devices of {machine.name}",
    )
    plan = plan_hybrid(problem, devices, on_progress)
    notes = tuple(plan_notes(plan, timed, problem.efficiency))
    return replace(plan, warnings=notes, epochs_fit=problem.efficiency.fit())


def _either(placed: "Placed") -> "ModelParallel":
    """Divisions of the model over a worker's devices, by placement and by pipeline."""
    from dlplacer.planning.hybrid.workers import PipelinedWorkers, splits_of

    sources = (placed, PipelinedWorkers(placed.graph, placed.single_s))
    return lambda degree, machine: [found for source in sources for found in splits_of(source(degree, machine))]


def _exchanges(machine: Topology, codecs: Sequence[str] | None, overlap: bool) -> "StepTimes":
    from dlplacer.planning.hybrid.step_times import OnMachine, memory_rate

    return OnMachine(WorkerLayout(machine), exchanges(memory_rate(machine), codecs or CODECS), overlap=overlap)


@checked
def advise_minibatch(
    graph: GraphLike,
    topology: TopologyLike,
    *,
    batch_sizes: Sequence[int] | None = None,
    dataset_size: int | None = None,
    epochs: Any = None,
    on_progress: Callable[[int, int], None] = silent,
    **step: Unpack[StepOptions],
) -> Batches:
    """Plans of mini-batches that fit on the machine's first device, by training time, with modules to recompute.

    Examples
    --------
    >>> [plan] = dp.advise_minibatch("inception_v3-train", "dgx1-v100-2gpu").plans
    >>> plan.batch, plan.recomputed
    (32, ())
    """
    from dlplacer.planning.hybrid.epochs import epochs_of_batches
    from dlplacer.planning.hybrid.step_times import work_of

    machine = topology_of(topology)
    fitted = machine.devices[0]
    if fitted.memory_bytes is None:
        raise InputError(f"device {fitted.id!r} has no memory_bytes, so every mini-batch fits; add it to the topology")
    named = isinstance(graph, str) and is_entry(graph)
    if batch_sizes is not None and not named:
        raise InputError(f"batch_sizes needs module:callable, which can be captured again; {graph!r} does not name one")
    steps: dict[int, StepChoices] = {}
    sizes: Sequence[int | None] = batch_sizes or [step.get("batch_size")]
    for number, size in enumerate(sizes):
        on_progress(number, len(sizes))
        made = with_times(graph_of(graph, step={**step, "batch_size": size}), machine)
        samples = size or work_of(made, fitted.type).mini_batch
        if samples is None:
            raise InputError(f"graph {made.name!r} does not say how many samples a step takes; capture its model")
        steps[samples] = step_choices(made, fitted.type)
    plans = plan_batches(steps, fitted.memory_bytes, dataset_size, epochs_of_batches(epochs))
    return Batches(fitted, tuple(plans))


@checked
def advise_gpus(
    *,
    overhead: float | None = None,
    speedup: float | None = None,
    efficiency: float | None = None,
    gpus: int | None = None,
) -> dict[str, float]:
    """Quantities of lemma 3.1 (Zou et al. 2017), from overhead and speedup, overhead and GPUs, or efficiency and GPUs.

    Examples
    --------
    >>> dp.advise_gpus(overhead=0.1, speedup=3)["gpus"]
    4
    """
    return formulas.gpus_for(overhead, speedup, efficiency, gpus)


@checked
def advise_servers(
    load_bytes: float, bytes_per_s: float, compute_s: float, workers: int | None = None
) -> dict[str, float]:
    """The least number of parameter servers (loaders if `workers` is None) whose transfers hide behind computation.

    Examples
    --------
    >>> dp.advise_servers(0.25e9, 1e9, 2.0, workers=8)["servers"]
    2
    """
    return formulas.servers_for(load_bytes, bytes_per_s, compute_s, workers)


@checked
def groups(
    graph: GraphLike,
    topology: TopologyLike,
    *,
    direction: str = "forward",
    cap_bytes: float | None = None,
    **step: Unpack[StepOptions],
) -> Groups:
    """Layers grouped so that computation hides the transfers of parameters (forward) or gradients (backward).

    Examples
    --------
    >>> found = dp.groups("inception_v3-train", "pcie-4gpu", direction="backward", cap_bytes=25 * 2**20)
    >>> max(found.group_bytes) <= 25 * 2**20
    True
    """
    machine, job = topology_of(topology), graph if is_job(graph) else None
    if isinstance(graph, str) and is_entry(graph):
        job = fake_job(graph, **job_options(step))
    made = with_times(graph_of(graph, step=step), machine)
    return groups_of(made, machine, direction, None if cap_bytes is None else int(cap_bytes), job)


@dataclass(frozen=True)
class _Named:
    """A function with the name that identifies it in checkpoints."""

    name: str
    call: Callable[..., Any]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.call(*arguments, **options)


def _training(name: str) -> _Named:
    """The training that ``module:callable`` names; it takes the number of workers and the seed."""

    def train(workers: int, seed: int, /, **options: Any) -> Iterator[float]:
        with user_code(f"{name!r} failed with {workers} workers"):
            yield from imported(name)(workers, seed, **options)

    return _Named(name, train)


@dataclass(frozen=True)
class Epochs(Shown):
    """Measured epochs, first with exact gradients at every step, then per codec or period; and their file's content."""

    measured: "tuple[MeasuredEpochs, ...]"
    content: Mapping[str, Any]

    @property
    def table(self) -> Table:
        """A row per batch: its mini-batches in a step, and its median epochs with each codec or period."""
        rows = [{"mini_batches": one.workers} for one in self.measured[0].measurements]
        medians = [{one.workers: one.median for one in each.measurements} for each in self.measured]
        labelled = list(zip((each.label for each in self.measured), medians, strict=True))
        return Table.of(
            [{**row, **{label: found.get(row["mini_batches"]) for label, found in labelled}} for row in rows]
        )

    def to_dict(self) -> dict[str, Any]:
        """The content of the epochs file."""
        return dict(self.content)


@checked
def epochs(
    training: str | Callable[..., Iterator[float]],
    batches: Sequence[int],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    max_epochs: int = 100,
    seeds: int = 1,
    codecs: Sequence[str] = (),
    periods: Sequence[int] = (),
    checkpoint: str | PathLike[str] | None = None,
    mini_batch: int | None = None,
    samples: int | None = None,
    on_progress: Callable[[int, int, int, float], None] = silent,
) -> Epochs:
    """The epochs that every batch size needs, with workers emulated on one device, as input for `hybrid`.

    Examples
    --------
    >>> found = dp.epochs("my_training:train", [1, 2, 4], at_most=0.1)  # doctest: +SKIP
    >>> found.save("epochs.json")  # doctest: +SKIP
    """
    from dlplacer.data_parallel.epochs.measured_epochs import measure_epochs, options_of

    named = _training(training) if isinstance(training, str) else training
    resolved = imported(training) if isinstance(training, str) else training
    variants: list[tuple[str | None, int]] = [(None, 1)]
    variants += [(codec, 1) for codec in dict.fromkeys(codecs) if codec != "none"]
    variants += [(None, period) for period in dict.fromkeys(periods) if period > 1]
    for variant in variants:
        options_of(resolved, *variant)
    if at_most is not None and at_least is not None:
        raise InputError("at_most and at_least are both given; keep one of them")
    if not math.isfinite(at_most or at_least or 0.0):
        raise InputError("the goal is not finite, so every metric or none reaches it; give a finite number")
    goal = None
    if at_least is not None:
        goal = _Named(f"at least {at_least:g}", lambda metric: metric >= at_least)
    elif at_most is not None:
        goal = _Named(f"at most {at_most:g}", lambda metric: metric <= at_most)
    limits: dict[str, Any] = {"reached": goal, "max_epochs": max_epochs, "seeds": range(seeds)}
    limits |= {"checkpoint": None if checkpoint is None else Path(checkpoint), "on_progress": on_progress}
    measured = tuple(measure_epochs(named, batches, codec=codec, period=period, **limits) for codec, period in variants)
    exact, *others = measured
    if not any(exact.points().values()):
        tried = ", ".join(map(str, batches))
        raise InputError(f"no batch of {tried} reached the goal; give an easier goal or more than {max_epochs} epochs")
    name = training if isinstance(training, str) else getattr(training, "__name__", "training")
    return Epochs(measured, exact.to_dict(name, mini_batch, samples, others))
