"""The model and its objectives against plain float64 loops; micro-batches, compiling, saving.

The masked tokens' loss is compared for every family in test_families.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    BertForMaskedLM,
    BertForPreTraining,
    ElectraForMaskedLM,
)
from transformers.utils import logging as transformers_logging

from symprompt.pretraining.config import CorruptionConfig, ShapeConfig
from symprompt.pretraining.corruption import Corrupted, corrupt
from symprompt.pretraining.encoding import encode_at
from symprompt.pretraining.parent import HEADS_FILE
from symprompt.pretraining.training import (
    MadeModel,
    Pretrainer,
    count_asked,
    make_model,
)
from tiny.oracles import slow_bert_layer
from tiny.text import SPECIALS, make_batch

VOCABULARY, ROWS, LENGTH = 40, 6, 24
BATCH = make_batch(ROWS, LENGTH, vocabulary=VOCABULARY)
CASES = [
    ("bert", "mlm"),
    ("bert", "mlm+nsp"),
    ("bert", "mlm+sbo"),
    ("electra", "mlm"),
    ("electra", "mlm+nsp"),
    ("electra", "mlm+sbo"),
]
Vector = list[float]


def make_corrupted() -> Corrupted:
    frequencies = torch.ones(VOCABULARY)
    frequencies[:5] = 0
    return corrupt(
        BATCH,
        CorruptionConfig(kind="spans", share=0.4),
        specials=SPECIALS,
        frequencies=frequencies,
        generator=torch.Generator().manual_seed(0),
    )


def make_pretrainer(family: str, objective: str, *, spread: float = 0.3) -> Pretrainer:
    """In float64, with weights large enough that every one matters."""
    shape = ShapeConfig(
        family="electra" if family == "electra" else "bert",
        layers=1,
        hidden=8,
        heads=2,
        embedding=6 if family == "electra" else 0,
    )
    model = make_model(
        shape, vocabulary=VOCABULARY, specials=SPECIALS, length=LENGTH, objective=objective
    )
    pretrainer = Pretrainer(model, objective, span_limit=2)
    generator = torch.Generator().manual_seed(7)
    for weight in pretrainer.parameters():
        weight.data.normal_(std=spread, generator=generator)
    return pretrainer.double()


BERT = ShapeConfig(layers=2, hidden=16, heads=4)
ELECTRA = replace(BERT, family="electra", embedding=8)


def make_tiny(shape: ShapeConfig, objective: str = "mlm", seed: int = 0) -> MadeModel:
    return make_model(
        shape, vocabulary=50, specials=SPECIALS, length=32, objective=objective, seed=seed
    )


def losses_of(pretrainer: Pretrainer, corrupted: Corrupted, **settings: Any) -> dict[str, Any]:
    settings = {"is_next": BATCH.is_next, "padded": True} | settings
    found = pretrainer(**vars(corrupted), **settings)
    return dict(zip(pretrainer.objective.split("+"), found, strict=True))


def full_forward(pretrainer: Pretrainer, corrupted: Corrupted) -> tuple[Any, Tensor]:
    """What transformers itself gives for whole sequences, and the last hidden states."""
    mask = (torch.arange(LENGTH) < corrupted.lengths[:, None]).long()
    with torch.no_grad():
        output = pretrainer.model(
            input_ids=corrupted.ids,
            token_type_ids=corrupted.segments,
            attention_mask=mask,
            output_hidden_states=True,
        )
    return output, output.hidden_states[-1]


def surprise(logits: Vector, answer: int) -> float:
    """-log softmax(logits)[answer]."""
    top = max(logits)
    return top + math.log(sum(math.exp(value - top) for value in logits)) - logits[answer]


def product(matrix: Tensor, vector: Vector, bias: Tensor | None = None) -> Vector:
    shifts = [0.0] * len(matrix) if bias is None else bias.tolist()
    return [
        sum(weight * value for weight, value in zip(row, vector, strict=True)) + shift
        for row, shift in zip(matrix.tolist(), shifts, strict=True)
    ]


def gelu(vector: Vector) -> Vector:
    return [0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in vector]


def normalise(vector: Vector, norm: Any) -> Vector:
    mean = sum(vector) / len(vector)
    variance = sum((value - mean) ** 2 for value in vector) / len(vector)
    return [
        (value - mean) / math.sqrt(variance + 1e-12) * a + b
        for value, a, b in zip(vector, norm.weight.tolist(), norm.bias.tolist(), strict=True)
    ]


def each_asked(corrupted: Corrupted) -> list[dict[str, int]]:
    names = ("positions", "targets", "left", "right", "offset")
    return [
        {"row": row} | {name: int(getattr(corrupted, name)[row, place]) for name in names}
        for row in range(len(corrupted.ids))
        for place in range(corrupted.positions.shape[1])
        if corrupted.asked[row, place]
    ]


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_nsp_is_the_surprise_at_the_pooled_cls(family: str) -> None:
    pretrainer, corrupted = make_pretrainer(family, "mlm+nsp"), make_corrupted()
    _, hidden = full_forward(pretrainer, corrupted)
    model: Any = pretrainer.model
    if family == "bert":
        pooler, head = model.bert.pooler.dense, model.cls.seq_relationship
    else:
        own: Any = pretrainer.next_sentence
        pooler, head = own.dense, own.follows
    total = 0.0
    for row, follows in enumerate(BATCH.is_next.tolist()):
        pooled = product(pooler.weight, hidden[row, 0].tolist(), pooler.bias)
        logits = product(head.weight, [math.tanh(value) for value in pooled], head.bias)
        total += surprise(logits, 0 if follows else 1)
    loss = losses_of(pretrainer, corrupted)["nsp"]
    assert float(loss.detach()) == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_sbo_follows_equations_11_17_to_11_20(family: str) -> None:
    pretrainer, corrupted = make_pretrainer(family, "mlm+sbo"), make_corrupted()
    # Some offsets lie beyond the table of eight places, and share the last.
    corrupted = replace(corrupted, offset=corrupted.offset * 3)
    assert corrupted.offset.max() > 7
    _, hidden = full_forward(pretrainer, corrupted)
    head = pretrainer.span_boundary
    assert head is not None
    words = pretrainer.model.get_input_embeddings().weight
    total = 0.0
    for asked in each_asked(corrupted):
        left = hidden[asked["row"], asked["left"]].tolist()
        right = hidden[asked["row"], asked["right"]].tolist()
        place = head.places.weight[min(asked["offset"], 7)].tolist()
        state = product(head.first.weight, left + right + place, head.first.bias)  # 11.19
        state = normalise(gelu(state), head.first_norm)
        state = normalise(
            gelu(product(head.second.weight, state, head.second.bias)), head.second_norm
        )
        logits = product(words, state, head.bias)  # 11.20
        total += surprise(logits, asked["targets"])  # 11.18
    losses = losses_of(pretrainer, corrupted)
    assert float(losses["sbo"].detach()) == pytest.approx(total, rel=1e-10)
    summed = torch.stack(list(losses.values()))
    both = (summed / count_asked(corrupted, "mlm+sbo")).sum()  # 11.17
    count = len(each_asked(corrupted))
    expected = (float(losses["mlm"].detach()) + total) / count
    assert float(both.detach()) == pytest.approx(expected, rel=1e-10)


def test_unused_places_and_padding_do_not_matter() -> None:
    pretrainer, corrupted = make_pretrainer("bert", "mlm+sbo"), make_corrupted()
    unused, padding = ~corrupted.asked, torch.arange(LENGTH) >= corrupted.lengths[:, None]
    assert unused.any()
    disturbed = replace(
        corrupted,
        ids=corrupted.ids.masked_fill(padding, 17),
        positions=corrupted.positions.masked_fill(unused, 5),
        targets=corrupted.targets.masked_fill(unused, 9),
    )
    losses, again = losses_of(pretrainer, corrupted), losses_of(pretrainer, disturbed)
    for name, loss in losses.items():
        torch.testing.assert_close(again[name], loss, rtol=1e-12, atol=0)
    nothing = replace(corrupted, asked=torch.zeros_like(corrupted.asked))
    zero = torch.stack(list(losses_of(pretrainer, nothing).values())).sum()
    zero.backward()
    assert count_asked(nothing, "mlm+sbo").tolist() == [1, 1]
    assert float(zero.detach()) == 0


def test_full_rows_need_no_attention_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    pretrainer, corrupted = make_pretrainer("bert", "mlm"), make_corrupted()
    corrupted = replace(corrupted, lengths=torch.full_like(corrupted.lengths, LENGTH))
    masks: list[Tensor | None] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watch(*given: Any, attn_mask: Tensor | None = None, **settings: Any) -> Tensor:
        masks.append(attn_mask)
        return attend(*given, attn_mask=attn_mask, **settings)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    with_mask = losses_of(pretrainer, corrupted, padded=True)["mlm"]
    without = losses_of(pretrainer, corrupted, padded=False)["mlm"]
    assert masks[0] is not None
    assert masks[1] is None
    torch.testing.assert_close(with_mask, without, rtol=1e-12, atol=0)


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm+sbo"])
def test_bfloat16_keeps_losses_in_float32(objective: str) -> None:
    pretrainer, corrupted = make_pretrainer("bert", objective), make_corrupted()
    exact = losses_of(pretrainer, corrupted)
    low = losses_of(pretrainer.bfloat16(), corrupted)
    for name, loss in exact.items():
        assert low[name].dtype == torch.float32
        expected = loss.detach().float()
        torch.testing.assert_close(low[name].detach(), expected, rtol=0.03, atol=0)


@pytest.mark.parametrize(
    ("family", "objective"), [("bert", "mlm+nsp"), ("electra", "mlm+sbo"), ("electra", "mlm+nsp")]
)
def test_compiles_as_one_graph(family: str, objective: str) -> None:
    pretrainer, corrupted = make_pretrainer(family, objective), make_corrupted()
    compiled = torch.compile(pretrainer, fullgraph=True, backend="eager", dynamic=False)
    expected = losses_of(pretrainer, corrupted)
    losses = losses_of(compiled, corrupted)  # type: ignore[arg-type]
    torch._dynamo.reset()
    assert losses.keys() == expected.keys()
    for name, loss in losses.items():
        torch.testing.assert_close(loss, expected[name], rtol=1e-12, atol=0)


def test_weights_follow_from_the_seed_and_the_random_state_is_untouched() -> None:
    def make(seed: int) -> Pretrainer:
        return Pretrainer(make_tiny(BERT, seed=seed), "mlm+sbo", seed=seed)

    before = torch.get_rng_state()
    first, second, other = make(1), make(1).state_dict(), make(2).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    found = first.state_dict()
    assert all(torch.equal(second[name], value) for name, value in found.items())
    for name in ("model.bert.encoder.layer.0.attention.self.query", "span_boundary.first"):
        assert not torch.equal(other[f"{name}.weight"], found[f"{name}.weight"])
        assert abs(float(found[f"{name}.weight"].std()) - 0.02) < 0.005
    assert first.span_boundary is not None
    assert first.span_boundary.places.num_embeddings == 40


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("family", "objective"), CASES)
def test_saves_a_folder_that_loads_whole(
    family: str,
    objective: str,
    dtype: torch.dtype,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pretrainer, corrupted = make_pretrainer(family, objective).float(), make_corrupted()
    before = torch.get_rng_state()
    transformers_logging.disable_progress_bar()
    pretrainer.save(tmp_path, dtype)
    loaded, info = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    transformers_logging.enable_progress_bar()
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(info.values())
    assert capfd.readouterr() == ("", "")
    assert loaded.dtype == dtype
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
    output, _ = full_forward(pretrainer, corrupted)
    logits = output["prediction_logits" if "prediction_logits" in output else "logits"]
    mask = (torch.arange(LENGTH) < corrupted.lengths[:, None]).long()
    again = loaded.float()(corrupted.ids, mask, corrupted.segments).logits
    close = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(again, logits, rtol=close, atol=close)
    # Other heads are kept beside it.
    state = pretrainer.state_dict()
    beyond = {
        name for name in state if re.search(r"pooler|seq_relationship|^span_boundary|^next_", name)
    }
    heads = load_file(tmp_path / HEADS_FILE) if (tmp_path / HEADS_FILE).exists() else {}
    assert heads.keys() == beyond
    assert all(torch.equal(heads[name], state[name].to(dtype)) for name in heads)
    # The saving leaves the model as it was.
    assert {weight.dtype for weight in pretrainer.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("shape", "objective", "kind"),
    [
        (BERT, "mlm", BertForMaskedLM),
        (BERT, "mlm+sbo", BertForMaskedLM),
        (BERT, "mlm+nsp", BertForPreTraining),
        (replace(BERT, feedforward=24, dropout=0.2), "mlm", BertForMaskedLM),
        (ELECTRA, "mlm", ElectraForMaskedLM),
        (ELECTRA, "mlm+nsp", ElectraForMaskedLM),
        (replace(ELECTRA, embedding=0), "mlm+sbo", ElectraForMaskedLM),
    ],
)
def test_family_and_objective_choose_the_class(
    shape: ShapeConfig, objective: str, kind: type
) -> None:
    with torch.device("meta"):
        model = make_tiny(shape, objective)
    assert type(model) is kind
    config, embedding = model.config, model.get_input_embeddings().weight
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (2, 16, 4)
    assert (config.vocab_size, config.max_position_embeddings, config.pad_token_id) == (50, 32, 0)
    assert config.intermediate_size == (shape.feedforward or 64)
    assert config._attn_implementation == "sdpa"
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == shape.dropout
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}
    assert model.get_output_embeddings().weight is embedding
    assert embedding.shape == (50, shape.embedding or 16)


@pytest.mark.parametrize("keys", [6, 4])
def test_a_layer_is_what_the_equations_say(keys: int) -> None:
    """Equations 11.1 to 11.6, with weights so large that attention is far from even."""
    model = make_tiny(replace(BERT, layers=1, hidden=8, heads=2, feedforward=12))
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data.normal_(std=0.7, generator=generator)
    state = torch.randn(1, 6, 8, dtype=torch.float64, generator=generator)
    unseen = torch.arange(6) >= keys
    encoder = model.double().eval().bert.encoder
    with torch.no_grad():
        found = encode_at(encoder, state, ~unseen.expand(1, 1, 6, 6), torch.arange(6)[None])
        expected = slow_bert_layer(encoder.layer[0], state, unseen)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert expected.std() > 0.3
