"""The executable counterpart of a graph's ops; it cannot be written to a file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True, slots=True)
class Value:
    """A reference to a tensor of the step, by name, inside the arguments of an instruction."""

    name: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """One call: ``result = target(*args, **kwargs)``; args and kwargs may hold `Value` references.

    If `strides` is given, the result must have these strides.
    """

    result: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class OpCode:
    """The code of one op of the graph.

    `role`: ``call``, ``parameter``, ``buffer``, ``input``, ``tangent``, ``constant``, ``gradient``, ``mutation`` or
    ``update``. `reads`: names of the values read from other ops, each once. `value`: name of the value provided by an
    op without a call. `name`: the parameter or buffer that the op represents or writes to. `position`: index among the
    flat inputs or outputs. `instructions`: the op's call, then tuple unpacking and views of its results.
    """

    op: str
    role: str
    reads: tuple[str, ...] = ()
    value: str = ""
    name: str = ""
    position: int = 0
    instructions: tuple[Instruction, ...] = ()
    random: bool = False
    constant: Any = None

    @property
    def results(self) -> tuple[str, ...]:
        """Names of all values that exist once the op has run."""
        return (*filter(None, [self.value]), *(instruction.result for instruction in self.instructions))


@dataclass(frozen=True)
class Executable:
    """The step as code: op id → its code, in a valid execution order, and the values that the step returns.

    `outputs`: names of tensors, which `output_spec` nests like the module's output; `constants`: position among all
    outputs → returned value that is not a tensor; `layouts`: shape, strides and dtype of values in the capture.
    """

    codes: Mapping[str, OpCode]
    outputs: tuple[str, ...]
    output_spec: Any
    trains: bool
    constants: Mapping[int, Any] = field(default_factory=dict)
    layouts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    _of_roles: dict[tuple[str, ...], tuple[OpCode, ...]] = field(default_factory=dict, init=False, compare=False)

    @cached_property
    def producer(self) -> Mapping[str, str]:
        """Value name → id of the op that computes it."""
        return {value: code.op for code in self.codes.values() for value in code.results}

    @cached_property
    def returned(self) -> frozenset[str]:
        """Names of the values that outlive the step: its outputs and the gradients."""
        return frozenset((*self.outputs, *(code.reads[0] for code in self.of_role("gradient"))))

    def of_role(self, *roles: str) -> tuple[OpCode, ...]:
        """The codes with one of these roles, in order."""
        # Every step calls this; a scan of all ops would take a tenth of a step of short ops.
        if roles not in self._of_roles:
            self._of_roles[roles] = tuple(code for code in self.codes.values() if code.role in roles)
        return self._of_roles[roles]
