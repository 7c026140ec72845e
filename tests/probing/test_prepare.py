"""From facts to a problem: what is dropped and why, allowed answers, what is known when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from symprompt.errors import ConfigError, DataError
from symprompt.facts import FactSet, Relation
from symprompt.models import LanguageModel
from symprompt.probing.methods.manual import Manual
from symprompt.probing.methods.ptuning import PTuning
from symprompt.probing.methods.spe import SPE
from symprompt.probing.prepare import Problem, make_method, prepare
from symprompt.probing.templates import words_to_vectors
from symprompt.prompts import BiLSTMEncoder, FreeVectors, MLPEncoder, Template
from tiny.models import CITIES, COUNTRIES, facts_of, run_config

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


def test_objects_of_several_tokens_are_dropped_and_counted(bert: LanguageModel) -> None:
    problem = prepare(run_config(), bert, MIXED)
    assert dropped(problem) == {("train", "object is not one token of the model"): 2}
    assert [len(problem.sentences[split]) for split in ("train", "dev", "test")] == [3, 2, 3]
    assert problem.relations == ("r",)


def test_strict_refuses_what_would_be_dropped(bert: LanguageModel) -> None:
    config = run_config(facts={"strict": True})
    with pytest.raises(DataError, match=r"2 facts cannot be used.*relation r \(train\): object is"):
        prepare(config, bert, MIXED)
    prepare(config, bert, one_relation(GOOD, GOOD, GOOD))


def test_subjects_that_hold_the_mask_token_are_dropped(backbone: LanguageModel) -> None:
    mask = backbone.vocabulary.tokenizer.mask_token
    facts = one_relation([*GOOD, (f"the {mask}", "Paris")], GOOD, GOOD)
    problem = prepare(run_config(), backbone, facts)
    assert dropped(problem) == {("train", "subject is not readable text"): 1}


def test_relation_without_usable_facts_is_named_with_the_reason(bert: LanguageModel) -> None:
    facts = one_relation(GOOD, [("Norway", "Oslo")], GOOD)
    with pytest.raises(DataError, match=r"relation r has no usable dev facts \(1 dropped: object"):
        prepare(run_config(), bert, facts)
    with pytest.raises(DataError, match=r"relation r has no usable train facts; add facts"):
        prepare(run_config(), bert, one_relation([], GOOD, GOOD))


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


def test_more_candidates_than_answers_are_refused(bert: LanguageModel) -> None:
    config = run_config(facts={"vocabulary": "objects"}, method={"k": 4})
    with pytest.raises(ConfigError, match=r"method\.k is 4, but relation r has only 3 allowed"):
        prepare(config, bert, MIXED)


def test_uhn_leaves_out_test_facts_that_name_their_object(bert: LanguageModel) -> None:
    named = [*GOOD, ("old Paris", "Paris")]
    problem = prepare(run_config(facts={"uhn": True}), bert, one_relation(named, named, named))
    assert dropped(problem) == {("test", "object named in the subject"): 1}


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


def test_manual_templates_must_be_there(bert: LanguageModel) -> None:
    config = run_config(method={"name": "manual"})
    with pytest.raises(DataError, match="relation r has no manual template"):
        prepare(config, bert, one_relation(GOOD, GOOD, GOOD))


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


def test_every_name_of_the_example_is_known_to_the_example_models(backbone: LanguageModel) -> None:
    assert None not in backbone.vocabulary.single_tokens([*COUNTRIES, *CITIES])


def test_other_true_objects_are_known_even_when_their_facts_were_dropped(
    bert: LanguageModel,
) -> None:
    facts = one_relation(GOOD, GOOD, [*GOOD, ("old Paris", "Paris"), ("old Paris", "Rome")])
    problem = prepare(run_config(facts={"uhn": True}), bert, facts)
    tokens = bert.vocabulary.single_tokens(["Paris", "Rome"])
    assert set(problem.sentences["test"].known[-1].tolist()) == set(tokens)


def test_sentences_longer_than_the_model_takes_are_dropped(backbone: LanguageModel) -> None:
    facts = one_relation(GOOD, GOOD, [*GOOD, ("New York " * backbone.max_length, "Paris")])
    problem = prepare(run_config(), backbone, facts)
    assert dropped(problem) == {("test", "sentence longer than the model takes"): 1}


def test_manual_prompts_refuse_learned_vectors(bert: LanguageModel) -> None:
    facts = one_relation(GOOD, GOOD, GOOD, template="[X] <2> [Y] .")
    config = run_config(method={"name": "manual"})
    with pytest.raises(ConfigError, match="manual prompts learn none"):
        make_method(config, prepare(config, bert, facts))
    with pytest.raises(ConfigError, match=r"learns none; drop one of the two"):
        run_config(method={"name": "manual"}, prompt={"start": "manual", "encoder": "free"})
    started = run_config(prompt={"start": "manual", "encoder": "free"})
    with pytest.raises(ConfigError, match="cannot start from its words"):
        prepare(started, bert, facts)


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
