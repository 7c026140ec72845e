"""The methods, by name: a language model with what each trains of it, and heads on its states.

Prompts at the input layer, prefixes at every layer, adapters, or the model's own weights: all,
those of the last layers, or none.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from symprompt.engine.batches import few_widths, make_batches
from symprompt.errors import ConfigError, DataError, ModelError, RunError
from symprompt.files.progress import Tick, silent
from symprompt.models import Inputs, LanguageModel, LoraTuning
from symprompt.models.layers import trained_parameters
from symprompt.prompts.encoders import PrefixEncoder, PrefixKind
from symprompt.runs.environment import make_generator
from symprompt.tasks.config import TuneConfig, check_settings
from symprompt.tasks.data.examples import Example
from symprompt.tasks.features import Batch, Features
from symprompt.tasks.kinds import Kind, Target
from symprompt.tasks.kinds.base import Head
from symprompt.tasks.tables import prediction_tables

_TASK = "task"


class TunedModel(ABC):
    """A language model and the parameters that a method trains; abstract.

    Attributes:
        file: what its parameters are stored in.
        settings: the keys of a config that concern this method, and others perhaps not.
        continues: whether training can go on from a stored prompt.
        mixes: whether several tasks train it together first.
        dtype: in which the model must be loaded; empty for that of the passes.
        backbone: the model; frozen unless a subclass trains it.
        taken: positions of the model that prompts take from every input.

    Args:
        backbone: in the dtype that ``dtype`` states.
        config: the method's settings; its dropout is of the language model, while training.
        seed: of prompts and adapters at their start.
    """

    file: ClassVar[str] = "prompt.safetensors"
    settings: ClassVar[tuple[str, ...]] = ()
    continues: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    dtype: ClassVar[str] = ""
    taken = 0

    def __init__(
        self, backbone: LanguageModel, config: TuneConfig, seed: tuple[object, ...] = ()
    ) -> None:
        self.backbone = backbone
        self.config = config
        self.dropout = config.learning.dropout
        self.learning = False

    @abstractmethod
    def parameters(self) -> dict[str, nn.Parameter]:
        """Return what is trained, by name; prompts' names begin with "prompt."."""

    @abstractmethod
    def states(self, batch: Batch) -> Tensor:
        """Return the last hidden states of the tokens [b, t, h], no prompt's among them."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored of it: what is trained, if nothing else."""
        return {name: value.detach() for name, value in self.parameters().items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put stored parameters in place.

        Raises:
            RunError: they do not fit.
        """
        for name, value in self.parameters().items():
            value.copy_(_fitting(tensors, name, value))

    @contextmanager
    def training(self) -> Iterator[None]:
        """Have dropout on: the prompts' own, and the language model's if it is asked for."""
        modules = self.backbone.model.modules()
        before = {part: part.p for part in modules if isinstance(part, nn.Dropout)}
        for part in before if self.dropout else ():
            part.p = self.dropout
        self.learning = True
        try:
            with self.backbone.dropout(on=bool(self.dropout)):
                yield
        finally:
            self.learning = False
            for part, share in before.items():
                part.p = share

    def _inputs(self, batch: Batch) -> Inputs:
        return Inputs(self.backbone.embed(batch.ids), batch.mask, types=batch.types)


class InputPrompts(TunedModel):
    """PT: vectors in front of the first token at the input layer, the model frozen; final.

    [CLS] stays [CLS]: the states that heads read are those of the tokens alone. The vectors have
    the positions 0 to n - 1, the tokens those after them, as if they were words.
    """

    continues = True

    def __init__(
        self, backbone: LanguageModel, config: TuneConfig, seed: tuple[object, ...] = ()
    ) -> None:
        super().__init__(backbone, config)
        self.taken = config.prefix.length
        weight = backbone.model.get_input_embeddings().weight
        draws = torch.randn(self.taken, backbone.width, generator=make_generator(*seed, "pt"))
        # As large as words are.
        scale = float(weight.detach().float().std())
        self.vectors = nn.Parameter((draws * scale).to(backbone.device))

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the vectors."""
        return {"prompt.vectors": self.vectors}

    def states(self, batch: Batch) -> Tensor:
        """Return the tokens' states after the vectors were read."""
        inputs, rows = self._inputs(batch), batch.ids.shape[0]
        vectors = self.vectors.to(inputs.embeddings.dtype).expand(rows, -1, -1)
        seen = torch.ones(rows, self.taken, dtype=torch.bool, device=vectors.device)
        types = None
        if batch.types is not None:
            types = torch.cat((batch.types.new_zeros(rows, self.taken), batch.types), 1)
        together = Inputs(
            torch.cat((vectors, inputs.embeddings), 1),
            torch.cat((seen, batch.mask), 1),
            types=types,
        )
        return self.backbone.states(together)[:, self.taken :]


class FullWeights(TunedModel):
    """FT: the weights of the model, or of its last layers, on a copy in float32; final.

    Passes may run in bfloat16, weights and moments staying in float32. Only what is trained is
    stored.
    """

    file = "weights.safetensors"
    settings = ("weights.layers",)
    # Small changes of half precision weights vanish.
    dtype = "float32"

    def __init__(
        self, backbone: LanguageModel, config: TuneConfig, seed: tuple[object, ...] = ()
    ) -> None:
        super().__init__(_copied(backbone), config)
        if backbone.dtype not in (torch.float32, torch.float64):
            raise ModelError(
                f"the model is loaded in {str(backbone.dtype).removeprefix('torch.')}, in which "
                "small changes of weights vanish; load it with dtype float32 to fine-tune it."
            )
        on_gpu = config.dtype == "auto" and backbone.device.type == "cuda"
        self.half = config.dtype == "bfloat16" or on_gpu
        found = trained_parameters(self.backbone.model, config.weights.layers)
        self._trained = {f"body.{name}": value for name, value in found.items()}
        for value in found.values():
            value.requires_grad_(True)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the weights that are trained, tied ones once."""
        return self._trained

    def states(self, batch: Batch) -> Tensor:
        """Return the states that the weights as they are now give."""
        kind = self.backbone.device.type
        # Kept casts of weights would outlive the recorded step that made them.
        with torch.autocast(kind, torch.bfloat16, enabled=self.half, cache_enabled=False):
            return self.backbone.states(self._inputs(batch), grad_model=bool(self._trained))


class Adapters(TunedModel):
    """LoRA: low-rank adapters of the body's linear layers, on a copy of the model; final.

    The adapters are kept in float32; the frozen weights stay in the dtype they have.
    """

    file = "adapter.safetensors"

    def __init__(
        self, backbone: LanguageModel, config: TuneConfig, seed: tuple[object, ...] = ()
    ) -> None:
        super().__init__(_copied(backbone), config)
        body, lora = self.backbone.model.base_model, config.lora
        self.tuning = LoraTuning(body, rank=lora.rank, alpha=lora.alpha, targets=lora.targets)
        start = self.tuning.start([_TASK], seed)[0]
        self.row = nn.Parameter(start.float() if start.dtype != torch.float64 else start)
        self._states = _States(self.backbone)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the adapters, as one row of parameters."""
        return {"lora": self.row}

    def states(self, batch: Batch) -> Tensor:
        """Return the states with the adapters beside the linear layers."""
        inputs = self._inputs(batch)
        types = () if batch.types is None else (batch.types,)
        row = self.row.to(self.backbone.dtype)
        return self.tuning.call(self._states, row, (inputs.embeddings, batch.mask, *types))

    def tensors(self) -> dict[str, Tensor]:
        """Return the adapters under the names that the peft library uses."""
        return self.tuning.to_tensors(self.row.detach())

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put stored adapters in place."""
        own = {name: value for name, value in tensors.items() if name.startswith("base_model.")}
        try:
            self.row.copy_(self.tuning.to_row(own))
        except ValueError as error:
            raise RunError(f"these adapters do not fit: {error}.") from error


class _States(nn.Module):
    """The model's states as a module, which is what adapters are put into; final."""

    def __init__(self, backbone: LanguageModel) -> None:
        super().__init__()
        self._backbone = [backbone]

    def forward(self, embeddings: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        """Return the last hidden states."""
        inputs = Inputs(embeddings, mask, types=types)
        return self._backbone[0].states(inputs, grad_model=True)


class DeepPrefix(TunedModel):
    """PT-2: learned keys and values in front of the layers' own, the model frozen."""

    settings: ClassVar[tuple[str, ...]] = (
        "prefix.encoder",
        "prefix.layers",
        "prefix.shift_positions",
    )
    continues = True

    def __init__(
        self, backbone: LanguageModel, config: TuneConfig, seed: tuple[object, ...] = ()
    ) -> None:
        super().__init__(backbone, config)
        self.taken = config.prefix.length if config.prefix.shift_positions else 0
        self.encoder = self._make_encoder(config.prefix.encoder, seed)

    def _make_encoder(self, kind: PrefixKind, seed: tuple[object, ...]) -> PrefixEncoder:
        config, backbone = self.config.prefix, self.backbone
        encoder = PrefixEncoder(
            [_TASK],
            backbone.prefix_shape,
            config.length,
            layers=config.layers,
            kind=kind,
            hidden=config.hidden or hidden_size(backbone),
            dropout=config.dropout,
            shift_positions=config.shift_positions,
            seed=seed,
        )
        dtype = torch.float64 if backbone.dtype == torch.float64 else torch.float32
        return encoder.to(backbone.device, dtype)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the prefix encoder's parameters."""
        named = self.encoder.named_parameters()
        return {f"prompt.{name}": value for name, value in named}

    def states(self, batch: Batch) -> Tensor:
        """Return the tokens' states; no position is added."""
        self.encoder.train(self.learning)
        return self.backbone.states(self._inputs(batch), prefix=self.encoder.prefix())

    def tensors(self) -> dict[str, Tensor]:
        """Return the keys and values [layers, 2, kv_heads, length, head_dim]."""
        with torch.no_grad():
            return {"prompt.prefix": self.encoder()[0]}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put stored keys and values in place; a network that made them is put aside."""
        states = _fitting(tensors, "prompt.prefix", self.encoder()[0])
        if self.encoder.kind != "free":
            self.encoder = self._make_encoder("free", ())
        self.encoder.put(states)


class SharedPrefix(DeepPrefix):
    """MPT-2: a prefix that several tasks learn together first; final.

    Each task goes on from keys and values, so no network makes them.
    """

    settings = ("prefix.layers", "prefix.shift_positions")
    continues = False
    mixes = True


TRAINABLES: dict[str, type[TunedModel]] = {
    "ft": FullWeights,
    "pt": InputPrompts,
    "pt2": DeepPrefix,
    "lora": Adapters,
    "mpt2": SharedPrefix,
}


def check_method(config: TuneConfig) -> None:
    """Refuse settings that do not go with the method.

    Raises:
        ConfigError: naming the setting and what to do.
    """
    method = TRAINABLES[config.method]
    known = {name: own.settings for name, own in TRAINABLES.items()}
    check_settings(config, "method", config.method, known)
    if method.mixes != bool(config.mixture.tasks):
        raise ConfigError(
            'method = "mpt2" and mixture.tasks need each other; name the tasks that share a '
            'prefix, or choose method = "pt2".'
        )
    if config.start_from and not method.continues:
        raise ConfigError(
            f'start_from goes on from a prompt, and method = "{config.method}" does not begin '
            'with one; use "pt" or "pt2".'
        )


def hidden_size(backbone: LanguageModel) -> int:
    """Return the size of a hidden state."""
    return int(backbone.model.config.get_text_config().hidden_size)


def _copied(backbone: LanguageModel) -> LanguageModel:
    """Return a copy with a model of its own and the same vocabulary."""
    return copy.deepcopy(backbone, {id(backbone.vocabulary): backbone.vocabulary})


def _fitting(tensors: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    found = tensors.get(name)
    if found is None or found.shape != like.shape:
        got = "nothing" if found is None else f"shape {tuple(found.shape)}"
        raise RunError(f"stored parameters do not fit: {name} is {got}, not {tuple(like.shape)}.")
    return found


def check_backbone(name: str, fingerprint: str, backbone: LanguageModel, where: str) -> None:
    """Refuse a prompt that was learned for another model.

    Args:
        name: the model it was learned for, and its fingerprint.

    Raises:
        RunError: naming that model.
    """
    if fingerprint != backbone.fingerprint:
        raise RunError(
            f"the prompt in {where} was learned for another model ({name}, "
            f"{fingerprint}), not for {backbone.source} "
            f"({backbone.fingerprint}); a prompt serves only its own model: name it with --model."
        )


# ------------------------------------------------------------------------------ heads


class TaskModel:
    """What is trained and queried: a tuned model, and a head for each task; final.

    Args:
        tuned: the language model with what is trained of it.
        heads: task -> its head, on the model's device.
        inputs: task -> all its training inputs, on that device; none if it is only queried.
    """

    def __init__(
        self,
        tuned: TunedModel,
        heads: Mapping[str, Head],
        inputs: Mapping[str, Batch] | None = None,
    ) -> None:
        self.tuned = tuned
        self.heads = dict(heads)
        self.inputs = dict(inputs or {})

    def head_parameters(self) -> dict[str, nn.Parameter]:
        """Return what is trained of the heads."""
        return {
            f"head.{task}.{name}": value
            for task, head in self.heads.items()
            for name, value in head.named_parameters()
        }

    @property
    def size(self) -> int:
        """How many parameters are trained."""
        values = [*self.tuned.parameters().values(), *self.head_parameters().values()]
        return sum(value.numel() for value in values)

    def loss(self, task: str, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the losses [b] of training inputs of a task, and what each counts [b]."""
        batch = self.inputs[task].select(rows, width)
        states = self.tuned.states(batch)
        head = self.heads[task]
        return head.loss(states, batch), head.weights(batch)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Have dropout on."""
        for head in self.heads.values():
            head.train()
        try:
            with self.tuned.training():
                yield
        finally:
            for head in self.heads.values():
                head.eval()

    @torch.no_grad()
    def scores(self, task: str, batch: Batch) -> Tensor:
        """Return the scores that a task's head gives inputs."""
        return read_off(self.heads[task], self.tuned.states(batch), batch)

    def tensors(self, task: str) -> dict[str, Tensor]:
        """Return what is stored for a task: the parameters of the tuned model and of the head."""
        head = {f"head.{key}": value for key, value in self.heads[task].state_dict().items()}
        return {**self.tuned.tensors(), **head}

    def load(self, task: str, tensors: Mapping[str, Tensor]) -> None:
        """Put a stored prompt and, if there is one, its head in place.

        Raises:
            RunError: they do not fit.
        """
        self.tuned.load(tensors)
        head = {key[5:]: value for key, value in tensors.items() if key.startswith("head.")}
        if not head:
            return
        try:
            self.heads[task].load_state_dict(head)
        except RuntimeError as error:
            raise RunError(
                "the stored head does not fit the task: it has other labels or another kind."
            ) from error


def make_task_head(
    kind: Kind[Any, Any], target: Target, backbone: LanguageModel, *, seed: tuple[object, ...]
) -> Head:
    """Return a head at its start, on the model's device."""
    head = kind.head(
        hidden_size(backbone),
        target,
        causal=backbone.causal,
        generator=make_generator(*seed, "head"),
    )
    if backbone.dtype == torch.float64:
        head = head.double()
    return head.to(backbone.device).eval()


def read_off(head: Head, states: Tensor, batch: Batch) -> Tensor:
    """Return a head's scores; NaN for rows with states that are not finite, whatever is decoded."""
    scores = head.scores(states, batch)
    broken = (~states.isfinite().all(-1) & batch.mask).any(1)
    return scores.masked_fill(broken.view(-1, *[1] * (scores.dim() - 1)), torch.nan)


def gather(
    kind: Kind[Any, Any], features: Features, parts: Iterable[tuple[Tensor, Tensor]]
) -> Tensor:
    """Return the scores of all rows of a split, on the CPU, from those of each pass.

    Args:
        parts: rows, and their scores, perhaps narrower than the widest.

    Raises:
        ModelError: a score is not a number.
    """
    found: Tensor | None = None
    broken: Tensor | bool = False
    for rows, scores in parts:
        broken = scores.isnan().any() | broken
        kept = kind.kept(scores)
        if found is None:
            shape = [len(features), *kept.shape[1:]]
            if kind.per_token:
                shape[1] = int(features.ids.shape[1])
            found = kept.new_full(shape, -torch.inf if kept.is_floating_point() else 0)
        found[rows, : kept.shape[1]] = kept
    assert found is not None  # no split is without rows
    refuse_nan(bool(broken))
    return found.cpu()


def refuse_nan(broken: bool) -> None:
    """Refuse scores some of which are not finite: nothing can be predicted from them.

    Raises:
        ModelError: naming what to do.
    """
    if broken:
        raise ModelError(
            "the model and what was learned give scores that are not finite (NaN or infinity); "
            "compute in --dtype float32, or train again with a lower learning rate."
        )


def ask(
    model: TaskModel,
    task: str,
    kind: Kind[Any, Any],
    features: Features,
    inputs: Batch,
    *,
    max_tokens: int,
    tick: Tick = silent,
    stage: str = "asking",
) -> Tensor:
    """Return a task's scores of all inputs of a split, on the CPU.

    Args:
        kind: the task's kind.
        features: the split.
        inputs: the same on the device.
        max_tokens: most tokens in one pass; 0 chooses by device.

    Returns:
        What the kind decodes, one entry for each row [n, ...].
    """
    backbone = model.tuned.backbone
    widths = partial(few_widths, widest=int(features.ids.shape[1]))
    most = max_tokens or backbone.token_budget()
    plan = list(make_batches(features.lengths, most, width=widths, order="longest"))

    def parts() -> Iterator[tuple[Tensor, Tensor]]:
        for number, step in enumerate(plan):
            rows = torch.from_numpy(step.rows).to(backbone.device)
            yield rows, model.scores(task, inputs.select(rows, step.width))
            tick(stage, number + 1, len(plan), "")

    return gather(kind, features, parts())


@dataclass(frozen=True)
class Outcome:
    """What was found for a split: figures in percent, and one row for each example.

    Attributes:
        notes: what a reader should know, such as texts that were cut to fit.
    """

    metrics: dict[str, float]
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        return prediction_tables(vars(self)).to_html()


def round_shares(labels: Sequence[str], shares: Sequence[float]) -> dict[str, float]:
    """Return the probability of every label, as rows have them."""
    return {label: round(share, 6) for label, share in zip(labels, shares, strict=True)}


def figures(
    kind: Kind[Any, Any], examples: Sequence[Example], predictions: Sequence[Any]
) -> dict[str, float]:
    """Return the figures of predictions in percent, the one that chooses first.

    Raises:
        DataError: an example has no label, or there is another number of predictions.
    """
    if len(examples) != len(predictions):
        raise DataError(
            f"got {len(predictions)} prediction(s) for {len(examples)} example(s); every "
            "example needs one."
        )
    if not all(map(kind.is_labelled, examples)):
        raise DataError("some examples have no label, so nothing can be measured on them.")
    found = kind.measure(examples, predictions)
    ordered = {kind.metric: found[kind.metric], **found}
    return {
        name: value if name.endswith("threshold") else 100 * value
        for name, value in ordered.items()
    }
