"""The adapter to torch's symbolic numbers: whether what a step does depends on the value of a Python number.

Known to work with torch 2.11 to 2.13; `tests/frontend/torch/tracing/test_symbolic_numbers.py` holds what it relies on.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.tracing.quiet import undisturbed
from dlplacer.frontend.torch.tracing.step_module import fake_step


class _PlainUses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at what ops are given: symbols as they came in, or expressions of them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.only_plain = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs or {})):
            if isinstance(leaf, (torch.SymInt, torch.SymFloat)) and not leaf.node.expr.is_Symbol:
                self.only_plain = False
        return func(*args, **(kwargs or {}))


def only_flow_into_ops(job: Job, positions: Iterable[int]) -> bool:
    """Whether numbers among a job's flat inputs are arguments of ops and nothing else: no branch, size or loop.

    The step runs on stand-ins, with a symbol in the place of each number: torch notes every decision for which it must
    know the value, those of its own backward formulas included.
    """
    shapes = ShapeEnv(specialize_zero_one=False, duck_shape=False)
    leaves, nesting = pytree.tree_flatten((job.args, dict(job.kwargs), job.targets))
    for position in positions:
        leaves[position] = _symbol(leaves[position], f"number{position}", shapes)
    args, kwargs, targets = pytree.tree_unflatten(leaves, nesting)
    uses = _PlainUses()
    try:
        with undisturbed():
            given = replace(job, args=args, kwargs=kwargs, targets=targets)
            with fake_step(given, _mode(shapes)) as (step, inputs), torch.set_grad_enabled(step.trains), uses:
                outputs = step(*inputs)
                if step.trains:
                    outputs[0].backward()
    except Exception:  # whatever does not run on symbols needs a value
        return False
    return uses.only_plain and not shapes.guards and not shapes.replacements


def _mode(shapes: ShapeEnv) -> FakeTensorMode:
    return FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)


def _symbol(value: float, name: str, shapes: ShapeEnv) -> Any:
    from torch._dynamo.source import ConstantSource  # Importing Dynamo takes as long as importing torch.

    source = ConstantSource(name)
    symbol = shapes.create_unspecified_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
    create: Any = shapes.create_symfloatnode if isinstance(value, float) else shapes.create_symintnode
    return create(symbol, hint=value, source=source)
