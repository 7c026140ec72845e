"""experiments/nested_names.py: sentences with names in names, right by construction."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"experiments_{name}", EXPERIMENTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
