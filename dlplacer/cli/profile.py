"""``dlplacer profile``."""

import argparse
from functools import partial

from dlplacer.cli.arguments.model_argument import add_job_options, build_job, capture_of
from dlplacer.cli.arguments.module_callable import is_entry
from dlplacer.cli.arguments.onnx_argument import is_onnx, profile_onnx_file
from dlplacer.cli.arguments.problem_options import seconds_option
from dlplacer.cli.arguments.split_option import add_split_options, profile_with_splits, refuse_without_split
from dlplacer.cli.output.output_files import output_file
from dlplacer.cli.output.profile_summary import tell_profile
from dlplacer.cli.output.progress import progress
from dlplacer.core.errors import InputError

HELP = "Time every op of a model on devices of this machine."
EXAMPLES = (
    ("profile dlplacer.models:inception_v3 --device cpu:0,cpu:1 --batch-size 8 -o graph.json", "two busy cores"),
    ("profile my_model:build --device cuda:0 --calibration v100.json", "keep the times for other models"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("model", metavar="MODEL", help="module:callable that returns a dlplacer.Job or a Module")
    parser.add_argument(
        "--device",
        "--devices",
        required=True,
        metavar="D[,D…]",
        help="cpu:0, cuda:0, …; several are timed while all are busy, as when a plan runs on them, ops "
        "too short for that alone",
    )
    parser.add_argument(
        "-o", "--output", metavar="GRAPH", type=output_file, help="graph file to write, with the measured times"
    )
    parser.add_argument("--steps", type=int, default=7, metavar="N", help="steps that are timed (7)")
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="steps before them (2)")
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        type=output_file,
        help="file to write or extend with what was measured, for other models",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--search", type=seconds_option, metavar="TIME", help="with --split: time for choosing what to split (30 s)"
    )
    add_job_options(parser)
    add_split_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Profile, write the graph, and print the serial time."""
    from dlplacer.planning.coarsen import coarsen
    from dlplacer.runtime.devices import open_devices
    from dlplacer.runtime.devices.open import in_host_memory
    from dlplacer.runtime.profile.calibrate import calibrate
    from dlplacer.runtime.profile.op_times import profile_ops, timed_capture, with_measured_times

    if arguments.steps < 1 or arguments.warmup < 0:
        raise InputError(f"--steps is {arguments.steps} and --warmup {arguments.warmup}; at least 1 and 0 are needed")
    if arguments.split is not None:
        return profile_with_splits(arguments)
    refuse_without_split(arguments)
    if is_onnx(arguments.model):
        return profile_onnx_file(arguments)
    if not is_entry(arguments.model):
        raise InputError(
            f"{arguments.model!r} is neither module:callable nor an ONNX file; only a model that can run can be timed"
        )
    devices = open_devices(arguments.device.split(","))
    try:
        with progress("profiling") as show:
            show("capturing")
            job = build_job(arguments)
            captured, times = timed_capture(
                job,
                partial(capture_of, arguments, job),
                lambda captured: profile_ops(job, captured, devices, arguments.steps, arguments.warmup, show),
                in_host_memory(devices),
            )
        if arguments.calibration is not None:
            calibrate(arguments.calibration, captured.graph, times, devices)
    finally:
        for device in devices:
            device.close()
    graph = with_measured_times(captured.graph, times)
    tell_profile(arguments, coarsen(graph, arguments.granularity), times)
    return 0
