"""Tags of words: rows of every tokenizer, a CRF against all sequences, the grammar, metrics."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from symprompt.errors import DataError
from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.config import HeadConfig
from symprompt.tasks.data.examples import Example, LabelSet, TaggedExample
from symprompt.tasks.features import Batch, Sheet
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.kinds.tags import (
    TagHead,
    best_path,
    grammar,
    log_partition,
    path_score,
)
from tiny.oracles import seqeval_scores, slow_logits, slow_loss
from tiny.tasks import tensorise

WORDS = ("The", "city", "of", "Paris", "lies", "in", "San-Marino", ",", "Rome", "Xqz.")
LOC = LabelSet.of_tags(["B-LOC"])
NAMES = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
WIDTH = 6
TAGS = ["O", "B-A", "I-A", "B-R-A", "I-R-A", "B-V", "I-V"]


def tagged_examples() -> list[Example]:
    tags = ("O", "O", "O", "B-LOC", "O", "O", "B-LOC", "O", "B-LOC", "I-LOC")
    return [
        TaggedExample("0", WORDS, tags),
        TaggedExample("1", ("Lima",), ("B-PER",)),
        TaggedExample("2", WORDS * 3, tags * 3),
        TaggedExample("3", ("Rome", "Oslo"), None),
    ]


@pytest.mark.parametrize("every_token", [False, True])
def test_words_keep_their_tags(vocabulary: Vocabulary, every_token: bool) -> None:
    examples = tagged_examples()
    features = tensorise(
        "tagging",
        examples,
        LOC,
        vocabulary,
        max_length=32,
        stride=8,
        every_token=every_token,
    )
    words, first, own = features.notes["words"], features.notes["first"], features.notes["own"]
    seen: dict[tuple[int, int], list[int]] = {}
    for row in range(len(features)):
        example = examples[features.example[row]]
        for word in sorted(set(words[row].tolist()) - {-1}):
            places = np.flatnonzero(words[row] == word)
            # All tokens of the word, one after the other, as it reads after a space.
            assert (np.diff(places) == 1).all()
            (ids,) = vocabulary.encode_words([example.words[word]])
            assert features.ids[row, places].tolist() == ids
            assert first[row, places].tolist() == [True] + [False] * (len(places) - 1)
            assert len(set(own[row, places].tolist())) == 1
            labels = features.targets["labels"][row, places].tolist()
            if own[row, places[0]]:
                seen[int(features.example[row]), word] = labels
            else:
                assert set(labels) == {-100}
    assert (features.targets["labels"][words < 0] == -100).all()
    assert (~own[words < 0]).all()
    for number, example in enumerate(examples):
        tags = example.tags or ("?",) * len(example.words)
        for word, tag in enumerate(tags):
            labels = seen.pop((number, word))
            here = LOC.index.get(tag, -100)
            later = {"B-LOC": LOC.index["I-LOC"]}.get(tag, here) if every_token else -100
            assert labels == [here] + [later] * (len(labels) - 1)
    assert not seen


def test_a_word_that_is_nothing_and_one_that_is_endless(vocabulary: Vocabulary) -> None:
    words = ("Rome", "\u200b", "\x07", "x" * 300, "Lima")
    example = TaggedExample("0", words, ("O",) * 5)
    features = tensorise("tagging", [example], LOC, vocabulary, max_length=24, stride=6)
    assert set(features.notes["words"][features.notes["words"] >= 0].tolist()) == set(range(5))
    assert int((features.targets["labels"] >= 0).sum()) == 5
    assert (features.lengths <= 24).all()
    (ids,) = vocabulary.encode_words(["x" * 300])
    assert features.cut == int(len(ids) > 11)


def test_a_predicate_follows_the_sentence_or_leads_it(vocabulary: Vocabulary) -> None:
    tags = ("O",) * 3 + ("B-LOC",) + ("O",) * 6
    examples = [TaggedExample("0", WORDS, tags, 4), TaggedExample("1", WORDS, tags, 6)]
    features = tensorise("roles", examples, LOC, vocabulary, max_length=48)
    frame = Sheet.make(vocabulary, max_length=48)
    sentence = [token for ids in vocabulary.encode_words(WORDS) for token in ids]
    for row, example in enumerate(examples):
        (predicate,) = vocabulary.encode_words([WORDS[example.predicate]])
        ordered = [predicate, sentence] if vocabulary.causal else [sentence, predicate]
        wanted = [*frame.before, *ordered[0], *frame.between, *ordered[1], *frame.after]
        assert features.ids[row, : features.lengths[row]].tolist() == wanted
        shown = features.notes["words"][row] >= 0
        assert features.ids[row][shown].tolist() == sentence
        assert int((features.targets["labels"][row] >= 0).sum()) == len(WORDS)


def draws(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def slow_score(emissions: Tensor, tags: tuple[int, ...], field: tuple[Tensor, ...]) -> float:
    first, between, last = (part.detach() for part in field)
    emissions = emissions.detach()
    total = float(first[tags[0]]) + float(last[tags[-1]])
    total += sum(float(emissions[place, tag]) for place, tag in enumerate(tags))
    return total + sum(float(between[pair]) for pair in itertools.pairwise(tags))


@pytest.mark.parametrize("seed", range(4))
def test_a_field_is_the_sum_over_all_sequences(seed: int) -> None:
    emissions, field = draws(3, 5, 3, seed=seed), (draws(3), draws(3, 3, seed=9), draws(3, seed=8))
    lengths = torch.tensor([5, 1, 4])
    mask = torch.arange(5) < lengths[:, None]
    total, best = log_partition(emissions, mask, *field), best_path(emissions, mask, *field)
    tags = torch.arange(15).view(3, 5) % 3
    right = path_score(emissions, tags, mask, *field)
    for row, length in enumerate(lengths.tolist()):
        every = list(itertools.product(range(3), repeat=length))
        scores = [slow_score(emissions[row], path, field) for path in every]
        assert float(total[row]) == pytest.approx(
            math.log(sum(map(math.exp, scores))), abs=1e-12, rel=1e-12
        )
        assert tuple(best[row, :length].tolist()) == every[scores.index(max(scores))]
        own = tuple(tags[row, :length].tolist())
        assert float(right[row]) == pytest.approx(slow_score(emissions[row], own, field), abs=1e-12)


def test_losses_and_gradients_are_those_of_pytorch_crf() -> None:
    import torchcrf

    field = torchcrf.CRF(5, batch_first=True).double()
    emissions = draws(4, 7, 5).requires_grad_()
    tags = torch.arange(28).view(4, 7) % 5
    mask = torch.arange(7) < torch.tensor([7, 3, 1, 6])[:, None]
    theirs = field(emissions, tags, mask=mask, reduction="none")
    scores = (field.start_transitions, field.transitions, field.end_transitions)
    ours = path_score(emissions, tags, mask, *scores) - log_partition(emissions, mask, *scores)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    wanted = torch.autograd.grad(theirs.sum(), [emissions, *scores])
    found = torch.autograd.grad(ours.sum(), [emissions, *scores])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    best = best_path(emissions, mask, *scores)
    lengths = mask.sum(1).tolist()
    found_paths = [row[:length] for row, length in zip(best.tolist(), lengths, strict=True)]
    assert found_paths == field.decode(emissions, mask=mask)


def make_batch() -> tuple[Tensor, Batch]:
    """Two rows of tokens: words of one, two and three tokens; special tokens around them."""
    words = torch.tensor([[-1, 0, 1, 1, 2, 2, 2, -1], [-1, 0, 0, 1, -1, -1, -1, -1]])
    labels = torch.tensor(
        [[-100, 3, 4, -100, 0, -100, -100, -100], [-100, 1, -100, 0] + [-100] * 4]
    )
    lengths = torch.tensor([8, 5])
    batch = Batch(torch.zeros(2, 8).long(), lengths, targets={"labels": labels, "words": words})
    return draws(2, 8, WIDTH), batch


def make_head(**options: object) -> TagHead:
    config = replace(HeadConfig(dropout=0.0), **options)
    head = TagHead(WIDTH, NAMES, config, torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        head.output.weight.mul_(20)
        if head.crf:
            head.transitions.copy_(draws(5, 5, seed=5))
            head.first.copy_(draws(5, seed=6))
            head.last.copy_(draws(5, seed=7))
    return head


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_losses_are_those_of_a_loop(kind: str) -> None:
    states, batch = make_batch()
    head = make_head(kind=kind)
    losses = head.loss(states, batch).tolist()
    for row in range(2):
        labels = batch.targets["labels"][row].tolist()
        terms = [
            slow_loss(slow_logits(head, states[row, at]), label)
            for at, label in enumerate(labels)
            if label >= 0
        ]
        assert losses[row] == pytest.approx(sum(terms) / len(terms), abs=1e-12)
    assert head.weights(batch).tolist() == [3, 2]


@pytest.mark.parametrize("constrain", [False, True])
def test_a_head_s_loss_is_that_of_all_sequences_of_words(constrain: bool) -> None:
    states, batch = make_batch()
    head = make_head(decoder="crf", constrain=constrain)
    logits, losses = head.logits(states), head.loss(states, batch)
    field = head._field()
    for row, (places, tags) in enumerate([([1, 2, 4], (3, 4, 0)), ([1, 3], (1, 0))]):
        emissions = logits[row, places]
        every = itertools.product(range(5), repeat=len(places))
        scores = [slow_score(emissions, path, field) for path in every]
        total = math.log(sum(map(math.exp, scores)))
        wanted = (total - slow_score(emissions, tags, field)) / len(places)
        assert losses[row].item() == pytest.approx(wanted, abs=1e-10)
    assert head.weights(batch).tolist() == [3, 2]
    gradients = torch.autograd.grad(losses.sum(), list(head.parameters()))
    assert all(torch.isfinite(entry).all() for entry in gradients)


def test_a_row_without_labels_costs_nothing() -> None:
    states, batch = make_batch()
    bare = replace(batch, targets={**batch.targets, "labels": torch.full((2, 8), -100)})
    for head in (make_head(), make_head(decoder="crf")):
        assert head.loss(states, bare).tolist() == [0, 0]
        assert head.weights(bare).tolist() == [0, 0]


def allowed(path: tuple[int, ...]) -> bool:
    """Say whether tags are IOB2, tag by tag."""
    before = "O"
    for tag in (NAMES[place] for place in path):
        if tag.startswith("I-") and before not in ("B-" + tag[2:], tag):
            return False
        before = tag
    return True


def test_the_grammar_allows_iob2_and_nothing_else() -> None:
    pairs, begin = grammar(NAMES)
    for path in itertools.product(range(5), repeat=3):
        total = float(begin[path[0]]) + sum(float(pairs[two]) for two in itertools.pairwise(path))
        assert (total == 0) == allowed(path)


@pytest.mark.parametrize(("crf", "combine"), [(False, "first"), (False, "mean"), (True, "first")])
def test_constrained_tags_are_the_best_that_are_allowed(crf: bool, combine: str) -> None:
    states, batch = make_batch()
    head = make_head(decoder="crf" if crf else "softmax", constrain=True, combine=combine)
    scores, logits = head.scores(states, batch), head.logits(states)
    if not crf:
        logits = torch.log_softmax(logits, -1)
    field = head._field()
    for row, tokens in enumerate([[[1], [2, 3], [4, 5, 6]], [[1, 2], [3]]]):
        parts = [word if combine == "mean" else word[:1] for word in tokens]
        emissions = torch.stack([logits[row, part].sum(0) for part in parts])
        emissions = torch.log_softmax(emissions, -1) if combine == "mean" else emissions
        every = [p for p in itertools.product(range(5), repeat=len(tokens)) if allowed(p)]
        best = max(every, key=lambda path: slow_score(emissions, path, field))
        found = [int(scores[row, word[0]].argmax()) for word in tokens]
        assert tuple(found) == best
        assert all(scores[row, word[0]].max().item() == 0 for word in tokens)


def test_every_token_of_a_word_has_its_plain_tag(plain: Vocabulary) -> None:
    # B-X and I-X are tags like others here: nothing goes on, and nothing is repaired.
    labels, example = LabelSet(("B-X", "I-X")), TaggedExample("0", ("Rome", "Xqzx"), ("I-X", "B-X"))
    features = tensorise("words", [example], labels, plain, max_length=24, every_token=True)
    words, found = features.notes["words"][0], features.targets["labels"][0]
    assert (words == 1).sum() > 1
    assert found[words == 0].tolist() == [1]
    assert set(found[words == 1].tolist()) == {0}
    kept = np.maximum(features.targets["labels"], 0)
    decoded = KINDS["words"].decode(kept, features, [example], Target(labels, every_token=True))
    assert decoded == [("I-X", "B-X")]


def test_words_are_counted_as_scikit_learn_counts_them() -> None:
    from sklearn.metrics import accuracy_score, f1_score

    gold, predicted = random_tags(1), random_tags(2)
    found = measured("words", gold, predicted)
    flat = [list(itertools.chain(*tags)) for tags in (gold, predicted)]
    assert found["accuracy"] == pytest.approx(accuracy_score(*flat))
    assert found["macro_f1"] == pytest.approx(f1_score(*flat, average="macro"))


def random_tags(seed: int, sentences: int = 40) -> list[list[str]]:
    draw = random.Random(seed)
    sizes = random.Random(7)
    return [draw.choices(TAGS, k=sizes.randint(1, 9)) for _ in range(sentences)]


def measured(kind: str, gold: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    examples = [TaggedExample("0", tuple(tags), tuple(tags)) for tags in gold]
    return KINDS[kind].measure(examples, [tuple(tags) for tags in predicted])


@pytest.mark.parametrize("seed", range(4))
def test_entities_are_counted_as_seqeval_counts_them(seed: int) -> None:
    gold, predicted = random_tags(seed), random_tags(seed + 10)
    for left, right in zip(gold, predicted, strict=True):
        right[: len(left) // 2] = left[: len(left) // 2]
    found = measured("tagging", gold, predicted)
    assert found == pytest.approx(seqeval_scores(gold, predicted))
    assert 0 < found["f1"] < 1


def test_no_entities_at_all_score_zero() -> None:
    assert measured("tagging", [["O"]], [["O"]])["f1"] == 0


def test_roles_leave_the_predicate_out() -> None:
    gold = [["B-ARG0", "B-V", "B-ARG1", "I-ARG1"], ["B-V", "B-C-ARG1", "O"]]
    predicted = [["B-ARG0", "B-V", "B-ARG1", "B-ARG1"], ["B-V", "I-C-ARG1", "B-ARG0"]]
    found = measured("roles", gold, predicted)
    # Right: ARG0 and C-ARG1 of three gold and five predicted arguments.
    assert found["precision"] == pytest.approx(2 / 5)
    assert found["recall"] == pytest.approx(2 / 3)
    assert found["f1"] == pytest.approx(4 / 8)
    assert found["f1_with_predicates"] == pytest.approx(8 / 12)


def test_tags_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="not aligned"):
        measured("tagging", [["O"]], [["O", "O"]])
    with pytest.raises(DataError, match=r"1 predicted tag\(s\) for 2 word"):
        measured("words", [["NN", "DT"]], [["NN"]])
