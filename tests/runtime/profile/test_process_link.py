"""What a hand-over between processes takes, and that a timed machine says it."""

import os
from collections.abc import Iterator

import pytest
from runtime.random_plans import needs_two_cores

from dlplacer.problem.as_processes import are_processes, as_processes
from dlplacer.runtime.devices import open_devices
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.profile import detected_links
from dlplacer.runtime.profile.detected_links import with_timed_dispatch
from dlplacer.runtime.profile.link_times import measured_topology
from dlplacer.runtime.profile.process_link import process_link

pytestmark = needs_two_cores


@pytest.fixture(scope="module")
def cores() -> Iterator[list[RuntimeDevice]]:
    opened = open_devices(["cpu:0", "cpu:1"])
    yield opened
    for device in opened:
        device.close()


def test_a_timed_machine_can_be_planned_by_processes(cores, monkeypatch) -> None:
    monkeypatch.setattr(detected_links, "dispatch_of_devices_s", lambda opened: 14e-6)
    machine = with_timed_dispatch(measured_topology(cores), cores)
    (link,) = machine.links
    assert 0 < link.process_latency_s < 1e-2
    assert link.process_bytes_per_s > 1e6
    assert 0 <= link.process_step_s < 1e-1
    assert not are_processes(machine)
    apart = as_processes(machine)
    assert apart is not None
    assert are_processes(apart)
    assert apart.links[0].latency_s == link.process_latency_s / 2
    assert apart.links[0].process_step_s == link.process_step_s


def test_one_core_hands_nothing_over(cores) -> None:
    assert process_link(cores[:1]) is None


def test_a_system_without_room_for_a_process_hands_nothing_over(cores, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    assert process_link(cores) is None
