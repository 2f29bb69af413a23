"""Latency and rate of every link of a detected topology, from timed copies of many sizes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Link, Topology
from dlplacer.core.units import format_bytes, format_bytes_per_s, format_seconds

SIZES_BYTES = (4, 2**12, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26)
NO_COPY_BYTES_PER_S = 1e15
"""The rate of tensors that are passed as pointers."""

Timer = Callable[[str, str, int], float]
"""(device, device or ``host``, bytes) → seconds of one copy."""

_ON_THE_LINE = 0.5
"""Largest |fitted − measured| ÷ measured of a copy that the line explains; below 0.3 on a quiet machine."""
_LEAST_EXPLAINED = 0.75
"""Least share of sizes that the line must explain to be accepted."""
_ROUNDS = 3
"""Number of times that a link is timed before its copies are rejected; noise on a shared machine lasts about 1 s."""
_FLAT = 0.2
"""If the largest copy adds less than this share of the latency, no byte is copied."""


@dataclass(frozen=True, slots=True)
class LineFit:
    """An α-β line through timed copies, with α ≥ 0 and β ≥ 0.

    `residual`: Largest |fitted − measured| ÷ measured. `doubt`: Reason why the copies do not determine the line, or
    empty.
    """

    latency_s: float
    bytes_per_s: float
    residual: float
    doubt: str = ""


def fit_line(times_s: Mapping[int, float], most_bytes_per_s: float = NO_COPY_BYTES_PER_S) -> LineFit:
    """The α-β line with the least squared relative errors for `times_s` (bytes → seconds); β ≈ 0 if time hardly grows.

    A delayed copy adds at most 1 to the sum of squares, however long its delay.

    `most_bytes_per_s`: The rate that the hardware cannot exceed: the memory rate of the slower device.
    """
    import numpy as np
    from scipy.optimize import nnls

    if len(times_s) < 2 or min(times_s.values()) <= 0:
        raise InputError(f"a line needs two sizes or more with positive times; got {dict(times_s)}")
    sizes, times = np.array(list(times_s), dtype=float), np.array(list(times_s.values()))
    # In units of the largest size, because columns of 1e-9 and of 1e6 together would lose all digits.
    unit = sizes.max()
    (latency_s, whole_s), _ = nnls(np.stack([1 / times, sizes / unit / times], axis=1), np.ones(len(times)))
    if whole_s < max(_FLAT * latency_s, unit / NO_COPY_BYTES_PER_S):
        latency_s, whole_s = np.median(times), unit / NO_COPY_BYTES_PER_S
    errors = np.abs(latency_s + whole_s * sizes / unit - times) / times
    fit = LineFit(float(latency_s), float(unit / whole_s), float(errors.max()))
    return replace(fit, doubt=_doubt(fit, times_s, int((errors > _ON_THE_LINE).sum()), most_bytes_per_s))


def measured(
    topology: Topology, timer: Timer, sizes_bytes: Sequence[int] = SIZES_BYTES, shared_memory: bool = False
) -> Topology:
    """The topology with measured latencies and rates of links in place of assumed ones.

    A link between two devices takes the fit of copies between them. A link from a device to a router takes the fit of
    copies to the host; links to switches and between routers keep their figures. A link whose copies contradict each
    other three times keeps the assumed figures; ``meta.refused`` has the reason. ``meta.measured`` has other fits.

    `shared_memory`: True if the devices are cores, which pass pointers: copies between two of them are timed, and the
    link of a core to its router takes half of the latency.
    """
    links = [_measured_link(topology, link, timer, sizes_bytes, shared_memory) for link in topology.links]
    count = sum("measured" in link.meta for link in links)
    copies = f"copies of {format_bytes(sizes_bytes[0])} to {format_bytes(sizes_bytes[-1])}"
    source = f"{topology.source}; {count} of {len(links)} links timed with {copies}"
    return replace(topology, links=tuple(links), source=source)


def doubts(topology: Topology) -> tuple[str, ...]:
    """A warning for each link that keeps its assumed figures because `measured` rejected the timed copies."""
    return tuple(
        f"link {link.source} – {link.target}: {link.meta['refused']['reason']}; it keeps the assumed "
        f"{format_bytes_per_s(link.bytes_per_s)} and {format_seconds(link.latency_s)}: measure again on a quiet machine"
        for link in topology.links
        if "refused" in link.meta
    )


def _measured_link(
    topology: Topology, link: Link, timer: Timer, sizes_bytes: Sequence[int], shared_memory: bool
) -> Link:
    ends = [end for end in (link.source, link.target) if end in topology.device_index]
    if not ends or "switch" in link.target:
        return link
    other, share = (ends[1], 1.0) if len(ends) > 1 else ("host", 1.0)
    if other == "host" and shared_memory:
        other, share = next(each.id for each in topology.devices if each.id != ends[0]), 0.5
    # No copy is faster than the memory that it reads or writes; clocks may be 5 % above the data sheet's.
    rates = [rate for end in ends if (rate := topology.device(end).memory_bytes_per_s) is not None]
    most = NO_COPY_BYTES_PER_S if shared_memory else 1.05 * min(rates, default=NO_COPY_BYTES_PER_S)
    times_s: dict[int, float] = {}
    for _ in range(_ROUNDS):
        # Other work on the machine makes copies longer, never shorter.
        times_s = {size: min(timer(ends[0], other, size), times_s.get(size, math.inf)) for size in sizes_bytes}
        fit = fit_line(times_s, most)
        if not fit.doubt:
            break
    copies = {"copies": list(sizes_bytes), "times_s": [float(f"{times_s[size]:.4g}") for size in sizes_bytes]}
    if fit.doubt:
        return replace(link, meta={**link.meta, "refused": {"reason": fit.doubt, **copies}})
    meta = {**link.meta, "measured": {"residual": round(fit.residual, 4), **copies}}
    return replace(link, bytes_per_s=fit.bytes_per_s, latency_s=share * fit.latency_s, count=1, meta=meta)


def _doubt(fit: LineFit, times_s: Mapping[int, float], off: int, most_bytes_per_s: float) -> str:
    line = f"the fitted line, {format_seconds(fit.latency_s)} and {format_bytes_per_s(fit.bytes_per_s)}, is"
    if off > (1 - _LEAST_EXPLAINED) * len(times_s):
        return f"no line explains its copies: {off} of {len(times_s)} sizes are off by more than half"
    for size, time_s in times_s.items():
        if fit.latency_s > (1 + _ON_THE_LINE) * time_s or fit.bytes_per_s < _ON_THE_LINE * size / time_s:
            return f"{line} contradicted by a copy of {format_bytes(size)} that took {format_seconds(time_s)} in all"
    if fit.bytes_per_s > most_bytes_per_s:
        return f"{line} above the {format_bytes_per_s(most_bytes_per_s)} of the devices' own memory"
    return ""
