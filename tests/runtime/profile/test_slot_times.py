"""Handing over in shared memory."""

from dlplacer.runtime.profile.slot_times import slot_times


def test_writing_takes_longer_with_more_bytes_and_reading_does_not() -> None:
    found = slot_times()
    assert 0 < found.read_s < 1e-2
    assert 0 < found.write.latency_s < 1e-2
    assert 0 <= found.write.s_per_byte < 1e-6
