"""Objects of any length: scores against loops over candidates and tokens; runs on them."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import symprompt
from symprompt import Run, cli
from symprompt.errors import DataError
from symprompt.facts import Fact, FactSet, Relation
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig
from symprompt.probing.evaluate import predict
from symprompt.probing.methods.base import Method
from symprompt.probing.methods.finetune import FineTune
from symprompt.probing.methods.manual import Manual
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.problem import Problem
from symprompt.probing.rerank import rerank_run
from symprompt.probing.results import Predictions, load_asked
from symprompt.probing.results import run_config as stored_config
from symprompt.report.tables import load_scores
from tiny.loops import Loops, randomise
from tiny.models import (
    CAUSAL_FAMILIES,
    FAMILIES,
    facts_of,
    make_trainer,
    names_facts,
    run_config,
    run_training,
    train,
    world_facts,
)
from tiny.models import (
    PAIRS as NAMED,
)
from tiny.runs import Make, write_csv

ANY = {"objects": "any-length", "vocabulary": "objects"}
PAIRS = [
    ("France", "Paris"),
    ("Italy", "New York"),
    ("San Marino", "Oslo"),
    ("Spain", "San Marino"),
    ("old river", "Los Angeles"),
    ("Kenya", "Oslo river"),
    ("Peru", "Rome"),
]


def long_facts() -> FactSet:
    """Objects of one to five tokens; every object occurs in training."""
    other = [("Paris", "Japan"), ("Rome", "Saint Lucia"), ("York", "Oslo"), ("Lima", "Japan")]
    return FactSet(
        (
            Relation(
                "near",
                facts_of("near", PAIRS),
                facts_of("near", [("Chile", "New York"), ("Cuba", "Rome")]),
                facts_of("near", [("Oslo", "San Marino"), ("Oslo", "Oslo"), ("Cuba", "Paris")]),
                template="[X] lies in [Y] .",
            ),
            Relation(
                "in",
                facts_of("in", other[:3]),
                facts_of("in", other[2:]),
                facts_of("in", [("New Rome", "Saint Lucia")]),
                template="The city of [X] is in [Y] .",
            ),
        ),
        source="made up",
        layout="table",
    )


def config_for(backbone: LanguageModel, **sections: Any) -> RunConfig:
    method = {"name": "ptuning", "k": 3, **sections.pop("method", {})}
    prompt = {"encoder": "free", "template": "<2> [X] <1> [Y]" + " <2>" * (not backbone.causal)}
    facts = {**ANY, **sections.pop("facts", {})}
    return run_config(method=method, prompt=prompt, facts=facts, dtype="float64", **sections)


def build(backbone: LanguageModel, known: FactSet, /, **sections: Any) -> tuple[Problem, Method]:
    """A method with wide random vectors."""
    config = config_for(backbone, **sections)
    problem = prepare(config, backbone, known)
    method = make_method(config, problem)
    randomise(method)
    return problem, method


def ask(problem: Problem, method: Method, split: str = "test", k: int = 3) -> Predictions:
    """The predictions of one split, in small passes."""
    vectors = {part: value.detach() for part, value in method.vectors().items()}
    sentences = problem.sentences[split]  # type: ignore[index]
    return predict(method, sentences, vectors, allowed=problem.allowed, k=k, max_tokens=100)


def assert_scores_are_the_loops(
    problem: Problem, method: Method, loops: Loops, tolerance: float = 1e-5
) -> None:
    assert problem.spelling is not None
    texts = problem.spelling.names.texts
    listed = problem.facts.facts("test")
    rows = np.arange(len(listed))
    with torch.no_grad():
        found = method.scores(problem.sentences["test"], rows, loops.vectors)
    assert found.shape == (len(listed), len(texts))
    assert found.dtype == torch.float32
    train_objects = {
        relation.name: {fact.object for fact in relation.train}
        for relation in problem.facts.relations
    }
    for row, fact in enumerate(listed):
        assert int(problem.sentences["test"].gold[row]) == texts.index(fact.object)
        for name, score in zip(texts, found[row].tolist(), strict=True):
            if name in train_objects[fact.relation]:
                assert score == pytest.approx(loops.forth(fact, name), abs=tolerance), name
            else:
                assert score == -math.inf


# ------------------------------------------------------------------------------------- oracles


@pytest.mark.parametrize(
    ("family", "masking", "average"),
    [("bert", masking, "sum") for masking in ("name", "word", "one")]
    + [("bert", "one", "mean")]
    + [(family, masking, "mean") for family in FAMILIES for masking in ("name", "word")]
    + [(family, "name", "mean") for family in CAUSAL_FAMILIES],
)
def test_scores_are_those_of_loops_over_candidates_and_tokens(
    family: str, masking: str, average: str, load_family: Callable[..., LanguageModel]
) -> None:
    options = {"object_masking": masking, "object_average": average}
    problem, method = build(load_family(family), long_facts(), method=options)
    near = 1e-4 if problem.backbone.causal else 1e-5
    assert_scores_are_the_loops(problem, method, Loops.of(problem, method, **options), near)


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "llama"])
@pytest.mark.parametrize("masking", ["name", "word", "one"])
def test_the_loss_is_the_mean_over_the_objects_tokens(
    family: str, masking: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family)
    problem, method = build(backbone, long_facts(), method={"object_masking": masking})
    loops = Loops.of(problem, method, object_masking=masking)
    listed = problem.facts.facts("train")
    rows = np.arange(len(listed))[::-1].copy()
    found = method.loss(problem.sentences["train"], rows, loops.vectors)
    wanted = [-loops.forth(listed[row], listed[row].object) for row in rows]
    assert found.tolist() == pytest.approx(wanted, abs=1e-4 if backbone.causal else 1e-8)
    alone = torch.cat(
        [
            method.loss(problem.sentences["train"], rows[i : i + 1], loops.vectors)
            for i in range(len(rows))
        ]
    )
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("template", ["manual", "[X] [Y]"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_a_fine_tuned_model_is_asked_for_every_token_of_a_name(
    family: str, template: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family)
    tables = {"prompt": {"template": template}, "facts": ANY, "dtype": "float64"}
    config = run_config(method={"name": "finetune", "k": 3}, **tables)
    problem, tuned, _ = make_trainer(config, backbone, long_facts())
    assert isinstance(tuned, FineTune)
    rows = tuned.vectors()["forth"]
    with torch.no_grad():
        rows += 0.05 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(2)).double()
    sentences = {split: problem.sentences[split] for split in ("train", "test")}  # type: ignore[index]
    facts = {split: np.arange(len(own)) for split, own in sentences.items()}
    losses = tuned.loss(sentences["train"], facts["train"], {"forth": rows})
    (slope,) = torch.autograd.grad(losses.sum(), rows)
    with torch.no_grad():
        scores = tuned.scores(sentences["test"], facts["test"], {"forth": rows})
    # Each relation's weights in a model of their own, which is asked as it is.
    manual = run_config(method={"name": "manual", "k": 3}, **tables)
    for index, weights in enumerate(rows.detach()):
        own = copy.deepcopy(backbone, {id(backbone.vocabulary): backbone.vocabulary})
        named = dict(own.model.requires_grad_(True).named_parameters())
        with torch.no_grad():
            for name, value in tuned.stacked.tuning.to_tensors(weights).items():
                named[name].copy_(value)
        plain = Manual(manual, replace(problem, backbone=own))
        for split, found in (("train", losses), ("test", scores)):
            members = np.flatnonzero(sentences[split].relations == index)
            if split == "train":
                wanted = plain.loss(sentences[split], members, {})
                wanted.sum().backward()
            else:
                with torch.no_grad():
                    wanted = plain.scores(sentences[split], members, {})
            torch.testing.assert_close(found[members], wanted, rtol=0, atol=5e-5)
        for name, value in tuned.stacked.tuning.to_tensors(slope[index]).items():
            gradient = named[name].grad
            expected = torch.zeros_like(value) if gradient is None else gradient
            torch.testing.assert_close(value, expected, rtol=0, atol=5e-4, msg=name)


@pytest.mark.parametrize(
    ("family", "masking"),
    [
        *((family, "one") for family in ("bert", "roberta", "deberta-v2", "gpt2", "gemma2")),
        *((family, "chain") for family in ("bert", "roberta")),
    ],
)
def test_the_way_back_has_the_whole_candidate_in_place(
    family: str, masking: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family)
    problem, method = build(
        backbone,
        long_facts(),
        method={"name": "spe", "vectors": "separate", "k": 3, "masking": masking},
    )
    loops = Loops.of(problem, method, masking=masking)
    assert problem.spelling is not None
    texts, listed = problem.spelling.names.texts, problem.facts.facts("test")
    found = ask(problem, method)
    lengths = set()
    for row, fact in enumerate(listed):
        for token, score in zip(
            found.candidates[row].tolist(), found.subject_score[row].tolist(), strict=True
        ):
            lengths.add(len(loops.tokens(texts[token])))
            assert score == pytest.approx(loops.back(fact, texts[token]), abs=1e-4)
    assert len(lengths) > 1
    # And in training, with the true object.
    listed = problem.facts.facts("train")
    loss = method.loss(problem.sentences["train"], np.arange(len(listed)), loops.vectors)
    wanted = [
        -loops.forth(fact, fact.object) - 0.8 * loops.back(fact, fact.object) for fact in listed
    ]
    assert loss.tolist() == pytest.approx(wanted, abs=1e-4)


def test_ranks_are_among_the_relations_candidates(bert: LanguageModel) -> None:
    problem, method = build(bert, long_facts())
    loops = Loops.of(problem, method)
    found = ask(problem, method)
    for row, fact in enumerate(problem.facts.facts("test")):
        relation = problem.facts[fact.relation]
        scores = {name: loops.forth(fact, name) for name in {f.object for f in relation.train}}
        better = [name for name in scores if scores[name] > scores[fact.object]]
        assert int(found.better[row]) == len(better)
        # "Oslo" is near two places, both of which are candidates.
        others = {"Oslo", "San Marino"} if fact.subject == "Oslo" else set()
        assert int(found.better_filtered[row]) == len(set(better) - others)
    assert problem.counts() == {"near": 7, "in": 3}


# ---------------------------------------------------------------------------------- properties


def short_facts() -> FactSet:
    """Objects of one token each, subjects with two of them, and some left out of a small train."""
    pairs = [("France", "Paris"), ("New York", "Rome"), ("Oslo", "Lima"), ("Oslo", "Rome")]
    more = [*pairs, ("Spain", "Madrid"), ("Kenya", "Tokyo")]
    relation = Relation("r", facts_of("r", more), facts_of("r", pairs), facts_of("r", more))
    return FactSet((relation,), "hand", "table")


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_objects_of_one_token_score_as_they_do_without_the_switch(
    family: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone, facts = load_family(family), short_facts()
    plain_problem, plain = build(backbone, facts, facts={"objects": "one-token"}, method={"k": 2})
    problem, method = build(backbone, facts, method={"k": 2})
    assert problem.facts.fingerprint() == plain_problem.facts.fingerprint()
    assert problem.spelling is not None
    vectors = {part: value.detach() for part, value in method.vectors().items()}
    for split in ("dev", "test"):
        one, other = ask(plain_problem, plain, split, 2), ask(problem, method, split, 2)
        texts = [[problem.text(answer) for answer in row] for row in other.candidates.tolist()]
        assert texts == [
            [plain_problem.text(token) for token in row] for row in one.candidates.tolist()
        ]
        np.testing.assert_allclose(one.object_score, other.object_score, rtol=1e-5, atol=1e-5)
        assert np.array_equal(one.better, other.better)
        assert np.array_equal(one.better_filtered, other.better_filtered)
    rows = np.arange(len(problem.sentences["train"]))
    torch.testing.assert_close(
        method.loss(problem.sentences["train"], rows, vectors),
        plain.loss(plain_problem.sentences["train"], rows, vectors),
        rtol=0,
        atol=1e-8,
    )


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_small_passes_change_nothing(
    family: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family)
    found = []
    for max_tokens in (16, 100, 100_000):
        problem, method = build(backbone, long_facts(), max_tokens=max_tokens)
        rows = np.arange(4)
        with torch.no_grad():
            found.append(method.scores(problem.sentences["test"], rows, method.vectors()))
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1], found[2], rtol=0, atol=1e-5)


def test_candidates_share_sentences(bert: LanguageModel) -> None:
    """All names of one token are read off one mask; first tokens of equally long words too."""
    problem, _ = build(bert, long_facts())
    assert problem.spelling is not None
    tables = problem.spelling.tables
    near = problem.relations.index("near")
    # Paris, Rome: "M". Names of two words: "M M", and "a M" each. Oslo: "M M M M", "O M M M", ...
    # Oslo river: the same four before one more mask, and "Oslo M".
    assert int(tables.count[near]) == 1 + (1 + 3) + 4 + 5
    problem, _ = build(bert, long_facts(), method={"object_masking": "word"})
    assert problem.spelling is not None
    # Of two words each is asked with the other in sight.
    assert int(problem.spelling.tables.count[near]) == 1 + 3 * 2 + 4 + 5


def test_recorded_steps_mask_one_token_or_the_rest_of_the_name(bert: LanguageModel) -> None:
    rows = np.arange(3)
    problem, method = build(bert, long_facts(), method={"object_masking": "word"})
    assert method.queries(problem.sentences["train"], rows) is None
    for masking in ("one", "name"):
        problem, method = build(bert, long_facts(), method={"object_masking": masking})
        asks = method.queries(problem.sentences["train"], rows)
        assert asks is not None
        lengths = problem.sentences["train"].object_prompt.object_lengths[rows]
        assert len(asks[0].rows) == lengths.sum() > 3
        assert (asks[0].end is not None) == (masking == "name")


# SPE's way back of a causal model is one pass for several tokens, which is not recorded.
@pytest.mark.parametrize(
    ("family", "name", "masking"),
    [
        ("bert", "ptuning", "one"),
        ("bert", "ptuning", "name"),
        ("bert", "spe", "one"),
        ("bert", "spe", "name"),
        ("gpt2", "ptuning", "one"),
    ],
)
def test_recorded_steps_train_as_plain_ones(
    family: str, name: str, masking: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(family)
    # With a subject prompt half of the sentences may mask to the end, and half may not.
    config = config_for(
        backbone, method={"name": name, "k": 3, "object_masking": masking, "masking": "chain"}
    )
    learned = []
    for capture in (False, True):
        _, method, trainer = make_trainer(config, backbone, long_facts(), capture=capture)
        run_training(trainer)
        learned.append(method.vectors()["forth"].detach())
    torch.testing.assert_close(learned[0], learned[1], rtol=0, atol=1e-8)


def test_names_that_read_alike_are_one_candidate(load_family: Callable[..., LanguageModel]) -> None:
    bert = load_family("bert")
    pairs = [("Italy", "New York"), ("Spain", "New  York"), ("Peru", "Oslo")]
    facts = FactSet(
        (Relation("r", *([facts_of("r", pairs)] * 3), template="[X] in [Y] ."),), "hand", "table"
    )
    problem, _ = build(bert, facts)
    assert problem.spelling is not None
    assert len(problem.spelling.names) == 2
    assert problem.sentences["test"].gold.tolist()[0] == problem.sentences["test"].gold.tolist()[1]


# ----------------------------------------------------------------- which facts and candidates


def test_facts_with_long_objects_are_dropped_without_the_switch_and_kept_with_it(
    bert: LanguageModel,
) -> None:
    facts = long_facts()
    plain = prepare(
        config_for(bert, facts={"objects": "one-token", "relations": ["near"]}, method={"k": 1}),
        bert,
        facts.select(["near"]),
    )
    reasons = plain.facts.dropped_by_reason()
    assert reasons == {"object is not one token of the model": 5 + 1 + 2}
    problem, _ = build(bert, facts)
    assert problem.facts.dropped_by_reason() == {}


def test_a_file_adds_candidates_for_all_relations_or_one(
    bert: LanguageModel, tmp_path: Any
) -> None:
    path = tmp_path / "names.txt"
    path.write_text("Havana river\nnear\tOld Rome\nin\tPeru\n\nnear\tTokyo\nThe Ωmega\n")
    facts = long_facts()
    problem, _ = build(bert, facts, facts={"vocabulary": str(path)})
    # What the tokenizer cannot read is no candidate.
    assert problem.counts() == {"near": 7 + 3, "in": 3 + 2}
    assert problem.spelling is not None
    texts = problem.spelling.names.texts
    near = {texts[i] for i in problem.allowed[0].nonzero()[:, 0].tolist()}
    assert near - {fact.object for fact in facts["near"].train} == {
        "Havana river",
        "Old Rome",
        "Tokyo",
    }


def test_test_objects_outside_the_candidates_are_dropped_and_counted(
    bert: LanguageModel, tmp_path: Any
) -> None:
    facts = long_facts()
    near = facts["near"]
    more = (*near.test, Fact("near", "Chile", "Saint Lucia"), Fact("near", "Chile", "Ωmega"))
    bigger = FactSet(
        (Relation("near", near.train, near.dev, more, template=near.template),), "hand", "table"
    )
    problem, _ = build(bert, bigger)
    assert problem.facts.dropped_by_reason() == {
        "object is not readable text": 1,
        "object not among the relation's training objects": 1,
    }
    path = tmp_path / "names.txt"
    path.write_text("Saint Lucia\n")
    problem, _ = build(bert, bigger, facts={"vocabulary": str(path)})
    assert problem.facts.dropped_by_reason() == {"object is not readable text": 1}
    with pytest.raises(DataError, match="1 fact cannot be used"):
        build(bert, bigger, facts={"vocabulary": str(path), "strict": True})


def test_candidates_are_the_training_objects_that_the_limit_leaves(bert: LanguageModel) -> None:
    for objects in ("any-length", "one-token"):
        sections = {"objects": objects, "train_limit": 3}
        problem, _ = build(bert, short_facts(), facts=sections, method={"k": 1})
        assert "object not among the relation's training objects" in (
            problem.facts.dropped_by_reason()
        )
        for relation in problem.facts.relations:
            seen = {fact.object for fact in relation.train}
            assert {fact.object for fact in (*relation.dev, *relation.test)} <= seen
        for split in ("dev", "test"):
            sentences = problem.sentences.get(split)  # type: ignore[call-overload]
            if sentences is not None:
                relation_rows = problem.allowed[sentences.object_prompt.relation]
                assert relation_rows.gather(1, sentences.gold[:, None]).all()


def test_sentences_too_long_with_the_longest_candidate_are_dropped(bert: LanguageModel) -> None:
    near = long_facts()["near"]
    room = bert.max_length - 2 - 5 - 5  # the frame, the vectors and "Oslo river"
    fits, too_long = "a " * (room - 1) + "a", "a " * room + "a"
    more = (*near.test, Fact("near", fits, "Paris"), Fact("near", too_long, "Paris"))
    facts = FactSet((Relation("near", near.train, near.dev, more),), "hand", "table")
    problem, method = build(bert, facts)
    assert problem.facts.dropped_by_reason() == {"sentence longer than the model takes": 1}
    rows = np.arange(len(problem.sentences["test"]))
    scores = method.scores(problem.sentences["test"], rows, method.vectors())
    assert scores.isfinite().all()


# ------------------------------------------------------------------------------------ learning


# What the model read ended in these, so that names of two and three tokens are known to it.
LONG_NAMES = {
    "Norland": "Norland .",
    "Ostland": "Ostland .",
    "Midland": "in Midland .",
    "Sudish": "Sudish .",
    "Westish": "Westish .",
    "Farish": "speak Farish .",
}


def test_prompts_learn_names_of_several_tokens(knowing_bert: LanguageModel) -> None:
    facts = world_facts(LONG_NAMES)
    config = run_config(
        facts=ANY,
        method={"name": "ptuning", "k": 3},
        prompt={"template": "<3> [X] <3> [Y] <3>"},
        learning={"epochs": 25, "rate": 0.005, "batch": 8, "select": "loss"},
    )
    problem, fresh, _ = make_trainer(config, knowing_bert, facts)
    sentences, before = problem.sentences["test"], ask(problem, fresh)
    run = train(config, knowing_bert, facts)
    assert run.problem.counts() == {"land": 6, "tongue": 6}
    after = run.predict().ranks().realistic
    drawn_ranks = before.ranks().realistic
    right = [float((rank <= 1).mean()) for rank in (drawn_ranks, after)]
    assert right[1] >= max(0.5, right[0] + 0.2)
    # The gain is not the short names' alone.
    long = sentences.object_prompt.object_lengths > 1
    assert float((1 / after[long]).mean()) > float((1 / drawn_ranks[long]).mean())
    assert run.progress.history[-1]["loss"] < 0.5 * run.progress.history[0]["loss"]


@pytest.fixture(scope="module")
def make(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Configs of runs whose objects are names of one and two tokens."""
    data = write_csv(names_facts(), tmp_path_factory.mktemp("facts") / "facts.csv")
    plain = make

    def config(out: Path, **sections: Any) -> RunConfig:
        facts = {"objects": "any-length", "vocabulary": "objects", **sections.pop("facts", {})}
        method = {"name": "spe", "k": 3, "weight": 1.7, **sections.pop("method", {})}
        training = {"epochs": 1, **sections.pop("learning", {})}
        return plain(out, data=str(data), **sections, facts=facts, method=method, learning=training)

    return config


@pytest.fixture(scope="module")
def spe(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run; tests must not change its folder."""
    out = tmp_path_factory.mktemp("any") / "run"
    return symprompt.train(make(out, method={"vectors": "separate"}))


def test_a_run_says_that_ranks_are_among_candidates(spe: Run) -> None:
    metrics = spe.metrics
    assert metrics["objects"] == "any-length"
    assert metrics["candidates"] == {"near": 4}
    assert metrics["dropped"] == {"object not among the relation's training objects": 1}
    assert metrics["test"]["facts"] == 3
    assert "among 4 candidates" in load_scores(str(spe.folder.path)).note
    predictions, listed = spe.predictions()
    assert listed == [Fact("near", "Kenya", "San Marino"), *listed[1:]]
    shown = load_asked(spe.folder, "test").candidates()
    assert {name for row in shown for name in row} <= {name for _, name in NAMED}
    assert any(" " in name for row in shown for name in row)
    assert int(predictions.better.max()) <= 3


def test_a_run_answers_as_it_did_when_it_was_made(spe: Run) -> None:
    predictions, listed = spe.predictions()
    shown = load_asked(spe.folder, "test").candidates()
    for row, fact in enumerate(listed):
        answers = {
            answer.text: answer
            for answer in spe.ask("near", subject=fact.subject, top=4, device="cpu")
        }
        assert set(answers) == {name for _, name in NAMED}
        for place, name in enumerate(shown[row]):
            forward, backward = answers[name].object_score, answers[name].subject_score
            assert forward == pytest.approx(float(predictions.object_score[row, place]), abs=1e-5)
            assert backward == pytest.approx(float(predictions.subject_score[row, place]), abs=1e-5)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_fine_tuned_run_answers_as_it_did(
    family: str, make: Make, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    tables = {"prompt": {"template": "[X] [Y]"}, "tuning": {"tune": "lora", "lora_rank": 2}}
    model = str(family_folder(family))
    run = symprompt.train(
        make(tmp_path / "run", model=model, method={"name": "finetune"}, **tables)
    )
    assert run.metrics["candidates"] == {"near": 4}
    predictions, listed = run.predictions()
    shown = load_asked(run.folder, "test").candidates()
    for row, fact in enumerate(listed):
        answers = run.ask("near", subject=fact.subject, top=3, device="cpu")
        assert [answer.text for answer in answers] == shown[row]
        found = [answer.object_score for answer in answers]
        assert found == pytest.approx(predictions.object_score[row].tolist(), abs=1e-4)


def test_subjects_are_asked_for_a_long_object(spe: Run) -> None:
    answers = spe.ask("near", object="San Marino", top=20, device="cpu")
    assert {answer.text for answer in answers} == {
        *(subject for subject, _ in NAMED),
        *("Kenya", "Peru", "Cuba"),
    }
    joints = [answer.joint for answer in answers]
    assert joints == sorted(joints, reverse=True)  # type: ignore[type-var]
    with pytest.raises(DataError, match="not among the candidates of the run"):
        spe.ask("near", object="Los Angeles", device="cpu")


def test_other_methods_are_reranked_too(make: Make, spe: Run, tmp_path: Path) -> None:
    manual = symprompt.train(make(tmp_path / "manual", method={"name": "manual"}))
    run = rerank_run(manual.folder.path, spe.folder.path, tmp_path / "run", device="cpu")
    at_once = symprompt.train(
        make(tmp_path / "once", method={"name": "manual"}, rerank=str(spe.folder.path))
    )
    one, other = (entry.folder.path / "predictions/test.safetensors" for entry in (run, at_once))
    assert one.read_bytes() == other.read_bytes()


def test_a_run_with_further_candidates_can_be_asked_when_the_file_is_gone(
    make: Make, tmp_path: Path
) -> None:
    path = tmp_path / "names.txt"
    path.write_text("near\tUnheard of\nelsewhere\tLos Angeles\nold river\n")
    facts = {"vocabulary": str(path)}
    run = symprompt.train(make(tmp_path / "run", facts=facts, method={"name": "ptuning"}))
    assert run.metrics["candidates"] == {"near": 6}
    assert run.metrics["dropped"] == {}
    path.unlink()
    answers = run.ask("near", subject="Kenya", top=20, device="cpu")
    names = {answer.text for answer in answers}
    assert names == {name for _, name in NAMED} | {"Unheard of", "old river"}


def test_k_is_lowered_to_the_candidates_that_there_are(make: Make, tmp_path: Path) -> None:
    metrics = symprompt.train(make(tmp_path / "run", method={"k": 5})).metrics
    assert (metrics["k"], metrics["fewer_answers"]) == (4, {})


def test_the_command_line_takes_the_switch(
    spe: Run, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = stored_config(spe.folder)
    place = ["--model", config.model, "--data", config.data, "--device", "cpu"]
    switch = ["--objects", "any-length", "--vocabulary", "objects"]
    out = str(tmp_path / "run")
    cli.main(["train", "lama-manual", *place, *switch, "--out", out])
    assert "ranks are among 4 candidates" in capsys.readouterr().out
    cli.main(["table", str(spe.folder.path), out, "--draws", "10", "--json"])
    assert "among 4 candidates" in capsys.readouterr().out
    cli.main(["data", "check", config.data, *switch, "--model", config.model, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["dropped_by_reason"] == {"object not among the relation's training objects": 1}
    with pytest.raises(SystemExit):
        cli.main(["train", "lama-manual", *place, "--objects", "any-length", "--out", out])
    assert "single tokens only" in capsys.readouterr().err
