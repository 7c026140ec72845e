"""A toy masked language model, trained in seconds on sentences that state a set of facts.

It knows nothing but those sentences; it is there so that the whole demo can be seen to learn in a
test. The wordings differ from the relations' manual templates, as a real corpus's would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from symprompt.facts import FactSet
from symprompt.runs.environment import derive_seed

WORDINGS: dict[str, tuple[str, ...]] = {
    "continent": ("[X] lies in [Y] .", "Among the lands of [Y] we find [X] ."),
    "language": ("People of [X] speak [Y] .", "[Y] is heard all over [X] ."),
}
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class ToySize:
    """How large the toy is and how long it learns."""

    hidden: int = 64
    layers: int = 1
    steps: int = 500
    batch: int = 64
    rate: float = 4e-3


def make_toy_model(
    facts: FactSet,
    folder: Path,
    *,
    seed: int = 0,
    size: ToySize | None = None,
) -> None:
    """Train a toy model that has read every fact of the set, and save it as a model folder.

    Args:
        facts: relations named as in ``WORDINGS``; others are stated as "[X] [name] [Y] .".
        folder: where the model goes.
        seed: of weights, batches and masks.
    """
    size = size or ToySize()
    sentences = _sentences(facts)
    tokenizer = _make_tokenizer([part for sentence in sentences for part in sentence])
    rows = [_encode(tokenizer, sentence) for sentence in sentences]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "toy"))
        model = BertForMaskedLM(  # type: ignore[no-untyped-call]
            BertConfig(
                vocab_size=len(tokenizer),
                hidden_size=size.hidden,
                num_hidden_layers=size.layers,
                num_attention_heads=4,
                intermediate_size=4 * size.hidden,
                max_position_embeddings=64,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )
    _learn(model, rows, tokenizer, size, seed)
    model.eval()  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


Sentence = tuple[str, str, str, str, str]  # words, name, words, name, words


def _sentences(facts: FactSet) -> list[Sentence]:
    found: list[Sentence] = []
    for relation in facts.relations:
        wordings = WORDINGS.get(relation.name, (f"[X] {relation.name} [Y] .",))
        for fact in relation.all():
            for wording in wordings:
                names = [("[X]", fact.subject), ("[Y]", fact.object)]
                names.sort(key=lambda entry: wording.index(entry[0]))
                before, rest = wording.split(names[0][0])
                middle, after = rest.split(names[1][0])
                found.append((before, names[0][1], middle, names[1][1], after))
    return found


def _make_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Make a WordPiece tokenizer in which every word of the texts is one token."""
    split = pre_tokenizers.BertPreTokenizer()
    clean = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    words = sorted(
        {
            word
            for text in set(texts)
            for word, _ in split.pre_tokenize_str(clean.normalize_str(text))
        }
    )
    vocabulary = {token: index for index, token in enumerate((*_SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = clean
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )


def _encode(
    tokenizer: PreTrainedTokenizerFast, sentence: Sentence
) -> tuple[list[int], list[range]]:
    """Return a sentence's ids and the positions of its two names."""
    ids = [2]
    names = []
    for index, part in enumerate(sentence):
        tokens = tokenizer(part, add_special_tokens=False)["input_ids"]
        if index in (1, 3):
            names.append(range(len(ids), len(ids) + len(tokens)))
        ids += tokens
    return [*ids, 3], names


def _learn(
    model: BertForMaskedLM,
    rows: list[tuple[list[int], list[range]]],
    tokenizer: PreTrainedTokenizerFast,
    size: ToySize,
    seed: int,
) -> None:
    random = np.random.default_rng(derive_seed(seed, "toy batches"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, size.rate, total_steps=size.steps, pct_start=0.1
    )
    model.train()
    for _ in range(size.steps):
        chosen = [rows[index] for index in random.integers(0, len(rows), size.batch)]
        ids, mask, labels = _make_batch(chosen, tokenizer, random)
        logits = model(input_ids=ids, attention_mask=mask).logits
        loss = functional.cross_entropy(logits[labels >= 0], labels[labels >= 0])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def _make_batch(
    chosen: list[tuple[list[int], list[range]]],
    tokenizer: PreTrainedTokenizerFast,
    random: np.random.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mask one token, mostly of a name, in every sentence of a batch."""
    width = max(len(ids) for ids, _ in chosen)
    table = np.full((len(chosen), width), tokenizer.pad_token_id)
    labels = np.full((len(chosen), width), -1)
    for row, (ids, names) in enumerate(chosen):
        table[row, : len(ids)] = ids
        kind = random.integers(0, 5)
        span = names[kind % 2] if kind < 4 else range(1, len(ids) - 1)
        at = span[random.integers(0, len(span))]
        labels[row, at] = table[row, at]
        table[row, at] = tokenizer.mask_token_id
    ids_tensor = torch.from_numpy(table)
    return ids_tensor, (ids_tensor != tokenizer.pad_token_id).long(), torch.from_numpy(labels)
