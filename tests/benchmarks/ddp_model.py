"""What a step of torch's DistributedDataParallel will take over several processes, from a profile in one.

DDP hands every bucket of gradients to an all-reduce when the last of them is ready, one all-reduce after another, while
backward goes on; the step goes on behind backward when all of them have ended. Where an all-reduce is done by the same
cores that compute, as with gloo on CPUs, both slow each other down; where it is not (``cpu_share`` 0), they overlap.
"""

from dataclasses import dataclass

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.alpha_beta import AlphaBeta


@dataclass(frozen=True)
class DdpProfile:
    """A step of DDP in one process, where its all-reduces cost nothing.

    Attributes
    ----------
    step_s
        The whole step.
    ready_s
        When every bucket is ready, from the begin of the step, ascending; behind the last one backward has ended.
    sizes_bytes
        Of the buckets, in that order.
    """

    step_s: float
    ready_s: tuple[float, ...]
    sizes_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.ready_s) != len(self.sizes_bytes) or not self.ready_s:
            raise InputError(
                f"a DDP profile of {len(self.ready_s)} times and {len(self.sizes_bytes)} sizes; give one of each for "
                "every bucket, and one bucket at least"
            )
        if list(self.ready_s) != sorted(self.ready_s) or not 0 <= self.ready_s[-1] <= self.step_s:
            raise InputError(f"a DDP profile: buckets are ready at {self.ready_s} in a step of {self.step_s} s")


def ddp_step_s(profile: DdpProfile, all_reduce: AlphaBeta, cpu_share: float = 0.0) -> float:
    """Seconds of a step whose buckets take all-reduces of this line.

    Parameters
    ----------
    all_reduce
        Seconds of an all-reduce that has its cores to itself.
    cpu_share
        Share of that time in which it keeps a computing core busy, 0 to 1. While both run, each gets half of the core,
        or the all-reduce what it needs if that is less.

    Raises
    ------
    InputError
        If the share is out of range.
    """
    if not 0 <= cpu_share <= 1:
        raise InputError(f"cpu_share is {cpu_share}; it must be between 0 and 1")
    left_s = [all_reduce.time_s(size) for size in profile.sizes_bytes]
    now_s, done_s, bucket = 0.0, 0.0, 0
    while bucket < len(left_s) or done_s < profile.step_s:
        limit_s = _next_stop(profile, done_s, bucket)
        reducing = bucket < len(left_s) and done_s >= profile.ready_s[bucket]
        computing = done_s < limit_s
        compute_rate, reduce_rate = _rates(computing, reducing, cpu_share)
        spans = []
        if computing:
            spans.append((limit_s - done_s) / compute_rate)
        if reducing:
            spans.append(left_s[bucket] / reduce_rate)
        span_s = min(spans)
        finishes = reducing and span_s == left_s[bucket] / reduce_rate
        arrives = computing and span_s == (limit_s - done_s) / compute_rate
        now_s += span_s
        done_s = limit_s if arrives else done_s + span_s * compute_rate if computing else done_s
        if reducing:
            left_s[bucket] -= span_s * reduce_rate
        bucket += finishes
    return now_s


def _next_stop(profile: DdpProfile, done_s: float, bucket: int) -> float:
    """How much of the step can be computed before something else happens: a bucket is ready, or all must have ended."""
    if bucket == len(profile.ready_s):
        return profile.step_s
    return next((ready_s for ready_s in profile.ready_s[bucket:] if ready_s > done_s), profile.ready_s[-1])


def _rates(computing: bool, reducing: bool, cpu_share: float) -> tuple[float, float]:
    """Speeds of computing and reducing, against each alone."""
    if not (computing and reducing) or cpu_share == 0:
        return 1.0, 1.0
    if cpu_share <= 0.5:
        return 1 - cpu_share, 1.0
    return 0.5, 0.5 / cpu_share


def speedup(plain_step_s: float, processes: int, step_s: float) -> float:
    """Samples per second of some processes over those of one plain one, every process with the same batch."""
    return processes * plain_step_s / step_s


def exposed_s(profile: DdpProfile, step_s: float) -> float:
    """What communication adds to the step."""
    return max(0.0, step_s - profile.step_s)
