"""The encoder of deep prefixes: shapes, its loop written out, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from symprompt.backbone import PrefixShape
from symprompt.errors import ConfigError
from symprompt.prompts import PrefixEncoder

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


def test_prefixes_of_different_lengths_are_masked() -> None:
    encoder = PrefixEncoder(("a", "b"), SHAPE, (2, 4))
    own = encoder.prefix(torch.tensor([1, 0]))
    assert own.visible is not None
    assert own.visible.tolist() == [[True, True, False, False], [True] * 4]
    assert own.length == 4
    assert encoder.state_dict().keys() == {"base"}
    assert PrefixEncoder(("a", "b"), SHAPE, 4).prefix().visible is None


def test_dropout_is_for_training_alone() -> None:
    encoder = PrefixEncoder(("a",), SHAPE, 2, dropout=0.4, shift_positions=True)
    assert encoder.prefix().dropout == 0.4
    assert encoder.eval().prefix().dropout == 0.0
    assert encoder.prefix().shift_positions


@pytest.mark.parametrize(
    ("length", "more", "said"),
    [
        (-1, {}, r"prefix lengths \(-1,\) were given for 1 tasks"),
        ((1, 2), {}, r"prefix lengths \(1, 2\) were given for 1 tasks"),
        (2, {"kind": "lstm"}, "prefix kind 'lstm' is not known"),
        (2, {"dropout": 1.0}, "prefix dropout 1.0"),
    ],
)
def test_what_makes_no_prefix_is_refused(length: Any, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PrefixEncoder(("a",), SHAPE, length, **more)
