"""Lemmas 3.1 and 3.2 of Zou et al. 2017, asked backwards; `SerialOverhead` is Lemma 3.1 itself."""

import math
import sys
from fractions import Fraction

from dlplacer.core.errors import InputError
from dlplacer.planning.hybrid.scaling import MOST_WORKERS, require_workers

_MOST = 10**9


def most_overhead_ratio(wanted_efficiency: float, gpus: int) -> float:
    """R = (1 − α) ÷ (α·G − 1): the overhead per unit of computation that this efficiency on G GPUs allows.

    Raises
    ------
    InputError
        If the efficiency is not in (0, 1], or is at most 1 ÷ G, which any overhead allows.
    """
    if gpus < 1:
        raise InputError(f"there are {gpus} GPUs; give at least 1")
    if gpus > MOST_WORKERS:
        raise InputError(f"there are 10^{len(str(gpus)) - 1} GPUs or more; give at most {MOST_WORKERS:g}")
    if not 0 < wanted_efficiency <= 1:
        raise InputError(f"efficiency is {wanted_efficiency:g}; it must be above 0 and at most 1 (0.8 is 80 %)")
    if wanted_efficiency * gpus <= 1:
        raise InputError(
            f"an efficiency of {wanted_efficiency:g} on {gpus} GPUs is no faster than one GPU, so any overhead allows "
            f"it; ask for more than {1 / gpus:g}"
        )
    return (1 - wanted_efficiency) / (wanted_efficiency * gpus - 1)


def fewest_channels(load_bytes: float | Fraction, channel_bytes_per_s: float, compute_s: float) -> int:
    """⌈load ÷ (rate · T_C)⌉: the fewest channels that move a load while a step computes, and at least 1.

    Numbers are taken as they print, 0.1 for a tenth, and the arithmetic is exact, so that a load that just fits does.
    The load is shared out evenly and moves during the computation of the step before (asynchronously).

    Raises
    ------
    InputError
        If the load is negative, the rate or the computation is not positive, or more than a billion channels are
        needed.
    """
    for name, value in (("channel_bytes_per_s", channel_bytes_per_s), ("compute_s", compute_s)):
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"{name} is {value:g}; it must be positive and finite")
    # A fraction may be larger than any float, and is finite.
    if not (load_bytes >= 0 and load_bytes < math.inf):
        raise InputError(f"load_bytes is {_shown(load_bytes)}; it must be finite and at least 0")
    exact = Fraction(str(load_bytes)) / (Fraction(str(channel_bytes_per_s)) * Fraction(str(compute_s)))
    if exact > _MOST:
        raise InputError(
            f"{_shown(load_bytes)} bytes at {channel_bytes_per_s:g} bytes/s do not hide behind {compute_s:g} s of "
            f"computation, even with {_MOST:,} channels: compute longer, or load less"
        )
    return max(1, math.ceil(exact))


def fewest_servers(parameter_bytes: float, workers: int, server_bytes_per_s: float, compute_s: float) -> int:
    """N_ps = ⌈2·S_p·N_w ÷ (B_ps·T_C)⌉ of Lemma 3.2: every worker pulls and pushes all parameters in every step.

    Raises
    ------
    InputError
        If there are no workers; else as `fewest_channels` does.
    """
    if workers < 1:
        raise InputError(f"there are {workers} workers; give at least 1")
    require_workers(workers)
    if not (parameter_bytes >= 0 and math.isfinite(parameter_bytes)):
        raise InputError(f"parameter_bytes is {parameter_bytes:g}; it must be finite and at least 0")
    return fewest_channels(2 * workers * Fraction(str(parameter_bytes)), server_bytes_per_s, compute_s)


def transfer_s(parameter_bytes: float, workers: int, server_bytes_per_s: float, servers: int) -> float:
    """Seconds of a round of pulls and pushes over this many servers, which must not exceed the computation.

    Raises
    ------
    InputError
        If there are no servers, or their rate is not positive.
    """
    if servers < 1 or not server_bytes_per_s > 0:
        raise InputError(f"{servers} servers of {server_bytes_per_s:g} bytes/s; there must be at least 1, of some rate")
    if not math.isfinite(parameter_bytes) or math.isinf(server_bytes_per_s):
        return 2 * parameter_bytes * (workers / servers) / server_bytes_per_s
    # Exactly, as products of sizes and rates may leave the range of floats where the quotient does not.
    return float(2 * workers * Fraction(parameter_bytes) / (servers * Fraction(server_bytes_per_s)))


def _shown(load_bytes: float | Fraction) -> str:
    return f"over {sys.float_info.max:g}" if load_bytes > sys.float_info.max else f"{float(load_bytes):g}"
