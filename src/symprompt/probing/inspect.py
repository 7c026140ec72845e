"""Look at a run's prompts: their words and blanks, and which words the learned vectors are near.

A learned vector need not be near any word; its norm beside that of the words shows how far from all
of them it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from symprompt.errors import ConfigError
from symprompt.facts.types import choose_names
from symprompt.models import LanguageModel
from symprompt.probing.ask import Run
from symprompt.probing.methods.base import method_class
from symprompt.probing.queries import FURTHER_PARTS, SUBJECT_PART, object_parts
from symprompt.probing.results import load_card, load_facts, load_prompts, run_config
from symprompt.prompts import Template

Nearness = Literal["cosine", "euclidean"]


@dataclass(frozen=True)
class Near:
    """A word of the vocabulary and how near it is: a cosine, or a distance."""

    text: str
    value: float


@dataclass(frozen=True)
class LearnedVector:
    """One learned vector.

    Attributes:
        part: one of ``object_parts``, or ``SUBJECT_PART``.
        slot: its number in the template, from 1.
        norm: its Euclidean norm.
        relative_norm: the norm divided by the mean norm of the words' embeddings.
        nearest: the nearest words, nearest first.
    """

    part: str
    slot: int
    norm: float
    relative_norm: float
    nearest: tuple[Near, ...]


@dataclass(frozen=True)
class PromptView:
    """One relation's prompt.

    Attributes:
        prompts: part -> the sentence, learned vectors written v1, v2, ...
        about: what is asked, where nothing was learned; else "".
        vectors: what was learned, part after part.
    """

    relation: str
    label: str
    prompts: dict[str, str]
    about: str
    vectors: tuple[LearnedVector, ...]


def describe_prompts(
    run: Run,
    *,
    relations: Sequence[str] = (),
    top: int = 5,
    by: Nearness = "cosine",
    model: str = "",
    device: str = "auto",
) -> list[PromptView]:
    """Return every relation's prompt, with the words its learned vectors are nearest to.

    Nearness is between the vectors and the input embeddings as the model reads them. The model is
    loaded only if something was learned.

    Args:
        relations: which; none means all.
        top: how many words of each vector.
        by: cosine (larger is nearer) or euclidean (a distance, smaller is nearer).
        model: where the model is now, if it moved since the run was made.

    Raises:
        SympromptError: one clear sentence.
    """
    if top < 1:
        raise ConfigError(f"top is {top}; it must be at least 1.")
    if by not in ("cosine", "euclidean"):
        raise ConfigError(f"by is {by!r}; allowed are: cosine, euclidean.")
    folder = run.folder
    config, card = run_config(folder), load_card(folder)
    names = choose_names(list(card["relations"]), relations, str(folder.path))
    stored = load_prompts(folder, card["parts"])
    # Weights of manual templates and changes inside the model are parts too, and near no word.
    shown = (*object_parts(config.method.object_prompts), SUBJECT_PART, *FURTHER_PARTS)
    stored = {part: value for part, value in stored.items() if part in shown}
    words = _Words(run.load_backbone(model, device), by, top) if stored else None
    swapped = config.method.blanks == "swapped"
    kind = method_class(config.method.name)
    facts = None if stored else load_facts(folder)
    views = []
    for name in names:
        about = card["relations"][name]
        template = Template.parse(about["template"])
        place = list(card["relations"]).index(name)
        prompts: dict[str, str] = {}
        vectors: list[LearnedVector] = []
        for part, value in stored.items():
            back = part in (SUBJECT_PART, *FURTHER_PARTS)
            turned = template.swapped() if back and swapped else template
            # Templates of different lengths share a table; a short one leaves its last rows empty.
            count = min(template.vectors, value.shape[1])
            if "prompts" in about:
                # One vector for each word of the manual templates, one template after the other.
                count = value.shape[1]
            else:
                prompts[part] = write_template(turned)
            if words is not None:
                vectors += words.near(part, value[place, :count])
        said = "" if facts is None else kind.describe(str(template), facts[name])
        if "prompt" in about:
            said = f"words that were searched for: {about['prompt']}"
        elif "prompts" in about:
            # With their weights, heaviest first.
            weights: Sequence[float | None] = about.get("prompt_weights") or ()
            pairs = zip_longest(about["prompts"], weights)
            listed = [
                text if weight is None else f"{weight:.3f} {text}"
                for text, weight in sorted(pairs, key=lambda pair: -(pair[1] or 0))
            ]
            said = f"{len(about['prompts'])} manual templates: {'; '.join(listed)}"
        views.append(PromptView(name, about["label"], prompts, said, tuple(vectors)))
    return views


def write_template(template: Template) -> str:
    """Return a template with its learned vectors numbered: "v1 v2 [X] v3 [Y]"."""
    text, slot = "", 0
    for piece in template.pieces:
        shown = str(piece)
        if piece.kind == "vectors":
            shown = " ".join(f"v{slot + step + 1}" for step in range(piece.count))
            slot += piece.count
        text += (" " if piece.space else "") + shown
    return text


class _Words:
    """The words' embeddings, to look vectors up among; final."""

    def __init__(self, backbone: LanguageModel, by: Nearness, top: int) -> None:
        self.vocabulary = backbone.vocabulary
        self.by, self.top = by, min(top, len(backbone.vocabulary))
        every = torch.arange(len(backbone.vocabulary), device=backbone.device)
        with torch.no_grad():
            self.table = backbone.embed(every).float().cpu()
        self.mean_norm = float(self.table.norm(dim=1).mean())

    def near(self, part: str, vectors: Tensor) -> list[LearnedVector]:
        """Return what one part's vectors [n, width] of a relation are near to."""
        vectors = vectors.float()
        if self.by == "cosine":
            table = functional.normalize(vectors, dim=1) @ functional.normalize(self.table, dim=1).T
            values, ids = table.topk(self.top, dim=1)
        else:
            table = torch.cdist(vectors, self.table, compute_mode="donot_use_mm_for_euclid_dist")
            values, ids = table.topk(self.top, dim=1, largest=False)
        return [
            LearnedVector(
                part,
                slot + 1,
                float(vector.norm()),
                float(vector.norm()) / self.mean_norm,
                tuple(
                    Near(self.vocabulary.text(token), value)
                    for token, value in zip(ids[slot].tolist(), values[slot].tolist(), strict=True)
                ),
            )
            for slot, vector in enumerate(vectors)
        ]
