"""The run picture: what a device waited for is drawn as transfers, on the time axis of the longer step."""

from dataclasses import replace

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from report.plot.plans import diamond

from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.report.link_use import waited_for
from dlplacer.report.plot import plot_run


def measured(times: dict[str, tuple[str, float, float]]) -> Plan:
    """The diamond as it ran: x feeds y on the other device and z on its own; w reads both."""
    entries = tuple(ScheduledOp(op, *where) for op, where in sorted(times.items(), key=lambda item: item[1][1]))
    end_s = max(entry.end_s for entry in entries)
    return replace(diamond(), ops=entries, transfers=(), makespan_s=end_s, lower_bound_s=0.0, memory={})


RAN = {"p": ("a", 0.0, 0.0), "x": ("a", 0.0, 4.0), "z": ("a", 4.0, 6.0), "y": ("b", 9.0, 15.0), "w": ("a", 18.0, 20.0)}


def test_a_transfer_is_what_a_device_waited_for() -> None:
    # b waits for x from its end at 4 until y starts at 9, a for y from 15 to 18
    found = waited_for(diamond(), measured(RAN))
    assert [(sent.tensor, sent.target, sent.start_s, sent.end_s) for sent in found] == [
        ("x.0", "b", 4.0, 9.0),
        ("y.0", "a", 15.0, 18.0),
    ]
    assert [sent.segments[0].route for sent in found] == [(("a", "b"),), (("b", "a"),)]


def test_a_transfer_counts_from_when_its_device_is_free() -> None:
    # z ends on a at 17, y on b at 15: a waits for y from 17 to 18
    found = waited_for(diamond(), measured(RAN | {"z": ("a", 4.0, 17.0)}))
    assert [(sent.tensor, sent.start_s, sent.end_s) for sent in found] == [("x.0", 4.0, 9.0), ("y.0", 17.0, 18.0)]


def test_the_measured_half_shows_transfers_and_explains_them() -> None:
    above, below = plot_run((diamond(), measured(RAN)), tuple(Figure(figsize=(12, 8)).subplots(2, 1)))
    assert above.get_xlim() == below.get_xlim() == (0, 20)
    for ax in (above, below):
        transfers = [
            found for found in ax.collections if isinstance(found, PolyCollection) and found.get_label() == "transfers"
        ]
        assert sum(len(found.get_paths()) for found in transfers) == 2
        assert [label.get_text() for label in ax.get_yticklabels()][2:] == ["a → b", "b → a"]
    assert any("transfers that a device waited for" in text.get_text() for text in below.texts)
    assert not any("waited for" in text.get_text() for text in above.texts)
