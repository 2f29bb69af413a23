"""Small networks of families that neither dlplacer nor transformers builds."""

import torch
from torch import nn
from torch.nn import functional

from dlplacer.frontend import Job

TOKENS, CLASSES = 32, 5


class RankingNetwork(nn.Module):
    """DLRM-like: bags of sparse features and a dense part, their pairwise products, and a click probability."""

    def __init__(self, tables: int = 4, rows: int = 50, width: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, dense: torch.Tensor, sparse: list[torch.Tensor]) -> torch.Tensor:
        bottom = self.bottom(dense)
        features = torch.stack([bottom, *(table(ids) for table, ids in zip(self.tables, sparse, strict=True))], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        flat = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, flat], 1)).squeeze(1)


class UNet(nn.Module):
    """Two halvings, two doublings by transposed convolutions, and skip connections across."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.down = nn.ModuleList([_double(3, width), _double(width, 2 * width), _double(2 * width, 4 * width)])
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)]
        )
        self.join = nn.ModuleList([_double(4 * width, 2 * width), _double(2 * width, width)])
        self.last = nn.Conv2d(width, CLASSES, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        skips = []
        for position, block in enumerate(self.down):
            images = block(functional.max_pool2d(images, 2) if position else images)
            skips.append(images)
        skips.pop()
        for up, join in zip(self.up, self.join, strict=True):
            images = join(torch.cat([skips.pop(), up(images)], 1))
        logits: torch.Tensor = self.last(images)
        return logits


class RecurrentLanguageModel(nn.Module):
    """Embedding, two LSTM layers, and an output layer that shares the embedding's weight."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.recurrent = nn.LSTM(width, width, num_layers=2)
        self.head = nn.Linear(width, TOKENS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.embedding(tokens))
        logits: torch.Tensor = self.head(hidden)
        return logits


def ranking() -> Job:
    """Clicks from dense numbers and a list of bags of ids."""
    sparse = [torch.randint(50, (3, 2)) for _ in range(4)]
    clicks = torch.randint(2, (3,)).float()
    return Job(RankingNetwork(), (torch.randn(3, 6), sparse), (clicks,), functional.binary_cross_entropy_with_logits)


def u_net() -> Job:
    """A class for every pixel."""
    labels = torch.randint(CLASSES, (2, 12, 12))
    return Job(UNet(), (torch.randn(2, 3, 12, 12),), (labels,), functional.cross_entropy)


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )
