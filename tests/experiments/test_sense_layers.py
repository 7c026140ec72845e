"""experiments/sense_layers.py: the figures of its default are those of ``symprompt senses``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from test_nested_names import load_script

from symprompt.embeddings import Choice
from symprompt.embeddings.sense_evaluation import evaluate_senses, learn_senses
from symprompt.embeddings.senses import Rule
from symprompt.embeddings.wordnet import WordNet
from symprompt.models import LanguageModel
from tiny.wordnet import bank_sentences, write_semcor, write_test_set, write_wordnet


def test_the_default_scores_as_the_command_does(
    bert: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load_script("sense_layers")
    wordnet = write_wordnet(tmp_path / "wordnet")
    semcor, data = write_semcor(tmp_path / "semcor"), tmp_path / "sets"
    for shift, name in enumerate(("senseval2", "semeval2007", "semeval2015")):
        write_test_set(data, name, bank_sentences(shift))
    flags = {"model": bert.source, "name": "tiny", "semcor": semcor, "data": data}
    given = [f"--{name}={value}" for name, value in {**flags, "wordnet": wordnet}.items()]
    monkeypatch.setattr(sys, "argv", ["sense_layers.py", str(tmp_path / "out.json"), *given])
    script.main()
    records = json.loads((tmp_path / "out.json").read_text())["records"]
    own = {
        (record["method"], record["metric"]): record
        for record in records
        if record["settings"]["table"] == "all settings"
    }
    last = int(bert.model.config.num_hidden_layers)
    read = WordNet.load(wordnet)
    for layers, name in (
        (f"sum-last-{min(4, last)}", script.DEFAULT),
        (str(last), f"layer {last}"),
    ):
        made = learn_senses(semcor, tmp_path / name, bert, read, Choice(layers))
        for rule in ("nearest", "fitted"):
            found = _score(made, data, bert, read, rule)
            for metric, value in found.items():
                record = own[f"{rule}, {name}", metric]
                # Vectors are kept in half precision there.
                assert record["value"] == pytest.approx(value, abs=0.01)
    chosen = [record for record in records if "(chosen)" in record["method"]]
    assert {record["method"].split(",")[0] for record in chosen} == {"nearest", "fitted"}
    for record in chosen:
        if record["metric"] == script.DEV:
            rule = record["method"].split(",")[0]
            all_of = [r for (name, key), r in own.items() if key == script.DEV and rule in name]
            assert record["value"] == max(other["value"] for other in all_of)


def _score(
    made: object, data: Path, bert: LanguageModel, wordnet: WordNet, rule: Rule
) -> dict[str, float]:
    """Return F1 on Semeval-2007 and on the other two sets together, as the command has it."""
    found = evaluate_senses(made, data, bert, wordnet, rule=rule, draws=10)  # type: ignore[arg-type]
    others = [score for score in found.sets if score.name != "semeval2007"]
    words = sum(score.instances for score in others)
    pooled = sum(score.f1 * score.instances for score in others) / words
    dev = next(score.f1 for score in found.sets if score.name == "semeval2007")
    return {"semeval2007": dev, "other sets": pooled}
