"""Which captured ops draw random numbers."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.project(x).unflatten(-1, (2, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=self.dropout).sum()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_draws_only_for_dropout(dropout: float) -> None:
    job = Job(Attention(dropout), args=(torch.randn(2, 5, 8),))
    codes = capture_job(job, default_rewrites()).executable.codes.values()
    assert any(code.random for code in codes) == (dropout > 0)
