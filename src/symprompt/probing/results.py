"""What a probing run stores and reads: facts, prompts and their card, predictions, figures.

Everything here is numpy: stored predictions are read, ranked and compared without torch or a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NotRequired, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import with_config
from typing_extensions import TypedDict

from symprompt.config import load
from symprompt.errors import ConfigError, RunError, SympromptError
from symprompt.facts.types import SPLITS, Fact, FactSet, Relation, Split
from symprompt.files.atomic import json_lines
from symprompt.runs.folder import CONFIG, MANIFEST, Folder, Record, validated
from symprompt.runs.statistics import by_relation, summarise

if TYPE_CHECKING:
    from torch import Tensor

    from symprompt.probing.config import RunConfig

COMMANDS = ("train", "rerank")
FACTS = "facts.jsonl"
PROMPTS = "prompts.safetensors"
CARD = "prompts.json"
ENCODER = "encoder.safetensors"
VOCABULARY = "vocabulary.txt"
SUBJECT, FREQUENCY, COPY, PRIOR = "subject", "frequency", "copy", "prior"
SUBJECTS = (SUBJECT, "second", "third")
"""Terms beside the object score: the subject scores of up to three prompts; log P(object) among the
training facts; 1 where the candidate is the subject itself; the object score where the subject is
masked."""
ASKED: tuple[Split, ...] = ("dev", "test")
ORDERS = ("raw", "filtered", "forward")
"""The final ranks, those without other true objects, and those by object score alone."""
Array = npt.NDArray[Any]
Values = TypeVar("Values")


@dataclass(frozen=True, eq=False)
class Ranks(Generic[Values]):
    """How many others score higher than the true answer, and how many score exactly the same.

    Attributes:
        better: ``[b]`` int64 array or tensor, others with a higher score.
        equal: ``[b]`` int64, others with exactly the same score.
    """

    better: Values
    equal: Values

    @property
    def optimistic(self) -> Values:
        """The rank if every tie is won, ``[b]`` int64."""
        return self.better + 1  # type: ignore[operator, return-value]

    @property
    def pessimistic(self) -> Values:
        """The rank if every tie is lost, ``[b]`` int64."""
        return self.better + self.equal + 1  # type: ignore[operator, no-any-return]

    @property
    def realistic(self) -> Values:
        """The mean of the optimistic and the pessimistic rank, ``[b]`` float64."""
        return _double(self.better) + _double(self.equal) / 2 + 1  # type: ignore[no-any-return]


def _double(values: Any) -> Any:
    return values.astype(np.float64) if isinstance(values, np.ndarray) else values.double()


def joint_scores(
    object_score: Array, subject_score: Array, *, weight: float | Array
) -> npt.NDArray[Any]:
    """Return the joint score of every candidate: object + weight * subject (SPE, equation 10).

    Args:
        object_score: ``[b, k]`` log-probabilities of the candidates given the subject.
        subject_score: ``[b, k]`` log-probabilities of the subject given each candidate.
        weight: a number, or one per fact as ``[b]`` or ``[b, 1]``. Where it is zero the object
            score stays as it is, even if the subject score is ``-inf``.

    Raises:
        SympromptError: scores of half precision, which tie, or shapes that do not fit.
    """
    for name, scores in {"object_score": object_score, "subject_score": subject_score}.items():
        if scores.dtype not in (np.float32, np.float64):
            raise SympromptError(
                f"{name} has dtype {scores.dtype}, allowed are float32 and float64: coarser scores "
                "tie. Compute the last product and the softmax in float32."
            )
    if object_score.ndim != 2 or object_score.shape != subject_score.shape:
        raise SympromptError(
            f"object_score is {list(object_score.shape)} and subject_score "
            f"{list(subject_score.shape)}; both must be [facts, candidates]."
        )
    factor = np.asarray(weight, dtype=object_score.dtype)
    rows = len(object_score)
    if factor.ndim and factor.shape not in {(rows,), (rows, 1)}:
        raise SympromptError(
            f"weight is {list(factor.shape)}, allowed are a number, [{rows}] or [{rows}, 1]."
        )
    if factor.ndim == 1:
        factor = factor[:, None]
    with np.errstate(invalid="ignore"):
        return np.where(factor == 0, object_score, object_score + factor * subject_score)


@dataclass(frozen=True, eq=False)
class Combination:
    """What counts beside the object score, and how much: joint = object score + sum of w * term.

    Attributes:
        weights: term -> its weight of each relation, [relation] float64.
    """

    weights: Mapping[str, Array]

    @property
    def subject(self) -> Array | None:
        """The weights of the subject score, [relation]; None if it does not count."""
        return self.weights.get(SUBJECT)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Per fact: the gold object's place by object score, and the top candidates' scores.

    Arrays of n facts: relation, gold [n] int64; gold_score [n] float32; better, equal and their
    filtered twins [n] int64 (see ``Ranks``); candidates [n, k] int64 and object_score [n, k]
    float32, best first; subject_score [n, k] float32, NaN where the run has no subject prompt;
    known [n, k] bool, candidates that are other true objects of the same subject; terms, further
    scores [n, k] float32 by name, as they are before any weight. A fact with fewer than k answers
    has -1 in the place of further candidates, an object score of -inf and other scores of 0.
    """

    relation: Array
    gold: Array
    gold_score: Array
    better: Array
    equal: Array
    better_filtered: Array
    equal_filtered: Array
    candidates: Array
    object_score: Array
    subject_score: Array
    known: Array
    terms: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def asked_back(self) -> bool:
        """Whether subject scores are there."""
        return len(self) > 0 and not bool(np.isnan(self.subject_score).any())

    def term(self, name: str) -> Array:
        """Return a term's scores [n, k]; ``SUBJECT`` names the subject scores."""
        return self.subject_score if name == SUBJECT else self.terms[name]

    def joint(self, combination: Combination) -> Array:
        """Return the joint scores [n, k]."""
        total = self.object_score
        for name, weights in combination.weights.items():
            each = weights[self.relation].astype(np.float32)
            total = joint_scores(total, self.term(name), weight=each)
        return total

    def columns(self) -> dict[str, Array]:
        """Return all arrays by name; a further term's name begins with ``terms/``."""
        own = {name: getattr(self, name) for name in _COLUMNS}
        return own | {f"terms/{name}": term for name, term in self.terms.items()}

    @classmethod
    def from_columns(cls, columns: Mapping[str, Array]) -> Predictions:
        """Return predictions from arrays named as ``columns`` names them.

        Raises:
            KeyError: a column is missing.
            ValueError: columns are of different lengths or of another shape.
        """
        own = {name: columns[name] for name in _COLUMNS}
        terms = {
            name.removeprefix("terms/"): value
            for name, value in columns.items()
            if name.startswith("terms/")
        }
        rows, wide = len(own["gold"]), own["candidates"].shape
        for name, value in {**own, **terms}.items():
            wanted = wide if name in (*_WIDE, *terms) else (rows,)
            if value.shape != wanted or len(value) != rows:
                raise ValueError(f"{name} has the shape {list(value.shape)}")
        return cls(**own, terms=terms)

    @classmethod
    def concatenate(cls, parts: Sequence[Predictions]) -> Predictions:
        """Return the facts of all parts, one after the other."""
        columns = [part.columns() for part in parts]
        return cls.from_columns(
            {name: np.concatenate([own[name] for own in columns]) for name in columns[0]}
        )

    def take(self, rows: Array) -> Predictions:
        """Return some facts, in the order of ``rows``."""
        return self.from_columns({name: value[rows] for name, value in self.columns().items()})

    def first(self, k: int) -> Predictions:
        """Return predictions with the first k candidates only."""
        return replace(
            self,
            **{name: getattr(self, name)[:, :k] for name in _WIDE},
            terms={name: term[:, :k] for name, term in self.terms.items()},
        )

    def near(self, within: float) -> Predictions:
        """Return predictions without candidates that score further below the first; 0 keeps all."""
        if not within:
            return self
        kept = self.object_score >= self.object_score[:, :1] - np.float32(within)

        def cut(own: Array, empty: float = 0) -> Array:
            return np.where(kept, own, np.array(empty, own.dtype))

        return replace(
            self,
            candidates=cut(self.candidates, -1),
            object_score=cut(self.object_score, -np.inf),
            subject_score=cut(self.subject_score),
            known=cut(self.known),
            terms={name: cut(term) for name, term in self.terms.items()},
        )

    def ranks(self, *, filtered: bool = False) -> Ranks[Array]:
        """Return the ranks by object score."""
        if filtered:
            return Ranks(self.better_filtered, self.equal_filtered)
        return Ranks(self.better, self.equal)

    def reranked(
        self, combination: Combination | float, *, k: int | None = None, filtered: bool = False
    ) -> Ranks[Array]:
        """Return the ranks after re-ranking the first k candidates (SPE, equation 10).

        The candidates come first by joint score, all others follow by object score.

        Args:
            combination: the weights of the subject score and of further terms; a number is the
                subject score's in every relation.
            k: how many candidates are re-ranked; None takes all that are stored.
        """
        stored = self.candidates.shape[1]
        k = stored if k is None else k
        if not 1 <= k <= stored:
            raise SympromptError(f"k is {k}; {stored} candidates are stored, so 1 to {stored} go.")
        kept = self.first(k)
        if not isinstance(combination, Combination):
            relations = 1 + int(self.relation.max(initial=0))
            combination = Combination({SUBJECT: np.full(relations, combination)})
        joint = kept.joint(combination)
        is_gold = kept.candidates == self.gold[:, None]
        counted = ~is_gold & (kept.candidates >= 0)
        if filtered:
            counted &= ~kept.known
        gold_joint = np.where(is_gold, joint, 0).sum(1, keepdims=True, dtype=joint.dtype)
        before = self.ranks(filtered=filtered)
        # Candidates score at least as high as a gold outside, so those that tie with it now lead.
        level = (counted & (kept.object_score == self.gold_score[:, None])).sum(1)
        inside = is_gold.any(1)
        return Ranks(
            np.where(inside, ((joint > gold_joint) & counted).sum(1), before.better + level),
            np.where(inside, ((joint == gold_joint) & counted).sum(1), before.equal - level),
        )

    def final(self, combination: Combination | None, *, filtered: bool = False) -> Ranks[Array]:
        """Return the ranks the run stands for: re-ranked by its combination, if it has one."""
        if combination is None:
            return self.ranks(filtered=filtered)
        return self.reranked(combination, filtered=filtered)

    def first_answer(self, combination: Combination | None, *, filtered: bool = False) -> Array:
        """Return the first candidate in the order the run stands for, [n] as in ``candidates``.

        Ties take the one that is better by object score.
        """
        score = self.object_score
        if combination is not None:
            score = self.joint(combination)
        if filtered:
            score = np.where(self.known, -np.inf, score)
        found: Array = self.candidates[np.arange(len(self)), score.argmax(1)]
        return found


_COLUMNS = tuple(entry.name for entry in fields(Predictions) if entry.name != "terms")

_WIDE = ("candidates", "object_score", "subject_score", "known")


@with_config(extra="allow")
class RelationCard(TypedDict):
    """A relation's prompt: its template, and what a method adds (prompts, their weights, words).

    Where the data has them, its further manual templates and its answer space too; and from which
    relation's object prompt its subject prompt started.
    """

    label: str
    template: str
    manual_template: str
    rewordings: NotRequired[list[str]]
    answers: NotRequired[list[str]]
    prompts: NotRequired[list[str]]
    prompt_weights: NotRequired[list[float]]
    words: NotRequired[list[str]]
    prompt: NotRequired[str]


@with_config(extra="allow")
class Card(TypedDict):
    """What a run's prompts are, for who gets no more than the prompts."""

    base_model: str
    base_model_fingerprint: str
    method: str
    parts: list[str]
    relations: dict[str, RelationCard]
    metrics: NotRequired[dict[str, Any]]


def open_run(path: str | Any) -> Folder:
    """Return the folder of a finished run on facts.

    Raises:
        RunError: there is none; what to do is said.
    """
    folder = Folder(path)
    folder.require_finished(*COMMANDS)
    return folder


def run_config(folder: Folder) -> RunConfig:
    """Return the config of a run on facts.

    Raises:
        RunError: it is not one.
    """
    # Tables do without configs, which take long to import.
    from symprompt.probing.config import RunConfig

    try:
        return folder.read(CONFIG, partial(load, RunConfig, stored=True), "train")
    except ConfigError as error:
        raise RunError(f"{folder.path} holds no readable run: {error}") from error


def load_card(folder: Folder) -> Card:
    """Return what the run's prompts are: model, method, parts, and each relation's template.

    Raises:
        RunError: the file is missing or lacks what is relied on; so for the next ones.
    """
    card = folder.load(CARD, Card)
    if not card["relations"]:
        raise RunError(f"{folder.path / CARD} is damaged: no relations.")
    return card


def has_old_weights(folder: Folder) -> bool:
    """Return whether a run has one weight of each relation for all terms, as format 1 had."""
    weights = folder.manifest.details.get("weights")
    return isinstance(weights, dict) and any(isinstance(own, float) for own in weights.values())


def load_combination(folder: Folder) -> Combination | None:
    """Return how a run combines its scores; None if it ranks by object score alone."""
    weights = folder.manifest.details.get("weights")
    if weights is None:
        return None
    if has_old_weights(folder):
        raise RunError(
            f"{folder.path} was made by an earlier version of symprompt, which stored weights "
            f"otherwise; convert it: symprompt runs upgrade {folder.path}."
        )
    with folder.refuse_damage(MANIFEST):
        names = load_card(folder)["relations"]
        return Combination(
            {
                term: np.array([own[name] for name in names], dtype=float)
                for term, own in weights.items()
            }
        )


def load_prompts(folder: Folder, parts: Iterable[str]) -> dict[str, Tensor]:
    """Read the learned vectors of these parts, each [relation, n, width]."""
    if not parts and not folder.has(PROMPTS):
        return {}
    tensors, _ = folder.read_tensors(PROMPTS)
    count = len(load_card(folder)["relations"])
    with folder.refuse_damage(PROMPTS):
        if set(tensors) != set(parts):
            raise ValueError(f"it holds {sorted(tensors)}, and {CARD} names {list(parts)}")
        for part in parts:
            if tensors[part].dim() != 3 or len(tensors[part]) != count:
                raise ValueError(f"{part} has the shape {list(tensors[part].shape)}")
        return {part: tensors[part] for part in parts}


def write_facts(folder: Folder, facts: FactSet) -> None:
    """Write the facts the run uses, one a line."""
    rows = (
        {"split": split, "relation": fact.relation, "subject": fact.subject, "object": fact.object}
        for split in SPLITS
        for relation in facts.relations
        for fact in relation.split(split)
    )
    folder.write_rows(FACTS, rows)


def load_facts(folder: Folder) -> FactSet:
    """Read the run's facts back, with labels and manual templates from its card."""
    return folder.read(FACTS, lambda path: _make_facts(folder, path), "facts")


def _make_facts(folder: Folder, path: Path) -> FactSet:
    card = load_card(folder)
    groups: dict[tuple[str, str], list[Fact]] = {}
    relations, same = [], dict[str, str]()
    with folder.refuse_damage(FACTS):
        for row in json_lines(path):
            names = (row["relation"], row["subject"], row["object"])
            if not all(isinstance(name, str) for name in names):
                raise TypeError(f"{names} is not all text")
            # Relations and objects come again and again: each text is kept once.
            relation, known = (same.setdefault(name, name) for name in (names[0], names[2]))
            fact = Fact(relation, names[1], known)
            groups.setdefault((fact.relation, row["split"]), []).append(fact)
        for name, about in card["relations"].items():
            train, dev, test = (tuple(groups.get((name, split), ())) for split in SPLITS)
            if not (train or dev or test):
                raise ValueError(f"no facts of relation {name}")
            relations.append(
                Relation(
                    name,
                    *(train, dev, test),
                    about["label"],
                    about["manual_template"],
                    tuple(about.get("rewordings", ())),
                    tuple(about.get("answers", ())),
                )
            )
    skipped = folder.manifest.details.get("skipped", {}) if folder.has(MANIFEST) else {}
    return FactSet(tuple(relations), source=str(folder.path), layout="run", skipped=skipped)


# ------------------------------------------------------------------------------ predictions


def predictions_file(split: str) -> str:
    """Return where a split's predictions are stored."""
    return f"predictions/{split}.safetensors"


def coherency_file(split: str) -> str:
    """Return where a split's coherency is stored."""
    return f"coherency/{split}.safetensors"


class Asked:
    """A split's predictions with the facts they are about and the candidates' texts; final.

    Texts are decoded when they are first asked for.
    """

    def __init__(self, arrays: Mapping[str, Array], relations: Sequence[str]) -> None:
        self.predictions = Predictions.from_columns(arrays)
        self.relations = tuple(relations)
        self._subject, self._object = arrays["subject"], arrays["object"]
        self._answer, self._answer_text = arrays["answer"], arrays["answer_text"]
        self._bytes, self._ends = arrays["text"], arrays["text_ends"]

    @cached_property
    def texts(self) -> list[str]:
        """All texts that subjects, objects and candidates are numbered in."""
        whole, ends = self._bytes.tobytes(), self._ends.tolist()
        return [whole[start:end].decode() for start, end in pairwise([0, *ends])]

    def keys(self) -> list[tuple[str, str, str]]:
        """Return (relation, subject, object) of every fact."""
        texts, names = self.texts, self.relations
        places = (self.predictions.relation, self._subject, self._object)
        return [
            (names[relation], texts[subject], texts[object])
            for relation, subject, object in zip(*(own.tolist() for own in places), strict=True)
        ]

    def facts(self) -> list[Fact]:
        """Return the facts, in the order of the predictions."""
        return [Fact(*key) for key in self.keys()]

    def candidates(self) -> list[list[str]]:
        """Return every fact's candidates as people read them, best by object score first."""
        return [self.read(row) for row in self.predictions.candidates]

    def read(self, answers: Array) -> list[str]:
        """Return some of the candidates as people read them; those that are none are left out."""
        texts, text = self.texts, self._text
        return [texts[text[own]] for own in answers.tolist() if own >= 0]

    @cached_property
    def _text(self) -> dict[int, int]:
        """The place of each candidate's text."""
        return dict(zip(self._answer.tolist(), self._answer_text.tolist(), strict=True))


def write_predictions(
    folder: Folder,
    split: Split,
    predictions: Predictions,
    facts: Sequence[Fact],
    relations: Sequence[str],
    text: Mapping[int, str],
) -> None:
    """Write every fact's ranks and candidates as columns, texts once each.

    Args:
        facts: what the predictions are about, in their order.
        text: candidates' tokens as people read them.
    """
    places: dict[str, int] = {}

    def number(texts: Iterable[str]) -> Array:
        return np.array([places.setdefault(own, len(places)) for own in texts], dtype=np.int32)

    answers = np.unique(predictions.candidates[predictions.candidates >= 0])
    columns = {
        **predictions.columns(),
        "subject": number(fact.subject for fact in facts),
        "object": number(fact.object for fact in facts),
        "answer": answers,
        "answer_text": number(text[answer] for answer in answers.tolist()),
    }
    encoded = [own.encode() for own in places]
    columns["text"] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    columns["text_ends"] = np.cumsum([len(own) for own in encoded], dtype=np.int64)
    folder.write_arrays(predictions_file(split), columns, {"relations": list(relations)})


def load_asked(folder: Folder, split: Split) -> Asked:
    """Read a split's predictions, with their facts and the candidates' texts.

    Raises:
        RunError: the file is missing or damaged.
    """
    name = predictions_file(split)
    here = folder.has(name) or not folder.has(MANIFEST)
    if not here and folder.manifest.details.get("imported") == "changed":
        raise RunError(
            f"{folder.path} has no predictions: its vectors were trained further before it was "
            "imported, so those of the export are not its own; ask it, or re-rank another run with "
            "it."
        )
    arrays, about = folder.read_arrays(name)
    with folder.refuse_damage(name):
        asked = Asked(arrays, about["relations"])
        if not len(asked.predictions):
            raise ValueError("no predictions")
        return asked


class CoherencyNote(TypedDict):
    """How a split's coherency was measured.

    Attributes:
        facts: most facts of each relation, drawn by ``seed``; 0 is all of them.
        subjects: how many known subjects of each relation were ranked.
        predictions: digest of the predictions whose first answers were asked back.
    """

    facts: int
    seed: int
    subjects: dict[str, int]
    seconds: float
    predictions: str


@dataclass(frozen=True, eq=False)
class Coherency:
    """Where the subject stands among its relation's known ones, given the run's own first object.

    Attributes:
        rows: [m] int64, which of the split's facts were asked back.
        better, equal: [2, 2, m] int64, how many subjects are likelier, or exactly as likely: given
            the run's first object or the first by object score alone; counting all, or all but
            those that have this object too.
    """

    rows: Array
    better: Array
    equal: Array
    note: CoherencyNote

    def ranks(self, *, forward: bool = False, filtered: bool = False) -> Ranks[Array]:
        """Return the subject's ranks.

        Args:
            forward: given the first object by object score alone.
            filtered: without the other subjects that have this object too.
        """
        return Ranks(
            self.better[int(forward), int(filtered)], self.equal[int(forward), int(filtered)]
        )


def write_coherency(folder: Folder, split: Split, found: Coherency) -> None:
    """Store a split's coherency in the folder of the run."""
    columns = {"rows": found.rows, "better": found.better, "equal": found.equal}
    folder.write_arrays(coherency_file(split), columns, found.note)


def load_coherency(folder: Folder, split: Split) -> Coherency | None:
    """Read a split's coherency; None where none was measured of the predictions there are.

    Raises:
        RunError: the file is damaged.
    """
    name = coherency_file(split)
    if not folder.has(name):
        return None
    columns, about = folder.read_arrays(name)
    note = validated(CoherencyNote, about, folder.path / name)
    if note["predictions"] != predictions_digest(folder, split):
        return None
    with folder.refuse_damage(name):
        found = Coherency(columns["rows"], columns["better"], columns["equal"], note)
        for array in (found.better, found.equal):
            if not len(found.rows) or array.shape != (2, 2, len(found.rows)):
                raise ValueError(f"{len(found.rows)} facts and ranks {list(array.shape)}")
        return found


def predictions_digest(folder: Folder, split: Split) -> str:
    """Return the digest of a split's predictions that a finished run states."""
    name = predictions_file(split)
    with folder.refuse_damage(MANIFEST):
        return folder.manifest.files[name].sha256


def measure(
    predictions: Predictions, relations: Sequence[str], combination: Combination | None
) -> dict[str, Any]:
    """Return P@1, P@10 and MRR in percent, as plain values for JSON.

    "raw" and "filtered" are the run's final ranks, each optimistic, realistic and pessimistic;
    "forward" is the order by object score alone; "relations" has realistic raw ranks.
    """
    raw, owner = predictions.final(combination), predictions.relation
    table = by_relation(raw.realistic, owner)
    counts = np.bincount(owner, minlength=len(relations)).tolist()
    filtered = predictions.final(combination, filtered=True)
    orders = {"raw": raw, "filtered": filtered, "forward": predictions.ranks()}
    figures = {
        order: {
            kind: {
                mean: asdict(summary)
                for mean, summary in summarise(getattr(ranks, kind), owner).items()
            }
            for kind in ("realistic", "optimistic", "pessimistic")
        }
        for order, ranks in orders.items()
    }
    return {
        "facts": len(predictions),
        **figures,
        "relations": {
            name: {"facts": counts[index], **asdict(table[index])}
            for index, name in enumerate(relations)
            if counts[index]
        },
    }


def to_records(measured: Mapping[Split, Mapping[str, Any]]) -> list[Record]:
    """Return what was measured on each split as records: realistic ranks, in every order."""
    return [
        Record(
            metric=metric,
            value=value,
            n=figures["facts"],
            split=split,
            settings={"order": order, "mean": mean},
        )
        for split, figures in measured.items()
        for order in ORDERS
        for mean, values in figures[order]["realistic"].items()
        for metric, value in values.items()
    ]


def load_metrics(folder: Folder) -> dict[str, Any]:
    """Return what a finished run states and all its figures, these from stored predictions."""
    names = list(load_card(folder)["relations"])
    combination = load_combination(folder)
    measured: dict[str, Any] = {
        split: measure(load_asked(folder, split).predictions, names, combination)
        for split in ASKED
        if folder.has(predictions_file(split))
    }
    manifest = folder.manifest
    return {
        "model": manifest.model,
        "method": manifest.method,
        "data": manifest.data,
        "seed": manifest.seeds[0],
        "device": manifest.device,
        "dtype": manifest.dtype,
        "seconds": manifest.seconds,
        **manifest.details,
        **measured,
    }


def method_name(config: RunConfig) -> str:
    """Return what made a run's answers: its method, and whether another run asked back."""
    return f"{config.method.name} + asking back" if config.rerank else config.method.name
