"""Text that is prepared once: what runs take from it, and what they refuse."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from symprompt import cli, prepare_pretraining, pretrain
from symprompt.errors import ConfigError, RunError
from symprompt.pretraining import folder as folder_module
from symprompt.pretraining.folder import load_training
from tiny.text import flags_of, pretrain_config, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "colours.txt")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """Prepared text; tests must not change it."""
    config = pretrain_config(tmp_path_factory.mktemp("prepared") / "texts")
    return prepare_pretraining(config, [str(text)]).folder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_on_prepared_text_is_the_run_on_the_text_itself(
    prepared: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = pretrain(pretrain_config(tmp_path / "own"), [str(text)])
    before = snapshot(prepared)
    for name in ("learn_tokenizer", "make_corpus"):
        monkeypatch.setattr(folder_module, name, lambda *_, **__: pytest.fail("made again"))
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


def test_preparing_again_is_recognised_and_other_settings_are_refused(
    prepared: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("learn_tokenizer", "make_corpus"):
        monkeypatch.setattr(folder_module, name, lambda *_, **__: pytest.fail("made again"))
    config = pretrain_config(prepared)
    assert prepare_pretraining(config, [str(text)]).about["documents"] == 120
    other = replace(config, vocabulary=replace(config.vocabulary, size=100))
    with pytest.raises(RunError, match=r"another vocabulary\.size \(110, now 100\)"):
        prepare_pretraining(other, [str(text)])
    more = write_text(text.parent / "more.txt", seed=4)
    with pytest.raises(RunError, match="another text"):
        prepare_pretraining(config, [str(more)])


def test_the_work_folder_of_an_unfinished_run_is_prepared_text(text: Path, tmp_path: Path) -> None:
    def stop(stage: str, done: int, _: int, __: str) -> None:
        if stage == "training" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(pretrain_config(tmp_path / "a"), [str(text)], tick=stop)
    work = tmp_path / "a.work"
    made = pretrain(pretrain_config(tmp_path / "b", prepared=str(work)))
    assert made.training["steps"] == 12
    with pytest.raises(ConfigError, match="the run's own folder"):
        pretrain(pretrain_config(tmp_path / "a", prepared=str(work)), resume=True)
    assert (work / "corpus" / "corpus.json").is_file()


def test_what_is_not_prepared_text_is_refused(prepared: Path, text: Path, tmp_path: Path) -> None:
    config = pretrain_config(tmp_path / "m", prepared=str(prepared))
    with pytest.raises(ConfigError, match="--text and --prepared are both given"):
        pretrain(config, [str(text)])
    with pytest.raises(ConfigError, match="prepared already"):
        prepare_pretraining(config, [str(text)])
    with pytest.raises(ConfigError, match="--out is missing"):
        prepare_pretraining(pretrain_config(), [str(text)])
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunError, match=r"holds no prepared text .*--prepare-only"):
            pretrain(replace(config, prepared=str(place)))
    broken = tmp_path / "broken"
    shutil.copytree(prepared, broken)
    (broken / "corpus" / "unigrams.bin").write_bytes(b"")
    with pytest.raises(RunError, match="its corpus is damaged or of another tokenizer"):
        pretrain(replace(config, prepared=str(broken)))
    (broken / "symprompt.json").unlink()
    with pytest.raises(RunError, match=r"symprompt\.json is missing"):
        pretrain(replace(config, prepared=str(broken)))
    assert {path.name for path in tmp_path.iterdir()} == {"broken"}


def test_resuming_on_other_prepared_text_is_refused(prepared: Path, tmp_path: Path) -> None:
    def stop(stage: str, done: int, _: int, __: str) -> None:
        if stage == "training" and done >= 3:
            raise KeyboardInterrupt

    config = pretrain_config(tmp_path / "m", prepared=str(prepared), checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        pretrain(config, tick=stop)
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
    cli.main(["pretrain", "pretrain-tiny", *flags])
    assert "sequences of each language" in capsys.readouterr().out
    stored = load_training(tmp_path / "m")
    assert stored["vocabulary"]["size"] == 110
    with pytest.raises(SystemExit) as ended:
        cli.main(["pretrain", "pretrain-tiny", *flags, "--vocabulary.size", "90"])
    assert ended.value.code == 2
    assert "vocabulary.size is 90 and the text in" in capsys.readouterr().err
