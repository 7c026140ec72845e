"""Ask a finished run, with no more in memory than one relation's question needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import ConfigError, DataError, RunError, SympromptError
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
from symprompt.probing.evaluate import ask_back, prior_scores, query_passes
from symprompt.probing.methods.base import Method, Vectors, method_class
from symprompt.probing.problem import (
    Problem,
    Prompts,
    Sentences,
    allowed_answers,
    answer_ids,
    log_frequencies,
    names_list,
)
from symprompt.probing.queries import top_k_later
from symprompt.probing.results import (
    CARD,
    COPY,
    FREQUENCY,
    PRIOR,
    SUBJECT,
    SUBJECTS,
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
    EncodedFacts,
    Template,
    fixed_length,
    make_layout,
    make_names,
)
from symprompt.runs.environment import send
from symprompt.runs.folder import Folder

if TYPE_CHECKING:
    from pandas import DataFrame

JOINT = "joint"
_TOKENS, _SCORE, _SOUND = "tokens", "object score", "sound"
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
            "second" and "third", the subject scores of further subject prompts.
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
        return DataFrame(self.to_columns(split))

    def to_columns(self, split: Split = "test") -> dict[str, Any]:
        """Return what ``to_frame`` has, as columns; no further package is needed."""
        asked = load_asked(self.folder, split)
        found, combination = asked.predictions, load_combination(self.folder)
        relations, subjects, objects = zip(*asked.keys(), strict=True)
        return {
            "relation": relations,
            "subject": subjects,
            "object": objects,
            "answer": asked.read(found.first_answer(combination)),
            "rank": found.final(combination).realistic,
            "object_prompt_rank": found.ranks().realistic,
            "filtered_rank": found.final(combination, filtered=True).realistic,
            "object_score": found.gold_score,
        }

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
        relation = self.check_relation(relation, top)
        self.require_subject_prompt()
        assert object is not None
        question = self.question([relation], model, device, tick)
        token = question.object_id(0, object)
        (ranked,) = subjects_of(question, 0, [token], top, tick)
        return Answers(
            ranked,
            relation=relation,
            object=object,
            names=question.names("object"),
            weights={
                name: own
                for name, own in question.own_weights(0).items()
                if name in question.subject_prompts
            },
        )

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
        relation = self.check_relation(relation, top)
        refuse_empty(subjects)
        question = self.question([relation], model, device, tick, wording)
        return _objects(question, subjects, top, tick)

    def check_relation(self, relation: str, top: int) -> str:
        """Refuse a bad question; return its relation."""
        self.check_asking(top)
        names = list(load_card(self.folder)["relations"])
        if not relation and len(names) == 1:
            return names[0]
        if relation not in names:
            raise DataError(
                f"relation {relation!r} is not in {self.folder.path}; it has: {', '.join(names)}."
            )
        return relation

    def check_asking(self, top: int) -> None:
        """Refuse a run that cannot be asked, and a number of answers that cannot be given."""
        _check_top(top)
        rerank = run_config(self.folder).rerank
        if rerank:
            raise ConfigError(
                f"{self.folder.path} re-ranked stored candidates by the subject prompt of {rerank} "
                "and cannot be asked new ones; ask that run, or look at the predictions."
            )

    def require_subject_prompt(self) -> None:
        """Refuse to ask a run for subjects that learned no subject prompt."""
        combination = load_combination(self.folder)
        if combination is None or combination.subject is None:
            raise ConfigError(
                f"this run's method, {load_card(self.folder)['method']}, learned no subject "
                "prompt; ask for objects, or train spe."
            )

    def question(
        self,
        relations: Sequence[str],
        model: str,
        device: str,
        tick: Tick,
        wording: Template | None = None,
    ) -> Askable:
        """Return relations of the run, ready to be asked, in other words if they are given."""
        config = run_config(self.folder)
        every = {name: place for place, name in enumerate(load_card(self.folder)["relations"])}
        places = [every[name] for name in relations]
        method_class(config.method.name).check_stored(self.folder, places)
        backbone = self.load_backbone(model, device, tick)
        problem = stored_problem(self.folder, backbone, relations, wording=wording)
        method = stored_method(config, problem)
        vectors = method.load_vectors(self.folder, places)
        combination = load_combination(self.folder) or Combination({})
        terms: dict[str, Tensor] = {}
        if FREQUENCY in combination.weights:
            frequencies = log_frequencies(problem.object_counts())
            terms[FREQUENCY] = frequencies.float().to(backbone.device)
        return Askable(
            config,
            problem,
            method,
            vectors,
            weights={
                name: own[places].astype(np.float32) for name, own in combination.weights.items()
            },
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
    return _objects(Askable(config, problem, method, {}), subjects, top, tick)


def refuse_empty(subjects: Sequence[str]) -> None:
    """Refuse no subjects, and one without a name."""
    if not subjects or not all(subject.strip() for subject in subjects):
        raise DataError("the subject is empty; give the name to ask about.")


def _check_top(top: int) -> None:
    if top < 1:
        raise ConfigError(f"top is {top}; it must be at least 1.")


@dataclass(frozen=True)
class Askable:
    """Relations of a run, or a manual template, ready to be asked; final.

    Attributes:
        weights: of each term in the joint score, [relation] float32; empty without one.
        terms: [relation, v] what counts whatever the subject is, by name.
        k: how many candidates the subject prompt re-ranks.
        known: whether the facts are those of a run.
    """

    config: RunConfig
    problem: Problem
    method: Method
    vectors: dict[str, Tensor]
    weights: Mapping[str, Array] = field(default_factory=dict)
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    k: int = 0
    known: bool = False

    def own_weights(self, place: int) -> dict[str, float]:
        """Return a relation's weights of the terms."""
        return {name: float(own[place]) for name, own in self.weights.items()}

    def names(self, kind: Literal["subject", "object"], place: int = 0) -> set[str] | None:
        """Return the subjects or objects that a run has facts about; None if there is no run."""
        facts = self.problem.facts.relations[place].all()
        return {getattr(fact, kind) for fact in facts} if self.known else None

    @property
    def subject_prompts(self) -> tuple[str, ...]:
        """The subject prompts whose scores count; the first is asked in any case."""
        return (SUBJECT, *(term for term in SUBJECTS[1:] if term in self.weights))

    @cached_property
    def most_answers(self) -> int:
        """Most answers that a relation may give; a GPU is waited for once."""
        return int(self.problem.allowed.sum(1).max())

    def object_id(self, place: int, object: str) -> int:
        """Return the answer that an object is in a relation.

        Raises:
            DataError: it is none.
        """
        vocabulary, spelling = self.problem.backbone.vocabulary, self.problem.spelling
        template = self.problem.templates[place]
        (found,) = answer_ids(vocabulary, template, [object], spelling)
        if found is not None:
            return found
        near = nearest_name(object, self.names("object", place) or ())
        hint = f" (did you mean {near}?)" if near else ""
        if spelling is not None:
            raise DataError(f"object {object!r} is not among the candidates of the run{hint}.")
        raise DataError(
            f"object {object!r} is not one token of the model, so it cannot be asked{hint}."
        )

    @cached_property
    def _placeholders(self) -> list[list[int]]:
        """Any object of each relation, as tokens: it holds the blank, where it is masked."""
        facts = self.problem.facts.relations
        objects = [(own.train or own.dev or own.test)[0].object for own in facts]
        spaced = [template.space_before("object") for template in self.problem.templates]
        return self.problem.backbone.vocabulary.encode_names(objects, spaced)

    @cached_property
    def _frames(self) -> list[tuple[list[bool], np.ndarray]]:
        """Of the object prompt and the subject prompt: spaces before subjects, tokens without."""
        vocabulary, found = self.problem.backbone.vocabulary, []
        others = np.array([len(ids) - 1 for ids in self._placeholders])
        for swapped in (False, True)[: 1 + self._swapped]:
            own = [each.swapped() if swapped else each for each in self.problem.templates]
            lengths = np.array([fixed_length(vocabulary, each) for each in own]) + others
            found.append(([each.space_before("subject") for each in own], lengths))
        return found

    @property
    def _swapped(self) -> bool:
        return self.config.method.blanks == "swapped" and self.method.has_subject_prompt

    def tensorise(
        self, places: np.ndarray, subjects: Sequence[str]
    ) -> tuple[Sentences, np.ndarray, dict[int, str]]:
        """Tensorise subjects whose objects are asked for.

        Args:
            places: [n] each one's relation.
            subjects: [n] names in composed Unicode.

        Returns:
            The sentences of those that can be asked, which they are, and what is wrong with others.
        """
        backbone, bad = self.problem.backbone, dict[int, str]()
        vocabulary = backbone.vocabulary
        read: list[list[list[int]]] = []
        for spaced, lengths in self._frames:
            if read and spaced == self._frames[0][0]:
                ids = read[0]
            else:
                ids = vocabulary.encode_names(
                    subjects, [spaced[place] for place in places.tolist()]
                )
            read.append(ids)
            own = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
            long = (lengths[places] + own > backbone.max_length) | (own == 0)
            for row in np.flatnonzero(long).tolist():
                bad[row] = (
                    f"subject {subjects[row]!r} has no token in this model's vocabulary."
                    if not own[row]
                    else f"a fact needs {int(lengths[places[row]] + own[row])} tokens in its "
                    f"template and the model takes {backbone.max_length}; shorten the subject or "
                    "the template."
                )
        mask = vocabulary.mask_id
        masked = [] if mask is None else [row for row, ids in enumerate(read[0]) if mask in ids]
        for row in masked:
            bad[row] = f"the subject {subjects[row]!r} holds the model's mask; give a plain name."
        kept = np.delete(np.arange(len(subjects)), list(bad))
        if bad:
            read = [[ids[row] for row in kept.tolist()] for ids in read]
            subjects, places = [subjects[row] for row in kept.tolist()], places[kept]
        return self._sentences(places, subjects, read), kept, bad

    def _sentences(
        self, places: np.ndarray, subjects: Sequence[str], read: Sequence[list[list[int]]]
    ) -> Sentences:
        """Lay subjects out.

        Args:
            read: their tokens in the object prompt and, where it differs, in the subject prompt.
        """
        problem, backbone = self.problem, self.problem.backbone
        vocabulary, spelling = backbone.vocabulary, problem.spelling
        held = self._placeholders
        objects = np.array([ids[0] for ids in held], dtype=np.int64)[places]
        names = [held[place] for place in places.tolist()] if spelling is not None else None
        layouts = []
        for number, ids in enumerate(read):
            encoded = EncodedFacts(places, ids, objects, names)
            layouts.append(
                make_layout(
                    vocabulary,
                    problem.templates,
                    encoded,
                    max_length=backbone.max_length,
                    swapped=number > 0,
                ).to(backbone.device)
            )
        barring = np.array([not may for may in problem.copies], dtype=bool)
        copy = np.full(len(places), -1, dtype=np.int64)
        if COPY in self.weights or barring.any():
            spaced = np.array([each.space_before("object") for each in problem.templates])[places]
            for after_space in np.unique(spaced):
                rows = np.flatnonzero(spaced == after_space)
                template = problem.templates[places[rows[0]]]
                own = answer_ids(
                    vocabulary, template, [subjects[row] for row in rows.tolist()], spelling
                )
                copy[rows] = [-1 if answer is None else answer for answer in own]
        barred: Tensor | None = None
        if barring.any():
            barred = send(torch.from_numpy(np.where(barring[places], copy, -1)), backbone.device)
        several = self.method.several_prompts
        # No answer is known: nothing that asks looks at these.
        none = torch.zeros(len(places), dtype=torch.int64, device=backbone.device)
        return Sentences(
            layouts[0],
            layouts[-1],
            none,
            none[:, None],
            copy,
            barred,
            make_names(vocabulary, subjects, backbone.device) if several else None,
            spelling,
            tuple(subjects) if several else (),
        )


@dataclass(frozen=True)
class Ranked:
    """The first answers to some questions, best first; final.

    Attributes:
        tokens: [n, m] answers; -1 is none.
        object_score: [n, m].
        others: [n, m] by name, NaN of answers that were not re-ranked: the joint score and its
            terms, the subject score among them; empty where there are no terms.
        plain: whether object scores are log-probabilities.
    """

    tokens: Array
    object_score: Array
    others: Mapping[str, Array]
    plain: bool

    def rows(self, text: Callable[[int], str]) -> Iterator[list[Answer]]:
        """Yield each question's answers.

        Args:
            text: gives an answer as people read it.
        """
        columns = {name: own.tolist() for name, own in self.others.items()}
        for row, (tokens, scores) in enumerate(
            zip(self.tokens.tolist(), self.object_score.tolist(), strict=True)
        ):
            answers = []
            for at, (token, score) in enumerate(zip(tokens, scores, strict=True)):
                if token < 0:
                    continue
                own = {name: column[row][at] for name, column in columns.items()}
                own = {name: value for name, value in own.items() if not math.isnan(value)}
                chance = math.exp(score) if self.plain else None
                back, joint = own.pop(SUBJECT, None), own.pop(JOINT, None)
                answers.append(Answer(text(token), score, back, joint, own, chance))
            yield answers


@torch.no_grad()
def rank_objects(
    question: Askable, sentences: Sentences, top: int, tick: Tick = silent
) -> Callable[[], Ranked]:
    """Ask for the objects of subjects: K by joint score with terms, then by object score.

    Asking back waits for the candidates once; what is found comes back in one piece.

    Returns:
        What waits for the answers, in the order of the sentences.
    """
    problem, method = question.problem, question.method
    size = question.most_answers
    asked = min(question.k, size) if question.weights else 0
    within = question.config.method.within
    width = min(max(asked, top), size)
    parts: list[dict[str, Tensor]] = []
    passes = query_passes(sentences, problem.max_tokens)
    done = 0
    for rows in passes:
        scores = method.scores(sentences, rows, question.vectors)
        scores = sentences.permitted(scores, rows, problem.allowed)
        object_score, tokens, sound = top_k_later(scores, width)
        parts.append({_TOKENS: tokens, _SCORE: object_score, _SOUND: sound.expand(len(rows))})
        done += len(rows)
        tick("asking", done, len(sentences), "")
    places = np.argsort(np.concatenate(passes), kind="stable")
    device = parts[0][_TOKENS].device
    index = send(places, device)
    whole = {name: torch.cat([part[name] for part in parts])[index] for name in parts[0]}
    if asked:
        first, scores = whole[_TOKENS][:, :asked], whole[_SCORE][:, :asked]
        if within:
            first = first.masked_fill(scores < scores[:, :1] - within, -1)
        terms: dict[str, Tensor] = {}
        relation = sentences.object_prompt.relation
        for name, own in question.terms.items():
            terms[name] = own[relation[:, None], first.clamp(min=0)]
        if COPY in question.weights:
            terms[COPY] = (first == send(sentences.copy[:, None], device)).float()
        if PRIOR in question.weights:
            terms[PRIOR] = prior_scores(
                method,
                sentences,
                np.arange(len(sentences)),
                first,
                question.vectors,
                max_tokens=problem.max_tokens,
            )
        if method.has_subject_prompt:
            terms |= ask_back(
                method,
                sentences,
                first,
                question.vectors,
                max_tokens=problem.max_tokens,
                prompts=question.subject_prompts,
                tick=tick,
            )
        # Those that are not re-ranked have no such scores.
        whole |= {name: own.masked_fill(first < 0, torch.nan) for name, own in terms.items()}
    here = {name: own.to("cpu", non_blocking=True) for name, own in whole.items()}
    ready = None
    if problem.backbone.device.type == "cuda":
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(torch.cuda.current_stream(problem.backbone.device))

    def wait() -> Ranked:
        if ready is not None:
            ready.synchronize()
        arrays = {name: own.numpy() for name, own in here.items()}
        if not arrays.pop(_SOUND).all():
            raise SympromptError("scores holds NaN, which has no rank; check the model's output.")
        return _order(question, sentences.relations, arrays, asked, top)

    return wait


def _order(
    question: Askable, relations: np.ndarray, found: dict[str, Array], asked: int, top: int
) -> Ranked:
    """Put the candidates that are re-ranked first, in the order of their joint scores."""
    tokens, scores = found.pop(_TOKENS), found.pop(_SCORE)
    plain = question.problem.spelling is None
    if not asked:
        return Ranked(tokens[:, :top], scores[:, :top], {}, plain)
    joint = scores[:, :asked]
    for name, term in found.items():
        weight = question.weights.get(name)
        joint = joint_scores(joint, term, weight=0.0 if weight is None else weight[relations])
    beyond = ((0, 0), (0, tokens.shape[1] - asked))
    others = {
        name: np.pad(own, beyond, constant_values=np.nan)
        for name, own in {JOINT: joint, **found}.items()
    }
    order = np.argsort(-np.nan_to_num(others[JOINT], nan=-np.inf), axis=1, kind="stable")[:, :top]
    return Ranked(
        np.take_along_axis(tokens, order, 1),
        np.take_along_axis(scores, order, 1),
        {name: np.take_along_axis(own, order, 1) for name, own in others.items()},
        plain,
    )


def _objects(question: Askable, subjects: Sequence[str], top: int, tick: Tick) -> list[Answers]:
    """Return the first objects of subjects in the question's one relation."""
    names = [compose(subject.strip()) for subject in subjects]
    places = np.zeros(len(names), dtype=np.int64)
    sentences, _, bad = question.tensorise(places, names)
    for wrong in bad.values():
        raise DataError(wrong)
    ranked = rank_objects(question, sentences, top, tick if len(names) > 1 else silent)()
    known = question.names("subject")
    return [
        Answers(
            answers,
            relation=question.problem.relations[0],
            subject=name,
            names=known,
            weights=question.own_weights(0),
        )
        for name, answers in zip(names, ranked.rows(question.problem.text), strict=True)
    ]


@torch.no_grad()
def subjects_of(
    question: Askable, place: int, objects: Sequence[int], top: int, tick: Tick = silent
) -> list[list[Answer]]:
    """Return a relation's known subjects by joint score for objects, a mean over their tokens.

    Args:
        place: the relation.
        objects: the answers they are, see ``Askable.object_id``.
    """
    problem, method = question.problem, question.method
    names = np.array(sorted(question.names("subject", place) or ()), dtype=object)
    sentences, _, bad = question.tensorise(np.full(len(names), place), names.tolist())
    for wrong in bad.values():
        raise DataError(wrong)
    wanted = torch.tensor(list(objects), dtype=torch.int64, device=problem.backbone.device)
    passes = query_passes(sentences, problem.max_tokens)
    found = [method.scores(sentences, rows, question.vectors)[:, wanted] for rows in passes]
    places = np.argsort(np.concatenate(passes), kind="stable")
    object_score = torch.cat(found).cpu().numpy()[places]
    subject_score = scores_by_token(
        question.config,
        method,
        sentences,
        wanted,
        question.vectors,
        max_tokens=problem.max_tokens,
        prompts=question.subject_prompts,
        tick=tick,
    )
    own = answer_ids(
        problem.backbone.vocabulary, problem.templates[place], names.tolist(), problem.spelling
    )
    itself = np.array([-1 if answer is None else answer for answer in own])
    may_copy = not problem.copies or problem.copies[place]
    weights = question.own_weights(place)
    ranked: list[list[Answer]] = []
    for column, token in enumerate(objects):
        # Who cannot be their own object, unless there is nobody else.
        rows = np.flatnonzero(np.full(len(names), may_copy) | (itself != token))
        rows = rows if len(rows) else np.arange(len(names))
        one = joint = object_score[rows, column]
        back = {name: own[rows, column] for name, own in subject_score.items()}
        for name, own_score in back.items():
            joint = joint_scores(joint[None], own_score[None], weight=weights[name])[0]
        first = np.argsort(-joint, kind="stable")[:top]
        terms = {name: own_score[first] for name, own_score in back.items()}
        ranked.append(
            rank_answers(
                names[rows[first]].tolist(),
                one[first],
                terms.pop(SUBJECT),
                joint[first],
                terms,
                plain=problem.spelling is None,
            )
        )
    return ranked


def scores_by_token(
    config: RunConfig,
    method: Method,
    sentences: Sentences,
    objects: Tensor,
    vectors: Vectors,
    *,
    max_tokens: int,
    prompts: Sequence[str] = (SUBJECT,),
    tick: Tick = silent,
) -> dict[str, Array]:
    """Return all subjects' scores for all objects, [n, k]: means over tokens where a run sums.

    Args:
        objects: [k] tokens, or ids of names.
        prompts: by which subject prompts, see ``Method.subject_scores``.
    """
    candidates = objects.expand(len(sentences), -1)
    asked = ask_back(
        method, sentences, candidates, vectors, max_tokens=max_tokens, prompts=prompts, tick=tick
    )
    lengths = sentences.subject_prompt.subject_lengths[:, None].astype(np.float32)
    tokens = lengths if config.method.average == "sum" else np.float32(1)
    return {name: own.cpu().numpy() / tokens for name, own in asked.items()}


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
