"""Requests at the edges of what can be asked: refused with the number that is wrong, or answered exactly."""

import math
from fractions import Fraction
from random import Random

import pytest

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.data_parallel.groups import LayerChain
from dlplacer.data_parallel.groups.policies import by_bytes, every
from dlplacer.planning.hybrid.advise.servers import fewest_channels, fewest_servers, transfer_s
from dlplacer.planning.hybrid.epochs.epochs import EpochsTable, StatisticalEfficiency
from dlplacer.planning.hybrid.scaling_efficiency import SerialOverhead


def test_lemma_3_2_is_exact_where_a_load_just_fits() -> None:
    """Sizes and rates with three decimals and times at which so many servers just do: ⌈2 S N ÷ (B T)⌉ in fractions."""
    draw = Random(3)
    for _ in range(2000):
        size, rate, workers = round(draw.uniform(1, 1e3), 3), round(draw.uniform(1, 1e3), 3), draw.randint(1, 64)
        exact_s = Fraction(2) * Fraction(str(size)) * workers / (draw.randint(1, 50) * Fraction(str(rate)))
        compute_s = float(exact_s)
        wanted = Fraction(2) * Fraction(str(size)) * workers / (Fraction(str(rate)) * Fraction(str(compute_s)))
        assert fewest_servers(size, workers, rate, compute_s) == max(1, math.ceil(wanted))


@pytest.mark.parametrize("ratio", [Fraction(1, 10), Fraction(3, 10), Fraction(1, 3), Fraction(1, 7), Fraction(1, 1000)])
def test_the_ceiling_of_lemma_3_1_is_never_reached(ratio: Fraction) -> None:
    ceiling = float((1 + ratio) / ratio)
    with pytest.raises(InfeasibleError, match=r"no number of devices reaches \(1 \+ R\) / R"):
        SerialOverhead(float(ratio)).workers_for(ceiling)


def test_lemma_3_1_finds_the_fewest_by_linear_scan() -> None:
    draw = Random(4)
    for _ in range(500):
        ratio, speedup = Fraction(draw.randint(0, 300), 1000), Fraction(draw.randint(100, 1500), 100)
        if ratio and speedup >= Fraction(19, 20) * (1 + ratio) / ratio:
            continue
        count = 1
        while (1 + ratio) * count / (1 + count * ratio) < speedup:
            count += 1
        assert SerialOverhead(float(ratio)).workers_for(float(speedup)) == count


def test_what_cannot_be_asked_is_refused_by_number() -> None:
    chain = LayerChain(0.0, (1.0, 1.0), (1.0, 1.0))
    efficiency = StatisticalEfficiency(EpochsTable({1: 4.0}), period_factors={8: 1.1})
    refused = {
        "0 servers of 1 bytes/s": lambda: transfer_s(1, 1, 1, 0),
        "load_bytes is -1": lambda: fewest_channels(-1, 1, 1),
        "do not hide behind 1e-300 s": lambda: fewest_servers(1e9, 4, 1e9, 1e-300),
        "parameter_bytes is nan": lambda: fewest_servers(math.nan, 1, 1, 1),
        "every 4 steps; give a factor, or use 1, 8": lambda: efficiency.epochs(1, period=4),
        "groups of 0 layers": lambda: every(chain, 0),
        "need the bytes of every layer": lambda: by_bytes(chain),
    }
    for text, ask in refused.items():
        with pytest.raises(InputError, match=text.replace("(", r"\(")):
            ask()
