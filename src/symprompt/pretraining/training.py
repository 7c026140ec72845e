"""The pretraining of a masked language model: corrupt a batch, forward and backward pass, AdamW.

Nothing is read back to the host in a step, so that the device never waits for it. Everything random
follows from the seed and the step's number, so that there is no random state to keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from symprompt.accel.compiling import Recorder, choose, weights_per_token
from symprompt.engine.flat_adamw import FlatAdamW, ParameterGroup
from symprompt.engine.loop import State, fill, rate_share
from symprompt.engine.processes import ProcessGroup
from symprompt.errors import RunError
from symprompt.pretraining.batch import Corrupted, DeviceBatch, Feed
from symprompt.pretraining.config import PretrainConfig
from symprompt.pretraining.corruption import corrupt, leaves_padding
from symprompt.pretraining.objectives import Pretrainer, combine, count_asked
from symprompt.pretraining.tokenizer import Specials
from symprompt.runs.environment import choose_dtype, derive_seed

Losses = Callable[[dict[str, Tensor], dict[str, Tensor]], tuple[Tensor, Tensor]]

# Losses are read this often at least: reading waits for the device.
_READ_STEPS = 20
_READ_SECONDS = 0.5
# Several processes must read at the same steps.
_TOGETHER_STEPS = 10
_RECORDS = 100


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


class Pretraining:
    """Trains a model with its objectives; final, an engine's Trainable.

    Args:
        pretrainer: model and objectives, on the CPU, in float32; becomes part of the training.
        config: the run's.
        feed: the batches.
        validation: a fixed batch for the validation loss; None gives none.
        specials: ids of the special tokens.
        frequencies: [v] unigram probabilities, zero for special tokens.
        group: the processes that share every batch.
        padded: whether sequences may hold padding before they are corrupted.
        mode: torch.compile's mode where that is not the config's.

    Attributes:
        acceleration: what the steps are accelerated by, for people to read.
        tokens: tokens seen, padding left out.
        steady_tokens: those of all steps but each process's first, which compiles.
    """

    stage = "training"

    def __init__(
        self,
        pretrainer: Pretrainer,
        config: PretrainConfig,
        feed: Feed,
        validation: DeviceBatch | None,
        *,
        specials: Specials,
        frequencies: Tensor,
        group: ProcessGroup,
        padded: bool,
        mode: str | None = None,
    ) -> None:
        self.pretrainer = pretrainer.train().to(group.device)
        self.config = config
        self.feed = feed
        self.validation = validation
        self.group = group
        self.device = group.device
        self.dtype = choose_dtype(config.dtype, group.device)
        self.specials = specials
        self.frequencies = frequencies.to(self.device)
        self.padded = padded or leaves_padding(config.corruption)
        self.parts = tuple(config.objective.split("+"))
        self.steps = config.learning.steps
        self.optimizer = FlatAdamW(
            self._groups(),
            clip=config.learning.clip,
            betas=(config.learning.beta_1, config.learning.beta_2),
            epsilon=config.learning.epsilon,
            fused=True,
            extra=len(self.parts),
            sum_up=group.add_up,
        )
        self.recorder = Recorder(self.device, wanted=False)
        self.note = ""
        self.stopped = False
        self.tokens = 0
        self.steady_tokens = 0
        # Mean losses and the gradient's norm, added up since the last record; then the bad step.
        self._window = torch.zeros(len(self.parts) + 2, device=self.device)
        self._window_steps = 0
        self._rows = group.share(config.learning.batch)
        self._compiled = self._losses
        choice = choose(config.compile, self.device, work=_work(pretrainer, config))
        self.acceleration = "compiled steps" if choice.compiled or mode else "plain"
        if choice.compiled or mode:
            how: dict[str, Any] = {"mode": mode} if mode else {"options": choice.options or None}
            self._compiled = torch.compile(self._losses, fullgraph=True, dynamic=False, **how)
        self._begun = False
        # Tokens and time at the last sight of the device: speeds are counted from there.
        self._shown = self._recorded = (0, time.monotonic())

    def _groups(self) -> list[ParameterGroup]:
        """Matrices decay, biases and norms do not.

        Embedding tables stay in float32 whatever the passes' dtype: the gradient of a frequent word
        is a sum of many thousand terms, and in bfloat16 such a sum stops growing early.
        """
        named = dict(self.pretrainer.named_parameters())
        modules = self.pretrainer.modules()
        tables = {id(module.weight) for module in modules if isinstance(module, nn.Embedding)}
        exact = {
            name: own
            for name, own in named.items()
            if own.dim() >= 2 and (id(own) in tables or self.dtype == torch.float32)
        }
        matrices = {name: own for name, own in named.items() if own.dim() >= 2} | exact
        copied = {name: own for name, own in matrices.items() if name not in exact}
        others = {name: own for name, own in named.items() if name not in matrices}
        rate, decay = self.config.learning.rate, self.config.learning.weight_decay
        return [
            ParameterGroup(exact, rate, decay),
            ParameterGroup(copied, rate, decay, self.dtype),
            ParameterGroup(others, rate, 0.0, self.dtype),
        ]

    def training(self) -> AbstractContextManager[None]:
        """Return a context in which attention runs by the fastest kernels."""
        return _attention(self.device)

    # ------------------------------------------------------------------------------ a step

    def step(self, number: int) -> None:
        """Learn from a whole batch of all processes."""
        begun = time.monotonic()
        fed = self.feed.take(number, self.steps, self.device)
        self.learn(number, fed.batch)
        self.tokens += fed.tokens
        if not self._begun:
            self._begun = True
            self._show(self.read())
            # The first step compiles; speeds are counted from its end.
            self.recorder.seconds += time.monotonic() - begun
            self._shown = self._recorded = (self.tokens, time.monotonic())
            return
        self.steady_tokens += fed.tokens
        if self._is_reading(number + 1):
            self._show(self.read())

    def learn(self, number: int, batch: DeviceBatch) -> None:
        """Corrupt a batch, pass it through the model and back, and update the weights."""
        corrupted = self.corrupt(batch, "step", number)
        # Every process knows the whole batch's counts, so that gradients need only be added up.
        counts = count_asked(corrupted, self.config.objective)
        sums = torch.zeros_like(self.optimizer.extra)
        torch.manual_seed(derive_seed(self.config.seed, "dropout", number, self.group.rank))
        for turn, rows in enumerate(self._pieces(self._rows)):
            loss, found = self._compiled(_inputs(corrupted, batch, rows), counts)
            self.optimizer.collect(loss, first=turn == 0)
            sums += found.detach()
        self.optimizer.extra.copy_(sums)
        self.optimizer.set_rates([self.rate(number)] * len(self.optimizer.groups))
        norm = self.optimizer.update()
        self._add(number, self.optimizer.extra, counts, norm)

    def rate(self, number: int) -> float:
        """Return the learning rate of a step."""
        config = self.config.learning
        return config.rate * float(rate_share(number, config.steps, warmup=config.warmup))

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
        pieces = -(-size // (self.config.learning.micro_batch or size))
        for piece in range(pieces):
            yield slice(
                rows.start + piece * size // pieces, rows.start + (piece + 1) * size // pieces
            )

    def _add(self, number: int, sums: Tensor, counts: dict[str, Tensor], norm: Tensor) -> None:
        """Add a step's mean losses and norm to what the next reading returns."""
        means = sums / torch.stack(list(counts.values())).clamp(min=1)
        values = torch.cat([means, norm[None]])
        self._window[:-1] += values
        bad = ~values.isfinite().all() & (self._window[-1] == 0)
        self._window[-1] += bad * (number + 1)
        self._window_steps += 1

    # ------------------------------------------------------------------------------ readings

    def read(self) -> Reading:
        """Return what was added up since the last record; waits for the device."""
        *loss, norm, broken = self._window.tolist()
        steps = max(1, self._window_steps)
        means = (value / steps for value in loss)
        return Reading(dict(zip(self.parts, means, strict=True)), norm / steps, round(broken))

    def _is_reading(self, done: int) -> bool:
        if self.evaluates_after(done):
            return True
        if self.group.size > 1:
            return done % _TOGETHER_STEPS == 0
        return done % _READ_STEPS == 0 or time.monotonic() - self._shown[1] >= _READ_SECONDS

    def _show(self, reading: Reading) -> None:
        """Note a reading for the progress; one that is not finite stops the training."""
        tokens, before = self._shown
        now = time.monotonic()
        speed = (self.tokens - tokens) / max(now - before, 1e-9)
        self._shown = (self.tokens, now)
        told = f", {short_number(speed)} tokens/s" if speed else ""
        self.note = f"loss {sum(reading.loss.values()):.3f}{told}"
        self.stopped = bool(reading.broken)

    def evaluates_after(self, done: int) -> bool:
        """Say whether the loss curve gets a row there."""
        every = max(1, self.steps // _RECORDS)
        return done > 0 and (done % every == 0 or self._validates_after(done))

    def _validates_after(self, done: int) -> bool:
        return done % self.config.evaluate_every == 0 or done == self.steps

    def evaluate(self, done: int) -> dict[str, Any]:
        """Return a row of the loss curve, with the validation loss where it is due."""
        reading = self.read()
        self._window.zero_()
        self._window_steps = 0
        tokens, before = self._recorded
        spent = max(time.monotonic() - before, 1e-9)
        row: dict[str, Any] = {
            "step": done,
            "tokens": self.tokens,
            "loss": sum(reading.loss.values()),
            "parts": reading.loss,
            "gradient_norm": reading.norm,
            "rate": self.rate(done - 1),
            "tokens_per_second": round((self.tokens - tokens) / spent),
            "validation": None,
        }
        if self._validates_after(done) and self.validation is not None and self.group.is_first:
            row["validation"] = self.validate(self.validation)
        self._recorded = self._shown = (self.tokens, time.monotonic())
        return row

    def validate(self, batch: DeviceBatch) -> dict[str, float]:
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

    def failure(self) -> str:
        """Return what to say if a loss or its gradient was not finite."""
        broken = self.read().broken
        if not broken:
            return ""
        return (
            f"the loss or its gradient is not finite at step {broken}; lower learning.rate (now "
            f"{self.config.learning.rate:g}) or raise learning.warmup."
        )

    # ------------------------------------------------------------------------------ state

    def state_dict(self) -> State:
        """Return weights, moments and the losses since the last record."""
        note = {
            "dtype": str(self.dtype),
            "window_steps": self._window_steps,
            "tokens": self.tokens,
            "steady_tokens": self.steady_tokens,
        }
        return {**self.optimizer.state_dict(), "window": self._window}, note

    def load_state_dict(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Go on from a stored state.

        Raises:
            RunError: the passes were in another dtype.
        """
        before, now = (name.removeprefix("torch.") for name in (note["dtype"], str(self.dtype)))
        if before != now:
            raise RunError(
                f"the training was begun in {before} and would go on in {now}; resume on the same "
                "kind of device, or choose another --out."
            )
        self.optimizer.load_state_dict(tensors)
        fill(self._window, tensors["window"])
        self._window_steps = note["window_steps"]
        self.tokens, self.steady_tokens = note["tokens"], note["steady_tokens"]
        self._shown = self._recorded = (self.tokens, time.monotonic())

    def load_best(self) -> None:
        """Leave the last step's weights: none was chosen by validation."""


def short_number(value: float) -> str:
    """Return a number with three digits and a unit: 2.21 M, 45.3 k, 870."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def _inputs(corrupted: Corrupted, batch: DeviceBatch, rows: slice) -> dict[str, Tensor]:
    return {**vars(corrupted[rows]), "is_next": batch.is_next[rows]}


def _attention(device: torch.device) -> AbstractContextManager[None]:
    """Prefer cuDNN's attention, which is the fastest of torch's on Hopper GPUs."""
    if device.type != "cuda":
        return nullcontext()
    kinds = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    return sdpa_kernel([getattr(SDPBackend, kind) for kind in kinds], set_priority=True)


def _work(pretrainer: Pretrainer, config: PretrainConfig) -> float:
    """Return training tokens times the weights each of them is multiplied by."""
    tokens = config.learning.steps * config.learning.batch * config.corpus.length
    return float(tokens) * weights_per_token(pretrainer)
