"""A plan as a Hugging Face ``device_map``: module path → device of its parameters."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from networkx.utils import UnionFind

from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_bytes
from dlplacer.machines.costs.device_table import is_core

_STORED = ("parameter", "buffer")


def device_map(plan: Plan, devices: Mapping[str, int | str] | None = None) -> dict[str, int | str]:
    """Path → device, with the fewest paths that cover all parameters and buffers: ``""`` alone if one device has them.

    No path is inside another. If the contents of a module are on several devices, the map lists its tensors and
    submodules instead, as in accelerate's own maps. Accelerate runs whole modules one after another, so the map keeps
    the memory of a plan but not its concurrency. The own tensors of a module, or of all modules that
    share a tensor, go to the device that holds most of their bytes in the plan. CPU devices are ``cpu`` and other
    devices have numbers, unless `devices` names them.

    Raises InputError if the graph has no parameters of modules.
    """
    numbered = [device.id for device in plan.topology.devices if not is_core(device)]
    names: dict[str, int | str] = dict.fromkeys(plan.topology.device_index, "cpu")
    names |= {device: number for number, device in enumerate(numbered)} | dict(devices or {})
    home = {tensor: names[device] for tensor, device in _homes(plan).items()}
    inside: dict[str, set[int | str]] = defaultdict(set)
    for tensor, device in home.items():
        for path in _paths(tensor):
            inside[path].add(device)
    # A module represents all its contents if they are on one device.
    return {next(path for path in _paths(tensor) if len(inside[path]) == 1): device for tensor, device in home.items()}


def overfull_devices(plan: Plan) -> tuple[str, ...]:
    """A message for each device whose memory is too small for its parameters and buffers in the `device_map`."""
    homes = _homes(plan)
    held: Counter[str] = Counter()
    for op in plan.graph.ops:
        if op.id in homes:
            held[homes[op.id]] += op.weight_bytes
    return tuple(
        f"the map puts {format_bytes(held[device.id])} of parameters and buffers on {device.id}, which has "
        f"{format_bytes(device.memory_bytes)}; plan again and keep its modules together (--colocate)"
        for device in plan.topology.devices
        if device.memory_bytes is not None and held[device.id] > device.memory_bytes
    )


def _stored(plan: Plan) -> dict[str, tuple[str, int]]:
    """Name of a parameter or buffer (every name of a tied one) → its device in the plan and its bytes."""
    stored = {
        op.id: (plan.placement[op.id], op.weight_bytes)
        for op in plan.graph.ops
        if op.kind in _STORED and "onnx" not in (plan.graph.capture or {})
    }
    if not stored:
        raise InputError("the plan's graph has no parameters or buffers with module paths; export the plan of a module")
    for group in _tied(plan):
        known = [stored[name] for name in group if name in stored]
        if known:
            home = max(known, key=lambda entry: entry[1])
            stored.update((name, stored.get(name, home)) for name in group)
    return stored


def _tied(plan: Plan) -> list[list[str]]:
    """The names of each tensor that has several names."""
    groups: dict[str, list[str]] = {}
    for name, first in (plan.graph.capture or {}).get("ties", {}).items():
        groups.setdefault(first, [first]).append(name)
    return list(groups.values())


def _homes(plan: Plan) -> dict[str, str]:
    """Name of a parameter or buffer → its device in the map; a module's own tensors and tied ones share it."""
    stored = _stored(plan)
    joined = UnionFind(map(_owner, stored))
    for group in _tied(plan):
        joined.union(*map(_owner, group))
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    for tensor, (device, size) in stored.items():
        sizes[joined[_owner(tensor)]][device] += size
    return {tensor: max((found := sizes[joined[_owner(tensor)]]), key=found.__getitem__) for tensor in stored}


def _owner(tensor: str) -> str:
    return tensor.rpartition(".")[0]


def _paths(tensor: str) -> list[str]:
    """The modules that hold a tensor, the outermost first, then itself: ``"", "a", "a.b", "a.b.weight"``."""
    parts = tensor.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]
