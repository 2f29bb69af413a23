"""The picture of the graph: what is shown, where it stands, which edges stand out."""

from collections import Counter

import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from report.plot.plans import diamond, drawn, plan_of

from dlplacer.core.op import Edge, Op
from dlplacer.core.plan import Plan
from dlplacer.report.plot import plot_placement
from dlplacer.report.plot.op_positions import lay_out
from dlplacer.report.plot.placement import placement_size
from dlplacer.report.plot.placement_blocks import collapse
from dlplacer.report.plot.style import CROSSING


def serial_plan(ops: list[Op], edges: list[Edge]) -> Plan:
    """All ops on device a, one after another in the order given."""
    times, now_s = {}, 0.0
    for op in ops:
        assert isinstance(op.time_s, float)
        times[op.id] = ("a", now_s, now_s + op.time_s)
        now_s += op.time_s
    return plan_of(ops, edges, times)


def training(modules: bool = True) -> Plan:
    """stem → {left (two ops), right} → head, its backward pass with weight gradients, and one update."""
    forward = ["stem", "left1", "left2", "right", "head"]
    path = {"stem": "stem", "left1": "mixed.left.a", "left2": "mixed.left.b", "right": "mixed.right", "head": "head"}

    def op(name: str, phase: str, kind: str, of: str) -> Op:
        return Op(name, kind, 1.0, phase=phase, module=path[of] if modules else None)

    ops = [op(name, "forward", "conv", name) for name in forward]
    for name in reversed(forward):
        ops += [op(f"d_{name}", "backward", "conv_backward", name), op(f"w_{name}", "backward", "conv_backward", name)]
    ops.append(op("update", "optimizer", "sgd", "right"))
    links = [("stem", "left1"), ("left1", "left2"), ("stem", "right"), ("left2", "head"), ("right", "head")]
    edges = [Edge(source, target, 4) for source, target in links]
    edges += [Edge(f"d_{target}", f"d_{source}", 4) for source, target in links]
    edges += [Edge(f"d_{target}", f"w_{source}", 4) for source, target in links]
    edges += [Edge("head", "d_head", 4), Edge("head", "w_head", 4), Edge("w_right", "update", 4)]
    return serial_plan(ops, edges)


def test_a_dot_for_every_op_that_takes_time() -> None:
    dots = {
        str(found.get_label()): len(found.get_offsets())
        for found in drawn(plot_placement, diamond()).collections
        if isinstance(found, PathCollection)
    }
    assert dots == {"a": 3, "b": 1}


def test_edges_between_devices_stand_out() -> None:
    # x → y and y → w cross; x → z and z → w do not; p → x is folded away with p.
    lines: Counter[str] = Counter()
    for found in drawn(plot_placement, diamond()).collections:
        if isinstance(found, LineCollection):
            lines[str(found.get_label())] += len(found.get_segments())
            assert (to_hex(found.get_colors()[0]) == CROSSING) == (found.get_label() == "edges between devices")
    assert lines == {"edges": 2, "edges between devices": 2}


def test_the_legend_counts() -> None:
    ax = drawn(plot_placement, diamond())
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == [
        "a: 3 ops, 57 % of the time",
        "b: 1 ops, 43 % of the time",
        "edge (2)",
        "edge between devices (2)",
        "faint: from one pass to the next",
        "2 transfers, 6 B",
        "area: time, at most 3 s",
        "not shown: 1 ops (parameters, …)",
    ]


def test_the_forward_pass_runs_right_and_branches_have_rows_of_their_own() -> None:
    layout = lay_out(training())
    assert [layout.x[name] for name in ("stem", "left1", "left2", "right", "head")] == [0, 1, 2, 1, 3]
    assert layout.y["stem"] == layout.y["left1"] == layout.y["left2"] == layout.y["head"] > 0
    assert layout.y["right"] == layout.y["stem"] + 1


def layers(count: int, per_layer: int, modules: bool = True) -> Plan:
    """A chain of ops in layers, the first half of the layers on a, the rest on b, and the same backwards."""
    ops, edges, times, now_s = [], [], {}, 0.0
    names = [(layer, step) for layer in range(count) for step in range(per_layer)]
    for phase, order in (("forward", names), ("backward", names[::-1])):
        for layer, step in order:
            name = f"{phase}{layer}.{step}"
            module = f"model.layers.{layer}.{'mlp' if step % 2 else 'attention'}" if modules else None
            if ops:
                edges.append(Edge(ops[-1].id, name, 4))
            ops.append(Op(name, "k", 1.0, phase=phase, module=module))
            times[name] = ("a" if 2 * layer < count else "b", now_s, now_s + 1.0)
            now_s += 1.0
    return plan_of(ops, edges, times)


def test_a_large_graph_is_collapsed_along_its_module_tree() -> None:
    # 60 layers of 20 ops: each holds less than a fortieth, so layers are the blocks
    plan = layers(60, 20)
    graph = collapse(plan)
    assert list(graph.names) == [f"layers.{layer}" for layer in range(60)]
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
    crossing = next(found for found in ax.collections if found.get_label() == "edges between devices")
    assert len(crossing.get_segments()) == 2
    assert "2400 ops in 60 blocks" in [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize("count", [60, 400])
def test_names_of_blocks_do_not_touch(count: int) -> None:
    plan = layers(count, 2000 // count)
    width, height = placement_size(plan)
    ax = plot_placement(plan, Figure(figsize=(width, height)).add_subplot())
    apart = ax.get_window_extent().width / len(ax.get_xticks())
    assert apart >= 10 * ax.figure.dpi / 72
