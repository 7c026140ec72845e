"""Asking back on top of other runs: equal to SPE where it must be, refused where it cannot fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import symprompt
from symprompt import LanguageModel, Run, cli
from symprompt.errors import ConfigError, RunError, SympromptError
from symprompt.probing.evaluate import choose_weights
from symprompt.probing.problem import tensorise
from symprompt.probing.queries import ranks, subject_likelihoods
from symprompt.probing.rerank import rerank_run
from symprompt.probing.results import load_card, load_combination, load_prompts
from symprompt.probing.results import run_config as stored_config
from symprompt.prompts import Template
from symprompt.report.tables import load_scores
from tiny.models import CAUSAL_TEMPLATE, run_config
from tiny.oracles import reranked_ranks
from tiny.runs import SEPARATE, Make, few_answers, metrics_of, other_model, unfinish

OTHERS = ("manual", "ptuning", "finetune")


@pytest.fixture(scope="module")
def make(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Configs with few allowed answers, so that gold objects are among the candidates and move."""
    return few_answers(make, tmp_path_factory.mktemp("words"))


def method_sections(name: str) -> dict[str, Any]:
    prompt = {"template": "manual"} if name == "finetune" else {}
    return {"method": {"name": name}, "prompt": prompt, "learning": {"epochs": 1}}


@pytest.fixture(scope="module")
def spe(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An SPE run that chose its weight on dev; tests must not change its folder."""
    out = tmp_path_factory.mktemp("spe") / "run"
    method = {**SEPARATE, "choose_weight": "dev-relation", "average": "sum"}
    return symprompt.train(make(out, method=method, learning={"epochs": 2}))


@pytest.fixture(scope="module")
def others(make: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs that learn nothing, vectors and weights; tests must not change their folders."""
    folder = tmp_path_factory.mktemp("others")
    return {name: symprompt.train(make(folder / name, **method_sections(name))) for name in OTHERS}


# ------------------------------------------------------------------------------------- oracles


@pytest.mark.parametrize("variant", ["one", "whole kept", "shared", "chain"])
def test_an_spe_runs_own_order_and_way_back_give_the_spe_run(
    variant: str, make: Make, spe: Run, tmp_path: Path
) -> None:
    if variant != "one":
        more = {
            "whole kept": {"masking": "whole", "blanks": "kept"},
            "shared": {},
            "chain": {"masking": "chain"},
        }[variant]
        own = {"vectors": "shared" if variant == "shared" else "separate", **more}
        config = make(tmp_path / "spe", method={**own, "choose_weight": "dev"})
        spe = symprompt.train(replace(config, learning=replace(config.learning, epochs=1)))
    again = rerank_run(spe.folder.path, spe.folder.path, tmp_path / "again", device="cpu")
    assert metrics_of(again) == metrics_of(spe)
    for split in ("dev", "test"):
        name = f"predictions/{split}.safetensors"
        assert (again.folder.path / name).read_bytes() == (spe.folder.path / name).read_bytes()
    assert again.metrics["test"]["raw"] != again.metrics["test"]["forward"]


def test_the_joint_order_is_forward_and_backward_by_loops(
    others: dict[str, Run], spe: Run, model: Path, tmp_path: Path
) -> None:
    """One candidate at a time, and ranks from the manual prompts' whole vocabulary."""
    run = rerank_run(others["manual"].folder.path, spe.folder.path, tmp_path / "run", device="cpu")
    backbone = LanguageModel.load(str(model), device="cpu", dtype="float32")
    found, listed = run.predictions("test")
    card, names = load_card(spe.folder), ["capital", "in"]
    vectors = load_prompts(spe.folder, ["forth", "back"])["back"]
    combination = load_combination(run.folder)
    assert combination is not None
    templates = [Template.parse(card["relations"][name]["template"]) for name in names]
    for row, fact in enumerate(listed):
        known = {(fact.relation, fact.subject): [fact.object]}
        sentences = tensorise(backbone, templates, names, [fact], known, swapped=True)
        for place, token in enumerate(found.candidates[row].tolist()):
            asked = subject_likelihoods(
                backbone,
                sentences.subject_prompt,
                np.array([0]),
                vectors,
                masking="one",
                objects=torch.tensor([token]),
            )
            assert float(found.subject_score[row, place]) == pytest.approx(
                float(asked.sum_log()), abs=1e-5
            )
        scores = torch.full((1, backbone.vocabulary_size), -50.0)
        scores[0, found.candidates[row]] = torch.from_numpy(found.object_score[row])
        weight = float(combination.weights["subject"][names.index(fact.relation)])
        joint = found.object_score[row] + np.float32(weight) * found.subject_score[row]
        gold = torch.from_numpy(found.gold[row : row + 1])
        if int(gold) in found.candidates[row]:
            candidates = torch.from_numpy(found.candidates[row : row + 1])
            wanted = reranked_ranks(scores, gold, candidates, torch.from_numpy(joint)[None])
            assert float(wanted.realistic) == float(found.final(combination).realistic[row])
        else:
            assert float(ranks(scores, gold).better) == found.candidates.shape[1]


@pytest.mark.parametrize("name", OTHERS)
def test_candidates_are_asked_back_later_as_right_after_training(
    name: str, make: Make, others: dict[str, Run], spe: Run, tmp_path: Path
) -> None:
    base = others[name]
    later = rerank_run(base.folder.path, spe.folder.path, tmp_path / "later", device="cpu")
    before, after = base.predictions()[0], later.predictions()[0]
    assert np.array_equal(before.candidates, after.candidates)
    assert np.array_equal(before.object_score, after.object_score)
    assert later.metrics["test"]["forward"] == base.metrics["test"]["raw"]
    # The weight is chosen on this run's own dev predictions, as the SPE run chose its own.
    wanted = choose_weights(later.predictions("dev")[0], 2, per_relation=True)
    assert list(later.metrics["weights"]["subject"].values()) == wanted.tolist()
    dev = later.metrics["dev"]
    better = [dev[kind]["realistic"]["mean over relations"]["mrr"] for kind in ("raw", "forward")]
    assert better[0] >= better[1]
    assert len(load_scores(str(later.folder.path)).rank) == len(before)
    config = make(tmp_path / "at once", rerank=str(spe.folder.path), **method_sections(name))
    at_once = symprompt.train(config)
    assert metrics_of(at_once) == metrics_of(later)
    first, second = stored_config(at_once.folder), stored_config(later.folder)
    assert replace(first, out="") == replace(second, out="", device="cpu")
    for file in ("predictions/dev.safetensors", "predictions/test.safetensors", "facts.jsonl"):
        one, other = (run.folder.path / file for run in (at_once, later))
        assert one.read_bytes() == other.read_bytes()
    # It is found finished when asked for again.
    assert symprompt.train(config).metrics == at_once.metrics
    with pytest.raises(ConfigError, match="re-ranked stored candidates"):
        later.ask("capital", subject="France")


def test_a_causal_models_runs_are_reranked(
    family_folder: Callable[[str], Path], data: Path, tmp_path: Path
) -> None:
    place = {"model": str(family_folder("gpt2")), "data": str(data), "dtype": "float32"}
    base: dict[str, Any] = {
        **place,
        "prompt": {"template": CAUSAL_TEMPLATE},
        "learning": {"epochs": 1},
    }
    spe = symprompt.train(
        run_config(out=str(tmp_path / "spe"), method={"name": "spe", "weight": 2.0}, **base)
    )
    manual = symprompt.train(
        run_config(out=str(tmp_path / "manual"), method={"name": "manual"}, **base)
    )
    again = rerank_run(spe.folder.path, spe.folder.path, tmp_path / "again", device="cpu")
    assert metrics_of(again) == metrics_of(spe)
    run = rerank_run(manual.folder.path, spe.folder.path, tmp_path / "run", device="cpu")
    assert set(run.metrics["weights"]["subject"].values()) == {2.0}


def test_fewer_candidates_are_those_that_come_first(
    others: dict[str, Run], spe: Run, tmp_path: Path
) -> None:
    base, back = others["manual"].folder.path, spe.folder.path
    all_of_them, _ = rerank_run(base, back, tmp_path / "all", device="cpu").predictions()
    run = rerank_run(base, back, tmp_path / "few", k=3, choose_weight="fixed", device="cpu")
    few, _ = run.predictions()
    assert np.array_equal(few.candidates, all_of_them.candidates[:, :3])
    np.testing.assert_allclose(few.subject_score, all_of_them.subject_score[:, :3], rtol=1e-5)
    assert run.metrics["k"] == 3
    assert set(run.metrics["weights"]["subject"].values()) == {1.7}


# ------------------------------------------------------------------------------------ refusals


def test_a_run_without_a_way_back_is_refused(
    others: dict[str, Run], spe: Run, tmp_path: Path
) -> None:
    base = others["manual"].folder.path
    for name, other in others.items():
        with pytest.raises(RunError, match=f"made by {name} and learned no subject prompt"):
            rerank_run(base, other.folder.path, tmp_path / "run")
    again = rerank_run(base, spe.folder.path, tmp_path / "again", device="cpu")
    with pytest.raises(RunError, match=r"manual \+ asking back and learned no subject prompt"):
        rerank_run(base, again.folder.path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_model_is_refused(
    make: Make, model: Path, others: dict[str, Run], spe: Run, tmp_path: Path
) -> None:
    other = str(other_model(model, tmp_path / "model"))
    manual = symprompt.train(
        make(tmp_path / "manual", **(method_sections("manual") | {"model": other}))
    )
    with pytest.raises(RunError, match="made by another model"):
        rerank_run(manual.folder.path, spe.folder.path, tmp_path / "run", device="cpu")
    with pytest.raises(RunError, match="name the right one with --model"):
        rerank_run(
            *(run.folder.path for run in (others["manual"], spe)),
            tmp_path / "run",
            model=other,
            device="cpu",
        )
    both = method_sections("manual") | {"rerank": str(spe.folder.path), "model": other}
    with pytest.raises(RunError, match="made by another model"):
        symprompt.train(make(tmp_path / "run", **both))
    assert not (tmp_path / "run").exists()


def test_other_relations_and_facts_are_refused(
    make: Make, others: dict[str, Run], spe: Run, tmp_path: Path
) -> None:
    base = others["manual"].folder.path
    small = symprompt.train(
        make(tmp_path / "small", facts={"relations": ["in"]}, learning={"epochs": 0})
    )
    with pytest.raises(RunError, match="has no relation capital; it has: in"):
        rerank_run(base, small.folder.path, tmp_path / "run", device="cpu")
    # The other way round is no matter: the way back of some of its relations is asked.
    part = symprompt.train(
        make(tmp_path / "part", facts={"relations": ["in"]}, method={"name": "manual"})
    )
    run = rerank_run(part.folder.path, spe.folder.path, tmp_path / "part again", device="cpu")
    assert list(run.metrics["weights"]["subject"]) == ["in"]
    limited = symprompt.train(
        make(tmp_path / "limited", facts={"train_limit": 2}, learning={"epochs": 0})
    )
    with pytest.raises(RunError, match="other train facts of relation capital: 2 there, 5 here"):
        rerank_run(base, limited.folder.path, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_objects_read_as_other_tokens_are_refused(
    family_folder: Callable[[str], Path], data: Path, tmp_path: Path
) -> None:
    place = {"model": str(family_folder("roberta")), "data": str(data), "dtype": "float32"}
    training = {"learning": {"epochs": 0}}
    runs = [
        symprompt.train(
            run_config(**place, **training, out=str(tmp_path / str(n)), prompt={"template": text})
        )
        for n, text in enumerate(("[Y] <2> [X] .", "<2> [X] <1> [Y] ."))
    ]
    first, second = (run.folder.path for run in runs)
    with pytest.raises(RunError, match="reads objects as other tokens"):
        rerank_run(first, second, tmp_path / "run", device="cpu")


@pytest.mark.parametrize(
    ("broken", "options", "message"),
    [
        ("with", {}, "unfinished run"),
        ("base", {}, "not a run folder"),
        ("", {"k": 6}, r"k is 6, but .* stores 5"),
        ("", {"choose_weight": "best"}, "choose_weight is 'best'"),
        ("base/predictions/dev.safetensors", {}, "needs dev facts"),
    ],
)
def test_broken_runs_and_bad_options_are_refused(
    others: dict[str, Run],
    spe: Run,
    tmp_path: Path,
    broken: str,
    options: dict[str, Any],
    message: str,
) -> None:
    shutil.copytree(others["manual"].folder.path, tmp_path / "base")
    shutil.copytree(spe.folder.path, tmp_path / "with")
    if broken == "with":
        unfinish(tmp_path / "with")
    elif broken:
        (tmp_path / broken).rename(tmp_path / "away")
    with pytest.raises(SympromptError, match=message):
        rerank_run(tmp_path / "base", tmp_path / "with", tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_killed_reranking_is_made_anew(others: dict[str, Run], spe: Run, tmp_path: Path) -> None:
    base, back = others["manual"].folder.path, spe.folder.path
    before = metrics_of(rerank_run(base, back, tmp_path / "run", device="cpu"))
    unfinish(tmp_path / "run")
    for name in ("predictions/test.safetensors", "facts.jsonl"):
        (tmp_path / "run" / name).unlink()
    assert metrics_of(rerank_run(base, back, tmp_path / "run", device="cpu")) == before
    with pytest.raises(RunError, match="holds a run of train, not of rerank"):
        rerank_run(base, back, others["ptuning"].folder.path)


def test_the_command_line_reranks_and_compares(
    others: dict[str, Run],
    spe: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    base, back, out = others["manual"].folder.path, spe.folder.path, tmp_path / "run"
    cli.main(["rerank", str(base), "--with", str(back), "--out", str(out), "--device", "cpu"])
    shown = capsys.readouterr().out
    assert "manual + asking back on" in shown
    assert f"compare it: symprompt table {base} {out}" in shown
    cli.main(["table", str(base), str(out), "--json", "--draws", "20"])
    table = json.loads(capsys.readouterr().out)
    assert [run["facts"] for run in table["runs"]] == [8, 8]
    assert len(table["differences"]) == 1
