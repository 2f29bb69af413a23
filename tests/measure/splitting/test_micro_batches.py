"""A step as micro-batches against plain PyTorch."""

import pytest
import torch
from frontend.torch.splitting.test_training import Net, job_of, plain, trained
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import CaptureError
from dlplacer.frontend import Job
from dlplacer.measure.splitting.traced_step import TracedStep


class Plain(nn.Module):
    """Convolutions with group norm, pooling, layer norm and a head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem, self.norm, self.next = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 6, 3, bias=False)
        self.last, self.head, self.dropout = nn.LayerNorm(6), nn.Linear(6, 5), nn.Dropout(dropout)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.max_pool2d(functional.relu(self.norm(self.stem(images))), 2)
        return self.head(self.dropout(self.last(functional.gelu(self.next(hidden)).mean((2, 3)))))


class Masked(nn.Module):
    """Self-attention with a packed projection and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.last = nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        heads = [part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.packed(tokens).chunk(3, -1)]
        mixed = functional.scaled_dot_product_attention(*heads, attn_mask=mask)
        return self.last(mixed.transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize(("parts", "batch"), [(2, 6), (3, 7)])
def test_micro_batches_give_the_gradients_of_the_whole_batch(parts: int, batch: int) -> None:
    torch.manual_seed(0)
    job = job_of(Plain(), batch)
    splits = TracedStep.of(job).micro_batches(parts)
    graph, loss, mine = trained(job, splits, cores=2)
    expected, theirs = plain(job)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for (name, ours), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, other.grad, rtol=1e-5, atol=1e-6, msg=name)
    convolutions = [op for op in graph.ops if op.kind == "aten.convolution"]
    assert len(convolutions) == 2 * parts
    assert all(op.origin for op in convolutions)
    # no part waits for another one before the loss: nothing is joined but what the loss reads
    joins = [op for op in graph.ops if op.kind == "aten.cat" and op.origin and op.phase == "forward"]
    assert {op.origin[0] for op in joins} <= {"_log_softmax"}


# Queries, keys and values are divisions of one product; the mask has a row for every sample.
def test_attention_runs_in_micro_batches() -> None:
    torch.manual_seed(0)
    mask = torch.rand(6, 1, 1, 6) > 0.3
    mask[..., 0] = True
    job = Job(Masked(), (torch.randn(6, 6, 8), mask), (torch.randint(5, (6,)),), functional.cross_entropy)
    splits = TracedStep.of(job).micro_batches(3)
    graph, loss, mine = trained(job, splits)
    expected, theirs = plain(job)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for (name, ours), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, other.grad, rtol=1e-5, atol=1e-6, msg=name)
    assert sum("attention" in op.kind for op in graph.ops) == 6
    joins = [op for op in graph.ops if op.kind == "aten.cat" and op.origin and op.phase == "forward"]
    assert {op.origin[0] for op in joins} <= {"_log_softmax"}


def test_another_loss_stays_whole() -> None:
    torch.manual_seed(0)
    job = job_of(Plain(), 4)
    squared = Job(job.module, job.args, targets=(torch.randn(4, 5),), loss=functional.mse_loss)
    splits = TracedStep.of(squared).micro_batches(2)
    _, loss, mine = trained(squared, splits)
    expected, theirs = plain(squared)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for ours, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, other.grad, rtol=1e-5, atol=1e-6)


def test_batch_norm_in_training_is_refused_by_name() -> None:
    with pytest.raises(CaptureError, match=r"of module 'norm' .* mixes samples, as batch norm in training mode does"):
        TracedStep.of(job_of(Net())).micro_batches(2)


def test_random_ops_are_refused() -> None:
    with pytest.raises(CaptureError, match="draws random numbers for all samples at once"):
        TracedStep.of(job_of(Plain(0.5))).micro_batches(2)


def test_more_micro_batches_than_samples_are_refused() -> None:
    with pytest.raises(CaptureError, match="the step has 6 samples; they cannot be cut into 7 micro-batches"):
        TracedStep.of(job_of(Plain())).micro_batches(7)
