"""The adapter to torch's private tracing APIs: a step module → its joint ATen graph of forward and backward.

It works with torch 2.11 to 2.13; a golden test checks the behaviour that it relies on.
"""

import contextlib
import functools
import logging
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any
from unittest.mock import patch

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import name_in_python, writes_in_python
from dlplacer.frontend.torch.refusals import explanation, frames_of, line_of, place_in_code
from dlplacer.frontend.torch.tracing.kernels import LSTM_FORWARD, fuse_lstms, set_workspaces
from dlplacer.frontend.torch.tracing.stand_in import WritesRefused, quiet, real_strides
from dlplacer.frontend.torch.tracing.step_module import StepModule, named_tensors

_LEVELS = ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log")


@dataclass(frozen=True)
class Slot:
    """The meaning of an input or output of the traced graph.

    The roles of inputs are ``parameter``, ``buffer``, ``input``, ``tangent``; of outputs, ``output``, ``gradient``,
    ``mutation``. An input, output or tangent has a `position` in the flat inputs or outputs; the others have a `name`.
    """

    role: str
    name: str = ""
    position: int = 0


@dataclass(frozen=True)
class Traced:
    """An ATen graph with the meaning of its inputs and outputs; `output_spec` rebuilds the nested outputs.

    `side_effects`: paths in the module and names of globals that the forward pass changes, but the graph does not.
    `numbers_read`: lines of code that read a number from a tensor; the graph has the number's value at capture.
    """

    module: fx.GraphModule
    inputs: dict[str, Slot]
    output_slots: tuple[Slot | None, ...]
    output_spec: Any
    side_effects: tuple[str, ...] = ()
    numbers_read: tuple[str, ...] = ()

    @property
    def outputs(self) -> list[tuple[fx.Node, Slot]]:
        """The nodes that the graph returns after all rewrites so far, with their slots."""
        return [(entry, slot) for entry, slot in self._returned() if isinstance(entry, fx.Node)]

    @property
    def constants(self) -> dict[int, Any]:
        """Position among the outputs → returned value that is not a tensor of the graph: a number, a text, None."""
        held = ((entry, slot) for entry, slot in self._returned() if not isinstance(entry, fx.Node))
        return {slot.position: entry for entry, slot in held if slot.role == "output"}

    def _returned(self) -> list[tuple[Any, Slot]]:
        returned = self.module.graph.output_node().args[0]
        assert isinstance(returned, (tuple, list))
        slots = zip(returned, self.output_slots, strict=True)
        return [(entry, slot) for entry, slot in slots if slot is not None]


def trace(step: StepModule, args: tuple[Any, ...], input_names: Sequence[str], fuses_lstms: bool = False) -> Traced:
    """The ATen graph of ``step(*args)``; all tensors are stand-ins of one fake tensor mode.

    Torch's caches are cleared first: they decide which results of an op count as one tensor, and so change the graph.
    An LSTM is traced as matrix products, because torch's fused kernel exists only on CPUs; with `fuses_lstms` it is
    traced as that kernel. `input_names` appear in messages. A CaptureError names the line of the user's model.
    """
    # Dynamo captures before the joint export: torch.export in its place loses the backward region (pytorch#163609);
    # without either, the module stack is lost, and Hugging Face's GPT-2 cannot be traced with fake tensors.
    with quiet() as caught:
        try:
            joint, numbers_read = _joint_graph(step, args, fuses_lstms)
        except CaptureError as error:
            # A first forward may do untraceable work, such as installing hooks under a lock or filling a cache.
            refused = WritesRefused()  # type: ignore[no-untyped-call]
            with contextlib.suppress(Exception), tracing(False), step.mode, refused:
                inputs, named, targets = args
                step.module(*inputs, *(targets if step.trains and step.loss is None else ()), **named)
            caught.clear()
            try:
                joint, numbers_read = _joint_graph(step, args, fuses_lstms)
            except CaptureError:
                raise error from None
        if not fuses_lstms and joint.graph_module.graph.find_nodes(op="call_function", target=LSTM_FORWARD):
            with torch.backends.mkldnn.flags(enabled=False):
                joint, numbers_read = _joint_graph(step, args, fuses_lstms)
    graph = joint.graph_module.graph
    set_workspaces(graph)
    inputs = {node.name: _input_slot(node.meta["desc"]) for node in graph.find_nodes(op="placeholder")}
    described = graph.output_node().meta["desc"]
    slots = tuple(None if entry is None else _output_slot(entry, input_names) for entry in described)
    return Traced(joint.graph_module, inputs, slots, joint.out_spec, _side_effects(caught), numbers_read)


def _joint_graph(step: StepModule, args: tuple[Any, ...], fuses_lstms: bool) -> tuple[Any, tuple[str, ...]]:
    """The joint graph, and the lines of code that read numbers from tensors."""
    with tracing(step.trains), contextlib.ExitStack() as stack:
        with own_derivatives_kept():
            captured = dynamo_graph(step, args)
        read_registered_tensors(captured, step, args)
        require_right_derivatives(captured)
        if fuses_lstms:
            fuse_lstms(captured)
        from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

        stack.enter_context(torch._guards.tracing(torch._guards.TracingContext(captured.meta["fake_mode"])))
        # Inputs, parameters and buffers have no known numbers: reading one makes the capture fail here.
        read = captured.graph.find_nodes(op="call_method", target="item")
        lines = [re.findall(r"^.*[^\s^~].*$", node.meta.get("stack_trace", ""), re.MULTILINE) for node in read]
        numbers = tuple(dict.fromkeys(found[-1].strip() if found else "item()" for found in lines))
        return aot_export_joint_with_descriptors(stack, captured, args), numbers


def dynamo_graph(step: nn.Module, args: tuple[Any, ...]) -> fx.GraphModule:
    """Dynamo's graph of the torch functions that ``step(*args)`` calls; needs the context `tracing`."""
    from torch._dynamo.functional_export import dynamo_graph_capture_for_export

    captured: fx.GraphModule = dynamo_graph_capture_for_export(step)(*args)
    return captured


@contextlib.contextmanager
def tracing(trains: bool) -> Iterator[None]:
    """Set torch up for a trace, and turn its errors into CaptureErrors."""
    from torch._higher_order_ops.effects import _get_effect, _register_effectful_op

    # Models call these only to inform users. Libraries add some to all loggers, such as transformers' warning_once.
    methods = [(name, method) for name, method in vars(logging.Logger).items() if callable(method)]
    spoken = {each for name, each in methods if name in _LEVELS or getattr(each, "__module__", "logging") != "logging"}
    patched = {
        "allow_rnn": True,
        "trace_autograd_ops": True,
        "ignore_logging_functions": {print, warnings.warn, *spoken},
    }
    check = torch.ops.aten._linalg_check_errors.default
    effect = _get_effect(check)
    with (
        torch.set_grad_enabled(trains),
        torch._dynamo.config.patch(patched),
        # The validation of distributions depends on values, so it cannot be traced.
        patch.object(torch.distributions.Distribution, "_validate_args", False),
        real_strides(),
    ):
        # Since torch 2.13 the joint graph of ops like torch.linalg.inv would have the token that orders its checks as
        # an input and an output.
        _register_effectful_op(check, None)
        torch._dynamo.reset()
        FakeTensorMode.cache_clear()
        try:
            yield
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(explanation(error)) from error
        finally:
            torch._dynamo.reset()
            _register_effectful_op(check, effect)


def module_path(node: fx.Node) -> str | None:
    """Path of the module that a node comes from, without the step's prefix; None outside all modules."""
    # A backward node has its forward node's stack under another key.
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    return _path(list(stack.values())[-1][0]) if stack else None


def checkpointed_modules(graph: fx.Graph) -> list[str]:
    """Paths of the modules whose ops torch.utils.checkpoint would recompute in the backward pass."""
    inside: dict[Any, list[str]] = {}
    for node in graph.nodes:
        if "recompute" in node.meta and "ac_graph_id" in node.meta and not is_backward(node):
            inside.setdefault(node.meta["ac_graph_id"], []).append((module_path(node) or "").replace(".", "/"))
    return [os.path.commonpath(paths).replace("/", ".") for paths in inside.values()]


def is_backward(node: fx.Node) -> bool:
    """True if a node belongs to the backward pass."""
    return node.meta.get("partitioner_tag") == "is_backward"


def _input_slot(description: Any) -> Slot:
    # Compared by name, because the classes are private to torch.
    kind = type(description).__name__
    if kind in ("ParamAOTInput", "BufferAOTInput"):
        # Names in a loss module get the prefix ``(loss)``.
        own = description.target.removeprefix("module.")
        own = own if own != description.target else f"({own.replace('.', ').', 1)}"
        return Slot("parameter" if kind == "ParamAOTInput" else "buffer", own)
    if kind == "PlainAOTInput":
        return Slot("input", position=description.idx)
    if kind == "TangentAOTInput":
        if type(description.output).__name__ == "InputMutationAOTOutput":
            changed = _input_slot(description.output.mutated_input)
            raise CaptureError(
                f"the forward pass writes a value that requires a gradient into {changed.role} {changed.name!r}; write "
                "value.detach() instead, and into parameters outside the step"
            )
        return Slot("tangent", position=getattr(description.output, "idx", 0))
    raise CaptureError(f"the traced graph has an input of unknown meaning, {description}; please report this model")


def _output_slot(description: Any, input_names: Sequence[str]) -> Slot:
    kind = type(description).__name__
    if kind == "PlainAOTOutput":
        return Slot("output", position=description.idx)
    if kind == "GradAOTOutput":
        return Slot("gradient", _input_slot(description.grad_of).name)
    if kind != "InputMutationAOTOutput":
        raise CaptureError(f"the graph has an output of unknown meaning, {description}; please report this model")
    changed = _input_slot(description.mutated_input)
    if changed.role == "input":
        raise CaptureError(
            f"the model changes its input {input_names[changed.position]} in place; change a copy of it "
            "(x = x.clone()) instead"
        )
    if changed.role == "parameter":
        raise CaptureError(
            f"the forward pass changes parameter {changed.name!r} in place; change parameters outside the step"
        )
    return Slot("mutation", changed.name)


@functools.cache
def _path(source: str) -> str | None:
    """``L['self']._modules['module']._modules['fc']`` → ``fc``; None for a path outside the job's module."""
    source = re.sub(r"\._modules\['([^']*)'\]", r".\1", source)
    source = re.sub(r"\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", source)
    parts = source.split(".")
    return ".".join(parts[parts.index("module") + 1 :]) or None if "module" in parts else None


def _side_effects(caught: Sequence[warnings.WarningMessage]) -> tuple[str, ...]:
    """Changed paths inside the job's module, and changed globals other than torch's."""
    texts = [str(entry.message) for entry in caught if "side effects" in str(entry.message)]
    sources = [re.sub(r"^type\((.*)\)$", r"\1", each) for text in texts for each in re.findall(r'"([^"]+)"', text)]
    inside = [_path(source) or "" for source in sources if source.startswith("L[")]
    # ``G['__import_package_dot_module'].seen`` → ``package.module.seen``
    outside = (re.sub(r"^G\['(?:__import_)?(.*?)'\]", r"\1", source) for source in sources if source.startswith("G["))
    names = [name.replace("_dot_", ".") for name in outside]
    return tuple(dict.fromkeys([*inside, *(name for name in names if name.split(".")[0] != "torch")]))


def read_registered_tensors(captured: fx.GraphModule, step: StepModule, args: tuple[Any, ...]) -> None:
    """Make a Dynamo graph read the job's parameters and buffers by name, however the step reaches them.

    Dynamo makes every tensor that the step reaches an input of the graph. A registered tensor is replaced by the value
    that the modules read, so it gets gradients and shows changes; other tensors are constants. A CaptureError refuses
    Python's random numbers, and unregistered tensors that the step trains or changes in place.
    """
    flatten: Any = captured._dynamo_bytecode_flatten
    read = dict(zip(captured.graph.find_nodes(op="placeholder"), flatten(*args), strict=True))
    # Dynamo's names for inputs that are the modules' own tensors.
    paths = set[str]()
    for full, _ in named_tensors(step):
        *modules, leaf = re.sub(r"[^\w.]", "_", full).split(".")
        owner = "L_self_" + "".join(f"modules_{module}_" for module in modules)
        paths |= {f"{owner}parameters_{leaf}_", f"{owner}buffers_{leaf}_"}
    # A tied tensor keeps the name under which the modules read it.
    own = {step.registered.get(id(value)): node for node, value in read.items() if node.target in paths}
    outside = {}
    for node, value in read.items():
        name = step.registered.get(id(value))
        if node.name.startswith("random_value"):
            raise CaptureError(
                f"Python's random module draws a number in every step{line_of(node)}, and a placed step would keep "
                "one; draw it outside and give it as an input, or use torch.rand"
            )
        if name is not None and own.get(name) is not node:
            if name not in own:
                with captured.graph.inserting_before(node):
                    own[name] = captured.graph.get_attr(name)
                own[name].meta = dict(node.meta)
            node.replace_all_uses_with(own[name])
        elif name is None and isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            for user in node.users:
                if writes_in_python(user) and user.args and user.args[0] is node:
                    raise CaptureError(
                        f"the step changes a tensor in place{line_of(user)} that is not registered in the module, and "
                        "a placed step would not; make it a buffer: self.register_buffer(name, tensor)"
                    )
        if name is None and step.trains and isinstance(value, torch.Tensor) and value.requires_grad:
            outside[node] = value
    captured.recompile()
    if outside:
        with captured.meta["fake_mode"]:
            trained = _trained(captured(*args)[0])
    for node, value in outside.items():
        if id(value) in trained or value.grad_fn in trained:
            kind = f"{'parameter' if isinstance(value, torch.nn.Parameter) else 'tensor'} of shape {list(value.shape)}"
            raise CaptureError(
                f"the step would train a {kind} that is not registered in the module{line_of(node)}; assign it to an "
                "attribute of the module, or read its .detach()"
            )


def _trained(loss: torch.Tensor) -> set[Any]:
    """Ids of the leaves that receive gradients from a loss, and the autograd functions on the way to them."""
    functions, found = [loss.grad_fn], set[Any]()
    while functions:
        function = functions.pop()
        if function is not None and function not in found:
            found |= {function, id(getattr(function, "variable", None))}
            functions += [earlier for earlier, _ in function.next_functions]
    return found


@contextlib.contextmanager
def own_derivatives_kept() -> Iterator[None]:
    """Refuse a step in which a torch.func transform is applied to a user's autograd.Function.

    The graph would lose the function's own derivative (pytorch#193279). CaptureError is raised when the context ends.
    """
    from torch._dynamo.variables.misc import AutogradFunctionVariable

    apply, met = AutogradFunctionVariable.call_apply, list[str]()

    def watched(function: Any, tracer: Any, *arguments: Any, **more: Any) -> Any:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            place = tracer.f_code.co_filename, tracer.lineno, function.fn_cls.__name__
            met.append(f"{function.fn_cls.__qualname__}{place_in_code([place])}")
        return apply(function, tracer, *arguments, **more)

    with patch.object(AutogradFunctionVariable, "call_apply", watched):
        yield
    if met:
        raise CaptureError(
            f"torch.func transforms {met[0]}, and a captured graph would lose the derivative that it defines; use "
            "torch.autograd.grad(..., create_graph=True) in place of torch.func"
        )


def require_right_derivatives(captured: fx.GraphModule) -> None:
    """Refuse, naming the line, calls whose values or gradients would differ from plain PyTorch's."""
    for node in captured.graph.nodes:
        name = getattr(node.target, "__name__", "")
        if name == "tag_activation_checkpoint" and node.kwargs.get("use_reentrant"):
            # Parameters that are read inside do not count.
            values = [read.meta.get("example_value") for read in node.all_input_nodes if read.op.startswith("call_")]
            if not any(isinstance(value, torch.Tensor) and value.requires_grad for value in values):
                raise CaptureError(
                    f"checkpoint(use_reentrant=True) is given no tensor that requires a gradient{line_of(node)}, so "
                    "that plain PyTorch trains nothing inside; use use_reentrant=False"
                )
        if name == "multilabel_margin_loss":
            raise CaptureError(
                f"torch traces {name}{line_of(node)} as ops that compute another value than its kernel; write it in "
                "other functions, or move it out of the module"
            )


_DRAWS = ("rand", "normal", "bernoulli", "multinomial", "poisson", "dropout")


class _TwoSteps(nn.Module):
    """Two consecutive steps in a trace: Dynamo keeps Python state between them, and changes nothing outside."""

    def __init__(self, step: StepModule) -> None:
        super().__init__()
        self.step = step

    def forward(self, *args: Any) -> Any:
        first = self.step(*args)
        # On a separate line, which distinguishes its calls from the first step's.
        return first, self.step(*args)


def require_same_next_step(step: StepModule, args: tuple[Any, ...]) -> None:
    """Raise CaptureError, naming the line, if a repeated step makes other calls, or calls with other values."""
    with quiet(), tracing(step.trains):
        graph = dynamo_graph(_TwoSteps(step), args).graph
    calls: dict[str, list[tuple[fx.Node, int]]] = {}
    for node, number in _numbered(graph):
        calls.setdefault(str(frames_of(node)[:1]), []).append((node, number))
    for one, other in zip_longest(*calls.values()) if len(calls) > 1 else ():
        if one is None or other is None or one[1] != other[1]:
            line = next(filter(None, (line_of(call[0]) for call in (other, one) if call is not None)), "")
            raise CaptureError(
                f"the step changes Python state on which the next step depends{line}; a placed step computes the same "
                "in every step: keep that state in a buffer and change it in place, or give it as an input"
            )


def _numbered(graph: fx.Graph) -> list[tuple[fx.Node, int]]:
    """The calls that depend on inputs, write or draw; equal calls with equal values have equal numbers.

    Other calls give the same value in every step, such as a mask that the first step caches.
    """
    written = {read for node in graph.nodes if writes_in_python(node) for read in node.all_input_nodes}
    numbers: dict[Any, int] = {}
    number_of: dict[fx.Node, str] = {}
    varying: set[fx.Node] = set()
    calls = []
    for node in graph.nodes:
        arguments = fx.map_arg((node.args, dict(node.kwargs)), lambda read: number_of[read])
        number = numbers.setdefault((_code(node), repr(arguments)), len(numbers))
        number_of[node] = f"value {number}"
        is_call = node.op in ("call_function", "call_method")
        draws = any(sign in name_in_python(node) for sign in _DRAWS)
        varies = node.op == "placeholder" or node in written or writes_in_python(node) or draws
        if varies or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
            if is_call:
                calls.append((node, number))
    return calls


def _code(node: fx.Node) -> Any:
    """A key of a node: its kind and the function that it calls; for a higher-order op, the sub-graph without names."""
    if node.op == "placeholder":
        return node.op, node.target
    value = getattr(node.graph.owning_module, str(node.target), None) if node.op == "get_attr" else None
    if not isinstance(value, fx.GraphModule):
        return node.op, node.target
    places = {inner: f"value {place}" for place, inner in enumerate(value.graph.nodes)}
    calls = (inner for inner in places if inner.op != "placeholder")
    read = [(_code(inner), repr(fx.map_arg((inner.args, inner.kwargs), places.get))) for inner in calls]
    return node.op, len(places), tuple(read)
