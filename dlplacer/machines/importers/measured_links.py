"""Latency and rate of every link of a detected topology, from timed copies over many sizes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Link, Topology

SIZES_BYTES = (4, 2**12, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26)
NO_COPY_BYTES_PER_S = 1e15

Timer = Callable[[str, str, int], float]
"""(device, device or ``host``, bytes) → seconds of one copy."""


@dataclass(frozen=True, slots=True)
class Fit:
    """An α-β line through timed copies.

    Attributes
    ----------
    residual
        Largest |fitted − measured| ÷ measured.
    """

    latency_s: float
    bytes_per_s: float
    residual: float


def fit_line(times_s: Mapping[int, float]) -> Fit:
    """The line of least relative error through bytes → seconds; where time does not grow, no byte is copied.

    Raises
    ------
    InputError
        If fewer than two sizes were timed, or a time is not positive.
    """
    import numpy as np

    if len(times_s) < 2 or min(times_s.values()) <= 0:
        raise InputError(f"a line needs two sizes or more with positive times; got {dict(times_s)}")
    sizes, times = np.array(list(times_s), dtype=float), np.array(list(times_s.values()))
    rows = np.stack([1 / times, sizes / times], axis=1)
    (latency_s, slope), *_ = np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)
    if latency_s < 0:
        # The median: a mean of times ÷ sizes would be that of the 4-byte copy, whose time is all latency.
        latency_s, slope = 0.0, float(np.median(times / sizes))
    if slope <= 1 / NO_COPY_BYTES_PER_S or slope * sizes.max() < 0.2 * latency_s:
        latency_s, slope = float(np.median(times)), 1 / NO_COPY_BYTES_PER_S
    residual = float(np.max(np.abs(latency_s + slope * sizes - times) / times))
    return Fit(float(latency_s), 1 / float(slope), residual)


def measured(topology: Topology, timer: Timer, sizes_bytes: Sequence[int] = SIZES_BYTES) -> Topology:
    """The topology with what was measured in place of what was assumed.

    A link between two devices takes the fit of copies between them. Devices that reach each other through routers alone
    are timed to the host, which fits the first link of their route; links between routers keep their rates.
    """
    ids = set(topology.device_index)
    links = [_measured_link(link, ids, timer, sizes_bytes) for link in topology.links]
    source = f"{topology.source}; links timed with copies of {sizes_bytes[0]} to {sizes_bytes[-1]} bytes"
    return replace(topology, links=tuple(links), source=source)


def _measured_link(link: Link, devices: set[str], timer: Timer, sizes_bytes: Sequence[int]) -> Link:
    ends = [end for end in (link.source, link.target) if end in devices]
    if not ends or "switch" in link.target:
        return link
    other = ends[1] if len(ends) > 1 else "host"
    fit = fit_line({size: timer(ends[0], other, size) for size in sizes_bytes})
    meta = {**link.meta, "measured": {"residual": round(fit.residual, 4), "copies": list(sizes_bytes)}}
    return replace(link, bytes_per_s=fit.bytes_per_s, latency_s=fit.latency_s, count=1, meta=meta)
