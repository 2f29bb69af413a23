"""Choices, names, checkpoints and the choice of a transport: what needs no group."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.data_parallel import TernaryState
from dlplacer.data_parallel.ternary.counters import Counters, ring_bytes
from dlplacer.data_parallel.ternary.layout import bucket_layout, sum_bits, words_for
from dlplacer.data_parallel.ternary.parameter_names import named_parameters
from dlplacer.data_parallel.ternary.sums_transport import SumParts
from dlplacer.data_parallel.ternary.transport_choice import TransportRates, fastest_transport, transport_seconds
from dlplacer.machines.costs.gradient_codecs import sum_bits as planned_sum_bits


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"clip": 0.0}, "clip is 0.0; it must be a number of standard deviations above 0"),
        ({"clip": float("nan")}, "clip is nan"),
        ({"min_numel": 0}, "min_numel is 0; it must be at least 1 element"),
        ({"transport": "ring"}, "transport is 'ring'; choose one of 'auto', 'all-gather', 'sums'"),
        ({"seed": 2**63}, "must fit into 64 bits"),
        ({"exclude": [nn.Parameter(torch.zeros(1))]}, "exclude holds a Parameter; give names"),
    ],
)
def test_choices_out_of_range(choice: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        TernaryState(**choice)


def test_a_single_pattern_is_not_taken_for_its_letters() -> None:
    assert TernaryState(exclude="fc.*").settings.exclude == ("fc.*",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "dlplacer.ternary/2"}, "format 'dlplacer.ternary/2'"),
        ({"format": None}, "format None"),
        ({"steps": "3"}, "steps is '3'; it must be a number"),
        ({"seed": True}, "seed is True"),
        ({"scalers": [1.0]}, "scalers must be an object"),
        ({"world": 2}, "unknown fields: 'world'"),
    ],
)
def test_other_checkpoints_are_refused(change: dict[str, Any], words: str) -> None:
    state = TernaryState()
    with pytest.raises(InputError, match=words):
        state.load_state_dict({**state.state_dict(), **change})


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


def test_names_are_gone_with_their_model() -> None:
    model = nn.Linear(2, 2)
    parameters = list(model.parameters())
    names = named_parameters(model, model)
    assert names.of(parameters) == ("weight", "bias")
    assert names.of([torch.zeros(2)]) is None
    assert names.matching(["w*"]) == {"weight"}
    del model
    gc.collect()
    assert names.of(parameters) is None


def test_a_hook_without_its_wrapper_says_how_to_register_it() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    bucket = SimpleNamespace(
        buffer=lambda: torch.zeros(3), index=lambda: 0, parameters=lambda: [parameter], is_last=lambda: True
    )
    with pytest.raises(InputError, match=r"register the hook with ddp\.register_comm_hook"):
        TernaryState().begin(bucket)


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


def test_counters_count_float32_bytes_on_the_cpu_only() -> None:
    counters = Counters()
    with counters.encoding(torch.device("cpu"), 10):
        pass
    with counters.encoding(torch.device("cuda"), 10), counters.decoding(torch.device("cuda"), 10):
        pass
    counters.sent(ring_bytes(4, 100))
    assert (counters.encoded_bytes, counters.decoded_bytes, counters.sent_bytes) == (40, 0, 150)
    assert counters.encode_s > 0
