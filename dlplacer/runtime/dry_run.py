"""Run a program without computing anything: find deadlocks and misuse before a single op runs."""

from collections.abc import Sequence

from dlplacer.errors import InternalError
from dlplacer.graph import OpGraph
from dlplacer.runtime.actions import Action, Compute, Free, Recv, Send
from dlplacer.runtime.program import Program


def dry_run(graph: OpGraph, programs: Sequence[Program]) -> None:
    """Return if the programs, run one after another, end, and every op finds its inputs.

    Raises
    ------
    InternalError
        Naming the actions at which devices wait for each other, the op whose input is missing, or what is left over.
    """
    held: dict[str, set[str]] = {}
    done: list[str] = []
    for program in programs:
        _run_stage(graph, program, held, done)
    missing = [op.id for op in graph.ops if op.id not in set(done)]
    if missing or len(done) > len(graph.ops):
        raise InternalError(f"the program computes {len(done)} of {len(graph.ops)} ops; missing: {missing[:3]}")


def _run_stage(graph: OpGraph, program: Program, held: dict[str, set[str]], done: list[str]) -> None:
    sent: set[tuple[str, str]] = set()
    position = dict.fromkeys(program.actions, 0)
    moved = True
    while moved:
        moved = False
        for device, actions in program.actions.items():
            here = held.setdefault(device, set())
            while position[device] < len(actions) and _step(graph, device, actions[position[device]], here, sent, done):
                position[device] += 1
                moved = True
    stuck = [
        f"{device} waits at {actions[position[device]]}"
        for device, actions in program.actions.items()
        if position[device] < len(actions)
    ]
    if stuck:
        raise InternalError(f"the program would hang: {'; '.join(stuck)}")
    if sent:
        raise InternalError(f"tensors are sent but never received: {sorted(sent)[:3]}")


def _step(
    graph: OpGraph, device: str, action: Action, here: set[str], sent: set[tuple[str, str]], done: list[str]
) -> bool:
    """Whether the action could be taken; changes what is held, on its way and done."""
    if isinstance(action, Recv):
        if (action.tensor, device) not in sent:
            return False
        sent.remove((action.tensor, device))
        here.add(action.tensor)
    elif isinstance(action, Compute):
        lacking = [edge.tensor for edge in graph.edges_into[action.op] if edge.tensor not in here]
        if lacking:
            raise InternalError(f"{device} computes op {action.op!r} without tensor {lacking[0]!r}")
        here.update(edge.tensor for edge in graph.edges_from[action.op])
        done.append(action.op)
    elif isinstance(action, Send):
        if action.tensor not in here:
            raise InternalError(f"{device} sends tensor {action.tensor!r}, which is not there")
        sent.add((action.tensor, action.target))
    elif isinstance(action, Free):
        here.remove(action.tensor)
    return True
