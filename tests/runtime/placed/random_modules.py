"""Random small modules that write in place, through views and into buffers, tie weights and draw dropout."""

import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

WIDTH, ROWS = 6, 8


class RandomModule(nn.Module):
    """A chain of random pieces over values of `ROWS` × `WIDTH`, each of which may read any value before it.

    Parameters
    ----------
    drops
        Whether dropout is among the pieces.
    """

    def __init__(self, seed: int, length: int = 8, drops: bool = True) -> None:
        super().__init__()
        chooser = random.Random(seed)
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.layers.append(nn.Linear(WIDTH, WIDTH))
        self.layers[2].weight = self.layers[0].weight
        self.norm = nn.BatchNorm1d(WIDTH)
        self.wide = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH) / WIDTH)
        self.register_buffer("rows", torch.randn(ROWS, WIDTH))
        self.register_buffer("count", torch.zeros(WIDTH))
        self.register_buffer("tied", self.count)
        kinds = [kind for kind in PIECES if drops or kind is not _dropped]
        self.pieces = [
            (chooser.choice(kinds), chooser.randrange(number + 1), chooser.randrange(number + 1), chooser.randrange(4))
            for number in range(length)
        ]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = [x]
        for piece, one, other, number in self.pieces:
            values.append(piece(self, values[one], values[other], number))
        return values[-1] + 0.5 * values[-2]


def _linear(module: RandomModule, one: torch.Tensor, _: torch.Tensor, number: int) -> torch.Tensor:
    return torch.tanh(module.layers[number % 3](one))


def _normed(module: RandomModule, one: torch.Tensor, other: torch.Tensor, _: int) -> torch.Tensor:
    return module.norm(one) + other


def _dropped(module: RandomModule, one: torch.Tensor, other: torch.Tensor, _: int) -> torch.Tensor:
    return functional.dropout(one, 0.4, module.training) - 0.1 * other


def _written_in_columns(_: RandomModule, one: torch.Tensor, other: torch.Tensor, number: int) -> torch.Tensor:
    made = one.clone()
    made[:, number::2].mul_(0.5)
    made.t()[number].add_(other[:, 0])
    return made


def _written_in_a_view(_: RandomModule, one: torch.Tensor, other: torch.Tensor, number: int) -> torch.Tensor:
    made = one * 1.5
    made.view(2, -1, WIDTH)[number % 2].copy_(torch.sin(other[1 : 1 + len(other) // 2]))
    made.view(-1)[number::7].zero_()
    return made


def _buffer_rows(module: RandomModule, one: torch.Tensor, _: torch.Tensor, number: int) -> torch.Tensor:
    before = module.rows[number].clone()
    module.rows[number].mul_(0.5)
    module.rows[: len(one), 1].add_(one.detach().mean(1))
    module.rows[1:].copy_(module.rows[:-1].clone())
    return one + before - module.rows[: len(one)].clone()


def _buffer_count(module: RandomModule, one: torch.Tensor, _: torch.Tensor, number: int) -> torch.Tensor:
    seen = one + module.tied
    (module.count if number % 2 else module.tied).add_(one.detach().mean(0))
    return seen * (module.count + 1.0)


def _wide(module: RandomModule, one: torch.Tensor, other: torch.Tensor, number: int) -> torch.Tensor:
    left, right = module.wide[:, number:].chunk(2, 1)
    made = torch.cat([one @ left, other @ right], 1)
    return torch.relu(made[:, :WIDTH]) + made[:, -WIDTH:].flip(0)


def _mixed(_: RandomModule, one: torch.Tensor, other: torch.Tensor, __: int) -> torch.Tensor:
    return torch.softmax(one @ other.t() / WIDTH, 1) @ one


Piece = Callable[[RandomModule, torch.Tensor, torch.Tensor, int], torch.Tensor]
PIECES: tuple[Piece, ...] = (
    _linear,
    _normed,
    _dropped,
    _written_in_columns,
    _written_in_a_view,
    _buffer_rows,
    _buffer_count,
    _wide,
    _mixed,
)
