"""The pretraining objectives: masked tokens (MLM), next sentence (NSP), span boundary (SBO).

Of the last layer's states only those that a head reads are used, 19 of 128 tokens with MLM. Keys
and values are needed of every token; the query, the output projection and the feed-forward part,
five sixths of the layer's weights, only at the queried positions. The result is the same.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertForMaskedLM, BertForPreTraining, ElectraForMaskedLM

from symprompt.pretraining.batch import Corrupted
from symprompt.pretraining.model import PretrainedModel
from symprompt.runs.environment import derive_seed


def encode_at(encoder: nn.Module, state: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
    """Return z [b, n, h] of the encoder's last layer at the positions [b, n].

    Args:
        encoder: of a BERT or ELECTRA model of transformers.
        state: [b, t, h], the embedded tokens.
        mask: [b, 1, t, t] bool, or None where every token is seen; its rows are all the same.
        positions: [b, n] int64; one may stand several times.
    """
    *below, last = cast(nn.ModuleList, encoder.layer)
    for layer in below:
        state = layer(state, mask)
    return _layer_at(last, state, mask, positions)


def _layer_at(layer: Any, state: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
    inner = layer.attention.self
    asked = take(state, positions)

    def heads(values: Tensor) -> Tensor:
        return values.view(*values.shape[:2], inner.num_attention_heads, -1).transpose(1, 2)

    mixed = functional.scaled_dot_product_attention(
        heads(inner.query(asked)),
        heads(inner.key(state)),
        heads(inner.value(state)),
        attn_mask=None if mask is None else mask[:, :, :1].expand(-1, -1, asked.shape[1], -1),
        dropout_p=inner.dropout.p if layer.training else 0.0,
    )
    attended = layer.attention.output(mixed.transpose(1, 2).flatten(2), asked)
    return cast(Tensor, layer.output(layer.intermediate(attended), attended))


def take(hidden: Tensor, positions: Tensor) -> Tensor:
    """Return [b, n, h], the states at the positions [b, n]."""
    rows, length, size = hidden.shape
    first = torch.arange(rows, device=hidden.device)[:, None] * length
    found = hidden.reshape(rows * length, size).index_select(0, (first + positions).flatten())
    return found.view(*positions.shape, size)


HEADS_FILE = "heads.safetensors"
"""Beside the model: what was trained with it but is no part of a masked language model."""
_OFFSET_SIZE = 200
_TOKENS_PER_WORD = 4
_INITIAL_SPREAD = 0.02
_IGNORED = -100


class Loss(NamedTuple):
    """A loss summed over the queried positions, in float32, and how many there are.

    Those of micro-batches add up to those of the whole batch.
    """

    total: Tensor
    asked: Tensor


def count_asked(corrupted: Corrupted, objective: str) -> dict[str, Tensor]:
    """Return how many predictions each part of the objective has, to weigh micro-batches by."""
    asked = corrupted.asked.sum()
    rows = torch.full_like(asked, len(corrupted.ids))
    return {part: rows if part == "nsp" else asked for part in objective.split("+")}


def combine(losses: dict[str, Loss], counts: dict[str, Tensor]) -> Tensor:
    """Return the sum over the objectives of their mean losses (equation 11.17 for MLM and SBO).

    Args:
        losses: of a batch or a micro-batch.
        counts: of the whole batch (``count_asked``), so that the gradients of the micro-batches
            add up to the gradient of the whole batch.
    """
    means = [loss.total / counts[name].clamp(min=1) for name, loss in losses.items()]
    return torch.stack(means).sum()


class SpanBoundaryHead(nn.Module):
    """Predicts a token of a span from the two tokens outside it and its position (11.17 to 11.20).

    s_i = FFN([z_{s-1}; z_{e+1}; p_{i-s+1}]) and y_i = softmax(W_V s_i). Where the chapter leaves it
    open this is SpanBERT's: each of the two layers is GELU(W x + b) and a LayerNorm, the relative
    positions p have 200 dimensions, W_V is the token embedding matrix, and there is a bias for
    each token. Positions count tokens; beyond four a word, at the longest span, they share the
    last p.
    """

    def __init__(self, hidden: int, embedding: int, vocabulary: int, span_limit: int) -> None:
        super().__init__()
        self.places = nn.Embedding(_TOKENS_PER_WORD * span_limit, _OFFSET_SIZE)
        self.first = nn.Linear(2 * hidden + _OFFSET_SIZE, hidden)
        self.first_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.second = nn.Linear(hidden, embedding)
        self.second_norm = nn.LayerNorm(embedding, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights as BERT does: normal with a spread of 0.02, biases zero."""
        for module in (self.places, self.first, self.second):
            nn.init.normal_(module.weight, std=_INITIAL_SPREAD, generator=generator)
        for layer in (self.first, self.second):
            nn.init.zeros_(layer.bias)

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


class Pretrainer(nn.Module):
    """A model together with its objectives: corrupted sequences in, losses out.

    The heads and the last layer run at the queried positions only: of 128 tokens at 19.
    """

    def __init__(
        self,
        model: PretrainedModel,
        objective: str = "mlm",
        *,
        span_limit: int = 10,
        seed: int = 0,
    ) -> None:
        """Take a model of ``make_model``.

        Args:
            model: with the NSP head if the objective is "mlm+nsp".
            objective: "mlm", "mlm+nsp" or "mlm+sbo".
            span_limit: longest span in words, for the SBO.
            seed: of the SBO head's weights.
        """
        super().__init__()
        self.model = model
        self.objective = objective
        self.span_boundary: SpanBoundaryHead | None = None
        if objective == "mlm+sbo":
            vocabulary, embedding = self._embedding().shape
            # Layers draw their first weights from the global state, which is the caller's.
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                head = SpanBoundaryHead(model.config.hidden_size, embedding, vocabulary, span_limit)
            head.initialise(torch.Generator().manual_seed(derive_seed(seed, "span boundary")))
            self.span_boundary = head.to(self._embedding())

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
    ) -> dict[str, Loss]:
        """Return the loss of each objective as sum and count: "mlm", and "nsp" or "sbo".

        The vocabulary product runs in the model's dtype, the softmax and the sums in float32. Call
        as ``pretrainer(**vars(corrupted), is_next=batch.is_next, padded=...)``.

        Args:
            ids, lengths, segments, positions, targets, asked, left, right, offset: of Corrupted.
            is_next: [b] bool; used by the NSP alone.
            padded: whether any row may hold padding; without, attention takes no mask and is fast.
        """
        mask = _attention_mask(lengths, ids.shape[1]) if padded else None
        places, wanted = positions.shape[1], [positions]
        if self.span_boundary is not None:
            wanted += [left, right]
        with_next = isinstance(self.model, BertForPreTraining)
        if with_next:
            wanted.append(torch.zeros_like(positions[:, :1]))
        hidden = self._encode(ids, segments, mask, torch.cat(wanted, dim=1))
        answers = torch.where(asked, targets, _IGNORED).flatten()
        count = asked.sum()
        masked = hidden[:, :places].flatten(0, 1)
        losses = {"mlm": Loss(_cross_entropy(self._predict(masked), answers), count)}
        if with_next:
            # In transformers class 0 is "follows", class 1 "does not".
            rows = torch.full_like(count, len(ids))
            follows = self._predict_next(hidden[:, -1:])
            losses["nsp"] = Loss(_cross_entropy(follows, (~is_next).long()), rows)
        if self.span_boundary is not None:
            before = hidden[:, places : 2 * places].flatten(0, 1)
            after = hidden[:, 2 * places : 3 * places].flatten(0, 1)
            logits = self.span_boundary(before, after, offset.flatten(), self._embedding())
            losses["sbo"] = Loss(_cross_entropy(logits, answers), count)
        return losses

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
        cast(PretrainedModel, saved).save_pretrained(folder)
        heads = {
            name: value.detach().to("cpu", dtype, copy=True).contiguous()
            for name, value in self.state_dict().items()
            if name.removeprefix("model.") not in wanted
        }
        if heads:
            save_file(heads, Path(folder) / HEADS_FILE, metadata={"format": "pt"})

    def _encode(
        self, ids: Tensor, segments: Tensor, mask: Tensor | None, positions: Tensor
    ) -> Tensor:
        """Return z [b, n, h] at the positions [b, n]."""
        model = self.model
        body = model.electra if isinstance(model, ElectraForMaskedLM) else model.bert
        state = self._embed(body.embeddings, ids, segments)
        if hasattr(body, "embeddings_project"):
            state = cast(nn.Module, body.embeddings_project)(state)
        return encode_at(body.encoder, state, mask, positions)

    def _embed(self, tables: nn.Module, ids: Tensor, segments: Tensor) -> Tensor:
        """Return the sum of word, position and segment embeddings, normalised, [b, t, e].

        As the model's own module does, but for the gradients: a position's or a segment's is a sum
        over all sequences, done as such and not as a lookup's, and the tables stay in float32 when
        the rest is bfloat16, in which a sum of many thousand terms stops growing early.
        """
        words = cast(nn.Embedding, tables.word_embeddings)
        places = cast(nn.Embedding, tables.position_embeddings).weight[: ids.shape[1]]
        kinds = cast(nn.Embedding, tables.token_type_embeddings).weight
        # Segments are 0 or 1.
        kind = kinds[0] + segments[:, :, None].to(kinds.dtype) * (kinds[1] - kinds[0])
        state = functional.embedding(ids, words.weight, words.padding_idx) + places + kind
        norm = cast(nn.LayerNorm, tables.LayerNorm)
        return cast(Tensor, cast(nn.Dropout, tables.dropout)(norm(state.to(norm.weight.dtype))))

    def _predict(self, hidden: Tensor) -> Tensor:
        """Return [n, v], the logits W_V z_i (11.2.1), z_i after the transform of BERT's head."""
        model = self.model
        if isinstance(model, ElectraForMaskedLM):
            state, bias = model.generator_predictions(hidden), model.generator_lm_head.bias
        else:
            head = model.cls.predictions
            state, bias = head.transform(hidden), head.decoder.bias
        return functional.linear(state, self._embedding().to(state.dtype), bias)

    def _predict_next(self, first: Tensor) -> Tensor:
        """Return [b, 2], the logits W_NSP h (11.2.2), h being the pooled [CLS] as in BERT.

        Args:
            first: [b, 1, h], z of the first token.
        """
        model = cast(BertForPreTraining, self.model)
        return cast(Tensor, model.cls.seq_relationship(cast(nn.Module, model.bert.pooler)(first)))

    def _embedding(self) -> Tensor:
        return cast(Tensor, self.model.get_input_embeddings().weight)


def _attention_mask(lengths: Tensor, length: int) -> Tensor:
    """Return [b, 1, t, t] bool; with four axes transformers takes it as it is, values unread."""
    there = torch.arange(length, device=lengths.device) < lengths[:, None]
    return there[:, None, None, :].expand(-1, 1, length, -1)


def _cross_entropy(logits: Tensor, answers: Tensor) -> Tensor:
    """Return the summed -log P(answer), in float32 or wider; answers of -100 are left out."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(wide, answers, ignore_index=_IGNORED, reduction="sum")
