"""Lowered programs, line by line, beside files that hold them.

If lowering changes on purpose, write the files anew and read the difference before committing it:

    DLPLACER_WRITE_GOLDEN=1 python -m pytest tests/runtime/test_golden_programs.py
"""

import os
from pathlib import Path

import pytest
from runtime.random_graphs import random_graph, random_order

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.runtime.program.checks import dry_run, require_no_races
from dlplacer.runtime.program.lower import Order, lower_stages
from dlplacer.runtime.program.program import Program
from dlplacer.runtime.program.stream_lowering import DeviceMemorySpace, MemorySpaces, with_streams

GOLDEN = Path(__file__).parent / "golden"

# A training step of two layers: weights, activations that the backward pass reads again, gradients where weights are.
LAYERS = OpGraph(
    (
        Op("w1", "parameter", colocate="w1", phase="forward"),
        Op("w2", "parameter", colocate="w2", phase="forward"),
        Op("x", "input", phase="forward"),
        Op("mm1", "aten.mm", phase="forward"),
        Op("mm2", "aten.mm", phase="forward"),
        Op("loss", "aten.sum", phase="forward"),
        Op("back2", "aten.mm", phase="backward"),
        Op("w2.grad", "gradient", colocate="w2", phase="backward"),
        Op("back1", "aten.mm", phase="backward"),
        Op("w1.grad", "gradient", colocate="w1", phase="backward"),
    ),
    (
        Edge("x", "mm1", 8, 0, "x"),
        Edge("w1", "mm1", 8, 0, "w1"),
        Edge("mm1", "mm2", 8, 0, "h"),
        Edge("w2", "mm2", 8, 0, "w2"),
        Edge("mm2", "loss", 8, 0, "y"),
        Edge("mm2", "back2", 8, 0, "y"),
        Edge("mm1", "back2", 8, 0, "h"),
        Edge("w2", "back2", 8, 0, "w2"),
        Edge("back2", "w2.grad", 8, 0, "dw2"),
        Edge("back2", "back1", 8, 1, "dh"),
        Edge("x", "back1", 8, 0, "x"),
        Edge("back1", "w1.grad", 8, 0, "dw1"),
    ),
)
SPLIT: Order = {
    "gpu0": ["w1", "x", "mm1", "back1", "w1.grad"],
    "gpu1": ["w2", "mm2", "loss", "back2", "w2.grad"],
}
ALONE: Order = {"gpu0": [op.id for op in LAYERS.ops]}
RANDOM = random_graph(7)


def staged(graph: OpGraph, order: Order) -> list[Order]:
    """The order's forward part and the rest."""
    return [
        {device: [op for op in ops if (graph.op(op).phase == "forward") == forward] for device, ops in order.items()}
        for forward in (True, False)
    ]


CASES: dict[str, tuple[OpGraph, list[Order], tuple[str, ...]]] = {
    "layers-joint": (LAYERS, [SPLIT], ("dw1", "dw2")),
    "layers-stages": (LAYERS, staged(LAYERS, SPLIT), ("dw1", "dw2")),
    "layers-one-device": (LAYERS, [ALONE], ("dw1", "dw2")),
    "random-three-devices": (RANDOM, [random_order(RANDOM, 8)], ()),
}


@pytest.mark.parametrize("name", CASES)
def test_lowered_programs_are_those_on_file(name: str) -> None:
    graph, orders, keep = CASES[name]
    programs = lower_stages(graph, orders, keep)
    dry_run(graph, programs)
    text = "---\n".join(map(str, programs))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("DLPLACER_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert [Program.parse(part) for part in text.split("---\n")] == programs


GPU0, GPU1, CORE = (
    DeviceMemorySpace("cuda:0", has_streams=True),
    DeviceMemorySpace("cuda:1", has_streams=True),
    DeviceMemorySpace(),
)
MACHINES: dict[str, MemorySpaces] = {
    "two-gpus": {"gpu0": GPU0, "gpu1": GPU1},
    "parts-free": {"gpu0": GPU0, "gpu1": GPU0},
    "parts-forced": {name: DeviceMemorySpace("cuda:0", has_streams=True, copies=True) for name in ("gpu0", "gpu1")},
    "gpu-and-core": {"gpu0": GPU0, "gpu1": CORE},
}
ON_STREAMS = [
    ("layers-joint", "two-gpus"),
    ("layers-joint", "parts-free"),
    ("layers-joint", "parts-forced"),
    ("layers-joint", "gpu-and-core"),
    ("layers-stages", "two-gpus"),
    ("layers-stages", "parts-free"),
]


@pytest.mark.parametrize(("name", "machine"), ON_STREAMS)
def test_programs_on_streams_are_those_on_file(name: str, machine: str) -> None:
    graph, orders, keep = CASES[name]
    spaces = MACHINES[machine]
    programs = with_streams(lower_stages(graph, orders, keep), spaces)
    dry_run(graph, programs)
    require_no_races(graph, programs, spaces)
    text = "---\n".join(map(str, programs))
    path = GOLDEN / f"{name}-{machine}.txt"
    if os.environ.get("DLPLACER_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert [Program.parse(part) for part in text.split("---\n")] == programs


@pytest.mark.parametrize("name", CASES)
def test_programs_of_cores_stay_as_they_are(name: str) -> None:
    graph, orders, keep = CASES[name]
    programs = lower_stages(graph, orders, keep)
    assert with_streams(programs, dict.fromkeys(orders[0], CORE)) == programs
