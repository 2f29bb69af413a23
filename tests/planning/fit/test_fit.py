"""Fits of layers: against all assignments, against published splits, and what they say of memory."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import dlplacer as dp
from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.frontend.configs import decoder_of_config
from dlplacer.planning.fit.decoder import Decoder, Serving
from dlplacer.planning.fit.fit import Fit, Question, fit
from dlplacer.planning.fit.splits import SPLITS, by_counts, by_map

GB = 10**9
LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def small(layers: int = 4, **more: object) -> Decoder:
    config = {**LLAMA_70B, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": layers}
    return decoder_of_config({**config, "num_attention_heads": 16, "vocab_size": 8192, **more}, "small")


def machine(*rooms_and_rates: tuple[float, float], link: float = 25e9) -> dp.Topology:
    """Devices of so many bytes and bytes per second on one bus; arithmetic is as good as free."""
    devices = tuple(
        dp.Device(f"gpu{number}", f"type{number}", int(room), 1e18, rate, dispatch_s=0.0)
        for number, (room, rate) in enumerate(rooms_and_rates)
    )
    links = tuple(dp.Link(device.id, "bus", link, 2e-6) for device in devices)
    return dp.Topology(devices, (dp.Router("bus"),), links, "machine")


def counts(found: Fit) -> dict[str, int]:
    return {share.device: len(share.layers) for share in found.shares}


@pytest.mark.parametrize("room", [1.05, 1.3, 2.0])
def test_no_assignment_at_all_is_faster(room: float) -> None:
    decoder, serving = small(), Serving(context=512)
    question = Question(decoder, machine((GB, 9e11), (GB, 3e11), (GB, 5e11)), serving, 0, "layers")
    need = question.sizes(512).sum() / 3 * room + question.working_bytes
    question = replace(question, topology=machine((1.2 * need, 9e11), (need, 3e11), (0.9 * need, 5e11)))
    chain = question.chain()
    every = (list(places) for places in product(range(3), repeat=len(chain.ops)))
    least_s = min(chain.value_s(places) for places in every if chain.fits(places))
    found = fit(decoder, question.topology, serving, reserve_bytes=0, time_limit_s=5)
    assert found.value_s == pytest.approx(least_s, rel=1e-5)
    assert found.status == "optimal"
    assert not dp.violations(found.plan)


@pytest.mark.parametrize("objective", ["token", "throughput", "prefill", "request"])
def test_no_simple_split_is_better(objective: str) -> None:
    box = dp.new_topology("RTX4090, RTX3060, 64 GB DDR5-5600")
    serving = Serving(context=2048, objective=objective)
    decoder = decoder_of_config({**LLAMA_70B, "num_hidden_layers": 24}, "short", 4.5)
    found = fit(decoder, box, serving, own={"yours": lambda chain: by_counts(chain, [20, 4])}, time_limit_s=3)
    judged = {one.name: one.value_s for one in found.alternatives}
    assert judged.keys() == {*SPLITS, "yours"}
    assert judged["yours"] is not None
    assert found.lower_bound_s <= found.value_s <= min(value for value in judged.values() if value is not None)


def test_five_macs_get_the_split_that_a_user_found_by_exhaustion() -> None:
    """exo#957: 40 layers of 1 GB on five Macs; the slowest stage takes 34.88 ms by capacity and 29.07 ms at best."""
    rates = (264, 344, 309, 351, 178)
    decoder = small(40)
    parts = (
        replace(part, weight_bytes=0 if part.layer is None or part.kind != "mlp" else GB, factors=0, kernels=1)
        for part in decoder.parts
    )
    decoder = replace(decoder, parts=tuple(parts))
    macs = machine(*((room * GB, rate * GB) for room, rate in zip((36, 96, 64, 96, 36), rates, strict=True)), link=1e15)
    found = fit(decoder, macs, Serving(context=1, objective="throughput"), reserve_bytes=0)
    by_capacity = next(one for one in found.alternatives if one.name == "by_memory")
    assert by_capacity.value_s is not None
    # Rates are reached by 70 %, so only ratios are the published ones: 10 layers on the 344 GB/s against 12.
    assert by_capacity.value_s / found.value_s == pytest.approx(34.88 / 29.07, rel=0.01)
    assert counts(found) == {"gpu0": 7, "gpu1": 10, "gpu2": 8, "gpu3": 10, "gpu4": 5}


def test_the_cache_of_eight_l4_is_short_with_equal_stages() -> None:
    """vllm#6920: Llama-3-70B in FP8 on eight L4 had 1,476 blocks of cache, and 3,078 with fewer layers on both ends."""
    decoder = decoder_of_config(LLAMA_70B, "Llama-3-70B", "fp8")
    # The memory in use is chosen so that equal stages have the first number; the second one follows.
    used_bytes = int(13.1 * 2**30)
    longest = fit(
        decoder, dp.new_topology("8x L4"), Serving(objective="throughput"), longest=True, reserve_bytes=used_bytes
    )
    even = next(one for one in longest.alternatives if one.name == "even")
    assert longest.binds == "cache"
    assert even.max_context / 16 == pytest.approx(1476, rel=0.01)
    assert longest.serving.context / 16 == pytest.approx(3078, rel=0.02)
    assert max(len(share.layers) for share in longest.shares if share.others) < 10


def test_memory_binds_where_layers_spill_to_ram() -> None:
    decoder = decoder_of_config({**LLAMA_70B, "num_hidden_layers": 60}, "tight", 4.5)
    box = dp.new_topology("RTX4090, 64 GB DDR5-5600")
    found = fit(decoder, box, Serving(context=2048), time_limit_s=2)
    assert found.binds == "memory"
    assert found.helps[0].kind in ("memory", "bandwidth")


def test_streamed_weights_take_the_time_of_the_link() -> None:
    decoder, serving = small(8), Serving(context=256)
    box = dp.new_topology("RTX4090, 64 GB DDR5-5600", link="pcie4")
    box = replace(box, devices=(replace(box.devices[0], memory_bytes=GB // 8), box.devices[1]))
    found = fit(decoder, box, serving, reserve_bytes=0, stream=True, time_limit_s=2)
    ram = next(share for share in found.shares if share.device == "ram")
    # 24 GB/s of PCIe 4.0 x16, against 90 of RAM; the embedding is looked up.
    assert ram.time_s >= (ram.weight_bytes - decoder.parts[0].weight_bytes) / 24e9


def test_devices_named_last_are_spared_until_they_are_needed() -> None:
    decoder = small(16)
    need = Question(decoder, machine((GB, 1e11)), Serving(context=256), 0, "layers").sizes(256).sum()
    roomy, tight = (machine((share * need + 1e8, 5e11), (need, 9e11)) for share in (1.0, 0.6))
    spared, used = (fit(decoder, each, Serving(context=256), reserve_bytes=0, last=["gpu1"]) for each in (roomy, tight))
    assert counts(spared) == {"gpu0": 16}
    assert {one.name: one.value_s is not None for one in spared.alternatives}["even"]
    assert set(counts(used)) == {"gpu0", "gpu1"}
    assert any("gpu1" in note for note in used.notes)


def test_the_longest_context_fits_and_one_token_more_does_not() -> None:
    decoder, box = small(16), machine((1e9, 5e11), (8e8, 5e11))
    found = fit(decoder, box, Serving(), reserve_bytes=0, longest=True)
    assert found.serving.context == found.max_context < 131072
    question = Question(decoder, box, found.serving, 0, "layers")
    chain = question.chain()
    assert chain.best_split() is not None
    assert replace(chain, sizes=question.sizes(found.max_context + 1)).best_split() is None


def test_the_model_binds_a_context_that_memory_does_not() -> None:
    decoder, box = small(4, max_position_embeddings=512), machine((1e9, 5e11))
    found = fit(decoder, box, Serving(), reserve_bytes=0, longest=True)
    assert (found.max_context, found.binds) == (512, "model")
    assert fit(decoder, box, Serving(1000), reserve_bytes=0).max_context == 1000


def test_a_cache_of_eight_bits_makes_room_for_twice_the_context() -> None:
    decoder, box = small(16), machine((1e9, 5e11), (8e8, 5e11))
    longest = [
        fit(decoder, box, Serving(cache_bits=bits), reserve_bytes=0, longest=True).max_context for bits in (16.0, 8.0)
    ]
    assert longest[1] == pytest.approx(2 * longest[0], rel=0.01)


def test_shared_weights_are_kept_once_on_one_device_and_twice_on_two() -> None:
    decoder, serving = small(8, vocab_size=65536, tie_word_embeddings=True), Serving(context=64)
    question = Question(decoder, machine((GB, 1e11)), serving, 0, "layers")
    need = decoder.weight_bytes + question.sizes(64).sum() - question.sizes(1).sum() + 2**20
    room = need + question.working_bytes
    alone = fit(decoder, machine((room, 1e11)), serving, reserve_bytes=0)
    assert sum(share.weight_bytes for share in alone.shares) == decoder.weight_bytes
    with pytest.raises(InfeasibleError):
        fit(decoder, machine((room - 2**22, 1e11)), serving, reserve_bytes=0)
    stages = fit(
        decoder, machine((room, 1e11), (room, 1e11)), replace(serving, objective="throughput"), reserve_bytes=0
    )
    ends = {op.id: stages.plan.placement[op.id] for op in stages.plan.graph.ops if op.kind != "layer"}
    copies = len({*ends.values()}) - 1
    assert sum(share.weight_bytes for share in stages.shares) == decoder.weight_bytes + copies * decoder.tied_bytes
    assert not dp.violations(stages.plan)


def test_a_throughput_has_a_bound_over_all_placements() -> None:
    decoder, serving = small(3), Serving(context=64, objective="throughput")
    two = machine((GB, 1e11), (GB, 9e10))
    chain = Question(decoder, two, serving, 0, "layers").chain()
    least_s = min(
        max(sum(chain.time_s[op, place] for op, place in enumerate(places) if place == device) for device in (0, 1))
        for places in product((0, 1), repeat=len(chain.ops))
    )
    found = fit(decoder, two, serving, reserve_bytes=0)
    assert found.lower_bound_s == pytest.approx(least_s, rel=1e-6)
    assert found.gap == pytest.approx(1 - least_s / found.value_s, abs=1e-5)
    assert (found.status == "optimal") == (found.gap == 0)


def test_batches_in_flight_have_room_for_their_caches() -> None:
    decoder = decoder_of_config(LLAMA_70B, "Llama-3-70B", 4.5)
    found = fit(decoder, dp.new_topology("4x RTX3090"), Serving(8192, 16, objective="throughput"), time_limit_s=2)
    # 40 GiB of cache for 16 sequences: one batch is in flight and passes all stages before its next token.
    assert found.serving.groups == 1
    assert found.tokens_per_s == pytest.approx(16 / found.decode_s)
    short = fit(decoder, dp.new_topology("4x RTX3090"), Serving(1024, 16, objective="throughput"), time_limit_s=2)
    assert sum(share.cache_bytes for share in short.shares) == short.serving.groups * 16 * 1024 * 80 * 2 * 8 * 128 * 2
    assert short.tokens_per_s <= 16 * short.serving.groups / short.decode_s * 1.000001
    assert short.tokens_per_s > 2 * 16 / short.decode_s


def test_a_change_that_helps_is_better_than_the_plan() -> None:
    config = {**LLAMA_70B, "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32000}
    config |= {"intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2, "num_attention_heads": 32}
    box, serving = dp.new_topology("RTX4090, 64 GB DDR5-5600"), Serving(32768)
    found = fit(decoder_of_config(config, "mixtral", 4.5), box, serving, whole="experts", time_limit_s=4)
    assert found.plan.method == "layer flow"
    assert found.helps
    assert all(one.gain == pytest.approx(1 - one.value_s / found.value_s) for one in found.helps)
    assert all(one.value_s < found.value_s for one in found.helps)


def test_experts_apart_are_faster_where_ram_is_needed() -> None:
    config = {**LLAMA_70B, "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 8, "vocab_size": 32000}
    config |= {"intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2, "num_attention_heads": 32}
    decoder = decoder_of_config(config, "experts", 4.5)
    box = dp.new_topology("RTX3070, 64 GB DDR5-5600")
    box = replace(box, devices=(replace(box.devices[0], memory_bytes=4 * GB), box.devices[1]))
    whole, apart = (
        fit(decoder, box, Serving(context=8192), whole=each, time_limit_s=5) for each in ("layers", "experts")
    )
    assert apart.value_s < whole.value_s


def test_a_map_of_accelerate_is_read_as_it_means() -> None:
    decoder = small(4)
    chain = Question(decoder, machine((GB, 1e11), (GB, 1e11)), Serving(context=64), 0, "layers").chain()
    told = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers": 1, "model.norm": 1, "lm_head": 1}
    assert by_map(chain, told) == [0, 0, 1, 1, 1, 1]
    assert by_map(chain, {"model": "cuda:0", "lm_head": "cuda:1"}) == [0, 0, 0, 0, 0, 1]
    apart = {"": 0, "model.layers.2.self_attn": 0, "model.layers.2.mlp": 1}
    parts = Question(decoder, machine((GB, 1e11), (GB, 1e11)), Serving(context=64), 0, "parts").chain()
    assert by_map(parts, apart) == [0, *(0, 0), *(0, 0), *(0, 1), *(0, 0), 0]
    for wrong in ({"model.layers": 0}, apart):
        with pytest.raises(InputError):
            by_map(chain, wrong)
    with pytest.raises(InputError):
        by_counts(chain, [3, 3])


def test_our_map_of_accelerate_is_the_one_that_accelerate_infers() -> None:
    accelerate = pytest.importorskip("accelerate")
    import torch
    from torch import nn

    decoder = small(6)
    for rooms in ((1.0, 1.0), (0.5, 1.0), (0.7, 0.7)):
        need = decoder.weight_bytes
        box = machine(*((room * need, 1e11) for room in rooms))
        chain = Question(decoder, box, Serving(context=1, chunk=1), 0, "layers").chain()
        root = nn.Module()
        for op in chain.ops:
            *path, name = str(op.module).split(".")
            home = root
            for each in path:
                if not hasattr(home, each):
                    home.add_module(each, nn.Module())
                home = getattr(home, each)
            leaf = nn.Linear(1, 1, bias=False)
            leaf.weight = nn.Parameter(
                torch.empty(op.weight_bytes, dtype=torch.uint8, device="meta"), requires_grad=False
            )
            home.add_module(name, leaf)
        limits = {number: int(room) for number, room in enumerate(chain.capacities)}
        told = accelerate.infer_auto_device_map(root, max_memory=limits, no_split_module_classes=["Linear"])
        ours = SPLITS["accelerate"](chain)
        placed = "disk" not in told.values()
        assert (ours is not None) == placed
        if placed:
            assert np.array_equal(ours, by_map(chain, told))
