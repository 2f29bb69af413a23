"""Which actions of a device can be one graph: stretches of ops that only enqueue kernels on the compute stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlplacer.runtime.program.actions import Action, Compute, Free


@dataclass(frozen=True, slots=True)
class ActionSegment:
    """The actions of a device from `first` to before `end`.

    Attributes
    ----------
    captured
        Whether they can be one graph.
    reason
        Why not, in the words for a user; empty where there is nothing to say.
    """

    first: int
    end: int
    captured: bool
    reason: str = ""


def graph_segments(
    actions: Sequence[Action],
    refusal: Callable[[str], str | None],
    is_work: Callable[[str], bool],
    least: int,
    longest: int,
) -> list[ActionSegment]:
    """The actions cut into stretches that can be graphs and others between them; together they are all actions.

    Only COMPUTE and FREE can be in a graph: whatever orders streams or threads ends it, as it has to happen at its own
    moment of every step.

    Parameters
    ----------
    refusal
        Op → why it cannot be captured; None if it can.
    is_work
        Op → whether it enqueues anything.
    least
        Such ops in a graph; a shorter stretch costs more to replay than its ops to issue.
    longest
        Actions in a stretch.
    """
    found: list[ActionSegment] = []
    first = 0
    while first < len(actions):
        end, ops = first, 0
        while end < len(actions) and end - first < longest:
            action = actions[end]
            if isinstance(action, Compute) and refusal(action.op) is None:
                ops += is_work(action.op)
            elif not isinstance(action, Free):
                break
            end += 1
        if ops >= least:
            found.append(ActionSegment(first, end, True))
        else:
            end = max(end, first + 1)
            # What ended the stretch belongs to what is issued one by one, as does what is too short.
            found = _joined(found, ActionSegment(first, end, False, _reason(actions[first:end], refusal)), longest)
        first = end
    return found


def _reason(actions: Sequence[Action], refusal: Callable[[str], str | None]) -> str:
    reasons = (refusal(action.op) for action in actions if isinstance(action, Compute))
    return next((reason for reason in reasons if reason is not None), "")


def _joined(found: list[ActionSegment], last: ActionSegment, longest: int) -> list[ActionSegment]:
    """The segments with one more, joined to the one before if both are issued one by one."""
    if found and not found[-1].captured and last.end - found[-1].first <= longest:
        before = found[-1]
        return [*found[:-1], ActionSegment(before.first, last.end, False, before.reason or last.reason)]
    return [*found, last]
