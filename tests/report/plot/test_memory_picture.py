"""Memory over time: curves, peaks, sums and capacities."""

import pytest
from report.plot.plans import diamond, drawn

from dlplacer.check import live_bytes
from dlplacer.report.plot import plot_memory


def test_a_curve_per_device_from_start_to_end_on_one_scale() -> None:
    plan = diamond()
    curves = {str(line.get_label()): line for line in drawn(plot_memory, plan).get_lines() if len(line.get_xdata()) > 2}
    assert list(curves) == ["a", "b"]
    found = {device: live_bytes(plan, device) for device in curves}
    # The peak of a is 15 bytes; the row of b is the lower one.
    scale = (max(curves["a"].get_ydata()) - 1) / 15
    for floor, (device, line) in zip((1, 0), curves.items(), strict=True):
        levels = found[device]
        assert list(line.get_xdata()) == [*(time_s for time_s, _ in levels), 11.0]
        expected = [floor + scale * level for level in (*(level for _, level in levels), levels[-1][1])]
        assert list(line.get_ydata()) == pytest.approx(expected)


def test_peaks_are_marked_and_named_with_capacity_and_sum() -> None:
    # a: p 8 B all step, x 4 B from 0 to the end of its transfer at 5, z 3 B from 2 on: 15 B.
    # b: the copy of x, 4 B from 2 to 8, and y, 2 B from 5: 6 B.
    ax = drawn(plot_memory, diamond())
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert [name.splitlines()[1].partition(" of")[0] for name in names] == ["peak 15 B", "peak 6 B"]
    dots = [float(line.get_xdata()[0]) for line in ax.get_lines() if line.get_marker() == "o"]
    assert dots == [2.0, 5.0]
