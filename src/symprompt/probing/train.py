"""Train a run: facts, model and method in, a finished run folder out.

All relations are trained in one batch, each with its own clock. Prompts are separate parameters per
relation and Adam works element by element, so training R relations stacked equals training each
alone, as long as what is not element-wise is kept per relation: shuffling, step counts, learning
rate, clipping, early stopping, the best epoch. (With the language model's dropout on, the two agree
in distribution only.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from symprompt.accel.compiling import Recorder
from symprompt.engine.batches import make_batches
from symprompt.engine.loop import EarlyStopping, Loop, State, fill, rate_share
from symprompt.engine.stacked_adam import StackedAdam
from symprompt.errors import ConfigError, RunError
from symprompt.facts import load_word_list
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.models.loading import present_fingerprint
from symprompt.probing.ask import Run, stored_method
from symprompt.probing.config import RunConfig, model_dtype
from symprompt.probing.crossfit import make_folds
from symprompt.probing.evaluate import (
    add_terms,
    dev_scores,
    predict_splits,
    require_dev,
    start_run,
    store_predictions,
    write_results,
)
from symprompt.probing.methods.base import Method, method_class
from symprompt.probing.prepare import (
    fingerprint_data,
    load_config_facts,
    load_encoders,
    make_method,
    prepare,
)
from symprompt.probing.problem import Problem, names_list
from symprompt.probing.recorded import CapturedSteps, EpochPasses
from symprompt.probing.rerank import load_subject_prompt, with_subject_prompt
from symprompt.probing.results import (
    CARD,
    ENCODER,
    PROMPTS,
    VOCABULARY,
    Card,
    Predictions,
    RelationCard,
    load_asked,
    load_card,
    load_prompts,
    method_name,
    predictions_file,
    write_facts,
)
from symprompt.runs.environment import derive_seed, send
from symprompt.runs.folder import HISTORY, PARTS, STATE, Folder

_COPIES = 5
"""Of a parameter in training: itself, its gradient, two moments, and the best so far."""
_VECTORS = "vectors"


class FactTraining(ABC):
    """Abstract: changes a method's encoders epoch after epoch; each relation keeps its best one.

    An epoch has as many steps as the relation with the most; what others have no batch for changes
    nothing of theirs. With ``start_from`` what training starts from competes for the best epoch.

    Attributes:
        advice: what to do about a loss that is not finite.
        stopping: part -> each relation's best epoch.
        epoch_steps: steps of an epoch.
        losses: [step, relation] of the epoch.
        max_tokens: most tokens in one pass that keeps what a gradient needs.
    """

    stage = "training"
    advice = ""
    epoch_steps: int
    losses: Tensor

    def __init__(self, config: RunConfig, problem: Problem, method: Method) -> None:
        self.config = config.learning
        self.problem = problem
        self.method = method
        self.sentences = problem.sentences["train"]
        self.relations = list(problem.relations)
        self.seed = config.seed
        self.max_tokens = config.max_tokens or method.backbone.token_budget(training=True)
        self.score_start = bool(config.start_from)
        self.device = method.backbone.device
        self.recorder = Recorder(self.device, wanted=method.backbone.records)
        self.epoch = 0
        self.optimizers: dict[str, StackedAdam] = {}
        self.stopping = {
            part: EarlyStopping(_named(encoder), patience=self.config.patience)
            for part, encoder in method.encoders.items()
        }
        self.owner = self.sentences.relations
        self.rows = [np.flatnonzero(self.owner == index) for index in range(len(self.relations))]

    def scores(self) -> Mapping[str, np.ndarray]:
        """Evaluate dev: each part's score per relation, higher is better."""
        return dev_scores(self.method, self.problem, self.config.select)

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

    def _mean_loss(self) -> float:
        return float(self.losses[:, self._running()].mean())

    def _take(self, scores: Mapping[str, np.ndarray], epoch: int) -> None:
        """Take dev scores; ties take the later epoch."""
        for part, own in self.stopping.items():
            named = _named(self.method.encoders[part])
            own.update(scores[part], epoch, named, tie=epoch, tie_counts=True)

    def _running(self) -> list[int]:
        """Return the relations of which some part goes on."""
        stopped = np.all([own.stopped for own in self.stopping.values()], axis=0)
        return np.flatnonzero(~stopped).tolist()

    def failure(self) -> str:
        """Return what to say if a loss, or a vector after the last step, is not finite."""
        with torch.no_grad():
            vectors = [value.flatten(1).sum(1) for value in self.method.vectors().values()]
        bad = torch.nonzero(~torch.isfinite(torch.cat((self.losses, torch.stack(vectors)))))
        if not len(bad):
            return ""
        step, relation = bad[0].tolist()
        return (
            f"the loss of relation {self.relations[relation]} is not finite at epoch "
            f"{self.epoch + 1}, step {min(step, self.epoch_steps - 1) + 1}{self.advice}"
        )

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
        return tensors | {"losses": self.losses}

    def state_dict(self) -> State:
        """Return everything the next step depends on."""
        tensors = self._changing()
        for part, own in self.stopping.items():
            tensors |= {f"{part}/best/{name}": value for name, value in own.state_dict().items()}
        remembered = self.method.epoch_state.items()
        tensors |= {f"method/{name}": value for name, value in remembered}
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
        remembered = _under(tensors, "method/").items()
        self.method.epoch_state = {name: value.to(self.device) for name, value in remembered}
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
        capture: run passes of few fixed shapes, which are recorded as CUDA graphs on a GPU; None
            does where the device and the method allow it.
    """

    def __init__(
        self, config: RunConfig, problem: Problem, method: Method, *, capture: bool | None = None
    ) -> None:
        super().__init__(config, problem, method)
        self.advice = (
            f"; lower learning.rate (now {self.config.rate}) or set learning.clip, or use dtype "
            "float32."
        )
        batches = [self._batches(rows) for rows in self.rows]
        self.epoch_steps = max(map(len, batches))
        # Facts before each step of an epoch: relations with few facts have no batch in late steps.
        sizes = (
            sum(len(own[step]) for own in batches if step < len(own))
            for step in range(self.epoch_steps)
        )
        self._facts = list(accumulate(sizes, initial=0))
        self.optimizers = {
            part: StackedAdam(dict(encoder.named_parameters()), self.config)
            for part, encoder in method.encoders.items()
        }
        self.captured: CapturedSteps | None = None
        if capture is None:
            capture = method.backbone.records
            if capture and not method.queries(self.sentences, np.arange(1)):
                capture = False
                self.recorder.reason = "the loss is not made of queries for one token each"
        if capture:
            self.captured = CapturedSteps(
                method, self.sentences, self.optimizers, self.recorder, max_tokens=self.max_tokens
            )
        self.losses = torch.zeros(self.epoch_steps, len(self.relations), device=self.device)
        self._planned: _Epoch | None = None

    def facts_before(self, step: int) -> int:
        """Return how many facts were learned from before a step: what its time goes with."""
        epochs, place = divmod(step, self.epoch_steps)
        return epochs * self._facts[-1] + self._facts[place]

    def step(self, number: int) -> None:
        """Learn from one batch of every relation that has one left in this epoch."""
        self.epoch, place = divmod(number, self.epoch_steps)
        if place == 0:
            self.losses.zero_()
        if self.config.model_dropout:
            torch.manual_seed(derive_seed(self.seed, "dropout", self.epoch, place))
        epoch = self._begin()
        if place >= len(epoch.plan):
            # Only relations with more batches have not stopped.
            return
        moving = {part: epoch.active[place] & own for part, own in epoch.running.items()}
        rate, losses = epoch.rates[place], self.losses[place]
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
        return float(self.losses[: len(epoch.plan)].sum() / epoch.active.sum())


def _named(encoder: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in encoder.named_parameters()}


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
    }


def train(
    config: RunConfig,
    *,
    resume: bool = False,
    tick: Tick = silent,
    backbone: LanguageModel | None = None,
) -> Run:
    """Train a method on all relations at once, evaluate it, and write the run folder.

    Args:
        config: what to do; ``model``, ``data`` and ``out`` must be set.
        resume: go on with an unfinished run; the numbers are those of an unbroken one.
        tick: called with every step of progress.
        backbone: the model, if it is loaded already.

    Returns:
        The finished run; one that was finished before on the same data is returned as it is.

    Raises:
        SympromptError: one clear sentence; an interrupted run keeps what it had.

    Example:
        >>> config = override(load_config("my-facts"), data="my_facts.csv", out="runs/mine")
        >>> train(config).metrics["method"]
        'spe'
    """
    for name, what in (("model", "model"), ("data", "facts"), ("out", "run folder to write")):
        if not getattr(config, name):
            raise ConfigError(f"--{name} is missing; name the {what}.")
    if config.rerank:
        config = with_subject_prompt(config, Folder(config.rerank))
    # Everything that can be wrong with the input is found before the folder is made.
    facts = load_config_facts(config.data, config.facts)
    folder, data = Folder(config.out), fingerprint_data(config, facts)
    # What an unfinished run goes on with is compared when it is loaded.
    model = present_fingerprint(config.model) if folder.finished and backbone is None else ""
    if folder.check("train", config, resume=resume, data_fingerprint=data, model_fingerprint=model):
        return Run(folder)
    dtype = model_dtype(config.method.name, config.dtype)
    backbone = backbone or LanguageModel.load(
        config.model, device=config.device, dtype=dtype, tick=tick
    )
    # An unfinished run goes on with the prompts that it has chosen.
    stored = load_card(folder)["relations"] if folder.has(CARD) else {}
    chosen = {name: own["prompts"] for name, own in stored.items() if own.get("prompts")}
    problem = prepare(config, backbone, facts, prompts=chosen)
    at_once = _relations_at_once(config, problem)
    in_groups = at_once < len(problem.relations)
    # Encoders of all relations would not fit; stored vectors stand in for them.
    method = stored_method(config, problem) if in_groups else make_method(config, problem)
    # About how many tokens training reads: a query has some 16, and a subject of three tokens as
    # many queries of its own.
    queries = len(problem.sentences.get("train", ())) * config.learning.epochs
    each = config.method.object_prompts
    if method.has_subject_prompt:
        each += 3 * len(method.subject_terms)
    passes = config.method.cross_folds if config.method.evidence == "cross" else 1
    tokens = 16.0 * queries * each * passes
    acceleration = backbone.accelerate(config.compile, tokens=tokens)
    if method.has_subject_prompt or config.rerank or config.method.choose_weight == "dev-fit":
        require_dev(config, problem.sentences)
    subject_prompt = load_subject_prompt(config, problem) if config.rerank else None
    if config.start_from:
        load_encoders(method, Folder(config.start_from), config, problem)
    method.check_learning(config)
    start_run(folder, "train", config, problem, data)
    folder.write_json(CARD, _card(config, problem, method))
    write_facts(folder, problem.facts)
    if names_list(config):
        # A copy, so that the run can be asked when the list has moved.
        words = load_word_list(config.facts.vocabulary)
        folder.write(VOCABULARY, "".join(word + "\n" for word in words).encode())
    tick("acceleration", 0, 0, acceleration)
    seconds: dict[str, float] = {}
    if method.in_stacks:
        found = method.train_in_stacks(folder, config, problem, tick, seconds)
    else:
        vectors = _learn(folder, config, problem, method, at_once, tick, seconds)
        k = problem.candidates(config.method.k)
        prior, own = config.method.weighs_prior, config.method.within
        found = predict_splits(method, problem, vectors, k, tick, seconds, prior=prior, within=own)
    if subject_prompt is not None:
        found = subject_prompt.ask(found, tick=tick, seconds=seconds)
    held_out = None
    if config.method.evidence == "cross":
        held_out = _cross_fit(folder, config, problem, tick, seconds)
    history = folder.read_json(HISTORY) if folder.has(HISTORY) else {}
    write_results(
        folder,
        config,
        problem,
        found,
        dropped=problem.facts.dropped_by_reason(),
        seconds=seconds,
        unfilled=history.get("unfilled", []),
        held_out=held_out,
    )
    return Run(folder)


def _card(config: RunConfig, problem: Problem, method: Method) -> Card:
    relations: dict[str, RelationCard] = {}
    for index, relation in enumerate(problem.facts.relations):
        relations[relation.name] = {
            "label": relation.label,
            "template": str(problem.templates[index]),
            "manual_template": relation.template,
        }
        if relation.rewordings:
            relations[relation.name]["rewordings"] = list(relation.rewordings)
        if relation.answers:
            relations[relation.name]["answers"] = list(relation.answers)
        if problem.prompts:
            relations[relation.name]["prompts"] = [str(own) for own in problem.prompts[index]]
    return {
        "base_model": config.model,
        "base_model_fingerprint": problem.backbone.fingerprint,
        "method": method_name(config),
        "parts": list(method.parts),
        "relations": relations,
    }


def within(tick: Tick, which: str) -> Tick:
    """Return a tick that also reports which relations are being trained."""
    return lambda stage, done, total, note: tick(
        stage, done, total, f"{note}, {which}" if note else which
    )


def _by_facts(tick: Tick, training: object) -> Tick:
    """Return a tick that counts facts instead of steps, which take unequal time, where it can."""
    if not isinstance(training, PromptTraining):
        return tick
    count = training.facts_before
    return lambda stage, done, total, note: tick(stage, count(done), count(total), note)


def _relations_at_once(config: RunConfig, problem: Problem) -> int:
    """Return how many relations' prompts are trained at once: all, or as many as memory holds.

    Raises:
        ConfigError: some are wanted, and the run is one of all or none.
    """
    count, wanted = len(problem.relations), config.tuning.at_once
    kind, backbone = method_class(config.method.name), problem.backbone
    if kind.in_stacks or kind.several_prompts or not config.learning.epochs:
        return count
    whole = config.start_from or config.method.evidence == "cross"
    if whole and 0 < wanted < count:
        raise ConfigError(
            f"tuning.at_once is {wanted} of {count} relations, and start_from and "
            'method.evidence = "cross" take all at once; leave it, or them, out.'
        )
    if whole or (not wanted and backbone.device.type != "cuda"):
        return count
    part = problem.part(0, 1)
    one = make_method(config, part)
    if not one.encoders or one.trainable(config, part) is not None:
        return count
    encoders = one.encoders.values()
    size = sum(own.numel() * own.element_size() for each in encoders for own in each.parameters())
    return min(count, wanted or max(1, backbone.training_memory() // (size * _COPIES)))


def _learn(
    folder: Folder,
    config: RunConfig,
    problem: Problem,
    method: Method,
    at_once: int,
    tick: Tick,
    seconds: dict[str, float],
) -> dict[str, Tensor]:
    """Train, or take up where a killed run was; write the prompts; return them.

    Args:
        at_once: how many relations are trained at once.
    """
    if not method.parts:
        return {}
    if not folder.has(PROMPTS):
        # Without epochs there need be no training facts: stored prompts may be asked new ones.
        history: dict[str, Any] = {"epochs": [], "best_epoch": {}, "seconds": 0.0}
        note: dict[str, Any] = {"relations": problem.relations}
        if at_once < len(problem.relations):
            history, encoders, vectors = _train_groups(folder, config, problem, at_once, tick)
        else:
            if "train" in method.needed_splits(config):
                history = _train(folder, STATE, config, problem, method, tick)
                history["unfilled"] = method.unfilled_relations()
            encoders, vectors = _parameters(method), method.vectors()
            prompts = method.found_prompts()
            note |= {} if prompts is None else {"found prompts": prompts}
        folder.write_json(HISTORY, history)
        if config.keep_encoder and encoders:
            folder.write_tensors(ENCODER, encoders, {"relations": problem.relations})
        folder.write_tensors(PROMPTS, vectors, note)
    # Read back even when just written: a resumed run must see the same numbers.
    stored = load_prompts(folder, list(method.parts))
    history = folder.read_json(HISTORY)
    with folder.refuse_damage(HISTORY):
        # The time that all the processes that took part in it spent in training. Recording steps
        # stands apart where there was any: it takes as long however much is trained.
        whole, recording = float(history["seconds"]), float(history.get("recording", 0.0))
    seconds |= {"recording": recording} if recording else {}
    seconds["training"] = max(0.0, whole - recording)
    folder.remove_checkpoint()
    return {part: value.to(problem.backbone.device) for part, value in stored.items()}


def _parameters(method: Method) -> dict[str, Tensor]:
    """Return all parameters of a method's encoders, by part and name."""
    return {
        f"{part}/{name}": value
        for part, encoder in method.encoders.items()
        for name, value in encoder.named_parameters()
    }


def _train_groups(
    folder: Folder, config: RunConfig, problem: Problem, at_once: int, tick: Tick
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Train group after group of relations, each as it is trained among all.

    Random numbers, steps, rates and best epochs are each relation's own, so that groups give what
    one training gives, but for the order of sums. A group that is done is stored; a killed run goes
    on in the group it was in.

    Returns:
        The history, and all relations' encoders (if they are kept) and vectors, in memory.

    Raises:
        RunError: a stored group is damaged.
    """
    count, first = len(problem.relations), 0
    history: dict[str, Any] = {"epochs": [], "best_epoch": {}, "unfilled": []}
    seconds = {"seconds": 0.0, "recording": 0.0}
    kept: dict[str, list[Tensor]] = {}
    while first < count:
        name = f"{PARTS}/{first:04d}.safetensors"
        if not folder.has(name):
            last = min(first + at_once, count)
            part = problem.part(first, last)
            method = make_method(config, part)
            which = f"relations {first + 1}-{last} of {count}"
            own = _train(folder, STATE, config, part, method, within(tick, which), [first, last])
            tensors = {f"{_VECTORS}/{key}": value for key, value in method.vectors().items()}
            tensors |= _parameters(method) if config.keep_encoder else {}
            note = {"relations": part.relations, "history": own}
            folder.write_tensors(name, tensors, note)
            folder.remove_checkpoint()
        tensors, note = folder.read_tensors(name)
        with folder.refuse_damage(name):
            names, own = list(note["relations"]), note["history"]
            if not names or names != list(problem.relations[first : first + len(names)]):
                raise ValueError("it is about other relations")
            history["epochs"] += [row | {"relations": names} for row in own["epochs"]]
            for key, best in own["best_epoch"].items():
                history["best_epoch"][key] = history["best_epoch"].get(key, []) + best
            for key in seconds:
                seconds[key] = round(seconds[key] + float(own[key]), 2)
        for key, value in tensors.items():
            kept.setdefault(key, []).append(value)
        first += len(names)
    whole = {key: torch.cat(own) for key, own in kept.items()}
    vectors = _under(whole, f"{_VECTORS}/")
    encoders = {key: own for key, own in whole.items() if not key.startswith(f"{_VECTORS}/")}
    return history | seconds, encoders, vectors


def _train(
    folder: Folder,
    state: str,
    config: RunConfig,
    problem: Problem,
    method: Method,
    tick: Tick,
    key: object = None,
) -> dict[str, Any]:
    """Train a method's encoders, from a checkpoint if there is one; return the history.

    Args:
        state: where in the folder checkpoints go.
        key: tells the trainings of one run apart.
    """
    training = method.trainable(config, problem) or PromptTraining(config, problem, method)
    progress = Loop(
        training,
        checkpoint=folder.path / state,
        key=key,
        checkpoint_seconds=config.checkpoint_seconds,
        tick=_by_facts(tick, training),
    ).run()
    return {
        "epochs": progress.history,
        "best_epoch": training.best_epochs,
        "seconds": round(progress.seconds, 2),
        "recording": round(progress.recording, 2),
    }


def _cross_fit(
    folder: Folder, config: RunConfig, problem: Problem, tick: Tick, seconds: dict[str, float]
) -> Predictions | None:
    """Return training facts asked by prompts that never saw them, in order; see ``crossfit``.

    They are stored as the train split's predictions, so that a killed run does not train twice.
    None where no relation has facts enough.
    """
    name = predictions_file("train")
    if not folder.has(name):
        folds = make_folds(problem, config.method.cross_folds, seed=config.seed)
        if folds is None:
            return None

        def told(stage: str, done: int, total: int, note: str) -> None:
            tick(f"cross-fitting: {stage}", done, total, note)

        method = make_method(config, folds.problem)
        own = _train(folder, f"{PARTS}/{STATE}", config, folds.problem, method, told)
        vectors = {part: value.detach() for part, value in method.vectors().items()}
        k, asking = problem.candidates(config.method.k), dict[str, float]()
        (found,) = predict_splits(
            method,
            folds.problem,
            vectors,
            k,
            told,
            asking,
            splits=("test",),
            prior=config.method.weighs_prior,
            within=config.method.within,
        ).values()
        if config.method.choose_weight == "dev-fit":
            found = add_terms(found, folds.problem, "test", config.method.terms)
        order = np.argsort(folds.rows, kind="stable")
        found = replace(found, relation=folds.owner[found.relation]).take(order)
        listed = problem.facts.facts("train")
        facts = [listed[row] for row in folds.rows[order].tolist()]
        own["asking"] = round(sum(asking.values()), 2)
        folder.write_json(HISTORY, {**folder.read_json(HISTORY), "cross": own})
        store_predictions(folder, problem, "train", found, facts)
    with folder.refuse_damage(HISTORY):
        own = folder.read_json(HISTORY)["cross"]
        recording = float(own["recording"])
        whole = float(own["seconds"]) + float(own["asking"])
    if recording:
        seconds["recording"] = seconds.get("recording", 0.0) + recording
    seconds["cross-fitting"] = max(0.0, whole - recording)
    return load_asked(folder, "train").predictions
