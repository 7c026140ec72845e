"""In lm-eval: its real command on tiny sets gives our numbers; what cannot be done is refused."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import symprompt
from symprompt import Run
from symprompt.errors import SympromptError
from symprompt.harness import TASKS, main
from symprompt.models import LanguageModel
from tiny.loops import slow_score
from tiny.models import make_facts, run_config
from tiny.runs import write_csv

pytest.importorskip("lm_eval")
OWN = """
task: own
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: label
doc_to_choice: choices
"""
QUESTIONS = [
    {"question": "Peru lies in", "choices": ["New York", "Rome", "Oslo river"], "label": 1},
    {"question": "The capital of Japan is", "choices": ["San Marino", "Lima"], "label": 0},
]


@pytest.fixture(scope="session")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of facts; tests must not change it."""
    facts = make_facts().select(["capital", "in"])
    return write_csv(facts, tmp_path_factory.mktemp("facts") / "facts.csv")


def evaluate(*command: str, folder: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Run a command of lm-eval; return each task's results and its samples in order."""
    environment = os.environ | {
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = (sys.executable, "-m", *command, "--output_path", str(folder / "out"))
    done = subprocess.run(
        (*command, "--log_samples"), capture_output=True, text=True, env=environment, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    (file,) = (folder / "out").rglob("results_*.json")
    results = json.loads(file.read_text())["results"]
    samples = {}
    for task in results:
        (file,) = (folder / "out").rglob(f"samples_{task}_*.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        samples[task] = sorted(rows, key=lambda row: row["doc_id"])
    return results, samples


def texts_and_scores(sample: dict[str, Any]) -> list[tuple[str, str, float]]:
    """Context, continuation and score of each choice of a sample."""
    asked = [sample["arguments"][f"gen_args_{place}"] for place in range(len(sample["resps"]))]
    return [
        (own["arg_0"], own["arg_1"], float(answer[0][0]))
        for own, answer in zip(asked, sample["resps"], strict=True)
    ]


def test_the_real_command_scores_a_masked_model_as_ours_do(
    family_folder: Callable[[str], Path], facts: Path, tmp_path: Path
) -> None:
    model = family_folder("bert")
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    (tmp_path / "own.yaml").write_text(OWN.format(file=tmp_path / "own.jsonl"))
    results, samples = evaluate(
        *("lm_eval", "--model", "symprompt-mlm"),
        *("--model_args", f"pretrained={model},dtype=float32"),
        *("--tasks", f"{TASKS / 'facts.yaml'},{tmp_path / 'own.yaml'}"),
        *("--metadata", json.dumps({"data": str(facts), "answers": "train"})),
        folder=tmp_path,
    )
    config = run_config(
        model=str(model),
        data=str(facts),
        out=str(tmp_path / "run"),
        dtype="float32",
        method={"name": "sentence", "object_masking": "word", "object_average": "sum"},
        facts={"objects": "any-length", "vocabulary": "objects"},
    )
    ours = symprompt.train(config).to_columns()
    first = [rank == 1 for rank in ours["rank"]]
    asked = samples["symprompt_facts"]
    assert [sample["doc"]["subject"] for sample in asked] == list(ours["subject"])
    assert [bool(sample["acc"]) for sample in asked] == first
    assert results["symprompt_facts"]["acc,none"] == pytest.approx(sum(first) / len(first))
    backbone = LanguageModel.load(str(model), device="cpu", dtype="float64")
    for task in samples:
        for sample in samples[task]:
            for context, text, score in texts_and_scores(sample):
                wanted = slow_score(backbone, text, words=True, given=context)
                assert score == pytest.approx(wanted, abs=1e-3), (context, text)
    for sample, row in zip(asked, ours["object_score"], strict=True):
        score = texts_and_scores(sample)[sample["doc"]["label"]][2]
        assert score == pytest.approx(row, abs=1e-3)


def test_the_command_ranks_by_a_runs_prompts(
    family_folder: Callable[[str], Path], facts: Path, tmp_path: Path
) -> None:
    config = run_config(
        model=str(family_folder("bert")),
        data=str(facts),
        out=str(tmp_path / "run"),
        dtype="float32",
        facts={"vocabulary": "objects"},
        method={"k": 3},
    )
    run = symprompt.train(config)
    results, samples = evaluate(
        *("symprompt.harness", "--model", "symprompt-run"),
        *("--model_args", f"run={tmp_path / 'run'}", "--tasks", "symprompt_facts"),
        *("--metadata", json.dumps({"data": str(facts), "answers": "train"})),
        folder=tmp_path,
    )
    ours, asked = run.to_columns(), samples["symprompt_facts"]
    first = [rank == 1 for rank in ours["rank"]]
    assert [sample["doc"]["subject"] for sample in asked] == list(ours["subject"])
    assert results["symprompt_facts"]["acc,none"] == pytest.approx(sum(first) / len(first))
    _check_scores(run, asked)


def _check_scores(run: Run, asked: list[Any]) -> None:
    """The order is the run's own, and re-ranked answers have their joint scores."""
    for sample in asked:
        document = sample["doc"]
        answers = run.ask(document["relation"], subject=document["subject"], top=100)
        scores = [score for _, _, score in texts_and_scores(sample)]
        found = dict(zip(document["answers"], scores, strict=True))
        assert sorted(found, key=lambda name: -found[name]) == [own.text for own in answers]
        for own in answers:
            if own.joint is not None:
                assert found[own.text] == pytest.approx(own.joint, abs=1e-4)
        flags = [answer[0][1] in (True, "True") for answer in sample["resps"]]
        assert document["answers"][flags.index(True)] == answers[0].text


def requests_of(pairs: list[tuple[Any, ...]], document: Any = None) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [
        Instance("loglikelihood", {} if document is None else document, pair, place)
        for place, pair in enumerate(pairs)
    ]


def load(folder: Path, **more: Any) -> Any:
    from symprompt.harness.models import MaskedModel

    return MaskedModel(str(folder), dtype="float64", device="cpu", max_tokens=64, **more)


@pytest.fixture
def masked(family_folder: Callable[[str], Path]) -> Any:
    return load(family_folder("bert"))


@pytest.mark.parametrize("masking", ["word-l2r", "one"])
def test_contexts_are_read_and_not_scored(
    family: str, masking: str, family_folder: Callable[[str], Path]
) -> None:
    masked = load(family_folder(family), masking=masking)
    pairs = [("", "Rome is old"), ("Peru lies in", " New York"), ("Peru lies in ", "Oslo river.")]
    found = masked.loglikelihood(requests_of(pairs), disable_tqdm=True)
    for (context, text), (score, _) in zip(pairs, found, strict=True):
        words = masking == "word-l2r"
        wanted = slow_score(masked.backbone, text, words=words, given=context)
        assert score == pytest.approx(wanted, abs=1e-5), (context, text)


def test_long_contexts_lose_their_beginning(masked: Any) -> None:
    long = "Peru lies in Rome . " * 200
    (cut,) = masked.loglikelihood(requests_of([(long, "Rome")]), disable_tqdm=True)
    ids, _, ends = masked.backbone.vocabulary.encode_sentences([long])[0]
    room = masked.backbone.max_length - 3
    kept = long[ends[len(ids) - room - 1] :]
    wanted = slow_score(masked.backbone, "Rome", words=True, given=kept)
    assert cut[0] == pytest.approx(wanted, abs=1e-5)
    (empty,) = masked.loglikelihood(requests_of([("Peru", "")]), disable_tqdm=True)
    assert empty == (0.0, True)
    (whole,) = masked.loglikelihood_rolling(requests_of([("Rome is old",)]), disable_tqdm=True)
    assert whole == pytest.approx(slow_score(masked.backbone, "Rome is old", words=True), abs=1e-5)


def test_the_first_answer_everywhere_is_greedy(masked: Any) -> None:
    text, vocabulary = "Peru lies in", masked.backbone.vocabulary
    words = [vocabulary.text(token) for token in range(len(vocabulary))]
    pairs = [(text, f" {word}") for word in words if len(vocabulary.encode([f" {word}"])[0]) == 1]
    found = masked.loglikelihood(requests_of(pairs), disable_tqdm=True)
    best = max(score for score, _ in found)
    assert [greedy for score, greedy in found if greedy] == [True] * sum(
        math.isclose(score, best) for score, _ in found
    )


def test_what_is_refused(
    masked: Any, family_folder: Callable[[str], Path], facts: Path, tmp_path: Path
) -> None:
    from symprompt.harness.choices import choices
    from symprompt.harness.models import MaskedModel, PromptedRun

    with pytest.raises(SympromptError, match="writes none; choose tasks of multiple choice"):
        masked.generate_until([])
    with pytest.raises(SympromptError, match="symprompt-mlm takes word-l2r or one"):
        MaskedModel(str(family_folder("bert")), masking="all")  # type: ignore[arg-type]
    with pytest.raises(SympromptError, match="is a causal model; symprompt-mlm scores masked"):
        MaskedModel(str(family_folder("gpt2")), device="cpu")
    with pytest.raises(SympromptError, match="is not a run folder"):
        PromptedRun(str(tmp_path / "none"))
    with pytest.raises(SympromptError, match="no facts were named"):
        choices()
    with pytest.raises(SympromptError, match="it may be facts or train"):
        choices(str(facts), answers="all")
    bare = tmp_path / "bare.csv"
    bare.write_text("subject,relation,object,split\nPeru,in,Rome,test\nCuba,in,Lima,train\n")
    with pytest.raises(SympromptError, match="relation in has no manual template"):
        choices(str(bare))


def test_facts_become_documents_with_all_answers(facts: Path) -> None:
    from symprompt.harness.choices import choices

    rows = choices(str(facts), relations=["capital"], pretrained="not looked at")["test"]
    objects = {fact.object for fact in make_facts()["capital"].all()}
    for row, fact in zip(rows, make_facts()["capital"].test, strict=True):
        assert (row["subject"], row["answers"][row["label"]]) == (fact.subject, fact.object)
        assert set(row["answers"]) == objects
        assert row["texts"][row["label"]] == f"The capital of {fact.subject} is {fact.object} ."


@pytest.mark.parametrize("name", ["lama", "bear"])
def test_a_task_reads_its_layout(name: str, facts: Path) -> None:
    from lm_eval.tasks._yaml_loader import load_yaml

    task = load_yaml(TASKS / f"{name}.yaml", resolve_func=True)
    assert task["metadata"]["layout"] == name
    assert (task["output_type"], task["doc_to_choice"]) == ("multiple_choice", "texts")
    with pytest.raises(SympromptError):
        task["custom_dataset"](**task["metadata"], data=str(facts))
    made = task["custom_dataset"](**task["metadata"] | {"layout": "table"}, data=str(facts))
    facts_read = make_facts().select(["capital", "in"])
    # BEAR's are asked all.
    wanted = facts_read.facts("test") if name == "lama" else set(facts_read.facts())
    assert len(made["test"]) == len(wanted)


def test_the_command_ends_in_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["--task-folder"])
    assert Path(capsys.readouterr().out.strip()).joinpath("bear.yaml").is_file()
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)
    with pytest.raises(SystemExit, match="2"):
        main(["--model", "symprompt-mlm"])
    assert "pip install 'symprompt[lm-eval]' brings it" in capsys.readouterr().err
