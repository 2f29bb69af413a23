"""Choices, names, checkpoints and the choice of a transport: what needs no group."""

from torch import nn

from dlplacer.data_parallel import TernaryState
from dlplacer.data_parallel.ternary.layout import bucket_layout, sum_bits
from dlplacer.data_parallel.ternary.parameter_names import named_parameters
from dlplacer.data_parallel.ternary.transport_choice import TransportRates, fastest_transport
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


def test_sums_have_the_bits_that_the_planner_counts_with() -> None:
    for ranks in range(1, 200):
        assert sum_bits(ranks) == planned_sum_bits(ranks)
        assert 2 ** (sum_bits(ranks) - 1) < 2 * ranks + 1 <= 2 ** sum_bits(ranks)


RATES = TransportRates(1e-4, 1e-8, 1e-4, 1e-8, 1e-9, 1e-9, 1e-9)


def test_large_buckets_are_added_and_small_ones_gathered() -> None:
    chosen = [
        fastest_transport(bucket_layout([("a", numel)], 4, lambda *_: True), 8, RATES)
        for numel in (5_000, 50_000, 500_000, 5_000_000)
    ]
    assert chosen == sorted(chosen)  # all-gather, then sums
    assert (chosen[0], chosen[-1]) == ("all-gather", "sums")
    large = bucket_layout([("a", 5_000_000)], 4, lambda *_: True)
    assert fastest_transport(large, 2, RATES) == "all-gather"
