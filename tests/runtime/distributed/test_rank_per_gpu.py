"""How ``dlplacer run`` spreads several GPUs over processes."""

import pytest

from dlplacer.runtime.distributed.ranks import rank_per_gpu


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
