"""The MODEL argument and the job options that go with it."""

import argparse
import contextlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dlplacer.cli.onnx import add_dim_option, graph_of_onnx, is_onnx
from dlplacer.cli.recorded_splits import splits_in
from dlplacer.errors import InputError

if TYPE_CHECKING:
    from dlplacer.frontend import Job
    from dlplacer.frontend.capture import Captured
    from dlplacer.graph import OpGraph

_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_INPUT = re.compile(r"(?:(?P<dtype>\w+):)?(?P<shape>\d+(?:x\d+)*)")


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


def is_entry(name: str) -> bool:
    """Whether an argument means ``module:callable`` rather than a file."""
    return _ENTRY.fullmatch(name) is not None and not os.path.exists(name)


def graph_of(arguments: argparse.Namespace) -> "OpGraph":
    """The graph that MODEL|GRAPH means: captured without allocating anything, or read from a file.

    Raises
    ------
    InputError
        If there is no such file, module or callable, or a job option is given with a graph file.
    """
    from dlplacer.rewrite import coarsen

    if is_onnx(arguments.model):
        return coarsen(graph_of_onnx(arguments), arguments.granularity)
    if is_entry(arguments.model):
        return coarsen(capture_of(arguments, build_fake_job(arguments)).graph, arguments.granularity)
    from dlplacer.load import load_graph

    given = [name for name in ("batch_size", "input", "mode", "optimizer", "autocast") if getattr(arguments, name)]
    given += [name for name in ("whole_backward", "colocate_backward") if getattr(arguments, name)]
    if given:
        raise InputError(
            f"--{given[0].replace('_', '-')} says how to capture a model, but {arguments.model!r} is a graph file; "
            "drop it or give module:callable"
        )
    return coarsen(load_graph(arguments.model), arguments.granularity)


def capture_of(arguments: argparse.Namespace, job: "Job") -> "Captured":
    """A job's graph and executable with the rewrites that the options ask for."""
    from dlplacer.frontend.capture import capture_job, default_rewrites

    rewrites = default_rewrites(arguments.whole_backward)
    if getattr(arguments, "splits_of", None) is not None:
        rewrites += map(str, splits_in(arguments.splits_of))
    if getattr(arguments, "micro_batches", None) is not None:
        from dlplacer.splitting.traced import TracedStep

        rewrites += map(str, TracedStep.of(job, rewrites).micro_batches(arguments.micro_batches))
    return capture_job(job, rewrites, arguments.colocate_backward)


def build_fake_job(arguments: argparse.Namespace) -> "Job":
    """The job with stand-ins for all tensors; falls back to real tensors where the callable needs data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode():
            return build_job(arguments)
    except InputError:
        raise
    except Exception:
        return build_job(arguments)


def build_job(arguments: argparse.Namespace) -> "Job":
    """Import and call what the user typed as ``module:callable``, and apply the job options.

    Raises
    ------
    InputError
        If the module or callable is not there, or it returns neither a Job nor a Module.
    """
    job = build_entry(arguments.model, arguments.batch_size, arguments.input or ())
    changes = {name: getattr(arguments, name) for name in ("mode", "optimizer", "autocast") if getattr(arguments, name)}
    return replace(job, **changes)


def build_entry(entry: str, batch_size: int | None = None, inputs: Sequence[str] = ()) -> "Job":
    """The job that ``module:callable`` returns; a bare module becomes an inference job on the given inputs."""
    from torch import nn

    from dlplacer.frontend import Job

    made = _called(_imported(entry), entry, batch_size)
    if isinstance(made, nn.Module):
        made = Job(made, args=tuple(map(_example, inputs)), mode="infer")
    elif inputs:
        raise InputError(f"--input is for callables that return a bare module; {entry!r} returned a Job")
    if not isinstance(made, Job):
        raise InputError(
            f"{entry!r} returned a {type(made).__name__}; it must return a dlplacer.Job or a torch.nn.Module"
        )
    return replace(made, entry=entry)


def _imported(entry: str) -> Callable[..., Any]:
    module_name, _, attribute = entry.partition(":")
    with _current_folder_on_path():
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and (module_name + ".").startswith(error.name + "."):
                raise InputError(
                    f"there is no module {error.name!r} for {entry!r}; run from its folder or install it"
                ) from error
            raise
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise InputError(
                f"module {module_name!r} has no {attribute!r}; check the name behind the colon in {entry!r}"
            )
        value = getattr(value, part)
    if not callable(value):
        raise InputError(f"{entry!r} is a {type(value).__name__}; give a function that returns a Job or a Module")
    found: Callable[..., Any] = value
    return found


def _called(build: Callable[..., Any], entry: str, batch_size: int | None) -> Any:
    if batch_size is None:
        return build()
    if batch_size < 1:
        raise InputError(f"--batch-size is {batch_size}; it must be at least 1")
    if "batch_size" not in inspect.signature(build).parameters:
        raise InputError(f"--batch-size: {entry!r} takes no batch_size; drop the option")
    return build(batch_size=batch_size)


def _example(spec: str) -> Any:
    import torch

    match = _INPUT.fullmatch(spec)
    dtype = getattr(torch, match["dtype"] or "float32", None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise InputError(
            f"--input {spec!r} is not understood; write dtype:sizes, as in float32:8x3x299x299 or int64:4x128"
        )
    shape = [int(size) for size in match["shape"].split("x")]
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)


@contextlib.contextmanager
def _current_folder_on_path() -> Iterator[None]:
    folder = os.getcwd()
    added = folder not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        yield
    finally:
        if added:
            sys.path.remove(folder)
