"""Subjects asked by shared sentences, against each pair of fact and candidate asked alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from symprompt.facts import FactSet
from symprompt.models import Inputs, LanguageModel
from symprompt.probing import asked_once
from symprompt.probing.asked_once import AskedBack, score_subjects, token_views
from symprompt.probing.prepare import prepare
from symprompt.probing.problem import Problem
from symprompt.probing.queries import Average, Masking, subject_likelihoods
from symprompt.prompts import Layout
from tiny.models import causal_config, run_config

Subject = tuple[int, tuple[int, ...]]


@pytest.fixture
def vectors(bert: LanguageModel) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 5, bert.width, generator=generator, dtype=torch.float64)


def problem_of(backbone: LanguageModel, facts: FactSet) -> Problem:
    make = causal_config if backbone.causal else run_config
    return prepare(make(dtype="float64"), backbone, facts)


def view(subject: Subject, place: int, masking: str) -> tuple[object, ...]:
    """Return what a model sees of a subject where one of its tokens is queried."""
    relation, tokens = subject
    kept: list[int | None] = list(tokens)
    if masking == "causal":
        # Read up to the last token, all of them by one sentence.
        return relation, len(tokens), *tokens[:-1]
    for at in range(len(tokens)):
        if at == place or masking == "whole" or (masking == "chain" and at > place):
            kept[at] = None
    return relation, *kept, *(() if masking == "whole" else ("asked", place))


subjects = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("masking", ["one", "chain", "whole", "causal"])
@given(listed=subjects, filler=st.integers(0, 3))
def test_views_are_the_same_where_the_sentences_are(
    masking: str, listed: list[Subject], filler: int
) -> None:
    counts = np.array([len(tokens) for _, tokens in listed])
    padded = np.full((len(listed), counts.max()), filler)
    for row, (_, tokens) in enumerate(listed):
        padded[row, : len(tokens)] = tokens
    found = token_views(
        padded,
        counts,
        np.array([relation for relation, _ in listed]),
        masking="one" if masking == "causal" else masking,  # type: ignore[arg-type]
        causal=masking == "causal",
    )
    pairs = {
        (int(found[row, place]), view(subject, place, masking))
        for row, subject in enumerate(listed)
        for place in range(len(subject[1]))
    }
    assert len(pairs) == len({number for number, _ in pairs}) == len({seen for _, seen in pairs})


def seen_by(layout: Layout, row: int, causal: bool, masking: Masking) -> set[tuple[object, ...]]:
    """Return the views of a fact's subject, one of each sentence."""
    at, count = int(layout.subject_at[row]), int(layout.subject_lengths[row])
    subject = int(layout.relations[row]), tuple(layout.ids[row, at : at + count].tolist())
    return {view(subject, place, "causal" if causal else masking) for place in range(count)}


@pytest.mark.parametrize("average", ["sum", "log", "probability"])
@pytest.mark.parametrize(("max_tokens", "at_once"), [(1, 1), (100, 20), (4096, 1 << 17)])
@pytest.mark.parametrize(
    ("name", "masking", "packed"),
    [
        ("bert", "one", True),
        ("bert", "one", False),
        ("bert", "chain", True),
        ("bert", "chain", False),
        ("bert", "whole", True),
        ("gpt2", "one", False),
    ],
)
def test_each_sentence_is_read_once(
    name: str,
    masking: Masking,
    packed: bool,
    max_tokens: int,
    at_once: int,
    average: Average,
    load_family: Callable[..., LanguageModel],
    facts: FactSet,
    vectors: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone = load_family(name)
    monkeypatch.setitem(backbone.__dict__, "longest_packed", 128 * packed)
    monkeypatch.setattr(asked_once, "_QUERIES_AT_ONCE", at_once)
    layout = problem_of(backbone, facts).sentences["train"].subject_prompt
    assert layout.subject_lengths.max() > 2
    # Some facts twice, as if another relation's facts shared their names.
    rows = np.concatenate([np.arange(len(layout)), np.arange(0, len(layout), 2)])[::-1].copy()
    rows = rows[np.argsort(layout.relations[rows], kind="stable")]
    candidates = torch.tensor([[10, 11, 12]] * len(rows))
    candidates[1::2, 2], candidates[::3, 0], candidates[4] = -1, 13, -1
    read: list[int] = []
    original = backbone.logits_at

    def watch(inputs: Inputs, *positions: torch.Tensor) -> torch.Tensor:
        packing = inputs.packing
        read.append(len(inputs.embeddings) if packing is None else len(packing.starts) - 1)
        return original(inputs, *positions)

    monkeypatch.setattr(backbone, "logits_at", watch)
    told: list[float] = []
    found = score_subjects(
        backbone,
        AskedBack.fetch(layout, rows, candidates),
        vectors,
        masking=masking,
        average=average,
        max_tokens=max_tokens,
        done=told.append,
    )
    asked = sum(read)
    assert told == sorted(set(told))
    assert told[-1] == 1
    distinct: set[tuple[object, ...]] = set()
    for place, row in enumerate(rows):
        for rank, own in enumerate(candidates[place].tolist()):
            if own < 0:
                assert found[place, rank] == 0
                continue
            alone = subject_likelihoods(
                backbone,
                layout,
                rows[[place]],
                vectors,
                masking=masking,
                objects=torch.tensor([own]),
            ).average(average)
            torch.testing.assert_close(found[place, [rank]], alone, rtol=0, atol=1e-10)
            views = seen_by(layout, int(row), backbone.causal, masking)
            distinct |= {(own, *seen) for seen in views}
    assert asked == len(distinct)


def test_one_mask_at_a_time_and_a_chain_differ_but_for_subjects_of_one_token(
    bert: LanguageModel, facts: FactSet, vectors: torch.Tensor
) -> None:
    layout = problem_of(bert, facts).sentences["train"].subject_prompt
    candidates = torch.tensor([[10, 11]] * len(layout))
    one, chain = (
        score_subjects(
            bert,
            AskedBack.fetch(layout, np.arange(len(layout)), candidates),
            vectors,
            masking=masking,  # type: ignore[arg-type]
            average="sum",
            max_tokens=100,
        )
        for masking in ("one", "chain")
    )
    single = torch.from_numpy(layout.subject_lengths == 1)
    torch.testing.assert_close(one[single], chain[single], rtol=0, atol=1e-10)
    assert (one != chain)[~single].all()


def test_no_candidates_ask_nothing(
    bert: LanguageModel, facts: FactSet, vectors: torch.Tensor
) -> None:
    layout = problem_of(bert, facts).sentences["train"].subject_prompt
    for rows in (np.arange(4), np.arange(0)):
        none = torch.full((len(rows), 2), -1)
        found = score_subjects(
            bert,
            AskedBack.fetch(layout, rows, none),
            vectors,
            masking="one",
            average="sum",
            max_tokens=100,
        )
        assert torch.equal(found, torch.zeros(len(rows), 2, dtype=torch.float64))
