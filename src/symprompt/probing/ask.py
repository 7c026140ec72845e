"""Ask a finished run, with no more in memory than one relation's question needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import ConfigError, DataError, RunError
from symprompt.facts import (
    Fact,
    Split,
    load_word_list,
)
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig, model_dtype
from symprompt.probing.methods.base import Method, method_class
from symprompt.probing.problem import (
    Problem,
    Prompts,
    Sentences,
    allowed_answers,
    answer_ids,
    log_frequencies,
    names_list,
    tensorise,
)
from symprompt.probing.queries import top_k
from symprompt.probing.results import (
    CARD,
    VOCABULARY,
    Array,
    Predictions,
    joint_scores,
    load_asked,
    load_card,
    load_metrics,
    load_weights,
    open_run,
    run_config,
)
from symprompt.probing.results import load_facts as load_stored_facts
from symprompt.prompts import (
    Template,
)
from symprompt.runs.folder import Folder

_SUBJECTS_AT_ONCE = 256


@dataclass(frozen=True)
class Answer:
    """One ranked answer: its text and its log-probabilities; the last two may be missing.

    Attributes:
        object_score: of the object given the subject.
        subject_score: of the subject given the object; with the object's weighed frequency where
            the run was fitted with it ("dev-fit").
        joint: both, weighed as in the run.
    """

    text: str
    object_score: float
    subject_score: float | None = None
    joint: float | None = None


class Run:
    """A finished run, to be read or asked; final.

    Example:
        >>> run = Run.load("runs/capitals")                            # doctest: +SKIP
        >>> run.ask("P36", subject="Luxembourg")[0].text               # doctest: +SKIP
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._backbone: dict[tuple[str, str], LanguageModel] = {}

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Open a finished run folder; the model is loaded when a question is asked."""
        return cls(open_run(path))

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """What the run states, and its figures of every kind, from its stored predictions."""
        return load_metrics(self.folder)

    def predictions(self, split: Split = "test") -> tuple[Predictions, list[Fact]]:
        """Return a split's stored predictions and their facts."""
        asked = load_asked(self.folder, split)
        return asked.predictions, asked.facts()

    def ask(
        self,
        relation: str,
        *,
        subject: str | None = None,
        object: str | None = None,
        top: int = 10,
        model: str = "",
        device: str = "auto",
        tick: Tick = silent,
    ) -> list[Answer]:
        """Ask for the object of a subject, or for the subject of an object.

        Args:
            relation: a relation of the run.
            subject: rank objects for this subject. With a subject prompt the first K come by
                joint score; all others follow by object score, without the other two scores.
            object: rank the known subjects by joint score for this object. Here the subject score
                is a mean over the subject's tokens even where the run sums them: a sum
                would rank subjects of different lengths by their number of tokens.
            top: how many answers.
            model: where the model is now, if it moved since the run was made.
            device: auto, cpu, cuda, cuda:N or mps.
            tick: called with every step of progress.

        Raises:
            SympromptError: one clear sentence; a question that no model is needed to refuse is
                refused before it is loaded.
        """
        weight = self._check(relation, subject, object, top)
        config = run_config(self.folder)
        place = list(load_card(self.folder)["relations"]).index(relation)
        method_class(config.method.name).check_stored(self.folder, [place])
        backbone = self.load_backbone(model, device)
        problem = stored_problem(self.folder, backbone, [relation])
        method = stored_method(config, problem)
        vectors = method.load_vectors(self.folder, [place])
        shares = load_weights(self.folder, "frequency_shares")
        frequencies = torch.zeros(problem.allowed.shape[1], device=backbone.device)
        if shares is not None:
            found = log_frequencies(problem.object_counts())[0]
            frequencies = (float(shares[place]) * found).to(frequencies)
        question = _Question(config, problem, method, vectors, frequencies)
        if subject is not None:
            return _objects(question, subject.strip(), weight or 0.0, top)
        assert object is not None
        assert weight is not None
        return _subjects(question, object, weight, tick)[:top]

    def _check(
        self, relation: str, subject: str | None, object: str | None, top: int
    ) -> float | None:
        """Refuse a bad question; return the relation's re-ranking weight, if it has one."""
        if (subject is None) == (object is None):
            raise ConfigError("give either a subject or an object to ask about.")
        if top < 1:
            raise ConfigError(f"top is {top}; it must be at least 1.")
        card = load_card(self.folder)
        rerank = run_config(self.folder).rerank
        if rerank:
            raise ConfigError(
                f"{self.folder.path} re-ranked stored candidates by the subject prompt of {rerank} "
                "and cannot be asked new ones; ask that run, or look at the predictions."
            )
        names = list(card["relations"])
        if relation not in names:
            raise DataError(
                f"relation {relation!r} is not in {self.folder.path}; it has: {', '.join(names)}."
            )
        if subject is not None and not subject.strip():
            raise DataError("the subject is empty; give the name to ask about.")
        weights = load_weights(self.folder)
        if subject is None and weights is None:
            raise ConfigError(
                f"this run's method, {card['method']}, learned no subject prompt; ask for objects, "
                "or train spe."
            )
        return None if weights is None else float(weights[names.index(relation)])

    def load_backbone(self, model: str = "", device: str = "auto") -> LanguageModel:
        """Load the model the run was made by, once.

        Args:
            model: where it is now, if it moved since.

        Raises:
            RunError: it is another model.
        """
        config, card = run_config(self.folder), load_card(self.folder)
        if (model, device) not in self._backbone:
            where = model or config.model
            backbone = LanguageModel.load(
                where, device=device, dtype=model_dtype(config.method.name, config.dtype)
            )
            if backbone.fingerprint != card["base_model_fingerprint"]:
                raise RunError(
                    f"{self.folder.path} was made by another model than {where}: its weights "
                    "differ; name the right one with --model."
                )
            self._backbone = {(model, device): backbone}
        return self._backbone[model, device]


@dataclass(frozen=True)
class _Question:
    """One relation of a run, ready to be asked."""

    config: RunConfig
    problem: Problem
    method: Method
    vectors: dict[str, Tensor]
    frequencies: Tensor
    """[v] what each answer's frequency adds to its subject score; zero where it is no part."""

    def tensorise(self, subjects: list[str], object: str) -> Sentences:
        """Tensorise the subjects with one object."""
        (relation,) = self.problem.relations
        return tensorise(
            self.problem.backbone,
            self.problem.templates,
            self.problem.relations,
            [Fact(relation, subject, object) for subject in subjects],
            {(relation, subject): [object] for subject in subjects},
            swapped=self.config.method.blanks == "swapped",
            several=self.method.several_prompts,
            spelling=self.problem.spelling,
        )


@torch.no_grad()
def _objects(question: _Question, subject: str, weight: float, top: int) -> list[Answer]:
    """Return the first objects: K by joint score with a subject prompt, then by object score."""
    problem, method = question.problem, question.method
    vocabulary = problem.backbone.vocabulary
    if vocabulary.mask_id in vocabulary.encode_words([subject])[0]:
        raise DataError(f"the subject {subject!r} holds the model's mask; give a plain name.")
    # The true object is not known: any object of the relation holds its place, masked anyway.
    placeholder = problem.facts.relations[0].all()[0].object
    sentences = question.tensorise([subject], placeholder)
    rows, allowed = np.zeros(1, dtype=np.int64), problem.allowed
    scores = method.scores(sentences, rows, question.vectors).masked_fill(~allowed, -torch.inf)
    asked = min(question.config.method.k, int(allowed.sum())) if method.has_subject_prompt else 0
    object_score, tokens = top_k(scores, min(max(asked, top), int(allowed.sum())))
    texts = [problem.text(answer) for answer in tokens[0].tolist()]
    first: list[Answer] = []
    if asked:
        subject_score = method.subject_scores(
            sentences,
            rows,
            tokens[:, :asked],
            question.vectors,
            max_tokens=problem.max_tokens,
        ).float()
        subject_score = subject_score + question.frequencies[tokens[:, :asked]].to(subject_score)
        first = _by_joint(texts[:asked], object_score[0, :asked], subject_score[0], weight)
    others = zip(texts[asked:], object_score[0, asked:].tolist(), strict=True)
    return [*first, *(Answer(text, score) for text, score in others)][:top]


@torch.no_grad()
def _subjects(question: _Question, object: str, weight: float, tick: Tick) -> list[Answer]:
    """Return the relation's known subjects by joint score, a mean over their tokens in it."""
    problem, method = question.problem, question.method
    vocabulary, spelling = problem.backbone.vocabulary, problem.spelling
    if answer_ids(vocabulary, problem.templates[0], [object], spelling) == [None]:
        if spelling is not None:
            raise DataError(f"object {object!r} is not among the candidates of the run.")
        raise DataError(f"object {object!r} is not one token of the model, so it cannot be asked.")
    names = sorted({fact.subject for fact in problem.facts.relations[0].all()})
    sentences = question.tensorise(names, object)
    object_score, subject_score = [], []
    for start in range(0, len(names), _SUBJECTS_AT_ONCE):
        rows = np.arange(start, min(start + _SUBJECTS_AT_ONCE, len(names)))
        gold = sentences.gold[rows, None]
        object_score.append(method.scores(sentences, rows, question.vectors).gather(1, gold)[:, 0])
        score = method.subject_scores(
            sentences, rows, gold, question.vectors, max_tokens=problem.max_tokens
        )[:, 0]
        if question.config.method.average == "sum":
            lengths = sentences.subject_prompt.subject_lengths[rows]
            score = score / torch.from_numpy(lengths).to(score)
        subject_score.append(score.float())
        tick("asking back", int(rows[-1]) + 1, len(names), "")
    return _by_joint(names, torch.cat(object_score), torch.cat(subject_score), weight)


def _by_joint(
    texts: list[str], object_score: Tensor, subject_score: Tensor, weight: float
) -> list[Answer]:
    given = [score.cpu().numpy()[None] for score in (object_score, subject_score)]
    joint = joint_scores(*given, weight=weight)
    return rank_answers(texts, given[0][0], given[1][0], joint[0])


def rank_answers(
    texts: Sequence[str], object_score: Array, subject_score: Array, joint: Array
) -> list[Answer]:
    """Return answers by joint score, best first; ties keep their order."""
    columns = (object_score, subject_score, joint)
    scores = zip(texts, *(column.tolist() for column in columns), strict=True)
    answers = [Answer(*entry) for entry in scores]
    return [answers[row] for row in np.argsort(-joint, kind="stable").tolist()]


def stored_problem(
    folder: Folder,
    backbone: LanguageModel,
    relations: Sequence[str] = (),
    *,
    max_tokens: int = 0,
) -> Problem:
    """Return what a finished run is about, to be asked further: facts and answers, no sentences.

    Args:
        relations: only these; none means all.
        max_tokens: most tokens in one pass; 0 chooses by device.

    Raises:
        RunError: the run folder is damaged.
    """
    config, card = run_config(folder), load_card(folder)
    names = list(relations) or list(card["relations"])
    facts = load_stored_facts(folder).select(names)
    about = [card["relations"][name] for name in facts.names]
    templates = tuple(Template.parse(own["template"]) for own in about)
    prompts: Prompts = ()
    if method_class(config.method.name).several_prompts:
        with folder.refuse_damage(CARD):
            prompts = tuple(tuple(map(Template.parse, own["prompts"])) for own in about)
    # The run's own copy of a word list: the list may have moved.
    words = load_word_list(folder.path / VOCABULARY) if names_list(config) else ()
    allowed, spelling = allowed_answers(config, backbone, facts, templates, words)
    for name, count in zip(facts.names, allowed.sum(1).tolist(), strict=True):
        if not count:
            raise RunError(f"{folder.path} allows no answer for relation {name}.")
    tokens = max_tokens or backbone.token_budget()
    return Problem(backbone, facts, templates, allowed, {}, tokens, prompts, spelling)


def stored_method(config: RunConfig, problem: Problem) -> Method:
    """Build the method of a finished run, whose stored vectors stand in for any encoder."""
    # So the cheapest encoder is made.
    prompt = replace(config.prompt, encoder="free", start="random")
    return method_class(config.method.name)(replace(config, prompt=prompt), problem)
