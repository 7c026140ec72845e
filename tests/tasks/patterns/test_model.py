"""Scores of answers against an explicit slow loop: full forward passes, example by example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from symprompt.models import Inputs, LanguageModel
from symprompt.prompts import FreeVectors, PrefixEncoder
from symprompt.tasks.patterns.data import VerbalExample
from symprompt.tasks.patterns.layout import (
    VECTOR,
    Average,
    Spans,
    VerbalLayout,
    Writer,
    tensorise,
    tensorise_for_head,
)
from symprompt.tasks.patterns.model import (
    ClassHead,
    VerbalModel,
    passes,
    same_words,
    score_split,
    write_spans,
)
from symprompt.tasks.patterns.pattern import Pattern
from tiny.models import CAUSAL_FAMILIES, FAMILIES
from tiny.prefix import reference
from tiny.tasks import TEXT, make_problem

PREMISES = ("Rome is old .", "Paris", "The old river lies in Peru .", "San Marino")
EXAMPLES = [
    VerbalExample(str(number), {"premise": premise}, number % 2)
    for number, premise in enumerate(PREMISES)
]
# One token each; and one, two and three tokens, two of which begin alike.
SHORT = ("Rome", "Lima")
LONG = ("New York river", "New York", "Kenya")
PATTERN = "<1> {premise} is <2> the city [MASK] ."
ALL = [*FAMILIES, *CAUSAL_FAMILIES]


def slow_logits(backbone: LanguageModel, tokens: Sequence[int], vectors: Tensor) -> Tensor:
    """Every position's logits of one sentence by itself, through the whole model, [t, v]."""
    ids = torch.tensor([[0 if token == VECTOR else token for token in tokens]])
    embeddings = backbone.model.get_input_embeddings()(ids).clone()
    number = 0
    for place, token in enumerate(tokens):
        if token == VECTOR:
            embeddings[0, place] = vectors[number]
            number += 1
    options = {} if backbone.causal else {"attention_mask": torch.ones_like(ids)}
    logits: Tensor = backbone.model(inputs_embeds=embeddings, **options).logits[0]
    return logits.log_softmax(-1)


Logits = Callable[[list[int]], Tensor]


def slow_scores(
    examples: Sequence[VerbalExample],
    writer: Writer,
    logits: Logits,
    spans: str = "together",
    average: str = "sum",
) -> Tensor:
    """Each answer's score by itself, token by token, [n, c].

    Args:
        logits: gives every position's logits of a sentence, [t, v].
    """
    mask, table = writer.vocabulary.mask_id, []
    for written in map(writer.write, examples):
        row = []
        for answer in written.answers:
            found = []
            for offset, token in enumerate(answer):
                place, middle = len(written.before) + offset, list(answer)
                if mask is None:
                    place -= 1
                elif spans == "together":
                    middle = [mask] * len(answer)
                else:
                    middle[offset] = mask
                after = [] if mask is None else written.after
                found.append(logits([*written.before, *middle, *after])[place, token])
            row.append(sum(found) / (len(found) if average == "mean" else 1))
        table.append(torch.stack(row))
    return torch.stack(table).double()


def laid(
    backbone: LanguageModel,
    words: Sequence[str],
    spans: Spans = "together",
    average: Average = "sum",
) -> tuple[Writer, VerbalLayout]:
    writer = Writer(Pattern.parse(PATTERN), backbone.vocabulary, words, max_length=48)
    return writer, tensorise(EXAMPLES, writer, spans=spans, average=average)


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_scores_are_those_of_full_passes(
    family: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family)
    encoder = FreeVectors(("rte",), 3, backbone.width, seed=(1, "pattern"))
    model = VerbalModel(backbone, encoder)
    logits = partial(slow_logits, backbone, vectors=encoder()[0].double())
    for words, spans in ((SHORT, "together"), (LONG, "together"), (LONG, "one")):
        writer, layout = laid(backbone, words, spans)
        found = score_split(model, layout, max_tokens=64)
        wanted = slow_scores(EXAMPLES, writer, logits, spans)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_a_mean_is_a_sum_by_length_and_passes_do_not_matter(bert: LanguageModel) -> None:
    encoder = FreeVectors(("rte",), 3, bert.width, seed=(1, "pattern"))
    model = VerbalModel(bert, encoder)
    writer, layout = laid(bert, LONG, "one", "mean")
    logits = partial(slow_logits, bert, vectors=encoder()[0].double())
    wanted = slow_scores(EXAMPLES, writer, logits, "one", "mean")
    for most in (1, 100, 10_000):
        torch.testing.assert_close(score_split(model, layout, max_tokens=most), wanted)


def test_answers_share_sentences_where_they_can(bert: LanguageModel, gpt2: LanguageModel) -> None:
    for backbone in (bert, gpt2):
        _, layout = laid(backbone, SHORT)
        assert layout.ids.shape[1] == 1
        assert layout.at.shape[1] == 2
    assert laid(bert, LONG)[1].ids.shape[1] == 3
    assert laid(bert, LONG, "one")[1].ids.shape[1] == 6


def test_passes_hold_every_example_once_and_keep_to_their_bounds(bert: LanguageModel) -> None:
    _, layout = laid(bert, SHORT)
    for most in (1, 30, 1000):
        found = [rows for rows, _, _ in passes(layout, max_tokens=most, vocabulary=100)]
        assert sorted(row for rows in found for row in rows) == [0, 1, 2, 3]
        for rows in found:
            assert len(rows) == 1 or len(rows) * max(layout.widths[rows]) <= most


def test_the_loss_of_one_token_answers_is_that_of_their_logits(bert: LanguageModel) -> None:
    """The vocabulary's normaliser cancels: cross-entropy among the verbalizer's logits alone."""
    model = VerbalModel(bert, FreeVectors(("rte",), 3, bert.width))
    writer, layout = laid(bert, SHORT)
    rows = torch.arange(len(EXAMPLES))
    width = layout.width_of(np.arange(len(EXAMPLES)))
    losses = model.loss(layout, rows, width).detach()
    logits = partial(slow_logits, bert, vectors=model.extra()[0].detach())
    wanted = slow_scores(EXAMPLES, writer, logits).log_softmax(1)
    labels = torch.tensor([example.label for example in EXAMPLES])
    torch.testing.assert_close(losses, -wanted[rows, labels], rtol=1e-6, atol=0)


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_a_head_reads_the_first_or_the_last_token(
    family: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family)
    writer = Writer(Pattern.parse("{premise} [MASK]"), backbone.vocabulary, None, max_length=48)
    layout = tensorise_for_head(EXAMPLES, [writer], answers=3)
    hidden = int(backbone.model.config.hidden_size)
    model = VerbalModel(backbone, ClassHead(hidden, 3, seed=0, task="rte"))
    found = score_split(model, layout, max_tokens=1000)
    for row, example in enumerate(EXAMPLES):
        written = writer.write(example)
        ids = torch.tensor([[*written.before, *written.after]])
        states = backbone.model.base_model(input_ids=ids).last_hidden_state[0]
        state = states[-1 if backbone.causal else 0]
        torch.testing.assert_close(found[row], model.extra(state), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
@torch.no_grad()
def test_spans_are_written_as_a_slow_loop_writes_them(
    family: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family)
    spans = ("New York", "Rome", "the old river", "Los Angeles")
    examples = [
        VerbalExample(one.id, one.fields, 1, (span,))
        for one, span in zip(EXAMPLES, spans, strict=True)
    ]
    writer = Writer(Pattern.parse("{premise} is [MASK] ."), backbone.vocabulary, (), max_length=48)
    layout = tensorise(examples, writer, average="mean")
    assert layout.answers == 1
    found = write_spans(VerbalModel(backbone), layout, max_tokens=40)
    mask = backbone.vocabulary.mask_id
    nothing = torch.zeros(0, backbone.width)
    for row, example in enumerate(examples):
        written = writer.write(example)
        count, start = len(written.answers[0]), len(written.before)
        blank = -1 if mask is None else mask
        tokens: list[int] = [blank] * count
        for turn in range(count):
            if mask is None:
                logits = slow_logits(backbone, [*written.before, *tokens[:turn]], nothing)
                tokens[turn] = int(logits[-1].argmax())
                continue
            sentence = [*written.before, *tokens, *written.after]
            logits = slow_logits(backbone, sentence, nothing)[start : start + count]
            open_places = [place for place in range(count) if tokens[place] == mask]
            place = max(open_places, key=lambda place: float(logits[place].max()))
            tokens[place] = int(logits[place].argmax())
        assert found[row] == tokens


def test_words_are_compared_without_case_marks_and_articles() -> None:
    assert same_words("The table", "table .")
    assert same_words("big table", "The big, red table")
    assert not same_words("the chair", "the table")
    assert not same_words("", "the table")
    assert same_words("the", "The")


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_half_precision_keeps_the_weights_and_the_last_product_whole(
    family: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family, "float32")
    _, layout = laid(backbone, LONG)
    rows = torch.arange(len(EXAMPLES))
    found = {}
    for half in (False, True):
        encoder = FreeVectors(("rte",), 3, backbone.width, seed=(1, "pattern"))
        model = VerbalModel(backbone, encoder, half=half)
        losses = model.loss(layout, rows, int(layout.ids.shape[2]))
        losses.sum().backward()
        found[half] = losses.detach()
        assert losses.dtype == torch.float32
        assert all(value.grad is not None for value in encoder.parameters())
    assert not torch.equal(found[True], found[False])
    torch.testing.assert_close(found[True], found[False], rtol=0.2, atol=0.5)
    assert all(value.dtype == torch.float32 for value in backbone.model.parameters())


EXACT = ("bert", "roberta", "xlm-roberta", "albert", "electra", "distilbert", "mpnet", "gpt2")
PLAIN = TEXT.replace("<1> ", "")
# One token, and several: the sentences differ in length.
WORDS = ("Rome", "New York river")
FEW = [
    VerbalExample(str(number), {"premise": text}, number % 2)
    for number, text in enumerate(("Paris", "The old river lies in Peru .", "San Marino"))
]


def prefixed_logits(backbone: LanguageModel, tokens: list[int], states: Tensor) -> Tensor:
    """All logits of one sentence [t, v], its body's states made without the interface."""
    ids = torch.tensor([tokens])
    embeddings = backbone.model.get_input_embeddings()(ids)
    inputs = Inputs(embeddings, torch.ones_like(ids, dtype=torch.bool))
    hidden = reference(backbone, inputs, states, shift=False)

    def exchange(_module: Any, _args: Any, output: Any) -> Any:
        return type(output)(last_hidden_state=hidden)

    handle = backbone.model.base_model.register_forward_hook(exchange)
    try:
        logits: Tensor = backbone.model(inputs_embeds=embeddings).logits[0]
    finally:
        handle.remove()
    return logits.log_softmax(-1)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_scores_are_those_of_passes_without_the_interface(
    name: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(name)
    encoder = PrefixEncoder(("rte",), backbone.prefix_shape, 3, scale=1.0, dropout=0.5)
    model = VerbalModel(backbone, encoder)
    pattern = Pattern.parse("{premise} is the city [MASK] .")
    writer = Writer(pattern, backbone.vocabulary, WORDS, max_length=40)
    found = score_split(model, tensorise(FEW, writer), max_tokens=60)
    wanted = slow_scores(FEW, writer, partial(prefixed_logits, backbone, states=encoder()[0]))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-9 if name in EXACT else 1e-3)


def test_the_prefix_is_dropped_in_training_alone(bert: LanguageModel) -> None:
    problem = make_problem(bert, method="pt2", template=PLAIN, prefix_dropout=0.5)
    model = problem.make_model(1)
    layout = problem.layouts["train"]
    rows, width = torch.arange(4), int(layout.ids.shape[2])
    plain = model.loss(layout, rows, width)
    assert torch.equal(model.loss(layout, rows, width), plain)
    with model.training(dropout=False):
        assert not torch.equal(model.loss(layout, rows, width), plain)
    assert torch.equal(model.loss(layout, rows, width), plain)
