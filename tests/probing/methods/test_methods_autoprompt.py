"""AutoPrompt's formulas and filters against loops over full forwards; searches too short."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import symprompt
from symprompt.errors import ConfigError
from symprompt.facts import FactSet, Relation
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig
from symprompt.probing.methods.autoprompt import first_order, placeholder, usable_words
from symprompt.probing.methods.base import make_method
from symprompt.probing.prepare import prepare
from symprompt.probing.results import load_card
from symprompt.report.records import run_summary
from symprompt.report.tables import load_scores
from tiny.models import CAUSAL_FAMILIES, FAMILIES, facts_of
from tiny.runs import Make
from tiny.search import make_search, search_config, slow_gradient, slow_loss

CAUSAL = {"prompt": {"template": "<1> [X] <2> [Y]"}}


def random_tokens(shape: tuple[int, ...], backbone: LanguageModel) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(5, len(backbone.vocabulary), shape, generator=generator)


@pytest.mark.parametrize("name", [*FAMILIES, *CAUSAL_FAMILIES, "bert packed"])
def test_trials_are_the_losses_of_sentences_with_those_words(
    name: str,
    load_family: Callable[..., LanguageModel],
    facts: FactSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone = load_family(name.removesuffix(" packed"))
    if name.endswith("packed"):
        monkeypatch.setitem(backbone.__dict__, "longest_packed", 128)
    # Of a causal model the output before the object is read.
    sections = CAUSAL if backbone.causal else {}
    made = make_search(search_config(**sections), backbone, facts)
    tokens = random_tokens((3, 4, made.method.counts[0]), backbone)
    listed = made.problem.facts.facts("train")
    rows = np.array([7, 0, 12, 3, 13])
    with torch.no_grad():
        losses = made.method.trial_losses(made.searcher.sentences, rows, tokens)
        assert losses.shape == (5, 4)
        for place, row in enumerate(rows.tolist()):
            relation = made.problem.relations.index(listed[row].relation)
            for trial in range(4):
                words = tokens[relation, trial].tolist()
                template = made.problem.templates[relation]
                wanted = slow_loss(backbone, template, listed[row], words)
                # Some families' norms and rotary angles are float32 in any dtype.
                assert float(losses[place, trial]) == pytest.approx(float(wanted), abs=2e-4)


@pytest.mark.parametrize(("name", "sections"), [("bert", {}), ("gpt2", CAUSAL)])
def test_first_order_scores_are_the_slope_of_the_loss_towards_every_word(
    name: str,
    sections: dict[str, Any],
    load_family: Callable[..., LanguageModel],
    facts: FactSet,
) -> None:
    backbone = load_family(name)
    problem = prepare(search_config(**sections), backbone, facts)
    template, listed = problem.templates[0], problem.facts["capital"].train
    tokens = random_tokens((template.vectors,), backbone).tolist()
    embeddings = backbone.embed(torch.arange(backbone.vocabulary_size)).detach()
    gradient = slow_gradient(backbone, template, listed, tokens, 1)
    scores = first_order(gradient[None], embeddings)[0]
    here = embeddings[tokens]
    small = 1e-5
    with torch.no_grad():
        for word in range(0, backbone.vocabulary_size, 17):
            step = small * (embeddings[word] - here[1])
            moved = [
                sum(
                    slow_loss(backbone, template, fact, [here[0], here[1] + way, *here[2:]])
                    for fact in listed
                )
                / len(listed)
                for way in (step, -step)
            ]
            slope = float(moved[0] - moved[1]) / (2 * small)
            promised = float(scores[word] - scores[tokens[1]])
            assert promised == pytest.approx(-slope, rel=1e-4, abs=1e-6), word


def test_candidates_are_the_usable_words_of_the_highest_scores(
    bert: LanguageModel, facts: FactSet
) -> None:
    made = make_search(search_config(), bert, facts)
    made.method.triggers.tokens.copy_(random_tokens((3, 4), bert))
    place = torch.tensor([2, 0, 3])
    found = made.searcher.candidates([rows[:3] for rows in made.searcher.rows], place)
    listed = made.problem.facts.facts("train")
    embeddings = bert.embed(torch.arange(bert.vocabulary_size)).detach()
    for relation in range(3):
        batch = [listed[row] for row in made.searcher.rows[relation][:3]]
        tokens = made.method.triggers.tokens[relation].tolist()
        at = int(place[relation])
        gradient = slow_gradient(bert, made.problem.templates[relation], batch, tokens, at)
        scores = -(embeddings @ gradient)
        allowed = [
            word
            for word in range(bert.vocabulary_size)
            if made.method.usable[relation, word] and word != tokens[at]
        ]
        wanted = sorted(allowed, key=lambda word: -float(scores[word]))[:5]
        assert found[relation].tolist() == wanted


# ---------------------------------------------------------------------------------- the filters


OBJECTS = [["capital", "Paris"], ["river", "in"], []]


@pytest.mark.parametrize("name", [*FAMILIES, *CAUSAL_FAMILIES])
def test_filters_leave_out_specials_capitals_and_each_relations_own_objects(
    name: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(name)
    vocabulary, size = backbone.vocabulary, backbone.vocabulary_size
    tokenizer = vocabulary.tokenizer
    usable = usable_words(vocabulary, size, OBJECTS, filters=True)
    assert usable.shape == (len(OBJECTS), size)
    for row, names in enumerate(OBJECTS):
        for token in range(size):
            text = tokenizer.decode([token]) if token < len(tokenizer) else ""
            letters = [letter for letter in text if letter.isalpha()]
            bad = (
                token >= len(tokenizer)
                or token in tokenizer.all_special_ids
                or token == placeholder(vocabulary)
                or bool(letters and letters[0].isupper())
                or text.strip() in names
            )
            assert bool(usable[row, token]) == (not bad), (token, text)
    plain = usable_words(vocabulary, size, OBJECTS, filters=False)
    assert (plain >= usable).all()
    assert not plain[:, tokenizer.all_special_ids].any()
    assert not plain[:, placeholder(vocabulary)].any()
    assert not plain[:, len(tokenizer) :].any()
    assert 0 < usable[0].sum() < usable[2].sum()
    words = vocabulary.single_tokens(["capital", "river"])
    assert usable[:, words].tolist() == [[False, True], [True, False], [True, True]]


def test_a_relations_training_objects_are_what_is_filtered(bert: LanguageModel) -> None:
    train = facts_of("kind", [("Paris", "city"), ("Rome", "river")])
    other = facts_of("kind", [("Lima", "old")])
    relation = Relation("kind", train, other, other, template="[X] is the [Y] .")
    kinds = FactSet((relation,), source="made up", layout="table")
    made = make_search(search_config(), bert, kinds)
    (seen, unseen) = bert.vocabulary.single_tokens(["river", "old"])
    assert not made.method.usable[0, seen]
    assert made.method.usable[0, unseen]


# ------------------------------------------------------------------------------------ bad input


def test_too_few_words_are_refused_with_their_number(bert: LanguageModel, facts: FactSet) -> None:
    left = int(make_search(search_config(), bert, facts).method.usable.sum(1).min())
    assert make_search(search_config(search={"candidates": left - 1}), bert, facts)
    with pytest.raises(ConfigError, match=f"may take only {left} words.*below {left}"):
        make_search(search_config(search={"candidates": left}), bert, facts)


def test_a_vocabulary_of_names_alone_is_refused(
    bert: LanguageModel, facts: FactSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(bert.vocabulary), "text", lambda self, token: "Name")
    with pytest.raises(ConfigError, match=r"relation capital has no words to try.*filters = false"):
        make_search(search_config(), bert, facts)
    assert make_search(search_config(search={"filters": False}), bert, facts)


def test_templates_without_a_place_for_words_are_refused(
    bert: LanguageModel, gpt2: LanguageModel, facts: FactSet
) -> None:
    config = search_config(prompt={"template": "[X] is in [Y] ."})
    with pytest.raises(ConfigError, match="autoprompt has nothing to train"):
        make_method(config, prepare(config, bert, facts))
    with pytest.raises(ConfigError, match=r"\[Y\] must stand last"):
        prepare(search_config(), gpt2, facts)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"search": {"steps": 0}}, "search.steps is 0; it must be at least 1"),
        ({"search": {"candidates": 0}}, "search.candidates is 0; it must be at least 1"),
        ({"prompt": {"encoder": "mlp"}}, 'method.name = "autoprompt" goes with'),
        ({"search": {"iterations": 3}}, "unknown key search.iterations"),
    ],
)
def test_bad_settings_are_refused(sections: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        search_config(**sections)


# ------------------------------------------------------------------------------ searches too short


def short_run(make: Make, out: Path, epochs: int, steps: int, **sections: Any) -> RunConfig:
    more = {"learning": {"epochs": epochs}, "search": {"steps": steps}}
    place = {key: getattr(make(out), key) for key in ("model", "data", "out", "dtype")}
    return search_config(**(place | more | sections))


@pytest.mark.parametrize(("epochs", "steps"), [(1, 3), (3, 1), (0, 5)])
def test_fewer_steps_than_words_are_refused_before_a_folder_is_made(
    make: Make, tmp_path: Path, epochs: int, steps: int
) -> None:
    total = epochs * steps
    with pytest.raises(ConfigError, match=rf"steps is {total}, a word each.* has 4 places"):
        symprompt.train(short_run(make, tmp_path / "run", epochs, steps))
    assert not (tmp_path / "run").exists()


def test_a_start_from_words_takes_no_steps(make: Make, tmp_path: Path) -> None:
    run = symprompt.train(short_run(make, tmp_path / "run", 1, 1, prompt={"start": "manual"}))
    assert run.metrics["unfilled"] == run.folder.read_json("history.json")["unfilled"] == []


def test_a_place_that_was_never_drawn_is_reported(make: Make, tmp_path: Path) -> None:
    run = symprompt.train(short_run(make, tmp_path / "run", 1, 4, seed=1))
    card = load_card(run.folder)["relations"]
    expected = [name for name, about in card.items() if "[MASK]" in about["words"]]
    assert expected
    assert run.metrics["unfilled"] == run.folder.read_json("history.json")["unfilled"] == expected
    note = f"too short: {len(expected)} of 2 relations ({', '.join(expected)}); raise"
    assert note in load_scores(str(run.folder.path)).note
    console = Console(file=io.StringIO(), width=300)
    console.print(run_summary(run.metrics))
    assert isinstance(console.file, io.StringIO)
    assert note in console.file.getvalue()


def test_a_search_that_goes_on_from_words_may_be_short(make: Make, tmp_path: Path) -> None:
    first = symprompt.train(short_run(make, tmp_path / "first", 6, 4))
    assert first.metrics["unfilled"] == []
    start = {"start_from": str(first.folder.path)}
    assert symprompt.train(short_run(make, tmp_path / "more", 1, 1, **start)).metrics
