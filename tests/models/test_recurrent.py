"""GNMT and BigLSTM: sizes of the paper, and scaled down: trained, captured, run as planned."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import dlplacer as dp
from dlplacer.frontend.torch.job import Job
from dlplacer.models import big_lstm, gnmt

SMALL_GNMT = {"batch_size": 4, "length": 3, "vocabulary": 30, "hidden": 8, "layers": 2}
SMALL_BIG_LSTM = {"batch_size": 4, "length": 3, "vocabulary": 30, "hidden": 16, "projection": 8}


def count(job: Job) -> int:
    return sum(parameter.numel() for parameter in job.module.parameters())


def lstm(inputs: int, hidden: int, output: int, projected: bool = False) -> int:
    """4 gates: weights for inputs and outputs, two biases; a projection."""
    return 4 * hidden * (inputs + output + 2) + (hidden * output if projected else 0)


# One embedding, the encoder's 2 · 1024 → 1024, 2048 → 1024 and 2 further layers, the decoder's 1024 and 3 of 2048,
# three matrices of the attention, the classifier with its bias.
def test_gnmt_has_the_size_of_the_paper() -> None:
    with FakeTensorMode():
        job = gnmt()
    hidden, words = 1024, 32_317
    encoder = 2 * lstm(hidden, hidden, hidden) + lstm(2 * hidden, hidden, hidden) + 2 * lstm(hidden, hidden, hidden)
    decoder = lstm(hidden, hidden, hidden) + 3 * lstm(2 * hidden, hidden, hidden)
    attention = 2 * hidden * hidden + hidden
    assert count(job) == 2 * words * hidden + words + encoder + decoder + attention
    assert [tuple(value.shape) for value in (*job.args, *job.targets)] == [(128, 25)] * 3


def test_big_lstm_has_the_size_of_the_paper() -> None:
    with FakeTensorMode():
        job = big_lstm()
    words, width, hidden = 32_768, 1024, 8192
    assert count(job) == 2 * words * width + words + 2 * lstm(width, hidden, width, projected=True)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("build", "sizes"), [(gnmt, SMALL_GNMT), (big_lstm, SMALL_BIG_LSTM)])
def test_placed_on_two_devices_it_computes_what_plain_pytorch_does(build: object, sizes: dict[str, int]) -> None:
    assert callable(build)
    job, plain = build(**sizes), build(**sizes)
    topology = dp.load_topology("cpu-2core")
    result = dp.place(dp.capture(job), topology, method="heft")
    placed = dp.apply(job, result.plan, ["cpu:0", "cpu:1"])
    try:
        loss = placed.step(*job.args, *job.targets)
    finally:
        placed.close()
    expected = plain.loss(plain.module(*plain.args), *plain.targets)
    expected.backward()
    assert torch.allclose(loss, expected)
    wanted = dict(plain.module.named_parameters())
    for name, parameter in job.module.named_parameters():
        assert torch.allclose(parameter.grad, wanted[name].grad, atol=1e-6), name
