"""Words that are one token of several models: WordPiece, byte-level BPE and Unigram tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from symprompt import LanguageModel, cli
from symprompt.errors import ConfigError, DataError
from symprompt.facts import FactSet, Relation, load_word_list
from symprompt.models import Vocabulary, load_vocabulary
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.shared_vocabulary import (
    share_vocabulary,
    single_words,
    whole_words,
)
from tiny.models import CITIES, COUNTRIES, WORDS, facts_of, make_wordpiece, run_config
from tiny.runs import write_csv

KINDS = ("bert", "roberta", "xlm-roberta", "gpt2", "llama", "gemma")


@pytest.fixture(scope="module")
def load(family_folder: Callable[[str], Path]) -> Callable[[str], Vocabulary]:
    return lambda name: load_vocabulary(str(family_folder(name)))


def wordpiece(words: tuple[str, ...], *, lowercase: bool = False) -> Vocabulary:
    tokenizer = make_wordpiece(words=words)
    if lowercase:
        tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    return Vocabulary(tokenizer, name="made up")


@pytest.mark.parametrize("kind", KINDS)
def test_whole_words_are_the_tokens_that_read_back_after_a_space(
    kind: str, load: Callable[[str], Vocabulary]
) -> None:
    vocabulary = load(kind)
    found = whole_words(vocabulary)
    assert set(WORDS) <= found
    tokenizer = vocabulary.tokenizer
    for word in found:
        (ids,) = vocabulary.encode_words([word])
        assert len(ids) == 1
        assert tokenizer.decode(ids).strip() == word
    # Pieces of words, special tokens and bytes are none.
    assert not any(word.startswith(("##", "Ġ", "▁")) for word in found)
    assert not found & set(tokenizer.all_special_tokens)


def test_the_shared_words_are_those_of_a_loop_over_all_pairs(
    load: Callable[[str], Vocabulary],
) -> None:
    vocabularies = {kind: load(kind) for kind in KINDS}
    shared = share_vocabulary(vocabularies)
    wanted = set()
    for vocabulary in vocabularies.values():
        for token in range(len(vocabulary)):
            word = vocabulary.text(token)
            single = all(
                len(other.encode_words([word])[0]) == 1
                and other.encode_words([word])[0][0] not in other.tokenizer.all_special_ids
                for other in vocabularies.values()
            )
            if word and not any(character.isspace() for character in word) and single:
                wanted.add(word)
    assert shared.words == tuple(sorted(wanted))
    assert set(WORDS) <= set(shared.words)
    assert {name: model.tokens for name, model in shared.models.items()} == {
        name: len(vocabulary) for name, vocabulary in vocabularies.items()
    }
    assert all(model.words >= len(shared.words) for model in shared.models.values())
    assert shared.facts == shared.total == {}


def test_capitals_of_the_facts_count_for_a_model_without_them() -> None:
    cased = wordpiece(("Paris", "Rome"))
    uncased = wordpiece(("paris", "rome"), lowercase=True)
    facts = FactSet(
        (Relation("r", test=facts_of("r", [("a", "Paris"), ("b", "Oslo")])),), "hand", "table"
    )
    shared = share_vocabulary({"cased": cased, "uncased": uncased}, facts)
    assert "Paris" in shared.words
    assert "paris" not in shared.words
    assert single_words(uncased, ["Paris", "paris", "Oslo"]) == {"Paris", "paris"}
    both = share_vocabulary({"a": uncased, "b": wordpiece(("paris",), lowercase=True)}, facts)
    assert {"Paris", "paris"} <= set(both.words)
    assert both.facts == {"train": 0, "dev": 0, "test": 1}
    assert both.total["test"] == 2


def some_facts() -> FactSet:
    """Objects that all models know, and one that only the larger vocabulary holds whole."""
    pairs = [*zip(COUNTRIES, CITIES, strict=True), ("Norway", "Oslo")]
    relation = Relation(
        "capital",
        *(facts_of("capital", pairs),) * 3,
        template="The capital of [X] is [Y] .",
    )
    return FactSet((relation,), "hand", "table")


def test_runs_of_different_models_have_the_same_facts_and_as_many_answers(
    load_family: Callable[..., LanguageModel], load: Callable[[str], Vocabulary], tmp_path: Path
) -> None:
    facts = some_facts()
    shared = share_vocabulary({kind: load(kind) for kind in KINDS}, facts)
    assert shared.facts == {"train": 8, "dev": 8, "test": 8}
    path = tmp_path / "words.txt"
    path.write_text("".join(word + "\n" for word in shared.words))
    assert load_word_list(path) == shared.words
    prints, answers = set(), set()
    for kind in KINDS:
        config = run_config(
            method={"name": "manual"}, facts={"vocabulary": str(path)}, dtype="float64"
        )
        problem = prepare(config, load_family(kind), facts)
        make_method(config, problem)
        prints.add(problem.facts.fingerprint())
        answers.add(int(problem.allowed.sum()))
        vocabulary = problem.backbone.vocabulary
        assert {
            vocabulary.text(token) for token in problem.allowed[0].nonzero()[:, 0].tolist()
        } == (set(shared.words))
    assert len(prints) == len(answers) == 1
    assert answers == {len(shared.words)}


def test_what_cannot_be_shared_is_refused() -> None:
    one = wordpiece(("Paris",))
    with pytest.raises(ConfigError, match="1 model was named"):
        share_vocabulary({"one": one})
    tokenizer = make_wordpiece()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("a", "zz")

    class Nothing(Vocabulary):
        def single_tokens(self, words: Any, *, after_space: bool = True) -> list[int | None]:
            return [None] * len(words)

    with pytest.raises(DataError, match="no word is one token of all of these: one, none"):
        share_vocabulary({"one": one, "none": Nothing(tokenizer, name="none")})


def test_the_command_line_writes_the_list_and_counts_facts(
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    data = write_csv(some_facts(), tmp_path / "facts.csv")
    models = ",".join(str(family_folder(kind)) for kind in ("bert", "gpt2"))
    out = tmp_path / "words.txt"
    words = ["data", "vocabulary", "--models", models, "--out", str(out), "--data", str(data)]
    cli.main(words)
    shown = capsys.readouterr().out
    assert "8 of 9" in shown
    assert f"--vocabulary {out}" in shown
    listed = load_word_list(out)
    assert set(CITIES) <= set(listed)
    cli.main([*words, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["words"] == len(listed)
    assert report["facts"] == {"train": 8, "dev": 8, "test": 8}
    # The list restricts what is checked and trained.
    flags = ["--vocabulary", str(out), "--model", str(family_folder("gpt2")), "--json"]
    cli.main(["data", "check", str(data), *flags])
    assert json.loads(capsys.readouterr().out)["facts"]["test"] == 8
    with pytest.raises(SystemExit):
        cli.main(["data", "vocabulary", "--models", "shipped", "--out", str(out)])
    assert "needs at least two" in capsys.readouterr().err
