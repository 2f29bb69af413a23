"""A tensor arrives as it left: values, dtype, shape, and strides where they have no gaps."""

import pytest
import torch

from dlplacer.runtime.distributed.messages.wire_format import HEADER_LENGTH, WireFormat

HOST = torch.device("cpu")
BASE = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)


def sent(value: torch.Tensor | None) -> torch.Tensor | None:
    """The value after its header and its bytes went over a wire."""
    wire = WireFormat.of(value)
    header = wire.to_header()
    assert (header.dtype, header.numel()) == (torch.int64, HEADER_LENGTH)
    there = WireFormat.of_header(header)
    assert there == wire
    received = there.empty(HOST)
    received.copy_(wire.flat(value, HOST))
    arrived: torch.Tensor | None = there.shaped(received)
    return arrived


@pytest.mark.parametrize(
    "value",
    [
        BASE,
        BASE.permute(0, 2, 3, 1),
        BASE.contiguous(memory_format=torch.channels_last),
        torch.tensor(3.5),
        torch.empty(0, 4),
        BASE > 7,
        BASE.bfloat16(),
        BASE.to(torch.int64).transpose(0, 3),
        BASE[:1].expand(1, 3, 4, 5),
        BASE[0, 0, 0].reshape(*[1] * 24, 5),
        torch.view_as_complex(BASE[..., :2].contiguous()),
    ],
    ids=lambda value: f"{value.dtype} {list(value.shape)} {value.stride()}",
)
def test_a_tensor_without_gaps_keeps_its_layout(value: torch.Tensor) -> None:
    arrived = sent(value)
    assert arrived is not None
    assert (arrived.dtype, arrived.shape, arrived.stride()) == (value.dtype, value.shape, value.stride())
    assert torch.equal(arrived, value)


@pytest.mark.parametrize(
    "value", [BASE[:, 1], BASE[..., ::2], torch.ones(3, 1).expand(3, 4)], ids=["slice", "gaps", "repeats"]
)
def test_gaps_and_repeats_do_not_travel(value: torch.Tensor) -> None:
    arrived = sent(value)
    assert arrived is not None
    assert torch.equal(arrived, value)
    assert arrived.is_contiguous()


def test_an_order_is_one_byte() -> None:
    assert WireFormat.of(None).elements == 1
    assert sent(None) is None


def test_a_tensor_without_gaps_is_not_copied() -> None:
    value = BASE.permute(0, 2, 3, 1)
    assert WireFormat.of(value).flat(value, HOST).data_ptr() == BASE.data_ptr()


def test_a_tensor_of_another_layout_is_brought_into_the_agreed_one() -> None:
    agreed = WireFormat.of(BASE)
    other = BASE.contiguous(memory_format=torch.channels_last)
    assert torch.equal(agreed.shaped(agreed.flat(other, HOST)), BASE)
