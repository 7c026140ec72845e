"""experiments/spans.py: tags and spans side by side, nested names, seqeval's count."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tiny.entities import write_entities

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"experiments_{name}", EXPERIMENTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("spans")


def test_names_in_names_are_right_by_construction() -> None:
    names = load_script("nested_names")
    random = names.np.random.default_rng(0)
    rows = [names.make_example(random, held_out) for held_out in (False, True) for _ in range(200)]
    deepest = 0
    for row in rows:
        words, spans = row["words"], row["spans"]
        assert all(0 <= start < end <= len(words) for _, start, end in spans)
        assert len({(start, end) for _, start, end in spans}) == len(spans)
        for kind, start, end in spans:
            around = [s for s in spans if s[1] <= start and end <= s[2]]
            deepest = max(deepest, len(around))
            if kind == "LOC":
                assert " ".join(words[start:end]) in names.PLACES
            for _, other, last in spans:
                crossing = start < other < end < last or other < start < last < end
                assert not crossing
        tags = names.outermost(row)["tags"]
        outer = [
            s for s in spans if not any(o != s and o[1] <= s[1] and s[2] <= o[2] for o in spans)
        ]
        assert sum(tag.startswith("B-") for tag in tags) == len(outer)
    assert deepest >= 3
    train, test = ({w for row in part for w in row["words"]} for part in (rows[:200], rows[200:]))
    assert {"Leeds", "London"} <= train
    assert not {"Leeds", "London", "Kyoto"} & test


def test_runs_and_their_results(
    script: ModuleType,
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_entities(tmp_path / "packs" / "ner")
    small = {"train": 16, "dev": 4, "test": 8}
    write = script.write_nested
    monkeypatch.setattr(script, "write_nested", lambda folder: write(folder, sizes=small))
    place = {"model": family_folder("bert"), "packs": tmp_path / "packs", "runs": tmp_path / "runs"}
    words = [word for key, value in place.items() for word in (f"--{key}", str(value))]
    words += ["--device", "cpu", "--results", str(tmp_path / "results"), "--name", "x"]
    words += ["--set", "learning.epochs=1", "task.max_length=40", "task.stride=4", "span.hidden=8"]
    asked = ["--only", "crf", "spans", "nested-bio", "nested-spans", "relations"]
    kept = ["--predictions", str(tmp_path / "kept")]
    script.main([*words, *asked, *kept, "--seeds", "1", "2"])
    found = json.loads((tmp_path / "results/x.json").read_text())
    entries: dict[str, Any] = {entry["variant"]: entry for entry in found["tasks"]}
    assert list(entries) == asked[1:]
    assert entries["crf"]["seeds"] == [1, 2]
    for name in ("crf", "spans"):
        own = entries[name]["metrics"]
        assert own["seqeval_f1"]["values"] == pytest.approx(own["f1"]["values"])
    assert entries["nested-bio"]["metrics"]["inner_recall"]["value"] < 50
    assert set(entries["relations"]["metrics"]) >= {"f1", "span_f1", "given_f1"}
    assert str(tmp_path) not in json.dumps(found)
    script.main([*words, "--count", str(tmp_path / "kept")])
    assert json.loads((tmp_path / "results/x.json").read_text()) == found
    assert "spans, nested" in (tmp_path / "results/x.md").read_text()
    capsys.readouterr()
    script.main([*words, *asked, "--seeds", "3", "--budget", "1", "--reserve", "9"])
    assert "not started" in capsys.readouterr().out
