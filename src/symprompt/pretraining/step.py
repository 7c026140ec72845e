"""One optimiser step: corrupt a batch, pass it forth and back, update the weights.

Nothing is read back to the host in a step, so that the device never waits for it. Everything random
follows from the seed and the step's number, so that there is no random state to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from symprompt.engine.processes import ProcessGroup
from symprompt.pretraining.batch import Corrupted, DeviceBatch
from symprompt.pretraining.config import PretrainConfig
from symprompt.pretraining.corruption import corrupt, leaves_padding
from symprompt.pretraining.objectives import Pretrainer, combine, count_asked
from symprompt.pretraining.tokenizer import Specials
from symprompt.pretraining.weights import FlatWeights, Updater
from symprompt.runs.environment import choose_dtype, derive_seed

Losses = Callable[[dict[str, Tensor], dict[str, Tensor]], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Reading:
    """What the steps since the last record came to.

    Attributes:
        loss: mean loss of each part of the objective.
        norm: mean norm of the gradient before clipping.
        broken: the first step, from 1, whose loss or gradient was not finite; 0 if all were.
    """

    loss: dict[str, float]
    norm: float
    broken: int


class Learner:
    """A model in training: its weights, its optimiser and the step that changes them; final.

    Args:
        pretrainer: model and objectives, on the CPU, in float32; becomes part of the learner.
        config: the run's.
        specials: ids of the special tokens.
        frequencies: [v] unigram probabilities, zero for special tokens.
        group: the processes that share every batch.
        padded: whether sequences may hold padding before they are corrupted.
        mode: torch.compile's mode where that is not the config's.
    """

    def __init__(
        self,
        pretrainer: Pretrainer,
        config: PretrainConfig,
        *,
        specials: Specials,
        frequencies: Tensor,
        group: ProcessGroup,
        padded: bool,
        mode: str | None = None,
    ) -> None:
        self.pretrainer = pretrainer.train()
        self.config = config
        self.group = group
        self.device = group.device
        self.dtype = choose_dtype(config.dtype, group.device)
        self.specials = specials
        self.frequencies = frequencies.to(self.device)
        self.padded = padded or leaves_padding(config.corruption)
        self.parts = tuple(config.objective.split("+"))
        self.weights = FlatWeights(
            pretrainer, device=self.device, dtype=self.dtype, extra=len(self.parts)
        )
        self.updater = Updater(self.weights, config.optimizer)
        # Mean losses and the gradient's norm, added up since the last record; then the bad step.
        self.window = torch.zeros(len(self.parts) + 2, device=self.device)
        self.window_steps = 0
        self._rows = group.share(config.optimizer.batch)
        self._compiled = _compile(self._losses, config, self.device, mode)

    def step(self, number: int, batch: DeviceBatch) -> None:
        """Learn from a whole batch of all processes; ``number`` counts from 0."""
        corrupted = self.corrupt(batch, "step", number)
        # Every process knows the whole batch's counts, so that gradients need only be added up.
        counts = count_asked(corrupted, self.config.objective)
        sums = torch.zeros_like(self.weights.extra)
        with self._dropout(number), _attention(self.device):
            for turn, rows in enumerate(self._pieces(self._rows)):
                total, found = self._compiled(_inputs(corrupted, batch, rows), counts)
                total.backward()  # type: ignore[no-untyped-call]
                self.weights.collect(first=turn == 0)
                sums += found.detach()
        self.weights.extra.copy_(sums)
        self.group.add_up(self.weights.reduced)
        norm = self.weights.clip(self.config.optimizer.clip)
        self.updater.update(number)
        self._note(number, counts, norm)

    def evaluate(self, batch: DeviceBatch) -> dict[str, float]:
        """Return the mean loss of each part on a batch, corrupted the same way every time."""
        corrupted = self.corrupt(batch, "validation")
        counts = count_asked(corrupted, self.config.objective)
        sums = torch.zeros(len(self.parts), device=self.device)
        self.pretrainer.eval()
        with torch.no_grad():
            # Not compiled: another shape would cost more than these few passes.
            for rows in self._pieces(slice(0, len(batch))):
                sums += self._losses(_inputs(corrupted, batch, rows), counts)[1]
        self.pretrainer.train()
        means = sums / torch.stack(list(counts.values())).clamp(min=1)
        return dict(zip(self.parts, means.tolist(), strict=True))

    def read(self) -> Reading:
        """Return what was added up since the last record; waits for the device."""
        *loss, norm, broken = self.window.tolist()
        steps = max(1, self.window_steps)
        means = (value / steps for value in loss)
        return Reading(dict(zip(self.parts, means, strict=True)), norm / steps, round(broken))

    def record(self) -> Reading:
        """Return the same and begin anew."""
        reading = self.read()
        self.window.zero_()
        self.window_steps = 0
        return reading

    def corrupt(self, batch: DeviceBatch, *seed: object) -> Corrupted:
        """Corrupt a batch as the run's seed and these parts of it say."""
        generator = torch.Generator(self.device)
        generator.manual_seed(derive_seed(self.config.seed, "corruption", *seed))
        return corrupt(
            batch,
            self.config.corruption,
            specials=self.specials,
            frequencies=self.frequencies,
            generator=generator,
        )

    def _losses(
        self, inputs: dict[str, Tensor], counts: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return what is minimised, and the summed loss of each part."""
        losses = self.pretrainer(**inputs, padded=self.padded)
        return combine(losses, counts), torch.stack([losses[part].total for part in self.parts])

    def _pieces(self, rows: slice) -> Iterator[slice]:
        """Cut rows into pieces of at most ``micro_batch``, as equal as can be."""
        size = rows.stop - rows.start
        pieces = -(-size // (self.config.optimizer.micro_batch or size))
        for piece in range(pieces):
            yield slice(
                rows.start + piece * size // pieces, rows.start + (piece + 1) * size // pieces
            )

    def _note(self, number: int, counts: dict[str, Tensor], norm: Tensor) -> None:
        means = self.weights.extra / torch.stack(list(counts.values())).clamp(min=1)
        values = torch.cat([means, norm[None]])
        self.window[:-1] += values
        bad = ~values.isfinite().all() & (self.window[-1] == 0)
        self.window[-1] += bad * (number + 1)
        self.window_steps += 1

    @contextmanager
    def _dropout(self, number: int) -> Iterator[None]:
        """Draw dropout from the step's own seed; it knows no generator but the global ones."""
        if not self.config.shape.dropout:
            yield
            return
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            seed = derive_seed(self.config.seed, "dropout", number, self.group.rank)
            torch.manual_seed(seed)
            yield


def _inputs(corrupted: Corrupted, batch: DeviceBatch, rows: slice) -> dict[str, Tensor]:
    return {**vars(corrupted[rows]), "is_next": batch.is_next[rows]}


def _attention(device: torch.device) -> AbstractContextManager[None]:
    """Prefer cuDNN's attention, which is the fastest of torch's on Hopper GPUs."""
    if device.type != "cuda":
        return nullcontext()
    kinds = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    return sdpa_kernel([getattr(SDPBackend, kind) for kind in kinds], set_priority=True)


def _compile(
    losses: Losses, config: PretrainConfig, device: torch.device, mode: str | None
) -> Losses:
    wanted = config.optimizer.compile
    if wanted == "off" or (wanted == "auto" and device.type != "cuda"):
        return losses
    if mode is None and wanted == "max-autotune":
        mode = "max-autotune-no-cudagraphs"
    options: dict[str, Any] = {} if mode is None else {"mode": mode}
    return torch.compile(losses, fullgraph=True, dynamic=False, **options)
