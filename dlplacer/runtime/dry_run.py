"""Run a program without computing anything: find deadlocks and misuse before a single op runs."""

from collections.abc import Sequence

from dlplacer.errors import InternalError
from dlplacer.graph import OpGraph
from dlplacer.runtime.actions import Action, Compute, Free, Recv, Send
from dlplacer.runtime.program import Program


def dry_run(graph: OpGraph, programs: Sequence[Program]) -> None:
    """Return if the programs, run one after another, end, and every op runs once and finds its inputs.

    Raises
    ------
    InternalError
        Naming the actions at which devices wait for each other, the op whose input is missing, or what is left over.
    """
    held: dict[str, set[str]] = {}
    done: set[str] = set()
    for program in programs:
        _run_stage(graph, program, held, done)
    missing = [op.id for op in graph.ops if op.id not in done]
    if missing:
        raise InternalError(f"the program computes {len(done)} of {len(graph.ops)} ops; missing: {missing[:3]}")


def _run_stage(graph: OpGraph, program: Program, held: dict[str, set[str]], done: set[str]) -> None:
    sent: dict[tuple[str, str], str] = {}
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
    graph: OpGraph, device: str, action: Action, here: set[str], sent: dict[tuple[str, str], str], done: set[str]
) -> bool:
    """Whether the action could be taken; changes what is held, on its way and done."""
    if isinstance(action, Recv):
        if sent.get((action.tensor, device)) != action.source:
            return False
        del sent[action.tensor, device]
        here.add(action.tensor)
    elif isinstance(action, Compute):
        _compute(graph, device, action.op, here, done)
    elif action.tensor not in here:
        raise InternalError(f"{device}: {action}: the tensor is not there")
    elif isinstance(action, Send):
        if (action.tensor, action.target) in sent:
            raise InternalError(f"{device}: {action}: the tensor is on its way already")
        sent[action.tensor, action.target] = device
    elif isinstance(action, Free):
        here.remove(action.tensor)
    return True


def _compute(graph: OpGraph, device: str, op: str, here: set[str], done: set[str]) -> None:
    if op not in graph.index:
        raise InternalError(f"{device} computes op {op!r}, which the graph does not have")
    if op in done:
        raise InternalError(f"{device} computes op {op!r}, which has run already")
    lacking = [edge.tensor for edge in graph.edges_into[op] if edge.tensor not in here]
    if lacking:
        raise InternalError(f"{device} computes op {op!r} without tensor {lacking[0]!r}")
    here.update(edge.tensor for edge in graph.edges_from[op])
    done.add(op)
