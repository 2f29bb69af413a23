"""A plan as a Hugging Face ``device_map``: module path → device, where the parameters are."""

from collections import defaultdict
from collections.abc import Mapping

from dlplacer.core.errors import InputError, MismatchError
from dlplacer.core.plan import Plan

RULES = ("majority", "exact")
_STORED = ("parameter", "buffer")


def device_map(
    plan: Plan, devices: Mapping[str, int | str] | None = None, rule: str = "majority"
) -> dict[str, int | str]:
    """The fewest module paths that cover every parameter and buffer; ``""`` alone where all are on one device.

    Such a map runs whole modules one after another, so it keeps the memory of a plan but not its concurrency.

    Parameters
    ----------
    devices
        Device of the plan → what the map calls it; by default ``cpu`` for CPU devices and numbers for others.
    rule
        ``majority``: a module goes where most bytes of its own parameters and buffers are. ``exact``: refuse a plan in
        which parameters, buffers and forward ops of one module are on several devices.

    Raises
    ------
    InputError
        If the rule is neither, a device is missing, or the graph has no parameters.
    MismatchError
        Under ``exact``: names the module and the devices.
    """
    if rule not in RULES:
        raise InputError(f"rule is {rule!r}; use one of {', '.join(RULES)}")
    stored = _stored_bytes(plan)
    if not stored:
        raise InputError("the plan's graph has no parameters or buffers with module paths; a device map would be empty")
    if rule == "exact":
        for module, spread in spread_modules(plan).items():
            raise MismatchError(
                f"module {module!r} is spread over {', '.join(spread)}, which no device map can say; use the rule "
                "'majority', or plan whole modules"
            )
    names = _names(plan) if devices is None else devices
    missing = [device.id for device in plan.topology.devices if device.id not in names]
    if missing:
        raise InputError(f"devices: the plan's device {missing[0]!r} is not named; name all of the plan's devices")
    return _merged({module: names[max(sizes, key=sizes.__getitem__)] for module, sizes in stored.items()})


def spread_modules(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Module → its devices, of the modules whose parameters, buffers and forward ops are on several."""
    used: dict[str, dict[str, None]] = defaultdict(dict)
    owners = _stored_bytes(plan)
    for op in plan.graph.ops:
        if op.module in owners and op.phase in (None, "forward"):
            used[op.module][plan.placement[op.id]] = None
    return {module: tuple(devices) for module, devices in used.items() if len(devices) > 1}


def _stored_bytes(plan: Plan) -> dict[str, dict[str, int]]:
    """Module → device → bytes of its own parameters and buffers there."""
    stored: dict[str, dict[str, int]] = defaultdict(dict)
    for op in plan.graph.ops:
        if op.kind in _STORED:
            sizes, device = stored[op.module or ""], plan.placement[op.id]
            sizes[device] = sizes.get(device, 0) + op.weight_bytes
    return dict(stored)


def _merged(home: Mapping[str, int | str]) -> dict[str, int | str]:
    """The fewest paths: a module represents all modules inside it if they are on the same device."""
    inside: dict[str, set[int | str]] = defaultdict(set)
    for module, device in home.items():
        for path in _paths(module):
            inside[path].add(device)
    merged: dict[str, int | str] = {}
    for module, device in home.items():
        path = next(path for path in _paths(module) if len(inside[path]) == 1 or path == module)
        merged[path] = device
    return merged


def _paths(module: str) -> list[str]:
    """The module and those that hold it, the outermost first: ``"", "a", "a.b"``."""
    parts = module.split(".") if module else []
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]


def _names(plan: Plan) -> dict[str, int | str]:
    others = [device.id for device in plan.topology.devices if not device.type.startswith("cpu")]
    return {device.id: others.index(device.id) if device.id in others else "cpu" for device in plan.topology.devices}
