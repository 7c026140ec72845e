"""Cross-fitting: training facts asked by prompts that never saw them, as evidence for the weights.

Weights of the joint score (``combine``) must be fitted on facts that were not trained on, and dev
has few. So each relation's training facts are parted into folds, all facts of a subject in one, and
prompts are trained again by the same recipe on all folds but one, which they are then asked. Every
fold makes a relation of its own ("P36#1"), and these are trained together as any relations are.

What a fold's prompts did not see is what its facts are scored by: object frequencies are those of
the other folds, too. Which answers a relation may give is the run's own rule for all of them. Dev
facts choose the best epoch here as they do in the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from symprompt.facts import SPLITS, Relation, Split
from symprompt.probing.problem import Problem, Sentences
from symprompt.runs.environment import derive_seed


@dataclass(frozen=True, eq=False)
class Folds:
    """Every relation once for each of its folds.

    Attributes:
        problem: its relation "P36#1" learns from P36's training facts but for the first fold's,
            which are its test facts; its dev facts are P36's.
        owner: [relation of the problem] the relation that each is of.
        rows: [n] the training fact that each test fact is.
    """

    problem: Problem
    owner: np.ndarray
    rows: np.ndarray


def make_folds(problem: Problem, count: int, *, seed: int) -> Folds | None:
    """Part the training facts into folds; None where no relation has a subject for each of them.

    Args:
        count: how many folds; relations with fewer subjects are left out.
        seed: with the relation's name, of what is drawn.
    """
    relations: list[Relation] = []
    owner: list[int] = []
    taken: dict[Split, list[np.ndarray]] = {split: [] for split in SPLITS}
    for index, relation in enumerate(problem.facts.relations):
        rows = {
            split: np.flatnonzero(problem.sentences[split].relations == index)
            for split in SPLITS[:2]
        }
        fold = _deal([fact.subject for fact in relation.train], count, (seed, relation.name))
        if fold.max(initial=0) < count - 1:
            continue
        for number in range(count):
            seen, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
            relations.append(
                replace(
                    relation,
                    name=f"{relation.name}#{number + 1}",
                    train=tuple(relation.train[place] for place in seen.tolist()),
                    test=tuple(relation.train[place] for place in held.tolist()),
                )
            )
            owner.append(index)
            for split, own in zip(
                SPLITS, (rows["train"][seen], rows["dev"], rows["train"][held]), strict=True
            ):
                taken[split].append(own)
    if not relations:
        return None
    spelling = problem.spelling and problem.spelling.take(owner)

    def take(split: Split, source: Sentences) -> Sentences:
        lengths = [len(own) for own in taken[split]]
        found = source.take(np.concatenate(taken[split]), np.repeat(np.arange(len(owner)), lengths))
        return replace(found, spelling=spelling)

    train, dev = problem.sentences["train"], problem.sentences["dev"]
    made = Problem(
        problem.backbone,
        replace(problem.facts, relations=tuple(relations)),
        tuple(problem.templates[index] for index in owner),
        problem.allowed[torch.tensor(owner, device=problem.allowed.device)],
        {"train": take("train", train), "dev": take("dev", dev), "test": take("test", train)},
        problem.max_tokens,
        spelling=spelling,
        copies=tuple(problem.copies[index] for index in owner) if problem.copies else (),
    )
    return Folds(made, np.array(owner), np.concatenate(taken["test"]))


def _deal(subjects: Sequence[str], count: int, seed: tuple[object, ...]) -> np.ndarray:
    """Return the fold of each fact, [n]; a subject's facts are in one."""
    names = sorted(set(subjects))
    order = np.random.default_rng(derive_seed(*seed, "folds")).permutation(len(names))
    fold = dict(zip(names, (order % count).tolist(), strict=True))
    return np.array([fold[name] for name in subjects], dtype=np.int64)
