"""The digits data set and the network; shared by train.py and evaluate.py."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

PIXEL_MAX = 16.0


def load_split(path: Path, split: str) -> tuple[Tensor, Tensor]:
    """Pixels [N, 1, 8, 8] from 0 to 1, and labels [N], of one split of digits.csv."""
    rows = np.loadtxt(path, delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    pixels = torch.from_numpy(rows[:, 2:].astype(np.float32)) / PIXEL_MAX
    return pixels.reshape(-1, 1, 8, 8), torch.from_numpy(rows[:, 1].astype(np.int64))


class DigitsNet(nn.Module):
    """Three convolutions and a linear layer: pixels [N, 1, 8, 8] to logits [N, 10]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        channels = (1, width, 2 * width, 4 * width)
        blocks: list[nn.Module] = []
        for inner, outer in pairwise(channels):
            blocks += [nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
            blocks += [nn.MaxPool2d(2)] if outer != channels[1] else []
        self.features = nn.Sequential(*blocks)
        self.classify = nn.Linear(channels[-1] * 2 * 2, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.classify(self.features(pixels).flatten(1))


def augment(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Turn by up to 0.3 rad, scale by up to 15 %, shift by up to a pixel and add noise: each sample in its own way."""

    def uniform(limit: float) -> Tensor:
        return (torch.rand(len(pixels), generator=generator) * 2 - 1) * limit

    angle, scale = uniform(0.3), 1 + uniform(0.15)
    theta = torch.zeros(len(pixels), 2, 3)  # affine, in coordinates from -1 to 1
    theta[:, 0, 0] = theta[:, 1, 1] = torch.cos(angle) * scale
    theta[:, 1, 0] = torch.sin(angle) * scale
    theta[:, 0, 1] = -theta[:, 1, 0]
    theta[:, 0, 2], theta[:, 1, 2] = uniform(2 / 8), uniform(2 / 8)
    grid = nn.functional.affine_grid(theta, list(pixels.shape), align_corners=False)
    moved = nn.functional.grid_sample(pixels, grid, align_corners=False)
    return moved + 0.2 * torch.randn(pixels.shape, generator=generator)
