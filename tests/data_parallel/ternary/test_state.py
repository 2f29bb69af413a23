"""Names, checkpoints and the choice of a transport: what needs no group."""

from torch import nn

from dlplacer.data_parallel import TernaryState
from dlplacer.data_parallel.ternary.state import NamedParameters, cheaper_transport


def test_a_checkpoint_brings_seed_and_step() -> None:
    first, second = TernaryState(seed=7), TernaryState()
    first.steps = 12
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert second.seed == 7


def test_the_last_layer_is_the_last_that_owns_a_matrix() -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.LayerNorm(2))
    assert NamedParameters.of(plain, plain).last_layer == {"1.weight", "1.bias"}
    assert NamedParameters.of(plain, plain).in_full_precision(["0.*"]) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    tied = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False))
    tied[2].weight = tied[0].weight
    assert NamedParameters.of(tied, tied).last_layer == {"0.weight"}
    assert NamedParameters.of(nn.LayerNorm(2), nn.LayerNorm(2)).last_layer == frozenset()


def test_the_paper_codes_all_but_the_last_layer_by_shared_scalers() -> None:
    ours, paper = TernaryState(), TernaryState.paper(seed=3)
    assert (paper.share_scaler, paper.seed) == (True, 3)
    last = frozenset({"last.bias"})
    assert [ours.codes("bias", 8, last), paper.codes("bias", 8, last)] == [False, True]
    assert not paper.codes("last.bias", 8, last)


def test_sums_are_chosen_where_they_take_half_the_bytes() -> None:
    # Bits per element that five ranks receive: 2 · 4 = 8, or (2 + 4) · 4 ÷ 5 = 4.8; six: 2 · 5 = 10, or 6 · 5 ÷ 6 = 5.
    assert [cheaper_transport(ranks) for ranks in (2, 5, 6, 64)] == ["all-gather", "all-gather", "sums", "sums"]
