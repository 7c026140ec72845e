"""Factual coherency: is the subject recovered from the object that a run itself answers?

After Youssef et al. (2024, "The Queen of England is not England's Queen"). A test fact's first
object by the run's own order, right or wrong, is put into the subject prompt, and the relation's
known subjects (of all splits, as ``Run.ask(object=...)`` ranks them) are ordered by their score
given it: the mean over a subject's tokens, also where the run sums them, by the first subject
prompt where there are two. The rank of the fact's own subject is stored; P@1 and MRR of these ranks
are the coherency. The object score takes no part: the object was chosen as the likeliest of this
very subject, so it would favour that one.

A relation costs at most (distinct first objects) x (known subjects) x (their tokens) sentences:
those that are alike are read once, and a subject masked whole, or a causal model's, is one. So
facts may be sampled, the same ones for every run on the same facts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import ConfigError
from symprompt.facts import Fact, Relation, Split, at_most
from symprompt.files.progress import Tick, silent
from symprompt.probing.ask import Run, scores_by_token, stored_method, stored_problem
from symprompt.probing.config import RunConfig
from symprompt.probing.methods.base import Method, Vectors
from symprompt.probing.problem import Problem, answer_ids, tensorise
from symprompt.probing.queries import ranks
from symprompt.probing.rerank import load_subject_prompt
from symprompt.probing.results import (
    SUBJECT,
    Array,
    Coherency,
    CoherencyNote,
    load_asked,
    load_coherency,
    load_combination,
    predictions_digest,
    run_config,
    write_coherency,
)
from symprompt.prompts.layout import pad_rows

FACTS = 50
"""Facts of a relation that are asked back, if no other number is given."""


def measure_coherency(
    run: Run,
    *,
    facts: int = FACTS,
    split: Split = "test",
    seed: int = 0,
    model: str = "",
    device: str = "auto",
    max_tokens: int = 0,
    tick: Tick = silent,
) -> Coherency:
    """Ask back a run's own first objects and store where the subjects stand; see this module.

    Args:
        run: a finished run with subject scores: of spe, or one that was re-ranked.
        facts: most facts of each relation, drawn by ``seed``; 0 takes all.
        model: where the model is now, if it moved since the run was made.
        max_tokens: most tokens in one pass; 0 chooses by device.
        tick: called with every step of progress.

    Returns:
        What was stored; of the same facts and seed it is not measured again.

    Raises:
        SympromptError: one clear sentence, such as that the run cannot ask back.
    """
    folder = run.folder
    asked = load_asked(folder, split)
    predictions, listed = asked.predictions, asked.facts()
    combination = load_combination(folder)
    if combination is None or not predictions.asked_back:
        raise ConfigError(
            f"{folder.path} was made by {folder.manifest.method}, which has no subject prompt to "
            "ask back with; take a run of spe, or re-rank this one first: symprompt rerank "
            f"{folder.path} --with SPE_RUN --out FOLDER."
        )
    stored = load_coherency(folder, split)
    if stored is not None and (stored.note["facts"], stored.note["seed"]) == (facts, seed):
        return stored
    config = run_config(folder)
    backbone = run.load_backbone(model, device, tick)
    problem = stored_problem(folder, backbone, max_tokens=max_tokens)
    if config.rerank:
        way_back = load_subject_prompt(config, problem)
        problem, method, vectors = way_back.problem, way_back.method, way_back.vectors
    else:
        method = stored_method(config, problem)
        vectors = method.load_vectors(folder, range(len(problem.relations)))
    begun = time.perf_counter()
    kept = set(at_most(problem.facts, {split: facts}, seed=seed).facts(split))
    rows = np.array([row for row, fact in enumerate(listed) if fact in kept], dtype=np.int64)
    first = np.stack([predictions.first_answer(own)[rows] for own in (combination, None)])
    better, equal = (np.zeros((2, 2, len(rows)), dtype=np.int64) for _ in range(2))
    subjects: dict[str, int] = {}
    for index, relation in enumerate(problem.facts.relations):
        own = np.flatnonzero(predictions.relation[rows] == index)
        if not len(own):
            continue
        tick("asking back", index, len(problem.relations), relation.name)
        names = sorted({fact.subject for fact in relation.all()})
        objects, which = np.unique(first[:, own], return_inverse=True)
        scores = _scores(config, method, problem, vectors, relation, names, objects)
        if not all(problem.copies[index : index + 1]):
            # Who cannot be their own object.
            read = answer_ids(
                problem.backbone.vocabulary, problem.templates[index], names, problem.spelling
            )
            scores[
                objects[:, None] == np.array([-1 if own is None else own for own in read])
            ] = -torch.inf
        subjects[relation.name] = len(names)
        place = {name: number for number, name in enumerate(names)}
        gold = torch.tensor([place[listed[row].subject] for row in rows[own].tolist()])
        having = _having(problem, index, place, objects)
        for order, chosen in enumerate(torch.from_numpy(which.reshape(2, -1))):
            for filtered, ignored in enumerate((None, having[chosen])):
                found = ranks(scores[chosen], gold, ignored)
                better[order, filtered, own] = found.better.numpy()
                equal[order, filtered, own] = found.equal.numpy()
    tick("asking back", len(problem.relations), len(problem.relations), "")
    note = CoherencyNote(
        facts=facts,
        seed=seed,
        subjects=subjects,
        seconds=round(time.perf_counter() - begun, 3),
        predictions=predictions_digest(folder, split),
    )
    measured = Coherency(rows, better, equal, note)
    write_coherency(folder, split, measured)
    return measured


@torch.no_grad()
def _scores(
    config: RunConfig,
    method: Method,
    problem: Problem,
    vectors: Vectors,
    relation: Relation,
    names: Sequence[str],
    objects: Array,
) -> Tensor:
    """Return each object's score of each known subject, [k, s].

    Args:
        objects: [k] tokens, or ids of names.
    """
    # Any object of the relation holds the place of those that are put in.
    facts = [Fact(relation.name, subject, relation.all()[0].object) for subject in names]
    sentences = tensorise(
        problem.backbone,
        problem.templates,
        problem.relations,
        facts,
        {(fact.relation, fact.subject): [fact.object] for fact in facts},
        swapped=config.method.blanks == "swapped",
        spelling=problem.spelling,
    )
    given = torch.from_numpy(objects).to(problem.backbone.device)
    found = scores_by_token(
        config, method, sentences, given, vectors, max_tokens=problem.max_tokens
    )
    return torch.from_numpy(found[SUBJECT]).T.contiguous()


def _having(problem: Problem, index: int, place: Mapping[str, int], objects: Array) -> Tensor:
    """Return the places of the subjects that have each object, [k, m] padded with -1."""
    facts = problem.facts.relations[index].all()
    answers = answer_ids(
        problem.backbone.vocabulary,
        problem.templates[index],
        [fact.object for fact in facts],
        problem.spelling,
    )
    owners: dict[int | None, set[int]] = {}
    for fact, answer in zip(facts, answers, strict=True):
        owners.setdefault(answer, set()).add(place[fact.subject])
    listed = [sorted(owners.get(answer, ())) for answer in objects.tolist()]
    return torch.from_numpy(pad_rows(listed, -1)[0])
