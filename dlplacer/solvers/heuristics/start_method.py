"""A heuristic as the default method asks it."""

from collections.abc import Callable
from typing import NamedTuple

from dlplacer.problem.problem import Problem
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule

Start = Callable[[Problem, Instance], Schedule | None]
"""A heuristic; None where it runs out of memory."""


class StartMethod(NamedTuple):
    """A heuristic, and what tells when to ask it.

    Attributes
    ----------
    cost
        About how long it takes, in list schedules.
    find
        The heuristic.
    """

    cost: float
    find: Start
