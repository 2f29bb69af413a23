"""What is relied on of torch's symbolic numbers: every decision that needs a value is noted."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend.torch.small_models import Calls
from torch import nn
from torch.nn import functional

from dlplacer.frontend import Job
from dlplacer.frontend.torch.tracing.symbolic_numbers import only_flow_into_ops

FLOWS: dict[str, Callable[..., Any]] = {
    "product": lambda x, a: x * a + a,
    "quotient": lambda x, a: x / a - a,
    "slope": lambda x, a: functional.leaky_relu(x, a),
    "comparison of tensors": lambda x, a: torch.where(x > a, x, x * 2),
}
DECIDES: dict[str, Callable[..., Any]] = {
    "branch": lambda x, a: x * a if a > 1 else x,
    "equality": lambda x, a: x if a == 7 else x * a,
    "truth": lambda x, a: x * a if a else x,
    "doubled": lambda x, a: x * (a * 2),
    "absolute": lambda x, a: x * abs(a),
    "root": lambda x, a: x * math.sqrt(a),
    "absolute in C": lambda x, a: x * math.fabs(a),
    "least": lambda x, a: x * min(a, 10),
    "loop": lambda x, a: sum((x * step for step in range(int(a))), x),
    "size": lambda x, a: functional.pad(x, (0, int(a))),
    "tensor": lambda x, a: x * torch.tensor(a),
}


@pytest.mark.parametrize("number", [2, 2.5])
@pytest.mark.parametrize("name", [*FLOWS, *DECIDES])
def test_only_what_ops_are_given_may_change(name: str, number: float) -> None:
    uses = {**FLOWS, **DECIDES}[name]
    module = Calls(lambda self, x, a: uses(self.fc(x), a), fc=nn.Linear(4, 4))
    for mode, loss in (("infer", None), ("train", lambda output: output.sum())):
        job = Job(module, (torch.randn(2, 4), number), loss=loss, mode=mode)
        assert only_flow_into_ops(job, [1]) == (name in FLOWS)
