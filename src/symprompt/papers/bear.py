"""BEAR's table: whole sentences by template, and learned prompts over the same answer spaces.

Its own protocol asks all facts, since nothing is learned; P-tuning and SPE learn from 40 % of the
subjects, choose by 20 % and are asked about the others, where the protocol stands beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from symprompt.config import override
from symprompt.errors import counted
from symprompt.files.grid import DASH, Grid
from symprompt.papers.fact_jobs import Row, for_model, place_run
from symprompt.papers.jobs import Job, Outcome, Plan, find_models
from symprompt.papers.records import (
    Group,
    Loaded,
    describe_plan,
    load_groups,
    published,
    show,
)
from symprompt.papers.settings import BearSettings
from symprompt.papers.spe import Measured, measure_groups, method_grid
from symprompt.probing.config import load_config
from symprompt.probing.prepare import load_config_facts
from symprompt.report.pages import Page, Section
from symprompt.runs.folder import Manifest
from symprompt.runs.statistics import ABOUT_P, OVER_FACTS, OVER_RELATIONS, hits

TITLE = "BEAR: whole sentences and learned prompts"
LEADERBOARD = "BEAR, leaderboard"
SENTENCE, ON_TEST = "bear-sentence", "bear-sentence-test"
PTUNING, SPE = "bear-ptuning", "bear-spe"
ROWS = (
    Row("whole sentences, all facts", SENTENCE, SENTENCE, "original"),
    Row("whole sentences", ON_TEST, ON_TEST, "original"),
    Row("P-tuning", PTUNING, PTUNING, seeded=True),
    Row("SPE", SPE, SPE, seeded=True),
)


def make_bear_plan(settings: BearSettings) -> Plan[BearSettings]:
    """Look at models and facts, and list the jobs; nothing is written.

    Raises:
        SympromptError: bad settings, models or facts, or a folder that was made with other ones.
    """
    settings.check()
    models = find_models(settings.models)
    changes: dict[str, Any] = {"facts.relations": settings.relations, "facts.layout": "bear"}
    facts = load_config_facts(settings.data, override(load_config(PTUNING), **changes).facts)
    changes |= {f"facts.{split}_limit": settings.limit for split in ("train", "dev", "test")}
    about = Manifest(
        command="reproduce",
        method="bear",
        model=", ".join(model.name for model in models),
        seeds=settings.seeds,
        details=settings.kept() | {"facts": facts.fingerprint()},
    )
    jobs: list[Job] = []
    for model in models:
        for row in ROWS:
            learns = {"learning.epochs": settings.epochs} if settings.epochs and row.seeded else {}
            # The test facts of the methods that learn.
            dealt = {"facts.shares": ()} if row.config == ON_TEST else {}
            name = SENTENCE if row.config == ON_TEST else row.config
            base = override(for_model(load_config(name), model), **changes, **learns, **dealt)
            for seed in settings.seeds if row.seeded else settings.seeds[:1]:
                place = f"{row.config}-{seed}"
                jobs.append(
                    Job(model.name, row.config, place_run(settings, model, base, place, seed))
                )
    return Plan(settings.out, settings, models, tuple(jobs), about, {})


def bear_page(plan: Plan[BearSettings], outcome: Outcome) -> Page:
    """Return the two tables, from the stored runs.

    Raises:
        SympromptError: no run came to its end, or one is damaged.
    """
    loaded = load_groups(plan, ROWS, outcome.failed)
    outcome.require_some(bool(loaded.groups))
    note = describe_plan(plan, "facts of each relation", facts=True)
    notes = [f"{run} failed: {why}" for run, why in loaded.failed.items()]
    measured = measure_groups(loaded, ROWS[1:])
    sections = [protocol_section(loaded), learned_section(loaded, measured)]
    if notes:
        sections.append(Section("Runs that failed", notes=tuple(notes)))
    about = {"note": note, "paper": "bear"}
    return Page(TITLE, (note,), tuple(sections), about, list(measured.values()))


def protocol_section(loaded: Loaded) -> Section:
    """Return BEAR's own table: P@1 by template and over all, beside the published figures."""
    theirs = published(SENTENCE)[LEADERBOARD]
    numbers = sorted(
        {number for one in loaded.of_row(SENTENCE).values() for number in by_template(one)}
    )
    ours = []
    for model in loaded.plan.models:
        group = loaded.groups.get((model.name, SENTENCE))
        if group is None:
            why = loaded.missing[model.name, SENTENCE]
            ours.append((model.name, why, *[""] * (len(numbers) + 2)))
            continue
        own = by_template(group)
        cells = (show(own.get(number)) for number in numbers)
        means = (show(group.means[mean].p1) for mean in (OVER_FACTS, OVER_RELATIONS))
        ours.append((model.name, *cells, *means, DASH))
    blank = [DASH] * (len(numbers) + 2)
    rows = tuple((name, *blank, show(values["p1"])) for name, values in theirs.items())
    header = (
        "model",
        *(f"template {number}" for number in numbers),
        "all templates,\nmean over facts",
        "all templates,\nmean over relations",
        "published:\nmean over facts",
    )
    count = sum(len(one.keys) for one in list(loaded.of_row(SENTENCE).values())[:1])
    return Section(
        "The protocol: whole sentences",
        (
            "P@1 in percent, realistic ranks: how often the sentence with the true answer scores "
            "best among those with all answers of the relation's answer space. All facts, no "
            f"training; {counted(count, 'sentence')} with a blank in all templates together. The "
            'column headed "published" is the leaderboard of BEAR\'s authors, for other models.',
        ),
        (Grid("BEAR's protocol", header, (tuple(ours), rows), marked=(len(header) - 1,)),),
    )


def by_template(group: Group) -> Mapping[int, float]:
    """Return the P@1 of each template, from 1, mean over facts."""
    ends = [name.rpartition(".")[2] for name in group.names]
    number = np.array([int(end) if end.isdigit() else 1 for end in ends])[group.relation]
    return {
        own: 100 * float(hits(group.rank[:, number == own], 1).mean())
        for own in np.unique(number).tolist()
    }


def learned_section(loaded: Loaded, measured: Measured) -> Section:
    """Return the methods on the test facts, and SPE minus P-tuning."""
    draws = loaded.plan.settings.draws
    grids = [
        method_grid(loaded, ROWS[1:], measured, model.name, mean)
        for model in loaded.plan.models
        for mean in (OVER_RELATIONS, OVER_FACTS)
    ]
    return Section(
        "Learned prompts over the same answer spaces",
        (
            "Percent, realistic ranks among the relation's answer space, on the test facts (40 % "
            "of the subjects; 40 % were learned from, 20 % chose epochs and weights), mean over "
            "the seeds; whole sentences: over all templates. In brackets the 95 % interval of a "
            f"bootstrap over facts within relations ({draws:,} draws); {ABOUT_P}",
        ),
        tuple(grids),
    )
