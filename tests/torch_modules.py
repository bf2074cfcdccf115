"""Factories of PyTorch modules for `halfwise export-torch`; only loaded where PyTorch is."""

# mypy: disable-error-code="misc"

import torch
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.drop = nn.Dropout(0.5)

    def forward(self, image, scale):
        y = torch.relu(self.conv(image)) * scale[:, None, None, None]
        y = self.drop(self.norm(y.flatten(2).transpose(1, 2)))
        return {"mean": y.mean(1), "tokens": [y]}


def small():
    torch.manual_seed(0)
    return Small(), (torch.randn(1, 3, 8, 8), torch.ones(1))


def without_example():
    return small()[0]


class Empty(nn.Module):
    def forward(self, x):
        return (x,)[1:]


def empty():
    return Empty()


class Frozen(nn.Module):
    """Its width becomes a number in the graph, so it is wrong at any other width."""

    def forward(self, x):
        return x.sum(1) * float(x.shape[1])


def frozen():
    return Frozen(), torch.ones(2, 3)


class Picky(nn.Module):
    def forward(self, x):
        if x.shape[0] % 2:
            raise ValueError("odd")
        return x * 2


def picky():
    return Picky(), torch.ones(2, 3)


class Branching(nn.Module):
    """What it computes depends on the data, which no exporter can trace."""

    def forward(self, x):
        return x * 2 if x.sum() > 0 else x * 3


def branching():
    return Branching(), torch.ones(2, 3)


def half():
    return Small().half()


def number():
    return 3
