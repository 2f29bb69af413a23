"""Bytes that the kernel has sent over TCP: sixteen times fewer, and as many as the statistics say."""

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _sent_bytes import sent_bytes
from data_parallel.ternary.runs import wrapped
from processes import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dlplacer.data_parallel import TernaryState

if sent_bytes() is None:
    pytest.skip("this system does not count the bytes of a TCP socket", allow_module_level=True)

STEPS = 3


def settled_bytes() -> int:
    """The bytes sent, once they stand still: a loaded machine may have some of it in a socket's buffer."""
    known = -1
    while known != (now := sent_bytes() or 0):
        known = now
        time.sleep(0.05)
    return known


def sent(rank: int) -> dict[str, Any]:
    """Bytes per step of plain and of ternary gradients, of a million elements and ten in full precision."""
    dist.init_process_group("gloo")
    found: dict[str, Any] = {}
    for name, choices in (("plain", None), ("all-gather", {}), ("sums", {"transport": "sums"})):
        model = nn.Sequential(nn.Linear(1000, 1000, bias=False), nn.Linear(1000, 1, bias=False))
        state = TernaryState(**choices) if choices is not None else None
        ddp = DistributedDataParallel(model) if state is None else wrapped(model, state)
        for _ in range(2):  # Connections are made, and buckets rebuilt.
            ddp(torch.ones(1, 1000)).sum().backward()
        dist.barrier()
        before, counted = settled_bytes(), state.stats()["sent_bytes"] if state else 0
        for _ in range(STEPS):
            ddp(torch.ones(1, 1000)).sum().backward()
        found[name] = (settled_bytes() - before) / STEPS
        if state:
            found[f"{name} counted"] = (state.stats()["sent_bytes"] - counted) / STEPS
    return found


def test_sixteen_times_fewer_bytes_and_as_many_as_are_counted() -> None:
    TernaryState()  # Compiles into the cache, from which all ranks read.
    for rank in run_ranks(2, sent, 60):
        assert rank["plain"] == pytest.approx(4 * 1_001_000, rel=0.02)
        assert 15.5 < rank["plain"] / rank["all-gather"] < 16
        # Two bits there, ⌈log2 5⌉ = 3 back, and half of everything stays: 32 · 2 ÷ (2 + 3).
        assert 12.3 < rank["plain"] / rank["sums"] < 12.9
        for name in ("all-gather", "sums"):
            assert rank[name] == pytest.approx(rank[f"{name} counted"], rel=0.02)
