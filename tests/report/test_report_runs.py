"""Run folders as rows of a comparison: the numbers are those of the run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symprompt
from symprompt import Run
from symprompt.errors import RunError
from symprompt.probing.results import run_config as stored_config
from symprompt.report.tables import comparison, load_scores
from symprompt.runs.folder import MANIFEST, Folder
from symprompt.runs.statistics import summarise
from tiny.models import run_config
from tiny.runs import unfinish


def path(run: Run) -> str:
    return str(run.folder.path)


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("kind", ["realistic", "optimistic", "pessimistic"])
@pytest.mark.parametrize("name", ["spe", "chosen", "ptuning"])
@pytest.mark.parametrize(
    ("figures", "options"),
    [("raw", {}), ("filtered", {"filtered": True}), ("forward", {"forward": True})],
)
def test_loaded_ranks_give_the_figures_of_the_run(
    runs: dict[str, Run], name: str, split: Any, kind: Any, figures: str, options: dict[str, Any]
) -> None:
    scores = load_scores(path(runs[name]), split=split, kind=kind, **options)
    wanted = runs[name].metrics[split][figures][kind]
    for mean, summary in summarise(scores.rank, scores.relation).items():
        assert vars(summary) == pytest.approx(wanted[mean]), mean


def test_candidates_and_weights_change_the_order_as_they_should(runs: dict[str, Run]) -> None:
    whole = load_scores(path(runs["spe"])).rank
    forward = load_scores(path(runs["spe"]), forward=True).rank
    assert (whole != forward).any(), "asking back moved some ranks"
    same: list[tuple[dict[str, Any], Any]] = [
        ({"k": 1}, forward),
        ({"weight": 0.0}, forward),
        ({"k": 40, "weight": 0.0}, forward),
        ({"k": 40}, whole),
        ({"weight": 5.0}, whole),
    ]
    for options, wanted in same:
        assert np.array_equal(load_scores(path(runs["spe"]), **options).rank, wanted), options


def test_fewer_candidates_give_the_ranks_of_a_run_with_fewer(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    config = stored_config(runs["spe"].folder)
    fewer = run_config(
        model=config.model,
        data=config.data,
        out=str(tmp_path / "fewer"),
        method={"name": "spe", "k": 7, "weight": 5.0},
    )
    trained = symprompt.train(fewer)
    for filtered in (False, True):
        one = load_scores(path(trained), filtered=filtered).rank
        other = load_scores(path(runs["spe"]), k=7, filtered=filtered).rank
        assert np.array_equal(one, other)


def test_rows_name_run_relations_facts_and_what_was_left_out(runs: dict[str, Run]) -> None:
    scores = load_scores(path(runs["spe"]))
    assert scores.relation_names == ("capital", "in", "near")
    facts = [(fact.relation, fact.subject, fact.object) for fact in runs["spe"].predictions()[1]]
    assert list(scores.key) == facts
    assert "1 fact left out: object is not one token of the model" in scores.note
    forward = load_scores(path(runs["spe"]), forward=True)
    assert forward.name == scores.name + " forward"
    # A run that did not ask back has no other order, so no other name.
    plain = load_scores(path(runs["ptuning"]), forward=True)
    assert plain.name == load_scores(path(runs["ptuning"])).name


def test_a_run_shows_what_it_is(runs: dict[str, Run], tmp_path: Path) -> None:
    place = runs["spe"].folder.path
    model = Path(runs["spe"].folder.manifest.model).name
    assert repr(runs["spe"]).startswith(f"Run('{place}', train spe on {model}")
    assert repr(runs["spe"]).endswith(", finished)")
    assert repr(Folder(tmp_path)) == f"Folder('{tmp_path}', no run)"


def test_runs_of_the_same_facts_are_compared_pair_by_pair(runs: dict[str, Run]) -> None:
    rows = [load_scores(path(runs[name])) for name in ("ptuning", "spe")]
    table = comparison(rows, draws=20)
    assert len(table.values["differences"]) == 1
    wanted = [
        run.metrics["test"]["raw"]["realistic"]["mean over facts"]
        for run in (runs["ptuning"], runs["spe"])
    ]
    change = table.values["differences"][0]["mean over facts"]["mrr"]["difference"]
    assert change == pytest.approx(wanted[1]["mrr"] - wanted[0]["mrr"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("spe", {"k": 41}, r"k is 41, but .* stores 40 candidates"),
        *(("ptuning", one, "did not ask back") for one in ({"k": 2}, {"weight": 0.5})),
        ("ptuning", {"weight": 0.0}, "did not ask back"),
        *(("spe", one, "must be at least 0") for one in ({"k": -1}, {"weight": -0.5})),
        ("spe", {"weight": float("nan")}, "must be at least 0"),
    ],
)
def test_what_cannot_be_ranked_again_is_refused(
    runs: dict[str, Run], name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RunError, match=message):
        load_scores(path(runs[name]), **options)


def test_only_finished_runs_are_read(runs: dict[str, Run], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        load_scores(str(tmp_path / "nowhere"))
    shutil.copytree(runs["spe"].folder.path, tmp_path / "copy")
    unfinish(tmp_path / "copy")
    with pytest.raises(RunError, match="unfinished"):
        load_scores(str(tmp_path / "copy"))


def test_a_table_needs_no_model(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(symprompt.LanguageModel, "load", refuse)
    shutil.copytree(runs["spe"].folder.path, tmp_path / "moved")
    moved = load_scores(str(tmp_path / "moved"))
    assert np.array_equal(moved.rank, load_scores(path(runs["spe"])).rank)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("prompts.json", "{}"),
        ("symprompt.json", "{}"),
        ("symprompt.json", "[]"),
    ],
)
def test_a_damaged_run_is_one_sentence_that_names_the_file(
    runs: dict[str, Run], tmp_path: Path, name: str, content: str
) -> None:
    shutil.copytree(runs["spe"].folder.path, tmp_path / "copy")
    (tmp_path / "copy" / name).write_text(content)
    with pytest.raises(RunError, match=rf"{name} is damaged: .*\.$"):
        load_scores(str(tmp_path / "copy"))


@pytest.mark.parametrize(
    "weights",
    [None, {"subject": {}}, {"subject": {"capital": 1.0}}, {"subject": {"capital": "much"}}],
)
def test_weights_that_are_not_there_are_one_sentence(
    runs: dict[str, Run], tmp_path: Path, weights: Any
) -> None:
    shutil.copytree(runs["spe"].folder.path, tmp_path / "copy")
    folder = Run.load(tmp_path / "copy").folder
    changes = {"details": folder.manifest.details | {"weights": weights}}
    folder.write(MANIFEST, folder.manifest.model_copy(update=changes).to_json())
    with pytest.raises(RunError, match=r"symprompt\.json is damaged"):
        load_scores(str(tmp_path / "copy"))
