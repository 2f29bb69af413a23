"""Where a measured step's time went: by hand, and in sum."""

from dataclasses import replace

import pytest
from report.plot.plans import diamond

from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.measure.fidelity.loss import StepSeconds, loss_of

RAN = {"p": ("a", 0.0, 0.0), "x": ("a", 0.0, 4.0), "z": ("a", 4.0, 6.0), "y": ("b", 9.0, 15.0), "w": ("a", 18.0, 20.0)}


def recorded() -> Plan:
    """The diamond as it ran: a works for 8 s, b for 6 s; b waits 5 s for x, and a 3 s for y, when they are made."""
    ops = tuple(ScheduledOp(op, *when) for op, when in sorted(RAN.items(), key=lambda entry: entry[1][1]))
    return replace(diamond(), ops=ops, transfers=(), makespan_s=20.0, memory={})


def test_every_second_has_one_cause() -> None:
    seconds = StepSeconds(measured_s=40.0, recorded_s=25.0, baseline_s=10.0, one_device_s=12.0)
    found = loss_of(diamond(), recorded(), {"a", "b"}, seconds)
    assert found.ideal_s == 5.0
    assert found.runtime_s == 1.0
    assert found.contention_s == pytest.approx(1.6 * 7 - 6)
    assert found.handover_s == pytest.approx(1.6 * 4)
    assert found.idle_s == pytest.approx(1.6 * (20 - 7 - 4))
    assert found.host_s == pytest.approx(40 - 1.6 * 20)
    assert found.ideal_s + found.total_s == pytest.approx(40.0)


def test_replicas_share_nothing_of_a_baseline_that_each_has() -> None:
    seconds = StepSeconds(measured_s=20.0, recorded_s=20.0, baseline_s=10.0, one_device_s=10.0)
    found = loss_of(diamond(), recorded(), {"a", "b"}, seconds, replicas=2)
    assert found.ideal_s == 10.0
    assert found.total_s == pytest.approx(10.0)
    assert found.runtime_s == 0.0


def test_a_device_that_the_plan_does_not_use_loses_nothing() -> None:
    seconds = StepSeconds(measured_s=20.0, recorded_s=20.0, baseline_s=8.0, one_device_s=8.0)
    found = loss_of(diamond(), recorded(), {"a"}, seconds)
    assert (found.ideal_s, found.contention_s) == (8.0, 0.0)
    assert found.idle_s == pytest.approx(20 - 8 - 3)
    assert found.handover_s == pytest.approx(3)
