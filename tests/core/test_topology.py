"""Devices, routers, links and machines: what they compute and what they refuse at birth."""

import math
from typing import Any

import pytest

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Link, Router, Topology


def pair(*links: Link) -> Topology:
    return Topology((Device("a"), Device("b")), (Router("r"),), links)


def test_networkx_form() -> None:
    topology = pair(Link("a", "r", 1.0))
    converted = topology.to_networkx()
    assert set(converted.nodes) == {"a", "b", "r"}
    assert converted.nodes["r"]["node"] == Router("r")
    assert converted.edges["r", "a"]["link"] is topology.links[0]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bytes_per_s": 0}, "bytes_per_s must be greater than 0"),
        ({"bytes_per_s": math.nan}, "bytes_per_s must be a finite number"),
        ({"latency_s": -1e-6}, "latency_s must be greater than or equal to 0"),
        ({"count": 0}, "count must be greater than or equal to 1"),
        ({"bytes_per_s": 1e300, "count": 10**9}, "count is 1000000000"),
        ({"duplex": "simplex"}, "duplex must be 'full' or 'half'"),
        ({"target": "a"}, "a link joins two different nodes; remove it"),
    ],
)
def test_links_refuse_values(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=f"link 'a' – '[ab]': {text}"):
        Link(**({"source": "a", "target": "b", "bytes_per_s": 1.0} | changes))


@pytest.mark.parametrize("again", [Link("a", "b", 2.0), Link("b", "a", 1.0)])
def test_two_nodes_have_one_link(again: Link) -> None:
    text = "nodes 'a' and 'b' have 2 links; bond equal ones with 'count'"
    with pytest.raises(InputError, match=text):
        pair(Link("a", "b", 1.0), again)
