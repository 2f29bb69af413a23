"""The user's constraints on a placement: pins to devices, and sets of ops that stay together."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from dlplacer.core.errors import InputError
from dlplacer.core.record import Filled, Name, Record, record


@record(frozen=True, repr=False)
class Constraints(Record):
    """Constraints of the user, beside those of the ops themselves (`Op.devices`, `Op.colocate`).

    `pins`: op id → the device that must run it, by name or by type. `colocate`: sets of op ids, each for one device. A
    graph with pins still has the structure of the model's capture.
    """

    pins: Mapping[str, Name] = field(default_factory=dict)
    colocate: tuple[Annotated[tuple[str, ...], Filled()], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pins or self.colocate)

    @property
    def names(self) -> frozenset[str]:
        """The ops that are named."""
        return frozenset(self.pins).union(*self.colocate)

    def added(self, other: "Constraints") -> "Constraints":
        """Both together.

        Raises InputError if they pin an op to two devices.
        """
        for op, device in other.pins.items():
            if self.pins.get(op, device) != device:
                raise InputError(f"op {op!r} is pinned to {self.pins[op]!r} and to {device!r}; drop one of the pins")
        sets = dict.fromkeys((*self.colocate, *other.colocate))
        return Constraints({**self.pins, **other.pins}, tuple(sets))

    def renamed(self, name_of: Mapping[str, str]) -> "Constraints":
        """The same for ops that are merged or called otherwise; those that `name_of` leaves out keep their names.

        Raises InputError if ops that are pinned to different devices become one.
        """
        merged = Constraints()
        for op, device in self.pins.items():
            merged = merged.added(Constraints({name_of.get(op, op): device}))
        sets = (tuple(dict.fromkeys(name_of.get(op, op) for op in ops)) for ops in self.colocate)
        return Constraints(merged.pins, tuple(ops for ops in sets if len(ops) > 1))
