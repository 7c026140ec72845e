"""Wrong objects for the subject prompt: which are drawn, their loss against loops, learning."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from symprompt.probing.methods.base import Method
from symprompt.probing.methods.spe import SPE
from symprompt.probing.negatives import draw, find_wrong, listwise_losses, wrong_candidates
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.problem import Problem
from symprompt.runs.environment import derive_seed
from tiny.loops import Loops, randomise
from tiny.models import (
    causal_config,
    facts_of,
    make_trainer,
    run_config,
    run_training,
    train,
    world_facts,
)

ANY_LENGTH = {"objects": "any-length", "vocabulary": "objects"}


def make(
    backbone: LanguageModel, given: FactSet, *, epoch: int = 0, **sections: Any
) -> tuple[Problem, SPE]:
    """A method with wide random vectors, in an epoch that began."""
    method = {"name": "spe", "k": 6, "negatives": 3, **sections.pop("method", {})}
    config = (causal_config if backbone.causal else run_config)(
        prompt={"encoder": "free"}, method=method, dtype="float64", **sections
    )
    problem = prepare(config, backbone, given)
    made = make_method(config, problem)
    assert isinstance(made, SPE)
    randomise(made)
    made.begin_epoch(problem.sentences["train"], epoch)
    return problem, made


def values(method: Method) -> dict[str, torch.Tensor]:
    return {part: value.detach() for part, value in method.vectors().items()}


# ------------------------------------------------------------------------------------ which


def test_wrong_candidates_are_the_best_answers_that_are_not_true() -> None:
    scores = torch.tensor([[0.5, 3.0, 2.0, 1.0, 4.0], [0.1, 0.2, 0.3, 0.4, 0.5]])
    scores[1, 2:] = -torch.inf
    known = torch.tensor([[1, 3], [0, -1]])
    found = wrong_candidates(scores, known, 4)
    assert found.tolist() == [[4, -1, 2, -1], [1, -1, -1, -1]]
    assert wrong_candidates(scores, known, 7)[1].tolist() == [1, -1, -1, -1, -1, -1, -1]


def test_negatives_come_from_the_object_prompts_best_answers(
    bert: LanguageModel, facts: FactSet
) -> None:
    # A subject with two true objects in training: neither is ever a negative.
    inside = facts["in"]
    more = (*inside.train, *facts_of("in", [("Oslo", "Rome"), ("Oslo", "Lima")]))
    relations = [replace(inside, train=more) if own is inside else own for own in facts.relations]
    problem, method = make(bert, replace(facts, relations=tuple(relations)))
    loops = Loops.of(problem, method)
    listed = problem.facts.facts("train")
    assert method._negatives is not None
    for row, fact in enumerate(listed):
        forward = loops.objects(fact).tolist()
        best = sorted(range(len(bert.vocabulary)), key=lambda token: -forward[token])[:6]
        true = {
            loops.tokens(other.object)[0]
            for other in listed
            if (other.relation, other.subject) == (fact.relation, fact.subject)
        }
        chosen = method._negatives.objects[row].tolist()
        assert len(set(chosen)) == 3
        assert set(chosen) <= set(best) - true
        assert 0 <= method._negatives.offset[row] < len(loops.tokens(fact.subject))


def test_draws_follow_from_seed_epoch_and_relation(bert: LanguageModel, facts: FactSet) -> None:
    problem, method = make(bert, facts)
    sentences = problem.sentences["train"]
    wrong = find_wrong(method, sentences, problem.allowed, k=6, max_tokens=60).numpy()
    assert np.array_equal(wrong, method.epoch_state["wrong"].numpy())

    def drawn(seed: int = 34, epoch: int = 0) -> np.ndarray:
        found = draw(wrong, sentences, problem.relations, count=2, seed=seed, epoch=epoch)
        return np.column_stack((found.objects, found.offset))

    assert np.array_equal(drawn(), drawn())
    assert not np.array_equal(drawn(), drawn(epoch=1))
    assert not np.array_equal(drawn(), drawn(seed=35))
    # Whatever other relations there are, and as it is written here.
    (rows,) = np.nonzero(sentences.relations == 1)
    keys = np.random.default_rng(derive_seed(34, "negatives", "in", 0)).random((len(rows), 7))
    lengths = sentences.subject_prompt.subject_lengths[rows]
    for place, row in enumerate(rows):
        able = [index for index in range(6) if wrong[row, index] >= 0]
        order = sorted(able, key=lambda index: keys[place, index])[:2]
        offset = math.floor(keys[place, 6] * lengths[place])
        assert drawn()[row].tolist() == [*wrong[row, order], offset]


def test_a_subject_that_cannot_be_its_own_object_is_no_negative(
    bert: LanguageModel, facts: FactSet
) -> None:
    found = {}
    for copies in ("on", "auto"):
        problem, method = make(bert, facts, facts={"copies": copies}, method={"k": 500})
        wrong, copy = method.epoch_state["wrong"].numpy(), problem.sentences["train"].copy
        found[copies] = [own in row for own, row in zip(copy, wrong, strict=True) if own >= 0]
    assert all(found["on"])
    assert not any(found["auto"])


@pytest.mark.parametrize(("every", "searches"), [(1, 4), (3, 2)])
def test_candidates_are_found_anew_every_few_epochs(
    every: int,
    searches: int,
    bert: LanguageModel,
    facts: FactSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = run_config(method={"negatives": 2, "negatives_every": every}, learning={"epochs": 4})
    _, method, trainer = make_trainer(config, bert, facts)
    asked = 0
    original = method.scores

    def count(*args: Any) -> torch.Tensor:
        nonlocal asked
        asked += len(args[1])
        return original(*args)

    monkeypatch.setattr(method, "scores", count)
    run_training(trainer)
    assert asked == searches * len(trainer.sentences)


def test_the_models_dropout_stays_on_after_candidates_were_found(
    bert: LanguageModel, facts: FactSet
) -> None:
    problem, method = make(bert, facts)
    sentences = problem.sentences["train"]
    with method.dropout():
        found = find_wrong(method, sentences, problem.allowed, k=6, max_tokens=4096)
        assert bert.model.training
    assert not bert.model.training
    assert torch.equal(found, method.epoch_state["wrong"])


# ------------------------------------------------------------------------------------ the loss


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("bert", {}),
    "chain": ("bert", {"masking": "chain"}),
    "whole": ("bert", {"masking": "whole"}),
    "separate": ("bert", {"vectors": "separate", "masking": "chain", "negatives_weight": 0.3}),
    "causal": ("gpt2", {"vectors": "separate"}),
}


def wanted_losses(problem: Problem, method: SPE, loops: Loops, any_length: bool) -> list[float]:
    """Equation 7 and the listwise loss, one sentence and one token at a time."""
    config, found = method.config, []
    one_sentence = config.masking == "whole" or problem.backbone.causal
    texts = problem.spelling.names.texts if problem.spelling else []
    assert method._negatives is not None
    for row, fact in enumerate(problem.facts.facts("train")):
        true: int | str = fact.object if any_length else loops.tokens(fact.object)[0]
        chosen = [own for own in method._negatives.objects[row].tolist() if own >= 0]
        candidates = [true, *(texts[own] if any_length else own for own in chosen)]
        each = [loops.back_tokens(fact, candidate) for candidate in candidates]
        offset = int(method._negatives.offset[row])
        scores = [float(own.mean() if one_sentence else own[offset]) for own in each]
        listwise = math.log(sum(map(math.exp, scores))) - scores[0]
        assert (listwise > 1e-3) == (len(chosen) > 0)
        forth = loops.forth(fact, fact.object)
        back = config.train_weight * float(each[0].mean())
        found.append(-forth - back + config.negatives_weight * listwise)
    return found


@pytest.mark.parametrize("name", list(CASES))
def test_the_loss_is_equation_7_and_the_listwise_loss_by_loops(
    name: str, load_family: Callable[..., LanguageModel], facts: FactSet
) -> None:
    family, options = CASES[name]
    problem, method = make(load_family(family), facts, method=options)
    loops = Loops.of(problem, method, masking=options.get("masking", "one"))
    rows = np.arange(len(problem.sentences["train"]))
    found = method.loss(problem.sentences["train"], rows, values(method))
    wanted = wanted_losses(problem, method, loops, any_length=False)
    assert found.tolist() == pytest.approx(wanted, abs=1e-9)


def test_wrong_objects_of_several_tokens_stand_whole_in_the_query(
    bert: LanguageModel, facts: FactSet
) -> None:
    inside = facts["in"]
    pairs = [(fact.object, fact.subject) for fact in inside.train]
    long = replace(inside, train=facts_of("in", pairs), dev=facts_of("in", pairs[:2]))
    long = replace(long, test=facts_of("in", pairs[2:3]))
    # Another relation with two answers has one wrong object for each fact.
    few = replace(facts["near"], dev=facts["near"].train, test=facts["near"].train)
    given = replace(facts, relations=(long, few))
    options = {"k": 4, "masking": "chain"}
    problem, method = make(bert, given, facts=ANY_LENGTH, method=options)
    assert method._negatives is not None
    assert (method._negatives.objects >= 0).sum(1).tolist() == [3] * 7 + [1] * 2
    loops = Loops.of(problem, method, masking="chain")
    rows = np.arange(len(problem.sentences["train"]))
    found = method.loss(problem.sentences["train"], rows, values(method))
    wanted = wanted_losses(problem, method, loops, any_length=True)
    assert found.tolist() == pytest.approx(wanted, abs=1e-8)
    # It is no sum of queries with one token in the object's place.
    assert method.queries(problem.sentences["train"], rows) is None


def test_a_fact_without_a_wrong_object_has_no_listwise_loss() -> None:
    right = torch.tensor([-1.0, -2.0], requires_grad=True)
    none = torch.zeros(0, dtype=torch.long)
    assert listwise_losses(right, torch.zeros(0), none, none).tolist() == [0.0, 0.0]
    found = listwise_losses(right, torch.tensor([-1.0]), torch.tensor([1]), torch.tensor([2]))
    assert found.tolist() == pytest.approx([0.0, math.log(1 + math.e)])
    (gradient,) = torch.autograd.grad(found.sum(), right)
    assert gradient.tolist() == pytest.approx([0.0, 1 / (1 + math.e) - 1])


@pytest.mark.parametrize("vectors", ["shared", "separate"])
def test_its_gradient_goes_to_the_subject_prompts_vectors(
    vectors: str, bert: LanguageModel, facts: FactSet
) -> None:
    options = {"vectors": vectors, "train_weight": 0.0}
    problem, method = make(bert, facts, method=options)
    gradients = []
    for weight in (0.0, 1.0):
        method.config = replace(method.config, negatives_weight=weight)
        leaves = {part: value.requires_grad_() for part, value in values(method).items()}
        method.loss(problem.sentences["train"], np.arange(3), leaves).sum().backward()
        gradients.append({part: value.grad for part, value in leaves.items()})
    own = "back" if vectors == "separate" else "forth"
    change = gradients[1][own] - gradients[0][own]  # type: ignore[operator]
    assert (change[0].abs().sum(1) > 1e-6).all()
    if vectors == "separate":
        assert torch.equal(gradients[0]["forth"], gradients[1]["forth"])  # type: ignore[arg-type]


def test_separate_vectors_choose_their_epoch_by_the_hardest_wrong_objects(
    bert: LanguageModel, facts: FactSet
) -> None:
    options = {"vectors": "separate", "masking": "chain"}
    problem, method = make(bert, facts, method=options)
    loops = Loops.of(problem, method, masking="chain")
    sentences, listed = problem.sentences["dev"], problem.facts.facts("dev")
    with torch.no_grad():
        found = method.dev_losses(sentences, np.arange(len(listed)), values(method))["back"]
    for row, fact in enumerate(listed):
        forward = loops.objects(fact).tolist()
        best = sorted(range(len(bert.vocabulary)), key=lambda token: -forward[token])[:6]
        wrong = [token for token in best if token not in sentences.known[row].tolist()][:3]
        (gold,) = loops.tokens(fact.object)
        scores = [float(loops.back_tokens(fact, token)[0]) for token in (gold, *wrong)]
        listwise = math.log(sum(map(math.exp, scores))) - scores[0]
        assert float(found[row]) == pytest.approx(
            -0.8 * loops.back(fact, gold) + listwise, abs=1e-8
        )


# ------------------------------------------------------------------------------------ learning


def test_the_subject_prompt_learns_to_tell_candidates_apart(knowing_bert: LanguageModel) -> None:
    told = {}
    for negatives in (0, 3):
        config = run_config(
            prompt={"template": "<3> [X] <3> [Y] <3>"},
            method={"k": 6, "vectors": "separate", "negatives": negatives},
            learning={"epochs": 40, "rate": 0.005, "batch": 8, "select": "loss"},
        )
        run = train(config, knowing_bert, world_facts())
        found = run.predict("test")
        scores, true = found.subject_score, found.candidates == found.gold[:, None]
        rows = true.any(1)
        logs = scores[rows] - np.logaddexp.reduce(scores[rows], axis=1, keepdims=True)
        first = scores[rows].argmax(1) == true[rows].argmax(1)
        told[negatives] = (-float(logs[true[rows]].mean()), float(first.mean()))
    # By what the loss is about, on facts that no training saw: how sure it is, how often right.
    assert told[3][0] < told[0][0]
    assert told[3][1] > told[0][1]
