"""Slotted prompts for peft: asked in a fresh process without symprompt, and made a run again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import symprompt
from symprompt import Run, SympromptError
from symprompt.probing.results import load_prompts
from tiny.models import CAUSAL_FAMILIES, CAUSAL_TEMPLATE, make_facts, run_config
from tiny.runs import SEPARATE, Call, Make, metrics_of, write_csv

# bert, mpnet: WordPiece; roberta: bytes; gpt2: fewer tokens than rows; llama: names within a text
# are read otherwise, so its prompts are ids; gemma: embeddings are scaled.
PLAIN = ("bert", "mpnet", "roberta", "gpt2", "llama", "gemma")

# What a user of peft writes: the card's own script, then both directions for given candidates.
SCRIPT = """
import contextlib, io, json, os, re, sys, warnings
warnings.simplefilter("ignore")
sys.modules["symprompt"] = None  # any import of it fails
import torch

def names(prompt, text, blank):
    return tokenizer(prompt["before"][blank] + text, add_special_tokens=False)["input_ids"]

def logs(rows, at):
    batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
    with torch.no_grad():
        out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    out = out[torch.arange(len(rows)), torch.tensor(at)]
    return out[:, : about["vocabulary_size"]].log_softmax(-1)

def answer(relation, subject, candidates):
    own = about["relations"][relation]
    causal = about["kind"] == "causal"
    prompt = own["object_prompt"]
    sentence = []
    for part in prompt["ids"]:
        sentence += {"[X]": names(prompt, subject, "[X]"), "[Y]": [tokenizer.mask_token_id]}.get(
            part, [part])
    at = len(sentence) - 1 if causal else sentence.index(tokenizer.mask_token_id)
    tokens = [names(own["subject_prompt"], text, "[Y]") for text in candidates]
    first = logs([sentence], [at])[0][[ids[0] for ids in tokens]]
    back = []
    prompt = own["subject_prompt"]
    for (token,) in tokens:
        sentence, start, wanted = [], 0, names(prompt, subject, "[X]")
        for part in prompt["ids"]:
            start = len(sentence) if part == "[X]" else start
            sentence += {"[X]": wanted, "[Y]": [token]}.get(part, [part])
        rows, at = [], []
        for place in range(len(wanted)):
            row = list(sentence)
            if not causal:
                row[start + place] = tokenizer.mask_token_id
            rows.append(row)
            at.append(start + place - causal)
        found = logs(rows, at)[torch.arange(len(wanted)), torch.tensor(wanted)]
        back.append(found.mean())
    joint = first + own["weights"]["subject"] * torch.stack(back)
    return [first.tolist(), torch.stack(back).tolist(), joint.tolist()]

given, found = json.load(sys.stdin), {}
for where, questions in given.items():
    os.chdir(where)
    code = open("README.md", encoding="utf-8").read().split("```python\\n")[1].split("```")[0]
    printed = io.StringIO()
    space = globals()
    with contextlib.redirect_stdout(printed):
        exec(code, space)
    model.double()  # as the run: what float32 rounds depends on the machine
    found[where] = {"printed": printed.getvalue(), "both": [answer(*own) for own in questions]}
assert not [name for name in sys.modules if name.startswith("symprompt.")]
print(json.dumps(found))
"""


def run_plain(given: dict[str, Any]) -> Any:
    """Run the script in a process that cannot import symprompt."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env=kept | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_peft_alone_answers_as_ask_does_in_both_directions(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    data = write_csv(make_facts().select(["capital", "in"]), tmp_path / "facts.csv")
    runs: dict[str, Run] = {}
    given: dict[str, Any] = {}
    for name in PLAIN:
        template = CAUSAL_TEMPLATE if name in CAUSAL_FAMILIES else "<2> [X] of <1> [Y] <2> ."
        config = run_config(
            model=str(family_folder(name)),
            data=str(data),
            out=str(tmp_path / name),
            dtype="float64",
            prompt={"template": template},
            method={"name": "spe", "k": 5, **SEPARATE},
            facts={"vocabulary": "objects"},
        )
        run = symprompt.train(config)
        folder = symprompt.export_run(run.folder.path, tmp_path / f"{name}-peft")
        runs[str(folder)] = run
        given[str(folder)] = [
            (relation, subject, [own.text for own in run.ask(relation, subject=subject, top=5)])
            for relation, subject in (("in", "San Lucia"), ("capital", "Chile"))
        ]
    found = run_plain(given)
    for folder, run in runs.items():
        about = json.loads(Path(folder, "symprompt.json").read_text())
        has_text = {"text" in own["object_prompt"] for own in about["relations"].values()}
        assert has_text == {not folder.endswith("llama-peft")}
        for (relation, subject, texts), scores in zip(
            given[folder], found[folder]["both"], strict=True
        ):
            answers = run.ask(relation, subject=subject, top=5)
            assert [own.text for own in answers] == texts
            wanted = [
                [own.object_score for own in answers],
                [own.subject_score for own in answers],
                [own.joint for own in answers],
            ]
            torch.testing.assert_close(
                torch.tensor(scores, dtype=torch.float64),
                torch.tensor(wanted, dtype=torch.float64),
                rtol=0,
                atol=1e-5,
            )
        # The card's script asked two relations in one batch.
        lines = found[folder]["printed"].splitlines()
        assert [line.split()[0] for line in lines] == ["capital", "in"]


def test_an_exported_run_is_the_same_run_when_it_is_imported(
    finished: Run, make: Make, call: Call, tmp_path: Path
) -> None:
    said = call("export", finished.folder.path, "--to", "peft", tmp_path / "out")
    assert said.code == 0
    assert "adapter_model.safetensors" in said.out
    said = call("import", tmp_path / "out", "--out", tmp_path / "back")
    assert said.code == 0, said.err
    back = Run.load(tmp_path / "back")
    question = {"relation": "in", "subject": "Oslo"}
    assert back.ask(**question) == finished.ask(**question)
    assert back.ask("in", object="France") == finished.ask("in", object="France")
    left_out = ("imported",)
    assert {k: v for k, v in metrics_of(back).items() if k not in left_out} == metrics_of(finished)
    said = call("table", finished.folder.path, tmp_path / "back")
    assert said.code == 0, said.err
    manual = symprompt.train(make(tmp_path / "manual", method={"name": "manual"}))
    symprompt.rerank_run(manual.folder.path, tmp_path / "back", tmp_path / "a")
    symprompt.rerank_run(manual.folder.path, finished.folder.path, tmp_path / "b")
    assert metrics_of(Run.load(tmp_path / "a")) == metrics_of(Run.load(tmp_path / "b"))
    with pytest.raises(SympromptError, match="is there already"):
        symprompt.import_run(tmp_path / "out", tmp_path / "back")
    with pytest.raises(SympromptError, match="is there already"):
        symprompt.export_run(finished.folder.path, tmp_path / "out")
    with pytest.raises(SympromptError, match="holds prompts for peft and is no run; make one of"):
        Run.load(tmp_path / "out")


def test_further_subject_prompts_come_back(make: Make, tmp_path: Path) -> None:
    method = {"vectors": "separate", "choose_weight": "dev-fit"}
    method |= {"second": "chain", "third": "whole"}
    run = symprompt.train(make(tmp_path / "run", method=method))
    symprompt.export_run(tmp_path / "run", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "symprompt.json").read_text())
    assert (about["second_masking"], about["third_masking"]) == ("chain", "whole")
    for place in ("second", "third"):
        text = about["relations"]["in"][f"{place}_subject_prompt"]["text"]
        assert f"<in:{place}:0>" in text
    back = symprompt.import_run(tmp_path / "out", tmp_path / "back")
    assert back.ask("in", subject="Oslo") == run.ask("in", subject="Oslo")


def test_a_short_template_and_shared_vectors_come_back(make: Make, tmp_path: Path) -> None:
    prompt = {"encoder": "free", "start": "manual"}
    config = make(tmp_path / "run", method={"vectors": "shared"}, prompt=prompt)
    run = symprompt.train(config)
    symprompt.export_run(tmp_path / "run", tmp_path / "out")
    back = symprompt.import_run(tmp_path / "out", tmp_path / "back")
    assert back.ask("in", subject="Oslo") == run.ask("in", subject="Oslo")


def test_an_adapter_that_was_trained_further_has_no_predictions(
    finished: Run, call: Call, tmp_path: Path
) -> None:
    symprompt.export_run(finished.folder.path, tmp_path / "out")
    file = tmp_path / "out" / "adapter_model.safetensors"
    save_file({key: value + 1 for key, value in load_file(file).items()}, file)
    back = symprompt.import_run(tmp_path / "out", tmp_path / "back")
    parts = ("forth", "back")
    before, now = (load_prompts(own.folder, parts) for own in (finished, back))
    for part in parts:
        torch.testing.assert_close(now[part], before[part] + 1)
    assert back.ask("in", subject="Oslo") != finished.ask("in", subject="Oslo")
    said = call("table", tmp_path / "back")
    assert said.code == 2
    assert "has no predictions: its vectors were trained further" in said.err


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("manual", "made by manual, which learned no vectors; export a run of optiprompt"),
        ("majority", "made by majority, which learned no vectors"),
    ],
)
def test_what_peft_cannot_hold_is_refused(
    make: Make, tmp_path: Path, method: str, message: str
) -> None:
    symprompt.train(make(tmp_path / "run", method={"name": method}))
    with pytest.raises(SympromptError, match=message):
        symprompt.export_run(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folders_that_are_no_export_are_refused(finished: Run, tmp_path: Path) -> None:
    with pytest.raises(SympromptError, match=r"has no symprompt\.json"):
        symprompt.import_run(tmp_path, tmp_path / "back")
    with pytest.raises(SympromptError, match="is a run folder already; ask it"):
        symprompt.import_run(finished.folder.path, tmp_path / "back")
    with pytest.raises(SympromptError, match=r"there is no folder .*nowhere; give one that"):
        symprompt.import_run(tmp_path / "nowhere", tmp_path / "back")
    symprompt.export_run(finished.folder.path, tmp_path / "out")
    for change, message in (
        ({"format": 2}, "version 2 of the format, and this symprompt reads 1"),
        ({"parts": ["forth", "third"]}, "names vectors that the adapter does not hold"),
        ({"relations": 3}, "symprompt.json is damaged: relations is 3"),
    ):
        broken = shutil.copytree(tmp_path / "out", tmp_path / "broken")
        about = json.loads((broken / "symprompt.json").read_text())
        (broken / "symprompt.json").write_text(json.dumps(about | change))
        with pytest.raises(SympromptError, match=message):
            symprompt.import_run(broken, tmp_path / "back")
        assert not (tmp_path / "back").exists()
        shutil.rmtree(broken)
    (tmp_path / "out" / "adapter_model.safetensors").unlink()
    with pytest.raises(SympromptError, match="cannot read"):
        symprompt.import_run(tmp_path / "out", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_records_and_predictions_are_written_as_parquet(
    finished: Run, call: Call, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    said = call("export", finished.folder.path, "--to", "parquet", tmp_path / "tables")
    assert said.code == 0, said.err
    read = {path.stem: parquet.read_table(path) for path in (tmp_path / "tables").iterdir()}
    assert set(read) == {"records", "predictions-dev", "predictions-test"}
    frame = finished.to_frame("test")
    assert read["predictions-test"].to_pandas().equals(frame)
    values = [record.value for record in finished.folder.manifest.records]
    assert read["records"].column("value").to_pylist() == values
    again = call("export", finished.folder.path, "--to", "parquet", tmp_path / "tables")
    assert "is there already" in again.err
