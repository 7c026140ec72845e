"""The encoder of deep prefixes: shapes, its loop written out, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from symprompt.models import Inputs, LanguageModel, PrefixShape
from symprompt.prompts import PrefixEncoder
from tiny.models import TOWNS, world_objects

SHAPE = PrefixShape(layers=3, kv_heads=2, head_dim=4)


@pytest.mark.parametrize("kind", ["free", "mlp"])
def test_keys_and_values_are_cut_out_place_by_place(kind: Any) -> None:
    encoder = PrefixEncoder(("a", "b"), SHAPE, 5, kind=kind, hidden=7, scale=1.0)
    found = encoder()
    assert found.shape == (2, 3, 2, 2, 5, 4)
    for task in range(2):
        for place in range(5):
            flat = encoder.base[task, place]
            if kind == "mlp":
                flat = torch.tanh(encoder.weight_1[task] @ flat + encoder.bias_1[task])
                flat = encoder.weight_2[task] @ flat + encoder.bias_2[task]
            wanted = flat.view(3, 2, 2, 4)
            torch.testing.assert_close(found[task, :, :, :, place], wanted)


def test_a_task_draws_the_same_numbers_alone_and_beside_others() -> None:
    both = PrefixEncoder(("a", "b"), SHAPE, 5, seed=(3,))
    alone = PrefixEncoder(("b",), SHAPE, 5, seed=(3,))
    assert torch.equal(both()[1:], alone())
    assert not torch.equal(both()[:1], alone())
    assert not torch.equal(PrefixEncoder(("b",), SHAPE, 5, seed=(4,))(), alone())
    assert 0.01 < alone().detach().std().item() < 0.03


def test_dropout_is_for_training_alone() -> None:
    encoder = PrefixEncoder(("a",), SHAPE, 2, dropout=0.4, shift_positions=True)
    assert encoder.prefix().dropout == 0.4
    assert encoder.eval().prefix().dropout == 0.0
    assert encoder.prefix().shift_positions


def test_a_prefix_learns_what_a_frozen_model_is_to_say(knowing_bert: LanguageModel) -> None:
    tokenizer = knowing_bert.vocabulary.tokenizer
    answers = [world_objects()["land"][town] for town in TOWNS]
    lands = torch.tensor(tokenizer.convert_tokens_to_ids(answers))
    ids = tokenizer([f"{town} [MASK]" for town in TOWNS], return_tensors="pt")["input_ids"]
    at = torch.full_like(lands, 2)
    encoder = PrefixEncoder(("land",), knowing_bert.prefix_shape, 3)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=0.05)
    losses, right = [], []
    for _ in range(60):
        inputs = Inputs(knowing_bert.embed(ids), None, prefix=encoder.prefix())
        logits = knowing_bert.logits_at(inputs, at)
        loss = torch.nn.functional.cross_entropy(logits, lands)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        right.append((logits.argmax(-1) == lands).double().mean().item())
    assert losses[-1] < losses[0] / 4
    assert right[-1] > 0.9 > right[0] + 0.3
