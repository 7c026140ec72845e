"""Consistency: does a run give a fact the same first answer however the question is worded?

After ParaRel (Elazar et al., 2021, "Measuring and Improving Consistency in Pretrained Language
Models"). A fact is asked by every rewording of its relation's template. Its consistency is the
share of pairs of rewordings with the same first answer; it is always right if every rewording gets
the true object. All pairs count; ParaRel's own figures leave out those that its graphs of
entailment do not join.

A run by words alone (manual templates, fine-tuned models) is asked by the rewording in place of its
template. Learned vectors keep their places around the blanks, and the words join them there, in
place of words that the run's own template has (``Template.reworded``): "<3> [X] <3> [Y] <3>" and
"The capital of [X] is [Y] ." become "<3> The capital of [X] <3> is [Y] <3> .". Vectors that were
learned without words have not met any before; for those that were learned around a manual template
words are exchanged for words. The subject prompt is asked with the same words. That the run's own
prompt, asked again, agrees with itself says nothing; how often rewordings give its answer does.

A relation takes facts x (rewordings + 1) sentences; where candidates are re-ranked, K x the
subject's tokens as many again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from symprompt.errors import ConfigError, DataError, counted
from symprompt.facts import Fact, Split, at_most, load_prompts
from symprompt.files.progress import Tick, silent
from symprompt.models import Vocabulary
from symprompt.probing.ask import Answer, Answers, Run
from symprompt.probing.methods.base import method_class
from symprompt.probing.prepare import distinct_templates
from symprompt.probing.results import Array, load_card, load_facts, run_config
from symprompt.probing.summary import skipped_notes
from symprompt.prompts import Template

MEASURES = ("consistency", "p1", "always", "own")
"""Of a fact's pairs of rewordings, how many agree; of its rewordings, how many get the true object;
whether all do; and how many give the answer of the run's own prompt."""


@dataclass(frozen=True, eq=False)
class Consistency:
    """How alike a run's first answers are when its facts are asked in other words.

    Attributes:
        relations: the names of the run's relations.
        facts: those that were asked.
        relation: [n] int64, the facts' positions in ``relations``.
        values: ``MEASURES`` of the facts, each [n] from 0 to 1, by the order of the answers: "raw"
            (the run's own), and of a run that re-ranks also "forward" (by object score alone).
        rewordings: how many each relation was asked by.
        example: a rewording as it was asked.
        notes: what was left out.
    """

    relations: tuple[str, ...]
    facts: tuple[Fact, ...]
    relation: Array
    values: Mapping[str, Mapping[str, Array]]
    rewordings: Mapping[str, int]
    example: str
    notes: tuple[str, ...]


def measure_consistency(
    run: Run,
    templates: Sequence[str | Path] = (),
    *,
    facts: int = 50,
    split: Split = "test",
    seed: int = 0,
    model: str = "",
    device: str = "auto",
    tick: Tick = silent,
) -> Consistency:
    """Ask a run's facts by rewordings of their templates and compare the first answers.

    Args:
        run: a finished run that can be asked, by one prompt for each relation.
        templates: folders with a ``<relation>.jsonl`` per relation, a template (ParaRel: a pattern)
            a line, or JSONL files with the keys relation and template; none takes the several
            templates that the run's facts came with, as BEAR's do.
        facts: most facts of each relation, drawn by ``seed``; 0 takes all.
        model: where the model is now, if it moved since the run was made.
        tick: called with every step of progress.

    Raises:
        SympromptError: one clear sentence, before the model is loaded where that can be.
    """
    folder, config = run.folder, run_config(run.folder)
    card, every = load_card(folder)["relations"], load_facts(folder)
    kind = method_class(config.method.name)
    if kind.several_prompts or not kind.has_prompt:
        raise ConfigError(
            f"{folder.path} was made by {config.method.name}, which has no prompt of its own or "
            "several at once, so it is not reworded; take a run of manual, ptuning, spe, finetune "
            "or another one with a template."
        )
    bad: list[str] = []
    if templates:
        read = load_prompts([Path(path) for path in templates], every.names, bad)
    else:
        read = {own.name: (own.template, *own.rewordings) for own in every.relations}
        if not any(own.rewordings for own in every.relations):
            raise ConfigError(
                f"the facts of {folder.path} came with one template for each relation; name a "
                "folder or file of others with --templates."
            )
    notes = skipped_notes(folder.manifest.details.get("skipped", {}))
    if bad:
        notes.append(f"{counted(len(bad), 'template')} left out, the first: {bad[0]}")
    vocabulary = run.load_backbone(model, device, tick).vocabulary
    wordings = {
        name: distinct_templates(vocabulary, [Template.parse(text) for text in texts if text])
        for name, texts in read.items()
    }
    for name, listed in wordings.items():
        if any(template.vectors for template in listed):
            raise DataError(f"a rewording of relation {name} has vectors; write words alone.")
    few = [name for name in every.names if len(wordings.get(name, ())) < 2]
    asked = [name for name in every.names if name not in few]
    if few:
        notes.append(f"fewer than two rewordings, so left out: {', '.join(few)}")
    if not asked:
        raise DataError(f"no relation of {folder.path} has two rewordings; add some.")
    sample = at_most(every.select(asked), {split: facts}, seed=seed)
    top = folder.manifest.details.get("k") or 1
    kept: list[Fact] = []
    found: dict[str, list[tuple[float, ...]]] = {}
    total = sum(len(wordings[name]) for name in asked)
    done = lost = 0
    example = ""
    for relation in sample.relations:
        own = Template.parse(card[relation.name]["template"])
        told = [own.reworded(words) for words in wordings[relation.name]]
        example = example or str(told[0])
        chosen = list(relation.split(split))
        if config.facts.objects == "one-token":
            chosen = _one_token(vocabulary, told, chosen)
        lost += len(relation.split(split)) - len(chosen)
        answers: list[list[Answers]] = []
        for words in (None, *wordings[relation.name]) if chosen else ():
            tick("rewording", done, total, relation.name)
            subjects = [fact.subject for fact in chosen]
            answers.append(
                run.ask_all(
                    subjects, relation.name, top=top, model=model, device=device, wording=words
                )
            )
            done += words is not None
        kept += chosen
        objects = vocabulary.encode_words([fact.object for fact in chosen])
        for row, gold in enumerate(objects):
            first, *others = (wording[row] for wording in answers)
            measured = _measure(vocabulary, [own[0].text for own in (first, *others)], gold)
            found.setdefault("raw", []).append(measured)
            if first[0].joint is not None:
                texts = [max(own, key=_object_score).text for own in (first, *others)]
                found.setdefault("forward", []).append(_measure(vocabulary, texts, gold))
    if lost:
        notes.append(
            f"{counted(lost, 'fact')} left out: the object is not one token in some rewording"
        )
    if not kept:
        raise DataError(f"no {split} fact of {folder.path} can be asked in every rewording.")
    return Consistency(
        every.names,
        tuple(kept),
        np.array([every.names.index(fact.relation) for fact in kept], dtype=np.int64),
        {
            order: dict(zip(MEASURES, np.array(rows, dtype=float).T, strict=True))
            for order, rows in found.items()
        },
        {name: len(wordings[name]) for name in asked},
        example,
        tuple(notes),
    )


def _one_token(
    vocabulary: Vocabulary, templates: Sequence[Template], facts: Sequence[Fact]
) -> list[Fact]:
    """Return the facts whose objects are one token in every template."""
    objects = [fact.object for fact in facts]
    spaces = {template.space_before("object") for template in templates}
    read = [vocabulary.single_tokens(objects, after_space=space) for space in sorted(spaces)]
    return [fact for fact, *ids in zip(facts, *read, strict=True) if None not in ids]


def _object_score(answer: Answer) -> float:
    return answer.object_score


def _measure(
    vocabulary: Vocabulary, texts: Sequence[str], gold: Sequence[int]
) -> tuple[float, ...]:
    """Return ``MEASURES`` of one fact.

    Args:
        texts: the first answers of the run's own prompt, then of the rewordings.
        gold: the true object as the model reads it.
    """
    own, *others = (text.strip() for text in texts)
    counts, total = Counter(others), len(others)
    agreeing = sum(count * (count - 1) for count in counts.values())
    names = list(counts)
    right = sum(
        counts[name]
        for name, ids in zip(names, vocabulary.encode_words(names), strict=True)
        if list(ids) == list(gold)
    )
    return (
        agreeing / (total * (total - 1)),
        right / total,
        float(right == total),
        counts[own] / total,
    )
