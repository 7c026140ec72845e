"""Tables in columns: Parquet files, Arrow files and the folders of the datasets library.

They need pyarrow, which is imported when one is read or written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from symprompt.errors import ConfigError, DataError

COLUMNAR = (".parquet", ".arrow")
_DICT, _ONE = "dataset_dict.json", "state.json"


def require_pyarrow(what: object) -> Any:
    """Return pyarrow.

    Args:
        what: is to be read or written.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"{what} needs the package pyarrow, which is not installed: pip install "
            "'symprompt[parquet]'."
        ) from None
    return pyarrow


def is_dataset(path: object) -> bool:
    """Return whether a path is a folder of the datasets library, or of Parquet files by split."""
    if not isinstance(path, Path) or not path.is_dir():
        return False
    return any((path / name).is_file() for name in (_DICT, _ONE)) or bool(_parquet_files(path))


def _parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet")) or sorted((folder / "data").glob("*.parquet"))


def load_columnar(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet or Arrow file, or of such a folder with the split of each.

    Numbers that stand for classes become the names that the datasets library gave them.

    Raises:
        DataError: a file is missing or damaged.
        ConfigError: pyarrow is not installed.
    """
    for file, split in _files(path):
        for row in _read(file):
            yield row if not split or "split" in row else {**row, "split": split}


def _files(path: Path) -> list[tuple[Path, str]]:
    """Return the files of a folder, each with its split; "" where it has none."""
    if not path.is_dir():
        return [(path, "")]
    if (path / _DICT).is_file():
        names = _json(path / _DICT).get("splits", [])
        return [(file, name) for name in names for file, _ in _files(path / name)]
    if (path / _ONE).is_file():
        listed = _json(path / _ONE).get("_data_files", [])
        return [(path / entry["filename"], "") for entry in listed]
    files = _parquet_files(path)
    if not files:
        raise DataError(f"{path} holds no table; give a .parquet file or a folder of datasets.")
    # As in train-00000-of-00002.parquet.
    return [(file, file.stem.partition("-")[0]) for file in files]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); save the data set again.") from None
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> list[dict[str, Any]]:
    arrow = require_pyarrow(path)
    try:
        if path.suffix.lower() == ".parquet":
            table = arrow.parquet.read_table(path)
        else:
            with arrow.memory_map(str(path)) as stream:
                table = arrow.ipc.open_stream(stream).read_all()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give the path of an existing file.") from None
    except (OSError, arrow.ArrowException) as error:
        why = str(error).partition("\n")[0]
        raise DataError(f"{path} cannot be read ({why}); save it again.") from None
    rows: list[dict[str, Any]] = table.to_pylist()
    for column, names in _classes(table.schema.metadata).items():
        for row in rows:
            value = row.get(column)
            if isinstance(value, int) and 0 <= value < len(names):
                row[column] = names[value]
    return rows


def _classes(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Return the names of classes by column, as the datasets library notes them."""
    try:
        noted = json.loads((metadata or {}).get(b"huggingface", b"{}"))
        features = noted["info"]["features"]
        return {
            column: list(own["names"])
            for column, own in features.items()
            if isinstance(own, dict) and own.get("_type") == "ClassLabel" and "names" in own
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns as a Parquet file, whole or not at all."""
    # Who writes whole files reads text too, and text is read beside this module.
    from symprompt.files.atomic import replacing

    arrow = require_pyarrow(path)
    table = arrow.table({name: list(own) for name, own in columns.items()})
    with replacing(path) as part:
        arrow.parquet.write_table(table, part)


def to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns; what a row lacks is None, and what is no plain value is JSON."""
    names = dict.fromkeys(name for row in rows for name in row)
    found = {name: [row.get(name) for row in rows] for name in names}
    for name, own in found.items():
        kinds = {type(value) for value in own if value is not None}
        if len(kinds - {int, float}) > 1 or kinds & {dict, list, tuple}:
            found[name] = [None if value is None else json.dumps(value) for value in own]
    return found


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a pandas or polars frame, a pyarrow table, a data set, or of plain rows.

    Raises:
        DataError: it is no table.
    """
    if hasattr(frame, "to_dicts"):  # polars
        rows = frame.to_dicts()
    elif hasattr(frame, "to_pylist"):  # pyarrow
        rows = frame.to_pylist()
    elif hasattr(frame, "to_dict") and hasattr(frame, "columns"):  # pandas
        rows = frame.to_dict("records")
    else:
        rows = list(frame)
    if not all(isinstance(row, Mapping) for row in rows):
        raise DataError(
            f"got {type(frame).__name__}, which has no rows by column; give a DataFrame of pandas "
            "or polars, a table of pyarrow, a data set, or a list of dictionaries."
        )
    # NaN is how pandas says that nothing stands there.
    return [
        {str(key): None if value != value else value for key, value in row.items()} for row in rows
    ]
