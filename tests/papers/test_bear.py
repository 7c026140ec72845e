"""BEAR's table: the protocol by template beside published figures, learned prompts on test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from symprompt.errors import ConfigError
from symprompt.papers.bear import (
    ON_TEST,
    PTUNING,
    ROWS,
    SENTENCE,
    SPE,
    bear_page,
    by_template,
    make_bear_plan,
)
from symprompt.papers.jobs import Outcome, Plan, run_jobs
from symprompt.papers.records import Loaded, load_groups
from symprompt.papers.settings import BearSettings
from symprompt.runs.statistics import OVER_FACTS
from tiny.models import CITIES, COUNTRIES
from tiny.runs import InlineExecutor

TEMPLATES = ["[X] lies in [Y].", "The city of [X] is [Y] .", "[Y] is the capital of [X] ."]


def write_bear(folder: Path) -> Path:
    """Two relations of twelve facts, one-to-one and with four answers."""
    folder.mkdir()
    about = {name: {"templates": TEMPLATES} for name in ("P36", "P30")}
    (folder / "metadata_relations.json").write_text(json.dumps(about))
    subjects = (COUNTRIES * 3)[:12]
    for name, count in (("P36", 4), ("P30", 3)):
        rows = [
            {"sub_label": f"{subject} {CITIES[place // 4]}", "obj_label": CITIES[place % count]}
            for place, subject in enumerate(subjects)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(scope="module")
def plan(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Plan[BearSettings]:
    """Four rows and one seed on a masked and a causal model, all made in this process."""
    folder = tmp_path_factory.mktemp("bear")
    settings = BearSettings(
        data=str(write_bear(folder / "BEAR")),
        models=(f"toy={family_folder('bert')}", f"gpt={family_folder('gpt2')}"),
        out=str(folder / "out"),
        seeds=(34,),
        epochs=1,
        draws=20,
        dtype="float32",
    )
    found = make_bear_plan(settings)
    found.begin()
    assert not run_jobs(found, InlineExecutor()).failed
    return found


@pytest.fixture(scope="module")
def loaded(plan: Plan[BearSettings]) -> Loaded:
    return load_groups(plan, ROWS, {})


def test_the_protocol_asks_all_facts_and_learned_prompts_the_test_facts(loaded: Loaded) -> None:
    for model in ("toy", "gpt"):
        counts = {row.config: len(loaded.groups[model, row.config].keys) for row in ROWS}
        assert counts == {SENTENCE: 3 * 24, ON_TEST: 3 * 10, PTUNING: 10, SPE: 10}
    sentence, learned = loaded.of_row(ON_TEST)["toy"], loaded.of_row(PTUNING)["toy"]
    reworded = {(key[0].partition(".")[0], *key[1:]) for key in sentence.keys}
    assert reworded == set(learned.keys)
    assert loaded.of_row(SPE)["toy"].keys == learned.keys


def test_the_mean_over_facts_is_that_of_the_templates(loaded: Loaded) -> None:
    group = loaded.of_row(SENTENCE)["toy"]
    own = by_template(group)
    assert list(own) == [1, 2, 3]
    assert np.mean(list(own.values())) == pytest.approx(group.means[OVER_FACTS].p1)


def test_published_figures_stand_in_a_marked_column(plan: Plan[BearSettings]) -> None:
    page = bear_page(plan, Outcome())
    protocol, learned = page.sections
    (grid,) = protocol.grids
    assert grid.marked == (len(grid.header) - 1,)
    ours, theirs = grid.sections
    assert ours[0][0] == "toy"
    assert ours[0][-1] == "–"
    assert ("BERT-base", "–", "–", "–", "–", "–", "18.4") in theirs
    assert [row[0] for row in learned.grids[0].sections[0]] == [row.name for row in ROWS[1:]]
    assert learned.grids[0].sections[1][0][0] == "SPE minus P-tuning"
    assert {record.versus for record in page.records} == {"", "toy: P-tuning", "gpt: P-tuning"}
    assert "A trial, not the papers' setting: 1 training epoch." in page.text[0]


def test_methods_cannot_be_chosen() -> None:
    with pytest.raises(ConfigError, match="which has four rows; drop it"):
        make_bear_plan(BearSettings(data="x", methods=("spe",)))
