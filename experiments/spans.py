"""Tags, chains of tags and spans on the same data, within a budget of time on one device.

    python experiments/spans.py --model $MODEL --packs $PACKS --runs $RUNS --budget 540 \
        --only bio crf spans nested-bio nested-spans relations --seeds 11 12 13 --name spans

bio, crf and spans are CoNLL-2003's entities by the shipped configs, relations is CoNLL-2004;
nested-* are the hand-made names in names of nested_names.py, where tags can say the outermost alone
but all are counted. A run that is finished is read back; none is started that would end after the
budget. Results are written after every run to experiments/results/NAME.json and .md. Entities are
also counted by seqeval where it is installed: --predictions FOLDER keeps what was predicted, and
--count FOLDER counts it later and adds it to the results.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from symprompt.errors import SympromptError
from symprompt.report.tasks import TaskResults, summarise
from symprompt.tasks.config import SpanConfig, TuneConfig, load_tune_config, make_tune_config
from symprompt.tasks.data.examples import SpanExample, spans_of
from symprompt.tasks.folder import TaskFolder
from symprompt.tasks.kinds.spans import SpanPrediction, span_metrics
from symprompt.tasks.kinds.tags import seqeval_scores
from symprompt.tasks.prepare import Session
from symprompt.tasks.train import tune

sys.path.insert(0, str(Path(__file__).parent))
from nested_names import write_nested

from tasks import command_of

RESULTS = Path(__file__).parent / "results"
SEQEVAL = "seqeval_f1"


@dataclass(frozen=True)
class Variant:
    """One way to read one set: a shipped config and what differs from it."""

    label: str
    config: str
    data: str
    settings: Mapping[str, Any]
    task: str


def _conll(label: str, config: str, **settings: Any) -> Variant:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return Variant(label, config, "ner/conll2003", changes, "conll2003")


def _nested(label: str, config: str, data: str, kind: str, **settings: Any) -> Variant:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    changes |= {"task.name": "", "task.kind": kind}
    return Variant(label, config, f"nested/{data}", changes, "names in names")


VARIANTS = {
    "bio": _conll("BIO", "conll2003-bio"),
    "crf": _conll("BIO + CRF", "conll2003-crf"),
    "spans": _conll("spans", "conll2003-spans"),
    "bio-constrained": _conll("BIO, constrained", "conll2003-bio", head__constrain=True),
    "bio-mean": _conll(
        "BIO, all tokens", "conll2003-bio", head__combine="mean", task__label_all_tokens=True
    ),
    "spans-plain": _conll("spans, plain boundaries", "conll2003-spans", span__boundary="plain"),
    "spans-attention": _conll("spans, attention", "conll2003-spans", span__summary="attention"),
    "spans-sampled": _conll("spans, 32 negatives", "conll2003-spans", span__negatives=32),
    "spans-argmax": _conll("spans, no threshold", "conll2003-spans", task__choose_threshold=False),
    "bio-frozen": _conll("BIO, model frozen", "conll2003-bio", weights__layers=0),
    "bio-last-2": _conll("BIO, last 2 layers", "conll2003-bio", weights__layers=2),
    "bio-last-4": _conll("BIO, last 4 layers", "conll2003-bio", weights__layers=4),
    "nested-bio": _nested("BIO, outermost", "conll2003-bio", "outermost", "tagging"),
    "nested-crf": _nested("BIO + CRF, outermost", "conll2003-crf", "outermost", "tagging"),
    "nested-flat": _nested("spans, flat", "conll2003-spans", "spans", "spans", span__length=12),
    "nested-spans": _nested(
        "spans, nested",
        "conll2003-spans",
        "spans",
        "spans",
        span__length=12,
        span__overlaps="nested",
    ),
    "relations": Variant(
        "spans + relations", "conll2004-relations", "ner/conll2004", {}, "conll2004 relations"
    ),
}
MAIN = ["bio", "crf", "spans", "nested-bio", "nested-spans", "relations"]


def config_of(name: str, seed: int, flags: argparse.Namespace) -> TuneConfig:
    """Return the whole config of a variant's run."""
    variant = VARIANTS[name]
    root = flags.runs if variant.data.startswith("nested") else flags.packs
    changes = {
        **variant.settings,
        **dict(flags.settings),
        "seed": seed,
        "model": flags.model,
        "device": flags.device,
        "data": str(Path(root, variant.data)),
        "out": str(Path(flags.runs, f"{name}-{seed}")),
        "checkpoint_seconds": flags.checkpoint_seconds,
    }
    table: dict[str, Any] = json.loads(json.dumps(asdict(load_tune_config(variant.config))))
    for key, value in changes.items():
        outer, _, inner = key.rpartition(".")
        (table[outer] if outer else table)[inner] = value
    if table["task"]["kind"] not in ("spans", "relations"):
        # What --set says of spans concerns the variants that have them.
        table["span"] = asdict(SpanConfig())
    return make_tune_config(table)


def run_all(flags: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Make the runs, or read them back; stop starting new ones when the budget is near."""
    begun, session = time.monotonic(), Session()
    took: dict[str, float] = {}
    made: dict[str, list[dict[str, Any]]] = {}
    if any(name.startswith("nested") for name in flags.only):
        write_nested(Path(flags.runs, "nested"))
    for seed in flags.seeds:
        for name in flags.only:
            config = config_of(name, seed, flags)
            folder = TaskFolder(config.out)
            left = flags.budget - (time.monotonic() - begun)
            if not folder.finished and took.get(name, flags.reserve) > left:
                print(f"{name}-{seed}: not started, {left:.0f} s are left", flush=True)
                continue
            started = time.monotonic()
            try:
                run = tune(config, resume=True, session=session)
            except SympromptError as error:
                print(f"{name}-{seed}: {error}", flush=True)
                continue
            took[name] = time.monotonic() - started
            metrics = measured(name, run.metrics, folder, flags)
            made.setdefault(name, []).append(metrics)
            print(f"{name}-{seed}: {_short(metrics)}, {took[name]:.1f} s", flush=True)
            write(made, flags)
    return made


def measured(
    name: str, metrics: dict[str, Any], folder: TaskFolder, flags: argparse.Namespace
) -> dict[str, Any]:
    """Return a run's figures, counted anew where tags say less than there is, and by seqeval."""
    splits = {split: dict(own) for split, own in metrics["splits"].items()}
    path = folder.path / "predictions" / "test.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if flags.predictions:
        Path(flags.predictions).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, Path(flags.predictions, f"{folder.path.name}.jsonl"))
    if VARIANTS[name].settings.get("task.kind") == "tagging":
        source = Path(flags.runs, "nested/spans/test.jsonl").read_text(encoding="utf-8")
        splits["test"] = counted_anew([json.loads(line) for line in source.splitlines()], rows)
    elif VARIANTS[name].task == "conll2003" and importlib.util.find_spec("seqeval"):
        splits["test"][SEQEVAL] = seqeval_f1(rows)
    return metrics | {"splits": splits}


def counted_anew(
    gold: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return the figures of tags against all spans, nested ones too."""
    examples = [
        SpanExample(str(place), tuple(row["words"]), tuple((k, s, e) for k, s, e in row["spans"]))
        for place, row in enumerate(gold)
    ]
    found = [tuple(spans_of(row["prediction"])) for row in rows]
    predictions = [SpanPrediction(spans, (0.0,) * len(spans)) for spans in found]
    return {key: 100 * value for key, value in span_metrics(examples, predictions).items()}


def seqeval_f1(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the F1 in percent that seqeval counts, of stored tags or of spans as tags."""
    pairs = [(_tags(row["gold"], row), _tags(row["prediction"], row)) for row in rows]
    return 100 * seqeval_scores(*map(list, zip(*pairs, strict=True)))["f1"]


def _tags(value: Sequence[Any], row: Mapping[str, Any]) -> list[str]:
    if "odds" not in row:
        return list(value)
    # Sentences are as long as their last span needs; what follows is O on both sides.
    size = max((end for key in ("gold", "prediction") for _, _, end in row[key]), default=1)
    tags = ["O"] * size
    for kind, start, end in value:
        tags[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]
    return tags


def _short(metrics: Mapping[str, Any]) -> str:
    return " ".join(f"{key} {value:.2f}" for key, value in metrics["splits"]["test"].items())


def write(made: Mapping[str, Sequence[dict[str, Any]]], flags: argparse.Namespace) -> None:
    """Write the results so far as JSON and Markdown."""
    values: dict[str, Any] = {"note": flags.note, "tasks": []}
    for name, runs in made.items():
        variant = VARIANTS[name]
        config = config_of(name, runs[0]["seed"], flags)
        values["tasks"].append(
            summarise(runs, "test")
            | {
                "task": variant.task,
                "label": variant.label,
                "variant": name,
                "model": flags.model_name,
                "best_epoch": [own["best_epoch"] for own in runs],
                "threshold": [own["threshold"] for own in runs],
                "chosen_on": runs[0]["chosen_on"],
                "device": runs[0]["device"],
                "recorded": runs[0]["recorded"],
                "versions": runs[0]["versions"],
                "command": command_of(config),
            }
        )
    store(values, flags)


def store(values: dict[str, Any], flags: argparse.Namespace) -> None:
    """Write results as JSON, and as tables with their commands."""
    folder = Path(flags.results)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    (folder / f"{flags.name}.json").write_text(text, encoding="utf-8")
    listed = [f"# {e['task']}: {e['label']}\n{e['command']}" for e in values["tasks"]]
    about = "The commands (defaults.toml is an empty file: the flags are what is no default):"
    body = "\n".join([TaskResults(values).to_markdown(), about, "", "```", *listed, "```"])
    (folder / f"{flags.name}.md").write_text(body + "\n", encoding="utf-8")


def count(flags: argparse.Namespace) -> None:
    """Add seqeval's figures to stored results, from predictions that were kept."""
    values = json.loads(Path(flags.results, f"{flags.name}.json").read_text(encoding="utf-8"))
    for entry in values["tasks"]:
        if entry["task"] != "conll2003":
            continue
        found = []
        for seed in entry["seeds"]:
            path = Path(flags.count, f"{entry['variant']}-{seed}.jsonl")
            lines = path.read_text(encoding="utf-8").splitlines()
            found.append(seqeval_f1([json.loads(line) for line in lines]))
        runs = [
            {**entry, "seed": seed, "splits": {"test": {SEQEVAL: value}}, "seconds": {}}
            for seed, value in zip(entry["seeds"], found, strict=True)
        ]
        entry["metrics"] |= summarise(runs, "test")["metrics"]
        print(f"{entry['label']}: {' '.join(f'{value:.2f}' for value in found)}")
    store(values, flags)


def _setting(text: str) -> tuple[str, Any]:
    """Read KEY=VALUE, the value as JSON or else as text."""
    key, _, value = text.partition("=")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the flags and make the runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="shipped")
    parser.add_argument("--model-name", default="", help="what to call the model in the results")
    parser.add_argument("--packs", default="", help="folder of the packs of data")
    parser.add_argument("--runs", default="runs", help="folder of the run folders")
    parser.add_argument("--only", nargs="*", default=MAIN, choices=list(VARIANTS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[11])
    parser.add_argument("--set", dest="settings", nargs="*", type=_setting, default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds in all")
    parser.add_argument("--reserve", type=float, default=60.0, help="seconds a new run may take")
    parser.add_argument("--checkpoint-seconds", type=float, default=1e9)
    parser.add_argument("--predictions", default="", help="folder to copy predictions to")
    parser.add_argument("--count", default="", help="folder of predictions to count by seqeval")
    parser.add_argument("--name", default="spans", help="file name of the results")
    parser.add_argument("--results", default=str(RESULTS))
    parser.add_argument("--note", default="")
    flags = parser.parse_args(arguments)
    flags.model_name = flags.model_name or Path(flags.model).name
    if flags.count:
        count(flags)
        return
    made = run_all(flags)
    print(f"{sum(map(len, made.values()))} runs are in {Path(flags.results, flags.name)}.json")


if __name__ == "__main__":
    try:
        main()
    except SympromptError as error:
        raise SystemExit(f"spans.py: {error}") from None
