"""Words of the command line, read into flags and configs; and the help that teaches them."""

from __future__ import annotations

from typing import Any

import pytest

from symprompt.cli import COMMANDS, load_attribute
from symprompt.cli.flags import CheckFlags, RerankFlags, TableFlags, TuneFlags
from symprompt.cli.paper_flags import ReproduceFlags
from symprompt.cli.parsing import help_text, parse
from symprompt.config import COMMON, allowed_range, flat_fields, plain_type
from symprompt.errors import ConfigError
from symprompt.tasks.config import PatternRunConfig, TuneConfig


def tuned(*words: str) -> Any:
    return parse("tune", TuneFlags, words, [TuneConfig, PatternRunConfig])[1]


@pytest.mark.parametrize(
    "words",
    [
        ["--seeds", "1", "2", "3"],
        ["--seeds", "1,2,3"],
        ["--seeds=1,2,3"],
        ["--seeds", "1", "--seeds", "2,", "3"],
    ],
)
def test_a_list_is_parted_by_spaces_or_commas_in_every_command(words: list[str]) -> None:
    assert tuned("fewglue-rte", *words).seeds == (1, 2, 3)
    [flags] = parse("reproduce spe", ReproduceFlags, ["--data", "x", *words])
    assert flags.seeds == (1, 2, 3)


def test_flags_override_the_file_by_short_or_whole_names() -> None:
    config = tuned("rte-pt2", "--prefix.length", "7", "--head.kind", "mlp")
    assert (config.prefix.length, config.head.kind) == (7, "mlp")
    assert tuned("rte-pt2", "--rate", "0.5", "--epochs", "2").learning.rate == 0.5
    with pytest.raises(ConfigError, match=r"--length may be --prefix\.length or --span\.length"):
        tuned("rte-pt2", "--length", "7")
    config = tuned("rte-pt2", "--learning.epochs=2", "--constrain", "--task.no-identify")
    assert (config.learning.epochs, config.head.constrain) == (2, True)
    assert not config.task.identify
    assert not tuned("rte-pt2", "--constrain", "--no-constrain").head.constrain


def test_the_tables_of_a_config_choose_its_class() -> None:
    assert isinstance(tuned("rte-pt2"), TuneConfig)
    assert isinstance(tuned("superglue-rte"), PatternRunConfig)


def test_words_without_a_flag_are_read_by_their_place() -> None:
    [flags] = parse("table", TableFlags, ["a,b", "--by", "relation", "c", "--weight", "1"])
    assert (flags.runs, flags.by, flags.weight) == (("a,b", "c"), "relation", 1.0)
    [flags] = parse("rerank", RerankFlags, ["a", "--with", "b", "--out", "c"])
    assert (flags.run, flags.with_) == ("a", "b")
    [flags] = parse("data check", CheckFlags, ["world", "--uhn", "--facts.relations", "capital"])
    assert flags.facts.uhn
    assert flags.facts.relations == ("capital",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "--out", "c"], "--with is missing: symprompt rerank --help"),
        (["--with", "b", "--out", "c"], "RUN is missing"),
        (["a", "b", "--with", "b", "--out", "c"], "got 'b' beside its flags"),
        (["a", "--wiht", "b"], r"unknown flag --wiht; did you mean --with\?"),
        (["a", "--zzz", "b"], "unknown flag --zzz; --help shows those there are"),
        (["a", "--with", "--out", "c"], "--with needs a value"),
        (["a", "--with", "b", "--out", "c", "--k", "many"], "k is 'many'; it must be of type int"),
    ],
)
def test_words_that_mean_nothing_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse("rerank", RerankFlags, words)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_flag_has_help_and_a_range_and_the_used_ones_come_first(name: str) -> None:
    command = COMMANDS[name]
    flags = load_attribute(command.flags)
    for key, field in flat_fields(flags).items():
        assert field.description, key
        if plain_type(field.annotation) in (int, float):
            assert allowed_range(field), key
    for kind in map(load_attribute, command.configs):
        text = help_text(name, flags, kind())
        fields = flat_fields(kind) | flat_fields(flags)
        common = [key for key, field in fields.items() if COMMON in field.metadata]
        assert 8 <= len(common) <= 16
        assert text.index("flags used most:") < text.index("\n  --out") < text.index("others:")
        assert "\nlearning (" in text
    assert callable(load_attribute(command.run))
