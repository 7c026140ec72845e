"""A pretraining run from text to model folder: what it learns, keeps, resumes and refuses.

Also text that is prepared once for several runs, and several processes, which together are one.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from symprompt import LanguageModel, cli, load_pretrain_config, prepare_pretraining
from symprompt.engine import loop as loop_module
from symprompt.engine.processes import ProcessGroup, is_first_process, join_group
from symprompt.errors import ConfigError, DataError, RunError
from symprompt.models.trained import KEY, Trained, read_record
from symprompt.pretraining import folder as folder_module
from symprompt.pretraining import train as run_module
from symprompt.pretraining.config import PretrainConfig
from symprompt.pretraining.folder import load_training
from symprompt.pretraining.train import PretrainResult, pretrain
from symprompt.pretraining.training import Pretrainer
from symprompt.runs.folder import Folder
from tiny.runs import Killed
from tiny.text import COLOURS, OTHERS, flags_of, interrupt_after, pretrain_config, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "colours.txt")


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, text: Path) -> PretrainResult:
    """A model that has learned the colours; tests must not change its folder."""
    config = pretrain_config(
        tmp_path_factory.mktemp("models") / "colours",
        evaluate_every=100,
        corpus={"packing": "sentences"},
        corruption={"share": 0.25},
        shape={"hidden": 64},
        learning={"batch": 48, "steps": 300, "rate": 6e-3},
    )
    return pretrain(config, [str(text)])


def unfinished(config: PretrainConfig, *text: Path) -> Path:
    """Begin a run and stop it; return its work folder."""
    with pytest.raises(KeyboardInterrupt):
        pretrain(config, [str(path) for path in text], tick=interrupt_after(3))
    return Path(config.out + ".work")


@pytest.fixture
def made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where text is prepared again."""
    for name in ("learn_tokenizer", "make_corpus"):
        monkeypatch.setattr(folder_module, name, lambda *_, **__: pytest.fail("made again"))


# ------------------------------------------------------------------------------------ what it makes


def test_it_learns_far_more_than_which_words_are_frequent(
    learned: PretrainResult, text: Path
) -> None:
    words = [word for line in text.read_text().splitlines() for word in line.split()]
    shares = [words.count(word) / len(words) for word in set(words)]
    entropy = -sum(share * math.log(share) for share in shares)
    assert learned.training["loss"]["mlm"] < 0.3 * entropy
    assert learned.training["validation"]["mlm"] < 0.3 * entropy
    assert learned.training["history"][0]["loss"] > entropy


def test_the_folder_loads_and_fills_masks_rightly(learned: PretrainResult) -> None:
    tokenizer = AutoTokenizer.from_pretrained(learned.folder)
    model = AutoModelForMaskedLM.from_pretrained(learned.folder).eval()
    for thing, colour in COLOURS.items():
        asked = tokenizer(
            f"The color of ash is grey . The color of {thing} is [MASK] .", return_tensors="pt"
        )
        place = asked["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        with torch.no_grad():
            best = model(**asked).logits[0, place].argmax()
        assert tokenizer.decode(best) == colour
    backbone = LanguageModel.load(str(learned.folder), device="cpu")
    assert backbone.max_length == 16
    assert len(backbone.vocabulary) == backbone.vocabulary_size == 110


def test_the_card_and_the_record_say_what_was_done(learned: PretrainResult, text: Path) -> None:
    card = (learned.folder / "README.md").read_text()
    training = load_training(learned.folder)
    assert training == learned.training
    assert training["passes"] == pytest.approx(300 * 48 / training["corpus"]["sequences"])
    assert 0.8 < training["tokens"] / (300 * 48 * 16) < 1
    assert training["corpus"]["documents"] == 120
    for said in (
        "colours.txt",
        "120 documents",
        "110 tokens: wordpiece, cased, learned from the text",
        f"| weights | {training['model']['parameters']:,} |",
        "| steps | 300 |",
        "| seed | 1 |",
        f"| mlm | {training['loss']['mlm']:.4f} | {training['validation']['mlm']:.4f} |",
        f"| torch | {torch.__version__} |",
        "## Limits",
    ):
        assert said in card, said
    for path in learned.folder.iterdir():
        if path.suffix != ".safetensors":
            assert str(text.parent) not in path.read_text(), path.name
            assert str(learned.folder.parent) not in path.read_text(), path.name


def test_the_card_of_uniform_shares_says_of_what_its_losses_are(text: Path, tmp_path: Path) -> None:
    config = pretrain_config(
        tmp_path / "out", corruption={"uniform": True}, vocabulary={"tokenizer": "shipped"}
    )
    card = (pretrain(config, [str(text)]).folder / "README.md").read_text()
    shares = "tokens, a new share of the tokens for every sequence, from 0 to 1 (MLM-U)"
    assert f"| corruption | {shares} |" in card
    assert "is of these shares, the validation loss of 15% of the tokens." in card
    assert "the tokenizer given as shipped" in card


@pytest.mark.parametrize(
    ("changes", "trained"),
    [
        ({}, Trained(16, 1, ("mlm",))),
        ({"objective": "mlm+nsp", "corpus": {"packing": "pairs"}}, Trained(16, 2, ("mlm", "nsp"))),
        (
            {"shape": {"family": "electra", "embedding": 8}, "learning": {"micro_batch": 5}},
            Trained(16, 1, ("mlm",)),
        ),
    ],
    ids=["blocks", "pairs", "electra"],
)
def test_the_model_records_which_positions_and_segments_were_trained(
    changes: dict[str, Any], trained: Trained, text: Path, tmp_path: Path
) -> None:
    config = pretrain_config(tmp_path / "m", **changes)
    made = pretrain(replace(config, learning=replace(config.learning, steps=3)), [str(text)])
    assert read_record(AutoConfig.from_pretrained(made.folder)) == trained
    card = (made.folder / "README.md").read_text()
    assert f"| segments | 2, of which {trained.segments} trained |" in card


def test_positions_that_no_text_reached_are_not_trained_by_record_and_look(tmp_path: Path) -> None:
    # One sentence fits a sequence and two do not: 44 of 60 positions, and one segment. The rows of
    # the others change too, for they decay.
    things = " ".join(f"{thing} is {colour}" for thing, colour in COLOURS.items())
    lines = [f"{things} {' '.join(reversed(things.split()))} We saw {word} ." for word in OTHERS]
    text = tmp_path / "text.txt"
    text.write_text("\n".join([*lines, ""] * 8))
    config = pretrain_config(
        tmp_path / "m",
        vocabulary={"size": 90},
        corpus={"packing": "sentences", "length": 60},
        shape={"hidden": 64},
        learning={"steps": 60, "rate": 3e-3, "weight_decay": 0.1},
    )
    folder = pretrain(config, [str(text)]).folder
    recorded = LanguageModel.load(str(folder), device="cpu")
    assert recorded.trained == Trained(recorded.max_length, 1, ("mlm",))
    assert 40 <= recorded.max_length <= 46
    told = f"| positions | 60, of which {recorded.max_length} trained |"
    assert told in (folder / "README.md").read_text()
    stored = json.loads((folder / "config.json").read_text())
    del stored[KEY]
    (folder / "config.json").write_text(json.dumps(stored))
    looked = LanguageModel.load(str(folder), device="cpu")
    assert looked.trained.positions == recorded.trained.positions
    # Sixty steps move the first segment too little to tell the second one from it.
    assert looked.trained.segments in (1, 2)


def test_the_work_folder_is_gone_and_the_config_repeats_the_run(
    learned: PretrainResult, text: Path, tmp_path: Path
) -> None:
    assert [path.name for path in learned.folder.parent.iterdir()] == ["colours"]
    config = load_pretrain_config(str(learned.folder / "config.toml"))
    assert config.learning.steps == 300
    short = replace(config.learning, steps=2)
    again = pretrain(replace(config, out=str(tmp_path / "m"), learning=short), [str(text)])
    assert again.training["inputs"] == learned.training["inputs"]


def test_a_finished_run_of_other_text_is_refused(learned: PretrainResult, text: Path) -> None:
    config = load_pretrain_config(str(learned.folder / "config.toml"))
    other = write_text(text.parent / "more.txt", seed=5)
    with pytest.raises(RunError, match="made with another text than is there now"):
        pretrain(replace(config, out=str(learned.folder)), [str(other)])


def test_listed_words_and_a_given_tokenizer_are_taken(
    tmp_path: Path, text: Path, learned: PretrainResult
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("chartreuse\nmauve\n")
    config = pretrain_config(
        tmp_path / "m", vocabulary={"whole_words": str(words)}, learning={"steps": 2}
    )
    made = pretrain(config, [str(text)])
    tokenizer = AutoTokenizer.from_pretrained(made.folder)
    assert tokenizer.tokenize("chartreuse") == ["chartreuse"]
    assert "2 listed words are one token each" in (made.folder / "README.md").read_text()
    assert load_pretrain_config(str(made.folder / "config.toml")).vocabulary.whole_words == (
        "words.txt"
    )
    config = pretrain_config(
        tmp_path / "given", vocabulary={"tokenizer": str(learned.folder)}, learning={"steps": 2}
    )
    given = pretrain(config, [str(text)])
    assert "the tokenizer given as colours" in (given.folder / "README.md").read_text()


# ---------------------------------------------------------------------------------------- resuming


def test_resuming_with_another_config_text_or_tokenizer_is_refused(
    tmp_path: Path, text: Path
) -> None:
    own = tmp_path / "own.txt"
    shutil.copy(text, own)
    words = tmp_path / "words.txt"
    words.write_text("mauve\n")
    config = pretrain_config(tmp_path / "m", vocabulary={"whole_words": str(words)})
    work = unfinished(config, own)
    kept = (work / "state.safetensors").read_bytes()
    changed = replace(config, learning=replace(config.learning, rate=1.0))
    with pytest.raises(RunError, match=r"another learning\.rate"):
        pretrain(changed, [str(own)], resume=True)
    # A letter is changed and nothing else: names and sizes stay.
    own.write_text(own.read_text().replace("grass", "gross", 1))
    with pytest.raises(RunError, match="another text than is there now"):
        pretrain(config, [str(own)], resume=True)
    shutil.copy(text, own)
    words.write_text("beige\n")
    with pytest.raises(RunError, match="another list of whole words"):
        pretrain(config, [str(own)], resume=True)
    words.write_text("mauve\n")
    assert (work / "state.safetensors").read_bytes() == kept
    # What does not change the recipe may change.
    made = pretrain(replace(config, checkpoint_seconds=1.0), [str(own)], resume=True)
    assert made.training["steps"] == 12


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_work_folder_that_a_kill_left_is_removed_by_the_next_start(
    kept: int, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pretrain_config(tmp_path / "m")
    removals = iter(range(kept))
    remove = Folder.remove

    def killed(folder: Folder, name: str) -> None:
        if folder.path.suffix == ".work" and next(removals, None) is None:
            raise Killed
        remove(folder, name)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "remove", killed)
        with pytest.raises(Killed):
            pretrain(config, [str(text)])
    (tmp_path / "m.work" / "state.safetensors.0a1b2c3d.part").write_bytes(b"half")
    assert pretrain(config, [str(text)]).folder == tmp_path / "m"
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_what_was_prepared_before_a_kill_is_taken_up(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    config = pretrain_config(tmp_path / "m", learning={"steps": 1})
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "_train", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pretrain(config, [str(text)])
    request.getfixturevalue("made_once")
    assert pretrain(config, [str(text)]).training["steps"] == 1


# ---------------------------------------------------------------------------------------- refusals


def test_a_work_folder_of_something_else_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    work = tmp_path / "m.work"
    work.mkdir()
    (work / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"m\.work exists and is not a run folder"):
        pretrain(pretrain_config(tmp_path / "m"), ["nowhere.txt"])
    assert [path.name for path in work.iterdir()] == ["notes.txt"]


def test_too_little_text_says_how_much_there_is(tmp_path: Path) -> None:
    text = write_text(tmp_path / "few.txt", documents=60)
    config = pretrain_config(tmp_path / "m", corpus={"held_out": 0.0}, learning={"batch": 512})
    with pytest.raises(DataError, match=r"gives \d+ sequences of 16 tokens, fewer than one batch"):
        pretrain(config, [str(text)])
    assert not (tmp_path / "m").exists()
    # What was prepared is no run to be resumed, and does not stand in the way.
    fewer = replace(config, learning=replace(config.learning, batch=8, steps=1))
    assert pretrain(fewer, [str(text)]).training["steps"] == 1
    text.write_text("")
    with pytest.raises(DataError, match="empty"):
        pretrain(replace(config, out=str(tmp_path / "n")), [str(text)])
    assert not (tmp_path / "n.work").exists()


def test_a_full_disk_at_the_end_leaves_no_half_model_and_loses_nothing(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pretrain_config(tmp_path / "m", learning={"steps": 3})

    def full(self: Pretrainer, folder: Path, dtype: torch.dtype) -> None:
        (folder / "half").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Pretrainer, "save", full)
        with pytest.raises(RunError, match=r"cannot write .*m: No space left .*--resume"):
            pretrain(config, [str(text)])
    assert [path.name for path in tmp_path.iterdir()] == ["m.work"]
    monkeypatch.setattr(run_module.Pretraining, "step", lambda *_: pytest.fail("trained again"))
    assert pretrain(config, [str(text)], resume=True).training["steps"] == 3


def test_a_full_disk_at_a_checkpoint_keeps_the_one_before(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pretrain_config(tmp_path / "m", checkpoint_seconds=0.0)
    written: list[int] = []
    write = loop_module.write_tensors

    def once(path: Path, tensors: Any, about: Any) -> None:
        if written:
            monkeypatch.setattr(
                os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left"))
            )
        written.append(about["progress"]["done"])
        write(path, tensors, about)

    monkeypatch.setattr(loop_module, "write_tensors", once)
    with pytest.raises(RunError, match=r"cannot write .*state.safetensors: No space left"):
        pretrain(config, [str(text)])
    monkeypatch.undo()
    assert written == [1, 2]
    there = {path.name for path in (tmp_path / "m.work").iterdir()} - {"progress.json"}
    assert there == {
        ".running",
        "config.toml",
        "corpus",
        "state.safetensors",
        "symprompt.json",
        "tokenizer",
        "vocabulary.json",
    }
    assert pretrain(config, [str(text)], resume=True).training["steps"] == 12


# ----------------------------------------------------------------------------------- prepared text


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """Prepared text; tests must not change it."""
    config = pretrain_config(tmp_path_factory.mktemp("prepared") / "texts")
    return prepare_pretraining(config, [str(text)]).folder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_on_prepared_text_is_the_run_on_the_text_itself(
    prepared: Path, text: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    own = pretrain(pretrain_config(tmp_path / "own"), [str(text)])
    request.getfixturevalue("made_once")
    before = snapshot(prepared)
    # The vocabulary and the share of held-out documents are those of the prepared text.
    config = pretrain_config(
        tmp_path / "m", prepared=str(prepared), vocabulary={"size": 999}, corpus={"held_out": 0.3}
    )
    made = pretrain(config)
    assert (made.folder / "model.safetensors").read_bytes() == (
        own.folder / "model.safetensors"
    ).read_bytes()
    changing = {"seconds", "first_step_seconds", "tokens_per_second", "history", "inputs"}
    for key in set(own.training) - changing:
        assert made.training[key] == own.training[key], key
    assert made.training["inputs"].items() >= own.training["inputs"].items()
    assert made.training["inputs"]["prepared text"]["seed"] == 1
    assert "made beforehand, with seed 1." in (made.folder / "README.md").read_text()
    assert 'prepared = "texts"' in (made.folder / "config.toml").read_text()
    assert snapshot(prepared) == before
    # Once more: it is finished.
    assert pretrain(config).training == made.training


def test_other_lengths_and_seeds_share_prepared_text(prepared: Path, tmp_path: Path) -> None:
    config = pretrain_config(tmp_path / "m", prepared=str(prepared), seed=9, corpus={"length": 24})
    made = pretrain(config)
    assert made.training["inputs"]["prepared text"]["seed"] == 1
    assert AutoTokenizer.from_pretrained(made.folder).model_max_length == 24


@pytest.mark.usefixtures("made_once")
def test_preparing_again_is_recognised_and_other_settings_are_refused(
    prepared: Path, text: Path
) -> None:
    config = pretrain_config(prepared)
    assert prepare_pretraining(config, [str(text)]).about["documents"] == 120
    other = replace(config, vocabulary=replace(config.vocabulary, size=100))
    with pytest.raises(RunError, match=r"another vocabulary\.size \(110, now 100\)"):
        prepare_pretraining(other, [str(text)])
    more = write_text(text.parent / "more.txt", seed=4)
    with pytest.raises(RunError, match="another text"):
        prepare_pretraining(config, [str(more)])


def test_the_work_folder_of_an_unfinished_run_is_prepared_text(text: Path, tmp_path: Path) -> None:
    work = unfinished(pretrain_config(tmp_path / "a"), text)
    made = pretrain(pretrain_config(tmp_path / "b", prepared=str(work)))
    assert made.training["steps"] == 12
    with pytest.raises(ConfigError, match="the run's own folder"):
        pretrain(pretrain_config(tmp_path / "a", prepared=str(work)), resume=True)
    assert (work / "corpus" / "corpus.json").is_file()


def test_what_is_not_prepared_text_is_refused(prepared: Path, text: Path, tmp_path: Path) -> None:
    config = pretrain_config(tmp_path / "m", prepared=str(prepared))
    broken = tmp_path / "broken"
    shutil.copytree(prepared, broken)
    (broken / "corpus" / "unigrams.bin").write_bytes(b"")
    shutil.copytree(prepared, tmp_path / "less")
    (tmp_path / "less" / "symprompt.json").unlink()
    for make, own, sources, message in (
        (pretrain, config, [text], "--text and --prepared are both given"),
        (prepare_pretraining, config, [text], "prepared already"),
        (prepare_pretraining, pretrain_config(), [text], "--out is missing"),
        (pretrain, tmp_path, [], r"holds no prepared text .*--prepare-only"),
        (pretrain, tmp_path / "nowhere", [], r"holds no prepared text .*--prepare-only"),
        (pretrain, broken, [], "its corpus is damaged or of another tokenizer"),
        (pretrain, tmp_path / "less", [], r"symprompt\.json is missing"),
    ):
        given = replace(config, prepared=str(own)) if isinstance(own, Path) else own
        with pytest.raises((ConfigError, RunError), match=message):
            make(given, [str(source) for source in sources])
    assert {path.name for path in tmp_path.iterdir()} == {"broken", "less"}


def test_resuming_on_other_prepared_text_is_refused(prepared: Path, tmp_path: Path) -> None:
    config = pretrain_config(tmp_path / "m", prepared=str(prepared))
    unfinished(config)
    more = write_text(tmp_path / "more.txt", seed=4)
    other = prepare_pretraining(pretrain_config(tmp_path / "other" / "texts"), [str(more)])
    with pytest.raises(RunError, match="another text than is there now"):
        pretrain(replace(config, prepared=str(other.folder)), resume=True)
    assert pretrain(config, resume=True).training["steps"] == 12


def test_the_command_prepares_and_trains(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_text(tmp_path / "other.txt", documents=30, seed=2)
    config = pretrain_config(tmp_path / "texts")
    sources = ["--text", f"en={text}", f"xx={other}"]
    cli.main(["pretrain", "pretrain-tiny", *flags_of(config), *sources, "--prepare-only"])
    out = capsys.readouterr().out
    assert f"prepared text: {tmp_path / 'texts'}" in out
    assert {line.split()[0] for line in out.splitlines() if len(line.split()) == 4} >= {"en", "xx"}
    assert not (tmp_path / "texts.work").exists()
    flags = ["--prepared", str(tmp_path / "texts"), "--out", str(tmp_path / "m"), "--steps", "2"]
    flags += ["--hidden", "16", "--heads", "2", "--batch", "8", "--device", "cpu"]
    # There is nothing to resume: it just begins.
    cli.main(["pretrain", "pretrain-tiny", *flags, "--save-dtype", "bfloat16", "--resume"])
    assert "sequences of each language" in capsys.readouterr().out
    stored = load_training(tmp_path / "m")
    assert stored["vocabulary"]["size"] == 110
    rows = {row["language"]: row for row in stored["corpus"]["languages"]}
    assert sum(row["after"] for row in rows.values()) == stored["corpus"]["sequences"]
    assert rows["xx"]["after"] > rows["xx"]["before"]
    card = (tmp_path / "m" / "README.md").read_text()
    assert f"| xx | {rows['xx']['before']:,} |" in card
    assert "language:\n- en\n- xx\n" in card
    weights = load_file(tmp_path / "m" / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    with pytest.raises(SystemExit) as ended:
        cli.main(["pretrain", "pretrain-tiny", *flags, "--vocabulary.size", "90"])
    assert ended.value.code == 2
    assert "vocabulary.size is 90 and the text in" in capsys.readouterr().err


# ------------------------------------------------------------------------------- several processes


def torchrun(
    processes: int, config: PretrainConfig, text: Path, *flags: str, program: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the command, or a program that calls it, in several processes."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
            *(str(processes), *(program or ("-m", "symprompt.cli")), "pretrain", "pretrain-tiny"),
            *("--text", str(text), *flags_of(config), *flags),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_two_processes_are_one(tmp_path: Path, text: Path) -> None:
    # Adam's first steps are as large for a gradient of rounding errors as for any other.
    config = pretrain_config(
        tmp_path / "two", learning={"steps": 11, "epsilon": 1e-3, "micro_batch": 3}
    )
    done = torchrun(2, config, text)
    assert done.returncode == 0, done.stderr
    # One of them speaks.
    assert done.stdout.count("model folder:") == 1
    assert done.stderr.count("training: 11/11") == 1
    one = pretrain(replace(config, out=str(tmp_path / "one")), [str(text)])
    two = load_file(tmp_path / "two/model.safetensors")
    for name, value in load_file(one.folder / "model.safetensors").items():
        torch.testing.assert_close(two[name], value, atol=2e-6, rtol=1e-4)
    assert "| device | 2 x cpu |" in (tmp_path / "two/README.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}


LOST = """
import os, signal
from symprompt.engine.loop import Loop
paused = Loop._pause
def pause(self):
    paused(self)
    if self._first:
        self.save()
    if os.environ["RANK"] == "1" and self.progress.done == 6:
        os.kill(os.getpid(), signal.SIGKILL)
Loop._pause = pause
from symprompt.cli import main
main()
"""


def test_a_lost_process_is_told_and_any_number_goes_on(tmp_path: Path, text: Path) -> None:
    config = pretrain_config(
        tmp_path / "whole", evaluate_every=3, learning={"steps": 12, "epsilon": 1e-3}
    )
    whole = pretrain(config, [str(text)])
    script = tmp_path / "lost.py"
    script.write_text(LOST)
    broken = replace(config, out=str(tmp_path / "broken"))
    lost = torchrun(2, broken, text, program=[str(script)])
    assert lost.returncode
    assert "symprompt: one of the 2 processes is lost, so this one, number 0, stops" in lost.stderr
    assert "start torchrun again with --resume" in lost.stderr
    work = tmp_path / "broken.work"
    assert work.is_dir()
    # One process, and four, go on from what two had written.
    shutil.copytree(work, tmp_path / "four.work")
    one = pretrain(broken, [str(text)], resume=True)
    done = torchrun(4, replace(config, out=str(tmp_path / "four")), text, "--resume")
    assert done.returncode == 0, done.stderr
    wanted = load_file(whole.folder / "model.safetensors")
    for folder in (one.folder, tmp_path / "four"):
        rows = zip(load_training(folder)["history"], whole.training["history"], strict=True)
        for own, row in rows:
            assert own["step"] == row["step"]
            assert own["loss"] == pytest.approx(row["loss"], rel=1e-4)
            assert (own["validation"] is None) == (row["validation"] is None)
            assert (own["validation"] or {}) == pytest.approx(row["validation"] or {}, rel=1e-4)
        for name, value in load_file(folder / "model.safetensors").items():
            torch.testing.assert_close(value, wanted[name], atol=2e-6, rtol=1e-4)


def test_the_processes_must_divide_the_batch() -> None:
    assert ProcessGroup(1, 2, torch.device("cpu")).share(8) == slice(4, 8)
    with pytest.raises(ConfigError, match=r"learning\.batch is 9 and there are 2 processes"):
        ProcessGroup(0, 2, torch.device("cpu")).share(9)


def test_one_process_is_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with join_group("cpu") as group:
        value = torch.ones(3)
        group.add_up(value)
        group.wait()
        assert value.tolist() == [1, 1, 1]
        assert (group.any(True), group.any(False)) == (True, False)
        assert group.is_first
    assert is_first_process()
