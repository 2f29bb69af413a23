"""Kernels of ops by device type: torch's own or a portable one; and oneDNN's LSTM in place of matrix products."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from dlplacer.core.errors import MismatchError
from dlplacer.frontend.torch.executable import Executable

aten = torch.ops.aten
FUSED_LSTM = "fused-lstm"
"""Name of the rewrite that runs an LSTM as one kernel."""
LSTM_FORWARD, LSTM_BACKWARD = torch.ops.aten.mkldnn_rnn_layer.default, torch.ops.aten.mkldnn_rnn_layer_backward.default
_LSTM_MODE = 2  # ideep::rnn_kind::LSTM
_WORKSPACE = 3
_ARGUMENTS = 9


def kernel_for(target: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    """The function to call for a captured op on a device: the op, or an equivalent if torch has no kernel there."""
    if runs_on(target, device_type):
        # The LSTM's kernel depends on the grad mode too, not only on its arguments.
        return run_forward if target is LSTM_FORWARD else target
    return PORTABLE.get(target, target)


def runs_on(target: Callable[..., Any], device_type: str) -> bool:
    """True if torch has a kernel for an op on a device type."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    # "Computed" includes kernels registered under alias keys such as CompositeImplicitAutograd, which run anywhere.
    key = torch._C._dispatch_key_for_device(device_type)
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(target._name, key))


def laid_out(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The tensor itself if it has these strides, else a copy with them."""
    if tensor.stride() == strides:
        return tensor
    both = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if all(size == 1 or own == wanted for size, own, wanted in both):
        return tensor.as_strided(tensor.shape, strides)
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def require_kernels(executable: Executable, device_type_of: Mapping[str, str]) -> None:
    """Refuse ops that cannot run on their planned device; `device_type_of`: op → torch's type of its device."""
    for code in executable.of_role("call"):
        device_type = device_type_of.get(code.op)
        for instruction in code.instructions:
            if device_type is not None and not runs_on(kernel_for(instruction.target, device_type), device_type):
                raise MismatchError(
                    f"op {code.op!r} calls {instruction.target}, which has no kernel for {device_type} devices; plan "
                    "it elsewhere with Op.devices in the graph, or register a kernel with torch.library"
                )


def attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, **given: Any
) -> tuple[Tensor, Tensor]:
    """The results of the CPU kernel of scaled dot-product attention, on any device.

    They are the output and the log-sum-exp of every row of scores. CUDA's memory-efficient kernel computes them if it
    accepts these tensors, otherwise matrix products do. `given`: `attn_mask`, `scale`; `dropout_p` is ignored.
    """
    if _is_efficient(query, key, value, is_causal, **given):
        bias = _aligned(given.get("attn_mask"), query, key)
        output, sums, *_ = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, True, 0.0, is_causal, scale=given.get("scale")
        )
    else:
        scores = _scores(query, key, is_causal, **given)
        sums = torch.logsumexp(scores, -1)
        output = torch.matmul(_weights(scores, sums).to(value.dtype), value)
    # With the query's memory layout, on which later views rely.
    alike = output.shape == query.shape
    return torch.empty_like(query, dtype=output.dtype).copy_(output) if alike else output, sums


def attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, *more: Any, **given: Any
) -> tuple[Tensor, ...]:
    """Gradients of query, key and value from recomputed scores; the counterpart of `attention`."""
    _, is_causal = more
    if _is_efficient(query, key, value, is_causal, **given):
        # Only dropout reads the state of the generator.
        unread = torch.empty((), dtype=torch.int64, device=query.device)
        inputs = query, key, value, _aligned(given.get("attn_mask"), query, key), out, sums, unread, unread
        made = aten._scaled_dot_product_efficient_attention_backward(
            grad, *inputs, 0.0, [True, True, True, False], is_causal, scale=given.get("scale")
        )[:3]
    else:
        weights = _weights(_scores(query, key, is_causal, **given), sums)
        grad_value = torch.matmul(weights.to(value.dtype).mT, grad)
        grad_weights = torch.matmul(grad, value.mT).to(weights.dtype)
        rows = (grad * out).to(weights.dtype).sum(-1, keepdim=True)
        grad_scores = (weights * (grad_weights - rows) * _scale(query, given.get("scale"))).to(query.dtype)
        made = torch.matmul(grad_scores, key), torch.matmul(grad_scores.mT, query), grad_value
    # The heads of a position are adjacent in memory, like the CPU kernel's gradients.
    return tuple(tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in made)


def _is_efficient(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, attn_mask: Tensor | None = None, **_: Any
) -> bool:
    """True if CUDA's memory-efficient kernel accepts these tensors."""
    if not query.is_cuda:
        return False
    params = torch.backends.cuda.SDPAParams(query, key, value, attn_mask, 0.0, is_causal, False)
    return torch.backends.cuda.can_use_efficient_attention(params)


def _aligned(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The mask for all heads, in rows aligned for the kernel."""
    if mask is None:
        return None
    width = mask.shape[-1]
    padded = torch.nn.functional.pad(mask, (0, -width % 16)).narrow(-1, 0, width)
    return padded.expand(*query.shape[:-1], key.shape[-2])


def _scores(
    query: Tensor, key: Tensor, is_causal: bool, attn_mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Scores before the softmax, in float32 at least; -inf for masked positions."""
    # The CPU kernel accumulates scores of half precision in float32; a softmax in bfloat16 would differ from it
    # visibly.
    scores = torch.matmul(query, key.mT).to(torch.promote_types(query.dtype, torch.float32)) * _scale(query, scale)
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if boolean else scores + attn_mask
    return scores


def _weights(scores: Tensor, sums: Tensor) -> Tensor:
    """Softmax of the scores; 0 in rows that are fully masked."""
    return torch.exp(scores - sums.unsqueeze(-1)).masked_fill(sums.isneginf().unsqueeze(-1), 0.0)


def _scale(query: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


PORTABLE: dict[Callable[..., Any], Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward,
}
"""Captured op that torch can run only on CPUs → an equivalent for every device."""


def fuse_lstms(module: fx.GraphModule) -> None:
    """Replace the LSTMs of a captured module by the fused kernel that plain PyTorch uses.

    If any region of the step uses autocast, all LSTMs stay as they are, because autocast decides their dtype.
    """
    for node in module.graph.nodes:
        # The arguments are device type, dtype, enabled, …
        if getattr(node.target, "__name__", "") == "_enter_autocast" and (len(node.args) < 3 or node.args[2]):
            return
    for node in module.graph.find_nodes(op="call_function", target=torch.lstm):
        args = fx.map_arg(node.args, lambda read: read.meta.get("example_value"))
        # A packed sequence has its lengths in place of the states.
        if len(args) == _ARGUMENTS and not node.kwargs and isinstance(args[1], (tuple, list)):
            # The kernel supports float32 only, and no projections.
            data, states, weights = args[:3]
            floats = all(getattr(each, "dtype", None) is torch.float32 for each in (data, *states, *weights))
            same_width = floats and data.numel() > 0 and states[0].shape[2] == states[1].shape[2]
            if torch._C._has_mkldnn and same_width:
                node.target = lstm
    module.recompile()


def lstm(
    data: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *given: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The result of ``torch.lstm``, with the calls of its CPU path (``aten/src/ATen/native/mkldnn/RNN.cpp``)."""
    has_biases, layers, dropout, train, bidirectional, batch_first = given
    directions, per_layer = 1 + bidirectional, 2 + 2 * has_biases
    data = (data.transpose(0, 1) if batch_first else data).contiguous()
    hidden, cells = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            own = list(weights[per_layer * place : per_layer * (place + 1)])
            if not has_biases:
                own += [torch.zeros_like(weight) for weight in own]
            begin = [state[place].contiguous() for state in states]
            output, last, cell, _ = LSTM_FORWARD(
                data, *own, *begin, direction == 1, [], _LSTM_MODE, begin[0].shape[1], layers, has_biases,
                bidirectional, batch_first, train,
            )  # fmt: skip
            outputs.append(output)
            hidden.append(last)
            cells.append(cell)
        data = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < layers - 1:
            data = torch.dropout(data, dropout, train=True)
    return data.transpose(0, 1) if batch_first else data, torch.stack(hidden), torch.stack(cells)


def run_forward(*args: Any) -> Any:
    """Call the LSTM's kernel with gradients enabled; otherwise it leaves no workspace for its backward."""
    with torch.enable_grad():
        return LSTM_FORWARD(*(entry.detach() if isinstance(entry, Tensor) else entry for entry in args))


def set_workspaces(graph: fx.Graph) -> None:
    """Give workspaces a stand-in of about their real size: torch's stand-ins for them are empty.

    Each has 4 gates of the output's size and padded states. The formula fits oneDNN 3.12 within 7 % and whole pages.
    """
    for node in graph.find_nodes(op="call_function", target=LSTM_FORWARD):
        if node.args[-1]:
            values = list(node.meta["val"])
            steps, batch, width = values[0].shape
            size = 28_672 + round(4 * batch * width * (15.5 * steps + 4))
            values[_WORKSPACE] = values[_WORKSPACE].new_empty(size)
            node.meta["val"] = tuple(values)
            for user in node.users:
                if user.args[1] == _WORKSPACE:
                    user.meta["val"] = values[_WORKSPACE]
