"""Entry point of `fit`: from a decoder, a machine and an objective to layers per device, a bound and reasons."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from dlplacer.core.abilities import Shown
from dlplacer.core.errors import InfeasibleError, InputError, NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.record import Bytes, Record, Seconds, record
from dlplacer.core.topology import Device, Topology
from dlplacer.core.units import format_bytes, format_seconds
from dlplacer.machines.costs.roofline import rates_of
from dlplacer.planning.fit.chain import ChainCosts, chain_of
from dlplacer.planning.fit.decoder import Decoder, Serving
from dlplacer.planning.fit.layer_flow import best_placement, is_experts
from dlplacer.planning.fit.splits import SPLITS, Split
from dlplacer.planning.fit.step_graph import step_graph, steps_in, streaming, units_of, usable, with_copies
from dlplacer.planning.fit.tensor_parallel import divided
from dlplacer.planning.place import place
from dlplacer.solvers.heuristics.contiguous import Floats

_ROUNDED = 1e-6
"""Relative error that ticks of the layer flow cause in a bound."""

ASSUMED = Options(memory="sum")
"""Memory is a sum, because weights and cache stay throughout, and the small memory of vectors is reserved."""


@record(frozen=True)
class Judged(Record):
    """The times of another split, for comparison with the fit.

    `value_s`, `time_per_token_s`: Seconds of the objective and of a step of decoding; None if the split does not fit.
    `max_context`: The longest context with which the split fits; 0 if there is none.
    """

    name: str
    layers: tuple[int, ...]
    value_s: Seconds | None
    time_per_token_s: Seconds | None
    max_context: int


@record(frozen=True)
class Help(Record):
    """A change of machine or workload, with its relative gain over the fit.

    `value_s`: Seconds of the objective with the change, for the same placement or, if better, a contiguous split.
    """

    change: str
    kind: str
    value_s: Seconds
    gain: float


@record(frozen=True)
class Share(Record):
    """A device's part of a fit: its layers, its bytes, and its seconds in a step of the objective.

    `others`: Ids of ops without a layer, and of MLPs and experts that may be apart from their layer.
    """

    device: str
    layers: tuple[int, ...]
    others: tuple[str, ...]
    weight_bytes: Bytes
    cache_bytes: Bytes
    capacity_bytes: Bytes | None
    time_s: Seconds


@record(frozen=True, repr=False)
class Fit(Shown, Record):
    """A placement of a decoder's layers on a machine; `save` writes the file of its plan.

    `plan`: The checked plan of an average step of the objective. `value_s`: Seconds of the objective per token, prompt
    or request, or between two steps in steady state. `lower_bound_s`: A lower bound on `value_s` for all placements.
    `decode_s`, `prefill_s`: Seconds of a decoding step and of a batch of prompts. `binds`: The resource that helps most
    if doubled (cache: if halved): ``bandwidth``, ``memory``, ``cache``, ``link`` or ``compute``; for the longest
    context, ``cache``, or ``model`` if the model's own limit binds. `max_context`: Tokens of the longest context with
    which some contiguous split fits; 0 if no split does.
    """

    plan: Plan
    serving: Serving
    value_s: Seconds
    lower_bound_s: Seconds
    decode_s: Seconds
    prefill_s: Seconds
    binds: str
    max_context: int
    working_bytes: Bytes
    alternatives: tuple[Judged, ...] = ()
    helps: tuple[Help, ...] = ()
    notes: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(share.layers)} on {share.device}" for share in self.shares)
        return (
            f"<Fit of {self.plan.graph.name!r}: {counts}; {format_seconds(self.value_s)}, gap {100 * self.gap:.2f} %>"
        )

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the file of the plan and return its path."""
        return self.plan.save(path)

    @property
    def status(self) -> str:
        """``optimal`` if the value equals its bound, which holds for all placements; else ``feasible``."""
        return "optimal" if self.value_s * (1 - _ROUNDED) <= self.lower_bound_s else "feasible"

    @property
    def gap(self) -> float:
        """(value − bound) ÷ value; 0 if the fit is optimal."""
        return 0.0 if self.status == "optimal" else max(0.0, 1 - self.lower_bound_s / self.value_s)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all sequences of a batch: steps in series or, for ``throughput``, in steady state."""
        return self.serving.batch / (self.value_s if self.serving.objective == "throughput" else self.decode_s)

    @property
    def shares(self) -> tuple[Share, ...]:
        """The share of each device with ops, in the machine's order."""
        scheduled = self.plan.scheduled
        found = []
        for device in self.plan.topology.devices:
            ops = [self.plan.graph.op(name) for name in self.plan.order[device.id]]
            ops.sort(key=lambda op: self.plan.graph.index[op.id])
            if ops:
                layers = dict.fromkeys(
                    op.meta["layer"] for op in ops if op.meta["layer"] is not None and not is_experts(op)
                )
                others = tuple(op.id for op in ops if op.kind != "layer" and op.kind != "attention")
                spent = sum(scheduled[op.id].end_s - scheduled[op.id].start_s for op in ops)
                held = sum(op.weight_bytes for op in ops), sum(op.state_bytes for op in ops)
                capacity = device.meta.get("capacity_bytes", device.memory_bytes)
                found.append(Share(device.id, tuple(layers), others, *held, capacity, spent))
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer fit --json`` prints."""
        names = ("status", "value_s", "tokens_per_s", "prefill_s", "gap", "lower_bound_s", "binds", "max_context")
        shares = [{**vars(share), "working_bytes": self.working_bytes} for share in self.shares]
        return {
            **{name: getattr(self, name) for name in names},
            "objective": self.serving.objective,
            "time_per_token_s": self.decode_s,
            "batches_in_flight": self.serving.groups,
            "devices": {share.pop("device"): share for share in shares},
            "alternatives": [{**vars(one), "fits": one.value_s is not None} for one in self.alternatives],
            "what_would_help": [vars(one) for one in self.helps],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, eq=False)
class Question:
    """The input of a fit, from which a chain for any objective and context is made."""

    decoder: Decoder
    topology: Topology
    serving: Serving
    reserve_bytes: int
    whole: str
    left_out: tuple[str, ...] = ()

    @property
    def working_bytes(self) -> int:
        return self.decoder.working_bytes(self.serving.batch, self.serving.chunk)

    @property
    def largest(self) -> bool:
        return self.serving.objective == "throughput"

    @property
    def machine(self) -> Topology:
        return usable(self.topology, self.reserve_bytes, self.working_bytes)

    def graph(self, **serving: Any) -> OpGraph:
        """The ops of a step; `serving` replaces fields of the workload."""
        asked = replace(self.serving, **serving)
        return step_graph(self.decoder, asked, self.topology, self.whole, self.left_out)

    def chain(self, **serving: Any) -> ChainCosts:
        """The chain of a step; `serving` replaces fields of the workload."""
        asked = replace(self.serving, **serving)
        return replace(chain_of(self.graph(**serving), self.machine), groups=asked.groups)

    def sizes(self, context: int) -> Floats:
        """[op] → bytes of its weights and its cache at a context."""
        asked = replace(self.serving, context=context)
        units = units_of(self.decoder, self.whole)
        weights = (sum(part.weight_bytes for part in parts) for parts in units)
        cached = (self.decoder.cache_bytes(parts, asked) for parts in units)
        return np.array([float(size + more) for size, more in zip(weights, cached, strict=True)])


def fit(
    decoder: Decoder,
    topology: Topology,
    serving: Serving,
    *,
    reserve_bytes: int = 2**30,
    whole: str = "layers",
    stream: bool = False,
    longest: bool = False,
    last: Iterable[str] = (),
    tensor_parallel: Sequence[Sequence[str]] = (),
    own: Mapping[str, Split] | None = None,
    time_limit_s: float = 10.0,
    workers: int | None = None,
    seed: int = 0,
) -> Fit:
    """The best placement of the layers, with a bound, the splits of other tools, the bottleneck and improvements.

    `last`: Names or types of devices to use only if the model does not fit on the others. `tensor_parallel`: Sets of
    GPUs that divide every matrix, each set as one stage. The best of several divisions into shares is used; the
    bound holds only for that division.

    Raises InfeasibleError with the missing bytes if the model does not fit.
    """
    machine = streaming(topology) if stream else topology
    question = Question(decoder, machine, serving, reserve_bytes, whole, tuple(last))
    if longest:
        widest = replace(question, left_out=(), serving=replace(serving, context=1))
        serving = replace(serving, context=max(1, _longest_split(widest)))
        question = replace(question, serving=serving)
    needed = {"prefill": serving.prompt, "request": serving.prompt + serving.generated}.get(serving.objective, 0)
    if needed > serving.context:
        raise InputError(f"context is {serving.context}, but a {serving.objective} has {needed} tokens; make it longer")
    question, chain, split = _in_flight(_shared(question, tensor_parallel))
    notes = []
    if question.left_out and split is None:
        notes.append(f"{', '.join(question.left_out)} is used because the model does not fit on the others")
        question, chain, split = _in_flight(replace(question, left_out=()))
    serving = question.serving
    plan, bound_s = _planned(question, chain, split, time_limit_s, workers, seed)
    placement = [question.machine.device_index[plan.placement[op.id]] for op in chain.ops]
    scale = steps_in(serving)
    base_s = chain.value_s(placement, question.largest)
    return Fit(
        plan,
        serving,
        base_s * scale,
        min(bound_s, base_s) * scale,
        question.chain(objective="token").value_s(placement),
        question.chain(objective="prefill").value_s(placement),
        _binding(question, chain, placement, longest),
        _longest_split(question),
        question.working_bytes,
        _judged(replace(question, left_out=()), {**SPLITS, **(own or {})}),
        _what_would_help(question, chain, placement),
        (*notes, *_notes(question, plan)),
    )


def _shared(question: Question, sets: Sequence[Sequence[str]]) -> Question:
    """The question with each set as one device, whose shares give the quickest split or, if none fits, most memory."""
    if not sets:
        return question
    kept = question.reserve_bytes + question.working_bytes
    tried = [replace(question, topology=machine) for machine in divided(question.topology, sets, kept)]

    values = [_value_s(_in_flight(each)) for each in tried]
    return tried[-1] if math.isinf(min(values)) else tried[values.index(min(values))]


def _value_s(found: tuple[Question, ChainCosts, list[int] | None]) -> float:
    question, chain, split = found
    return math.inf if split is None else chain.value_s(split, question.largest)


def _in_flight(question: Question) -> tuple[Question, ChainCosts, list[int] | None]:
    """The question with the number of batches in flight that gives the most tokens, its chain and its best split.

    More batches keep more stages busy, but every batch has a cache of its own.
    """
    most = len(question.topology.devices) if question.largest else 1
    asked = [replace(question, serving=replace(question.serving, groups=groups + 1)) for groups in range(most)]
    return min(((each, chain := each.chain(), chain.quickest(each.largest)) for each in asked), key=_value_s)


def _planned(
    question: Question, chain: ChainCosts, split: list[int] | None, time_limit_s: float, workers: int | None, seed: int
) -> tuple[Plan, float]:
    """The best plan, and a bound of the objective over all placements; for throughput, the plan is that of `split`."""
    # With the cache of only one batch in flight, the bound holds for any number of batches.
    least = question.chain(groups=1) if question.largest else chain
    found = best_placement(least, time_limit_s, split, question.largest, workers=workers, seed=seed)
    placement, method = split, "contiguous"
    # Among equal plans a contiguous one wins, because every runtime can express it.
    if found.placement is not None and not question.largest:
        value_s = chain.value_s(found.placement)
        if split is None or value_s < chain.value_s(split) * (1 - _ROUNDED):
            placement, method = list(found.placement), "layer flow"
    if placement is None:
        if question.largest or found.optimal:
            raise _too_large(question, chain)
        raise NoPlanError(f"no split was found in {format_seconds(time_limit_s)}; raise the time limit")
    bound_s = chain.value_s(placement) if found.optimal and not question.largest else found.bound_s
    if question.largest:
        # A batch takes at least the sum of its least op times, and memory limits the batches in flight.
        cached = sum(op.state_bytes for op in chain.ops) / chain.groups
        room = chain.capacities.sum() - chain.sizes.sum() + cached * chain.groups + chain.shared_bytes
        groups = max(1.0, math.floor(room / cached)) if cached and math.isfinite(room) else math.inf
        bound_s = max(bound_s, float(chain.time_s.min(axis=1).sum() / groups))
    machine = question.machine
    pins = {op.id: machine.devices[place].id for op, place in zip(chain.ops, placement, strict=True)}
    graph = with_copies(question.graph(), pins)
    plan = replace(place(graph, machine, ASSUMED, method="heft", pins=pins).plan, graph=graph, method=method)
    if question.largest:
        return replace(plan, meta={"objective": "throughput"}), bound_s
    bound_s = min(bound_s, plan.makespan_s)
    gap = 1 - bound_s / plan.makespan_s if plan.makespan_s else 0.0
    status = "optimal" if found.optimal else "feasible"
    return replace(plan, lower_bound_s=bound_s, gap=gap, status=status), bound_s


def _too_large(question: Question, chain: ChainCosts) -> InfeasibleError:
    needed, there = float(chain.sizes.sum()), float(chain.capacities.sum())
    cached, largest = sum(op.state_bytes for op in chain.ops), float(chain.sizes.max())
    short = f"all {len(chain.devices)} devices together have {format_bytes(there)} for it"
    short += f", but not in pieces for its largest op of {format_bytes(largest)}" if needed <= there else ""
    return InfeasibleError(
        f"{question.decoder.name} needs {format_bytes(needed)}, of which {format_bytes(cached)} are cache; {short} "
        f"({format_bytes(question.reserve_bytes)} are reserved on each). Shorten the context, store the cache or the "
        "weights in fewer bits, add RAM, or lower the reserve"
    )


def _judged(question: Question, splits: Mapping[str, Split]) -> tuple[Judged, ...]:
    found, chain = [], question.chain()
    scale = steps_in(question.serving)
    for name, split in splits.items():
        placement = split(chain)
        if placement is None:
            found.append(Judged(name, (), None, None, 0))
            continue
        fitting = chain.fits(placement)
        value_s = chain.value_s(placement, question.largest) * scale if fitting else None
        token_s = question.chain(objective="token").value_s(placement) if fitting else None
        places = list(placement)
        longest = _longest(question, lambda sizes: replace(chain, sizes=sizes).fits(places))  # noqa: B023
        # A layer counts for the device of its first part.
        firsts = {op.meta["layer"]: home for op, home in zip(chain.ops[::-1], places[::-1], strict=True)}
        homes = [home for layer, home in firsts.items() if layer is not None]
        counts = tuple(homes.count(device) for device in range(len(chain.devices)))
        found.append(Judged(name, counts, value_s, token_s, longest))
    return tuple(found)


def _longest(question: Question, fitting: Callable[[Floats], bool]) -> int:
    """The longest context that fits, up to the model's limit or, if longer, the requested context; 0 if none fits."""
    if not fitting(question.sizes(1)):
        return 0
    low, high = 1, max(question.decoder.most_context or 2**24, question.serving.context)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fitting(question.sizes(middle)) else (low, middle - 1)
    return low


def _longest_split(question: Question) -> int:
    chain = question.chain()
    return _longest(question, lambda sizes: replace(chain, sizes=sizes).best_split() is not None)


def _what_would_help(question: Question, chain: ChainCosts, placement: list[int]) -> tuple[Help, ...]:
    """Changes of machine and workload that help, in decreasing order of gain."""
    largest, found = question.largest, []
    base_s = chain.value_s(placement, largest)
    for text, kind, changed in _changes(question, chain):
        split = changed.quickest(largest, placement)
        if split is not None and base_s:
            value_s = changed.value_s(split, largest)
            found.append(Help(text, kind, value_s * steps_in(question.serving), 1 - value_s / base_s))
    return tuple(sorted((one for one in found if one.gain > 0.002), key=lambda one: -one.gain))


def _changes(question: Question, chain: ChainCosts) -> Iterable[tuple[str, str, ChainCosts]]:
    serving = question.serving
    for kind in dict.fromkeys(device.type for device in chain.devices):
        mine = np.array([device.type == kind for device in chain.devices])
        roomy = replace(chain, capacities=np.where(mine, 1.25, 1) * chain.capacities)
        yield f"25 % more memory on {kind}", "memory", roomy
        if len({device.type for device in chain.devices}) > 1:
            yield f"{kind} twice as fast", "bandwidth", replace(chain, time_s=np.where(mine, 0.5, 1) * chain.time_s)
    if len(chain.devices) > 1:
        yield "links twice as fast", "link", replace(chain, crossing_s=chain.crossing_s / 2)
    if serving.cache_bits > 8:
        yield "cache in 8 bits", "cache", question.chain(cache_bits=8.0)
    if serving.context > 1024 and serving.objective != "prefill":
        yield f"context {serving.context // 2}", "cache", question.chain(context=serving.context // 2)


def _binding(question: Question, chain: ChainCosts, placement: list[int], longest: bool) -> str:
    """The bottleneck as in `Fit.binds`; the first of equals."""
    if longest:
        return "model" if question.serving.context == question.decoder.most_context else "cache"

    def value_s(changed: ChainCosts) -> float:
        return _value_s((question, changed, changed.quickest(question.largest, placement)))

    def faster(flops: float, memory: float) -> ChainCosts:
        def device(one: Device) -> Device:
            known = rates_of(one)
            assert known is not None
            computes = {dtype: flops * rate for dtype, rate in known.flops_per_s.items()}
            return replace(one, flops_per_s=computes, memory_bytes_per_s=memory * (known.memory_bytes_per_s or 1.0))

        machine = replace(question.topology, devices=tuple(map(device, question.topology.devices)))
        return replace(question, topology=machine).chain()

    values = {
        "bandwidth": value_s(faster(flops=1.0, memory=2.0)),
        "compute": value_s(faster(flops=2.0, memory=1.0)),
        "link": value_s(replace(chain, crossing_s=chain.crossing_s / 2)),
        "cache": value_s(question.chain(cache_bits=question.serving.cache_bits / 2)),
        "memory": value_s(replace(chain, capacities=2 * chain.capacities)),
    }
    return min(values, key=values.__getitem__)


def _notes(question: Question, plan: Plan) -> tuple[str, ...]:
    notes = []
    if question.largest:
        notes.append(f"{question.serving.groups} batches of {question.serving.batch} in flight, each with its cache")
    if question.decoder.tied_bytes and not plan.graph.ops[-1].meta["shared_bytes"]:
        size = format_bytes(question.decoder.tied_bytes)
        notes.append(f"embedding and head share {size}, which both hold because they are on different devices")
    assumed = [device for device in question.topology.devices if "assumed" in device.meta]
    notes += [f"assumed of {device.id}: {device.meta['assumed']}" for device in assumed]
    for device in question.topology.devices:
        if "members" in device.meta:
            shares = " : ".join(f"{share:.2f}" for share in device.meta["shares"])
            notes.append(
                f"{device.id} divide every matrix {shares}, the best of the tried shares; the bound is for these"
            )
    most = question.decoder.most_context
    if most is not None and question.serving.context > most:
        notes.append(f"the context is longer than the {most} tokens that the model was made for")
    return tuple(notes)
