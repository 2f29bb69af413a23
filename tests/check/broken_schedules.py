"""Plans with a broken placement or broken times, by name."""

from dataclasses import replace

from check import plans
from check.broken import CROSSING, ROUTED, SERIAL, SINGLE, TRAINED, Broken, alone, circle
from check.plans import changed, constrained, issued_in, with_op, with_ops

from dlplacer.check import issues, placement, timing
from dlplacer.core.constraints import Constraints
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.plan import ScheduledOp
from dlplacer.core.topology import Link

APART = plans.plan(
    OpGraph((Op("x", "test", 2), Op("y", "test", 3))),
    plans.machine(Link("a", "b", 1)),
    plans.PAPER,
    [("x", "a", 0, 2), ("y", "b", 5, 8)],
)
"""Two ops that have nothing to do with each other."""

PLACED = {
    "op missing": Broken(
        placement.every_op_once,
        replace(CROSSING, ops=CROSSING.ops[:1]),
        "eq. 7 placement",
        "op 'y' is scheduled 0 times; it must be once",
    ),
    "op twice": Broken(
        placement.every_op_once,
        replace(CROSSING, ops=(*CROSSING.ops, CROSSING.ops[0])),
        "eq. 7 placement",
        "op 'x' is scheduled 2 times; it must be once",
    ),
    "unknown op": Broken(
        placement.every_op_once,
        replace(CROSSING, ops=(*CROSSING.ops, ScheduledOp("ghost", "a", 2, 3))),
        "eq. 7 placement",
        "op 'ghost' is scheduled, but the graph has no such op",
    ),
    "unknown device": Broken(
        placement.every_op_once,
        changed(CROSSING, "y", device="z"),
        "eq. 7 placement",
        "op 'y' is on 'z', which is no device of the topology",
    ),
    "a router runs an op": Broken(
        placement.every_op_once,
        changed(ROUTED, "y", device="r"),
        "eq. 7 placement",
        "op 'y' is on 'r', which is no device of the topology",
    ),
    "device not allowed": Broken(
        placement.allowed_devices,
        with_op(CROSSING, "y", devices=("a", "cpu")),
        "eq. 7 allowed devices",
        "op 'y' is on 'b' of type 'gpu'; it may run on a, cpu",
    ),
    "no device allowed": Broken(
        placement.allowed_devices,
        with_op(CROSSING, "y", devices=()),
        "eq. 7 allowed devices",
        "op 'y' is on 'b' of type 'gpu'; it may run on nothing",
    ),
    "group torn apart": Broken(
        placement.colocation,
        with_ops(CROSSING, colocate="g"),
        "eq. 7 colocation",
        "group 'g' is torn apart: op 'x' on 'a', op 'y' on 'b'",
    ),
    "pinned elsewhere": Broken(
        placement.pinned,
        constrained(CROSSING, Constraints(pins={"x": "gpu", "y": "a"})),
        "eq. 7 pins",
        "op 'y' is on 'b'; it is pinned to 'a'",
    ),
    "constraint torn apart": Broken(
        placement.kept_together,
        constrained(CROSSING, Constraints(colocate=(("x", "y"),))),
        "eq. 7 colocation",
        "ops 'x' on 'a' and 'y' on 'b' must share a device",
    ),
}

TIMED = {
    "started before its issue": Broken(
        issues.issued_ahead,
        changed(plans.issued_ahead(), "y", start_s=1.75, end_s=4.75),
        "dispatch",
        "op 'y' starts on 'b' at 1.75 s; its process has issued it at 2 s",
    ),
    "nothing issued at the barrier": Broken(
        issues.issued_ahead,
        issued_in(TRAINED, dispatch_s=1e-6),
        "dispatch",
        "op 'g' starts on 'a' at 3 s; its process has issued it at 3.000001 s",
    ),
    "started within another core's call": Broken(
        issues.issued_inside,
        changed(changed(plans.sharing_an_interpreter(), "y", start_s=2.5, end_s=7.5), "z", start_s=7.5, end_s=8.5),
        "dispatch",
        "op 'y' starts on 'b' at 2.5 s, 'x' on 'a' at 0 s; their process needs 3 s between them",
    ),
    "interpreter not shared": Broken(
        issues.issued_inside,
        issued_in(APART, dispatch_s=99.0, process="host", asynchronous=False),
        "dispatch",
        "their process needs 99 s between them",
    ),
    "op too long": Broken(
        timing.durations,
        changed(CROSSING, "y", end_s=9.0),
        "duration",
        "op 'y' lasts 4 s in the plan; on 'b' it takes 3 s",
    ),
    "op a little too short": Broken(
        timing.durations,
        changed(CROSSING, "y", end_s=7.999999),
        "duration",
        "op 'y' lasts 2.999999 s in the plan; on 'b' it takes 3 s",
    ),
    "no time known": Broken(
        timing.durations,
        with_op(SINGLE, "y", time_s={"cpu": 3.0}),
        "duration",
        "op 'y' has no time on device type 'gpu'",
    ),
    "before the step": Broken(
        timing.durations,
        changed(SINGLE, "x", start_s=-1.0, end_s=1.0),
        "duration",
        "op 'x' starts at -1 s, before the step",
    ),
    "ops overlap": Broken(
        timing.one_op_at_a_time,
        alone(("x", 0, 2), ("y", 1.5, 3)),
        "eq. 12 overlap",
        "device 'a': op 'y' starts at 1.5 s, but 'x', listed before it, runs from 0 to 2 s",
    ),
    "op inside one that is not its neighbour": Broken(
        timing.one_op_at_a_time,
        alone(("x", 0, 4), ("y", 1, 2), ("z", 2, 3)),
        "eq. 12 overlap",
        "op 'z' starts at 2 s, but 'x', listed before it, runs from 0 to 4 s",
    ),
    "zero time inside another": Broken(
        timing.one_op_at_a_time,
        alone(("x", 0, 4), ("y", 2, 2)),
        "eq. 12 overlap",
        "op 'y' starts at 2 s, but 'x', listed before it, runs from 0 to 4 s",
    ),
    "zero time at the start, but listed after": Broken(
        timing.one_op_at_a_time,
        alone(("x", 1, 4), ("y", 1, 1)),
        "eq. 12 overlap",
        "op 'y' starts at 1 s, but 'x', listed before it, runs from 1 to 4 s",
    ),
    "not in execution order": Broken(
        timing.one_op_at_a_time,
        alone(("y", 4, 5), ("x", 0, 4)),
        "eq. 12 overlap",
        "op 'x' starts at 0 s, but 'y', listed before it, runs from 4 to 5 s",
    ),
    "backward before the loss": Broken(
        timing.barrier_at_the_loss,
        changed(TRAINED, "g", start_s=2.0, end_s=3.0),
        "barrier at the loss",
        "backward op 'g' starts at 2 s, before forward op 'h' ends at 3 s",
    ),
    "update before the loss": Broken(
        timing.barrier_at_the_loss,
        changed(with_op(TRAINED, "g", phase="optimizer"), "g", start_s=2.5, end_s=3.5),
        "barrier at the loss",
        "optimizer op 'g' starts at 2.5 s, before forward op 'h' ends at 3 s",
    ),
    "consumer before the tensor": Broken(
        timing.precedence,
        changed(CROSSING, "y", start_s=4.0, end_s=7.0),
        "eq. 10 precedence",
        "op 'y' on 'b' starts at 4 s, before tensor 't' of 'x' is there at 5 s",
    ),
    "consumer before its own transfer": Broken(
        timing.precedence,
        changed(SERIAL, "z", start_s=4.0, end_s=5.0),
        "eq. 10 precedence",
        "op 'z' on 'b' starts at 4 s, before tensor 't' of 'x' is there at 5 s",
    ),
    "transfer before the producer ends": Broken(
        timing.precedence,
        changed(CROSSING, transfer=0, start_s=1.0, end_s=4.0),
        "eq. 10 precedence",
        "the transfer of 't' to 'b' starts at 1 s, before 'x' ends at 2 s",
    ),
    "consumer before the producer": Broken(
        timing.precedence,
        replace(SINGLE, ops=(ScheduledOp("y", "a", 0, 3), ScheduledOp("x", "a", 3, 5))),
        "eq. 10 precedence",
        "op 'y' on 'a' starts at 0 s, before tensor 't' of 'x' is there at 5 s",
        also=("eq. 10, 12 order",),
    ),
    "listed before what it reads": Broken(
        timing.order,
        replace(plans.all_zero(), ops=plans.all_zero().ops[::-1]),
        "eq. 10, 12 order",
        "ops wait for each other in a circle: 'y' on 'a' → 'x' on 'a' → 'y' on 'a'",
    ),
    "listed before the barrier": Broken(
        timing.order,
        with_op(
            replace(alone(("x", 0, 0), ("y", 0, 0)), options=plans.options(step="autograd")), "x", phase="backward"
        ),
        "eq. 10, 12 order",
        "ops wait for each other in a circle: 'y' on 'a' → the barrier at the loss → 'x' on 'a' → 'y' on 'a'",
    ),
    "devices wait for each other": Broken(
        timing.order,
        circle(),
        "eq. 10, 12 order",
        "'q' on 'a' → 'r' on 'b' → 's' on 'b' → 'p' on 'a'",
    ),
}
