"""What workers answer to a run, and that the caller waits for no answer that does not come."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runtime.processes.small_jobs import LABELS, ROWS, placed_branches

import dlplacer as dp
from dlplacer.runtime.processes.device_processes import DeviceProcesses
from dlplacer.runtime.processes.worker import ANSWERED, FAILED, FIRST_DONE, WORDS_EACH, ProcessWorker

RUN = 7


def test_a_run_that_goes_well_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[dict[str, Any]] = []
    finish = DeviceProcesses.finish
    monkeypatch.setattr(DeviceProcesses, "finish", lambda group: heard.append(finish(group)) or heard[-1])
    module = placed_branches("on")
    for records in (False, True, False):
        module.records = records
        module.step(ROWS, LABELS)
    module.close()
    assert [sorted(answers["cpu:1"]) for answers in heard] == [[], ["marks", "origins"], []]


def test_an_answer_may_be_longer_than_what_a_connection_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = ProcessWorker._answer

    def padded(worker: ProcessWorker, asked: dict[str, Any]) -> bytes:
        answered(worker, asked)
        return json.dumps({"padding": "x" * 2**22}).encode()

    threads = placed_branches("off")
    monkeypatch.setattr(ProcessWorker, "_answer", padded)
    module = placed_branches("on")
    for _ in range(2):
        assert torch.equal(module.step(ROWS, LABELS), threads.step(ROWS, LABELS))
    module.close()
    threads.close()


class MadeWorker:
    """A worker that another one's end has left waiting, until the run is given up."""

    def __init__(self, number: int, words: memoryview, ends: bool) -> None:
        self.device, self.ending, self._words, self._ends = f"cpu:{number + 1}", "was killed", words, ends
        self._done = FIRST_DONE + WORDS_EACH * number
        self.connection = SimpleNamespace(recv_bytes=lambda: b'{"aborted": true}')

    @property
    def has_ended(self) -> bool:
        if self._words[FAILED] == RUN and not self._ends:
            self._words[self._done + ANSWERED] = self._words[self._done] = RUN
        return self._ends


@pytest.mark.parametrize("gone", [0, 1])
def test_nobody_waits_for_what_a_killed_worker_would_have_sent(gone: int) -> None:
    words = memoryview(bytearray(8 * (FIRST_DONE + 2 * WORDS_EACH))).cast("q")
    group = DeviceProcesses.__new__(DeviceProcesses)
    group.run, group._words, closed = RUN, words, []
    group._workers = [MadeWorker(number, words, number == gone) for number in range(2)]  # type: ignore[misc]
    group._finalizer = lambda: closed.append(True)  # type: ignore[assignment]
    with pytest.raises(dp.RunError, match=rf"'cpu:{gone + 1}' was killed"):
        group.finish()
    assert words[FAILED] == RUN
    assert closed
