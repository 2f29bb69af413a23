"""Scaling efficiency SE_N = T_1 ÷ T_N as a constant or from overheads.

Lemmas 3.1 and 3.2 of Zou et al. 2017 count the devices that reach a speedup and the servers that hide an exchange.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from dlplacer.core.errors import InfeasibleError, InputError

MOST_WORKERS = 10**18
"""Limit on the number of workers; products of larger numbers with times would overflow."""


def constant_efficiency(value: float = 1.0) -> Callable[[int], float]:
    """A function from workers to SE_N, constant above one worker; Pal et al. 2019 assume 1 (section 4.3)."""
    if not 0 < value <= 1:
        raise InputError(f"scaling efficiency is {value}; it must be above 0 and at most 1")
    return lambda workers: 1.0 if workers == 1 else value


def require_workers(workers: int) -> None:
    """Raise InputError unless the number of workers is between 1 and `MOST_WORKERS`."""
    if workers < 1:
        raise InputError(f"{workers} workers; there must be at least 1")
    if workers > MOST_WORKERS:
        raise InputError(f"10^{len(str(workers)) - 1} workers or more; there may be at most {MOST_WORKERS:g}")


_SAME = 1e-12
"""Relative rounding error: a speedup this close to the ceiling counts as the ceiling."""


@dataclass(frozen=True)
class SerialOverhead:
    """Efficiency SE_N = (1 + R) ÷ (1 + N R) of lemma 3.1 of Zou et al. 2017, R = overhead ÷ computation of one device.

    The overhead occurs once per device, in series.
    """

    ratio: float

    def __post_init__(self) -> None:
        if not 0 <= self.ratio < math.inf:
            raise InputError(f"overhead ratio R is {self.ratio}; it must be finite and at least 0")

    def efficiency(self, workers: int) -> float:
        """(1 + R) ÷ (1 + N R)."""
        require_workers(workers)
        # Written as 1 ÷ (1 + (N − 1) R ÷ (1 + R)), so that no R overflows.
        return 1 / (1 + (workers - 1) * (self.ratio / (1 + self.ratio)))

    @property
    def speedup_ceiling(self) -> float:
        """(1 + R) ÷ R, the limit of the speedup for many devices."""
        return (1 + self.ratio) / self.ratio if self.ratio else math.inf

    def workers_for(self, speedup: float) -> int:
        """The least number of devices that reaches a speedup: G ≥ s ÷ (1 + R − s R).

        Raises InfeasibleError, which names the ceiling, if no number does.
        """
        if not 1 <= speedup <= MOST_WORKERS:
            raise InputError(f"a speedup of {speedup:g}; it must be at least 1, and at most {MOST_WORKERS:g}")
        # One device has a speedup of 1, even if R is so large that more devices are no faster.
        if speedup == 1:
            return 1
        if speedup >= self.speedup_ceiling * (1 - _SAME):
            raise InfeasibleError(
                f"a speedup of {speedup:g}x at overhead ratio R = {self.ratio:g}: no number of devices reaches "
                f"(1 + R) / R = {self.speedup_ceiling:g}x; lower R (fewer bytes, a faster network, overlap)"
            )
        workers = max(1, math.floor(speedup / (1 + self.ratio - speedup * self.ratio)) - 1)
        while self.efficiency(workers) * workers < speedup * (1 - _SAME):
            workers += 1
        return workers


_MOST = 10**9


def most_overhead_ratio(wanted_efficiency: float, gpus: int) -> float:
    """The largest overhead ÷ computation with efficiency α on G GPUs: R = (1 − α) ÷ (α·G − 1) (lemma 3.1).

    Raises InputError if the efficiency is not in (0, 1], or is at most 1 ÷ G, which every overhead allows.
    """
    require_workers(gpus)
    if not 0 < wanted_efficiency <= 1:
        raise InputError(f"efficiency is {wanted_efficiency:g}; it must be above 0 and at most 1 (0.8 is 80 %)")
    if wanted_efficiency * gpus <= 1:
        raise InputError(
            f"an efficiency of {wanted_efficiency:g} on {gpus} GPUs is no faster than one GPU, so any overhead allows "
            f"it; ask for more than {1 / gpus:g}"
        )
    return (1 - wanted_efficiency) / (wanted_efficiency * gpus - 1)


def fewest_channels(load_bytes: float | Fraction, channel_bytes_per_s: float, compute_s: float) -> int:
    """The least number of channels that move a load during a step's computation: ⌈load ÷ (rate · T_C)⌉, at least 1.

    The arithmetic is exact on printed decimals (0.1 is a tenth), so that a load that just fits counts as fitting. The
    load is divided evenly and moves, asynchronously, during the computation of the previous step.

    Raises InputError if the load is negative, the rate or the computation is not positive, or more than a billion
    channels are needed.
    """
    for name, value in (("channel_bytes_per_s", channel_bytes_per_s), ("compute_s", compute_s)):
        if not 0 < value < math.inf:
            raise InputError(f"{name} is {value:g}; it must be positive and finite")
    if not 0 <= load_bytes < math.inf:
        raise InputError(f"load_bytes is {load_bytes}; it must be finite and at least 0")
    exact = Fraction(str(load_bytes)) / (Fraction(str(channel_bytes_per_s)) * Fraction(str(compute_s)))
    if exact > _MOST:
        raise InputError(
            f"the load does not hide behind {compute_s:g} s of computation, even with {_MOST:,} channels of "
            f"{channel_bytes_per_s:g} bytes/s: compute longer, or load less"
        )
    return max(1, math.ceil(exact))


def fewest_servers(parameter_bytes: float, workers: int, server_bytes_per_s: float, compute_s: float) -> int:
    """The least number of servers, ⌈2·S_p·N_w ÷ (B_ps·T_C)⌉ (lemma 3.2): workers pull and push all parameters a step.

    Raises InputError if there are no workers, and the errors of `fewest_channels`.
    """
    require_workers(workers)
    if not 0 <= parameter_bytes < math.inf:
        raise InputError(f"parameter_bytes is {parameter_bytes:g}; it must be finite and at least 0")
    return fewest_channels(2 * workers * Fraction(str(parameter_bytes)), server_bytes_per_s, compute_s)


def transfer_s(parameter_bytes: float, workers: int, server_bytes_per_s: float, servers: int) -> float:
    """Seconds of one round of pulls and pushes over this number of servers."""
    # Fractions, because products of sizes and rates may overflow even if their quotient does not.
    return float(2 * workers * Fraction(parameter_bytes) / (servers * Fraction(server_bytes_per_s)))


def gpus_for(
    overhead: float | None, speedup: float | None, efficiency: float | None, gpus: int | None
) -> dict[str, float]:
    """The other quantities of lemma 3.1, from `overhead` with `speedup` or `gpus`, or `efficiency` with `gpus`."""
    figures = {"overhead": overhead, "speedup": speedup, "efficiency": efficiency, "gpus": gpus}
    given = {name for name, value in figures.items() if value is not None}
    if given == {"efficiency", "gpus"}:
        return {"overhead_ratio": most_overhead_ratio(efficiency or 0.0, gpus or 0)}
    if overhead is None or given not in ({"overhead", "speedup"}, {"overhead", "gpus"}):
        told = ", ".join(sorted(given)) or "nothing"
        raise InputError(f"{told} is given; give overhead with speedup or gpus, or efficiency with gpus")
    serial = SerialOverhead(overhead)
    count = serial.workers_for(speedup) if speedup is not None else gpus or 0
    found: dict[str, float] = {} if speedup is None else {"gpus": count}
    reached = serial.efficiency(count)
    return found | {"speedup": count * reached, "efficiency": reached, "speedup_ceiling": serial.speedup_ceiling}


def servers_for(load_bytes: float, bytes_per_s: float, compute_s: float, workers: int | None) -> dict[str, float]:
    """The least number of parameter servers (lemma 3.2) or, if `workers` is None, of loaders; and the transfer time."""
    if workers is None:
        count = fewest_channels(load_bytes, bytes_per_s, compute_s)
        return {"loaders": count, "transfer_s": load_bytes / bytes_per_s / count, "compute_s": compute_s}
    count = fewest_servers(load_bytes, workers, bytes_per_s, compute_s)
    taken_s = transfer_s(load_bytes, workers, bytes_per_s, count)
    return {"servers": count, "transfer_s": taken_s, "compute_s": compute_s}
