"""The command line: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import symprompt
from symprompt import LanguageModel, cli
from symprompt.config import shipped_configs
from symprompt.facts import load_facts
from symprompt.pretraining.folder import load_training
from symprompt.pretraining.training import Pretraining
from symprompt.probing.config import load_config
from symprompt.probing.results import load_metrics
from symprompt.report.tables import load_scores
from symprompt.runs.folder import Folder
from symprompt.tasks.data.examples import Columns
from symprompt.tasks.data.load import load_task
from tiny.models import CITIES, COUNTRIES, make_facts, run_config
from tiny.runs import Call, Said, other_model, write_csv
from tiny.text import flags_of, pretrain_config, write_text


@pytest.fixture(scope="module")
def model(family_folder: Callable[[str], Path]) -> Path:
    return family_folder("bert")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    facts = make_facts().select(["capital", "in"])
    return write_csv(facts, tmp_path_factory.mktemp("facts") / "facts.csv")


@pytest.fixture(scope="module")
def runs(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each learned method; tests must not change them."""
    place = {"model": str(model), "data": str(data), "dtype": "float32"}
    found = {}
    for name in ("spe", "ptuning"):
        out = tmp_path_factory.mktemp("runs") / name
        symprompt.train(run_config(**place, out=str(out), method={"name": name}))
        found[name] = out
    return found


@pytest.fixture
def train(call: Call, model: Path, data: Path, tmp_path: Path) -> Call:
    """Train with tiny settings; later flags override earlier ones."""

    def run(config: object, *flags: object) -> Said:
        given = {str(flag) for flag in flags}
        base: dict[str, object] = {
            "--model": model,
            "--data": data,
            "--out": tmp_path / "run",
            "--device": "cpu",
            "--dtype": "float32",
            "--epochs": 1,
        }
        words = [
            word for flag, value in base.items() if flag not in given for word in (flag, value)
        ]
        return call("train", config, *words, *flags)

    return run


def assert_one_sentence(said: Said) -> str:
    """A user's mistake, met before anything was done."""
    assert all(line.startswith(("acceleration: ", "symprompt: ")) for line in said.err.splitlines())
    return said.refusal


# ---------------------------------------------------------------------------------------- help


@pytest.mark.parametrize(
    ("command", "mentioned"),
    [
        (["train"], ["--model", "--out", "--epochs", "--resume", "lama-spe", "my-facts"]),
        (["train", "lama-spe"], ["--model", "--epochs", "--template", "(default: separate)"]),
        (["pretrain"], ["--text", "--out", "--resume", "pretrain-medium", "--corpus.alpha"]),
        (["pretrain", "pretrain-tiny"], ["--size INT", "(default: 4000)", "torchrun"]),
        (["ask"], ["--relation", "--subject", "--object", "--json"]),
        (["table"], ["--by", "--filtered", "--weight", "--format", "--json"]),
        (["data", "check"], ["--model", "--layout", "--json", "world"]),
        (["data"], ["data check"]),
        (["configs"], ["NAME"]),
        (["demo"], ["--out"]),
        (["tune"], ["conll2003-pt2", "--prefix.length INT"]),
        (
            ["reproduce", "spe"],
            ["--models", "--data", "--memory-gib", "--prompts", "--dry-run", "Stop it"],
        ),
        (
            ["reproduce", "ptuning-v2"],
            ["--from-results", "--limit", "--epochs", "not measured", "--dry-run", "Stop it"],
        ),
        (["serve"], ["curl $ADDRESS/ask"]),
        (["senses"], ["usage", "senses tag"]),
        (["reproduce"], ["reproduce spe", "reproduce bear", "reproduce ptuning-v2"]),
        ([], ["train", "pretrain", "ask", "table", "data", "reproduce", "configs"]),
    ],
)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_teaches_every_command(
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    mentioned: list[str],
    flag: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = call(*command, flag)
    assert said.code == 0
    assert said.err == ""
    for word in mentioned:
        assert word in said.out, word


def test_switches_are_described_in_the_form_that_the_text_is_about(call: Call) -> None:
    said = call("train", "lama-spe", "--help").out
    for name in ("keep-encoder", "drop-last", "uhn", "strict", "model-dropout"):
        assert f"--{name}, --no-{name}\n" in said or f"--{name}, --no-{name} " in said


def test_a_stream_that_cannot_show_a_character_gets_its_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)

    def speak(_: Any) -> None:
        print("São Tomé")
        raise symprompt.SympromptError("no Tomé.")

    monkeypatch.setattr("symprompt.cli.table.run_configs", speak)
    with pytest.raises(SystemExit):
        cli.main(["configs"])
    for stream, wanted in ((out, b"S\\xe3o Tom\\xe9\n"), (err, b"symprompt: no Tom\\xe9.\n")):
        stream.flush()
        assert stream.buffer.getvalue() == wanted  # type: ignore[attr-defined]


def test_the_core_is_imported_without_the_terminal() -> None:
    code = (
        "import sys, symprompt\n"
        "sys.modules['rich'] = None\n"
        "assert callable(symprompt.train)\n"
        "assert 'symprompt.report' not in sys.modules\n"
        "assert callable(symprompt.show_progress)\n"
        "assert not hasattr(symprompt, 'shown_progress')\n"
        "from symprompt import *\n"
        "assert Run and Answer and train and show_progress\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "words", [None, "--help", "configs", "train --help", "tune fewglue-rte --help", "pretrain -h"]
)
def test_help_and_lists_load_no_model_library(words: str | None) -> None:
    call = f"from symprompt import cli; cli.main({words.split()})" if words else ""
    code = (
        "import atexit, sys, symprompt\n"
        "heavy = {'torch', 'transformers', 'numpy', 'rich'}\n"
        "atexit.register(lambda: sys.stderr.write(' '.join(heavy & set(sys.modules))))\n" + call
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_the_version_is_printed(call: Call) -> None:
    assert call("--version") == Said(0, symprompt.__version__ + "\n", "")


def test_no_command_prints_the_commands_and_fails(call: Call) -> None:
    said = call()
    assert said.code == 2
    assert "train" in said.out


# -------------------------------------------------------------------------------------- configs

EXAMPLES = {
    "tickets.csv": "sequence",
    "paraphrase.tsv": "pair",
    "coherence.tsv": "pair",
    "names": "tagging",
    "parts-of-speech": "words",
    "nested": "spans",
    "relations": "relations",
    "questions": "question",
}


def test_configs_are_listed_by_command_with_what_they_are(call: Call) -> None:
    said = call("configs").done
    lines = said.splitlines()
    named = [line.split() for line in lines if line.startswith("  ")]
    assert sorted(words[0] for words in named) == sorted(shipped_configs())
    assert all(len(words) > 1 for words in named)
    assert max(map(len, lines)) <= 80
    heads = [line for line in lines if line.startswith("for ")]
    assert heads == [f"for symprompt {command}:" for command in ("train", "pretrain", "tune")]


def test_a_shipped_config_is_printed_as_it_is(call: Call) -> None:
    said = call("configs", "lama-spe-paper")
    assert said == Said(0, shipped_configs()["lama-spe-paper"].read_text(), "")


def test_examples_are_written_once_and_read_by_their_configs(call: Call, tmp_path: Path) -> None:
    assert call("examples", tmp_path / "examples").done
    assert len(load_facts(str(tmp_path / "examples/facts.csv")).relations) == 3
    columns = {
        "tickets.csv": Columns(text="ticket", label="team"),
        "paraphrase.tsv": Columns(first="sentence1", second="sentence2", label="same"),
    }
    for name, kind in EXAMPLES.items():
        path, own = tmp_path / "examples" / name, columns.get(name, Columns())
        data = load_task(path, kind=kind, columns=own)
        assert set(data.splits) == {"train", "dev", "test"}
        assert load_task(path, columns=own).kind == kind
    assert "not an empty folder" in assert_one_sentence(call("examples", tmp_path / "examples"))


# ---------------------------------------------------------------------------------------- train


def test_training_with_a_shipped_config_and_flags_writes_that_run(
    train: Call, tmp_path: Path, data: Path
) -> None:
    said = train("my-facts", "--seed", 5, "--k", 3, "--relations", "in", "--weight-decay", 0.1).done
    config = load_config(str(tmp_path / "run/config.toml"))
    assert (config.seed, config.method.k, config.facts.relations) == (5, 3, ("in",))
    assert config.learning.weight_decay == 0.1
    assert config.prompt.encoder == "free"  # from the config file
    assert config.data == str(data)
    metrics = load_metrics(Folder(tmp_path / "run"))
    mrr = metrics["test"]["raw"]["realistic"]["mean over facts"]["mrr"]
    assert f"{mrr:.2f}" in said
    assert "4 facts, 1 relation, seed 5" in said
    assert f"run folder: {tmp_path / 'run'}" in said


def test_progress_goes_to_stderr_line_by_line_without_a_terminal(train: Call) -> None:
    said = train("my-facts", "--epochs", 2, "--batch", 4)
    lines = [line.split(",")[0] for line in said.err.splitlines()]
    stages = dict.fromkeys(line.split(":")[0] for line in lines)
    asked = ["asking dev", "asking back dev", "asking test", "asking back test"]
    assert list(stages) == ["acceleration", "training", *asked]
    assert {"training: 16/16 epoch 2", *(f"{stage}: 8/8" for stage in asked)} <= set(lines)
    assert "training:" not in said.out.split("facts, ")[0]


def test_training_with_a_toml_file_and_flags_over_it(train: Call, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('seed = 3\n[method]\nname = "ptuning"\nk = 2\n[learning]\nbatch = 2\n')
    assert train(path, "--seed", 4).done
    config = load_config(str(tmp_path / "run/config.toml"))
    assert (config.seed, config.method.name, config.learning.batch) == (4, "ptuning", 2)


def test_a_finished_run_is_shown_again_without_training(train: Call) -> None:
    first, again = train("my-facts"), train("my-facts")
    assert again.code == 0
    assert again.out == first.out
    assert again.err == ""


MUCH = ("train my-facts --data x --out y", "pretrain pretrain-tiny --text x --out y")
LOWER = "lower --max-tokens or --batch or --train-limit"


def test_an_interrupted_run_says_how_to_go_on_and_does(
    train: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("symprompt.probing.evaluate.predict", interrupt)
        said = train("my-facts")
    assert said.code == 130
    assert said.err.splitlines()[-1] == "interrupted; a run in training goes on with --resume."
    assert not Folder(tmp_path / "run").finished
    assert "--resume" in assert_one_sentence(train("my-facts"))
    assert train("my-facts", "--resume").code == 0
    assert Folder(tmp_path / "run").finished


@pytest.mark.parametrize(
    ("words", "error", "told"),
    [
        (MUCH[0], torch.OutOfMemoryError("much text"), LOWER),
        (MUCH[0], MemoryError(), LOWER),
        (MUCH[0], RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), LOWER),
        (MUCH[1], torch.OutOfMemoryError("much text"), "lower --micro-batch or --batch"),
    ],
)
def test_out_of_memory_is_one_sentence(
    words: str, error: Exception, told: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("symprompt.cli.facts.train", fail)
    monkeypatch.setattr("symprompt.cli.pretraining.pretrain", fail)
    assert told in assert_one_sentence(call(*words.split()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_ends_as_an_interruption_does(
    number: signal.Signals, train: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)
    monkeypatch.setattr("symprompt.cli.facts.train", lambda *_, **__: os.kill(os.getpid(), number))
    said = train("my-facts")
    assert said.code == 130
    assert said.err.splitlines()[-1] == "interrupted; a run in training goes on with --resume."
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_resume_is_named_only_where_it_is_a_flag(command: str, call: Call) -> None:
    # A line of its own, not a word of the text above.
    flag = "\n  --resume" in call(*command.split(), "--help").done
    assert ("--resume" in cli.how_to_go_on([*command.split(), "more"])) == flag


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["senses", "train", "corpus"], "the same command goes on"),
        (
            ["reproduce", "spe", "--out", "my folder"],
            "goes on where it was: symprompt reproduce spe --out 'my folder'",
        ),
        (["senses", "evaluate", "train"], "starts from the beginning"),
        (["isotropy", "text"], "starts from the beginning"),
        (["predict", "run", "file"], "starts from the beginning"),
        (["embed", "text"], "the same command goes on"),
        (["demo"], "the same command goes on"),
        (["reproduce", "spe"], "the same command goes on"),
        ([], "starts from the beginning"),
    ],
)
def test_commands_that_go_on_say_so(words: list[str], said: str) -> None:
    assert said in cli.how_to_go_on(words)


# ------------------------------------------------------------------------- bad input to training


@pytest.fixture
def refused(train: Call, tmp_path: Path) -> Callable[..., str]:
    """Train with bad input: one sentence, exit code 2, and no run folder."""

    def run(config: object, *flags: object) -> str:
        message = assert_one_sentence(train(config, *flags))
        assert not (tmp_path / "run").exists()
        return message

    return run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed = 1", "unknown key sed; did you mean seed?"),
        ("[learning]\nepoch = 1", "unknown key learning.epoch; did you mean learning.epochs?"),
        ("seed = ", "is not valid TOML"),
    ],
)
def test_a_bad_config_file_is_refused(
    refused: Callable[..., str], tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "bad.toml").write_text(text + "\n")
    assert message in refused(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lama-spee", "did you mean lama-spe?"),
        ("my-facts --model=", "--model is missing"),
        ("my-facts --data=", "--data is missing"),
        ("my-facts --out=", "--out is missing"),
        ("my-facts --model ./no-model", "no-model"),
        ("my-facts --device gpu", "device 'gpu' is not known"),
        ("my-facts --relations capitol", "relation 'capitol' is not in"),
        ("my-facts --relations capitol", "'capital'"),
        ("my-facts --rate fast", "learning.rate is 'fast'; it must be of type float."),
        ("my-facts --name guess", "method.name is 'guess'; allowed are: autoprompt, finetune"),
        ("my-facts --epoch 3", "unknown flag --epoch; did you mean --epochs?"),
        ("my-facts --drop-last=maybe", "learning.drop_last is 'maybe'; it must be of type bool."),
        ("my-facts --no-rate", "unknown flag --no-rate; did you mean --rate?"),
    ],
)
def test_bad_words_are_refused(refused: Callable[..., str], words: str, message: str) -> None:
    assert message in refused(*words.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("", "is empty"),
        ("subject,relation,object\n", "has a header but no facts"),
        ("subject,relation,object\na,in,b\nc,in\n", "line 3: got 2 cell(s)"),
        ('subject,relation,object\na,in,b\nc,in,"d\n', "line 3: the cells cannot be read"),
        ("subject,relation\na,in\n", "no column 'obj_label' or 'object'"),
        ("subject,relation,object\nParis,,b\n", "line 2: 'relation' is empty"),
    ],
)
def test_bad_data_is_refused_with_its_line(
    refused: Callable[..., str], tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "bad.csv"
    if content is not None:
        path.write_text(content)
    said = refused("my-facts", "--data", path)
    assert message in said
    assert str(path) in said


def test_an_object_of_several_tokens_is_refused_with_strict_and_counted_without(
    refused: Callable[..., str], train: Call, data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "more.csv"
    path.write_text(data.read_text() + "York,in,Unheardof,test,\n")
    message = refused("my-facts", "--data", path, "--strict")
    assert "1 fact cannot be used, the first in relation in (test)" in message
    assert "object is not one token" in message
    said = train("my-facts", "--data", path).done
    assert "left out: 1 fact, object is not one token of the model" in said


def test_a_relation_without_usable_facts_is_named(
    refused: Callable[..., str], data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "more.csv"
    lines = [f"York,tongue,Unheardof{split},{split},\n" for split in ("train", "dev", "test")]
    path.write_text(data.read_text() + "".join(lines))
    message = refused("my-facts", "--data", path)
    assert "relation tongue has no usable train, dev and test facts" in message
    assert "3 dropped: object is not one token" in message


def test_unusable_relations_are_left_out_named_and_shown_under_every_table(
    refused: Callable[..., str], train: Call, call: Call, data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "more.csv"
    lines = [f"York,tongue,Unheardof{split},{split},\n" for split in ("train", "dev", "test")]
    lines += [f"York,twin,Paris,{split},\n" for split in ("train", "test")]
    path.write_text(data.read_text() + "".join(lines))
    message = refused("my-facts", "--data", path)
    assert "2 relations cannot be used; no usable train, dev and test facts: tongue (3" in message
    assert "no usable dev facts: twin; add facts" in message
    assert "leave them out with --skip-unusable" in message
    note = (
        "2 relations left out (no usable train, dev and test facts: tongue; no usable dev "
        "facts: twin)"
    )
    spe, back = tmp_path / "spe", tmp_path / "back"
    said = train("my-facts", "--data", path, "--skip-unusable", "--out", spe, "--method.k", 3).done
    assert note in said
    assert "left out: 2 facts, their relation cannot be used" in said
    plain = tmp_path / "plain"
    assert train("my-facts", "--data", data, "--out", plain, "--method.k", 3).code == 0
    name = "predictions/test.safetensors"
    assert (spe / name).read_bytes() == (plain / name).read_bytes()
    manifest = json.loads((spe / "symprompt.json").read_text())
    assert list(manifest["details"]["skipped"]) == ["tongue", "twin"]
    assert call("rerank", spe, "--with", spe, "--out", back, "--device", "cpu").code == 0
    for words in (["table", spe], ["table", back, "--format", "markdown"], ["diff", spe, plain]):
        assert note in call(*words).out
    assert any(note in own for own in json.loads(call("table", spe, "--json").out)["notes"])
    checked = call("data", "check", path, "--model", spe_model(spe))
    assert f"with --skip-unusable: {note}" in checked.out
    checked = call("data", "check", path, "--model", spe_model(spe), "--skip-unusable", "--json")
    assert list(json.loads(checked.out)["skipped"]) == ["tongue", "twin"]


def spe_model(run: Path) -> str:
    return str(json.loads((run / "symprompt.json").read_text())["model"])


def test_relations_with_too_few_subjects_are_left_out(train: Call, tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    pairs = list(zip(COUNTRIES, CITIES, strict=True))
    rows = [f"{country},capital,{city}" for country, city in pairs]
    rows += [f"{pairs[0][0]},{name},{pairs[0][1]}" for name in ("twin", "near")]
    path.write_text("subject,relation,object\n" + "\n".join(rows))
    said = train("my-facts", "--data", path)
    assert "2 relations have too few subjects to be dealt to splits: near, twin" in said.err
    said = train("my-facts", "--data", path, "--skip-unusable")
    assert "2 relations left out (too few subjects to deal to splits: near, twin)" in said.out


def test_a_relation_without_a_manual_template_is_named(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "bare.csv"
    path.write_text("subject,relation,object,split\nFrance,capital,Paris,test\n")
    message = refused("lama-manual", "--data", path, "--k", 3)
    assert "relation capital has no manual template" in message


def test_a_model_folder_without_weights_is_refused(
    refused: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    (folder / "model.safetensors").unlink()
    assert str(folder) in refused("my-facts", "--model", folder)


def test_a_relation_with_few_answers_is_asked_for_all_of_them_and_that_is_said(
    call: Call, train: Call, tmp_path: Path
) -> None:
    flags = ("--vocabulary", "objects", "--k", 50, "--epochs", 0)
    said = train("my-facts", *flags).done
    assert "asked back: K = 7 (all answers in 1 relation with fewer); weights" in said
    for relation, count in (("capital", 5), ("in", 7)):
        asked = ("--relation", relation, "--subject", "Oslo", "--device", "cpu", "--json")
        answers = json.loads(call("ask", tmp_path / "run", *asked).out)["answers"]
        assert [own["joint"] is None for own in answers] == [False] * count
    assert len(answers) > 5


def test_a_run_of_another_model_is_refused(
    refused: Callable[..., str], call: Call, model: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    other = other_model(model, tmp_path / "other")
    flags = ("--model", other, "--start-from", runs["spe"])
    assert "was made by another model" in refused("my-facts", *flags)
    question = ("--relation", "in", "--subject", "Oslo", "--device", "cpu", "--model", other)
    assert "made by another model" in assert_one_sentence(call("ask", runs["spe"], *question))


def test_a_finished_run_is_refused_once_its_model_was_replaced(
    train: Call, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "model")
    assert train("my-facts", "--model", tmp_path / "model").code == 0
    assert train("my-facts", "--model", tmp_path / "model").code == 0
    shutil.rmtree(tmp_path / "model")
    other_model(model, tmp_path / "model")
    message = assert_one_sentence(train("my-facts", "--model", tmp_path / "model"))
    assert "was begun with other weights than are there now" in message


def test_a_loss_that_breaks_in_the_last_step_of_an_epoch_names_the_relation(train: Call) -> None:
    message = train("lama-spe", "--rate", 1e30).err.splitlines()[-1]
    assert "relation " in message
    assert "lower learning.rate" in message


# ------------------------------------------------------------------------------------------ ask


def test_answers_are_a_table_with_all_three_scores(call: Call, runs: dict[str, Path]) -> None:
    flags = ("--relation", "in", "--subject", "Oslo", "--device", "cpu")
    said = call("ask", runs["spe"], *flags, "--top", 3).done
    asked = json.loads(call("ask", runs["spe"], *flags, "--top", 5, "--json").out)
    assert f"joint = object score + {asked['weights']['subject']:.3g} x subject score." in said
    plain = asked["answers"]
    assert len(plain) == 5
    assert plain == sorted(plain, key=lambda answer: -answer["joint"])
    for answer in plain[:3]:
        row = next(line for line in said.splitlines() if f" {answer['text']} " in line)
        for name in ("object_score", "subject_score", "joint"):
            assert f"{answer[name]:.3f}" in row
    assert said.startswith("in: Oslo ?")
    assert sum("%" in line for line in said.splitlines()) == 3


@pytest.mark.parametrize("name", ["names.txt", "names.csv"])
def test_many_subjects_are_asked_from_a_file(
    call: Call, runs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("subject\n" * name.endswith("csv") + "Oslo\noslo\n\nNew York\n")
    flags = ("--relation", "in", "--device", "cpu", "--top", 2)
    said = call("ask", runs["spe"], "--file", tmp_path / name, *flags)
    plain = json.loads(call("ask", runs["spe"], "--file", tmp_path / name, *flags, "--json").out)
    assert [own["subject"] for own in plain] == ["Oslo", "oslo", "New York"]
    assert [(own["known"], own["nearest"]) for own in plain][:2] == [(True, ""), (False, "Oslo")]
    assert "oslo (did you mean Oslo?)" in said.out
    for own in plain:
        subject = ("--subject", own["subject"])
        alone = json.loads(call("ask", runs["spe"], *subject, *flags, "--json").out)["answers"]
        assert [answer["text"] for answer in alone] == [answer["text"] for answer in own["answers"]]
        first = own["answers"][0]
        assert first["joint"] == pytest.approx(alone[0]["joint"], abs=1e-4)
        row = {own["subject"].split()[0], first["text"]}
        assert any(row <= {*line.split()} for line in said.out.splitlines())


def test_a_model_is_asked_by_a_template_without_a_run(call: Call, tmp_path: Path) -> None:
    flags = ("--template", "The capital of [X] is [Y] .", "--device", "cpu", "--top", 3)
    said = call("ask", *flags, "--subject", "France").done
    assert said.startswith("The capital of [X] is [Y] .: France ?")
    (tmp_path / "names.txt").write_text("France\n")
    (own,) = json.loads(call("ask", *flags, "--file", tmp_path / "names.txt", "--json").out)
    assert (own["subject"], own["known"], len(own["answers"])) == ("France", None, 3)


# ---------------------------------------------------------------------------------------- table

FEW = ("--draws", "20")


def test_one_run_is_shown_with_its_numbers(call: Call, runs: dict[str, Path]) -> None:
    said = call("table", runs["spe"], *FEW)
    metrics = load_metrics(Folder(runs["spe"]))["test"]
    for mean, values in metrics["raw"]["realistic"].items():
        assert mean.capitalize() in said.out
        assert f"{values['mrr']:.2f}" in said.out
    assert said.err == ""
    assert "minus" not in said.out


def test_two_runs_are_compared_fact_by_fact(call: Call, runs: dict[str, Path]) -> None:
    said = call("table", runs["ptuning"], runs["spe"], *FEW).done
    assert "minus ptuning" in said
    plain = json.loads(call("table", runs["ptuning"], runs["spe"], *FEW, "--json").out)
    assert [run["title"] for run in plain["runs"]] == ["ptuning", "spe"]
    assert plain["differences"][0]["to"] == plain["runs"][0]["name"]
    assert plain["relations"] == []
    assert plain["bootstrap"]["draws"] == 20


def test_a_table_by_relation_has_every_relation(call: Call, runs: dict[str, Path]) -> None:
    plain = json.loads(call("table", runs["spe"], "--by", "relation", *FEW, "--json").out)
    metrics = load_metrics(Folder(runs["spe"]))["test"]["relations"]
    found = {row["relation"]: row["runs"][0] for row in plain["relations"]}
    assert found.keys() == metrics.keys()
    for name, values in metrics.items():
        assert found[name]["mrr"]["value"] == pytest.approx(values["mrr"])
        assert found[name]["facts"] == values["facts"]
    assert "By relation" in call("table", runs["spe"], "--by", "relation", *FEW).out


def test_any_run_may_be_the_baseline(call: Call, runs: dict[str, Path]) -> None:
    both, alone = (runs["ptuning"], runs["spe"]), (runs["ptuning"],)
    for given in (both, alone):
        said = call("table", *given, "--baseline", f"{runs['spe']}/", *FEW, "--json")
        plain = json.loads(said.out)
        assert len(plain["runs"]) == 2
        (row,) = plain["differences"]
        assert (row["name"], row["to"]) == (str(runs["ptuning"]), str(runs["spe"]))


def test_own_runs_become_a_page_and_a_figure(
    call: Call, runs: dict[str, Path], tmp_path: Path
) -> None:
    page, figure = tmp_path / "table.html", tmp_path / "table.png"
    paths = (runs["ptuning"], runs["spe"])
    assert call("table", *paths, "--html", page, "--figure", figure, *FEW).code == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "<td>spe</td>" in text
    assert 'src="data:image/png;base64,iVBOR' in text


def test_every_format_has_the_figures_of_the_values(call: Call, runs: dict[str, Path]) -> None:
    paths = (runs["ptuning"], runs["spe"])
    plain = json.loads(call("table", *paths, *FEW, "--format", "json").out)
    assert plain == json.loads(call("table", *paths, *FEW, "--json").out)
    written = call("table", *paths, *FEW, "--by", "relation", "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(written)))
    for own in plain["runs"]:
        for mean in ("mean over relations", "mean over facts"):
            (row,) = (
                row
                for row in rows
                if row["run"] == own["label"] and row["table"].lower().startswith(mean)
            )
            assert float(row["P@1"]) == pytest.approx(own[mean]["p1"]["value"], abs=0.005)
            assert float(row["MRR high"]) == pytest.approx(own[mean]["mrr"]["high"], abs=0.005)
    (change,) = (
        row for row in rows if "minus" in row["run"] and row["table"].startswith("Mean over f")
    )
    assert 0 <= float(change["P@1 p"].removeprefix("< ")) <= 1
    assert {row["relation"] for row in rows if row["table"].startswith("By relation")}
    assert "& P@1 & P@10 & MRR" in call("table", *paths, *FEW, "--format", "latex").done
    written = call("table", *paths, *FEW, "--format", "markdown").done
    assert "| run | facts | P@1 | P@10 | MRR |" in written
    assert "|---|---:|---:|---:|---:|" in written


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {}),
        (["--filtered"], {"filtered": True}),
        (["--k", "2"], {"k": 2}),
        (["--weight", "3"], {"weight": 3.0}),
        (["--weight", "0"], {"weight": 0.0}),
        (["--split", "dev"], {"split": "dev"}),
        (["--ranks", "pessimistic"], {"kind": "pessimistic"}),
    ],
)
def test_flags_of_the_table_choose_the_ranks(
    call: Call, runs: dict[str, Path], flags: list[str], options: dict[str, Any]
) -> None:
    plain = json.loads(call("table", runs["spe"], *flags, *FEW, "--json").out)
    rank = load_scores(str(runs["spe"]), **options).rank
    wanted = 100 * (1 / rank).mean()
    assert plain["runs"][0]["mean over facts"]["mrr"]["value"] == pytest.approx(wanted)
    # Filtered ranks stand beside raw ones where a subject with several objects makes a difference.
    filtered = load_scores(str(runs["spe"]), **options | {"filtered": True}).rank
    beside = plain["runs"][0].get("filtered")
    assert (beside is None) == (filtered == rank).all()
    if beside:
        wanted = 100 * (1 / filtered).mean()
        assert beside["mean over facts"]["mrr"]["value"] == pytest.approx(wanted)


def test_forward_adds_a_row_only_where_a_run_asked_back(call: Call, runs: dict[str, Path]) -> None:
    plain = json.loads(call("table", runs["spe"], runs["ptuning"], "--forward", *FEW, "--json").out)
    assert [run["title"] for run in plain["runs"]] == ["spe forward", "spe", "ptuning"]
    metrics = load_metrics(Folder(runs["spe"]))["test"]["forward"]
    wanted = metrics["realistic"]["mean over facts"]["mrr"]
    assert plain["runs"][0]["mean over facts"]["mrr"]["value"] == pytest.approx(wanted)


# ----------------------------------------------------------------------------------- data check


def test_facts_of_a_file_are_counted(call: Call, data: Path) -> None:
    said = call("data", "check", data, "--model", "").done
    row = next(line.split() for line in said.splitlines() if line.split()[:1] == ["in"])
    # train, dev, test, objects, majority, right, repeats, seen, named, turned
    assert row == ["in", "7", "3", "4", "8", "France", "25.0", "%", "0", "2", "0", "0"]
    assert "left out: none" in said
    plain = json.loads(call("data", "check", data, "--model", "", "--json").out)
    assert plain["facts"] == {"train": 12, "dev": 8, "test": 8}
    assert [row["name"] for row in plain["relations"]] == ["capital", "in"]


def test_world_facts_are_counted(call: Call) -> None:
    said = call("data", "check", "world", "--relations", "capital", "--model", "", "--json")
    plain = json.loads(said.out)
    assert [row["name"] for row in plain["relations"]] == ["capital"]
    assert plain["facts"]["test"] > 10
    assert "capital" in call("data", "check", "world", "--model", "").out


def test_with_a_model_objects_of_several_tokens_are_counted(call: Call, model: Path) -> None:
    flags = ("data", "check", "world", "--relations", "capital", "--json", "--model")
    whole, kept = (json.loads(call(*flags, name).out) for name in ("", model))
    dropped = kept["dropped_by_reason"]["object is not one token of the model"]
    assert dropped > 100
    assert sum(kept["facts"].values()) + dropped == sum(whole["facts"].values())
    # Some of the eight capitals that the tiny model knows as words.
    assert 1 <= sum(kept["facts"].values()) <= 8


def test_named_objects_are_left_out_on_request(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "facts.csv"
    path.write_text("subject,relation,object,split\nNew York,in,York,test\nOslo,in,Peru,test\n")
    plain = json.loads(call("data", "check", path, "--uhn", "--model", "", "--json").out)
    assert plain["facts"]["test"] == 1
    assert sum(plain["dropped_by_reason"].values()) == 1


def test_columns_are_named_and_bad_rows_left_out_by_flags(call: Call, tmp_path: Path) -> None:
    rows = "".join(f"c{i},Paris\n" for i in range(9))
    (tmp_path / "seats.csv").write_text(f"company,city\n{rows}bad\n,\n")
    flags = ("--columns", "subject=company", "object=city", "--model", "")
    said = call("data", "check", tmp_path / "seats.csv", *flags)
    assert "2 rows cannot be used" in said.err
    assert said.code == 2
    flags = (*flags, "--bad-rows", "skip")
    said = call("data", "check", tmp_path / "seats.csv", *flags)
    assert "seats" in said.out
    assert "left out: 2 facts, row cannot be used" in said.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", "'trian' is no command (did you mean train?)"),
        ("trian", "train, pretrain, tune, predict, ask, table"),
        ("reproduce v3", "takes one of the commands spe, bear, ptuning, ptuning-v2, got v3"),
        ("configs lama-sp", "did you mean lama-spe?"),
        ("configs own.toml", "lama-spe"),
        ("ask --subject a", "either a run folder or a --template"),
        ("ask run --subject a --words", "--words goes with --template"),
        ("ask --template [X][Y] --object a", "leave --object and --relation out"),
        ("ask --template [X]<2>[Y] --subject a", "has vectors that are to be learned"),
        ("ask --template [X] --subject a", "it needs exactly one [X]"),
        ("ask --template [X][Y]", "give either a --subject or an --object"),
        ("ask --template [X][Y] --file no.txt", "no.txt does not exist"),
        ("ask SPE --relation out --subject Oslo", "relation 'out' is not in"),
        ("ask SPE --relation in", "either a --subject or an --object"),
        ("ask SPE --relation in --subject=", "the subject is empty"),
        ("ask SPE --relation in --object Oslo", "not one token"),
        ("ask SPE --relation in --subject a --top -1", "top is -1"),
        ("ask PTUNING --relation in --object France", "learned no subject prompt"),
        ("ask . --relation in --subject Oslo", "is not a run folder"),
        ("table SPE --k 6", "k is 6, but"),
        ("table SPE --k -1", "k is -1; it must be at least 0"),
        ("table SPE --weight -1", "weight is -1.0; it must be at least 0"),
        ("table SPE --json --format csv", "give one of them"),
        ("table SPE --format word", "text, markdown, csv, latex, json"),
        ("table SPE --figure table.gif", "give a name that ends in .png, .svg, .pdf"),
        ("table PTUNING --weight 1", "did not ask back"),
        ("table", "RUNS is missing"),
        ("table .", "is not a run folder"),
        ("similarity a[b] [c]d --figure a.gif", "ends in .png, .svg, .pdf"),
        ("senses evaluate s --data x --figure a.gif", "ends in .png, .svg, .pdf"),
        ("data", "data takes one of the commands check, export, vocabulary, got nothing"),
        ("data chek", "got chek"),
        ("data check nowhere.csv", "nowhere.csv does not exist"),
        ("data check world --model= --strict", "about a model's tokens"),
        ("data check world --model= --vocabulary objects", "name the model with --model"),
        ("data check world --relations capitol", "did you mean 'capital'"),
        ("data check world --model ./no-model", "no-model"),
        ("train --model x", "no config was named; give a TOML file, or one of: bear-"),
        ("train --model x", "my-facts"),
        ("train pretrain-small", "pretrain-small is a config for symprompt pretrain, not"),
        ("pretrain lama-spe", "lama-spe is a config for symprompt train, not for symprompt"),
        ("pretrain pretrain-tin", "did you mean pretrain-tiny?"),
        ("pretrain pretrain-tiny", "--text is missing"),
        ("pretrain pretrain-tiny --text x", "--out is missing"),
        ("pretrain pretrain-tiny --text no.txt --out x", "no.txt does not exist"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    call: Call,
    runs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"SPE": runs["spe"], "PTUNING": runs["ptuning"]}
    assert message in assert_one_sentence(call(*(places.get(own, own) for own in words.split())))
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------- pretrain


@pytest.fixture
def pretrain(call: Call, tmp_path: Path) -> Call:
    """Pretrain with tiny settings; changes are tables or top-level values of the config."""
    text = write_text(tmp_path / "text.txt")

    def run(*flags: object, config: object = "pretrain-tiny", **changes: Any) -> Said:
        base = flags_of(pretrain_config(tmp_path / "model", **changes))
        given = () if "--text" in flags else ("--text", text)
        return call("pretrain", config, *base, *given, *flags)

    return run


def test_pretraining_tells_what_it_made_and_how_to_use_it(
    pretrain: Call, call: Call, tmp_path: Path
) -> None:
    said = pretrain()
    assert said.code == 0, said.err
    training = load_training(tmp_path / "model")
    assert f"{training['loss']['mlm']:.3f}" in said.out
    assert f"{training['validation']['mlm']:.3f}" in said.out
    assert "tokens/s" in said.out
    assert f"model folder: {tmp_path / 'model'}" in said.out
    hint = next(line for line in said.out.splitlines() if line.startswith("ask it: symprompt "))
    assert call(*shlex.split(hint)[3:], "--device", "cpu").done
    stages = [line.split(":")[0] for line in said.err.splitlines()]
    assert list(dict.fromkeys(stages)) == [
        "checking",
        "vocabulary",
        "reading",
        "tokenising",
        "acceleration",
        "training",
    ]
    again = pretrain()
    assert (again.code, again.out) == (0, said.out)
    assert "training" not in again.err


@pytest.mark.parametrize("there", [True, False])
def test_a_loss_curve_is_drawn_if_matplotlib_is_there(
    pretrain: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setattr("symprompt.cli.pretraining.can_draw", lambda: there)
    said = pretrain("--steps", 2).done
    assert (tmp_path / "model/loss.png").exists() == there
    assert ("matplotlib is not installed" in said) != there


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "mlm+nsp", "corpus": {"packing": "pairs", "length": 32}},
        {"objective": "mlm+sbo", "corruption": {"kind": "spans", "share": 0.3}},
        {"shape": {"family": "electra", "embedding": 8}, "corpus": {"packing": "sentences"}},
        {"corruption": {"kind": "words"}, "vocabulary": {"kind": "unigram", "size": 42}},
        {"corruption": {"kind": "deletion"}, "vocabulary": {"kind": "bpe", "size": 320}},
        {"corruption": {"kind": "insertion"}},
        {"corruption": {"kind": "reordering", "share": 0.4}},
        {"corruption": {"kind": "substitution"}, "vocabulary": {"cased": False, "size": 90}},
    ],
)
def test_every_objective_and_corruption_goes_from_text_to_model(
    pretrain: Call, tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert pretrain("--steps", 3, **changes).done
    training = load_training(tmp_path / "model")
    assert list(training["loss"]) == changes.get("objective", "mlm").split("+")
    assert all(0 < value < 20 for value in training["validation"].values())
    # Deletion never reaches the last positions.
    deleted = changes.get("corruption", {}).get("kind") == "deletion"
    least = 14 if deleted else 16
    assert LanguageModel.load(str(tmp_path / "model"), device="cpu").max_length >= least


def test_an_interrupted_pretraining_goes_on(
    pretrain: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Pretraining.step

    def interrupted(training: Pretraining, number: int) -> None:
        step(training, number)
        if number == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Pretraining, "step", interrupted)
        said = pretrain()
    assert said.code == 130
    assert said.err.splitlines()[-1] == "interrupted; a run in training goes on with --resume."
    assert not (tmp_path / "model").exists()
    assert "--resume" in pretrain().err
    said = pretrain("--resume")
    assert said.code == 0
    assert "training: 5/12" in said.err
