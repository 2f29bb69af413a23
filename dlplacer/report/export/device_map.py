"""A plan as a Hugging Face ``device_map``: module path → device, where the parameters are."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_bytes
from dlplacer.machines.costs.device_table import is_core

_STORED = ("parameter", "buffer")


def device_map(plan: Plan, devices: Mapping[str, int | str] | None = None) -> dict[str, int | str]:
    """The fewest paths that cover every parameter and buffer; ``""`` alone where all are on one device.

    No path is inside another. A module that holds tensors beside modules on other devices is replaced by these tensors
    and modules, as accelerate's own maps are. Such a map runs whole modules one after another, so it keeps the memory
    of a plan but not its concurrency. A module's own parameters and buffers, with those of modules that share a tensor
    with it, go to the device that holds most of their bytes. CPU devices are ``cpu``, others have numbers, unless
    `devices` names them.

    Raises InputError if the graph has no parameters of modules.
    """
    names = {**_names(plan), **(devices or {})}
    return _merged({tensor: names[device] for tensor, device in _homes(plan).items()})


def spread_modules(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Module → its devices, of the modules whose parameters, buffers and forward ops are on several."""
    used: dict[str, dict[str, None]] = defaultdict(dict)
    owners: set[str] = set()
    for tensor, (device, _) in _stored(plan).items():
        owners.add(_owner(tensor))
        used[_owner(tensor)][device] = None
    for op in plan.graph.ops:
        if (op.module or "") in owners and op.module and op.phase in (None, "forward") and op.kind not in _STORED:
            used[op.module][plan.placement[op.id]] = None
    return {module: tuple(devices) for module, devices in used.items() if len(devices) > 1}


def overfull_devices(plan: Plan) -> tuple[str, ...]:
    """A line for each device whose memory the map's parameters and buffers exceed, where the plan's do not."""
    homes = _homes(plan)
    held: Counter[str] = Counter()
    for op in plan.graph.ops:
        if op.id in homes:
            held[homes[op.id]] += op.weight_bytes
    return tuple(
        f"the map puts {format_bytes(held[device.id])} of parameters and buffers on {device.id}, which has "
        f"{format_bytes(device.memory_bytes)}; plan again with its modules held together (--colocate)"
        for device in plan.topology.devices
        if device.memory_bytes is not None and held[device.id] > device.memory_bytes
    )


def _stored(plan: Plan) -> dict[str, tuple[str, int]]:
    """Name of a parameter or buffer, each name of a tied one → its device in the plan, its bytes."""
    stored = {
        op.id: (plan.placement[op.id], op.weight_bytes)
        for op in plan.graph.ops
        if op.kind in _STORED and "onnx" not in (plan.graph.capture or {})
    }
    if not stored:
        raise InputError("the plan's graph has no parameters or buffers with module paths; a device map would be empty")
    for group in _tied(plan):
        known = [stored[name] for name in group if name in stored]
        if known:
            home = max(known, key=lambda entry: entry[1])
            stored.update((name, stored.get(name, home)) for name in group)
    return stored


def _tied(plan: Plan) -> list[list[str]]:
    """Names of each tensor that has several."""
    groups: dict[str, list[str]] = {}
    for name, first in (plan.graph.capture or {}).get("ties", {}).items():
        groups.setdefault(first, [first]).append(name)
    return list(groups.values())


def _homes(plan: Plan) -> dict[str, str]:
    """Name of a parameter or buffer → its device in the map: one for each module's own and all that are tied."""
    stored = _stored(plan)
    leader = {_owner(tensor): _owner(tensor) for tensor in stored}

    def find(module: str) -> str:
        while leader[module] != module:
            module = leader[module]
        return module

    for first, *others in _tied(plan):
        for other in others:
            leader[find(_owner(other))] = find(_owner(first))
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    for tensor, (device, size) in stored.items():
        sizes[find(_owner(tensor))][device] += size
    return {tensor: max((found := sizes[find(_owner(tensor))]), key=found.__getitem__) for tensor in stored}


def _merged(home: Mapping[str, int | str]) -> dict[str, int | str]:
    """The fewest paths: a module represents all that is inside it if that is on one device."""
    inside: dict[str, set[int | str]] = defaultdict(set)
    for tensor, device in home.items():
        for path in _paths(tensor):
            inside[path].add(device)
    merged: dict[str, int | str] = {}
    for tensor, device in home.items():
        merged[next(path for path in _paths(tensor) if len(inside[path]) == 1)] = device
    return merged


def _owner(tensor: str) -> str:
    return tensor.rpartition(".")[0]


def _paths(tensor: str) -> list[str]:
    """The modules that hold a tensor, the outermost first, then itself: ``"", "a", "a.b", "a.b.weight"``."""
    parts = tensor.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]


def _names(plan: Plan) -> dict[str, int | str]:
    others = [device.id for device in plan.topology.devices if not is_core(device)]
    return {device.id: others.index(device.id) if device.id in others else "cpu" for device in plan.topology.devices}
