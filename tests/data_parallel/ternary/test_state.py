"""Choices, names, checkpoints and the choice of a transport: what needs no group."""

import pytest
from torch import nn

from dlplacer.data_parallel import TernaryState
from dlplacer.data_parallel.ternary.layout import bucket_layout, sum_bits, words_for
from dlplacer.data_parallel.ternary.parameter_names import named_parameters
from dlplacer.data_parallel.ternary.sums_transport import SumParts
from dlplacer.data_parallel.ternary.transport_choice import TransportRates, fastest_transport, transport_seconds
from dlplacer.machines.costs.gradient_codecs import sum_bits as planned_sum_bits


def test_a_checkpoint_brings_seed_and_step() -> None:
    first, second = TernaryState(seed=7), TernaryState()
    first.steps = 12
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert second.settings.seed == 7


def test_the_last_layer_is_the_last_that_owns_a_matrix() -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.LayerNorm(2))
    assert named_parameters(plain, plain).last_layer == {"1.weight", "1.bias"}
    tied = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False))
    tied[2].weight = tied[0].weight
    assert named_parameters(tied, tied).last_layer == {"0.weight"}
    assert named_parameters(nn.LayerNorm(2), nn.LayerNorm(2)).last_layer == frozenset()


def test_a_layout_covers_the_bucket() -> None:
    layout = bucket_layout([("a", 40), ("b", 3), ("c", 17), ("d", 0)], 2, lambda name, numel: numel > 10)
    assert [(span.name, span.start, span.end) for span in layout.coded] == [("a", 0, 40), ("c", 43, 60)]
    assert [(span.name, span.start, span.end) for span in layout.whole] == [("b", 40, 43), ("d", 60, 60)]
    assert layout.table.tolist() == [[0, 40, 0], [43, 17, 3]]
    assert (layout.words, layout.coded_numel, layout.whole_numel, layout.full_bytes) == (5, 57, 3, 120)
    assert [words_for(numel) for numel in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_sums_have_the_bits_that_the_planner_counts_with() -> None:
    for ranks in range(1, 200):
        assert sum_bits(ranks) == planned_sum_bits(ranks)
        assert 2 ** (sum_bits(ranks) - 1) < 2 * ranks + 1 <= 2 ** sum_bits(ranks)


RATES = TransportRates(1e-4, 1e-8, 1e-4, 1e-8, 1e-9, 1e-9, 1e-9)


def test_transports_take_what_the_formulas_say() -> None:
    layout = bucket_layout([("a", 1_600_000)], 4, lambda *_: True)
    seconds = transport_seconds(layout, 4, RATES)
    # 3 messages of 400,016 bytes and four codes to decode for each element; in parts of 25,000 words: 3 of 100,000
    # bytes there and 3 of 200,000 back (4 bits instead of 2), the agreement, and a quarter of the codes to add.
    assert seconds["all-gather"] == pytest.approx(1e-4 + 3 * 400_016e-8 + 1.6e-3)
    assert seconds["sums"] == pytest.approx(4e-4 + 3 * 100_000e-8 + 3 * 200_000e-8 + 0.4e-3 + 1.6e-3)
    assert SumParts.of(layout, 4).sent_bytes == 100_000
    assert SumParts.of(layout, 4).returned_bytes == 200_000


def test_large_buckets_are_added_and_small_ones_gathered() -> None:
    chosen = [
        fastest_transport(bucket_layout([("a", numel)], 4, lambda *_: True), 8, RATES)
        for numel in (5_000, 50_000, 500_000, 5_000_000)
    ]
    assert chosen == sorted(chosen)  # all-gather, then sums
    assert (chosen[0], chosen[-1]) == ("all-gather", "sums")
    large = bucket_layout([("a", 5_000_000)], 4, lambda *_: True)
    assert fastest_transport(large, 2, RATES) == "all-gather"
