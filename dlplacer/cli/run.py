"""``dlplacer run``."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dlplacer.cli.arguments.model_argument import add_job_options, build_job
from dlplacer.cli.arguments.module_callable import is_entry
from dlplacer.cli.arguments.onnx_argument import is_onnx_plan, run_onnx_plan
from dlplacer.cli.output.output_files import output_file
from dlplacer.cli.output.picture_options import picture_file
from dlplacer.cli.output.run_files import write_run
from dlplacer.cli.run_ranks import add_rank_options, execute_over_ranks, over_ranks
from dlplacer.core.errors import InputError

if TYPE_CHECKING:
    from dlplacer.core.plan import Plan

HELP = "Run a plan on devices of this machine, and compare prediction and measurement."
_OWN_MODELS = "dlplacer.models:"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="plan file")
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="module:callable; may be left out for dlplacer's own models"
    )
    parser.add_argument(
        "--devices", required=True, metavar="D[,D…]", help="cpu:0,cpu:1 or cuda:0,cuda:1: in the plan's order"
    )
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="steps that are timed (10)")
    parser.add_argument("--warmup", type=int, default=3, metavar="N", help="least number of steps before them (3)")
    parser.add_argument(
        "--gantt",
        metavar="F",
        type=picture_file,
        help="the measured step beneath the predicted one, as .png, .svg or .pdf",
    )
    parser.add_argument(
        "--trace", metavar="F", type=output_file, help="Chrome trace (JSON) of the predicted and the measured step"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_rank_options(parser)
    add_job_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Run, measure and print."""
    from dlplacer.files.load import load_plan

    if arguments.steps < 1 or arguments.warmup < 0:
        raise InputError(f"--steps is {arguments.steps} and --warmup {arguments.warmup}; at least 1 and 0 are needed")
    plan = load_plan(arguments.plan)
    if is_onnx_plan(plan):
        return run_onnx_plan(arguments, plan)
    _complete(arguments, plan)
    if os.environ.get("RANK", "0") == "0":
        _warn_if_busy()
    if over_ranks(arguments, plan):
        return execute_over_ranks(arguments, plan)

    from dlplacer.measure.fidelity.run_plan import run

    done = run(build_job(arguments), plan, arguments.devices.split(","), arguments.steps, arguments.warmup)
    if arguments.json:
        print(json.dumps(done.report.to_dict()))
    else:
        from dlplacer.cli.output.run_tables import print_run

        print_run(done.report)
    write_run(arguments, done.predicted, done.measured)
    return 0


def _warn_if_busy() -> None:
    """Timings on a machine that does something else say little; better said before than wondered at after."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > cores / 2:
        print(
            f"dlplacer: this machine is busy (load {load:.1f} on {cores} cores); its timings will say little",
            file=sys.stderr,
        )


def _complete(arguments: argparse.Namespace, plan: "Plan") -> None:
    """Take from the plan what the user left out: dlplacer's own model, its batch size, mode, optimizer and autocast."""
    described = plan.graph.capture or {}
    if arguments.model is None:
        entry = described.get("entry")
        if not isinstance(entry, str) or not entry.startswith(_OWN_MODELS):
            raise InputError(
                f"name the model: dlplacer run {arguments.plan} module:callable (the plan was captured from "
                f"{entry or 'a model in memory'}; code is only imported by the name that you type)"
            )
        arguments.model = entry
    if not is_entry(arguments.model):
        raise InputError(f"{arguments.model!r} is not module:callable; only a model that can run can be run")
    for name in ("mode", "optimizer", "autocast"):
        if getattr(arguments, name) is None:
            setattr(arguments, name, described.get(name))
    shapes = [entry["shape"] for entry in described.get("args", ()) if entry.get("shape")]
    if arguments.batch_size is None and arguments.model.startswith(_OWN_MODELS) and shapes:
        arguments.batch_size = int(shapes[0][0])
