"""What a run states about itself: how it was made, which files it has, and its results as records.

Every command's folder holds one manifest, ``symprompt.json``. Tables are made from the records of
manifests, so they need neither torch nor the code that made the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from symprompt.errors import RunError

T = TypeVar("T")
_IDENTITY = ("command", "model", "data", "method", "seeds")


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Record(_Plain):
    """One figure: what was asked, the metric's name and its value.

    In a manifest the run's own command, model, data, method and seeds are left out.

    Attributes:
        metric: its name; figures in percent unless the name says otherwise.
        n: the items that the value is a mean over.
        seeds: whose mean the value is; usually one.
        label: what a table calls the row; "" for the method.
        settings: in which ways of measuring or configuring the records of a file differ.
        low, high: the 95 % interval.
        versus: the method whose value was subtracted, "" where the value is no difference.
        p: of the difference, two-sided.
    """

    metric: str
    value: float
    n: int | None = None
    split: str = ""
    command: str = ""
    model: str = ""
    data: str = ""
    method: str = ""
    seeds: tuple[int, ...] = ()
    label: str = ""
    settings: dict[str, Any] = {}
    low: float | None = None
    high: float | None = None
    versus: str = ""
    p: float | None = None


class FileEntry(_Plain):
    """A file of a run: its size, and the digest of one that holds predictions."""

    bytes: int
    sha256: str = ""


class Manifest(_Plain):
    """How a run was made and what came of it; final.

    Attributes:
        command: the command that made it: train, rerank, tune, pretrain, embed, senses, ...
        state: "finished" is written last.
        data: what the run is about: facts, a task, texts.
        data_fingerprint: digest of the data; "" where the config and the files say it all.
        seeds: of all random draws; none where nothing is drawn.
        acceleration: what was chosen to be faster, and why not more.
        versions: of this package and those it computes with.
        incidental: config keys in which the same run may differ.
        seconds: time by stage.
        files: all but the manifest and the config, by path within the folder.
        details: what this command alone states, such as counts of what was left out.
    """

    command: str
    state: Literal["begun", "finished"] = "begun"
    model: str = ""
    model_fingerprint: str = ""
    data: str = ""
    data_fingerprint: str = ""
    method: str = ""
    seeds: tuple[int, ...] = ()
    device: str = ""
    dtype: str = ""
    acceleration: str = ""
    versions: dict[str, str] = {}
    incidental: tuple[str, ...] = ()
    seconds: dict[str, float] = {}
    files: dict[str, FileEntry] = {}
    details: dict[str, Any] = {}
    records: tuple[Record, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.state == "finished"

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.bytes for entry in self.files.values())

    def full_records(self) -> list[Record]:
        """Return the records with the run's own command, model, data, method and seeds."""
        own = {key: getattr(self, key) for key in _IDENTITY}
        return [
            record.model_copy(
                update={key: value for key, value in own.items() if not getattr(record, key)}
            )
            for record in self.records
        ]

    def to_json(self) -> bytes:
        """Return the manifest as JSON, a record a line."""
        plain = self.model_dump(mode="json", exclude={"records"}, exclude_defaults=True)
        return records_to_json({"command": self.command, "state": self.state} | plain, self.records)


def records_to_json(head: Mapping[str, Any], records: Sequence[Record]) -> bytes:
    """Return a JSON object whose last entry is a list of records, each on one line."""
    plain = (record.model_dump(mode="json", exclude_defaults=True) for record in records)
    lines = ",\n".join("  " + json.dumps(record, ensure_ascii=False) for record in plain)
    text = json.dumps({**head, "records": []}, indent=1, ensure_ascii=False)
    listed = f"[\n{lines}\n ]" if lines else "[]"
    return (text.removesuffix("[]\n}") + f"{listed}\n}}\n").encode()


def validated(kind: type[T], value: Any, where: object) -> T:
    """Return a value read from a file as the type it must have: a model or a typed dictionary.

    Raises:
        RunError: a key is missing or has another type; one sentence that names it.
    """
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise RunError(f"{where} is damaged: {key} is missing.") from error
        got = repr(first["input"])
        got = got if len(got) <= 60 else got[:57] + "..."
        raise RunError(
            f"{where} is damaged: {key or 'it'} is {got} ({first['msg'].rstrip('.')})."
        ) from error
