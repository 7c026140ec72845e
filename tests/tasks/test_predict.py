"""predict and table on runs through patterns: every method, masked and causal; what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from symprompt.errors import ConfigError, DataError, RunError, SympromptError
from symprompt.files.atomic import read_json, read_tensors, write_json, write_tensors
from symprompt.models import LanguageModel
from symprompt.report.records import load_runs
from symprompt.runs.folder import Folder
from symprompt.tasks import predict as patterns
from symprompt.tasks.patterns.pattern import TASKS
from symprompt.tasks.predict import CARD, Card, StoredPrompt, TaskRun, predict_file
from symprompt.tasks.serve import Server
from symprompt.tasks.train import tune
from tiny.labelled import read_lines, rows_of, write_lines, write_task, write_toy
from tiny.runs import Call, unfinish
from tiny.tasks import PATTERNS, WORDS, pattern_config, run_toy

METHODS = list(PATTERNS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("data") / "RTE", "rte")


Made = Callable[..., Path]


@pytest.fixture(scope="module")
def made(
    data: Path, family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Made:
    """A function that gives the folder of a finished run, made once."""
    done: dict[tuple[str, str], Path] = {}

    def make(method: str, family: str = "bert") -> Path:
        if (method, family) not in done:
            out = tmp_path_factory.mktemp("runs") / f"{family}-{method}"
            changes = {"pattern__prefix_layers": "last:1"} if family == "mpnet" else {}
            tune(pattern_config(data, family_folder(family), out, method, **changes))
            done[method, family] = out
        return done[method, family]

    return make


def bare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "label"} for row in rows]


@pytest.mark.parametrize(
    ("method", "family"),
    [*((method, family) for method in METHODS for family in ("bert", "gpt2")), ("pt2", "mpnet")],
)
def test_a_run_answers_as_its_best_seed_did(
    method: str, family: str, made: Made, data: Path, tmp_path: Path
) -> None:
    run = made(method, family)
    out = tmp_path / "answers.jsonl"
    found = predict_file(run, data / "val.jsonl", device="cpu", out=str(out))
    seed = patterns.best_seed(Folder(run))
    stored = read_lines(run / f"predictions/{seed}.jsonl")
    for key in ("id", "prediction", "gold"):
        assert [row[key] for row in found.rows] == [row[key] for row in stored]
    assert found.metrics == pytest.approx(read_json(run / f"seeds/{seed}.json")["val"])
    assert all(0.5 <= row["probability"] <= 1 for row in found.rows)
    assert read_lines(out) == found.rows
    assert found.notes == ()
    # Without labels the answers are the same, and there are no figures.
    file = write_lines(tmp_path / "mine.jsonl", bare(rows_of("rte")))
    again = predict_file(run, file, device="cpu")
    assert again.metrics == {}
    assert [row["probability"] for row in again.rows] == [row["probability"] for row in found.rows]
    assert all("gold" not in row for row in again.rows)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_probabilities_are_the_words_shares(
    family: str, made: Made, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Zero-shot, against a pass of the whole model over one sentence written by hand."""
    backbone = LanguageModel.load(str(family_folder(family)), device="cpu", dtype="float32")
    tokenizer = backbone.vocabulary.tokenizer
    row = {"premise": "Lima lies in Peru", "hypothesis": "Rome"}
    file = write_lines(tmp_path / "one.jsonl", [row])
    run = made("zero-shot", family)
    (found,) = predict_file(run, file, device="cpu", probabilities=True).rows
    text = "Rome Lima lies in Peru" + ("" if backbone.causal else f" {tokenizer.mask_token}")
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    words = [tokenizer.encode(f" {word}", add_special_tokens=False)[0] for word in WORDS]
    with torch.no_grad():
        logits = backbone.model(input_ids=ids).logits[0]
    at = -1 if backbone.causal else int((ids[0] == tokenizer.mask_token_id).nonzero())
    shares = logits[at, words].softmax(0)
    share, label = shares.max(0)
    assert list(found["probabilities"].values()) == pytest.approx(shares.tolist(), abs=1e-5)
    assert found["probability"] == pytest.approx(float(share), abs=1e-5)
    assert found["prediction"] == TASKS["rte"].labels[int(label)]


def test_the_weights_kept_are_those_of_the_best_seed(made: Made) -> None:
    folder = Folder(made("mp"))
    assert read_tensors(folder.path / "weights.safetensors")[1]["seed"] == patterns.best_seed(
        folder
    )
    assert not (made("pt2") / "weights.safetensors").exists()
    assert not (made("zero-shot") / "weights.safetensors").exists()


def test_seeds_that_are_added_keep_better_weights_only(
    data: Path, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    config = pattern_config(data, family_folder("bert"), tmp_path / "run", "mp")
    tune(replace(config, seeds=(1,)))
    stored = read_json(tmp_path / "run/seeds/1.json")
    stored["dev"]["accuracy"] = 101.0
    write_json(tmp_path / "run/seeds/1.json", stored)
    tune(replace(config, seeds=(1, 2)), resume=True)
    assert read_tensors(tmp_path / "run/weights.safetensors")[1]["seed"] == 1
    stored["dev"]["accuracy"] = -1.0
    write_json(tmp_path / "run/seeds/1.json", stored)
    tune(replace(config, seeds=(1, 2, 3)), resume=True)
    assert read_tensors(tmp_path / "run/weights.safetensors")[1]["seed"] == 3


def test_columns_may_have_other_names_and_tables_are_read(made: Made, tmp_path: Path) -> None:
    run = made("zero-shot")
    wanted = predict_file(run, write_lines(tmp_path / "a.jsonl", rows_of("rte")), device="cpu")
    glue = "".join(
        f"{row['idx']}\t{row['premise']}\t{row['hypothesis']}\t{row['label']}\n"
        for row in rows_of("rte")
    )
    (tmp_path / "glue.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + glue)
    assert predict_file(run, tmp_path / "glue.tsv", device="cpu").rows == wanted.rows
    own = "".join(f'"{row["premise"]}","{row["hypothesis"]}"\n' for row in rows_of("rte"))
    (tmp_path / "own.csv").write_text("text,claim\n" + own)
    shares = [row["probability"] for row in wanted.rows]
    for names in (("premise=text", "hypothesis=claim"), {"premise": "text", "hypothesis": "claim"}):
        found = predict_file(run, tmp_path / "own.csv", device="cpu", columns=names)
        assert [row["probability"] for row in found.rows] == shares
    pairs = [(row["premise"], row["hypothesis"]) for row in rows_of("rte")]
    found = TaskRun.load(run).predict(pairs, device="cpu")
    assert [row["probability"] for row in found.rows] == shares
    # A column that is named otherwise is not read, so labels of something else do not matter.
    other = [row | {"label": "old"} for row in rows_of("rte")]
    file = write_lines(tmp_path / "other.jsonl", other)
    found = predict_file(run, file, device="cpu", columns=("label=none",))
    assert [row["probability"] for row in found.rows] == shares
    assert found.metrics == {}


def test_what_is_cut_is_told(made: Made, tmp_path: Path) -> None:
    row = {"premise": "the old river " * 30, "hypothesis": "Rome"}
    file = write_lines(tmp_path / "long.jsonl", [row, *bare(rows_of("rte"))])
    found = predict_file(made("zero-shot"), file, device="cpu")
    (note,) = found.notes
    assert note.startswith("examples longer than 40 tokens: 1;")
    assert len(found.rows) == 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            {"premise": "Rome"},
            r"line 1: this is no example of rte: it has no 'hypothesis', only .*--columns",
        ),
        ({"premise": "a", "hypothesis": 3}, "hypothesis is 3, which is no text"),
        (
            {"premise": "a", "hypothesis": "b", "label": "maybe"},
            "its label is 'maybe', allowed are: not_entailment, entailment",
        ),
    ],
)
def test_lines_that_are_no_examples_are_refused(
    line: dict[str, Any], message: str, made: Made, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        predict_file(made("zero-shot"), write_lines(tmp_path / "bad.jsonl", [line]), device="cpu")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "electra"}, RunError, "learned for another model"),
        ({"columns": ("text=a",)}, ConfigError, "columns are: premise, hypothesis, label, idx"),
        ({"columns": ("premise",)}, ConfigError, "give name=column"),
        ({"file": "nothing.jsonl"}, DataError, r"nothing.jsonl"),
    ],
)
def test_what_does_not_serve_is_refused(
    options: dict[str, Any],
    error: type[SympromptError],
    message: str,
    made: Made,
    data: Path,
    family_folder: Callable[[str], Path],
) -> None:
    given: dict[str, Any] = {"file": "val.jsonl"} | options
    if "model" in options:
        given["model"] = str(family_folder(options["model"]))
    file = data / given.pop("file")
    with pytest.raises(error, match=message):
        predict_file(made("pt2"), file, device="cpu", **given)


def test_runs_that_do_not_serve_are_refused(
    data: Path, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    changes = {"keep_weights": False, "seeds": [1]}
    tune(pattern_config(data, family_folder("bert"), tmp_path / "run", **changes))
    with pytest.raises(RunError, match=r"has no weights.safetensors, so it cannot answer"):
        predict_file(tmp_path / "run", data / "val.jsonl", device="cpu")
    unfinish(tmp_path / "run")
    with pytest.raises(RunError, match="unfinished run; finish it with tune --resume"):
        predict_file(tmp_path / "run", data / "val.jsonl", device="cpu")


def test_damaged_files_are_told(
    data: Path, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    tune(pattern_config(data, family_folder("bert"), run, "pt2"))
    seed = patterns.best_seed(Folder(run))
    source = run / "prompts" / f"{seed % 3 + 1}.safetensors"
    prompt = run / "prompts" / f"{seed}.safetensors"
    prompt.write_bytes(source.read_bytes()[:200])
    with pytest.raises(RunError, match=f"{seed}.safetensors is damaged: it has 200 bytes"):
        predict_file(run, data / "val.jsonl", device="cpu")
    manifest = read_json(run / "symprompt.json")
    write_json(run / "symprompt.json", manifest | {"state": "done"})
    with pytest.raises(RunError, match=r"symprompt.json is damaged: state is 'done'"):
        predict_file(run, data / "val.jsonl", device="cpu")


def test_tables_have_runs_through_patterns(made: Made) -> None:
    runs = [str(made(method)) for method in METHODS]
    records = load_runs(runs).records
    labels = ["P-tuning", "PT-2, verbalizer", "MP fine-tuning", "MP zero-shot", "[CLS] fine-tuning"]
    assert list(dict.fromkeys(record.label for record in records)) == labels
    seeds = {record.label: record.seeds for record in records if record.metric == "seconds"}
    assert (seeds["MP fine-tuning"], seeds["MP zero-shot"]) == ((1, 2, 3), (1,))
    # 2 layers x keys and values x 32 numbers x 3 places.
    trained = {record.label: record.value for record in records if record.metric == "trained"}
    assert trained["PT-2, verbalizer"] == 384
    assert "MP zero-shot" not in trained
    dev = load_runs(runs[:1], "dev").records
    stored = patterns.load_metrics(Folder(runs[0]))["dev"]["accuracy"]["values"]
    found = [record.value for record in dev if record.metric == "accuracy"]
    assert found == pytest.approx(stored, abs=1e-3)
    with pytest.raises(ConfigError, match="no figures of 'test'; --split may be one of: val, dev"):
        load_runs(runs, "test")


@pytest.mark.parametrize("task", list(TASKS))
@pytest.mark.parametrize("method", ["zero-shot", "mp", "cls"])
def test_every_task_is_answered(
    task: str, method: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = write_task(tmp_path / "data", task)
    text = "" if method == "cls" else f"{{{TASKS[task].fields[0]}}} [MASK]"
    words = (*WORDS, "Peru")[: len(TASKS[task].labels)] if TASKS[task].kind == "labels" else ()
    pattern = {"task": task, "template": text, "words": list(words)}
    changes = {f"pattern__{key}": value for key, value in pattern.items()} | {"seeds": [1, 2]}
    model, out = family_folder("bert"), tmp_path / "run"
    metrics = tune(pattern_config(folder, model, out, method, **changes)).metrics
    assert metrics["seeds"] == ([1] if method == "zero-shot" else [1, 2])
    assert set(metrics["cut"]) == {"train", "dev", "val"}
    assert not (tmp_path / "run" / "prompts").exists()
    found = predict_file(tmp_path / "run", folder / "val.jsonl", device="cpu")
    assert list(found.metrics) == list(metrics["metrics"])
    assert all(row["prediction"] in TASKS[task].labels for row in found.rows)
    written = task == "wsc" and method != "cls"
    assert all(("written" in row) == written for row in found.rows)
    assert all(("probability" in row) != written for row in found.rows)


def test_the_command_line_predicts_in_any_precision(call: Call, made: Made, data: Path) -> None:
    words = ("predict", made("pt2"), data / "val.jsonl", "--device", "cpu")
    assert "accuracy:" in call(*words)[1]
    shares = []
    for dtype in ("float32", "bfloat16"):
        code, said, error = call(*words, "--dtype", dtype, "--json")
        assert code == 0, error
        shares.append([row["probability"] for row in json.loads(said)["predictions"]])
    assert shares[0] == pytest.approx(shares[1], abs=0.2)


# ------------------------------------------------------------------------------ prompts and heads


@pytest.mark.parametrize("method", ["pt2", "pt", "lora", "ft"])
def test_predictions_are_written_and_made_of_whole_runs_alone(
    method: str, tagged: Path, tmp_path: Path, family_folder: Callable[[str], Path]
) -> None:
    bert, out, file = family_folder("bert"), tmp_path / "p.jsonl", tagged / "test.jsonl"
    run = run_toy(tagged, bert, tmp_path / "run", "tagging", method=method, learning__epochs=2)
    found = predict_file(tmp_path / "run", file, device="cpu", out=str(out))
    assert found.metrics == run.metrics["splits"]["test"]
    assert read_lines(out) == found.rows
    with pytest.raises(ConfigError, match=r"p\.jsonl exists; choose another --out, or give --ov"):
        predict_file(tmp_path / "run", file, device="cpu", out=str(out))
    with pytest.raises(RunError, match="learned for another model"):
        predict_file(tmp_path / "run", file, model=str(family_folder("electra")), device="cpu")
    for name in (run.folder.load(CARD, Card)["file"], CARD):
        (tmp_path / "run" / name).write_text("{}")
        with pytest.raises(RunError, match=name):
            predict_file(tmp_path / "run", file, device="cpu")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.nan, "holds a value that is not finite .* in prompt.prefix"),
        (3e38, "give scores that are not finite"),
    ],
)
@pytest.mark.parametrize("decoder", ["softmax", "crf"])
def test_nothing_is_predicted_from_what_is_not_finite(
    value: float,
    message: str,
    decoder: str,
    tagged: Path,
    tmp_path: Path,
    family_folder: Callable[[str], Path],
) -> None:
    run, bert = tmp_path / "run", family_folder("bert")
    run_toy(tagged, bert, run, "tagging", learning__epochs=1, head__decoder=decoder)
    tensors, about = read_tensors(run / "prompt.safetensors")
    tensors["prompt.prefix"][:] = value
    write_tensors(run / "prompt.safetensors", tensors, about)
    with pytest.raises(SympromptError, match=message):
        predict_file(run, tagged / "test.jsonl", device="cpu")
    if message.startswith("give"):
        backbone = LanguageModel.load(str(bert), device="cpu", dtype="float32")
        prompt = StoredPrompt.load(run)
        with pytest.raises(SympromptError, match=message):
            Server(backbone, [prompt]).answer({prompt.task: [["Rome"]]})


def test_a_pattern_answers_nothing_from_what_is_not_finite(
    data: Path, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    tune(pattern_config(data, family_folder("bert"), run, "pt2"))
    for file in (run / "prompts").iterdir():
        tensors, about = read_tensors(file)
        write_tensors(file, {"prefix": torch.full_like(tensors["prefix"], 3e38)}, about)
    with pytest.raises(SympromptError, match="give scores that are not finite"):
        predict_file(run, data / "val.jsonl", device="cpu")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method", "sums"),
        ("kind", ""),
        ("labels", 3),
        ("columns", ["x"]),
        ("features.max_length", "9" * 30),
        ("features.stride", 10**9),
        ("prefix.length", 10**9),
        ("lora", []),
        ("span.hidden", 10**18),
        ("base_model", None),
    ],
)
def test_a_card_with_odd_values_is_refused_before_anything_is_made_of_it(
    key: str, value: object, card_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(card_run, tmp_path / "run")
    card = read_json(run / CARD)
    outer, _, inner = key.rpartition(".")
    (card[outer] if outer else card)[inner] = value
    write_json(run / CARD, card)
    manifest = read_json(run / "symprompt.json")
    manifest["files"][CARD]["bytes"] = (run / CARD).stat().st_size
    write_json(run / "symprompt.json", manifest)
    with pytest.raises(SympromptError) as caught:
        TaskRun.load(run).predict(["Rome"], device="cpu")
    assert inner in str(caught.value)
    (run / "config.toml").write_text("x = " + "[" * 5000)
    with pytest.raises(RunError, match="holds no readable run"):
        predict_file(run, "any", device="cpu")


@pytest.fixture(scope="module")
def card_run(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    root = tmp_path_factory.mktemp("card")
    data = write_toy(root / "data", "sequence")
    run_toy(data, family_folder("bert"), root / "run", "sequence", learning__epochs=1)
    return root / "run"
