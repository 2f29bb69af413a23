"""The mutants: small mistakes in every room, made by hand."""

from mutants import planning_rooms, running_rooms, solver_rooms, ternary_gradients
from mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *planning_rooms.CORE,
    *planning_rooms.FILES,
    *planning_rooms.CHECK,
    *planning_rooms.MACHINES,
    *solver_rooms.PROBLEM,
    *solver_rooms.SOLVERS,
    *planning_rooms.DATA_PARALLEL,
    *ternary_gradients.TERNARY,
    *planning_rooms.PLANNING,
    *running_rooms.FRONTEND_AND_MODELS,
    *running_rooms.REPORT,
    *running_rooms.RUNTIME,
    *running_rooms.PLACED,
    *running_rooms.MEASURE,
    *running_rooms.API,
    *running_rooms.CLI,
)
