"""The user's constraints on a placement: pins to devices, and sets of ops that stay together."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from dlplacer.core.errors import InputError
from dlplacer.core.record import Filled, Name, Record, record


@record(frozen=True, repr=False)
class Constraints(Record):
    """The user's constraints, in addition to those of the ops themselves (`Op.devices`, `Op.colocate`).

    `pins`: op id → name or type of the device that must run the op. `colocate`: sets of op ids; the ops of a set share
    a device. Constraints leave the structure of a captured graph unchanged.
    """

    pins: Mapping[str, Name] = field(default_factory=dict)
    colocate: tuple[Annotated[tuple[str, ...], Filled()], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pins or self.colocate)

    @property
    def names(self) -> frozenset[str]:
        """Ids of the ops that any constraint names."""
        return frozenset(self.pins).union(*self.colocate)

    def added(self, other: "Constraints") -> "Constraints":
        """These constraints together with `other`.

        Raises InputError if an op is then pinned to two devices.
        """
        for op, device in other.pins.items():
            if self.pins.get(op, device) != device:
                raise InputError(f"op {op!r} is pinned to {self.pins[op]!r} and to {device!r}; drop one of the pins")
        return Constraints({**self.pins, **other.pins}, tuple(dict.fromkeys((*self.colocate, *other.colocate))))
