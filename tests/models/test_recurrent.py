"""GNMT and BigLSTM: sizes of the paper, and scaled down: trained, captured, run as planned."""

from torch._subclasses.fake_tensor import FakeTensorMode

from dlplacer.frontend.torch.job import Job
from dlplacer.models import big_lstm, gnmt


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
