"""Trains what answers labelled tasks: steps, evaluations of dev, and what is queried there.

A training step runs passes whose inputs lie on the device, padded to one of few shapes; the update
follows the last one. On a GPU a pass, forward and backward, is recorded once per shape as a CUDA
graph and replayed with other rows: small models are bound by launches otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from symprompt.accel.compiling import Recorder, Replay
from symprompt.engine.batches import few_widths
from symprompt.engine.flat_adamw import FlatAdamW, ParameterGroup, make_groups
from symprompt.engine.loop import EarlyStopping, Loop, Progress, State, fill, rate_share
from symprompt.errors import ConfigError
from symprompt.files.progress import Tick, silent
from symprompt.runs.environment import derive_seed, send
from symprompt.tasks.config import (
    LearningConfig,
    PatternLearningConfig,
    TuneConfig,
)
from symprompt.tasks.kinds import Target
from symprompt.tasks.patterns.model import ClassHead, VerbalModel, VerbalProblem
from symprompt.tasks.predict import (
    on_dev,
)
from symprompt.tasks.prepare import PreparedTask
from symprompt.tasks.trainables import (
    Outcome,
    TaskModel,
    ask,
    figures,
)

_NEAR = 32
"""Batches among whose inputs those of similar length are put together."""
Score = Callable[[], tuple[float, float, dict[str, float]]]
"""Evaluates dev: the metric that chooses (larger is better), a loss that chooses among equals
(smaller is better), and all of dev's metrics."""
_GRAIN = 64
"""Passes are as wide as a multiple of it: fewer widths are recorded."""


class Step(NamedTuple):
    """Inputs of one pass.

    Attributes:
        task: whose inputs.
        width: tokens; one of few.
        rows: which inputs.
    """

    task: str
    width: int
    rows: np.ndarray


def plan_epoch(
    lengths: Mapping[str, np.ndarray],
    *,
    batch: int,
    seed: int,
    texts: Mapping[str, np.ndarray] | None = None,
) -> list[Step]:
    """Return an epoch's steps: every input of every task once, each step inputs of one task.

    They are shuffled, of similar length, in few widths. A step's task is drawn by size, without
    replacement.

    Args:
        lengths: task -> [n] tokens of each input.
        batch: inputs per step; of texts that stay together, those that end within a batch are a
            step, so that every epoch has as many steps.
        seed: of the order; another one for every epoch.
        texts: task -> [n] ascending, the text of each input; those of one text stay together. None:
            each is one of its own.
    """
    steps = []
    for task, length in lengths.items():
        random = np.random.default_rng(derive_seed(seed, "order", task))
        owner = np.arange(len(length)) if texts is None else texts[task]
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        count = np.diff(first, append=len(owner))
        longest = np.maximum.reduceat(length, first)
        order = random.permutation(len(first))
        for start in range(0, len(order), _NEAR * batch):
            near = order[start : start + _NEAR * batch]
            order[start : start + len(near)] = near[np.argsort(longest[near], kind="stable")]
        # A text of more inputs than a batch takes the place of one: each step has a text's end.
        ends = np.minimum(count[order], batch).cumsum()
        cuts = np.searchsorted(ends, np.arange(batch, ends[-1], batch), side="right")
        behind = count[order].cumsum()
        inputs = np.repeat(first[order] - behind + count[order], count[order])
        inputs += np.arange(len(length))
        for rows in np.split(inputs, behind[cuts - 1]):
            width = few_widths(length[rows].max(), length.max())
            steps.append(Step(task, int(width), rows))
    shuffle = np.random.default_rng(derive_seed(seed, "steps"))
    return [steps[place] for place in shuffle.permutation(len(steps))]


class Training(ABC):
    """Steps on labelled examples, and the best evaluation of dev; abstract, an engine's Trainable.

    Args:
        groups: what is trained.
        device: where.
        clip: largest gradient norm.
        record: record passes and updates as CUDA graphs where there is a GPU.

    Attributes:
        steps: how many there are at most.
        interval: dev is evaluated after every so many, and after the last.
        losses: [interval] since the last evaluation; what is not finite in them is found there.
    """

    stage = "training"
    note = ""
    choose_every = 1
    score: Score

    def __init__(
        self,
        groups: Sequence[ParameterGroup],
        device: torch.device,
        *,
        clip: float,
        record: bool,
    ) -> None:
        self.device = device
        self.optimizer = FlatAdamW(groups, clip=clip)
        self.recorder = Recorder(device, wanted=record)
        self._loss = torch.zeros((), device=device)
        self._inputs: dict[int, tuple[Tensor, Tensor]] = {}
        self._replays: dict[object, Replay] = {}

    def _begin(self, *, steps: int, interval: int, patience: int) -> None:
        """Begin to count steps and evaluations."""
        self.steps = steps
        self.interval = interval
        self.losses = torch.zeros(interval, device=self.device)
        self.stopping = EarlyStopping(self._weights, patience=patience)

    @abstractmethod
    def _passes(self, number: int) -> list[tuple[str, int, Tensor, Tensor]]:
        """Seed a step's dropout, and return its passes.

        Returns:
            Of each its task and width, [n] which inputs, and [n] what share of the loss each has.
        """

    @abstractmethod
    def _pass_loss(self, task: str, width: int, rows: Tensor, share: Tensor) -> Tensor:
        """Return the loss of a pass, a number."""

    @abstractmethod
    def _rates(self, number: int) -> list[float]:
        """Return the learning rate of each group."""

    @abstractmethod
    def _complain(self, place: int) -> str:
        """Return the message about a loss since the last evaluation that is not finite."""

    @property
    def _weights(self) -> dict[str, Tensor]:
        return {"weights": self.optimizer.values[None]}

    @property
    def stopped(self) -> bool:
        """Whether dev got no better for long enough."""
        return bool(self.stopping.stopped.all())

    def step(self, number: int) -> None:
        """Learn from one batch: its passes, forward and backward; the update ends the last."""
        passes = self._passes(number)
        self.optimizer.set_rates(self._rates(number))
        for place, (task, width, chosen, shares) in enumerate(passes):
            size = len(chosen)
            if size not in self._inputs:
                self._inputs[size] = torch.zeros_like(chosen), torch.zeros_like(shares)
            rows, share = self._inputs[size]
            # In place before a pass is recorded: of longer rows, places beyond it would be read.
            rows.copy_(chosen)
            share.copy_(shares)
            ends = {"first": place == 0, "last": place + 1 == len(passes)}
            key = (task, width, size, *ends.values())
            if key not in self._replays:
                work = partial(self._learn, task, width, rows, share, **ends)
                state = [*self.optimizer.moved(), self._loss]
                self._replays[key] = self.recorder.capture(work, state)
            self._replays[key]()
        self.losses[number % self.interval].copy_(self._loss)

    def _learn(
        self, task: str, width: int, rows: Tensor, share: Tensor, *, first: bool, last: bool
    ) -> None:
        """Run a pass forward and backward; update the weights after a step's last one."""
        loss = self._pass_loss(task, width, rows, share)
        self.optimizer.collect(loss, first=first)
        if first:
            self._loss.zero_()
        self._loss.add_(loss.detach())
        if last:
            self.optimizer.update()

    def evaluates_after(self, done: int) -> bool:
        """Return whether dev may be evaluated there; after the last step it always is."""
        return done > 0 and (done % self.interval == 0 or done == self.steps)

    def evaluate(self, done: int) -> dict[str, Any]:
        """Evaluate dev, where that is due, and keep the best weights."""
        number = -(-done // self.interval)
        since = done - (number - 1) * self.interval
        row: dict[str, Any] = {"epoch": number, "loss": float(self.losses[:since].mean())}
        if number % self.choose_every == 0 or done == self.steps:
            main, loss, row["dev"] = self.score()
            self.stopping.update(np.array([main]), number, self._weights, tie=-loss)
        return row

    def failure(self) -> str:
        """Return the message if a loss since the last evaluation or a weight is not finite."""
        bad = torch.nonzero(~torch.isfinite(self.losses)).flatten().tolist()
        if not bad and bool(torch.isfinite(self.optimizer.values).all()):
            return ""
        return self._complain(bad[0] if bad else self.interval - 1)

    def state_dict(self) -> State:
        """Return weights, moments, the best weights and the losses since the last evaluation."""
        best = {f"best/{name}": value for name, value in self.stopping.state_dict().items()}
        return {**self.optimizer.state_dict(), **best, "losses": self.losses}, {}

    def load_state_dict(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Go on from a stored state."""
        self.optimizer.load_state_dict(tensors)
        self.stopping.load_state_dict(
            {name[5:]: own for name, own in tensors.items() if name.startswith("best/")}
        )
        fill(self.losses, tensors["losses"])

    def load_best(self) -> None:
        """Put the weights of the best evaluation in place."""
        self.stopping.load_best(self._weights)
        self.optimizer.refresh()

    def close(self) -> None:
        """Let go of what was recorded, whose memory nothing else would take."""
        self._replays.clear()


class TaskTraining(Training):
    """Trains a model on the training inputs of one task or several; final.

    Args:
        model: what is trained.
        lengths: task -> [n] tokens of each training input.
        config: how it is learned.
        score: evaluates dev.
        texts: task -> [n] the text of each input, where those of one text are learned together.
        seed: of order and dropout.
        record: record steps as CUDA graphs where there is a GPU.
    """

    def __init__(
        self,
        model: TaskModel,
        lengths: Mapping[str, np.ndarray],
        config: LearningConfig,
        score: Score,
        *,
        texts: Mapping[str, np.ndarray] | None = None,
        seed: int,
        record: bool = True,
    ) -> None:
        groups = make_groups(
            model.tuned.parameters(),
            model.head_parameters(),
            rate=config.rate,
            head_rate=config.head_rate,
            weight_decay=config.weight_decay,
        )
        device = model.tuned.backbone.device
        super().__init__(groups, device, clip=config.clip, record=record)
        self.model = model
        self.lengths = lengths
        self.texts = texts
        self.config = config
        self.score = score
        self.seed = seed
        self.choose_every = config.choose_every
        self._epoch, self._plan = 0, self._draw(0)
        steps = len(self._plan)
        self._begin(steps=config.epochs * steps, interval=steps, patience=config.patience)

    def training(self) -> AbstractContextManager[Any]:
        """Return a context in which dropout is on."""
        return self.model.training()

    def _draw(self, epoch: int) -> list[tuple[str, int, Tensor, Tensor]]:
        """Return an epoch's passes, one a step; their rows are sent to the device together."""
        batch, seed = self.config.batch, derive_seed(self.seed, "epoch", epoch)
        plan = plan_epoch(self.lengths, batch=batch, seed=seed, texts=self.texts)
        # Few sizes, as each is recorded by itself; only texts that stay together are above a batch.
        grain = max(1, batch // 4)
        sizes = [max(batch, -(-len(step.rows) // grain) * grain) for step in plan]
        rows = np.zeros((len(plan), max(sizes)), dtype=np.int64)
        share = np.zeros((len(plan), max(sizes)), dtype=np.float32)
        for place, step in enumerate(plan):
            # Rows that fill a batch up have no share in its loss.
            rows[place] = step.rows[0]
            rows[place, : len(step.rows)] = step.rows
            share[place, : len(step.rows)] = 1
        sent = send(rows, self.device), send(share, self.device)
        return [
            (step.task, step.width, chosen[:size], counted[:size])
            for step, size, chosen, counted in zip(plan, sizes, *sent, strict=True)
        ]

    def _passes(self, number: int) -> list[tuple[str, int, Tensor, Tensor]]:
        epoch, place = divmod(number, self.interval)
        torch.manual_seed(derive_seed(self.seed, "draws", epoch, place))
        if epoch != self._epoch:
            self._epoch, self._plan = epoch, self._draw(epoch)
        self.note = f"epoch {epoch + 1}"
        return [self._plan[place]]

    def _pass_loss(self, task: str, width: int, rows: Tensor, share: Tensor) -> Tensor:
        losses, weights = self.model.loss(task, rows, width)
        weights = weights.float() * share.float()
        # A row that fills a batch up may be anything but must not spread: 0 times infinity is no
        # number.
        counted = torch.where(weights > 0, losses.float() * weights, 0.0)
        return counted.sum() / weights.sum().clamp(min=1.0)

    def _rates(self, number: int) -> list[float]:
        config = self.config
        share = rate_share(
            number,
            self.steps,
            schedule=config.schedule,
            warmup=config.warmup,
            decay=config.decay,
            epoch=number // self.interval,
        )
        return [group.rate * float(share) for group in self.optimizer.groups]

    def _complain(self, place: int) -> str:
        return (
            f"the loss is not finite at epoch {self._epoch + 1}, step {place + 1}; lower "
            f"learning.rate (now {self.config.rate}), set learning.clip (now {self.config.clip}), "
            "or use dtype float32."
        )


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Queries a model about the splits of a task; final."""

    model: TaskModel
    config: TuneConfig
    task: PreparedTask

    def predictions(self, split: str, threshold: float | None, tick: Tick = silent) -> list[Any]:
        """Return a split's predictions; where their kind has a threshold, by that one."""
        data, own = self.task.data, self.task.splits[split]
        scores = ask(
            self.model,
            self.task.name,
            self.task.kind,
            own,
            self.task.inputs[split],
            max_tokens=self.config.max_tokens,
            tick=tick,
            stage=f"asking {split}",
        )
        target, examples = Target.of(self.config, data), data.split(split)
        return self.task.kind.decode(scores.numpy(), own, examples, target, threshold=threshold)

    @property
    def threshold(self) -> float | None:
        """The threshold of predictions before any is chosen; None if there is none."""
        return self.task.kind.threshold(
            self.task.data.split("train"), self.config.task.unanswerable
        )

    def measure(self) -> tuple[float, float, dict[str, float]]:
        """Return the figure that chooses an epoch, 0, and all figures of the split that chooses.

        Raises:
            ConfigError: the figure that should choose is none of the task's.
        """
        split = self.task.choice
        predictions = self.predictions(split, self.threshold)
        found = figures(self.task.kind, self.task.data.split(split), predictions)
        name = self.config.learning.choose
        if name not in ("auto", *found):
            raise ConfigError(
                f"learning.choose is {name!r}, and this task measures: {', '.join(found)}."
            )
        return next(iter(found.values())) if name == "auto" else found[name], 0.0, found


# ------------------------------------------------------------------------------ patterns


@dataclass(frozen=True)
class Recipe:
    """One training: its seed, rate and batch; final."""

    seed: int
    rate: float
    batch: int


class PatternTraining(Training):
    """Trains one recipe after the other in the same places; final.

    Several seeds train one after the other through the same recordings.

    Args:
        problem: what is trained; the gradients of its language model must be on where it is.
        learning: steps, evaluations, patience, weight decay, clip, micro-batches, dropout.
        record: record CUDA graphs where there is a GPU.
        state: the checkpoint of an unfinished training; None keeps none.
        key: what the checkpoint must be of.
        checkpoint_seconds: least time between two checkpoints.

    Attributes:
        parameters: name -> parameter; those the loss does not depend on are left out.
    """

    def __init__(
        self,
        problem: VerbalProblem,
        learning: PatternLearningConfig,
        *,
        record: bool = True,
        state: Path | None = None,
        key: str = "",
        checkpoint_seconds: float = 60.0,
    ) -> None:
        self.problem = problem
        self.learning = learning
        self.state = state
        self.key = key
        self.checkpoint_seconds = checkpoint_seconds
        self.model: VerbalModel = problem.make_model(0)
        self.layout = problem.layouts["train"]
        self.parameters = self._find_parameters()
        extra = {name: own for name, own in self.parameters.items() if name.startswith("extra.")}
        model = {name: own for name, own in self.parameters.items() if name not in extra}
        plain = {name: own for name, own in model.items() if own.dim() < 2}
        decayed = {name: own for name, own in model.items() if name not in plain}
        # The model's matrices decay; its vectors and what stands beside it do not. A rate of 0 is
        # the recipe's, as is a head's.
        head = isinstance(self.model.extra, ClassHead)
        groups = [
            ParameterGroup(extra, 0.0 if head else learning.prompt_rate),
            ParameterGroup(plain, 0.0),
            ParameterGroup(decayed, 0.0, learning.weight_decay),
        ]
        backbone = problem.backbone
        wanted = record and backbone.records
        super().__init__(groups, backbone.device, clip=learning.clip, record=wanted)
        self._start = self.optimizer.values.clone()

    def _find_parameters(self) -> dict[str, nn.Parameter]:
        """Return what may be trained and the loss depends on, by a pass over one example."""
        named: dict[str, nn.Parameter] = {}
        if self.model.extra is not None:
            named |= {f"extra.{name}": own for name, own in self.model.extra.named_parameters()}
        network = self.problem.backbone.model
        named |= {f"model.{name}": own for name, own in network.named_parameters()}
        named = {name: value for name, value in named.items() if value.requires_grad}
        rows = torch.zeros(1, dtype=torch.long, device=self.problem.backbone.device)
        loss = self.model.loss(self.layout, rows, self.layout.width_of(np.zeros(1, dtype=np.int64)))
        found = torch.autograd.grad(loss.sum(), list(named.values()), allow_unused=True)
        pairs = zip(named.items(), found, strict=True)
        return {name: value for (name, value), gradient in pairs if gradient is not None}

    def score(self) -> tuple[float, float, dict[str, float]]:
        """Evaluate dev as the model is now."""
        accuracy, loss = self.problem.look(self.model)
        return accuracy, loss, {"accuracy": accuracy, "loss": loss}

    @torch.no_grad()
    def begin(self, recipe: Recipe) -> None:
        """Put everything back to the start, for another recipe."""
        self.recipe = recipe
        self.optimizer.reset(self._start)
        extra = self.problem.make_extra(recipe.seed)
        if extra is not None and self.model.extra is not None:
            drawn = dict(extra.named_parameters())
            views = dict(self.optimizer.views(self.optimizer.values))
            for name, own in self.model.extra.named_parameters():
                views.get(f"extra.{name}", own).copy_(drawn[name])
            self.optimizer.refresh()
        learning, epoch = self.learning, max(1, len(self.layout) // recipe.batch)
        self._begin(
            steps=learning.epochs * epoch or learning.steps,
            interval=learning.evaluate_every or epoch,
            patience=learning.patience,
        )

    @property
    def best(self) -> dict[str, float]:
        """The best evaluation of dev so far: accuracy, loss, and after which step."""
        step = min(int(self.stopping.best[0]) * self.interval, self.steps)
        return {
            "accuracy": float(self.stopping.score[0]),
            "loss": -float(self.stopping.tie[0]),
            "step": step,
        }

    def training(self) -> AbstractContextManager[None]:
        """Return a context in which dropout is on."""
        return self.model.training(dropout=self.learning.model_dropout)

    def _passes(self, number: int) -> list[tuple[str, int, Tensor, Tensor]]:
        torch.manual_seed(derive_seed(self.recipe.seed, "dropout", number))
        rows = batch_rows(number, len(self.layout), self.recipe)
        size = self.learning.micro_batch or len(rows)
        parts = [rows[first : first + size] for first in range(0, len(rows), size)]
        share = torch.full((size,), 1 / len(rows), dtype=self.optimizer.dtype, device=self.device)
        return [
            ("", self.layout.width_of(own, _GRAIN), send(own, self.device), share[: len(own)])
            for own in parts
        ]

    def _pass_loss(self, task: str, width: int, rows: Tensor, share: Tensor) -> Tensor:
        losses = self.model.loss(self.layout, rows, width)
        return (losses * share.to(losses.dtype)).sum()

    def _rates(self, number: int) -> list[float]:
        share = float(rate_share(number, self.steps, warmup=self.learning.warmup))
        return [share * (group.rate or self.recipe.rate) for group in self.optimizer.groups]

    def _complain(self, place: int) -> str:
        return (
            f"the loss is {float(self.losses[place])} (seed {self.recipe.seed}, rate "
            f"{self.recipe.rate}); take a lower rate."
        )

    # ------------------------------------------------------------------------------ seeds

    def train(self, recipe: Recipe) -> Progress:
        """Train one recipe from its start or its checkpoint; leave its best weights in place."""
        self.begin(recipe)
        return Loop(
            self,
            checkpoint=self.state,
            key={"run": self.key, "recipe": asdict(recipe)},
            checkpoint_seconds=self.checkpoint_seconds,
        ).run()

    def run(self, seed: int) -> tuple[dict[str, Any], Outcome]:
        """Train a seed with every setting of the grid; the one that dev chose answers val.

        Returns:
            What is stored of the seed, and its predictions.
        """
        kept = torch.empty_like(self.optimizer.values)
        tried: list[dict[str, Any]] = []
        best: dict[str, Any] = {}
        for rate, batch in product(self.learning.rates, self.learning.batches):
            recipe = Recipe(seed, rate, min(batch, len(self.layout)))
            progress = self.train(recipe)
            found: dict[str, Any] = {
                "rate": rate,
                "batch": recipe.batch,
                **self.best,
                "steps": progress.done,
            }
            found["seconds"] = round(progress.seconds, 2)
            if self.recorder.reason:
                found["not recorded"] = self.recorder.reason
            tried.append(found)
            if not best or on_dev(found) > on_dev(best):
                best = found
                kept.copy_(self.optimizer.values)
        self.optimizer.values.copy_(kept)
        self.optimizer.refresh()
        if self.state is not None:
            # What came of the training is stored elsewhere.
            self.state.unlink(missing_ok=True)
        outcome = self.problem.ask(self.model, "val")
        return _seed_row(seed, outcome, best, self.optimizer.size, tried), outcome

    @torch.no_grad()
    def prompt(self) -> dict[str, Tensor]:
        """Return what was learned beside the model and serves without training again.

        "vectors" [n, width] or the "prefix" [layers, 2, kv_heads, length, head_dim].
        """
        name, extra = self.problem.config.traits.prompt, self.model.extra
        return {} if extra is None or not name else {name: extra()[0].detach().cpu().clone()}


def batch_rows(step: int, examples: int, recipe: Recipe) -> npt.NDArray[np.int64]:
    """Return a step's examples: epochs are shuffled, and one's last, smaller batch is left out."""
    batch = min(recipe.batch, examples)
    per_epoch = examples // batch
    epoch, place = divmod(step, per_epoch)
    seed = derive_seed(recipe.seed, "order", epoch)
    order = np.random.default_rng(seed).permutation(examples).astype(np.int64)
    return order[place * batch : (place + 1) * batch]


@contextmanager
def tuning(
    problem: VerbalProblem, learning: PatternLearningConfig, **options: Any
) -> Iterator[PatternTraining]:
    """Give a training; when the block ends the language model is as it was before.

    Args:
        options: see ``PatternTraining``.
    """
    model, joint = problem.backbone.model, problem.config.joint
    before = (
        {name: value.detach().clone() for name, value in model.named_parameters()} if joint else {}
    )
    model.requires_grad_(joint)
    try:
        with closing(PatternTraining(problem, learning, **options)) as training:
            yield training
    finally:
        model.requires_grad_(False)
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.grad = None
                if name in before:
                    value.copy_(before[name])


def ask_zero_shot(problem: VerbalProblem, seed: int = 0) -> tuple[dict[str, Any], Outcome]:
    """Return what the model answers as it is; dev is evaluated, and chooses nothing."""
    model = problem.make_model(seed)
    accuracy, loss = problem.look(model)
    outcome = problem.ask(model, "val")
    return _seed_row(seed, outcome, {"accuracy": accuracy, "loss": loss, "step": 0}), outcome


def _seed_row(
    seed: int,
    outcome: Outcome,
    best: Mapping[str, Any],
    trained: int = 0,
    tried: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return what is stored of a seed: val, asked once, after everything was chosen on dev."""
    return {
        "seed": seed,
        "val": outcome.metrics,
        "dev": {key: best[key] for key in ("accuracy", "loss", "step")},
        "rate": best.get("rate"),
        "batch": best.get("batch"),
        "trained": trained,
        "tried": list(tried),
    }
