"""Every command's run folder keeps one contract; kills and --resume are in tests/engine.

Golden flows are the runs: what made them, their records and files are stated, another config,
command or model is refused, a read-only or damaged folder is one sentence, tables read them all.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from symprompt import cli
from symprompt.runs.folder import MANIFEST, Folder
from tiny.runs import Said, accept_files, other_model, unfinish

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
from flows import FLOWS, Inputs


@dataclass(frozen=True)
class Made:
    """A finished run: the words that made it, and its folder."""

    words: tuple[str, ...]
    place: Path


NAMES = {
    "train": "manual",
    "tune": "tune-sequence-pt2",
    "patterns": "pattern-manual",
    "pretrain": "pretrain-mlm",
    "embed": "embed",
    "senses": "senses",
}
COMMANDS = {"patterns": "tune"}
CHANGED = {
    "train": ("--seed", "6"),
    "tune": ("--seed", "6"),
    "patterns": ("--max-length", "39"),
    "pretrain": ("--seed", "6"),
    "embed": ("--pool", "first"),
    "senses": ("--pool", "first"),
}


def call(*words: str) -> Said:
    """Run the command line, also where a fixture of the module does."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            cli.main(list(words))
    except SystemExit as end:
        code = int(end.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return Inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def runs(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """A finished run of every command; tests work on copies."""
    place = tmp_path_factory.mktemp("runs")
    found = {}
    for command, flow in NAMES.items():
        words = [inputs.fill(word) for word in FLOWS[flow].commands[0]]
        number = words.index("--out") + 1
        words[number] = str(place / command)
        assert call(*words).done
        found[command] = Made(tuple(words), place / command)
    return found


def copied(made: Made, tmp_path: Path) -> tuple[list[str], Path]:
    """Copy a run; return the words that would make the copy, and its place."""
    shutil.copytree(made.place, tmp_path / "run")
    words = [str(tmp_path / "run") if word == str(made.place) else word for word in made.words]
    return words, tmp_path / "run"


@pytest.mark.parametrize("command", NAMES)
def test_the_manifest_states_the_run(command: str, runs: dict[str, Made]) -> None:
    folder = Folder(runs[command].place)
    own = folder.require_finished(COMMANDS.get(command, command))
    assert own.records
    assert own.device == "cpu"
    assert own.dtype == "float32"
    assert {"symprompt", "torch", "transformers"} <= set(own.versions)
    there = {
        path.relative_to(folder.path).as_posix(): path.stat().st_size
        for path in folder.path.rglob("*")
        if path.is_file() and "occurrences" not in path.parts  # a run of its own
    }
    listed = {name: entry.bytes for name, entry in own.files.items()}
    # What a model's page says of the run is written after the manifest.
    unlisted = {MANIFEST, "config.toml", "README.md", "loss.png"}
    assert {name: size for name, size in there.items() if name not in unlisted} == {
        name: size for name, size in listed.items() if name not in unlisted
    }
    predictions = [name for name in listed if name.startswith("predictions/")]
    assert all(own.files[name].sha256 for name in predictions)
    assert bool(predictions) == (command in ("train", "tune", "patterns"))


@pytest.mark.parametrize("command", NAMES)
def test_a_finished_run_is_left_as_it_is_and_another_is_refused(
    command: str, runs: dict[str, Made], tmp_path: Path
) -> None:
    words, place = copied(runs[command], tmp_path)
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*.safetensors")}
    assert call(*words).done
    after = {path: path.stat().st_mtime_ns for path in place.rglob("*.safetensors")}
    if command != "senses":  # made anew from stored vectors, which takes no time
        assert after == before
    assert str(place) in call(*words, *CHANGED[command]).refusal


@pytest.mark.parametrize("command", ["train", "tune", "patterns", "embed", "senses"])
def test_another_model_is_refused(
    command: str, runs: dict[str, Made], inputs: Inputs, tmp_path: Path
) -> None:
    words, place = copied(runs[command], tmp_path)
    unfinish(place)
    model = Path(words[words.index("--model") + 1])
    shutil.copytree(model, tmp_path / "model")
    words = [str(tmp_path / "model") if word == str(model) else word for word in words]
    config = place / "config.toml"
    if config.exists():
        config.write_text(config.read_text().replace(str(model), str(tmp_path / "model")))
    shutil.rmtree(tmp_path / "model")
    other_model(model, tmp_path / "model")
    resume = ["--resume"] if config.exists() else []
    assert "other" in call(*words, *resume).refusal


@pytest.mark.parametrize("command", NAMES)
def test_a_damaged_manifest_is_one_sentence(
    command: str, runs: dict[str, Made], tmp_path: Path
) -> None:
    _, place = copied(runs[command], tmp_path)
    for content in ("", "[]", '{"command": 7}'):
        (place / MANIFEST).write_text(content)
        assert str(place / MANIFEST) in call("table", str(place)).refusal
    (place / MANIFEST).unlink()
    assert "run" in call("table", str(place)).refusal


def elsewhere(made: Made, place: Path) -> list[str]:
    """Return the command that made a run, with another folder to write."""
    return [str(place) if word == str(made.place) else word for word in made.words]


@pytest.mark.parametrize("command", NAMES)
def test_what_a_kill_in_the_first_write_leaves_is_no_obstacle(
    command: str, runs: dict[str, Made], tmp_path: Path
) -> None:
    words = elsewhere(runs[command], tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / f"{MANIFEST}.0a1b2c3d.part").write_bytes(b"{")
    if command == "pretrain":
        shutil.rmtree(tmp_path / "run")
    assert call(*words).done
    assert Folder(tmp_path / "run").finished


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("command", NAMES)
def test_a_read_only_place_is_one_sentence(
    command: str, runs: dict[str, Made], tmp_path: Path
) -> None:
    words = elsewhere(runs[command], tmp_path / "fixed/run")
    (tmp_path / "fixed").mkdir(mode=0o500)
    assert "cannot write" in call(*words).refusal


def test_tables_and_lists_read_runs_of_every_command(runs: dict[str, Made]) -> None:
    place = runs["train"].place.parent
    rows = {row["name"]: row for row in json.loads(call("runs", str(place), "--json").done)}
    assert set(NAMES) <= set(rows)
    for command in NAMES:
        row = rows[command]
        assert row["command"] == COMMANDS.get(command, command)
        assert row["state"] == "finished"
        assert row["figure"]
        assert row["bytes"] > 0
    assert "main figure" in call("runs", str(place)).done
    places = [str(made.place) for made in runs.values()]
    records = json.loads(call("table", *places, "--json").done)["records"]
    assert {record["command"] for record in records} == {
        COMMANDS.get(command, command) for command in NAMES
    }
    said = call("table", *places, "--format", "markdown").done
    assert all(text in said for text in ("P@1", "accuracy", "mlm loss", "words", "senses"))


# ----------------------------------------------------------------------------- code of a folder


def hostile_copy(model: Path, folder: Path, kind: str) -> tuple[Path, Path]:
    """Copy a model whose files name code of its own; return the copy and what the code writes."""
    shutil.copytree(model, folder)
    marker = folder.with_suffix(".ran")
    (folder / "evil.py").write_text(
        f"open({str(marker)!r}, 'w').close()\n"
        "from transformers import BertConfig as C, BertForMaskedLM as M, BertTokenizer as T\n"
    )
    classes = {"AutoConfig": "evil.C", "AutoModelForMaskedLM": "evil.M"}
    classes |= {"AutoModel": "evil.M", "AutoTokenizer": ["evil.T", "evil.T"]}
    named = {
        "config.json": {"auto_map": classes},
        "tokenizer_config.json": {"auto_map": classes, "tokenizer_class": "EvilTokenizer"},
    }
    if kind == "unknown model":
        named["config.json"]["model_type"] = "evil"
    for name, change in named.items():
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return folder, marker


@pytest.mark.parametrize("kind", ["known model", "unknown model"])
def test_no_command_runs_code_of_a_model_folder(
    kind: str,
    runs: dict[str, Made],
    inputs: Inputs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = {
        name: hostile_copy(inputs[name], tmp_path / name, kind) for name in ("bert", "worldly")
    }
    bert = str(models["bert"][0])
    places = {str(inputs[name]): str(folder) for name, (folder, _) in models.items()}
    places |= {str(made.place): str(tmp_path / f"{name}-run") for name, made in runs.items()}
    made = {name: [places.get(word, word) for word in made.words] for name, made in runs.items()}
    train, tune, pretrain = (str(runs[name].place) for name in ("train", "tune", "pretrain"))
    commands = [
        *made.values(),
        [*made["pretrain"], "--vocabulary.tokenizer", bert, "--out", str(tmp_path / "given")],
        ["ask", train, "--relation", "capital", "--subject", "France", "--model", bert],
        ["predict", tune, str(inputs["sequence"] / "test.jsonl"), "--model", bert],
        ["data", "check", str(inputs["facts"]), "--model", bert],
        ["data", "vocabulary", "--models", bert, pretrain, "--out", str(tmp_path / "words.txt")],
        ["similarity", "the old [bank]", "the river [bank]", "--model", bert],
        ["prompts", "show", train, "--model", bert],
    ]
    for words in commands:
        monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
        code, _, err = call(*words)
        assert code in (0, 2), (words, err)
        assert sys.stdin.read() == "y\n" * 9, f"{words} asked"
        assert not any(marker.exists() for _, marker in models.values()), f"{words} ran code"


# ----------------------------------------------------------------------------- damaged files

DEEP = {".toml": "a = " + "[" * 50_000, ".json": "[" * 50_000, ".jsonl": "[" * 50_000}
TABLES = "[" + "a." * 3_000 + "a]"


def damages(path: Path) -> Iterator[tuple[str, bytes]]:
    """Give what a file may hold by accident or malice, each with a name."""
    whole = path.read_bytes()
    yield from (("empty", b""), ("binary", bytes(range(256))), ("cut", whole[: len(whole) // 2]))
    yield "deep", DEEP[path.suffix].encode()
    if path.suffix == ".toml":
        yield "deep tables", TABLES.encode()
        for line in whole.decode().splitlines():
            key, equals, _ = line.partition(" = ")
            if equals:
                yield f"{key} = []", whole.replace(line.encode(), f"{key} = []".encode())
        return
    first, _, rest = (whole.partition(b"\n")) if path.suffix == ".jsonl" else (whole, b"", b"")
    content = json.loads(first)
    for key in content if isinstance(content, dict) else ():
        for value in (-1, []):
            changed = [content | {key: value}]
            if key == "details":
                changed += [content | {key: content[key] | {own: value}} for own in content[key]]
            for number, own in enumerate(changed):
                yield f"{key} {number} = {value!r}", json.dumps(own).encode() + b"\n" + rest


@pytest.mark.parametrize("command", NAMES)
def test_damaged_files_end_in_one_sentence(
    command: str, runs: dict[str, Made], inputs: Inputs, tmp_path: Path
) -> None:
    _, place = copied(runs[command], tmp_path)
    readers = [["table", str(place)]]
    if command == "train":
        asked = ("--relation", "capital", "--subject", "France", "--device", "cpu")
        readers.append(["ask", str(place), *asked])
    if command in ("tune", "patterns"):
        files = {"tune": inputs["sequence"] / "test.jsonl"}
        file = files.get(command, inputs["superglue"] / "RTE" / "val.jsonl")
        readers.append(["predict", str(place), str(file), "--device", "cpu", "--json"])
    manifest = (place / MANIFEST).read_bytes()
    for path in sorted(path for path in place.rglob("*") if path.suffix in DEEP):
        whole = path.read_bytes()
        for name, content in damages(path) if "token" not in path.name else ():
            path.write_bytes(content)
            if path.name not in (MANIFEST, "config.toml") and "occurrences" not in path.parts:
                accept_files(place)
            for words in readers:
                said = call(*words)
                assert said.code == 0 or said.refusal, (words, path, name)
                if name in ("empty", "binary", "cut", "deep") and path == place / MANIFEST:
                    assert said.code == 2, (words, name)
            if path.name == MANIFEST:
                assert call("runs", str(tmp_path)).code == 0, (path, name)
        path.write_bytes(whole)
        (place / MANIFEST).write_bytes(manifest)
