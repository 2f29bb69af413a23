"""A job → its captured graph: trace, rewrite, build, describe."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.core.errors import CaptureError
from dlplacer.core.graph import OpGraph
from dlplacer.files.formats import structure_sha256
from dlplacer.frontend.torch.executable import Executable
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.frontend.torch.op_graph_of_fx import add_updates, build
from dlplacer.frontend.torch.refusals import require_traceable
from dlplacer.frontend.torch.splitting import is_split
from dlplacer.frontend.torch.tracing import joint
from dlplacer.frontend.torch.tracing.autocast_lists import CUDA_AUTOCAST, cuda_lists
from dlplacer.frontend.torch.tracing.kernels import FUSED_LSTM, LSTM_BACKWARD, LSTM_FORWARD
from dlplacer.frontend.torch.tracing.micro_batches import in_micro_batches, part_of
from dlplacer.frontend.torch.tracing.passes import PASSES, apply_passes, copy_given_gradients, require_known
from dlplacer.frontend.torch.tracing.stand_in import is_installed, undisturbed
from dlplacer.frontend.torch.tracing.step_module import (
    fake_step,
    job_tensors,
    named_tensors,
    replaced_tensors,
    sharing,
    storage_of,
)
from dlplacer.planning.pipeline.micro_batch_names import batch_cut_of

Traceable: TypeAlias = Job | nn.Module | torch.export.ExportedProgram
"""Types that can be captured; a module or a program is captured for inference."""


@dataclass(frozen=True)
class Captured:
    """A job's graph and the code of its ops."""

    graph: OpGraph
    executable: Executable = field(repr=False)


def capture(
    job: Traceable, args: tuple[Any, ...] = (), *, whole_backward: bool = False, colocate_backward: bool = False
) -> OpGraph:
    """The dataflow graph of a step, without times; nothing is allocated.

    If `job` is a Module, fx.GraphModule or ExportedProgram, the step is inference on `args`. `whole_backward` keeps
    a convolution's backward in one op; `colocate_backward` keeps every backward op on the device of its forward
    op. If the model cannot be captured, a CaptureError names the line and the way out.
    """
    wanted = job
    if isinstance(job, torch.export.ExportedProgram):
        examples = () if job.example_inputs is None else tuple(job.example_inputs[0])
        wanted = Job(job.module(), args=args or examples, mode="infer")
    elif isinstance(job, nn.Module):
        wanted = Job(job, args=args, mode="infer")
    if not isinstance(wanted, Job):
        raise CaptureError(
            f"cannot capture a {type(job).__name__}; give a dlplacer.Job, a torch.nn.Module, an fx.GraphModule or an "
            "ExportedProgram"
        )
    return capture_job(wanted, default_rewrites(whole_backward, wanted), colocate_backward).graph


def default_rewrites(whole_backward: bool = False, job: Job | None = None) -> list[str]:
    """Names of the rewrites that a capture applies; for a job with autocast they depend on `Job.autocast_on`."""
    passes = [name for name in PASSES if not (whole_backward and name == "split-convolution-backward")]
    if job is None or job.autocast is None:
        return passes
    chosen = job.autocast_on or ("cuda" if torch.cuda.is_available() else "cpu")
    return [*passes, CUDA_AUTOCAST] if chosen == "cuda" else passes


def capture_job(job: Job, rewrites: Sequence[str], colocate_backward: bool = False) -> Captured:
    """The graph and the executable of a job, with the named rewrites applied in order."""
    require_known(rewrites)
    return rewritten(job, trace_job(job, rewrites), rewrites, colocate_backward)


def trace_job(job: Job, rewrites: Sequence[str] = ()) -> joint.Traced:
    """The ATen graph of a job's step, or of one micro-batch; only rewrites that affect tracing are applied."""
    cut = batch_cut_of(rewrites)
    trains = job.mode == "train"
    if cut.count > 1:
        if not trains:
            raise CaptureError("micro-batches accumulate gradients, and this job infers; use mode='train'")
        job = part_of(job, 0, cut)
    names = _input_names(job)
    with undisturbed(), cuda_lists() if CUDA_AUTOCAST in rewrites and job.autocast else nullcontext():
        require_traceable(job, names)
        with fake_step(job) as (step, inputs):
            if trains and not any(parameter.requires_grad for parameter in step.module.parameters()):
                raise CaptureError("no parameter of the module requires a gradient; use mode='infer'")
            # Autocast casts an LSTM's inputs, but the fused kernel takes float32.
            traced = joint.trace(step, inputs, names, FUSED_LSTM in rewrites and job.autocast is None)
        # A module's tensor tables may hold new tensors afterwards.
        tables = {path for path in traced.side_effects if path.rpartition(".")[2] in ("_buffers", "_parameters")}
        replaced = replaced_tensors(job) if tables else ()
        # State of installed packages is ignored.
        modules = dict(job.module.named_modules())
        paths = (path for path in traced.side_effects if path in modules or not _is_theirs(modules, path))
        changed = [path for path in paths if path not in tables]
        if changed and not replaced:
            with fake_step(job) as (step, inputs):
                joint.require_same_next_step(step, inputs)
    if replaced:
        raise CaptureError(
            f"the forward pass replaces {replaced[0]!r} by a new tensor; change the tensor itself instead: "
            "self.name.copy_(value)"
        )
    for path in changed:
        text = f"the forward pass changes {path!r}" if path else "the forward pass sets attributes of the module"
        warnings.warn(f"{text}; a placed step does not: return the values to keep as outputs", stacklevel=4)
    losses = [node.meta["val"] for node, slot in traced.outputs if slot.role == "output"]
    is_scalar = not traced.constants and [loss.numel() for loss in losses] == [1] and losses[0].is_floating_point()
    if trains and not is_scalar:
        raise CaptureError(
            f"training needs one scalar loss; this step returns {len(losses) + len(traced.constants)} values, tensors "
            f"of shapes {[list(loss.shape) for loss in losses]}: give Job(loss=...) a function that returns a scalar, "
            "as cross_entropy does"
        )
    if trains and not any(slot.role == "gradient" for _, slot in traced.outputs):
        raise CaptureError("the loss depends on no parameter of the module; give a loss that reads the module's output")
    return traced


def rewritten(job: Job, traced: joint.Traced, rewrites: Sequence[str], colocate_backward: bool = False) -> Captured:
    """The graph and the executable of a traced job, with the named rewrites applied; changes the traced graph."""
    if colocate_backward and any(map(is_split, rewrites)):
        raise CaptureError(
            "holding a backward op with its forward op would hold the parts of a split op together too; "
            "drop colocate_backward or the splits"
        )
    apply_passes(traced.module.graph, rewrites)
    if (cut := batch_cut_of(rewrites)).count > 1:
        traced = in_micro_batches(traced, flat_inputs(job), cut)
    copy_given_gradients(traced)
    first: dict[int, str] = {}
    tied = {name: first.setdefault(id(tensor), name) for name, tensor in named_tensors(job.module)}
    ops, edges, executable = build(traced, _input_names(job), tied, job.mode == "train")
    for line in traced.numbers_read:
        warnings.warn(
            f"{line!r} reads a number out of a tensor; a placed step keeps its value at capture until "
            "placed.recapture(): compute with the tensor itself, or make it a Python number",
            stacklevel=4,
        )
    if blocks := joint.checkpointed_modules(traced.module.graph):
        shown = ", ".join([*(repr(path or "the module") for path in blocks[:4]), *["…"] * (len(blocks) > 4)])
        warnings.warn(
            f"torch.utils.checkpoint around {shown} has no effect: a placed step keeps the activations inside, and the "
            "plan counts their memory",
            stacklevel=4,
        )
    if job.update is not None:
        ops, edges, executable = add_updates(ops, edges, executable, job.update)
    # Reads of a written tensor under another name would have no order relative to the write.
    constants = {f"constant {code.op}": code.constant for code in executable.of_role("constant")}
    written = [code.name for code in executable.of_role("mutation", "update")]
    if written and (found := sharing({**job_tensors(job), **constants}, written)) is not None:
        raise CaptureError(
            f"the step writes to {found[0]!r}, and {found[1]!r} is another tensor in the same memory; a placed "
            "step does not see it change: give it its own memory (.clone()), or register one tensor under both names"
        )
    homes = _homes(traced, executable, colocate_backward)
    graph = OpGraph(
        tuple(replace(op, colocate=homes.get(op.id, op.colocate)) for op in ops),
        tuple(edges),
        name=type(job.module).__name__,
        source=f"captured from {job.entry or type(job.module).__name__} with torch {torch.__version__}",
        capture=_description(job, rewrites, colocate_backward),
    )
    return Captured(replace(graph, structure_sha256=structure_sha256(graph)), executable)


def _is_theirs(modules: Mapping[str, nn.Module], path: str) -> bool:
    """True if a path names a global or an object of an installed package, such as its bookkeeping."""
    parts = path.split(".")
    for count in range(len(parts) - 1, -1, -1):
        owner = ".".join(parts[:count])
        if owner in sys.modules and count:
            return is_installed(owner)
        if owner in modules:
            value = vars(modules[owner]).get(parts[count])
            return is_installed(type(value).__module__)
    return False


def _input_names(job: Job) -> list[str]:
    leaves = pytree.tree_leaves_with_path({"args": job.args, "kwargs": dict(job.kwargs), "targets": job.targets})
    return [pytree.keystr(path).replace("['", "", 1).replace("']", "", 1) for path, _ in leaves]


def _description(job: Job, rewrites: Sequence[str], colocate_backward: bool) -> dict[str, Any]:
    tensors = flat_inputs(job)
    described: dict[str, Any] = {
        "entry": job.entry,
        "mode": job.mode,
        "args": [
            {"path": path, "shape": list(leaf.shape), "dtype": str(leaf.dtype).removeprefix("torch.")}
            for path, leaf in zip(_input_names(job), tensors, strict=True)
            if isinstance(leaf, torch.Tensor)
        ],
        "loss": None if job.loss is None else getattr(job.loss, "__qualname__", type(job.loss).__name__),
        "autocast": job.autocast,
        "torch": str(torch.__version__),
        "rewrites": list(rewrites),
    }
    # Tensors that share a storage stay on one device, even if they are different objects.
    first: dict[tuple[bool, int], str] = {}
    places = {name: (storage_of(tensor), id(tensor)) for name, tensor in named_tensors(job.module)}
    keys = {name: (place is None, place or own) for name, (place, own) in places.items()}
    if ties := {name: known for name, key in keys.items() if (known := first.setdefault(key, name)) != name}:
        described["ties"] = ties
    # Classes of which a Hugging Face model keeps each module on one device.
    whole = {name for part in job.module.modules() for name in getattr(part, "_no_split_modules", None) or ()}
    for path, part in job.module.named_modules():
        if type(part).__name__ in whole:
            described.setdefault("no_split", {}).setdefault(type(part).__name__, []).append(path)
    if job.update is not None:
        described["optimizer"] = job.update.kind
    if colocate_backward:
        described["colocate_backward"] = True
    return described


def _homes(traced: joint.Traced, executable: Executable, colocate_backward: bool) -> dict[str, str]:
    """Op → the forward op with which it is colocated, for fused LSTMs; with `colocate_backward`, for all backward ops.

    A backward op belongs to the forward op whose autograd sequence number it shares. Sums of a value's gradients from
    several readers carry the number of the last forward op; they belong to the forward op of their first reader.
    """
    # The workspace between a fused LSTM and its backward is private to the kernel.
    fused = {}
    for code in executable.of_role("call"):
        call = code.instructions[0]
        if call.target in (LSTM_FORWARD, LSTM_BACKWARD):
            fused[code.op] = code.op if call.target is LSTM_FORWARD else executable.producer[call.args[-1].name]
    if not colocate_backward:
        return fused
    op_of = {code.instructions[0].result: code.op for code in executable.of_role("call")}
    calls = [node for node in traced.module.graph.nodes if node.name in op_of and "seq_nr" in node.meta]
    numbered = [(node, node.meta["seq_nr"]) for node in calls]
    forward: dict[int, str] = {}
    for node, number in numbered:
        if not joint.is_backward(node):
            forward.setdefault(number, op_of[node.name])
    last = max(forward, default=-1)
    # Additions of two backward results.
    sums = {
        node
        for node, number in numbered
        if number == last and node.target is torch.ops.aten.add.Tensor
        if len(node.all_input_nodes) == len(node.args) == 2
        if all(map(joint.is_backward, (node, *node.all_input_nodes)))
    }
    pairs = {node: forward[number] for node, number in numbered if number in forward and node not in sums}
    for node in reversed(traced.module.graph.nodes):
        homes = [pairs[user] for user in node.users if user in pairs]
        if homes and (node in sums or node.name not in op_of):
            pairs[node] = homes[0]
    return {op_of[node.name]: home for node, home in pairs.items() if node.name in op_of} | fused
