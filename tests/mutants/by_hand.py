"""The mutants: small mistakes in every room, made by hand."""

from mutants import planning_rooms, running_rooms
from mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *planning_rooms.CORE,
    *planning_rooms.FILES,
    *planning_rooms.CHECK,
    *planning_rooms.MACHINES,
    *planning_rooms.PROBLEM,
    *planning_rooms.SOLVERS,
    *planning_rooms.DATA_PARALLEL,
    *planning_rooms.PLANNING,
    *running_rooms.FRONTEND_AND_MODELS,
    *running_rooms.REPORT,
    *running_rooms.RUNTIME,
    *running_rooms.MEASURE,
    *running_rooms.API,
    *running_rooms.CLI,
)
