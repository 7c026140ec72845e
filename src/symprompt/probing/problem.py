"""Facts that a model can be asked, as tensors: sentences, templates, the answers allowed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import DataError, TemplateError
from symprompt.facts import (
    Fact,
    FactSet,
    Relation,
    Split,
    load_word_list,
)
from symprompt.models import LanguageModel, Vocabulary
from symprompt.probing.any_length import Spelling, make_spelling
from symprompt.probing.config import RunConfig
from symprompt.prompts import (
    Layout,
    Names,
    Piece,
    Template,
    encode_facts,
    encode_piece,
    fixed_length,
    make_layout,
    make_name_table,
    make_names,
    read_names,
)
from symprompt.runs.environment import send

_UNSEEN = 0.5
"""Added to every count, so that objects not seen in training have a frequency."""
Prompts = tuple[tuple[Template, ...], ...]
"""Each relation's manual templates, where a method reads several."""


@dataclass(frozen=True)
class Sentences:
    """One split, tensorised.

    Attributes:
        object_prompt: the facts in the prompt that asks for the object.
        subject_prompt: the facts in the prompt that asks for the subject.
        gold: [n] int64, the true objects: their tokens, or ids of names.
        known: [n, m] int64 padded with -1, every known true object of each fact's subject.
        copy: [n] int64 on the CPU, the answer that reads as the fact's subject; -1 where none does.
        barred: [n] int64, the answer that each fact may not give, its copy; -1 where it may give
            all that its relation may. None if no relation bars copies.
        names: the subjects as tokens, for methods with several prompts.
        subjects: [n] the same as texts.
        spelling: how names of any length are asked for; None where tokens are the answers.
    """

    object_prompt: Layout
    subject_prompt: Layout
    gold: Tensor
    known: Tensor
    copy: np.ndarray
    barred: Tensor | None = None
    names: Names | None = None
    spelling: Spelling | None = None
    subjects: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.object_prompt)

    def take(self, rows: np.ndarray, relations: np.ndarray) -> Sentences:
        """Return some facts, as facts of the relations with these indices."""
        index = torch.from_numpy(rows).to(self.gold.device)
        first = second = self.object_prompt.take(rows, relations)
        if self.subject_prompt is not self.object_prompt:
            second = self.subject_prompt.take(rows, relations)
        return Sentences(
            first,
            second,
            self.gold[index],
            self.known[index],
            self.copy[rows],
            None if self.barred is None else self.barred[index],
        )

    def permitted(self, scores: Tensor, rows: np.ndarray, allowed: Tensor) -> Tensor:
        """Return scores [b, v] of some facts' answers, -inf for those they may not give.

        Args:
            allowed: [relation, v] bool, the answers each relation may give.
        """
        index = send(rows, scores.device)
        relation = self.object_prompt.relation[index]
        scores = scores.masked_fill(~allowed[relation], -torch.inf)
        if self.barred is None:
            return scores
        barred = self.barred[index, None]
        at = barred.clamp(min=0)
        return scores.scatter(1, at, scores.gather(1, at).masked_fill(barred >= 0, -torch.inf))

    @property
    def relations(self) -> np.ndarray:
        """Each fact's relation, [n] on the CPU."""
        return self.object_prompt.relations


@dataclass(frozen=True)
class Problem:
    """Facts that this model can be asked, as tensors on its device.

    Attributes:
        facts: what is left after dropping, with the counts of what was dropped.
        templates: one per relation.
        allowed: [relation, v] bool, the answers each relation may give; v tokens, or names.
        copies: whether each relation may answer with the subject itself; empty if all may.
        sentences: each non-empty split, tensorised.
        max_tokens: most tokens in one pass that keeps nothing for a gradient.
        prompts: each relation's manual templates, where the method has several.
        spelling: how names of any length are asked for; None where tokens are the answers.
    """

    backbone: LanguageModel
    facts: FactSet
    templates: tuple[Template, ...]
    allowed: Tensor
    sentences: dict[Split, Sentences]
    max_tokens: int
    prompts: Prompts = ()
    spelling: Spelling | None = None
    copies: tuple[bool, ...] = ()

    def text(self, answer: int) -> str:
        """Return an answer as people read it."""
        if self.spelling is not None:
            return self.spelling.names.texts[answer]
        return self.backbone.vocabulary.text(answer)

    def counts(self) -> dict[str, int] | None:
        """Return how many candidates each relation has; None where tokens are the answers."""
        if self.spelling is None:
            return None
        return dict(zip(self.relations, self.allowed.sum(1).tolist(), strict=True))

    def candidates(self, k: int) -> int:
        """Return how many candidates are kept: k, or fewer if no relation has so many answers."""
        return min(k, int(self.allowed.sum(1).max()))

    def fewer_answers(self, k: int) -> dict[str, int]:
        """Return the relations with fewer than k answers, all of which are candidates."""
        counts = zip(self.relations, self.allowed.sum(1).tolist(), strict=True)
        return {name: count for name, count in counts if count < k}

    def object_counts(self) -> Tensor:
        """Return how often each answer is a training object of each relation, [relation, v]."""
        vocabulary, spelling = self.backbone.vocabulary, self.spelling
        size = self.backbone.vocabulary_size if spelling is None else len(spelling.names)
        counts = torch.zeros(len(self.templates), size, dtype=torch.float64)
        for row, template in enumerate(self.templates):
            objects = [fact.object for fact in self.facts.relations[row].train]
            answers = answer_ids(vocabulary, template, objects, spelling)
            known = [answer for answer in answers if answer is not None]
            counts[row] = torch.bincount(torch.tensor(known, dtype=torch.long), minlength=size)
        return counts

    @property
    def relations(self) -> tuple[str, ...]:
        """The relations' names, in the order of every leading axis."""
        return self.facts.names

    def part(self, first: int, stop: int) -> Problem:
        """Return the problem of some consecutive relations alone."""
        sentences: dict[Split, Sentences] = {}
        spelling = None if self.spelling is None else self.spelling.take(range(first, stop))
        for split, every in self.sentences.items():
            owner = every.object_prompt.relations
            rows = np.flatnonzero((owner >= first) & (owner < stop))
            if len(rows):
                own = every.take(rows, owner[rows] - first)
                sentences[split] = replace(own, spelling=spelling)
        return Problem(
            self.backbone,
            self.facts.select(self.relations[first:stop]),
            self.templates[first:stop],
            self.allowed[first:stop],
            sentences,
            self.max_tokens,
            spelling=spelling,
        )


def log_frequencies(counts: Tensor) -> Tensor:
    """Return log P(object) [relation, v] from how often each is a training object."""
    smoothed = counts + _UNSEEN
    return (smoothed / smoothed.sum(1, keepdim=True)).log()


def names_list(config: RunConfig) -> bool:
    """Return whether a config names a file of allowed answers."""
    return config.facts.vocabulary not in ("full", "objects")


def listed_words(config: RunConfig) -> tuple[str, ...]:
    """Return the lines of the word list a config names, if it names one."""
    return load_word_list(config.facts.vocabulary) if names_list(config) else ()


def candidate_names(relation: Relation, words: Sequence[str]) -> set[str]:
    """Return the names a relation may answer with: its own candidates, and those listed for it.

    Args:
        words: a name for every relation, or a relation's name, a tab and a name for that one.
    """
    listed = (word.rpartition("\t") for word in words)
    return relation.candidates() | {
        name.strip() for owner, _, name in listed if owner.strip() in ("", relation.name)
    }


def tensorise(
    backbone: LanguageModel,
    templates: Sequence[Template],
    relations: Sequence[str],
    facts: Sequence[Fact],
    answers: Mapping[tuple[str, str], Collection[str]],
    *,
    swapped: bool,
    several: bool = False,
    spelling: Spelling | None = None,
    copies: Sequence[bool] = (),
) -> Sentences:
    """Tensorise facts in the object prompt and in the subject prompt, on the model's device.

    Args:
        answers: every known true object of each (relation, subject).
        several: the method has several prompts, which need the subjects by themselves.
        spelling: how names of any length are asked for; None where tokens are the answers.
        copies: whether each relation may answer with the subject itself; empty if all may.
    """
    any_length, length = spelling is not None, backbone.max_length
    vocabulary, device = backbone.vocabulary, backbone.device
    place = {name: index for index, name in enumerate(relations)}
    triples = [(place[fact.relation], fact.subject, fact.object) for fact in facts]
    encoded = encode_facts(vocabulary, templates, triples, any_length=any_length)
    first = second = make_layout(vocabulary, templates, encoded, max_length=length)
    if swapped:
        turned = encode_facts(vocabulary, templates, triples, swapped=True, any_length=any_length)
        second = make_layout(vocabulary, templates, turned, max_length=length, swapped=True)
    gold = encoded.objects
    if spelling is not None:
        found = [spelling.names.find(ids) for ids in encoded.names or []]
        if None in found:
            name = facts[found.index(None)].object
            raise DataError(f"object {name!r} is not among the candidates.")
        gold = np.array(found, dtype=np.int64)
    # Every known true object of each fact's subject that is an answer at all, and the subject.
    subjects = [fact.subject for fact in facts]
    names = sorted({name for group in answers.values() for name in group}.union(subjects))
    spaced = [template.space_before("object") for template in templates]
    cache: dict[bool, dict[str, int | None]] = {}
    for after_space in set(spaced):
        ids = answer_ids(vocabulary, templates[spaced.index(after_space)], names, spelling)
        cache[after_space] = dict(zip(names, ids, strict=True))
    listed, copies_read = [], []
    for fact in facts:
        known = cache[spaced[place[fact.relation]]]
        copies_read.append(known[fact.subject])
        read = (known[name] for name in answers[fact.relation, fact.subject])
        listed.append(sorted(answer for answer in read if answer is not None))
    table = np.full((len(facts), max(map(len, listed))), -1, dtype=np.int64)
    for row, own in enumerate(listed):
        table[row, : len(own)] = own
    copy = np.array([-1 if own is None else own for own in copies_read], dtype=np.int64)
    barred: Tensor | None = None
    if not all(copies):
        may = np.array([copies[place[fact.relation]] for fact in facts])
        barred = torch.from_numpy(np.where(may, -1, copy)).to(device)
    return Sentences(
        first.to(device),
        second.to(device),
        torch.from_numpy(gold).to(device),
        torch.from_numpy(table).to(device),
        copy,
        barred,
        make_names(vocabulary, subjects, device) if several else None,
        spelling,
        tuple(subjects) if several else (),
    )


def allowed_answers(
    config: RunConfig,
    backbone: LanguageModel,
    facts: FactSet,
    templates: Sequence[Template],
    words: Sequence[str] | None = None,
) -> tuple[Tensor, Spelling | None, tuple[bool, ...]]:
    """Return the answers each relation may give, [relation, v] bool on the model's device.

    v are tokens, or names of any length; then also how these are asked for. Last, whether each
    relation may answer with the subject itself.

    Args:
        facts: what is left after dropping.
        words: the lines of the config's word list; None reads it.
    """
    vocabulary = backbone.vocabulary
    words = listed_words(config) if words is None else words
    if config.facts.objects == "any-length":
        listed = [
            (sorted(candidate_names(relation, words)), template.space_before("object"))
            for relation, template in zip(facts.relations, templates, strict=True)
        ]
        table, ids = make_name_table(vocabulary, listed)
        allowed = torch.zeros(len(ids), len(table), dtype=torch.bool)
        for row, members in enumerate(ids):
            allowed[row, members] = True
        spelling = make_spelling(
            table.to(backbone.device),
            allowed.to(backbone.device),
            mask_id=vocabulary.mask_id,
            masking=config.method.object_masking,
            average=config.method.object_average,
            max_tokens=config.max_tokens or backbone.token_budget(),
        )
        copies = _may_copy(
            config, backbone.vocabulary, facts, templates, spelling.allowed, spelling
        )
        return spelling.allowed, spelling, copies
    allowed = torch.zeros(len(facts.relations), backbone.vocabulary_size, dtype=torch.bool)
    if config.facts.vocabulary == "full":
        allowed[:, : len(vocabulary)] = True
        if config.facts.words == "auto":
            for index, template in enumerate(templates):
                whole = vocabulary.words(after_space=template.space_before("object"))
                objects = {fact.object for fact in facts.relations[index].train}
                if set(answer_ids(vocabulary, template, sorted(objects))) <= {*whole, None}:
                    allowed[index] = False
                    allowed[index, whole] = True
    else:
        for index, (relation, template) in enumerate(zip(facts.relations, templates, strict=True)):
            names = sorted(words or relation.candidates())
            found = answer_ids(vocabulary, template, names)
            allowed[index, [token for token in found if token is not None]] = True
    copies = _may_copy(config, vocabulary, facts, templates, allowed)
    return allowed.to(backbone.device), None, copies


def _may_copy(
    config: RunConfig,
    vocabulary: Vocabulary,
    facts: FactSet,
    templates: Sequence[Template],
    allowed: Tensor,
    spelling: Spelling | None = None,
) -> tuple[bool, ...]:
    """Return whether each relation may answer with the subject itself.

    One that has a single answer may: there would be none without it.
    """
    rule = config.facts.copies
    found = (allowed.sum(1) < 2).cpu().numpy() | (rule == "on")
    for index, (relation, template) in enumerate(zip(facts.relations, templates, strict=True)):
        if rule == "auto" and not found[index]:
            objects = answer_ids(
                vocabulary, template, [fact.object for fact in relation.train], spelling
            )
            subjects = answer_ids(
                vocabulary, template, [fact.subject for fact in relation.train], spelling
            )
            pairs = zip(objects, subjects, strict=True)
            found[index] = any(own == other is not None for own, other in pairs)
    return tuple(found.tolist())


def excluded_answers(config: RunConfig, problem: Problem) -> dict[str, Any]:
    """Return what a relation's answers cannot be, for the run's details.

    "copies" are the relations that may not answer with the subject itself; "words" those whose
    answers are whole words, each with how many tokens that leaves out.
    """
    names, size = problem.relations, len(problem.backbone.vocabulary)
    left_out: dict[str, int] = {}
    if config.facts.vocabulary == "full":
        counts = (size - problem.allowed.sum(1)).tolist()
        left_out = {name: count for name, count in zip(names, counts, strict=True) if count}
    barred = [name for name, may in zip(names, problem.copies, strict=True) if not may]
    return {"copies": barred, "words": left_out}


def answer_ids(
    vocabulary: Vocabulary,
    template: Template,
    names: Sequence[str],
    spelling: Spelling | None = None,
) -> list[int | None]:
    """Return the answers that names are in a template's blank: tokens, or ids of names; or None."""
    after_space = template.space_before("object")
    if spelling is None:
        return list(vocabulary.single_tokens(names, after_space=after_space))
    read = read_names(vocabulary, names, [after_space] * len(names))
    return [spelling.names.find(ids or ()) for ids in read]


def manual_template(vocabulary: Vocabulary, relation: Relation) -> Template:
    """Return a relation's manual template, cut after [Y] for a causal model.

    Raises:
        DataError: the subject stands after the object, and the model is causal.
    """
    template = Template.parse(relation.template)
    if not vocabulary.causal:
        return template
    try:
        return template.cut_after_object()
    except TemplateError as error:
        raise DataError(
            f"relation {relation.name}: {error} Or leave the relation out with --skip-unusable."
        ) from error


def words_to_vectors(vocabulary: Vocabulary, template: Template) -> tuple[Template, list[int]]:
    """Return a manual template with one vector for each token of its words, and those tokens."""
    pieces: list[Piece] = []
    tokens: list[int] = []
    for piece in template.pieces:
        if piece.kind == "words":
            ids = encode_piece(vocabulary, piece, first=not pieces)
            tokens += ids
            pieces.append(Piece("vectors", piece.space, count=len(ids)))
        else:
            pieces.append(piece)
    return Template(tuple(pieces)), tokens


def longest_prompt(vocabulary: Vocabulary, prompts: Sequence[Template]) -> Template:
    """Return a template at least as long as every prompt, its object after a space.

    Facts are read and passes are planned by it: what fits into it fits into every prompt, and an
    object's token is the one it has after a space.
    """
    lengths = {template: fixed_length(vocabulary, template) for template in prompts}
    longest = max(prompts, key=lambda template: lengths[template])
    words = " ".join(piece.text for piece in longest.pieces if piece.kind == "words")
    made = Template.parse(f"[X] {words} [Y]")
    while fixed_length(vocabulary, made) < lengths[longest]:
        words += " ."
        made = Template.parse(f"[X] {words} [Y]")
    return made
