"""Corruption of batches: shares, decisions, frequencies, and what each kind leaves and asks."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from symprompt.pretraining import corruption
from symprompt.pretraining.config import CorruptionConfig
from symprompt.pretraining.corruption import (
    Corrupted,
    corrupt,
    count_positions,
    draw_span_lengths,
    draw_tokens,
    floor_share,
    round_share,
)
from symprompt.pretraining.sequences import Batch
from tiny.text import SPECIALS, make_batch

VOCABULARY = 200
KINDS = ("tokens", "words", "spans", "substitution", "deletion", "insertion", "reordering")


def make_frequencies() -> Tensor:
    frequencies = 1.0 / torch.arange(1, VOCABULARY + 1)
    frequencies[:5] = 0
    return frequencies / frequencies.sum()


def run(batch: Batch[Tensor], kind: str, seed: int = 0, **settings: Any) -> Corrupted:
    config = CorruptionConfig(kind=kind, **settings)  # type: ignore[arg-type]
    return corrupt(
        batch,
        config,
        specials=SPECIALS,
        frequencies=make_frequencies(),
        generator=torch.Generator().manual_seed(seed),
    )


def find_words(batch: Batch[Tensor], row: int) -> list[list[int]]:
    """The words of a row, token by token; a stretch that begins inside a word counts as one."""
    words: list[list[int]] = []
    inside = False
    for place in range(batch.ids.shape[1]):
        if batch.special[row, place]:
            inside = False
        elif batch.starts_word[row, place] or not inside:
            words.append([place])
            inside = True
        else:
            words[-1].append(place)
    return words


def asked_places(result: Corrupted, row: int) -> list[int]:
    return result.positions[row][result.asked[row]].tolist()


def find_spans(result: Corrupted, row: int) -> list[tuple[int, int]]:
    """First and last token of each span, from the stored boundaries."""
    used = result.asked[row]
    pairs = zip(result.left[row][used].tolist(), result.right[row][used].tolist(), strict=True)
    return sorted({(left + 1, right - 1) for left, right in pairs})


@pytest.mark.parametrize("kind", ["tokens", "words", "spans", "substitution", "reordering"])
def test_only_asked_places_change_and_none_is_special(kind: str) -> None:
    batch = make_batch()
    result = run(batch, kind)
    asked = torch.zeros_like(batch.special)
    for row in range(len(batch)):
        places = asked_places(result, row)
        assert len(places) == len(set(places))
        asked[row, places] = True
        assert result.targets[row][result.asked[row]].tolist() == batch.ids[row, places].tolist()
        if kind in ("tokens", "substitution"):
            assert len(places) == max(1, round(0.15 * int((~batch.special[row]).sum())))
    assert not (asked & batch.special).any()
    assert torch.equal(result.ids[~asked], batch.ids[~asked])
    assert torch.equal(result.lengths, batch.lengths)
    assert torch.equal(result.segments, batch.segments)


class _Watch(TorchDispatchMode):
    """Refuses what makes the host wait for the device: scalars and shapes read from values."""

    refused = ("_local_scalar_dense", "nonzero", "masked_select", "index.Tensor", "index_put")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func)
        assert not any(part in name for part in self.refused), name
        return func(*args, **(kwargs or {}))


def equal(one: Any, other: Any) -> bool:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_the_contract(kind: str) -> None:
    batch = make_batch()
    with _Watch():
        result = run(batch, kind)
    assert equal(batch, make_batch()), "the batch itself is left alone"
    assert equal(result, run(batch, kind)), "the seed decides"
    assert not torch.equal(result.ids, run(batch, kind, seed=1).ids)
    places = max(1, round(0.15 * 62))
    assert result.positions.shape == result.targets.shape == (64, places)
    assert places == count_positions(64, CorruptionConfig())
    for field in (result.positions, result.targets, result.left, result.right, result.offset):
        assert field.dtype == torch.int64
        assert not field[~result.asked].any()
    assert result.asked.sum() > 150
    alike = Batch(
        **{name: value[:1].repeat_interleave(32, 0) for name, value in vars(batch).items()}
    )
    assert len({tuple(row) for row in run(alike, kind).ids.tolist()}) > 20
    full = run(make_batch(ragged=False), kind)
    assert bool((full.lengths < 64).any()) == (kind == "deletion")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_text_or_separators_stay_inside(kind: str) -> None:
    batch = make_batch(rows=64, length=16, ragged=False)
    nothing = torch.zeros_like(batch.special)
    result = run(dataclasses.replace(batch, special=~nothing, starts_word=nothing), kind)
    assert not result.asked.any()
    assert torch.equal(result.ids, batch.ids)
    result = run(dataclasses.replace(batch, special=nothing), kind, share=0.4)
    assert result.asked.any()
    for field in (result.positions, result.left, result.right):
        assert int(field.min()) >= 0
        assert int(field.max()) <= 15


@pytest.mark.parametrize("kind", ["tokens", "words"])
def test_uniform_shares_are_drawn_for_each_row(kind: str) -> None:
    batch = make_batch(rows=2048, length=22, ragged=False)
    with _Watch():
        result = run(batch, kind, uniform=True)
    assert result.positions.shape == batch.ids.shape
    tokens = int((~batch.special[0]).sum())
    counts = result.asked.sum(1)
    assert not (result.asked.sum(1) < 1).any()
    assert int(counts.max()) == tokens
    assert float(counts.double().mean()) == pytest.approx((tokens + 1) / 2, rel=0.06)
    if kind == "tokens":
        # Every number of tokens is as likely.
        times = torch.bincount(counts, minlength=tokens + 1)[1:].double()
        expected = 2048 / tokens
        assert float(((times - expected) ** 2 / expected).sum()) < 2.2 * tokens
    row = asked_places(result, int(counts.argmax()))
    assert sorted(row) == (~batch.special[0]).nonzero()[:, 0].tolist()


def test_shares_round_as_python_does() -> None:
    counts = torch.arange(600)
    for share in (0.15, 0.1, 0.25, 0.29, 0.5):
        assert round_share(counts, share).tolist() == [
            round(round(share * 100) * count / 100) for count in range(600)
        ]
        assert floor_share(counts, share).tolist() == [
            round(share * 100) * count // 100 for count in range(600)
        ]


def test_every_token_is_chosen_equally_often() -> None:
    batch = make_batch(rows=4096, length=22, ragged=False)
    result = run(batch, "tokens", share=0.2)
    times = torch.bincount(result.positions[result.asked], minlength=22)
    content = times[~batch.special[0]].double()
    expected = 4096 * 4 / len(content)
    assert len(content) == 19
    # Chi-square with 18 degrees of freedom: 42.3 is passed once in a thousand times.
    assert ((content - expected) ** 2 / expected).sum() < 42.3


def decisions(result: Corrupted) -> Tensor:
    """The share of asked tokens that are masked, other than they were, and the same."""
    now = result.ids.gather(1, result.positions)[result.asked]
    was = result.targets[result.asked]
    masked, same = now == SPECIALS.mask, now == was
    return torch.stack([masked, ~masked & ~same, same]).double().mean(1)


@pytest.mark.parametrize(
    ("kind", "settings", "expected", "tolerance"),
    [
        # A drawn token is the original by chance with its probability, 0.5 % on average.
        *((kind, {}, (0.8, 0.0995, 0.1005), 0.01) for kind in ("tokens", "words")),
        ("spans", {}, (0.8, 0.0995, 0.1005), 0.02),
        *((kind, {"mask": 0.3, "random": 0.5}, (0.3, 0.5, 0.2), 0.03) for kind in KINDS[:3]),
        ("substitution", {}, (0.0, 0.99, 0.01), 0.01),
    ],
)
def test_shares_of_masked_random_and_kept_tokens(
    kind: str, settings: dict[str, float], expected: tuple[float, ...], tolerance: float
) -> None:
    found = decisions(run(make_batch(rows=2048, ragged=False), kind, **settings))
    assert (found - torch.tensor(expected)).abs().max() < tolerance


@pytest.mark.parametrize("kind", ["tokens", "words", "spans", "substitution", "insertion"])
def test_replacements_follow_the_unigram_frequencies(kind: str) -> None:
    batch = make_batch(rows=1024, ragged=False)
    batch = dataclasses.replace(batch, ids=torch.where(batch.special, batch.ids, 1))
    result = run(batch, kind, mask=0.0, random=1.0)
    now = result.ids.gather(1, result.positions)
    # Insertion asks for tokens that stay, too.
    drawn = now[result.asked & ((result.targets != now) | (kind != "insertion"))]
    seen = torch.bincount(drawn, minlength=VOCABULARY).double()
    frequencies = make_frequencies().double()
    assert not seen[frequencies == 0].any()
    expected = (frequencies * seen.sum())[frequencies > 0]
    chi_square = ((seen[frequencies > 0] - expected) ** 2 / expected).sum()
    # 194 degrees of freedom: mean 194, deviation 19.7.
    assert chi_square < 194 + 4 * 19.7


def test_rare_tokens_of_a_large_vocabulary_are_drawn() -> None:
    frequencies = torch.full((30_000,), 1e-9)
    frequencies[-10_000:] = 0
    frequencies[7] = 1.0
    drawn = draw_tokens((200_000,), frequencies, torch.Generator().manual_seed(0))
    others = drawn[drawn != 7]
    assert 1 <= len(others) <= 14  # four are expected
    assert int(drawn.max()) < 20_000


@pytest.mark.parametrize("share", [0.15, 0.4])
def test_words_are_whole_and_within_the_share(share: float) -> None:
    batch = make_batch(rows=128)
    result = run(batch, "words", share=share)
    filled = []
    for row in range(len(batch)):
        asked = set(asked_places(result, row))
        words = find_words(batch, row)
        assert all(asked.isdisjoint(word) or asked.issuperset(word) for word in words)
        budget = max(1, int(share * sum(map(len, words)) + 1e-9))
        assert len(asked) <= budget
        # Nothing more would fit.
        left = [len(word) for word in words if asked.isdisjoint(word)]
        assert not left or min(left) > budget - len(asked)
        filled.append(len(asked) / budget)
    assert sum(filled) / len(filled) > 0.97


def test_words_are_decided_token_by_token() -> None:
    batch = make_batch(rows=256)
    result = run(batch, "words", mask=0.5, random=0.0)
    masked = (result.ids == SPECIALS.mask).tolist()
    mixed = [
        len({masked[row][place] for place in word}) == 2
        for row in range(len(batch))
        for word in find_words(batch, row)
    ]
    assert sum(mixed) > 50


def test_span_lengths_are_geometric_and_drawn_again_above_the_limit() -> None:
    lengths = draw_span_lengths(
        (200_000,), torch.device("cpu"), torch.Generator().manual_seed(0), stop=0.2, limit=10
    )
    weights = torch.tensor([0.2 * 0.8 ** (n - 1) for n in range(1, 11)], dtype=torch.float64)
    expected = weights / weights.sum()
    seen = torch.bincount(lengths, minlength=11)[1:].double() / len(lengths)
    assert len(seen) == 10
    assert (seen - expected).abs().max() < 0.004
    assert abs(float(lengths.double().mean()) - 3.797) < 0.03  # SpanBERT says 3.8


def test_a_span_starts_anywhere_its_length_fits() -> None:
    batch = make_batch(rows=4096, length=24, ragged=False)
    corruptible = ~batch.special
    words = corruption.find_words(corruptible, corruptible)  # every token is a word
    spans = corruption.choose_spans(
        words,
        torch.full((4096, 1), 3),
        torch.full((4096,), 5),
        torch.Generator().manual_seed(0),
        limit=3,
    )
    # Text is at 1 to 11 and 13 to 22; a span of three may start at nine and eight places of them.
    times = torch.bincount(spans.start[:, 0], minlength=24).double()
    fits = [*range(1, 10), *range(13, 21)]
    assert times.nonzero()[:, 0].tolist() == fits
    expected = 4096 / len(fits)
    # Chi-square with 16 degrees of freedom: 39.3 is passed once in a thousand times.
    assert ((times[fits] - expected) ** 2 / expected).sum() < 39.3
    assert torch.equal(spans.end, spans.start + 2)


@pytest.mark.parametrize("share", [0.15, 0.5])
def test_spans_are_whole_words_apart_and_within_the_share(share: float) -> None:
    batch = make_batch(rows=128)
    result = run(batch, "spans", share=share, span_limit=6)
    filled = []
    for row in range(len(batch)):
        asked = asked_places(result, row)
        words = find_words(batch, row)
        spans = find_spans(result, row)
        covered = [place for first, last in spans for place in range(first, last + 1)]
        assert covered == sorted(asked)
        assert all(after > last + 1 for (_, last), (after, _) in itertools.pairwise(spans))
        for first, last in spans:
            inside = [word for word in words if first <= word[0] <= last]
            assert [place for word in inside for place in word] == list(range(first, last + 1))
            assert 1 <= len(inside) <= 6
            assert not {first - 1, last + 1} & set(asked)
        budget = max(1, int(share * sum(map(len, words)) + 1e-9))
        assert len(asked) <= budget
        filled.append(len(asked) / budget)
    assert torch.equal(
        result.offset, torch.where(result.asked, result.positions - result.left - 1, 0)
    )
    # A word that must not be cut may leave a place empty; half of all tokens leaves little room.
    assert sum(filled) / len(filled) > (0.93 if share == 0.15 else 0.85)
    # Full rows of usual length are filled to the share.
    asked_in = run(make_batch(rows=256, length=128, ragged=False), "spans").asked.sum(1).double()
    assert asked_in.max() <= 18  # of 125 tokens
    assert asked_in.mean() > 17.9


def test_a_span_is_decided_as_a_whole() -> None:
    batch = make_batch(rows=512)
    result = run(batch, "spans", mask=0.4, random=0.3)
    outcomes: Counter[str] = Counter()
    drawn_alike = 0
    for row in range(len(batch)):
        for first, last in find_spans(result, row):
            if last - first < 2:
                continue
            now, was = result.ids[row, first : last + 1], batch.ids[row, first : last + 1]
            masked = now == SPECIALS.mask
            assert masked.all() or not masked.any()
            kind = "mask" if masked.all() else "same" if torch.equal(now, was) else "random"
            drawn_alike += kind == "random" and len(set(now.tolist())) == 1
            outcomes[kind] += 1
    total = sum(outcomes.values())
    assert abs(outcomes["mask"] / total - 0.4) < 0.06
    assert abs(outcomes["random"] / total - 0.3) < 0.06
    assert drawn_alike < 0.1 * outcomes["random"]


def test_deletion_by_hand() -> None:
    batch = make_batch(rows=64, length=24, ragged=False)
    marked = dataclasses.replace(batch, ids=torch.arange(24).expand(64, 24) + 5)
    result = run(marked, "deletion", share=0.4)
    for row in range(64):
        kept = result.ids[row][: int(result.lengths[row])].tolist()
        # The ids rise by one, so that a gap shows in what is kept.
        gaps = [
            (place, token + 1)
            for place, (token, after) in enumerate(itertools.pairwise(kept))
            if after != token + 1
        ]
        targets = result.targets[row][result.asked[row]].tolist()
        assert list(zip(asked_places(result, row), targets, strict=True)) == gaps
        assert len(kept) == 24 - max(1, round(0.4 * int((~batch.special[row]).sum())))
        assert not result.ids[row, len(kept) :].any()
        segments = [int(batch.segments[row, token - 5]) for token in kept]
        assert result.segments[row].tolist() == segments + [0] * (24 - len(kept))


def test_insertion_by_hand() -> None:
    batch = make_batch(rows=128, length=40)
    numbered = torch.where(batch.ids == SPECIALS.pad, 0, torch.arange(40) + 1000)
    batch = dataclasses.replace(batch, ids=numbered)
    result = run(batch, "insertion")
    cut = 0
    for row in range(len(batch)):
        length, after = int(batch.lengths[row]), int(result.lengths[row])
        wanted = max(1, round(0.15 * int((~batch.special[row]).sum())))
        now = result.ids[row].tolist()
        places = [place for place in range(after) if now[place] < 1000]
        assert after == min(length + (wanted + 1) // 2, 40)
        assert len(places) == (wanted + 1) // 2 or length + wanted > 40
        answers = dict(zip(asked_places(result, row), result.targets[row].tolist(), strict=False))
        # Inserted tokens are asked for the padding token, as many others for themselves.
        assert all(answers.pop(place) == SPECIALS.pad for place in places)
        assert len(answers) == min(wanted // 2, len(places))
        for place, token in answers.items():
            assert now[place] == token
            assert not batch.special[row, token - 1000]
        kept = [token for token in now[:after] if token >= 1000]
        # The last token stays; the tokens just before it are cut.
        assert kept == [*range(1000, 1000 + len(kept) - 1), 1000 + length - 1]
        assert len(kept) + len(places) == after
        assert not any(now[after:])
        cut += len(kept) < length
        for place in places:
            assert result.segments[row, place] == result.segments[row, place - 1]
    assert 3 < cut < 100


def test_reordering_permutes_windows() -> None:
    batch = make_batch(rows=256)
    result = run(batch, "reordering")
    moved = 0
    for row in range(len(batch)):
        places = asked_places(result, row)
        budget = max(1, int(0.15 * int((~batch.special[row]).sum()) + 1e-9))
        assert len(places) <= budget
        windows: list[list[int]] = []
        for place in places:
            if windows and windows[-1][-1] == place - 1:
                windows[-1].append(place)
            else:
                windows.append([place])
        for window in windows:
            assert len(window) >= 2
            assert sorted(result.ids[row, window].tolist()) == sorted(
                batch.ids[row, window].tolist()
            )
        moved += int((result.ids[row] != batch.ids[row]).sum())
    share = moved / int(result.asked.sum())
    assert 0.5 < share < 0.8  # a token of a window of n stays once in n times
