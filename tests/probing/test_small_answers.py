"""Relations with fewer answers than K beside others with more: each is asked for what it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import symprompt
from symprompt import LanguageModel, Run
from symprompt.facts import Fact, FactSet, Relation
from symprompt.probing import asked_once
from symprompt.probing.ask import stored_method, stored_problem
from symprompt.probing.coherency import measure_coherency
from symprompt.probing.problem import tensorise
from symprompt.probing.rerank import rerank_run
from symprompt.probing.results import Combination, load_asked, load_facts, run_config
from symprompt.report.diff import diff_runs
from symprompt.report.figures import k_curve
from symprompt.report.tables import load_scores
from tiny.models import CITIES, COUNTRIES
from tiny.runs import SEPARATE, Make, write_csv

K = 15
FEW = CITIES[:3]
MANY = tuple(f"{one} {other}" for one in CITIES for other in CITIES if one != other)[:40]


def small_and_large() -> FactSet:
    """A relation with 3 answers, one of them also a subject, and one with 40."""
    subjects = [*COUNTRIES, *(f"New {name}" for name in COUNTRIES), CITIES[0]]
    few = [Fact("few", name, FEW[place % 3]) for place, name in enumerate(subjects)]
    few += [Fact("few", subjects[-2], FEW[2])]
    many = [Fact("many", f"old {name}", name) for name in MANY]
    asked = [Fact("many", name, MANY[place]) for place, name in enumerate(subjects[:8])]
    return FactSet(
        (
            Relation("few", tuple(few[:6]), tuple(few[6:10]), tuple(few[10:])),
            Relation("many", tuple(many), tuple(asked[:4]), tuple(asked[4:])),
        ),
        "made up",
        "table",
    )


@pytest.fixture(scope="module")
def make_small(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Make:
    data = write_csv(small_and_large(), tmp_path_factory.mktemp("facts") / "facts.csv")

    def config(out: Path, **sections: Any) -> Any:
        facts = {"objects": "any-length", "vocabulary": "objects", "copies": "auto"}
        method = {"k": K, **sections.pop("method", {})}
        rest = {"data": str(data), "learning": {"epochs": 1}, **sections}
        return make(out, facts=facts, method=method, **rest)

    return config


@pytest.fixture(scope="module")
def run(make_small: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run; tests must not change its folder, but may add what is measured of it."""
    terms = ["subject", "frequency", "copy", "prior"]
    method = {**SEPARATE, "choose_weight": "dev-fit", "terms": terms}
    return symprompt.train(make_small(tmp_path_factory.mktemp("small") / "run", method=method))


def test_each_relation_has_as_many_candidates_as_it_has_answers(run: Run) -> None:
    assert run.metrics["k"] == K
    assert run.metrics["fewer_answers"] == {"few": 3}
    for split in ("dev", "test"):
        asked = load_asked(run.folder, split)  # type: ignore[arg-type]
        found = asked.predictions
        assert found.asked_back
        for row, fact in enumerate(asked.facts()):
            # A subject that is an answer may not answer itself.
            count = K if fact.relation == "many" else 3 - (fact.subject in FEW)
            assert (found.candidates[row, :count] >= 0).all()
            assert (found.candidates[row, count:] == -1).all()
            assert np.isfinite(found.object_score[row, :count]).all()
            assert (found.object_score[row, count:] == -np.inf).all()
            for own in (found.subject_score, *found.terms.values()):
                assert np.isfinite(own[row]).all()
                assert not own[row, count:].any()
            assert not found.known[row, count:].any()
            texts = asked.candidates()[row]
            assert len(texts) == len(set(texts)) == count
            assert set(texts) <= set(FEW if fact.relation == "few" else MANY)


@pytest.mark.parametrize("filtered", [False, True])
def test_ranks_are_those_of_a_slow_version(run: Run, model: Path, filtered: bool) -> None:
    """Fact by fact and candidate by candidate, answers in a list that is sorted."""
    backbone = LanguageModel.load(str(model), device="cpu", dtype="float32")
    problem = stored_problem(run.folder, backbone)
    method = stored_method(run_config(run.folder), problem)
    vectors = method.load_vectors(run.folder, [0, 1])
    # A fit to facts as few as these finds nothing to weigh.
    given = {"subject": 0.6, "frequency": 0.4, "copy": -2.0, "prior": -0.5}
    combination = Combination({name: np.array([own, 1.5 * own]) for name, own in given.items()})
    found, facts = run.predictions("test")
    ranks = found.final(combination, filtered=filtered)
    forward = found.ranks(filtered=filtered)
    true = load_facts(run.folder).true_objects()
    names = ["few", "many"]
    for row, fact in enumerate(facts):
        known = {(fact.relation, fact.subject): [fact.object]}
        sentences = tensorise(
            backbone,
            problem.templates,
            names,
            [fact],
            known,
            swapped=True,
            spelling=problem.spelling,
        )
        with torch.no_grad():
            scores = method.scores(sentences, np.array([0]), vectors)[0]
        space = FEW if fact.relation == "few" else MANY
        own = {
            answer: float(scores[answer])
            for answer in range(len(scores))
            if problem.text(answer) in space and problem.text(answer) != fact.subject
        }
        order = sorted(own, key=lambda answer: (-own[answer], answer))
        others = true[fact.relation, fact.subject] - {fact.object}
        left_out = {answer for answer in own if filtered and problem.text(answer) in others}
        (gold,) = (answer for answer in range(len(scores)) if problem.text(answer) == fact.object)
        joint = dict(own)
        for place, answer in enumerate(order[:K]):
            with torch.no_grad():
                back = method.subject_scores(
                    sentences, np.array([0]), torch.tensor([[answer]]), vectors, max_tokens=4096
                )
            terms = {name: float(term[row, place]) for name, term in found.terms.items()}
            assert int(found.candidates[row, place]) == answer
            terms["subject"] = float(back["subject"])
            weights = {
                name: float(w[found.relation[row]]) for name, w in combination.weights.items()
            }
            joint[answer] += sum(weights[name] * terms[name] for name in weights)
        ranked = sorted(order[:K], key=lambda answer: -joint[answer]) + order[K:]
        if gold not in own:
            assert float(ranks.realistic[row]) > len(own) - len(left_out)
            continue
        for wanted, place in ((ranked, ranks), (order, forward)):
            kept = [answer for answer in wanted if answer not in left_out]
            assert float(place.realistic[row]) == kept.index(gold) + 1


def test_what_is_no_candidate_is_not_asked_back(
    make_small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    plain = asked_once._Reader.likelihoods

    def counted(self: Any, rows: np.ndarray, offset: np.ndarray, *rest: Any) -> Any:
        # A pair of a fact and a candidate has one query about the subject's first token.
        read.append(int((offset == 0).sum()))
        return plain(self, rows, offset, *rest)

    monkeypatch.setattr(asked_once._Reader, "likelihoods", counted)
    run = symprompt.train(make_small(tmp_path / "run", method=SEPARATE))
    real = sum(int((run.predictions(own)[0].candidates >= 0).sum()) for own in ("dev", "test"))
    assert (
        sum(read) == real < sum(run.predictions(own)[0].candidates.size for own in ("dev", "test"))
    )


def test_questions_and_tables_show_what_there_is(run: Run, tmp_path: Path) -> None:
    for fact in run.predictions("test")[1]:
        answers = run.ask(fact.relation, subject=fact.subject, top=20, device="cpu")
        space = FEW if fact.relation == "few" else MANY
        assert {own.text for own in answers} <= set(space)
        assert len(answers) == (20 if fact.relation == "many" else 3 - (fact.subject in FEW))
        assert sum(own.joint is not None for own in answers) == min(K, len(answers))
    again = rerank_run(run.folder.path, run.folder.path, tmp_path / "again", device="cpu")
    for split in ("dev", "test"):
        name = f"predictions/{split}.safetensors"
        assert (again.folder.path / name).read_bytes() == (run.folder.path / name).read_bytes()
    assert list(k_curve(run.folder).means) == list(range(1, K + 1))
    measure_coherency(run, device="cpu")
    for k in (1, 3, K):
        load_scores(str(run.folder.path), k=k)
    diff_runs(run.folder.path, again.folder.path)


@pytest.mark.parametrize("name", ["ptuning", "majority"])
def test_methods_that_do_not_ask_back_store_it_too(
    name: str, make_small: Make, tmp_path: Path
) -> None:
    run = symprompt.train(make_small(tmp_path / "run", method={"name": name}))
    found = run.predictions("test")[0]
    assert found.candidates.shape[1] == K
    assert (found.candidates[found.relation == 0, 3:] == -1).all()
