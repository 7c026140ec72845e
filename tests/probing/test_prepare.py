"""From facts to a problem: what is dropped and why, allowed answers, what is known when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from symprompt.errors import ConfigError, DataError
from symprompt.facts import FactSet, Relation
from symprompt.models import LanguageModel
from symprompt.models.trained import Trained
from symprompt.probing.methods.manual import Manual
from symprompt.probing.methods.ptuning import PTuning
from symprompt.probing.methods.spe import SPE
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.problem import Problem, excluded_answers, words_to_vectors
from symprompt.prompts import BiLSTMEncoder, FreeVectors, MLPEncoder, Template
from tiny.models import facts_of, run_config

Pairs = list[tuple[str, str]]


def one_relation(train: Pairs, dev: Pairs, test: Pairs, template: str = "") -> FactSet:
    splits = (facts_of("r", train), facts_of("r", dev), facts_of("r", test))
    return FactSet((Relation("r", *splits, template=template),), "made up", "table")


GOOD: Pairs = [("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid")]
MIXED = one_relation(
    [*GOOD, ("Norway", "Oslo"), ("Chile", "New York")], GOOD[:2], [*GOOD[1:], ("Peru", "Lima")]
)


def dropped(problem: Problem) -> dict[tuple[str, str], int]:
    return {(entry.split, entry.reason): entry.count for entry in problem.facts.dropped}


@pytest.mark.parametrize(
    ("split", "fact", "settings", "reason"),
    [
        ("train", ("Norway", "Oslo"), {}, "object is not one token of the model"),
        ("train", ("the MASK", "Paris"), {}, "subject is not readable text"),
        ("test", ("old Paris", "Paris"), {"uhn": True}, "object named in the subject"),
        ("test", ("New York " * 48, "Paris"), {}, "sentence longer than the model takes"),
    ],
)
def test_what_cannot_be_asked_is_dropped_and_counted(
    backbone: LanguageModel,
    split: str,
    fact: tuple[str, str],
    settings: dict[str, bool],
    reason: str,
) -> None:
    subject, answer = fact
    subject = subject.replace("MASK", backbone.vocabulary.tokenizer.mask_token)
    splits = {"train": GOOD, "dev": GOOD, "test": GOOD}
    splits[split] = [*GOOD, (subject, answer)]
    problem = prepare(run_config(facts=settings), backbone, one_relation(**splits))
    assert dropped(problem) == {(split, reason): 1}
    assert [len(sentences) for sentences in problem.sentences.values()] == [3, 3, 3]


def test_sentences_stay_within_trained_positions(
    bert: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = one_relation(GOOD, GOOD, [*GOOD, ("New York " * 5, "Paris")])
    assert not dropped(prepare(run_config(), bert, facts))
    monkeypatch.setattr(bert, "trained", Trained(bert.positions // 3, 1))
    problem = prepare(run_config(), bert, facts)
    assert dropped(problem) == {("test", "sentence longer than the model takes"): 1}


TEMPLATED = {"template": "[X] <2> [Y] ."}


@pytest.mark.parametrize(
    ("facts", "sections", "message"),
    [
        (
            MIXED,
            {"facts": {"strict": True}},
            r"2 facts cannot be used.*relation r \(train\): object is",
        ),
        (
            one_relation(GOOD, [("Norway", "Oslo")], GOOD),
            {},
            r"relation r has no usable dev facts \(1 dropped: object .*--objects any-length",
        ),
        (one_relation([], GOOD, GOOD), {}, "relation r has no usable train facts; add facts"),
        (
            one_relation(GOOD, GOOD, GOOD),
            {"method": {"name": "manual"}},
            "relation r has no manual template",
        ),
        (
            one_relation(GOOD, GOOD, GOOD, **TEMPLATED),
            {"method": {"name": "manual"}},
            "manual prompts learn none",
        ),
        (
            one_relation(GOOD, GOOD, GOOD, **TEMPLATED),
            {"method": {"name": "manual"}, "prompt": {"start": "manual", "encoder": "free"}},
            "learns none; drop one of the two",
        ),
        (
            one_relation(GOOD, GOOD, GOOD, **TEMPLATED),
            {"prompt": {"start": "manual", "encoder": "free"}},
            "cannot start from its words",
        ),
    ],
)
def test_what_makes_no_problem_is_refused(
    bert: LanguageModel, facts: FactSet, sections: dict[str, Any], message: str
) -> None:
    def build() -> None:
        config = run_config(**sections)
        make_method(config, prepare(config, bert, facts))

    with pytest.raises((ConfigError, DataError), match=message):
        build()


def test_strict_takes_what_can_all_be_asked(bert: LanguageModel) -> None:
    prepare(run_config(facts={"strict": True}), bert, one_relation(GOOD, GOOD, GOOD))


@pytest.mark.parametrize("sections", [{"method": {"name": "manual"}}, {"learning": {"epochs": 0}}])
def test_without_training_test_facts_are_enough(
    bert: LanguageModel, sections: dict[str, Any]
) -> None:
    facts = one_relation([], [], GOOD, template="[X] in [Y] .")
    problem = prepare(run_config(**sections), bert, facts)
    assert set(problem.sentences) == {"test"}


def test_full_vocabulary_allows_every_token_of_the_tokenizer(backbone: LanguageModel) -> None:
    problem = prepare(run_config(), backbone, one_relation(GOOD, GOOD, GOOD))
    assert problem.allowed.shape == (1, backbone.vocabulary_size)
    assert int(problem.allowed.sum()) == len(backbone.vocabulary)


def test_objects_vocabulary_allows_the_training_objects(backbone: LanguageModel) -> None:
    config = run_config(facts={"vocabulary": "objects"}, method={"k": 2})
    problem = prepare(config, backbone, MIXED)
    wanted = backbone.vocabulary.single_tokens(["Paris", "Rome", "Madrid"])
    assert problem.allowed[0].nonzero().squeeze(1).tolist() == sorted(wanted)  # type: ignore[type-var]
    reason = "object not among the relation's training objects"
    assert dropped(problem)["test", reason] == 1


NOT_OWN: Pairs = [("Paris", "Rome"), ("Rome", "Madrid"), ("Madrid", "Lima")]


@pytest.mark.parametrize(
    ("rule", "train", "may"),
    [
        ("on", NOT_OWN, True),
        ("off", NOT_OWN, False),
        ("off", [*NOT_OWN, ("Lima", "Lima")], False),
        ("auto", NOT_OWN, False),
        ("auto", [*NOT_OWN, ("Lima", "Lima")], True),
    ],
)
@pytest.mark.parametrize("any_length", [False, True])
def test_training_facts_decide_whether_a_subject_may_be_its_object(
    backbone: LanguageModel, rule: str, train: Pairs, may: bool, any_length: bool
) -> None:
    # What dev and test hold decides nothing.
    facts = one_relation(train, [("Rome", "Rome")], [("Madrid", "Madrid"), ("France", "Rome")])
    settings = {"objects": "any-length", "vocabulary": "objects"} if any_length else {}
    config = run_config(facts={"copies": rule, **settings})
    problem = prepare(config, backbone, facts)
    assert problem.copies == (may,)
    assert excluded_answers(config, problem) == {"copies": [] if may else ["r"], "words": {}}
    answers = int(problem.allowed.sum())
    assert problem.candidates(10**6) == answers
    for sentences in problem.sentences.values():
        scores = torch.rand(len(sentences), problem.allowed.shape[1])
        found = sentences.permitted(scores, np.arange(len(sentences)), problem.allowed)
        wanted = scores.clone()
        for row in range(len(sentences)):
            for answer in range(scores.shape[1]):
                barred = not may and answer == sentences.copy[row]
                if barred or not problem.allowed[0, answer]:
                    wanted[row, answer] = -torch.inf
        assert torch.equal(found, wanted)


def test_a_single_answer_may_be_the_subject(bert: LanguageModel, tmp_path: Path) -> None:
    facts = one_relation([("Paris", "Rome")], GOOD[1:2], [("Rome", "Rome")])
    (tmp_path / "words.txt").write_text("Rome\n")
    settings = {"vocabulary": str(tmp_path / "words.txt"), "copies": "off"}
    problem = prepare(run_config(facts=settings), bert, facts)
    assert problem.copies == (True,)
    assert problem.candidates(5) == 1


def test_answers_are_whole_words_unless_a_training_object_is_none(bert: LanguageModel) -> None:
    first = Relation("a", *[facts_of("a", GOOD)] * 3)
    second = Relation("b", facts_of("b", [*GOOD, ("Peru", ".")]), *[facts_of("b", GOOD)] * 2)
    third = Relation("c", facts_of("c", GOOD), *[facts_of("c", [("Peru", ".")])] * 2)
    facts, vocabulary = FactSet((first, second, third), "made up", "table"), bert.vocabulary
    config = run_config(facts={"words": "auto"})
    problem = prepare(config, bert, facts)
    words = [row.nonzero()[:, 0].tolist() for row in problem.allowed]
    assert words == [vocabulary.words(), list(range(len(vocabulary))), vocabulary.words()]
    left_out = len(vocabulary) - len(vocabulary.words())
    told = {"copies": [], "words": {"a": left_out, "c": left_out}}
    assert excluded_answers(config, problem) == told


def test_word_list_allows_its_single_tokens(
    tmp_path: Path, load_family: Callable[..., LanguageModel]
) -> None:
    path = tmp_path / "words.txt"
    path.write_text("Paris\nRome\nLima\nOslo\n\nRome\nTokyo\n", encoding="utf-8")
    config = run_config(facts={"vocabulary": str(path)}, method={"k": 4})
    for name in ("bert", "roberta", "albert"):
        backbone = load_family(name)
        problem = prepare(config, backbone, MIXED)
        wanted = backbone.vocabulary.single_tokens(["Paris", "Rome", "Lima", "Tokyo"])
        assert problem.allowed[0].nonzero().squeeze(1).tolist() == sorted(wanted)  # type: ignore[type-var]
        # Madrid is no answer, in each of the three splits where it stands.
        assert dropped(problem)["train", "object not in the word list"] == 1
        assert dropped(problem)["test", "object not in the word list"] == 1


def known_names(problem: Problem, split: str) -> list[set[str]]:
    vocabulary = problem.backbone.vocabulary
    table = problem.sentences[split].known.tolist()  # type: ignore[index]
    return [{vocabulary.text(token) for token in row if token >= 0} for row in table]


def test_no_split_knows_the_answers_of_a_later_one(backbone: LanguageModel) -> None:
    facts = one_relation(
        [("France", "Paris"), ("France", "Rome"), ("Italy", "Rome")],
        [("France", "Madrid"), ("Spain", "Madrid")],
        [("France", "Tokyo"), ("Spain", "Lima"), ("Peru", "Lima")],
    )
    problem = prepare(run_config(), backbone, facts)
    assert known_names(problem, "train") == [{"Paris", "Rome"}, {"Paris", "Rome"}, {"Rome"}]
    assert known_names(problem, "dev") == [{"Paris", "Rome", "Madrid"}, {"Madrid"}]
    assert known_names(problem, "test") == [
        {"Paris", "Rome", "Madrid", "Tokyo"}, {"Madrid", "Lima"}, {"Lima"}
    ]  # fmt: skip


def test_known_objects_are_per_relation(bert: LanguageModel) -> None:
    first = Relation("a", *[facts_of("a", [("France", "Paris")])] * 3)
    second = Relation("b", *[facts_of("b", [("France", "Rome")])] * 3)
    problem = prepare(run_config(), bert, FactSet((first, second), "made up", "table"))
    assert known_names(problem, "test") == [{"Paris"}, {"Rome"}]


def test_objects_are_read_as_they_stand_in_their_template(
    load_family: Callable[..., LanguageModel],
) -> None:
    backbone = load_family("roberta")
    facts = one_relation(GOOD, GOOD, GOOD, template="[Y] is the capital of [X] .")
    config = run_config(prompt={"template": "manual"}, method={"name": "manual", "k": 3})
    problem = prepare(config, backbone, facts)
    wanted = backbone.vocabulary.single_tokens(["Paris", "Rome", "Madrid"], after_space=False)
    assert problem.sentences["test"].gold.tolist() == wanted


@pytest.mark.parametrize("any_length", [False, True])
def test_the_answer_that_reads_as_the_subject_is_noted(
    backbone: LanguageModel, any_length: bool
) -> None:
    pairs = [("Paris", "Rome"), ("New York", "Paris"), ("Oslo", "Oslo"), ("Rome", "Madrid")]
    if not any_length:
        pairs[2] = ("old river", "Rome")
    facts = one_relation(pairs, pairs, pairs[::-1])
    settings = {"objects": "any-length", "vocabulary": "objects"} if any_length else {}
    problem = prepare(run_config(facts=settings), backbone, facts)
    for split, sentences in problem.sentences.items():
        copies = sentences.copy
        assert copies.dtype == np.int64
        shown = [problem.text(copy) if copy >= 0 else "" for copy in copies.tolist()]
        wanted = ["Paris", "", "Oslo" if any_length else "", "Rome"]
        assert shown == (wanted[::-1] if split == "test" else wanted)
        rows = np.array([3, 0])
        assert sentences.take(rows, rows * 0).copy.tolist() == copies[rows].tolist()
    golds = problem.sentences["train"].gold.tolist()
    assert golds[1] == problem.sentences["train"].copy[0]


def test_blanks_kept_uses_the_same_sentences_both_ways(bert: LanguageModel) -> None:
    facts = one_relation(GOOD, GOOD, GOOD)
    kept = prepare(run_config(method={"blanks": "kept"}), bert, facts).sentences["test"]
    swapped = prepare(run_config(), bert, facts).sentences["test"]
    assert torch.equal(kept.subject_prompt.ids, kept.object_prompt.ids)
    assert (swapped.subject_prompt.object_at < swapped.subject_prompt.subject_at).all()
    assert torch.equal(swapped.object_prompt.ids, kept.object_prompt.ids)


def test_config_names_method_and_encoder(bert: LanguageModel) -> None:
    facts = one_relation(GOOD, GOOD, GOOD, template="[X] in [Y] .")
    kinds = {"free": FreeVectors, "mlp": MLPEncoder, "bilstm": BiLSTMEncoder}
    for encoder, kind in kinds.items():
        config = run_config(prompt={"encoder": encoder}, method={"vectors": "separate"})
        method = make_method(config, prepare(config, bert, facts))
        assert isinstance(method, SPE)
        assert {type(value) for value in method.encoders.values()} == {kind}
        forth, back = (value() for value in method.encoders.values())
        assert not torch.equal(forth, back)
    for name, wanted in (("manual", Manual), ("ptuning", PTuning)):
        config = run_config(method={"name": name})
        assert isinstance(make_method(config, prepare(config, bert, facts)), wanted)
    for asked, size in ((0, bert.width // 2), (-1, bert.width), (7, 7)):
        config = run_config(prompt={"lstm_hidden": asked})
        encoder = make_method(config, prepare(config, bert, facts)).encoders["forth"]
        assert isinstance(encoder, BiLSTMEncoder)
        assert encoder.hidden == size


def test_random_free_vectors_have_the_spread_of_the_words(bert: LanguageModel) -> None:
    config = run_config(prompt={"encoder": "free", "template": "<40> [X] [Y]"})
    method = make_method(config, prepare(config, bert, one_relation(GOOD, GOOD, GOOD)))
    words = bert.model.get_input_embeddings().weight
    assert method.vectors()["forth"].std().item() == pytest.approx(words.std().item(), rel=0.1)


def test_words_become_vectors_one_for_each_token(backbone: LanguageModel) -> None:
    written = Template.parse("The capital of [X] is [Y] .")
    template, tokens = words_to_vectors(backbone.vocabulary, written)
    assert template.vectors == len(tokens)
    encoded = backbone.vocabulary.encode(["The capital of", " is", " ."])
    assert tokens == [token for ids in encoded for token in ids]
    assert [piece.kind for piece in template.pieces] == [
        "vectors", "subject", "vectors", "object", "vectors"
    ]  # fmt: skip


def test_relations_keep_their_order_and_their_leading_axis(
    bert: LanguageModel, facts: FactSet
) -> None:
    problem = prepare(run_config(), bert, facts)
    assert problem.relations == ("capital", "in", "near")
    owner = problem.sentences["test"].object_prompt.relation.tolist()
    assert owner == [0] * 4 + [1] * 4 + [2] * 2
    turned = replace(facts, relations=facts.relations[::-1])
    assert prepare(run_config(), bert, turned).relations == ("near", "in", "capital")


def test_other_true_objects_are_known_even_when_their_facts_were_dropped(
    bert: LanguageModel,
) -> None:
    facts = one_relation(GOOD, GOOD, [*GOOD, ("old Paris", "Paris"), ("old Paris", "Rome")])
    problem = prepare(run_config(facts={"uhn": True}), bert, facts)
    tokens = bert.vocabulary.single_tokens(["Paris", "Rome"])
    assert set(problem.sentences["test"].known[-1].tolist()) == set(tokens)


def test_methods_that_do_not_ask_back_keep_what_candidates_there_are(bert: LanguageModel) -> None:
    facts = one_relation(GOOD, GOOD, GOOD)
    config = run_config(facts={"vocabulary": "objects"}, method={"name": "ptuning", "k": 15})
    assert prepare(config, bert, facts).candidates(15) == 3


def test_a_subject_is_read_as_it_stands_on_the_way_back(backbone: LanguageModel) -> None:
    facts = one_relation(GOOD, GOOD, GOOD, template="[X] lies in [Y] .")
    config = run_config(method={"name": "spe", "k": 2}, prompt={"template": "[X] <2> in [Y] ."})
    back = prepare(config, backbone, facts).sentences["test"].subject_prompt
    for row, (subject, _) in enumerate(GOOD):
        wanted = backbone.vocabulary.encode([" " + subject])[0]
        start = int(back.subject_at[row])
        assert back.ids[row, start : start + len(wanted)].tolist() == wanted
        assert int(back.subject_lengths[row]) == len(wanted)


def several(**relations: tuple[Pairs, Pairs, Pairs]) -> FactSet:
    """Relations by name, each with its splits; all but one called bare have a manual template."""
    made = (
        Relation(
            name,
            *(facts_of(name, pairs) for pairs in splits),
            template="" if name == "bare" else "[X] is in [Y] .",
        )
        for name, splits in relations.items()
    )
    return FactSet(tuple(made), "made up", "table")


ONE = [(subject, "Paris") for subject, _ in GOOD]
SOME = several(
    first=(GOOD, GOOD, GOOD),
    devless=(GOOD, [("Norway", "Oslo")], GOOD),
    mute=(GOOD, [("Norway", "Oslo")], GOOD),
    single=(ONE, ONE, ONE),
    empty=([], [], GOOD),
    last=(GOOD, GOOD[:2], GOOD),
)


def test_all_unusable_relations_are_named_at_once(bert: LanguageModel) -> None:
    with pytest.raises(DataError) as refused:
        prepare(run_config(facts={"vocabulary": "objects"}), bert, SOME)
    assert str(refused.value) == (
        "4 relations cannot be used; no usable dev facts: devless, mute (2 dropped: object is not "
        "one token of the model (--objects any-length --vocabulary objects keeps such facts)); one "
        "possible answer alone: single; no usable train, dev and test facts: empty (3 dropped: "
        "object not among the relation's training objects); add facts, or leave them out with "
        "--skip-unusable."
    )
    with pytest.raises(DataError, match=r"relation r has no usable dev facts; .* leave it out"):
        prepare(run_config(), bert, one_relation(GOOD, [], GOOD))


@pytest.mark.parametrize(
    ("method", "vocabulary", "left_out"),
    [
        ("ptuning", "full", {"devless": "no usable dev facts"}),
        ("ptuning", "objects", {"single": "one possible answer alone"}),
        ("manual", "full", {}),
    ],
)
def test_unusable_relations_are_left_out_and_the_rest_is_as_without_them(
    bert: LanguageModel, method: str, vocabulary: str, left_out: dict[str, str]
) -> None:
    config = run_config(
        method={"name": method}, facts={"vocabulary": vocabulary, "skip_unusable": True}
    )
    found = prepare(config, bert, SOME)
    assert left_out.items() <= dict(found.facts.skipped).items()
    kept = [name for name in SOME.names if name not in found.facts.skipped]
    plain = run_config(method={"name": method}, facts={"vocabulary": vocabulary})
    wanted = prepare(plain, bert, SOME.select(kept))
    assert found.relations == wanted.relations
    assert found.facts.relations == wanted.facts.relations
    assert found.templates == wanted.templates
    assert torch.equal(found.allowed, wanted.allowed)
    for split, sentences in wanted.sentences.items():
        assert torch.equal(found.sentences[split].gold, sentences.gold)
        assert torch.equal(found.sentences[split].known, sentences.known)
        ours, theirs = found.sentences[split].object_prompt, sentences.object_prompt
        assert torch.equal(ours.ids, theirs.ids)
        assert torch.equal(ours.relation, theirs.relation)
    # Every fact is in the problem or counted.
    lost = sum(entry.count for entry in found.facts.dropped)
    assert lost + len(found.facts.facts()) == len(SOME.facts())


def test_relations_without_a_template_to_ask_by_are_left_out_or_all_named(
    gpt2: LanguageModel,
) -> None:
    facts = several(first=(GOOD, GOOD, GOOD), bare=(GOOD, GOOD, GOOD))
    behind = replace(facts["first"], name="behind", template="[Y] has [X] .")
    facts = replace(facts, relations=(*facts.relations, behind))
    skipping = run_config(method={"name": "manual"}, facts={"skip_unusable": True})
    assert prepare(skipping, gpt2, facts).facts.skipped == {
        "bare": "no manual template",
        "behind": "a manual template that a causal model cannot be asked by",
    }
    with pytest.raises(DataError, match=r"bare has no manual template; .*--skip-unusable"):
        prepare(run_config(method={"name": "manual"}), gpt2, facts)


def test_answers_that_are_no_token_do_not_make_a_relation_usable(bert: LanguageModel) -> None:
    relation = replace(several(r=(ONE, ONE, ONE))["r"], answers=("Paris", "Oslo", "New York"))
    facts = FactSet((relation, replace(relation, name="s")), "made up", "table")
    settings = {"vocabulary": "objects"}
    with pytest.raises(DataError, match="one possible answer alone: r, s; add facts"):
        prepare(run_config(facts=settings), bert, facts)
    prepare(run_config(facts=settings | {"objects": "any-length"}), bert, facts)


def test_a_set_without_a_usable_relation_is_refused(bert: LanguageModel) -> None:
    config = run_config(facts={"skip_unusable": True})
    with pytest.raises(DataError, match=r"no relation of made up can be used \(r: no usable dev"):
        prepare(config, bert, one_relation(GOOD, [], GOOD))
