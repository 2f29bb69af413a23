"""The Gantt chart: bars, rows and labels are counted; pixels are not compared."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from report.plot.plans import diamond, drawn, plan_of, sent, two_at_once

from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan, Transfer, TransferSegment
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.report.critical_path import critical_path
from dlplacer.report.plot import plot_gantt, plot_run, save_picture


def bars(ax: Axes) -> Counter[str]:
    """Label → how many bars; bars of one colour and row are one collection."""
    count: Counter[str] = Counter()
    for collection in ax.collections:
        if isinstance(collection, PolyCollection):
            count[str(collection.get_label())] += len(collection.get_paths())
    return count


def test_a_bar_for_every_op_that_takes_time_and_every_transfer() -> None:
    # x, z and w on a, y on b; the parameter p takes no time
    assert bars(drawn(plot_gantt, diamond())) == {"ops on a": 3, "ops on b": 1, "transfers": 2}


def test_bars_stand_at_their_times() -> None:
    spans = [
        (path.vertices[:, 0].min(), path.vertices[:, 0].max())
        for collection in drawn(plot_gantt, diamond()).collections
        if isinstance(collection, PolyCollection) and collection.get_label() == "ops on a"
        for path in collection.get_paths()
    ]
    assert sorted(spans) == [(0, 2), (2, 3), (10, 11)]


def test_rows_are_devices_and_used_link_directions() -> None:
    labels = [label.get_text() for label in drawn(plot_gantt, diamond()).get_yticklabels()]
    assert labels == ["a\n36 % busy", "b\n27 % busy", "a → b", "b → a"]
    labels = [label.get_text() for label in drawn(plot_gantt, two_at_once()).get_yticklabels()]
    assert labels[2:] == ["a → b"]


def test_the_critical_path_has_a_line_per_step_and_one_per_change_of_row() -> None:
    plan = diamond()
    lines = {
        str(found.get_label()): found
        for found in drawn(plot_gantt, plan).collections
        if isinstance(found, LineCollection)
    }
    assert len(lines["critical path"].get_segments()) == len(critical_path(plan)) == 5
    assert len(lines["critical path changes row"].get_segments()) == 4


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_a_picture_is_saved_in_the_format_of_its_suffix(tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"gantt.{suffix}"
    save_picture(path, plot_gantt, diamond(), color_by="module")
    first = path.read_bytes()
    assert first.startswith(magic)
    save_picture(path, plot_gantt, diamond(), color_by="module")
    assert path.read_bytes() == first
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_importing_the_package_loads_no_matplotlib() -> None:
    code = "import sys, dlplacer.report.plot; dir(dlplacer.report.plot); print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def fully_linked(count: int) -> Plan:
    """Device 0 sends to every other and back, all at once: twice as many link directions as other devices."""
    devices = tuple(Device(f"d{number}", "T") for number in range(count))
    links = tuple(Link("d0", f"d{number}", 1.0, 0.0) for number in range(1, count))
    ops, edges, times, transfers = [Op("root", "k", 1.0)], [], {"root": ("d0", 0.0, 1.0)}, []
    for number in range(1, count):
        name = f"k{number}"
        ops.append(Op(name, "k", 1.0))
        edges.append(Edge("root", name, number, tensor=f"{name}.in"))
        times[name] = (f"d{number}", 1.0 + number, 2.0 + number)
        transfers.append(sent(f"{name}.in", "root", number, (f"d0-d{number}", 1.0, 1.0 + number)))
    return plan_of(ops, edges, times, transfers, Topology(devices, links=links))


def test_where_many_link_directions_are_used_a_row_below_each_device_shows_what_arrives() -> None:
    # d0 sends to 29 others and receives nothing
    ax = drawn(plot_gantt, fully_linked(30))
    rows = [label.get_text() for label in ax.get_yticklabels()]
    assert [row.split("\n")[0] for row in rows[:5]] == ["d0", "d1", "→ d1", "d2", "→ d2"]
    assert len(rows) == 30 + 29
    places = dict(zip(rows, ax.get_yticks(), strict=True))
    assert list(places.values()) == sorted(places.values())
    assert bars(ax)["transfers"] == 29


def test_links_that_carry_the_same_segments_together_share_a_row() -> None:
    devices, routers = (Device("a", "T"), Device("b", "T")), (Router("left"), Router("right"))
    links = (Link("a", "left", 1.0, 0.0), Link("left", "right", 1.0, 0.0), Link("right", "b", 1.0, 0.0))
    routed = TransferSegment((("a", "left"), ("left", "right"), ("right", "b")), 1.0, 2.0)
    ops, times = [Op("first", "k", 1.0), Op("last", "k", 1.0)], {"first": ("a", 0.0, 1.0), "last": ("b", 2.0, 3.0)}
    transfer = Transfer("t", "first", "b", 1, (routed,))
    machine = Topology(devices, routers, links)
    plan = plan_of(ops, [Edge("first", "last", 1, tensor="t")], times, [transfer], machine, Options())
    rows = [label.get_text() for label in drawn(plot_gantt, plan).get_yticklabels()]
    assert rows[2:] == ["a → left → right → b"]


def test_a_measured_step_stands_below_its_prediction_on_one_axis() -> None:
    plan = diamond()
    ran = replace(
        plan, ops=tuple(replace(each, end_s=each.end_s + 1) for each in plan.ops), transfers=(), makespan_s=12
    )
    above, below = plot_run((plan, ran), tuple(Figure(figsize=(12, 8)).subplots(2, 1)))
    assert above.get_xlim() == below.get_xlim() == (0, 12)
    assert bars(below) == {"ops on a": 4, "ops on b": 1}
    assert "9.1 % longer" in below.get_title(loc="left")
