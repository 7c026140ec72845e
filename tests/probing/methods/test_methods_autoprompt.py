"""AutoPrompt: trials, gradients and filters against loops; searches, runs and learning."""

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
from symprompt.engine.loop import Loop
from symprompt.errors import ConfigError, RunError, TrainingError
from symprompt.facts import FactSet, Relation
from symprompt.models import Inputs, LanguageModel
from symprompt.probing.config import RunConfig
from symprompt.probing.evaluate import predict
from symprompt.probing.methods.autoprompt import first_order, placeholder, usable_words
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.results import load_card, load_metrics
from symprompt.probing.results import run_config as stored_config
from symprompt.probing.summary import run_summary
from symprompt.report.tables import load_scores
from symprompt.runs.folder import STATE, Folder
from tiny.models import CAUSAL_FAMILIES, FAMILIES, facts_of, make_facts, run_training, world_facts
from tiny.runs import Make, write_csv
from tiny.search import (
    Searched,
    make_search,
    search,
    search_config,
    slow_gradient,
    slow_loss,
    slow_search,
)

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


def check(bert: LanguageModel, facts: FactSet, **search: object) -> None:
    """Refuse what a run of this search would be refused for."""
    config = search_config(search=search)
    make_search(config, bert, facts).method.check_learning(config)


def test_too_few_words_are_refused_with_their_number(bert: LanguageModel, facts: FactSet) -> None:
    left = int(make_search(search_config(), bert, facts).method.usable.sum(1).min())
    check(bert, facts, candidates=left - 1)
    with pytest.raises(ConfigError, match=f"may take only {left} words.*below {left}"):
        check(bert, facts, candidates=left)


def test_a_vocabulary_of_names_alone_is_refused(
    bert: LanguageModel, facts: FactSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(bert.vocabulary), "text", lambda self, token: "Name")
    with pytest.raises(ConfigError, match=r"relation capital has no words to try.*filters = false"):
        check(bert, facts)
    check(bert, facts, filters=False)


def test_templates_without_a_place_for_words_are_refused(
    bert: LanguageModel, gpt2: LanguageModel, facts: FactSet
) -> None:
    config = search_config(prompt={"template": "[X] is in [Y] ."})
    with pytest.raises(ConfigError, match="autoprompt has nothing to train"):
        make_method(config, prepare(config, bert, facts))
    with pytest.raises(ConfigError, match=r"\[Y\] must stand last"):
        prepare(search_config(), gpt2, facts)


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


# ------------------------------------------------------------------------------------- the search


def test_the_search_takes_the_words_that_a_search_in_loops_takes(
    bert: LanguageModel, facts: FactSet
) -> None:
    config = search_config(search={"candidates": 4}, learning={"epochs": 2})
    found = search(config, bert, facts)
    for relation, name in enumerate(facts.names[:2]):
        wanted = slow_search(config, bert, name, found.problem, found.method.usable[relation])
        assert [tokens[relation].tolist() for tokens in found.tokens] == wanted


CASES: dict[str, dict[str, Any]] = {
    "masks": {},
    "early stops": {"learning": {"patience": 1, "epochs": 8}, "search": {"steps": 2}},
    "manual": {"prompt": {"start": "manual"}, "learning": {"select": "loss"}},
}


@pytest.mark.parametrize("name", list(CASES))
def test_relations_searched_in_one_stack_equal_each_searched_alone(
    name: str, bert: LanguageModel, facts: FactSet
) -> None:
    config = search_config(**CASES[name])
    stacked = search(config, bert, facts)
    progress = stacked.searcher.stopping["forth"]
    lasts = []
    for relation, relation_name in enumerate(facts.names):
        alone = search(config, bert, facts.select([relation_name]))
        lasts.append(len(alone.tokens))
        count = int(stacked.method.counts[relation])
        for epoch, tokens in enumerate(alone.tokens):
            assert stacked.tokens[epoch][relation, :count].tolist() == tokens[0, :count].tolist()
        for tokens in stacked.tokens[lasts[-1] :]:  # stopped: nothing moves any more
            assert torch.equal(tokens[relation], stacked.tokens[lasts[-1] - 1][relation])
        assert progress.best[relation] == alone.searcher.stopping["forth"].best[0]
        best = alone.method.triggers.tokens[0, :count].tolist()
        assert stacked.method.triggers.tokens[relation, :count].tolist() == best
    assert len(stacked.tokens) == max(lasts)
    if name == "early stops":
        assert len(set(lasts)) > 1
    if name == "manual":
        assert len(set(stacked.method.counts.tolist())) > 1


def test_passes_are_bounded_and_change_nothing(
    bert: LanguageModel, facts: FactSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search(search_config(), bert, facts)
    sizes: list[int] = []
    logits_at = LanguageModel.logits_at

    def spy(self: LanguageModel, inputs: Inputs, *rest: Any) -> torch.Tensor:
        sizes.append(inputs.embeddings[..., 0].numel())
        return logits_at(self, inputs, *rest)

    monkeypatch.setattr(LanguageModel, "logits_at", spy)
    made = make_search(search_config(), bert, facts, max_tokens=200)
    run_training(made.searcher, lambda: {"forth": np.arange(3.0)})
    # A fact and its trials stay together: six sentences of at most 16 tokens, well below 200.
    assert max(sizes) <= 200
    assert len(sizes) > 12 * 3
    assert torch.equal(made.method.triggers.tokens, whole.tokens[-1])


def test_a_step_makes_few_passes_whatever_the_number_of_relations(
    bert: LanguageModel, facts: FactSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    logits_at = LanguageModel.logits_at

    def spy(self: LanguageModel, *rest: Any) -> torch.Tensor:
        calls.append(1)
        return logits_at(self, *rest)

    monkeypatch.setattr(LanguageModel, "logits_at", spy)
    made = make_search(search_config(), bert, facts)
    run_training(made.searcher, lambda: {"forth": np.zeros(3)})
    assert len(calls) == 2 * 3 * 4  # one for the gradient, one for the trials


def test_prompts_are_words_that_may_be_taken_and_masks_never_win(
    bert: LanguageModel, facts: FactSet
) -> None:
    mask = bert.vocabulary.mask_id
    made = make_search(search_config(learning={"epochs": 12}, search={"steps": 1}), bert, facts)
    scored: list[torch.Tensor] = []

    def falling() -> dict[str, np.ndarray]:
        scored.append(made.method.triggers.tokens.clone())
        return {"forth": np.full(3, -float(len(scored)))}

    run_training(made.searcher, falling)
    # Dev falls from the first epoch on, so the best prompt is the first without a mask.
    for relation in range(3):
        whole = [tokens[relation] for tokens in scored if mask not in tokens[relation].tolist()]
        assert 0 < len(whole) < 12
        assert torch.equal(made.method.triggers.tokens[relation], whole[0])
        assert made.method.usable[relation, whole[0]].all()
    assert not made.method.unfilled().any()


def test_a_search_that_ends_early_keeps_the_last_prompt(
    bert: LanguageModel, facts: FactSet
) -> None:
    config = search_config(learning={"epochs": 2}, search={"steps": 1})
    found = search(config, bert, facts)
    assert found.method.unfilled().all()
    assert torch.equal(found.method.triggers.tokens, found.tokens[-1])


def test_other_seeds_search_otherwise(bert: LanguageModel, facts: FactSet) -> None:
    one, same, other = (search(search_config(seed=seed), bert, facts) for seed in (1, 1, 2))
    assert torch.equal(one.method.triggers.tokens, same.method.triggers.tokens)
    assert not torch.equal(one.method.triggers.tokens, other.method.triggers.tokens)


def test_causal_models_are_searched(causal: LanguageModel, facts: FactSet) -> None:
    config = search_config(prompt={"template": "<1> [X] <2> [Y]"}, learning={"epochs": 5})
    found = search(config, causal, facts)
    assert not found.method.unfilled().any()
    assert found.method.usable.gather(1, found.method.triggers.tokens).all()


def test_a_loss_that_is_not_finite_is_refused(
    bert: LanguageModel, facts: FactSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_search(search_config(), bert, facts)
    losses = type(made.method).trial_losses

    def broken(self: Any, sentences: Any, rows: np.ndarray, tokens: torch.Tensor) -> torch.Tensor:
        found = losses(self, sentences, rows, tokens)
        return found.masked_fill((sentences.object_prompt.relation[rows] == 1)[:, None], torch.nan)

    monkeypatch.setattr(type(made.method), "trial_losses", broken)
    with pytest.raises(TrainingError, match="relation in is not finite at epoch 1, step 1"):
        run_training(made.searcher, made.score)


# ---------------------------------------------------------------------------------- it learns


def p1(found: Searched, split: str = "test") -> float:
    vectors = {"forth": found.method.vectors()["forth"]}
    predictions = predict(
        found.method,
        found.problem.sentences[split],  # type: ignore[index]
        vectors,
        allowed=found.problem.allowed,
        k=3,
        max_tokens=4096,
    )
    return float((predictions.better == 0).mean())


def learn(backbone: LanguageModel, template: str, *relations: str) -> Searched:
    config = search_config(
        dtype="float32",
        prompt={"template": template},
        learning={"epochs": 4, "batch": 8},
    )
    return search(config, backbone, world_facts().select(relations))


def test_the_search_lowers_the_loss_and_beats_random_words(knowing_bert: LanguageModel) -> None:
    found = learn(knowing_bert, "[X] <1> [Y]", "land", "tongue")
    rows, tokens = found.searcher.rows, found.method.triggers.tokens
    masks = torch.full_like(tokens, knowing_bert.vocabulary.mask_id)
    losses = found.searcher.trial_means(rows, torch.stack((masks, tokens), dim=1))
    assert (losses[:, 1] < 0.5 * losses[:, 0]).all()
    # The model has read "Aldor , Norland" and "Aldor : Norish".
    assert [about["words"] for about in found.method.found_prompts()] == [[","], [":"]]
    learned = p1(found)
    generator = torch.Generator().manual_seed(0)
    randomly = []
    for _ in range(20):
        for relation in range(2):
            words = found.method.usable[relation].nonzero()[:, 0]
            tokens[relation] = words[torch.randint(len(words), (1,), generator=generator)]
        randomly.append(p1(found))
    assert learned >= 0.9
    assert learned > max(randomly)
    assert learned > np.mean(randomly) + 0.5


def test_the_search_finds_several_words_of_a_sentence_the_model_has_read(
    knowing_bert: LanguageModel,
) -> None:
    found = learn(knowing_bert, "in [X] <2> [Y] .", "tongue")
    # "in Aldor we hear Norish ." is such a sentence; the model is not particular about the order.
    assert "hear" in found.method.found_prompts()[0]["words"]
    assert p1(found) >= 0.9
    assert found.losses[-1] < found.losses[0]


# ----------------------------------------------------------------------------- runs of a search


@pytest.fixture(scope="module")
def make_run(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., RunConfig]:
    """Configs of runs on the tiny model and facts; the run folder is the first argument."""
    data = tmp_path_factory.mktemp("facts") / "facts.csv"
    write_csv(make_facts().select(["capital", "in"]), data)

    def config(out: Path, **sections: Any) -> RunConfig:
        place = {"model": str(family_folder("bert")), "data": str(data), "out": str(out)}
        training = {"epochs": 5, **sections.pop("learning", {})}
        more = {"dtype": "float32", "checkpoint_seconds": 0.0, **sections}
        return search_config(**place, **more, learning=training)

    return config


@pytest.fixture(scope="module")
def unbroken(make_run: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return symprompt.train(make_run(tmp_path_factory.mktemp("unbroken") / "run")).folder.path


RESULTS = (
    "encoder.safetensors",
    "predictions/dev.safetensors",
    "predictions/test.safetensors",
    "prompts.json",
    "prompts.safetensors",
)


def assert_same_results(one: Path, other: Path) -> None:
    for name in RESULTS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    histories = [Folder(path).read_json("history.json") for path in (one, other)]
    assert histories[0]["epochs"] == histories[1]["epochs"]
    assert not (one / STATE).exists()


def test_a_run_says_which_words_it_found(unbroken: Path) -> None:
    folder = Folder(unbroken)
    tokens, _ = folder.read_tensors("encoder.safetensors")
    vocabulary = LanguageModel.load(stored_config(folder).model, device="cpu").vocabulary
    for row, about in enumerate(load_card(folder)["relations"].values()):
        words = vocabulary.tokenizer.convert_ids_to_tokens(tokens["forth/tokens"][row].tolist())
        assert about["words"] == words
        first, second, third, fourth = words
        assert about["prompt"] == f"{first} [X] {second} {third} [Y] {fourth} ."
        assert about["template"] == "<1> [X] <2> [Y] <1> ."
        assert "[MASK]" not in words


def test_a_state_of_other_words_is_refused(
    bert: LanguageModel, facts: FactSet, tmp_path: Path
) -> None:
    one = make_search(search_config(), bert, facts)
    one.searcher.scores = one.score
    Loop(one.searcher, checkpoint=tmp_path / STATE, checkpoint_seconds=0.0).run()
    other = make_search(search_config(prompt={"template": "[X] <3> [Y] ."}), bert, facts)
    with pytest.raises(RunError, match="damaged or of another training"):
        Loop(other.searcher, checkpoint=tmp_path / STATE).run()


def test_a_search_goes_on_from_another_runs_words(
    make_run: Callable[..., RunConfig], unbroken: Path, tmp_path: Path
) -> None:
    start = {"start_from": str(unbroken), "seed": 5}
    same = symprompt.train(make_run(tmp_path / "same", learning={"epochs": 0}, **start))
    assert (same.folder.path / "predictions/test.safetensors").read_bytes() == (
        unbroken / "predictions/test.safetensors"
    ).read_bytes()
    ours = load_card(same.folder)["relations"]
    theirs = load_card(Folder(unbroken))["relations"]
    assert [about["words"] for about in ours.values()] == [
        about["words"] for about in theirs.values()
    ]
    # The words it goes on from compete on dev, so dev gets no worse (and may get no better).
    more = symprompt.train(make_run(tmp_path / "more", learning={"epochs": 1}, **start))
    before, after = (load_metrics(Folder(path))["dev"] for path in (unbroken, more.folder.path))
    for name, numbers in before["relations"].items():
        assert after["relations"][name]["mrr"] >= numbers["mrr"] - 1e-9


def test_too_many_candidates_are_refused_before_a_folder_is_made(
    make_run: Callable[..., RunConfig], tmp_path: Path
) -> None:
    with pytest.raises(symprompt.SympromptError, match=r"search\.candidates is 5000"):
        symprompt.train(make_run(tmp_path / "run", search={"candidates": 5000}))
    assert not (tmp_path / "run").exists()
