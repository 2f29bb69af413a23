"""Which instances the benchmark suite solves.

``quick`` (26 instances, about a minute with 5 s each): every family once with 10 to 21 ops and once with 40, over
ratios and machines in turn. ``small`` (156): every family × ratio × 10, 15, 21 and 30 ops. ``full`` (239): ``small``,
every family × ratio with 60 and 150 ops, and five families with 2,000 ops on 8 devices. Every fourth instance of 40, 60
or 150 ops has memory for 1.5 × its footprint only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from benchmarks.families import FAMILIES, REFERENCE_BYTES_PER_S
from benchmarks.machines import MACHINES, REFERENCE_TYPE, compute_s, limited, mean_delay_s, timed_on

from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology

CCRS = (0.1, 1.0, 10.0)
SMALL_OPS = (10, 15, 21, 30)
MEDIUM_OPS = (60, 150)
_QUICK_SMALL_OPS = (10, 12, 15, 18, 21)
_QUICK_MEDIUM_OPS = 40
_TIGHT = 1.5


@dataclass(frozen=True)
class Instance:
    """A graph of a family on a machine.

    Attributes
    ----------
    ccr
        Communication-to-computation ratio on this very machine (`benchmarks.machines.ccr_on`), met to two percent; but
        bytes make up a tenth of it at least, also where latencies alone exceed the rest.
    machine
        A key of `benchmarks.machines.MACHINES`.
    slack
        Memory of all devices together ÷ footprint of the graph; None if unlimited.
    limit_s
        What a solve may take in the ``small`` and ``full`` sets.
    """

    family: str
    op_count: int
    ccr: float
    machine: str
    seed: int = 0
    slack: float | None = None
    limit_s: float = 10.0

    @property
    def name(self) -> str:
        """Unique among all instances."""
        memory = "" if self.slack is None else f" memory {self.slack:g}"
        return f"{self.family} {self.op_count} ccr {self.ccr:g} {self.machine}{memory} #{self.seed}"

    def build(self) -> tuple[OpGraph, Topology]:
        """The graph with times for the machine's device types, and the machine."""
        machine = MACHINES[self.machine]()
        latency_s = float(mean_delay_s(machine, 0))
        slowness = float(mean_delay_s(machine, REFERENCE_BYTES_PER_S)) - latency_s

        def at(ccr: float) -> OpGraph:
            return timed_on(FAMILIES[self.family](self.op_count, self.seed, ccr), machine, self.seed)

        probe = at(1.0)
        reference_s = sum(op.time_on(REFERENCE_TYPE) or 0.0 for op in probe.ops)
        transfer_s = self.ccr * compute_s(probe, machine)
        moving_s = max(transfer_s / 10, transfer_s - len(probe.edges) * latency_s)
        graph = replace(at(moving_s / slowness / reference_s), name=self.name)
        return graph, machine if self.slack is None else limited(machine, graph, self.slack)


def _quick() -> tuple[Instance, ...]:
    machines = tuple(MACHINES)
    found = []
    for at, family in enumerate(FAMILIES):
        op_count = _QUICK_SMALL_OPS[at % len(_QUICK_SMALL_OPS)]
        found.append(Instance(family, op_count, CCRS[at % 3], machines[at % len(machines)]))
        machine = machines[(at + 3) % len(machines)]
        found.append(Instance(family, _QUICK_MEDIUM_OPS, CCRS[(at + 1) % 3], machine, slack=_slack(at)))
    return tuple(found)


def _small() -> tuple[Instance, ...]:
    machines = tuple(MACHINES)
    grid = product(FAMILIES, SMALL_OPS, CCRS)
    return tuple(
        Instance(family, op_count, ccr, machines[at % len(machines)], seed=1)
        for at, (family, op_count, ccr) in enumerate(grid)
    )


def _medium() -> tuple[Instance, ...]:
    machines = tuple(MACHINES)
    grid = product(FAMILIES, MEDIUM_OPS, CCRS)
    return tuple(
        Instance(family, op_count, ccr, machines[at % len(machines)], 2, _slack(at), limit_s=30.0)
        for at, (family, op_count, ccr) in enumerate(grid)
    )


def _slack(at: int) -> float | None:
    return _TIGHT if at % 4 == 3 else None


_LARGE = tuple(
    Instance(family, 2000, 1.0, "linked-8", 3, limit_s=60.0)
    for family in ("layered", "series_parallel", "pipeline", "inception_like", "recurrent")
)

SETS: Mapping[str, tuple[Instance, ...]] = {
    "quick": _quick(),
    "small": _small(),
    "full": (*_small(), *_medium(), *_LARGE),
}
"""Name → instances."""
