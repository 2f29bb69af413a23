"""A slot hands over every kind of tensor as it is, strides included."""

import os

import pytest
import torch

import dlplacer as dp
from dlplacer.runtime.processes.shared_memory import SharedMemory
from dlplacer.runtime.processes.shared_tensors import SharedHomes, SharedTensors
from dlplacer.runtime.processes.slot import NO_HOMES, TensorSlot

BASE = torch.arange(120.0).reshape(2, 3, 4, 5)
TENSORS = {
    "plain": BASE,
    "transposed": BASE.transpose(1, 3),
    "channels last": BASE.contiguous(memory_format=torch.channels_last),
    "expanded": BASE[:, :1, :1, :1].expand(2, 3, 4, 5),
    "with gaps": BASE[:, ::2, 1:3],
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 3),
    "bool": BASE > 7,
    "bfloat16": BASE.to(torch.bfloat16),
    "complex": torch.complex(BASE, -BASE),
    "int64": BASE.long(),
}


def reader_and_writer(capacity_bytes: int, homes: SharedHomes = NO_HOMES) -> tuple[TensorSlot, TensorSlot]:
    """Two objects of one slot, as two processes have them."""
    memory = SharedMemory(2 * TensorSlot.size_bytes(capacity_bytes))
    writer = TensorSlot("t", memory, capacity_bytes, homes)
    reader = TensorSlot.__new__(TensorSlot)
    for name in TensorSlot.__slots__:
        setattr(reader, name, getattr(writer, name))
    return reader, writer


def never() -> None:
    raise AssertionError("the tensor is there")


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_arrives_with_its_strides(name):
    tensor = TENSORS[name]
    reader, writer = reader_and_writer(2000)
    for run in (1, 2):
        writer.put(tensor, run)
        found = reader.get(run, never)
        assert torch.equal(found, tensor)
        assert found.dtype == tensor.dtype
        assert found.stride() == tensor.stride()


def test_a_tensor_begins_where_in_a_cache_line_its_original_does():
    """Products of matrices round in another order elsewhere: random modules differed by a bit on some processors."""
    reader, writer = reader_and_writer(480)
    memory = torch.arange(200.0)
    for run, first in enumerate((0, 1, 5, 15, 16, 1), start=1):
        tensor = memory[first : first + 120].view(10, 12)[:, 3:]
        writer.put(tensor, run)
        found = reader.get(run, never)
        assert torch.equal(found, tensor)
        assert found.data_ptr() % 64 == tensor.data_ptr() % 64


def test_a_tensor_that_begins_within_an_element_arrives():
    """As weights of a mapped file may."""
    elements = torch.frombuffer(bytearray(range(67)), dtype=torch.float32, offset=3)
    reader, writer = reader_and_writer(64)
    writer.put(elements, 1)
    assert torch.equal(reader.get(1, never), elements)


def test_the_layout_may_change_from_run_to_run():
    reader, writer = reader_and_writer(2000)
    for run, tensor in enumerate([*TENSORS.values(), None] * 40, start=1):
        writer.put(tensor, run)
        found = reader.get(run, never)
        assert (found is None) == (tensor is None)
        assert tensor is None or torch.equal(found, tensor)


def test_a_reader_waits_for_the_run_it_asks_for():
    reader, writer = reader_and_writer(2000)
    writer.put(BASE, 1)

    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        reader.get(2, stop)
    seen = []

    def late() -> None:
        seen.append(True)
        writer.put(2 * BASE, 2)

    assert torch.equal(reader.get(2, late), 2 * BASE)
    assert seen == [True]


def test_a_view_with_gaps_that_are_larger_than_the_slot_is_packed():
    wide = torch.arange(10000.0).reshape(10, 1000)[:, 3:5]
    reader, writer = reader_and_writer(80)
    writer.put(wide, 1)
    assert torch.equal(reader.get(1, never), wide)


def test_what_does_not_fit_is_refused():
    _, writer = reader_and_writer(64)
    with pytest.raises(dp.RunError, match=r"'t' of shape \[100\] needs 400 bytes, more than the 64 at its capture"):
        writer.put(torch.ones(100), 1)


def shared_weights() -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.arange(12.0).reshape(3, 4), torch.arange(100.0)
    SharedTensors().share(weights)
    return weights


def test_views_of_what_all_processes_see_are_not_copied():
    weights = shared_weights()
    reader, writer = reader_and_writer(64, SharedHomes(weights))
    views = [weights[0].t(), weights[0][1:, 2:], weights[1], weights[1][7:].view(31, 3)[:, ::2], weights[0].t()]
    for run, view in enumerate(views, start=1):
        writer.put(view, run)
        found = reader.get(run, never)
        assert torch.equal(found, view)
        assert (found.data_ptr(), found.stride()) == (view.data_ptr(), view.stride())
    weights[0].add_(1)
    assert torch.equal(reader.get(len(views), never), weights[0].t())


def test_a_slot_may_hand_over_copies_and_views_in_turn():
    weights = shared_weights()
    reader, writer = reader_and_writer(64, SharedHomes(weights))
    own = torch.full((4, 3), 0.5)
    for run in range(1, 20):
        view = (weights[0].t(), own, own + run, weights[0].t(), weights[1][:3], None, torch.zeros(2, 3))[run % 7]
        writer.put(view, run)
        found = reader.get(run, never)
        assert (found is None) == (view is None)
        assert view is None or torch.equal(found, view)
    writer.put(own, 20)
    own.zero_()
    assert reader.get(20, never).min() == 0.5


def test_what_only_begins_where_shared_memory_was_is_copied():
    """A tensor elsewhere, of the layout of a view that was handed over before."""
    weights = shared_weights()
    reader, writer = reader_and_writer(64, SharedHomes(weights))
    other = weights[0] + 100
    for run, tensor in enumerate((weights[0], other, weights[0], other), start=1):
        writer.put(tensor, run)
        assert torch.equal(reader.get(run, never), tensor)


def test_a_forked_process_sees_the_views_of_both():
    weights = shared_weights()
    homes, memory = SharedHomes(weights), SharedMemory(2 * TensorSlot.size_bytes(16))
    there, back = TensorSlot("there", memory, 16, homes), TensorSlot("back", memory, 16, homes)
    child = os.fork()
    if child == 0:
        try:
            there.get(1, lambda: None).mul_(2)
            back.put(weights[1][50:], 1)
        finally:
            os._exit(0)
    there.put(weights[0].t(), 1)
    assert torch.equal(back.get(1, lambda: None), weights[1][50:])
    assert torch.equal(weights[0], 2 * torch.arange(12.0).reshape(3, 4))
    os.waitpid(child, 0)


def test_a_forked_process_reads_what_was_written_before_and_after():
    memory = SharedMemory(TensorSlot.size_bytes(480) + TensorSlot.size_bytes(480))
    there, back = TensorSlot("there", memory, 480), TensorSlot("back", memory, 480)
    there.put(BASE, 1)
    child = os.fork()
    if child == 0:
        try:
            back.put(there.get(1, lambda: None) + 1, 1)
            back.put(there.get(2, lambda: None) + 2, 2)
        finally:
            os._exit(0)
    assert torch.equal(back.get(1, lambda: None), BASE + 1)
    there.put(3 * BASE, 2)
    assert torch.equal(back.get(2, lambda: None), 3 * BASE + 2)
    os.waitpid(child, 0)
