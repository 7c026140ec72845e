"""Predictions of a split, dev scores, and the fitted weights of the joint score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from symprompt.facts import Fact, FactSet, Relation
from symprompt.models import LanguageModel
from symprompt.probing.evaluate import dev_scores, predict
from symprompt.probing.problem import log_frequencies
from symprompt.probing.queries import ranks
from symprompt.probing.results import Predictions
from tiny.models import Trained, run_config, train


@pytest.fixture(scope="module")
def run(bert: LanguageModel, facts: FactSet) -> Trained:
    return train(run_config(learning={"epochs": 1}, dtype="float64"), bert, facts)


def assert_same(one: Predictions, other: Predictions) -> None:
    for name, value in vars(one).items():
        torch.testing.assert_close(getattr(other, name), value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("max_tokens", [1, 40, 150, 100_000])
def test_predictions_do_not_depend_on_the_size_of_passes(run: Trained, max_tokens: int) -> None:
    assert_same(run.predict(max_tokens=4096), run.predict(max_tokens=max_tokens))


def reordered(facts: FactSet, orders: Sequence[Sequence[int]]) -> FactSet:
    relations = tuple(
        replace(relation, test=tuple(relation.test[index] for index in order))
        for relation, order in zip(facts.relations, orders, strict=True)
    )
    return replace(facts, relations=relations)


def test_predictions_follow_their_facts_in_any_order(
    run: Trained, bert: LanguageModel, facts: FactSet
) -> None:
    orders = [[2, 0, 3, 1], [3, 2, 1, 0], [1, 0]]
    other = train(run.config, bert, reordered(facts, orders))
    flat = [0 + i for i in orders[0]] + [4 + i for i in orders[1]] + [8 + i for i in orders[2]]
    assert_same(run.predict().take(torch.tensor(flat)), other.predict())


def test_predictions_stand_in_the_order_of_the_facts(run: Trained) -> None:
    listed = run.problem.facts.facts("test")
    found = run.predict()
    names = run.problem.relations
    vocabulary = run.problem.backbone.vocabulary
    assert [names[index] for index in found.relation] == [fact.relation for fact in listed]
    assert [vocabulary.text(int(gold)) for gold in found.gold] == [fact.object for fact in listed]
    # Lengths differ, so asking short sentences first had to be undone.
    lengths = run.problem.sentences["test"].object_prompt.lengths
    assert (np.diff(lengths) < 0).any()


def test_ranks_are_those_of_the_full_scores(run: Trained) -> None:
    sentences = run.problem.sentences["test"]
    scores = run.method.scores(sentences, np.arange(len(sentences)), run.vectors())
    scores = scores.masked_fill(~run.problem.allowed[sentences.object_prompt.relation], -torch.inf)
    found = run.predict()
    raw, filtered = ranks(scores, sentences.gold), ranks(scores, sentences.gold, sentences.known)
    np.testing.assert_array_equal(found.ranks().realistic, raw.realistic)
    np.testing.assert_array_equal(found.ranks(filtered=True).realistic, filtered.realistic)
    gold = scores.gather(1, sentences.gold[:, None])[:, 0]
    np.testing.assert_allclose(found.gold_score, gold, rtol=1e-5, atol=1e-5)


def test_only_allowed_answers_are_candidates(run: Trained) -> None:
    problem = run.problem
    allowed = torch.zeros_like(problem.allowed)
    allowed[0, 5:15], allowed[1, 10:22], allowed[2, 30:36] = True, True, True
    found = predict(
        run.method, problem.sentences["test"], run.vectors(), allowed=allowed, k=5, max_tokens=999
    )
    assert allowed[found.relation[:, None], found.candidates].all()
    finite, count = found.gold_score > -np.inf, allowed[found.relation].sum(1).numpy()
    np.testing.assert_array_equal(finite, allowed[found.relation, found.gold])
    # A gold that is not allowed comes after every answer that is.
    assert (found.better[~finite] == count[~finite]).all()
    assert (found.better[finite] < count[finite]).all()


@pytest.mark.parametrize("method", ["spe", "ptuning"])
def test_a_subject_that_may_not_be_the_answer_is_ranked_nowhere(
    bert: LanguageModel, method: str
) -> None:
    pairs = [("Paris", "Rome"), ("Rome", "Madrid"), ("Madrid", "Lima"), ("France", "Paris")]
    facts = [Fact("r", *pair) for pair in [*pairs, ("Lima", "Lima")]]
    relation = Relation("r", tuple(facts[:4]), tuple(facts[1:]), tuple(facts))
    config = run_config(
        learning={"epochs": 1, "rate": 1e-3},
        dtype="float64",
        facts={"copies": "auto", "words": "auto"},
        method={"name": method, "k": 4},
    )
    run = train(config, bert, FactSet((relation,), "made up", "table"))
    found, vocabulary = run.predict(), bert.vocabulary
    sentences = run.problem.sentences["test"]
    scores = run.method.scores(sentences, np.arange(5), run.vectors())
    for row, fact in enumerate(facts):
        own = {
            token: float(scores[row, token])
            for token in vocabulary.words()
            if vocabulary.text(token) != fact.subject
        }
        ordered = sorted(own, key=lambda token: (-own[token], token))
        assert found.candidates[row].tolist() == ordered[:4]
        (gold,) = vocabulary.single_tokens([fact.object])
        assert gold is not None
        place = ordered.index(gold) if gold in own else len(own)
        assert found.better[row] == found.better_filtered[row] == place
        assert (found.gold_score[row] == -np.inf) == (fact.subject == fact.object)
    # The true object that is its subject comes last, whatever the subject prompt adds.
    rank = run.predict().final(np.ones(1) if method == "spe" else None).realistic
    assert rank[4] > len(vocabulary.words())
    dev = dev_scores(run.method, run.problem, "mrr")["forth"]
    by_hand = run.predict("dev").ranks().realistic
    np.testing.assert_allclose(dev, [(1 / by_hand).mean()])


def test_filtered_ranks_leave_out_the_other_true_objects(bert: LanguageModel) -> None:
    objects = ("Paris", "Rome", "Madrid", "Tokyo")
    several = tuple(Fact("r", "France", name) for name in objects)
    facts = FactSet((Relation("r", several[:1], several[1:2], several[2:]),), "made up", "table")
    run = train(run_config(learning={"epochs": 0}, dtype="float64"), bert, facts)
    found = run.predict()
    tokens = torch.tensor(bert.vocabulary.single_tokens(list(objects)))
    sentences = run.problem.sentences["test"]
    scores = run.method.scores(sentences, np.arange(2), run.vectors())
    for row in range(2):
        others = tokens[tokens != int(found.gold[row])]
        ahead = (scores[row, others] > scores[row, found.gold[row]]).sum()
        assert found.better[row] - found.better_filtered[row] == int(ahead)
        np.testing.assert_array_equal(found.known[row], np.isin(found.candidates[row], others))


def test_progress_is_reported_to_the_end(run: Trained) -> None:
    ticks: list[tuple[str, int, int, str]] = []
    predict(
        run.method,
        run.problem.sentences["test"],
        run.method.vectors(),
        allowed=run.problem.allowed,
        k=2,
        max_tokens=40,
        tick=lambda *told: ticks.append(told),
        stage="asking test",
    )
    stages = ("asking test", "asking back test")
    assert tuple(dict.fromkeys(told[0] for told in ticks)) == stages
    for stage in stages:
        done = [told[1] for told in ticks if told[0] == stage]
        assert len(done) > 1
        assert done == sorted(done)
        assert done[-1] == 10


@pytest.mark.parametrize("select", ["mrr", "p@1", "loss"])
def test_dev_scores_are_means_per_relation(run: Trained, select: str) -> None:
    sentences = run.problem.sentences["dev"]
    found = dev_scores(run.method, replace(run.problem, max_tokens=50), select)["forth"]
    scores = run.method.scores(sentences, np.arange(len(sentences)), run.vectors())
    rank = ranks(scores, sentences.gold).realistic
    values = {
        "mrr": 1 / rank,
        "p@1": (rank <= 1).double(),
        "loss": scores.gather(1, sentences.gold[:, None])[:, 0].double(),
    }[select]
    for relation in range(3):
        mine = sentences.object_prompt.relation == relation
        assert found[relation] == pytest.approx(float(values[mine].mean()), rel=1e-5)


def test_log_frequencies_are_smoothed_probabilities() -> None:
    found = log_frequencies(torch.tensor([[3.0, 0.0, 1.0]]))
    assert found.exp().sum() == pytest.approx(1.0)
    assert found[0, 0].item() == pytest.approx(math.log(3.5 / 5.5))
    assert found[0, 1].item() == pytest.approx(math.log(0.5 / 5.5))
