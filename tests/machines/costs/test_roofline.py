"""The roofline: hand-computed times, which rate counts, and what it can never do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.core.op import Op
from dlplacer.core.topology import Device
from dlplacer.machines.costs.device_table import DEVICE_TABLE
from dlplacer.machines.costs.roofline import Rates, rates_of, roofline_s

V100 = rates_of(Device("V100", "V100"))
ROUND = Rates({"float32": 1e12, "float16": 4e12}, 1e11, 1e-6)
WORK = st.floats(min_value=0, max_value=1e16)
RATE = st.floats(min_value=1e6, max_value=1e16)


def op(flops: float = 0, bytes_accessed: float = 0, dtype: str | None = "float32") -> Op:
    return Op("conv1", "aten.convolution", flops=flops, bytes_accessed=bytes_accessed, dtype=dtype)


def test_launch_is_a_floor_and_no_addend() -> None:
    # 700 FLOP take 1 ns and 700 B 10 ns, both below the launch of 1 us
    assert roofline_s(op(700, 700), ROUND) == 1e-6
    # 1.4e6 FLOP ÷ (0.7 · 1e12 FLOP/s) = 2 us, above the launch, which is not added
    assert roofline_s(op(1.4e6), ROUND) == pytest.approx(2e-6)


def test_a_convolution_of_inception_v3_on_a_v100() -> None:
    # Conv2d_2b_3x3 at batch 32: 2 · 32 images · 64 channels · 147² positions · 32 channels · 9 taps
    # = 25,491,013,632 FLOP ÷ (0.7 · 15.7e12 FLOP/s) = 2.319473 ms. It reads 32 and writes 64 channels and reads the
    # weight: 4 B · (32 · 147² · 96 + 64 · 32 · 9) = 265,605,120 B ÷ (0.7 · 900e9 B/s) = 0.421595 ms.
    assert V100 is not None
    assert roofline_s(op(25_491_013_632, 265_605_120), V100) == pytest.approx(2.319473e-3, rel=1e-6)
    assert roofline_s(op(0, 265_605_120), V100) == pytest.approx(0.421595e-3, rel=1e-5)


def test_an_unknown_type_takes_the_overhead_of_its_kind() -> None:
    gpu = Device("a", "abacus", flops_per_s=2e9, memory_bytes_per_s=1e8)
    core = Device("x", "xeon", flops_per_s=2e9, memory_bytes_per_s=1e8, asynchronous=False)
    assert rates_of(gpu) == Rates({"float32": 2e9}, 1e8, 7e-6)
    assert rates_of(core) == Rates({"float32": 2e9}, 1e8, 5e-6)


def test_rates_per_dtype_of_the_topology_replace_those_they_name() -> None:
    rates = rates_of(Device("gpu0", "V100", flops_per_s={"float16": 1e14, "bfloat16": 2e13}))
    assert rates is not None
    assert rates.flops_per_s == {"float64": 7.8e12, "float32": 15.7e12, "float16": 1e14, "bfloat16": 2e13}


@given(WORK, WORK, WORK, WORK, st.sampled_from(sorted(DEVICE_TABLE)), st.sampled_from(["float16", "float32", "int8"]))
def test_more_work_is_never_faster(
    flops: float, more_flops: float, moved: float, more_moved: float, device_type: str, dtype: str
) -> None:
    rates = rates_of(Device(device_type, device_type))
    assert rates is not None
    less_s = roofline_s(op(flops, moved, dtype), rates)
    assert 0 <= less_s <= roofline_s(op(flops + more_flops, moved + more_moved, dtype), rates)


@given(WORK, WORK, RATE, RATE, st.floats(1, 100), st.floats(1, 100), st.floats(0, 1e-3), st.floats(0, 1))
def test_faster_devices_are_never_slower(
    flops: float,
    moved: float,
    peak: float,
    memory: float,
    faster_peak: float,
    faster_memory: float,
    overhead_s: float,
    less_overhead: float,
) -> None:
    slow = Rates({"float32": peak}, memory, overhead_s)
    fast = Rates({"float32": peak * faster_peak}, memory * faster_memory, overhead_s * less_overhead)
    assert roofline_s(op(flops, moved), fast) <= roofline_s(op(flops, moved), slow)


@given(WORK, WORK)
def test_the_published_model_gives_the_same(flops: float, moved: float) -> None:
    # meta-pytorch/autoparallel: max(flops/(0.70*peak), bytes/(0.70*bw), 7 us launch), in microseconds
    published_us = max(flops / 15.7e12 * 1e6 / 0.70, moved / 900e9 * 1e6 / 0.70, 7)
    assert V100 is not None
    assert roofline_s(op(flops, moved), V100) == pytest.approx(published_us / 1e6 if flops or moved else 0)
