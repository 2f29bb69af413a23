"""``dlplacer run``: in one process, or over several with ``--replicas N``, devices as ``rank0/cpu:0``, or torchrun."""

import argparse
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dlplacer.cli.arguments.model_argument import add_job_options, build_job
from dlplacer.cli.arguments.module_callable import is_entry
from dlplacer.cli.arguments.onnx_argument import is_onnx_plan, run_onnx_plan
from dlplacer.cli.arguments.problem_options import bytes_option, seconds_option
from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.cli.output.picture_options import picture_file
from dlplacer.cli.output.progress import progress
from dlplacer.cli.output.run_tables import print_run
from dlplacer.cli.output.verbosity import note
from dlplacer.core.errors import InputError

if TYPE_CHECKING:
    from dlplacer.core.plan import Plan
    from dlplacer.measure.run_report import Run

HELP = "Run a plan on devices of this machine, and compare prediction and measurement."
EXAMPLES = (
    ("run plan.json --devices cpu:0,cpu:1 --gantt run.png", "a plan of one of dlplacer's own models, on two cores"),
    ("run plan.json my_model:build --devices cuda:0,cuda:1", "of a model of yours, on two GPUs, a process for each"),
    ("run plan.json --devices rank0/cpu:0,rank1/cpu:1 --timeout 5min", "in two processes"),
)
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
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="number of steps that are timed (until their medians are sure, for a minute at most)",
    )
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
    parser.add_argument(
        "--html", metavar="F", type=output_file, help="one page: the predicted and the measured step to walk through"
    )
    parser.add_argument(
        "--compile-baseline",
        action=argparse.BooleanOptionalAction,
        help="time torch.compile on one device too (done where --segments compiles or captures)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    group = parser.add_argument_group(
        "several processes (devices as rank0/cpu:0,rank1/cpu:1; they are started here, or by torchrun)"
    )
    group.add_argument("--replicas", type=int, metavar="N", help="train N copies of the plan on N parts of the batch")
    group.add_argument(
        "--bucket-bytes",
        type=bytes_option,
        metavar="SIZE",
        help="gradients are exchanged in buckets of this size (25 MiB)",
    )
    group.add_argument(
        "--timeout", type=seconds_option, default=120.0, metavar="TIME", help="wait so long for another rank (120 s)"
    )
    group.add_argument(
        "--one-process",
        action="store_true",
        help="feed several GPUs from one process, and not each from one of its own",
    )
    parser.add_argument(
        "--segments",
        choices=("eager", "inductor", "cuda_graph"),
        default="eager",
        help="call runs of ops with PyTorch's kernels (the default), compiled by TorchInductor, or as CUDA graphs",
    )
    parser.add_argument(
        "--provider",
        metavar="NAME",
        help="of an ONNX file: onnxruntime's execution provider for devices other than cpu:N, as CUDA or TensorRT",
    )
    add_job_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Run, measure and print."""
    from dlplacer.files.load import load_plan
    from dlplacer.planning.one_device import one_device_note

    if (arguments.steps is not None and arguments.steps < 1) or arguments.warmup < 0:
        raise InputError(f"--steps is {arguments.steps} and --warmup {arguments.warmup}; at least 1 and 0 are needed")
    plan = load_plan(arguments.plan)
    if is_onnx_plan(plan):
        return run_onnx_plan(arguments, plan)
    _complete(arguments, plan)
    _give_each_gpu_a_process(arguments)
    over_ranks = _over_ranks(arguments, plan)
    if over_ranks and "RANK" not in os.environ:
        from dlplacer.runtime.distributed.launch import run_as_ranks
        from dlplacer.runtime.distributed.ranks import parse_ranks

        count = parse_ranks(plan, arguments.devices, _replicas(arguments, plan)).count
        return run_as_ranks(count, [*arguments.words, "--devices", arguments.devices])
    if os.environ.get("RANK", "0") == "0":
        _warn_if_busy()
        alone = one_device_note(plan)
        if alone is not None:
            note(alone)
    done = _measured_over_ranks(arguments, plan) if over_ranks else _measured(arguments, plan)
    if done is None:
        return 0
    if arguments.json:
        print(json.dumps(done.report.to_dict()))
    else:
        print_run(done.report)
    _write(arguments, done)
    return 0


def _measured(arguments: argparse.Namespace, plan: "Plan") -> "Run":
    from dlplacer.measure.run_plan import run

    with progress("running") as show:
        show("capturing and compiling")
        job, devices = build_job(arguments), arguments.devices.split(",")
        return run(
            job,
            plan,
            devices,
            arguments.steps,
            arguments.warmup,
            on_progress=show,
            segments=arguments.segments,
            compiled=arguments.compile_baseline,
        )


def _measured_over_ranks(arguments: argparse.Namespace, plan: "Plan") -> "Run | None":
    """On one of the ranks that torchrun has started; None on others than the first."""
    from dlplacer.measure.run_plan import OverRanks, run_over_ranks
    from dlplacer.runtime.distributed.replicate import DEFAULT_BUCKET_BYTES

    replicas = _replicas(arguments, plan)
    bucket_bytes = DEFAULT_BUCKET_BYTES if arguments.bucket_bytes is None else arguments.bucket_bytes
    if cut := arguments.batch_size is not None:
        arguments.batch_size *= replicas
    over = OverRanks(replicas, cut, bucket_bytes, arguments.timeout, segments=arguments.segments)
    is_first = os.environ["RANK"] == "0"
    with progress("running") if is_first else nullcontext(lambda text, share=None: None) as show:
        show("capturing and compiling")
        job, devices = build_job(arguments), arguments.devices.split(",")
        done = run_over_ranks(job, plan, devices, over, arguments.steps, arguments.warmup, on_progress=show)
    return done if is_first else None


def _give_each_gpu_a_process(arguments: argparse.Namespace) -> None:
    """Name ranks for several GPUs, unless the user or a launcher has, or the step is one that runs in one process."""
    if arguments.one_process or arguments.replicas is not None or arguments.mode == "infer":
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or "rank" in arguments.devices:
        return
    from dlplacer.runtime.distributed.ranks import rank_per_gpu

    ranked = rank_per_gpu(arguments.devices.split(","))
    if ranked is not None:
        arguments.devices = ",".join(ranked)
        note(f"one process per GPU ({arguments.devices}); --one-process keeps one")


def _over_ranks(arguments: argparse.Namespace, plan: "Plan") -> bool:
    """Whether the arguments, the plan or torchrun ask for more than one process."""
    wanted = arguments.replicas is not None or _replicas(arguments, plan) > 1 or "rank" in arguments.devices
    return wanted or int(os.environ.get("WORLD_SIZE", "1")) > 1


def _replicas(arguments: argparse.Namespace, plan: "Plan") -> int:
    """How many copies of the plan are to run: as the user says, else as many as the plan was made for."""
    planned = (plan.graph.capture or {}).get("collectives", {}).get("replicas", 1)
    return int(planned if arguments.replicas is None else arguments.replicas)


def _write(arguments: argparse.Namespace, done: "Run") -> None:
    """The files that the command line asks for: the picture and the trace of the predicted and the measured step."""
    if arguments.gantt:
        from dlplacer.report.plot import save_run_picture

        save_run_picture(arguments.gantt, done.predicted, done.measured)
    if arguments.trace:
        from dlplacer.files import write_json
        from dlplacer.report.trace import run_trace

        write_json(arguments.trace, run_trace(done.predicted, done.measured))
    if arguments.html:
        from dlplacer.files import write_text
        from dlplacer.measure.run_report import page_of_run

        write_text(arguments.html, page_of_run(done))
    tell_written(arguments.gantt, arguments.trace, arguments.html)


def _warn_if_busy() -> None:
    """Timings on a machine that does something else say little; better said before than wondered at after."""
    from dlplacer.machines.host_load import load_note

    note = load_note()
    if note is not None:
        print(f"dlplacer: {note}", file=sys.stderr)


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
