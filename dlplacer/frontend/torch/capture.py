"""A job → its captured graph: trace, rewrite, build, describe."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import fx, nn
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
from dlplacer.frontend.torch.tracing.fused_lstm import BACKWARD, FORWARD, FUSED_LSTM
from dlplacer.frontend.torch.tracing.joint import require_same_next_step
from dlplacer.frontend.torch.tracing.micro_batches import in_micro_batches, part_of
from dlplacer.frontend.torch.tracing.passes import PASSES, apply_passes, copy_given_gradients, require_known
from dlplacer.frontend.torch.tracing.quiet import undisturbed
from dlplacer.frontend.torch.tracing.stand_in import is_installed
from dlplacer.frontend.torch.tracing.step_module import (
    fake_step,
    job_tensors,
    named_tensors,
    replaced_tensors,
    sharing,
    storage_of,
)
from dlplacer.planning.pipeline.micro_batch_names import batch_cut_of

_BLOCKS_SHOWN = 4

Traceable: TypeAlias = Job | nn.Module | torch.export.ExportedProgram
"""What can be captured; a module and a program are so for inference."""


@dataclass(frozen=True)
class Captured:
    """A job's graph and the code that its ops stand for."""

    graph: OpGraph
    executable: Executable = field(repr=False)


def capture(
    job: Traceable, args: tuple[Any, ...] = (), *, whole_backward: bool = False, colocate_backward: bool = False
) -> OpGraph:
    """The dataflow graph of a step, without times; nothing is allocated.

    `job` may be a Module, fx.GraphModule or ExportedProgram, for its inference graph on `args`. `whole_backward` keeps
    the backward of a convolution in one op, `colocate_backward` holds every backward op on the device of its forward
    op, as the paper does. If the model cannot be captured, a CaptureError names the line and the way out.
    """
    wanted = job if isinstance(job, Job) else _inference(job, args)
    return capture_job(wanted, default_rewrites(whole_backward, wanted), colocate_backward).graph


def default_rewrites(whole_backward: bool = False, job: Job | None = None) -> list[str]:
    """Names of the rewrites that a capture applies, of a job with autocast those of its device type."""
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
    """The ATen graph of a job's step, or of one of its micro-batches, before all rewrites that are not of its trace."""
    cut = batch_cut_of(rewrites)
    trains = job.mode == "train"
    if cut.count > 1:
        if not trains:
            raise CaptureError("micro-batches accumulate gradients, and this job infers; use mode='train'")
        job = part_of(job, 0, cut)
    with undisturbed(), cuda_lists() if CUDA_AUTOCAST in rewrites and job.autocast else nullcontext():
        require_traceable(job, _input_names(job))
        with fake_step(job) as (step, inputs):
            if trains and not any(parameter.requires_grad for parameter in step.module.parameters()):
                raise CaptureError("no parameter of the module requires a gradient; use mode='infer'")
            # Autocast casts what an LSTM reads, and the fused kernel takes float32.
            fuses_lstms = FUSED_LSTM in rewrites and job.autocast is None
            traced = joint.trace(step, inputs, _input_names(job), fuses_lstms)
        replaced = replaced_tensors(job) if any(map(joint.is_tensor_table, traced.side_effects)) else ()
        # Without the state of installed packages, and the tables of tensors: those replaced are looked for themselves.
        modules = dict(job.module.named_modules())
        paths = (path for path in traced.side_effects if not joint.is_tensor_table(path))
        changed = [path for path in paths if path in modules or not _is_theirs(modules, path)]
        if changed and not replaced:
            with fake_step(job) as (step, inputs):
                require_same_next_step(step, inputs)
    _require_no_side_effects(changed, replaced)
    if trains:
        _require_scalar_loss(traced)
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
    ops, edges, executable = build(traced, _input_names(job), _tied(job.module), job.mode == "train")
    for line in traced.numbers_read:
        warnings.warn(
            f"{line!r} reads a number out of a tensor; a placed step computes with what it was at capture, and is "
            "captured again when an attribute of the module holds another: compute with the tensor itself, or make it "
            "a Python number",
            stacklevel=4,
        )
    if blocks := joint.checkpointed_modules(traced.module.graph):
        shown = ", ".join(repr(path or "the module") for path in blocks[:_BLOCKS_SHOWN])
        warnings.warn(
            f"torch.utils.checkpoint around {shown}{', …' * (len(blocks) > _BLOCKS_SHOWN)} has no effect: a placed "
            "step keeps the activations inside, and the plan counts their memory",
            stacklevel=4,
        )
    if job.update is not None:
        ops, edges, executable = add_updates(ops, edges, executable, job.update)
    _require_own_elements(job, executable)
    fused = _fused_pairs(executable)
    ops = [replace(op, colocate=fused.get(op.id, op.colocate)) for op in ops]
    if colocate_backward:
        pairs = _pairs(traced, executable)
        ops = [replace(op, colocate=op.colocate or pairs.get(op.id)) for op in ops]
    graph = OpGraph(
        tuple(ops),
        tuple(edges),
        name=type(job.module).__name__,
        source=f"captured from {job.entry or type(job.module).__name__} with torch {torch.__version__}",
        capture=_description(job, rewrites, colocate_backward),
    )
    return Captured(replace(graph, structure_sha256=structure_sha256(graph)), executable)


def _inference(model: Any, args: tuple[Any, ...]) -> Job:
    """The job of a bare model: on the arguments given, or on those that it was exported with."""
    if isinstance(model, torch.export.ExportedProgram):
        examples = () if model.example_inputs is None else tuple(model.example_inputs[0])
        return Job(model.module(), args=args or examples, mode="infer")
    if isinstance(model, nn.Module):
        return Job(model, args=args, mode="infer")
    raise CaptureError(
        f"cannot capture a {type(model).__name__}; give a dlplacer.Job, a torch.nn.Module, an fx.GraphModule or an "
        "ExportedProgram"
    )


def _require_no_side_effects(changed: Sequence[str], replaced: Sequence[str]) -> None:
    """Refuse side effects other than in-place changes of buffers, which the graph cannot keep."""
    if replaced:
        raise CaptureError(
            f"the forward pass puts a new tensor in the place of {replaced[0]!r}; change the tensor itself instead: "
            "self.name.copy_(value)"
        )
    for path in changed:
        text = f"the forward pass changes {path!r}" if path else "the forward pass sets attributes of the module"
        warnings.warn(f"{text}; a placed step does not: return what is to be kept as an output", stacklevel=5)


def _is_theirs(modules: Mapping[str, nn.Module], path: str) -> bool:
    """True if a forward pass changes a global or an object of an installed package, as its bookkeeping does."""
    parts = path.split(".")
    for count in range(len(parts) - 1, -1, -1):
        owner = ".".join(parts[:count])
        if owner in sys.modules and count:
            return is_installed(owner)
        if owner in modules:
            value = vars(modules[owner]).get(parts[count])
            return is_installed(type(value).__module__)
    return False


def _require_own_elements(job: Job, executable: Executable) -> None:
    """Refuse a step that writes to a tensor with two names: readers under the other name would not be ordered."""
    constants = {f"constant {code.op}": code.constant for code in executable.of_role("constant")}
    written = [code.name for code in executable.of_role("mutation", "update")]
    found = sharing({**job_tensors(job), **constants}, written) if written else None
    if found is not None:
        name, other = found
        raise CaptureError(
            f"the step writes to {name!r}, and {other!r} is another tensor with the same memory, which a placed step "
            "does not see change: give it memory of its own (.clone()), or register the one tensor under both names"
        )


def _require_scalar_loss(traced: joint.Traced) -> None:
    losses = [node.meta["val"] for node, slot in traced.outputs if slot.role == "output"]
    shapes = [list(loss.shape) for loss in losses]
    if traced.constants or len(losses) != 1 or losses[0].numel() != 1 or not losses[0].is_floating_point():
        raise CaptureError(
            f"training needs one scalar loss; this step returns {len(losses) + len(traced.constants)} values, tensors "
            f"of shapes {shapes}: give Job(loss=...) a function that returns a scalar, as cross_entropy does"
        )
    if not any(slot.role == "gradient" for _, slot in traced.outputs):
        raise CaptureError("the loss depends on no parameter of the module; give a loss that reads the module's output")


def _tied(module: nn.Module) -> dict[str, str]:
    """Name of a parameter or buffer → the first of the names that it has."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in named_tensors(module)}


def _never_split(module: nn.Module) -> dict[str, list[str]]:
    """Class → paths of its modules, of the classes that a Hugging Face model keeps on one device each."""
    classes = {name for part in module.modules() for name in getattr(part, "_no_split_modules", None) or ()}
    found: dict[str, list[str]] = {}
    for path, part in module.named_modules():
        if type(part).__name__ in classes:
            found.setdefault(type(part).__name__, []).append(path)
    return found


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
    if whole := _never_split(job.module):
        described["no_split"] = whole
    if job.update is not None:
        described["optimizer"] = job.update.kind
    if colocate_backward:
        described["colocate_backward"] = True
    return described


def _fused_pairs(executable: Executable) -> dict[str, str]:
    """Fused LSTM, forward or backward → the forward op: the workspace between them is private to the kernel."""
    pairs = {}
    for code in executable.of_role("call"):
        target = code.instructions[0].target
        if target is FORWARD:
            pairs[code.op] = code.op
        elif target is BACKWARD:
            pairs[code.op] = executable.producer[code.instructions[0].args[-1].name]
    return pairs


def _pairs(traced: joint.Traced, executable: Executable) -> dict[str, str]:
    """Op → the forward op whose autograd sequence number it shares; for a sum of gradients, that of its first reader.

    The autograd engine sums the gradients of a value with several readers between two backward functions, so these ops
    carry the number of the last forward op, which is unrelated to them.
    """
    op_of = {code.instructions[0].result: code.op for code in executable.of_role("call")}
    calls = [node for node in traced.module.graph.nodes if node.name in op_of and "seq_nr" in node.meta]
    numbered = [(node, node.meta["seq_nr"]) for node in calls]
    forward: dict[int, str] = {}
    for node, number in numbered:
        if not joint.is_backward(node):
            forward.setdefault(number, op_of[node.name])
    last = max(forward, default=-1)
    sums = {node for node, number in numbered if number == last and _adds_gradients(node)}
    pairs = {node: forward[number] for node, number in numbered if number in forward and node not in sums}
    for node in reversed(traced.module.graph.nodes):
        homes = [pairs[user] for user in node.users if user in pairs]
        if homes and (node in sums or node.name not in op_of):
            pairs[node] = homes[0]
    return {op_of[node.name]: home for node, home in pairs.items() if node.name in op_of}


def _adds_gradients(node: fx.Node) -> bool:
    """True if it adds two results of the backward pass, as the autograd engine does to accumulate gradients."""
    return (
        joint.is_backward(node)
        and node.target is torch.ops.aten.add.Tensor
        and len(node.all_input_nodes) == len(node.args) == 2
        and all(joint.is_backward(read) for read in node.all_input_nodes)
    )
