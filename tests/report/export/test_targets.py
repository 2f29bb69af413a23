"""Texts for other runtimes, read back by their own parsers where installed, else by the documented grammar."""

import json
import re
from itertools import accumulate, groupby

import pytest

import dlplacer as dp
from dlplacer.core.errors import InputError
from dlplacer.frontend.configs import decoder_of_config
from dlplacer.planning.fit.decoder import Serving
from dlplacer.planning.fit.fit import fit
from dlplacer.report.export.targets import TARGETS, export

LAYERS = 20
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}


def planned(words: str, objective: str = "throughput", whole: str = "layers", **more: object) -> dp.Plan:
    decoder = decoder_of_config({**CONFIG, **more}, "short")
    return fit(decoder, dp.new_topology(words), Serving(2048, objective=objective), whole=whole, time_limit_s=3).plan


@pytest.fixture(scope="module")
def gpus() -> dp.Plan:
    return planned("RTX3090, RTX3060, RTX4090")


@pytest.fixture(scope="module")
def with_ram() -> dp.Plan:
    return planned("RTX3070, 64 GB DDR5-5600", "token")


def runs(plan: dp.Plan) -> list[tuple[str, int]]:
    """Device and number of layers of each run, from the plan itself."""
    layers = sorted((op for op in plan.graph.ops if op.kind == "layer"), key=lambda op: op.meta["layer"])
    return [(device, len(list(group))) for device, group in groupby(plan.placement[op.id] for op in layers)]


def test_vllm_counts_layers_of_each_rank(gpus: dp.Plan) -> None:
    text = export(gpus, "vllm").text
    counts = [int(each) for each in re.findall(r"VLLM_PP_LAYER_PARTITION=([\d,]+)", text)[0].split(",")]
    order = re.findall(r"CUDA_VISIBLE_DEVICES=([\d,]+)", text)[0].split(",")
    assert [(f"gpu{number}", count) for number, count in zip(order, counts, strict=True)] == runs(gpus)
    assert f"--pipeline-parallel-size {len(counts)}" in text


@pytest.mark.parametrize("name", ["gpus", "with_ram"])
def test_llama_cpp_puts_each_layer_where_the_plan_does(name: str, request: pytest.FixtureRequest) -> None:
    plan = request.getfixturevalue(name)
    exported = export(plan, "llama.cpp")
    offloaded = int(re.findall(r"--n-gpu-layers (\d+)", exported.text)[0])
    devices = re.findall(r"--device (\S+)", exported.text)[0].split(",")
    shares = [float(each) for each in re.findall(r"--tensor-split (\S+)", exported.text)[0].split(",")]
    # As llama.cpp does: the last layers and the output are offloaded, layer i to the first device whose cumulated
    # share is above its place among them.
    begin, active = max(0, LAYERS + 1 - offloaded), min(offloaded, LAYERS + 1)
    ends = [end / sum(shares) for end in accumulate(shares)]
    homes = ["ram"] * begin
    homes += [
        devices[next(at for at, end in enumerate(ends) if (layer - begin) / active < end)]
        for layer in range(begin, LAYERS)
    ]
    told = [(home.replace("CUDA", "gpu"), len(list(group))) for home, group in groupby(homes)]
    if exported.loss == 0:
        assert told == runs(plan)
    else:
        assert sum(count for _, count in told) == LAYERS
        assert exported.loss > 0


def test_llama_cpp_puts_experts_elsewhere_by_patterns() -> None:
    sparse = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    plan = planned("RTX3060, 64 GB DDR5-5600", "token", "experts", **sparse)
    exported = export(plan, "llama.cpp")
    patterns = re.findall(r"--override-tensor '(.*?)=(\w+)'", exported.text)
    assert exported.loss == 0
    assert patterns
    rest = {op.meta["layer"]: plan.placement[op.id] for op in plan.graph.ops if op.kind != "experts"}
    for op in plan.graph.ops:
        if op.kind == "experts":
            tensor = f"blk.{op.meta['layer']}.ffn_up_exps.weight"
            told = [device for pattern, device in patterns if re.search(pattern, tensor)]
            home = told[0].replace("CUDA", "gpu").replace("CPU", "ram") if told else rest[op.meta["layer"]]
            assert home == plan.placement[op.id]
    assert not any(re.search(pattern, "blk.1.attn_q.weight") for pattern, _ in patterns)


@pytest.mark.parametrize("name", ["gpus", "with_ram"])
def test_a_device_map_covers_every_module_once(name: str, request: pytest.FixtureRequest) -> None:
    plan = request.getfixturevalue(name)
    told = json.loads(export(plan, "accelerate").text)
    for op in plan.graph.ops:
        for module in op.meta["modules"]:
            home = next(told[path] for path in (module, module.rpartition(".")[0]) if path in told)
            assert (f"gpu{home}" if home != "cpu" else "ram") == plan.placement[op.id]


def test_megatron_is_told_a_layout(gpus: dp.Plan) -> None:
    text = re.findall(r"--pipeline-model-parallel-layout '(.*)'", export(gpus, "megatron").text)[0]
    # E and L are the embedding and the loss, t*3 three decoder layers, | begins a stage.
    assert re.fullmatch(r"E,t\*\d+(\|t\*\d+)*,L", text)
    assert [int(count) for count in re.findall(r"t\*(\d+)", text)] == [count for _, count in runs(gpus)]


def test_torchtitan_names_every_module_once(gpus: dp.Plan) -> None:
    stages = json.loads(export(gpus, "torchtitan").text)["module_fqns_per_model_part"]
    layers = [f"layers.{layer}" for layer in range(LAYERS)]
    assert [name for stage in stages for name in stage] == ["tok_embeddings", *layers, "norm", "output"]
    assert [sum(name.startswith("layers.") for name in stage) for stage in stages] == [count for _, count in runs(gpus)]


def test_torch_reads_split_points_and_schedule(gpus: dp.Plan) -> None:
    from torch.distributed.pipelining import SplitPoint
    from torch.distributed.pipelining.schedules import _Action

    told = json.loads(export(gpus, "torch.distributed.pipelining").text)
    cuts = [int(path.rpartition(".")[2]) for path in told["split_spec"]]
    assert cuts == list(accumulate(count for _, count in runs(gpus)))[:-1]
    assert {getattr(SplitPoint, name.partition(".")[2]) for name in told["split_spec"].values()} == {
        SplitPoint.BEGINNING
    }
    rows = [[_Action.from_str(each) for each in row.split(",")] for row in told["schedule_csv"].splitlines()]
    assert [row[0].stage_index for row in rows] == list(range(len(cuts) + 1))


def test_onnxruntime_takes_the_setting(with_ram: dp.Plan) -> None:
    onnxruntime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    key, _, value = export(with_ram, "onnxruntime").text.partition("=")
    devices = dict(re.findall(r"([\w:]+)\(([^)]*)\)", value))
    named = {pattern: device for device, text in devices.items() for pattern in text.split(", ")}
    assert len([pattern for pattern in named if pattern.startswith("/model/layers.")]) == LAYERS
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"], name="/model/layers.0/relu")],
        "small",
        [onnx.helper.make_tensor_value_info("x", 1, [1])],
        [onnx.helper.make_tensor_value_info("y", 1, [1])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(key, value)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert session.get_outputs()[0].name == "y"


def test_exo_has_half_open_ranges_in_the_order_of_ranks(gpus: dp.Plan) -> None:
    rows = json.loads(export(gpus, "exo").text)
    assert [(row["node"], row["end_layer"] - row["start_layer"]) for row in rows] == runs(gpus)
    assert [row["start_layer"] for row in rows[1:]] == [row["end_layer"] for row in rows[:-1]]
    assert {row["world_size"] for row in rows} == {len(rows)}


def test_what_a_target_cannot_say_is_solved_again_and_costs(with_ram: dp.Plan) -> None:
    plan = planned("2x RTX3060, 64 GB DDR5-5600")
    assert "ram" in plan.placement.values()
    told = export(plan, "vllm")
    counts = re.findall(r"VLLM_PP_LAYER_PARTITION=([\d,]+)", told.text)[0].split(",")
    assert sum(map(int, counts)) == LAYERS
    assert told.loss > 0
    with pytest.raises(InputError):
        export(with_ram, "vllm")


def test_a_runtime_of_one_host_is_told_a_plan_of_one() -> None:
    decoder = decoder_of_config({**CONFIG, "num_hidden_layers": 60}, "long")
    two = dp.new_topology("RTX3090, 64 GB DDR5-5600; RTX3090", network="10gbe")
    plan = fit(decoder, two, Serving(2048), time_limit_s=5).plan
    assert len({device.partition("-")[0] for device in plan.placement.values()}) == 2
    for target in ("accelerate", "onnxruntime"):
        told = export(plan, target)
        assert told.loss > 0
        assert not re.search(r"CUDA1|gpu:1|: 1\b", told.text)
    with pytest.raises(InputError):
        export(plan, "vllm")
    assert {row["node"] for row in json.loads(export(plan, "exo").text)} == {*plan.placement.values()}


# The GPU of another host is an RPC device; RAM is that of the host that runs the server.
@pytest.mark.parametrize(("layers", "in_ram"), [(20, 0), (60, 18)])
def test_llama_cpp_reaches_other_hosts_by_rpc(layers: int, in_ram: int) -> None:
    decoder = decoder_of_config({**CONFIG, "num_hidden_layers": layers}, "long")
    two = dp.new_topology("RTX3060, 32 GB DDR5-5600; RTX3070, 64 GB DDR5-5600", network="1gbe")
    plan = fit(decoder, two, Serving(2048), time_limit_s=5).plan
    counts = dict(runs(plan))
    told = export(plan, "llama.cpp")
    assert told.loss == 0
    assert counts.get("host0-ram", 0) == in_ram
    assert told.text.endswith("--main-gpu 0 --rpc host1:50052")
    assert "--device CUDA0,RPC0 " in told.text
    # The output counts as one layer more, behind all others.
    assert f"--n-gpu-layers {layers - in_ram + 1} " in told.text
    assert f"--tensor-split {counts['host0-gpu0']},{counts['host1-gpu1'] + 1} " in told.text


def test_a_plan_without_layers_is_refused() -> None:
    plan = dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="single").plan
    for target in TARGETS.keys() - {"accelerate"}:
        with pytest.raises(InputError):
            export(plan, target)


@pytest.mark.parametrize(
    ("words", "names", "order"),
    [("M2Max 96GB", "Metal", False), ("2x RX7900XTX", "ROCm0,ROCm1", False), ("2x RTX3090", "CUDA0,CUDA1", True)],
)
def test_devices_have_the_names_of_their_vendor(words: str, names: str, order: bool) -> None:
    plan = planned(words)
    text = export(plan, "llama.cpp").text
    assert re.findall(r"--device (\S+)", text) == [names]
    assert [("CUDA_DEVICE_ORDER" in export(plan, target).text) for target in ("llama.cpp", "vllm")] == [order] * 2
