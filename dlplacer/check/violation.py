"""One broken rule."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a plan breaks: its short name and a message with the numbers."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"
