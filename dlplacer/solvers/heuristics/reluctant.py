"""HEFT that is reluctant to send, where links are contended: on the machine and on parts of it, by several ranks."""

from collections.abc import Iterator, Sequence
from functools import partial
from threading import Lock

from dlplacer.solvers.decode.decode import Rule, decode
from dlplacer.solvers.heuristics.construct import DELAY_WEIGHTS
from dlplacer.solvers.heuristics.orders import by_rank, in_order, upward_ranks
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import ask_time, side_by_side

RELUCTANCES = (1.0, 0.25, 2.0, 4.0)
"""By how much the end of an op on a device counts as later for each tick that its inputs are on their way: what is sent
holds up what is sent later, which the end does not tell. On a slow network each finds something else: a stencil of
2,000 ops on four hosts takes 87 ms by HEFT itself, 46 with 1 and 34 with 2."""


def offer_reluctant(instance: Instance, incumbent: Incumbent, subsets: Sequence[Sequence[int]], workers: int) -> None:
    """Offer the schedules of all ranks, reluctances and sets of devices, as far as the time goes.

    Parameters
    ----------
    subsets
        Devices that may be used, the machine first.
    """
    work, lock = sum(instance.shortest), Lock()

    def offer(rule: Rule, workers: int) -> None:
        ask_time()
        best = incumbent.best
        if best is None or work < best.makespan * len(rule.devices or ()):
            found = decode(instance, rule)
            with lock:
                incumbent.offer(found)

    side_by_side([partial(offer, rule) for rule in _rules(instance, subsets)], workers)


def _rules(instance: Instance, subsets: Sequence[Sequence[int]]) -> Iterator[Rule]:
    """Each rank and reluctance on every set of devices in turn; HEFT and lists on those that are not the machine."""
    for weight in DELAY_WEIGHTS:
        order = in_order(by_rank(instance, upward_ranks(instance, weight)))
        for reluctance in RELUCTANCES:
            yield from (Rule(order, devices=devices, reluctance=reluctance) for devices in subsets)
        for works_on in (False, True):
            yield from (Rule(order, devices=devices, works_on=works_on) for devices in subsets[1:])
