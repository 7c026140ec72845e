"""Facts and labelled sets in columns: Parquet, folders of the datasets library, frames."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

import symprompt
from symprompt.errors import ConfigError, DataError
from symprompt.facts import FactSet, load_facts
from symprompt.files.parquet import to_columns, write_parquet
from symprompt.files.reading import load_rows
from symprompt.tasks.data.load import load_examples, load_task
from tiny.models import make_facts
from tiny.runs import Call, write_csv, write_lama

pyarrow = pytest.importorskip("pyarrow")


def save_to_disk(folder: Path, rows: list[dict[str, Any]], names: dict[str, list[str]]) -> None:
    """Write rows as ``datasets.Dataset.save_to_disk`` does."""
    folder.mkdir(parents=True)
    features = {name: {"names": own, "_type": "ClassLabel"} for name, own in names.items()}
    noted = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    table = pyarrow.Table.from_pylist(rows).replace_schema_metadata(noted)
    with (
        pyarrow.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pyarrow.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


class Polars:
    """As a frame of polars gives its rows."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.to_dicts = lambda: rows


def same(one: FactSet, other: FactSet) -> None:
    assert one.names == other.names
    for name in one.names:
        assert one[name].template == other[name].template
        for split in ("train", "dev", "test"):
            assert set(one[name].split(split)) == set(other[name].split(split))  # type: ignore[arg-type]


def test_facts_are_the_same_from_every_kind_of_table(tmp_path: Path) -> None:
    import pandas

    facts = make_facts()
    write_csv(facts, tmp_path / "facts.csv")
    columns = facts.to_columns()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    write_parquet(tmp_path / "facts.parquet", columns)
    for split, name in (("train", "train"), ("dev", "validation"), ("test", "test")):
        own = [
            {k: v for k, v in row.items() if k != "split"} for row in rows if row["split"] == split
        ]
        save_to_disk(tmp_path / "saved" / name, own, {})
        write_parquet(tmp_path / "hub" / "data" / f"{name}-00000-of-00001.parquet", to_columns(own))
    (tmp_path / "saved" / "dataset_dict.json").write_text(
        json.dumps({"splits": ["train", "validation", "test"]})
    )
    wanted = load_facts(str(tmp_path / "facts.csv"))
    for name in ("facts.parquet", "saved", "hub"):
        same(load_facts(str(tmp_path / name)), wanted)
    for frame in (pandas.DataFrame(rows), Polars(rows), pyarrow.Table.from_pylist(rows), rows):
        same(FactSet.from_frame(frame), wanted)


def test_a_frame_may_have_other_columns_and_no_split() -> None:
    import pandas

    frame = pandas.DataFrame({"Land": ["France", "Italy", "Spain"], "City": ["Paris", "Rome", "?"]})
    facts = FactSet.from_frame(frame, columns={"subject": "land", "object": "city"})
    assert facts.names == ("facts",)
    assert [len(facts["facts"].split(split)) for split in ("train", "dev", "test")] == [1, 1, 1]
    frame.loc[1, "City"] = None
    with pytest.raises(DataError, match="what was given, line 2: 'object' is None"):
        FactSet.from_frame(frame, columns={"subject": "land", "object": "city"})
    with pytest.raises(DataError, match="got list, which has no rows by column"):
        FactSet.from_frame(["France"])


def test_labelled_sets_come_from_parquet_and_data_sets(tmp_path: Path) -> None:
    rows = [{"text": f"text {number} .", "label": number % 2} for number in range(12)]
    write_parquet(tmp_path / "set.parquet", to_columns(rows))
    assert load_task(str(tmp_path / "set.parquet")).labels.names == ("0", "1")
    for name in ("train", "validation", "test"):
        save_to_disk(tmp_path / "saved" / name, rows, {"label": ["bad", "good"]})
    (tmp_path / "saved" / "dataset_dict.json").write_text(
        json.dumps({"splits": ["train", "validation", "test"]})
    )
    data = load_task(str(tmp_path / "saved"), kind="sequence")
    assert data.labels.names == ("bad", "good")
    assert {split: len(own) for split, own in data.splits.items()} == dict.fromkeys(
        ("train", "dev", "test"), 12
    )
    for name in ("train", "dev"):
        write_parquet(tmp_path / "files" / f"{name}.parquet", to_columns(rows))
    assert set(load_task(str(tmp_path / "files")).splits) == {"train", "dev"}
    assert len(load_examples(tmp_path / "set.parquet", "sequence")) == 12


def test_what_is_no_parquet_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_text("subject,object")
    with pytest.raises(DataError, match=r"bad\.parquet cannot be read"):
        load_facts(str(tmp_path / "bad.parquet"))
    with pytest.raises(DataError, match="does not exist"):
        list(load_rows(tmp_path / "none.parquet"))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "state.json").write_text("{")
    with pytest.raises(DataError, match=r"state\.json cannot be read"):
        load_facts(str(tmp_path / "set"))


def test_without_pyarrow_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    write_parquet(tmp_path / "facts.parquet", make_facts().to_columns())
    real = builtins.__import__

    def fail(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(ConfigError, match=r"needs the package pyarrow.*symprompt\[parquet\]"):
        load_facts(str(tmp_path / "facts.parquet"))
    said = call("data", "export", "world", "--to", "parquet", tmp_path / "out.parquet")
    assert said.code == 2
    assert "needs the package pyarrow" in said.err


def test_facts_are_exported_from_the_command_line(tmp_path: Path, call: Call) -> None:
    write_lama(tmp_path / "lama")
    target = tmp_path / "lama.parquet"
    said = call("data", "export", tmp_path / "lama", "--to", "parquet", target)
    assert said.code == 0, said.err
    assert "3 relations" in said.out
    same(load_facts(str(target)), symprompt.load_facts(str(tmp_path / "lama")))
    assert "is there already" in call("data", "export", "world", "--to", "parquet", target).err
    assert "ends in .parquet" in call("data", "export", "world", "--to", "parquet", "a.csv").err
