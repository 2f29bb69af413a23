"""The picture of the graph: blocks of the module tree over lanes, and what is sent between devices."""

import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from report.plot.plans import diamond, drawn, plan_of

from dlplacer.core.op import Edge, Op
from dlplacer.core.plan import Plan
from dlplacer.report.plot import plot_placement
from dlplacer.report.plot.placement import collapse
from dlplacer.report.plot.style import CROSSING


def test_dots_lines_and_legend() -> None:
    # Blocks stem.conv, left and right; w, of no module, belongs to what it reads last. x → y crosses in the forward
    # pass, y → w on the way back.
    ax = drawn(plot_placement, diamond())
    dots = {str(one.get_label()): len(one.get_offsets()) for one in ax.collections if isinstance(one, PathCollection)}
    assert dots == {"a": 3, "b": 1}
    lines = {str(one.get_label()): one for one in ax.collections if isinstance(one, LineCollection)}
    assert {label: len(one.get_segments()) for label, one in lines.items()} == {
        "edges between devices": 1,
        "edges between passes": 1,
    }
    assert to_hex(lines["edges between devices"].get_colors()[0]) == CROSSING
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "a: 4 ops, 57 % of the time",
        "b: 1 ops, 43 % of the time",
        "sent between devices",
        "faint: from one pass to the next",
        "2 transfers, 6 B",
        "area: time, at most 3 s",
        "5 ops in 3 blocks",
    ]


def layers(count: int, per_layer: int) -> Plan:
    """A chain of ops in layers, the first half of the layers on a, the rest on b, and the same backwards."""
    ops, edges, times, now_s = [], [], {}, 0.0
    names = [(layer, step) for layer in range(count) for step in range(per_layer)]
    for phase, order in (("forward", names), ("backward", names[::-1])):
        for layer, step in order:
            name = f"{phase}{layer}.{step}"
            if ops:
                edges.append(Edge(ops[-1].id, name, 4))
            ops.append(Op(name, "k", 1.0, phase=phase, module=f"model.layers.{layer}.{'mlp' if step % 2 else 'att'}"))
            times[name] = ("a" if 2 * layer < count else "b", now_s, now_s + 1.0)
            now_s += 1.0
    return plan_of(ops, edges, times)


def test_modules_with_few_ops_are_blocks() -> None:
    # 60 layers of 20 ops: each holds less than a fortieth, so layers are the blocks
    plan = layers(60, 20)
    graph = collapse(plan)
    assert list(graph.groups) == [f"layers.{layer}" for layer in range(60)]
    assert graph.time_s == {
        (layer, phase, "a" if layer < 30 else "b"): 20.0 for layer in range(60) for phase in ("forward", "backward")
    }
    # forward and backward cross once each, from the last layer of a to the first of b and back
    assert graph.moved_bytes == {
        ((29, "forward", "a"), (30, "forward", "b")): 4,
        ((30, "backward", "b"), (29, "backward", "a")): 4,
    }
    ax = drawn(plot_placement, plan)
    assert sum(len(found.get_offsets()) for found in ax.collections if isinstance(found, PathCollection)) == 120


def test_blocks_of_one_module_stand_side_by_side_below_its_name() -> None:
    # 5 layers of 20 ops: attention and mlp hold less than a fortieth only once they are taken apart
    graph = collapse(layers(5, 20))
    assert graph.groups == tuple(f"layers.{layer}" for layer in range(5) for _ in range(2))


@pytest.mark.parametrize("count", [60, 400])
def test_names_of_blocks_do_not_touch(count: int) -> None:
    plan = layers(count, 2000 // count)
    ax = plot_placement(plan, Figure())
    apart = ax.get_window_extent().width / len(ax.get_xticks())
    assert apart >= 10 * ax.figure.dpi / 72
