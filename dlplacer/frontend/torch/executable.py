"""The executable counterpart of a graph's ops, which cannot be written to a file."""

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
    """One call: ``result = target(*args, **kwargs)``, where args and kwargs may hold `Value` references.

    The result must have the strides given, if any.
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
    ``update``. `reads`: names of the values it reads from other ops, each once. `value`: name of the value that an op
    without a call brings in. `name`: that of the parameter or buffer that it stands for or ends at. `position`: index
    among the flat inputs or outputs. `instructions`: its own call, then tuple unpacking and views of its results.
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
    """The step as code: op id → how to run it, in an order that can run, and which values the step returns.

    `outputs` are names of tensors, which `output_spec` nests as the module did; `constants` has the returned values
    that are no tensors, by their position among all; `layouts` are shape, strides and dtype of values in the capture.
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
        """Value name → id of the op that makes it."""
        return {value: code.op for code in self.codes.values() for value in code.results}

    @cached_property
    def returned(self) -> frozenset[str]:
        """Names of the values that outlive the step: its outputs and the gradients."""
        return frozenset((*self.outputs, *(code.reads[0] for code in self.of_role("gradient"))))

    def of_role(self, *roles: str) -> tuple[OpCode, ...]:
        """The codes of these roles, in order."""
        # Every step asks; looking through all ops would take as long as a tenth of a step of short ones.
        if roles not in self._of_roles:
            self._of_roles[roles] = tuple(code for code in self.codes.values() if code.role in roles)
        return self._of_roles[roles]
