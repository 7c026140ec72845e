"""Predictions of a split, dev scores, and the fitted weights of the joint score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from symprompt.facts import Fact, FactSet, Relation
from symprompt.models import LanguageModel
from symprompt.probing.evaluate import add_frequencies, dev_scores, fit_combination, predict
from symprompt.probing.problem import log_frequencies
from symprompt.probing.queries import ranks
from symprompt.probing.results import Predictions
from tiny.models import Trained, as_predictions, run_config, train


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
        stage="test",
    )
    done = [told[1] for told in ticks]
    assert done == sorted(done)
    assert ticks[-1][:3] == ("test", 10, 10)


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


FACTS, CANDIDATES, ANSWERS = 300, 6, 20


def make_predictions(
    true: tuple[float, float, float], *, relations: int = 2
) -> tuple[Predictions, Tensor]:
    """Facts whose gold object is drawn from the softmax of a known combination of scores."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 30, (relations, ANSWERS), generator=generator).double()
    frequencies = log_frequencies(counts)
    relation = torch.arange(FACTS) % relations
    order = torch.rand(FACTS, ANSWERS, generator=generator).argsort(1)
    candidates = order[:, :CANDIDATES]
    forward = -3 * torch.rand(FACTS, CANDIDATES, generator=generator).sort(1).values
    backward = -9 * torch.rand(FACTS, CANDIDATES, generator=generator)
    joint = true[0] * forward + true[1] * backward
    joint = joint + true[2] * frequencies[relation[:, None], candidates]
    place = torch.multinomial(joint.softmax(1), 1, generator=generator)[:, 0]
    gold = candidates.gather(1, place[:, None])[:, 0]
    zeros = torch.zeros(FACTS, dtype=torch.long)
    found = as_predictions(
        relation=relation,
        gold=gold,
        gold_score=forward.gather(1, place[:, None])[:, 0],
        better=place,
        equal=zeros,
        better_filtered=place,
        equal_filtered=zeros,
        candidates=candidates,
        object_score=forward,
        subject_score=backward,
        known=torch.zeros_like(candidates, dtype=torch.bool),
    )
    return found, frequencies


def test_log_frequencies_are_smoothed_probabilities() -> None:
    found = log_frequencies(torch.tensor([[3.0, 0.0, 1.0]]))
    assert found.exp().sum() == pytest.approx(1.0)
    assert found[0, 0].item() == pytest.approx(math.log(3.5 / 5.5))
    assert found[0, 1].item() == pytest.approx(math.log(0.5 / 5.5))


def test_the_fit_finds_the_numbers_that_made_the_facts() -> None:
    found, frequencies = make_predictions((1.5, 0.6, 0.9), relations=1)
    weights, shares = fit_combination(found, frequencies, 1)
    assert weights.item() == pytest.approx(0.6 / 1.5, rel=0.25)
    assert shares.item() == pytest.approx(0.9 / 0.6, rel=0.4)


def test_the_fit_is_where_the_penalised_likelihood_is_greatest() -> None:
    found, frequencies = make_predictions((1.0, 0.4, 0.5), relations=2)
    weights, shares = fit_combination(found, frequencies, 2)

    def loss(weights: np.ndarray, shares: np.ndarray) -> float:
        """The likelihood alone, over plain loops, at the scale that suits it best."""
        best = math.inf
        for scale in torch.linspace(0.2, 2.0, 37).tolist():
            total = 0.0
            for row in range(FACTS):
                r = int(found.relation[row])
                scores = []
                for k in range(CANDIDATES):
                    answer = int(found.candidates[row, k])
                    back = float(found.subject_score[row, k]) + float(shares[r]) * float(
                        frequencies[r, answer]
                    )
                    scores.append(
                        scale * (float(found.object_score[row, k]) + float(weights[r]) * back)
                    )
                place = found.candidates[row].tolist().index(int(found.gold[row]))
                total += math.log(sum(math.exp(score) for score in scores)) - scores[place]
            best = min(best, total / FACTS)
        return best

    here = loss(weights, shares)
    assert here < loss(weights * 1.5, shares)
    assert here < loss(weights * 0.5, shares)
    assert here < loss(weights, shares + 0.7)
    assert here < loss(weights, shares - 0.7)


def test_a_way_back_that_misleads_gets_no_weight() -> None:
    found, frequencies = make_predictions((1.5, -0.8, 0.0), relations=1)
    weights, shares = fit_combination(found, frequencies, 1)
    assert weights.tolist() == [0.0]
    assert shares.tolist() == [0.0]


def test_no_gold_among_the_candidates_gives_no_weight() -> None:
    found, frequencies = make_predictions((1.0, 0.5, 0.5))
    found = found.take(np.arange(4))
    found.gold[:] = ANSWERS + 1
    assert fit_combination(found, frequencies, 2)[0].tolist() == [0.0, 0.0]


def test_frequencies_are_added_to_the_backward_score() -> None:
    found, frequencies = make_predictions((1.0, 0.5, 0.5))
    shares = np.array([0.3, 2.0])
    added = add_frequencies(found, frequencies, shares)
    row, k = 7, 3
    relation = int(found.relation[row])
    expected = float(found.subject_score[row, k]) + float(shares[relation]) * float(
        frequencies[relation, int(found.candidates[row, k])]
    )
    assert added.weighed_score[row, k] == pytest.approx(expected, abs=1e-5)
    assert np.array_equal(added.subject_score, found.subject_score)
    joint = added.object_score[row, k] + 0.5 * expected
    assert added.joint(np.array([0.5, 0.5]))[row, k] == pytest.approx(joint, abs=1e-5)


def test_candidates_that_are_not_allowed_do_no_harm() -> None:
    found, frequencies = make_predictions((1.0, 0.5, 0.5))
    found.object_score[0, -1] = -np.inf
    weights, _ = fit_combination(found, frequencies, 2)
    assert np.isfinite(weights).all()


@pytest.mark.parametrize("facts", [1, 2, 4, 8])
def test_few_facts_give_no_large_weights(facts: int) -> None:
    found, frequencies = make_predictions((1.0, 0.0, 0.0))
    for start in range(0, 240, facts):
        few = found.take(np.arange(start, start + facts))
        weights, shares = fit_combination(few, frequencies, 2)
        assert float(weights.max()) < 1.0
        assert np.abs(weights * shares).max() < 1.5
