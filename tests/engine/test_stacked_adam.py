"""Adam over stacked relations: parts that fit a cache give what the whole gives."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from symprompt.engine import stacked_adam
from symprompt.engine.stacked_adam import StackedAdam

SHAPES = {"matrix": (5, 24, 16), "many rows": (40, 12), "odd": (3, 7, 19), "one": (1, 300)}


def _train(
    monkeypatch: pytest.MonkeyPatch, tile: int, kind: str, clip: float
) -> dict[str, torch.Tensor]:
    monkeypatch.setattr(stacked_adam, "TILE", tile)
    random = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in SHAPES.items():
        value = nn.Parameter(torch.randn(shape, generator=random))
        config = SimpleNamespace(optimizer=kind, weight_decay=0.1, clip=clip)
        optimizer = StackedAdam({name: value}, config)
        for step in range(3):
            value.grad = torch.randn(shape, generator=random)
            active = torch.arange(len(value)) % 3 != step
            optimizer.step(active, torch.linspace(1e-3, 1e-2, len(value), dtype=torch.float64))
        found[name] = value.detach()
        found |= {f"{name}/{key}": own for key, own in optimizer.state_dict().items()}
    return found


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_parts_give_what_the_whole_gives(
    kind: str, clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _train(monkeypatch, 10**6, kind, clip)
    for tile in (32, 64, 128):
        parts = _train(monkeypatch, tile, kind, clip)
        assert parts.keys() == whole.keys()
        for name, value in whole.items():
            torch.testing.assert_close(parts[name], value, rtol=1e-6, atol=1e-8)


def test_parts_cover_every_number_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked_adam, "TILE", 50)
    for shape in ((3, 120), (40, 12), (1, 7), (7, 50), (2, 51)):
        seen = torch.zeros(shape)
        for rows, columns in stacked_adam._tiles(seen):
            assert 0 < seen[rows, columns].numel() <= 50
            seen[rows, columns] += 1
        assert bool((seen == 1).all())
