"""``module:callable``: import and call the user's code, and report its errors as the user's, not dlplacer's."""

import contextlib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlplacer.core.errors import DlplacerError, InputError

if TYPE_CHECKING:
    from dlplacer.frontend import Job

_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_INPUT = re.compile(r"(?:(?P<dtype>\w+):)?(?P<shape>\d+(?:x\d+)*)")
_MOST = 2**31
_LONGEST_MESSAGE = 200


class UserCodeError(InputError):
    """The user's module raised while it was imported or called."""


def is_entry(name: str) -> bool:
    """Whether an argument means ``module:callable`` rather than a file."""
    return _ENTRY.fullmatch(name) is not None and not os.path.exists(name)


def build_entry(entry: str, batch_size: int | None = None, inputs: Sequence[str] = ()) -> "Job":
    """The job that ``module:callable`` returns; a bare module becomes an inference job on the given inputs.

    Raises
    ------
    InputError
        If the module or callable does not exist, or it returns neither a Job nor a Module.
    UserCodeError
        If it raises.
    """
    from torch import nn

    from dlplacer.frontend import Job

    made = _called(imported(entry), entry, batch_size)
    if isinstance(made, nn.Module):
        _require_inputs(made, entry, inputs)
        made = Job(made, args=tuple(map(_example, inputs)), mode="infer")
    elif inputs:
        raise InputError(f"--input is for callables that return a bare module; {entry!r} returned a Job")
    if not isinstance(made, Job):
        raise InputError(
            f"{entry!r} returned an object of type {type(made).__name__}; it must return a dlplacer.Job or a "
            "torch.nn.Module"
        )
    return replace(made, entry=entry)


def imported(entry: str) -> Callable[..., Any]:
    """What ``module:callable`` names.

    Raises
    ------
    InputError
        If there is no such module or callable, or the module cannot be imported.
    """
    module_name, _, attribute = entry.partition(":")
    with _current_folder_on_path(), user_code(f"module {module_name!r} cannot be imported"):
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
        raise InputError(
            f"{entry!r} is an object of type {type(value).__name__}; give a function that returns a Job or a Module"
        )
    found: Callable[..., Any] = value
    return found


def _called(build: Callable[..., Any], entry: str, batch_size: int | None) -> Any:
    given = {}
    if batch_size is not None:
        if not 1 <= batch_size < _MOST:
            raise InputError(f"--batch-size is {batch_size}; it must be at least 1 and below 2^31")
        if "batch_size" not in inspect.signature(build).parameters:
            raise InputError(f"--batch-size: {entry!r} takes no batch_size; drop the option")
        given["batch_size"] = batch_size
    with user_code(f"{entry!r} cannot be built"):
        return build(**given)


def _require_inputs(module: Any, entry: str, inputs: Sequence[str]) -> None:
    """A bare module comes without example inputs."""
    empty, kinds = inspect.Parameter.empty, (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(module.forward).parameters.values()
    needed = [one.name for one in parameters if one.kind in kinds and one.default is empty]
    if len(inputs) < len(needed):
        raise InputError(
            f"{entry!r} returned a bare {type(module).__name__}, whose forward takes {', '.join(needed)}: give --input "
            "for each, as in --input float32:8x3x299x299, or return a dlplacer.Job"
        )


def _example(spec: str) -> Any:
    import torch

    match = _INPUT.fullmatch(spec)
    dtype = getattr(torch, match["dtype"] or "float32", None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise InputError(
            f"--input {spec!r} is not understood; write dtype:sizes, as in float32:8x3x299x299 or int64:4x128"
        )
    shape = [int(size) for size in match["shape"].split("x")]
    if max(shape) >= _MOST:
        raise InputError(f"--input {spec!r} has size {max(shape)}; every size must be below 2^31")
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)


@contextlib.contextmanager
def user_code(what: str) -> Iterator[None]:
    """Whatever the user's code raises, `sys.exit` included, is reported with its location as the user's error."""
    try:
        yield
    except DlplacerError:
        raise
    # SystemExit too: a script that parses its own arguments when it is imported would end dlplacer without a word.
    except (Exception, SystemExit) as error:
        text = (str(error).splitlines() or [""])[0][:_LONGEST_MESSAGE]
        raise UserCodeError(
            f"{what}: {type(error).__name__}: {text} ({_place(error)}); mend it, or set DLPLACER_DEBUG=1 for the "
            "traceback"
        ) from error


def _place(error: BaseException) -> str:
    """File and line of the user's code, or what comes nearest to it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).resolve())
    own = [frame for frame in frames if "site-packages" not in frame.filename and "<frozen" not in frame.filename]
    own = [frame for frame in own if frame.filename != here and "/lib/python" not in frame.filename] or list(frames)
    return f"{own[-1].filename}:{own[-1].lineno}"


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
