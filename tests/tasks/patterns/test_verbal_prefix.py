"""Patterns read with a prefix at every layer: against slow passes, training, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from symprompt.errors import ModelError
from symprompt.models import Inputs, LanguageModel
from symprompt.prompts import PrefixEncoder
from symprompt.tasks.patterns.data import VerbalExample
from symprompt.tasks.patterns.layout import Writer, tensorise
from symprompt.tasks.patterns.model import VerbalModel, score_split
from symprompt.tasks.patterns.pattern import Pattern
from symprompt.tasks.patterns.train import tuning
from tiny.models import CAUSAL_FAMILIES, FAMILIES
from tiny.prefix import by_cache, by_pairs, by_tokens
from tiny.tasks import LEARNING, TEXT, make_problem

REFUSED = "mpnet"
BESIDE = ("albert", "distilbert", "modernbert")
SERVED = [name for name in (*FAMILIES, *CAUSAL_FAMILIES) if name != REFUSED]
EXACT = ("bert", "roberta", "xlm-roberta", "albert", "electra", "distilbert", "gpt2")
PLAIN = TEXT.replace("<1> ", "")
# One token, and several: the sentences differ in length.
WORDS = ("Rome", "New York river")
EXAMPLES = [
    VerbalExample(str(number), {"premise": text}, number % 2)
    for number, text in enumerate(("Paris", "The old river lies in Peru .", "San Marino"))
]


def slow_logits(backbone: LanguageModel, tokens: list[int], states: Tensor, name: str) -> Tensor:
    """All logits of one sentence [t, v], its body's states made without the interface."""
    ids = torch.tensor([tokens])
    embeddings = backbone.model.get_input_embeddings()(ids)
    slow = by_tokens if name in BESIDE else by_pairs if "deberta" in name else by_cache
    inputs = Inputs(embeddings, torch.ones_like(ids, dtype=torch.bool))
    hidden = slow(backbone, inputs, states, shift=False)

    def exchange(_module: Any, _args: Any, output: Any) -> Any:
        return type(output)(last_hidden_state=hidden)

    handle = backbone.model.base_model.register_forward_hook(exchange)
    try:
        logits: Tensor = backbone.model(inputs_embeds=embeddings).logits[0]
    finally:
        handle.remove()
    return logits.log_softmax(-1)


@pytest.mark.parametrize("name", SERVED)
@torch.no_grad()
def test_scores_are_those_of_passes_without_the_interface(
    name: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(name)
    encoder = PrefixEncoder(("rte",), backbone.prefix_shape, 3, scale=1.0, dropout=0.5)
    model = VerbalModel(backbone, encoder)
    pattern = Pattern.parse("{premise} is the city [MASK] .")
    writer = Writer(pattern, backbone.vocabulary, WORDS, max_length=40)
    found = score_split(model, tensorise(EXAMPLES, writer), max_tokens=60)
    states, mask = encoder()[0], backbone.vocabulary.mask_id
    for row, example in enumerate(EXAMPLES):
        written = writer.write(example)
        for slot, answer in enumerate(written.answers):
            middle = answer if mask is None else [mask] * len(answer)
            after = [] if mask is None else written.after
            tokens = [*written.before, *middle, *after]
            logits = slow_logits(backbone, tokens, states, name)
            start = len(written.before) - (mask is None)
            wanted = sum(float(logits[start + at, token]) for at, token in enumerate(answer))
            within = 1e-9 if name in EXACT else 1e-3
            assert float(found[row, slot]) == pytest.approx(wanted, rel=1e-5, abs=within)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("kind", ["free", "mlp"])
def test_a_prefix_learns_and_the_model_stays(
    family: str, kind: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family, "float32")
    before = {name: value.clone() for name, value in backbone.model.named_parameters()}
    problem = make_problem(
        backbone, method="pt2", template=PLAIN, prefix_length=4, prefix_encoder=kind
    )
    learning = replace(LEARNING, prompt_rate=3e-2, steps=60, evaluate_every=20, model_dropout=False)
    with tuning(problem, learning) as training:
        assert all(name.startswith("extra.") for name in training.parameters)
        first = problem.look(training.model)[1]
        row, _ = training.run(1)
        prefix = training.prompt()["prefix"]
        for name, value in backbone.model.named_parameters():
            assert torch.equal(value, before[name])
    assert row["dev"]["loss"] < 0.7 * first
    layers, heads, size = backbone.prefix_shape
    assert prefix.shape == (layers, 2, heads, 4, size)
    if kind == "free":
        assert row["trained"] == prefix.numel()


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


def test_a_family_that_would_not_read_it_is_refused(
    load_family: Callable[..., LanguageModel],
) -> None:
    problem = make_problem(load_family(REFUSED), method="pt2", template=PLAIN)
    with pytest.raises(ModelError, match="MPNetModel called transformers' attention interface 0"):
        problem.make_model(1)
