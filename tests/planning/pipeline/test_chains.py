"""Sequences of devices whose transfers meet on a link direction."""

from itertools import pairwise

import pytest
from planning.pipeline.graphs import chain

from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline


def two_switches(order: str) -> Topology:
    """Devices on switches a and b as the letters say; all links have one rate and no latency."""
    devices = tuple(Device(f"d{at}", "x") for at in range(len(order)))
    links = [Link(f"d{at}", side, 10.0) for at, side in enumerate(order)]
    return Topology(devices, (Router("a"), Router("b")), (*links, Link("a", "b", 10.0)))


@pytest.mark.parametrize("order", ["aabb", "abab", "abba"])
def test_stages_cross_between_switches_once(order: str) -> None:
    """All routes cost the same, but those that cross take turns on the link between the switches."""
    side = dict(zip(("d0", "d1", "d2", "d3"), order, strict=True))
    plan = plan_pipeline(
        chain([1, 1, 1, 1], bytes_=20), two_switches(order), stages=4, micro_batches=4, schedule="1f1b"
    )
    assert sum(side[one] != side[other] for one, other in pairwise(plan.devices)) == 1
    assert plan.exact
