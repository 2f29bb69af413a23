"""What the caller gets is not copied as long as nobody uses what it got before."""

from contextlib import closing
from typing import Any

import pytest
import torch
from runtime.processes.small_jobs import LABELS, ROWS, placed_branches
from runtime.processes.test_slots import TENSORS, never

from dlplacer.runtime.processes.program_slots import ProgramSlots
from dlplacer.runtime.processes.result_slot import ResultSlot
from dlplacer.runtime.processes.shared_memory import SharedMemory
from dlplacer.runtime.processes.slot import Watch


def _slot(capacity_bytes: int) -> tuple[ResultSlot, SharedMemory]:
    memory = SharedMemory(ResultSlot.size_bytes(capacity_bytes))
    return ResultSlot("t", memory, capacity_bytes), memory


def test_what_was_dropped_is_written_again():
    slot, memory = _slot(480)
    for run in range(1, 5):
        assert not slot.look()
        slot.put(torch.full((120,), float(run)), run)
        found = slot.take(run, never)
        assert memory.holds(found)
        assert found.unique().tolist() == [run]
        del found


def test_what_is_kept_stays_as_it_is():
    slot, memory = _slot(480)
    kept = []
    for run in range(1, 5):
        assert slot.look() == (run > 1)
        slot.put(torch.full((120,), float(run)), run)
        kept.append(slot.take(run, never))
    assert [memory.holds(tensor) for tensor in kept] == [True, False, False, False]
    assert [tensor[0].item() for tensor in kept] == [1, 2, 3, 4]
    view = kept[0][7:]
    kept.clear()
    assert slot.look()  # a view keeps it too
    del view
    assert not slot.look()


def test_what_used_the_memory_only_for_a_while_hides_nobody():
    """As a view that the caller's own ops have made, and that is dropped or copied after the step."""
    slot, _ = _slot(480)
    slot.put(torch.zeros(120), 1)
    view = slot.get(1, never)[7:]
    kept = slot.take(1, never)
    del view
    assert slot.look()
    slot.put(torch.ones(120), 2)
    assert slot.take(2, never).sum() == 120
    assert not kept.any()


def test_every_kind_of_tensor_comes_as_it_is():
    slot, _ = _slot(2000)
    for run, tensor in enumerate([*TENSORS.values(), None, *TENSORS.values()], start=1):
        slot.look()
        slot.put(tensor, run)
        found = slot.take(run, never)
        assert (found is None) == (tensor is None)
        if tensor is not None:
            assert torch.equal(found, tensor)
            assert found.stride() == tensor.stride()
            assert found._base is None
        del found


def _used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every result that is taken, whether it had to be copied."""
    found, take = [], ResultSlot.take

    def recorded(slot: ResultSlot, run: int, watch: Watch) -> Any:
        found.append(slot.is_used)
        return take(slot, run, watch)

    monkeypatch.setattr(ResultSlot, "take", recorded)
    return found


def test_gradients_of_a_training_loop_are_not_copied(monkeypatch):
    used = _used(monkeypatch)
    with closing(placed_branches("on")) as module:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            module.step(ROWS, LABELS)
            optimizer.step()
    assert used
    assert not any(used)


def test_gradients_that_are_kept_are_those_of_their_step(monkeypatch):
    used = _used(monkeypatch)
    results = []
    for processes in ("off", "on"):
        with closing(placed_branches(processes)) as module:
            torch.manual_seed(5)
            kept = []
            for step in range(4):
                module.zero_grad()
                module.step(ROWS * (step + 1), LABELS)
                kept += [weight.grad for weight in module.parameters()]
            results.append(kept)
    assert any(used)
    assert all(map(torch.equal, *results))


def test_neither_is_a_gradient_that_ends_on_the_callers_device(monkeypatch):
    """Made by another device, and returned by the caller's own."""
    made, of = [], ProgramSlots.of

    def recorded(*given: Any) -> ProgramSlots:
        made.append(of(*given))
        return made[-1]

    monkeypatch.setattr(ProgramSlots, "of", recorded)
    used = _used(monkeypatch)
    for seed in range(4):
        with closing(placed_branches("on", seed)) as module:
            for _ in range(3):
                module.zero_grad()
                module.step(ROWS, LABELS)
    assert any(isinstance(slot, ResultSlot) for slots in made for slot in slots.crossing.values())
    assert not any(used)
