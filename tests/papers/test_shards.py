"""Files asked or predicted by several jobs: the same bytes as in one go."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

import symprompt
from symprompt import Run, SympromptError, ask_file
from symprompt.cluster.executor import Event, Executor
from symprompt.cluster.machine import Jobs, Machine
from symprompt.files import stream as streaming
from symprompt.files.reading import TEXT_TABLES
from symprompt.papers import shards
from symprompt.papers.shards import AskShard, PredictShard, ShardedFile
from symprompt.probing.results import load_facts
from symprompt.tasks.predict import TaskRun
from tiny.labelled import write_toy
from tiny.models import make_facts, run_config
from tiny.runs import SEPARATE, Call, InlineExecutor, write_csv
from tiny.tasks import run_toy

BLOCK = 8


@pytest.fixture(scope="module")
def asked(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, Path]:
    """A finished run, and questions both ways, some of which are bad."""
    folder = tmp_path_factory.mktemp("asked")
    facts = make_facts().select(["capital", "in"])
    place = {
        "model": str(family_folder("bert")),
        "data": str(write_csv(facts, folder / "facts.csv")),
        "out": str(folder / "run"),
    }
    run = symprompt.train(run_config(**place, dtype="float32", method=SEPARATE))
    rows = ["relation,subject,object"]
    for number, fact in enumerate(
        fact for relation in load_facts(run.folder).relations for fact in relation.all()
    ):
        rows += [f'{fact.relation},"{fact.subject}",', f"{fact.relation},,{fact.object}"]
        rows += [""] if number % 7 == 0 else []
        rows += ["nothing,Paris,"] if number % 5 == 0 else []
        rows += ["too few"] if number % 6 == 0 else []
    path = folder / "questions.csv"
    path.write_text("\n".join(rows) + "\n\n")
    return run, path


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(streaming.Reader.__init__.__kwdefaults__, "block", BLOCK)


def shard_of(run: Run | TaskRun, file: Path, out: Path, **changes: Any) -> dict[str, Any]:
    place = {"run": str(run.folder.path), "file": str(file), "out": str(out), "device": "cpu"}
    return place | changes


class Stopping(InlineExecutor):
    """Stops after so many events that end a job, as Ctrl-C does."""

    def __init__(self, after: int) -> None:
        self.after = after

    def run(self, jobs: Sequence[Any]) -> Generator[Event, None, None]:
        for event in super().run(jobs):
            yield event
            self.after -= event.kind == "done"
            if not self.after:
                raise KeyboardInterrupt


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("count", [2, 64])
def test_answers_are_the_same_to_the_byte_however_the_file_is_cut(
    asked: tuple[Run, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    count: int,
) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    run, file = asked
    monkeypatch.setattr(streaming, "_SHARDS", count)
    whole, out = tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}"
    once = ask_file(run, file, whole, top=3, device="cpu")
    config = AskShard(**shard_of(run, file, out, top=3))
    done, _ = ShardedFile(config, Jobs(jobs=4)).make(executor=InlineExecutor())
    assert out.read_bytes() == whole.read_bytes()
    assert Path(done.bad_file).read_bytes() == Path(once.bad_file).read_bytes()
    assert (done.rows, done.bad, done.resumed) == (once.rows, once.bad, 0)
    assert {path.name for path in tmp_path.iterdir()} == {
        whole.name,
        out.name,
        f"{whole.name}.bad.jsonl",
        f"{out.name}.bad.jsonl",
    }


def test_a_broken_run_goes_on_and_other_settings_are_refused(
    asked: tuple[Run, Path], tmp_path: Path
) -> None:
    run, file = asked
    out, copy = tmp_path / "out.jsonl", tmp_path / "questions.csv"
    shutil.copy(file, copy)
    config = shard_of(run, copy, out, top=3)
    with pytest.raises(KeyboardInterrupt):
        ShardedFile(AskShard(**config), Jobs()).make(executor=Stopping(3))
    assert not out.exists()
    with pytest.raises(SympromptError, match=r"begun with other settings \(top\)"):
        ShardedFile(AskShard(**config | {"top": 2}), Jobs()).make(executor=InlineExecutor())
    with pytest.raises(SympromptError, match="begun with several jobs"):
        ask_file(run, copy, out, top=3)
    # A line of what is still to be asked is another one of the same length.
    rows = copy.read_bytes()
    copy.write_bytes(rows.replace(rows[-30:-20], b"x" * 10))
    with pytest.raises(SympromptError, match="not what it was when its first"):
        ShardedFile(AskShard(**config), Jobs()).make(executor=InlineExecutor())
    copy.write_bytes(rows)
    done, _ = ShardedFile(AskShard(**config), Jobs()).make(executor=InlineExecutor())
    assert 0 < done.resumed < done.rows
    ask_file(run, file, tmp_path / "whole.jsonl", top=3)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    with pytest.raises(SympromptError, match="exists; choose another --out"):
        ShardedFile(AskShard(**config), Jobs()).make(executor=InlineExecutor())
    assert not streaming.shards_of(out).exists()
    (tmp_path / "out.jsonl.part").write_text("of a run in one go")
    with pytest.raises(SympromptError, match="begun without --jobs and --on"):
        ShardedFile(AskShard(**config), Jobs()).make(executor=InlineExecutor())
    again, _ = ShardedFile(AskShard(**config), Jobs()).make(
        overwrite=True, executor=InlineExecutor()
    )
    assert again.resumed == 0
    assert not (tmp_path / "out.jsonl.part").exists()


def test_an_empty_file_and_a_shard_that_fails_are_told(
    asked: tuple[Run, Path], tmp_path: Path
) -> None:
    run, file = asked
    empty = tmp_path / "empty.csv"
    empty.write_text("relation,subject\n")
    out = tmp_path / "out.jsonl"
    with pytest.raises(SympromptError, match="is empty"):
        ShardedFile(AskShard(**shard_of(run, empty, out)), Jobs()).make(executor=InlineExecutor())
    assert [path.name for path in tmp_path.iterdir()] == ["empty.csv"]
    config = AskShard(**shard_of(run, file, out, model=str(tmp_path / "moved")))
    with pytest.raises(SympromptError, match=r"shard 000001 of .* failed: .*moved.*goes on"):
        ShardedFile(config, Jobs()).make(executor=InlineExecutor())


def test_the_command_asks_by_jobs(
    asked: tuple[Run, Path], tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, file = asked
    seen = []

    def make_executor(folder: Path, machine: Machine, work: str) -> Executor:
        seen.append((machine, work))
        return InlineExecutor()

    monkeypatch.setattr(shards, "make_executor", make_executor)
    words = ["ask", run.folder.path, "--file", file, "--top", 3, "--device", "cpu"]
    for name, own in {"one": [], "two": ["--jobs", 2, "--threads", 1]}.items():
        said = call(*words, "--out", tmp_path / f"{name}.jsonl", *own).done
        assert "questions in " in said
    assert seen == [(Machine(jobs=2, threads=1, devices=("cpu",)), "symprompt.papers.worker")]
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    out = tmp_path / "three.jsonl"
    said = call(*words, "--out", out, "--dry-run").done
    assert "0 done:" in said
    assert "no estimate: no shard is done." in said
    assert not streaming.shards_of(out).exists()
    monkeypatch.setattr(shards, "make_executor", lambda *_: Stopping(2))
    # Ctrl-C: what is done stays, and is counted on.
    code, _, error = call(*words, "--out", out, "--jobs", 2)
    assert code == 130
    assert "the same command goes on" in error
    code, said, _ = call(*words, "--out", out, "--dry-run", "--jobs", 3)
    assert "2 done:" in said
    assert "of work, one by one." in said
    code, _, error = call(*words, "--jobs", 2)
    assert code == 2
    assert "go with --out" in error


@pytest.fixture(scope="module")
def tuned(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[TaskRun, Path]:
    """A finished run on classes of texts, and its test examples."""
    folder = tmp_path_factory.mktemp("tuned")
    data = write_toy(folder / "data", "sequence")
    run = run_toy(data, family_folder("bert"), folder / "run", "sequence", learning__epochs=1)
    return run, data / "test.jsonl"


@pytest.mark.parametrize("labelled", [True, False])
def test_predictions_and_figures_are_those_of_one_go(
    tuned: tuple[TaskRun, Path], tmp_path: Path, labelled: bool
) -> None:
    run, file = tuned
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    if not labelled:
        rows = [{"text": row["text"]} for row in rows]
    lines = [json.dumps(row) for row in rows]
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text("\n".join([lines[0], "{", *lines[1:]]))
    assert mixed.suffix in TEXT_TABLES
    once, found = run.predict_stream(
        mixed, tmp_path / "whole.csv", device="cpu", probabilities=True
    )
    config = PredictShard(**shard_of(run, mixed, tmp_path / "out.csv", probabilities=True))
    executor: Executor = InlineExecutor()
    done, outcome = ShardedFile(config, Jobs(jobs=3)).make(executor=executor)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert (done.rows, done.bad, done.tally) == (once.rows, 1, once.tally)
    assert outcome.metrics == found.metrics
    assert bool(found.metrics) == labelled
