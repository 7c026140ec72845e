"""The loop over epochs, and training: all relations in one batch, each with its own clock.

Prompts are separate parameters per relation and Adam works element by element, so training R
relations stacked equals training each alone, as long as what is not element-wise is kept per
relation: shuffling, step counts, learning rate, clipping, early stopping, the best epoch. (With the
language model's dropout on, the two agree in distribution only.)

Training state to tensors and back, so that a killed run goes on as if it had not been.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypedDict

from symprompt.engine.stacked_adam import StackedAdam
from symprompt.errors import RunError, TrainingError
from symprompt.files.progress import Tick, silent
from symprompt.probing.config import LearningConfig
from symprompt.probing.methods.base import Method, Sentences
from symprompt.probing.passes import EpochPasses
from symprompt.probing.queries import chunks
from symprompt.probing.recorded import CapturedSteps
from symprompt.runs.environment import derive_seed, send
from symprompt.runs.folder import STATE
from symprompt.runs.manifest import validated

DevScores = Callable[[], Mapping[str, np.ndarray]]


@dataclass
class PartProgress:
    """One part's best epoch per relation, and who has stopped."""

    best: np.ndarray
    epoch: np.ndarray
    waited: np.ndarray
    stopped: np.ndarray
    values: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def start(cls, relations: int, values: Mapping[str, Tensor]) -> PartProgress:
        """Return the state before the first epoch."""
        return cls(
            best=np.full(relations, -np.inf),
            epoch=np.full(relations, -1, dtype=np.int64),
            waited=np.zeros(relations, dtype=np.int64),
            stopped=np.zeros(relations, dtype=bool),
            values={name: value.detach().clone() for name, value in values.items()},
        )

    def update(
        self, scores: np.ndarray, epoch: int, values: Mapping[str, Tensor], patience: int
    ) -> None:
        """Take an epoch's dev scores, higher is better; ties take the later epoch."""
        better = (scores >= self.best) & ~self.stopped
        self.best = np.where(better, scores, self.best)
        self.epoch = np.where(better, epoch, self.epoch)
        self.waited = np.where(better, 0, self.waited + 1)
        if patience:
            self.stopped = self.stopped | (self.waited >= patience)
        for name, value in values.items():
            mask = torch.from_numpy(better).to(value.device)
            self.values[name][mask] = value.detach()[mask]


class Learner(ABC):
    """Abstract: changes a method's encoders epoch after epoch; each relation keeps its best one.

    Args:
        method: whose encoders.
        sentences: the training facts, laid out.
        relations: the relations' names; each seeds its own random numbers.
        config: how many epochs, and which one is the best.
        seed: of the random numbers.
        max_tokens: most tokens in one pass that keeps what a gradient needs.

    Attributes:
        recording: seconds that steps took to be recorded, which later steps do not take.
    """

    def __init__(
        self,
        method: Method,
        sentences: Sentences,
        relations: Sequence[str],
        config: LearningConfig,
        *,
        seed: int,
        max_tokens: int,
    ) -> None:
        self.method = method
        self.sentences = sentences
        self.relations = list(relations)
        self.config = config
        self.seed = seed
        self.max_tokens = max_tokens
        self.device = method.backbone.device
        self.epoch = 0
        self.recording = 0.0
        self.history: list[dict[str, Any]] = []
        self.optimizers: dict[str, StackedAdam] = {}
        self.parts = {
            part: PartProgress.start(len(self.relations), dict(encoder.named_parameters()))
            for part, encoder in method.encoders.items()
        }
        self.owner = sentences.object_prompt.relation.cpu().numpy()
        self.rows = [np.flatnonzero(self.owner == index) for index in range(len(self.relations))]

    def run(
        self,
        dev_scores: DevScores,
        *,
        tick: Tick = silent,
        checkpoint: Callable[[Learner], None] | None = None,
        checkpoint_seconds: float = 60.0,
        score_start: bool = False,
    ) -> None:
        """Go on to the last epoch or until every relation has stopped; load the best epochs.

        Args:
            dev_scores: gives each part's dev score per relation, higher is better.
            tick: told of every step.
            checkpoint: called between epochs, at most once in ``checkpoint_seconds``.
            score_start: let what is learned from compete for the best epoch, as -1.

        Raises:
            TrainingError: a loss is not finite; names step and relation.
        """
        saved = time.monotonic()
        if score_start and self.epoch == 0:
            self._take(dev_scores(), epoch=-1)
        while self.epoch < self.config.epochs and not self.finished():
            loss = self._learn_epoch(tick)
            self.method.after_epoch()
            scores = dev_scores()
            self._take(scores, epoch=self.epoch)
            means = {part: float(np.mean(value)) for part, value in scores.items()}
            self.history.append({"epoch": self.epoch, "loss": loss, "dev": means})
            self.epoch += 1
            if checkpoint and time.monotonic() - saved >= checkpoint_seconds:
                checkpoint(self)
                saved = time.monotonic()
        if self.epoch:
            self._load_best()

    @abstractmethod
    def _learn_epoch(self, tick: Tick) -> float:
        """Run one epoch and return the mean of its losses."""

    def _take(self, scores: Mapping[str, np.ndarray], *, epoch: int) -> None:
        for part, progress in self.parts.items():
            named = dict(self.method.encoders[part].named_parameters())
            progress.update(scores[part], epoch, named, self.config.patience)

    def finished(self) -> bool:
        """Say whether every part of every relation has stopped early."""
        return all(bool(progress.stopped.all()) for progress in self.parts.values())

    def _running(self) -> list[int]:
        """Return the relations of which some part goes on."""
        stopped = np.all([progress.stopped for progress in self.parts.values()], axis=0)
        return np.flatnonzero(~stopped).tolist()

    def _load_best(self) -> None:
        for part, progress in self.parts.items():
            with torch.no_grad():
                for name, value in self.method.encoders[part].named_parameters():
                    value.copy_(progress.values[name])

    def _mean_losses(
        self, batches: Sequence[np.ndarray], vectors: Mapping[str, Tensor], losses: Tensor
    ) -> None:
        """Add up each relation's mean loss in ``losses`` and its gradient in the vectors'.

        Args:
            batches: the rows of some relations, one batch each.
            vectors: leaves, so that what made them is walked back once, not in every pass.
        """
        rows = np.concatenate(batches)
        share = np.concatenate([np.full(len(batch), 1 / len(batch)) for batch in batches])
        layout = self.sentences.object_prompt
        order = np.argsort(layout.lengths[rows], kind="stable")
        rows, share = rows[order], share[order]
        sentences = self.method.sentences_per_fact(self.sentences, rows)
        for part in chunks(layout.lengths[rows], sentences, self.max_tokens):
            loss = self.method.loss(self.sentences, rows[part], vectors)
            weighted = loss * send(share[part], self.device).to(loss.dtype)
            weighted.sum().backward()  # type: ignore[no-untyped-call]
            owner = send(self.owner[rows[part]], self.device)
            losses.index_add_(0, owner, weighted.detach().to(losses.dtype))


class Trainer(Learner):
    """Trains a method's encoders on stacked relations by gradient steps; final.

    Args:
        method, sentences, relations, config, seed: see ``Learner``.
        max_tokens: most tokens in one pass; larger batches are split and gradients added up.
        capture: record steps as CUDA graphs; None does where the device and the method allow it.
    """

    def __init__(
        self,
        method: Method,
        sentences: Sentences,
        relations: Sequence[str],
        config: LearningConfig,
        *,
        seed: int,
        max_tokens: int,
        capture: bool | None = None,
    ) -> None:
        super().__init__(method, sentences, relations, config, seed=seed, max_tokens=max_tokens)
        self.optimizers = {
            part: StackedAdam(dict(encoder.named_parameters()), config)
            for part, encoder in method.encoders.items()
        }
        self.captured: CapturedSteps | None = None
        on_gpu = self.device.type == "cuda"
        records = method.backbone.records
        if capture or (capture is None and records and method.queries(sentences, np.arange(1))):
            self.captured = CapturedSteps(
                method, sentences, self.optimizers, max_tokens=max_tokens, capture=on_gpu
            )

    def _plan(self) -> list[list[np.ndarray]]:
        """Return this epoch's batches, [step][relation with a batch left] -> rows."""
        size = self.config.batch
        plan: list[list[np.ndarray]] = []
        for index in self._running():
            name, rows = self.relations[index], self.rows[index]
            shuffle = np.random.default_rng(derive_seed(self.seed, "shuffle", name, self.epoch))
            rows = rows[shuffle.permutation(len(rows))]
            batches = [rows[start : start + size] for start in range(0, len(rows), size)]
            if self.config.drop_last and len(batches) > 1 and len(batches[-1]) < size:
                batches.pop()
            for step, batch in enumerate(batches):
                if step == len(plan):
                    plan.append([])
                plan[step].append(batch)
        return plan

    def _rates(self, plan: list[list[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        """Return [step, relation]: who has a batch, and at which learning rate."""
        active = np.zeros((len(plan), len(self.relations)), dtype=bool)
        for step, batches in enumerate(plan):
            active[step, [self.owner[batch[0]] for batch in batches]] = True
        total = np.maximum(active.sum(0), 1)
        done = (self.epoch + (np.cumsum(active, axis=0) - 1) / total) / self.config.epochs
        if self.config.schedule == "exponential":
            rates = np.full_like(done, self.config.rate * self.config.decay**self.epoch)
        elif self.config.schedule == "linear":
            rates = self.config.rate * np.clip(1 - done, 0, 1)
        else:
            rates = np.full_like(done, self.config.rate)
        if self.config.warmup:
            rising = (done * self.config.epochs * total + 1) / (
                self.config.warmup * self.config.epochs * total
            )
            rates = rates * np.clip(rising, 0, 1)
        return active, rates

    def _learn_epoch(self, tick: Tick) -> float:
        plan = self._plan()
        active, rates = self._rates(plan)
        losses = torch.zeros(len(plan), len(self.relations), device=self.device)
        on = torch.from_numpy(active).to(self.device)
        running = {
            part: torch.from_numpy(~progress.stopped).to(self.device)
            for part, progress in self.parts.items()
        }
        rate = torch.from_numpy(rates).to(self.device)
        total = self.config.epochs * len(plan)
        with self._dropout():
            epoch = self._record(plan)
            for step, batches in enumerate(plan):
                moving = {part: on[step] & value for part, value in running.items()}
                if self.captured and epoch:
                    self.captured.step(epoch, step, moving, rate[step], losses[step])
                else:
                    self._backward(batches, losses[step])
                    for part, optimizer in self.optimizers.items():
                        optimizer.step(moving[part], rate[step])
                tick(
                    "training", self.epoch * len(plan) + step + 1, total, f"epoch {self.epoch + 1}"
                )
        self._check_finite(losses)
        return float(losses.sum() / on.sum())

    def _record(self, plan: list[list[np.ndarray]]) -> EpochPasses | None:
        """Return the epoch's recorded passes; a model that cannot be recorded runs without."""
        captured = self.captured
        if captured is None:
            return None
        before = captured.seconds
        try:
            return captured.plan(plan)
        except RuntimeError as error:
            if self.device.type != "cuda" or isinstance(error, torch.OutOfMemoryError):
                raise
            self.captured = None
            self.history.append({"epoch": self.epoch, "not recorded": str(error).splitlines()[0]})
            return None
        finally:
            self.recording += captured.seconds - before

    @contextmanager
    def _dropout(self) -> Iterator[None]:
        """Switch the model's own dropout on if asked, drawn from (seed, epoch) alone."""
        if not self.config.model_dropout:
            yield
            return
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), self.method.dropout():
            torch.manual_seed(derive_seed(self.seed, "dropout", self.epoch))
            yield

    def _backward(self, batches: list[np.ndarray], losses: Tensor) -> None:
        """Add up the gradients of each relation's mean loss; write those means into ``losses``."""
        vectors = self.method.vectors()
        # The encoder's graph is walked once, whatever number of passes the batch takes.
        leaves = {part: value.detach().requires_grad_() for part, value in vectors.items()}
        self._mean_losses(batches, leaves, losses)
        for name, value in vectors.items():
            if not value.requires_grad:
                # What is not learned by gradients stands among the vectors too.
                continue
            if value.is_leaf:
                # A parameter itself: its gradient is handed over, not copied.
                value.grad = leaves[name].grad
            else:
                torch.autograd.backward(value, leaves[name].grad)

    def _check_finite(self, losses: Tensor) -> None:
        """Refuse losses that are not finite, and vectors that the last step broke."""
        with torch.no_grad():
            vectors = [value.flatten(1).sum(1) for value in self.method.vectors().values()]
        bad = torch.nonzero(~torch.isfinite(torch.cat((losses, torch.stack(vectors)))))
        if len(bad):
            step, relation = bad[0].tolist()
            step = min(step, len(losses) - 1)
            raise TrainingError(
                f"the loss of relation {self.relations[relation]} is not finite at epoch "
                f"{self.epoch + 1}, step {step + 1}; lower learning.rate (now "
                f"{self.config.rate}) or set learning.clip, or use dtype float32."
            )


class _Note(TypedDict):
    epoch: int
    history: list[Any]
    relations: list[str]
    seconds: float
    recording: float


def state_tensors(trainer: Learner) -> dict[str, Tensor]:
    """Return everything a trainer's next epoch depends on."""
    tensors: dict[str, Tensor] = {}
    for part, encoder in trainer.method.encoders.items():
        progress = trainer.parts[part]
        for name, value in encoder.named_parameters():
            tensors[f"{part}/value/{name}"] = value
            tensors[f"{part}/best/{name}"] = progress.values[name]
        for name in ("best", "epoch", "waited", "stopped"):
            tensors[f"{part}/progress/{name}"] = torch.from_numpy(getattr(progress, name))
    for part, optimizer in trainer.optimizers.items():
        tensors[f"{part}/steps"] = optimizer.steps
        tensors |= {f"{part}/mean/{name}": value for name, value in optimizer.mean.items()}
        tensors |= {f"{part}/square/{name}": value for name, value in optimizer.square.items()}
    return tensors


def state_note(trainer: Learner, *, seconds: float = 0.0) -> dict[str, Any]:
    """Return the rest of the state, as plain values; ``seconds`` is the time spent so far."""
    return {
        "epoch": trainer.epoch,
        "history": trainer.history,
        "relations": trainer.relations,
        "seconds": seconds,
        "recording": trainer.recording,
    }


def load_state(trainer: Learner, tensors: dict[str, Tensor], note: Any) -> float:
    """Put a trainer into the stored state.

    Returns:
        The seconds of training that led to the state.

    Raises:
        RunError: the state is damaged, or of other relations or another shape of encoder.
    """
    try:
        validated(_Note, note, f"the note in {STATE}")
    except RunError as error:
        raise RunError(f"{error} Delete that file to train from the start.") from error
    if note["relations"] != trainer.relations:
        raise RunError("the stored training state is about other relations than the data now has.")
    try:
        with torch.no_grad():
            for part, encoder in trainer.method.encoders.items():
                progress = trainer.parts[part]
                for name, value in encoder.named_parameters():
                    value.copy_(tensors[f"{part}/value/{name}"])
                    progress.values[name].copy_(tensors[f"{part}/best/{name}"])
                for name in ("best", "epoch", "waited", "stopped"):
                    setattr(progress, name, tensors[f"{part}/progress/{name}"].numpy())
            for part, optimizer in trainer.optimizers.items():
                optimizer.steps.copy_(tensors[f"{part}/steps"])
                for name in optimizer.mean:
                    optimizer.mean[name].copy_(tensors[f"{part}/mean/{name}"])
                    optimizer.square[name].copy_(tensors[f"{part}/square/{name}"])
    except (KeyError, RuntimeError) as error:
        raise RunError(f"the stored training state does not fit this method: {error}.") from error
    trainer.epoch = note["epoch"]
    trainer.history = note["history"]
    trainer.recording = float(note["recording"])
    return float(note["seconds"])
