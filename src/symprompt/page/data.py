"""Run folders as the page shows them: what each is, and its facts as compact columns; no torch."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from symprompt.errors import RunError, SympromptError
from symprompt.facts.types import Split
from symprompt.files.atomic import read_json, reason
from symprompt.probing.results import (
    COMMANDS,
    SUBJECT,
    Array,
    Combination,
    Predictions,
    Ranks,
    load_asked,
    load_card,
    load_combination,
    load_facts,
    predictions_file,
)
from symprompt.report.diff import diff_runs
from symprompt.report.tables import comparison, load_scores
from symprompt.runs.folder import HISTORY, MANIFEST, PROGRESS, Folder, Manifest

T = TypeVar("T")
SHIPPED = "shipped"
SPLIT: Split = "test"
Kind = Literal["facts", "task", "model", "training", "other", "broken"]
_LEVELS = (1 << 16) - 1
"""Steps of a score in 16 bits; the last one stands for minus infinity, of no answer."""
MOST_RUNS = 100
"""So many runs of one folder are shown."""
_PAIRS = 6
"""So many runs are set against each other in a file of their own."""


class Source:
    """A run folder, or a model, that the page was given; final.

    Args:
        number: what the page calls it.
        path: as it was given.
        name: what a reader sees, see ``short_names``.
    """

    def __init__(self, number: int, path: str, name: str) -> None:
        self.number, self.path, self.name = number, path, name
        self._folder, self._work = Folder(path), Folder(f"{path.rstrip('/')}.work")

    @property
    def folder(self) -> Folder:
        """Where the run is now: a pretraining moves from its work folder to its model's."""
        working = not self._folder.holds_run and self._work.holds_run
        return self._work if working else self._folder

    def about(self) -> dict[str, Any]:
        """Return what it is as plain values; a broken run is described by its error alone."""
        found: dict[str, Any] = {"id": self.number, "name": self.name}
        try:
            return found | self._describe()
        except SympromptError as error:
            return found | {"kind": "broken", "error": str(error)}
        except Exception as error:  # whatever a damaged file does, other runs are shown
            told = f"{self.path} cannot be read ({type(error).__name__}): {error}"
            return found | {"kind": "broken", "error": told}

    def _describe(self) -> dict[str, Any]:
        folder = self.folder
        if not folder.holds_run:
            if self.path == SHIPPED or folder.has("config.json"):
                return {"kind": "model", "model": self.name, "live": False}
            raise RunError(
                f"{self.path} is neither a run folder (no {MANIFEST}) nor a model (no config.json)."
            )
        own = folder.manifest
        kind = kind_of(own)
        found: dict[str, Any] = {
            "kind": kind,
            "command": own.command,
            "method": own.method,
            "model": Path(own.model).name,
            "data": Path(own.data).name,
            "seeds": list(own.seeds),
            "device": own.device,
            "live": folder.has(HISTORY) or not own.finished,
        }
        if kind == "facts":
            found["relations"] = [
                {"name": name, "label": about["label"]}
                for name, about in load_card(folder)["relations"].items()
            ]
        if kind == "task":
            found |= _describe_task(folder)
        return found


def find_runs(path: str) -> list[str]:
    """Return the runs that a folder holds, however deep; the path itself if it is one, or none."""
    folder = Folder(path)
    if folder.has(MANIFEST) or folder.has("config.json") or path == SHIPPED:
        with suppress(RunError):
            # Of a mixture each task answers.
            return [str(folder.path / own) for own in folder.manifest.details.get("tasks", ())] or [
                path
            ]
        return [path]
    found = sorted(own.parent for own in folder.path.glob(f"*/**/{MANIFEST}"))
    inner = {own for own in found if not set(own.parents).isdisjoint(found)}
    return [str(own) for own in found if own not in inner][:MOST_RUNS] or [path]


def short_names(paths: Sequence[str]) -> list[str]:
    """Return the last parts of paths, as many as tell them apart; a number where none do."""
    parts = [Path(path).resolve().parts for path in paths]
    names: list[str] = []
    for place, own in enumerate(parts):
        others = [other for at, other in enumerate(parts) if at != place]
        count = 1
        while count < len(own) and any(other[-count:] == own[-count:] for other in others):
            count += 1
        name = "/".join(own[-count:]) if count < len(own) else own[-1]
        names.append(f"{name} ({place + 1})" if name in names else name)
    return names


def kind_of(manifest: Manifest) -> Kind:
    """Return how a run is shown."""
    if not manifest.finished:
        return "training"
    if manifest.command in COMMANDS:
        return "facts"
    return {"tune": "task", "pretrain": "model"}.get(manifest.command, "other")  # type: ignore[return-value]


def _describe_task(folder: Folder) -> dict[str, Any]:
    own = folder.manifest
    figures = [
        {"metric": record.metric, "value": record.value, "split": record.split}
        for record in own.records
    ]
    found: dict[str, Any] = {"figures": figures[:12]}
    card = folder.path / "card.json"
    if card.is_file():
        about = read_json(card)
        if isinstance(about, dict):
            found |= {"task": str(about.get("task", "")), "task_kind": str(about.get("kind", ""))}
    return found


class Library:
    """All that the page was given; final. What was read is kept, and read once at a time.

    Args:
        paths: run folders, folders of such, model folders, or "shipped".
    """

    def __init__(self, paths: Sequence[str]) -> None:
        paths = [own for path in paths for own in find_runs(path)]
        self.sources = [
            Source(number, path, name)
            for number, (path, name) in enumerate(zip(paths, short_names(paths), strict=True))
        ]
        self._locks: dict[tuple[Any, ...], threading.Lock] = {}
        self._kept: dict[tuple[Any, ...], Any] = {}

    def about(self) -> list[dict[str, Any]]:
        """Return what each source is."""
        return [source.about() for source in self.sources]

    def source(self, number: int) -> Source:
        """Return one source.

        Raises:
            RunError: there is none of this number.
        """
        if not 0 <= number < len(self.sources):
            raise RunError(f"run {number} is not on this page; it has {len(self.sources)}.")
        return self.sources[number]

    def columns(self, number: int, *, small: bool = False) -> bytes:
        """Return a run's test facts, see ``pack_facts``."""
        source = self.source(number)
        return self._once(
            ("columns", number, small), [source], lambda: pack_facts(source.folder, small=small)
        )

    def facts(self, number: int, relation: str) -> dict[str, list[str]]:
        """Return the objects of every subject of a relation that the run knows, of any split."""
        source = self.source(number)

        def read() -> dict[str, list[str]]:
            found: dict[str, list[str]] = {}
            for fact in load_facts(source.folder).select([relation]).relations[0].all():
                objects = found.setdefault(fact.subject, [])
                objects += [] if fact.object in objects else [fact.object]
            return found

        return self._once(("facts", number, relation), [source], read)

    def compare(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the figures of runs with intervals, as ``symprompt table --by relation`` does."""
        sources = [self.source(number) for number in numbers]

        def read() -> dict[str, Any]:
            scores = [
                replace(load_scores(source.path, both=True), name=str(source.number))
                for source in sources
            ]
            values = comparison(scores, by_relation=True).values
            return {key: values[key] for key in ("runs", "differences", "relations", "notes")}

        return self._once(("compare", *numbers), sources, read)

    def diff(self, first: int, second: int) -> dict[str, Any]:
        """Return how many facts one run knows and another does not, as ``symprompt diff``."""
        sources = [self.source(first), self.source(second)]

        def read() -> dict[str, Any]:
            values = diff_runs(*(source.path for source in sources), examples=0).tables.values
            return {key: values[key] for key in ("all", "groups", "notes")}

        return self._once(("diff", first, second), sources, read)

    def everything(self) -> dict[str, Any]:
        """Return all that a file of its own needs, but the columns; figures where they can be."""
        about = self.about()
        whole = [own["id"] for own in about if own["kind"] == "facts"]
        found: dict[str, Any] = {"runs": about, "compare": None, "diffs": {}, "live": {}}
        readable = []
        for number in whole:
            try:
                self.columns(number, small=True)
                readable.append(number)
            except SympromptError as error:
                about[number] |= {"kind": "broken", "error": str(error)}
        if readable:
            found["compare"] = self.compare(readable)
        for one, other in combinations(readable[:_PAIRS], 2):
            try:
                found["diffs"][f"{one}-{other}"] = self.diff(one, other)
            except RunError as error:
                found["diffs"][f"{one}-{other}"] = {"error": str(error)}
        for own in about:
            if own.get("live"):
                found["live"][own["id"]] = read_progress(self.source(own["id"]).folder)
        return found

    def _once(self, key: tuple[Any, ...], sources: Sequence[Source], make: Callable[[], T]) -> T:
        """Return what is made of sources; made again when a manifest has changed."""
        # Whoever comes meanwhile waits for the same; others do not.
        with self._locks.setdefault(key, threading.Lock()):
            stamp = [_stamp(source.folder.path / MANIFEST) for source in sources]
            if self._kept.get(key, (None,))[0] != stamp:
                self._kept[key] = (stamp, make())
            kept: T = self._kept[key][1]
            return kept


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}.") from error


# ------------------------------------------------------------------------------ columns


def pack_facts(folder: Folder, *, small: bool = False) -> bytes:
    """Return a run's test facts as one block of bytes: columns that a browser uses as they are.

    A length (4 bytes, little-endian), a JSON note of that length padded with spaces, the columns.
    The note names relations with their weights, terms in the order they are added, texts, and each
    column's type, shape and place. Subjects, objects and candidates are numbers of texts. Ranks are
    whole: how many others score higher, how many the same, before and after asking back.

    Args:
        small: scores in 16 bits, bytes of one significance together, and all of it compressed;
            ranks are those of all bits.

    Raises:
        RunError: the run has no predictions, or is damaged.
    """
    folder.require_finished(*COMMANDS)
    asked = load_asked(folder, SPLIT)
    predictions, combination = asked.predictions, load_combination(folder)
    card = load_card(folder)["relations"]
    with folder.refuse_damage(predictions_file(SPLIT)):
        terms = list(combination.weights) if combination is not None else []
        if SUBJECT not in terms and predictions.asked_back:
            terms.append(SUBJECT)
        texts, subject, gold, candidates = _number_texts(asked.keys(), predictions, asked.read)
        columns = _rank_columns(predictions, combination) | {
            "relation": _whole(predictions.relation),
            "subject": subject,
            "object": gold,
            "candidates": candidates,
            "known": predictions.known.astype(np.uint8),
            "object_score": predictions.object_score,
            **{f"term/{name}": predictions.term(name).astype(np.float32) for name in terms},
        }
        relations = [
            {
                "name": name,
                "label": own["label"],
                "template": own["manual_template"] or own["template"],
                "weights": {
                    term: float(weights[place])
                    for term, weights in (combination.weights if combination else {}).items()
                },
            }
            for place, (name, own) in enumerate(card.items())
        ]
    note = {
        "facts": len(predictions),
        "k": int(predictions.candidates.shape[1]),
        "asked_back": combination is not None and SUBJECT in combination.weights,
        "reranked": combination is not None,
        "relations": relations,
        "terms": terms,
        "texts": texts,
        "exact": not small,
    }
    whole = _join(note, columns, small=small)
    return gzip.compress(whole, 9, mtime=0) if small else whole


def _number_texts(
    keys: Sequence[tuple[str, str, str]],
    predictions: Predictions,
    read: Callable[[Array], list[str]],
) -> tuple[list[str], Array, Array, Array]:
    """Return all texts, the most frequent answers first, and the numbers of names in them."""
    there = predictions.candidates >= 0
    answers, counts = np.unique(predictions.candidates[there], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    # The first text is empty: it stands where a fact has no further candidate.
    places: dict[str, int] = {"": 0}
    number = np.empty(len(answers), dtype=np.int64)
    for place, text in zip(order.tolist(), read(answers[order]), strict=True):
        number[place] = places.setdefault(text, len(places))
    found = np.zeros(predictions.candidates.shape, dtype=np.int64)
    found[there] = number[np.searchsorted(answers, predictions.candidates[there])]
    gold = [places.setdefault(key[2], len(places)) for key in keys]
    subject = [places.setdefault(key[1], len(places)) for key in keys]
    whole = (_whole(np.array(own)) for own in (subject, gold, found))
    return list(places), *whole  # type: ignore[return-value]


def _rank_columns(predictions: Predictions, combination: Combination | None) -> dict[str, Array]:
    """Return the right object's place among the candidates, and its ranks before and after."""
    is_gold = predictions.candidates == predictions.gold[:, None]
    gold_score, answer = predictions.gold_score[:, None], predictions.first_answer(combination)
    columns = {
        "place": np.where(is_gold.any(1), is_gold.argmax(1), -1).astype(np.int16),
        "first": _whole((predictions.candidates == answer[:, None]).argmax(1)),
        # Candidates that tie with a right object beyond them; they are the last ones.
        "level": _whole(
            ((predictions.object_score == gold_score) & ~is_gold.any(1, keepdims=True)).sum(1)
        ),
    }
    for filtered in (False, True):
        end = "_filtered" if filtered else ""
        orders: dict[str, Ranks[Array]] = {
            "before": predictions.ranks(filtered=filtered),
            "after": predictions.final(combination, filtered=filtered),
        }
        for when, ranks in orders.items():
            columns[f"{when}_better{end}"] = _whole(ranks.better)
            columns[f"{when}_equal{end}"] = _whole(ranks.equal)
    return columns


def _whole(values: Array) -> Array:
    """Return whole numbers from 0 on in as few bytes as they need."""
    if values.min(initial=0) < 0:
        raise ValueError("a rank or a number is below 0")
    largest = int(values.max(initial=0))
    return values.astype(
        np.uint8 if largest < 1 << 8 else np.uint16 if largest <= _LEVELS else np.uint32
    )


def _join(note: Mapping[str, Any], columns: Mapping[str, Array], *, small: bool) -> bytes:
    """Return the note and the columns as one block."""
    listed: list[dict[str, Any]] = []
    parts: list[bytes] = []
    start = 0
    for name, column in columns.items():
        about: dict[str, Any] = {"name": name, "start": start}
        if small and column.dtype == np.float32:
            values = _once_a_pair(columns, column) if name.startswith("term/") else None
            about |= {"pairs": True} if values is not None else {}
            column, about["low"], about["high"] = _in_16_bits(column if values is None else values)
            if name == "object_score":
                # The best come first, so each is told by how much it is below the one before.
                about["falling"] = True
                column = np.diff(column.astype(np.int64)[:, ::-1], axis=1, append=1 << 16)
                column = column[:, ::-1].astype(np.uint16)
        plain = np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<"))
        about |= {"type": f"{plain.dtype.kind}{plain.itemsize}", "shape": list(plain.shape)}
        content = plain.tobytes()
        if small and plain.itemsize > 1:
            # Bytes of the same significance are alike, so they are compressed together.
            about["planes"] = True
            content = np.frombuffer(content, np.uint8).reshape(-1, plain.itemsize).T.tobytes()
        content += bytes(-len(content) % 8)
        listed.append(about)
        parts.append(content)
        start += len(content)
    head = json.dumps({**note, "columns": listed}, ensure_ascii=True).encode()
    head += b" " * (-(4 + len(head)) % 8)
    return b"".join((len(head).to_bytes(4, "little"), head, *parts))


def _once_a_pair(columns: Mapping[str, Array], values: Array) -> Array | None:
    """Return a term's values once for each relation and candidate, in the order they first occur.

    None where the term depends on more than these, as the subject score does.
    """
    pairs = columns["relation"].astype(np.int64)[:, None] << 32 | columns["candidates"]
    _, first, owner = np.unique(pairs, return_index=True, return_inverse=True)
    flat = values.ravel()
    if not np.array_equal(flat[first][owner.ravel()], flat):
        return None
    each: Array = flat[np.sort(first)]
    return each


def _in_16_bits(values: Array) -> tuple[Array, float, float]:
    """Return scores in even steps between the lowest and the highest, and these two."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    span = high - low or 1.0
    with np.errstate(invalid="ignore"):
        steps = np.rint((values.astype(np.float64) - low) / span * (_LEVELS - 1))
    steps = np.where(np.isfinite(values), np.clip(steps, 0, _LEVELS - 1), _LEVELS)
    return steps.astype(np.uint16), low, high


# ------------------------------------------------------------------------------ further


def static_files() -> dict[str, bytes]:
    """Return the front end's files by name."""
    folder = resources.files("symprompt.page") / "static"
    return {own.name: own.read_bytes() for own in folder.iterdir() if own.name[0] not in "._"}


def read_progress(folder: Folder) -> dict[str, Any]:
    """Return how far a run is and its curves so far, as plain values.

    Raises:
        RunError: there is no run, or it is damaged.
    """
    manifest = Folder(folder.path).manifest
    found: dict[str, Any] = {"state": manifest.state, "done": 0, "total": 0, "seconds": 0.0}
    rows: Any = []
    if folder.has(PROGRESS) and not manifest.finished:
        now = read_json(folder.path / PROGRESS)
        if isinstance(now, dict):
            rows = now.get("history", [])
            found |= {
                key: now[key] for key in ("stage", "done", "total", "seconds", "note") if key in now
            }
    elif folder.has(HISTORY):
        stored = read_json(folder.path / HISTORY)
        rows = (
            stored.get("epochs", stored.get("history", [])) if isinstance(stored, dict) else stored
        )
        found["seconds"] = manifest.seconds.get("training", 0.0)
    return found | {"curves": curves(rows)}


def curves(rows: Any) -> dict[str, list[list[float]]]:
    """Return every figure of the rows of a history as points: name -> [[x, y], ...]."""
    found: dict[str, list[list[float]]] = {}
    for place, row in enumerate(rows if isinstance(rows, list) else []):
        if not isinstance(row, dict):
            continue
        along = next((row[key] for key in ("epoch", "step") if _is_number(row.get(key))), place)
        for name, value in _figures(row):
            if name not in ("epoch", "step"):
                found.setdefault(name, []).append([float(along), value])
    return found


def _figures(row: Mapping[str, Any], start: str = "") -> list[tuple[str, float]]:
    found = []
    for key, value in row.items():
        if _is_number(value):
            found.append((start + str(key), float(value)))
        elif isinstance(value, dict):
            found += _figures(value, f"{start}{key} ")
    return found


def _is_number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and bool(np.isfinite(value))
