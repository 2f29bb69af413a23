"""Times of short ops, which cores that share an interpreter cannot run at once."""

from collections.abc import Mapping


def without_turns(
    together: Mapping[str, Mapping[str, float]], alone: Mapping[str, Mapping[str, float]], shortest_s: float
) -> dict[str, dict[str, float]]:
    """Device type → op id → seconds: times side by side, but alone for ops that take less than `shortest_s` alone.

    Side by side such an op waits for the interpreter as often as not, which is no time of the op: a simulation adds
    that where other devices work beside it (`dlplacer.problem.dispatch`). Longer ops do not wait for turns; what they
    lose to their neighbours is memory bandwidth and cache, which they will lose in a plan too.

    Parameters
    ----------
    together, alone
        The same ops, timed with all devices at work and with one.
    """
    return {
        kind: {op: alone[kind][op] if alone[kind][op] < shortest_s else time_s for op, time_s in times.items()}
        for kind, times in together.items()
    }
