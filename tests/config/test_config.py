"""Configs: read, written, refused."""

from __future__ import annotations

import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.config import (
    TABLES,
    allowed_range,
    build,
    flat_fields,
    flatten,
    incidental_keys,
    layers_of,
    load,
    override,
    plain_type,
    recipe_of,
    tables_of,
    to_toml,
)
from symprompt.errors import ConfigError
from symprompt.pretraining.config import PretrainConfig, load_pretrain_config
from symprompt.probing.config import (
    FactsConfig,
    LearningConfig,
    MethodConfig,
    PromptConfig,
    RunConfig,
    TuningConfig,
    load_config,
)
from symprompt.runs.folder import Folder
from symprompt.tasks.config import PatternRunConfig, TuneConfig

KINDS = [RunConfig, TuneConfig, PatternRunConfig, PretrainConfig]

positive = st.floats(min_value=1e-300, max_value=1e30)
share = st.floats(min_value=0, max_value=0.99)
# Quotes, backslashes, control characters, newlines of every kind and other scripts.
text = st.text() | st.sampled_from(['"""', "\\", "\r\n", "\x7f", "\x85\u2028", "'''", "#", "[x]\n"])

configs = st.builds(
    RunConfig,
    model=text,
    data=text,
    out=text,
    seed=st.integers(-(2**62), 2**62),
    checkpoint_seconds=positive,
    keep_encoder=st.booleans(),
    facts=st.builds(
        FactsConfig,
        layout=st.sampled_from(["auto", "lama", "table", "world"]),
        relations=st.lists(text, max_size=3).map(tuple),
        vocabulary=text,
        strict=st.booleans(),
    ),
    prompt=st.builds(PromptConfig, template=text, lstm_hidden=st.integers(0, 1000)),
    method=st.builds(MethodConfig, k=st.integers(1, 100), weight=positive),
    learning=st.builds(
        LearningConfig, rate=positive, warmup=share, clip=st.integers(0, 5).map(float)
    ),
    tuning=st.builds(
        TuningConfig,
        lora_rank=st.integers(1, 64),
        lora_targets=st.lists(text, max_size=2).map(tuple),
        save_weights=st.booleans(),
    ),
)


@given(configs)
def test_written_config_reads_back_as_the_same_config(config: RunConfig) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(to_toml(config), encoding="utf-8")
        assert load_config(str(path)) == config


def load_text(tmp_path: Path, written: str) -> RunConfig:
    path = tmp_path / "run.toml"
    path.write_text(written, encoding="utf-8")
    return load_config(str(path))


def test_file_overrides_defaults_and_published_block_is_ignored(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        'seed = 7\n[learning]\nrate = 1\n[facts]\nrelations = ["P36"]\n'
        "[published]\nanything = [1, 2]\nnested.deep = true\n",
    )
    assert config == replace(
        RunConfig(seed=7),
        learning=LearningConfig(rate=1.0),
        facts=FactsConfig(relations=("P36",)),
    )
    # An integer was written where a float is meant; runs must not depend on that.
    assert isinstance(config.learning.rate, float)


def test_missing_and_garbled_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a file nor shipped"):
        load_config(str(tmp_path / "no.toml"))
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_text(tmp_path, "seed = = 3")
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(str(tmp_path / "run.toml"))
    with pytest.raises(ConfigError, match="neither a file"):
        load_config(str(tmp_path))


def test_a_config_of_the_other_command_is_refused_by_its_tables(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"for symprompt pretrain, not for symprompt train; its"):
        load_text(tmp_path, "seed = 1\n[corpus]\nlength = 64\n")
    (tmp_path / "run.toml").write_text("[method]\nk = 3\n")
    with pytest.raises(ConfigError, match=r"for symprompt train, .* its tables are method\."):
        load_pretrain_config(str(tmp_path / "run.toml"))
    # Without a table a file may be either's.
    (tmp_path / "run.toml").write_text("seed = 3\n")
    assert load_pretrain_config(str(tmp_path / "run.toml")).seed == 3


def test_tables_tell_whose_config_it_is() -> None:
    assert set(tables_of(RunConfig)) == TABLES["train"] | {"learning"}
    assert set(tables_of(PretrainConfig)) == TABLES["pretrain"] | {"learning", "weights"}
    tuned = {*tables_of(TuneConfig), *tables_of(PatternRunConfig)}
    assert tuned == TABLES["tune"] | {"learning", "weights"}


def test_override_takes_dotted_keys_short_names_and_whole_tables() -> None:
    config = override(RunConfig(), seed=9, epochs=3, **{"method.k": 4})
    assert (config.seed, config.learning.epochs, config.method.k) == (9, 3, 4)
    changed = override(TuneConfig(), learning=replace(TuneConfig().learning, rate=1.0))
    assert changed.learning.rate == 1.0
    assert override(PatternRunConfig(), rates=[1e-3, 1e-4]).learning.rates == (1e-3, 1e-4)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (RunConfig(), {"max_tokens": -5}, r"max_tokens is -5; it must be at least 0\."),
        (
            RunConfig(),
            {"learning.epoch": 1},
            r"learning\.epoch; did you mean learning\.epochs",
        ),
        (
            PretrainConfig(),
            {"alpha": 0.5},
            r"may be vocabulary\.alpha or corpus\.alpha; say which",
        ),
        (TuneConfig(), {"lenght": 1}, "unknown key lenght; did you mean length"),
    ],
)
def test_override_refuses_in_our_words(config: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        override(config, **changes)


# -------------------------------------------------------------------------------- the contract


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_help_and_numbers_have_a_range(kind: type[Any]) -> None:
    for key, entry in flat_fields(kind).items():
        assert entry.description, key
        if plain_type(entry.annotation) in (int, float):
            assert allowed_range(entry), key


@pytest.mark.parametrize("kind", KINDS)
def test_every_config_can_be_stored_compared_and_made_anew(kind: type[Any], tmp_path: Path) -> None:
    config = kind()
    (tmp_path / "own.toml").write_text(to_toml(config))
    assert build(kind, tomllib.loads(to_toml(config))) == config
    assert load(kind, str(tmp_path / "own.toml")) == config
    assert set(recipe_of(config)) | set(incidental_keys(kind)) == set(flatten(config))
    assert {"out", "device", "checkpoint_seconds"} <= set(incidental_keys(kind))
    folder = Folder(tmp_path)
    folder.write_config(config)
    assert folder.differing_keys(override(config, out="x", device="cpu")) == []
    seed = {"pattern.task": "cb"} if kind is PatternRunConfig else {"seed": 77}
    assert folder.differing_keys(override(config, **seed)) == list(seed)
    with pytest.raises(AttributeError):
        config.out = "other"


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("all", (0, 1, 2, 3, 4, 5)),
        ("first:2", (0, 1)),
        ("last:2", (4, 5)),
        ("last:6", (0, 1, 2, 3, 4, 5)),
        ("3", (2,)),
        ("5,1,3", (0, 2, 4)),
        ("1-2,2,5-6", (0, 1, 4, 5)),
    ],
)
def test_layers_are_named_from_the_ends_or_by_their_numbers(
    text: str, places: tuple[int, ...]
) -> None:
    assert layers_of(text, 6) == places


@pytest.mark.parametrize("text", ["last:7", "first:9", "7", "1,5-7"])
def test_layers_that_a_model_has_not_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"the layers {text} .* the model has 6, counted from 1"):
        layers_of(text, 6)
