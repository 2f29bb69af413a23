"""What an exchange costs among the workers of a machine: every choice of algorithms that may be the best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from dlplacer.machines.costs.alpha_beta import FREE, AlphaBeta
from dlplacer.machines.costs.collectives_on_links import MachineCosts
from dlplacer.machines.costs.gradient_exchange import GradientExchange


@dataclass(frozen=True, slots=True)
class ExchangeLine:
    """A choice of algorithms, and its seconds over the bytes of the float32 gradient.

    Attributes
    ----------
    algorithm
        Of the all-reduce; empty where there is none.
    servers
        Devices that serve parameters beside the workers.
    """

    algorithm: str
    line: AlphaBeta
    servers: int = 0


def lines_among(costs: MachineCosts, gradient_exchange: GradientExchange) -> tuple[ExchangeLine, ...]:
    """Every choice of all-reduce and all-gather that is best for messages of some size."""
    used = {name for name, _ in gradient_exchange.steps(costs.devices)}
    sums = costs.all_reduces if "all-reduce" in used else {"": FREE}
    gathers = (costs.ring_half, costs.doubling_gather) if "all-gather" in used else (FREE,)
    scatter = costs.ring_half if "reduce-scatter" in used else FREE
    swap = costs.all_to_all if "all-to-all" in used else FREE
    found = []
    for (name, summed), gathered in product(sums.items(), gathers):
        collectives = {"all-reduce": summed, "all-gather": gathered, "reduce-scatter": scatter, "all-to-all": swap}
        found.append(ExchangeLine(name, gradient_exchange.line(collectives, costs.devices)))
    return tuple(_undominated(found))


def line_through(costs: MachineCosts, gradient_exchange: GradientExchange, servers: Sequence[str]) -> ExchangeLine:
    """The exchange of these workers through these servers."""
    return ExchangeLine("", gradient_exchange.line(costs.served(servers), costs.devices), len(servers))


def _undominated(lines: Sequence[ExchangeLine]) -> Iterator[ExchangeLine]:
    """Lines below which no other lies everywhere; of equal ones the first."""
    for place, each in enumerate(lines):
        own = each.line.latency_s, each.line.s_per_byte
        others = ((at, (other.line.latency_s, other.line.s_per_byte)) for at, other in enumerate(lines) if at != place)
        if not any(other[0] <= own[0] and other[1] <= own[1] and (other != own or at < place) for at, other in others):
            yield each
