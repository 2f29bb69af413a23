"""Times for a whole graph: what is added, what is kept, what is left to the check of the problem."""

from dataclasses import fields, replace

import pytest

from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Topology
from dlplacer.machines.costs.roofline_times import with_roofline_times, with_times
from dlplacer.problem.problem import build_problem

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


def test_a_type_of_the_device_table_needs_no_rates() -> None:
    # 7e9 FLOP ÷ (0.7 · 15.7e12 FLOP/s) = 0.636943 ms; 7e6 B ÷ (0.7 · 900e9 B/s) = 0.0111 ms; launch 0.007 ms
    assert times(WORK, Device("gpu0", "V100")) == pytest.approx({"V100": 0.636943e-3}, rel=1e-6)


def test_a_short_op_takes_the_launch_overhead_of_the_type() -> None:
    assert times(Op("relu", "aten.relu", bytes_accessed=64), Device("gpu0", "V100")) == {"V100": 7e-6}


def test_one_time_for_all_devices_is_kept() -> None:
    given = graph(replace(WORK, time_s=3.0))
    assert with_times(given, Topology((FAST, SLOW))) is given


def test_times_per_type_are_kept_and_completed() -> None:
    assert times(replace(WORK, time_s={"tpu": 5.0, "fast": 3.0}), FAST, SLOW) == {"tpu": 5.0, "fast": 3.0, "slow": 1.0}


def test_a_time_of_zero_is_a_time() -> None:
    given = graph(replace(WORK, time_s=0.0), replace(WORK, id="other", time_s={"fast": 0.0}))
    assert with_times(given, Topology((FAST,))) is given


def test_an_op_without_work_takes_no_time() -> None:
    assert times(Op("weight", "parameter", weight_bytes=400), FAST, SLOW) == {"fast": 0.0, "slow": 0.0}


def test_a_type_without_rates_leaves_the_op_as_it_is() -> None:
    given = graph(WORK, Op("weight", "parameter"), replace(WORK, id="known", time_s={"fast": 3.0}))
    assert with_times(given, Topology((ODD,))) is given


def test_known_types_get_times_beside_unknown_ones() -> None:
    assert times(WORK, ODD, FAST) == pytest.approx({"fast": 0.01})


def test_a_rate_that_is_missing_leaves_the_ops_that_need_it() -> None:
    arithmetic_only = Device("a0", "a", flops_per_s=1e12)
    computes, moves = replace(WORK, id="computes", bytes_accessed=0), replace(WORK, id="moves", flops=0)
    timed = with_times(graph(WORK, computes, moves), Topology((arithmetic_only,)))
    assert timed.op("computes").time_s == pytest.approx({"a": 0.01})
    assert timed.op("work").time_s is None
    assert timed.op("moves").time_s is None


def test_what_has_no_time_is_reported_when_the_problem_is_built() -> None:
    topology = Topology((ODD,))
    with pytest.raises(InputError, match="op 'work' has no time for device 'odd0' of type 'odd'"):
        build_problem(with_times(graph(WORK), topology), topology, Options.paper())


@pytest.mark.parametrize("allowed", [("fast",), ("fast0",), ("fast0", "elsewhere")])
def test_types_where_the_op_may_not_run_get_no_time(allowed: tuple[str, ...]) -> None:
    assert times(replace(WORK, devices=allowed), FAST, SLOW) == pytest.approx({"fast": 0.01})


def test_one_allowed_device_is_enough_for_its_type() -> None:
    second = replace(FAST, id="fast1")
    assert times(replace(WORK, devices=("fast1",)), FAST, second, SLOW) == pytest.approx({"fast": 0.01})


def test_an_op_allowed_nowhere_stays_as_it_is() -> None:
    given = graph(replace(WORK, devices=("elsewhere",)))
    assert with_times(given, Topology((FAST, SLOW))) is given


def test_completing_twice_changes_nothing() -> None:
    topology = Topology((FAST, SLOW, ODD))
    once = with_times(graph(WORK, Op("weight", "parameter")), topology)
    assert with_times(once, topology) is once


def test_equal_rates_of_one_type_are_accepted() -> None:
    assert times(WORK, FAST, replace(FAST, id="fast1", memory_bytes=5)) == pytest.approx({"fast": 0.01})


def test_unequal_arithmetic_rates_of_one_type_are_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"devices 'fast0' and 'fast1' are both of type 'fast', but flops_per_s is 1e\+12 on one and "
        r"\{float32: 2e\+12\} on the other;.*make them equal, or give them different types",
    ):
        times(WORK, FAST, SLOW, replace(FAST, id="fast1", flops_per_s={"float32": 2e12}))


def test_unequal_memory_rates_of_one_type_are_refused() -> None:
    with pytest.raises(InputError, match=r"memory_bytes_per_s is 1e\+11 on one and not given on the other"):
        times(WORK, FAST, replace(FAST, id="fast1", memory_bytes_per_s=None))


def full_graph() -> OpGraph:
    """A graph in which no field has its default."""
    op = Op(
        "conv1",
        "aten.convolution",
        time_s={"tpu": 5.0},
        flops=7e9,
        bytes_accessed=7e6,
        dtype="float16",
        outputs=(TensorSpec((2, 3), "float16", 12),),
        weight_bytes=1,
        gradient_bytes=2,
        state_bytes=3,
        output_bytes=12,
        workspace_bytes=5,
        phase="forward",
        module="stem.conv",
        origin=("a", "b"),
        colocate="stem",
        devices=("fast", "V100"),
        attrs={"target": "aten.convolution.default"},
        meta={"note": "kept"},
    )
    return OpGraph(
        (op, replace(op, id="conv2", phase="backward")),
        (Edge("conv1", "conv2", 12, output=0, tensor="y", meta={"note": "kept"}),),
        name="net",
        source="measured",
        capture={"entry": "net:build", "mode": "train"},
        structure_sha256="ab12",
        known={"makespan_s": 1.0, "source": "by hand"},
        meta={"note": "kept"},
        constraints=Constraints(pins={"conv1": "tpu"}),
    )


@pytest.mark.parametrize(
    "timed",
    [with_times(full_graph(), Topology((FAST,))), with_roofline_times(full_graph(), "V100")],
    ids=["with_times", "with_roofline_times"],
)
def test_nothing_but_times_changes(timed: OpGraph) -> None:
    given = full_graph()
    assert all(getattr(given, item.name) for item in fields(OpGraph))
    assert all(getattr(given.ops[0], item.name) for item in fields(Op))
    assert replace(timed, ops=given.ops) == given
    assert tuple(replace(op, time_s={"tpu": 5.0}) for op in timed.ops) == given.ops
    assert all(isinstance(op.time_s, dict) and len(op.time_s) == 2 and op.time_on("tpu") == 5 for op in timed.ops)


def test_the_given_graph_is_not_changed() -> None:
    given = full_graph()
    with_times(given, Topology((FAST,)))
    assert given == full_graph()


def test_roofline_times_of_one_type_are_written_into_a_graph() -> None:
    given = graph(WORK, Op("weight", "parameter", time_s=0.0), replace(WORK, id="known", time_s={"V100": 3.0}))
    timed = with_roofline_times(given, "V100")
    # 7e9 FLOP ÷ (0.7 · 15.7e12 FLOP/s) = 0.636943 ms
    assert timed.op("work").time_s == pytest.approx({"V100": 0.636943e-3}, rel=1e-6)
    assert timed.op("weight").time_s == 0.0
    assert timed.op("known").time_s == {"V100": 3.0}
    assert with_roofline_times(timed, "V100") is timed


def test_roofline_times_agree_with_those_of_a_topology() -> None:
    assert with_roofline_times(graph(WORK), "A100") == with_times(graph(WORK), Topology((Device("gpu0", "A100"),)))


def test_roofline_times_of_an_unknown_type_are_refused() -> None:
    with pytest.raises(InputError, match=r"device type 'V10O' is not in the device table; did you mean V100"):
        with_roofline_times(graph(WORK), "V10O")
    assert with_roofline_times(graph(WORK), "Tesla V100-SXM2-16GB") == with_roofline_times(graph(WORK), "V100")
