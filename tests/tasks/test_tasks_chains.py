"""Chains of tags: a CRF against all sequences and pytorch-crf, the grammar, joined words."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from symprompt.errors import ConfigError
from symprompt.models import LanguageModel
from symprompt.tasks.batches import Batch
from symprompt.tasks.chains import (
    ChainHead,
    best_path,
    grammar,
    joined,
    log_partition,
    packed,
    path_score,
)
from symprompt.tasks.config import make_tune_config
from symprompt.tasks.predict import predict_file
from tiny.tasks import run_toy, write_toy

NAMES = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
WIDTH = 6


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
    batch = Batch(torch.zeros(2, 8).long(), lengths, labels=labels, words=words)
    return draws(2, 8, WIDTH), batch


def make_head(**options: object) -> ChainHead:
    generator = torch.Generator().manual_seed(1)
    head = ChainHead(WIDTH, NAMES, generator=generator, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        head.output.weight.mul_(20)
        if head.crf:
            head.transitions.copy_(draws(5, 5, seed=5))
            head.first.copy_(draws(5, seed=6))
            head.last.copy_(draws(5, seed=7))
    return head


@pytest.mark.parametrize("constrain", [False, True])
def test_a_head_s_loss_is_that_of_all_sequences_of_words(constrain: bool) -> None:
    states, batch = make_batch()
    head = make_head(crf=True, constrain=constrain)
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
    bare = Batch(batch.ids, batch.lengths, labels=torch.full((2, 8), -100), words=batch.words)
    head = make_head(crf=True)
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


@pytest.mark.parametrize("crf", [False, True])
@pytest.mark.parametrize("combine", ["first", "mean"])
def test_constrained_tags_are_the_best_that_are_allowed(crf: bool, combine: str) -> None:
    if crf and combine == "mean":
        with pytest.raises(ConfigError, match=r"head\.combine"):
            make_tune_config({"head": {"decoder": "crf", "combine": "mean"}})
        return
    states, batch = make_batch()
    head = make_head(crf=crf, constrain=True, combine=combine)
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


def test_joined_tokens_are_the_sum_over_a_word() -> None:
    states, batch = make_batch()
    logits, words = make_head().logits(states), batch.need("words")
    found = joined(logits, words)
    torch.testing.assert_close(found[0, 5], logits[0, 4:7].sum(0))
    torch.testing.assert_close(found[1, 1], logits[1, 1:3].sum(0))
    torch.testing.assert_close(found[0, 0], logits[0, 0])
    head = make_head(combine="mean")
    wanted = torch.log_softmax(logits, -1)[0, 4:7].sum(0).argmax()
    assert head.scores(states, batch)[0, 4].argmax() == wanted


def test_a_field_of_zeros_is_the_softmax() -> None:
    states, batch = make_batch()
    head, plain = ChainHead(WIDTH, NAMES, crf=True).double(), make_head()
    head.output.load_state_dict(plain.output.state_dict())
    torch.testing.assert_close(head.loss(states, batch), plain.loss(states, batch))


def test_places_are_packed_to_the_left() -> None:
    chosen = torch.tensor([[False, True, False, True], [False] * 4, [True] * 4])
    places, mask = packed(chosen)
    assert mask.tolist() == [[True, True, False, False], [False] * 4, [True] * 4]
    assert places[0, :2].tolist() == [1, 3]
    assert places[2].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("head", "every"),
    [
        ({"decoder": "crf"}, False),
        ({"decoder": "crf", "constrain": True}, True),
        ({"combine": "mean"}, True),
        ({"constrain": True}, False),
    ],
)
def test_runs_learn_and_are_predicted_with(
    head: dict[str, object], every: bool, knowing_bert: LanguageModel, tmp_path: Path
) -> None:
    data = write_toy(tmp_path / "data", "tagging")
    changes = {f"head__{key}": value for key, value in head.items()}
    run = run_toy(
        data,
        Path(knowing_bert.source),
        tmp_path / "run",
        "tagging",
        learning__epochs=12,
        task__label_all_tokens=every,
        **changes,
    )
    assert run.metrics["splits"]["test"]["f1"] > 80
    found = predict_file(tmp_path / "run", data / "test.jsonl", device="cpu")
    assert found.metrics == run.metrics["splits"]["test"]
