"""The contract of every kind of task, on models of several families and with every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from symprompt.config import build
from symprompt.errors import ConfigError, DataError
from symprompt.models import LanguageModel
from symprompt.tasks.config import HeadConfig, SpanConfig, TuneConfig, check_settings
from symprompt.tasks.data.examples import (
    Answer,
    Example,
    LabelSet,
    QuestionExample,
    Relation,
    SpanExample,
    TaggedExample,
    TextExample,
)
from symprompt.tasks.features import Features, Sheet
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.trainables import TRAINABLES, TaskModel, figures, gather, make_task_head
from tiny.labelled import write_toy
from tiny.models import PLAIN_WORDS
from tiny.tasks import run_toy, tuned

FAMILIES = ("bert", "roberta", "xlm-roberta", "gpt2", "llama")
WORDS = tuple(PLAIN_WORDS[place % len(PLAIN_WORDS)] for place in range(24))
CONTEXT = "The old city of Rome lies in Italy. Paris, the capital of France, is in New York."
SPAN = SpanConfig(length=3, hidden=8, candidates=12)


@dataclass(frozen=True)
class Case:
    """Labelled examples of a kind, some of them longer than a row, and one without its label."""

    examples: Sequence[Example]
    bare: Example
    target: Target


def answers(*texts: str) -> tuple[Answer, ...]:
    return tuple(Answer(CONTEXT.index(text), text) for text in texts)


TAGS = tuple(("B-X", "I-X", "O", "B-Y")[place % 4] for place in range(24))
PLAIN = tuple(("NOUN", "VERB", "B-X", "O")[place % 4] for place in range(24))
SPANS = tuple(("X" if place % 2 else "Y", place, place + 2) for place in range(0, 22, 3))
# Both spans of a relation are within every window's overlap or short of it.
SHORT = SpanExample("s", WORDS[:5], (("X", 0, 2), ("Y", 3, 4)), (Relation("R", 0, 1),))
CASES = {
    "sequence": Case(
        [TextExample("0", (" ".join(WORDS),), "a"), TextExample("1", ("Rome",), "b")],
        TextExample("2", ("Rome",)),
        Target(LabelSet(("a", "b"))),
    ),
    "pair": Case(
        [TextExample("0", (" ".join(WORDS), "Rome"), "a"), TextExample("1", ("Oslo", "Lima"), "b")],
        TextExample("2", ("Rome", "Lima")),
        Target(LabelSet(("a", "b"))),
    ),
    "tagging": Case(
        [TaggedExample("0", WORDS, TAGS), TaggedExample("1", WORDS[:2], TAGS[:2])],
        TaggedExample("2", WORDS),
        Target(LabelSet.of_tags(TAGS)),
    ),
    "words": Case(
        [TaggedExample("0", WORDS, PLAIN), TaggedExample("1", WORDS[:2], PLAIN[:2])],
        TaggedExample("2", WORDS),
        Target(LabelSet(tuple(sorted(set(PLAIN))))),
    ),
    "roles": Case(
        [TaggedExample("0", WORDS, TAGS, 3), TaggedExample("1", WORDS[:2], TAGS[:2], 1)],
        TaggedExample("2", WORDS, None, 0),
        Target(LabelSet.of_tags(TAGS)),
    ),
    "question": Case(
        [
            QuestionExample("0", "in", CONTEXT, answers("Italy")),
            QuestionExample("1", "of", CONTEXT, answers("New York")),
            QuestionExample("2", "The", CONTEXT, ()),
        ],
        QuestionExample("3", "in", CONTEXT),
        Target(LabelSet(())),
    ),
    "spans": Case(
        [SpanExample("0", WORDS, SPANS), SpanExample("1", WORDS[:2], ())],
        SpanExample("2", WORDS),
        Target(LabelSet.of_spans(["X", "Y"]), span=SPAN),
    ),
    "relations": Case(
        [SHORT, SpanExample("1", WORDS, SPANS, ())],
        SpanExample("2", WORDS),
        Target(LabelSet.of_spans(["X", "Y"]), LabelSet.of_spans(["R"]), span=SPAN),
    ),
}


def perfect_scores(kind: str, features: Features) -> np.ndarray:
    """Return what a head that knows every label would score, in the form that is decoded."""
    targets = features.targets
    rows = np.arange(len(features))
    if kind in ("sequence", "pair"):
        scores = np.full((len(features), 2), -9.0)
        scores[rows, np.maximum(targets["labels"], 0)] = 0.0
        return scores
    if kind in ("tagging", "words", "roles"):
        return np.maximum(targets["labels"], 0)
    if kind == "question":
        scores = np.full((*features.ids.shape, 2), -9.0)
        shown = targets["starts"] != features.notes["null"]
        for side, name in enumerate(("starts", "ends")):
            # A window that shows the answer says so louder than others that they show none.
            scores[rows, np.maximum(targets[name], 0), side] = np.where(shown, 9.0, 5.0)
        return scores
    spans, pairs = targets["spans"], targets["pairs"]
    count = spans.shape[1]
    known = spans[..., 2] >= 0
    odds = np.where(known, 5.0, -np.inf)
    candidates = np.concatenate([np.maximum(spans, 0), odds[..., None]], 2)
    if kind == "spans":
        return candidates
    names = np.ones((len(features), count, count))
    related = np.full((len(features), count, count), -9.0)
    for row, entries in enumerate(pairs.tolist()):
        for one, other, label in entries:
            if label >= 0:
                related[row, one, other] = 9.0
    whole = np.concatenate([candidates, names, related], 2)
    return np.concatenate([whole, whole], 1)


def sheet_of(backbone: LanguageModel, max_length: int = 20) -> Sheet:
    return Sheet.make(backbone.vocabulary, max_length=max_length, stride=5)


@pytest.fixture(params=FAMILIES)
def model(
    request: pytest.FixtureRequest, load_family: Callable[..., LanguageModel]
) -> LanguageModel:
    return load_family(str(request.param))


def test_every_kind_has_a_case() -> None:
    assert list(CASES) == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_hold_every_example_and_fit(kind: str, model: LanguageModel) -> None:
    case, sheet = CASES[kind], sheet_of(model)
    features = KINDS[kind].tensorise(case.examples, sheet, case.target)
    assert len(features) > len(case.examples)
    assert sorted(set(features.example.tolist())) == list(range(len(case.examples)))
    assert (np.diff(features.example) >= 0).all()
    assert features.lengths.max() == features.ids.shape[1] <= 20
    after = np.arange(features.ids.shape[1]) >= features.lengths[:, None]
    assert (features.ids[after] == model.vocabulary.pad_id).all()
    whole, row = features.batch(), len(features) - 1
    last = whole.select(torch.tensor([row]), int(features.lengths[row]))
    assert last.ids[0].tolist() == features.ids[row, : features.lengths[row]].tolist()
    assert last.mask.all()
    for name, value in whole.targets.items():
        own = features.targets[name][row]
        assert len(value) == len(features)
        assert (
            last.targets[name][0].tolist()
            == (own[: features.lengths[row]] if own.ndim == 1 else own).tolist()
        )
    none = KINDS[kind].tensorise([], sheet, case.target)
    assert len(none) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_perfect_scores_decode_to_the_labels(kind: str, model: LanguageModel) -> None:
    case, own = CASES[kind], KINDS[kind]
    features = own.tensorise(case.examples, sheet_of(model), case.target)
    threshold = own.threshold(case.examples)
    scores = perfect_scores(kind, features)
    found = own.decode(scores, features, case.examples, case.target, threshold=threshold)
    measured = figures(own, case.examples, found)
    assert next(iter(measured)) == own.metric
    lost = features.cut > 0
    assert measured[own.metric] == 100 or lost
    assert measured[own.metric] > 70
    for example, prediction in zip(case.examples, found, strict=True):
        row = own.row(example, prediction)
        assert row["id"] == example.id
        if kind != "question" and not lost:
            assert sorted(row["prediction"]) == sorted(row["gold"])
        elif kind == "question":
            assert [row["prediction"]] == (row["gold"] or [""])


@pytest.mark.parametrize("kind", KINDS)
def test_examples_without_labels_train_nothing_and_are_not_measured(
    kind: str, bert: LanguageModel
) -> None:
    case, own = CASES[kind], KINDS[kind]
    assert all(map(own.is_labelled, case.examples))
    assert not own.is_labelled(case.bare)
    features = own.tensorise([case.bare], sheet_of(bert), case.target)
    scores = perfect_scores(kind, features)
    (found,) = own.decode(scores, features, [case.bare], case.target)
    assert "gold" not in own.row(case.bare, found)
    with pytest.raises(DataError, match="some examples have no label"):
        figures(own, [case.bare], [found])
    with pytest.raises(DataError, match=r"got 0 prediction\(s\) for 1 example"):
        figures(own, [case.bare], [])
    if kind not in ("spans", "relations"):
        head = own.head(8, case.target, causal=False)
        assert head.weights(features.batch()).sum() == 0


@pytest.mark.parametrize(
    ("family", "method"), [*(("bert", own) for own in ("ft", "lora", "pt", "pt2")), ("gpt2", "pt2")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_trains_every_kind(
    kind: str, family: str, method: str, load_family: Callable[..., LanguageModel]
) -> None:
    """Losses reach what is trained, and stored parameters give the same predictions."""
    backbone = load_family(family)
    case, own = CASES[kind], KINDS[kind]
    features = own.tensorise(case.examples, sheet_of(backbone), case.target)
    batch = features.batch()
    config = build(TuneConfig, {"method": method, "prefix": {"length": 3}})
    models = []
    for seed in (1, 2):
        body = tuned(backbone, config, seed=seed)
        head = make_task_head(own, case.target, backbone, seed=(seed,))
        models.append(TaskModel(body, {"task": head}, {"task": batch}))
    model, other = models
    with torch.no_grad():
        for value in model.tuned.parameters().values():
            value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(3)) * 0.1)
    losses, weights = model.loss("task", torch.arange(len(batch)), int(batch.ids.shape[1]))
    assert losses.shape == weights.shape == (len(batch),)
    assert torch.isfinite(losses).all()
    (losses * weights).sum().backward()
    trained = {**model.tuned.parameters(), **model.head_parameters()}
    moved = [name for name, value in trained.items() if value.grad is not None]
    assert any(name.startswith("head.") for name in moved)
    assert any(not name.startswith("head.") for name in moved)
    other.tuned.load(model.tuned.tensors())
    other.heads["task"].load_state_dict(model.heads["task"].state_dict())
    scores = model.scores("task", batch)
    assert torch.equal(other.scores("task", batch), scores)
    parts = []
    for rows in torch.arange(len(batch)).flip(0).split(2):
        width = int(batch.lengths[rows].max())
        parts.append((rows, model.scores("task", batch.select(rows, width))))
    found = gather(own, features, parts).numpy()
    predictions = own.decode(found, features, case.examples, case.target, threshold=0.0)
    measured = figures(own, case.examples, predictions)
    assert all(np.isfinite(value) for value in measured.values())


@pytest.mark.parametrize("kind", KINDS)
def test_heads_read_one_row_at_a_time_and_score_in_float32(kind: str) -> None:
    case, own = CASES[kind], KINDS[kind]
    head = own.head(8, case.target, causal=True, generator=torch.Generator().manual_seed(0))
    batch = make_features(kind).batch()
    states = torch.randn(*batch.ids.shape, 8, generator=torch.Generator().manual_seed(1))
    head.eval()
    with torch.no_grad():
        losses, scores = head.loss(states, batch), head.scores(states, batch)
        for row in range(len(batch)):
            width = int(batch.lengths[row])
            alone = batch.select(torch.tensor([row]), width)
            part = states[row : row + 1, :width]
            torch.testing.assert_close(head.loss(part, alone)[0], losses[row])
            own_scores = head.scores(part, alone)[0]
            wanted = scores[row, :width] if own.per_token else scores[row]
            torch.testing.assert_close(own_scores, wanted)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = head.scores(states.bfloat16(), batch)
        assert half.dtype == torch.float32
        assert torch.equal(half, head.scores(states.bfloat16().float(), batch))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_come_from_the_generator_alone(kind: str) -> None:
    target = CASES[kind].target
    before = torch.random.get_rng_state()
    first, second = (
        KINDS[kind].head(8, target, causal=False, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
        assert value.dtype == torch.float32


def make_features(kind: str) -> Features:
    """Return features of a kind without a tokenizer's help."""
    from symprompt.models.vocabulary import Vocabulary
    from tiny.models import make_wordpiece

    vocabulary = Vocabulary(make_wordpiece(), name="tiny")
    sheet = Sheet.make(vocabulary, max_length=24, stride=6)
    return KINDS[kind].tensorise(CASES[kind].examples, sheet, CASES[kind].target)


# ------------------------------------------------------------------------- settings and files


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("sequence", {"span__length": 3}, r"span\.length is 3, which is about spans, relations al"),
        ("tagging", {"span__overlaps": "nested"}, r"span\.overlaps is 'nested'"),
        ("roles", {"task__choose_threshold": True}, "about question, spans, relations alone"),
        ("pair", {"task__label_all_tokens": True}, "about tagging, words, roles alone, and the"),
        ("words", {"head__constrain": True}, "about tagging, roles alone, and the task's kind is"),
        ("question", {"head__decoder": "crf"}, r"head\.decoder is 'crf'"),
        ("question", {"head__constrain": True}, r"head\.constrain is True"),
        ("sequence", {"head__combine": "mean"}, r"head\.combine is 'mean'"),
        ("tagging", {"method": "pt", "prefix__encoder": "mlp"}, "about pt2 alone, and the method"),
        ("tagging", {"method": "ft", "prefix__shift_positions": True}, "about pt2, mpt2 alone"),
        ("tagging", {"method": "lora", "weights__layers": 1}, r"weights\.layers is 1, which is ab"),
        ("tagging", {"method": "lora", "start_from": "run"}, "start_from goes on from a prompt"),
        ("tagging", {"task__windows": "pooled"}, "'pooled', which is about sequence, pair alone"),
        ("tagging", {"method": "mpt2"}, r"mixture\.tasks need each other"),
        (
            "tagging",
            {"method": "mpt2", "mixture__tasks": ["rte", "cb"], "prefix__encoder": "mlp"},
            r"prefix\.encoder is 'mlp'.*and the method is 'mpt2'",
        ),
        ("tagging", {"mixture__tasks": ["rte", "cb"]}, r"mixture\.tasks need each other"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(
    kind: str,
    changes: dict[str, Any],
    words: str,
    family_folder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    data = write_toy(tmp_path / "data", kind)
    with pytest.raises(ConfigError, match=words):
        run_toy(data, family_folder("bert"), tmp_path / "run", kind, **changes)
    assert not (tmp_path / "run").exists()


def test_settings_of_every_kind_and_method_exist() -> None:
    config = build(TuneConfig, {})
    for table in (KINDS, TRAINABLES):
        known = {name: own.settings for name, own in table.items()}
        for name in known:
            check_settings(config, "kind", name, known)


def test_heads_know_their_settings() -> None:
    target = Target(LabelSet(("O", "B-X", "I-X")), head=HeadConfig(kind="mlp", dropout=0.5))
    for kind in ("sequence", "tagging", "words", "question"):
        head = KINDS[kind].head(8, target, causal=False)
        assert head.hidden is not None
        assert head.dropout.p == 0.5
