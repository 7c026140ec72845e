"""From written prompts to soft ones: which are taken, and the vectors their words become."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import ConfigError
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig
from symprompt.probing.manual_templates import words_to_vectors
from symprompt.probing.methods import LPAQA, Sentences, SoftPrompt
from symprompt.prompts import SoftMixture, Template
from symprompt.runs.environment import make_generator

Written = Sequence[Sequence[Template]]


@torch.no_grad()
def choose_prompts(
    config: RunConfig,
    backbone: LanguageModel,
    prompts: Written,
    sentences: Sentences,
    allowed: Tensor,
) -> tuple[tuple[Template, ...], ...]:
    """Return each relation's ``ensemble.most`` prompts with the best P@1, best first.

    Args:
        sentences: some training facts; a relation without any keeps its first prompts.
        allowed: [relation, v] bool, the answers each relation may give.
    """
    most = config.ensemble.most
    tokens = config.max_tokens or backbone.token_budget()
    asked = LPAQA(backbone, prompts, config.ensemble, max_tokens=tokens)
    chosen = []
    for relation, own in enumerate(prompts):
        (rows,) = np.nonzero(sentences.relations == relation)
        best = list(range(len(own)))
        if len(rows) and len(own) > most:
            best = asked.answers(sentences, rows, relation, allowed[relation]).best()
        chosen.append(tuple(own[place] for place in best[:most]))
    return tuple(chosen)


def make_soft_prompt(
    config: RunConfig, backbone: LanguageModel, relations: Sequence[str], prompts: Written
) -> SoftPrompt:
    """Build the method from written prompts.

    Raises:
        ConfigError: no prompt has a word to make a vector of.
        ModelError: the layers of the model cannot be found, where they are to be changed.
    """
    vocabulary = backbone.vocabulary
    soft = [[words_to_vectors(vocabulary, template) for template in own] for own in prompts]
    tokens = [[token for _, ids in own for token in ids] for own in soft]
    count = max(len(ids) for ids in tokens)
    if count == 0:
        raise ConfigError(
            "the written prompts have no word, so softprompt has nothing to train; name others "
            "with --prompts."
        )
    deep = None
    if config.ensemble.deep and backbone.layers.count > 1:
        deep = (backbone.layers.count - 1, backbone.layers.width)
    mixture = SoftMixture(
        relations,
        _start(config, backbone, relations, tokens, count),
        [len(own) for own in prompts],
        seed=(config.seed, "forth"),
        learn_weights=config.ensemble.weighing == "gradient",
        deep=deep,
    )
    exact = torch.float64 if backbone.dtype == torch.float64 else torch.float32
    return SoftPrompt(
        backbone,
        [[template for template, _ in own] for own in soft],
        mixture.to(device=backbone.device, dtype=exact),
        max_tokens=config.max_tokens or backbone.token_budget(),
    )


@torch.no_grad()
def _start(
    config: RunConfig,
    backbone: LanguageModel,
    relations: Sequence[str],
    tokens: Sequence[Sequence[int]],
    count: int,
) -> Tensor:
    """Return what the vectors start from, [relation, count, width]: words, or draws like words."""
    start = torch.zeros(len(relations), count, backbone.width)
    every = torch.arange(backbone.vocabulary_size, device=backbone.device)
    table = backbone.embed(every).float().cpu()
    for row, (name, ids) in enumerate(zip(relations, tokens, strict=True)):
        if config.prompt.start == "manual":
            start[row, : len(ids)] = table[torch.tensor(ids, dtype=torch.long)]
        else:
            generator = make_generator(config.seed, "forth", name)
            draw = torch.randn(len(ids), table.shape[1], generator=generator)
            start[row, : len(ids)] = table.mean() + table.std() * draw
    return start
