"""A machine as a picture: nodes apart, links told by their colour."""

from itertools import combinations

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from numpy import linspace

from dlplacer.core.topology import Topology
from dlplacer.files.load import load_topology, shipped_folder
from dlplacer.report.plot.topology import machine_layout, plot_topology

SHIPPED = sorted(path.stem for path in shipped_folder("topologies").glob("*.json"))


def drawn(topology: Topology) -> Axes:
    figure = Figure()
    ax = plot_topology(topology, figure)
    figure.draw_without_rendering()
    return ax


@pytest.mark.parametrize("name", SHIPPED)
def test_the_boxes_of_nodes_do_not_overlap(name: str) -> None:
    topology = load_topology(name)
    ax = drawn(topology)
    boxes = [text.get_bbox_patch().get_window_extent() for text in ax.texts]
    assert len(boxes) == len(topology.nodes)
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_link_is_drawn_in_a_colour_of_the_legend(name: str) -> None:
    topology = load_topology(name)
    ax = drawn(topology)
    links = [patch for patch in ax.patches if isinstance(patch, PathPatch)]
    assert len(links) == len(topology.links)
    kinds = {(link.count, link.bytes_per_s, link.latency_s, link.duplex) for link in topology.links}
    assert len(ax.get_legend().get_texts()) == len({link.get_edgecolor() for link in links}) == len(kinds)


@pytest.mark.parametrize("name", SHIPPED)
def test_no_link_passes_through_the_box_of_a_third_node(name: str) -> None:
    topology = load_topology(name)
    ax = drawn(topology)
    boxes = {
        text.get_text().partition("\n")[0]: text.get_bbox_patch().get_window_extent().shrunk(0.9, 0.9)
        for text in ax.texts
    }
    for link, patch in zip(topology.links, ax.patches, strict=True):
        first, control, last = patch.get_path().vertices
        along = linspace(0.0, 1.0, 200)[:, None]
        curve = (1 - along) ** 2 * first + 2 * along * (1 - along) * control + along**2 * last
        points = ax.transData.transform(curve)
        for name_, box in boxes.items():
            if name_ not in (link.source, link.target):
                assert not any(box.contains(*point) for point in points), (link, name_)


def test_devices_of_a_switch_stand_together_and_it_stands_above_them() -> None:
    spots = machine_layout(load_topology("dgx1-v100-8gpu"))
    row = sorted((name for name in spots if spots[name][1] == 0), key=lambda name: spots[name][0])
    assert row == ["gpu0", "gpu2", "gpu1", "gpu3", "gpu4", "gpu6", "gpu5", "gpu7"]
    assert spots["pcie0"] == (0.5, 1.0)
    assert spots["cpu0"] == (1.5, 2.0)
