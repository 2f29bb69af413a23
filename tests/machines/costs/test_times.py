"""Times for a whole graph: what is added, what is kept, what is left to the check of the problem."""

from dataclasses import replace

import pytest

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.topology import Device, Topology
from dlplacer.machines.costs.roofline_times import with_roofline_times, with_times

FAST = Device("fast0", "fast", flops_per_s=1e12, memory_bytes_per_s=1e11)
SLOW = Device("slow0", "slow", flops_per_s=1e10, memory_bytes_per_s=1e11)
ODD = Device("odd0", "odd")
WORK = Op("work", "aten.mm", flops=7e9, bytes_accessed=7e6, dtype="float32")
"""7e9 FLOP ÷ (0.7 · 1e12) = 10 ms on fast, ÷ (0.7 · 1e10) = 1 s on slow; 7e6 B ÷ (0.7 · 1e11) = 0.1 ms on both."""


def graph(*ops: Op) -> OpGraph:
    return OpGraph(ops)


def times(op: Op, *devices: Device) -> object:
    return with_times(graph(op), Topology(devices)).ops[0].time_s


def test_every_device_type_gets_a_time() -> None:
    assert times(WORK, FAST, SLOW) == pytest.approx({"fast": 0.01, "slow": 1.0})


def test_times_per_type_are_kept_and_completed() -> None:
    assert times(replace(WORK, time_s={"tpu": 5.0, "fast": 3.0}), FAST, SLOW) == {"tpu": 5.0, "fast": 3.0, "slow": 1.0}


def test_a_type_without_rates_leaves_the_op_as_it_is() -> None:
    given = graph(WORK, Op("weight", "parameter"), replace(WORK, id="known", time_s={"fast": 3.0}))
    assert with_times(given, Topology((ODD,))) is given


@pytest.mark.parametrize("allowed", [("fast",), ("fast0",), ("fast0", "elsewhere")])
def test_types_where_the_op_may_not_run_get_no_time(allowed: tuple[str, ...]) -> None:
    assert times(replace(WORK, devices=allowed), FAST, SLOW) == pytest.approx({"fast": 0.01})


def test_unequal_arithmetic_rates_of_one_type_are_refused() -> None:
    with pytest.raises(
        InputError,
        match="devices 'fast0' and 'fast1' are both of type 'fast', but flops_per_s is",
    ):
        times(WORK, FAST, SLOW, replace(FAST, id="fast1", flops_per_s={"float32": 2e12}))


def test_roofline_times_of_an_unknown_type_are_refused() -> None:
    with pytest.raises(InputError, match=r"device type 'V10O' is not in the device table; did you mean V100"):
        with_roofline_times(graph(WORK), "V10O")
    assert with_roofline_times(graph(WORK), "Tesla V100-SXM2-16GB") == with_roofline_times(graph(WORK), "V100")
