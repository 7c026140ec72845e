"""What of a model was trained: its record, and the look of its tables.

Tables written by hand stand for what training does: smooth rows, noisy ones, rows with a direction
in common, and rows that no text reached, which are noise as it was drawn.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    MPNetConfig,
    MPNetModel,
    OPTConfig,
    OPTModel,
    RobertaConfig,
    RobertaModel,
)

from symprompt.errors import ModelError
from symprompt.models.trained import (
    KEY,
    Trained,
    count_trained_positions,
    count_trained_segments,
    find_positions,
    find_trained,
    read_record,
)

ROWS = 96
WIDTHS = [64, 128, 512]


def noise(rows: int = ROWS, width: int = 128, spread: float = 0.02, seed: int = 0) -> Tensor:
    return spread * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def waves(rows: int = ROWS, width: int = 128, size: float = 0.03) -> Tensor:
    """Return smooth rows, each a mixture of waves along the table, as trained tables are."""
    place = torch.arange(rows)[:, None] / rows
    mixed = torch.cat((place.sin(), place.cos(), (3 * place).sin(), (7 * place).cos()), 1)
    found = mixed @ noise(4, width, 1.0, seed=7)
    return size * found / found.pow(2).mean().sqrt()


def common(rows: int = ROWS, width: int = 128, share: float = 0.5, seed: int = 3) -> Tensor:
    """Return noisy rows that share one direction, with cosines of about ``share``."""
    direction, own = noise(1, width, 1.0, seed=5), noise(rows, width, 1.0, seed=seed)
    return 0.02 * (share**0.5 * direction + (1 - share) ** 0.5 * own)


TRAINED = {
    "smooth": waves,
    "smooth and noisy": lambda rows, width: waves(rows, width) + noise(rows, width, 0.02),
    "a common direction": common,
    "larger noise": lambda rows, width: noise(rows, width, 0.06),
    "sizes that fall": lambda rows, width: (
        waves(rows, width) * torch.linspace(4, 0.1, rows)[:, None]
    ),
}


# ------------------------------------------------------------------------------------ the record


def test_a_run_that_goes_on_adds_to_what_was_trained() -> None:
    first = Trained(128, 1, ("mlm",))
    assert first.then(Trained(256, 2, ("mlm", "nsp"))) == Trained(256, 2, ("mlm", "nsp"))
    # What a later run does not reach stays trained, as where its embeddings are frozen.
    assert first.then(Trained(0, 0, ("mlm", "sbo"))) == Trained(128, 1, ("mlm", "sbo"))
    assert Trained(None, 0, ("mlm",)).then(Trained(None, 0)) == Trained(None, 0, ("mlm",))


def test_the_record_lasts_through_a_config_of_transformers(tmp_path: Path) -> None:
    config = BertConfig()
    assert read_record(config) is None
    for record in (Trained(128, 1, ("mlm", "sbo")), Trained(None, 0)):
        record.write(config)
        config.save_pretrained(tmp_path)
        assert read_record(BertConfig.from_pretrained(tmp_path)) == record


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"positions": 3}, "symprompt_trained.segments is"),
        ({"positions": "many", "segments": 1}, "symprompt_trained.positions is 'many'"),
        ({"positions": 0, "segments": 1}, "symprompt_trained.positions is 0"),
        ({"positions": 8, "segments": -1}, "symprompt_trained.segments is -1"),
        ([1], "symprompt_trained is"),
    ],
)
def test_a_damaged_record_is_refused(stored: object, said: str) -> None:
    config = BertConfig()
    setattr(config, KEY, stored)
    with pytest.raises(ModelError, match=f"config.json of the model is damaged: {said}"):
        read_record(config)


# ------------------------------------------------------------------------------------ positions


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", TRAINED)
def test_rows_that_no_text_reached_are_found_at_the_end(kind: str, width: int) -> None:
    front = TRAINED[kind](ROWS, width)
    for untrained in (8, 40, 200):
        # Weight decay shrinks them, all alike.
        table = torch.cat((front, 0.8 * noise(untrained, width, seed=9)))
        found = count_trained_positions(table)
        if kind == "a common direction" and width == 64:
            # Too narrow to tell these rows one by one; then nothing is said.
            assert found in (ROWS, ROWS + untrained)
        else:
            assert found == ROWS, untrained
        assert count_trained_positions(table.bfloat16().float()) == found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", TRAINED)
def test_a_table_that_was_trained_is_left_alone(kind: str, width: int) -> None:
    for rows in (9, ROWS, 512):
        assert count_trained_positions(TRAINED[kind](rows, width)) == rows


@pytest.mark.parametrize("width", WIDTHS)
def test_later_rows_that_are_less_trained_are_trained(width: int) -> None:
    # As where most of the training read 128 tokens and the rest of it 512.
    for share in (0.1, 0.3):
        tail = common(384, width, share, seed=2)
        assert count_trained_positions(torch.cat((waves(128, width), tail))) == 512


def test_a_model_that_was_never_trained_is_used_whole() -> None:
    for seed in range(200):
        assert count_trained_positions(noise(64, 64, seed=seed)) == 64


def test_a_few_rows_narrow_tables_and_constant_ones_are_not_judged() -> None:
    assert count_trained_positions(torch.cat((waves(), noise(7)))) == ROWS + 7
    assert count_trained_positions(torch.cat((waves(width=32), noise(40, 32)))) == ROWS + 40
    assert count_trained_positions(torch.ones(30, 128)) == 30
    assert count_trained_positions(torch.cat((waves(), waves()[-1:].expand(40, -1)))) == ROWS + 40
    assert count_trained_positions(torch.cat((waves(), waves()))) == 2 * ROWS


def test_rows_of_zeros_at_the_end_were_never_trained() -> None:
    assert count_trained_positions(torch.cat((waves(width=16), torch.zeros(3, 16)))) == ROWS
    assert count_trained_positions(torch.zeros(30, 128)) == 30
    # Elsewhere they are what they are.
    assert count_trained_positions(torch.cat((torch.zeros(3, 128), waves()))) == ROWS + 3


# ------------------------------------------------------------------------------------ segments


def segments(row: Tensor, width: int = 512) -> tuple[Tensor, list[Tensor]]:
    """Return a table with a trained first row, this second one, and the means of other tables."""
    direction = noise(1, width, 1.0, seed=5)[0]
    first = 0.01 * direction + noise(1, width, 0.01, seed=6)[0]
    words = 0.02 * direction + noise(1, width, 0.005, seed=7)[0]
    return torch.stack((first, row)), [words, noise(1, width, seed=8)[0]]


def test_a_second_segment_that_no_text_reached_is_found() -> None:
    found = [
        count_trained_segments(*segments(noise(1, 512, spread, seed)[0]), 0.02)
        for seed in range(100)
        for spread in (0.02, 0.014)
    ]
    # Of a hundred a few are unlikely noise, about which nothing is said.
    assert found.count(1) > 180
    assert count_trained_segments(*segments(torch.zeros(512)), 0.02) == 1


def test_a_second_segment_that_was_trained_is_left_alone() -> None:
    own, direction = noise(1, 512, seed=11)[0], noise(1, 512, 1.0, seed=5)[0]
    peak = own.clone()
    peak[3] = 0.3
    for row in (own + 0.006 * direction, own * 0.4, own * 1.3, peak, own + 0.01 * own.sign()):
        assert count_trained_segments(*segments(row), 0.02) == 2
    # Without the initial spread nothing can be known.
    assert count_trained_segments(*segments(own), None) == 2
    assert count_trained_segments(segments(own)[0][:1], [], 0.02) == 1


def test_two_segments_that_look_initial_are_both_used() -> None:
    for seed in range(200):
        others = [noise(1, 64, 0.001, seed + 500)[0], noise(1, 64, 0.001, seed + 900)[0]]
        assert count_trained_segments(noise(2, 64, seed=seed), others, 0.02) == 2


# ------------------------------------------------------------------------------------ models


def small(kind: type[nn.Module], config: type, **changes: int) -> nn.Module:
    sizes = {"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 64} | changes
    torch.manual_seed(0)
    made: nn.Module = kind(config(**sizes))
    return made


MODELS = {
    "bert": (lambda: small(BertModel, BertConfig), 0),
    # The padding's row is the second one.
    "roberta": (lambda: small(RobertaModel, RobertaConfig, type_vocab_size=1), 2),
    "mpnet": (lambda: small(MPNetModel, MPNetConfig), 2),
    "albert": (lambda: small(AlbertModel, AlbertConfig, embedding_size=64, hidden_size=8), 0),
    "distilbert": (
        lambda: small(DistilBertModel, DistilBertConfig, dim=64, hidden_dim=8, n_heads=2),
        0,
    ),
    "gpt2": (lambda: small(GPT2Model, GPT2Config), 0),
    "opt": (lambda: small(OPTModel, OPTConfig, word_embed_proj_dim=64, ffn_dim=8), 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_tables_of_every_family_are_looked_at(name: str) -> None:
    made, first = MODELS[name]
    body = made()
    table, row = find_positions(body)
    assert table is not None
    assert row == first
    count = table.num_embeddings - first
    # Never trained: nothing is said.
    trained, said = find_trained(body, body.config)
    assert (trained.positions, said) == (count, "")
    with torch.no_grad():
        table.weight[first : first + 40] = waves(40, 64)
    trained, said = find_trained(body, body.config)
    assert trained.positions == 40
    assert said == (
        f"positions 40 to {count - 1} (as initialised, by the look of the table); inputs end after "
        "40 tokens"
    )
    # The model's record counts more than its look.
    Trained(50, trained.segments).write(body.config)
    trained, said = find_trained(body, body.config)
    assert trained.positions == 50
    assert "by the model's record" in said


def test_waves_that_are_computed_count_as_trained() -> None:
    body = small(DistilBertModel, DistilBertConfig, dim=64, sinusoidal_pos_embds=True)
    assert find_trained(body, body.config) == (Trained(64, 0), "")


def test_a_model_without_tables_has_nothing_to_look_at() -> None:
    body = small(LlamaModel, LlamaConfig)
    assert find_trained(body, body.config) == (Trained(None, 0), "")


def test_a_record_that_does_not_know_positions_sets_no_limit() -> None:
    body = small(BertModel, BertConfig)
    Trained(None, 2, ("mlm",)).write(body.config)
    assert find_trained(body, body.config) == (Trained(64, 2, ("mlm",)), "")


def test_the_note_names_a_segment_and_what_follows() -> None:
    body = small(BertModel, BertConfig)
    Trained(64, 1, ("mlm",)).write(body.config)
    assert find_trained(body, body.config) == (
        Trained(64, 1, ("mlm",)),
        "segment 1 (by the model's record); one segment is used (in tune: unless --segments on)",
    )
