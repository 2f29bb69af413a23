"""Jobs for the table of predictions: branchy, chain, recurrent, attention, two towers; a step takes 2 to 300 ms, and
five runs of a model take a minute or two."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from dlplacer import models
from dlplacer.frontend import Job


class Layer(nn.Module):
    """A transformer layer, norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(attended.transpose(1, 2).reshape(batch, length, width))
        narrowed: torch.Tensor = self.narrow(functional.gelu(self.widen(self.second(x))))
        return x + narrowed


class Attention(nn.Module):
    """A decoder-only language model."""

    def __init__(self, words: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.words(words) + self.places.weight)
        logits: torch.Tensor = self.head(x).flatten(0, 1)
        return logits


class TwoTowers(nn.Module):
    """Two deep networks whose outputs are compared."""

    def __init__(self, features: int, width: int, depth: int) -> None:
        super().__init__()
        sizes = [features, *[width] * depth, 128]
        towers = [
            nn.Sequential(*(step for a, b in pairwise(sizes) for step in (nn.Linear(a, b), nn.GELU())))
            for _ in range(2)
        ]
        self.left, self.right = towers

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.left(left) @ self.right(right).t()


class AttentionGru(nn.Module):
    """A translator: two GRU cells read, a third writes and looks at what was read; every cell is a call of its own."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.ahead, self.back = nn.GRUCell(width, width), nn.GRUCell(width, width)
        self.write = nn.GRUCell(3 * width, width)
        self.look, self.head = nn.Linear(width, 2 * width), nn.Linear(3 * width, words)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        steps = self.source(source).unbind(1)
        ahead, back = [self.ahead(steps[0])], [self.back(steps[-1])]
        for step, other in zip(steps[1:], steps[-2::-1], strict=True):
            ahead.append(self.ahead(step, ahead[-1]))
            back.append(self.back(other, back[-1]))
        read = torch.cat((torch.stack(ahead, 1), torch.stack(back[::-1], 1)), 2)
        state, found = ahead[-1], []
        for word in self.target(target).unbind(1):
            seen = torch.bmm(torch.softmax(torch.bmm(self.look(state)[:, None], read.mT), 2), read)[:, 0]
            state = self.write(torch.cat((word, seen), 1), state)
            found.append(self.head(torch.cat((state, seen), 1)))
        return torch.stack(found, 1).flatten(0, 1)


class Chains(nn.Module):
    """Chains of products of small matrices, each with its nonlinearity, which depend on nothing of each other."""

    def __init__(self, count: int, length: int, width: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(count, width, width) / width**0.5)
        self.length = length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = []
        for weight in self.weights.unbind():
            end = x
            for _ in range(self.length):
                end = torch.tanh(end @ weight)
            ends.append(end)
        return torch.stack(ends).sum(0)


def attention_gru() -> Job:
    """A step of about 1,700 small ops on 16 pairs of texts of 12 words."""
    torch.manual_seed(0)
    source, target = torch.randint(500, (16, 12)), torch.randint(500, (16, 12))
    module = AttentionGru(500, 64)
    return Job(module, (source, target), (torch.randint(500, (192,)),), functional.cross_entropy)


def small_transformer() -> Job:
    """A language model of twelve narrow layers on one text of 64 words."""
    torch.manual_seed(0)
    module, words = Attention(1000, 64, 12, 4, 64), torch.randint(1000, (1, 64))
    return Job(module, (words,), (torch.randint(1000, (64,)),), functional.cross_entropy)


def chains(count: int, length: int, width: int) -> Job:
    """Inference on one small matrix."""
    torch.manual_seed(0)
    return Job(Chains(count, length, width), (torch.randn(width, width),), mode="infer")


def attention() -> Job:
    """A language model step on a text of 256 words."""
    torch.manual_seed(0)
    module, words = Attention(8000, 384, 4, 6, 256), torch.randint(8000, (1, 256))
    return Job(module, (words,), (torch.randint(8000, (256,)),), functional.cross_entropy)


def two_towers() -> Job:
    """A contrastive step on 128 pairs."""
    torch.manual_seed(0)
    left, right = torch.randn(128, 1024), torch.randn(128, 1024)
    return Job(TwoTowers(1024, 1536, 3), (left, right), (torch.arange(128),), functional.cross_entropy)


JOBS: dict[str, Callable[[], Job]] = {
    "inception_v3": partial(models.inception_v3, batch_size=1, image_size=139),
    "googlenet": partial(models.googlenet, batch_size=1),
    "branches": partial(models.branches, batch_size=8, image_size=64, count=4),
    "resnet50": partial(models.resnet50, batch_size=1),
    "alexnet": partial(models.alexnet, batch_size=2),
    "vgg19": partial(models.vgg19, batch_size=1, image_size=96),
    "gnmt": partial(models.gnmt, batch_size=8, length=8, vocabulary=2000, hidden=256, layers=2),
    "big_lstm": partial(models.big_lstm, batch_size=8, length=8, vocabulary=2000, hidden=1024, projection=256),
    "attention": attention,
    "two_towers": two_towers,
    "attention_gru": attention_gru,
    "small_transformer": small_transformer,
    "chain": partial(chains, 1, 504, 8),
    "two_chains": partial(chains, 2, 504, 8),
}
