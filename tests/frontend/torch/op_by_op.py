"""A captured step, run op by op on the host in any order that its edges allow; beside plain PyTorch."""

import random
from typing import Any

import torch

from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.frontend.torch.executable import Instruction, OpCode, Value
from dlplacer.frontend.torch.job import flat_inputs
from dlplacer.frontend.torch.tracing.kernels import laid_out
from dlplacer.frontend.torch.tracing.step_module import job_tensors


class OpByOp:
    """The results of one step.

    Attributes
    ----------
    differed
        What returned other strides than it was traced with.
    """

    def __init__(self, job: Job, captured: Captured, seed: int = 0) -> None:
        self.values: dict[str, Any] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        self.differed: list[str] = []
        # Tied ones stay one tensor.
        own = {id(tensor): tensor.detach().clone() for tensor in job_tensors(job).values()}
        self.tensors = {name: own[id(tensor)] for name, tensor in job_tensors(job).items()}
        self.inputs = flat_inputs(job)
        for op in _any_order(captured, seed):
            self._run(captured.executable.codes[op])
        self.loss = self.values[captured.executable.outputs[0]]

    def _run(self, code: OpCode) -> None:
        if code.role in ("parameter", "buffer"):
            self.values[code.value] = self.tensors[code.name]
        elif code.role == "input":
            self.values[code.value] = self.inputs[code.position]
        elif code.role in ("constant", "tangent"):
            self.values[code.value] = code.constant if code.role == "constant" else torch.ones(())
        for entry in code.instructions:
            self._call(entry)
        if code.role == "gradient":
            self.gradients[code.name] = self.values[code.reads[0]]
        elif code.role == "mutation":
            self.tensors[code.name].copy_(self.values[code.reads[0]])

    def _call(self, entry: Instruction) -> None:
        def given(value: Any) -> Any:
            if isinstance(value, Value):
                return self.values[value.name]
            return type(value)(map(given, value)) if isinstance(value, (list, tuple)) else value

        result = entry.target(*map(given, entry.args), **{name: given(value) for name, value in entry.kwargs.items()})
        if entry.strides is not None:
            fixed = laid_out(result, entry.strides)
            assert fixed.stride() == entry.strides
            assert torch.equal(fixed.nan_to_num(), result.nan_to_num())
            if fixed.data_ptr() != result.data_ptr():
                self.differed.append(str(entry.target))
            result = fixed
        self.values[entry.result] = result


def require_plain_step(job: Job, seed: int = 0, rtol: float = 1e-5) -> OpByOp:
    """Return the captured step if its loss, gradients and buffers are those of plain PyTorch."""
    captured = capture_job(job, default_rewrites())
    ours = OpByOp(job, captured, seed)
    output = job.module(*job.args) if job.loss is not None else job.module(*job.args, *job.targets)
    loss = output if job.loss is None else job.loss(output, *job.targets)
    loss.backward()
    torch.testing.assert_close(ours.loss, loss.detach(), rtol=rtol, atol=rtol)
    for name, parameter in job.module.named_parameters():
        assert (parameter.grad is None) == (name not in ours.gradients), name
        if parameter.grad is not None:
            torch.testing.assert_close(ours.gradients[name], parameter.grad, rtol=rtol, atol=rtol, msg=name)
    for name, tensor in job_tensors(job).items():
        torch.testing.assert_close(ours.tensors[name], tensor.detach(), rtol=rtol, atol=rtol, msg=name)
    return ours


def _any_order(captured: Captured, seed: int) -> list[str]:
    draw = random.Random(seed)
    left = {op.id: {edge.source for edge in captured.graph.edges_into[op.id]} for op in captured.graph.ops}
    order: list[str] = []
    while left:
        op = draw.choice([op for op, sources in left.items() if not sources])
        order.append(op)
        del left[op]
        for sources in left.values():
            sources.discard(op)
    return order
