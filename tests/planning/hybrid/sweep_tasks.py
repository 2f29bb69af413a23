"""Tasks for the tests of sweeps; they live in a module of their own so that other processes can import them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Square:
    """Squares a number."""

    number: int

    @property
    def name(self) -> str:
        return f"square of {self.number}"

    def content(self) -> Any:
        return self.number

    def run(self) -> Any:
        return {"square": self.number**2}
