"""A byte-level GPT and the text it learns: Python's own standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, CONTEXT = 320, 6, 5, 128


class Block(nn.Module):
    """Attention and a feed-forward net, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.project_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.project_out = nn.Linear(WIDTH, WIDTH)
        self.norm_forward = nn.LayerNorm(WIDTH)
        self.forward_net = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.project_in(self.norm_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project_out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        result: torch.Tensor = x + self.forward_net(self.norm_forward(x))
        return result


class Gpt(nn.Module):
    """About 7.6 million parameters; a token is a byte."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(self.norm(x))
        return result


def corpus(limit: int = 4_000_000) -> torch.Tensor:
    """The first bytes of the standard library's modules, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return torch.frombuffer(text, dtype=torch.uint8)


def batch_of(text: torch.Tensor, *, step: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a rank learns from at a step: a function of both, so that a resumed job sees what it would have seen."""
    chance = torch.Generator().manual_seed(1_000_003 * step + rank)
    starts = torch.randint(len(text) - CONTEXT - 1, (size,), generator=chance)
    rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]
