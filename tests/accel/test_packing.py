"""Sentences one after the other in a row get the answers they get alone."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, FNetConfig, ModernBertConfig, PretrainedConfig

from symprompt.accel.packing import longest_on, packed_attention
from symprompt.models import Inputs, LanguageModel, pack
from tiny.models import CAUSAL_FAMILIES, FAMILIES

PACKED = ["bert", "roberta", "albert", "electra"]
"""Families that must pack; of the others it is enough that they answer right or are refused."""


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_packed_row_gives_the_answers_of_each_sentence_alone(
    name: str, load_family: Callable[..., LanguageModel]
) -> None:
    backbone = load_family(name)
    if not backbone.can_pack():
        assert name not in PACKED
        return
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([4, 1, 6, 0, 3])
    sentences = [torch.randint(0, 15, (int(size),), generator=generator) for size in lengths]
    ids = torch.cat([*sentences, torch.zeros(2, dtype=torch.long)])
    packing, owner = pack(lengths, 16, 6)
    assert owner[:14].tolist() == [0] * 4 + [1] + [2] * 6 + [4] * 3
    at = torch.tensor([3, 4, 6, 10, 13])
    with torch.no_grad():
        found = backbone.logits_at(Inputs(backbone.embed(ids)[None], None, packing=packing), at)
        place = 0
        alone = []
        for sentence in filter(len, sentences):
            inputs = Inputs(backbone.embed(sentence[None]), None)
            wanted = [int(one) - place for one in at if place <= one < place + len(sentence)]
            alone.append(backbone.logits_at(inputs, torch.tensor([wanted]))[0])
            place += len(sentence)
    torch.testing.assert_close(found, torch.cat(alone), rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("longest", [1, 9, 64, 65, 128])
def test_windows_take_as_many_whole_sentences_as_they_have_room_for(
    longest: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (60 * seed + 1,), generator=generator)
    tokens = int(lengths.sum()) + 100 * seed + (not lengths.sum())
    packing, _ = pack(lengths, tokens, longest)
    sentence, windows = packing.within[:tokens].tolist(), packing.within[tokens:].tolist()
    rows = [row for row, length in enumerate(lengths.tolist()) for _ in range(length)]
    assert sentence == rows + [-1] * (tokens - len(rows))
    room = 128 if longest > 64 else 64
    assert packing.window == room
    slow, filled = [0], 0
    for length in lengths.tolist():
        if filled + length > room:
            slow.append(slow[-1] + filled)
            filled = 0
        filled += length
    # A last window ends with the last sentence; what is left over is cut up.
    slow += [len(rows)] * bool(filled)
    while slow[-1] < tokens:
        slow.append(min(slow[-1] + room, tokens))
    assert windows[: len(slow)] == slow
    assert set(windows[len(slow) :]) <= {tokens}
    assert windows[-1] == tokens


@pytest.mark.parametrize("name", list(CAUSAL_FAMILIES))
def test_causal_models_are_not_packed(name: str, load_family: Callable[..., LanguageModel]) -> None:
    assert not load_family(name).can_pack()


def test_packing_leaves_the_models_own_attention_as_it_was(bert: LanguageModel) -> None:
    before = bert.model.config._attn_implementation
    assert bert.can_pack()
    assert bert.model.config._attn_implementation == before
    assert not bert.longest_packed


@pytest.mark.parametrize(
    ("major", "room", "dtype", "size", "longest"),
    [
        (9, 232_448, torch.bfloat16, 64, 128),
        (8, 101_376, torch.bfloat16, 64, 128),
        (8, 101_376, torch.float16, 128, 64),
        (8, 49_152, torch.float16, 40, 64),
        (9, 1_000, torch.bfloat16, 64, 0),
        (9, 232_448, torch.float32, 64, 0),
        (7, 65_536, torch.float16, 64, 0),
    ],
)
def test_what_is_packed_fits_on_the_chip(
    major: int,
    room: int,
    dtype: torch.dtype,
    size: int,
    longest: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chip = SimpleNamespace(
        major=major, shared_memory_per_block=49_152, shared_memory_per_block_optin=room
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: chip)
    config = BertConfig(hidden_size=4 * size, num_attention_heads=4)
    assert longest_on(torch.device("cuda"), dtype, config) == longest


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (ModernBertConfig(local_attention=96), 48),
        (ModernBertConfig(local_attention=1024), 128),
        (FNetConfig(), 0),
    ],
)
def test_what_is_packed_stays_within_a_models_window(
    config: PretrainedConfig, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chip = SimpleNamespace(
        major=9, shared_memory_per_block=49_152, shared_memory_per_block_optin=232_448
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: chip)
    assert longest_on(torch.device("cuda"), torch.bfloat16, config) == longest


def test_shared_heads_are_refused() -> None:
    packing, _ = pack(torch.tensor([3]), 3, 3)
    key = torch.zeros(1, 2, 3, 8)
    with pytest.raises(TypeError, match="no shared heads"):
        packed_attention(torch.nn.Module(), torch.zeros(1, 4, 3, 8), key, key, packing.as_mask())
