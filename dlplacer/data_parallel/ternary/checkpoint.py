"""What a checkpoint of `TernaryState` holds, checked when it is loaded."""

from collections.abc import Mapping
from typing import Any, TypedDict

from dlplacer.core.errors import InputError

FORMAT = "dlplacer.ternary/1"


class TernaryCheckpoint(TypedDict):
    """Where a run stands: its random streams (seed, step), its bytes, and the last scaler of every parameter."""

    format: str
    seed: int
    steps: int
    sent_bytes: float
    full_bytes: float
    scalers: dict[str, float]


_NUMBERS: dict[str, type[int] | tuple[type[int], type[float]]] = {
    "seed": int,
    "steps": int,
    "sent_bytes": (int, float),
    "full_bytes": (int, float),
}


def checked_checkpoint(given: Mapping[str, Any]) -> TernaryCheckpoint:
    """A checkpoint of this version.

    Raises
    ------
    InputError
        If it is another one, or a field is missing, unknown or of the wrong type.
    """
    if given.get("format") != FORMAT:
        raise InputError(
            f"a state dict of format {given.get('format')!r}; TernaryState loads {FORMAT!r}, as it gives it"
        )
    wanted = set(TernaryCheckpoint.__annotations__)
    if set(given) != wanted:
        odd = ", ".join(sorted(map(repr, set(given) ^ wanted)))
        raise InputError(f"a state dict of ternary gradients with missing or unknown fields: {odd}")
    for name, kind in _NUMBERS.items():
        if not isinstance(given[name], kind) or isinstance(given[name], bool):
            raise InputError(f"a state dict of ternary gradients: {name} is {given[name]!r}; it must be a number")
    scalers = given["scalers"]
    if not isinstance(scalers, Mapping) or not all(isinstance(value, (int, float)) for value in scalers.values()):
        raise InputError("a state dict of ternary gradients: scalers must be an object of names and numbers")
    return TernaryCheckpoint(
        format=FORMAT,
        seed=given["seed"],
        steps=given["steps"],
        sent_bytes=float(given["sent_bytes"]),
        full_bytes=float(given["full_bytes"]),
        scalers={str(name): float(value) for name, value in scalers.items()},
    )
