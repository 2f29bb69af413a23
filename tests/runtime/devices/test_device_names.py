"""Names of devices, as users write them."""

import pytest

from dlplacer.core.errors import InputError
from dlplacer.runtime.devices.open import DeviceName, open_devices


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cpu", DeviceName("cpu", 0)),
        (" cpu:3 ", DeviceName("cpu", 3)),
        ("cuda:1", DeviceName("cuda", 1)),
        ("cuda:0/1", DeviceName("cuda", 0, 1)),
        ("cuda/1", DeviceName("cuda", 0, 1)),
        ("cuda:0/1?copies=forced", DeviceName("cuda", 0, 1, "forced")),
        ("cuda:0/1?copies=free", DeviceName("cuda", 0, 1, "free")),
    ],
)
def test_names_are_taken_apart(text: str, name: DeviceName) -> None:
    assert DeviceName.parse(text) == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpu:0", "is not understood; write cpu:0, cpu:1"),
        ("cuda:x", "is not understood"),
        ("cpu:0/1", "a core is one device"),
        ("cuda:0?copies=forced", "write cuda:0/0.copies=forced"),
        ("cuda:0/0?copies=never", "write cuda:0/0.copies=forced"),
    ],
)
def test_other_names_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DeviceName.parse(text)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["cpu:0", "cpu:0"], "device 'cpu:0' is given twice; every device of a plan needs one of its own$"),
        (["cuda:0", "cuda:0"], "given twice; .*, or cuda:0/0, cuda:0/1 for several on one GPU"),
        (["cuda:0/1", "cuda:0/1"], "device 'cuda:0/1' is given twice"),
        (["cuda:0", "cuda:0/1"], "device 'cuda:0' is given whole and in part"),
        (["cuda:0/1", "cuda:0"], "device 'cuda:0' is given whole and in part"),
    ],
)
def test_devices_must_differ(names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_devices(names)
