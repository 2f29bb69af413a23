"""Parameters of the public functions, declared once: functions check and document them, commands offer them.

The `Kind` of a `Parameter` checks its values, and converts texts into values.
"""

import inspect
import os
import re
import sys
from argparse import SUPPRESS, BooleanOptionalAction
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, ParamSpec, TypedDict, TypeVar, get_args

from dlplacer.core.errors import InputError
from dlplacer.core.expect import brief, shown
from dlplacer.core.options import DECISIONS
from dlplacer.core.units import parse_quantity
from dlplacer.machines.costs.gradient_codecs import CODECS
from dlplacer.machines.costs.roofline import ISSUES
from dlplacer.report.plot.pictures import pictures_of

LISTS = ("graphs", "topologies", "models", "methods", "devices", "targets")
P = ParamSpec("P")
R = TypeVar("R")
Read = Callable[[Any], Any]


class Kind(NamedTuple):
    """A kind of value: `read` checks and converts a value or text (else ValueError); options omit the suffix `unit`."""

    read: Read
    metavar: str | None = None
    unit: str = ""


def _of(accepted: str, *types: type) -> Read:
    def read(value: Any) -> Any:
        # Python counts True as the number 1.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"{brief(value)} is given; it must be {accepted}")
        return value

    return read


def _number(dimension: str, whole: bool = False) -> Read:
    check = _of("a whole number", Integral) if whole else _of("a number", Real)

    def read(value: Any) -> Any:
        if isinstance(value, str):
            value = parse_quantity(value, dimension)
        value = check(int(value) if whole and isinstance(value, float) and value.is_integer() else value)
        if abs(value) > sys.float_info.max:
            raise ValueError(f"{shown(value)} is too large; give a finite number")
        return value

    return read


def _series(accepted: str, *types: type, entry: Read | None = None) -> Read:
    """A reader of a series; `entry` reads each part of a text, which is split at commas and spaces.

    Without `entry`, a single value is a series of one, and a dict, which may replace a series of texts, is unchanged.
    """

    def read(value: Any) -> Any:
        if isinstance(value, str) and entry is not None:
            value = value.replace(",", " ").split() or [""]
        elif isinstance(value, types) and entry is None:
            value = [value]
        elif isinstance(value, Mapping) and entry is None:
            return value
        try:
            # A 0-dimensional array claims to be iterable.
            parts = None if isinstance(value, (str, bytes, Mapping)) else tuple(value)
        except TypeError:
            parts = None
        if parts is None:
            raise ValueError(f"{brief(value)} is given; it must be a tuple of {accepted}")
        entries = tuple(map(entry or _of(f"one of {accepted}", *types), parts))
        if "" in entries:
            raise ValueError(f"an empty text is given; it must be {accepted}, separated by commas")
        return entries

    return read


def _figures(value: Any) -> dict[int, float]:
    """Device count → positive number, from a dict, a text such as ``2=1.32,4=2.1``, or a list of dicts and texts."""
    found: dict[int, float] = {}
    for table in value if isinstance(value, list) else [value]:
        if isinstance(table, str):
            table = dict(part.partition("=")[::2] for part in table.split(","))
        for count, number in _of("a dict from devices to numbers, or a text such as 2=1.32", Mapping)(table).items():
            devices, known = _WHOLE(count), _NUMBER(number)
            if not known > 0:
                raise ValueError(f"{known:g} is given for {devices} devices; it must be positive")
            if found.setdefault(devices, known) != known:
                raise ValueError(f"{found[devices]:g} and {known:g} are given for {devices} devices; drop one")
    return found


def written_file(path: Any) -> Path:
    """The path of a file to write; raises ValueError, before any work is done, if the file cannot be written."""
    found = Path(_PATH(path))
    folder = found.resolve().parent
    try:
        if not folder.is_dir():
            raise ValueError(f"cannot write {found}: there is no folder {folder}; make it, or write elsewhere")
        if found.is_dir() or not os.access(folder if found.is_file() or not found.exists() else found, os.W_OK):
            raise ValueError(f"cannot write {found}: it is a folder, or you may not write there; write elsewhere")
    except OSError as error:
        raise ValueError(f"cannot write {shown(str(found))}: {error.strerror}; write elsewhere") from error
    return found


def _picture_file(path: Any) -> Path:
    from dlplacer.report.plot.pictures import picture_format

    found = written_file(path)
    picture_format(found)
    return found


def _parts(value: Any) -> Any:
    if value != "auto" and (value := _WHOLE(value)) < 2:
        raise ValueError(f"{value} is given; give auto or at least 2 parts")
    return value


_PATH = _of("the path of a file", str, PathLike)
_TEXT, _WHOLE, _NUMBER = _of("a text", str), _number("number", whole=True), _number("number")
KINDS = {
    "any": Kind(lambda value: value),
    "parts": Kind(_parts),
    "text": Kind(_TEXT),
    "word": Kind(_TEXT),
    "flag": Kind(_of("True or False", bool)),
    "whole": Kind(_WHOLE, "N"),
    "number": Kind(_NUMBER),
    "share": Kind(_number("share")),
    "seconds": Kind(_number("seconds"), "TIME", "_s"),
    "bytes": Kind(_number("bytes", whole=True), "SIZE", "_bytes"),
    "rate": Kind(_number("bytes_per_s"), "RATE"),
    "names": Kind(_series("names", entry=_TEXT)),
    "wholes": Kind(_series("whole numbers", entry=_WHOLE)),
    "texts": Kind(_series("texts", str)),
    "files": Kind(_series("paths of files", str, PathLike)),
    "figures": Kind(_figures),
    "read": Kind(lambda path: Path(_PATH(path)), "FILE"),
    "written": Kind(written_file, "F"),
    "picture": Kind(_picture_file, "F"),
    "call": Kind(_of("a function", Callable)),  # type: ignore[arg-type]
    "stop": Kind(_of("a threading.Event or None", Event)),
}
"""Name in declarations → kind."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of public functions, and the option that sets it.

    `name` is the name in the function; ``function.name`` declares a parameter of that function alone. `help` describes
    the option's effect and default; if it is empty, no option sets the parameter. `doc` describes the parameter in
    Python, if that differs. `option` holds spellings other than the name with dashes; a spelling without dashes makes
    the parameter positional. With `repeat`, the option may occur several times. `settings` are further arguments for
    `argparse`, and `group` is the title above the option in help texts.
    """

    name: str
    help: str = ""
    kind: Kind = KINDS["text"]
    metavar: str | None = None
    option: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    repeat: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    doc: str = ""
    group: str = ""

    @property
    def dest(self) -> str:
        """The name in the function's signature."""
        return self.name.rpartition(".")[2]

    @property
    def spellings(self) -> tuple[str, ...]:
        """The spellings of the option on the command line."""
        return self.option or (f"--{self.dest.removesuffix(self.kind.unit).replace('_', '-')}",)

    def read(self, value: Any) -> Any:
        """A value or its text, checked and converted; raises ValueError or InputError."""
        value = self.kind.read(value)
        for one in value if isinstance(value, tuple) else (value,):
            if self.choices and one not in self.choices:
                raise ValueError(f"{shown(one)} is given; it must be one of {', '.join(self.choices)}")
            if self.least is not None and not one >= self.least:
                raise ValueError(f"{shown(one)} is given; it must be at least {self.least:g}")
            if self.above is not None and not one > self.above:
                raise ValueError(f"{shown(one)} is given; it must be above {self.above:g}")
        return value


class JobOptions(TypedDict, total=False):
    """Options for `load_job`."""

    batch_size: int | None
    inputs: Sequence[str]
    mode: str | None
    optimizer: str | None
    autocast: str | None
    autocast_on: str | None


class CaptureOptions(JobOptions, total=False):
    """Options for `load_job` and for turning a step into a graph."""

    whole_backward: bool
    colocate_backward: bool
    granularity: str
    dims: Mapping[str, int] | Sequence[str]


class StepOptions(CaptureOptions, total=False):
    """Options for capturing a step."""

    micro_batches: int | None
    allow_other_loss: bool


_WORDS = '"2x RTX3090, RTX3060, 64 GB DDR5-5600"'
_OPTIONS = f"""
place_with_splits.graph,profile_splits.graph  any  !  graph of the job without splits, with measured times; None takes
    roofline times or profiles
plan_of_pipeline.graph  any  !  the captured step in micro-batches: ``dp.capture(job, micro_batches=N)``
subject  any  !  a plan, or the result of `run` (both steps are shown), `compare`, `pipeline` or `hybrid`
show.path  written  !  the file to write the page to, such as ``"plan.html"``
against  any  !  a second plan, shown beside the first
options  any  !  the `Options`, ``"paper"``, or a dict
apply.job  any  !  the `Job` of the plan: same module, shapes, dtypes and mode
entry  text  !  ``module:callable``, as on the command line; the module is imported
args  any  !  inputs of a Module, fx.GraphModule or ExportedProgram, which is captured as inference
found  any  !  the result of `pipeline`
parts  whole>=2  !  number of parts of an op; None means one for each device
on_progress  call  !  called with the progress of the work
stop  stop  !  an event that, once set, ends the work with the best result so far
graph  any  model:MODEL|GRAPH  module:callable, an .onnx file, a graph file, or the name of a shipped graph
    (inception_v3-train)
topology  any  topology:TOPOLOGY  a topology file, or the name of a shipped topology (cpu-2core, dgx1-v100-2gpu, …)
what  word:{",".join(LISTS)}  what:  what to list: {", ".join(LISTS)}
plan  any  plan:PLAN  plan file
job  any  model:MODEL  module:callable that returns a Job or a Module, or .onnx file
run.job  any  model:MODEL  module:callable; not needed for dlplacer's own models
[job options (for MODEL as module:callable)]
batch_size  whole>=1  N  passed to the callable as batch_size
inputs  texts*  --input:SPEC  an input of a bare module, such as float32:8x3x299x299
mode  word:train,infer  -  forward and backward, or forward alone
optimizer  word:sgd,momentum,adam  -  make the update part of the step
autocast  word:bfloat16,float16  -  run the forward pass under torch.autocast
autocast_on  word:cpu,cuda  -  cast the ops that this device type casts
whole_backward  flag  -  keep a convolution's backward in one op
colocate_backward  flag  -  keep every backward op on the device of its forward op
granularity  text  aten|fused|module  one op per ATen call, per fused chain of ops, or per module
dims  texts*  --dim:AXIS=N  size of an axis of an ONNX file, such as batch=8 or input:0=8
micro_batches  whole>=2  N  run the step as N micro-batches with gradient accumulation
allow_other_loss  flag  -  accept micro-batches whose loss differs from the whole batch's
device_type  text  TYPE  add roofline times for a device type, such as V100
[splitting (for MODEL as module:callable)]
split  parts  auto|N  split ops into N parts (auto: one per device) if that shortens the step
times  read  GRAPH  the model's graph without splits, with times from dlplacer profile
search_s  seconds>0  -  with --split: time for choosing the splits (30 s)
[]
method  text  NAME  ilp (default) or another that `dlplacer compare` lists
methods  names  NAME[,NAME…]  compare only these methods (all)
time_limit_s  seconds>0  -  time for the whole solve, reading a graph file included (60 s)
compare.time_limit_s  seconds>0  -  time for each method (60 s)
fit.time_limit_s  seconds>0  -  time for the proof (10 s)
hybrid.time_limit_s  seconds>0  -  time for each solve (10 s)
seed  whole  -  seed of all random choices (0)
workers  whole>=1  N  solver threads (the cores)
gap  share  G  stop at this gap: 0.01 and 1% are one percent (0)
work_s  number>0  --work:N  amount of work instead of a time limit, by one worker: gives the same plan on every machine
without  names  NAME[,NAME…]  phases and heuristics that the default method leaves out, to measure their worth
export  written  F  write the paper's program, eq. 7 to 13, for other solvers: F.mps or F.pb.txt
issue  word:{",".join(ISSUES)}  -  issue of ops if the topology gives no issue costs: eager is eager PyTorch (none)
pins  any*  --pin:OP|MODULE=DEVICE  run an op, a module, or all matches of a glob ('encoder.*=gpu0') on this device or
    type
colocate  any*  GLOB[,GLOB…]  run all ops and modules that these match on one device
warm_start  any  PLAN  begin with this plan, of the same problem or a similar one
calibration  files*  FILE  op times measured by `dlplacer profile --calibration`
stages  whole>=1  N  number of devices, each with one stage, or with two if interleaved (the best)
pipeline.micro_batches  whole>=1  M  number of micro-batches (the best)
schedule  word:gpipe,1f1b,interleaved,zero-bubble  -  order of the micro-batches (the best)
budget_s  seconds>=0  -  total time for solving again with one change each time (10 s; 0: none)
why  texts*  OP|MODULE  report the step time with this op, or this module's longest op, on each other device, instead of
    the changes that help
dispatch_s  seconds>=0  -  time in which one process issues an op, such as 8us (0: the topology's)
devices  any  D[,D…]  cpu:0,cpu:1 or cuda:0,cuda:1, in the plan's order
profile.devices,profile_splits.devices,selftest.devices  any  --device,--devices:D[,D…]  cpu:0, cuda:0, …; several are
    timed while all are busy, as when a plan runs on them
run.steps  whole>=1  N  number of timed steps (until their medians are certain, for a minute at most)
run.warmup  whole>=0  N  least number of steps before the timed ones (3)
steps  whole>=1  N  number of timed steps (7)
warmup  whole>=0  N  number of steps before the timed ones (2)
profile.calibration  written  FILE  file to write or extend with the measured times, for other models
compile_baseline  flag  -  time torch.compile on one device too (the default if --segments compiles or captures)
segments  word:eager,inductor,cuda_graph  -  run segments by PyTorch's kernels (default), TorchInductor or CUDA graphs
provider  text  NAME  onnxruntime's execution provider for devices other than cpu:N, such as CUDA
replicas  whole>=1  N  train N copies of the plan on N parts of the batch
bucket_bytes  bytes  --bucket-bytes:  exchange gradients in buckets of this size (25 MiB)
timeout_s  seconds  -  longest wait for another rank (120 s)
repeats  whole>=1  N  runs with pauses for each small model (5)
no_steps  flag  -  leave out the timed steps, which take most of the time
kind  word:auto,gpu,cpu  -  kind of devices to detect (auto)
measure  flag  -  time copies over every link, and the issue of ops
path  read  path:FILE  the file that the other tool wrote
import_topology.device_type  text  --type:TYPE  type of the devices, such as RTX3090 or V100-32GB; for several types
    0-2=RTX3090,3=RTX3060 or one type each
description  any  description:TEXT  the machine in words, such as {_WORDS}, with ";" between hosts, or a TOML file
[machine in words]
link  text  LINK  link of each GPU to its host: pcie4, pcie3x8 or a rate (the slot of its type)
network  text  NET  link between hosts: 1gbe, 10gbe, wifi, thunderbolt, or a rate and a latency
used  texts*  [D=]SIZE  memory in use on all devices, or on one: gpu0=1GiB
[]
direction  word:forward,backward  -  weights pulled for the forward pass, or gradients pushed from the backward pass
    (forward)
cap_bytes  bytes>=1  -  most bytes of a group, such as "25 MiB"
training  any  training:MODULE:CALLABLE  takes (workers, seed) and yields a metric after every epoch
batches  wholes>=1  N[,N…]  mini-batches per step, each a number of data-parallel workers
at_most  number  X  the goal: a metric of at most X, such as a loss
at_least  number  X  the goal: a metric of at least X, such as an accuracy
max_epochs  whole>=1  E  epochs after which a training counts as not converging (100)
seeds  whole>=1  S  trainings of every batch, for a median (1)
epochs.codecs  names:{",".join(CODECS)}  C[,C…]  measure these codecs too: some of {", ".join(CODECS)}
periods  wholes>=1  P[,P…]  measure exchanges every P steps too
checkpoint  written  FILE  file that keeps finished trainings, and from which the next call resumes
mini_batch  whole>=1  B  samples in a mini-batch, for the file
samples  whole>=1  N  samples in the data set, for the file
batch_sizes  wholes>=1  N[,N…]  mini-batch sizes to try; a graph file has its own
dataset_size  whole>=1  N  samples in an epoch (without it, plans are ranked by time per sample)
advise_minibatch.epochs  any  FILE  dlplacer.epochs/1 file with the epochs that each batch needs (1 for every batch)
overhead  number  R  R_O = overhead / compute on one GPU: 0.1 is 10 %
speedup  number  S  wanted speedup over one GPU
efficiency  number  A  wanted efficiency: 0.8 is 80 %
gpus  whole  G  number of GPUs at that efficiency
load_bytes  bytes>=0  -  bytes of the parameters or of a batch: "249 MB"
advise_servers.workers  whole  -  number of workers that pull and push; without it, loaders are counted
bytes_per_s  rate>=0  --rate:  rate of one server or loader, in bytes: "1.25 GB/s"
compute_s  seconds>=0  -  computation time of a step: "0.5 s"
hybrid.devices  whole>=1  -  plan for every budget from 1 to N
degrees  wholes  M[,M…]  model-parallel degrees to consider (2 to 8)
speedups  figures*  --speedup:M=S  known speedup of M devices, instead of solving
epochs  any  FILE  epochs by workers, or by batch (dlplacer.epochs/1); without it, one worker alone
[step times of data parallelism (default: over the links of the topology)]
scaling_efficiency  number  SE  a constant scaling efficiency; the paper assumes 1
hybrid.network  rate  -  join copies of the topology, each by a network card of this rate ("12.5 GB/s") and 5 us
codecs  names:{",".join(CODECS)}  C[,C…]  codecs to consider, some of {", ".join(CODECS)} (all)
overlap  flag  --no-overlap:  exchange gradients after the backward pass
[]
decoder  any  decoder:MODEL  config.json of a language model, its folder, or a .gguf file
machine  any  machine:MACHINE  topology file, the name of a shipped topology, or words such as {_WORDS}
fit.objective  word:token,throughput,prefill,request  -  least time per token, most throughput, or least time of a
    prefill or of a request (token)
context  whole>=1  N  tokens in the cache of each sequence (4096)
max_context  flag  -  plan for the longest context that fits
batch  whole>=1  N  sequences that a step advances (1)
weights  text  B  type or bits of the matrices in layers, such as q4_k or 4.89 (the file's)
cache  text  B  type or bits of keys and values, such as q8_0 (float16)
prompt  whole>=1  N  tokens of a prompt, for prefill and request (512)
generated  whole>=1  N  tokens of an answer, for request (128)
chunk  whole>=1  N  prompt tokens that are processed at once (512)
reserve_bytes  bytes>=0  -  memory left free on each device (1 GiB)
fine  word:layers,experts,parts  -  units that stay whole: layers; layers without their experts; or attention, MLP and
    experts each (layers)
stream  flag  -  send weights in RAM to a GPU in every step, instead of reading them with the CPU
prefer  names  D[,D…]  use other devices only if the model does not fit on these
last  names  D[,D…]  use these devices only if the model does not fit on the others
tensor_parallel  names  D+D[,D+D…]  divide every matrix over these GPUs, as one stage
fit.split  wholes>=0  N[,N…]  evaluate this split too: layers of each device, in order
map  read  -  evaluate this device map of accelerate too
to  text  TARGET  runtime to print the plan for; see dlplacer list targets
json  flag  -  print one JSON object
"""
"""A row per parameter: name, kind, option, and the effect with its default.

Names are ``name`` or ``function.name``, separated by commas. A kind is a key of `KINDS`, with words to choose from or
a limit, and a star if the option may be repeated. The option is its spelling or metavar, or both with a colon between;
``!`` means that no option sets the parameter. A row in brackets is the title of a group.
"""

_CODE = "a `Job`, its ``module:callable``, or an ONNX file"
_DEVICES = 'device of the plan → device of this machine, or devices in the plan\'s order: ``"cpu:0,cpu:1"``; None '
_SHIPPED = "a `Topology`, the path of its file, or the name of a shipped one"
_DOCS = {
    "graph": "an `OpGraph`, a `Job` or its ``module:callable``, a graph or ONNX file, or the name of a shipped graph",
    "topology": _SHIPPED,
    "plan": "a `Plan`, a `Result`, a run or the path of a plan file",
    "job": _CODE,
    "run.job": _CODE,
    "devices": f"{_DEVICES}takes ``cpu:0``, ``cpu:1``, … for cores, ``cuda:0``, … for others",
    "overlap": "true if gradients are exchanged during the backward pass",
    "decoder": "a `Decoder`, or the path of a config.json, of a folder with one, or of a GGUF file",
    "machine": f"{_SHIPPED}, or words as for `new_topology`",
}
"""Name → meaning of a parameter in Python, if it differs from the meaning of the option."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "run.job": {"nargs": "?"},
    "split": {"nargs": "?", "const": "auto"},
    "without": {"help": SUPPRESS},
    "devices": {"required": True},
    "compile_baseline": {"action": BooleanOptionalAction},
    "overlap": {"action": "store_false"},
}
"""Name → further arguments for `argparse`."""

_KIND = re.compile(r"(\w+)(?::([\w,-]+))?(?:(>=?)(\d+))?(\*?)")


def declared(row: str, group: str = "") -> Parameter:
    """The parameter of a row of `_OPTIONS`."""
    name, kind, spelled, text = row.split(maxsplit=3)
    match = _KIND.fullmatch(kind)
    if match is None:
        raise ValueError(f"kind {kind!r} of {name!r} is not understood")
    limits: dict[str, Any] = {{">=": "least", ">": "above"}[match[3]]: float(match[4])} if match[3] else {}
    words = tuple(match[2].split(",")) if match[2] else ()
    made = Parameter(name, kind=KINDS[match[1]], choices=words, repeat=bool(match[5]), **limits)
    if spelled == "!":
        return replace(made, doc=text)
    option, colon, metavar = spelled.partition(":")
    if not colon:
        option, metavar = "", spelled.removeprefix("-")
    told: dict[str, Any] = {"doc": _DOCS.get(name, ""), "settings": _SETTINGS.get(name, {}), "group": group}
    return replace(made, help=text, metavar=metavar or None, option=tuple(filter(None, option.split(","))), **told)


def _declarations() -> Iterator[Parameter]:
    group = ""
    # Continuation lines of a row are indented.
    for row in re.split(r"\n(?! )", _OPTIONS.strip()):
        if row.startswith("["):
            group = row[1:-1]
        else:
            yield declared(" ".join(row.split()), group)


def pictures(subject: str) -> tuple[Parameter, ...]:
    """An option for every picture of a command's result."""
    return tuple(Parameter(each.option, each.help, KINDS["picture"]) for each in pictures_of(subject))


ASSUMED = (
    *(Parameter(name, f"{what} ({words[0]})", choices=tuple(words)) for name, (what, *words) in DECISIONS.items()),
    declared("paper flag - assume what the paper's equations 7-13 assume"),
)
DECLARED = {name: each for each in (*_declarations(), *ASSUMED) for name in each.name.split(",")}
"""``name`` or ``function.name`` → the parameter of public functions, or the option of commands."""


def parameters_of(function: Callable[..., Any]) -> dict[str, Parameter]:
    """Name → declaration of a function's parameters and keyword options; raises KeyError for an undeclared one."""
    found = {}
    for name, each in inspect.signature(function).parameters.items():
        options = get_args(each.annotation)[0].__annotations__ if each.kind is each.VAR_KEYWORD else (name,)
        for one in options:
            own = f"{function.__name__}.{one}"
            found[one] = DECLARED[own if own in DECLARED else one]
    return found


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function check its arguments by their declarations, and document them in its docstring.

    Omitted arguments are not checked, nor is None if it is the default; ``on_progress=None`` counts as omitted.
    """
    signature, known = inspect.signature(function), parameters_of(function)
    rest = next((name for name, each in signature.parameters.items() if each.kind is each.VAR_KEYWORD), "")
    needed = {name for name, each in signature.parameters.items() if each.default is not None}

    def taken(name: str, value: Any) -> Any:
        if name not in known:
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
        try:
            return value if value is None and name not in needed else known[name].read(value)
        except (ValueError, InputError) as error:
            raise InputError(f"{name}: {error}") from error

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get("on_progress", function) is None:
            del bound.arguments["on_progress"]
        options = bound.arguments.pop(rest, {})
        bound.arguments |= {name: taken(name, value) for name, value in bound.arguments.items()}
        return function(*bound.args, **bound.kwargs, **{name: taken(name, each) for name, each in options.items()})

    call.__doc__ = _documented(function.__doc__ or "", known)
    return call


def _documented(doc: str, parameters: Mapping[str, Parameter]) -> str:
    """The docstring with a Parameters section before its first other section."""
    text = inspect.cleandoc(doc)
    told = ((name, each.doc or each.help) for name, each in parameters.items())
    section = "".join(f"{name}\n    {meaning[:1].upper()}{meaning[1:]}.\n" for name, meaning in told)
    place = min((at for at in map(text.find, ("\nRaises\n---", "\nExamples\n---")) if at >= 0), default=len(text))
    return f"{text[:place].rstrip()}\n\nParameters\n----------\n{section}{text[place:]}"
