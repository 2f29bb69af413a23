"""The Gantt chart: bars, rows and labels are counted; pixels are not compared."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from report.plot.plans import diamond, one_moment, plan_of, sent, through_a_router, two_at_once, waiting_at_a_relay

from dlplacer.core.errors import InputError
from dlplacer.core.op import Edge, Op
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.report.critical_path import critical_path
from dlplacer.report.plot import plot_gantt, recommended_size, save_picture
from dlplacer.report.plot.positions.op_blocks import blocks_of, short_names
from dlplacer.report.plot.style.axes import text_points
from dlplacer.report.plot.style.colors import PHASE, device_colors

matplotlib.use("Agg")


def drawn(plan: Plan, **options: Any) -> Axes:
    ax = Figure(figsize=(12, 4)).add_subplot()
    assert plot_gantt(plan, ax, **options) is ax
    return ax


def bars(ax: Axes) -> Counter[str]:
    """Label → how many bars; bars of one colour and row are one collection."""
    count: Counter[str] = Counter()
    for collection in ax.collections:
        if isinstance(collection, PolyCollection):
            count[str(collection.get_label())] += len(collection.get_paths())
    return count


def legend_texts(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_a_bar_for_every_op_that_takes_time_and_every_transfer() -> None:
    # x, z and w on a, y on b; the parameter p takes no time
    assert bars(drawn(diamond())) == {"ops on a": 3, "ops on b": 1, "transfers": 2}


def test_bars_stand_at_their_times() -> None:
    spans = [
        (path.vertices[:, 0].min(), path.vertices[:, 0].max())
        for collection in drawn(diamond()).collections
        if isinstance(collection, PolyCollection) and collection.get_label() == "ops on a"
        for path in collection.get_paths()
    ]
    assert sorted(spans) == [(0, 2), (2, 3), (10, 11)]


def test_rows_are_devices_and_used_link_directions() -> None:
    labels = [label.get_text() for label in drawn(diamond()).get_yticklabels()]
    assert labels == ["a\n36 % busy", "b\n27 % busy", "a → b", "b → a"]
    labels = [label.get_text() for label in drawn(two_at_once()).get_yticklabels()]
    assert labels[2:] == ["a → b"]


def test_every_row_has_a_background_that_shows_idle_time() -> None:
    ax = drawn(diamond())
    assert [patch.get_width() for patch in ax.patches] == [11.0] * 4


def test_the_critical_path_has_a_line_per_step_and_one_per_change_of_row() -> None:
    plan = diamond()
    lines = {str(found.get_label()): found for found in drawn(plan).collections if isinstance(found, LineCollection)}
    assert len(lines["critical path"].get_segments()) == len(critical_path(plan)) == 5
    assert len(lines["critical path changes row"].get_segments()) == 4


def test_the_critical_path_is_nowhere_twice_at_a_time() -> None:
    # t is on it from 6 on only, when s.0 has left the link to b
    ax = drawn(waiting_at_a_relay())
    lines = {str(found.get_label()): found for found in ax.collections if isinstance(found, LineCollection)}
    flat = lines["critical path"].get_segments()
    assert [tuple(segment[:, 0]) for segment in flat] == [(0, 3), (3, 6), (6, 9), (9, 10)]


def test_title_and_lower_bound() -> None:
    # one device: 2 + 3 + 1 + 1 = 7 s; 7 ÷ 11 = 0.6364
    ax = drawn(diamond())
    assert ax.get_title(loc="left") == (
        "small on pair: 11 s per step\n"
        "feasible · lower bound 5.5 s · gap 50 % · speedup 0.6364× over the best single device"
    )
    assert ax.get_xlabel() == "time (s)"
    assert any(list(line.get_xdata()) == [5.5, 5.5] for line in ax.get_lines())


@pytest.mark.parametrize(("span_s", "unit"), [(3.0, "s"), (1.4, "ms"), (5e-3, "ms"), (4e-5, "us"), (8e-9, "ns")])
def test_the_time_axis_has_a_fitting_unit(span_s: float, unit: str) -> None:
    ax = drawn(plan_of([Op("x", "k", span_s)], (), {"x": ("a", 0.0, span_s)}))
    assert ax.get_xlabel() == f"time ({unit})"
    assert ax.get_xlim() == (0, span_s)
    factor = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
    assert ax.xaxis.get_major_formatter()(span_s) == f"{span_s * factor:.6g}"


def test_the_legend_stands_outside_and_names_what_is_drawn() -> None:
    ax = drawn(diamond())
    assert legend_texts(ax) == [
        "forward",
        "backward",
        "transfer (darker: several)",
        "idle",
        "critical path",
        "lower bound",
    ]
    ax.figure.canvas.draw()
    assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1


def test_colours_by_phase() -> None:
    colors = {
        matplotlib.colors.to_hex(found.get_facecolor()[0])
        for found in drawn(diamond()).collections
        if str(found.get_label()).startswith("ops on")
    }
    assert colors == {PHASE["forward"], PHASE["backward"]}


def test_colours_by_module() -> None:
    ax = drawn(diamond(), color_by="module")
    assert legend_texts(ax)[:4] == ["stem", "right", "left", "no module"]
    assert len({tuple(found.get_facecolor()[0]) for found in ax.collections if "ops" in str(found.get_label())}) == 4


def test_many_modules_get_several_columns() -> None:
    ops = [Op(f"k{count}", "k", 1.0, module=f"block{count}.conv") for count in range(60)]
    times = {op.id: ("a", float(count), count + 1.0) for count, op in enumerate(ops)}
    ax = drawn(plan_of(ops, (), times), color_by="module")
    assert len(legend_texts(ax)) == 60 + 3
    ax.figure.canvas.draw()
    assert ax.get_legend().get_window_extent().height < 1.2 * ax.get_window_extent().height


def test_another_colouring_is_refused() -> None:
    with pytest.raises(InputError, match="color_by is 'size'; use phase or module"):
        drawn(diamond(), color_by="size")


def test_only_wide_bars_are_labelled_and_text_is_clipped_to_them() -> None:
    # 11 s on 12 in: about 60 points per second. conv (4 letters) fits into 2 s, relu and bn too.
    ax = drawn(diamond())
    assert [text.get_text() for text in ax.texts] == ["conv", "bn", "relu", "add"]
    assert all(text.get_clip_on() for text in ax.texts)
    conv = ax.texts[0].get_clip_box()
    assert conv is not None
    assert conv.transformed(ax.transData.inverted()).intervalx == pytest.approx([0, 2])
    ops = [Op("long", "aten.convolution", 1.0), *(Op(f"k{count}", "aten.relu", 1e-3) for count in range(50))]
    times = {"long": ("a", 0.0, 1.0)} | {f"k{n}": ("a", 1 + n / 1e3, 1 + (n + 1) / 1e3) for n in range(50)}
    assert [text.get_text() for text in drawn(plan_of(ops, (), times)).texts] == ["conv"]


def test_a_plan_that_takes_no_time() -> None:
    ax = drawn(one_moment())
    assert sum(bars(ax).values()) == 0
    assert ax.get_title(loc="left") == "small on pair: 0 s per step\nfeasible · lower bound 0 s · gap 0 %"


def test_names_are_drawn_as_they_are() -> None:
    # $…$ is mathematics to matplotlib, \$ a dollar; \frac without braces would not even parse
    plan = plan_of([Op("x", "$a_{b$", 1.0, module="$\\frac$\t" + 40 * "m")], (), {"x": ("a", 0.0, 1.0)})
    ax = drawn(plan, color_by="module")
    ax.figure.canvas.draw()
    assert legend_texts(ax)[0] == r"\$\frac\$?mmmm…mmmmmmmmmmm"
    assert ax.texts[0].get_text() == r"\$a_{b\$"


def test_blocks_are_top_level_modules_and_large_ones_are_taken_apart() -> None:
    paths = ["net.embed", *(f"net.layers.{layer}.{part}" for layer in range(3) for part in ("attention", "mlp"))]
    ops = [Op(path, "k", 1.0, module=path) for path in paths]
    plan = plan_of(ops, (), {path: ("a", float(count), count + 1.0) for count, path in enumerate(paths)})
    blocks = blocks_of(plan)
    assert list(dict.fromkeys(blocks.values())) == ["net.embed", "net.layers.0", "net.layers.1", "net.layers.2"]
    assert blocks["net.layers.1.mlp"] == "net.layers.1"
    assert list(short_names(blocks.values()).values()) == ["embed", "layers.0", "layers.1", "layers.2"]


def test_short_names_tell_blocks_apart() -> None:
    names = short_names(["encoder.layer.0", "decoder.layer.0", "head", "", "a.head"])
    assert names == {
        "encoder.layer.0": "encoder.layer.0",
        "decoder.layer.0": "decoder.layer.0",
        "head": "head",
        "a.head": "a.head",
    }


@pytest.mark.parametrize("count", [1, 2, 8, 9, 16, 40])
def test_devices_have_different_colours(count: int) -> None:
    names = [f"gpu{number}" for number in range(count)]
    assert len(set(device_colors(names).values())) == count


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_a_picture_is_saved_in_the_format_of_its_suffix(tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"gantt.{suffix}"
    save_picture(path, plot_gantt, diamond(), color_by="module")
    first = path.read_bytes()
    assert first.startswith(magic)
    save_picture(path, plot_gantt, diamond(), color_by="module")
    assert path.read_bytes() == first
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["gantt.jpg", "gantt", "gantt.png.txt"])
def test_another_format_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"is no picture format here; use \.png, \.svg or \.pdf"):
        save_picture(tmp_path / name, plot_gantt, diamond())
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        save_picture(tmp_path / "none" / "gantt.png", plot_gantt, diamond())


def test_a_script_that_the_font_lacks_is_no_warning(tmp_path: Path) -> None:
    plan = plan_of([Op("x", "畳み込み", 1.0)], (), {"x": ("a", 0.0, 1.0)})
    save_picture(tmp_path / "gantt.png", plot_gantt, plan)


def test_more_rows_make_a_taller_picture() -> None:
    assert recommended_size(plot_gantt, diamond())[1] > recommended_size(plot_gantt, one_moment())[1]
    assert recommended_size(lambda plan: None, diamond()) == (12.0, 7.0)


def test_without_axes_a_pyplot_figure_is_made() -> None:
    from matplotlib import pyplot

    ax = plot_gantt(diamond())
    assert pyplot.gcf() is ax.figure
    pyplot.close(ax.figure)


def test_saving_leaves_no_pyplot_figure(tmp_path: Path) -> None:
    from matplotlib import pyplot

    save_picture(tmp_path / "gantt.png", plot_gantt, diamond())
    assert not pyplot.get_fignums()


def test_importing_the_package_loads_no_matplotlib() -> None:
    code = "import sys, dlplacer.report.plot; dir(dlplacer.report.plot); print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_exports() -> None:
    import dlplacer.report.plot as package

    assert dir(package) == package.__all__ == sorted(package.__all__)
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="attribute plot_nothing"):
        package.plot_nothing  # noqa: B018


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
    ax = drawn(fully_linked(30))
    rows = [label.get_text() for label in ax.get_yticklabels()]
    assert [row.split("\n")[0] for row in rows[:5]] == ["d0", "d1", "→ d1", "d2", "→ d2"]
    assert len(rows) == 30 + 29
    places = dict(zip(rows, ax.get_yticks(), strict=True))
    assert list(places.values()) == sorted(places.values())
    assert bars(ax)["transfers"] == 29


def test_the_critical_path_enters_the_row_of_what_arrives() -> None:
    # root 0–1 on d0, the last transfer 1–30 into d29, k29 30–31 there: two changes of row, from and to the row below
    ax = drawn(fully_linked(30))
    lines = {str(found.get_label()): found for found in ax.collections if isinstance(found, LineCollection)}
    flat, steep = (lines[name].get_segments() for name in ("critical path", "critical path changes row"))
    rows = {label.get_text().split("\n")[0]: y for label, y in zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)}
    assert [tuple(segment[:, 0]) for segment in flat] == [(0, 1), (1, 30), (30, 31)]
    assert rows["d29"] < rows["→ d29"] < flat[1][0][1] < rows["→ d29"] + 0.2
    assert [segment[0][0] for segment in steep] == [1, 30]
    assert lines["critical path changes row"].get_alpha() < 0.5


def test_directions_that_always_carry_the_same_share_a_row() -> None:
    # cut-through holds a → r and r → b together; store-and-forward one after the other
    rows = [label.get_text() for label in drawn(through_a_router()).get_yticklabels()]
    assert rows[2:] == ["a → b\nvia r"]
    rows = [label.get_text() for label in drawn(through_a_router("store-and-forward")).get_yticklabels()]
    assert rows[2:] == ["a → r", "r → b"]


def test_labels_fit_their_bars_on_a_longer_time_axis() -> None:
    # conv fits into 2 of 11 s, but not into 2 of 400
    ax = Figure(figsize=(12, 4)).add_subplot()
    plot_gantt(diamond(), ax, until_s=400.0)
    assert ax.get_xlim() == (0, 400)
    assert not ax.texts


def test_a_devices_row_is_as_high_in_every_picture() -> None:
    heights = []
    for plan in (diamond(), fully_linked(30)):
        width, height = recommended_size(plot_gantt, plan)
        ax = Figure(figsize=(width, height)).add_axes((0.1, 0.7 / height, 0.8, 1 - 1.4 / height))
        plot_gantt(plan, ax)
        low, high = ax.get_ylim()
        heights.append(ax.bbox.height / (low - high))
    assert heights[0] == pytest.approx(heights[1])


def test_a_measured_step_has_no_critical_path_and_no_bound() -> None:
    ax = Figure(figsize=(10, 4)).add_subplot()
    plot_gantt(replace(diamond(), lower_bound_s=0.0), ax, mark_path=False)
    assert legend_texts(ax) == ["forward", "backward", "transfer (darker: several)", "idle"]


def test_text_is_as_wide_as_it_is_drawn() -> None:
    assert text_points("mmmm", 7) > text_points("iiii", 7) > 0
    assert text_points(" ", 7) == 0
