"""Splits by other tools and by the user, for comparison with the best split."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from dlplacer.core.errors import InputError
from dlplacer.core.op import Op
from dlplacer.machines.costs.roofline import rates_of
from dlplacer.planning.fit.chain import ChainCosts

Split = Callable[[ChainCosts], Sequence[int] | None]


def by_counts(chain: ChainCosts, counts: Sequence[int]) -> list[int]:
    """[op] → device: `counts` layers per device in order; an op without layer joins the op before or layer 0."""
    numbers = [op.meta.get("layer") for op in chain.ops]
    layers = len({number for number in numbers if number is not None})
    if len(counts) > len(chain.devices) or sum(counts) != layers or min(counts) < 0:
        raise InputError(
            f"split {','.join(map(str, counts))} adds up to {sum(counts)} layers on {len(counts)} devices; the model "
            f"has {layers} layers and the machine {len(chain.devices)} devices"
        )
    homes = [device for device, count in enumerate(counts) for _ in range(count)]
    placement, here = [], homes[0]
    for number in numbers:
        here = here if number is None else homes[number]
        placement.append(here)
    return placement


def by_map(chain: ChainCosts, device_map: Mapping[str, Any]) -> list[int]:
    """[op] → device, from a map of Accelerate: path of a module → number of a GPU, ``cpu``, or name of a device."""
    gpus = [place for place, device in enumerate(chain.devices) if device.asynchronous]
    rams = [place for place, device in enumerate(chain.devices) if not device.asynchronous]
    names = {device.id: place for place, device in enumerate(chain.devices)}
    names |= {f"{prefix}{number}": place for number, place in enumerate(gpus) for prefix in ("", "cuda:")}
    names |= {"cpu": rams[0], "disk": rams[0]} if rams else {}
    owners = {str(module): op for op in chain.ops for module in op.meta["modules"]}
    placement = []
    for op in chain.ops:
        told = {str(device_map[path]) for path in _paths_of(op, owners, device_map)}
        if len(told) != 1:
            fault = f"spreads it over {' and '.join(sorted(told))}; place it whole, or give --fine parts"
            missing = "has no device for it; add it, or a module that contains it"
            raise InputError(f"module {str(op.module)!r}: the map {fault if told else missing}")
        home = told.pop()
        if home not in names:
            raise InputError(f"the map puts {str(op.module)!r} on {home!r}; the machine has {', '.join(names)}")
        placement.append(names[home])
    return placement


def _paths_of(op: Op, owners: Mapping[str, Op], device_map: Mapping[str, Any]) -> set[str]:
    """The entries of a map that decide the device of an op."""
    inside = {path for path in device_map if next((owners[up] for up in _prefixes(path) if up in owners), None) is op}
    modules = [str(module) for module in op.meta["modules"]]
    # The head's norm is small and comes first, so the last module decides.
    first = modules[::-1] if op.kind == "head" else modules[:1]
    above = (up for module in first for up in _prefixes(module) if up in device_map)
    if op.kind == "head":
        return {*islice(above, 1)}
    return inside or {*islice(above, 1)}


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), -1, -1)]


def _shared(weights: Sequence[float], layers: int) -> list[int]:
    """Whole numbers of layers in proportion to the weights, by largest remainders."""
    total = sum(weights)
    exact = [layers * weight / total for weight in weights]
    counts = [int(value) for value in exact]
    for place in sorted(range(len(exact)), key=lambda each: counts[each] - exact[each])[: layers - sum(counts)]:
        counts[place] += 1
    return counts


def _in_proportion(weight: Callable[[ChainCosts, int], float]) -> Split:
    """A split in proportion to a weight of each GPU, or of each device if there are no GPUs."""

    def split(chain: ChainCosts) -> list[int]:
        gpus = [device.asynchronous for device in chain.devices]
        used = [place for place in range(len(gpus)) if gpus[place] or not any(gpus)]
        layers = len({op.meta["layer"] for op in chain.ops if op.meta["layer"] is not None})
        counts = dict(zip(used, _shared([weight(chain, place) for place in used], layers), strict=True))
        return by_counts(chain, [counts.get(place, 0) for place in range(len(gpus))])

    return split


def _bandwidth(chain: ChainCosts, place: int) -> float:
    rates = rates_of(chain.devices[place])
    return 1.0 if rates is None else rates.memory_bytes_per_s or 1.0


def _memory(chain: ChainCosts, place: int) -> float:
    room = float(chain.capacities[place])
    return room if np.isfinite(room) else 1e12


def _filled(
    chain: ChainCosts, order: Sequence[int], sizes: Sequence[float], kept: Mapping[int, float], shared: float = 0.0
) -> list[int] | None:
    """The split that fills each device before the next; None if the devices do not hold all ops.

    `kept`: Device → bytes to leave free. `shared`: Bytes that the last op saves on the device of its embedding.
    """
    placement: list[int] = []
    for device in order:
        room = float(chain.capacities[device]) - kept.get(device, 0.0)
        for op in range(len(placement), len(sizes)):
            is_tied = op == len(sizes) - 1 and placement[chain.embedding : chain.embedding + 1] == [device]
            room -= sizes[op] - (shared if is_tied else 0.0)
            if room < 0:
                break
            placement.append(device)
    return placement if len(placement) == len(sizes) else None


def _greedy(chain: ChainCosts) -> list[int] | None:
    order = sorted(range(len(chain.devices)), key=lambda place: -_bandwidth(chain, place))
    return _filled(chain, order, chain.sizes.tolist(), {}, chain.shared_bytes)


def _accelerate(chain: ChainCosts) -> list[int] | None:
    """`infer_auto_device_map` of accelerate: by weights, GPUs first; GPU 0 and RAM keep room for the largest layer."""
    weights = [float(op.weight_bytes) for op in chain.ops]
    order = sorted(range(len(chain.devices)), key=lambda place: not chain.devices[place].asynchronous)
    layers = [weight for op, weight in zip(chain.ops, weights, strict=True) if op.meta["layer"] is not None]
    kept = {order[0]: max(layers, default=0.0)} if len(order) > 1 else {}
    rams = {place: kept[order[0]] for place in order if not chain.devices[place].asynchronous and kept}
    return _filled(chain, order, weights, {**kept, **rams})


SPLITS: Mapping[str, Split] = {
    "even": _in_proportion(lambda chain, place: 1.0),
    "by_memory": _in_proportion(_memory),
    "by_bandwidth": _in_proportion(_bandwidth),
    "greedy": _greedy,
    "accelerate": _accelerate,
}
"""Name → split, which returns None if not all ops fit. vLLM defaults to even, llama.cpp and exo to by_memory."""
