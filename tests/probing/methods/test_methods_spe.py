"""SPE and P-tuning against plain loops: equations 5 to 10, one sentence and one token at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from symprompt.facts import Fact, FactSet
from symprompt.models import LanguageModel
from symprompt.probing.evaluate import dev_scores
from symprompt.probing.methods.spe import SPE
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.queries import object_logits
from symprompt.prompts import FreeVectors
from tiny.loops import Loops, randomise
from tiny.models import (
    CAUSAL_FAMILIES,
    CITIES,
    COUNTRIES,
    Trained,
    causal_config,
    run_config,
    train,
)

K = 6


def free_run(backbone: LanguageModel, facts: FactSet, **method: Any) -> tuple[Trained, Loops]:
    """An untrained run with wide random vectors, and the loops with the same vectors."""
    config = (causal_config if backbone.causal else run_config)(
        prompt={"encoder": "free"},
        method={"name": "spe", "k": K, **method},
        learning={"epochs": 0},
        dtype="float64",
    )
    run = train(config, backbone, facts)
    randomise(run.method)
    # Few allowed answers, so that many gold objects are among the candidates and move.
    run.problem.allowed.fill_(False)
    run.problem.allowed[:, answers(backbone)] = True
    options = {key: method[key] for key in ("masking", "blanks", "average") if key in method}
    return run, Loops.of(run.problem, run.method, **options)


def answers(backbone: LanguageModel) -> list[int]:
    return sorted(backbone.vocabulary.single_tokens([*COUNTRIES, *CITIES]))  # type: ignore[type-var]


def ask(loops: Loops, fact: Fact) -> tuple[list[int], list[float], list[float]]:
    """Equations 8 and 9: the candidates, best first, with both scores."""
    forward = loops.objects(fact).tolist()
    best = sorted(answers(loops.backbone), key=lambda token: (-forward[token], token))[:K]
    return best, [forward[token] for token in best], [loops.back(fact, token) for token in best]


def rank(loops: Loops, fact: Fact, weight: float) -> int:
    """Equation 10: the gold object's place when the candidates are re-ranked."""
    (gold,) = loops.tokens(fact.object)
    pairs = {token: (one, other) for token, one, other in zip(*ask(loops, fact), strict=True)}
    order = sorted(pairs, key=lambda token: -(pairs[token][0] + weight * pairs[token][1]))
    forward = loops.objects(fact).tolist()
    rest = [token for token in answers(loops.backbone) if token not in pairs]
    order += sorted(rest, key=lambda token: -forward[token])
    return order.index(gold) + 1


VARIANTS: dict[str, dict[str, str]] = {
    "the paper": {},
    "whole": {"masking": "whole"},
    "chain": {"masking": "chain"},
    "chain sum kept": {"masking": "chain", "average": "sum", "blanks": "kept"},
    "probability": {"average": "probability"},
    "whole probability": {"masking": "whole", "average": "probability"},
    "sum": {"average": "sum"},
    "kept": {"blanks": "kept"},
    "separate": {"vectors": "separate"},
    "whole kept separate": {"masking": "whole", "blanks": "kept", "vectors": "separate"},
}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_asking_back_equals_the_paper_written_as_loops(
    variant: str, bert: LanguageModel, facts: FactSet
) -> None:
    run, loops = free_run(bert, facts, **VARIANTS[variant])
    listed = run.problem.facts.facts("test")
    found = run.predict(max_tokens=200)
    assert len(found) == len(listed) == 10
    for row, fact in enumerate(listed):
        candidates, forward, backward = ask(loops, fact)
        assert found.candidates[row].tolist() == candidates
        assert found.object_score[row].tolist() == pytest.approx(forward, abs=1e-5)
        assert found.subject_score[row].tolist() == pytest.approx(backward, abs=1e-5)
        assert max(backward) - min(backward) > 1e-2
    for weight in (0.0, 0.8, 8.0):
        wanted = [rank(loops, fact, weight) for fact in listed]
        assert found.reranked(weight).realistic.tolist() == wanted
    # Re-ranking must move something, or the order was never tested.
    assert not np.array_equal(found.reranked(8.0).realistic, found.ranks().realistic)


@pytest.mark.parametrize("name", ["bert", *CAUSAL_FAMILIES])
def test_both_directions_equal_the_loops_in_float64(
    name: str, load_family: Callable[..., LanguageModel], facts: FactSet
) -> None:
    backbone = load_family(name)
    run, loops = free_run(backbone, facts, average="sum")
    sentences, listed = run.problem.sentences["test"], run.problem.facts.facts("test")
    rows, candidates = np.arange(len(listed)), torch.tensor([[10, 20, 30]] * len(listed))
    exact = name == "bert" or CAUSAL_FAMILIES[name].exact
    forth = object_logits(backbone, sentences.object_prompt, rows, run.vectors()["forth"])
    wanted = torch.stack([loops.objects(fact) for fact in listed])
    near = {"rtol": 0, "atol": 1e-9 if exact else 5e-5}
    torch.testing.assert_close(forth.double().log_softmax(1), wanted, **near)
    asked = run.method.subject_scores(sentences, rows, candidates, run.vectors(), max_tokens=100)
    found = asked["subject"]
    sums = [[loops.back(fact, token) for token in (10, 20, 30)] for fact in listed]
    near["atol"] *= 10
    torch.testing.assert_close(found.double(), torch.tensor(sums, dtype=torch.float64), **near)
    # Several-token subjects are among them.
    assert max(len(loops.tokens(fact.subject)) for fact in listed) > 2


@pytest.mark.parametrize("weight", [0.0, 0.8])
@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *(("bert", variant) for variant in ("the paper", "whole", "chain", "kept", "separate")),
        *(("gpt2", variant) for variant in ("the paper", "separate")),
    ],
)
def test_training_loss_is_equation_7(
    name: str,
    variant: str,
    weight: float,
    load_family: Callable[..., LanguageModel],
    facts: FactSet,
) -> None:
    run, loops = free_run(load_family(name), facts, train_weight=weight, **VARIANTS[variant])
    sentences, listed = run.problem.sentences["train"], run.problem.facts.facts("train")
    rows = np.arange(len(listed))[::-1].copy()
    found = run.method.loss(sentences, rows, run.vectors())
    wanted = []
    for row in rows:
        (gold,) = loops.tokens(listed[row].object)
        forth = float(loops.objects(listed[row])[gold])
        wanted.append(-forth - weight * loops.back(listed[row], gold))
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("average", ["probability", "sum"])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_training_loss_does_not_depend_on_how_scores_are_averaged(
    name: str, average: str, load_family: Callable[..., LanguageModel], facts: FactSet
) -> None:
    losses = []
    for own in ("log", average):
        run, loops = free_run(load_family(name), facts, average=own)
        sentences, rows = run.problem.sentences["train"], np.arange(5)
        losses.append(run.method.loss(sentences, rows, run.vectors()))
    assert torch.equal(losses[0], losses[1])
    gold = sentences.gold[rows][:, None]
    asked = run.method.subject_scores(sentences, rows, gold, run.vectors(), max_tokens=4096)
    scores = asked["subject"]
    listed = run.problem.facts.facts("train")[:5]
    wanted = [loops.back(fact, fact.object) for fact in listed]
    assert scores[:, 0].tolist() == pytest.approx(wanted, abs=1e-9)


def test_ptuning_loss_is_the_cross_entropy_of_the_object(
    bert: LanguageModel, facts: FactSet
) -> None:
    run, loops = free_run(bert, facts, name="ptuning")
    listed = run.problem.facts.facts("train")
    found = run.method.loss(run.problem.sentences["train"], np.arange(len(listed)), run.vectors())
    wanted = [-loops.forth(fact, fact.object) for fact in listed]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("vectors", ["shared", "separate"])
def test_separate_vectors_choose_their_epoch_by_the_backward_loss(
    vectors: str, bert: LanguageModel, facts: FactSet
) -> None:
    run, loops = free_run(bert, facts, vectors=vectors)
    found = dev_scores(run.method, replace(run.problem, max_tokens=100), "mrr")
    assert set(found) == ({"forth", "back"} if vectors == "separate" else {"forth"})
    for relation, entry in enumerate(run.problem.facts.relations):
        if vectors == "separate":
            back = [loops.back(fact, fact.object) for fact in entry.dev]
            assert found["back"][relation] == pytest.approx(np.mean(back), abs=1e-9)
        shares = []
        for fact in entry.dev:
            row, (gold,) = loops.objects(fact), loops.tokens(fact.object)
            shares.append(1 / (1 + int((row[answers(bert)] > row[gold]).sum())))
        assert found["forth"][relation] == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("vectors", ["shared", "separate"])
def test_gradients_of_both_directions_reach_the_right_vectors(
    vectors: str, bert: LanguageModel, facts: FactSet
) -> None:
    config = run_config(method={"name": "spe", "vectors": vectors}, dtype="float64")
    problem = prepare(config, bert, facts)
    method = make_method(config, problem)
    leaves = {part: value.detach().requires_grad_() for part, value in method.vectors().items()}
    rows = np.array([0])
    method.loss(problem.sentences["train"], rows, leaves).sum().backward()
    assert set(leaves) == ({"forth", "back"} if vectors == "separate" else {"forth"})
    for value in leaves.values():
        assert value.grad is not None
        # Fact 0 is of relation 0: all its vectors move, no other relation's do.
        assert (value.grad[0].abs().sum(1) > 0).all()
        assert (value.grad[1:] == 0).all()
    only_forth = {part: value.detach().requires_grad_() for part, value in leaves.items()}
    off = SPE(replace(config, method=replace(config.method, train_weight=0.0)), problem)
    off.loss(problem.sentences["train"], rows, only_forth).sum().backward()
    assert leaves["forth"].grad is not None
    assert only_forth["forth"].grad is not None
    same = torch.allclose(leaves["forth"].grad, only_forth["forth"].grad, atol=1e-12)
    # Shared vectors feel the way back; the forward ones of two sets do not.
    assert same == (vectors == "separate")


@pytest.mark.parametrize("masking", ["chain", "whole"])
def test_all_masking_is_the_same_for_subjects_of_one_token(
    masking: str, bert: LanguageModel, facts: FactSet
) -> None:
    capital = facts.select(["capital"])
    one = free_run(bert, capital, masking="one")[0].predict()
    other = free_run(bert, capital, masking=masking)[0].predict()
    np.testing.assert_allclose(one.subject_score, other.subject_score, rtol=1e-6, atol=1e-6)


def test_asking_back_with_a_vector_per_relation_uses_the_relations_own(
    bert: LanguageModel, facts: FactSet
) -> None:
    run, _ = free_run(bert, facts)
    before = run.predict()
    encoder = run.method.encoders["forth"]
    assert isinstance(encoder, FreeVectors)
    with torch.no_grad():
        encoder.vectors[1] = encoder.vectors[1].flip(0)
    after = run.predict()
    changed = (before.subject_score != after.subject_score).any(1)
    assert np.array_equal(changed, before.relation == 1)
