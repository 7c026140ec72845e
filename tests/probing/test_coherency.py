"""Coherency: subjects' ranks as slow loops find them, what is stored, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import symprompt
from symprompt import Run
from symprompt.errors import ConfigError, RunError
from symprompt.probing import evaluate
from symprompt.probing.coherency import measure_coherency
from symprompt.probing.problem import tensorise
from symprompt.probing.queries import subject_likelihoods
from symprompt.probing.rerank import rerank_run
from symprompt.probing.results import (
    Array,
    Combination,
    load_asked,
    load_card,
    load_coherency,
    load_combination,
    load_facts,
    load_prompts,
    run_config,
)
from symprompt.prompts import Template
from symprompt.report.tables import comparison, load_scores
from tiny.models import CAUSAL_TEMPLATE
from tiny.runs import SEPARATE, Call, Make, few_answers


@pytest.fixture(scope="module")
def make(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Configs with few allowed answers, so that some are objects of other subjects."""
    return few_answers(make, tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def spe(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An SPE run whose weight moves answers, of summed scores; tests copy it before they write."""
    method = {**SEPARATE, "weight": 4.0, "average": "sum"}
    return symprompt.train(make(tmp_path_factory.mktemp("spe") / "run", method=method))


@pytest.fixture(scope="module")
def manual(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that cannot ask back."""
    return symprompt.train(
        make(tmp_path_factory.mktemp("manual") / "run", method={"name": "manual"})
    )


def copied(run: Run, folder: Path) -> Run:
    shutil.copytree(run.folder.path, folder)
    return Run.load(folder)


def slow_ranks(run: Run, way_back: Run, *, forward: bool, filtered: bool) -> Array:
    """The subject's rank of every test fact, one sentence at a time."""
    backbone = run.load_backbone(device="cpu")
    predictions, listed = run.predictions("test")
    config, card = run_config(way_back.folder), load_card(way_back.folder)["relations"]
    parts = load_prompts(way_back.folder, load_card(way_back.folder)["parts"])
    vectors = parts.get("back", parts["forth"])
    facts, combination = load_facts(run.folder), load_combination(run.folder)
    assert combination is not None
    names = list(card)
    templates = [Template.parse(card[name]["template"]) for name in names]
    found = []
    for row, fact in enumerate(listed):
        joint = predictions.object_score[row].astype(float)
        if not forward:
            weight = combination.weights["subject"][facts.names.index(fact.relation)]
            joint = joint + weight * predictions.subject_score[row]
        token = int(predictions.candidates[row][max(range(len(joint)), key=joint.__getitem__)])
        answer = backbone.vocabulary.text(token).strip()
        scores = {}
        for subject in {own.subject for own in facts[fact.relation].all()}:
            asked = type(fact)(fact.relation, subject, fact.object)
            sentences = tensorise(
                backbone,
                templates,
                names,
                [asked],
                {(fact.relation, subject): [fact.object]},
                swapped=config.method.blanks == "swapped",
            )
            likelihoods = subject_likelihoods(
                backbone,
                sentences.subject_prompt,
                np.array([0]),
                vectors,
                masking=config.method.masking,
                objects=torch.tensor([token]),
            )
            scores[subject] = float(likelihoods.log_likelihood.mean())
        having = {own.subject for own in facts[fact.relation].all() if own.object == answer}
        others = set(scores) - {fact.subject} - (having if filtered else set())
        found.append(1 + sum(scores[name] > scores[fact.subject] for name in others))
    return np.array(found)


def assert_ranks(run: Run, way_back: Run) -> None:
    found = measure_coherency(run, facts=0, device="cpu")
    assert found.rows.tolist() == list(range(len(run.predictions("test")[1])))
    for forward in (False, True):
        for filtered in (False, True):
            ranks = found.ranks(forward=forward, filtered=filtered)
            wanted = slow_ranks(run, way_back, forward=forward, filtered=filtered)
            assert ranks.realistic.tolist() == wanted.tolist()


def test_ranks_are_those_of_slow_loops(
    spe: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_QUERIES_AT_ONCE", 7)
    run = copied(spe, tmp_path / "run")
    assert_ranks(run, run)
    found = load_coherency(run.folder, "test")
    assert found is not None
    # The orders and the filter matter here, so the equality above says something.
    plain = found.ranks().better
    assert plain.tolist() != found.ranks(forward=True).better.tolist()
    assert plain.tolist() != found.ranks(filtered=True).better.tolist()


@pytest.mark.parametrize("variant", ["whole kept", "shared"])
def test_variants_of_the_subject_prompt_are_asked_as_they_were_trained(
    variant: str, make: Make, tmp_path: Path
) -> None:
    method: dict[str, Any] = {"vectors": "shared", "weight": 2.0}
    if variant == "whole kept":
        method |= {"vectors": "separate", "masking": "whole", "blanks": "kept"}
    run = symprompt.train(make(tmp_path / "run", method=method, learning={"epochs": 1}))
    assert_ranks(run, run)


def test_reranked_answers_are_asked_back_by_the_other_runs_prompt(
    spe: Run, manual: Run, tmp_path: Path
) -> None:
    run = rerank_run(manual.folder.path, spe.folder.path, tmp_path / "run", device="cpu")
    assert_ranks(run, spe)


def test_a_causal_models_subjects_and_names_of_any_length(
    family_folder: Callable[[str], Path], make: Make, tmp_path: Path
) -> None:
    config = make(
        tmp_path / "causal",
        model=str(family_folder("gpt2")),
        prompt={"template": CAUSAL_TEMPLATE},
        method={"weight": 2.0},
        learning={"epochs": 1},
    )
    run = symprompt.train(config)
    assert_ranks(run, run)
    config = make(
        tmp_path / "names",
        facts={"objects": "any-length", "vocabulary": "objects"},
        method={"weight": 2.0, "k": 2},
        learning={"epochs": 1},
    )
    run = symprompt.train(config)
    found = measure_coherency(run, facts=0, device="cpu")
    # As one asks for the subjects of one object by hand, the object score left out.
    joint = run.predictions()[0].joint(Combination({"subject": np.full(2, 2.0)}))
    texts = load_asked(run.folder, "test").candidates()
    for row, fact in enumerate(run.predictions()[1]):
        object = texts[row][int(joint[row].argmax())]
        answers = run.ask(fact.relation, object=object, top=99, device="cpu")
        scores = {answer.text: answer.subject_score for answer in answers}
        own = scores[fact.subject]
        assert own is not None
        better = sum(score is not None and score > own for score in scores.values())
        assert found.ranks().better[row] == better


def test_subjects_that_cannot_be_the_object_are_not_ranked(make: Make, tmp_path: Path) -> None:
    """As when the subjects of one object are asked for."""
    method, facts = {"weight": 2.0, "train_weight": 0.0}, {"copies": "off"}
    run = symprompt.train(make(tmp_path / "run", method=method, facts=facts))
    found = measure_coherency(run, facts=0, device="cpu")
    joint = run.predictions()[0].joint(Combination({"subject": np.full(2, 2.0)}))
    texts = load_asked(run.folder, "test").candidates()
    left_out = 0
    for row, fact in enumerate(run.predictions()[1]):
        object = texts[row][int(joint[row].argmax())]
        answers = run.ask(fact.relation, object=object, top=99, device="cpu")
        scores = {answer.text: answer.subject_score or 0.0 for answer in answers}
        names = {own.subject for own in load_facts(run.folder)[fact.relation].all()}
        left_out += len(names) - len(scores)
        better = sum(score > scores[fact.subject] for score in scores.values())
        assert found.ranks().better[row] == better
    assert left_out


def test_a_sample_is_the_same_for_every_run_and_kept(spe: Run, tmp_path: Path) -> None:
    run = copied(spe, tmp_path / "run")
    whole = measure_coherency(run, facts=0, device="cpu")
    some = measure_coherency(run, facts=2, device="cpu")
    assert set(np.bincount(run.predictions()[0].relation[some.rows]).tolist()) == {2}
    assert some.better.tolist() == whole.better[:, :, some.rows].tolist()
    stored = run.folder.path / "coherency/test.safetensors"
    written = stored.stat().st_ino, stored.stat().st_mtime_ns
    again = measure_coherency(Run.load(tmp_path / "run"), facts=2, model="nowhere")
    assert again.better.tolist() == some.better.tolist()
    assert (stored.stat().st_ino, stored.stat().st_mtime_ns) == written
    other = measure_coherency(run, facts=2, seed=5, device="cpu")
    assert other.note["seed"] == 5


def test_the_table_shows_it_without_a_model(
    spe: Run, manual: Run, tmp_path: Path, call: Call
) -> None:
    run = copied(spe, tmp_path / "run")
    said = call("table", str(run.folder.path), "--coherency")
    assert said.code == 2
    assert f"measure it with: symprompt coherency {run.folder.path}." in said.err
    said = call("coherency", str(run.folder.path), "--facts", "3", "--device", "cpu", "--json")
    assert said.code == 0
    found = measure_coherency(run, facts=3)
    figures = json.loads(said.out)["runs"][0]["coherency"]
    ranks = found.ranks().realistic
    assert figures["facts"] == len(ranks) == 6
    assert figures["mean over facts"]["p1"]["value"] == pytest.approx(100 * np.mean(ranks == 1))
    assert figures["mean over facts"]["mrr"]["value"] == pytest.approx(100 * np.mean(1 / ranks))
    scores = [
        load_scores(str(place), coherency=True) for place in (run.folder.path, manual.folder.path)
    ]
    text = comparison(scores, by_relation=True, draws=20).to_markdown()
    assert "| run | facts | P@1 | P@10 | MRR | coherency | coherency MRR |" in text
    assert "no subject prompt, so no coherency" in text
    assert "| – | – |" in text
    said = call("table", str(run.folder.path), "--coherency", "--forward", "--filtered", "--json")
    rows = json.loads(said.out)["runs"]
    for row, forward in zip(rows, (True, False), strict=True):
        ranks = found.ranks(forward=forward, filtered=True).realistic
        value = row["coherency"]["mean over facts"]["mrr"]["value"]
        assert value == pytest.approx(100 * np.mean(1 / ranks))
    (change,) = json.loads(said.out)["differences"]
    assert change["coherency"]["facts"] == 6
    said = call("table", str(run.folder.path), "--coherency", "--weight", "1")
    assert (said.code, "leave --k and --weight out" in said.err) == (2, True)


def test_what_cannot_be_measured_or_read_is_refused(spe: Run, manual: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no subject prompt to ask back with"):
        measure_coherency(manual)
    run = copied(spe, tmp_path / "run")
    measure_coherency(run, facts=1, device="cpu")
    file = run.folder.path / "coherency/test.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(RunError, match="cannot read"):
        load_coherency(Run.load(tmp_path / "run").folder, "test")
