"""``dlplacer explain``."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlplacer.cli.arguments.constraint_options import add_colocate_option, add_pin_option
from dlplacer.cli.arguments.problem_options import quantity_of, seconds_option
from dlplacer.cli.output.explanation_tables import (
    print_elsewhere,
    print_explanation,
    print_pinned,
    print_what_would_help,
)
from dlplacer.cli.output.progress import interruptible, progress
from dlplacer.core.errors import InputError

if TYPE_CHECKING:
    from threading import Event

    from dlplacer.core.plan import Plan
    from dlplacer.planning.what_if.elsewhere import Elsewhere, PinnedPlan

HELP = "Say why a plan takes as long as it does, and what would help: changes ranked by gain and bound."
DESCRIPTION = (
    f"{HELP} Gain: (step of the plan - step found with the change) / step of the plan; a step counts as found when a "
    "plan with it has passed every check, or, for a pipeline or data parallelism, when their models predict it. At "
    "most: the same with a lower bound in place of the step, so no plan with the change gains more; what better search "
    "could gain without any change is part of it. Changes are: the busiest links twice as fast, and all of them; one "
    "more device of each type; 25 % more memory; each of the ten longest ops twice as fast, or in two halves without "
    "the cost of cutting; other granularities; a pipeline; data parallelism."
)
EXAMPLES = (
    ("explain plan.json", "critical path, bounds, idle devices; then a minute of solving with one thing changed"),
    ("explain plan.json --budget 0", "the figures alone, at once"),
    ("explain plan.json --why fc --budget 20s", "what the step would take with an op elsewhere"),
    ("explain plan.json --pin 'encoder.*=gpu0'", "what moves, and what it costs, when a module is pinned"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="plan file")
    parser.add_argument(
        "--dispatch",
        metavar="TIME",
        default="0 s",
        help="time in which one process issues an op for any of the devices, as 8us (0: as the topology says)",
    )
    parser.add_argument(
        "--budget",
        metavar="TIME",
        type=seconds_option,
        default=60.0,
        help="time for solving again with one thing changed, shared by all changes (60 s; 0: none)",
    )
    parser.add_argument(
        "--why",
        action="append",
        default=[],
        metavar="OP|MODULE",
        help="say what the step would take with this op, or the longest of this module, on other devices, in place of "
        "what would help; repeat for several",
    )
    add_pin_option(parser)
    add_colocate_option(parser)
    parser.add_argument("--workers", type=int, metavar="N", help="solver threads (the cores)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Explain and print."""
    from dlplacer.cli.arguments.constraint_options import plan_of_option
    from dlplacer.files.load import load_plan
    from dlplacer.problem.simulate import replay_under_issue
    from dlplacer.report.explanation import explain
    from dlplacer.report.whole_plan import require_whole

    dispatch_s = quantity_of("--dispatch", arguments.dispatch, "seconds")
    if arguments.budget < 0:
        raise InputError(f"--budget is {arguments.budget:g} s; it must be at least 0, where 0 solves nothing")
    if arguments.workers is not None and arguments.workers < 1:
        raise InputError(f"--workers is {arguments.workers}; it must be at least 1")
    asked = bool(arguments.why or arguments.pin or arguments.colocate)
    # Solving again begins with the plan, so it must keep the rules; the figures alone say what any plan does.
    solves = asked or arguments.budget > 0
    plan = plan_of_option("PLAN", arguments.plan) if solves else load_plan(arguments.plan)
    assert plan is not None
    require_whole(plan, str(arguments.plan))
    whys = _ops(plan, arguments.why)
    if dispatch_s:
        # What would help is asked under it too.
        plan = replay_under_issue(plan, dispatch_s)
    explanation = explain(plan)
    if not arguments.json:
        print_explanation(plan, explanation)
    found: dict[str, Any] = {}
    with interruptible("stopping with the answers so far; once more to give up") as stop:
        if arguments.pin or arguments.colocate:
            found["pinned"] = _pinned(arguments, plan, stop, 1 + len(whys))
        if whys:
            found["elsewhere"] = _elsewhere(arguments, plan, whys, stop)
        if not asked and solves:
            found["what_would_help"] = _what_would_help(arguments, plan, stop)
    if arguments.json:
        print(json.dumps({**explanation.to_dict(), **found}))
    return 0


def _ops(plan: "Plan", patterns: list[str]) -> list[str]:
    """The op of each pattern that takes longest."""
    from dlplacer.planning.constrain import matching

    times = {entry.op: entry.end_s - entry.start_s for entry in plan.ops}
    return [max(matching(plan.graph, pattern), key=times.__getitem__) for pattern in patterns]


def _what_would_help(arguments: argparse.Namespace, plan: "Plan", stop: "Event") -> dict[str, Any]:
    from dlplacer.planning.what_if.what_would_help import what_would_help

    with progress("what would help", limit_s=arguments.budget) as show:
        found = what_would_help(
            plan,
            arguments.budget,
            workers=arguments.workers,
            on_progress=lambda what, done, total: show(what),
            stop=stop,
        )
    if not arguments.json:
        print_what_would_help(found)
    return found.to_dict()


def _pinned(arguments: argparse.Namespace, plan: "Plan", stop: "Event", parts: int) -> dict[str, Any]:
    from dlplacer.planning.constrain import parsed_pin
    from dlplacer.planning.what_if.elsewhere import pinned_plan

    pins = [parsed_pin(text, plan.topology) for text in arguments.pin or ()]
    seconds = max(arguments.budget / parts, 0.1)
    with progress("solving with the pins", limit_s=seconds):
        found: PinnedPlan = pinned_plan(
            plan, pins, arguments.colocate or (), seconds, workers=arguments.workers, stop=stop
        )
    if not arguments.json:
        print_pinned(plan, found)
    return found.to_dict()


def _elsewhere(arguments: argparse.Namespace, plan: "Plan", ops: list[str], stop: "Event") -> list[dict[str, Any]]:
    from dlplacer.planning.what_if.elsewhere import elsewhere

    parts = len(ops) + bool(arguments.pin or arguments.colocate)
    answers: dict[str, list[Elsewhere]] = {}
    with progress("moving ops", limit_s=arguments.budget * len(ops) / parts) as show:
        for op in ops:
            show(op)
            answers[op] = list(elsewhere(plan, op, arguments.budget / parts, workers=arguments.workers, stop=stop))
    if not arguments.json and any(answers.values()):
        print_elsewhere(plan, answers)
    elif not arguments.json:
        print("the machine has one device, so no op can be elsewhere")
    return [one.to_dict() for found in answers.values() for one in found]
