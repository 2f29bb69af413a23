"""Tasks for the tests of sweeps; they live in a module of their own so that other processes can import them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlplacer.core.errors import InfeasibleError


@dataclass(frozen=True)
class Square:
    """Squares a number; leaves a mark per run, so that tests can count runs in other processes."""

    number: int
    marks: str = ""

    @property
    def name(self) -> str:
        return f"square of {self.number}"

    def content(self) -> Any:
        return self.number

    def run(self) -> Any:
        if self.number < 0:
            raise InfeasibleError(f"{self.number} is negative")
        if self.marks:
            with (Path(self.marks) / f"{self.number}").open("a") as stream:
                stream.write("x")
        return {"square": self.number**2}
