"""The models that the onnx package carries: imported, solved on 2 and 4 devices, checked, and run cut by device."""

from pathlib import Path

import onnx
import pytest

import dlplacer as dp
from dlplacer.frontend.onnx import onnx_graph, read_onnx
from dlplacer.runtime.onnx.run_cut_model import run_onnx

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
# Multiply-adds counted as two; SqueezeNet 1.0 and ResNet-50 as published, AlexNet's with its grouped convolutions.
GIGA_FLOPS = {
    "bvlc_alexnet": 1.309,
    "densenet121": 5.668,
    "inception_v1": 2.863,
    "inception_v2": 4.038,
    "resnet50": 8.178,
    "shufflenet": 0.2493,
    "squeezenet": 0.6983,
    "vgg19": 39.264,
    "zfnet512": 2.963,
}

_LARGE = ("bvlc_alexnet", "densenet121", "inception_v2", "resnet50", "vgg19")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in _LARGE else name for name in GIGA_FLOPS]
)
def test_light_model(name: str) -> None:
    file = read_onnx(LIGHT / f"light_{name}.onnx")
    graph = onnx_graph(file)
    assert sum(op.flops for op in graph.ops) / 1e9 == pytest.approx(GIGA_FLOPS[name], rel=1e-3)
    four = dp.place(graph, dp.load_topology("dgx1-v100-4gpu"), time_limit_s=0.5).plan
    dp.check_plan(four)
    # Every device takes a share, so that the model is really cut.
    two = dp.place(graph, dp.load_topology("cpu-2core"), method="sequential").plan
    dp.check_plan(two)
    report = run_onnx(file, two, steps=1, warmup=0)
    assert report.max_abs_error == 0
    assert report.parts >= 1
