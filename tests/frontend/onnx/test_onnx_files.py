"""Any valid file becomes a graph whose cut runs as the whole does; broken ones are told with the place."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from frontend.onnx.models import FLOAT, diamond, random_model, save, weights
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import dlplacer as dp
from dlplacer.cli.main import main
from dlplacer.core.errors import FileFormatError
from dlplacer.core.plan import Plan
from dlplacer.frontend.onnx import onnx_graph, read_onnx
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.runtime.onnx.run_cut_model import OnnxDevice, PlacedOnnx, provider_named, random_inputs

CORES = dp.load_topology("cpu-2core")


def split_plan(graph: dp.OpGraph) -> Plan:
    """Ops in turns on both devices: as many cuts as there can be."""
    pinned = [
        dp.Op(**{**op.__dict__, "devices": (f"cpu{place % 2}",)}) if "node" in op.attrs else op
        for place, op in enumerate(graph.ops)
    ]
    timed = with_times(dp.OpGraph(tuple(pinned), graph.edges, capture=graph.capture), CORES)
    return dp.place(timed, CORES, method="heft").plan


def test_graph_of_a_diamond(tmp_path: Path) -> None:
    file = read_onnx(diamond(tmp_path / "d.onnx"))
    graph = onnx_graph(file)
    assert [op.id for op in graph.ops if "node" in op.attrs] == ["conv", "left", "right", "Add_3", "flat", "gemm"]
    assert graph.op("conv").flops == 2 * (2 * 4 * 8 * 8) * 27
    assert graph.op("gemm").flops == 2 * 10 * 256
    assert graph.op("weight:w").weight_bytes == 4 * 3 * 9 * 4
    assert graph.op("flat").bytes_accessed == 0
    assert graph.op("left").bytes_accessed == 2 * 2 * 4 * 64 * 4
    assert {edge.tensor for edge in graph.edges_from["conv"]} == {"a"}
    assert graph.structure_sha256


@pytest.mark.parametrize("seed", range(4))
def test_cut_models_compute_what_the_whole_computes(tmp_path: Path, seed: int) -> None:
    file = read_onnx(random_model(tmp_path / "r.onnx", seed))
    plan = split_plan(onnx_graph(file))
    dp.check_plan(plan)
    inputs = random_inputs(file, seed)
    names = [value.name for value in file.model.graph.output]
    expected = dict(zip(names, ReferenceEvaluator(file.model).run(None, inputs), strict=True))
    placed = PlacedOnnx(file, plan)
    try:
        for _ in range(3):
            found = placed(inputs)
            assert found.keys() == expected.keys()
            for name in names:
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-4)
    finally:
        placed.close()


# The build for CPUs has a second provider, whose sessions run on the CPU: its parts go the way of any provider's.
def test_parts_of_other_providers_compute_what_the_whole_computes(tmp_path: Path) -> None:
    provider = provider_named("azure")
    assert provider == "AzureExecutionProvider"
    file = read_onnx(random_model(tmp_path / "r.onnx", 2))
    inputs = random_inputs(file, 2)
    expected = ReferenceEvaluator(file.model).run(None, inputs)
    for devices in ((OnnxDevice(0, provider), OnnxDevice(0)), (OnnxDevice(0, provider), OnnxDevice(1, provider))):
        placed = PlacedOnnx(file, split_plan(onnx_graph(file)), dict(zip(("cpu0", "cpu1"), devices, strict=True)))
        try:
            found = placed(inputs)
            for value, wanted in zip(file.model.graph.output, expected, strict=True):
                np.testing.assert_allclose(found[value.name], wanted, rtol=1e-3, atol=1e-4)
        finally:
            placed.close()


def external(path: Path, location: str) -> Path:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    save(path, nodes, {"x": [4]}, {"y": [4]}, {"w": weights(1, 4)})
    model = onnx.load(str(path))
    tensor = model.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, location)
    tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_stays_in_the_folder(tmp_path: Path) -> None:
    inner = tmp_path / "model"
    inner.mkdir()
    (tmp_path / "secret.bin").write_bytes(weights(3, 4).tobytes())
    (inner / "own.bin").write_bytes(weights(3, 4).tobytes())
    (inner / "way-out.bin").symlink_to(tmp_path / "secret.bin")
    file = read_onnx(external(inner / "m.onnx", "own.bin"))
    np.testing.assert_array_equal(numpy_helper.to_array(file.model.graph.initializer[0]), weights(3, 4))
    for location in ("../secret.bin", str(tmp_path / "secret.bin"), "way-out.bin", ""):
        with pytest.raises(FileFormatError, match=r"tensor 'w' lies in .*, outside the folder"):
            read_onnx(external(inner / "m.onnx", location))
    with pytest.raises(FileFormatError, match="which is not there"):
        read_onnx(external(inner / "m.onnx", "none.bin"), with_weights=True)


def test_weights_in_other_files_are_planned_by_their_shapes(tmp_path: Path) -> None:
    """Six products with matrices of 400 MB in a file that is not there: 2 × 4 × 10,000 × 10,000 FLOP each."""
    weights_of = [(f"w{number}", [10_000, 10_000]) for number in range(6)]
    nodes = [helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"]) for n in range(6)]
    save(tmp_path / "big.onnx", nodes, {"x0": [4, 10_000]}, {"x6": [4, 10_000]})
    model = onnx.load(tmp_path / "big.onnx")
    for name, shape in weights_of:
        tensor = model.graph.initializer.add(name=name, data_type=FLOAT, dims=shape)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "big.data"), ("length", str(4 * 10**8))):
            tensor.external_data.add(key=key, value=value)
    (tmp_path / "big.onnx").write_bytes(model.SerializeToString())
    graph = onnx_graph(read_onnx(tmp_path / "big.onnx"))
    assert sum(op.flops for op in graph.ops) == 6 * 2 * 4 * 10_000 * 10_000
    assert sum(op.weight_bytes for op in graph.ops) == 6 * 4 * 10**8
    with (tmp_path / "big.data").open("wb") as data:
        data.truncate(6 * 4 * 10**8)
    assert onnx_graph(read_onnx(tmp_path / "big.onnx")) == graph
    with pytest.raises(FileFormatError, match="2 GiB"):
        read_onnx(tmp_path / "big.onnx", with_weights=True)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(diamond(tmp_path / "d.onnx", batch="batch"))
    plan = str(tmp_path / "plan.json")
    assert main(["solve", path, "cpu-2core"]) == 2
    assert "--dim batch=1" in capsys.readouterr().err
    assert main(["solve", path, "cpu-2core", "--dim", "batch=2", "--time-limit", "3", "-o", plan]) == 0
    capsys.readouterr()
    assert main(["run", plan, path, "--devices", "cpu:0,cpu:1", "--steps", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_abs_error"] == 0
    other = ["--provider", "Azure", "--devices", "azure:0,cpu:1"]
    assert main(["run", plan, path, *other, "--steps", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_abs_error"] == 0
    assert main(["profile", path, "--dim", "batch=2", "--device", "cpu:0", "--steps", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["serial_s"]["cpu-core"] > 0
    graph = str(tmp_path / "graph.json")
    assert main(["capture", path, "--dim", "batch=2", "--device-type", "V100", "-o", graph, "--json"]) == 0
    captured = json.loads(capsys.readouterr().out)
    assert captured["ops"] == len(dp.load_graph(graph).ops)
    assert main(["solve", graph, "dgx1-v100-2gpu", "--time-limit", "3"]) == 0
    capsys.readouterr()
    for arguments, message in (
        (["solve", path, "cpu-2core", "--dim", "batch"], "--dim 'batch' is not understood"),
        (["solve", path, "cpu-2core", "--batch-size", "2"], "an ONNX file takes the sizes of its axes"),
        (["capture", path], "--dim batch=1"),
        (["run", plan, "--devices", "cpu:0"], "write cpu:0,cpu:1"),
        (["run", plan, "--devices", "cpu:0,cpu:0"], "write cpu:0,cpu:1"),
        (["run", plan, "--devices", "cuda:0,cuda:1"], "or give a provider"),
        (["run", plan, "--devices", "tpu:0,tpu:1", "--provider", "TPU"], "no provider 'TPU'; it has"),
        (["profile", path, "--device", "cuda:0"], "timed on CPU cores"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err
