"""Tiny random language models and tokenizers made in code, and small sets of made-up facts.

Nothing here is downloaded. Each family's folder looks like one that ``save_pretrained`` wrote for a
real checkpoint of that family: a config, safetensors and a tokenizer of the family's kind.
"""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from transformers import (
    AlbertConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    DebertaConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    XLMRobertaConfig,
)

from symprompt.engine.loop import Loop, Progress
from symprompt.facts import Fact, FactSet, Relation
from symprompt.models import Inputs, LanguageModel, trained
from symprompt.probing.config import RunConfig, make_config
from symprompt.probing.evaluate import dev_scores, predict
from symprompt.probing.methods.base import Method
from symprompt.probing.methods.finetune import FineTune
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.problem import Problem
from symprompt.probing.results import Predictions
from symprompt.probing.train import FactTraining, PromptTraining

# Their modules call the deprecated torch.jit.script when they are first imported.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    for module in ("deberta", "deberta_v2"):
        importlib.import_module(f"transformers.models.{module}.modeling_{module}")

COUNTRIES = ("France", "Italy", "Spain", "Japan", "Chile", "Kenya", "Peru", "Cuba")
CITIES = ("Paris", "Rome", "Madrid", "Tokyo", "Santiago", "Nairobi", "Lima", "Havana")
OTHERS = ("New", "York", "Los", "Angeles", "San", "Marino", "Saint", "Lucia", "river", "old")
FUNCTION_WORDS = ("is", "the", "capital", "of", "in", "lies", "located", "city", "s", "The")
WORDS = COUNTRIES + CITIES + OTHERS + FUNCTION_WORDS
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
MARKS = ".,'-"
CAUSAL_TEMPLATE = "<2> [X] <1> [Y]"


@dataclass(frozen=True)
class Specials:
    """A family's special tokens, in the order of their ids, and their roles."""

    order: tuple[str, ...]
    pad: str
    unknown: str
    first: str
    last: str
    mask: str


BERT_SPECIALS = Specials(
    ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
)
ROBERTA_SPECIALS = Specials(
    ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "<pad>", "<unk>", "<s>", "</s>", "<mask>"
)


def wrap(tokenizer: Tokenizer, specials: Specials, *, eats_space: bool) -> PreTrainedTokenizerFast:
    """Add the sentence frame and the special tokens, as transformers keeps them."""
    tokenizer.post_processor = TemplateProcessing(
        single=f"{specials.first} $A {specials.last}",
        special_tokens=[
            (token, tokenizer.token_to_id(token)) for token in (specials.first, specials.last)
        ],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=specials.pad,
        unk_token=specials.unknown,
        cls_token=specials.first,
        sep_token=specials.last,
        # Tokenizers that mark word starts let the mask swallow the space before it.
        mask_token=AddedToken(specials.mask, lstrip=eats_space, normalized=False, special=True),
    )


def make_wordpiece(
    specials: Specials = BERT_SPECIALS, words: Sequence[str] = WORDS
) -> PreTrainedTokenizerFast:
    """WordPiece as BERT's: listed words whole, all others letter by letter."""
    entries = [*specials.order, *words, *MARKS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocabulary = {entry: index for index, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=specials.unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return wrap(tokenizer, specials, eats_space=False)


def _train_bytes(model: models.BPE, specials: Sequence[str | AddedToken]) -> Tokenizer:
    """Byte-level BPE: a word and the same word after a space are two tokens."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=5000,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for word in WORDS for text in (word, " " + word)], trainer)
    return tokenizer


def make_byte_bpe(specials: Specials = ROBERTA_SPECIALS) -> PreTrainedTokenizerFast:
    listed = [
        AddedToken(token, lstrip=token == specials.mask, normalized=False, special=True)
        for token in specials.order
    ]
    tokenizer = _train_bytes(models.BPE(unk_token=specials.unknown), listed)
    return wrap(tokenizer, specials, eats_space=True)


def make_byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2's and Qwen's: one special token, put nowhere; no padding token."""
    tokenizer = _train_bytes(models.BPE(), ["<|endoftext|>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def make_unigram(specials: Specials) -> PreTrainedTokenizerFast:
    """Unigram over Metaspace as SentencePiece models have it: word starts are marked."""
    pieces = [(token, 0.0) for token in specials.order]
    pieces += [("▁" + word, -2.0) for word in WORDS]
    pieces += [("▁", -6.0)] + [(letter, -8.0) for letter in LETTERS + MARKS]
    unknown = specials.order.index(specials.unknown)
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return wrap(tokenizer, specials, eats_space=True)


def make_metaspace(*, prepend: bool) -> PreTrainedTokenizerFast:
    """SentencePiece's kind, with a token before every sentence.

    Args:
        prepend: put the space mark before every text, as Llama 2 does; Gemma does not.
    """
    specials = ("<pad>", "<s>", "</s>", "<unk>")
    pieces = [(token, 0.0) for token in specials]
    pieces += [(word, -2.5) for word in WORDS] + [("▁" + word, -2.0) for word in WORDS]
    pieces += [("▁", -6.0)] + [(letter, -8.0) for letter in LETTERS + MARKS]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    steps: list[Any] = [normalizers.Prepend("▁")] if prepend else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.decoder = decoders.Replace("▁", " ")
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token=AddedToken("<unk>", special=True),
    )


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 48,
}
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}


@dataclass(frozen=True)
class Family:
    """How to make one family's model and tokenizer.

    Attributes:
        exact: whether a float64 model computes in float64 throughout (root-mean-square norms and
            rotary angles of transformers are float32 whatever the dtype).
    """

    config: Callable[..., Any]
    tokenizer: Callable[[], PreTrainedTokenizerFast]
    exact: bool = True


def _small(kind: Any, **more: Any) -> Callable[..., Any]:
    return lambda **common: kind(**{**SMALL, **common, **more})


def _grouped(kind: Any, **more: Any) -> Callable[..., Any]:
    return _small(kind, num_key_value_heads=2, **more)


def _distilbert(**common: Any) -> Any:
    return DistilBertConfig(
        **common, dim=32, n_layers=2, n_heads=4, hidden_dim=37, max_position_embeddings=48
    )


def _gpt2(**common: Any) -> Any:
    return GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=48, **common)


FAMILIES: dict[str, Family] = {
    "bert": Family(_small(BertConfig), make_wordpiece),
    "roberta": Family(_small(RobertaConfig), make_byte_bpe),
    "xlm-roberta": Family(_small(XLMRobertaConfig), lambda: make_unigram(ROBERTA_SPECIALS)),
    "albert": Family(_small(AlbertConfig, embedding_size=16), lambda: make_unigram(BERT_SPECIALS)),
    "electra": Family(_small(ElectraConfig, embedding_size=16), make_wordpiece),
    "distilbert": Family(_distilbert, make_wordpiece),
    "deberta": Family(
        _small(DebertaConfig, **RELATIVE, position_biased_input=True),
        lambda: make_byte_bpe(BERT_SPECIALS),
    ),
    "deberta-v2": Family(
        _small(
            DebertaV2Config,
            **RELATIVE,
            position_biased_input=False,
            position_buckets=8,
            share_att_key=True,
            norm_rel_ebd="layer_norm",
        ),
        lambda: make_unigram(BERT_SPECIALS),
    ),
    "deberta-v2-new": Family(
        _small(DebertaV2Config, **RELATIVE, legacy=False), lambda: make_unigram(BERT_SPECIALS)
    ),
    "mpnet": Family(_small(MPNetConfig), lambda: make_wordpiece(ROBERTA_SPECIALS)),
    "modernbert": Family(
        _small(ModernBertConfig, global_attn_every_n_layers=2, local_attention=4),
        lambda: make_byte_bpe(BERT_SPECIALS),
    ),
}
# The newer DeBERTa-v2 head hides its last product, which half precision needs to get at.
HIDES_DECODER = "deberta-v2-new"


CAUSAL_FAMILIES: dict[str, Family] = {
    "gpt2": Family(_gpt2, make_byte_level),
    "llama": Family(
        _grouped(LlamaConfig, tie_word_embeddings=False),
        lambda: make_metaspace(prepend=True),
        exact=False,
    ),
    "llama-tied": Family(
        _grouped(LlamaConfig, tie_word_embeddings=True), make_byte_level, exact=False
    ),
    "qwen2": Family(_grouped(Qwen2Config, tie_word_embeddings=True), make_byte_level, exact=False),
    "qwen3": Family(
        _grouped(Qwen3Config, head_dim=8, tie_word_embeddings=False), make_byte_level, exact=False
    ),
    "gemma": Family(
        _grouped(GemmaConfig, head_dim=8), lambda: make_metaspace(prepend=False), exact=False
    ),
    # Soft caps on attention scores and on the logits themselves, and a window of six tokens.
    "gemma2": Family(
        _grouped(
            Gemma2Config,
            head_dim=8,
            sliding_window=6,
            final_logit_softcapping=3.0,
            attn_logit_softcapping=2.0,
        ),
        lambda: make_metaspace(prepend=False),
        exact=False,
    ),
}


def make_model(family: str, tokenizer: PreTrainedTokenizerFast) -> Any:
    """A random model of a family; weights are wide so that logits differ clearly."""
    if family in FAMILIES:
        head: Any = AutoModelForMaskedLM
        ids = {"bos": "cls", "eos": "sep", "cls": "cls", "sep": "sep"}
        config = FAMILIES[family].config
    else:
        head, ids = AutoModelForCausalLM, {"bos": "bos", "eos": "eos"}
        config = CAUSAL_FAMILIES[family].config
    model = head.from_config(
        config(
            # Qwen's kind has more rows than tokens.
            vocab_size=len(tokenizer) + (0 if family in FAMILIES else 3),
            pad_token_id=tokenizer.pad_token_id,
            **{f"{to}_token_id": getattr(tokenizer, f"{own}_token_id") for to, own in ids.items()},
        )
    ).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.3, generator=generator)
            if parameter.dim() == 1 and name.endswith("weight"):
                parameter.add_(1.0)  # layer norms: near one, or the words would hardly matter
    return model


def save_family(name: str, folder: Path) -> Path:
    """Write one family's tiny checkpoint and return its folder."""
    tokenizer = (FAMILIES | CAUSAL_FAMILIES)[name].tokenizer()
    make_model(name, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_batch(
    backbone: LanguageModel, lengths: Sequence[int] = (7, 5, 6)
) -> tuple[Tensor, Tensor]:
    """Random sentences of some lengths, padded on the right, and their mask."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(6, len(backbone.vocabulary), (len(lengths), max(lengths)), generator=draw)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~mask, backbone.vocabulary.pad_id), mask


def make_inputs(backbone: LanguageModel, lengths: Sequence[int] = (7, 5, 6)) -> Inputs:
    """Random sentences of some lengths as a model reads them."""
    ids, mask = make_batch(backbone, lengths)
    return Inputs(backbone.embed(ids), mask)


# ---------------------------------------------------------------------------------------- facts


def facts_of(relation: str, pairs: Sequence[tuple[str, str]]) -> tuple[Fact, ...]:
    return tuple(Fact(relation, subject, answer) for subject, answer in pairs)


def make_facts() -> FactSet:
    """Three relations of different sizes; subjects of one to several tokens, some with two objects.

    With batches of four, "near" has less than one batch and "in" an incomplete last one.
    """
    capital = [(country, city) for country, city in zip(COUNTRIES, CITIES, strict=True)]
    inside = [
        ("New York", "France"),
        ("Los Angeles", "Italy"),
        ("San Marino", "Spain"),
        ("Saint Lucia", "Japan"),
        ("old river", "Chile"),
        ("New Lima", "Kenya"),
        ("Oslo", "Peru"),
        ("New Rome", "Cuba"),
        ("San Lucia", "France"),
        ("old Paris", "Italy"),
        ("New York", "Spain"),
        ("Oslo river", "Japan"),
    ]
    near = [("Paris", "Italy"), ("Rome", "France"), ("Saint Madrid", "Cuba"), ("York", "Peru")]
    template = "[X] lies in [Y] ."
    return FactSet(
        relations=(
            Relation(
                "capital",
                facts_of("capital", capital[:5]),
                facts_of("capital", capital[2:7]),
                facts_of("capital", capital[4:]),
                template="The capital of [X] is [Y] .",
            ),
            Relation(
                "in",
                facts_of("in", inside[:7]),
                facts_of("in", inside[7:10]),
                facts_of("in", inside[8:]),
                template=template,
            ),
            Relation(
                "near",
                facts_of("near", near[:2]),
                facts_of("near", near[1:3]),
                facts_of("near", near[2:]),
                template=template,
            ),
        ),
        source="made up",
        layout="table",
    )


def overlay(table: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's table with other sections laid over it, key by key."""
    return {**table} | {
        key: {**table.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in sections.items()
    }


def run_config(**sections: Any) -> RunConfig:
    """A small run config; keyword arguments are the TOML tables and top-level keys."""
    table: dict[str, Any] = {
        "device": "cpu",
        "prompt": {"template": "<2> [X] <1> [Y] <2>"},
        "method": {"name": "spe", "k": 5},
        "learning": {"batch": 4, "epochs": 3, "rate": 0.01, "drop_last": False},
    }
    return make_config(overlay(table, sections))


def causal_config(**sections: Any) -> RunConfig:
    """A small run config whose template ends with the object."""
    return run_config(**overlay({"prompt": {"template": CAUSAL_TEMPLATE}}, sections))


@dataclass
class Trained:
    config: RunConfig
    problem: Problem
    method: Method
    trainer: PromptTraining
    progress: Progress
    dev_history: list[dict[str, np.ndarray]]

    def vectors(self) -> dict[str, Tensor]:
        return {part: value.detach() for part, value in self.method.vectors().items()}

    def predict(self, split: str = "test", *, max_tokens: int = 4096) -> Predictions:
        return predict(
            self.method,
            self.problem.sentences[split],  # type: ignore[index]
            self.vectors(),
            allowed=self.problem.allowed,
            k=self.config.method.k,
            max_tokens=max_tokens,
        )


def as_predictions(**columns: Tensor) -> Predictions:
    """Return predictions whose columns are given as tensors."""
    return Predictions.from_columns({name: value.numpy() for name, value in columns.items()})


def make_trainer(
    config: RunConfig,
    backbone: LanguageModel,
    facts: FactSet,
    *,
    max_tokens: int = 4096,
    capture: bool | None = None,
) -> tuple[Problem, Method, PromptTraining]:
    """Everything up to the first step."""
    config = replace(config, max_tokens=max_tokens)
    problem = prepare(config, backbone, facts)
    method = make_method(config, problem)
    if isinstance(method, FineTune):  # it learns weights for each relation
        method = method.of(problem.relations, config.seed)
    trainer = PromptTraining(config, problem, method, capture=capture)
    zeros = np.zeros(len(problem.relations))
    trainer.scores = lambda: dict.fromkeys(method.encoders, zeros)  # type: ignore[method-assign]
    return problem, method, trainer


def run_training(
    training: FactTraining, scores: Callable[[], Mapping[str, np.ndarray]] | None = None
) -> Progress:
    """Train to the end; without scores every epoch is as good as the others."""
    training.scores = scores or training.scores  # type: ignore[method-assign]
    return Loop(training).run()


def train(
    config: RunConfig, backbone: LanguageModel, facts: FactSet, *, max_tokens: int = 4096
) -> Trained:
    """Train a config's method, keeping every epoch's dev scores."""
    problem, method, trainer = make_trainer(config, backbone, facts, max_tokens=max_tokens)
    history: list[dict[str, np.ndarray]] = []

    def score() -> dict[str, np.ndarray]:
        found = dev_scores(method, problem, config.learning.select)
        history.append(found)
        return found

    return Trained(config, problem, method, trainer, run_training(trainer, score), history)


# --------------------------------------------------------------- a model that knows made-up facts

TOWNS = tuple(
    first + second
    for first in ("Al", "Bo", "Cu", "De", "El", "Fa")
    for second in ("dor", "rin", "mek", "sta", "vul")
)
LANDS = ("Norland", "Sudland", "Ostland", "Westland", "Midland", "Farland")
TONGUES = ("Norish", "Sudish", "Ostish", "Westish", "Midish", "Farish")
SENTENCES = {
    "land": ("{0} lies in {1} .", "the town of {0} is found in {1} .", "{0} , {1}"),
    "tongue": ("people of {0} speak {1} .", "in {0} we hear {1} .", "{0} : {1}"),
}
PLAIN_WORDS = ("lies", "in", "the", "town", "of", "is", "found", "people", "speak", "we", "hear")
WORLD_WORDS = (*TOWNS, *LANDS, *TONGUES, *PLAIN_WORDS, ",", ":")


def world_objects() -> dict[str, dict[str, str]]:
    """Each relation's answer for each town: the two relations are independent of each other."""
    draw = random.Random(0)
    land = [LANDS[index % 6] for index in range(len(TOWNS))]
    tongue = [TONGUES[index % 6] for index in range(len(TOWNS))]
    draw.shuffle(land)
    draw.shuffle(tongue)
    return {
        "land": dict(zip(TOWNS, land, strict=True)),
        "tongue": dict(zip(TOWNS, tongue, strict=True)),
    }


def world_facts(names: Mapping[str, str] | None = None) -> FactSet:
    """The made-up facts, split so that test towns are never asked about in training.

    Args:
        names: other names for some of the objects.
    """
    draw = random.Random(1)
    relations = []
    for name, answers in world_objects().items():
        renamed = {town: (names or {}).get(answer, answer) for town, answer in answers.items()}
        pairs = list(renamed.items())
        draw.shuffle(pairs)
        relations.append(
            Relation(
                name,
                facts_of(name, pairs[:16]),
                facts_of(name, pairs[16:20]),
                facts_of(name, pairs[20:]),
                template=SENTENCES[name][0].format("[X]", "[Y]"),
            )
        )
    return FactSet(tuple(relations), source="made up", layout="table")


def save_knowing_bert(folder: Path, *, steps: int = 400) -> Path:
    """Train a tiny BERT on sentences that state the made-up facts; write it to a folder."""
    texts = [
        sentence.format(town, answer)
        for relation, answers in world_objects().items()
        for town, answer in answers.items()
        for sentence in SENTENCES[relation]
    ]
    return save_taught_bert(folder, texts, [*TOWNS, *LANDS, *TONGUES], WORLD_WORDS, steps=steps)


def save_taught_bert(
    folder: Path,
    texts: Sequence[str],
    names: Sequence[str],
    words: Sequence[str],
    *,
    steps: int,
    layers: int = 2,
    rate: float = 2e-3,
) -> Path:
    """Train a tiny BERT on texts whose names are hidden most of the time; write it to a folder."""
    tokenizer = make_wordpiece(words=words)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForMaskedLM.from_config(config)
    batch = tokenizer(list(texts), padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    is_name = torch.isin(ids, torch.tensor(tokenizer.convert_tokens_to_ids(list(names))))
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(ids), (64,), generator=generator)
        # One of the two names is always hidden, other words sometimes: each must be told from
        # the rest of the sentence, in both directions.
        draw = torch.rand((64, ids.shape[1]), generator=generator) + is_name[rows]
        hidden = torch.zeros_like(draw, dtype=torch.bool)
        hidden.scatter_(1, draw.argmax(1, keepdim=True), True)
        hidden |= torch.rand(draw.shape, generator=generator) < 0.1
        hidden &= (mask[rows] > 0) & (ids[rows] > 4)
        labels = ids[rows].masked_fill(~hidden, -100)
        inputs = ids[rows].masked_fill(hidden, tokenizer.mask_token_id)
        loss = model(input_ids=inputs, attention_mask=mask[rows], labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    # Its texts are short; tests use every position.
    trained.Trained(config.max_position_embeddings, config.type_vocab_size).write(model.config)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


PAIRS = [("France", "New York"), ("Italy", "Rome"), ("Spain", "San Marino"), ("Oslo", "Paris")]


def names_facts() -> FactSet:
    """Objects of one and two tokens, all of them in training."""
    swapped = [("Kenya", "San Marino"), ("Peru", "Paris"), ("Cuba", "New York")]
    return FactSet(
        (
            Relation(
                "near",
                facts_of("near", PAIRS),
                facts_of("near", swapped[:2]),
                facts_of("near", [*swapped, ("Oslo", "Unheard of")]),
                template="[X] lies in [Y] .",
            ),
        ),
        source="made up",
        layout="table",
    )
