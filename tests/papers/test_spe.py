"""The papers' tables, from small runs: every number against a slow way to it."""

from __future__ import annotations

import html.parser
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from statistics import median

import numpy as np
import pytest

import symprompt
from symprompt.errors import RunError
from symprompt.papers.fact_jobs import PARAPHRASES, list_rows, make_fact_plan
from symprompt.papers.jobs import Outcome, Plan, run_jobs
from symprompt.papers.ptuning import common_keys, paraphrase_p1
from symprompt.papers.records import Group, Loaded, load_groups
from symprompt.papers.report import make_page
from symprompt.papers.settings import FactSettings
from symprompt.papers.spe import (
    BINS,
    find_examples,
    first_answers,
    frequency_bins,
    given_away_by_name,
    majority_answers,
    measure_groups,
    pool_curve,
    pool_means,
    training_shares,
    uhn_keys,
)
from symprompt.probing.results import load_asked, load_combination, load_metrics
from symprompt.report.records import load_results
from symprompt.report.tables import load_scores
from symprompt.runs.folder import MANIFEST, Folder
from symprompt.runs.statistics import OVER_RELATIONS, paired_bootstrap
from tiny.models import make_facts, run_config
from tiny.runs import InlineExecutor, make_lama, write_csv, write_lama


@pytest.fixture(scope="module")
def plan(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Plan[FactSettings]:
    """A finished reproduction on a masked and a causal model, made in this process."""
    base = tmp_path_factory.mktemp("paper")
    settings = FactSettings(
        data=str(write_lama(base / "lama")),
        out=str(base / "out"),
        models=(f"toy={family_folder('bert')}", f"gpt={family_folder('gpt2')}"),
        methods=("majority", "manual", "ptuning", "spe"),
        seeds=(1, 2),
        epochs=2,
        pool=20,
        draws=40,
    )
    found = make_fact_plan(settings)
    found.begin()
    assert not run_jobs(found, InlineExecutor()).failed
    return found


@pytest.fixture(scope="module")
def loaded(plan: Plan[FactSettings]) -> Loaded:
    return load_groups(plan, list_rows(plan.settings.methods), {})


@pytest.fixture(scope="module")
def spe(loaded: Loaded) -> Group:
    return loaded.groups["toy", "lama-spe"]


def test_a_group_holds_the_ranks_of_every_seed(loaded: Loaded, spe: Group) -> None:
    assert spe.seeds == (1, 2)
    for row, path in enumerate(spe.paths):
        metrics = load_metrics(Folder(path))["test"]["raw"]["realistic"][OVER_RELATIONS]
        relations: dict[str, list[float]] = {}
        for (name, _, _), rank in zip(spe.keys, spe.rank[row], strict=True):
            relations.setdefault(name, []).append(100.0 / rank)
        mean = np.mean([np.mean(values) for values in relations.values()])
        assert mean == pytest.approx(metrics["mrr"])
    assert len(loaded.groups["toy", "lama-manual"].seeds) == 1


def test_differences_are_those_of_the_paired_bootstrap(loaded: Loaded, spe: Group) -> None:
    base = loaded.groups["toy", "lama-ptuning"]
    wanted = paired_bootstrap(base.rank, spe.rank, base.relation, draws=40)
    found = [
        one
        for one in measure_groups(loaded, loaded.rows).values()
        if one.versus and one.label == spe.label
    ]
    assert {one.versus for one in found} == {base.label}
    for one in found:
        change = wanted[one.settings["mean"]][one.metric]
        assert (one.value, one.low, one.high, one.p) == astuple(change)


def test_pools_re_rank_the_stored_candidates(loaded: Loaded, spe: Group) -> None:
    means = pool_means(loaded)["toy"]
    assert list(means) == list(range(1, 21))
    assert means[15] == spe.means[OVER_RELATIONS]
    forward = np.stack([load_scores(path, forward=True).rank for path in spe.paths])
    groups = [
        np.mean(forward[:, spe.relation == number] <= 1) for number in np.unique(spe.relation)
    ]
    assert means[1].p1 == pytest.approx(100 * np.mean(groups))
    curve = pool_curve(spe, means)
    assert curve.means is means
    assert curve.forward.p1 == means[1].p1


def test_the_larger_pool_takes_the_weight_of_the_run_itself(loaded: Loaded, spe: Group) -> None:
    ranks = []
    for path, seed in zip(spe.paths, spe.seeds, strict=True):
        combination = load_combination(Folder(path))
        larger = Folder(Path(path).parent / f"lama-spe-k20-{seed}")
        found = load_asked(larger, "test").predictions
        assert combination is not None
        for row in range(len(found)):
            weight = float(combination.weights["subject"][found.relation[row]])
            joint = found.object_score[row] + weight * found.subject_score[row]
            (gold,) = (found.candidates[row] == found.gold[row]).nonzero()
            if len(gold):
                ranks.append(1 + int((joint > joint[gold[0]]).sum()))
            else:
                ranks.append(1 + int(found.better[row]))
    flat = np.array(ranks).reshape(2, -1)
    by_relation = [
        np.mean(flat[:, spe.relation == number] <= 1) for number in np.unique(spe.relation)
    ]
    assert pool_means(loaded)["toy"][20].p1 == pytest.approx(100 * np.mean(by_relation))


def test_examples_are_the_facts_that_moved_most(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    # A weight and a K so large that asking back changes the order.
    place = {"model": str(family_folder("bert")), "out": str(tmp_path / "run")}
    data = str(write_csv(make_facts(), tmp_path / "facts.csv"))
    method = {"name": "spe", "k": 40, "weight": 5.0}
    folder = symprompt.train(run_config(**place, data=data, method=method)).folder
    asked, path = load_asked(folder, "test"), str(folder.path)
    before, after = load_scores(path, forward=True).rank, load_scores(path).rank
    clean = ~asked.predictions.known.any(1)
    found = find_examples(path)
    assert found
    for sign, count in ((1, 6), (-1, 3)):
        most: dict[str, float] = {}
        for row, fact in enumerate(asked.facts()):
            moved = sign * (before[row] - after[row])
            if clean[row] and moved > 0:
                most[fact.relation] = max(moved, most.get(fact.relation, 0.0))
        shown = [(e.relation, sign * (e.before - e.after)) for e in found]
        wanted = sorted(most.items(), key=lambda own: -own[1])[:count]
        assert [own for own in shown if own[1] > 0] == wanted
    for one in found:
        (row,) = (at for at, key in enumerate(asked.keys()) if key[1] == one.subject)
        assert one.forward == tuple(asked.candidates()[row][:5])
        assert (one.before, one.after) == (before[row], after[row])


def test_frequency_bins_count_every_fact_once(loaded: Loaded) -> None:
    group = loaded.groups["toy", "lama-ptuning"]
    train = {
        relation.name: Counter(fact.object for fact in relation.train)
        for relation in make_lama().relations
    }
    listed: dict[str, list[float]] = {name: [] for name in BINS}
    for place, (name, _, right) in enumerate(group.keys):
        share = train[name][right] / train[name].total()
        assert training_shares(group)[place] == pytest.approx(share)
        bounds = ((0.0, BINS[0]), (0.01, BINS[1]), (0.05, BINS[2]), (0.2, BINS[3]))
        where = BINS[0] if share == 0 else BINS[4]
        for bound, bin in bounds[1:]:
            if 0 < share < bound:
                where = bin
                break
        listed[where] += group.rank[:, place].tolist()
    for bin, ranks in zip(frequency_bins(group), listed.values(), strict=True):
        if not ranks:
            assert bin is None
            continue
        assert bin is not None
        assert bin.facts == len(ranks) / 2
        assert bin.mrr == pytest.approx(100 * np.mean([1 / rank for rank in ranks]))
        assert bin.median == median(ranks)


def test_the_majority_baseline_always_says_the_majority(loaded: Loaded) -> None:
    group = loaded.groups["toy", "lama-majority"]
    assert majority_answers(group) == pytest.approx(100.0)
    answers = first_answers(group.paths[0])
    for (name, _, _), answer in zip(group.keys, answers, strict=True):
        counts = Counter(fact.object for fact in make_lama()[name].train)
        assert counts[answer] == max(counts.values())


def test_uhn_leaves_out_what_the_subject_or_a_name_gives_away(loaded: Loaded) -> None:
    keys = [
        ("P19", "Lima York", "Lima"),
        ("P19", "San Oslo", "Rome"),
        ("P19", "Old York", "Paris"),
        ("P36", "York", "Rome"),
    ]
    assert uhn_keys(keys, None) == set(keys[1:])
    given = {("P19", "Oslo", "Rome"), ("P19", "York", "Rome"), ("P36", "York", "Rome")}
    assert uhn_keys(keys, given) == set(keys[2:])
    found = given_away_by_name(loaded, "toy")
    assert found is not None
    (run,) = loaded.plan.of_row("toy", "names")
    scores = load_scores(run.config.out)
    assert len(found) == len(
        {k for k, rank in zip(scores.key, scores.rank, strict=True) if rank <= 3}
    )


def test_paraphrases_stand_beside_the_original(loaded: Loaded) -> None:
    found = paraphrase_p1(loaded, "toy")
    assert list(found) == ["P17", "P19", "P36"]
    for name, values in found.items():
        assert list(values) == [make_lama()[name].template, *PARAPHRASES[name]]
    (run,) = loaded.plan.of_row("toy", "paraphrase-2")
    rank = load_scores(run.config.out).rank
    own = [
        r for r, key in zip(rank, load_scores(run.config.out).key, strict=True) if key[0] == "P36"
    ]
    assert found["P36"][PARAPHRASES["P36"][1]] == pytest.approx(
        100 * np.mean([r <= 1 for r in own])
    )


def test_common_facts_are_those_of_every_model(loaded: Loaded) -> None:
    both = [set(loaded.groups[model, "lama-manual"].keys) for model in ("toy", "gpt")]
    assert common_keys(loaded) == both[0] & both[1]


class _Checker(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen[tag] += 1
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_is_whole_in_every_form(plan: Plan[FactSettings]) -> None:
    out = Path(plan.settings.out)
    files = make_page(plan, Outcome()).write(out)
    assert all(path.is_file() for path in files)
    page = (out / "report.md").read_text()
    for title in (
        "SPE, Table 1",
        "SPE, Table 2",
        "SPE, Table 3",
        "SPE, section 4",
        "P-tuning, Table 1",
        "P-tuning, Table 2",
        "Easy, hard and UHN facts",
    ):
        assert f"## {title}" in page, title
    for words in ("E-BERT", "MegatronLM (11B)", "48.2 / 78.1 / 58.6 [S] 48.3 [P]", "K = 20 (ours)"):
        assert words in page, words
    # One row never mixes ours and theirs: theirs stand under a heading that says so.
    for line in page.splitlines():
        if "[S]" in line and line.startswith("|"):
            assert "published" in page
    checker = _Checker()
    checker.feed((out / "report.html").read_text())
    assert checker.open == []
    assert checker.seen["table"] == page.count("|---|")
    assert checker.seen["img"] == 6
    for name in ("methods", "candidates", "imbalance"):
        for model in ("toy", "gpt"):
            assert (out / f"figures/{name}-{model}.png").read_bytes().startswith(b"\x89PNG")


def test_stored_results_print_again(plan: Plan[FactSettings], loaded: Loaded) -> None:
    out = Path(plan.settings.out)
    make_page(plan, Outcome()).write(out)
    stored = load_results(str(out / "results.json"))
    text = stored.tables().to_markdown()
    value = loaded.groups["toy", "lama-spe"].means[OVER_RELATIONS].mrr
    row = next(line for line in text.splitlines() if line.startswith("| toy: SPE | 2 |"))
    assert f"{value:.2f} (" in row
    assert "| toy: SPE minus toy: P-tuning |" in text


def test_runs_by_other_weights_are_refused(plan: Plan[FactSettings], loaded: Loaded) -> None:
    path = Path(loaded.groups["toy", "lama-manual"].paths[0]) / MANIFEST
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {"model_fingerprint": "other"}))
    try:
        with pytest.raises(RunError, match="made by other weights"):
            load_groups(plan, list_rows(plan.settings.methods), {})
    finally:
        path.write_text(before)
