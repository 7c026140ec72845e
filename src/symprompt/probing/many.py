"""Ask a finished run the questions of a file, however many they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from symprompt.errors import ConfigError, DataError
from symprompt.facts import QUESTION_ROLES, compose, read_question
from symprompt.files.atomic import quote, to_line
from symprompt.files.progress import Tick, silent
from symprompt.files.reading import read_columns
from symprompt.files.stream import (
    Bad,
    Block,
    Format,
    Made,
    Reader,
    Shard,
    Streamed,
    check_target,
    stream,
)
from symprompt.probing.ask import Answer, Askable, Ranked, Run, rank_objects, subjects_of
from symprompt.probing.methods.base import method_class
from symprompt.probing.results import SUBJECT, SUBJECTS, load_card, load_combination, run_config

Want = Literal["", "objects", "subjects"]
_OBJECTS_AT_ONCE = 64
"""So many objects of a relation are asked back together."""
_DIGITS = 6
_BYTES_A_QUESTION = 24
"""About how long a row of a table of questions is."""
_FEWER_OPERATIONS = 10
"""By so much less does compiling save on a token that is asked than on one that is trained on: it
is read once, without gradients, and beside it questions are read and answers written."""
_FORM: dict[str, type] = {
    "line": int,
    "relation": str,
    "subject": str,
    "object": str,
    "rank": int,
    "answer": str,
    "object_score": float,
    "subject_score": float,
    "joint": float,
    "probability": float,
}


def ask_file(
    run: Run,
    file: str | Path,
    out: str | Path,
    *,
    relation: str = "",
    want: Want = "",
    columns: Mapping[str, str] | Sequence[str] = (),
    top: int = 10,
    model: str = "",
    device: str = "auto",
    overwrite: bool = False,
    shard: Shard | None = None,
    tick: Tick = silent,
) -> Streamed:
    """Ask a run the questions of a file and write the answers, in constant memory.

    Killed at any moment, the same call goes on where it was, and the file is the same to the byte
    as that of a run which was not broken. Rows that cannot be asked are listed by line beside it.

    Args:
        file: a .csv, .tsv or .jsonl table with a subject or an object, and a relation where the run
            has several; or a text file with a subject in each line.
        out: a .jsonl, .csv or .parquet file.
        relation: of rows that name none.
        want: "objects" of each row's subject or "subjects" of each row's object; without it a row
            with a subject asks for its objects, one with an object alone for its subjects.
        columns: what the file calls its columns, as {"subject": "company"}.
        top: how many answers to each question.
        model: where the model is now, if it moved since the run was made.
        device: auto, cpu, cuda, cuda:N or mps.
        overwrite: write ``out`` even if it is there.
        shard: ask these questions of the file alone, and write a piece of the answers.
        tick: called with every step of progress.

    Raises:
        SympromptError: one clear sentence.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("names.txt").write_text("Luxembourg")
        >>> asked = ask_file(Run.load("runs/spe"), "names.txt", "answers.jsonl", top=1)
        >>> asked.rows, asked.bad
        (1, 0)
    """
    reader, roles = read_questions(
        run, file, out, relation=relation, want=want, columns=columns, top=top
    )
    asker = Asker(run, relation, want, roles, top, model, device, tick, reader.path)
    backbone = run.load_backbone(model, device, tick)
    # By the size of the whole file, so that its shards are computed alike.
    tokens = reader.size / _BYTES_A_QUESTION * asker.tokens_a_question
    backbone.accelerate(tokens=tokens / _FEWER_OPERATIONS)
    about = {
        "command": "ask",
        "run": run.folder.digest,
        "relation": relation,
        "want": want,
        "columns": roles,
        "top": top,
        "device": backbone.device.type,
    }
    return stream(
        reader,
        Path(out),
        asker.start,
        form=answer_format(),
        about=about,
        overwrite=overwrite,
        shard=shard,
        tick=tick,
    )


def read_questions(
    run: Run,
    file: str | Path,
    out: str | Path,
    *,
    relation: str,
    want: Want,
    columns: Mapping[str, str] | Sequence[str],
    top: int,
) -> tuple[Reader, dict[str, str]]:
    """Return what reads a file's questions, and its columns by role; see ``ask_file``.

    Raises:
        SympromptError: the run cannot be asked so.
    """
    run.check_asking(top)
    if relation:
        run.check_relation(relation, top)
    if want == "subjects":
        run.require_subject_prompt()
    check_target(Path(out))
    roles = read_columns(columns, QUESTION_ROLES)
    return Reader(Path(file), lines_as="subject"), roles


def answer_format() -> Format:
    """Return how answers are written."""
    return Format(_FORM, _flatten)


class Asker:
    """Begins the questions of a block; what is computed depends on the block alone.

    Args:
        relation: of rows that name none.
        path: what the rows are called in errors.
    """

    def __init__(
        self,
        run: Run,
        relation: str,
        want: Want,
        roles: Mapping[str, str],
        top: int,
        model: str,
        device: str,
        tick: Tick,
        path: Path,
    ) -> None:
        self.run, self.want, self.roles, self.top, self.path = run, want, roles, top, path
        self._where = model, device, tick
        self._names = {name: place for place, name in enumerate(load_card(run.folder)["relations"])}
        self._alone = relation or (next(iter(self._names)) if len(self._names) == 1 else "")
        # Weights of whole models are too large to hold for all relations.
        self._one_by_one = method_class(run_config(run.folder).method.name).in_stacks
        self._ready: dict[int, Askable] = {}
        self._no_subjects = ""
        try:
            run.require_subject_prompt()
        except ConfigError as error:
            self._no_subjects = str(error)

    @property
    def tokens_a_question(self) -> int:
        """About how many tokens are read for a question; see ``probing.train``."""
        combination = load_combination(self.run.folder)
        prompts = len(set(SUBJECTS) & combination.weights.keys()) if combination else 0
        return 16 * (1 + 3 * prompts * (self.run.folder.manifest.details.get("k") or 0))

    def _askable(self, place: int) -> tuple[Askable, int]:
        """Return what asks a relation, and the relation's place in it."""
        key = place if self._one_by_one else -1
        if key not in self._ready:
            self._ready.clear()
            names = [list(self._names)[place]] if self._one_by_one else list(self._names)
            self._ready[key] = self.run.question(names, *self._where)
        return self._ready[key], 0 if self._one_by_one else place

    def start(self, block: Block) -> Callable[[], Made]:
        """Begin a block."""
        bad: list[Bad] = []
        forth: dict[int, list[tuple[int, int, str]]] = {}
        back: dict[int, dict[str, list[int]]] = {}
        for number, row in block.rows:
            try:
                place, subject, name = self._read(number, row)
            except DataError as error:
                bad.append((number, str(error)))
                continue
            if subject:
                group = place if self._one_by_one else 0
                forth.setdefault(group, []).append((number, place, compose(name)))
            else:
                back.setdefault(place, {}).setdefault(compose(name), []).append(number)
        waiting = [self._ask(rows, bad) for _, rows in sorted(forth.items())]
        asked_back = [self._ask_back(place, own, bad) for place, own in sorted(back.items())]

        def wait() -> Made:
            found = sorted(chain(*(wait_one() for wait_one in waiting), *asked_back))
            return Made([row for _, row in found], bad)

        return wait

    def _read(self, number: int, row: Mapping[str, object]) -> tuple[int, bool, str]:
        """Return a row's relation, whether it has a subject to ask about, and the name."""
        relation, subject, name = read_question(
            row, self.roles, self.path, number, want=self.want, relation=self._alone
        )
        if not subject and self._no_subjects:
            raise DataError(f"{self.path}, line {number}: {self._no_subjects}")
        if relation not in self._names:
            raise DataError(
                f"{self.path}, line {number}: relation {relation!r} is not in the run; name one "
                "that it has."
            )
        return self._names[relation], subject, name

    def _ask(
        self, rows: Sequence[tuple[int, int, str]], bad: list[Bad]
    ) -> Callable[[], Iterator[tuple[int, str]]]:
        """Begin to ask for the objects of subjects."""
        question, _ = self._askable(rows[0][1])
        places = np.array([0 if self._one_by_one else place for _, place, _ in rows])
        sentences, kept, wrong = question.tensorise(places, [name for _, _, name in rows])
        bad += [
            (rows[at][0], f"{self.path}, line {rows[at][0]}: {why}") for at, why in wrong.items()
        ]
        if not len(kept):
            return lambda: iter(())
        ranked, names = rank_objects(question, sentences, self.top), [*map(to_line, self._names)]
        asked = [rows[at] for at in kept.tolist()]

        def wait() -> Iterator[tuple[int, str]]:
            answers = _answers(ranked(), question.problem.text)
            for (number, place, name), own in zip(asked, answers, strict=True):
                yield (
                    number,
                    f'{{"line": {number}, "relation": {names[place]}, '
                    f'"subject": {quote(name)}, "answers": [{own}]}}',
                )

        return wait

    def _ask_back(
        self, place: int, asked: Mapping[str, list[int]], bad: list[Bad]
    ) -> list[tuple[int, str]]:
        """Ask for the subjects of a relation's objects."""
        question, here = self._askable(place)
        known: dict[str, int] = {}
        for name, numbers in asked.items():
            try:
                known[name] = question.object_id(here, name)
            except DataError as error:
                bad += [(number, f"{self.path}, line {number}: {error}") for number in numbers]
        found: list[tuple[int, str]] = []
        names, relation = list(known), list(self._names)[place]
        for start in range(0, len(names), _OBJECTS_AT_ONCE):
            some = names[start : start + _OBJECTS_AT_ONCE]
            ranked = subjects_of(question, here, [known[name] for name in some], self.top)
            for name, answers in zip(some, ranked, strict=True):
                row = {"relation": relation, "object": name, "answers": [*map(_plain, answers)]}
                found += [(number, to_line({"line": number, **row})) for number in asked[name]]
        return found


def _answers(ranked: Ranked, text: Callable[[int], str]) -> Iterator[str]:
    """Yield each question's answers as JSON, by columns; what was not asked for is left out."""
    first, own = {"object_score": ranked.object_score}, dict(ranked.others)
    if SUBJECT in own:
        first["subject_score"] = own.pop(SUBJECT)
    found = first | own
    if ranked.plain:
        found["probability"] = np.exp(ranked.object_score.astype(np.float64))
    tokens = ranked.tokens.reshape(-1).tolist()
    texts = {token: quote(text(token)) for token in {*tokens} if token >= 0}
    columns = [[f'{{"text": {texts[token]}' if token >= 0 else "" for token in tokens]]
    for name, values in found.items():
        rounded = np.round(values.astype(np.float64), _DIGITS).reshape(-1).tolist()
        # All numbers in one go: "[0.5, -Infinity, NaN]".
        written = json.dumps(rounded)[1:-1].split(", ")
        columns.append(["" if own == "NaN" else f', "{name}": {own}' for own in written])
    answers = [*map("".join, zip(*columns, strict=True))]
    width = ranked.tokens.shape[1]
    whole = [f"{own}}}" if own.startswith("{") else "" for own in answers]
    for start in range(0, len(whole), width):
        yield ", ".join(filter(None, whole[start : start + width]))


def _plain(answer: Answer) -> dict[str, Any]:
    scores = {
        "object_score": answer.object_score,
        "subject_score": answer.subject_score,
        "joint": answer.joint,
        **answer.terms,
        "probability": answer.probability,
    }
    return {"text": answer.text} | {
        name: round(value, _DIGITS) for name, value in scores.items() if value is not None
    }


def _flatten(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a line for each answer."""
    asked = {name: row.get(name) for name in ("line", "relation", "subject", "object")}
    for rank, answer in enumerate(row["answers"], 1):
        yield {**asked, **answer, "rank": rank, "answer": answer["text"]}
