"""A task, a pattern and a language model, put together: learned vectors in, answers out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from symprompt.engine.batches import make_batches
from symprompt.errors import ConfigError
from symprompt.files.progress import Tick, silent
from symprompt.models import Inputs, LanguageModel
from symprompt.prompts import BiLSTMEncoder, FreeVectors, MLPEncoder, PrefixEncoder, PromptEncoder
from symprompt.runs.environment import make_generator
from symprompt.tasks.config import PatternConfig
from symprompt.tasks.data.examples import draw_limited
from symprompt.tasks.kinds.metrics import accuracy, macro_f1, multirc_scores
from symprompt.tasks.patterns.data import VerbalData, VerbalExample
from symprompt.tasks.patterns.layout import VerbalLayout, Writer, tensorise, tensorise_for_head
from symprompt.tasks.patterns.pattern import (
    MANUAL,
    PAIRS,
    PTUNING,
    Pattern,
    VerbalTask,
    Worded,
    reference_pattern,
)
from symprompt.tasks.trainables import Outcome, hidden_size, refuse_nan, round_shares

SPLITS = ("train", "dev", "val")
_ARTICLES = frozenset({"a", "an", "the"})
_HEAD_SCALE = 0.02


class ClassHead(nn.Module):
    """A layer with tanh and a linear one on a hidden state, as BERT's fine-tuning has; final."""

    def __init__(self, hidden: int, classes: int, *, seed: int, task: str) -> None:
        super().__init__()
        generator = make_generator(seed, "head", task)
        self.inner = nn.Parameter(torch.randn(hidden, hidden, generator=generator) * _HEAD_SCALE)
        self.inner_bias = nn.Parameter(torch.zeros(hidden))
        self.outer = nn.Parameter(torch.randn(classes, hidden, generator=generator) * _HEAD_SCALE)
        self.outer_bias = nn.Parameter(torch.zeros(classes))

    def forward(self, states: Tensor) -> Tensor:
        """Return scores [.., classes] of states [.., hidden]."""
        inner = functional.linear(states, self.inner, self.inner_bias).tanh()
        return functional.linear(inner, self.outer, self.outer_bias)


class VerbalModel:
    """Scores answers of tensorised examples; final.

    With an encoder its vectors stand in the pattern, with one of prefixes every layer reads its
    keys and values; with a head the head's classes are scored instead of words. The vocabulary
    product, the head and the encoder run in the weights' own precision whatever the body's.

    Args:
        backbone: the language model.
        extra: an encoder of vectors or of a prefix, a class head, or None for a manual pattern.
        half: run the body in bfloat16 (autocast), its weights staying as they are; None does so on
            a GPU where they are float32.
    """

    def __init__(
        self,
        backbone: LanguageModel,
        extra: PromptEncoder | ClassHead | None = None,
        *,
        half: bool | None = None,
    ) -> None:
        self.backbone = backbone
        exact = torch.float64 if backbone.dtype == torch.float64 else torch.float32
        self.extra = None if extra is None else extra.to(backbone.device, exact).eval()
        wide = backbone.dtype == torch.float32 and backbone.decoder is not None
        self.half = (wide and backbone.device.type == "cuda") if half is None else half

    def scores(self, layout: VerbalLayout, rows: Tensor, width: int) -> Tensor:
        """Return the answers' scores [b, c]: log-likelihoods, or a head's logits.

        Args:
            layout: the examples.
            rows: [b] which of them.
            width: no sentence of theirs is longer.
        """
        inputs = self.inputs(layout, rows, width)
        sentences = layout.ids.shape[1]
        first = torch.arange(len(rows), device=rows.device)[:, None] * sentences
        which = (first + layout.sentence[rows]).flatten()
        at = layout.at[rows].flatten()
        if isinstance(self.extra, ClassHead):
            return self._classes(self.extra, inputs, at, which, layout.answers)
        logits = self.token_logits(inputs, at, which)
        target = layout.target[rows]
        likelihoods = logits.log_softmax(-1).gather(1, target.flatten()[:, None]).view_as(target)
        weighted = likelihoods * layout.weight[rows].to(likelihoods.dtype)
        nothing = weighted.new_zeros(len(rows), layout.answers)
        return nothing.scatter_add(1, layout.slot[rows], weighted)

    def token_logits(self, inputs: Inputs, at: Tensor, which: Tensor) -> Tensor:
        """Return the logits at places of sentences, [n, v], in the body's precision."""
        with self._precision():
            return self.backbone.logits_at(inputs, at, rows=which)

    def loss(self, layout: VerbalLayout, rows: Tensor, width: int) -> Tensor:
        """Return the losses [b]: cross-entropy among the answers, or minus the only one's score."""
        scores = self.scores(layout, rows, width)
        if layout.answers == 1:
            return -scores[:, 0]
        return functional.cross_entropy(scores, layout.labels[rows], reduction="none")

    def inputs(
        self, layout: VerbalLayout, rows: Tensor, width: int, ids: Tensor | None = None
    ) -> Inputs:
        """Return what the model reads; ids [b, s, width] may take the place of the layout's."""
        tokens = (layout.ids[rows, :, :width] if ids is None else ids).flatten(0, 1)
        embeddings = self.backbone.embed(tokens)
        prefix = self.extra.prefix() if isinstance(self.extra, PrefixEncoder) else None
        if isinstance(self.extra, PromptEncoder) and prefix is None:
            places = layout.vectors[rows].flatten(0, 1)[:, :, None]
            size = (*places.shape[:2], embeddings.shape[2])
            vectors = self.extra()[0].to(embeddings.dtype).expand(size)
            embeddings = embeddings.scatter(1, places.expand(size), vectors)
        lengths = layout.lengths[rows].flatten()
        mask = torch.arange(width, device=rows.device) < lengths[:, None]
        return Inputs(embeddings, mask, prefix=prefix)

    def _classes(
        self, head: ClassHead, inputs: Inputs, at: Tensor, which: Tensor, answers: int
    ) -> Tensor:
        """Return [b, answers]: one state's classes, or one class of each choice's state."""
        with self._precision():
            hidden = self.backbone.states(inputs, grad_model=True)
        states = hidden.flatten(0, 1).index_select(0, which * hidden.shape[1] + at)
        scores: Tensor = head(states.to(head.outer.dtype))
        return scores.view(-1, answers)

    @contextmanager
    def _precision(self) -> Iterator[None]:
        """Run the body in half precision and the vocabulary product in the weights' own."""
        decoder = self.backbone.decoder
        if not self.half or decoder is None:
            yield
            return
        before = decoder.forward

        def whole(hidden: Tensor) -> Tensor:
            with torch.autocast(hidden.device.type, enabled=False):
                states = hidden.to(decoder.weight.dtype)
                return functional.linear(states, decoder.weight, decoder.bias)

        decoder.forward = whole  # type: ignore[method-assign, assignment]
        try:
            # Every weight is cast once a pass, and a cache of casts would outlive a recorded pass.
            with torch.autocast(self.backbone.device.type, torch.bfloat16, cache_enabled=False):
                yield
        finally:
            decoder.forward = before  # type: ignore[method-assign]

    @contextmanager
    def training(self, *, dropout: bool) -> Iterator[None]:
        """Run with the prefix's dropout on, and with the language model's own if asked for."""
        extra = nn.Module() if self.extra is None else self.extra
        extra.train()
        try:
            with self.backbone.dropout(on=dropout):
                yield
        finally:
            extra.eval()


def passes(
    layout: VerbalLayout, *, max_tokens: int, vocabulary: int
) -> Iterator[tuple[np.ndarray, Tensor, int]]:
    """Yield each pass over a split: sorted by length, bounded in tokens and logits.

    Args:
        max_tokens: most tokens in one pass.
        vocabulary: how many logits one position has; a pass has no more than 256 of them for each
            of its tokens at most.

    Yields:
        Its rows, on the host and on the device, and its width.
    """
    sentences, queries = int(layout.ids.shape[1]), int(layout.at.shape[1])
    most = max(1, 256 * max(max_tokens, vocabulary) // (queries * vocabulary))
    for rows, _ in make_batches(
        layout.widths, max_tokens, width=np.asarray, sequences=sentences, most=most
    ):
        yield rows, torch.from_numpy(rows).to(layout.ids.device), layout.width_of(rows)


@torch.no_grad()
def score_split(
    model: VerbalModel, layout: VerbalLayout, *, max_tokens: int, tick: Tick = silent
) -> Tensor:
    """Return the answers' scores of every example of a split, [n, c] on the host."""
    found = torch.zeros(len(layout), layout.answers, dtype=torch.float64)
    size = model.backbone.vocabulary_size
    waiting: list[tuple[np.ndarray, Tensor]] = []
    done = 0
    for rows, place, width in passes(layout, max_tokens=max_tokens, vocabulary=size):
        waiting.append((rows, model.scores(layout, place, width)))
        done += len(rows)
        tick("predicting", done, len(layout), "")
    for rows, scores in waiting:
        found[rows] = scores.to("cpu", torch.float64)
    refuse_nan(not bool(found.isfinite().all()))
    return found


@torch.no_grad()
def write_spans(model: VerbalModel, layout: VerbalLayout, *, max_tokens: int) -> list[list[int]]:
    """Return the tokens that the model writes in the place of every example's span."""
    found: list[list[int]] = [[] for _ in range(len(layout))]
    size = model.backbone.vocabulary_size
    for rows, place, width in passes(layout, max_tokens=max_tokens, vocabulary=size):
        written = _fill(model, layout, place, width)
        counts = (layout.weight[place] > 0).sum(1).tolist()
        for row, tokens, count in zip(rows, written.tolist(), counts, strict=True):
            found[row] = tokens[:count]
    return found


def _fill(model: VerbalModel, layout: VerbalLayout, rows: Tensor, width: int) -> Tensor:
    """Return [b, a] tokens, one for each place, those beyond an example's own without meaning."""
    causal = model.backbone.causal
    ids = layout.ids[rows, :1, :width].clone()
    at = layout.at[rows]
    batch, places = at.shape
    written = torch.zeros_like(at)
    left = layout.weight[rows] > 0
    line = torch.arange(batch, device=rows.device)
    for turn in range(places):
        inputs = model.inputs(layout, rows, width, ids)
        which = line[:, None].expand(batch, places).flatten()
        logits = model.token_logits(inputs, at.flatten(), which)
        best, token = logits.log_softmax(-1).view(batch, places, -1).max(-1)
        if causal:
            place = torch.full_like(line, turn)
        else:
            place = best.masked_fill(~left, -torch.inf).argmax(1)
        chosen = left[line, place]
        written[line, place] = torch.where(chosen, token[line, place], written[line, place])
        left[line, place] = False
        to = (at[line, place] + int(causal)).clamp(max=width - 1)
        # What a causal model wrote last stands beyond its sentence and is not read again.
        ids[line, 0, to] = torch.where(chosen, token[line, place], ids[line, 0, to])
        if not bool(left.any()):
            break
    return written


def same_words(one: str, other: str) -> bool:
    """Return whether all words of one text are in the other; case, marks and articles aside."""
    first, second = _words(one), _words(other)
    if not first or not second:
        return False
    return first <= second or second <= first


def _words(text: str) -> set[str]:
    words = set(re.findall(r"[^\W_]+", text.lower()))
    return words - _ARTICLES or words


def measure(
    task: VerbalTask, examples: Sequence[VerbalExample], predicted: Sequence[int]
) -> dict[str, float]:
    """Return a task's metrics of labelled examples in percent, the main one first."""
    gold = [example.label for example in examples]
    found = {"accuracy": accuracy(gold, predicted), "macro_f1": macro_f1(gold, predicted)}
    groups = [example.group for example in examples]
    found |= multirc_scores(groups, [own == 1 for own in gold], [own == 1 for own in predicted])
    return {name: 100 * found[name] for name in task.metrics}


# ------------------------------------------------------------------------------ problems


def choose_pattern(config: PatternConfig, task: VerbalTask) -> Worded:
    """Return the pattern that a config means, and its verbalizer.

    Raises:
        ConfigError: a name that is no published pattern's, vectors where none are learned or none
            where they are, or not one word for each label.
    """
    published = {one.name: one for one in MANUAL[task.name]}
    if not config.traits.verbal:
        return Worded(config.method, PAIRS[task.name][0])
    learns = config.traits.prompt == "vectors"
    default = PTUNING[task.name] if learns else reference_pattern(task)
    if not config.template or (learns and config.template == default.name):
        found = default
    elif "[MASK" in config.template:
        found = Worded("own", config.template, default.words)
    elif config.template in published:
        found = published[config.template]
    else:
        raise ConfigError(
            f"pattern.template is {config.template!r}, which is neither a pattern with [MASK] nor "
            f"one of {task.name}'s published ones: {', '.join(published)}."
        )
    found = replace(found, words=config.words or found.words)
    found.pattern.check(task)
    if learns != bool(found.pattern.vectors):
        raise ConfigError(
            f'pattern.method = "{config.method}" goes with a pattern '
            f"{'with' if learns else 'without'} vectors <n>, got {found.text!r}; change it, or "
            'leave it empty (--template "") for the published one.'
        )
    wanted = len(task.labels) if task.kind == "labels" else 0
    if len(found.words) != wanted:
        raise ConfigError(
            f"pattern.words are {len(found.words)}; {task.name} takes {wanted}"
            f"{', for ' + ', '.join(task.labels) if wanted else ': examples bring their answers'}; "
            "give as many, or none for the published ones."
        )
    return found


class VerbalProblem:
    """A task asked through a pattern on one model, as tensors on its device; final.

    Args:
        backbone: the model.
        data: the examples.
        config: pattern, method, lengths.
        max_tokens: most tokens in one pass while asking; 0 chooses by device.
        splits: which of the data are tensorised.
        positions: most tokens of a sentence whatever the config allows; 0: the model's trained
            positions.
    """

    def __init__(
        self,
        backbone: LanguageModel,
        data: VerbalData,
        config: PatternConfig,
        *,
        max_tokens: int = 0,
        splits: Sequence[str] = SPLITS,
        positions: int = 0,
    ) -> None:
        self.backbone = backbone
        self.data = data
        self.task = data.task
        self.config = config
        self.worded = choose_pattern(config, data.task)
        self.max_tokens = max_tokens or backbone.token_budget()
        self.max_length = min(config.max_length, positions or backbone.max_length)
        self.examples = {split: self._choose_examples(split) for split in splits}
        self.layouts = {split: self._tensorise(own) for split, own in self.examples.items()}

    def _choose_examples(self, split: str) -> Sequence[VerbalExample]:
        config = self.config
        limits = {"train": config.train_limit, "dev": config.dev_limit, "val": config.test_limit}
        seed = (config.split_seed, split)
        examples = draw_limited(self.data.splits[split], limits.get(split, 0), seed)
        if split != "train":
            return examples
        if self.task.kind == "span" and config.traits.verbal:
            # A reference that is wrong is nothing to make likely; PET leaves them out too.
            examples = [example for example in examples if example.label == 1]
        if self.task.kind == "choices" and config.mirror:
            examples = [*examples, *map(_mirrored, examples)]
        return examples

    def _tensorise(self, examples: Sequence[VerbalExample]) -> VerbalLayout:
        def writer(pattern: Pattern, words: Sequence[str] | None) -> Writer:
            return Writer(pattern, self.backbone.vocabulary, words, max_length=self.max_length)

        device = self.backbone.device
        if not self.config.traits.verbal:
            writers = [writer(Pattern.parse(text), None) for text in PAIRS[self.task.name]]
            return tensorise_for_head(
                examples, writers, answers=len(self.task.labels), device=device
            )
        span = self.task.kind == "span"
        return tensorise(
            examples,
            writer(self.worded.pattern, self.worded.words),
            # A span is written place by place, all of it masked at first.
            spans="together" if span else self.config.spans,
            average="mean" if span else self.config.average,
            device=device,
        )

    def make_extra(self, seed: int) -> PromptEncoder | ClassHead | None:
        """Make what stands beside the model: an encoder, a head or nothing.

        Raises:
            ModelError: a prefix would not be read by every layer of this kind of model.
        """
        config, backbone, names = self.config, self.backbone, (self.task.name,)
        if config.traits.prompt == "prefix":
            return PrefixEncoder(
                names,
                backbone.prefix_shape,
                config.prefix_length,
                layers=config.prefix_layers,
                kind=config.prefix_encoder,
                hidden=hidden_size(backbone),
                dropout=config.prefix_dropout,
                seed=(seed, "prefix"),
            )
        if config.traits.prompt == "vectors":
            shape, parts = (self.worded.pattern.vectors, backbone.width), (seed, "pattern")
            if config.encoder == "bilstm":
                hidden = config.lstm_hidden or backbone.width
                return BiLSTMEncoder(names, *shape, seed=parts, lstm_hidden=hidden)
            plain = FreeVectors if config.encoder == "free" else MLPEncoder
            return plain(names, *shape, seed=parts)
        if config.traits.verbal:
            return None
        # A class for each label, or one score for each of an example's choices.
        classes = 1 if self.task.kind == "choices" else len(self.task.labels)
        return ClassHead(hidden_size(backbone), classes, seed=seed, task=self.task.name)

    def make_model(self, seed: int) -> VerbalModel:
        """Make the model with what stands beside it."""
        return VerbalModel(self.backbone, self.make_extra(seed))

    def load_model(self, tensors: Mapping[str, Tensor], *, half: bool | None) -> VerbalModel:
        """Return the model as training left it, from its stored parameters.

        Raises:
            RuntimeError, KeyError: they do not fit.
        """
        # A network that made vectors or a prefix is not stored, only what it gave.
        self.config = replace(self.config, prefix_encoder="free", encoder="free")
        model = VerbalModel(self.backbone, self.make_extra(0), half=half)
        weights = dict(self.backbone.model.named_parameters())
        with torch.no_grad():
            if isinstance(model.extra, ClassHead):
                names = model.extra.state_dict()
                model.extra.load_state_dict({name: tensors[f"extra.{name}"] for name in names})
            elif isinstance(model.extra, PrefixEncoder):
                model.extra.put(tensors["prefix"])
            elif isinstance(model.extra, FreeVectors):
                model.extra.vectors.copy_(tensors["vectors"][None])
            for name, value in tensors.items():
                if name.startswith("model."):
                    weights[name.removeprefix("model.")].copy_(value)
        return model

    # ------------------------------------------------------------------------------ answers

    def ask(
        self,
        model: VerbalModel,
        split: str,
        *,
        probabilities: bool = False,
        tick: Tick = silent,
    ) -> Outcome:
        """Return what the model answers to a split as it is now, with figures if it has labels.

        A row has the label predicted and its probability among the example's answers; for WSC,
        where nothing is chosen, what the model wrote.

        Args:
            probabilities: give those of all labels too.
        """
        predicted, _, beside = self._answer(model, split, tick, probabilities=probabilities)
        examples, rows = self.examples[split], []
        for example, label, own in zip(examples, predicted, beside, strict=True):
            row = {"id": example.id, "prediction": self.task.labels[label], **own}
            if example.label is not None:
                row["gold"] = self.task.labels[example.label]
            rows.append(row)
        labelled = all(example.label is not None for example in examples)
        cut = self.cuts()[split]
        note = (
            f"examples longer than {self.max_length} tokens: {cut['examples']}; the ends of their "
            f"longest fields were left out, {cut['tokens']} tokens in all"
        )
        return Outcome(
            measure(self.task, examples, predicted) if labelled else {},
            rows,
            (note,) if cut["examples"] else (),
        )

    def look(self, model: VerbalModel) -> tuple[float, float]:
        """Return accuracy in percent and loss on dev, which chooses."""
        predicted, loss, _ = self._answer(model, "dev")
        return 100 * accuracy(self.layouts["dev"].labels.tolist(), predicted), loss

    def _answer(
        self,
        model: VerbalModel,
        split: str,
        tick: Tick = silent,
        *,
        probabilities: bool = False,
    ) -> tuple[list[int], float, list[dict[str, Any]]]:
        """Return labels, the mean loss of the examples that have one, and what a row has beside."""
        layout, examples = self.layouts[split], self.examples[split]
        scores = score_split(model, layout, max_tokens=self.max_tokens, tick=tick)
        if layout.answers == 1:
            tokens = write_spans(model, layout, max_tokens=self.max_tokens)
            texts = [self.backbone.vocabulary.tokenizer.decode(one).strip() for one in tokens]
            right = [
                int(same_words(text, example.choices[0]))
                for text, example in zip(texts, examples, strict=True)
            ]
            true = [row for row, example in enumerate(examples) if example.label == 1]
            loss = -float(scores[true].mean()) if true else 0.0
            return right, loss, [{"written": text} for text in texts]
        labels = layout.labels.cpu()
        loss = float(functional.cross_entropy(scores, labels)) if bool((labels >= 0).all()) else 0.0
        shares = scores.softmax(1)
        highest, predicted = shares.max(1)
        beside: list[dict[str, Any]] = [{"probability": round(one, 6)} for one in highest.tolist()]
        for row, own in zip(beside, shares.tolist() if probabilities else (), strict=False):
            row["probabilities"] = round_shares(self.task.labels, own)
        return predicted.tolist(), loss, beside

    def cuts(self) -> dict[str, dict[str, int]]:
        """Return split -> how many examples lost tokens to fit, and how many tokens."""
        return {
            split: {"examples": layout.cut[0], "tokens": layout.cut[1]}
            for split, layout in self.layouts.items()
        }


def _mirrored(example: VerbalExample) -> VerbalExample:
    """Return an example of COPA with its choices exchanged."""
    first, second = example.choices
    return replace(
        example,
        id=f"{example.id}-mirrored",
        fields={**example.fields, "choice1": second, "choice2": first},
        label=None if example.label is None else 1 - example.label,
        choices=(second, first),
    )
