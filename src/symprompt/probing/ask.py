"""Ask a finished run, with no more in memory than one relation's question needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from symprompt.errors import ConfigError, DataError, RunError
from symprompt.facts import Fact, Split
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig, model_dtype
from symprompt.probing.folder import (
    load_asked,
    load_card,
    load_weights,
    open_run,
    run_config,
)
from symprompt.probing.methods import method_class
from symprompt.probing.methods.base import Method, Sentences
from symprompt.probing.predictions import Predictions, joint_scores
from symprompt.probing.prepare import Problem, stored_method, stored_problem, tensorise
from symprompt.probing.rank import top_k
from symprompt.probing.results import load_metrics
from symprompt.probing.score_weights import log_frequencies
from symprompt.prompts import read_names
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
        question = self._question(relation, model, device)
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

    def _question(self, relation: str, model: str, device: str) -> _Question:
        """Put together what one relation's questions need."""
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
        return _Question(config, problem, method, vectors, frequencies)

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
    backbone, method = question.problem.backbone, question.method
    vocabulary = backbone.vocabulary
    if vocabulary.mask_id in vocabulary.encode_words([subject])[0]:
        raise DataError(f"the subject {subject!r} holds the model's mask; give a plain name.")
    # The true object is not known: any object of the relation holds its place, masked anyway.
    placeholder = question.problem.facts.relations[0].all()[0].object
    sentences = question.tensorise([subject], placeholder)
    rows = torch.zeros(1, dtype=torch.long).numpy()
    allowed = question.problem.allowed
    scores = method.scores(sentences, rows, question.vectors)
    scores = scores.masked_fill(~allowed, -torch.inf)
    asked = min(question.config.method.k, int(allowed.sum())) if method.has_subject_prompt else 0
    object_score, tokens = top_k(scores, min(max(asked, top), int(allowed.sum())))
    texts = [question.problem.text(answer) for answer in tokens[0].tolist()]
    first: list[Answer] = []
    if asked:
        subject_score = method.subject_scores(
            sentences,
            rows,
            tokens[:, :asked],
            question.vectors,
            max_tokens=backbone.token_budget(),
        ).float()
        subject_score = subject_score + question.frequencies[tokens[:, :asked]].to(subject_score)
        first = _by_joint(texts[:asked], object_score[0, :asked], subject_score[0], weight)
    others = zip(texts[asked:], object_score[0, asked:].tolist(), strict=True)
    return [*first, *(Answer(text, score) for text, score in others)][:top]


@torch.no_grad()
def _subjects(question: _Question, object: str, weight: float, tick: Tick) -> list[Answer]:
    """Return the relation's known subjects by joint score, a mean over their tokens in it."""
    backbone, method = question.problem.backbone, question.method
    after_space = question.problem.templates[0].space_before("object")
    spelling = question.problem.spelling
    if spelling is not None:
        (read,) = read_names(backbone.vocabulary, [object], [after_space])
        if spelling.names.find(read or ()) is None:
            raise DataError(f"object {object!r} is not among the candidates of the run.")
    elif backbone.vocabulary.single_tokens([object], after_space=after_space)[0] is None:
        raise DataError(f"object {object!r} is not one token of the model, so it cannot be asked.")
    names = sorted({fact.subject for fact in question.problem.facts.relations[0].all()})
    sentences = question.tensorise(names, object)
    object_score, subject_score = [], []
    for start in range(0, len(names), _SUBJECTS_AT_ONCE):
        rows = torch.arange(start, min(start + _SUBJECTS_AT_ONCE, len(names))).numpy()
        gold = sentences.gold[rows, None]
        object_score.append(method.scores(sentences, rows, question.vectors).gather(1, gold)[:, 0])
        score = method.subject_scores(
            sentences, rows, gold, question.vectors, max_tokens=backbone.token_budget()
        )[:, 0]
        if question.config.method.average == "sum":
            score = score / torch.from_numpy(sentences.subject_prompt.subject_lengths[rows]).to(
                score
            )
        subject_score.append(score.float())
        tick("asking back", int(rows[-1]) + 1, len(names), "")
    return _by_joint(names, torch.cat(object_score), torch.cat(subject_score), weight)


def _by_joint(
    texts: list[str], object_score: Tensor, subject_score: Tensor, weight: float
) -> list[Answer]:
    """Return answers by joint score, best first; ties keep their order."""
    given = [score.cpu().numpy()[None] for score in (object_score, subject_score)]
    joint = torch.from_numpy(joint_scores(*given, weight=weight)[0])
    scores = zip(texts, object_score.tolist(), subject_score.tolist(), joint.tolist(), strict=True)
    answers = [Answer(*entry) for entry in scores]
    return [answers[row] for row in joint.argsort(descending=True, stable=True).tolist()]
