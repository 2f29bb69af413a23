"""A small mistake made by hand, with the tests nearest to it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Attributes
    ----------
    file
        Path within the package.
    name
        What the mistake is.
    text, replacement
        What stands in the file, exactly once, and what the mutant has in its place.
    tests
        Paths within ``tests``.
    """

    file: str
    name: str
    text: str
    replacement: str
    tests: tuple[str, ...]
