"""Memory over time: curves, peaks, sums and capacities."""

from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from report.plot.plans import diamond, one_moment, plan_of

from dlplacer.check import live_bytes
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device, Topology
from dlplacer.report.plot import plot_memory, recommended_size, save_picture

matplotlib.use("Agg")


def drawn(plan: Plan) -> Axes:
    ax = Figure(figsize=(10, 5)).add_subplot()
    assert plot_memory(plan, ax) is ax
    return ax


def lines(ax: Axes, style: str) -> list[float]:
    """Heights of the horizontal lines of a style."""
    return [float(line.get_ydata()[0]) for line in ax.get_lines() if line.get_linestyle() == style]


def legend_texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_a_curve_per_device_from_start_to_end() -> None:
    plan = diamond()
    curves = {str(line.get_label()): line for line in drawn(plan).get_lines() if len(line.get_xdata()) > 2}
    assert list(curves) == ["a", "b"]
    for device, line in curves.items():
        levels = live_bytes(plan, device)
        assert list(line.get_xdata()) == [*(time_s for time_s, _ in levels), 11.0]
        assert list(line.get_ydata()) == [*(level for _, level in levels), levels[-1][1]]


def test_peaks_are_marked_with_their_size() -> None:
    # a: p 8 B all step, x 4 B from 0 to the end of its transfer at 5, z 3 B from 2 on: 15 B.
    # b: the copy of x, 4 B from 2 to 8, and y, 2 B from 5: 6 B.
    ax = drawn(diamond())
    assert sorted(text.get_text().strip() for text in ax.texts) == ["peak 15 B", "peak 6 B"]
    dots = [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in ax.get_lines() if line.get_marker() == "o"
    ]
    assert sorted(dots) == [(2.0, 15.0), (5.0, 6.0)]


def test_dashed_lines_are_the_sums_of_eq_13() -> None:
    assert lines(drawn(diamond()), "--") == [16, 2]
    assert legend_texts(drawn(diamond()))[-1] == "sum of footprints (eq. 13)"


def test_a_sum_far_above_all_peaks_is_in_the_legend_only() -> None:
    # four ops of 100 B follow each other on a, and nothing reads them: 100 B at a time, 400 B in all
    ops = [Op(name, "k", 1.0, output_bytes=100) for name in "wxyz"]
    times = {name: ("a", float(start), start + 1.0) for start, name in enumerate("wxyz")}
    ax = drawn(plan_of(ops, (), times))
    assert lines(ax, "--") == [0]
    assert ax.get_ylim()[1] < 120
    assert legend_texts(ax)[0] == "a: peak 100 B, sum 400 B, capacity unlimited"


def test_a_capacity_is_a_dotted_line() -> None:
    ax = drawn(diamond(memory_bytes=20))
    assert lines(ax, ":") == [20]
    assert ax.get_ylim()[1] > 20
    assert legend_texts(ax) == [
        "a: peak 15 B, sum 16 B, capacity 20 B",
        "b: peak 6 B, sum 2 B, capacity 20 B",
        "sum of footprints (eq. 13)",
        "capacity",
    ]


def test_a_capacity_far_above_is_named_at_the_edge() -> None:
    ax = drawn(diamond(memory_bytes=2**34))
    assert ax.get_ylim()[1] < 20
    assert "↑ capacity 16 GiB" in [text.get_text() for text in ax.texts]
    assert "capacity" not in legend_texts(ax)


def test_unlimited_memory_has_no_line() -> None:
    ax = drawn(diamond())
    assert lines(ax, ":") == []
    assert legend_texts(ax)[0] == "a: peak 15 B, sum 16 B, capacity unlimited"


def labels(ax: Axes) -> list[Bbox]:
    """What the figures of peaks cover, in the units of the axes."""
    ax.figure.canvas.draw()
    texts = [text for text in ax.texts if text.get_text().strip().startswith("peak")]
    assert len(texts) == 2
    return [text.get_window_extent().transformed(ax.transData.inverted()) for text in texts]


@pytest.mark.parametrize("smallest_bytes", [0, 1000])
@pytest.mark.parametrize("begin_s", [0.0, 5.0])
def test_figures_of_close_peaks_do_not_touch_and_stay_inside(smallest_bytes: int, begin_s: float) -> None:
    # x and y at once, at the left or the right edge of the picture
    ops = [Op("x", "k", 1.0, output_bytes=smallest_bytes), Op("y", "k", 1.0, output_bytes=1010), Op("z", "k", 5.0)]
    times = {name: (device, begin_s, begin_s + 1) for name, device in (("x", "a"), ("y", "b"))}
    ax = drawn(plan_of(ops, (), times | {"z": ("a", 0.0 if begin_s else 1.0, 5.0 if begin_s else 6.0)}))
    one, other = labels(ax)
    assert not one.overlaps(other)
    (_, right), (_, top) = ax.get_xlim(), ax.get_ylim()
    assert all(0 <= box.x0 < box.x1 <= right and 0 <= box.y0 < box.y1 <= top for box in (one, other))


def test_figures_of_peaks_lie_on_no_curve() -> None:
    # b peaks at 960 B from 4 to 5 s, right below the 1,000 B that a holds all the time
    ops = [Op("x", "k", 10.0, output_bytes=1000), Op("y", "k", 1.0, output_bytes=960)]
    ax = drawn(plan_of(ops, (), {"x": ("a", 0.0, 10.0), "y": ("b", 4.0, 5.0)}))
    for box in labels(ax):
        for line in (line for line in ax.get_lines() if line.get_marker() != "o"):
            assert not line.get_path().intersects_bbox(box, filled=False)


def many(memory_bytes: int | None = None) -> Plan:
    """Device d{n} holds 100 n bytes from n to n + 1 s, of four devices."""
    devices = tuple(Device(f"d{number}", "T", memory_bytes) for number in range(4))
    ops = [Op(f"k{number}", "k", 1.0, output_bytes=100 * number) for number in range(4)]
    times = {f"k{number}": (f"d{number}", float(number), number + 1.0) for number in range(4)}
    return plan_of(ops, (), times, topology=Topology(devices))


def test_more_than_two_devices_have_a_row_each_on_one_scale() -> None:
    plan = many()
    ax = drawn(plan)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        f"d{number}\npeak {100 * number} B\nfootprints {100 * number} B" for number in range(4)
    ]
    assert ax.get_ylim() == (0, 4)
    dots = sorted(
        (float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in ax.get_lines() if line.get_marker() == "o"
    )
    # d0 in the upper row; the peak of d3, 300 B, fills its row of 0.86, that of d1 a third of it
    assert [x for x, _ in dots[1:]] == [1, 2, 3]
    assert [y for _, y in dots[1:]] == pytest.approx([2 + 0.86 / 3, 1 + 0.86 * 2 / 3, 0.86])
    assert "a row is 300 B high" in ax.get_xlabel()
    assert (
        recommended_size(plot_memory, plan)[1] < recommended_size(plot_memory, replace(plan, topology=_twice(plan)))[1]
    )


def _twice(plan: Plan) -> Topology:
    return Topology((*plan.topology.devices, *(Device(f"e{number}", "T") for number in range(4))))


def test_a_capacity_within_the_scale_is_a_line_in_every_row() -> None:
    assert lines(drawn(many(600)), ":") == pytest.approx([3.86, 2.86, 1.86, 0.86])
    assert lines(drawn(many(10**6)), ":") == []
    assert "of 976.6 KiB" in drawn(many(10**6)).get_yticklabels()[3].get_text()


@pytest.mark.parametrize(("size_bytes", "unit"), [(100, "B"), (3000, "KiB"), (2**21, "MiB"), (3 * 2**30, "GiB")])
def test_the_memory_axis_has_a_fitting_unit(size_bytes: int, unit: str) -> None:
    ax = drawn(plan_of([Op("x", "k", 1.0, weight_bytes=size_bytes)], (), {"x": ("a", 0.0, 1.0)}))
    assert ax.get_ylabel() == f"alive ({unit})"
    assert 4 <= len(ax.get_yticks()) <= 8


def test_a_plan_that_takes_no_time(tmp_path: Path) -> None:
    ax = drawn(one_moment())
    assert ax.get_xlim() == (0, 1)
    save_picture(tmp_path / "memory.pdf", plot_memory, one_moment())


def test_size() -> None:
    assert recommended_size(plot_memory, diamond()) == (13.0, 6.2)
