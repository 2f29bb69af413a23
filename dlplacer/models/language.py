"""BigLSTM (Józefowicz et al., 2016): a language model of two wide LSTM layers with projections."""

import torch
from torch import nn

from dlplacer.frontend.torch.job import Job
from dlplacer.models.image_job import dropout_or_none, seeded
from dlplacer.models.translation import sequence_loss


class BigLstm(nn.Module):
    """Logits, shape (N, T, vocabulary), for tokens of shape (N, T).

    A layer has `hidden` cells; `projection` is the width of its output, of the embedding and of the softmax.
    """

    def __init__(self, vocabulary: int, hidden: int, projection: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, projection)
        self.layers = nn.ModuleList(
            nn.LSTM(projection, hidden, proj_size=projection, batch_first=True) for _ in range(layers)
        )
        self.dropout = dropout_or_none(dropout)
        self.softmax = nn.Linear(projection, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.embedding(tokens)
        for layer in self.layers:
            states = layer(self.dropout(states))[0]
        logits: torch.Tensor = self.softmax(self.dropout(states))
        return logits


def big_lstm(
    batch_size: int = 128,
    *,
    length: int = 20,
    vocabulary: int = 32_768,
    hidden: int = 8192,
    projection: int = 1024,
    layers: int = 2,
    dropout: float = 0.0,
    seed: int = 0,
) -> Job:
    """A training step of `BigLstm` on random text: every next token is predicted.

    Parameters
    ----------
    vocabulary
        Words of the full softmax. The paper draws 8192 of 793,471 words for every step; a full softmax over all of
        them fits no device.
    hidden, projection, layers
        The defaults are those of the scaling study: 2 layers of 8192, projected to 1024.
    dropout
        Before and after every layer; the paper has 0.1.
    """
    with seeded(seed):
        network = BigLstm(vocabulary, hidden, projection, layers, dropout)
        text = torch.randint(vocabulary, (batch_size, length + 1))
    return Job(network, args=(text[:, :-1],), targets=(text[:, 1:],), loss=sequence_loss, mode="train")
