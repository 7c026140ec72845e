"""What each ingredient of asking back gives, from the stored scores of finished runs.

    python experiments/ask_back.py OUT.json --ptuning PT ... --spe SPE ... --model NAME --data NAME

PT and SPE are runs of the same facts, one for each seed. Weights are fitted anew to each run's dev
scores for every set of terms, and test is ranked by them; the row "a fit to test" is the same fit
made on test itself, which no method may have (other weights could be better still). Ranks are
averaged over seeds before facts are drawn again. Relations in which SPE's MRR is lower are listed,
p by the exchange test and Holm's method.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from symprompt.probing.combine import fit_combination
from symprompt.probing.results import (
    SUBJECTS,
    Predictions,
    load_asked,
    load_card,
    load_combination,
    run_config,
)
from symprompt.report.records import plain_results
from symprompt.runs.folder import Folder, Record
from symprompt.runs.statistics import (
    OVER_RELATIONS,
    bootstrap,
    paired_bootstrap,
    paired_by_relation,
    summarise,
)

DRAWS = 10_000
NEAR = 4.0
BASELINE = "P-tuning"
REST = ("frequency", "copy", "prior")
PROMPTS = ("one subject prompt", "two subject prompts", "three subject prompts")
Run = Mapping[str, Predictions]
Way = Callable[[Run], np.ndarray]


def main() -> None:
    """Rank test by every set of terms, and write the records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--ptuning", nargs="+", required=True)
    parser.add_argument("--spe", nargs="+", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--note", default="")
    flags = parser.parse_args()
    control, asked = ([_load(path) for path in paths] for paths in (flags.ptuning, flags.spe))
    first = control[0]["test"]
    if any(not np.array_equal(run["test"].gold, first.gold) for run in (*control, *asked)):
        raise SystemExit("the runs are about different facts; give runs of the same data.")
    k = asked[0]["test"].candidates.shape[1]
    method = run_config(Folder(flags.spe[0])).method
    prompts = PROMPTS[len(_terms(asked[0], SUBJECTS)) - 1]
    spe = f"SPE, {prompts}, K = {k}" + (f" within {method.within:g}" if method.within else "")
    rows = {
        BASELINE: np.stack([_plain(run) for run in control]),
        f"{BASELINE}, {', '.join(_terms(control[0], REST))} fitted": _own(flags.ptuning, control),
        spe: _own(flags.spe, asked),
    }
    maskings = dict(zip(SUBJECTS, (method.masking, *method.further), strict=False))
    for name, way in _ways(asked[0], maskings).items():
        rows[name] = np.stack([way(run) for run in asked])
        means = asdict(summarise(rows[name], first.relation)[OVER_RELATIONS])
        print(f"{name:44}", *(f"{value:.2f}" for value in means.values()), flush=True)
    about = {
        "split": "test",
        "command": "train",
        "model": flags.model,
        "data": flags.data,
        "seeds": tuple(seed for path in flags.spe for seed in Folder(path).manifest.seeds),
        "n": len(first),
    }
    told = {
        "note": flags.note,
        "bootstrap draws": DRAWS,
        "relations with a lower MRR": _lower(
            list(load_card(Folder(flags.spe[0]))["relations"]),
            paired_by_relation(rows[BASELINE], rows[spe], first.relation),
        ),
    }
    records = [Record(**{**about, **own}) for own in _records(rows, first.relation)]
    lines = ",\n".join(json.dumps(own) for own in plain_results({}, records)["records"])
    flags.out.write_text(f'{{"about": {json.dumps(told)},\n"records": [\n{lines}\n]}}\n')


def _load(path: str) -> Run:
    return {split: load_asked(Folder(path), split).predictions for split in ("dev", "test")}


def _terms(run: Run, names: Sequence[str]) -> list[str]:
    """Return those of the terms that a run has stored."""
    return [name for name in names if name == "subject" or name in run["test"].terms]


def _plain(run: Run) -> np.ndarray:
    return run["test"].ranks().realistic


def _own(paths: Sequence[str], runs: Sequence[Run]) -> np.ndarray:
    """Return the ranks that runs stand for."""
    return np.stack(
        [
            run["test"].final(load_combination(Folder(path))).realistic
            for path, run in zip(paths, runs, strict=True)
        ]
    )


def _fit(terms: Sequence[str], *, k: int = 0, near: float = 0.0, on: str = "dev") -> Way:
    def ranks(run: Run) -> np.ndarray:
        some, test = run[on], run["test"]
        if k:
            some, test = some.first(k), test.first(k)
        if near:
            some, test = some.near(near), test.near(near)
        weights = fit_combination(some, terms, 1 + int(test.relation.max()), seed=0)
        return test.reranked(weights).realistic

    return ranks


def _ways(run: Run, maskings: Mapping[str, str]) -> dict[str, Way]:
    """Return every way to rank, by its name; ``maskings`` are those of the subject prompts."""
    subject, rest = _terms(run, SUBJECTS), _terms(run, REST)
    k = run["test"].candidates.shape[1]
    every = [*subject, *rest]
    ways = {
        "SPE, by object score alone": _plain,
        "SPE (lama-spe)": _fit(["subject", "frequency", "copy"], k=min(15, k)),
        "the fit without subject scores": _fit(rest),
        "the subject score alone": _fit(subject[:1]),
    }
    for few in range(1, len(subject)):
        for some in itertools.combinations(subject, few):
            label = "asked back by " + " and ".join(maskings[name] for name in some)
            ways[label] = _fit([*some, *rest])
            ways[f"{label}, within {NEAR:g}"] = _fit([*some, *rest], near=NEAR)
    for left_out in rest:
        ways[f"without {left_out}"] = _fit([name for name in every if name != left_out])
    ways |= {f"K = {few}": _fit(every, k=few) for few in (1, 5, 10, 15, 20) if few < k}
    ways[f"candidates within {NEAR:g} of the first"] = _fit(every, near=NEAR)
    ways["a fit to test"] = _fit(every, on="test")
    return ways


def _records(rows: Mapping[str, np.ndarray], relation: np.ndarray) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for label, rank in rows.items():
        spans = bootstrap(rank, relation, draws=DRAWS)
        for mean, own in summarise(rank, relation).items():
            for metric, value in asdict(own).items():
                told = {
                    "metric": metric,
                    "value": value,
                    "label": label,
                    "settings": {"mean": mean},
                }
                found.append(told | asdict(spans[mean][metric]))
    for label, rank in list(rows.items())[1:]:
        for mean, changes in paired_bootstrap(rows[BASELINE], rank, relation, draws=DRAWS).items():
            for metric, change in changes.items():
                own = asdict(change)
                told = {"metric": metric, "value": own.pop("difference"), "label": label}
                found.append(told | {"settings": {"mean": mean}, "versus": BASELINE} | own)
    return found


def _lower(names: Sequence[str], changes: Mapping[int, Mapping[str, Any]]) -> dict[str, str]:
    """Return the relations in which SPE's MRR is lower, the lowest first."""
    mrr = sorted((own["mrr"].difference, own["mrr"].p, names[at]) for at, own in changes.items())
    return {name: f"{change:+.2f}, p = {p:.3f}" for change, p, name in mrr if change < 0}


if __name__ == "__main__":
    main()
