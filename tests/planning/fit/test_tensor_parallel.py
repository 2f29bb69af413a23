"""GPUs that divide every matrix: shares by hand, what they cost, and what llama.cpp and vLLM are told."""

from itertools import product

import pytest
from planning.fit.test_fit import GB, machine, small

import dlplacer as dp
from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.fit.decoder import Serving
from dlplacer.planning.fit.fit import fit
from dlplacer.planning.fit.tensor_parallel import divided
from dlplacer.report.export.targets import export

SERVING = Serving(context=512)


def pair(
    rooms: tuple[float, float], rates: tuple[float, float], link: float = 1e15, latency_s: float = 0.0
) -> Topology:
    gpus = zip(rooms, rates, strict=True)
    devices = tuple(Device(f"gpu{n}", f"type{n}", int(room), 1e18, rate) for n, (room, rate) in enumerate(gpus))
    return Topology(devices, (), (Link("gpu0", "gpu1", link, latency_s),), "pair")


def test_shares_by_bandwidth_make_one_device_as_fast_as_both() -> None:
    together = fit(small(), pair((GB, GB), (6e11, 3e11)), SERVING, reserve_bytes=0, tensor_parallel=[["gpu0", "gpu1"]])
    one = fit(small(), Topology((Device("gpu", "both", 2 * GB, 1e18, 9e11),), (), ()), SERVING, reserve_bytes=0)
    assert together.value_s == pytest.approx(one.value_s, rel=1e-6)
    assert together.plan.topology.devices[0].meta["shares"] == pytest.approx([2 / 3, 1 / 3])


def test_a_step_takes_two_all_reduces_for_each_layer() -> None:
    decoder, sets = small(layers=4), [["gpu0", "gpu1"]]
    free = fit(decoder, pair((GB, GB), (5e11, 5e11)), SERVING, reserve_bytes=0, tensor_parallel=sets)
    slow = fit(decoder, pair((GB, GB), (5e11, 5e11), 1e9, 3e-6), SERVING, reserve_bytes=0, tensor_parallel=sets)
    # Two of them send half of a token's vector, and then the other half: 2 x (3 us + 1,024 x 2 / 2 bytes / 1 GB/s).
    assert slow.value_s - free.value_s == pytest.approx(4 * 2 * 2 * (3e-6 + 1024e-9), rel=1e-3)


def test_no_member_holds_more_than_it_has() -> None:
    rooms, kept = (int(8e8), int(2e8)), 1000
    for topology in divided(pair(rooms, (3e11, 9e11)), [["gpu0", "gpu1"]], kept):
        (one,) = topology.devices
        parts = [share * (one.memory_bytes - kept) + kept for share in one.meta["shares"]]
        assert sum(one.meta["shares"]) == pytest.approx(1)
        assert all(part <= room * (1 + 1e-9) for part, room in zip(parts, rooms, strict=True))
        assert max(part / room for part, room in zip(parts, rooms, strict=True)) == pytest.approx(1, rel=1e-6)


def test_what_fits_by_memory_alone_is_found() -> None:
    need = sum(part.weight_bytes for part in small().parts)
    rooms = (1.1 * need, 0.3 * need)
    with pytest.raises(InfeasibleError):
        fit(
            small(),
            pair((0.5 * need, 0.3 * need), (1e11, 9e11)),
            SERVING,
            reserve_bytes=0,
            tensor_parallel=[["gpu0", "gpu1"]],
        )
    found = fit(small(), pair(rooms, (1e11, 9e11)), SERVING, reserve_bytes=0, tensor_parallel=[["gpu0", "gpu1"]])
    assert found.plan.topology.devices[0].meta["shares"][0] > 0.6


def test_routes_to_others_stay() -> None:
    (topology, *_) = divided(machine((GB, 9e11), (GB, 3e11), (GB, 5e11)), [["gpu0", "gpu2"]], 0)
    assert [device.id for device in topology.devices] == ["gpu0+gpu2", "gpu1"]
    assert {(link.source, link.target) for link in topology.links} == {("gpu0+gpu2", "bus"), ("gpu1", "bus")}
    assert not dp.violations(fit(small(), topology, SERVING, reserve_bytes=0).plan)


@pytest.mark.parametrize(("rates", "target"), [*product([(6e11, 6e11), (6e11, 3e11)], ["llama.cpp", "vllm", "exo"])])
def test_runtimes_are_told_what_they_can_do(rates: tuple[float, float], target: str) -> None:
    plan = fit(small(), pair((GB, GB), rates), SERVING, reserve_bytes=0, tensor_parallel=[["gpu0", "gpu1"]]).plan
    if target == "llama.cpp":
        shares = "50,50" if rates[0] == rates[1] else "67,33"
        row = f"--n-gpu-layers 5 --device CUDA0,CUDA1 --split-mode row --tensor-split {shares} --main-gpu 0"
        assert export(plan, target).text.endswith(row)
    elif target == "vllm" and rates[0] == rates[1]:
        assert export(plan, target).text.endswith("CUDA_VISIBLE_DEVICES=0,1 vllm serve MODEL --tensor-parallel-size 2")
    else:
        with pytest.raises(InputError, match=r"cannot divide matrices over gpu0\+gpu1"):
            export(plan, target)


@pytest.mark.parametrize("names", [["gpu0"], ["gpu0", "gpu7"]])
def test_a_set_has_two_known_gpus(names: list[str]) -> None:
    with pytest.raises(InputError, match=r"give two or more GPUs|has no device 'gpu7'"):
        fit(small(), pair((GB, GB), (6e11, 6e11)), SERVING, tensor_parallel=[names])


def test_gpus_are_numbered_among_their_like() -> None:
    machine = dp.new_topology("RX7900XTX, 2x RTX3090", link="pcie4")
    plan = fit(small(), machine, SERVING, tensor_parallel=[["gpu1", "gpu2"]], last=["gpu0"]).plan
    assert "--device CUDA0,CUDA1 " in export(plan, "llama.cpp").text
    assert "CUDA_VISIBLE_DEVICES=0,1 " in export(plan, "vllm").text


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("RTX3090; RTX3090", ["host0-gpu0", "host1-gpu1"]),
        ("RX7900XTX, RTX3090", ["gpu0", "gpu1"]),
    ],
)
def test_a_set_of_several_hosts_or_vendors_cannot_be_told(words: str, names: list[str]) -> None:
    network = "10gbe" if ";" in words else None
    machine = dp.new_topology(words, link="pcie4", network=network)
    plan = fit(small(), machine, SERVING, tensor_parallel=[names]).plan
    for target in ("llama.cpp", "vllm"):
        with pytest.raises(InputError, match="cannot divide matrices"):
            export(plan, target)
