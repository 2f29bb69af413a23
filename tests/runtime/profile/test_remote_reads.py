"""What a core pays to read what another has written."""

import pytest
from runtime.random_plans import needs_two_cores

from dlplacer.runtime.devices import open_devices
from dlplacer.runtime.profile.remote_reads import RemoteReads, remote_reads


def test_seconds_lie_between_measured_sizes() -> None:
    reads = RemoteReads((100, 200, 400), (1.0, 3.0, 2.0))
    found = [reads.seconds(size) for size in (0, 50, 100, 150, 200, 300, 400, 10**6)]
    assert found == pytest.approx([0.0, 0.5, 1.0, 2.0, 3.0, 2.5, 2.0, 2.0])
    assert RemoteReads().seconds(10**9) == 0.0


@needs_two_cores
def test_cores_pay_and_one_core_does_not() -> None:
    devices = open_devices(["cpu:0", "cpu:1"])
    try:
        found = remote_reads(devices)
        assert min(found.extra_s) >= 0.0
        assert max(found.extra_s) < 1.0
        assert list(found.sizes_bytes) == sorted(found.sizes_bytes)
        assert remote_reads(devices[:1]) == RemoteReads()
    finally:
        for device in devices:
            device.close()
