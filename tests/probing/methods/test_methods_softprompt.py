"""SoftPrompt against slow loops over prompts and layers; learning, EM and stacking."""

from __future__ import annotations

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
from symprompt.errors import ConfigError, RunError
from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig
from symprompt.probing.methods.lpaqa import LPAQA
from symprompt.probing.methods.softprompt import SoftPrompt
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.problem import Problem, words_to_vectors
from symprompt.probing.results import load_card, load_prompts
from symprompt.prompts import Template, encode_facts, make_layout
from tiny.models import Trained, run_config, train, world_facts
from tiny.oracles import slow_bert_layer, slow_gpt2_layer
from tiny.runs import PROMPTS, Killed, Make, kill_at, soft_config, write_prompts


def build(
    backbone: LanguageModel, facts: FactSet, prompts: Path, **ensemble: Any
) -> tuple[Problem, SoftPrompt]:
    config = soft_config(prompts, ensemble=ensemble)
    problem = prepare(config, backbone, facts)
    method = make_method(config, problem)
    assert isinstance(method, SoftPrompt)
    return problem, method


def disturb(method: SoftPrompt, seed: int = 3) -> None:
    """Move everything that is learned away from where it starts."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in method.mixture.parameters():
            value += 0.3 * torch.randn(value.shape, generator=draw).to(value)


# ------------------------------------------------------------------------------- oracles


@torch.no_grad()
def slow_answers(
    backbone: LanguageModel,
    problem: Problem,
    method: SoftPrompt,
    relation: int,
    fact: tuple[str, str],
) -> list[Tensor]:
    """Each prompt's log-probabilities, from the sentence's embeddings, layer by layer."""
    vocabulary, vectors = backbone.vocabulary, method.mixture.vectors[relation]
    changes, used, found = method.mixture.changes, 0, []
    for written in problem.prompts[relation]:
        template, _ = words_to_vectors(vocabulary, written)
        encoded = encode_facts(vocabulary, [Template.parse("[X] x [Y]")], [(0, *fact)])
        spaced = template.space_before("subject")
        subject = vocabulary.encode_names([fact[0]], [spaced])[0]
        encoded = type(encoded)(encoded.relation, [subject], encoded.objects)
        layout = make_layout(vocabulary, [template], encoded, max_length=48)
        ids = layout.ids[0, : layout.length[0]].clone()
        at = int(layout.object_at[0])
        if backbone.causal:
            ids = ids[:at]
        else:
            ids[at] = vocabulary.mask_id
        hidden = backbone.embed(ids).clone()
        added = torch.zeros(len(ids), 32, dtype=torch.float64)
        for place in range(len(ids)):
            slot = int(layout.slots[0, place])
            if slot >= 0:
                hidden[place] = vectors[used + slot]
                if changes is not None:
                    added[place] = changes[relation, 0, used + slot]
        logits = slow_logits(backbone, hidden[None], added[None])[0]
        found.append(logits[at - 1 if backbone.causal else at].log_softmax(0))
        used += template.vectors
    return found


def slow_logits(backbone: LanguageModel, embeddings: Tensor, added: Tensor) -> Tensor:
    """A whole forward pass written out, with something added before the second layer."""
    model = backbone.model
    if backbone.causal:
        hidden = embeddings + model.transformer.wpe(torch.arange(embeddings.shape[1]))
        hidden = slow_gpt2_layer(model.transformer.h[0], hidden, backbone)
        hidden = slow_gpt2_layer(model.transformer.h[1], hidden + added, backbone)
        return model.lm_head(model.transformer.ln_f(hidden))  # type: ignore[no-any-return]
    hidden = model.bert.embeddings(inputs_embeds=embeddings)
    hidden = slow_bert_layer(model.bert.encoder.layer[0], hidden)
    return model.cls(slow_bert_layer(model.bert.encoder.layer[1], hidden + added))  # type: ignore[no-any-return]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_losses_and_scores_are_those_of_passes_written_out_by_hand(
    load_family: Callable[..., LanguageModel], facts: FactSet, prompts: Path, name: str, deep: bool
) -> None:
    backbone = load_family(name)
    problem, method = build(backbone, facts, prompts, deep=deep)
    disturb(method)
    vectors = {part: value.detach() for part, value in method.vectors().items()}
    sentences, listed = problem.sentences["test"], problem.facts.facts("test")
    rows = np.arange(len(listed))[::-1].copy()
    loss = method.loss(sentences, rows, vectors)
    scores = method.scores(sentences, rows, vectors)
    for place, row in enumerate(rows.tolist()):
        fact = listed[row]
        relation = facts.names.index(fact.relation)
        answers = slow_answers(backbone, problem, method, relation, (fact.subject, fact.object))
        mix = method.mixture.mix[relation, : len(answers)].tolist()
        total = sum(math.exp(value) for value in mix)
        shares = [math.exp(value) / total for value in mix]
        mixed = sum(share * answer.exp() for share, answer in zip(shares, answers, strict=True))
        assert isinstance(mixed, Tensor)
        gold = int(sentences.gold[row])
        assert float(loss[place]) == pytest.approx(-math.log(float(mixed[gold])), abs=1e-8)
        torch.testing.assert_close(scores[place], mixed.log().float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "modernbert", "llama"])
def test_before_training_it_is_the_mean_of_the_written_prompts_answers(
    load_family: Callable[..., LanguageModel], facts: FactSet, prompts: Path, name: str
) -> None:
    backbone = load_family(name)
    problem, method = build(backbone, facts, prompts, deep=True)
    config = run_config(
        method={"name": "lpaqa"},
        ensemble={"prompts": [str(prompts)], "mixture": "probability", "combine": "uniform"},
        dtype="float64",
    )
    written = make_method(config, prepare(config, backbone, facts))
    assert isinstance(written, LPAQA)
    sentences = problem.sentences["test"]
    rows = np.arange(len(sentences))
    found = method.scores(sentences, rows, method.vectors()).detach()
    wanted = written.scores(sentences, rows, written.vectors())
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_finite_differences(
    bert: LanguageModel, facts: FactSet, prompts: Path
) -> None:
    problem, method = build(bert, facts, prompts, deep=True, weighing="gradient")
    disturb(method)
    sentences, rows = problem.sentences["train"], np.array([0, 6, 13])
    method.loss(sentences, rows, method.vectors()).sum().backward()
    draw = np.random.default_rng(0)
    for value in method.mixture.parameters():
        assert value.grad is not None
        flat, slopes = value.data.view(-1), value.grad.view(-1)
        for at in draw.choice(torch.nonzero(slopes).flatten().numpy(), 3).tolist():
            losses = []
            for step in (1e-5, -1e-5):
                before = float(flat[at])
                flat[at] += step
                with torch.no_grad():
                    losses.append(float(method.loss(sentences, rows, method.vectors()).sum()))
                flat[at] = before
            slope = (losses[0] - losses[1]) / 2e-5
            assert float(slopes[at]) == pytest.approx(slope, rel=1e-4, abs=1e-7)


# ------------------------------------------------------------------------------- learning


def test_an_epoch_sets_the_weights_to_the_prompts_mean_shares(
    bert: LanguageModel, facts: FactSet, prompts: Path
) -> None:
    problem, method = build(bert, facts, prompts)
    disturb(method)
    before = method.mixture.weights().clone()
    sentences = problem.sentences["train"]
    rows = np.flatnonzero(sentences.relations < 2)
    for batch in (rows[:3], rows[3:]):
        method.loss(sentences, batch, method.vectors())
    method.after_epoch()
    after = method.mixture.weights()
    listed = problem.facts.facts("train")
    for relation, count in ((0, 4), (1, 2)):
        total = [0.0] * count
        own = [listed[row] for row in rows if sentences.relations[row] == relation]
        for fact in own:
            answers = slow_answers(bert, problem, method, relation, (fact.subject, fact.object))
            (gold,) = bert.vocabulary.single_tokens([fact.object])
            joint = [
                float(before[relation, place]) * math.exp(float(answer[gold]))
                for place, answer in enumerate(answers)
            ]
            total = [one + part / sum(joint) for one, part in zip(total, joint, strict=True)]
        wanted = [value / len(own) for value in total]
        assert after[relation, :count].tolist() == pytest.approx(wanted, abs=1e-7)
        assert after[relation, count:].sum() == 0
    # A relation without a fact in the epoch keeps its weights, and so does the next epoch's start.
    torch.testing.assert_close(after[2], before[2])
    method.after_epoch()
    torch.testing.assert_close(method.mixture.weights(), after)


@pytest.fixture(scope="module")
def world_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = ["people we [X] is [Y] .", "hear the [X] , of [Y]", "town [X] speak found [Y] ."]
    return write_prompts(tmp_path_factory.mktemp("world"), {"land": lines, "tongue": lines})


def first_places(trained: Trained) -> float:
    found = trained.predict("test")
    return float((found.better + found.equal / 2 < 1).mean())


@pytest.mark.parametrize(("deep", "weighing"), [(False, "em"), (True, "em"), (True, "gradient")])
def test_training_finds_what_the_model_knows(
    knowing_bert: LanguageModel, world_prompts: Path, deep: bool, weighing: str
) -> None:
    facts = world_facts()
    ensemble = {"deep": deep, "weighing": weighing, "with_manual": False}
    places = []
    for epochs in (0, 15):
        config = soft_config(
            world_prompts,
            dtype="float32",
            ensemble=ensemble,
            learning={"epochs": epochs, "batch": 8, "rate": 0.03},
        )
        trained = train(config, knowing_bert, facts)
        places.append(first_places(trained))
    assert places[1] >= places[0] + 0.3
    assert places[1] > 0.5
    weights = trained.vectors()["weights"]
    torch.testing.assert_close(weights.sum((1, 2)), torch.ones(2))
    assert (weights.std(1) > 1e-3).all()


@pytest.mark.parametrize("weighing", ["em", "gradient"])
def test_stacked_relations_equal_each_alone(
    bert: LanguageModel, facts: FactSet, prompts: Path, weighing: str
) -> None:
    config = soft_config(
        prompts,
        ensemble={"deep": True, "weighing": weighing, "most": 2},
        learning={"patience": 1, "epochs": 3},
    )
    stacked = train(config, bert, facts, max_tokens=60)
    for row, name in enumerate(facts.names):
        alone = train(config, bert, facts.select([name]))
        assert alone.problem.prompts[0] == stacked.problem.prompts[row]
        count = len(alone.problem.prompts[0])
        used = alone.vectors()["forth"].shape[1]
        for part in ("forth", "weights", "deep"):
            ours, theirs = stacked.vectors()[part][row], alone.vectors()[part][0]
            if part == "deep":
                ours = ours.reshape(1, -1, bert.layers.width)[:, :used].flatten(0, 1)
            size = count if part == "weights" else used
            torch.testing.assert_close(ours[:size], theirs[:size], rtol=0, atol=1e-9)


def test_random_vectors_have_the_embeddings_mean_and_deviation(
    knowing_bert: LanguageModel, world_prompts: Path
) -> None:
    config = soft_config(world_prompts, dtype="float32", prompt={"start": "random"})
    method = make_method(config, prepare(config, knowing_bert, world_facts()))
    table = knowing_bert.model.get_input_embeddings().weight
    table, found = table.detach(), method.vectors()["forth"].detach()
    assert float(found.std()) == pytest.approx(float(table.std()), rel=0.1)
    assert float(found.mean()) == pytest.approx(float(table.mean()), abs=0.1 * float(table.std()))
    assert not torch.equal(found[0], found[1])


def test_the_best_prompts_on_train_are_taken(knowing_bert: LanguageModel, tmp_path: Path) -> None:
    bad = ["hear [X] we [Y]", ", [X] : : [Y] .", "of of [X] town [Y]"]
    good = {"land": ["[X] lies in [Y] ."], "tongue": ["people of [X] speak [Y] ."]}
    write_prompts(tmp_path, {name: bad[:2] + own + bad[2:] for name, own in good.items()})
    config = soft_config(tmp_path, ensemble={"most": 2, "with_manual": False})
    problem = prepare(config, knowing_bert, world_facts())
    assert [len(own) for own in problem.prompts] == [2, 2]
    assert str(problem.prompts[0][0]) == "[X] lies in [Y] ."
    assert str(problem.prompts[1][0]) == "people of [X] speak [Y] ."


def test_without_training_facts_the_first_prompts_are_taken(
    bert: LanguageModel, facts: FactSet, prompts: Path
) -> None:
    only = FactSet(
        tuple(replace(relation, train=(), dev=()) for relation in facts.relations),
        source="made up",
        layout="table",
    )
    config = soft_config(prompts, ensemble={"most": 2}, learning={"epochs": 0})
    problem = prepare(config, bert, only)
    assert [str(own) for own in problem.prompts[2]] == ["[X] lies in [Y] .", PROMPTS["near"][0]]


def test_prompts_without_words_are_refused(
    bert: LanguageModel, facts: FactSet, tmp_path: Path
) -> None:
    write_prompts(tmp_path, {name: ["[X] [Y]"] for name in facts.names})
    config = soft_config(tmp_path, ensemble={"with_manual": False})
    with pytest.raises(ConfigError, match="have no word"):
        make_method(config, prepare(config, bert, facts))


# ------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def soft(make: Make, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> symprompt.Run:
    """A finished run; tests must not change its folder."""
    return symprompt.train(run_of(make, tmp_path_factory.mktemp("soft") / "run", prompts))


def run_of(make: Make, out: Path, prompts: Path, most: int = 2, **sections: Any) -> RunConfig:
    ensemble = {"prompts": [str(prompts)], "deep": True, "most": most}
    soft: dict[str, Any] = {
        "method": {"name": "softprompt"},
        "prompt": {"encoder": "free", "start": "manual"},
        "ensemble": ensemble,
        "checkpoint_seconds": 0.0,
    }
    return make(out, **(soft | sections))


def test_a_resumed_run_keeps_the_prompts_it_chose(
    make: Make, prompts: Path, tmp_path: Path
) -> None:
    config = run_of(make, tmp_path / "run", prompts)
    with pytest.raises(Killed):
        symprompt.train(config, tick=kill_at("training", "epoch 2"))
    card = json.loads((tmp_path / "run" / "prompts.json").read_text())
    chosen = ["[X] is the old [Y].", "[X] lies in the city [Y] ."]
    card["relations"]["capital"]["prompts"] = chosen
    (tmp_path / "run" / "prompts.json").write_text(json.dumps(card))
    (tmp_path / "run" / "state.safetensors").unlink()
    run = symprompt.train(config, resume=True)
    assert load_card(run.folder)["relations"]["capital"]["prompts"] == chosen


def test_a_run_goes_on_with_its_own_prompts_and_no_others(
    make: Make, soft: symprompt.Run, prompts: Path, tmp_path: Path
) -> None:
    about = load_card(soft.folder)["relations"]["capital"]
    assert set(about["prompts"]) <= {"The capital of [X] is [Y] .", *PROMPTS["capital"]}
    assert sum(about["prompt_weights"]) == pytest.approx(1, abs=1e-4)
    start = {"start_from": str(soft.folder.path), "learning": {"epochs": 0}}
    with pytest.raises(RunError, match="other manual templates for relation"):
        symprompt.train(run_of(make, tmp_path / "other", prompts, most=3, **start))
    more = symprompt.train(run_of(make, tmp_path / "more", prompts, **start))
    one, two = (load_prompts(run.folder, ["forth", "weights", "deep"]) for run in (soft, more))
    assert all(torch.equal(one[part], two[part]) for part in one)
