"""Actions and op codes → the closures that a device's thread calls, one after another."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch

from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.frontend.torch.tracing.kernels import kernel_for
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.executor.native_kernels import native
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.random_state import drawn_with

Values = dict[str, Any]
"""What a device holds in one step: tensor name → tensor, None for an edge that carries only an order."""


@dataclass(frozen=True)
class StepInputs:
    """What one step is given: bound tensors by op id, and the numbers that random ops draw from.

    Attributes
    ----------
    numbers
        Value name → Python number: values that are there before the first op, on every device.
    """

    bound: Mapping[str, Any]
    seed: int
    step: int
    numbers: Mapping[str, Any] = field(default_factory=dict)


Run = Callable[[Values, StepInputs], None]


def compile_op(executable: Executable, op: str, exports: Iterable[str], device: RuntimeDevice, updater: Updater) -> Run:
    """A function that runs one op on a device, reading and writing the device's values.

    Parameters
    ----------
    exports
        What must be among the values afterwards: tensors of outgoing edges and of the step's results. Other results
        (tuples, bases of views) are dropped at once; a tensor that the op does not make only carries an order.
    """
    code = executable.codes[op]
    calls = [_compile_call(instruction, device) for instruction in code.instructions]
    wanted = set(exports)
    marks = dict.fromkeys(wanted.difference(code.results))
    dropped = [result for result in code.results if result not in wanted]
    first = _compile_role(code, updater)

    # The usual case, without loops: whatever the general closure costs more is paid on every op, while holding the
    # interpreter lock that the threads of all devices share.
    if first is None and len(calls) == 1 and not dropped and not marks and not code.random:
        ((only, only_call),) = calls

        def run_one(values: Values, inputs: StepInputs) -> None:
            values[only] = only_call(values)

        return run_one

    def run(values: Values, inputs: StepInputs) -> None:
        if first is not None:
            first(values, inputs)
        for result, call in calls:
            values[result] = call(values)
        # At once, not at the next FREE: tuples and bases of views would keep storage alive that the plan counts as
        # freed.
        for result in dropped:
            del values[result]
        if marks:
            values.update(marks)

    def run_random(values: Values, inputs: StepInputs) -> None:
        with drawn_with(inputs.seed, inputs.step, op, device.torch_device):
            run(values, inputs)

    return run_random if code.random else run


def _compile_role(code: OpCode, updater: Updater) -> Run | None:
    if code.role in ("parameter", "buffer", "input", "tangent", "constant"):

        def bring(values: Values, inputs: StepInputs) -> None:
            values[code.value] = inputs.bound[code.op]

        return bring
    if code.role == "mutation":

        def mutate(values: Values, inputs: StepInputs) -> None:
            inputs.bound[code.op].copy_(values[code.reads[0]])

        return mutate
    if code.role == "update":

        def update(values: Values, inputs: StepInputs) -> None:
            updater(code.name, values[code.reads[0]], values[code.reads[1]])

        return update
    return None


def _compile_call(instruction: Instruction, device: RuntimeDevice) -> tuple[str, Callable[[Values], Any]]:
    """The call as a function of the device's values; the common forms get one that does no more than they need."""
    target = native(kernel_for(instruction.target, device.torch_device.type))
    args = tuple(_placed(value, device) for value in instruction.args)
    kwargs = {name: _placed(value, device) for name, value in instruction.kwargs.items()}
    if any(_has_value(value) for value in kwargs.values()):
        return instruction.result, lambda values: target(
            *(_fetch(value, values) for value in args),
            **{name: _fetch(value, values) for name, value in kwargs.items()},
        )
    count = next((place for place, value in enumerate(args) if not isinstance(value, Value)), len(args))
    if count and not any(map(_has_value, args[count:])):
        names = [value.name for value in args[:count] if isinstance(value, Value)]
        return instruction.result, _leading(target, names, args[count:], kwargs)
    return instruction.result, lambda values: target(*[_fetch(value, values) for value in args], **kwargs)


def _leading(
    target: Callable[..., Any], names: Sequence[str], rest: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[[Values], Any]:
    """A call whose first arguments are values, and whose others are constants."""
    if len(names) == 1:
        (name,) = names
        if rest or kwargs:
            return lambda values: target(values[name], *rest, **kwargs)
        return lambda values: target(values[name])
    pick = itemgetter(*names)
    if rest or kwargs:
        return lambda values: target(*pick(values), *rest, **kwargs)
    return lambda values: target(*pick(values))


def _placed(value: object, device: RuntimeDevice) -> object:
    if isinstance(value, torch.device):
        return device.torch_device
    if isinstance(value, (list, tuple)):
        return [_placed(entry, device) for entry in value]
    return value


def _has_value(value: object) -> bool:
    return isinstance(value, Value) or (isinstance(value, list) and any(_has_value(entry) for entry in value))


def _fetch(value: object, values: Values) -> Any:
    if isinstance(value, Value):
        return values[value.name]
    return [_fetch(entry, values) for entry in value] if isinstance(value, list) else value
