"""Device maps: worked out by hand, and equal to Accelerate's own where that is installed."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from solvers.helpers import found_by, make_problem

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.problem.problem import build_problem

if TYPE_CHECKING:
    import torch

_STORED = ("parameter", "buffer")


def _machine(*memory_bytes: int | None) -> Topology:
    """A core of unlimited memory, then an accelerator for each size."""
    accelerators = (Device(f"gpu{i}", "gpu", memory_bytes=size) for i, size in enumerate(memory_bytes))
    devices = (Device("cpu", "slow", asynchronous=False), *accelerators)
    return Topology(devices, (Router("bus"),), tuple(Link(device.id, "bus", 1e9) for device in devices))


def _layers(
    weights: dict[str, int], no_split: dict[str, list[str]] | None = None, ties: dict[str, str] | None = None
) -> OpGraph:
    """A chain of an op for each module; a module is a path, with bytes of weights."""
    ops: list[Op] = []
    for path, size in weights.items():
        ops.append(Op(f"{path}.weight", "parameter", 0.0, weight_bytes=size, module=path))
        ops.append(Op(f"{path}()", "aten.mm", 1.0, module=path))
    chain = [f"{path}()" for path in weights]
    edges = [Edge(a, b, 0) for a, b in pairwise(chain)]
    edges += [Edge(f"{path}.weight", f"{path}()", size) for path, size in weights.items()]
    return OpGraph(tuple(ops), tuple(edges), capture={"no_split": no_split or {}, "ties": ties or {}})


def _homes(method: str, graph: OpGraph, topology: Topology) -> dict[str, str]:
    """Module → the device of its weights, which is that of its op."""
    problem = make_problem(graph, topology)
    found = found_by(problem, method)
    assert found is not None
    placed = dict(zip((op.id for op in graph.ops), found.device, strict=True))
    modules = dict.fromkeys(op.module for op in graph.ops if op.module)
    assert all(placed[f"{module}.weight"] == placed[f"{module}()"] for module in modules)
    return {str(module): topology.devices[placed[f"{module}.weight"]].id for module in modules}


def test_a_module_that_does_not_fit_is_opened_unless_it_stays_whole() -> None:
    weights = {"h.0.q": 10, "h.0.v": 10, "h.1.q": 10, "h.1.v": 10}
    # Of 25 bytes 10 stay free for the largest layer: q goes in alone. Whole layers of 20 leave no room for any.
    opened = {"h.0.q": "gpu0", "h.0.v": "gpu1", "h.1.q": "gpu1", "h.1.v": "gpu1"}
    assert _homes("sequential", _layers(weights), _machine(25, 99)) == opened
    whole = _layers(weights, {"Layer": ["h.0", "h.1"]})
    assert _homes("sequential", whole, _machine(25, 99)) == dict.fromkeys(weights, "gpu1")


def test_tied_modules_go_together() -> None:
    weights = {"body.embed": 10, "body.layer": 10, "norm": 10, "head": 5}
    apart = {"body.embed": "gpu0", "body.layer": "gpu1", "norm": "gpu1", "head": "gpu1"}
    assert _homes("sequential", _layers(weights), _machine(25, 99)) == apart
    # Of 25 bytes 10 stay free; a tensor that embed and head share brings head along.
    tied = _layers(weights, ties={"head.shared": "body.embed.weight"})
    assert _homes("sequential", tied, _machine(25, 99)) == apart | {"head": "gpu0"}


@pytest.mark.parametrize("method", ["sequential", "balanced"])
@pytest.mark.parametrize("name", ["t5", "blocks"])
def test_maps_equal_those_of_accelerate(name: str, method: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    memory = pytest.importorskip("accelerate.utils").get_balanced_memory
    import dlplacer as dp

    module, kwargs = _model(name)
    classes = list(getattr(module, "_no_split_modules", None) or ())
    graph = dp.capture(dp.Job(module, kwargs=kwargs, mode="infer"))
    light = [replace(op, time_s=float(op.kind not in _STORED), output_bytes=0, workspace_bytes=0) for op in graph.ops]
    graph = replace(graph, ops=tuple(light))
    total = sum(op.weight_bytes for op in graph.ops)
    for shares in ((9.0, 9.0), (0.7, 0.7), (0.4, 0.5, 0.6)):
        sizes = [int(share * total) for share in shares]
        room = {**dict(enumerate(sizes)), "cpu": 10 * total}
        room = memory(module, room, classes) if method == "balanced" else room
        theirs = accelerate.infer_auto_device_map(module, room, classes)
        problem = build_problem(graph, _machine(*sizes), Options(memory="sum"))
        found = found_by(problem, method)
        assert found is not None
        for op, device in zip(graph.ops, found.device, strict=True):
            if op.kind in _STORED:
                assert _looked_up(theirs, op.id) == (device - 1 if device else "cpu"), (op.id, shares)


def _looked_up(found: Mapping[str, int | str], tensor: str) -> int | str:
    names = tensor.split(".")
    return next(found[path] for n in range(len(names), -1, -1) if (path := ".".join(names[:n])) in found)


def _model(name: str) -> "tuple[torch.nn.Module, dict[str, torch.Tensor]]":
    import torch
    from torch import nn

    tokens = torch.zeros(1, 4, dtype=torch.long)
    if name == "blocks":
        blocks = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.BatchNorm1d(8)) for _ in range(4)]
        return nn.Sequential(*blocks, nn.Linear(8, 3)).eval(), {"input": torch.zeros(2, 8)}
    models = pytest.importorskip("transformers")
    config = models.T5Config(vocab_size=300, d_model=32, d_kv=16, d_ff=64, num_layers=3, num_heads=2, use_cache=False)
    return models.T5ForConditionalGeneration(config).eval(), {"input_ids": tokens, "decoder_input_ids": tokens}
