"""Recurrent networks: GNMT (Wu et al., 2016) and BigLSTM (Józefowicz et al., 2016)."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.job import Job
from dlplacer.models.classifiers import seeded


class Encoder(nn.Module):
    """Hidden states, shape (N, T, H), for embedded tokens of shape (N, T, H)."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.LSTM(hidden, hidden, bidirectional=True, batch_first=True)])
        for inputs in (2 * hidden, *[hidden] * (layers - 2)):
            self.layers.append(nn.LSTM(inputs, hidden, batch_first=True))

    def forward(self, embedded: torch.Tensor) -> torch.Tensor:
        states = embedded
        for position, layer in enumerate(self.layers):
            output = layer(states)[0]
            states = output + states if position >= 2 else output
        return states


class Attention(nn.Module):
    """Bahdanau attention: context, shape (N, U, H), for queries of shape (N, U, H) over keys of shape (N, T, H)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        mixed = torch.tanh(self.query(queries).unsqueeze(2) + self.key(keys).unsqueeze(1))
        weights = torch.softmax(self.score(mixed).squeeze(-1), dim=-1)
        return torch.bmm(weights, keys)


class GnmtDecoder(nn.Module):
    """Hidden states, shape (N, U, H), for embedded tokens of shape (N, U, H) and the encoder's states."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        inputs = (hidden, *[2 * hidden] * (layers - 1))
        self.layers = nn.ModuleList(nn.LSTM(count, hidden, batch_first=True) for count in inputs)
        self.attention = Attention(hidden)

    def forward(self, embedded: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.layers[0](embedded)[0]
        context = self.attention(states, encoded)
        for position, layer in enumerate(self.layers[1:]):
            output = layer(torch.cat([states, context], dim=2))[0]
            states = output + states if position >= 1 else output
        return states


class Gnmt(nn.Module):
    """Logits, shape (N, U, vocabulary), for source tokens (N, T) and target tokens (N, U), with one shared embedding.

    It follows NVIDIA's PyTorch version: residual LSTM layers, the first bidirectional. Attention reads the first
    decoder layer's output, and its context goes to all later layers, so that every layer runs in one call.
    """

    def __init__(self, vocabulary: int, hidden: int, layers: int) -> None:
        super().__init__()
        if layers < 2:
            raise InputError(f"gnmt: layers is {layers}; the encoder needs its bidirectional layer and one more: 2")
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.encoder = Encoder(hidden, layers)
        self.decoder = GnmtDecoder(hidden, layers)
        self.classifier = nn.Linear(hidden, vocabulary)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        embedded_source, embedded_target = self.embedding(source), self.embedding(target)
        return self.classifier(self.decoder(embedded_target, self.encoder(embedded_source)))


def sequence_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over all tokens, for logits (N, T, vocabulary) and tokens (N, T)."""
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def gnmt(
    batch_size: int = 128,
    *,
    length: int = 25,
    vocabulary: int = 32_317,
    hidden: int = 1024,
    layers: int = 4,
    seed: int = 0,
) -> Job:
    """A training step of `Gnmt` on random sentences of `length` tokens, source and target.

    By default the encoder and the decoder have 4 layers of 1024, as in Pal et al. 2019, section 4.
    """
    with seeded(seed):
        network = Gnmt(vocabulary, hidden, layers)
        source, target, wanted = (torch.randint(vocabulary, (batch_size, length)) for _ in range(3))
    return Job(network, args=(source, target), targets=(wanted,), loss=sequence_loss, mode="train")


class BigLstm(nn.Module):
    """Wide LSTM layers with projections: logits, shape (N, T, vocabulary), for tokens of shape (N, T).

    A layer has `hidden` cells; `projection` is the width of its output, of the embedding and of the softmax.
    """

    def __init__(self, vocabulary: int, hidden: int, projection: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, projection)
        self.layers = nn.ModuleList(
            nn.LSTM(projection, hidden, proj_size=projection, batch_first=True) for _ in range(layers)
        )
        self.softmax = nn.Linear(projection, vocabulary)

    def forward(self, tokens: torch.Tensor) -> Any:
        states = self.embedding(tokens)
        for layer in self.layers:
            states = layer(states)[0]
        return self.softmax(states)


def big_lstm(
    batch_size: int = 128,
    *,
    length: int = 20,
    vocabulary: int = 32_768,
    hidden: int = 8192,
    projection: int = 1024,
    layers: int = 2,
    seed: int = 0,
) -> Job:
    """A training step of `BigLstm` on random text, predicting each next token.

    The softmax is over the whole vocabulary; Józefowicz et al. sample 8192 of 793,471 words in every step. By default
    there are 2 layers of 8192, projected to 1024, as in Pal et al. 2019, section 4.
    """
    with seeded(seed):
        network = BigLstm(vocabulary, hidden, projection, layers)
        text = torch.randint(vocabulary, (batch_size, length + 1))
    return Job(network, args=(text[:, :-1],), targets=(text[:, 1:],), loss=sequence_loss, mode="train")
