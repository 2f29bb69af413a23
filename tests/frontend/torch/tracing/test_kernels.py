"""Kernels that exist on one type of device only: a portable counterpart, or a clear refusal."""

from typing import Any

import pytest
import torch
from frontend.torch.small_models import build, graph_of
from runtime.random_plans import needs_two_cores, placed_at_random
from torch.utils._python_dispatch import TorchDispatchMode

from dlplacer.frontend.torch.tracing.kernels import PORTABLE, attention, attention_backward

aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def heads(*sizes: int, dtype: torch.dtype, by_position: bool = False) -> torch.Tensor:
    """A random tensor of (batch, heads, positions, width), in memory perhaps with the heads of a position together."""
    tensor = torch.randn(*sizes).to(dtype)
    return tensor.transpose(1, 2).contiguous().transpose(1, 2) if by_position else tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("variant", ["plain", "causal", "added mask", "boolean mask", "scaled", "cross"])
def test_portable_attention_is_that_of_the_cpu_kernel(variant: str, by_position: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    keys = 9 if variant == "cross" else 6
    sizes = {"query": 6, "grad": 6, "key": keys, "value": keys}
    query, grad, key, value = (heads(2, 4, count, 8, dtype=dtype, by_position=by_position) for count in sizes.values())
    options = {
        "added mask": {"attn_mask": heads(2, 1, 6, 6, dtype=dtype)},
        "boolean mask": {"attn_mask": torch.rand(2, 1, 6, 6) < 0.7},
        "scaled": {"scale": 0.3},
    }.get(variant, {})
    if variant == "boolean mask":
        options["attn_mask"][..., 0] = True  # type: ignore[index]
        # The kernel is called with the mask added: torch turns booleans into zeros and -inf first.
        added = torch.zeros(2, 1, 6, 6, dtype=dtype).masked_fill(~options["attn_mask"], -torch.inf)  # type: ignore[operator]
        kernel_options = {"attn_mask": added}
    else:
        kernel_options = dict(options)
    causal = variant == "causal"
    theirs = FORWARD(query, key, value, 0.0, causal, **kernel_options)
    ours = attention(query, key, value, 0.0, causal, **options)  # type: ignore[arg-type]
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other.to(mine.dtype), **tolerance)
    assert ours[0].stride() == theirs[0].stride()
    their_gradients = BACKWARD(grad, query, key, value, *theirs, 0.0, causal, **kernel_options)
    our_gradients = attention_backward(grad, query, key, value, *ours, 0.0, causal, **options)  # type: ignore[arg-type]
    for mine, other in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(mine, other, **tolerance)
        assert mine.dtype == dtype
        assert mine.stride() == other.stride()


# Shapes, dtypes and layouts alone: later ops of a captured step rely on them.
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cudas_own_attention_leaves_tensors_as_the_cpu_kernel_does(
    dtype: torch.dtype, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlplacer.frontend.torch.tracing.kernels._is_efficient", lambda *given, **more: True)
    called: list[Any] = []
    found = []
    for forward, backward in ((FORWARD, BACKWARD), (attention, attention_backward)):
        tensors = [torch.empty(2, 6, 4, 8, dtype=dtype, device="meta").transpose(1, 2) for _ in range(4)]
        query, key, value, grad = tensors
        mask = torch.empty(2, 1, 6, 6, dtype=dtype, device="meta") if masked else None
        with Called(called):
            out, sums = forward(query, key, value, 0.0, False, attn_mask=mask)
            found.append([out, *backward(grad, query, key, value, out, sums, 0.0, False, attn_mask=mask)])
    for ours, theirs in zip(found[1], found[0], strict=True):
        assert (ours.shape, ours.dtype, ours.stride()) == (theirs.shape, theirs.dtype, theirs.stride())
    assert aten._scaled_dot_product_efficient_attention_backward.default in called


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("count", [6, 64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_cudas_own_attention_is_that_of_the_cpu_kernel(causal: bool, masked: bool, count: int) -> None:
    torch.manual_seed(0)
    query, key, value, grad = (heads(2, 4, count, 32, dtype=torch.float32, by_position=True) for _ in range(4))
    mask = heads(2, 1, count, count, dtype=torch.float32) if masked and not causal else None
    expected = FORWARD(query, key, value, 0.0, causal, attn_mask=mask)
    gradients = BACKWARD(grad, query, key, value, *expected, 0.0, causal, attn_mask=mask)
    there = [tensor.cuda() for tensor in (query, key, value)]
    found = attention(*there, 0.0, causal, attn_mask=mask if mask is None else mask.cuda())
    own = attention_backward(grad.cuda(), *there, *found, 0.0, causal, attn_mask=mask if mask is None else mask.cuda())
    for ours, theirs in zip((found[0], *own), (expected[0], *gradients), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-4)


class Called(TorchDispatchMode):
    """Notes which operators are called."""

    def __init__(self, called: list[Any]) -> None:
        super().__init__()
        self.called = called

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(func)
        return func(*args, **(kwargs or {}))


def test_rows_that_look_nowhere_give_zeros() -> None:
    query, key, value = (heads(1, 1, 3, 4, dtype=torch.float32) for _ in range(3))
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    output, sums = attention(query, key, value, attn_mask=mask)
    assert output[0, 0, 1].eq(0).all()
    gradients = attention_backward(torch.ones_like(output), query, key, value, output, sums, 0.0, False, attn_mask=mask)
    assert all(gradient.isfinite().all() for gradient in gradients)


@needs_two_cores
def test_a_step_runs_on_portable_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    for portable in (False, True):
        if portable:
            monkeypatch.setattr(
                "dlplacer.frontend.torch.tracing.kernels.runs_on", lambda target, kind: target not in PORTABLE
            )
        job = build("attention")
        with placed_at_random(job, graph=graph_of("attention")) as placed:
            losses.append(placed.step(*job.args, *job.targets))
            losses += [parameter.grad for parameter in placed.parameters()]
    half = len(losses) // 2
    for ours, theirs in zip(losses[half:], losses[:half], strict=True):
        torch.testing.assert_close(ours, theirs)
