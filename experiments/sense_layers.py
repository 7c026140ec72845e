"""Which layers tell word senses apart, chosen on one test set and scored on the other four.

    python experiments/sense_layers.py OUT.json --model MODEL --name NAME --semcor SEMCOR --data WSD

Every word is embedded once, in all layers. Each layer by itself, the sum of the last four and that
of all, as they are and standardised, make sense vectors; both rules, the nearest sense (equation
11.9) and the fitted one, are given the same settings. The one best on Semeval-2007 is each rule's
choice; its F1 on the other sets is the result, beside the default of ``symprompt senses``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from symprompt.embeddings import Choice
from symprompt.embeddings.sense_corpora import SenseCorpus, load_sense_corpus, load_test_sets
from symprompt.embeddings.sense_evaluation import most_frequent_sense
from symprompt.embeddings.senses import Rule, SenseTagger, instance_texts, train_senses
from symprompt.embeddings.vectors import embed_chunks
from symprompt.embeddings.wordnet import load_wordnet
from symprompt.files.progress import Tick, show_progress
from symprompt.models import LanguageModel
from symprompt.report.records import plain_results
from symprompt.runs.folder import Record
from symprompt.runs.statistics import OVER_FACTS, paired_bootstrap

DEV = "semeval2007"
DEFAULT = "sum of the last 4"
FREQUENT = "most frequent sense"
Vectors = npt.NDArray[np.floating]
Hits = dict[str, npt.NDArray[np.bool_]]


def main() -> None:
    """Score every setting, choose on one set, and write the records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    for name in ("model", "name", "semcor", "data"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--wordnet", default="")
    for name in ("device", "dtype"):
        parser.add_argument(f"--{name}", default="auto")
    flags = parser.parse_args()
    wordnet = load_wordnet(flags.wordnet)
    tagged = load_sense_corpus(flags.semcor, wordnet.senses)
    tests = load_test_sets(flags.data, wordnet.senses)
    with show_progress() as tick:
        model = LanguageModel.load(
            flags.model, device=flags.device, dtype=flags.dtype, head=False, tick=tick
        )
        seen = _embed(model, tagged, tick)
        asked = {name: _embed(model, corpus, tick) for name, corpus in tests.items()}
        found: dict[tuple[str, str], Hits] = {}
        frequent: Hits = {}
        ways = settings(seen.shape[1])
        for label, layers in ways:
            for standardise in (False, True):
                made = train_senses(
                    tagged, _sum(seen, layers), wordnet, {}, standardise=standardise
                )
                name = f"{label}, standardised" if standardise else label
                for rule in get_args(Rule):
                    tagger = SenseTagger(made, wordnet, rule=rule)
                    found[rule, name] = {
                        test: _right(tagger, tests[test], _sum(vectors, layers))
                        for test, vectors in asked.items()
                    }
                    tick("score", len(found), 4 * len(ways), "settings")
                frequent = frequent or {
                    test: np.array(
                        [
                            most_frequent_sense(made, wordnet, entry.lemma, entry.pos) in entry.keys
                            for entry in corpus.instances
                        ]
                    )
                    for test, corpus in tests.items()
                }
    about = {"command": "senses", "model": flags.name, "data": tagged.name}
    records = [Record(**about, **own) for own in rows(found, frequent)]
    told = {
        "chosen on": DEV,
        "words of SemCor": len(seen),
        "layers": seen.shape[1] - 1,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
    }
    flags.out.write_text(json.dumps(plain_results(told, records), indent=1) + "\n")


def settings(states: int) -> list[tuple[str, list[int]]]:
    """Return the layers that are summed, with a name; state 0 is the embeddings."""
    last = states - 1
    one = [(f"layer {layer}", [layer]) for layer in range(1, states)]
    return [
        *one,
        (DEFAULT, list(range(max(1, last - 3), states))),
        ("sum of all", [*range(states)]),
    ]


def rows(found: Mapping[tuple[str, str], Hits], frequent: Hits) -> Iterator[dict[str, Any]]:
    """Yield the figures: each rule's choice and default on every set, then all settings."""
    others = [name for name in frequent if name != DEV]
    base = _pool(frequent, others)
    number = np.repeat(np.arange(len(others)), [len(frequent[name]) for name in others])
    yield from _scores(frequent, others, FREQUENT, "chosen")
    for rule in get_args(Rule):
        own = {name: hits for (kind, name), hits in found.items() if kind == rule}
        best = max(own, key=lambda name: own[name][DEV].mean())
        for name in dict.fromkeys((DEFAULT, best)):
            row = f"{rule}, {name}" + (" (chosen)" if name == best else "")
            yield from _scores(own[name], others, row, "chosen")
            change = paired_bootstrap(2 - base, 2 - _pool(own[name], others), number)
            difference = change[OVER_FACTS]["p1"]
            yield {
                "method": row,
                "metric": "other sets",
                "value": difference.difference,
                "low": difference.low,
                "high": difference.high,
                "p": difference.p,
                "versus": FREQUENT,
                "settings": {"table": "chosen"},
            }
        for name, hits in own.items():
            yield from _scores(hits, others, f"{rule}, {name}", "all settings")


def _scores(hits: Hits, others: list[str], method: str, table: str) -> Iterator[dict[str, Any]]:
    shared = {"method": method, "settings": {"table": table}}
    parts = {DEV: hits[DEV], "other sets": _pool(hits, others)}
    if table == "chosen":
        parts |= {name: hits[name] for name in others}
    for name, own in parts.items():
        yield {**shared, "metric": name, "value": round(100 * float(own.mean()), 2), "n": len(own)}


def _pool(hits: Hits, names: list[str]) -> npt.NDArray[np.int64]:
    return np.concatenate([hits[name] for name in names]).astype(np.int64)


def _embed(model: LanguageModel, corpus: SenseCorpus, tick: Tick) -> Vectors:
    texts = instance_texts(corpus)
    parts = embed_chunks(model, texts, Choice("all"), dtype=np.float16, total=len(texts), tick=tick)
    return np.concatenate([part.vectors for part in parts])


def _sum(states: Vectors, layers: list[int]) -> Vectors:
    total: Vectors = states[:, layers].sum(axis=1, dtype=np.float32)
    return total


def _right(tagger: SenseTagger, corpus: SenseCorpus, vectors: Vectors) -> npt.NDArray[np.bool_]:
    entries = corpus.instances
    tags = tagger.tag([[(entry.lemma, entry.pos)] for entry in entries], vectors)
    return np.array(
        [
            tag.sense is not None and tag.sense.key in entry.keys
            for tag, entry in zip(tags, entries, strict=True)
        ]
    )


if __name__ == "__main__":
    main()
