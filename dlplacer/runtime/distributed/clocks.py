"""How far the clocks of processes are apart: what joins their recorded steps on one time axis."""

import time

import torch
import torch.distributed as dist

from dlplacer.runtime.distributed.group import HOST, RankGroup

_TRIPS = 20
Reading = tuple[int, int, int]
"""Nanoseconds: a question left here, was answered there on the clock there, and the answer came back here."""


def clock_offsets_ns(group: RankGroup) -> list[int]:
    """[rank] → nanoseconds by which its ``time.perf_counter_ns`` is ahead of that of rank 0; the same on all processes.

    Rank 0 asks every other process for the time some times; every process takes part. The error is at most half of
    the fastest round trip, and the drift since then; processes of one host, which share a clock, are 0 apart.
    """
    offsets = [0]
    for peer in range(1, group.ranks.count):
        readings: list[Reading] = []
        if group.rank in (0, peer):
            ask = _asked if group.rank == 0 else _answered
            readings = group.call(HOST, f"comparing the clocks of ranks 0 and {peer}", lambda ask=ask, at=peer: ask(at))
        offsets.append(offset_ns(readings) if readings else 0)
    found: list[int] = group.gathered(offsets)[0]
    return found


def offset_ns(readings: list[Reading]) -> int:
    """The offset that the fastest round trip shows; 0 where the readings allow that both clocks are one."""
    if all(left <= there <= back for left, there, back in readings):
        return 0
    left, there, back = min(readings, key=lambda reading: reading[2] - reading[0])
    return there - (left + back) // 2


def _asked(peer: int) -> list[Reading]:
    question, answer = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    readings = []
    for _ in range(_TRIPS):
        left = time.perf_counter_ns()
        dist.send(question, peer)
        dist.recv(answer, peer)
        readings.append((left, int(answer), time.perf_counter_ns()))
    return readings


def _answered(peer: int) -> list[Reading]:
    question = torch.zeros(1, dtype=torch.int64)
    for _ in range(_TRIPS):
        dist.recv(question, 0)
        dist.send(torch.tensor([time.perf_counter_ns()]), 0)
    return []
