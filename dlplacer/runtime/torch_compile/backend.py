"""``torch.compile(model, backend="dlplacer", options={...})``: every graph that Dynamo finds is planned and placed.

Forward and backward of a graph are planned on their own, since the autograd engine runs between them; a `dlplacer.Job`
with `dlplacer.apply` plans them together and is faster. A graph is profiled, planned and compiled at its first call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import fx

from dlplacer.core.errors import InputError, MismatchError
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import default_names, open_devices
from dlplacer.runtime.torch_compile.graph_runner import GraphRunner

_NAME = "dlplacer"
_MOST_CORES = 8
_OPENED: dict[tuple[str, ...], list[RuntimeDevice]] = {}


@dataclass(frozen=True)
class CompileOptions:
    """What ``options`` may hold.

    Attributes
    ----------
    devices
        Names of devices, a list or as one text with commas; by default the CUDA devices, or else the cores.
    topology
        A topology, a file, or the name of one that ships: its devices correspond to `devices` in order. By default the
        links are timed.
    method
        How a graph is planned: a key of `dlplacer.solvers.methods.METHODS`.
    time_limit_s
        Seconds to plan one graph.
    seed
        Of the solver.
    """

    devices: Sequence[str] | str | None = None
    topology: Any = None
    method: str = "ilp"
    time_limit_s: float = 5.0
    seed: int = 0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "CompileOptions":
        """The options that a user gave; InputError if one is not known; names those that are."""
        known = [entry.name for entry in fields(cls)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise InputError(f"torch.compile: option {unknown[0]!r} is not known; dlplacer has {', '.join(known)}")
        return cls(**options)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the devices."""
        if isinstance(self.devices, str):
            return tuple(self.devices.split(","))
        if self.devices is not None:
            return tuple(self.devices)
        return default_names(_MOST_CORES)


def dlplacer(
    module: fx.GraphModule,
    inputs: Sequence[object],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """A Dynamo backend: the module's graph, placed.

    Raises
    ------
    InputError
        If an option is not known or a mode is given.
    MismatchError
        If a shape of the graph is not fixed.
    """
    from torch._dynamo.backends.common import aot_autograd

    if mode is not None:
        raise InputError(f"torch.compile: mode {mode!r} means nothing to dlplacer; give options={{...}} instead")
    chosen = CompileOptions.of(options or {})
    _require_fixed_shapes(inputs)

    def compiled(graph: fx.GraphModule, _: Sequence[object]) -> Callable[..., Any]:
        return _boxed(GraphRunner(graph, _devices(chosen.names), _planning(chosen)))

    found: Callable[..., Any] = aot_autograd(fw_compiler=compiled, bw_compiler=compiled)(module, inputs)
    return found


def _planning(options: CompileOptions) -> dict[str, Any]:
    from dlplacer.core.topology import Topology
    from dlplacer.files.load import load_topology

    topology = options.topology
    if topology is not None and not isinstance(topology, Topology):
        topology = load_topology(topology)
    named = {"method": options.method, "time_limit_s": options.time_limit_s, "seed": options.seed}
    return {"topology": topology, **named}


def _boxed(run: Callable[..., Any]) -> Callable[..., Any]:
    """Called with a list that it empties, so that inputs do not outlive their last reader: the form autograd wants."""

    def boxed(inputs: list[object]) -> Any:
        given = tuple(inputs)
        inputs.clear()
        return run(*given)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def _devices(names: tuple[str, ...]) -> list[RuntimeDevice]:
    """The devices of these names, which all graphs share."""
    if names not in _OPENED:
        _OPENED[names] = open_devices(names)
    return _OPENED[names]


def _require_fixed_shapes(inputs: Sequence[object]) -> None:
    for value in inputs:
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        if any(isinstance(size, (torch.SymInt, torch.SymFloat)) for size in sizes):
            raise MismatchError(
                "torch.compile: a shape of this graph is not fixed, and a plan is for fixed shapes; use "
                "torch.compile(..., dynamic=False), which makes a plan for every shape"
            )


def _register() -> None:
    """Make the name known to Dynamo, unless the installed package has announced it already."""
    if not entry_points(group="torch_dynamo_backends", name=_NAME):
        torch._dynamo.register_backend(dlplacer, name=_NAME)


_register()
