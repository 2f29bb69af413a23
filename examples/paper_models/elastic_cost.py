"""Seconds that the variants of elastic averaging take for the same number of mini-batches (sections 4–6).

A tree over P workers takes ⌈log2 P⌉ rounds, a master that serves one worker after the other takes P.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.collectives import AlphaBeta, ceil_log2
from dlplacer.planning.hybrid.step_times import elastic_exposed_s

VARIANTS = ("original-serial", "original", "async", "hogwild", "sync1", "sync2", "sync3")


@dataclass(frozen=True)
class ElasticRun:
    """What one mini-batch costs a worker, and the links.

    Attributes
    ----------
    layer_bytes
        Weights, layer by layer.
    compute_s
        Forward and backward of a mini-batch on a worker.
    data_s
        Copy of a mini-batch from host to worker.
    worker_update_s, centre_update_s
        Arithmetic of eq. 1 on a worker, and of eq. 2 for one worker's term at the centre.
    host_link, peer_link
        Worker to host, and worker to worker.
    packed
        Whether all layers travel in one message.
    """

    workers: int
    layer_bytes: tuple[int, ...]
    compute_s: float
    data_s: float
    worker_update_s: float
    centre_update_s: float
    host_link: AlphaBeta
    peer_link: AlphaBeta
    packed: bool = True

    def __post_init__(self) -> None:
        if self.workers < 1 or not self.layer_bytes:
            raise InputError(f"{self.workers} workers and {len(self.layer_bytes)} layers; give at least 1 of each")
        for name in ("compute_s", "data_s", "worker_update_s", "centre_update_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InputError(f"elastic averaging: {name} is {value}; it must be finite and at least 0")
        if min(self.layer_bytes) < 0:
            raise InputError(f"elastic averaging: a layer has {min(self.layer_bytes)} bytes; it must be at least 0")

    def weights_s(self, link: AlphaBeta) -> float:
        """All weights once over a link, packed or layer by layer."""
        return exchange_s(self.layer_bytes, link, self.packed)


def exchange_s(layer_bytes: Sequence[int], link: AlphaBeta, packed: bool) -> float:
    """α + n·β packed, L·α + n·β layer by layer."""
    return (0 if packed else len(layer_bytes) - 1) * link.latency_s + link.time_s(sum(layer_bytes))


def seconds_per_batch(run: ElasticRun, variant: str) -> float:
    """Seconds per mini-batch in steady state.

    ``original-serial`` lets one worker at a time compute and exchange with the centre on the host; ``original`` hides
    its exchange behind the computation. ``async``: all workers compute, the centre serves one after the other, first
    come first served. ``hogwild``: the centre serves all at once, updates still share its processor. ``sync1``: all
    workers, tree over the host links; ``sync2``: tree over the peer links; ``sync3``: that tree runs beside data copy
    and computation of the same iteration.

    Raises
    ------
    InputError
        If the variant is unknown.
    """
    if variant not in VARIANTS:
        raise InputError(f"there is no variant {variant!r} of elastic averaging; use one of {', '.join(VARIANTS)}")
    compute_s, update_s = run.data_s + run.compute_s, run.worker_update_s
    exchange = 2 * run.weights_s(run.host_link)
    if variant.startswith("original"):
        busy_s = compute_s + exchange if variant == "original-serial" else max(run.compute_s, exchange) + run.data_s
        return busy_s + update_s + run.centre_update_s
    if variant == "async":
        served_s = exchange + run.centre_update_s
        return max((compute_s + update_s + served_s) / run.workers, served_s)
    if variant == "hogwild":
        return max((compute_s + update_s + exchange + run.centre_update_s) / run.workers, run.centre_update_s)
    link = run.host_link if variant == "sync1" else run.peer_link
    tree_s = 2 * ceil_log2(run.workers) * run.weights_s(link)
    exposed_s = elastic_exposed_s(compute_s, tree_s) if variant == "sync3" else tree_s
    return (compute_s + exposed_s + update_s + run.workers * run.centre_update_s) / run.workers


def most_parts(weight_bytes: int, data_bytes: int, fast_memory_bytes: int, power_of_two: bool = True) -> int:
    """Into how many parts a chip can be split so that every part's copy of weights and data stays in fast memory.

    P · (|W| + |D|) ≤ fast memory (section 6.2); the paper's parts are powers of two.

    Raises
    ------
    InputError
        If a copy has no bytes, or not even one fits.
    """
    if weight_bytes + data_bytes < 1:
        raise InputError(f"a copy of {weight_bytes} bytes of weights and {data_bytes} of data; it must have at least 1")
    fitting = fast_memory_bytes // (weight_bytes + data_bytes)
    if fitting < 1:
        raise InputError(
            f"one copy of weights and data needs {weight_bytes + data_bytes} bytes; fast memory has "
            f"{fast_memory_bytes}: shrink the data copy or the model"
        )
    return 1 << (fitting.bit_length() - 1) if power_of_two else fitting
