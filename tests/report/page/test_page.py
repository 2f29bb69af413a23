"""The HTML page: complete, self-contained, and safe for any name."""

import re
from base64 import b64decode
from html.parser import HTMLParser

import pytest
from report.plot.plans import diamond, one_moment, plan_of, two_at_once

from dlplacer.core.graph import Op
from dlplacer.core.options import ASSUMPTIONS
from dlplacer.report.page.page import html_page

VOID = {"meta", "img"}


class Page(HTMLParser):
    """Cells of all tables, attributes of all tags; fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_the_result_is_on_the_page() -> None:
    page = Page(html_page(diamond()))
    assert ["step time", "11 s"] in page.rows
    assert ["lower bound", "5.5 s"] in page.rows
    assert ["optimality gap", "50 %"] in page.rows
    assert ["speedup", "0.6364×"] in page.rows
    assert ["critical path", "3 ops, 2 transfers that take 5 s"] in page.rows


def test_devices_and_links() -> None:
    page = Page(html_page(diamond(memory_bytes=1024)))
    assert ["a", "T", "4", "4 s", "36.4 %", "unknown", "1 KiB"] in page.rows
    assert ["a → b", "1", "4 B", "3 s", "27.3 %"] in page.rows
    assert ["b → a", "1", "2 B", "2 s", "18.2 %"] in page.rows


def test_every_assumption_is_explained() -> None:
    page = Page(html_page(diamond()))
    for name, value in diamond().options.to_dict().items():
        assert [name, value, ASSUMPTIONS[name].meaning[value]] in page.rows


def test_the_longest_ops_come_first() -> None:
    page = Page(html_page(diamond()))
    head = page.rows.index(["op", "kind", "module", "phase", "device", "start", "time", "of all"])
    assert page.rows[head + 1] == ["y", "aten.relu", "left", "forward", "b", "5 s", "3 s", "42.9 %"]
    assert [row[0] for row in page.rows[head + 1 :]] == ["y", "x", "z", "w", "p"]


def test_no_more_than_twenty_ops() -> None:
    ops = [Op(f"k{count}", "k", 1.0) for count in range(30)]
    times = {op.id: ("a", float(count), count + 1.0) for count, op in enumerate(ops)}
    page = Page(html_page(plan_of(ops, (), times)))
    assert sum(row[0].startswith("k") and row[1:2] == ["k"] for row in page.rows) == 20


def test_three_pictures_are_inside() -> None:
    page = Page(html_page(two_at_once()))
    pictures = [value for tag, name, value in page.attributes if (tag, name) == ("img", "src")]
    assert len(pictures) == 3
    for picture in pictures:
        kind, _, data = str(picture).partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert b"<svg" in b64decode(data)
    alts = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert alts == ["Schedule", "Placement", "Memory"]


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = html_page(diamond())
    page = Page(text)
    assert not {tag for tag, _, _ in page.attributes} & {"script", "link", "iframe"}
    assert "<script" not in text
    for _, name, value in page.attributes:
        assert name not in ("href", "onload")
        assert name != "src" or str(value).startswith("data:")
    assert not re.search(r"@import|url\(", text)


def test_names_cannot_break_the_page() -> None:
    name = "<script>alert(1)</script>&\"'"
    plan = plan_of([Op(name, name, 1.0, module=name)], (), {name: ("a", 0.0, 1.0)})
    text = html_page(plan)
    page = Page(text)
    assert "<script" not in text
    assert [name, name, name] in [row[:3] for row in page.rows]


def test_the_same_plan_gives_the_same_page() -> None:
    assert html_page(diamond()) == html_page(diamond())


@pytest.mark.parametrize("needle", ["none: the plan takes no time", "0 s per step"])
def test_a_plan_that_takes_no_time(needle: str) -> None:
    assert needle in html_page(one_moment())
