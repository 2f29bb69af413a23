"""A slot hands over every kind of tensor as it is, strides included."""

import os

import pytest
import torch

import dlplacer as dp
from dlplacer.runtime.processes.shared_memory import SharedMemory
from dlplacer.runtime.processes.slot import TensorSlot

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


def reader_and_writer(capacity_bytes: int) -> tuple[TensorSlot, TensorSlot]:
    """Two objects of one slot, as two processes have them."""
    memory = SharedMemory(2 * TensorSlot.size_bytes(capacity_bytes))
    writer = TensorSlot("t", memory, capacity_bytes)
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
