"""Pages of all kinds in headless Chromium: two plans, a run, a pipeline, a comparison, odd plans, small windows."""

from dataclasses import replace
from pathlib import Path

import pytest
from report.page.browser import Browser
from report.page.long_plans import long_plan
from report.page.test_other_pages import compared, hybrid, pipeline
from report.page.test_page import HOSTILE_SHOWN, hostile_plan
from report.plot.plans import chunked, diamond, one_moment, two_at_once, waiting_at_a_relay

from dlplacer.report.page.other_pages import comparison_page, hybrid_page, pipeline_page
from dlplacer.report.page.page import html_page, run_page

# One worker of pytest-xdist: one session serves all tests here.
pytestmark = pytest.mark.xdist_group("browser")

PLAN = long_plan(600, devices=3)
SMALL = diamond(memory_bytes=1024)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    measured = replace(SMALL, method="measured", transfers=(), memory={})
    texts = {
        "plan": html_page(PLAN),
        "small": html_page(SMALL),
        "two": html_page(PLAN, long_plan(600, devices=3, seed=1), ("one", "two")),
        "run": run_page(SMALL, measured, [("predicted", "11 s")]),
        "split": html_page(SMALL, two_at_once()),
        "moment": html_page(one_moment()),
        "chunked": html_page(chunked()),
        "relay": html_page(waiting_at_a_relay()),
        "hostile": html_page(hostile_plan()),
        "pipeline": pipeline_page(pipeline()),
        "comparison": comparison_page(compared()),
        "hybrid": hybrid_page(hybrid()),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_bytes(text.encode())
    return {name: folder / f"{name}.html" for name in texts}


def test_two_plans_stand_side_by_side(session: Browser, pages: dict[str, Path]) -> None:
    session.open(pages["two"])
    rows = session.run("return rows.filter((row) => row.type === 'device').map((row) => [row.label, row.tag])")
    assert rows == [[device, name] for device in ("gpu0", "gpu1", "gpu2") for name in ("one", "two")]
    session.run("choose({schedule: 0, type: 'op', index: 7})")
    other = session.run("return twins(state.selected).map((twin) => opName(schedules[1], twin.index))")
    assert other == [PLAN.ops[7].op]
    assert "difference" in session.find("#tab .heads").text
    other_plan = long_plan(600, devices=3, seed=1)
    moved = [e.op for e in PLAN.ops if e.device == "gpu0" and other_plan.placement.get(e.op) == "gpu2"]
    session.find("#tab input").send_keys("moved:yes device one=gpu0 device two:gpu2")
    listed = session.run("const ops = tabs.views.get('Ops'); return ops.shown.map((row) => ops.columns[0].value(row))")
    assert sorted(listed) == sorted(moved)
    assert moved
    session.find("#tab input").send_keys(" time one>soon")
    assert "time one is a number" in session.find("#tab .status").text
    assert session.messages() == []


def test_no_name_becomes_code(session: Browser, pages: dict[str, Path]) -> None:
    session.open(pages["hostile"])
    session.run("choose({schedule: 0, type: 'op', index: 0})")
    session.settled()
    assert session.run("return document.querySelector('#details h2').textContent") == HOSTILE_SHOWN
    assert session.run("return document.scripts.length") == 2
    for name in session.run("return tabs.names"):
        session.find(f"[data-name={name}]").click()
    session.find("#search").send_keys("script")
    assert session.find("#found .hit bdi").text == HOSTILE_SHOWN
    assert session.messages() == []


@pytest.mark.parametrize("name", ["small", "moment"])
def test_smallest_plans(session: Browser, pages: dict[str, Path], name: str) -> None:
    session.open(pages[name])
    for tab in session.run("return tabs.names"):
        session.find(f"[data-name={tab}]").click()
    session.keys("w", "s", "0", "c")
    assert session.messages() == []


def test_dark_and_narrow(session: Browser, pages: dict[str, Path]) -> None:
    driver = session.driver
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        session.open(pages["plan"])
        assert session.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        assert session.colors()["20,23,27"] > 1000
        assert session.run("return document.documentElement.scrollWidth <= innerWidth")
        assert session.run("return document.querySelector('#gantt').width") == 780
        session.find("#theme").click()
        session.settled()
        assert session.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    finally:
        session.run("localStorage.clear()")
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert session.messages() == []


def test_a_pipeline_is_coloured_by_micro_batch(session: Browser, pages: dict[str, Path]) -> None:
    session.open(pages["pipeline"])
    assert session.run("return COLOR_NAMES[0][1] === 'micro-batch' && state.colorBy === 'module'")
    assert session.find("#legend").text.split("\n")[:2] == ["micro-batch 0", "micro-batch 1"]
    assert session.run("return tabs.open") == "Stages"
    assert len(session.colors()) > 8
    assert "colours by micro-batch, phase" in session.run("return helpDialog().textContent")
    session.keys("3")
    assert session.run("return state.colorBy") == "kind"
    assert session.messages() == []


def test_a_hybrid_is_a_chart(session: Browser, pages: dict[str, Path]) -> None:
    session.open(pages["hybrid"])
    colors = session.colors("#chart")
    assert colors["0,114,178"] > 100, "data parallelism"
    assert colors["230,159,0"] > 100, "two devices per worker"
    x, y = session.run("const box = byId('chart').getBoundingClientRect(); return [box.width - CHART.right, 40]")
    session.move_to("#chart", x, y).perform()
    assert "devices" in session.until(lambda: session.find("#tip").text)
    assert session.messages() == []
