"""The Chrome trace: well-formed events in microseconds that Perfetto can show."""

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from report.plot.plans import diamond, one_moment, plan_of, through_a_router, two_at_once

from dlplacer.check import live_bytes
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan
from dlplacer.report.trace import chrome_trace

PLANS = [diamond, one_moment, through_a_router, two_at_once]


def events(plan: Plan, phase: str) -> list[dict[str, Any]]:
    return [event for event in chrome_trace(plan)["traceEvents"] if event["ph"] == phase]


def thread_names(plan: Plan) -> dict[int, str]:
    process = {event["pid"]: event["args"]["name"] for event in events(plan, "M") if event["name"] == "process_name"}
    threads = [event for event in events(plan, "M") if event["name"] == "thread_name"]
    return {event["tid"]: f"{process[event['pid']]}: {event['args']['name']}" for event in threads}


def nanoseconds(time_us: float) -> int:
    """As Perfetto reads a number of microseconds."""
    return int(time_us * 1000)


def test_ops_and_transfers_are_slices_in_microseconds() -> None:
    plan = diamond()
    assert chrome_trace(plan)["displayTimeUnit"] == "ms"
    names = thread_names(plan)
    slices = {event["name"]: (names[event["tid"]], event["ts"], event["dur"]) for event in events(plan, "X")}
    assert slices == {
        "x": ("a: compute", 0, 2e6),
        "z": ("a: compute", 2e6, 1e6),
        "y": ("b: compute", 5e6, 3e6),
        "w": ("a: compute", 10e6, 1e6),
        "x.0": ("a: to b", 2e6, 3e6),
        "y.0": ("b: to a", 8e6, 2e6),
    }


def awkward_times() -> Plan:
    """A chain of ops whose times are no whole nanoseconds and no sums of binary fractions."""
    ends = [1.0013e-6 * count + 1e-10 * (count % 7) for count in range(400)]
    times = {f"k{count}": ("a", *span) for count, span in enumerate(pairwise(ends))}
    return plan_of([Op(name, "k", end_s - start_s) for name, (_, start_s, end_s) in times.items()], (), times)


@pytest.mark.parametrize("make", [*PLANS, awkward_times])
def test_slices_of_a_thread_do_not_overlap_in_perfetto(make: Any) -> None:
    threads = defaultdict(list)
    for event in events(make(), "X"):
        threads[event["tid"]].append((nanoseconds(event["ts"]), nanoseconds(event["dur"])))
    for spans in threads.values():
        for (start, length), (following, _) in pairwise(sorted(spans)):
            assert start + length <= following


def test_counters_hold_the_memory_alive() -> None:
    plan = diamond()
    for pid, device in enumerate(("a", "b"), start=1):
        found = [(event["ts"], event["args"]["bytes"]) for event in events(plan, "C") if event["pid"] == pid]
        last_at = {round(time_s * 1e9): level for time_s, level in live_bytes(plan, device)}
        assert [(nanoseconds(time_us), level) for time_us, level in found] == list(last_at.items())
        assert all(event["name"] == "memory" for event in events(plan, "C"))
