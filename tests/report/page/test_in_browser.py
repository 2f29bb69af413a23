"""The page in headless Chromium: it draws, zooms, finds, selects, sums up, and neither errs nor loads anything."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from report.page.browser import Browser
from report.page.long_plans import long_plan

from dlplacer.check import live_bytes
from dlplacer.report.critical_path import critical_path
from dlplacer.report.page.page import html_page

# One worker of pytest-xdist: one session serves all tests here.
pytestmark = pytest.mark.xdist_group("browser")

PLAN = long_plan(600, devices=3)


@pytest.fixture(scope="module")
def plan_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "plan.html"
    path.write_bytes(html_page(PLAN).encode())
    return path


@pytest.fixture
def page(session: Browser, plan_page: Path) -> Iterator[Browser]:
    """The page of `PLAN`; what it logs or loads fails the test."""
    session.open(plan_page)
    yield session
    assert session.messages() == []
    assert session.requests() == []


def details(page: Browser) -> str:
    return str(page.find("#details").text)


def place_of(page: Browser, op: str) -> tuple[float, float]:
    """Where on the canvas the middle of an op's bar is."""
    event = [entry.op for entry in PLAN.ops].index(op)
    x, y = page.run(
        "const event = arguments[0]; const s = schedules[0]; const here = area();"
        "const middle = (s.ops.start[event] + s.ops.end[event]) / 2;"
        "const row = rowsOf({schedule: 0, type: 'op', index: event})[0];"
        "return [here.left + (middle - here.begin) * here.scale, row.top - here.scroll + row.height / 2];",
        event,
    )
    return x, y


def test_it_draws(page: Browser) -> None:
    colors = page.colors()
    assert colors["63,127,191"] > 1000, "forward bars"
    assert colors["232,155,60"] > 1000, "backward bars"
    assert colors["179,18,78"] > 50, "critical path"
    assert len(page.colors("#axis")) > 5
    assert page.run("return performance.getEntriesByType('resource').length") == 0


def test_the_wheel_zooms_where_the_pointer_is(page: Browser) -> None:
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    before = page.run("return [view.begin, view.end, timeAt(600)]")
    x = round(600 - page.find("#gantt").rect["width"] / 2)
    origin = ScrollOrigin.from_element(page.find("#gantt"), x, 0)
    drawn = page.colors()
    page.actions().scroll_from_origin(origin, 0, -400).perform()
    page.settled()
    after = page.run("return [view.begin, view.end, timeAt(600)]")
    assert after[1] - after[0] < 0.6 * (before[1] - before[0])
    assert after[2] == pytest.approx(before[2], rel=0.01)
    assert page.colors() != drawn
    page.actions().scroll_from_origin(origin, 0, 4000).perform()
    page.settled()
    assert page.run("return view.end - view.begin") == pytest.approx(before[1] - before[0])


def test_search_finds_any_op_and_zooms_to_it(page: Browser) -> None:
    op = PLAN.ops[417].op
    page.keys("/")
    page.find("#search").send_keys(op)
    assert page.find("#found .hit").text.split()[:2] == ["op", op]
    page.keys("\ue007")
    assert op in details(page)
    begin, end = page.run("return [view.begin, view.end].map((time) => time * data.unitS)")
    entry = PLAN.scheduled[op]
    assert begin <= entry.start_s
    assert end >= entry.end_s
    assert end - begin < 0.2 * PLAN.makespan_s


def test_a_click_tells_everything_about_an_op(page: Browser) -> None:
    entry = max(PLAN.ops, key=lambda each: (each.end_s - each.start_s) * ("backward" in each.op))
    page.click_at("#gantt", *place_of(page, entry.op))
    op, text = PLAN.graph.op(entry.op), details(page)
    shape, sources = "×".join(map(str, op.outputs[0].shape)), [edge.source for edge in PLAN.graph.edges_into[op.id]]
    parts = (
        op.id,
        op.kind,
        entry.device,
        shape,
        "float32",
        "slack",
        "Waited for",
        *str(op.module).split("."),
        *sources,
    )
    assert [part for part in parts if part not in text] == []


def test_an_interval_has_totals_per_kind_and_device(page: Browser) -> None:
    chain = page.move_to("#axis", 500, 36).click_and_hold().move_by_offset(150, 0).move_by_offset(150, 0)
    chain.release().perform()
    page.settled()
    begin, end = page.run("return state.interval.map((time) => time * data.unitS)")
    assert end > begin
    kinds: dict[str, float] = defaultdict(float)
    devices: dict[str, float] = defaultdict(float)
    for entry in PLAN.ops:
        inside = min(end, entry.end_s) - max(begin, entry.start_s)
        if inside > 0:
            kinds[PLAN.graph.op(entry.op).kind] += inside
            devices[entry.device] += inside
    found = page.run(
        "const s = schedules[0];"
        "const sums = computeTotals(s, ...state.interval, (event) => texts[s.graph.kind[s.ops.op[event]]]);"
        "return [[...sums.groups].map(([kind, group]) => [kind, group.time * data.unitS]),"
        " [...sums.devices].map((time, device) => [s.devices.name[device], time * data.unitS])];"
    )
    assert dict(found[0]) == pytest.approx(kinds, rel=1e-4)
    assert dict(found[1]) == pytest.approx(devices, rel=1e-4)
    longest = max(kinds, key=lambda kind: kinds[kind])
    assert longest in details(page)
    page.find("[data-name=Totals]").click()
    page.settled()  # rows are drawn with the next frame
    assert longest in page.find("#tab .row").text
    page.keys("\ue00c")
    assert page.run("return state.interval") is None


def test_tables_sort_and_filter_and_are_written(page: Browser, tmp_path: Path) -> None:
    rows = page.run("return tabs.views.get('Ops').shown.map((event) => opName(schedules[0], event))")
    longest = sorted(PLAN.ops, key=lambda entry: entry.start_s - entry.end_s)
    assert rows[0] == longest[0].op
    assert len(page.driver.find_elements("css selector", "#tab .row")) < 60, "only rows in sight are elements"
    page.find("#tab input").send_keys("device:gpu1 time>100us relu")
    wanted = [
        entry.op
        for entry in longest
        if entry.device == "gpu1" and entry.end_s - entry.start_s > 1e-4 and PLAN.graph.op(entry.op).kind == "aten.relu"
    ]
    assert wanted
    assert page.run("return tabs.views.get('Ops').shown.map((event) => opName(schedules[0], event))") == wanted
    assert page.find("#tab .status").text == f"{len(wanted)} of 600"
    page.find("#tab .heads button:nth-child(4)").click()
    page.find("#tab .heads button:nth-child(4)").click()
    page.driver.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.find("#tab .bar button").click()
    table = page.until(lambda: (tmp_path / "ops.csv").is_file() and (tmp_path / "ops.csv").read_text())
    head, *lines = table.splitlines()
    assert head.startswith("op,kind,device,start (s),time (s),slack (s),output,")
    starts = sorted(wanted, key=lambda op: PLAN.scheduled[op].start_s)
    assert page.run("return tabs.views.get('Ops').shown.map((event) => opName(schedules[0], event))") == starts
    page.click_at("#tab .scroll", 300, 38)
    assert starts[0] in details(page)
    assert {line.split(",")[0] for line in lines} == set(wanted)


def test_tensors_make_up_the_peak(page: Browser) -> None:
    for position, device in enumerate(PLAN.topology.devices):
        peak = max(level for _, level in live_bytes(PLAN, device.id))
        found = page.run(
            "const s = schedules[0]; const curve = memoryCurve(s, arguments[0]);"
            "const alive = aliveAt(s, arguments[0], curve.peakTime).map((live) => s.memory.bytes[live]);"
            "return [curve.peak, alive.reduce((sum, size) => sum + size, s.memory.resident[arguments[0]])];",
            position,
        )
        assert found == [peak, peak]
    page.find("[data-name=Memory]").click()
    assert "the peak" in page.find("#tab .status").text
    row = page.run("const row = rows.find((r) => r.type === 'memory' && r.device === 1); return [row.top, row.height]")
    page.run("timeline.scroller.scrollTop = 1e6")
    page.settled()
    scroll = page.run("return timeline.scroller.scrollTop")
    page.click_at("#gantt", 700, row[0] - scroll + row[1] / 2)
    assert page.run("return looked.device") == 1
    assert page.run("return looked.time") == pytest.approx(page.run("return timeAt(700)"), rel=1e-3)


def test_critical_path_and_colours(page: Browser) -> None:
    marked = page.run(
        "return [...schedules[0].ops.critical].flatMap((c, event) => (c ? [opName(schedules[0], event)] : []))"
    )
    assert set(marked) == {part.step.op for part in critical_path(PLAN) if hasattr(part.step, "op")}
    page.keys("c")
    assert "179,18,78" not in page.colors()
    drawings = [page.colors()]
    for key, name in (("2", "module"), ("3", "kind"), ("4", "device")):
        page.keys(key)
        assert page.run("return state.colorBy") == name
        drawings.append(page.colors())
    assert all(one != other for at, one in enumerate(drawings) for other in drawings[:at])
    legend = page.find("#legend").text.split()
    assert legend[:3] == ["gpu0", "gpu1", "gpu2"]
    page.find("#legend button:nth-child(2)").click()
    page.settled()
    assert "gpu1" in details(page)
    assert page.colors() != drawings[-1]
