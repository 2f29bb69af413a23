"""What processes tell each other beside the program: plain data and tensors."""

import pytest
import torch
import torch.distributed as dist
from processes import run_ranks
from runtime.random_plans import random_plan

from dlplacer.core.errors import InputError
from dlplacer.frontend import capture
from dlplacer.models import mlp
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.ranks import parse_ranks

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def plan():
    return random_plan(capture(mlp(batch_size=4)), 2)


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("objects are pickled")


def group_of(plan, replicas: int = 1) -> RankGroup:
    dist.all_gather_object = dist.broadcast_object_list = refuse
    return RankGroup(parse_ranks(plan, ["cpu:0", "cpu:0"], replicas), timeout_s=30)


def test_plain_data_arrives_in_the_order_of_ranks(plan) -> None:
    def work(rank: int):
        group = group_of(plan)
        values = [{"text": "é" * 1000 * rank, "exact": 0.1 + rank}, [1, (2, 3)], None]
        return [group.gathered(value) for value in (values[rank], *values)]

    for found in run_ranks(2, work):
        assert found[0] == [{"text": "", "exact": 0.1}, [1, [2, 3]]]
        assert found[-1] == [None, None]


def test_what_is_no_plain_data_is_not_sent(plan) -> None:
    for _, name, message in run_ranks(2, lambda rank: group_of(plan).gathered(object())):
        assert name == "TypeError"
        assert "object is not JSON serializable" in message


TENSORS = [
    {"a": torch.arange(6.0).reshape(2, 3).t(), "empty": torch.zeros(0, 3)},
    {"b": torch.tensor([1.5, 2.5], dtype=torch.bfloat16), "scalar": torch.tensor(7)},
]


def test_tensors_of_one_replica_come_together(plan) -> None:
    def work(rank: int):
        return group_of(plan, replicas=2).merged({name: value + rank // 2 for name, value in TENSORS[rank % 2].items()})

    found = run_ranks(4, work)
    for rank, tensors in enumerate(found):
        assert sorted(tensors) == ["a", "b", "empty", "scalar"]
        for name, value in {**TENSORS[0], **TENSORS[1]}.items():
            assert torch.equal(tensors[name], value + rank // 2)
            assert (tensors[name].dtype, tensors[name].stride()) == (value.dtype, (value + 0).stride())


def test_settings_that_differ_are_named_in_short(plan) -> None:
    def work(rank: int) -> None:
        group_of(plan).require_same({"same": 1, "order": {"d0": ["op"] * 10_000, "d1": [str(rank)]}})

    for _, name, message in run_ranks(2, work):
        assert name == "InputError"
        assert "differ in order" in message
        assert len(message) < 400


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are GPUs")
def test_gpus_that_are_not_there_are_bad_input_not_a_failed_group() -> None:
    plan = random_plan(capture(mlp(batch_size=4)), 2, seed=1)
    ranks = parse_ranks(plan, "rank0/cuda:0,rank1/cuda:1", 1)
    with pytest.raises(InputError, match="device 'cuda:0' is not here: torch sees no CUDA device"):
        RankGroup(ranks)
