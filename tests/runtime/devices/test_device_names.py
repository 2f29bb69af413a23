"""Names of devices, as users write them."""

import contextlib
from dataclasses import replace

import pytest
from runtime.simulated_gpus import SimulatedGpus

from dlplacer.core.errors import InputError
from dlplacer.runtime.devices.cuda import CudaDevice, StreamBackend
from dlplacer.runtime.devices.open import KINDS, DeviceName, in_host_memory, kind_of, open_devices
from dlplacer.runtime.program.program import DeviceMemorySpace, memory_spaces


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cpu", DeviceName("cpu", 0)),
        (" cpu:3 ", DeviceName("cpu", 3)),
        ("cuda:1", DeviceName("cuda", 1)),
        ("cuda:0/1", DeviceName("cuda", 0, 1)),
        ("cuda:0/1?copies=forced", DeviceName("cuda", 0, 1, "forced")),
    ],
)
def test_names_are_taken_apart(text: str, name: DeviceName) -> None:
    assert DeviceName.parse(text) == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpu:0", "is not understood; write cpu:0, cpu:1"),
        ("cpu:0/1", "a core is one device"),
        ("cuda:0/0?copies=never", "is not understood"),
    ],
)
def test_other_names_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DeviceName.parse(text)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["cpu:0", "cpu:0"],
            "device 'cpu:0' is given twice, or whole and in part; every device of a plan needs one of its own$",
        ),
        (["cuda:0", "cuda:0"], "given twice, .*, or cuda:0/0, … for several on one GPU"),
        (["cuda:0", "cuda:0/1"], "device 'cuda:0/1' is given twice, or whole and in part"),
    ],
)
def test_devices_must_differ(names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_devices(names)


def test_a_further_kind_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    class XpuDevice(CudaDevice):
        torch_type = "xpu"

    backend = StreamBackend("xpu", SimulatedGpus(0))

    def start(index: int, *, part: int | None = None, copies: str = "free") -> XpuDevice:
        return XpuDevice(index, backend, part, copies)

    monkeypatch.setitem(KINDS, "xpu", replace(KINDS["cuda"], torch_type="xpu", open=start, collectives="xccl"))
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(contextlib.closing(one)) for one in open_devices(["xpu:0/0", "xpu:0/1"]))
        assert (first.name, str(second.torch_device)) == ("xpu:0/0", "xpu:0")
        assert kind_of(first.torch_device).collectives == "xccl"
        assert not in_host_memory([first])
        assert memory_spaces({"a": first}, ["a"])["a"] == DeviceMemorySpace("xpu:0", has_streams=True)
    with pytest.raises(InputError, match="or xpu:0, xpu:1, …, or cuda:0/0, cuda:0/1, or xpu:0/0, xpu:0/1 for several"):
        DeviceName.parse("tpu:0")
