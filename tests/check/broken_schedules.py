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
    "op missing": Broken(placement.every_op_once, replace(CROSSING, ops=CROSSING.ops[:1]), "eq. 7 placement"),
    "op twice": Broken(
        placement.every_op_once, replace(CROSSING, ops=(*CROSSING.ops, CROSSING.ops[0])), "eq. 7 placement"
    ),
    "unknown op": Broken(
        placement.every_op_once,
        replace(CROSSING, ops=(*CROSSING.ops, ScheduledOp("ghost", "a", 2, 3))),
        "eq. 7 placement",
    ),
    "unknown device": Broken(placement.every_op_once, changed(CROSSING, "y", device="z"), "eq. 7 placement"),
    "a router runs an op": Broken(placement.every_op_once, changed(ROUTED, "y", device="r"), "eq. 7 placement"),
    "device not allowed": Broken(
        placement.allowed_devices, with_op(CROSSING, "y", devices=("a", "cpu")), "eq. 7 allowed devices"
    ),
    "no device allowed": Broken(placement.allowed_devices, with_op(CROSSING, "y", devices=()), "eq. 7 allowed devices"),
    "group torn apart": Broken(placement.colocation, with_ops(CROSSING, colocate="g"), "eq. 7 colocation"),
    "pinned elsewhere": Broken(
        placement.pinned, constrained(CROSSING, Constraints(pins={"x": "gpu", "y": "a"})), "eq. 7 pins"
    ),
    "constraint torn apart": Broken(
        placement.kept_together, constrained(CROSSING, Constraints(colocate=(("x", "y"),))), "eq. 7 colocation"
    ),
}

TIMED = {
    "started before its issue": Broken(
        issues.issued_ahead, changed(plans.issued_ahead(), "y", start_s=1.75, end_s=4.75), "dispatch"
    ),
    "nothing issued at the barrier": Broken(issues.issued_ahead, issued_in(TRAINED, dispatch_s=1e-6), "dispatch"),
    "started within another core's call": Broken(
        issues.issued_inside,
        changed(changed(plans.sharing_an_interpreter(), "y", start_s=2.5, end_s=7.5), "z", start_s=7.5, end_s=8.5),
        "dispatch",
    ),
    "interpreter not shared": Broken(
        issues.issued_inside, issued_in(APART, dispatch_s=99.0, process="host", asynchronous=False), "dispatch"
    ),
    "op too long": Broken(timing.durations, changed(CROSSING, "y", end_s=9.0), "duration"),
    "op a little too short": Broken(timing.durations, changed(CROSSING, "y", end_s=7.999999), "duration"),
    "no time known": Broken(timing.durations, with_op(SINGLE, "y", time_s={"cpu": 3.0}), "duration"),
    "before the step": Broken(timing.durations, changed(SINGLE, "x", start_s=-1.0, end_s=1.0), "duration"),
    "ops overlap": Broken(timing.one_op_at_a_time, alone(("x", 0, 2), ("y", 1.5, 3)), "eq. 12 overlap"),
    "op inside one that is not its neighbour": Broken(
        timing.one_op_at_a_time, alone(("x", 0, 4), ("y", 1, 2), ("z", 2, 3)), "eq. 12 overlap"
    ),
    "zero time inside another": Broken(timing.one_op_at_a_time, alone(("x", 0, 4), ("y", 2, 2)), "eq. 12 overlap"),
    "zero time at the start, but listed after": Broken(
        timing.one_op_at_a_time, alone(("x", 1, 4), ("y", 1, 1)), "eq. 12 overlap"
    ),
    "not in execution order": Broken(timing.one_op_at_a_time, alone(("y", 4, 5), ("x", 0, 4)), "eq. 12 overlap"),
    "backward before the loss": Broken(
        timing.barrier_at_the_loss, changed(TRAINED, "g", start_s=2.0, end_s=3.0), "barrier at the loss"
    ),
    "update before the loss": Broken(
        timing.barrier_at_the_loss,
        changed(with_op(TRAINED, "g", phase="optimizer"), "g", start_s=2.5, end_s=3.5),
        "barrier at the loss",
    ),
    "consumer before the tensor": Broken(
        timing.precedence, changed(CROSSING, "y", start_s=4.0, end_s=7.0), "eq. 10 precedence"
    ),
    "consumer before its own transfer": Broken(
        timing.precedence, changed(SERIAL, "z", start_s=4.0, end_s=5.0), "eq. 10 precedence"
    ),
    "transfer before the producer ends": Broken(
        timing.precedence, changed(CROSSING, transfer=0, start_s=1.0, end_s=4.0), "eq. 10 precedence"
    ),
    "consumer before the producer": Broken(
        timing.precedence,
        replace(SINGLE, ops=(ScheduledOp("y", "a", 0, 3), ScheduledOp("x", "a", 3, 5))),
        "eq. 10 precedence",
        also=("eq. 10, 12 order",),
    ),
    "listed before what it reads": Broken(
        timing.order, replace(plans.all_zero(), ops=plans.all_zero().ops[::-1]), "eq. 10, 12 order"
    ),
    "listed before the barrier": Broken(
        timing.order,
        with_op(
            replace(alone(("x", 0, 0), ("y", 0, 0)), options=plans.options(step="autograd")), "x", phase="backward"
        ),
        "eq. 10, 12 order",
    ),
    "devices wait for each other": Broken(timing.order, circle(), "eq. 10, 12 order"),
}
