"""SPE and P-tuning against plain loops: equations 5 to 10, one sentence and one token at a time.

The oracle uses nothing of the package but the model and the tokenizer's ids: every sentence is a
Python list of token ids and vectors, embedded by hand and run through a full forward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from symprompt.facts import Fact, FactSet
from symprompt.models import LanguageModel
from symprompt.probing.config import MethodConfig
from symprompt.probing.evaluate import dev_scores, predict
from symprompt.probing.methods.spe import SPE
from symprompt.probing.prepare import make_method, prepare
from symprompt.prompts import FreeVectors
from tiny.models import CITIES, COUNTRIES, Trained, run_config, train

Item = int | Tensor


@dataclass
class Loops:
    """Equations 5 to 10 by loops, for the template "<2> [X] <1> [Y] <2>"."""

    backbone: LanguageModel
    vectors: dict[str, Tensor]
    names: tuple[str, ...]
    method: MethodConfig
    answers: list[int]

    def log_probabilities(self, items: list[Item], at: list[int]) -> list[list[float]]:
        """Ask the model about one sentence; return the log-probabilities at some positions."""
        table = self.backbone.model.get_input_embeddings().weight
        rows = [table[item] if isinstance(item, int) else item for item in items]
        embeddings = torch.stack(rows)[None]
        mask = torch.ones(1, len(rows), dtype=torch.long)
        with torch.no_grad():
            logits = self.backbone.model(inputs_embeds=embeddings, attention_mask=mask).logits[0]
        found = []
        for position in at:
            row = logits[position].tolist()
            top = max(row)
            total = top + math.log(sum(math.exp(value - top) for value in row))
            found.append([value - total for value in row])
        return found

    def tokens(self, name: str) -> list[int]:
        ids: list[int] = self.backbone.vocabulary.tokenizer(name, add_special_tokens=False)[
            "input_ids"
        ]
        return ids

    def sentence(self, relation: int, part: str, first: list[int], second: list[int]) -> list[Item]:
        """[CLS] v0 v1 first v2 second v3 v4 [SEP], the vectors always in this order."""
        v: list[Item] = list(self.vectors[part][relation])
        tokenizer = self.backbone.vocabulary.tokenizer
        start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
        return [start, v[0], v[1], *first, v[2], *second, v[3], v[4], end]

    def forth(self, fact: Fact) -> list[float]:
        """Equation 5: log P(object = v) for every v."""
        subject = self.tokens(fact.subject)
        mask = self.backbone.vocabulary.mask_id
        items = self.sentence(self.names.index(fact.relation), "forth", subject, [mask])
        return self.log_probabilities(items, [3 + len(subject) + 1])[0]

    def back(self, fact: Fact, candidate: int) -> float:
        """Equations 6, 9 and 10: how likely the subject is, given a candidate object."""
        subject = self.tokens(fact.subject)
        mask = self.backbone.vocabulary.mask_id
        relation = self.names.index(fact.relation)
        part = "back" if "back" in self.vectors else "forth"
        swapped = self.method.blanks == "swapped"
        # Where the subject starts: after v2 and the object, or right after v0 and v1.
        start = 5 if swapped else 3
        found: list[float] = []
        if self.method.masking == "one":
            for index, token in enumerate(subject):
                shown = [*subject[:index], mask, *subject[index + 1 :]]
                pair = ([candidate], shown) if swapped else (shown, [candidate])
                items = self.sentence(relation, part, *pair)
                found.append(self.log_probabilities(items, [start + index])[0][token])
        else:
            shown = [mask] * len(subject)
            pair = ([candidate], shown) if swapped else (shown, [candidate])
            items = self.sentence(relation, part, *pair)
            table = self.log_probabilities(items, [start + i for i in range(len(subject))])
            found = [row[token] for row, token in zip(table, subject, strict=True)]
        if self.method.average == "log":
            return sum(found) / len(found)
        if self.method.average == "sum":
            return sum(found)
        return math.log(sum(math.exp(value) for value in found) / len(found))

    def asked(self, fact: Fact) -> tuple[list[int], list[float], list[float]]:
        """Equations 8 and 9: the candidates, best first, with both scores."""
        forward = self.forth(fact)
        best = sorted(self.answers, key=lambda token: (-forward[token], token))
        best = best[: self.method.k]
        return best, [forward[token] for token in best], [self.back(fact, token) for token in best]

    def rank(self, fact: Fact, weight: float) -> int:
        """Equation 10: the gold object's place when the candidates are re-ranked."""
        (gold,) = self.tokens(fact.object)
        candidates, forward, backward = self.asked(fact)
        joint = {
            token: one + weight * other
            for token, one, other in zip(candidates, forward, backward, strict=True)
        }
        whole = self.forth(fact)
        rest = [token for token in self.answers if token not in joint]
        order = sorted(candidates, key=lambda token: -joint[token])
        order += sorted(rest, key=lambda token: -whole[token])
        return order.index(gold) + 1


def free_run(bert: LanguageModel, facts: FactSet, **method: Any) -> tuple[Trained, Loops]:
    """An untrained run with wide random vectors, and the loops with the same vectors."""
    config = run_config(
        prompt={"encoder": "free"},
        method={"name": "spe", "k": 6, **method},
        learning={"epochs": 0},
        dtype="float64",
    )
    run = train(config, bert, facts)
    generator = torch.Generator().manual_seed(5)
    for encoder in run.method.encoders.values():
        with torch.no_grad():
            for value in encoder.parameters():
                # Twelve or so digits, so that an order mistaken anywhere shows.
                value.copy_(torch.randn(value.shape, generator=generator, dtype=value.dtype))
    # Few allowed answers, so that many gold objects are among the candidates and move.
    answers = bert.vocabulary.single_tokens([*COUNTRIES, *CITIES])
    run.problem.allowed.fill_(False)
    run.problem.allowed[:, answers] = True  # type: ignore[index]
    loops = Loops(bert, run.vectors(), run.problem.relations, config.method, sorted(answers))  # type: ignore[type-var]
    return run, loops


VARIANTS: dict[str, dict[str, str]] = {
    "the paper": {},
    "whole": {"masking": "whole"},
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
        candidates, forward, backward = loops.asked(fact)
        assert found.candidates[row].tolist() == candidates
        assert found.object_score[row].tolist() == pytest.approx(forward, abs=1e-5)
        assert found.weighed_score[row].tolist() == pytest.approx(backward, abs=1e-5)
        assert max(backward) - min(backward) > 1e-2
    for weight in (0.0, 0.8, 8.0):
        wanted = [loops.rank(fact, weight) for fact in listed]
        assert found.reranked(weight).realistic.tolist() == wanted
    # Re-ranking must move something, or the order was never tested.
    assert not torch.equal(found.reranked(8.0).realistic, found.ranks().realistic)


def test_subject_scores_equal_the_loops_in_float64(bert: LanguageModel, facts: FactSet) -> None:
    run, loops = free_run(bert, facts)
    sentences, listed = run.problem.sentences["test"], run.problem.facts.facts("test")
    candidates = torch.tensor([[10, 20, 30]] * len(listed))
    found = run.method.subject_scores(
        sentences, np.arange(len(listed)), candidates, run.vectors(), max_tokens=100
    )
    wanted = [[loops.back(fact, token) for token in (10, 20, 30)] for fact in listed]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-10)
    # Several-token subjects are among them.
    assert max(len(loops.tokens(fact.subject)) for fact in listed) > 2


@pytest.mark.parametrize("variant", ["the paper", "whole", "kept", "separate"])
@pytest.mark.parametrize("weight", [0.0, 0.8])
def test_training_loss_is_equation_7(
    variant: str, weight: float, bert: LanguageModel, facts: FactSet
) -> None:
    run, loops = free_run(bert, facts, train_weight=weight, **VARIANTS[variant])
    sentences, listed = run.problem.sentences["train"], run.problem.facts.facts("train")
    rows = np.arange(len(listed))[::-1].copy()
    found = run.method.loss(sentences, rows, run.vectors())
    wanted = []
    for row in rows:
        fact = listed[row]
        (gold,) = loops.tokens(fact.object)
        wanted.append(-loops.forth(fact)[gold] - weight * loops.back(fact, gold))
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.parametrize("average", ["probability", "sum"])
def test_training_loss_does_not_depend_on_how_scores_are_averaged(
    average: str, bert: LanguageModel, facts: FactSet
) -> None:
    losses = []
    for name in ("log", average):
        run, _ = free_run(bert, facts, average=name)
        losses.append(run.method.loss(run.problem.sentences["train"], np.arange(5), run.vectors()))
    assert torch.equal(losses[0], losses[1])


def test_ptuning_loss_is_the_cross_entropy_of_the_object(
    bert: LanguageModel, facts: FactSet
) -> None:
    run, loops = free_run(bert, facts, name="ptuning")
    listed = run.problem.facts.facts("train")
    found = run.method.loss(run.problem.sentences["train"], np.arange(len(listed)), run.vectors())
    wanted = [-loops.forth(fact)[loops.tokens(fact.object)[0]] for fact in listed]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-10)


def test_separate_vectors_choose_their_epoch_by_the_backward_loss(
    bert: LanguageModel, facts: FactSet
) -> None:
    run, loops = free_run(bert, facts, vectors="separate")
    found = dev_scores(
        run.method,
        run.problem.sentences["dev"],
        run.config.learning,
        allowed=run.problem.allowed,
        max_tokens=100,
    )
    listed = run.problem.facts.facts("dev")
    for relation, name in enumerate(run.problem.relations):
        mine = [fact for fact in listed if fact.relation == name]
        back = [loops.back(fact, loops.tokens(fact.object)[0]) for fact in mine]
        assert found["back"][relation] == pytest.approx(np.mean(back), abs=1e-9)
        ranks = [
            1 + sum(row[token] > row[gold] for token in loops.answers)
            for row, gold in ((loops.forth(fact), loops.tokens(fact.object)[0]) for fact in mine)
        ]
        assert found["forth"][relation] == pytest.approx(np.mean([1 / rank for rank in ranks]))


def test_shared_vectors_are_chosen_by_the_forward_score_alone(
    bert: LanguageModel, facts: FactSet
) -> None:
    run, _ = free_run(bert, facts)
    found = dev_scores(
        run.method,
        run.problem.sentences["dev"],
        run.config.learning,
        allowed=run.problem.allowed,
        max_tokens=1000,
    )
    assert set(found) == {"forth"}


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
    off = SPE(
        bert,
        method.encoders["forth"],  # type: ignore[arg-type]
        method.encoders.get("back"),  # type: ignore[arg-type]
        MethodConfig(train_weight=0.0, vectors=vectors),  # type: ignore[arg-type]
    )
    off.loss(problem.sentences["train"], rows, only_forth).sum().backward()
    assert leaves["forth"].grad is not None
    assert only_forth["forth"].grad is not None
    same = torch.allclose(leaves["forth"].grad, only_forth["forth"].grad, atol=1e-12)
    # Shared vectors feel the way back; the forward ones of two sets do not.
    assert same == (vectors == "separate")


def test_one_and_whole_masking_agree_for_subjects_of_one_token(
    bert: LanguageModel, facts: FactSet
) -> None:
    capital = facts.select(["capital"])
    one = free_run(bert, capital, masking="one")[0].predict()
    whole = free_run(bert, capital, masking="whole")[0].predict()
    torch.testing.assert_close(one.backward, whole.weighed_score, rtol=1e-6, atol=1e-6)


def test_asking_back_with_a_vector_per_relation_uses_the_relations_own(
    bert: LanguageModel, facts: FactSet
) -> None:
    run, _ = free_run(bert, facts)
    before = run.predict()
    encoder = run.method.encoders["forth"]
    assert isinstance(encoder, FreeVectors)
    with torch.no_grad():
        encoder.vectors[1] = encoder.vectors[1].flip(0)
    after = predict(
        run.method,
        run.problem.sentences["test"],
        run.vectors(),
        allowed=run.problem.allowed,
        k=6,
        max_tokens=4096,
    )
    changed = (before.weighed_score != after.weighed_score).any(1)
    assert torch.equal(changed, before.relation == 1)
