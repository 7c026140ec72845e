"""Word vectors on disk: a memory-mapped array, an index of the words, and the texts.

A run folder holds ``vectors.npy`` [words, h], ``words.npy`` [words, 4] (text, first character,
character after the last, sub-tokens) and ``texts.jsonl``; its manifest's details are the settings.
While it is being written the three end in ``.part`` and ``parts/state.json`` has how much is sure.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from symprompt.embeddings.vectors import Choice, Text, WordVectors, embed_chunks
from symprompt.errors import ConfigError, RunError
from symprompt.files.atomic import part_of, read_json_lines, reason
from symprompt.files.progress import Tick, silent
from symprompt.files.reading import refuse_pipe
from symprompt.models import LanguageModel
from symprompt.runs.environment import made_with
from symprompt.runs.folder import PARTS, Folder, Manifest, Record

_VECTORS, _WORDS, _TEXTS = "vectors.npy", "words.npy", "texts.jsonl"
_STATE = f"{PARTS}/state.json"
_SURE = ("rows", "texts", "size")
COMMAND = "embed"
# Characters of text that are made sure of together; 0 chooses by device.
_CHUNK = 0


@dataclass(frozen=True)
class Word:
    """One occurrence of a word: its row, the text it stands in and where."""

    row: int
    text: int
    start: int
    end: int
    tokens: int
    word: str


class EmbeddingStore:
    """A finished folder of word vectors, read as it is needed; final.

    Attributes:
        about: what it was made with: model, layers, pool, number of words and texts.
        vectors: [words, h], memory-mapped; of width h for each word of each text, in order.
        words: [words, 4], memory-mapped: text, first character, character after the last, number of
            sub-tokens (0: the tokenizer left the word out, and its vector is zero).
    """

    def __init__(self, folder: Path) -> None:
        run = Folder(folder)
        if run.holds_run and not run.finished:
            raise RunError(f"{folder} is not finished; go on with the command that began it.")
        self.folder = folder
        self.about: dict[str, Any] = run.manifest.details
        self.vectors: npt.NDArray[np.floating] = _load_array(folder / _VECTORS)
        self.words: npt.NDArray[np.int32] = _load_array(folder / _WORDS)
        if len(self.vectors) != len(self.words) or len(self.words) != self.about.get("words"):
            raise RunError(
                f"{folder} holds {len(self.vectors)} vectors for {len(self.words)} words; it is "
                "damaged: make it again."
            )

    @classmethod
    def load(cls, folder: str | Path) -> EmbeddingStore:
        """Open a folder that ``write_embeddings`` finished.

        Raises:
            RunError: it is missing, unfinished or damaged.
        """
        return cls(Path(folder))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def texts(self) -> list[dict[str, str]]:
        """Every text with its label, in order."""
        return read_json_lines(self.folder / _TEXTS)

    def word(self, row: int) -> Word:
        """Return the word of a row."""
        text, start, end, tokens = (int(value) for value in self.words[row])
        return Word(row, text, start, end, tokens, self.texts[text]["text"][start:end])

    def spelled(self) -> npt.NDArray[np.str_]:
        """Return every row's word as it is written."""
        texts = self.texts
        return np.array(
            [texts[text]["text"][start:end] for text, start, end, _ in self.words.tolist()],
            dtype=np.str_,
        )

    def find(self, word: str, *, ignore_case: bool = False) -> list[Word]:
        """Return a word's occurrences, in order."""
        spelled = self.spelled()
        found = np.char.lower(spelled) == word.casefold() if ignore_case else spelled == word
        return [self.word(int(row)) for row in np.flatnonzero(found)]


def write_embeddings(
    backbone: LanguageModel,
    texts: Iterable[Text],
    out: str | Path,
    choice: Choice | None = None,
    *,
    dtype: str = "float16",
    source: Mapping[str, Any] | None = None,
    total: int = 0,
    tick: Tick = silent,
) -> EmbeddingStore:
    """Write the vectors of every word of every text; what was killed goes on where it was.

    Args:
        backbone: the model, masked or causal.
        texts: the same texts in the same order each time.
        out: the folder to write. If it is finished and was made alike, it is only opened.
        choice: layers and pooling; the last layer and the mean by default.
        dtype: float16 or float32.
        source: where the texts come from; a folder made from another source is not gone on with.
        total: number of texts, for the progress; 0 if it is not known.
        tick: called with the texts done, stage "embed".

    Raises:
        ConfigError: another dtype, or layers the model does not have.
        RunError: the folder was made with other settings, or cannot be written.
    """
    chosen = choice or Choice()
    if dtype not in ("float16", "float32"):
        raise ConfigError(f"dtype of stored vectors is {dtype!r}; use float16 or float32.")
    if chosen.layers == "all":
        raise ConfigError("layers is all, which cannot be stored; name one layer or a sum.")
    chosen.check(backbone)
    folder = Folder(out)
    about: dict[str, Any] = {
        "model": backbone.source,
        "fingerprint": backbone.fingerprint,
        "layers": chosen.layers,
        "pool": chosen.pool,
        "window": chosen.window,
        "dtype": dtype,
        "width": int(backbone.model.config.get_text_config().hidden_size),
        "source": dict(source or {}),
    }
    data = hashlib.sha256(json.dumps(about["source"], sort_keys=True).encode()).hexdigest()
    finished = folder.check(COMMAND, None, resume=True, data_fingerprint=data)
    there = folder.manifest.details if folder.holds_run else about
    for key, value in about.items():
        # Where the model lies may change; its fingerprint says whether it is the same.
        if key not in ("model", "source") and there.get(key) != value:
            raise RunError(
                f"{folder.path} was made with {key} {there.get(key)!r}, not {value!r}; give "
                "another folder or delete it."
            )
    if finished:
        return EmbeddingStore.load(folder.path)
    manifest = Manifest(
        command=COMMAND,
        model=backbone.source,
        model_fingerprint=backbone.fingerprint,
        data=str(about["source"].get("corpus", "")),
        data_fingerprint=data,
        method=f"{chosen.layers}, {chosen.pool}",
        details=about,
        positions=backbone.max_length,
        **made_with(backbone.device, backbone.dtype),
    )
    with folder.undone_if_refused():
        folder.start(None, manifest)
        writer = _Writer(folder, about)
        try:
            writer.open()
            rest = islice(iter(texts), writer.texts, None)
            tick("embed", writer.texts, total or writer.texts, "texts")
            for found in embed_chunks(backbone, rest, chosen, dtype=dtype, chunk=_CHUNK):
                writer.add(found)
                note = f"texts, {writer.rows} words"
                tick("embed", writer.texts, max(total, writer.texts), note)
            writer.finish()
        except OSError as error:
            raise RunError(
                f"cannot write to {folder.path}: {reason(error)}; make room and give the same "
                f"command again, it goes on after {writer.texts} texts."
            ) from error
        finally:
            writer.close()
    counts = {"words": writer.rows, "texts": writer.texts}
    records = [Record(metric=name, value=count) for name, count in counts.items()]
    folder.finish(records=records, details={**about, **counts})
    return EmbeddingStore.load(folder.path)


class _Writer:
    """Appends vectors, words and texts; the state is renewed after each chunk is on disk."""

    def __init__(self, folder: Folder, about: dict[str, Any]) -> None:
        self.folder = folder
        self.dtype, self.width = np.dtype(about["dtype"]), int(about["width"])
        state = folder.read_json(_STATE) if folder.has(_STATE) else {}
        self.rows, self.texts, self.size = (state.get(key, 0) for key in _SURE)
        self.streams: list[BinaryIO] = []

    def _heads(self, rows: int) -> tuple[bytes, bytes, bytes]:
        words = _header(np.dtype(np.int32), (rows, 4))
        return _header(self.dtype, (rows, self.width)), words, b""

    def close(self) -> None:
        """Close the files; where nothing is sure, nothing is left."""
        for stream in self.streams:
            with suppress(OSError):
                stream.close()
            if not self.texts:
                Path(stream.name).unlink(missing_ok=True)
        if not self.texts:
            shutil.rmtree(self.folder.path / PARTS, ignore_errors=True)

    def open(self) -> None:
        """Open the files where what is sure of them ends."""
        heads = self._heads(0)
        sizes = self.rows * self.width * self.dtype.itemsize, self.rows * 16, self.size
        for name, head, size in zip((_VECTORS, _WORDS, _TEXTS), heads, sizes, strict=True):
            final = self.folder.path / name
            path, length = part_of(final), len(head) + size
            if path.is_symlink():
                path.unlink()  # nothing is written to where a link leads
            if self.texts and not path.exists() and final.exists():
                # Killed while all was done but said so: the file is in its place already.
                final.replace(path)
            if self.texts and (not path.exists() or path.stat().st_size < length):
                raise RunError(f"{path} is shorter than state.json says; delete the folder.")
            stream = path.open("r+b" if self.texts else "w+b")
            self.streams.append(stream)
            if not self.texts:
                stream.write(head)
            stream.seek(length)
            stream.truncate()

    def add(self, found: WordVectors) -> None:
        """Append some texts; they count once they are on the disk."""
        counts = np.array([len(text) for text in found.texts], dtype=np.int64)
        words = np.empty((int(counts.sum()), 4), dtype=np.int32)
        words[:, 0] = np.repeat(np.arange(len(counts)) + self.texts, counts)
        words[:, 1] = np.concatenate([text.starts for text in found.texts])
        words[:, 2] = np.concatenate([text.ends for text in found.texts])
        words[:, 3] = found.tokens
        lines = "".join(
            json.dumps({"text": text.text, "label": text.label}, ensure_ascii=False) + "\n"
            for text in found.texts
        ).encode("utf-8", errors="surrogatepass")
        parts = (found.vectors.tobytes(), words.tobytes(), lines)
        for stream, part in zip(self.streams, parts, strict=True):
            stream.write(part)
            _settle(stream)
        self.rows += len(words)
        self.texts += len(counts)
        self.size += len(lines)
        self.folder.write_json(_STATE, {key: getattr(self, key) for key in _SURE})

    def finish(self) -> None:
        """Write the true number of rows, put the files in place, and say that all is done."""
        if not self.texts:
            raise RunError(
                f"there is no text to embed into {self.folder.path}; give at least one word."
            )
        for stream, head in zip(self.streams, self._heads(self.rows), strict=True):
            stream.seek(0)
            stream.write(head)
            _settle(stream)
        for name in (_VECTORS, _WORDS, _TEXTS):
            part_of(self.folder.path / name).replace(self.folder.path / name)


def _settle(stream: BinaryIO) -> None:
    """Bring what was written to the disk."""
    stream.flush()
    os.fsync(stream.fileno())


def _header(dtype: np.dtype[Any], shape: tuple[int, int]) -> bytes:
    """Return the head of a .npy file; numpy leaves room in it, so its length is always the same."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream,
        {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape},
    )
    return stream.getvalue()


def _load_array(path: Path) -> npt.NDArray[Any]:
    refuse_pipe(path, RunError)
    try:
        found: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return found
    except (OSError, EOFError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}.") from error
