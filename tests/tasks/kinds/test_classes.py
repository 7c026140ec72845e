"""Classes of texts and pairs: rows of every tokenizer, windows, losses of a loop, metrics."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoTokenizer

from symprompt.errors import ConfigError, DataError
from symprompt.models.loading import locate_model
from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.config import HeadConfig
from symprompt.tasks.data.examples import LabelSet, TextExample
from symprompt.tasks.features import Batch, Features, Sheet
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.kinds.classes import ClassPrediction
from symprompt.tasks.kinds.metrics import macro_f1, matthews
from tiny.oracles import WIDTH, generator, make_states, slow_logits, slow_loss
from tiny.tasks import tensorise


def real(features: Features, row: int) -> list[int]:
    assert features.ids.dtype == np.int32
    return features.ids[row, : features.lengths[row]].tolist()


def test_texts_and_pairs_are_framed(vocabulary: Vocabulary) -> None:
    frame = Sheet.make(vocabulary, max_length=40)
    texts = [TextExample("0", ("Paris is in France",), "a"), TextExample("1", ("Rome",), None)]
    features = tensorise("sequence", texts, LabelSet(("a", "b")), vocabulary, max_length=40)
    for row, example in enumerate(texts):
        (ids,) = vocabulary.encode(example.texts)
        assert real(features, row) == [*frame.before, *ids, *frame.after]
        if not vocabulary.causal:
            assert real(features, row) == vocabulary.tokenizer(example.texts[0])["input_ids"]
    assert features.targets["labels"].tolist() == [0, -100]
    pairs = [
        TextExample("0", ("Paris is in", "Rome"), "b"),
        TextExample("1", ("Lima", "Oslo x"), "c"),
    ]
    features = tensorise(
        "pair", pairs, LabelSet(("a", "b")), vocabulary, max_length=40, types=not vocabulary.causal
    )
    for row, pair in enumerate(pairs):
        first, second = vocabulary.encode(pair.texts)
        head = [*frame.before, *first, *frame.between]
        assert real(features, row) == [*head, *second, *frame.after]
        if features.types is not None:
            kinds = [0] * len(head) + [1] * (len(second) + len(frame.after))
            padding = [0] * (features.ids.shape[1] - len(kinds))
            assert features.types[row].tolist() == kinds + padding
    assert (features.types is None) == vocabulary.causal
    assert frame.between
    assert features.targets["labels"].tolist() == [1, -100]


def test_a_tokenizer_that_frames_pairs_is_followed() -> None:
    vocabulary = Vocabulary(AutoTokenizer.from_pretrained(locate_model("shipped")), name="shipped")
    pair = TextExample("0", ("Paris is old.", "Rome too"), "a")
    features = tensorise("pair", [pair], LabelSet(("a",)), vocabulary, max_length=40, types=True)
    wanted = vocabulary.tokenizer(*pair.texts, return_token_type_ids=True)
    assert real(features, 0) == wanted["input_ids"]
    assert features.types[0].tolist() == wanted["token_type_ids"]


def test_long_texts_become_windows_that_hold_everything(vocabulary: Vocabulary) -> None:
    text = " ".join(["Paris", "Rome", "Lima", "Tokyo", "Madrid"] * 6)
    examples = [TextExample("0", ("Rome",), "a"), TextExample("1", (text,), "b")]
    features = tensorise(
        "sequence", examples, LabelSet(("a", "b")), vocabulary, max_length=14, stride=4
    )
    assert (features.lengths <= 14).all()
    assert features.example.tolist()[:2] == [0, 1]
    assert features.targets["labels"].tolist() == [0] + [1] * (len(features) - 1)
    assert features.cut == 0
    frame = Sheet.make(vocabulary, max_length=40)
    (ids,) = vocabulary.encode([text])
    joined: list[int] = []
    for row in range(1, len(features)):
        shown = real(features, row)[len(frame.before) :]
        shown = shown[: len(shown) - len(frame.after)]
        joined += shown if not joined else shown[4:]
    assert joined == ids


def test_a_text_that_is_nothing_keeps_its_row(vocabulary: Vocabulary) -> None:
    examples = [TextExample("0", ("\x07",), "a"), TextExample("1", ("\u200b",), "a")]
    features = tensorise("sequence", examples, LabelSet(("a",)), vocabulary, max_length=20)
    assert features.example.tolist() == [0, 1]
    assert (features.lengths > len(vocabulary.prefix) + len(vocabulary.suffix)).all()


def test_the_longer_text_of_a_pair_is_split(plain: Vocabulary) -> None:
    long = " ".join(["Paris"] * 20)
    pairs = [TextExample("0", (long, "Rome is"), "a"), TextExample("1", ("Rome is", long), "a")]
    features = tensorise("pair", pairs, LabelSet(("a",)), plain, max_length=15, stride=2)
    rome, is_ = plain.encode(["Rome is"])[0]
    for row in range(len(features)):
        ids = real(features, row)
        assert len(ids) <= 15
        assert ids[0] == plain.prefix[0]
        inside = ids[1:-1]
        assert (
            inside[-2:] == [rome, is_] if features.example[row] == 0 else inside[:2] == [rome, is_]
        )
    assert np.bincount(features.example).tolist() == [3, 3]


def test_a_pair_without_room_and_bad_settings_are_refused(plain: Vocabulary) -> None:
    pair = TextExample("both", ("Paris " * 50, "Rome " * 60), "a")
    labels = LabelSet(("a",))
    with pytest.raises(DataError, match="'both' is longer than 40 tokens and its shorter text"):
        tensorise("pair", [pair], labels, plain, max_length=40)
    with pytest.raises(ConfigError, match="max_length is 5"):
        tensorise("pair", [pair], labels, plain, max_length=5)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
@pytest.mark.parametrize("causal", [False, True])
def test_losses_are_those_of_a_loop(kind: str, causal: bool) -> None:
    lengths, labels = torch.tensor([5, 2, 3]), torch.tensor([2, 0, -100])
    states = make_states()
    batch = Batch(torch.zeros(3, 5).long(), lengths, targets={"labels": labels})
    target = Target(LabelSet(("a", "b", "c")), head=HeadConfig(kind=kind, dropout=0.0))
    head = KINDS["pair"].head(WIDTH, target, causal=causal, generator=generator()).double()
    losses, scores = head.loss(states, batch), head.scores(states, batch)
    for row, label in enumerate(labels.tolist()):
        at = int(lengths[row]) - 1 if causal else 0
        logits = slow_logits(head, states[row, at])
        wanted = 0.0 if label < 0 else slow_loss(logits, label)
        assert losses[row].item() == pytest.approx(wanted, abs=1e-12)
        for place in range(3):
            assert scores[row, place].item() == pytest.approx(-slow_loss(logits, place))
    assert head.weights(batch).tolist() == [1, 1, 0]


@pytest.mark.parametrize("causal", [False, True])
def test_pooled_windows_have_one_loss_of_their_mean_logits(causal: bool) -> None:
    states = torch.randn(7, 5, WIDTH, dtype=torch.float64, generator=torch.manual_seed(0))
    lengths = torch.tensor([5, 2, 3, 4, 1, 5, 5])
    # Texts 4 and 9 with three and two windows, text 6 without a label; the last row fills up.
    text, label = torch.tensor([4, 4, 4, 9, 9, 6, 4]), torch.tensor([2, 2, 2, 0, 0, -100, 2])
    row = torch.tensor([10, 11, 12, 20, 21, 15, 10])
    targets = {"labels": label, "text": text, "row": row}
    batch = Batch(torch.zeros(7, 5).long(), lengths, targets=targets)
    target = Target(LabelSet(("a", "b", "c")), head=HeadConfig(dropout=0.0), pooled=True)
    head = KINDS["sequence"].head(WIDTH, target, causal=causal, generator=generator()).double()
    share = torch.tensor([1, 1, 1, 1, 1, 1, 0])

    def total(states: Tensor) -> Tensor:
        weights = head.weights(batch) * share
        return (head.loss(states, batch) * weights).sum() / weights.sum()

    def slow(states: Tensor) -> Tensor:
        read = [states[n, int(lengths[n]) - 1 if causal else 0] for n in range(7)]
        logits = [head.output.weight @ one + head.output.bias for one in read]
        first = (logits[0] + logits[1] + logits[2]) / 3
        second = (logits[3] + logits[4]) / 2
        losses = -first.log_softmax(0)[2] - second.log_softmax(0)[0]
        return losses / 2

    found, wanted = (torch.autograd.functional.jacobian(use, states) for use in (total, slow))
    # The weights are float32: a third is not exact.
    assert total(states).item() == pytest.approx(slow(states).item(), rel=1e-6)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)
    # What is predicted: log-probabilities and logits have the same mean up to one number.
    plain = KINDS["sequence"].head(
        WIDTH, replace(target, pooled=False), causal=causal, generator=generator()
    )
    scores = plain.double().scores(states[:3], batch.select(torch.arange(3)))
    read = [states[n, int(lengths[n]) - 1 if causal else 0] for n in range(3)]
    logits = torch.stack([head.output.weight @ one + head.output.bias for one in read])
    torch.testing.assert_close(scores.mean(0).softmax(0), logits.mean(0).softmax(0))


def test_the_windows_of_a_text_vote(vocabulary: Vocabulary) -> None:
    examples = [TextExample("0", ("Rome",)), TextExample("1", ("Paris Rome Lima " * 12,))]
    labels = LabelSet(("a", "b", "c"))
    features = tensorise("sequence", examples, labels, vocabulary, max_length=16, stride=4)
    draw = np.random.default_rng(0)
    scores = np.log(draw.dirichlet(np.ones(3), len(features)).astype(np.float32))
    slow = np.stack([scores[features.example == row].mean(0) for row in range(2)])
    slow -= np.log(np.exp(slow).sum(1, keepdims=True))
    found = KINDS["sequence"].decode(scores, features, examples, Target(labels))
    assert [entry.label for entry in found] == [labels.names[k] for k in slow.argmax(1)]
    assert [entry.probability for entry in found] == pytest.approx(np.exp(slow).max(1), abs=1e-6)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcd")), min_size=1))
def test_classes_are_scored_as_scikit_learn_does(pairs: list[tuple[str, str]]) -> None:
    library = importlib.import_module("sklearn.metrics")
    gold, predicted = [left for left, _ in pairs], [right for _, right in pairs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = library.f1_score(gold, predicted, average="macro", zero_division=0)
        correlation = library.matthews_corrcoef(gold, predicted)
    assert macro_f1(gold, predicted) == pytest.approx(wanted)
    assert matthews(gold, predicted) == pytest.approx(correlation, abs=1e-12)


def test_classes_by_hand() -> None:
    examples = [TextExample(str(at), ("x",), label) for at, label in enumerate("aabb")]
    found = KINDS["sequence"].measure(examples, [ClassPrediction(label, 1.0) for label in "abbb"])
    assert found["accuracy"] == 0.75
    assert found["macro_f1"] == pytest.approx((2 / 3 + 0.8) / 2)
    assert found["matthews"] == pytest.approx(1 / 3**0.5)
    none = KINDS["sequence"].measure([], [])
    assert none == {"accuracy": 0.0, "macro_f1": 0.0, "matthews": 0.0}
