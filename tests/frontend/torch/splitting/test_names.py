"""Splits by name."""

import pytest

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.splitting.names import OpSplit, is_split, parse_split, parse_splits


def test_a_split_prints_and_parses_back() -> None:
    split = OpSplit("convolution_4", "batch", 3)
    assert str(split) == "split:convolution_4:batch:3"
    assert parse_split(str(split)) == split


def test_splits_among_other_rewrites_are_found() -> None:
    names = ["drop-detach", "split:mm:inner:2", "split:relu:dim2:4"]
    assert [is_split(name) for name in names] == [False, True, True]
    assert parse_splits(names) == (OpSplit("mm", "inner", 2), OpSplit("relu", "dim2", 4))


@pytest.mark.parametrize("name", ["split:mm", "split:mm:batch", "split:mm:batch:two", "split:mm:batch:2:3", "split:"])
def test_a_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(CaptureError, match="is not understood; write split:OP:AXIS:PARTS"):
        parse_split(name)


def test_one_part_is_refused() -> None:
    with pytest.raises(CaptureError, match="op 'mm' cannot be split into 1 parts; give at least 2"):
        parse_split("split:mm:batch:1")


def test_an_op_is_split_once() -> None:
    with pytest.raises(CaptureError, match="op 'mm' is split twice; split it once, into more parts"):
        parse_splits(["split:mm:batch:2", "split:mm:channel:2"])
