"""The table of gradient codecs: what every transport sends and computes, counted by hand for four workers."""

import pytest

from dlplacer.machines.costs.collectives import ALGORITHMS, AlphaBeta
from dlplacer.machines.costs.gradient_codecs import CODECS, GradientExchange, exchanges, sum_bits
from dlplacer.planning.hybrid.epochs import CriticalBatch, StatisticalEfficiency

WORKERS = 4
SENT_BITS_AND_PASSES = {
    # A ring all-reduce sends 2 · 3/4 of its vector, an all-gather and an all-to-all 3/4.
    "none/all-reduce": (48, 0),
    "fp16/all-reduce": (24, 3),
    # Everybody's 2 bits are gathered: 3/4 of 8 bits. Encoding takes 3 passes, decoding 2 for each of 4 workers.
    "ternary/all-gather": (6, 11),
    # 3/4 of 2 bits to the device that sums, 3/4 of 4 bits of sums (9 levels) back; decoded on both occasions.
    "ternary/sums": (4.5, 7),
    "ternary/int8": (12, 5),
}
"""Transport → bits that a device sends for an element, and passes over its float32 gradient in memory."""


@pytest.mark.parametrize("exchange", exchanges(memory_bytes_per_s=1.0), ids=lambda exchange: exchange.name)
def test_every_transport_sends_and_codes_what_was_counted(exchange: GradientExchange) -> None:
    sent_bits, passes = SENT_BITS_AND_PASSES[exchange.name]
    assert exchange.ratio(WORKERS) == pytest.approx(48 / sent_bits)
    assert exchange.codec_s_per_byte(WORKERS) == pytest.approx(passes)
    assert (exchange.ratio(1), exchange.codec_s_per_byte(1)) == (1.0, 0.0)


@pytest.mark.parametrize("exchange", exchanges(), ids=lambda exchange: exchange.name)
def test_a_line_is_that_of_its_collectives(exchange: GradientExchange) -> None:
    costs = {name: AlphaBeta(1.0, 32.0) for name in (each.collective for each in ALGORITHMS)}
    steps = exchange.wire_bits(WORKERS)
    line = exchange.line(costs, WORKERS)
    assert (line.latency_s, line.s_per_byte) == (len(steps), sum(bits for _, bits in steps))


@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_costs_at_most_its_noise_in_epochs(codec) -> None:
    efficiency = StatisticalEfficiency(CriticalBatch(1.0, 10.0))
    factors = [(efficiency.epochs(n, codec) or 0.0) / (efficiency.epochs(n) or 1.0) for n in (1, 10, 10**6)]
    assert factors == pytest.approx([(1 + CODECS[codec] * r) / (1 + r) for r in (10, 1, 1e-5)])
    assert 1.0 <= factors[-1] <= factors[0] <= CODECS[codec]


def test_sums_of_ternary_codes_fit_their_bits() -> None:
    assert [sum_bits(workers) for workers in (1, 2, 3, 4, 7, 8, 64, 512)] == [2, 3, 3, 4, 4, 5, 8, 11]
    for workers in range(1, 600):
        assert 2 ** (sum_bits(workers) - 1) < 2 * workers + 1 <= 2 ** sum_bits(workers)
