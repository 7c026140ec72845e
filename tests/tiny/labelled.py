"""Hand-made folders of labelled data in the real formats, small enough for tiny models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM

from tiny.models import make_wordpiece
from tiny.superglue import write_task

_SENTENCES = (
    (("Paris", "B-LOC"), ("is", "O"), ("old", "O")),
    (("the", "O"), ("river", "O"), ("Rome", "B-LOC")),
    (("Lima", "B-LOC"), ("lies", "O"), ("in", "O"), ("Peru", "B-LOC")),
)


def write_labelled(folder: Path) -> Path:
    """Write RTE, BoolQ, CoNLL-2003 and 2004, SQuAD 1.1, and FewGLUE's RTE and CB."""
    for task in ("rte", "boolq"):
        write_task(folder / task, task, few=False)
    _write_columns(
        folder / "ner/conll2003", ("eng.train", "eng.testa", "eng.testb"), "{word} X X {tag}"
    )
    _write_columns(folder / "conll2004", ("train.txt", "dev.txt", "test.txt"), "{at} {word} {tag}")
    _write_questions(folder / "squad")
    for name, task in {"RTE": "rte", "CB": "cb"}.items():
        write_task(folder / "FewGLUE_32dev" / name, task)
    return folder


def _write_columns(folder: Path, names: tuple[str, ...], line: str) -> None:
    folder.mkdir(parents=True)
    for name in names:
        blocks = [
            "\n".join(
                line.format(at=at, word=word, tag=tag).replace(" ", "\t")
                for at, (word, tag) in enumerate(sentence)
            )
            for sentence in _SENTENCES * 2
        ]
        (folder / name).write_text("\n\n".join(blocks) + "\n")


def _write_questions(folder: Path) -> None:
    folder.mkdir(parents=True)
    for split in ("train", "dev"):
        asked = [
            {"id": f"{split}-{number}", "question": "Which city is old?"}
            | {"answers": [{"text": "Paris", "answer_start": 0}]}
            for number in range(4)
        ]
        paragraphs = [{"context": "Paris is old .", "qas": asked}]
        whole = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
        (folder / f"{split}-v1.1.json").write_text(json.dumps(whole))


LONG_WORDS = ("Rome", "Paris", "is", "old", "the", "Yes", "No", "Maybe", "?", ":", "*", '"')


def write_long_model(
    folder: Path, words: Sequence[str] = LONG_WORDS, *, positions: int = 320
) -> Path:
    """Write a tiny BERT that takes sentences as long as the published patterns need."""
    tokenizer = make_wordpiece(words=tuple(words))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=positions,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)
    return folder
