"""experiments/ask_back.py: rows made of stored scores are those that the runs themselves report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_nested_names import load_script

import symprompt
from tiny.models import make_facts, run_config
from tiny.runs import write_csv


def test_rows_are_those_of_the_runs(
    family_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_csv(make_facts().select(["capital", "in"]), tmp_path / "facts.csv")
    place = {"model": str(family_folder("bert")), "data": str(data)}
    script = load_script("ask_back")
    monkeypatch.setattr(script, "DRAWS", 20)
    terms: dict[str, Any] = {"choose_weight": "dev-fit", "k": 4}
    for seed in (1, 2):
        control = {"name": "ptuning", "terms": ["frequency", "copy", "prior"], **terms}
        asked = {"name": "spe", "terms": ["subject", "frequency", "copy", "prior"], **terms}
        asked |= {"second": "chain", "vectors": "separate", "within": 9.0}
        for name, method in (("pt", control), ("spe", asked)):
            out = tmp_path / f"{name}-{seed}"
            sections: dict[str, Any] = {"method": method, "learning": {"epochs": 1}, "seed": seed}
            symprompt.train(run_config(**place, out=str(out), dtype="float32", **sections))
    paths = {name: [str(tmp_path / f"{name}-{seed}") for seed in (1, 2)] for name in ("pt", "spe")}
    out = tmp_path / "rows.json"
    call = ["ask_back.py", str(out), "--ptuning", *paths["pt"], "--spe", *paths["spe"]]
    monkeypatch.setattr(sys, "argv", [*call, "--model", "tiny", "--data", "towns"])
    script.main()
    stored = json.loads(out.read_text())
    found = {
        (row["label"], row["metric"], row.get("versus", "")): row["value"]
        for row in stored["records"]
        if row["settings"]["mean"] == "mean over relations"
    }
    labels = {
        "SPE, two subject prompts, K = 4 within 9": "spe",
        "P-tuning, frequency, copy, prior fitted": "pt",
    }
    for label, name in labels.items():
        runs = [symprompt.Run.load(path).metrics["test"]["raw"] for path in paths[name]]
        mean = np.mean([run["realistic"]["mean over relations"]["mrr"] for run in runs])
        assert found[label, "mrr", ""] == pytest.approx(mean)
    gain = found["a fit to test", "mrr", ""] - found["P-tuning", "mrr", ""]
    assert found["a fit to test", "mrr", "P-tuning"] == pytest.approx(gain)
    assert found["K = 1", "mrr", ""] == pytest.approx(
        found["SPE, by object score alone", "mrr", ""]
    )
    # Each subject prompt alone, by how it masks.
    alone = {label for label, _, _ in found if label.startswith("asked back by")}
    assert alone == {
        f"asked back by {masking}{near}"
        for masking in ("one", "chain")
        for near in ("", ", within 4")
    }
    assert {row["seeds"] == [1, 2] for row in stored["records"]} == {True}
