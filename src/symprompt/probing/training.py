"""The training of prompts: all relations in one batch, each with its own clock.

Prompts are separate parameters per relation and Adam works element by element, so training R
relations stacked equals training each alone, as long as what is not element-wise is kept per
relation: shuffling, step counts, learning rate, clipping, early stopping, the best epoch. (With the
language model's dropout on, the two agree in distribution only.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from symprompt.accel.compiling import Recorder
from symprompt.engine.batches import make_batches
from symprompt.engine.loop import EarlyStopping, State, fill, rate_share
from symprompt.engine.stacked_adam import StackedAdam
from symprompt.errors import RunError
from symprompt.probing.config import LearningConfig, RunConfig
from symprompt.probing.evaluate import dev_scores
from symprompt.probing.methods.base import Method, Sentences
from symprompt.probing.passes import EpochPasses
from symprompt.probing.prepare import Problem
from symprompt.probing.recorded import CapturedSteps
from symprompt.runs.environment import derive_seed, send

DevScores = Callable[[], Mapping[str, np.ndarray]]


class FactTraining(ABC):
    """Abstract: changes a method's encoders epoch after epoch; each relation keeps its best one.

    An epoch has as many steps as the relation with the most; what others have no batch for changes
    nothing of theirs.

    Args:
        method: whose encoders.
        sentences: the training facts, tensorised.
        relations: the relations' names; each seeds its own random draws.
        config: how many epochs, and which one is the best.
        scores: evaluates dev: each part's score per relation, higher is better.
        seed: of the random draws.
        max_tokens: most tokens in one pass that keeps what a gradient needs.
        score_start: let what training starts from compete for the best epoch, as -1.

    Attributes:
        stopping: part -> each relation's best epoch.
        epoch_steps: steps of an epoch.
    """

    stage = "training"
    epoch_steps: int

    def __init__(
        self,
        method: Method,
        sentences: Sentences,
        relations: Sequence[str],
        config: LearningConfig,
        scores: DevScores,
        *,
        seed: int,
        max_tokens: int,
        score_start: bool = False,
    ) -> None:
        self.method = method
        self.sentences = sentences
        self.relations = list(relations)
        self.config = config
        self.scores = scores
        self.seed = seed
        self.max_tokens = max_tokens
        self.score_start = score_start
        self.device = method.backbone.device
        self.recorder = Recorder(self.device, wanted=method.backbone.records)
        self.epoch = 0
        self.optimizers: dict[str, StackedAdam] = {}
        self.stopping = {
            part: EarlyStopping(_named(encoder), patience=config.patience)
            for part, encoder in method.encoders.items()
        }
        self.owner = sentences.object_prompt.relation.cpu().numpy()
        self.rows = [np.flatnonzero(self.owner == index) for index in range(len(self.relations))]

    @classmethod
    def of_run(cls, config: RunConfig, problem: Problem, method: Any) -> Self:
        """Return the training of a run's method."""
        backbone = problem.backbone

        def scores() -> Mapping[str, np.ndarray]:
            return dev_scores(
                method,
                problem.sentences["dev"],
                config.learning,
                allowed=problem.allowed,
                max_tokens=config.max_tokens or backbone.token_budget(),
            )

        return cls(
            method,
            problem.sentences["train"],
            problem.relations,
            config.learning,
            scores,
            seed=config.seed,
            max_tokens=config.max_tokens or backbone.token_budget(training=True),
            score_start=bool(config.start_from),
        )

    @property
    def steps(self) -> int:
        """How many steps there are at most."""
        return self.config.epochs * self.epoch_steps

    @property
    def note(self) -> str:
        """The epoch."""
        return f"epoch {self.epoch + 1}"

    @property
    def stopped(self) -> bool:
        """Whether every part of every relation has stopped early."""
        return all(bool(own.stopped.all()) for own in self.stopping.values())

    @property
    def best_epochs(self) -> dict[str, list[int]]:
        """Each part's best epoch per relation, from 0; -1 is what training started from."""
        return {part: own.best.tolist() for part, own in self.stopping.items()}

    def training(self) -> AbstractContextManager[Any]:
        """Return a context in which the language model's own dropout is on, if it is wanted."""
        return self.method.dropout() if self.config.model_dropout else nullcontext()

    @abstractmethod
    def step(self, number: int) -> None:
        """Change the encoders once."""

    def evaluates_after(self, done: int) -> bool:
        """Say whether an epoch ends there; the start may be evaluated too."""
        return done % self.epoch_steps == 0 and (done > 0 or self.score_start)

    def evaluate(self, done: int) -> dict[str, Any] | None:
        """Evaluate dev after an epoch, and keep each relation's best parameters."""
        if not done:
            self._take(self.scores(), -1)
            return None
        loss = self._mean_loss()
        self.method.after_epoch()
        scores = self.scores()
        self._take(scores, self.epoch)
        means = {part: float(np.mean(value)) for part, value in scores.items()}
        return {"epoch": self.epoch, "loss": loss, "dev": means}

    @abstractmethod
    def _mean_loss(self) -> float:
        """Return the mean of the epoch's losses."""

    def _take(self, scores: Mapping[str, np.ndarray], epoch: int) -> None:
        """Take dev scores; ties take the later epoch."""
        for part, own in self.stopping.items():
            named = _named(self.method.encoders[part])
            own.update(scores[part], epoch, named, tie=epoch, tie_counts=True)

    def _running(self) -> list[int]:
        """Return the relations of which some part goes on."""
        stopped = np.all([own.stopped for own in self.stopping.values()], axis=0)
        return np.flatnonzero(~stopped).tolist()

    @abstractmethod
    def failure(self) -> str:
        """Return what to say if a loss or a vector is not finite; names step and relation."""

    def load_best(self) -> None:
        """Put every relation's best parameters in place."""
        for part, own in self.stopping.items():
            own.load_best(_named(self.method.encoders[part]))

    # ------------------------------------------------------------------------------ state

    def _changing(self) -> dict[str, Tensor]:
        """Return every tensor that a step changes but for early stopping, by name."""
        tensors: dict[str, Tensor] = {}
        for part, encoder in self.method.encoders.items():
            tensors |= {f"{part}/value/{name}": own for name, own in _named(encoder).items()}
        for part, optimizer in self.optimizers.items():
            states = optimizer.state_dict()
            tensors |= {f"{part}/optimizer/{name}": own for name, own in states.items()}
        return tensors

    def state_dict(self) -> State:
        """Return everything the next step depends on."""
        tensors = self._changing()
        for part, own in self.stopping.items():
            tensors |= {f"{part}/best/{name}": value for name, value in own.state_dict().items()}
        remembered = self.method.epoch_state()
        tensors |= {f"method/{name}": value for name, value in remembered.items()}
        return tensors, {"relations": self.relations, "epoch": self.epoch}

    def load_state_dict(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Go on from a stored state.

        Raises:
            RunError: it is about other relations.
            KeyError, ValueError: it is of another method or shape of encoder.
        """
        if note["relations"] != self.relations:
            raise RunError("the checkpoint is about other relations than the data now has.")
        for name, own in self._changing().items():
            fill(own, tensors[name])
        for part, own_stopping in self.stopping.items():
            own_stopping.load_state_dict(_under(tensors, f"{part}/best/"))
        self.method.load_epoch_state(_under(tensors, "method/"))
        self.epoch = note["epoch"]

    # ------------------------------------------------------------------------------ losses

    def _mean_losses(
        self, batches: Sequence[np.ndarray], vectors: Mapping[str, Tensor], losses: Tensor
    ) -> None:
        """Add up each relation's mean loss in ``losses`` and its gradient in the vectors'.

        Args:
            batches: the rows of some relations, one batch each.
            vectors: leaves, so that the backward pass through what made them comes once, not in
                every pass.
        """
        rows = np.concatenate(batches)
        share = np.concatenate([np.full(len(batch), 1 / len(batch)) for batch in batches])
        lengths = self.sentences.object_prompt.lengths[rows]
        sentences = self.method.sentences_per_fact(self.sentences, rows)
        for part, _ in make_batches(lengths, self.max_tokens, sequences=sentences):
            loss = self.method.loss(self.sentences, rows[part], vectors)
            weighted = loss * send(share[part], self.device).to(loss.dtype)
            weighted.sum().backward()  # type: ignore[no-untyped-call]
            owner = send(self.owner[rows[part]], self.device)
            losses.index_add_(0, owner, weighted.detach().to(losses.dtype))


@dataclass(frozen=True, eq=False)
class _Epoch:
    """An epoch's batches and rates.

    Attributes:
        plan: [step][relation with a batch left] -> rows.
        active: [step, relation] bool, who has a batch.
        rates: [step, relation] learning rates.
        running: part -> [relation] bool, who has not stopped.
        passes: the recorded passes, where steps are recorded.
    """

    number: int
    plan: list[list[np.ndarray]]
    active: Tensor
    rates: Tensor
    running: dict[str, Tensor]
    passes: EpochPasses | None


class PromptTraining(FactTraining):
    """Trains a method's encoders on stacked relations by gradient steps; final.

    Args:
        method, sentences, relations, config, scores, seed, max_tokens: see ``FactTraining``.
        capture: run passes of few fixed shapes, which are recorded as CUDA graphs on a GPU; None
            does where the device and the method allow it.
    """

    def __init__(
        self,
        method: Method,
        sentences: Sentences,
        relations: Sequence[str],
        config: LearningConfig,
        scores: DevScores,
        *,
        seed: int,
        max_tokens: int,
        score_start: bool = False,
        capture: bool | None = None,
    ) -> None:
        super().__init__(
            method,
            sentences,
            relations,
            config,
            scores,
            seed=seed,
            max_tokens=max_tokens,
            score_start=score_start,
        )
        self.epoch_steps = max(len(self._batches(rows)) for rows in self.rows)
        self.optimizers = {
            part: StackedAdam(dict(encoder.named_parameters()), config)
            for part, encoder in method.encoders.items()
        }
        self.captured: CapturedSteps | None = None
        records = method.backbone.records
        if capture or (capture is None and records and method.queries(sentences, np.arange(1))):
            self.captured = CapturedSteps(
                method, sentences, self.optimizers, self.recorder, max_tokens=max_tokens
            )
        self._losses = torch.zeros(self.epoch_steps, len(self.relations), device=self.device)
        self._planned: _Epoch | None = None

    def step(self, number: int) -> None:
        """Learn from one batch of every relation that has one left in this epoch."""
        self.epoch, place = divmod(number, self.epoch_steps)
        if place == 0:
            self._losses.zero_()
        if self.config.model_dropout:
            torch.manual_seed(derive_seed(self.seed, "dropout", self.epoch, place))
        epoch = self._begin()
        if place >= len(epoch.plan):
            # Only relations with more batches have not stopped.
            return
        moving = {part: epoch.active[place] & own for part, own in epoch.running.items()}
        rate, losses = epoch.rates[place], self._losses[place]
        if self.captured and epoch.passes:
            self.captured.step(epoch.passes, place, moving, rate, losses)
            return
        self._backward(epoch.plan[place], losses)
        for part, optimizer in self.optimizers.items():
            optimizer.step(moving[part], rate)

    def _begin(self) -> _Epoch:
        """Return the epoch's batches, drawn once."""
        if self._planned is None or self._planned.number != self.epoch:
            plan = self.plan()
            active, rates = self.rates(plan)
            running = {
                part: torch.from_numpy(~own.stopped).to(self.device)
                for part, own in self.stopping.items()
            }
            on, rate = (torch.from_numpy(value).to(self.device) for value in (active, rates))
            passes = self.captured.plan(plan) if self.captured else None
            if self.recorder.reason:
                # A model that cannot be recorded runs without; the loop reports why.
                self.captured = passes = None
            self._planned = _Epoch(self.epoch, plan, on, rate, running, passes)
        return self._planned

    def plan(self) -> list[list[np.ndarray]]:
        """Return this epoch's batches, [step][relation with a batch left] -> rows."""
        plan: list[list[np.ndarray]] = []
        for index in self._running():
            name, rows = self.relations[index], self.rows[index]
            shuffle = np.random.default_rng(derive_seed(self.seed, "shuffle", name, self.epoch))
            for step, batch in enumerate(self._batches(rows[shuffle.permutation(len(rows))])):
                if step == len(plan):
                    plan.append([])
                plan[step].append(batch)
        return plan

    def _batches(self, rows: np.ndarray) -> list[np.ndarray]:
        size = self.config.batch
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        if self.config.drop_last and len(batches) > 1 and len(batches[-1]) < size:
            batches.pop()
        return batches

    def rates(self, plan: list[list[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        """Return [step, relation]: who has a batch, and at which learning rate."""
        active = np.zeros((len(plan), len(self.relations)), dtype=bool)
        for step, batches in enumerate(plan):
            active[step, [self.owner[batch[0]] for batch in batches]] = True
        # Each relation counts its own steps.
        own = np.maximum(active.sum(0), 1)
        share = rate_share(
            self.epoch * own + np.cumsum(active, axis=0) - 1,
            self.config.epochs * own,
            schedule=self.config.schedule,
            warmup=self.config.warmup,
            decay=self.config.decay,
            epoch=self.epoch,
        )
        rates = np.broadcast_to(self.config.rate * share, active.shape).copy()
        return active, rates

    def _backward(self, batches: list[np.ndarray], losses: Tensor) -> None:
        """Add up the gradients of each relation's mean loss; write those means into ``losses``."""
        vectors = self.method.vectors()
        # The backward pass through the encoder comes once, whatever number of passes there is.
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

    def _mean_loss(self) -> float:
        epoch = self._begin()
        return float(self._losses[: len(epoch.plan)].sum() / epoch.active.sum())

    def failure(self) -> str:
        """Return what to say if a loss, or a vector after the last step, is not finite."""
        with torch.no_grad():
            vectors = [value.flatten(1).sum(1) for value in self.method.vectors().values()]
        bad = torch.nonzero(~torch.isfinite(torch.cat((self._losses, torch.stack(vectors)))))
        if not len(bad):
            return ""
        step, relation = bad[0].tolist()
        return (
            f"the loss of relation {self.relations[relation]} is not finite at epoch "
            f"{self.epoch + 1}, step {min(step, self.epoch_steps - 1) + 1}; lower learning.rate "
            f"(now {self.config.rate}) or set learning.clip, or use dtype float32."
        )

    def _changing(self) -> dict[str, Tensor]:
        return {**super()._changing(), "losses": self._losses}


def _named(encoder: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in encoder.named_parameters()}


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
    }
