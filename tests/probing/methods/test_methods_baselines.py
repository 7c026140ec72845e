"""The majority baseline and OptiPrompt: what they answer, refuse, store and are called."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from symprompt.errors import ConfigError, DataError
from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from symprompt.probing.methods.majority import Majority
from symprompt.probing.methods.ptuning import PTuning
from symprompt.probing.prepare import make_method, prepare
from tiny.models import facts_of, make_facts, run_config


def test_majority_gives_shares_of_the_training_objects_without_a_pass(
    bert: LanguageModel, facts: FactSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config(method={"name": "majority"})
    problem = prepare(config, bert, facts)
    monkeypatch.setattr(bert, "logits_at", None)
    method = make_method(config, problem)
    assert isinstance(method, Majority)
    listed = problem.facts.facts("test")
    scores = method.scores(problem.sentences["test"], np.arange(len(listed)), {})
    assert method.loss(problem.sentences["test"], np.array([0, 1]), {}).shape == (2,)
    size = bert.vocabulary_size
    for row, fact in enumerate(listed):
        train = [entry.object for entry in facts[fact.relation].train]
        wanted = torch.full((size,), 1 / size / (len(train) + 1)).double()
        for word, count in Counter(train).items():
            (token,) = bert.vocabulary.single_tokens([word])
            assert token is not None
            wanted[token] = (count + 1 / size) / (len(train) + 1)
        torch.testing.assert_close(scores[row], wanted.log().float())


def test_majority_needs_training_facts_and_no_dev_facts(bert: LanguageModel) -> None:
    relation = make_facts()["in"]
    config = run_config(method={"name": "majority"})

    def alone(**splits: object) -> FactSet:
        values = {name: getattr(relation, name) for name in ("train", "test")} | splits
        made = type(relation)("in", dev=(), template=relation.template, **values)  # type: ignore[arg-type]
        return FactSet((made,), source="made up", layout="table")

    assert set(prepare(config, bert, alone()).sentences) == {"train", "test"}
    with pytest.raises(DataError, match="no usable train facts"):
        prepare(config, bert, alone(train=()))


def test_optiprompt_learns_free_vectors_and_no_others(bert: LanguageModel, facts: FactSet) -> None:
    config = run_config(method={"name": "optiprompt"}, prompt={"encoder": "free"})
    method = make_method(config, prepare(config, bert, facts))
    assert isinstance(method, PTuning)
    assert [list(vectors.state_dict()) for vectors in method.encoders.values()] == [["vectors"]]
    with pytest.raises(ConfigError, match='encoder = "free", not "mlp"'):
        run_config(method={"name": "optiprompt"}, prompt={"encoder": "mlp"})
    with pytest.raises(ConfigError, match='"majority" learns none'):
        run_config(method={"name": "majority"}, prompt={"encoder": "free", "start": "manual"})


def test_a_relation_answers_its_most_frequent_object_first(bert: LanguageModel) -> None:
    pairs = [("Oslo", "Peru"), ("York", "Cuba"), ("Rome", "Cuba")]
    listed = facts_of("in", pairs)
    relation = type(make_facts()["in"])("in", listed, (), listed, template="[X] lies in [Y] .")
    config = run_config(method={"name": "majority", "k": 2})
    problem = prepare(config, bert, FactSet((relation,), source="made up", layout="table"))
    scores = make_method(config, problem).scores(problem.sentences["test"], np.array([0]), {})
    words = [bert.vocabulary.text(token) for token in scores[0].topk(2).indices.tolist()]
    assert words == ["Cuba", "Peru"]
