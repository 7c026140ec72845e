"""LPAQA: answers of several templates, and the weights that mix them, against loops."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import symprompt
from symprompt.errors import DataError, RunError
from symprompt.facts import Fact, FactSet
from symprompt.models import LanguageModel, ReadOut
from symprompt.probing.methods.base import Method
from symprompt.probing.methods.ensemble import (
    Pairs,
    log_loss,
    mix_probabilities,
    optimise_weights,
    probability_loss,
)
from symprompt.probing.methods.lpaqa import LPAQA, WeightFit, prune
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.problem import Problem
from symprompt.probing.results import load_card
from symprompt.prompts import Template, make_names
from tiny.loops import answer_text
from tiny.models import run_config
from tiny.runs import PROMPTS, Make, accept_files


def build(
    backbone: LanguageModel, facts: FactSet, prompts: Path, **ensemble: Any
) -> tuple[Problem, LPAQA]:
    config = run_config(
        method={"name": "lpaqa"}, ensemble={"prompts": [str(prompts)]} | ensemble, dtype="float64"
    )
    problem = prepare(config, backbone, facts)
    method = make_method(config, problem)
    assert isinstance(method, LPAQA)
    return problem, method


def prompts_of(facts: FactSet, fact: Fact) -> list[str]:
    return [facts[fact.relation].template, *PROMPTS[fact.relation]]


@torch.no_grad()
def slow_answer(backbone: LanguageModel, template: str, fact: Fact) -> Tensor:
    """The model's own log-probabilities after the written sentence."""
    return answer_text(backbone, template, fact).log_softmax(0)


def slow_mixture(answers: list[Tensor], weights: list[float], mixture: str) -> Tensor:
    pairs = list(zip(answers, weights, strict=True))
    if mixture == "probability":
        return torch.stack([answer.exp() * weight for answer, weight in pairs]).sum(0).log()
    pooled = torch.stack([answer * weight for answer, weight in pairs]).sum(0).exp()
    return (pooled / pooled.sum()).log()


@pytest.mark.parametrize("mixture", ["log", "probability"])
def test_scores_are_the_mixture_of_the_written_sentences_answers(
    bert: LanguageModel, facts: FactSet, prompts: Path, mixture: str
) -> None:
    problem, method = build(bert, facts, prompts, mixture=mixture)
    weights = torch.rand(3, 4, 1, generator=torch.Generator().manual_seed(1)).double()
    for row, own in enumerate(method.prompts):
        weights[row, len(own) :] = 0
    weights /= weights.sum(1, keepdim=True)
    listed = problem.facts.facts("test")
    rows = np.arange(len(listed))[::-1].copy()
    found = method.scores(problem.sentences["test"], rows, {"weights": weights})
    loss = method.loss(problem.sentences["test"], rows, {"weights": weights})
    for place, row in enumerate(rows.tolist()):
        fact = listed[row]
        answers = [slow_answer(bert, text, fact) for text in prompts_of(facts, fact)]
        own = weights[facts.names.index(fact.relation), : len(answers), 0].tolist()
        wanted = slow_mixture(answers, own, mixture)
        torch.testing.assert_close(found[place], wanted.float(), rtol=1e-5, atol=1e-5)
        gold = problem.sentences["test"].gold[row]
        torch.testing.assert_close(loss[place], -wanted[gold], rtol=0, atol=1e-10)


def fit(method: Method, problem: Problem) -> None:
    """Fit every relation's weights."""
    assert isinstance(method, LPAQA)
    training = WeightFit(run_config(), problem, method)
    for number in range(training.steps):
        training.step(number)


def slow_choice(backbone: LanguageModel, facts: FactSet, relation: str, listed: list[Fact]) -> int:
    """The prompt with most first places on train, then the highest mean log-likelihood."""
    best, chosen = (-1.0, -math.inf), -1
    for place, template in enumerate(prompts_of(facts, listed[0])):
        hits, likelihood = 0.0, 0.0
        for fact in listed:
            answer = slow_answer(backbone, template, fact)
            (token,) = backbone.vocabulary.single_tokens([fact.object])
            hits += int(answer.argmax()) == token
            likelihood += float(answer[token])
        if (hits, likelihood / len(listed)) > best:
            best, chosen = (hits, likelihood / len(listed)), place
    return chosen


def test_the_best_prompt_on_train_is_chosen_and_asked_alone(
    bert: LanguageModel, facts: FactSet, prompts: Path
) -> None:
    problem, method = build(bert, facts, prompts, combine="top1")
    sentences = problem.sentences["train"]
    fit(method, problem)
    weights = method.vectors()["weights"][:, :, 0]
    for row, relation in enumerate(problem.facts.relations):
        place = slow_choice(bert, facts, relation.name, list(relation.train))
        assert weights[row].tolist() == [float(place == other) for other in range(4)]
    asked: list[int] = []
    original = method.pairs.ask
    method.pairs.ask = lambda *given: asked.append(len(given[2])) or original(*given)  # type: ignore
    method.scores(sentences, np.arange(len(sentences)), method.vectors())
    assert asked == [len(sentences)]


@pytest.mark.parametrize("name", ["bert", "roberta", "deberta-v2-new"])
@pytest.mark.parametrize("mixture", ["log", "probability"])
def test_learned_weights_make_the_training_objects_likeliest_over_the_whole_vocabulary(
    load_family: Callable[..., LanguageModel],
    facts: FactSet,
    prompts: Path,
    mixture: str,
    name: str,
) -> None:
    backbone = load_family(name)
    problem, method = build(backbone, facts, prompts, mixture=mixture)
    sentences = problem.sentences["train"]
    rows = np.arange(len(sentences))
    fit(method, problem)
    weights = method.vectors()["weights"]
    learned = method.loss(sentences, rows, {"weights": weights})
    torch.testing.assert_close(weights.sum((1, 2)), torch.ones(3).double())
    draw = torch.Generator().manual_seed(0)
    counts = torch.tensor([len(own) for own in method.prompts])
    real = (torch.arange(4)[None] < counts[:, None])[:, :, None]
    # Neither equal weights, nor one prompt alone, nor any of some random ones do better.
    others = [torch.ones(3, 4, 1)]
    others += [torch.eye(4)[place].expand(3, 4)[:, :, None] for place in range(2)]
    others += [torch.rand(3, 4, 1, generator=draw) ** power for power in (1, 2, 4, 8)]
    for other in others:
        given = other.double() * real
        given /= given.sum(1, keepdim=True)
        loss = method.loss(sentences, rows, {"weights": given})
        for index in range(3):
            mine = sentences.object_prompt.relation == index
            assert learned[mine].mean() <= loss[mine].mean() + 2e-3


def test_weights_of_log_probabilities_spread_over_prompts_that_correct_each_other(
    bert: LanguageModel, facts: FactSet, prompts: Path
) -> None:
    problem, method = build(bert, facts, prompts)
    sentences = problem.sentences["train"]
    rows = np.flatnonzero(sentences.relations == 0)[:1]
    # Every prompt puts another wrong token first; only together they find the right one.
    gold = int(sentences.gold[rows[0]])
    wrong = [token for token in range(8) if token != gold][:4]
    logits = torch.full((4, bert.vocabulary_size), -9.0).double()
    logits[:, gold] = 3.0
    logits[torch.arange(4), wrong] = 4.0
    method.read = LogitsAsStates(bert)
    method.pairs.ask = lambda *given: logits  # type: ignore
    weights = method.fit(sentences, rows, 0, problem.allowed)
    assert weights.tolist() == pytest.approx([0.25] * 4, abs=0.02)
    assert optimise_weights(
        probability_loss(logits.log_softmax(-1)[None, :, gold]), 4, like=logits
    ).tolist() == pytest.approx([0.25] * 4)


class LogitsAsStates(ReadOut):
    """As for a head that hides its last product."""

    def __init__(self, backbone: LanguageModel) -> None:
        super().__init__(backbone)
        self._weight = self._bias = None
        self.width = backbone.vocabulary_size


def test_passes_of_another_size_give_the_same_numbers(
    bert: LanguageModel, facts: FactSet, prompts: Path
) -> None:
    found = []
    for tokens in (16, 4096):
        config = run_config(
            method={"name": "lpaqa"}, ensemble={"prompts": [str(prompts)]}, max_tokens=tokens
        )
        problem = prepare(config, bert, facts)
        method = make_method(config, problem)
        fit(method, problem)
        sentences = problem.sentences["test"]
        found.append(method.scores(sentences, np.arange(len(sentences)), method.vectors()))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)


def test_the_most_prompts_are_the_best_on_train(
    bert: LanguageModel, facts: FactSet, prompts: Path
) -> None:
    problem, method = build(bert, facts, prompts, combine="uniform", most=2)
    fit(method, problem)
    weights = method.vectors()["weights"][:, :, 0]
    assert sorted(weights[0].tolist()) == [0, 0, 0.5, 0.5]
    best = slow_choice(bert, facts, "capital", list(facts["capital"].train))
    assert weights[0, best] == 0.5


def test_weights_that_hardly_count_are_left_out() -> None:
    assert prune(torch.tensor([0.5, 0.49999, 1e-5])).tolist() == pytest.approx(
        [0.5, 0.5, 0.0], abs=1e-4
    )
    assert prune(torch.full((20000,), 1 / 20000)).min() > 0


@pytest.mark.parametrize("mixture", ["log", "probability"])
def test_a_word_at_the_start_of_a_sentence_is_put_in_terms_of_its_token_after_a_space(
    load_family: Callable[..., LanguageModel], facts: FactSet, prompts: Path, mixture: str
) -> None:
    backbone = load_family("roberta")
    vocabulary = backbone.vocabulary
    twins = torch.tensor(vocabulary.twins)
    (spaced,), (bare,) = vocabulary.encode([" Peru", "Peru"])
    assert spaced != bare
    assert (int(twins[spaced]), int(twins[bare])) == (bare, bare)
    problem, method = build(backbone, facts, prompts, mixture=mixture)
    fact = facts["in"].test[0]
    row = problem.facts.facts("test").index(fact)
    weights = torch.zeros(3, 4, 1, dtype=torch.float64)
    weights[1, :2, 0] = torch.tensor([0.25, 0.75])
    found = method.scores(problem.sentences["test"], np.array([row]), {"weights": weights})
    plain = slow_answer(backbone, facts["in"].template, fact)
    turned = slow_answer(backbone, PROMPTS["in"][0], fact)[twins].log_softmax(0)
    wanted = slow_mixture([plain, turned], [0.25, 0.75], mixture)
    torch.testing.assert_close(found[0], wanted.float(), rtol=1e-5, atol=1e-5)


def test_causal_models_are_asked_by_prompts_that_end_with_the_object(
    causal: LanguageModel, facts: FactSet, prompts: Path
) -> None:
    problem, method = build(causal, facts, prompts)
    assert [str(prompt) for prompt in method.prompts[1]] == ["[X] lies in [Y]"]
    assert len(method.prompts[0]) == 3
    listed = problem.facts.facts("test")
    found = method.scores(problem.sentences["test"], np.arange(len(listed)), method.vectors())
    for row, fact in enumerate(listed):
        own = method.prompts[facts.names.index(fact.relation)]
        answers = [slow_answer(causal, str(prompt), fact) for prompt in own]
        wanted = slow_mixture(answers, [1 / len(own)] * len(own), "log")
        torch.testing.assert_close(found[row], wanted.float(), rtol=1e-4, atol=1e-4)


def test_prompts_that_read_the_same_count_once(
    load_family: Callable[..., LanguageModel], facts: FactSet, tmp_path: Path
) -> None:
    for name in facts.names:
        lines = ["[X] lies in [Y].", "[X]  is [Y] .", "[X] is [Y] .", "[X] is [Y]", "[X]'s [Y]"]
        text = "".join(json.dumps({"template": line}) + "\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(text)
    counts = {}
    for name in ("bert", "roberta", "gpt2"):
        _, method = build(load_family(name), facts, tmp_path)
        counts[name] = [str(prompt) for prompt in method.prompts[1]]
    plain = ["[X] lies in [Y] .", "[X] is [Y] .", "[X] is [Y]", "[X]'s [Y]"]
    assert counts["bert"] == plain
    # To this tokenizer a full stop after a space is another token.
    assert counts["roberta"] == [plain[0], "[X] lies in [Y].", *plain[1:]]
    assert counts["gpt2"] == ["[X] lies in [Y]", "[X] is [Y]", "[X]'s [Y]"]


def test_a_sentence_longer_than_the_model_takes_is_refused(
    bert: LanguageModel, facts: FactSet
) -> None:
    words = "the " * 60
    pairs = Pairs(bert, [[Template.parse(f"[X] {words} [Y]")]] * 3, max_tokens=100)
    config = run_config(method={"name": "manual"})
    problem = prepare(config, bert, facts)
    sentences = replace(
        problem.sentences["test"], names=make_names(bert.vocabulary, ["Rome"] * 40, bert.device)
    )
    with pytest.raises(DataError, match="needs 64 tokens in its prompt and the model takes 48"):
        list(pairs.questions(sentences, np.array([0]), np.array([0])))


@pytest.mark.parametrize("combine", ["top1", "uniform", "optimised"])
def test_a_run_stores_prompts_and_weights(
    make: Make, prompts: Path, tmp_path: Path, combine: str
) -> None:
    ensemble = {"prompts": [str(prompts)], "combine": combine}
    run = symprompt.train(make(tmp_path / "run", method={"name": "lpaqa"}, ensemble=ensemble))
    card = load_card(run.folder)
    assert card["relations"]["in"]["prompts"] == ["[X] lies in [Y] .", *PROMPTS["in"]]
    for about in card["relations"].values():
        assert len(about["prompt_weights"]) == len(about["prompts"])
        assert sum(about["prompt_weights"]) == pytest.approx(1, abs=1e-4)
    del card["relations"]["in"]["prompts"]
    (tmp_path / "run" / "prompts.json").write_text(json.dumps(card))
    accept_files(tmp_path / "run")
    with pytest.raises(RunError, match="damaged: 'prompts' is missing"):
        run.ask("in", subject="Oslo")


@pytest.mark.parametrize(
    ("template", "ensemble", "message"),
    [
        ("", {"prompts": []}, r"no manual templates were found near .*--prompts"),
        ("[X] : [Y]", {"with_manual": False}, "relation capital has no manual template"),
        ("[X] <3> [Y]", {}, "relation in has learned vectors"),
    ],
)
def test_missing_prompts_are_refused_before_a_folder_is_made(
    make: Make, tmp_path: Path, template: str, ensemble: dict[str, Any], message: str
) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"template": template}))
    given = {"prompts": [str(tmp_path)]} | ensemble
    with pytest.raises(DataError, match=message):
        symprompt.train(make(tmp_path / "run", method={"name": "lpaqa"}, ensemble=given))
    assert not (tmp_path / "run").exists()


def test_relations_without_prompts_are_left_out_and_a_run_goes_on_without_them(
    make: Make, bert: LanguageModel, facts: FactSet, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"template": "[X] : [Y]"}))
    config = make(
        tmp_path / "run",
        method={"name": "lpaqa"},
        ensemble={"prompts": [str(tmp_path)], "with_manual": False},
        facts={"skip_unusable": True},
    )
    found = prepare(config, bert, facts)
    assert found.relations == ("in",)
    assert found.facts.skipped == dict.fromkeys(("capital", "near"), "no manual template")
    # What was chosen before is taken again, though it names no relation that was left out.
    again = prepare(config, bert, facts, prompts={"in": ["[X] is in [Y]"]})
    assert [[str(prompt) for prompt in own] for own in again.prompts] == [["[X] is in [Y]"]]


def random_table(seed: int, *shape: int) -> Tensor:
    """Log-probabilities over the last axis."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(shape, generator=generator, dtype=torch.float64) * 2
    return draw.log_softmax(-1)


def slow_loss(table: Tensor, gold: Tensor, weights: list[float], mixture: str) -> float:
    """The mean over facts of -log of the mixture at gold, one number at a time."""
    total = 0.0
    for fact in range(len(table)):
        values = []
        for answer in range(table.shape[2]):
            logs = [float(table[fact, prompt, answer]) for prompt in range(len(weights))]
            pairs = list(zip(weights, logs, strict=True))
            if mixture == "log":
                values.append(math.exp(sum(weight * log for weight, log in pairs)))
            else:
                values.append(sum(weight * math.exp(log) for weight, log in pairs))
        total -= math.log(values[int(gold[fact])] / sum(values))
    return total / len(table)


def pool(table: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of logits, each prompt's shifted by what its softmax takes away again."""
    shifts = torch.arange(table.shape[1], dtype=table.dtype)
    return torch.einsum("npc,p->nc", table + shifts[None, :, None], weights)


def evaluation(table: Tensor, gold: Tensor, mixture: str):  # type: ignore[no-untyped-def]
    if mixture == "log":
        return log_loss(table, gold, pool, rows=4)
    return probability_loss(
        table.gather(2, gold[:, None, None].expand(-1, table.shape[1], 1))[..., 0]
    )


@pytest.mark.parametrize("mixture", ["log", "probability"])
def test_losses_and_gradients_are_those_of_the_slow_loop(mixture: str) -> None:
    table, gold = random_table(0, 6, 3, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    weights = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    loss, gradient = evaluation(table, gold, mixture)(weights)
    assert float(loss) == pytest.approx(
        slow_loss(table, gold, weights.tolist(), mixture), abs=1e-12
    )
    for one, other in itertools.permutations(range(3), 2):
        # Along the simplex: what one weight gains another loses.
        step = torch.zeros(3, dtype=torch.float64)
        step[one], step[other] = 1e-6, -1e-6
        up = slow_loss(table, gold, (weights + step).tolist(), mixture)
        down = slow_loss(table, gold, (weights - step).tolist(), mixture)
        slope = (up - down) / 2e-6
        assert float(gradient[one] - gradient[other]) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("mixture", ["log", "probability"])
@pytest.mark.parametrize("seed", range(3))
def test_learned_weights_are_the_best_of_a_grid(mixture: str, seed: int) -> None:
    table, gold = random_table(seed, 8, 3, 4), torch.arange(8) % 4
    evaluate = evaluation(table, gold, mixture)
    weights = optimise_weights(evaluate, 3, like=table, tolerance=1e-6, steps=400)
    assert float(weights.sum()) == pytest.approx(1)
    grid = [
        torch.tensor([one, two, 40 - one - two], dtype=torch.float64).clamp(min=1e-9) / 40
        for one in range(41)
        for two in range(41 - one)
    ]
    best = min(grid, key=lambda point: float(evaluate(point)[0]))
    assert float(evaluate(weights)[0]) <= float(evaluate(best)[0]) + 1e-5
    assert (weights - best).abs().max() < 0.08
    equal = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert evaluate(weights)[0] <= evaluate(equal)[0]


def test_weights_of_many_prompts_are_within_the_tolerance_of_the_best() -> None:
    table, gold = random_table(9, 40, 25, 6), torch.arange(40) % 6
    table[:, 7] = torch.nn.functional.one_hot(gold, 6).mul(3.0).log_softmax(-1).double()
    evaluate = log_loss(table, gold, pool)
    found = optimise_weights(evaluate, 25, like=table)
    exact = optimise_weights(evaluate, 25, like=table, tolerance=1e-8, steps=20000)
    assert float(evaluate(found)[0] - evaluate(exact)[0]) <= 1e-3
    assert int(exact.argmax()) == 7


def test_one_prompt_has_all_the_weight() -> None:
    table = random_table(1, 5, 1, 3)
    weights = optimise_weights(
        log_loss(table, torch.zeros(5, dtype=torch.long), pool), 1, like=table
    )
    assert weights.tolist() == [1.0]


def test_mixed_probabilities_are_those_of_the_slow_loop() -> None:
    table = random_table(2, 3, 2, 5)
    weights = torch.tensor([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    owner, prompt = torch.tensor([[2, 0, 1, 0, 2], [1, 0, 0, 1, 0]])
    found = mix_probabilities(table[owner, prompt], owner, weights[owner, prompt], 3)
    for row in range(3):
        for answer in range(5):
            gold = torch.tensor([answer])
            own = weights[row].tolist()
            wanted = -slow_loss(table[row : row + 1], gold, own, "probability")
            assert float(found[row, answer]) == pytest.approx(wanted, abs=1e-12)


def test_very_small_probabilities_are_kept_apart_in_float32() -> None:
    scores = torch.tensor([[-0.1, -110.0, -130.0, -1000.0]])
    found = mix_probabilities(scores, torch.tensor([0]), torch.tensor([1.0]), 1)
    torch.testing.assert_close(found[:, :3], scores[:, :3], rtol=1e-5, atol=1e-5)
    assert found[0, 3] < -140
    assert torch.isfinite(found).all()
