"""Ask a finished run, with no more in memory than one relation's question needs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import ConfigError, DataError, RunError
from symprompt.facts import (
    Fact,
    FactSet,
    Relation,
    Split,
    compose,
    load_word_list,
    nearest_name,
)
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.probing.answer_tables import question_table
from symprompt.probing.config import FactsConfig, MethodConfig, RunConfig, model_dtype
from symprompt.probing.evaluate import prior_scores
from symprompt.probing.methods.base import Method, Vectors, method_class
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
    COPY,
    FREQUENCY,
    PRIOR,
    SECOND,
    SUBJECT,
    VOCABULARY,
    Array,
    Combination,
    Predictions,
    joint_scores,
    load_asked,
    load_card,
    load_combination,
    load_metrics,
    open_run,
    run_config,
)
from symprompt.probing.results import load_facts as load_stored_facts
from symprompt.probing.summary import run_summary
from symprompt.prompts import (
    Template,
)
from symprompt.runs.folder import Folder

if TYPE_CHECKING:
    from pandas import DataFrame

_SUBJECTS_AT_ONCE = 256
Backbones = dict[tuple[str, str, str], LanguageModel]
"""The model that was loaded last, by name, device and dtype."""


@dataclass(frozen=True)
class Answer:
    """One ranked answer: its text and its scores; what was not asked for is missing.

    Attributes:
        object_score: log-likelihood of the object given the subject.
        subject_score: log-likelihood of the subject given the object, over its tokens as the run
            averages them.
        joint: object score + the weighed subject score and terms, by which answers are ranked.
        terms: what else counts in a run that was fitted ("dev-fit"), before its weight:
            "frequency", the log of the object's share of the training facts; "copy", 1 where the
            answer is the subject itself; "prior", the object score where the subject is masked;
            "second", the subject score of a second subject prompt.
        probability: of the object given the subject; None where the object score is no logarithm of
            one, as that of names of any length.
    """

    text: str
    object_score: float
    subject_score: float | None = None
    joint: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    probability: float | None = None


class Answers(list[Answer]):
    """The answers to one question, best first; final.

    Attributes:
        relation: the relation, or the template that was asked by.
        subject: what was asked about, or None.
        object: what was asked about, or None.
        known: whether the run has facts about it; None where there is no run.
        nearest: the name that was probably meant by one that is not known, if any is like it.
        weights: of the subject score and further terms in the joint score; empty without one.

    Example:
        >>> answers = load("runs/spe").ask("P36", subject="Luxembourg")
        >>> answers.subject, len(answers)
        ('Luxembourg', 10)
    """

    def __init__(
        self,
        answers: Iterable[Answer],
        *,
        relation: str,
        subject: str | None = None,
        object: str | None = None,
        names: Collection[str] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(answers)
        self.relation, self.subject, self.object = relation, subject, object
        asked = subject if subject is not None else object or ""
        self.known = None if names is None else asked in names
        self.nearest = nearest_name(asked, names or ()) if self.known is False else ""
        self.weights = dict(weights or {})

    def to_dict(self) -> dict[str, Any]:
        """Return the question and its answers as plain values, ready for JSON."""
        return {**vars(self), "answers": [asdict(answer) for answer in self]}

    def _repr_html_(self) -> str:
        return question_table([self.to_dict()]).to_html()


class Run:
    """A finished run, to be read or asked; final.

    Example:
        >>> run = Run.load("runs/spe")
        >>> answers = run.ask("P36", subject="Luxembourg", top=3)
        >>> len(answers)
        3
    """

    def __init__(self, folder: Folder, backbones: Backbones | None = None) -> None:
        self.folder = folder
        self._backbones: Backbones = {} if backbones is None else backbones

    def __repr__(self) -> str:
        return f"Run({str(self.folder.path)!r}, {self.folder.about})"

    def _repr_html_(self) -> str:
        return run_summary(self.metrics).to_html()

    @classmethod
    def load(cls, path: str | Path, *, backbones: Backbones | None = None) -> Run:
        """Open a finished run folder; the model is loaded when a question is asked.

        Args:
            backbones: where the one loaded model is kept, to be shared by runs.
        """
        return cls(open_run(path), backbones)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """What the run states, and its figures of every kind, from its stored predictions."""
        return load_metrics(self.folder)

    def predictions(self, split: Split = "test") -> tuple[Predictions, list[Fact]]:
        """Return a split's stored predictions and their facts."""
        asked = load_asked(self.folder, split)
        return asked.predictions, asked.facts()

    def to_frame(self, split: Split = "test") -> DataFrame:
        """Return a split's facts as a pandas DataFrame, a row for each.

        Columns: relation, subject, object; answer, the run's first; rank, the object's among all
        answers in the order that the run stands for (ties share the middle); object_prompt_rank,
        the same by the object prompt alone; filtered_rank, without other true objects of the
        subject; object_score, that of the true object.

        Raises:
            ConfigError: pandas is not installed.
            RunError: the run has no predictions of the split.

        Example:
            >>> frame = Run.load("runs/spe").to_frame()
            >>> right = (frame["rank"] == 1).groupby(frame["relation"]).mean()
            >>> list(right.index)
            ['P36']
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise ConfigError(
                "a DataFrame needs pandas, which is not installed: pip install pandas."
            ) from None
        asked = load_asked(self.folder, split)
        found, combination = asked.predictions, load_combination(self.folder)
        relations, subjects, objects = zip(*asked.keys(), strict=True)
        return DataFrame(
            {
                "relation": relations,
                "subject": subjects,
                "object": objects,
                "answer": asked.read(found.first_answer(combination)),
                "rank": found.final(combination).realistic,
                "object_prompt_rank": found.ranks().realistic,
                "filtered_rank": found.final(combination, filtered=True).realistic,
                "object_score": found.gold_score,
            }
        )

    def ask(
        self,
        relation: str = "",
        *,
        subject: str | None = None,
        object: str | None = None,
        top: int = 10,
        model: str = "",
        device: str = "auto",
        tick: Tick = silent,
    ) -> Answers:
        """Ask for the object of a subject, or for the subject of an object.

        Args:
            relation: a relation of the run; may be left out where it has but one.
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
        if (subject is None) == (object is None):
            raise ConfigError("give either a subject or an object to ask about.")
        if subject is not None:
            (answers,) = self.ask_all(
                [subject], relation, top=top, model=model, device=device, tick=tick
            )
            return answers
        relation = self._check(relation, top)
        combination = load_combination(self.folder)
        if combination is None or combination.subject is None:
            raise ConfigError(
                f"this run's method, {load_card(self.folder)['method']}, learned no subject "
                "prompt; ask for objects, or train spe."
            )
        assert object is not None
        return _subjects(self._question(relation, model, device, tick), object, top, tick)

    def ask_all(
        self,
        subjects: Sequence[str],
        relation: str = "",
        *,
        top: int = 10,
        model: str = "",
        device: str = "auto",
        tick: Tick = silent,
        wording: Template | None = None,
    ) -> list[Answers]:
        """Ask for the objects of many subjects; see ``ask``.

        Args:
            wording: ask in these words, with the learned vectors around them, if there are any, as
                ``Template.reworded`` has it.
        """
        relation = self._check(relation, top)
        refuse_empty(subjects)
        question = self._question(relation, model, device, tick, wording)
        return _objects(question, subjects, top, tick)

    def _check(self, relation: str, top: int) -> str:
        """Refuse a bad question; return its relation."""
        _check_top(top)
        rerank = run_config(self.folder).rerank
        if rerank:
            raise ConfigError(
                f"{self.folder.path} re-ranked stored candidates by the subject prompt of {rerank} "
                "and cannot be asked new ones; ask that run, or look at the predictions."
            )
        names = list(load_card(self.folder)["relations"])
        if not relation and len(names) == 1:
            return names[0]
        if relation not in names:
            raise DataError(
                f"relation {relation!r} is not in {self.folder.path}; it has: {', '.join(names)}."
            )
        return relation

    def _question(
        self, relation: str, model: str, device: str, tick: Tick, wording: Template | None = None
    ) -> _Question:
        """Return a relation of the run, ready to be asked, in other words if they are given."""
        config = run_config(self.folder)
        place = list(load_card(self.folder)["relations"]).index(relation)
        method_class(config.method.name).check_stored(self.folder, [place])
        backbone = self.load_backbone(model, device, tick)
        problem = stored_problem(self.folder, backbone, [relation], wording=wording)
        method = stored_method(config, problem)
        vectors = method.load_vectors(self.folder, [place])
        combination = load_combination(self.folder) or Combination({})
        terms: dict[str, Tensor] = {}
        if FREQUENCY in combination.weights:
            frequencies = log_frequencies(problem.object_counts())[0]
            terms[FREQUENCY] = frequencies.float().to(backbone.device)
        return _Question(
            config,
            problem,
            method,
            vectors,
            weights={name: float(own[place]) for name, own in combination.weights.items()},
            terms=terms,
            k=self.folder.manifest.details.get("k") or 0,
            known=True,
        )

    def load_backbone(
        self, model: str = "", device: str = "auto", tick: Tick = silent
    ) -> LanguageModel:
        """Load the model the run was made by, once.

        Args:
            model: where it is now, if it moved since.
            tick: called with a line about what of it was not trained.

        Raises:
            RunError: it is another model.
        """
        config, card = run_config(self.folder), load_card(self.folder)
        where = model or config.model
        dtype = model_dtype(config.method.name, config.dtype)
        backbone = load_once(self._backbones, where, device, dtype, tick)
        if backbone.fingerprint != card["base_model_fingerprint"]:
            raise RunError(
                f"{self.folder.path} was made by another model than {where}: its weights "
                "differ; name the right one with --model."
            )
        return backbone


def load_once(
    kept: Backbones, model: str, device: str, dtype: str, tick: Tick = silent
) -> LanguageModel:
    """Return a model, loaded unless it is the one that is kept; another one makes room for it."""
    key = (model, device, dtype)
    if key not in kept:
        kept.clear()
        kept[key] = LanguageModel.load(model, device=device, dtype=dtype, tick=tick)
    return kept[key]


def ask_template(
    model: str | LanguageModel,
    template: str,
    subjects: Sequence[str],
    *,
    top: int = 10,
    words: bool = False,
    device: str = "auto",
    tick: Tick = silent,
) -> list[Answers]:
    """Ask a model for the objects of subjects by a manual template, without any run.

    Args:
        model: folder or hub name of a masked or causal language model, or one that is loaded.
        template: a sentence with [X] for the subject and [Y] for the object; of a causal model what
            stands after [Y] is left out.
        subjects: the names to ask about.
        top: how many answers.
        words: answer with whole words alone, and not with the subject itself.
        device: auto, cpu, cuda, cuda:N or mps.
        tick: called with every step of progress.

    Example:
        >>> (answers,) = ask_template("shipped", "The capital of [X] is [Y] .", ["France"])
        >>> len(answers)
        10

    Raises:
        SympromptError: one clear sentence.
    """
    _check_top(top)
    refuse_empty(subjects)
    parsed = Template.parse(template)
    if parsed.vectors:
        raise ConfigError(
            f"template {template!r} has vectors that are to be learned; write words alone, or "
            "learn them with symprompt train."
        )
    backbone = (
        LanguageModel.load(model, device=device, dtype="auto", tick=tick)
        if isinstance(model, str)
        else model
    )
    vocabulary = backbone.vocabulary
    if backbone.causal:
        parsed = parsed.cut_after_object()
    # Any token holds the object's place, which is not known.
    special, spaced = set(vocabulary.special_ids), parsed.space_before("object")
    texts = (vocabulary.text(token) for token in range(len(vocabulary)) if token not in special)
    word = next(
        text for text in texts if vocabulary.single_tokens([text], after_space=spaced) != [None]
    )
    relation = Relation(template, test=(Fact(template, word, word),), template=str(parsed))
    answers = FactsConfig(copies="off", words="auto") if words else FactsConfig()
    config = RunConfig(method=MethodConfig(name="manual"), facts=answers)
    facts = FactSet((relation,), source=template, layout="template")
    allowed, _, copies = allowed_answers(config, backbone, facts, (parsed,))
    problem = Problem(
        backbone, facts, (parsed,), allowed, {}, backbone.token_budget(), copies=copies
    )
    method = stored_method(config, problem)
    return _objects(_Question(config, problem, method, {}), subjects, top, tick)


def refuse_empty(subjects: Sequence[str]) -> None:
    """Refuse no subjects, and one without a name."""
    if not subjects or not all(subject.strip() for subject in subjects):
        raise DataError("the subject is empty; give the name to ask about.")


def _check_top(top: int) -> None:
    if top < 1:
        raise ConfigError(f"top is {top}; it must be at least 1.")


@dataclass(frozen=True)
class _Question:
    """One relation, ready to be asked.

    Attributes:
        weights: see ``Answers``.
        terms: [v] what counts whatever the subject is, by name.
        k: how many candidates the subject prompt re-ranks.
        known: whether the facts are those of a run.
    """

    config: RunConfig
    problem: Problem
    method: Method
    vectors: dict[str, Tensor]
    weights: Mapping[str, float] = field(default_factory=dict)
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    k: int = 0
    known: bool = False

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
            copies=self.problem.copies,
        )

    def names(self, kind: Literal["subject", "object"]) -> set[str] | None:
        """Return the subjects or objects that a run has facts about; None if there is no run."""
        facts = self.problem.facts.relations[0].all()
        return {getattr(fact, kind) for fact in facts} if self.known else None

    def answers(
        self, texts: Sequence[str], object_score: Tensor, terms: Mapping[str, Tensor] | None = None
    ) -> list[Answer]:
        """Return answers, by joint score where there are terms, the subject score among them."""
        plain = self.problem.spelling is None
        scores = object_score.cpu().numpy()
        if terms is None:
            return rank_answers(texts, scores, plain=plain)
        found = {name: term.float().cpu().numpy() for name, term in terms.items()}
        joint = scores[None]
        for name, term in found.items():
            joint = joint_scores(joint, term[None], weight=self.weights.get(name, 0.0))
        back = found.pop(SUBJECT, None)
        return rank_answers(texts, scores, back, joint[0], found, plain=plain)


@torch.no_grad()
def _objects(question: _Question, subjects: Sequence[str], top: int, tick: Tick) -> list[Answers]:
    """Return the first objects: K by joint score with a subject prompt, then by object score."""
    problem, method = question.problem, question.method
    vocabulary = problem.backbone.vocabulary
    names = [compose(subject.strip()) for subject in subjects]
    for subject, ids in zip(names, vocabulary.encode_words(names), strict=True):
        if vocabulary.mask_id in ids:
            raise DataError(f"the subject {subject!r} holds the model's mask; give a plain name.")
    # The true object is not known: any object of the relation holds its place, masked anyway.
    placeholder = problem.facts.relations[0].all()[0].object
    sentences = question.tensorise(names, placeholder)
    known, found = question.names("subject"), list[Answers]()
    size = int(problem.allowed.sum())
    asked = min(question.k, size) if question.weights else 0
    for start in range(0, len(names), _SUBJECTS_AT_ONCE):
        rows = np.arange(start, min(start + _SUBJECTS_AT_ONCE, len(names)))
        scores = method.scores(sentences, rows, question.vectors)
        scores = sentences.permitted(scores, rows, problem.allowed)
        object_score, tokens = top_k(scores, min(max(asked, top), size))
        first = tokens[:, :asked]
        terms = {name: own[first] for name, own in question.terms.items()}
        if COPY in question.weights:
            terms[COPY] = first == torch.from_numpy(sentences.copy[rows, None]).to(first.device)
        if PRIOR in question.weights:
            terms[PRIOR] = prior_scores(
                method, sentences, rows, first, question.vectors, max_tokens=problem.max_tokens
            )
        if asked and method.has_subject_prompt:
            terms[SUBJECT] = method.subject_scores(
                sentences, rows, first, question.vectors, max_tokens=problem.max_tokens
            )
            if SECOND in question.weights:
                terms[SECOND] = method.subject_scores(
                    sentences,
                    rows,
                    first,
                    question.vectors,
                    max_tokens=problem.max_tokens,
                    second=True,
                )
        for row, place in enumerate(rows.tolist()):
            # A subject that may not be its own answer has one fewer.
            texts = [problem.text(answer) for answer in tokens[row].tolist() if answer >= 0]
            own_score, both = object_score[row, : len(texts)], min(asked, len(texts))
            ranked: list[Answer] = []
            if asked:
                own_terms = {name: own[row, :both] for name, own in terms.items()}
                ranked = question.answers(texts[:both], own_score[:both], own_terms)
            ranked += question.answers(texts[both:], own_score[both:])
            answers = Answers(
                ranked[:top],
                relation=problem.relations[0],
                subject=names[place],
                names=known,
                weights=question.weights,
            )
            found.append(answers)
        if len(names) > 1:
            tick("asking", len(found), len(names), "")
    return found


@torch.no_grad()
def _subjects(question: _Question, object: str, top: int, tick: Tick) -> Answers:
    """Return the relation's known subjects by joint score, a mean over their tokens in it."""
    problem, method = question.problem, question.method
    vocabulary, spelling = problem.backbone.vocabulary, problem.spelling
    objects = question.names("object")
    if answer_ids(vocabulary, problem.templates[0], [object], spelling) == [None]:
        near = nearest_name(object, objects or ())
        hint = f" (did you mean {near}?)" if near else ""
        if spelling is not None:
            raise DataError(f"object {object!r} is not among the candidates of the run{hint}.")
        raise DataError(
            f"object {object!r} is not one token of the model, so it cannot be asked{hint}."
        )
    names = sorted(question.names("subject") or ())
    if not all(problem.copies):
        # Who cannot be their own object.
        own, *others = answer_ids(vocabulary, problem.templates[0], [object, *names], spelling)
        names = [name for name, other in zip(names, others, strict=True) if other != own] or names
    sentences = question.tensorise(names, object)
    object_score, subject_score = [], []
    for start in range(0, len(names), _SUBJECTS_AT_ONCE):
        rows = np.arange(start, min(start + _SUBJECTS_AT_ONCE, len(names)))
        gold = sentences.gold[rows, None]
        object_score.append(method.scores(sentences, rows, question.vectors).gather(1, gold)[:, 0])
        score = scores_by_token(
            question.config, method, sentences, rows, gold, question.vectors, problem.max_tokens
        )
        subject_score.append(score[:, 0])
        tick("asking back", int(rows[-1]) + 1, len(names), "")
    terms = {SUBJECT: torch.cat(subject_score)}
    ranked = question.answers(names, torch.cat(object_score), terms)
    return Answers(
        ranked[:top],
        relation=problem.relations[0],
        object=object,
        names=objects,
        weights={SUBJECT: question.weights[SUBJECT]},
    )


def scores_by_token(
    config: RunConfig,
    method: Method,
    sentences: Sentences,
    rows: np.ndarray,
    candidates: Tensor,
    vectors: Vectors,
    max_tokens: int,
) -> Tensor:
    """Return subject scores [b, k] that compare subjects: means over tokens where a run sums."""
    scores = method.subject_scores(sentences, rows, candidates, vectors, max_tokens=max_tokens)
    if config.method.average == "sum":
        lengths = torch.from_numpy(sentences.subject_prompt.subject_lengths[rows])
        scores = scores / lengths.to(scores)[:, None]
    return scores.float()


def rank_answers(
    texts: Sequence[str],
    object_score: Array,
    subject_score: Array | None = None,
    joint: Array | None = None,
    terms: Mapping[str, Array] | None = None,
    *,
    plain: bool,
) -> list[Answer]:
    """Return answers by joint score, best first; ties, and all without one, keep their order.

    Args:
        joint: may go on for candidates that are none, which come last.
        terms: further scores by name, see ``Answer``.
        plain: whether object scores are log-probabilities.
    """

    def value(scores: Array | None, row: int) -> float | None:
        return None if scores is None else float(scores[row])

    answers = [
        Answer(
            text,
            float(object_score[row]),
            value(subject_score, row),
            value(joint, row),
            {name: float(term[row]) for name, term in (terms or {}).items()},
            math.exp(object_score[row]) if plain else None,
        )
        for row, text in enumerate(texts)
    ]
    if joint is None:
        return answers
    return [answers[row] for row in np.argsort(-joint[: len(texts)], kind="stable").tolist()]


def stored_problem(
    folder: Folder,
    backbone: LanguageModel,
    relations: Sequence[str] = (),
    *,
    max_tokens: int = 0,
    wording: Template | None = None,
) -> Problem:
    """Return what a finished run is about, to be asked further: facts and answers, no sentences.

    Args:
        relations: only these; none means all.
        wording: its words instead of the templates' own, see ``Template.reworded``.
        max_tokens: most tokens in one pass; 0 chooses by device.

    Raises:
        RunError: the run folder is damaged.
    """
    config, card = run_config(folder), load_card(folder)
    names = list(relations) or list(card["relations"])
    facts = load_stored_facts(folder).select(names)
    about = [card["relations"][name] for name in facts.names]
    templates = tuple(Template.parse(own["template"]) for own in about)
    if wording is not None:
        templates = tuple(template.reworded(wording) for template in templates)
    prompts: Prompts = ()
    if method_class(config.method.name).several_prompts:
        with folder.refuse_damage(CARD):
            prompts = tuple(tuple(map(Template.parse, own["prompts"])) for own in about)
    # The run's own copy of a word list: the list may have moved.
    words = load_word_list(folder.path / VOCABULARY) if names_list(config) else ()
    allowed, spelling, copies = allowed_answers(config, backbone, facts, templates, words)
    for name, count in zip(facts.names, allowed.sum(1).tolist(), strict=True):
        if not count:
            raise RunError(f"{folder.path} allows no answer for relation {name}.")
    tokens = max_tokens or backbone.token_budget()
    return Problem(backbone, facts, templates, allowed, {}, tokens, prompts, spelling, copies)


def stored_method(config: RunConfig, problem: Problem) -> Method:
    """Build the method of a finished run, whose stored vectors stand in for any encoder."""
    # So the cheapest encoder is made.
    prompt = replace(config.prompt, encoder="free", start="random")
    return method_class(config.method.name)(replace(config, prompt=prompt), problem)
