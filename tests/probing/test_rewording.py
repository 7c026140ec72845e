"""Consistency under rewording: equal to transformers' own model asked sentence by sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

import symprompt
from symprompt import Run
from symprompt.errors import ConfigError, DataError
from symprompt.probing.results import load_card, load_prompts
from symprompt.probing.rewording import MEASURES, measure_consistency
from symprompt.prompts import Template
from symprompt.report.consistency import consistency_tables
from tiny.models import CITIES, COUNTRIES
from tiny.runs import Call, Make, few_answers, write_lama, write_prompts

WORDS = {
    "capital": ("[X] is the old [Y].", "[Y] is the capital of [X] .", "The city of [X] is [Y] ."),
    "in": ("[X] lies in [Y] .", "[Y] is the city of [X] ."),
}


@pytest.fixture(scope="module")
def make(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Configs with few allowed answers, so that rewordings agree now and then."""
    return few_answers(make, tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rewordings of both relations."""
    return write_prompts(tmp_path_factory.mktemp("rewordings"), WORDS)


class Slow:
    """transformers' model, asked one sentence at a time."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForMaskedLM.from_pretrained(folder).eval()
        self.allowed = [self.ids(name)[0] for name in (*COUNTRIES, *CITIES)]

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    @torch.no_grad()
    def log_probabilities(
        self, template: str, first: Sequence[int], second: Sequence[int], vectors: Tensor | None
    ) -> Tensor:
        """Of every token at every mask, [masks, v].

        Args:
            first, second: what stands in the blanks, in the order of the sentence.
        """
        table = self.model.get_input_embeddings().weight
        blanks, used = [first, second], 0
        ids = [self.tokenizer.cls_token_id]
        learned: dict[int, Tensor] = {}
        for piece in re.split(r"(<\d+>|\[[XY]\])", template):
            if re.fullmatch(r"\[[XY]\]", piece):
                ids += blanks.pop(0)
            elif re.fullmatch(r"<\d+>", piece):
                assert vectors is not None
                for _ in range(int(piece[1:-1])):
                    learned[len(ids)] = vectors[used]
                    used, ids = used + 1, [*ids, 0]
            else:
                ids += self.ids(piece)
        ids.append(self.tokenizer.sep_token_id)
        embedded = torch.stack(
            [learned.get(place, table[token]) for place, token in enumerate(ids)]
        )
        logits = self.model(inputs_embeds=embedded[None]).logits[0]
        at = [place for place, token in enumerate(ids) if token == self.tokenizer.mask_token_id]
        return logits[at].log_softmax(-1)

    def scores(self, template: str, subject: str, vectors: Tensor | None) -> dict[int, float]:
        """Log-probabilities of the allowed objects."""
        sides: Any = (self.ids(subject), [self.tokenizer.mask_token_id])
        sides = sides if template.index("[X]") < template.index("[Y]") else sides[::-1]
        (found,) = self.log_probabilities(template, *sides, vectors)
        return {token: float(found[token]) for token in self.allowed}

    def way_back(self, template: str, subject: str, token: int, vectors: Tensor) -> float:
        """The mean log-likelihood of the subject's tokens, each masked alone, blanks exchanged."""
        total = 0.0
        for place, own in enumerate(ids := self.ids(subject)):
            masked = [*ids[:place], self.tokenizer.mask_token_id, *ids[place + 1 :]]
            sides: Any = ([token], masked)
            sides = sides if template.index("[X]") < template.index("[Y]") else sides[::-1]
            (found,) = self.log_probabilities(template, *sides, vectors)
            total += float(found[own])
        return total / len(ids)


def slow_values(
    slow: Slow, run: Run, *, weight: float = 0.0, k: int = 1
) -> tuple[list[tuple[str, str, str]], dict[str, list[float]]]:
    """Facts and their measures, by counting pairs."""
    card = load_card(run.folder)
    parts = load_prompts(run.folder, card["parts"])
    keys, values = [], {name: [] for name in MEASURES}  # type: ignore[var-annotated]
    for number, (relation, about) in enumerate(card["relations"].items()):
        own = about["template"]
        forth, back = (parts[name][number] if name in parts else None for name in ("forth", "back"))
        prompts = [own]
        for words in WORDS[relation]:
            prompts.append(put_in(own, words))
        for fact in run.predictions()[1]:
            if fact.relation != relation:
                continue
            answers = []
            for template in prompts:
                scores = slow.scores(template, fact.subject, forth)
                best = sorted(scores, key=scores.__getitem__, reverse=True)[:k]
                if weight:
                    assert forth is not None
                    vectors = forth if back is None else back
                    for token in best:
                        scores[token] += weight * slow.way_back(
                            template, fact.subject, token, vectors
                        )
                answers.append(max(best, key=scores.__getitem__))
            pairs = list(combinations(answers[1:], 2))
            right = [answer == slow.ids(fact.object)[0] for answer in answers[1:]]
            keys.append((fact.relation, fact.subject, fact.object))
            values["consistency"].append(np.mean([one == other for one, other in pairs]))
            values["p1"].append(np.mean(right))
            values["always"].append(float(all(right)))
            values["own"].append(np.mean([answer == answers[0] for answer in answers[1:]]))
    return keys, values


def put_in(own: str, words: str) -> str:
    """Vectors of three gaps before the words of the gaps."""
    counts = ["".join(re.findall(r"<\d+>", gap)) for gap in re.split(r"\[[XY]\]", own)]
    first, second = re.findall(r"\[[XY]\]", words)
    gaps = re.split(r"\[[XY]\]", words)
    return f"{counts[0]} {gaps[0]} {first} {counts[1]} {gaps[1]} {second} {counts[2]} {gaps[2]}"


def assert_values(run: Run, templates: Path, order: str, wanted: Any) -> None:
    keys, values = wanted
    found = measure_consistency(run, [templates], facts=0, device="cpu")
    assert [(fact.relation, fact.subject, fact.object) for fact in found.facts] == keys
    for name in MEASURES:
        np.testing.assert_allclose(found.values[order][name], values[name], err_msg=name)


def test_manual_templates_are_replaced(
    make: Make, model: Path, templates: Path, tmp_path: Path
) -> None:
    run = symprompt.train(make(tmp_path / "run", method={"name": "manual"}))
    slow = slow_values(Slow(model), run)
    assert_values(run, templates, "raw", slow)
    # The figures are neither all 0 nor all 1, so the equality says something.
    assert 0 < np.mean(slow[1]["consistency"]) < 1
    found = measure_consistency(run, [templates], facts=0, device="cpu")
    assert set(found.values) == {"raw"}
    assert (found.rewordings, found.example) == ({"capital": 3, "in": 2}, WORDS["capital"][0])


@pytest.mark.parametrize("template", ["<2> [X] <1> [Y] <1>", "[X] <2> is [Y]", "manual"])
def test_learned_vectors_keep_their_places(
    template: str, make: Make, model: Path, templates: Path, tmp_path: Path
) -> None:
    own, file = {"template": template}, tmp_path / "own.jsonl"
    # Vectors that are learned around each relation's own words.
    around = {"capital": "<2> The capital of [X] is [Y] <1> .", "in": "<2> [X] is in <1> [Y] ."}
    rows = [json.dumps({"relation": name, "template": text}) for name, text in around.items()]
    file.write_text("\n".join(rows))
    facts = {"templates": str(file)} if template == "manual" else {}
    config = make(tmp_path / "run", method={"name": "ptuning"}, prompt=own, facts=facts)
    run = symprompt.train(config)
    assert_values(run, templates, "raw", slow_values(Slow(model), run))


def test_the_subject_prompt_is_asked_in_the_same_words(
    make: Make, model: Path, templates: Path, tmp_path: Path
) -> None:
    method = {"vectors": "separate", "weight": 3.0, "k": 4}
    run = symprompt.train(make(tmp_path / "run", method=method, learning={"epochs": 1}))
    slow = Slow(model)
    forward = slow_values(slow, run)
    joint = slow_values(slow, run, weight=3.0, k=4)
    assert forward != joint
    assert_values(run, templates, "forward", forward)
    assert_values(run, templates, "raw", joint)


def test_a_template_is_reworded_gap_by_gap() -> None:
    def told(own: str, words: str) -> str:
        return str(Template.parse(own).reworded(Template.parse(words)))

    assert told("<3> [X] <3> [Y] <3>", "The capital of [X] is [Y] .") == (
        "<3> The capital of [X] <3> is [Y] <3> ."
    )
    assert told("<1> [X] <2> old <3> [Y]", "[X]'s ([Y])") == "<1> [X] <5> 's ([Y])"
    assert told("[X] is [Y] .", "[Y], [X]") == "[Y], [X]"


def test_a_causal_models_rewordings_end_with_the_object(
    family_folder: Callable[[str], Path], make: Make, tmp_path: Path
) -> None:
    run = symprompt.train(
        make(tmp_path / "run", model=str(family_folder("gpt2")), method={"name": "manual"})
    )
    words = write_prompts(
        tmp_path / "words",
        {"capital": ("[X] is [Y] .", "[Y] is in [X]", "[X] in [Y]"), "in": ("[X] is [Y]",)},
    )
    found = measure_consistency(run, [words], device="cpu")
    assert found.rewordings == {"capital": 2}
    assert found.notes == ("fewer than two rewordings, so left out: in",)
    assert found.example == "[X] is [Y]"


def test_relations_that_the_run_left_out_are_named(make: Make, tmp_path: Path) -> None:
    data = str(write_lama(tmp_path / "data", without_dev=("P19",)))
    config = make(tmp_path / "run", data=data, facts={"skip_unusable": True})
    words = {"P17": WORDS["in"], "P36": WORDS["capital"]}
    found = measure_consistency(
        symprompt.train(config), [write_prompts(tmp_path / "words", words)], device="cpu"
    )
    assert found.notes[0] == "1 relation left out (no usable dev facts: P19)"
    assert found.notes[0] in consistency_tables({"run": found}).to_markdown()


def test_runs_are_compared_in_tables(make: Make, tmp_path: Path, call: Call) -> None:
    manual = symprompt.train(make(tmp_path / "manual", method={"name": "manual"}))
    spe = symprompt.train(make(tmp_path / "spe", method={"weight": 3.0}, learning={"epochs": 1}))
    # ParaRel's files call a template a pattern; a public file has lines that are none.
    folder = tmp_path / "pararel"
    folder.mkdir()
    for relation, listed in WORDS.items():
        lines = [json.dumps({"pattern": text, "tense": "present"}) for text in listed]
        (folder / f"{relation}.jsonl").write_text("\n".join([*lines, '{"pattern": "[X] is"}']))
    paths = [str(run.folder.path) for run in (manual, spe)]
    words = ("consistency", *paths, "--templates", str(folder), "--device", "cpu", "--facts", "3")
    said = call(*words, "--by", "relation", "--forward", "--json", "--draws", "50")
    assert said.code == 0
    values = json.loads(said.out)
    assert [row["name"] for row in values["runs"]] == ["manual", "spe forward", "spe"]
    assert [row["facts"] for row in values["runs"]] == [6, 6, 6]
    found = measure_consistency(spe, [folder], facts=3, device="cpu")
    mean = values["runs"][2]["mean over facts"]["consistency"]
    assert mean["value"] == pytest.approx(100 * found.values["raw"]["consistency"].mean())
    assert mean["low"] <= mean["value"] <= mean["high"]
    first = measure_consistency(manual, [folder], facts=3, device="cpu").values["raw"]["p1"]
    change = values["differences"][1]["mean over facts"]["p1"]["difference"]
    assert change == pytest.approx(100 * (found.values["raw"]["p1"] - first).mean())
    assert any("2 templates left out, the first: " in note for note in values["notes"])
    assert len(values["relations"]) == 6
    said = call(*words)
    assert "right in" in said.out
    assert "minus manual" in consistency_tables({"a/manual": found, "b/spe": found}).to_markdown()


def test_what_cannot_be_reworded_is_refused(make: Make, prompts: Path, tmp_path: Path) -> None:
    majority = symprompt.train(make(tmp_path / "majority", method={"name": "majority"}))
    with pytest.raises(ConfigError, match="made by majority, which has no prompt of its own"):
        measure_consistency(majority, [prompts])
    manual = symprompt.train(make(tmp_path / "manual", method={"name": "manual"}))
    with pytest.raises(ConfigError, match="name a folder or file of others with --templates"):
        measure_consistency(manual)
    with pytest.raises(DataError, match="does not exist"):
        measure_consistency(manual, [tmp_path / "nowhere"])
    vectors = write_prompts(tmp_path / "vectors", {"in": ("<3> [X] is [Y]", "[X] in [Y]")})
    with pytest.raises(DataError, match="a rewording of relation in has vectors"):
        measure_consistency(manual, [vectors], device="cpu")
    one = write_prompts(tmp_path / "one", {"in": ("[X] in [Y]",)})
    with pytest.raises(DataError, match="has two rewordings"):
        measure_consistency(manual, [one], device="cpu")
    several = {"method": {"name": "lpaqa"}, "ensemble": {"prompts": [str(prompts)]}}
    lpaqa = symprompt.train(make(tmp_path / "lpaqa", **several))
    with pytest.raises(
        ConfigError, match="made by lpaqa, which has no prompt of its own or several"
    ):
        measure_consistency(lpaqa, [prompts])
