"""The picture of the graph: branches of ops, or blocks in lanes, and what is sent between devices."""

import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from report.plot.plans import diamond, drawn, plan_of

from dlplacer.core.op import Edge, Op
from dlplacer.core.plan import Plan
from dlplacer.report.plot import plot_placement
from dlplacer.report.plot.placement import lay_out
from dlplacer.report.plot.style import CROSSING


def test_dots_lines_and_legend() -> None:
    ax = drawn(plot_placement, diamond())
    dots = {str(one.get_label()): len(one.get_offsets()) for one in ax.collections if isinstance(one, PathCollection)}
    lines = {str(one.get_label()): one for one in ax.collections if isinstance(one, LineCollection)}
    crossing = lines["edges between devices"]
    assert dots == {"a": 3, "b": 1}
    assert {label: len(one.get_segments()) for label, one in lines.items()} == {
        "edges": 1,
        "edges between devices": 1,
        "edges between passes": 2,
    }
    assert to_hex(crossing.get_colors()[0]) == CROSSING
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "a: 4 ops, 57 % of the time",
        "b: 1 ops, 43 % of the time",
        "sent between devices",
        "faint: from one pass to the next",
        "2 transfers, 6 B",
        "area: time, at most 3 s",
        "1 ops hidden",
    ]


# in → left → out, in → right0 → right1 → out, and back; a weight, which takes no time, is passed through.
def test_branches_have_rows_and_backward_ops_stand_below_their_modules() -> None:
    forward = {"in": (), "left": ("in",), "right0": ("in",), "right1": ("right0",), "out": ("left", "right1")}
    ops = [Op("w", "parameter"), *(Op(name, "k", 1.0, phase="forward", module=name) for name in forward)]
    ops += [Op(f"back {name}", "k", 1.0, phase="backward", module=name) for name in reversed(forward)]
    edges = [Edge("w", "in", 1), *(Edge(source, name, 1) for name, read in forward.items() for source in read)]
    edges += [Edge("out", "back out", 1)]
    edges += [Edge(f"back {name}", f"back {source}", 1) for name, read in forward.items() for source in read]
    times = {op.id: ("a", float(at), at + float(op.id != "w")) for at, op in enumerate(ops)}
    layout = lay_out(plan_of(ops, edges, times))
    at = {name: spot for (name, _, _), spot in layout.spots.items()}
    assert {name: at[name][0] for name in forward} == {"in": 0, "left": 1, "right0": 1, "right1": 2, "out": 3}
    assert at["in"][1] == at["left"][1] == at["out"][1] < at["right0"][1] == at["right1"][1]
    assert {name: at[f"back {name}"] for name in forward} == {
        name: (x, -y) for name, (x, y) in at.items() if name in forward
    }
    assert "w" not in at


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


def test_a_large_graph_shows_blocks_in_lanes() -> None:
    # 60 layers of 20 ops: each holds less than a fortieth, so layers are the blocks
    plan = layers(60, 20)
    layout = lay_out(plan)
    home = {f"model.layers.{layer}": "a" if layer < 30 else "b" for layer in range(60)}
    assert list(layout.groups) == [f"layers.{layer}" for layer in range(60)]
    assert layout.time_s == {
        (name, phase, device): 20.0 for name, device in home.items() for phase in ("forward", "backward")
    }
    # forward and backward cross once each, from the last layer of a to the first of b and back
    last, first = "model.layers.29", "model.layers.30"
    assert layout.moved_bytes == {
        ((last, "forward", "a"), (first, "forward", "b")): 4,
        ((first, "backward", "b"), (last, "backward", "a")): 4,
    }
    ax = drawn(plot_placement, plan)
    assert sum(len(found.get_offsets()) for found in ax.collections if isinstance(found, PathCollection)) == 120


def test_blocks_of_one_module_stand_side_by_side_below_its_name() -> None:
    # 5 layers of 200 ops: attention and mlp hold less than a fortieth only once they are taken apart
    assert lay_out(layers(5, 200)).groups == tuple(f"layers.{layer}" for layer in range(5) for _ in range(2))


@pytest.mark.parametrize("count", [60, 400])
def test_names_of_blocks_do_not_touch(count: int) -> None:
    plan = layers(count, 2000 // count)
    ax = plot_placement(plan, Figure())
    apart = ax.get_window_extent().width / len(ax.get_xticks())
    assert apart >= 10 * ax.figure.dpi / 72
