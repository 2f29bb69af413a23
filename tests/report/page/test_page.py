"""The HTML page of a plan: complete, self-contained, and safe for any name; what it does is in `test_in_browser`."""

from base64 import b64encode
from collections import defaultdict
from dataclasses import replace
from hashlib import sha256

import pytest
from report.page.long_plans import long_plan
from report.page.reading import ReadPage, urls_in
from report.plot.plans import diamond, plan_of, through_a_router, two_at_once

from dlplacer.check import live_bytes, live_tensors
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.plan import Plan
from dlplacer.report.page.page import html_page

HOSTILE = "</script><script>alert(1)</script><!--<script>\u2028\u202egnp\u2066&\"'"
HOSTILE_SHOWN = "</script><script>alert(1)</script><!--<script>[U+2028][U+202E]gnp[U+2066]&\"'"


def hostile_plan() -> Plan:
    """A plan every name of which tries to leave its place."""
    ops = [Op(HOSTILE, HOSTILE, 1.0, module=HOSTILE, dtype=HOSTILE), Op("b", "k", 1.0)]
    plan = plan_of(ops, [Edge(HOSTILE, "b", 4, tensor=HOSTILE)], {HOSTILE: ("a", 0.0, 1.0), "b": ("a", 1.0, 2.0)})
    return replace(plan, graph=replace(plan.graph, name=HOSTILE), provenance={HOSTILE: HOSTILE})


def test_the_result_is_on_the_page_without_the_script() -> None:
    page = ReadPage(html_page(diamond()))
    assert page.title == "small on pair: 11 s per step"
    assert page.highlights[:5] == ["bound", "5.5 s", "gap", "50 %", "speedup"]
    assert ["transfers", "2, 6 B"] in page.rows


def test_ops_of_the_critical_path_have_no_slack_where_processes_delay_them() -> None:
    # a hands x's tensor over for 1 s behind x: z starts at 3 for it, and x could end no later
    plan = diamond()
    devices = tuple(replace(device, dispatch_s=1.0) for device in plan.topology.devices)
    late = {"z": (3.0, 4.0)}
    ops = tuple(
        replace(entry, start_s=late[entry.op][0], end_s=late[entry.op][1]) if entry.op in late else entry
        for entry in plan.ops
        if entry.op in ("p", "x", "z")
    )
    graph = OpGraph(tuple(plan.graph.op(entry.op) for entry in ops), plan.graph.edges[:1] + plan.graph.edges[2:3])
    plan = replace(
        plan, graph=graph, ops=ops, transfers=(), topology=replace(plan.topology, devices=devices), makespan_s=4.0
    )
    (schedule,) = ReadPage(html_page(plan)).data["schedules"]
    assert [plan.ops[event].op for event in schedule["ops"]["critical"]] == ["x", "z"]
    assert schedule["ops"]["slack"][1:] == [0, 0]


@pytest.mark.parametrize("plan", [diamond(), two_at_once(), through_a_router(), long_plan(300, devices=3)])
def test_the_columns_are_the_plan(plan: Plan) -> None:
    page = ReadPage(html_page(plan))
    (schedule,), (graph,), texts = page.data["schedules"], page.data["graphs"], page.data["texts"]
    ops = schedule["ops"]
    assert [graph["id"][op] for op in ops["op"]] == [entry.op for entry in plan.ops]
    assert [schedule["devices"]["name"][device] for device in ops["device"]] == [entry.device for entry in plan.ops]
    unit_s = page.data["unitS"]
    assert page.seconds(ops["start"]) == pytest.approx([entry.start_s for entry in plan.ops], rel=0, abs=unit_s)
    assert unit_s <= 1e-8 * plan.makespan_s
    times_s = [entry.end_s - entry.start_s for entry in plan.ops]
    assert page.seconds(ops["time"]) == pytest.approx(times_s, rel=0, abs=unit_s)
    assert [texts[kind] for kind in graph["kind"]] == [op.kind for op in plan.graph.ops]
    assert [texts[module] for module in graph["module"]] == [op.module or "" for op in plan.graph.ops]
    sources, targets, sizes = graph["edges"]
    edges = [(edge.source, edge.target, edge.bytes) for edge in plan.graph.edges]
    assert [(graph["id"][a], graph["id"][b], size) for a, b, size in zip(sources, targets, sizes, strict=True)] == edges


@pytest.mark.parametrize("plan", [diamond(), *(long_plan(300, devices=3, seed=seed) for seed in range(3))])
def test_lifetimes_add_up_to_what_is_alive(plan: Plan) -> None:
    page = ReadPage(html_page(plan))
    memory = page.data["schedules"][0]["memory"]
    for position, device in enumerate(plan.topology.devices):
        rows = [row for row, owner in enumerate(memory["device"]) if owner == position]
        assert len(rows) == len(live_tensors(plan, device.id))
        changes: dict[int, int] = defaultdict(int)
        for row in rows:
            changes[memory["start"][row]] += memory["bytes"][row]
            changes[memory["start"][row] + memory["time"][row]] -= memory["bytes"][row]
        level = peak = memory["resident"][position]
        for moment in sorted(changes):
            level += changes[moment]
            peak = max(peak, level)
        assert peak == max(bytes_ for _, bytes_ in live_bytes(plan, device.id))


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = html_page(long_plan(100))
    page = ReadPage(text)
    assert page.addresses == ["data:,"]
    assert not urls_in(text)
    assert not {tag for tag, _, _ in page.attributes} & {"iframe", "object", "embed", "img"}
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_only_its_own_script_may_run() -> None:
    page = ReadPage(html_page(diamond()))
    (policy,) = (value for tag, name, value in page.attributes if tag == "meta" and "default-src" in (value or ""))
    digest = b64encode(sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in str(policy)
    assert "default-src 'none'" in str(policy)


def test_names_cannot_break_the_page() -> None:
    text = html_page(hostile_plan())
    page = ReadPage(text)
    assert len(page.scripts) == 2
    assert text.count("<script") == 2
    assert text.count("</script") == 2
    assert "<!--" not in text
    assert page.title == f"{HOSTILE_SHOWN} on pair: 2 s per step"
    assert ["graph", f"{HOSTILE_SHOWN}: 2 ops, 1 edges"] in page.rows
    assert page.data["graphs"][0]["id"][0] == HOSTILE_SHOWN
    assert HOSTILE_SHOWN in page.data["texts"]
    text.encode()
    for hidden in "\u2028\u202e\u2066":
        assert hidden not in text


def test_two_plans_share_clock_and_graph() -> None:
    plan, other = diamond(), replace(diamond(), makespan_s=20.0)
    page = ReadPage(html_page(plan, other, ("one", "two")))
    assert page.data["shown"] == [0, 1]
    assert [schedule["name"] for schedule in page.data["schedules"]] == ["one", "two"]
    assert len(page.data["graphs"]) == 1
    assert page.seconds([schedule["end"] for schedule in page.data["schedules"]]) == pytest.approx([11, 20])
    assert ["step time", "11 s", "20 s"] in page.rows
    assert page.title == "one against two: small on pair"
    assert page.highlights[-2:] == ["two ÷ one", "1.818"]
