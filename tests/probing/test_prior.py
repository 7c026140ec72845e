"""The template prior: what a prompt answers whatever it is asked about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import symprompt
from symprompt.errors import ConfigError
from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from symprompt.probing.evaluate import prior_scores
from symprompt.probing.methods import METHODS
from symprompt.probing.rerank import rerank_run
from symprompt.probing.results import Combination, load_combination
from tiny.models import CAUSAL_TEMPLATE, Trained, names_facts, run_config, train
from tiny.runs import SEPARATE, Make

FITTED = {"choose_weight": "dev-fit", "terms": ["subject", "frequency", "copy", "prior"]}


def asked(run: Trained, candidates: torch.Tensor, *, max_tokens: int = 4096) -> torch.Tensor:
    sentences = run.problem.sentences["test"]
    rows = np.arange(len(sentences))
    return prior_scores(
        run.method, sentences, rows, candidates, run.vectors(), max_tokens=max_tokens
    )


@pytest.mark.parametrize("max_tokens", [1, 60, 4096])
def test_it_is_the_object_score_of_a_sentence_without_its_subject(
    bert: LanguageModel, facts: FactSet, max_tokens: int
) -> None:
    config = run_config(learning={"epochs": 1}, dtype="float64", method={"name": "ptuning"})
    run = train(config, bert, facts)
    vocabulary, listed = bert.vocabulary, run.problem.facts.facts("test")
    candidates = torch.arange(3 * len(listed)).reshape(-1, 3) % bert.vocabulary_size
    found = asked(run, candidates, max_tokens=max_tokens)
    lengths = [len(ids) for ids in vocabulary.encode_words([fact.subject for fact in listed])]
    assert len(set(lengths)) > 1
    mask = bert.embed(torch.tensor([vocabulary.mask_id]))
    start, end = (bert.embed(torch.tensor(own)) for own in (vocabulary.prefix, vocabulary.suffix))
    for row, fact in enumerate(listed):
        own = run.vectors()["forth"][run.problem.relations.index(fact.relation)].to(bert.dtype)
        # "<2> [X] <1> [Y] <2>"
        parts = [start, own[:2], mask.expand(lengths[row], -1), own[2:3], mask, own[3:], end]
        with torch.no_grad():
            logits = bert.model(inputs_embeds=torch.cat(parts)[None]).logits[0]
        at = len(start) + 2 + lengths[row] + 1
        wanted = logits[at].log_softmax(-1)[candidates[row]]
        torch.testing.assert_close(found[row], wanted.float(), rtol=1e-5, atol=1e-5)


def test_one_sentence_is_read_for_a_relation_and_length(
    bert: LanguageModel, facts: FactSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(run_config(learning={"epochs": 0}, dtype="float64"), bert, facts)
    layout = run.problem.sentences["test"].object_prompt
    kinds = set(zip(layout.relations.tolist(), layout.subject_lengths.tolist(), strict=True))
    read: list[int] = []
    scores = run.method.scores

    def counted(sentences: Any, rows: np.ndarray, vectors: Any) -> torch.Tensor:
        read.append(len(rows))
        return scores(sentences, rows, vectors)

    monkeypatch.setattr(run.method, "scores", counted)
    asked(run, torch.zeros(len(layout), 2, dtype=torch.long))
    assert sum(read) == len(kinds) < len(layout)


def test_names_of_any_length_have_one_too(bert: LanguageModel) -> None:
    config = run_config(
        learning={"epochs": 1},
        dtype="float64",
        facts={"objects": "any-length", "vocabulary": "objects"},
        method={"k": 3},
    )
    run = train(config, bert, names_facts())
    candidates = torch.from_numpy(run.predict().candidates)
    found = asked(run, candidates)
    sentences = run.problem.sentences["test"]
    layout = sentences.object_prompt
    for row in range(len(layout)):
        ids, at = layout.ids.clone(), int(layout.subject_at[row])
        ids[row, at : at + int(layout.subject_lengths[row])] = bert.vocabulary.mask_id
        hidden = replace(sentences, object_prompt=replace(layout, ids=ids))
        scores = run.method.scores(hidden, np.array([row]), run.vectors())[0]
        torch.testing.assert_close(found[row], scores[candidates[row]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["spe", "ptuning", "manual", "finetune"])
def test_a_run_stores_it_apart_and_answers_by_it(
    name: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"frequency": [0.75, 1.25], "copy": [-1.0, -2.0], "prior": [-0.5, -0.25]}
    weights |= {"subject": [0.5, 2.0]} if name == "spe" else {}
    fitted = Combination({own: np.array(value) for own, value in weights.items()})
    monkeypatch.setattr("symprompt.probing.evaluate.fit_combination", lambda *_, **__: fitted)
    method = {"name": name, **FITTED} | (SEPARATE if name == "spe" else {})
    prompt = {"template": "manual"} if name == "finetune" else {}
    tuning = {"tune": "lora"} if name == "finetune" else {}
    config = make(
        tmp_path / "run", method=method, prompt=prompt, tuning=tuning, learning={"epochs": 1}
    )
    run = symprompt.train(config)
    assert run.metrics["weights"]["prior"] == {"capital": -0.5, "in": -0.25}
    stored = load_combination(run.folder)
    assert stored is not None
    predictions, facts = run.predictions("test")
    assert set(predictions.terms) == {"frequency", "copy", "prior"}
    joint = predictions.joint(stored)
    for row, fact in enumerate(facts):
        answers = run.ask(fact.relation, subject=fact.subject, top=joint.shape[1])
        by_object = sorted(answers, key=lambda answer: -answer.object_score)
        found = [answer.terms["prior"] for answer in by_object]
        assert found == pytest.approx(predictions.terms["prior"][row].tolist(), abs=1e-5)
        assert [own.joint for own in by_object] == pytest.approx(joint[row].tolist(), abs=1e-5)


def test_it_is_fitted_only_where_it_is_asked_for(make: Make, tmp_path: Path) -> None:
    run = symprompt.train(make(tmp_path / "run", method={**SEPARATE, "choose_weight": "dev-fit"}))
    assert set(run.predictions("test")[0].terms) == {"frequency", "copy"}
    assert set(run.metrics["weights"]) == {"subject", "frequency", "copy"}
    # A term of a fit alone: with one weight of the subject score it is not asked for.
    fixed = symprompt.train(make(tmp_path / "fixed", method={"terms": ["prior"]}))
    assert not fixed.predictions("test")[0].terms


def test_another_runs_candidates_keep_the_prior_of_their_own_prompt(
    make: Make, tmp_path: Path
) -> None:
    spe = symprompt.train(make(tmp_path / "spe", method={**SEPARATE, **FITTED}))
    plain = {"name": "ptuning", "choose_weight": "dev-fit", "terms": ["prior"]}
    ptuning = symprompt.train(make(tmp_path / "ptuning", method=plain, seed=5))
    both = rerank_run(ptuning.folder.path, spe.folder.path, tmp_path / "both", device="cpu")
    found, wanted = both.predictions("test")[0], ptuning.predictions("test")[0]
    np.testing.assert_array_equal(found.terms["prior"], wanted.terms["prior"])
    assert not np.array_equal(found.terms["prior"], spe.predictions("test")[0].terms["prior"])
    rerank = {"rerank": str(spe.folder.path), "seed": 5}
    trained = symprompt.train(make(tmp_path / "trained", method={"name": "ptuning"}, **rerank))
    np.testing.assert_allclose(
        trained.predictions("test")[0].terms["prior"], found.terms["prior"], atol=1e-5
    )
    manual = symprompt.train(make(tmp_path / "manual", method={"name": "manual"}))
    with pytest.raises(ConfigError, match="does not store; choose another weight"):
        rerank_run(manual.folder.path, spe.folder.path, tmp_path / "none", device="cpu")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_what_cannot_mask_a_subject_is_refused_before_a_folder_is_made(
    name: str, make: Make, prompts: Path, tmp_path: Path
) -> None:
    free = METHODS[name].encoder == "free"
    sections: dict[str, Any] = {
        "method": {"name": name, **FITTED},
        "ensemble": {"prompts": [str(prompts)]},
        "prompt": {"encoder": "free"} if free else {},
        "learning": {"epochs": 1},
    }
    if name == "softprompt":
        sections["prompt"]["start"] = "manual"
    if name == "finetune":
        sections["prompt"] = {"template": "manual"}
    if name == "sentence":
        sections["facts"] = {"objects": "any-length", "vocabulary": "objects"}
        sections["method"]["object_masking"] = "word"
    config = make(tmp_path / "run", **sections)
    if name in ("lpaqa", "majority", "sentence", "softprompt"):
        with pytest.raises(ConfigError, match="has not one prompt; leave prior out"):
            symprompt.train(config)
        assert not (tmp_path / "run").exists()
    else:
        assert "prior" in symprompt.train(config).predictions("test")[0].terms


def test_a_causal_model_has_no_mask(
    make: Make, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    config = make(
        tmp_path / "run",
        model=str(family_folder("gpt2")),
        method={"name": "ptuning", **FITTED},
        prompt={"template": CAUSAL_TEMPLATE},
    )
    with pytest.raises(ConfigError, match="is a causal model, which has no mask; leave prior out"):
        symprompt.train(config)
    assert not (tmp_path / "run").exists()
