"""What a run on facts stores: facts, prompts and their card, predictions; read without the model.

Functions of ``runs.Folder``; predictions and the card are read without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired

import numpy as np
from pydantic import with_config
from typing_extensions import TypedDict

from symprompt.errors import ConfigError, RunError
from symprompt.facts.types import SPLITS, Fact, FactSet, Relation, Split
from symprompt.probing.predictions import Array, Predictions
from symprompt.runs.folder import CONFIG, MANIFEST, Folder, Manifest

if TYPE_CHECKING:
    from torch import Tensor

    from symprompt.probing.config import RunConfig

COMMANDS = ("train", "rerank")
FACTS = "facts.jsonl"
PROMPTS = "prompts.safetensors"
CARD = "prompts.json"
ENCODER = "encoder.safetensors"
VOCABULARY = "vocabulary.txt"


@with_config(extra="allow")
class RelationCard(TypedDict):
    """A relation's prompt: its template, and what a method adds (prompts, their weights, words)."""

    label: str
    template: str
    manual_template: str
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
    from symprompt.probing.config import load_config

    try:
        return folder.read(CONFIG, lambda path: load_config(str(path)), "train")
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


def load_weights(folder: Folder, key: str = "weights") -> Array | None:
    """Return a weight per relation, [relation] float64; None if the run has none.

    Args:
        key: ``weights`` of the subject score, or ``frequency_shares``, of the objects' frequencies
            beside it.
    """
    weights = folder.manifest.details.get(key)
    if weights is None:
        return None
    with folder.refuse_damage(MANIFEST):
        return np.array([weights[name] for name in load_card(folder)["relations"]], dtype=float)


def load_prompts(folder: Folder, parts: Iterable[str]) -> dict[str, Tensor]:
    """Read the learned vectors of these parts, each [relation, n, width]."""
    if not parts:
        return {}
    tensors, _ = folder.read_tensors(PROMPTS)
    count = len(load_card(folder)["relations"])
    with folder.refuse_damage(PROMPTS):
        for part in parts:
            if tensors[part].dim() != 3 or len(tensors[part]) != count:
                raise ValueError(f"{part} has the shape {list(tensors[part].shape)}")
        return {part: tensors[part] for part in parts}


def write_facts(folder: Folder, facts: FactSet) -> None:
    """Write the facts the run uses, one a line."""
    folder.write_rows(
        FACTS,
        (
            {
                "split": split,
                "relation": fact.relation,
                "subject": fact.subject,
                "object": fact.object,
            }
            for split in SPLITS
            for fact in facts.facts(split)
        ),
    )


def load_facts(folder: Folder) -> FactSet:
    """Read the run's facts back, with labels and manual templates from its card."""
    card = load_card(folder)
    groups: dict[tuple[str, str], list[Fact]] = {}
    relations = []
    with folder.refuse_damage(FACTS):
        for row in folder.read_rows(FACTS):
            fact = Fact(row["relation"], row["subject"], row["object"])
            groups.setdefault((fact.relation, row["split"]), []).append(fact)
        for name, about in card["relations"].items():
            train, dev, test = (tuple(groups.get((name, split), ())) for split in SPLITS)
            if not (train or dev or test):
                raise ValueError(f"no facts of relation {name}")
            relations.append(
                Relation(name, train, dev, test, about["label"], about["manual_template"])
            )
    return FactSet(tuple(relations), source=str(folder.path), layout="run")


# ------------------------------------------------------------------------------ predictions


def predictions_file(split: str) -> str:
    """Return where a split's predictions are stored."""
    return f"predictions/{split}.safetensors"


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
        self._texts: list[str] | None = None

    @property
    def texts(self) -> list[str]:
        """All texts that subjects, objects and candidates are numbered in."""
        if self._texts is None:
            whole, start, found = self._bytes.tobytes(), 0, []
            for end in self._ends.tolist():
                found.append(whole[start:end].decode())
                start = end
            self._texts = found
        return self._texts

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
        texts = self.texts
        text = dict(zip(self._answer.tolist(), self._answer_text.tolist(), strict=True))
        return [[texts[text[own]] for own in row] for row in self.predictions.candidates.tolist()]


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

    answers = np.unique(predictions.candidates)
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
    arrays, about = folder.read_arrays(name)
    with folder.refuse_damage(name):
        asked = Asked(arrays, about["relations"])
        if not len(asked.predictions):
            raise ValueError("no predictions")
        return asked


def load_predictions(folder: Folder, split: Split) -> Predictions:
    """Read a split's predictions.

    Raises:
        RunError: the file is missing or damaged.
    """
    return load_asked(folder, split).predictions


def about_run(manifest: Manifest) -> dict[str, Any]:
    """Return what a run states beside its figures, as plain values."""
    return {
        "model": manifest.model,
        "method": manifest.method,
        "data": manifest.data,
        "seed": manifest.seeds[0],
        "device": manifest.device,
        "dtype": manifest.dtype,
        "seconds": manifest.seconds,
        **manifest.details,
    }
