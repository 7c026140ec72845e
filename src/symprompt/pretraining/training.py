"""The pretraining of a masked language model: corrupt a batch, forward and backward pass, AdamW.

The objectives are masked tokens (MLM), next sentence (NSP) and span boundary (SBO). The model has
fresh weights, or is one that was trained before; then all its weights are trained on, or those of
its last layers and its head.

Nothing is read back to the host in a step, so that the device never waits for it. Everything random
follows from the seed and the step's number, so that there is no random state to keep.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    ElectraConfig,
    ElectraForMaskedLM,
    PreTrainedModel,
)

from symprompt.accel.compiling import Recorder, choose, weights_per_token
from symprompt.engine.flat_adamw import FlatAdamW, ParameterGroup
from symprompt.engine.loop import State, fill, rate_share
from symprompt.engine.processes import ProcessGroup
from symprompt.errors import RunError
from symprompt.models.layers import trained_parameters
from symprompt.models.trained import Trained, count_leading, find_positions, find_segments
from symprompt.pretraining.config import PretrainConfig, ShapeConfig
from symprompt.pretraining.corruption import Corrupted, corrupt
from symprompt.pretraining.encoding import Reader
from symprompt.pretraining.parent import HEADS_FILE, Parent
from symprompt.pretraining.sequences import Batch, Feed
from symprompt.pretraining.tokenizer import Specials
from symprompt.runs.environment import choose_dtype, derive_seed

MadeModel = BertForMaskedLM | BertForPreTraining | ElectraForMaskedLM
"""What ``make_model`` gives."""
_OFFSET_SIZE = 200
_TOKENS_PER_WORD = 4
_INITIAL_SPREAD = 0.02
_IGNORED = -100
# Losses are read this often at least: reading waits for the device.
_READ_STEPS = 20
_READ_SECONDS = 0.5
# Several processes must read at the same steps.
_TOGETHER_STEPS = 10
_RECORDS = 100


def make_model(
    shape: ShapeConfig,
    *,
    vocabulary: int,
    specials: Specials,
    length: int = 512,
    objective: str = "mlm",
    seed: int = 0,
) -> MadeModel:
    """Return a model with fresh weights on the CPU, the same for the same seed anywhere.

    The caller's random state is not touched. The token embeddings and the vocabulary product share
    one matrix.

    Args:
        shape: family and sizes.
        vocabulary: tokens the model knows, special ones included.
        specials: the padding token goes into the model's config.
        length: positions, the longest sequence the model can read.
        objective: "mlm", "mlm+nsp" or "mlm+sbo"; "mlm+nsp" gives a model with the NSP head.
        seed: of the weights.

    Returns:
        BertForMaskedLM, BertForPreTraining with "mlm+nsp", or ElectraForMaskedLM: ELECTRA's
        generator at the full hidden size.
    """
    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feedforward or 4 * shape.hidden,
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.dropout,
        "max_position_embeddings": length,
        "pad_token_id": specials.pad,
        "attn_implementation": "sdpa",
    }
    if shape.family == "electra":
        embedding = shape.embedding or shape.hidden
        config: Any = ElectraConfig(embedding_size=embedding, **settings)
        kind: type[MadeModel] = ElectraForMaskedLM
    else:
        config = BertConfig(**settings)
        kind = BertForPreTraining if objective == "mlm+nsp" else BertForMaskedLM
    # Only the CPU's generator is seeded, so only that one has to be put back.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(derive_seed(seed, "weights"))
        return kind(config)


def count_asked(corrupted: Corrupted, objective: str) -> Tensor:
    """Return how many predictions each part of the objective has in a batch, at least 1 [parts].

    The objective is the sum of the parts' losses, each divided by this (equation 11.17 for MLM and
    SBO). So the gradients of micro-batches add up to the gradient of the whole batch.
    """
    asked = corrupted.asked.sum()
    rows = torch.full_like(asked, len(corrupted.ids))
    counts = [rows if part == "nsp" else asked for part in objective.split("+")]
    return torch.stack(counts).clamp(min=1)


class SpanBoundaryHead(nn.Module):
    """Predicts a token of a span from the two tokens outside it and its position (11.17 to 11.20).

    s_i = FFN([z_{s-1}; z_{e+1}; p_{i-s+1}]) and y_i = softmax(W_V s_i). Where the chapter leaves it
    open this is SpanBERT's: each of the two layers is GELU(W x + b) and a LayerNorm, the relative
    positions p have 200 dimensions, W_V is the token embedding matrix, and there is a bias for
    each token. Positions count tokens; beyond four a word, at the longest span, they share the
    last p.
    """

    def __init__(
        self,
        hidden: int,
        embedding: int,
        vocabulary: int,
        span_limit: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.places = nn.Embedding(_TOKENS_PER_WORD * span_limit, _OFFSET_SIZE)
        self.first = nn.Linear(2 * hidden + _OFFSET_SIZE, hidden)
        self.first_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.second = nn.Linear(hidden, embedding)
        self.second_norm = nn.LayerNorm(embedding, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        # As BERT: normal with a small spread, biases zero.
        for module in (self.places, self.first, self.second):
            nn.init.normal_(module.weight, std=_INITIAL_SPREAD, generator=generator)
        nn.init.zeros_(self.first.bias)
        nn.init.zeros_(self.second.bias)

    def forward(self, left: Tensor, right: Tensor, offset: Tensor, embedding: Tensor) -> Tensor:
        """Return logits [n, v].

        Args:
            left, right: [n, h], z_{s-1} and z_{e+1}.
            offset: [n] int64, i - s, from 0.
            embedding: [v, e], the token embeddings.
        """
        place = self.places(offset.clamp(max=self.places.num_embeddings - 1))
        state = torch.cat([left, right, place.to(left.dtype)], dim=1)
        state = self.first_norm(functional.gelu(self.first(state)))
        state = self.second_norm(functional.gelu(self.second(state)))
        return functional.linear(state, embedding.to(state.dtype), self.bias)


class NextSentenceHead(nn.Module):
    """Predicts from [CLS] whether B follows A, for families that have no such head (11.2.2).

    As BERT's: tanh(W h + b), then two logits, class 0 being "follows".
    """

    def __init__(self, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden, hidden)
        self.follows = nn.Linear(hidden, 2)
        for module in (self.dense, self.follows):
            nn.init.normal_(module.weight, std=_INITIAL_SPREAD, generator=generator)
            nn.init.zeros_(module.bias)

    def forward(self, state: Tensor) -> Tensor:
        """Return logits [b, 2] of [CLS]'s states [b, h]."""
        return cast(Tensor, self.follows(torch.tanh(self.dense(state))))


class Pretrainer(nn.Module):
    """A model together with its objectives: corrupted sequences in, losses out.

    The heads and the last layer run at the queried positions only: of 128 tokens at 19.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        objective: str = "mlm",
        *,
        span_limit: int = 10,
        seed: int = 0,
    ) -> None:
        """Take a masked language model.

        Args:
            model: of ``make_model``, or a trained one of ``encoding.FAMILIES``; a BERT with its
                own NSP head if the objective is "mlm+nsp".
            objective: "mlm", "mlm+nsp" or "mlm+sbo".
            span_limit: longest span in words, for the SBO.
            seed: of the weights of heads that are no part of the model.
        """
        super().__init__()
        self.model = model
        self.reader = Reader(model)
        self.objective = objective
        self.span_boundary: SpanBoundaryHead | None = None
        self.next_sentence: NextSentenceHead | None = None
        vocabulary, embedding = self._embedding().shape
        hidden = model.config.hidden_size
        # Layers draw their first weights from the global state, which is the caller's.
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            if objective == "mlm+sbo":
                drawn = torch.Generator().manual_seed(derive_seed(seed, "span boundary"))
                boundary = SpanBoundaryHead(hidden, embedding, vocabulary, span_limit, drawn)
                self.span_boundary = boundary.to(self._embedding())
            if objective == "mlm+nsp" and not isinstance(model, BertForPreTraining):
                drawn = torch.Generator().manual_seed(derive_seed(seed, "next sentence"))
                self.next_sentence = NextSentenceHead(hidden, drawn).to(self._embedding())

    def forward(
        self,
        ids: Tensor,
        lengths: Tensor,
        segments: Tensor,
        positions: Tensor,
        targets: Tensor,
        asked: Tensor,
        left: Tensor,
        right: Tensor,
        offset: Tensor,
        is_next: Tensor,
        *,
        padded: bool,
    ) -> Tensor:
        """Return the loss of each part of the objective, summed in float32 [parts].

        The vocabulary product runs in the model's dtype, the softmax and the sums in float32. Call
        as ``pretrainer(**vars(corrupted), is_next=batch.is_next, padded=...)``.

        Args:
            ids, lengths, segments, positions, targets, asked, left, right, offset: of Corrupted.
            is_next: [b] bool; used by the NSP alone.
            padded: whether any row may hold padding; without, attention takes no mask and is fast.
        """
        places, wanted = positions.shape[1], [positions]
        if self.span_boundary is not None:
            wanted += [left, right]
        with_next = self.objective == "mlm+nsp"
        if with_next:
            wanted.append(torch.zeros_like(positions[:, :1]))
        wanted_at = torch.cat(wanted, dim=1)
        hidden = self.reader.states_at(ids, lengths if padded else None, segments, wanted_at)
        answers = torch.where(asked, targets, _IGNORED).flatten()
        masked = hidden[:, :places].flatten(0, 1)
        losses = [_cross_entropy(self.reader.logits(masked), answers)]
        if with_next:
            # The logits W_NSP h (11.2.2), h being the pooled [CLS] as in BERT. In transformers
            # class 0 is "follows", class 1 "does not".
            if self.next_sentence is not None:
                follows = self.next_sentence(hidden[:, -1])
            else:
                model = cast(Any, self.model)
                follows = model.cls.seq_relationship(model.bert.pooler(hidden[:, -1:]))
            losses.append(_cross_entropy(follows, (~is_next).long()))
        if self.span_boundary is not None:
            before = hidden[:, places : 2 * places].flatten(0, 1)
            after = hidden[:, 2 * places : 3 * places].flatten(0, 1)
            logits = self.span_boundary(before, after, offset.flatten(), self._embedding())
            losses.append(_cross_entropy(logits, answers))
        return torch.stack(losses)

    def save(self, folder: Path | str, dtype: torch.dtype = torch.float32) -> None:
        """Write the masked language model as transformers does, and other heads beside it.

        ``AutoModelForMaskedLM.from_pretrained(folder)`` finds every weight and no other one. The
        NSP head with BERT's pooler, and the SBO head, go to ``heads.safetensors``, named as in this
        module's state; floating-point weights are stored as ``dtype``.
        """
        plain = BertForMaskedLM if isinstance(self.model, BertForPreTraining) else type(self.model)
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            saved: nn.Module = plain(copy.deepcopy(self.model.config))
        weights = self.model.state_dict()
        wanted = saved.state_dict().keys()
        saved.to(dtype).load_state_dict({name: weights[name] for name in wanted})
        cast(PreTrainedModel, saved).save_pretrained(folder)
        heads = {
            name: value.detach().to("cpu", dtype, copy=True).contiguous()
            for name, value in self.state_dict().items()
            if name.removeprefix("model.") not in wanted
        }
        if heads:
            save_file(heads, Path(folder) / HEADS_FILE, metadata={"format": "pt"})

    def tables(self) -> list[nn.Embedding]:
        """Return the tables that stay in float32 whatever the dtype of the passes.

        The gradient of a frequent word is a sum of many thousand terms, and in bfloat16 such a sum
        stops growing early.
        """
        others = [] if self.span_boundary is None else [self.span_boundary.places]
        return [*self.reader.tables(), *others]

    def take_heads(self, weights: Mapping[str, Tensor]) -> None:
        """Begin other heads where an earlier training left them, as far as they fit."""
        shapes = {name: value.shape for name, value in self.state_dict().items()}
        fitting = {name: own for name, own in weights.items() if own.shape == shapes.get(name)}
        self.load_state_dict(fitting, strict=False)

    def freeze(self, layers: int) -> None:
        """Train heads and the last layers alone.

        Args:
            layers: how many; -1: every weight; 0: heads alone.

        Raises:
            ConfigError: the model has not that many layers.
            ModelError: its layers have no weights of their own.
        """
        body = {id(value) for value in self.model.base_model.parameters()}
        body -= {id(value) for value in trained_parameters(self.model, layers).values()}
        # NSP reads the pooler.
        pooler = getattr(self.model.base_model, "pooler", None)
        body -= {id(value) for value in ([] if pooler is None else pooler.parameters())}
        for value in self.parameters():
            value.requires_grad_(id(value) not in body)

    def _embedding(self) -> Tensor:
        return cast(Tensor, self.model.get_input_embeddings().weight)


def _cross_entropy(logits: Tensor, answers: Tensor) -> Tensor:
    """Return the summed -log P(answer), in float32 or wider; answers of -100 are left out."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(wide, answers, ignore_index=_IGNORED, reduction="sum")


class Pretraining:
    """Trains a model with its objectives; final, an engine's Trainable.

    Args:
        config: the run's.
        feed: the batches.
        validation: a fixed batch for the validation loss; None gives none.
        specials: ids of the special tokens.
        frequencies: [v] unigram probabilities, zero for special tokens.
        group: the processes that share every batch.
        parent: the model to go on from; None makes one.

    Attributes:
        pretrainer: the model and its objectives.
        acceleration: what the steps are accelerated by, for people to read.
        tokens: tokens seen, padding left out.
        steady_tokens: those of all steps but each process's first, which compiles.
    """

    stage = "training"

    def __init__(
        self,
        config: PretrainConfig,
        feed: Feed,
        validation: Batch[Tensor] | None,
        *,
        specials: Specials,
        frequencies: Tensor,
        group: ProcessGroup,
        parent: Parent | None = None,
    ) -> None:
        model = (
            parent.model
            if parent
            else make_model(
                config.shape,
                vocabulary=len(frequencies),
                specials=specials,
                length=config.corpus.length,
                objective=config.objective,
                seed=config.seed,
            )
        )
        span_limit = config.corruption.span_limit
        pretrainer = Pretrainer(model, config.objective, span_limit=span_limit, seed=config.seed)
        pretrainer.take_heads(parent.heads if parent else {})
        pretrainer.freeze(config.weights.layers)
        self.pretrainer = pretrainer.train().to(group.device)
        self.config = config
        self.feed = feed
        self.validation = validation
        self.group = group
        self.device = group.device
        self.dtype = choose_dtype(config.dtype, group.device)
        self.specials = specials
        self.frequencies = frequencies.to(self.device)
        # Deletion leaves padding in rows that were full.
        self.padded = config.corpus.packing != "blocks" or config.corruption.kind == "deletion"
        self.parts = tuple(config.objective.split("+"))
        self.steps = config.learning.steps
        self._kept = self._cast_frozen()
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
        # Training tokens times the weights each of them is multiplied by.
        tokens = config.learning.steps * config.learning.batch * config.corpus.length
        work = float(tokens) * weights_per_token(pretrainer)
        choice = choose(config.compile, self.device, work=work)
        self.acceleration = "compiled steps" if choice.compiled else "plain"
        if choice.compiled:
            options = choice.options or None
            self._compiled = torch.compile(
                self._losses, fullgraph=True, dynamic=False, options=options
            )
        self._begun = False
        # Tokens and time at the last sight of the device: speeds are counted from there.
        self._shown = self._recorded = (0, time.monotonic())

    def _cast_frozen(self) -> dict[str, Tensor]:
        """Give weights that are not trained the passes' dtype; return them as they were."""
        exact = {id(table.weight) for table in self.pretrainer.tables()}
        kept = {}
        for name, value in self.pretrainer.named_parameters():
            if not value.requires_grad and value.dtype != self.dtype and id(value) not in exact:
                kept[name] = value.data.to("cpu")
                value.data = value.data.to(self.dtype)
        return kept

    def restore(self) -> None:
        """Make the parameters the weights themselves, to be saved; nothing is trained after it."""
        self.optimizer.restore()
        named = dict(self.pretrainer.named_parameters())
        for name, value in self._kept.items():
            named[name].data = value
        self.pretrainer.eval()

    def _groups(self) -> list[ParameterGroup]:
        """Matrices decay, biases and norms do not; tables stay in float32."""
        named = {
            name: value for name, value in self.pretrainer.named_parameters() if value.requires_grad
        }
        tables = {id(table.weight) for table in self.pretrainer.tables()}
        whole = self.dtype == torch.float32
        matrices = {name: own for name, own in named.items() if own.dim() >= 2}
        exact = {name: own for name, own in matrices.items() if whole or id(own) in tables}
        copied = {name: own for name, own in matrices.items() if name not in exact}
        others = {name: own for name, own in named.items() if name not in matrices}
        rate, decay = self.config.learning.rate, self.config.learning.weight_decay
        return [
            ParameterGroup(exact, rate, decay),
            ParameterGroup(copied, rate, decay, self.dtype),
            ParameterGroup(others, rate, 0.0, self.dtype),
        ]

    def training(self) -> AbstractContextManager[None]:
        """Prefer cuDNN's attention, which is the fastest of torch's on Hopper GPUs."""
        if self.device.type != "cuda":
            return nullcontext()
        kinds = ["CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]
        if self.pretrainer.reader.has_bias:
            # The others have no gradient of a bias.
            kinds = kinds[2:]
        return sdpa_kernel([getattr(SDPBackend, kind) for kind in kinds], set_priority=True)

    # ------------------------------------------------------------------------------ a step

    def step(self, number: int) -> None:
        """Learn from a whole batch of all processes."""
        begun = time.monotonic()
        batch, tokens = self.feed.take(number, self.steps, self.device)
        self.learn(number, batch)
        self.tokens += tokens
        if not self._begun:
            self._begun = True
            self._show()
            # The first step compiles; speeds are counted from its end.
            self.recorder.seconds += time.monotonic() - begun
            self._shown = self._recorded = (self.tokens, time.monotonic())
            return
        self.steady_tokens += tokens
        if self._is_reading(number + 1):
            self._show()

    def learn(self, number: int, batch: Batch[Tensor]) -> None:
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
        values = torch.cat([self.optimizer.extra / counts, norm[None]])
        self._window[:-1] += values
        bad = ~values.isfinite().all() & (self._window[-1] == 0)
        self._window[-1] += bad * (number + 1)
        self._window_steps += 1

    def rate(self, number: int) -> float:
        """Return the learning rate of a step."""
        config = self.config.learning
        return config.rate * float(rate_share(number, config.steps, warmup=config.warmup))

    def corrupt(self, batch: Batch[Tensor], *seed: object) -> Corrupted:
        """Corrupt a batch as the run's seed and these parts of it say."""
        generator = torch.Generator(self.device)
        generator.manual_seed(derive_seed(self.config.seed, "corruption", *seed))
        config = self.config.corruption
        return corrupt(
            batch,
            replace(config, uniform=False) if seed == ("validation",) else config,
            specials=self.specials,
            frequencies=self.frequencies,
            generator=generator,
        )

    def _losses(self, inputs: dict[str, Tensor], counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is minimised, and the summed loss of each part."""
        losses = self.pretrainer(**inputs, padded=self.padded)
        return (losses / counts).sum(), losses

    def _pieces(self, rows: slice) -> Iterator[slice]:
        """Cut rows into pieces of at most ``micro_batch``, as equal as can be."""
        size = rows.stop - rows.start
        pieces = -(-size // (self.config.learning.micro_batch or size))
        for piece in range(pieces):
            yield slice(
                rows.start + piece * size // pieces, rows.start + (piece + 1) * size // pieces
            )

    # ------------------------------------------------------------------------------ readings

    def read(self) -> tuple[dict[str, float], float, int]:
        """Return what was added up since the last record; waits for the device.

        Returns:
            The mean loss of each part of the objective, the mean norm of the gradient before
            clipping, and the first step, from 1, whose loss or gradient was not finite; 0 if all
            were.
        """
        *loss, norm, broken = self._window.tolist()
        steps = max(1, self._window_steps)
        means = (value / steps for value in loss)
        return dict(zip(self.parts, means, strict=True)), norm / steps, round(broken)

    def _is_reading(self, done: int) -> bool:
        if self.evaluates_after(done):
            return True
        if self.group.size > 1:
            return done % _TOGETHER_STEPS == 0
        return done % _READ_STEPS == 0 or time.monotonic() - self._shown[1] >= _READ_SECONDS

    def _show(self) -> None:
        """Note a reading for the progress; one that is not finite stops the training."""
        loss, _, broken = self.read()
        tokens, before = self._shown
        now = time.monotonic()
        speed = (self.tokens - tokens) / max(now - before, 1e-9)
        self._shown = (self.tokens, now)
        told = f", {short_number(speed)} tokens/s" if speed else ""
        self.note = f"loss {sum(loss.values()):.3f}{told}"
        self.stopped = bool(broken)

    def evaluates_after(self, done: int) -> bool:
        """Say whether the loss curve gets a row there."""
        every = max(1, self.steps // _RECORDS)
        return done > 0 and (done % every == 0 or self._validates_after(done))

    def _validates_after(self, done: int) -> bool:
        return done % self.config.evaluate_every == 0 or done == self.steps

    def evaluate(self, done: int) -> dict[str, Any]:
        """Return a row of the loss curve, with the validation loss where it is due."""
        loss, norm, _ = self.read()
        self._window.zero_()
        self._window_steps = 0
        tokens, before = self._recorded
        spent = max(time.monotonic() - before, 1e-9)
        row: dict[str, Any] = {
            "step": done,
            "tokens": self.tokens,
            "loss": sum(loss.values()),
            "parts": loss,
            "gradient_norm": norm,
            "rate": self.rate(done - 1),
            "tokens_per_second": round((self.tokens - tokens) / spent),
            "validation": None,
        }
        if self._validates_after(done) and self.validation is not None and self.group.is_first:
            row["validation"] = self.validate(self.validation)
        self._recorded = self._shown = (self.tokens, time.monotonic())
        return row

    def validate(self, batch: Batch[Tensor]) -> dict[str, float]:
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
        return dict(zip(self.parts, (sums / counts).tolist(), strict=True))

    def trained(self) -> Trained:
        """Return which positions and segments had gradients, and the parts of the objective.

        AdamW's second moment of a row is zero where no token ever stood.
        """
        views = (view for _, view in self.optimizer.views(self.optimizer.squares))
        squares = {
            id(value): view for value, view in zip(self.optimizer.parameters, views, strict=True)
        }
        body = self.pretrainer.model.base_model
        positions, first = find_positions(body)
        reached = [
            count_leading(squares[id(table.weight)][start:].any(1))
            if table is not None and id(table.weight) in squares
            else 0
            for table, start in ((positions, first), (find_segments(body), 0))
        ]
        return Trained(None if positions is None else reached[0], reached[1], self.parts)

    def failure(self) -> str:
        """Return what to say if a loss or its gradient was not finite."""
        broken = self.read()[2]
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


def _inputs(corrupted: Corrupted, batch: Batch[Tensor], rows: slice) -> dict[str, Tensor]:
    return {**vars(corrupted[rows]), "is_next": batch.is_next[rows]}
