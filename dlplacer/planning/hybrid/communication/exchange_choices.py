"""What an exchange costs among the workers of a machine: every choice of algorithms that may be the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.costs.collectives_on_links import MachineCosts
from dlplacer.machines.costs.gradient_exchange import GradientExchange


@dataclass(frozen=True, slots=True)
class ExchangeChoice:
    """An exchange among some workers, with an algorithm for each of its collectives.

    Attributes
    ----------
    algorithm
        Of the all-reduce; empty where there is none.
    line
        Seconds over the bytes of the float32 gradient, coding included.
    servers
        Devices that serve parameters and do not compute.
    """

    exchange: GradientExchange
    workers: int
    algorithm: str
    line: AlphaBeta
    servers: int = 0


def choices_among(costs: MachineCosts, exchange: GradientExchange) -> tuple[ExchangeChoice, ...]:
    """Every choice of algorithms that is the fastest for gradients of some size."""
    used = tuple(dict.fromkeys(collective for collective, _ in exchange.steps(costs.devices)))
    found = []
    for chosen in product(*(costs.algorithms[collective].items() for collective in used)):
        by_collective = dict(zip(used, chosen, strict=True))
        line = exchange.line({collective: line for collective, (_, line) in by_collective.items()}, costs.devices)
        algorithm = by_collective["all-reduce"][0] if "all-reduce" in by_collective else ""
        found.append(ExchangeChoice(exchange, costs.devices, algorithm, line))
    return _undominated(found)


def choice_through(costs: MachineCosts, exchange: GradientExchange, servers: Sequence[str]) -> ExchangeChoice:
    """The exchange of these workers through these servers."""
    line = exchange.line(costs.served(servers), costs.devices)
    return ExchangeChoice(exchange, costs.devices, "", line, len(servers))


def _undominated(choices: Sequence[ExchangeChoice]) -> tuple[ExchangeChoice, ...]:
    """Those below whose line no other lies everywhere; of equal ones the first."""
    kept: list[ExchangeChoice] = []
    for each in sorted(choices, key=lambda choice: (choice.line.s_per_byte, choice.line.latency_s)):
        if not kept or each.line.latency_s < kept[-1].line.latency_s:
            kept.append(each)
    return tuple(kept)
