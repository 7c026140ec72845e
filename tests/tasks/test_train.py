"""Runs on labelled tasks: steps against a plain loop, what is learned, mixtures, refusals."""

from __future__ import annotations

import json
import random
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import symprompt
from symprompt import cli
from symprompt.config import build, shipped_configs
from symprompt.engine.loop import Loop, Progress
from symprompt.errors import ConfigError, DataError, RunError, TrainingError
from symprompt.files.atomic import read_tensors
from symprompt.runs.folder import Folder
from symprompt.tasks.config import (
    LearningConfig,
    TaskConfig,
    TuneConfig,
    load_tune_config,
)
from symprompt.tasks.data.load import SETS
from symprompt.tasks.kinds import KINDS
from symprompt.tasks.predict import CARD, Card, StoredPrompt, TaskRun, load_metrics, predict_file
from symprompt.tasks.prepare import read_task
from symprompt.tasks.train import Session, tune
from symprompt.tasks.training import Score, TaskTraining, plan_epoch
from tiny.labelled import (
    read_lines,
    write_entities,
    write_lines,
    write_spans,
    write_task,
    write_toy,
)
from tiny.models import LANDS, TONGUES
from tiny.runs import other_model, unfinish
from tiny.tasks import pattern_config, run_toy, toy_config


class Lines:
    """Two linear maps as body and head, and inputs with classes: a model for the loop."""

    def __init__(self, seed: int = 0, rows: int = 37) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
        self.classes = (self.inputs[:, 0] > 0).long()
        self.weights = torch.randint(1, 4, (rows,), generator=generator).double()
        self.body = nn.Parameter(torch.randn(5, 3, generator=generator, dtype=torch.float64))
        self.head = nn.Parameter(torch.randn(3, 2, generator=generator, dtype=torch.float64))
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.on = False
        parameters = {"body": self.body, "unused": self.unused}
        backbone = SimpleNamespace(device=torch.device("cpu"))
        self.tuned = SimpleNamespace(parameters=lambda: parameters, backbone=backbone)

    def head_parameters(self) -> dict[str, nn.Parameter]:
        return {"head": self.head}

    def loss(self, task: str, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        assert self.on
        scores = self.inputs[rows] @ self.body @ self.head
        losses = functional.cross_entropy(scores, self.classes[rows], reduction="none")
        return losses, self.weights[rows]

    @contextmanager
    def training(self) -> Iterator[None]:
        self.on = True
        yield
        self.on = False


def train_lines(
    model: Lines, config: LearningConfig, score: Score | None = None
) -> tuple[TaskTraining, Progress]:
    """Train the lines; without a score the last epoch is the best, so it is what stays."""
    lengths = np.arange(len(model.inputs)) % 20 + 1
    rising = iter(range(100))
    score = score or (lambda: (float(next(rising)), 0.0, {}))
    training = TaskTraining(model, {"toy": lengths}, config, score, seed=5)
    return training, Loop(training).run()


@pytest.mark.parametrize("schedule", ["linear", "exponential", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.3])
def test_the_loop_is_adamw_on_the_weighted_mean(schedule: str, warmup: float) -> None:
    config = LearningConfig(
        rate=0.03,
        head_rate=0.01,
        weight_decay=0.1,
        schedule=schedule,
        warmup=warmup,
        clip=0.5,
        batch=8,
        epochs=3,
    )
    model, other = Lines(), Lines()
    train_lines(model, config)
    plain = torch.optim.AdamW(
        [{"params": [other.body], "lr": 0.03}, {"params": [other.head], "lr": 0.01}],
        weight_decay=0.1,
    )
    steps = 5
    for epoch in range(3):
        from symprompt.runs.environment import derive_seed

        lengths = np.arange(len(model.inputs)) % 20 + 1
        seed = derive_seed(5, "epoch", epoch)
        plan = plan_epoch({"toy": lengths}, batch=8, seed=seed)
        assert len(plan) == steps
        for place, step in enumerate(plan):
            done, total = epoch * steps + place, 3 * steps
            rising = warmup * total
            share = {
                "linear": min(1.0, (total - done) / (total - rising)),
                "exponential": 0.95**epoch,
                "constant": 1.0,
            }[schedule]
            rise = min(1.0, (done + 1) / rising) if rising else 1.0
            share = min(share, rise) if schedule == "linear" else share * rise
            for group, rate in zip(plain.param_groups, (0.03, 0.01), strict=True):
                group["lr"] = rate * share
            rows = torch.from_numpy(step.rows)
            other.on = True
            losses, weights = other.loss("toy", rows, step.width)
            plain.zero_grad()
            ((losses * weights).sum() / weights.sum()).backward()
            nn.utils.clip_grad_norm_([other.body, other.head], 0.5)
            plain.step()
    torch.testing.assert_close(model.body, other.body, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(model.head, other.head, rtol=1e-5, atol=1e-7)


def test_the_best_epoch_stays_ties_take_the_earlier_and_patience_ends() -> None:
    scores = iter([1.0, 3.0, 3.0, 2.0, 9.0])
    model = Lines()
    kept: list[Tensor] = []

    def score() -> tuple[float, float, dict[str, float]]:
        kept.append(model.body.detach().clone())
        return next(scores), 0.0, {}

    config = LearningConfig(rate=0.1, batch=8, epochs=5, patience=2)
    training, progress = train_lines(model, config, score)
    assert training.stopping.best[0] == 2
    assert len(progress.history) == 4
    assert torch.equal(model.body, kept[1])


def test_dev_is_looked_at_as_often_as_asked() -> None:
    model = Lines()
    config = LearningConfig(batch=8, epochs=5, choose_every=2)
    _, progress = train_lines(model, config, lambda: (0.0, 0.0, {"accuracy": 1.0}))
    seen = [entry["epoch"] for entry in progress.history if "dev" in entry]
    assert seen == [2, 4, 5]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=300), st.integers(1, 33))
def test_an_epoch_has_every_input_once_in_few_widths(lengths: list[int], batch: int) -> None:
    given = {"a": np.array(lengths), "b": np.array(lengths[:5])}
    plan = plan_epoch(given, batch=batch, seed=1)
    for name, own in given.items():
        rows = np.concatenate([step.rows for step in plan if step.task == name])
        assert sorted(rows.tolist()) == list(range(len(own)))
    assert all(given[s.task][s.rows].max() <= s.width <= given[s.task].max() for s in plan)
    assert all(0 < len(step.rows) <= batch for step in plan)
    assert len({step.width for step in plan}) <= 17


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 6))
def test_the_windows_of_a_text_stay_in_one_step(windows: list[int], batch: int) -> None:
    texts = np.repeat(np.arange(len(windows)) * 3, windows)
    lengths = np.random.default_rng(len(texts)).integers(1, 90, len(texts))
    plans = [
        plan_epoch({"a": lengths}, batch=batch, seed=seed, texts={"a": texts}) for seed in range(6)
    ]
    plan = plans[0]
    # Epochs have as many steps, whatever their order.
    assert len({len(plan) for plan in plans}) == 1
    assert sorted(np.concatenate([step.rows for step in plan])) == list(range(len(texts)))
    for step in plan:
        own = texts[step.rows]
        assert np.isin(texts, own).sum() == len(own)
        assert len(own) < batch + max(windows)
        assert lengths[step.rows].max() <= step.width


def test_other_epochs_and_seeds_have_other_orders() -> None:
    lengths = {"a": np.arange(1, 60)}
    orders = set()
    for seed in range(20):
        plan = plan_epoch(lengths, batch=4, seed=seed)
        orders.add(tuple(plan[0].rows.tolist()))
    assert len(orders) > 5


def write_long(folder: Path) -> Path:
    """Write texts of up to four windows, one of which shows the reason of the label."""
    draw = random.Random(0)
    for split, count in {"train": 96, "dev": 24, "test": 40}.items():
        rows = []
        for _ in range(count):
            words = ["in", "the"] * draw.randint(3, 34)
            label = draw.choice(["land", "tongue"])
            words[draw.randrange(len(words))] = draw.choice(
                LANDS[:3] if label == "land" else TONGUES[:3]
            )
            rows.append({"text": " ".join(words), "label": label})
        write_lines(folder / f"{split}.jsonl", rows)
    return folder


def test_a_class_is_learned_from_the_mean_of_a_texts_windows(knowing: Path, tmp_path: Path) -> None:
    data, out = write_long(tmp_path / "data"), tmp_path / "run"
    run = run_toy(
        data,
        knowing,
        out,
        "sequence",
        method="ft",
        task__windows="pooled",
        learning__rate=1e-3,
        learning__epochs=10,
        # Some texts have more windows than a step has inputs.
        learning__batch=3,
    )
    found = run.metrics["splits"]["test"]["accuracy"]
    assert found > 90
    assert Folder(out).load(CARD, Card)["features"]["windows"] == "pooled"
    predicted = TaskRun.load(out).predict(data / "test.jsonl", device="cpu")
    assert predicted.metrics["accuracy"] == pytest.approx(found)


CRF = {"head__decoder": "crf", "head__constrain": True}
EVERY = {"head__combine": "mean", "task__label_all_tokens": True}
SPANS = {"span__hidden": 32, "span__length": 3, "task__choose_threshold": True}
NESTED = SPANS | {"span__overlaps": "nested", "span__summary": "attention"}
FT = {"method": "ft", "learning__rate": 3e-3}


@pytest.mark.parametrize(
    ("kind", "epochs", "changes", "least"),
    [
        # What [CLS] says takes more examples to learn than what a word is.
        ("sequence", 20, {}, {"accuracy": 70}),
        ("pair", 20, {}, {"accuracy": 70}),
        ("question", 12, {}, {"f1": 80}),
        ("roles", 12, {}, {"f1": 80}),
        ("tagging", 12, {}, {"f1": 80}),
        ("tagging", 12, {"task__label_all_tokens": True, **CRF}, {"f1": 80}),
        ("tagging", 12, EVERY, {"f1": 80}),
        ("tagging", 12, FT, {"f1": 70}),
        ("tagging", 12, {"method": "pt"}, {"f1": 70}),
        ("tagging", 12, {"method": "lora"}, {"f1": 70}),
        ("words", 12, {}, {"accuracy": 90}),
        ("words", 12, {"head__decoder": "crf"}, {"accuracy": 90}),
        ("words", 12, EVERY, {"accuracy": 90}),
        ("spans", 15, NESTED, {"f1": 85, "inner_recall": 80}),
        (
            "spans",
            15,
            NESTED | FT | {"span__boundary": "plain", "span__negatives": 6},
            {"f1": 85, "inner_recall": 80},
        ),
        (
            "relations",
            15,
            SPANS | FT | {"span__length": 2, "span__candidates": 6},
            {"f1": 80, "given_f1": 85, "span_f1": 85},
        ),
    ],
)
def test_what_is_learned_is_stored_and_predicted(
    kind: str,
    epochs: int,
    changes: dict[str, Any],
    least: dict[str, float],
    knowing: Path,
    tmp_path: Path,
) -> None:
    if kind in ("spans", "relations"):
        data = write_spans(tmp_path / "data", relations=kind == "relations")
    else:
        train = 192 if kind in ("sequence", "pair") else 96
        data = write_toy(tmp_path / "data", kind, sizes={"train": train, "dev": 16, "test": 48})
    run = run_toy(data, knowing, tmp_path / "run", "auto", learning__epochs=epochs, **changes)
    history = run.folder.read_json("history.json")["epochs"]
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    stated = [run.metrics[name] for name in ("kind", "chosen_on", "reported")]
    assert stated == [kind, "dev", "test"]
    measured = run.metrics["splits"]["test"]
    assert next(iter(measured)) == KINDS[kind].metric
    assert all(measured[name] > figure for name, figure in least.items())
    if kind in ("spans", "relations"):
        assert run.folder.load(CARD, Card)["threshold"] != 0
    stored = run.folder.read_rows("predictions/test.jsonl")
    assert {"id", "prediction", "gold"} <= set(stored[0])
    found = predict_file(tmp_path / "run", data / "test.jsonl", device="cpu")
    assert found.metrics == measured
    bare = [
        {name: row[name] for name in KINDS[kind].inputs} for row in read_lines(data / "test.jsonl")
    ]
    again = run.predict(bare, device="cpu")
    assert again.metrics == {}
    for rows in (found.rows, again.rows):
        assert [row["prediction"] for row in rows] == [row["prediction"] for row in stored]


def test_runs_of_one_session_share_model_and_data(
    knowing: Path, tagged: Path, tmp_path: Path
) -> None:
    session = Session()
    config = toy_config(tagged, knowing, tmp_path / "a", "tagging", learning__epochs=1)
    one = tune(config, session=session)
    backbone = session.backbone(config)
    laid = session.task(config, backbone)
    again = tune(replace(config, out=str(tmp_path / "b")), session=session)
    assert session.task(config, backbone) is laid
    assert session.backbone(config) is backbone
    assert again.metrics["splits"] == one.metrics["splits"]


def test_a_loss_that_is_not_finite_stops_with_a_sentence(
    knowing: Path, tagged: Path, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="not finite at epoch 1, step"):
        run_toy(
            tagged,
            knowing,
            tmp_path / "run",
            "tagging",
            learning__rate=1e30,
            learning__clip=0.0,
            learning__schedule="constant",
        )


def test_training_goes_on_from_another_run(knowing: Path, tagged: Path, tmp_path: Path) -> None:
    first = run_toy(tagged, knowing, tmp_path / "a", "tagging", learning__epochs=8)
    second = run_toy(
        tagged,
        knowing,
        tmp_path / "b",
        "tagging",
        learning__epochs=1,
        start_from=str(tmp_path / "a"),
    )
    losses = [run.folder.read_json("history.json")["epochs"][0]["loss"] for run in (first, second)]
    assert losses[1] < losses[0]
    with pytest.raises(RunError, match="trained by pt2, not by pt"):
        run_toy(
            tagged, knowing, tmp_path / "c", "tagging", method="pt", start_from=str(tmp_path / "a")
        )


def test_a_prefix_in_chosen_layers_is_stored_read_and_continued(
    knowing: Path, tagged: Path, tmp_path: Path
) -> None:
    whole = run_toy(tagged, knowing, tmp_path / "all", "tagging", learning__epochs=1)
    run = run_toy(tagged, knowing, tmp_path / "a", "tagging", prefix__layers="last:1")
    sizes = [own.folder.load(CARD, Card)["trainable_parameters"] for own in (whole, run)]
    prefix = StoredPrompt.load(tmp_path / "a").prefix()
    assert prefix.layers == "last:1"
    assert prefix.states.shape[1] == 1
    assert sizes[0] - sizes[1] == prefix.states.numel()
    found = predict_file(tmp_path / "a", tagged / "test.jsonl", device="cpu").rows
    stored = run.folder.read_rows("predictions/test.jsonl")
    assert [row["prediction"] for row in found] == [row["prediction"] for row in stored]
    start = {"learning__epochs": 1, "start_from": str(tmp_path / "a")}
    # The same layer by its number, which is no other.
    run_toy(tagged, knowing, tmp_path / "b", "tagging", prefix__layers="2", **start)
    with pytest.raises(RunError, match=r"in the layers last:1, and prefix\.layers is first:1"):
        run_toy(tagged, knowing, tmp_path / "c", "tagging", prefix__layers="first:1", **start)
    with pytest.raises(ConfigError, match=r"the layers last:3 .* the model has 2"):
        run_toy(tagged, knowing, tmp_path / "d", "tagging", prefix__layers="last:3")
    with pytest.raises(ConfigError, match=r"prefix\.layers is 'last:1', which is about pt2, mpt2"):
        run_toy(tagged, knowing, tmp_path / "e", "tagging", method="lora", prefix__layers="last:1")
    assert not any((tmp_path / name).exists() for name in "cde")


def test_the_part_held_out_chooses_where_there_is_no_test_split(
    knowing: Path, tmp_path: Path
) -> None:
    data = write_toy(tmp_path / "data", "sequence", sizes={"train": 40, "dev": 10})
    run = run_toy(data, knowing, tmp_path / "run", "sequence", learning__epochs=1)
    assert run.metrics["chosen_on"] == "held-out"
    assert run.metrics["reported"] == "dev"
    assert run.metrics["counts"] == {"train": 36, "dev": 10, "held-out": 4}
    as_paper = run_toy(
        data, knowing, tmp_path / "paper", "sequence", learning__epochs=1, task__held_out=0.0
    )
    assert as_paper.metrics["chosen_on"] == as_paper.metrics["reported"] == "dev"


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"data": "nowhere"}, DataError, "nowhere"),
        ({"task__columns": ["tags"]}, ConfigError, "role=column"),
        ({"task__columns": ["tags=missing"]}, DataError, "missing"),
        ({"learning__choose": "bleu"}, ConfigError, "measures: f1"),
        ({"prefix__length": 60, "method": "pt"}, DataError, r"prefix\.length"),
        ({"method": "mpt2"}, ConfigError, r"mixture\.tasks"),
        ({"method": "mpt2", "mixture__tasks": ["a", "a=x"]}, ConfigError, "twice"),
        ({"task__identify": True}, ConfigError, r"task\.identify finds spans"),
        ({"out": ""}, ConfigError, "--out"),
    ],
)
def test_bad_input_is_one_sentence(
    changes: dict[str, Any],
    error: type[Exception],
    words: str,
    knowing: Path,
    tagged: Path,
    tmp_path: Path,
) -> None:
    rest = {key: value for key, value in changes.items() if key not in ("data", "out")}
    own = {key: changes[key] for key in ("data", "out") if key in changes}

    def run() -> None:
        tune(replace(toy_config(tagged, knowing, tmp_path / "run", "tagging", **rest), **own))

    with pytest.raises(error, match=words):
        run()
    # Nothing is left behind that a mended command would stumble over.
    assert not (tmp_path / "run").exists()


def test_a_set_without_its_training_file_says_what_is_missing(tmp_path: Path) -> None:
    answer = {"text": "Rome", "answer_start": 0}
    asked = {"id": "1", "question": "Where?", "answers": [answer], "is_impossible": False}
    paragraphs = [{"context": "Rome it is.", "qas": [asked]}]
    (tmp_path / "dev-v2.0.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    message = "squad2 has no training examples, only 1 of dev; put its training file into"
    with pytest.raises(DataError, match=message):
        read_task(TaskConfig(name="squad2"), str(tmp_path))


def mixture_config(data: Path, model: Path, out: Path, **changes: Any) -> TuneConfig:
    return build(
        TuneConfig,
        {
            "method": "mpt2",
            "model": str(model),
            "data": str(data),
            "out": str(out),
            "device": "cpu",
            "task": {"max_length": 32, "stride": 4},
            "mixture": {"tasks": ["conll2003", "conll2004"], "epochs": 2},
            "prefix": {"length": 3},
            "learning": {"rate": 1e-2, "batch": 4, "epochs": 2},
            "checkpoint_seconds": 0.0,
        }
        | changes,
    )


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_a_mixture_shares_a_prefix_and_then_parts(
    family: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    data, model = write_entities(tmp_path / "data"), family_folder(family)
    run = tune(mixture_config(data, model, tmp_path / "run"))
    assert set(run.metrics["tasks"]) == {"conll2003", "conll2004"}
    shared, _ = read_tensors(tmp_path / "run/shared/prompt.safetensors")
    assert {key.split(".")[1] for key in shared if key.startswith("head.")} == {
        "conll2003",
        "conll2004",
    }
    history = Folder(tmp_path / "run/shared").read_json("history.json")
    assert set(history["epochs"][0]["dev"]) == {"conll2003", "conll2004"}
    with pytest.raises(RunError, match=r"holds the runs of several tasks; push one .*/conll2003\."):
        symprompt.push_run(tmp_path / "run", "me/entities", dry_run=True)
    pushed = symprompt.push_run(tmp_path / "run/conll2003", "me/entities", dry_run=True)
    assert "run/prompt.safetensors" in pushed.files
    prefixes = []
    for name in ("conll2003", "conll2004"):
        folder = Folder(tmp_path / "run" / name)
        assert folder.load(CARD, Card)["method"] == "mpt2"
        prefixes.append(folder.read_tensors("prompt.safetensors")[0]["prompt.prefix"])
    # Each went on from the shared prefix, and away from it.
    assert not torch.equal(*prefixes)
    apart = (prefixes[0] - shared["prompt.prefix"]).abs().max()
    assert 0 < float(apart) < 1
    assert tune(mixture_config(data, model, tmp_path / "run")).metrics == run.metrics
    one = {"name": "conll2004", "max_length": 32, "stride": 4}
    run = tune(mixture_config(data, model, tmp_path / "one", task=one))
    assert set(run.metrics["tasks"]) == {"conll2004"}


OWN = [
    name
    for name, path in shipped_configs("tune").items()
    if "pattern" not in tomllib.loads(path.read_text())
]


def test_every_task_of_the_paper_has_a_config() -> None:
    wanted = {"rte-pt2", "boolq-pt2", "cb-pt2", "sst2-pt2", "mnli-pt2", "squad-pt2", "squad2-pt2"}
    measured = ("rte", "boolq", "sst2", "conll2003", "conll2004", "squad", "srl", "ewt-pos")
    wanted |= {f"{task}-{method}" for task in measured for method in ("ft", "pt", "pt2", "lora")}
    assert wanted | {"ner-mpt2", "squad-mpt2", "srl-mpt2"} <= set(OWN)


# Configs of the chapter on fine-tuning, which has no figures: named after what reads the labels.
CHAPTER = ["conll2003-bio", "conll2003-crf", "conll2003-spans", "conll2004-relations"]
CHAPTER += ["ewt-pos-crf"]


def test_every_head_of_the_chapter_has_a_config() -> None:
    assert set(CHAPTER) <= set(OWN)
    heads = [load_tune_config(name).head.decoder for name in CHAPTER]
    assert heads == ["softmax", "crf", "softmax", "softmax", "crf"]
    kinds = [load_tune_config(name).task.kind for name in CHAPTER]
    assert kinds == ["tagging", "tagging", "spans", "relations", "words"]
    assert {load_tune_config(name).method for name in CHAPTER} == {"ft"}


@pytest.mark.parametrize("name", OWN)
def test_a_shipped_config_is_named_by_its_method_and_task(name: str) -> None:
    config = load_tune_config(name)
    assert name.endswith(f"-{config.method}") or name in CHAPTER or name.startswith("my-")
    named = [entry.partition("=")[0] for entry in config.mixture.tasks] or [config.task.name]
    assert set(named) <= {*SETS, ""}


@pytest.mark.parametrize("name", [name for name in OWN if re.match(r"conll|ner", name)])
def test_a_shipped_config_trains_from_end_to_end(
    name: str,
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = write_entities(tmp_path / "data")
    place = ["--model", str(family_folder("bert")), "--data", str(data), "--out"]
    words = ["--learning.epochs", "1", "--mixture.epochs", "1", "--device", "cpu"]
    if name == "ner-mpt2":
        words += ["--tasks", "conll2003", "conll2004"]
    cli.main(["tune", name, *place, str(tmp_path / "run"), *words])
    assert f"run folder: {tmp_path / 'run'}" in capsys.readouterr().out
    folder = tmp_path / "run" / ("conll2004" if name == "ner-mpt2" else "")
    assert Folder(folder).finished


def test_a_run_folder_says_how_it_was_made_and_is_read_back(
    knowing: Path, tagged: Path, tmp_path: Path
) -> None:
    # A setting of spans that is the default does no harm.
    config = toy_config(tagged, knowing, tmp_path / "run", "tagging", span__length=8)
    config = replace(config, learning=replace(config.learning, epochs=1))
    run = tune(config)
    card, metrics = run.folder.load(CARD, Card), load_metrics(run.folder)
    assert card["labels"] == ["O", "B-LAND", "I-LAND", "B-TONGUE", "I-TONGUE"]
    assert card["file"] == "prompt.safetensors"
    assert run.folder.manifest.acceleration.startswith("plain: rows are packed on CUDA alone")
    assert {"symprompt", "torch", "transformers"} <= set(metrics["versions"])
    assert metrics["trainable_parameters"] < metrics["model_parameters"]
    assert metrics["counts"] == {"train": 96, "dev": 16, "test": 24}
    assert metrics["device"] == "cpu"
    tensors, _ = read_tensors(run.folder.path / "prompt.safetensors")
    assert set(tensors) == {"prompt.prefix", "head.output.weight", "head.output.bias"}
    assert not run.folder.has("state.safetensors")
    assert tune(config).metrics == run.metrics
    assert load_tune_config(str(run.folder.path / "config.toml")) == config
    with pytest.raises(RunError, match=r"another learning\.epochs"):
        tune(replace(config, learning=replace(config.learning, epochs=2)))


def _changed(data: Path, model: Path, what: str) -> None:
    """Change what a run was made from, in its place."""
    if what == "model":
        other_model(model, model.with_name("other"))
        shutil.copy(model.with_name("other") / "model.safetensors", model)
        return
    file = next(iter(sorted(data.rglob("train.jsonl"))))
    rows = read_lines(file)
    labels = {row["label"] for row in rows}
    if what == "labels":
        rows[0]["label"] = next(iter(labels - {rows[0]["label"]}))
    write_lines(file, rows[1:] if what == "rows" else rows)


@pytest.mark.parametrize("what", ["labels", "rows", "model"])
@pytest.mark.parametrize("flow", ["task", "mixture", "pattern"])
def test_a_run_is_of_the_data_and_the_model_that_it_was_begun_with(
    flow: str, what: str, tmp_path: Path, family_folder: Callable[[str], Path]
) -> None:
    model, data = tmp_path / "model", tmp_path / "data"
    shutil.copytree(family_folder("bert"), model)
    changes: dict[str, Any] = {"learning__epochs": 1}
    if flow == "task":
        write_toy(data, "sequence")
    if flow == "mixture":
        for name in ("one", "two"):
            write_toy(data / name, "sequence")
        changes |= {"method": "mpt2", "mixture__tasks": ["one=one", "two=two"]}
        changes |= {"mixture__epochs": 1}
    config: Any = toy_config(data, model, tmp_path / "run", "sequence", **changes)
    if flow == "pattern":
        write_task(data, "rte")
        config = pattern_config(data, model, tmp_path / "run", "zero-shot")
    tune(config)
    assert tune(config).folder.finished
    _changed(data, model, what)
    if what != "model":
        with pytest.raises(RunError, match="begun with other data than are there now"):
            tune(config)
    unfinish(tmp_path / "run")
    with pytest.raises(RunError, match=r"was begun with other (data|weights) than are there now"):
        tune(config, resume=True)
    assert (tmp_path / "run/symprompt.json").exists()
