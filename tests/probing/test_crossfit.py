"""Cross-fitting: who is asked by which prompts, what it is worth, and that it can be killed."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symprompt
from symprompt.errors import ConfigError
from symprompt.facts import Fact, FactSet
from symprompt.models import LanguageModel
from symprompt.probing.crossfit import Folds, make_folds
from symprompt.probing.prepare import prepare
from symprompt.probing.results import Combination, Predictions, load_asked, load_facts
from symprompt.runs.folder import HISTORY, Folder
from tiny.models import make_facts, names_facts, run_config, train
from tiny.runs import SEPARATE, Killed, Make, kill_at, timeless, write_csv

CROSS = {**SEPARATE, "choose_weight": "dev-fit", "evidence": "cross"}


def with_repeats() -> FactSet:
    """The made-up facts, one subject with two objects in training."""
    facts = make_facts()
    inside = facts["in"]
    second = Fact("in", inside.train[0].subject, inside.train[1].object)
    changed = replace(inside, train=(*inside.train, second))
    relations = tuple(changed if own is inside else own for own in facts.relations)
    return replace(facts, relations=relations)


def folds_of(bert: LanguageModel, facts: FactSet, count: int, **sections: Any) -> Folds:
    problem = prepare(run_config(dtype="float64", **sections), bert, facts)
    folds = make_folds(problem, count, seed=3)
    assert folds is not None
    return folds


@pytest.mark.parametrize("count", [2, 3])
def test_every_fact_is_held_out_once_from_all_facts_of_its_subject(
    bert: LanguageModel, count: int
) -> None:
    facts = with_repeats()
    folds = folds_of(bert, facts, count)
    enough = [own for own in facts.relations if len({fact.subject for fact in own.train}) >= count]
    held: Counter[Fact] = Counter()
    names = [own.name for own in folds.problem.facts.relations]
    assert names == [f"{own.name}#{place + 1}" for own in enough for place in range(count)]
    for index, copy in enumerate(folds.problem.facts.relations):
        whole = facts.relations[folds.owner[index]]
        assert copy.name.startswith(f"{whole.name}#")
        assert not {fact.subject for fact in copy.train} & {fact.subject for fact in copy.test}
        assert sorted(map(str, copy.train + copy.test)) == sorted(map(str, whole.train))
        assert copy.train
        assert copy.test
        assert copy.dev == whole.dev
        held.update(copy.test)
    assert held == Counter(fact for own in enough for fact in own.train)
    listed = facts.facts("train")
    assert [listed[row] for row in folds.rows] == folds.problem.facts.facts("test")
    assert set(facts.names) - {own.name for own in enough} == ({"near"} if count == 3 else set())


def test_sentences_are_those_of_the_facts(bert: LanguageModel) -> None:
    """Taken from the whole problem's, they equal what reading the folds anew would give."""
    facts = with_repeats()
    folds = folds_of(bert, facts, 2, method=SEPARATE)
    moved = tuple(
        replace(
            own,
            **{
                split: tuple(replace(fact, relation=own.name) for fact in own.split(split))
                for split in ("train", "dev", "test")
            },
        )
        for own in folds.problem.facts.relations
    )
    again = prepare(
        run_config(dtype="float64", method=SEPARATE), bert, replace(facts, relations=moved)
    )
    for split, sentences in folds.problem.sentences.items():
        wanted = again.sentences[split]
        np.testing.assert_array_equal(sentences.gold, wanted.gold)
        np.testing.assert_array_equal(sentences.copy, wanted.copy)
        np.testing.assert_array_equal(sentences.relations, wanted.relations)
        for prompt in ("object_prompt", "subject_prompt"):
            ours, theirs = getattr(sentences, prompt), getattr(wanted, prompt)
            for row in range(len(ours)):
                length = int(theirs.lengths[row])
                assert int(ours.lengths[row]) == length
                assert ours.ids[row, :length].tolist() == theirs.ids[row, :length].tolist()
            np.testing.assert_array_equal(ours.relations, theirs.relations)


def test_another_seed_draws_other_folds_and_the_same_one_the_same(bert: LanguageModel) -> None:
    problem = prepare(run_config(dtype="float64"), bert, make_facts())
    drawn = [make_folds(problem, 2, seed=seed) for seed in (3, 3, 4)]
    one, same, other = (own.problem.facts.fingerprint() for own in drawn if own is not None)
    assert one == same != other


def test_relations_of_too_few_subjects_have_no_folds(bert: LanguageModel) -> None:
    facts = make_facts().select(["near"])
    problem = prepare(run_config(dtype="float64"), bert, facts)
    assert make_folds(problem, 3, seed=0) is None


# ---------------------------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def run(make: Make, tmp_path_factory: pytest.TempPathFactory) -> symprompt.Run:
    """A run with cross-fitted evidence; tests must not change its folder."""
    return symprompt.train(make(tmp_path_factory.mktemp("cross") / "run", method=CROSS))


@pytest.mark.parametrize(
    ("facts", "sections"),
    [
        (with_repeats(), {"method": {**SEPARATE, "k": 3}}),
        (with_repeats(), {"method": {"name": "ptuning", "k": 3}}),
        (
            names_facts(),
            {
                "method": {**SEPARATE, "k": 2},
                "facts": {"objects": "any-length", "vocabulary": "objects"},
            },
        ),
    ],
    ids=["spe", "ptuning", "names"],
)
def test_held_out_facts_are_scored_as_by_runs_that_never_had_them(
    bert: LanguageModel, model: Path, tmp_path: Path, facts: FactSet, sections: dict[str, Any]
) -> None:
    """Each fold apart, as data of its own whose test facts are those that are held out."""
    data = write_csv(facts, tmp_path / "facts.csv")
    place = {"model": str(model), "data": str(data), "out": str(tmp_path / "run")}
    method = {**sections["method"], "choose_weight": "dev-fit", "evidence": "cross"}
    config = run_config(**{**place, **sections, "method": method}, dtype="float64")
    run = symprompt.train(config)
    stored = load_asked(run.folder, "train")
    problem = prepare(config, bert, load_facts(run.folder))
    folds = make_folds(problem, 2, seed=config.seed)
    assert folds is not None
    found = {
        key: {text: (float(forth), float(back)) for text, forth, back in zip(*own, strict=True)}
        for key, own in zip(
            stored.keys(),
            zip(
                stored.candidates(),
                stored.predictions.object_score,
                stored.predictions.subject_score,
                strict=True,
            ),
            strict=True,
        )
    }
    assert len(found) == len(stored.predictions) == len(facts.facts("train"))
    for copy in folds.problem.facts.relations:
        moved = {
            split: tuple(replace(fact, relation=copy.name) for fact in copy.split(split))
            for split in ("train", "dev", "test")
        }
        # The answer space is the run's.
        answers = tuple(sorted({fact.object for fact in facts[copy.test[0].relation].train}))
        alone = replace(copy, **moved, answers=answers)
        trained = train(config, bert, FactSet((alone,), "made up", "table"))
        wanted = trained.predict()
        for row, fact in enumerate(copy.test):
            own = found[fact.relation, fact.subject, fact.object]
            texts = [trained.problem.text(answer) for answer in wanted.candidates[row].tolist()]
            assert texts == list(own)
            scores = np.stack([wanted.object_score[row], wanted.subject_score[row]], axis=1)
            np.testing.assert_allclose(np.array(list(own.values())), scores, rtol=0, atol=1e-4)


def test_frequencies_are_those_of_the_facts_that_the_prompts_saw(
    run: symprompt.Run, bert: LanguageModel
) -> None:
    facts = load_facts(run.folder)
    problem = prepare(run_config(dtype="float64"), bert, facts)
    folds = make_folds(problem, 2, seed=34)
    assert folds is not None
    seen = {
        fact: Counter(other.object for other in copy.train)
        for copy in folds.problem.facts.relations
        for fact in copy.test
    }
    asked = load_asked(run.folder, "train")
    size = bert.vocabulary_size
    for row, (fact, texts) in enumerate(zip(asked.facts(), asked.candidates(), strict=True)):
        counts = seen[fact]
        total = sum(counts.values()) + 0.5 * size
        wanted = [math.log((counts[text] + 0.5) / total) for text in texts]
        found = asked.predictions.terms["frequency"][row].tolist()
        assert found == pytest.approx(wanted, abs=1e-5)


def test_evidence_is_dev_and_every_training_fact(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Predictions] = []

    def fit(evidence: Predictions, terms: Any, relations: int, **_: Any) -> Combination:
        given.append(evidence)
        return Combination({name: np.zeros(relations) for name in terms})

    monkeypatch.setattr("symprompt.probing.evaluate.fit_combination", fit)
    run = symprompt.train(make(tmp_path / "run", method=CROSS))
    facts = load_facts(run.folder)
    counts = {split: len(facts.facts(split)) for split in ("dev", "train")}  # type: ignore[arg-type]
    assert run.metrics["evidence"] == counts
    (evidence,) = given
    assert len(evidence) == sum(counts.values())
    dev, held = run.predictions("dev")[0], load_asked(run.folder, "train").predictions
    for name, column in evidence.columns().items():
        joined = np.concatenate([dev.columns()[name], held.columns()[name]])
        np.testing.assert_array_equal(column, joined)
    names = list(facts.names)
    listed = facts.facts("train")
    assert held.relation.tolist() == [names.index(fact.relation) for fact in listed]
    assert load_asked(run.folder, "train").facts() == listed
    # The run's own prompts and answers are those it would have without.
    plain = symprompt.train(make(tmp_path / "plain", method={**CROSS, "evidence": "dev"}))
    assert "evidence" not in plain.metrics
    assert not plain.folder.has("predictions/train.safetensors")
    for name in ("prompts.safetensors", "predictions/test.safetensors"):
        assert plain.folder.path.joinpath(name).read_bytes() == (
            run.folder.path.joinpath(name).read_bytes()
        )


@pytest.mark.parametrize("choose", ["dev", "dev-relation"])
def test_one_weight_is_chosen_on_it_too(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choose: str
) -> None:
    given: list[int] = []

    def weights(evidence: Predictions, relations: int, **_: Any) -> np.ndarray:
        given.append(len(evidence))
        return np.ones(relations)

    monkeypatch.setattr("symprompt.probing.evaluate.choose_weights", weights)
    run = symprompt.train(make(tmp_path / "run", method={**CROSS, "choose_weight": choose}))
    assert given == [sum(run.metrics["evidence"].values())]


def test_its_seconds_stand_apart(run: symprompt.Run) -> None:
    seconds = run.metrics["seconds"]
    stages = {"training", "asking dev", "asking test", "cross-fitting", "fitting weights"}
    assert set(seconds) == stages
    assert all(seconds[stage] > 0 for stage in ("cross-fitting", "fitting weights"))
    own = run.folder.read_json(HISTORY)["cross"]
    assert len(own["epochs"]) == 3
    assert len(own["best_epoch"]["forth"]) == 4
    assert not run.folder.path.joinpath("parts").exists()


MOMENTS = [
    ("training", "epoch 2"),
    ("cross-fitting: training", ""),
    ("cross-fitting: training", "epoch 2"),
    ("cross-fitting: asking test", ""),
]


@pytest.mark.parametrize(("stage", "note"), MOMENTS)
def test_a_killed_run_ends_as_an_unbroken_one(
    run: symprompt.Run, make: Make, tmp_path: Path, stage: str, note: str
) -> None:
    config = make(tmp_path / "run", method=CROSS, checkpoint_seconds=0.0)
    with pytest.raises(Killed):
        symprompt.train(config, tick=kill_at(stage, note))
    stages: list[str] = []
    again = symprompt.train(config, resume=True, tick=lambda stage, *_: stages.append(stage))
    if stage.startswith("cross"):
        assert "training" not in stages
    wanted, found = timeless(run.folder.path), timeless(again.folder.path)
    for history in (wanted[1], found[1]):
        history["cross"] = {
            key: own for key, own in history["cross"].items() if key not in ("seconds", "asking")
        }
    assert found == wanted
    for name in ("dev", "test", "train"):
        file = f"predictions/{name}.safetensors"
        assert (again.folder.path / file).read_bytes() == (run.folder.path / file).read_bytes()


def test_held_out_facts_that_are_stored_are_not_asked_again(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make(tmp_path / "run", method=CROSS)

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("symprompt.probing.train.write_results", kill)
        with pytest.raises(Killed):
            symprompt.train(config)
    stages: list[str] = []
    run = symprompt.train(config, resume=True, tick=lambda stage, *_: stages.append(stage))
    assert not any(stage.startswith("cross-fitting") for stage in stages)
    assert run.metrics["seconds"]["cross-fitting"] > 0


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"method": {**CROSS, "choose_weight": "fixed"}}, 'choose_weight = "fixed"; use "dev"'),
        ({"learning": {"epochs": 0}}, 'learning.epochs = 0; use "dev"'),
        ({"start_from": "runs/one"}, 'start_from; use "dev"'),
        ({"method": {**CROSS, "name": "manual"}}, 'method.name = "manual"; use "dev"'),
        ({"method": {**CROSS, "name": "finetune"}}, 'method.name = "finetune"; use "dev"'),
    ],
)
def test_what_it_does_not_go_with_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_config(**{"method": CROSS, **sections})


def test_several_prompts_are_refused_before_a_folder_is_made(
    make: Make, prompts: Path, tmp_path: Path
) -> None:
    config = make(
        tmp_path / "run",
        method={**CROSS, "name": "softprompt"},
        prompt={"encoder": "free", "start": "manual"},
        ensemble={"prompts": [str(prompts)]},
    )
    with pytest.raises(ConfigError, match='"softprompt" has several; use "dev"'):
        symprompt.train(config)
    assert not (tmp_path / "run").exists()


def test_another_runs_subject_prompt_has_seen_all_of_them(
    run: symprompt.Run, make: Make, tmp_path: Path
) -> None:
    method = {"name": "ptuning"}
    config = make(tmp_path / "run", method=method, rerank=str(run.folder.path))
    asked = symprompt.train(config)
    assert "evidence" not in asked.metrics
    assert Folder(tmp_path / "run").config_keys()["method.evidence"] == "dev"


@pytest.mark.parametrize("name", ["optiprompt", "autoprompt"])
def test_other_methods_that_learn_one_prompt_have_it_too(
    name: str, make: Make, tmp_path: Path
) -> None:
    config = make(
        tmp_path / "run",
        method={"name": name, "choose_weight": "dev-fit", "evidence": "cross"},
        prompt={"encoder": "free"},
        learning={"epochs": 1},
        search={"steps": 8, "candidates": 3},
    )
    run = symprompt.train(config)
    facts = load_facts(run.folder)
    assert run.metrics["evidence"]["train"] == len(facts.facts("train"))
    assert set(run.metrics["weights"]) == {"frequency", "copy"}
