"""Jobs and their graphs: `load_job` calls a function of the user by name, `capture` makes the graph of a job."""

import contextlib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from dlplacer.api.parameters import JobOptions, StepOptions, checked
from dlplacer.api.subjects import is_job, note
from dlplacer.core.errors import DlplacerError, InputError
from dlplacer.core.expect import refuse
from dlplacer.core.graph import OpGraph
from dlplacer.machines.costs.roofline_times import with_roofline_times

if TYPE_CHECKING:
    from dlplacer.frontend.onnx import OnnxFile
    from dlplacer.frontend.torch.capture import Traceable
    from dlplacer.frontend.torch.job import Job

_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_INPUT = re.compile(r"(?:(?P<dtype>\w+):)?(?P<shape>\d+(?:x\d+)*)")
_MOST = 2**31
_LONGEST_MESSAGE = 200


class UserCodeError(InputError):
    """The user's code raised an exception while it was imported or called."""


def is_entry(name: str) -> bool:
    """True if an argument means ``module:callable`` rather than a file."""
    return _ENTRY.fullmatch(name) is not None and not os.path.exists(name)


@checked
def load_job(entry: str, **options: Unpack[JobOptions]) -> "Job":
    """The job that ``module:callable`` returns; a bare module becomes an inference job on `inputs`.

    Raises InputError if the module or callable does not exist, raises, or returns neither a Job nor a Module.

    Examples
    --------
    >>> dp.load_job("dlplacer.models:mlp", batch_size=4).entry
    'dlplacer.models:mlp'
    """
    from torch import nn

    from dlplacer.frontend import Job

    inputs = tuple(options.get("inputs", ()))
    made = _called(imported(entry), entry, options.get("batch_size"))
    if isinstance(made, nn.Module):
        if not inputs:
            bare = f"{entry!r} returned a bare {type(made).__name__}; give --input for each argument of its forward"
            raise InputError(f"{bare}, such as float32:8x3x299x299, or return a dlplacer.Job")
        note(f"{entry!r} returned a bare module, captured as inference; to train it, return a dlplacer.Job")
        made = Job(made, args=tuple(map(_example, inputs)), mode="infer")
    elif inputs:
        raise InputError(f"inputs are for callables that return a bare module; {entry!r} returned a Job")
    if not isinstance(made, Job):
        kind = type(made).__name__
        raise InputError(f"{entry!r} returned an object of type {kind}; return a dlplacer.Job or a torch.nn.Module")
    of_callable = ("batch_size", "inputs")
    changes = {name: value for name, value in options.items() if name not in of_callable and value is not None}
    return replace(made, entry=entry, **changes)  # type: ignore[arg-type]


def fake_job(entry: str, **options: Unpack[JobOptions]) -> "Job":
    """Like `load_job`, but with fake tensors; with real tensors only if the callable needs data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode():
            return load_job(entry, **options)
    except Exception as error:
        if isinstance(error, InputError) and not isinstance(error, UserCodeError):
            raise
    return load_job(entry, **options)


@checked
def capture(
    job: "Traceable | str | PathLike[str]",
    args: tuple[Any, ...] = (),
    *,
    device_type: str | None = None,
    **step: Unpack[StepOptions],
) -> OpGraph:
    """The dataflow graph of a step, without times unless a device type is given; nothing is allocated.

    Raises CaptureError if the model cannot be captured, with the line and a remedy.

    Examples
    --------
    >>> import torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU())
    >>> dp.capture(module, args=(torch.randn(8, 12),))
    <OpGraph 'Sequential': ... ops, ... edges, 832 B of weights>
    """
    from dlplacer.planning.coarsen import coarsen

    graph = _captured(job, args, step)
    if device_type is not None:
        graph = with_roofline_times(graph, device_type)
        source = f"{graph.source}; times on {device_type}: roofline over the rates of dlplacer's device table"
        graph = replace(graph, source=source)
    return coarsen(graph, step.get("granularity", "aten"))


def _captured(job: "Traceable | str | PathLike[str]", args: tuple[Any, ...], step: StepOptions) -> OpGraph:
    name = str(job) if isinstance(job, (str, PathLike)) else ""
    if is_onnx(name):
        from dlplacer.frontend.onnx import onnx_graph

        for option, value in step.items():
            if value and option not in ("dims", "granularity"):
                raise InputError(f"{option} is for PyTorch models; an ONNX file takes the sizes of its axes: batch=8")
        return onnx_graph(onnx_file(name, step.get("dims", ())))
    made = _named(job, step, fake_job)
    from dlplacer.frontend import Job, capture, capture_job

    whole, together = step.get("whole_backward", False), step.get("colocate_backward", False)
    if not isinstance(made, Job):
        return capture(made, args, whole_backward=whole, colocate_backward=together)
    # Comparing micro-batches with the whole batch needs real tensors.
    rewrites = rewrites_of(made, step, (lambda: load_job(name, **job_options(step))) if name else None)
    return capture_job(made, rewrites, together).graph


def job_of(value: "Job | str | PathLike[str]", step: Mapping[str, Any] | None = None, fake: bool = False) -> "Job":
    """The job itself, or the job that a name builds; raises InputError for a bare module, whose loss is unknown."""
    made = _named(value, step or {}, fake_job if fake else load_job)
    if not is_job(made):
        raise refuse("", "job", made, "a dp.Job(module, args=(inputs,), targets=(labels,), loss=loss_function)")
    return made


def _named(value: object, step: Mapping[str, Any], make: Callable[..., Any]) -> Any:
    """The value itself, or the job that `make` builds from its name with the options of a step."""
    if step.get("dims"):
        raise InputError(f"dims are for ONNX files; {value!r} takes batch_size or inputs")
    options = job_options(step)
    if not isinstance(value, (str, PathLike)):
        if options:
            raise InputError(f"{next(iter(options))} is for module:callable; change the job itself")
        return value
    if not is_entry(str(value)):
        raise InputError(f"{str(value)!r} is neither module:callable nor .onnx; write dlplacer.models:mlp or the like")
    return make(str(value), **options)


def job_options(step: Mapping[str, Any]) -> JobOptions:
    """The entries of `step` that `load_job` takes."""
    return cast("JobOptions", {name: value for name, value in step.items() if name in JobOptions.__annotations__})


def rewrites_of(job: "Job", step: StepOptions, build: "Callable[[], Job] | None" = None) -> list[str]:
    """Names of a capture's rewrites, after comparing micro-batches with the whole batch of `build()` or `job`."""
    from dlplacer.frontend.torch.batch_comparison import compared_cut
    from dlplacer.frontend.torch.capture import default_rewrites

    rewrites, count = list(default_rewrites(step.get("whole_backward", False), job)), step.get("micro_batches")
    if count is None:
        return rewrites
    whole = job if build is None else build()
    found = compared_cut(whole, count, rewrites, allow_other_loss=step.get("allow_other_loss", False))
    note(*found.warnings)
    return [*rewrites, str(found.cut)]


def is_onnx(name: str) -> bool:
    """True if a name means an ONNX file."""
    return name.lower().endswith(".onnx")


def onnx_file(
    path: str | PathLike[str], dims: Mapping[str, int] | Sequence[str] = (), with_weights: bool = False
) -> "OnnxFile":
    """The model in an ONNX file; `dims` has sizes of symbolic axes, as a dict or as strings such as ``batch=8``."""
    from dlplacer.frontend.onnx import read_onnx

    return read_onnx(Path(path), sizes_of(dims), with_weights=with_weights)


def sizes_of(dims: Mapping[str, int] | Sequence[str]) -> dict[str, int]:
    """Axis of an ONNX file → size."""
    if isinstance(dims, Mapping):
        return dict(dims)
    sizes: dict[str, int] = {}
    for entry in dims:
        name, separator, size = entry.rpartition("=")
        if not separator or not name or not size.isdecimal():
            raise InputError(f"--dim {entry!r} is not understood; write AXIS=N, such as batch=8 or input:0=8")
        sizes[name] = int(size)
    return sizes


def imported(entry: str) -> Callable[..., Any]:
    """The object that ``module:callable`` names.

    Raises InputError if there is no such module or callable, or the module cannot be imported.
    """
    module_name, _, attribute = entry.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with user_code(f"module {module_name!r} cannot be imported"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and (module_name + ".").startswith(error.name + "."):
                text = f"there is no module {error.name!r} for {entry!r}; run from its folder or install it"
                raise InputError(text) from error
            raise
    try:
        found: Callable[..., Any] = attrgetter(attribute)(module)
    except AttributeError as error:
        raise InputError(f"module {module_name!r} has no {attribute!r}; check the name behind the colon") from error
    if not callable(found):
        kind = type(found).__name__
        raise InputError(f"{entry!r} is an object of type {kind}; give a function that returns a Job or a Module")
    return found


def _called(build: Callable[..., Any], entry: str, batch_size: int | None) -> Any:
    given = {}
    if batch_size is not None:
        if "batch_size" not in inspect.signature(build).parameters:
            raise InputError(f"--batch-size: {entry!r} takes no batch_size; drop the option")
        given["batch_size"] = batch_size
    with user_code(f"{entry!r} cannot be built"):
        return build(**given)


def _example(spec: str) -> Any:
    import torch

    match = _INPUT.fullmatch(spec)
    dtype = getattr(torch, match["dtype"] or "float32", None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise InputError(f"--input {spec!r} is not understood; write dtype:sizes, such as float32:8x3x299x299")
    shape = [int(size) for size in match["shape"].split("x")]
    if max(shape) >= _MOST:
        raise InputError(f"--input {spec!r} has size {max(shape)}; every size must be below 2^31")
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)


@contextlib.contextmanager
def user_code(what: str) -> Iterator[None]:
    """Turn every exception of the user's code, `sys.exit` included, into a UserCodeError with its location."""
    try:
        yield
    except DlplacerError:
        raise
    # SystemExit too: a script that parses its own arguments when it is imported would end dlplacer silently.
    except (Exception, SystemExit) as error:
        text = (str(error).splitlines() or [""])[0][:_LONGEST_MESSAGE]
        raise UserCodeError(
            f"{what}: {type(error).__name__}: {text} ({_place(error)}); fix it, or set DLPLACER_DEBUG=1 for the "
            "traceback"
        ) from error


def _place(error: BaseException) -> str:
    """File and line of the user's code, or the nearest place known."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    others = (str(Path(__file__).resolve()), "site-packages", "<frozen", "/lib/python")
    own = [frame for frame in frames if not any(other in frame.filename for other in others)] or list(frames)
    return f"{own[-1].filename}:{own[-1].lineno}"
