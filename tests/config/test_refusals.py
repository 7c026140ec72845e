"""What each config refuses, as one table, and in which words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from symprompt.config import build
from symprompt.errors import ConfigError, DataError, SympromptError, TemplateError
from symprompt.pretraining.config import PretrainConfig
from symprompt.probing.config import RunConfig
from symprompt.tasks.config import PatternRunConfig, TuneConfig

Table = dict[str, Any]
NAN = float("nan")

# Of every config: unknown keys and values of another type.
ANY: list[tuple[type[Any], Table, str]] = [
    (RunConfig, {"sed": 3}, "unknown key sed; did you mean seed?"),
    (RunConfig, {"zzzz": 3}, "unknown key zzzz; known: model, data, out, "),
    (RunConfig, {"learning": {"rte": 1.0}}, "unknown key learning.rte; did you mean learning.rate"),
    (RunConfig, {"learning": 3}, "learning is a table ([learning]), got 3."),
    (RunConfig, {"seed": "3"}, "seed is '3'; it must be of type int."),
    (RunConfig, {"seed": 3.0}, "seed is 3.0; it must be of type int."),
    (RunConfig, {"seed": True}, "seed is True; it must be of type int."),
    (RunConfig, {"keep_encoder": 1}, "keep_encoder is 1; it must be of type bool."),
    (RunConfig, {"model": 5}, "model is 5; it must be of type str."),
    (
        RunConfig,
        {"learning": {"rate": "fast"}},
        "learning.rate is 'fast'; it must be of type float",
    ),
    (RunConfig, {"learning": {"rate": True}}, "learning.rate is True; it must be of type float."),
    (
        RunConfig,
        {"facts": {"relations": "P36"}},
        "relations is 'P36'; it must be a list of strings",
    ),
    (
        RunConfig,
        {"method": {"terms": "subject"}},
        "method.terms is 'subject'; it must be a list of some of: subject, frequency, copy, prior.",
    ),
    (RunConfig, {"facts": {"relations": [1]}}, "facts.relations has 1; each must be of type str."),
    (RunConfig, {"method": {"name": "bert"}}, "method.name is 'bert'; allowed are: autoprompt, "),
    (RunConfig, {"method": {"masking": 1}}, "method.masking is 1; allowed are: one, chain, whole."),
    (RunConfig, {"ensemble": {"weighing": "guess"}}, "weighing is 'guess'; allowed are: em, "),
    (RunConfig, {"tuning": {"tune": "some"}}, "allowed are: full, lora"),
    (RunConfig, {"tuning": {"rank": 3}}, "unknown key tuning.rank"),
    (RunConfig, {"search": {"iterations": 3}}, "unknown key search.iterations"),
    (RunConfig, {"dtype": "int8"}, "dtype is 'int8'; allowed are: auto, float32, bfloat16"),
    (
        TuneConfig,
        {"prefix": {"lenght": 3}},
        "unknown key prefix.lenght; did you mean prefix.length",
    ),
    (TuneConfig, {"prefix": {"encoder": "lstm"}}, "encoder is 'lstm'; allowed are: free, mlp."),
    (TuneConfig, {"prefix": {"layers": "last"}}, "prefix.layers is 'last'; use all, first:6, last"),
    (TuneConfig, {"prefix": {"layers": "0,1"}}, "prefix.layers is '0,1'; use all, first:6, last:6"),
    (TuneConfig, {"prefix": {"layers": "1,4-2"}}, "or numbers from 1 on as in 1,3,5 or 7-12."),
    (TuneConfig, {"dtype": "float16"}, "dtype is 'float16'; allowed are: auto, float32, bfloat16."),
    (TuneConfig, {"method": "adapters"}, "method is 'adapters'; allowed are: "),
    (PatternRunConfig, {"dtype": "bfloat16"}, "allowed are: auto, float32, float64."),
    (PatternRunConfig, {"pattern": {"spans": "two"}}, "allowed are: together, one."),
    (PatternRunConfig, {"seeds": []}, "seeds is []; give 1 or more."),
    (PatternRunConfig, {"seeds": ["1"]}, "seeds has '1'; each must be of type int."),
    (PatternRunConfig, {"seeds": 1}, "seeds is 1; it must be a list of whole numbers."),
    (PatternRunConfig, {"seeds": [1, 1]}, "seeds is [1, 1]; each may be there only once."),
    (
        PatternRunConfig,
        {"learning": {"rates": ["fast"]}},
        "learning.rates has 'fast'; each must be",
    ),
    (PatternRunConfig, {"learning": {"rates": [-1]}}, "rates has -1; each must be in (0, 1e+30]."),
    (PatternRunConfig, {"learning": {"batches": [0]}}, "batches has 0; each must be at least 1."),
    (PretrainConfig, {"dtype": "float16"}, "dtype is 'float16'; allowed are: "),
]

# Values out of range: key, value, what is allowed.
RANGES: list[tuple[type[Any], str, float, str]] = [
    (RunConfig, "method.k", 0, "at least 1"),
    (RunConfig, "method.weight", -0.1, "at least 0"),
    (RunConfig, "method.weight", NAN, "at least 0"),
    (RunConfig, "learning.epochs", -1, "at least 0"),
    (RunConfig, "learning.clip", -1.0, "at least 0"),
    (RunConfig, "learning.rate", 0.0, "in (0, 1e+30]"),
    (RunConfig, "learning.rate", NAN, "in (0, 1e+30]"),
    (RunConfig, "learning.decay", 1.1, "in (0, 1]"),
    (RunConfig, "learning.warmup", 1.0, "in [0, 1)"),
    (RunConfig, "prompt.lstm_hidden", -2, "at least -1"),
    (RunConfig, "max_tokens", -1, "at least 0"),
    (RunConfig, "facts.train_limit", -1, "at least 0"),
    (RunConfig, "ensemble.most", -1, "at least 0"),
    (RunConfig, "search.steps", 0, "at least 1"),
    (RunConfig, "search.candidates", 0, "at least 1"),
    (RunConfig, "tuning.lora_rank", 0, "at least 1"),
    (RunConfig, "tuning.lora_alpha", 0.0, "in (0, 1e+30]"),
    (RunConfig, "tuning.at_once", -1, "at least 0"),
    (TuneConfig, "prefix.length", 0, "from 1 to 65536"),
    (TuneConfig, "prefix.dropout", 1.0, "in [0, 1)"),
    (TuneConfig, "learning.epochs", 0, "at least 1"),
    (TuneConfig, "learning.rate", 1e38, "in (0, 1e+30]"),
    (TuneConfig, "learning.head_rate", 1e38, "from 0 to 1e+30"),
    (TuneConfig, "weights.layers", -2, "at least -1"),
    (TuneConfig, "task.max_length", 5, "at least 8"),
    (PatternRunConfig, "learning.steps", 0, "at least 1"),
    (PatternRunConfig, "learning.prompt_rate", 0.0, "in (0, 1e+30]"),
    (PretrainConfig, "corpus.length", 513, "from 8 to 512"),
    (PretrainConfig, "corpus.held_out", 0.9, "from 0 to 0.5"),
    (PretrainConfig, "corruption.share", 1.0, "between 0 and 1"),
    (PretrainConfig, "vocabulary.alpha", 1.5, "from 0 to 1"),
]

# Parts that do not go together.
TOGETHER: list[tuple[type[Any], Table, str]] = [
    (RunConfig, {"prompt": {"start": "manual"}}, '"free", not "bilstm"'),
    (
        RunConfig,
        {"prompt": {"start": "manual", "encoder": "free"}, "method": {"name": "majority"}},
        '"majority" learns none; drop one of the two.',
    ),
    (
        RunConfig,
        {"prompt": {"encoder": "mlp"}, "method": {"name": "softprompt"}},
        '"softprompt" goes with prompt.encoder = "free", not "mlp"',
    ),
    (RunConfig, {"method": {"name": "finetune"}, "dtype": "float16"}, "small changes of weights"),
    (RunConfig, {"method": {"name": "finetune"}, "start_from": "run"}, "has none; drop one of the"),
    (RunConfig, {"facts": {"objects": "any-length"}}, '"full" has single tokens only'),
    (
        RunConfig,
        {
            "facts": {"objects": "any-length", "vocabulary": "objects"},
            "method": {"name": "lpaqa"},
        },
        '"lpaqa" asks for objects of one token',
    ),
    (TuneConfig, {"task": {"stride": 100}}, "task.stride is 100; it may be at most half"),
    (TuneConfig, {"method": "mpt2", "mixture": {"tasks": ["rte"]}}, "names rte alone"),
    (
        TuneConfig,
        {"head": {"decoder": "crf", "combine": "mean"}},
        "single tokens, and head.decoder",
    ),
    (PatternRunConfig, {"pattern": {"task": "record"}}, "tasks with patterns are"),
    (PatternRunConfig, {"pattern": {"template": "{passage} <1> [MASK]"}}, "rte has"),
    (PatternRunConfig, {"pattern": {"method": "mp", "train_model": False}}, "nothing to learn"),
    (
        PretrainConfig,
        {"corruption": {"mask": 0.8, "random": 0.3}},
        "together they may be at most 1",
    ),
    (PretrainConfig, {"shape": {"hidden": 10, "heads": 3}}, "the heads must divide the hidden"),
    (PretrainConfig, {"shape": {"embedding": 8}}, 'with shape.family = "bert" it is the hidden'),
    (PretrainConfig, {"objective": "mlm+nsp"}, '"mlm+nsp" and "pairs" need each other'),
    (PretrainConfig, {"corpus": {"packing": "pairs"}}, '"mlm+nsp" and "pairs" need each other'),
    (
        PretrainConfig,
        {"corruption": {"kind": "spans", "uniform": True}},
        'corruption.uniform goes with corruption.kind = "tokens" or "words", not "spans"',
    ),
    (PretrainConfig, {"objective": "mlm+sbo"}, 'needs corruption.kind = "spans", not "tokens"'),
]


@pytest.mark.parametrize(("kind", "table", "message"), [*ANY, *TOGETHER])
def test_a_bad_config_is_refused_in_one_sentence(
    kind: type[Any], table: Table, message: str
) -> None:
    with pytest.raises(SympromptError, match=re.escape(message)) as error:
        build(kind, table)
    assert isinstance(error.value, ConfigError | DataError | TemplateError)
    assert str(error.value).endswith((".", "?"))


@pytest.mark.parametrize(("kind", "key", "value", "allowed"), RANGES)
def test_a_value_out_of_range_is_refused_by_its_key(
    kind: type[Any], key: str, value: float, allowed: str
) -> None:
    outer, _, inner = key.rpartition(".")
    with pytest.raises(ConfigError) as error:
        build(kind, {outer: {inner: value}} if outer else {inner: value})
    assert str(error.value) == f"{key} is {value!r}; it must be {allowed}."
