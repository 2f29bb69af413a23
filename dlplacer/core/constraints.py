"""Where the user wants ops: pins to devices, and sets of ops that stay together."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect_table, expect_text, tuple_of


@dataclass(frozen=True)
class Constraints:
    """What the user adds to what the ops of a graph say of themselves (`Op.devices`, `Op.colocate`).

    They are kept apart from the ops, so that a graph with pins still has the structure of the model's capture.

    Attributes
    ----------
    pins
        Op id → the device that must run it, by name or by type.
    colocate
        Sets of op ids; each set runs on one device.
    """

    pins: Mapping[str, str] = field(default_factory=dict)
    colocate: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        expect_table("constraints", pins=self.pins)
        for op, device in self.pins.items():
            expect_text("constraints", op=op, device=device)
        sets = tuple_of("constraints", "colocate", self.colocate, (tuple, list), "sets of op ids")
        named = tuple(
            tuple_of("constraints", f"colocate[{place}]", ops, str, "op ids") for place, ops in enumerate(sets)
        )
        for place, ops in enumerate(named):
            if not ops:
                raise InputError(f"the constraints' colocate[{place}] names no op; leave it out")
        object.__setattr__(self, "colocate", named)

    def __bool__(self) -> bool:
        return bool(self.pins or self.colocate)

    @property
    def names(self) -> frozenset[str]:
        """The ops that are named."""
        return frozenset(self.pins).union(*self.colocate)

    def added(self, other: "Constraints") -> "Constraints":
        """Both together.

        Raises
        ------
        InputError
            If they pin an op to two devices.
        """
        for op, device in other.pins.items():
            if self.pins.get(op, device) != device:
                raise InputError(f"op {op!r} is pinned to {self.pins[op]!r} and to {device!r}; drop one of the pins")
        sets = dict.fromkeys((*self.colocate, *other.colocate))
        return Constraints({**self.pins, **other.pins}, tuple(sets))

    def renamed(self, name_of: Mapping[str, str]) -> "Constraints":
        """The same for ops that are merged or called otherwise; those that `name_of` leaves out keep their names.

        Raises
        ------
        InputError
            If ops that are pinned to different devices become one.
        """
        merged = Constraints()
        for op, device in self.pins.items():
            merged = merged.added(Constraints({name_of.get(op, op): device}))
        sets = (tuple(dict.fromkeys(name_of.get(op, op) for op in ops)) for ops in self.colocate)
        return Constraints(merged.pins, tuple(ops for ops in sets if len(ops) > 1))
