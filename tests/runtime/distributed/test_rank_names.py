"""Which process owns which device, from the names that a user gives."""

import pytest
from frontend.torch.small_models import graph_of
from runtime.random_plans import random_plan

from dlplacer.core.errors import InputError
from dlplacer.runtime.distributed.group import parse_ranks, rank_per_gpu


@pytest.fixture(scope="module")
def plan():
    return random_plan(graph_of("linear"), 2)


def names(ranks, replica: int) -> dict[str, str]:
    return {device: str(owner) for device, owner in ranks.owners[replica].items()}


def test_a_device_without_rank_has_a_rank_of_its_own(plan) -> None:
    ranks = parse_ranks(plan, ["cpu:0", "cpu:1"])
    assert names(ranks, 0) == {"d0": "rank0/cpu:0", "d1": "rank1/cpu:1"}
    assert (ranks.count, ranks.per_replica, ranks.replicas) == (2, 2, 1)


def test_replicas_have_the_same_devices_on_the_ranks_that_follow(plan) -> None:
    ranks = parse_ranks(plan, {"d0": "rank0/cpu:0", "d1": "rank1/cpu:1"}, replicas=2)
    assert names(ranks, 1) == {"d0": "rank2/cpu:0", "d1": "rank3/cpu:1"}
    assert [ranks.replica_of(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert ranks.peers_of(3) == [1, 3]
    assert ranks.devices_of(2) == {"d0": "cpu:0"}
    assert [ranks.rank_of(device, 1) for device in ("d0", "d1", "network@rank1")] == [2, 3, 3]


def test_a_rank_may_own_several_devices(plan) -> None:
    ranks = parse_ranks(plan, "rank0/cpu:0,rank0/cpu:1", replicas=2)
    assert names(ranks, 1) == {"d0": "rank1/cpu:0", "d1": "rank1/cpu:1"}
    assert ranks.devices_of(1) == {"d0": "cpu:0", "d1": "cpu:1"}


@pytest.mark.parametrize(
    ("devices", "replicas", "message"),
    [
        (["cpu:0"], 1, r"the plan has 2 devices \(d0, d1\), but 1 were given"),
        ({"d0": "cpu:0", "d7": "cpu:1"}, 1, "'d7' is none of them"),
        (["rank0/cpu:0", "rank2/cpu:1"], 1, "the devices of replica 0 are on ranks 0, 2; they must be on ranks 0, 1"),
        ("rank0/cuda:0,rank0/cuda:1", 1, "rank 0 owns cuda:0 and cuda:1; give every GPU"),
        ("rank0/cuda:0,rank0/cpu:0", 2, "rank 0 owns cuda:0 and cpu:0"),
    ],
)
def test_mistakes_are_named(plan, devices, replicas: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_ranks(plan, devices, replicas)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("cuda:0,cuda:1", "rank0/cuda:0,rank1/cuda:1"),
        ("cuda:3,cuda:1", "rank0/cuda:3,rank1/cuda:1"),
        ("cuda:0/0,cuda:1,cuda:0/1?copies=forced", "rank0/cuda:0/0,rank1/cuda:1,rank0/cuda:0/1?copies=forced"),
        ("cuda:0/0,cuda:0/1", None),
        ("cpu:0,cuda:1", None),
        ("cpu:0,cpu:1", None),
        ("rank0/cuda:0,rank1/cuda:1", None),
    ],
)
def test_every_gpu_has_a_process(devices: str, expected: str | None) -> None:
    found = rank_per_gpu(devices.split(","))
    assert (None if found is None else ",".join(found)) == expected
