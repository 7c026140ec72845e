"""Sentences of any lengths one after the other, without padding.

Prompts are short and of many lengths: padded to a few widths, a third of what a pass computes is
thrown away, and attention under a mask of so short rows takes as long as a quarter of the products.
Here the tokens of all sentences stand in one row, [1, n, h], and attention, a function registered
with transformers' attention interface, looks within each sentence alone. Which sentence a token is
of travels as the attention mask, which transformers hands through when it has four axes.

On CUDA attention is one kernel forward and one backward (``attention_kernels``), in half precision
alone; elsewhere plain tensors, with the same results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PretrainedConfig

from symprompt.accel.compiling import SWITCHES

NAME = "symprompt_packed"
LONGEST = 128
"""Longer sentences are padded: there the usual kernels are as good."""
_WINDOW = 64
"""So many tokens the kernels do at once, unless a sentence has more: three or four sentences."""


@dataclass(frozen=True)
class Packing:
    """Where sentences stand in a row of tokens.

    Attributes:
        starts: [s + 1] int32, each sentence's first token, then the end of the last; tokens after
            it belong to no sentence, and a sentence may have none.
        place: [n] int64, each token's position in its sentence, from 0.
        longest: no sentence has more tokens; ``LONGEST`` at most.
        within: [n + w + 1] int32, each token's sentence, -1 for none; then where w windows start,
            and the end of the last. A window has whole sentences, ``window`` tokens at most.
    """

    starts: Tensor
    place: Tensor
    longest: int
    within: Tensor

    @property
    def block(self) -> int:
        """A power of two, 16 at least, that no sentence is longer than."""
        return padded_size(self.longest)

    @property
    def window(self) -> int:
        """A power of two that no window is longer than."""
        return _window_size(self.longest)

    def as_mask(self) -> Tensor:
        """Return what travels as the mask: ``within``, seen [1, window, 1, n + w + 1]."""
        return self.within[None, None, None, :].expand(1, self.window, 1, -1)


def pack(lengths: Tensor, tokens: int, longest: int) -> tuple[Packing, Tensor]:
    """Return the packing of sentences [s] in a row of ``tokens``, and each token's sentence [n].

    Nothing waits for the device. The row holds at least the sentences; what is left over reads as
    more tokens of the last sentence, and belongs to none.
    """
    # Sentences that do not fit are cut: kernels must never read past the row.
    ends = lengths.cumsum(0).clamp_(max=tokens)
    lengths = ends.diff(prepend=ends.new_zeros(1))
    row = torch.arange(tokens, device=lengths.device)
    owner = torch.searchsorted(ends, row, right=True)
    sentence = torch.where(owner < len(lengths), owner, -1)
    owner = owner.clamp_(max=len(lengths) - 1)
    place = (row - (ends - lengths)[owner]).clamp_(max=longest - 1)
    starts = functional.pad(ends, (1, 0))
    windows = _windows(starts, tokens, _window_size(longest))
    within = torch.cat((sentence, windows)).to(torch.int32)
    return Packing(starts.to(torch.int32), place, longest, within), owner


def _window_size(longest: int) -> int:
    return max(_WINDOW, padded_size(longest))


def _windows(starts: Tensor, tokens: int, size: int) -> Tensor:
    """Return where windows start, [w + 1]: each takes as many sentences as it has room for.

    What no sentence has is cut up as it comes. Any two windows hold more than one has room for, so
    there are at most so many; what is not needed is empty, at the end.
    """
    row = torch.arange(tokens + 1, device=starts.device)
    full = (row + size).clamp_(max=tokens)
    last = starts[torch.searchsorted(starts, full, right=True) - 1]
    # From a window's start to the next one's, then in jumps of two, four, eight windows.
    jump = torch.where(row < starts[-1], last, full)
    number = torch.arange(2 * (tokens // size) + 3, device=starts.device)
    bits = torch.arange((len(number) - 1).bit_length(), device=starts.device)
    found = torch.zeros_like(number)
    for jumps in ((number >> bits[:, None]) & 1).bool():
        found = torch.where(jumps, jump[found], found)
        jump = jump[jump]
    return found


def longest_on(device: torch.device, dtype: torch.dtype, config: PretrainedConfig) -> int:
    """Return how long sentences may be that stand in one row; 0: they are padded.

    Args:
        device: a CUDA device.
        config: the model's, whose heads must fit on the chip, and whose layers may see no further
            than a window.
    """
    # Before the eighth generation there are no products of bfloat16.
    if dtype.itemsize != 2 or torch.cuda.get_device_properties(device).major < 8:
        return 0
    heads = getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // (heads or 1)
    if not heads or not size:
        return 0
    longest = LONGEST
    while longest >= _WINDOW and kept_bytes(longest, size) > room_on(device):
        longest //= 2
    window = getattr(config, "sliding_window", None)
    window = window or (getattr(config, "local_attention", None) or 0) // 2
    return min(longest if longest >= _WINDOW else 0, int(window or LONGEST))


def padded_size(count: int) -> int:
    """Return what the kernels make of a size: a power of two, 16 at least."""
    return max(16, 1 << (count - 1).bit_length())


def kept_bytes(tokens: int, size: int) -> int:
    """Return a bound of what the kernels keep on the chip of one head of a window."""
    return tokens * (2 * tokens + 8 * padded_size(size))


def room_on(device: torch.device) -> int:
    """Return the bytes that one program may keep on the chip."""
    if device.type != "cuda":
        return 0
    chip = torch.cuda.get_device_properties(device)
    return int(getattr(chip, "shared_memory_per_block_optin", chip.shared_memory_per_block))


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_others: Any,
) -> tuple[Tensor, None]:
    """Return attention within each sentence, [1, n, heads, size], of [1, heads, n, size]."""
    if attention_mask is None or dropout or getattr(module, "is_causal", False):
        raise TypeError("packed attention takes a packing as its mask, no dropout, no causal model")
    if key.shape != query.shape:
        raise TypeError(f"packed attention takes no shared heads, {key.shape} for {query.shape}")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    within, window = attention_mask[0, 0, 0], attention_mask.shape[1]
    if query.is_cuda and SWITCHES["attention"]:
        # Imported here: its compiler comes with builds of torch for CUDA alone.
        from symprompt.accel.attention_kernels import attend

        return attend(query, key, value, within, window, scale), None
    return _attend_windows(query, key, value, within, window, scale), None


def attend_row(
    joined: Tensor, within: Tensor, bias: Tensor, heads: int, window: int, scale: float
) -> Tensor:
    """Return attention within each sentence, [n, h], of queries, keys and values [n, 3h].

    Args:
        within, window: of the ``Packing``.
        bias: [heads, 2 * LONGEST - 1], float32 on CUDA: what is added to the score of a token
            that stands so far after the one that looks, from 1 - LONGEST on; or [0], nothing. It
            has no gradient.
    """
    if joined.is_cuda and SWITCHES["attention"]:
        from symprompt.accel import attention_kernels as row_kernels

        return cast(Tensor, row_kernels.attend_row(joined, within, bias, heads, window, scale))
    query, key, value = joined.view(1, len(joined), 3, heads, -1).permute(2, 0, 3, 1, 4).unbind()
    return _attend_windows(query, key, value, within, window, scale, bias)[0].flatten(1)


def attend_asked(query: Tensor, states: Tensor, starts: Tensor, block: int, scale: float) -> Tensor:
    """Return what each sentence's queries [heads, s, h] see of its states [n, h], [heads, s, h].

    The states are their own keys and values.
    """
    if states.is_cuda and SWITCHES["query"]:
        from symprompt.accel import query_kernels as asked_kernels

        return cast(Tensor, asked_kernels.attend_asked(query, states, starts, block, scale))
    # Sentences padded to one width.
    steps = torch.arange(block, device=starts.device)
    inside = steps < starts.diff()[:, None]
    index = (starts[:-1, None] + steps).clamp(max=len(states) - 1)
    padded = states.index_select(0, index.flatten()).view(*index.shape, -1)
    out = functional.scaled_dot_product_attention(
        query.transpose(0, 1),
        padded,
        padded,
        attn_mask=(inside | ~inside.any(1, keepdim=True))[:, None, :],
        scale=scale,
    )
    return out.transpose(0, 1)


def _attend_windows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    within: Tensor,
    window: int,
    scale: float,
    bias: Tensor | None = None,
) -> Tensor:
    """Attend under a mask within each window of whole sentences: the plain twin of the kernels."""
    _, heads, tokens, size = query.shape
    sentence, starts = within[:tokens], within[tokens:]
    index = starts[:-1, None] + torch.arange(window, device=within.device)
    own = torch.where(index < starts[1:, None], sentence[index.clamp(max=tokens - 1)], -1)
    flat = index.clamp(max=tokens - 1).flatten()
    query, key, value = (
        one[0].index_select(1, flat).view(heads, len(index), window, size).transpose(0, 1)
        for one in (query, key, value)
    )
    seen = (own[:, :, None] == own[:, None, :])[:, None]
    if bias is not None and bias.numel():
        # Within a sentence tokens are as far apart as in the window.
        place = torch.arange(window, device=within.device)
        far = bias[:, LONGEST - 1 + place[None, :] - place[:, None]].to(query.dtype)
        seen = far.masked_fill(~seen, -torch.inf)
    found = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scale)
    # Back from windows to the row.
    row = torch.arange(tokens, device=within.device)
    number = torch.searchsorted(starts, row.to(starts.dtype), right=True) - 1
    place = number * window + row - starts[number]
    return found.transpose(1, 2).flatten(0, 1).index_select(0, place)[None]


AttentionInterface.register(NAME, packed_attention)


@contextmanager
def packed(model: Any) -> Iterator[None]:
    """Let a model's attention look within packed sentences."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
