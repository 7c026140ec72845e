"""Configs: read, written, refused."""

from __future__ import annotations

import tempfile
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.config import (
    differing_keys,
    incidental_keys,
    override,
    shipped_configs,
    to_toml,
)
from symprompt.config.loading import TABLES, Command
from symprompt.errors import ConfigError
from symprompt.pretraining.config import PretrainConfig, load_pretrain_config, make_pretrain_config
from symprompt.probing.config import (
    FactsConfig,
    LearningConfig,
    MethodConfig,
    PromptConfig,
    RunConfig,
    TuningConfig,
    load_config,
    make_config,
)

positive = st.floats(min_value=1e-300, max_value=1e300)
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


def test_file_overrides_defaults_and_expected_block_is_ignored(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        'seed = 7\n[learning]\nrate = 1\n[facts]\nrelations = ["P36"]\n'
        "[expected]\nanything = [1, 2]\nnested.deep = true\n",
    )
    assert config == replace(
        RunConfig(seed=7),
        learning=LearningConfig(rate=1.0),
        facts=FactsConfig(relations=("P36",)),
    )
    # An integer was written where a float is meant; runs must not depend on that.
    assert isinstance(config.learning.rate, float)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"sed": 3}, r"unknown key sed; did you mean seed\?"),
        ({"learning": {"rte": 1.0}}, r"unknown key learning.rte; did you mean learning.rate\?"),
        ({"zzzz": 3}, "unknown key zzzz; known: model, "),
        ({"learning": 3}, r"learning is a table \(\[learning\]\), got 3"),
        ({"seed": "3"}, "seed is '3'; it must be of type int"),
        ({"seed": 3.0}, "it must be of type int"),
        ({"seed": True}, "it must be of type int"),
        ({"keep_encoder": 1}, "it must be of type bool"),
        ({"model": 5}, "it must be of type str"),
        ({"learning": {"rate": "fast"}}, "it must be of type float"),
        ({"learning": {"rate": True}}, "it must be of type float"),
        ({"facts": {"relations": "P36"}}, "must be a list of strings"),
        ({"facts": {"relations": [1]}}, "facts.relations has 1; each must be of type str"),
        (
            {"method": {"name": "bert"}},
            "method.name is 'bert'; allowed are: .*, ptuning, softprompt, spe",
        ),
        ({"method": {"masking": 1}}, "allowed are: one, whole"),
        ({"learning": {"select": []}}, "allowed are: p@1, mrr, loss"),
    ],
)
def test_unknown_keys_and_wrong_types_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(table)


@pytest.mark.parametrize(
    "key_value",
    [
        "method.k = 0",
        "method.weight = -0.1",
        "method.weight = nan",
        "method.train_weight = -1.0",
        "learning.batch = 0",
        "learning.epochs = -1",
        "learning.patience = -1",
        "learning.weight_decay = -0.1",
        "learning.clip = -1.0",
        "learning.clip = nan",
        "learning.rate = 0.0",
        "learning.rate = nan",
        "learning.decay = 0.0",
        "learning.decay = 1.1",
        "learning.decay = nan",
        "learning.warmup = 1.0",
        "learning.warmup = -0.1",
        "prompt.lstm_hidden = -2",
        "max_tokens = -1",
        "facts.train_limit = -1",
        "facts.test_limit = -2",
    ],
)
def test_values_out_of_range_are_refused_by_name(tmp_path: Path, key_value: str) -> None:
    with pytest.raises(ConfigError, match=key_value.split(" ")[0]):
        load_text(tmp_path, key_value + "\n")


def test_start_from_words_goes_with_free_vectors_alone() -> None:
    with pytest.raises(ConfigError, match='"free", not "bilstm"'):
        make_config({"prompt": {"start": "manual"}})
    make_config({"prompt": {"start": "manual", "encoder": "free"}})


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


def test_every_shipped_config_loads() -> None:
    for name in shipped_configs("train"):
        load_config(name)
    for name in shipped_configs("pretrain"):
        load_pretrain_config(name)
    # Those of labelled tasks are looked at in tests/tasks.
    every = shipped_configs("train") | shipped_configs("pretrain") | shipped_configs("tune")
    assert every == shipped_configs()


def test_a_config_of_the_other_command_is_refused_by_its_tables(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"for symprompt pretrain, not for symprompt train; its"):
        load_text(tmp_path, "seed = 1\n[corpus]\nlength = 64\n")
    (tmp_path / "run.toml").write_text("[method]\nk = 3\n")
    with pytest.raises(ConfigError, match=r"for symprompt train, .* its tables are method\."):
        load_pretrain_config(str(tmp_path / "run.toml"))
    # Without a table a file may be either's.
    (tmp_path / "run.toml").write_text("seed = 3\n")
    assert load_pretrain_config(str(tmp_path / "run.toml")).seed == 3


@pytest.mark.parametrize(("kind", "command"), [(RunConfig, "train"), (PretrainConfig, "pretrain")])
def test_tables_tell_whose_config_it_is(kind: type[Any], command: Command) -> None:
    tables = {entry.name for entry in fields(kind) if is_dataclass(getattr(kind(), entry.name))}
    assert tables == TABLES[command] | {"learning"}


def test_a_pretraining_config_reads_back_and_differs_by_key(tmp_path: Path) -> None:
    config = make_pretrain_config({"seed": 5, "corpus": {"packing": "sentences"}})
    (tmp_path / "p.toml").write_text(to_toml(config))
    assert load_pretrain_config(str(tmp_path / "p.toml")) == config
    other = replace(config, out="x", compile="off", learning=replace(config.learning, rate=1.0))
    assert differing_keys(config, other) == ["learning.rate"]


def test_differing_keys_are_named_and_incidental_ones_left_out() -> None:
    one = RunConfig()
    other = replace(one, seed=1, out="x", device="cpu", learning=LearningConfig(rate=1.0))
    assert differing_keys(one, other) == ["seed", "learning.rate"]
    assert differing_keys(one, one) == []
    assert incidental_keys(PretrainConfig)[:2] == ["out", "device"]


def test_override_checks_again() -> None:
    assert override(RunConfig(), seed=9).seed == 9
    with pytest.raises(ConfigError, match="max_tokens"):
        override(RunConfig(), max_tokens=-5)
