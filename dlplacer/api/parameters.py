"""Parameters of the public functions, declared once: functions check and document them, commands offer them."""

import inspect
from argparse import SUPPRESS, BooleanOptionalAction
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, ParamSpec, TypedDict, TypeVar, get_args

from dlplacer.api.kinds import (
    ANY,
    BYTES,
    CALL,
    FIGURES,
    FILES,
    FLAG,
    NAMES,
    NUMBER,
    PICTURE,
    RATE,
    READ,
    SECONDS,
    SHARE,
    STOP,
    TABLE,
    TEXT,
    TEXTS,
    TIMES,
    WHOLE,
    WHOLES,
    WRITTEN,
    Kind,
    Parameter,
)
from dlplacer.core.options import ASSUMPTIONS, CHOICES
from dlplacer.machines.costs.gradient_codecs import CODECS
from dlplacer.machines.costs.issue import ISSUES
from dlplacer.report.plot.pictures import pictures_of

LISTS = ("graphs", "topologies", "models", "methods", "devices", "targets")
P = ParamSpec("P")
R = TypeVar("R")


class JobOptions(TypedDict, total=False):
    """Options of `load_job`."""

    batch_size: int | None
    inputs: Sequence[str]
    mode: str | None
    optimizer: str | None
    autocast: str | None
    autocast_on: str | None


class CaptureOptions(JobOptions, total=False):
    """Options of `load_job`, and those of turning a step into a graph."""

    whole_backward: bool
    colocate_backward: bool
    granularity: str
    dims: Mapping[str, int] | Sequence[str]


class StepOptions(CaptureOptions, total=False):
    """Options of capturing a step."""

    micro_batches: int | None
    allow_other_loss: bool


flag, duration = partial(Parameter, kind=FLAG), partial(Parameter, kind=SECONDS)
"""Declarations of an option without a value, and of a time."""


def argument(name: str, doc: str, kind: Kind = ANY, **limits: Any) -> Parameter:
    """A parameter that no option sets."""
    return Parameter(name, kind=kind, doc=doc, **limits)


def count(name: str, text: str, metavar: str = "N", least: int = 1) -> Parameter:
    """A whole number of at least one."""
    return Parameter(name, text, WHOLE, metavar, least=least)


def choice(name: str, text: str, *words: str) -> Parameter:
    """One of some words."""
    return Parameter(name, text, choices=words)


def word(name: str, text: str, metavar: str, option: str = "", kind: Kind = ANY, **more: Any) -> Parameter:
    """A text or a value in place of it, which the function itself understands."""
    return Parameter(name, text, kind, metavar, option, **more)


def several(name: str, text: str, metavar: str, kind: Kind = NAMES, **limits: Any) -> Parameter:
    """Names or numbers, separated by commas."""
    return Parameter(name, text, kind, f"{metavar}[,{metavar}…]", **limits)


def written(name: str, text: str, metavar: str = "F", option: str | tuple[str, ...] = ()) -> Parameter:
    """A file to write."""
    return Parameter(name, text, WRITTEN, metavar, option)


def output(metavar: str, text: str) -> Parameter:
    """The file of a result."""
    return written("output", text, metavar, ("-o", "--output"))


def pictures(subject: str) -> tuple[Parameter, ...]:
    """An option for every picture of a command's result."""
    return tuple(Parameter(each.option, each.help, PICTURE) for each in pictures_of(subject))


def _under(title: str, *parameters: Parameter) -> tuple[Parameter, ...]:
    return tuple(replace(each, group=title) for each in parameters)


ASSUMED = (
    *(choice(name, f"{ASSUMPTIONS[name].decides} ({values[0]})", *values) for name, values in CHOICES.items()),
    flag("paper", "assume what the paper's equations 7-13 assume"),
)
_SHIPPED = "the path of its file, or the name of one that ships"
_CODE = "a `Job`, its ``module:callable``, or an ONNX file"
_SPLIT_GRAPH = "graph of the job without splits, with measured times; None takes roofline times or profiles"
_WORDS = '"2x RTX3090, RTX3060, 64 GB DDR5-5600"'
_OPTIONAL = (("nargs", "?"),)
_JOB = "job options (for MODEL as module:callable)"
_DECLARATIONS = (
    word(
        "graph",
        "module:callable, an .onnx or a graph file, or a graph that ships (inception_v3-train)",
        "MODEL|GRAPH",
        "model",
        doc="an `OpGraph`, a `Job` or its ``module:callable``, a graph or ONNX file, or the name of a graph that ships",
    ),
    argument("place_with_splits.graph profile_splits.graph", _SPLIT_GRAPH),
    argument("plan_of_pipeline.graph", "the step in its micro-batches: ``dp.capture(job, micro_batches=N)``"),
    word(
        "topology",
        "a topology file, or the name of one that ships (cpu-2core, dgx1-v100-2gpu, …)",
        "TOPOLOGY",
        "topology",
        doc=f"a `Topology`, {_SHIPPED}",
    ),
    argument(
        "subject", "a plan, or what `run`, `compare`, `pipeline` or `hybrid` returned; of a run both steps are shown"
    ),
    argument("show.path", 'the file to write the page to, as ``"plan.html"``', WRITTEN),
    argument("against", "a second plan, beside the first one"),
    Parameter("what", f"what to list: {', '.join(LISTS)}", option="what", choices=LISTS),
    argument("options", 'the `Options`, words such as ``"paper"`` or ``"shortest, joint"``, or a dict'),
    word("plan", "plan file", "PLAN", "plan", doc="a `Plan`, a `Result`, a run or the path of a plan file"),
    word("job", "module:callable that returns a Job or a Module, or .onnx file", "MODEL", "model", doc=_CODE),
    word(
        "run.job",
        "module:callable; not needed for dlplacer's own models",
        "MODEL",
        "model",
        settings=_OPTIONAL,
        doc=_CODE,
    ),
    argument("apply.job", "the `Job` of the plan: same module, shapes, dtypes and mode"),
    argument("entry", "``module:callable``, as on the command line; the module is imported", TEXT),
    argument("args", "inputs of a Module, fx.GraphModule or ExportedProgram, which is captured as inference"),
    argument("op", "id of an op of the plan", TEXT),
    argument("beside", "name → another plan of the same job, whose steps alternate with those of the plan", TABLE),
    argument("found", "the result of `pipeline`"),
    argument("held", "constraints of the step, which hold for every copy of an op"),
    argument("rewrites", "names of the rewrites of the capture; None means the usual ones", NAMES),
    argument("parts", "number of parts of an op; None means one for each device", WHOLE, least=2),
    argument("on_progress", "called with the progress of the work", CALL),
    argument("stop", "an event that ends the work with the best result so far once it is set", STOP),
    *_under(
        _JOB,
        count("batch_size", "passed to the callable as batch_size"),
        word("inputs", "an input of a bare module, as float32:8x3x299x299", "SPEC", "--input", TEXTS, repeat=True),
        choice("mode", "forward and backward, or forward alone", "train", "infer"),
        choice("optimizer", "make the update part of the step", "sgd", "momentum", "adam"),
        choice("autocast", "run the forward pass under torch.autocast", "bfloat16", "float16"),
        choice("autocast_on", "cast the ops that this device type casts", "cpu", "cuda"),
        flag("whole_backward", "keep a convolution's backward in one op"),
        flag("colocate_backward", "hold every backward op on the device of its forward op"),
        Parameter(
            "granularity",
            "one op for each ATen call, for each chain that runs together, or for each module (module:2 cuts paths)",
            metavar="aten|fused|module",
        ),
        word("dims", "size of an axis of an ONNX file, as batch=8 or input:0=8", "AXIS=N", "--dim", TEXTS, repeat=True),
        count("micro_batches", "run the step as N micro-batches with gradient accumulation", least=2),
        flag("allow_other_loss", "accept micro-batches whose loss differs from the whole batch's"),
        Parameter("device_type", "add roofline times for a device type, such as V100", metavar="TYPE"),
    ),
    *_under(
        "splitting (for MODEL as module:callable)",
        Parameter(
            "split",
            "split ops into N parts (auto: one per device) where that shortens the step",
            metavar="auto|N",
            settings=(*_OPTIONAL, ("const", "auto")),
        ),
        Parameter("times", "the model's graph without splits, with times from dlplacer profile", READ, "GRAPH"),
        duration("search_s", "with --split: time for choosing what to split (30 s)", above=0),
    ),
    Parameter("method", "ilp (default) or another that `dlplacer compare` lists", metavar="NAME"),
    several("methods", "only these (all)", "NAME"),
    duration("time_limit_s", "time for the whole solve, reading a graph file included (60 s)", above=0),
    duration("compare.time_limit_s", "time for each method (60 s)", above=0),
    duration("fit.time_limit_s", "time for the proof (10 s)", above=0),
    duration("hybrid.time_limit_s", "time for each solve (10 s)", above=0),
    Parameter("seed", "seed of all random choices (0)", WHOLE),
    count("workers", "solver threads (the cores)"),
    Parameter("gap", "stop at this gap: 0.01 and 1% are one percent (0)", SHARE, "G"),
    Parameter(
        "work_s",
        "work in place of a time limit, by one worker: the same plan on every machine",
        NUMBER,
        "N",
        option="--work",
        above=0,
    ),
    several(
        "without",
        "phases and heuristics that the default method leaves out: what do they earn?",
        "NAME",
        settings=(("help", SUPPRESS),),
    ),
    written("export", "write the paper's program, eq. 7 to 13, for other solvers: F.mps or F.pb.txt"),
    choice("issue", "what issues the ops, where the topology gives no cost: eager is eager PyTorch (none)", *ISSUES),
    word(
        "pins",
        "run an op, a module, or what a glob matches ('encoder.*=gpu0') on this device or type",
        "OP|MODULE=DEVICE",
        "--pin",
        repeat=True,
    ),
    word("colocate", "run all ops and modules that these match on one device", "GLOB[,GLOB…]", repeat=True),
    word("warm_start", "begin with this plan, of this problem or a similar one", "PLAN"),
    word("calibration", "op times measured by `dlplacer profile --calibration`", "FILE", kind=FILES, repeat=True),
    count("stages", "devices, each with a stage, or two when interleaved (the best)"),
    count("pipeline.micro_batches", "parts of the batch (the best)", "M"),
    choice("schedule", "order of the micro-batches (the best)", "gpipe", "1f1b", "interleaved", "zero-bubble"),
    duration("budget_s", "time for solving again with one thing changed, for all changes (10 s; 0: none)", least=0),
    duration("dispatch_s", "time in which one process issues an op, as 8us (0: as the topology says)", least=0),
    word(
        "devices",
        "cpu:0,cpu:1 or cuda:0,cuda:1: in the plan's order",
        "D[,D…]",
        settings=(("required", True),),
        doc='device of the plan → device of this machine, or devices in the plan\'s order, as ``"cpu:0,cpu:1"``; None '
        "takes ``cpu:0``, ``cpu:1``, … for cores, ``cuda:0``, … for others",
    ),
    Parameter(
        "profile.devices profile_splits.devices selftest.devices",
        "cpu:0, cuda:0, …; several are timed while all are busy, as when a plan runs on them",
        ANY,
        "D[,D…]",
        ("--device", "--devices"),
    ),
    count("run.steps", "number of steps that are timed (until their medians are sure, for a minute at most)"),
    count("run.warmup", "least number of steps before them (3)", least=0),
    count("steps", "steps that are timed (7)"),
    count("warmup", "steps before them (2)", least=0),
    written("profile.calibration", "file to write or extend with what was measured, for other models", "FILE"),
    flag(
        "compile_baseline",
        "time torch.compile on one device too (done where --segments compiles or captures)",
        settings=(("action", BooleanOptionalAction),),
    ),
    choice(
        "segments",
        "call runs of ops by PyTorch's kernels (default), by TorchInductor, or as CUDA graphs",
        "eager",
        "inductor",
        "cuda_graph",
    ),
    Parameter("provider", "onnxruntime's execution provider for devices other than cpu:N, as CUDA", metavar="NAME"),
    count("replicas", "train N copies of the plan on N parts of the batch"),
    Parameter("bucket_bytes", "exchange gradients in buckets of this size (25 MiB)", BYTES, option="--bucket-bytes"),
    duration("timeout_s", "wait so long for another rank (120 s)"),
    count("repeats", "runs with pauses for each small model (5)"),
    flag("no_steps", "leave out the timed steps, which take most of the time"),
    Parameter("selftest.seed", "of the random plans and pauses (0)", WHOLE),
    choice("kind", "which devices (auto)", "auto", "gpu", "cpu"),
    flag("measure", "time copies over every link, and the issue of ops"),
    Parameter("path", "the file that the other tool wrote", READ, "FILE", "path"),
    Parameter(
        "import_topology.device_type",
        "type of the devices, as RTX3090 or V100-32GB; of several types, as 0-2=RTX3090,3=RTX3060",
        metavar="TYPE",
        option="--type",
    ),
    word("description", f'the machine in words, as {_WORDS}, ";" between hosts, or a TOML file', "TEXT", "description"),
    *_under(
        "machine in words",
        Parameter("link", "of each GPU to its host: pcie4, pcie3x8 or a rate (the slot of its type)", metavar="LINK"),
        Parameter("network", "between hosts: 1gbe, 10gbe, wifi, thunderbolt, or a rate and a latency", metavar="NET"),
        word("used", "memory in use, of all devices or of one, as gpu0=1GiB", "[D=]SIZE", kind=TEXTS, repeat=True),
    ),
    choice(
        "direction",
        "weights pulled before the forward pass, or gradients pushed behind backward (forward)",
        "forward",
        "backward",
    ),
    choice(
        "collective",
        "what carries a group (forward: all-gather; backward: all-reduce)",
        "all-gather",
        "reduce-scatter",
        "all-reduce",
    ),
    Parameter("cap_bytes", 'most bytes of a group, as "25 MiB"', BYTES, least=1),
    word(
        "training",
        "takes (workers, seed) and yields a metric after every epoch; or returns something that does",
        "MODULE:CALLABLE",
        "training",
    ),
    several("batches", "mini-batches per step: numbers of data-parallel workers", "N", WHOLES, least=1),
    Parameter("at_most", "the goal: a metric of at most X, as a loss", NUMBER, "X"),
    Parameter("at_least", "the goal: a metric of at least X, as an accuracy", NUMBER, "X"),
    count("max_epochs", "more count as not converging (100)", "E"),
    count("seeds", "trainings of every batch, for a median (1)", "S"),
    several("epochs.codecs", f"measure these too; of {', '.join(CODECS)}", "C", choices=tuple(CODECS)),
    several("periods", "measure exchanges every P steps too", "P", WHOLES, least=1),
    count("epochs.jobs", "train in so many processes side by side", "J"),
    written("checkpoint", "keep finished trainings there, and go on from them", "FILE"),
    count("mini_batch", "samples of a mini-batch, for the file", "B"),
    count("samples", "samples of the data set, for the file"),
    Parameter("device", "device to fit on (the topology's first)", metavar="NAME"),
    several("batch_sizes", "mini-batches to try; a graph file has one of its own", "N", WHOLES, least=1),
    count("dataset_size", "samples of an epoch (by time per sample)"),
    word("advise_minibatch.epochs", "dlplacer.epochs/1 file: epochs that a batch needs (always 1)", "FILE"),
    Parameter("overhead", "R_O = overhead / compute on one GPU: 0.1 is 10 %", NUMBER, "R"),
    Parameter("speedup", "wanted speedup over one GPU", NUMBER, "S"),
    Parameter("efficiency", "wanted efficiency: 0.8 is 80 %", NUMBER, "A"),
    Parameter("gpus", "number of GPUs of that efficiency", WHOLE, "G"),
    Parameter("load_bytes", 'parameters, or bytes of a batch: "249 MB"', BYTES, least=0),
    Parameter("advise_servers.workers", "workers that pull and push; without, a plain load", WHOLE),
    Parameter("bytes_per_s", 'of one server or loader, in bytes: "1.25 GB/s"', RATE, option="--rate", least=0),
    duration("compute_s", 'computation of a step: "0.5 s"', least=0),
    Parameter("hybrid.devices", "plan for every budget from 1 to N", WHOLE, least=1),
    several("degrees", "model-parallel degrees to consider (2 to 8)", "M", WHOLES),
    Parameter("speedups", "known speedup of M devices, in place of solving", FIGURES, "M=S", "--speedup", repeat=True),
    Parameter("hybrid.method", "of each solve, as for `dlplacer solve` (ilp)", metavar="NAME"),
    choice("hybrid.split", "how a worker's devices share (both)", "both", "placement", "pipeline"),
    word("epochs", "epochs by workers, or by batch (dlplacer.epochs/1); without, one worker alone", "FILE"),
    *_under(
        "step times of data parallelism (default: over the links of the topology)",
        Parameter("scaling_efficiency", "a constant; the paper assumes 1", NUMBER, "SE"),
        Parameter("measured", "measured step times per device count, to be fitted: 1=0.5s,8=90ms", TIMES, "N=S,..."),
        Parameter("hybrid.network", 'join copies of the topology, each by a card of "12.5 GB/s" and 5 us', RATE),
        several("codecs", f"some of {', '.join(CODECS)} (all)", "C", choices=tuple(CODECS)),
        flag(
            "overlap",
            "exchange gradients after the backward pass",
            option="--no-overlap",
            settings=(("action", "store_false"),),
            doc="true if gradients travel during the backward pass",
        ),
    ),
    word(
        "decoder",
        "config.json of a language model, its folder, or a .gguf file",
        "MODEL",
        "decoder",
        doc="a `Decoder`, or the path of a config.json, of a folder with one, or of a GGUF file",
    ),
    word(
        "machine",
        f"topology file, the name of one that ships, or words, as {_WORDS}",
        "MACHINE",
        "machine",
        doc=f"a `Topology`, {_SHIPPED}, or words as for `new_topology`",
    ),
    choice(
        "fit.objective",
        "least time per token, most throughput, least prefill, or least request (token)",
        "token",
        "throughput",
        "prefill",
        "request",
    ),
    count("context", "tokens in the cache of each sequence (4096)"),
    flag("max_context", "plan for the longest context that fits"),
    count("batch", "sequences that a step advances (1)"),
    Parameter("weights", "type or bits of the matrices in layers, as q4_k or 4.89 (as the file says)", metavar="B"),
    Parameter("cache", "type or bits of keys and values, as q8_0 (float16)", metavar="B"),
    count("prompt", "tokens of a prompt, for prefill and request (512)"),
    count("generated", "tokens of an answer, for request (128)"),
    count("chunk", "tokens of a prompt that are worked on at once (512)"),
    Parameter("reserve_bytes", "left free on each device (1 GiB)", BYTES, least=0),
    choice(
        "fine",
        "what stays whole: layers; layers but for their experts; or attention, MLP, experts each (layers)",
        "layers",
        "experts",
        "parts",
    ),
    flag("stream", "send weights in RAM to a GPU in every step, in place of reading them with the CPU"),
    several("prefer", "use others only if the model does not fit on these", "D"),
    several("last", "use these only if the model does not fit on the others", "D"),
    several("tensor_parallel", "divide every matrix over these GPUs, as one stage", "D+D"),
    several("fit.split", "judge this split too: layers of each device in order", "N", WHOLES, least=0),
    Parameter("map", "judge this device map of accelerate too", READ),
    Parameter("to", "runtime that shall follow the plan; see dlplacer list targets", metavar="TARGET"),
    *ASSUMED,
    flag("json", "print one JSON object"),
)
DECLARED = {name: each for each in _DECLARATIONS for name in each.name.split()}
"""Name, or function and name → the parameter of public functions, or the option of commands."""


def parameters_of(function: Callable[..., Any]) -> dict[str, Parameter]:
    """Name → declaration of a function's parameters, its keyword options among them; raises KeyError without one."""
    found = {}
    for name, each in inspect.signature(function).parameters.items():
        options = get_args(each.annotation)[0].__annotations__ if each.kind is each.VAR_KEYWORD else (name,)
        for one in options:
            own = f"{function.__name__}.{one}"
            found[one] = DECLARED[own if own in DECLARED else one]
    return found


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of a function by their declarations, and add these to its docstring.

    An argument that is left out, or None by default, is not checked; ``on_progress=None`` is as if left out.
    """
    signature, known = inspect.signature(function), parameters_of(function)
    rest = next((name for name, each in signature.parameters.items() if each.kind is each.VAR_KEYWORD), "")
    needed = {name for name, each in signature.parameters.items() if each.default is not None}

    def taken(name: str, value: Any) -> Any:
        return value if value is None and name not in needed else known[name].taken(value)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get("on_progress", function) is None:
            del bound.arguments["on_progress"]
        for name in bound.arguments.get(rest, ()):
            if name not in known:
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
        for name, value in bound.arguments.items():
            bound.arguments[name] = (
                {option: taken(option, given) for option, given in value.items()}
                if name == rest
                else taken(name, value)
            )
        return function(*bound.args, **bound.kwargs)

    call.__doc__ = _documented(function.__doc__ or "", known)
    return call


def _documented(doc: str, parameters: Mapping[str, Parameter]) -> str:
    """The docstring with a section of parameters before the next one."""
    text = inspect.cleandoc(doc)
    told = ((name, each.doc or each.help) for name, each in parameters.items())
    section = "".join(f"{name}\n    {meaning[:1].upper()}{meaning[1:]}.\n" for name, meaning in told)
    place = min((at for at in map(text.find, ("\nRaises\n---", "\nExamples\n---")) if at >= 0), default=len(text))
    return f"{text[:place].rstrip()}\n\nParameters\n----------\n{section}{text[place:]}"
