"""Kernels of ops by type of device: torch's own, or a portable one if torch has none there."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dlplacer.core.errors import MismatchError
from dlplacer.frontend.torch.executable import Executable
from dlplacer.frontend.torch.tracing.fused_lstm import FORWARD, run_forward

aten = torch.ops.aten


def kernel_for(target: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    """The function to call for a captured op on a device: the op itself if torch can run it there."""
    if runs_on(target, device_type):
        # What calls it as plain PyTorch does depends on more than its arguments.
        return run_forward if target is FORWARD else target
    return PORTABLE.get(target, target)


def runs_on(target: Callable[..., Any], device_type: str) -> bool:
    """True if torch has a kernel for an op on a type of device."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    # "Computed" includes kernels registered under alias keys such as CompositeImplicitAutograd, which run anywhere.
    key = torch._C._dispatch_key_for_device(device_type)
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(target._name, key))


def laid_out(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The tensor itself if it has these strides, else a copy with them."""
    if tensor.stride() == strides:
        return tensor
    if all(
        size == 1 or own == wanted for size, own, wanted in zip(tensor.shape, tensor.stride(), strides, strict=True)
    ):
        return tensor.as_strided(tensor.shape, strides)
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def require_kernels(executable: Executable, device_type_of: Mapping[str, str]) -> None:
    """Refuse ops that cannot run where they are placed: `device_type_of` has torch's type of the device of an op."""
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
    """The results of the CPU kernel of scaled dot product attention on any device.

    They are the output and the logarithm of the sum of exponentials of every row of scores: by CUDA's memory-efficient
    kernel if that takes these tensors, else by matrix products. The kernel is never captured with dropout. `attn_mask`
    and `scale` may be given besides.
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
    # In memory as the query: later views rely on it.
    alike = output.shape == query.shape
    return torch.empty_like(query, dtype=output.dtype).copy_(output) if alike else output, sums


def attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, *more: Any, **given: Any
) -> tuple[Tensor, ...]:
    """Gradients of query, key and value, from the scores computed again; the counterpart of `attention`."""
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
    # In memory with the heads of a position side by side, as the CPU kernel leaves gradients.
    return tuple(tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in made)


def _is_efficient(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, attn_mask: Tensor | None = None, **_: Any
) -> bool:
    """True if CUDA's memory-efficient kernel takes these tensors."""
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
    """Softmax of the scores; 0 in rows that may look nowhere."""
    return torch.exp(scores - sums.unsqueeze(-1)).masked_fill(sums.isneginf().unsqueeze(-1), 0.0)


def _scale(query: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


PORTABLE: dict[Callable[..., Any], Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward,
}
"""Captured op that torch can run on CPUs only → the same on every device."""
