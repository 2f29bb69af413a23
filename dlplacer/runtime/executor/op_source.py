"""The code of an op → lines of a function that runs its device's actions."""

from collections.abc import Iterable
from operator import getitem

import torch

from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.frontend.torch.tracing.kernels import kernel_for, laid_out
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.executor.function_source import FunctionSource
from dlplacer.runtime.executor.native_kernels import native
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.random_state import generator_lock, generator_of, seed_for


def write_op(
    source: FunctionSource,
    executable: Executable,
    op: str,
    exports: Iterable[str],
    device: RuntimeDevice,
    updater: Updater,
) -> None:
    """Write the lines that run one op on a device.

    Parameters
    ----------
    exports
        What must be among the device's values afterwards: tensors of outgoing edges and of the step's results. Other
        results (tuples, bases of views) are dropped at once; a tensor that the op does not make only carries an order,
        and is None.
    """
    code = executable.codes[op]
    wanted = set(exports)
    if code.random:
        # In front of the block, so that its values are there however it ends.
        for name in code.reads:
            source.read(name)
        _begin_draw(source, op, device.torch_device)
    _write_role(source, code, updater)
    for instruction in code.instructions:
        call = _call(source, instruction, device)
        if instruction.strides is not None:
            call = f"{source.bound(laid_out)}({call}, {source.bound(instruction.strides)})"
        source.write(instruction.result, call)
    if code.random:
        _end_draw(source)
    # At once, not at the next FREE: tuples and bases of views would keep storage alive that the plan counts as freed.
    for result in dict.fromkeys(code.results):
        if result not in wanted:
            source.free(result)
    for mark in sorted(wanted.difference(code.results)):
        source.write(mark, "None")


def _begin_draw(source: FunctionSource, op: str, device: torch.device) -> None:
    """As `drawn_with`, written out: a context manager in Python that a Ctrl-C interrupts would keep the lock."""
    here = source.bound(device)
    source.line(f"with {source.bound(generator_lock)}({here}):")
    source.indent(1)
    source.line(f"generator = {source.bound(generator_of)}({here})")
    source.line("generator_state = generator.get_state()")
    source.line("try:")
    source.indent(1)
    source.line(f"{source.bound(seed_for)}(generator, inputs.seed, inputs.step, {source.bound(op)})")


def _end_draw(source: FunctionSource) -> None:
    source.indent(-1)
    source.line("finally:")
    source.indent(1)
    source.line("generator.set_state(generator_state)")
    source.indent(-2)


def _write_role(source: FunctionSource, code: OpCode, updater: Updater) -> None:
    if code.role in ("parameter", "buffer", "input", "tangent", "constant"):
        source.write(code.value, f"bound[{source.bound(code.op)}]")
    elif code.role == "mutation":
        source.line(f"bound[{source.bound(code.op)}].copy_({source.read(code.reads[0])})")
    elif code.role == "update":
        weight, gradient = map(source.read, code.reads[:2])
        source.line(f"{source.bound(updater)}({source.bound(code.name)}, {weight}, {gradient})")


def _call(source: FunctionSource, instruction: Instruction, device: RuntimeDevice) -> str:
    """The expression that makes the instruction's result."""
    if instruction.target is getitem and isinstance(instruction.args[1], int) and not instruction.kwargs:
        return f"{_argument(source, instruction.args[0], device)}[{int(instruction.args[1])}]"
    target = native(kernel_for(instruction.target, device.torch_device.type))
    args = [_argument(source, value, device) for value in instruction.args]
    if any(_has_value(value) for value in instruction.kwargs.values()):
        # The names are strings of the namespace as well: a user's own operator may call its arguments what it likes.
        pairs = [
            f"{source.bound(name)}: {_argument(source, value, device)}" for name, value in instruction.kwargs.items()
        ]
        args.append(f"**{{{', '.join(pairs)}}}")
    elif instruction.kwargs:
        args.append(f"**{source.bound({name: _placed(value, device) for name, value in instruction.kwargs.items()})}")
    return f"{source.bound(target)}({', '.join(args)})"


def _argument(source: FunctionSource, value: object, device: RuntimeDevice) -> str:
    if isinstance(value, Value):
        return source.read(value.name)
    if isinstance(value, (list, tuple)) and _has_value(value):
        return f"[{', '.join(_argument(source, entry, device) for entry in value)}]"
    return source.bound(_placed(value, device))


def _placed(value: object, device: RuntimeDevice) -> object:
    if isinstance(value, torch.device):
        return device.torch_device
    if isinstance(value, (list, tuple)):
        return [_placed(entry, device) for entry in value]
    return value


def _has_value(value: object) -> bool:
    return isinstance(value, Value) or (isinstance(value, (list, tuple)) and any(_has_value(entry) for entry in value))
