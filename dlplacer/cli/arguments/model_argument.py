"""The MODEL argument and the job options that go with it."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dlplacer.cli.arguments.module_callable import UserCodeError, build_entry, is_entry
from dlplacer.cli.arguments.onnx_argument import add_dim_option, graph_of_onnx, is_onnx
from dlplacer.cli.arguments.problem_options import CAPTURE_OPTIONS, given_options
from dlplacer.cli.arguments.recorded_splits import splits_in
from dlplacer.cli.output.progress import progress
from dlplacer.core.errors import InputError

if TYPE_CHECKING:
    from dlplacer.core.graph import OpGraph
    from dlplacer.frontend import Job
    from dlplacer.frontend.torch.capture import Captured


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Options that say which step of a model is meant."""
    group = parser.add_argument_group("job options (for MODEL as module:callable)")
    group.add_argument("--batch-size", type=int, metavar="N", help="passed to the callable as batch_size")
    group.add_argument(
        "--input",
        action="append",
        metavar="SPEC",
        help="an input of a bare module, as float32:8x3x299x299; repeat for several",
    )
    group.add_argument("--mode", choices=("train", "infer"), help="forward and backward, or forward alone")
    group.add_argument("--whole-backward", action="store_true", help="keep a convolution's backward in one op")
    group.add_argument(
        "--colocate-backward", action="store_true", help="hold every backward op on the device of its forward op"
    )
    group.add_argument(
        "--granularity",
        default="aten",
        metavar="aten|fused|module",
        help="one op for each ATen call, for each chain that runs together, or for each module (module:2 cuts paths)",
    )
    add_dim_option(group)
    group.add_argument("--optimizer", choices=("sgd", "momentum", "adam"), help="make the update part of the step")
    group.add_argument("--autocast", choices=("bfloat16", "float16"), help="run the forward pass under torch.autocast")
    group.add_argument("--autocast-on", choices=("cpu", "cuda"), help="cast the ops that this device type casts")


def graph_of(arguments: argparse.Namespace) -> "OpGraph":
    """The graph that MODEL|GRAPH means: captured without allocating anything, or read from a file.

    Raises
    ------
    InputError
        If there is no such file, module or callable, or a job option is given with a graph file.
    """
    from dlplacer.planning.coarsen import coarsen

    if is_onnx(arguments.model):
        return coarsen(graph_of_onnx(arguments), arguments.granularity)
    if is_entry(arguments.model):
        with progress("capturing"):
            return coarsen(capture_of(arguments, build_fake_job(arguments)).graph, arguments.granularity)
    from dlplacer.files.load import load_graph

    given = given_options(arguments, (*CAPTURE_OPTIONS, "dim"))
    if given:
        raise InputError(
            f"{given[0]} says how to capture a model, but {arguments.model!r} is a graph file; "
            "drop it or give module:callable"
        )
    return coarsen(load_graph(arguments.model), arguments.granularity)


def capture_of(arguments: argparse.Namespace, job: "Job", more: Sequence[str] = ()) -> "Captured":
    """A job's graph and executable with the rewrites that the options ask for, and more."""
    from dlplacer.frontend.torch.batch_comparison import compared_cut
    from dlplacer.frontend.torch.capture import capture_job, default_rewrites

    rewrites = [*default_rewrites(arguments.whole_backward, job), *more]
    if getattr(arguments, "splits_of", None) is not None:
        rewrites += map(str, splits_in(arguments.splits_of))
    micro_batches = getattr(arguments, "micro_batches", None)
    if micro_batches is None:
        return capture_job(job, rewrites, arguments.colocate_backward)
    if micro_batches < 2:
        raise InputError(f"--micro-batches is {micro_batches}; it must be at least 2")
    with progress("comparing whole batch and micro-batches"):
        allow = getattr(arguments, "allow_other_loss", False)
        found = compared_cut(build_job(arguments), micro_batches, rewrites, allow_other_loss=allow)
    for warning in found.warnings:
        print(f"dlplacer: {warning}", file=sys.stderr)
    return capture_job(job, [*rewrites, str(found.cut)], arguments.colocate_backward)


def build_fake_job(arguments: argparse.Namespace) -> "Job":
    """The job with stand-ins for all tensors; falls back to real tensors where the callable needs data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode():
            return build_job(arguments)
    except Exception as error:
        if isinstance(error, InputError) and not isinstance(error, UserCodeError):
            raise
    return build_job(arguments)


def build_job(arguments: argparse.Namespace) -> "Job":
    """The job that `build_entry` makes of what the user typed as ``module:callable``, with the job options applied."""
    if getattr(arguments, "dim", None):
        raise InputError(f"--dim is for ONNX files; {arguments.model!r} takes --batch-size or --input")
    job = build_entry(arguments.model, arguments.batch_size, arguments.input or ())
    names = ("mode", "optimizer", "autocast", "autocast_on")
    changes = {name: getattr(arguments, name) for name in names if getattr(arguments, name, None)}
    return replace(job, **changes)
