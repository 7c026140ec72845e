"""From a config to something trainable: facts the model can answer, laid out, and a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from symprompt.errors import ConfigError
from symprompt.facts import SPLITS, FactSet, Split, load_facts
from symprompt.models import FullTuning, LanguageModel, LoraTuning, StackedModel, Tuning
from symprompt.probing.config import SEVERAL_PROMPTS, FactsConfig, PromptConfig, RunConfig
from symprompt.probing.drop_unusable import drop_unusable, listed_words, refuse_empty
from symprompt.probing.manual_templates import (
    load_ensemble,
    longest_prompt,
    make_templates,
    manual_template,
    words_to_vectors,
)
from symprompt.probing.methods import (
    LPAQA,
    SPE,
    AutoPrompt,
    FineTune,
    Majority,
    Manual,
    Method,
    OptiPrompt,
    PTuning,
    Sentences,
    Spelling,
)
from symprompt.probing.methods.autoprompt import placeholder
from symprompt.probing.soft_prompts import choose_prompts, make_soft_prompt
from symprompt.probing.tensorise import allowed_answers, refuse_few
from symprompt.probing.tensorise import allowed_tokens as allowed_tokens
from symprompt.probing.tensorise import lay_out as lay_out
from symprompt.probing.tensorise import spell as spell
from symprompt.prompts import (
    BiLSTMEncoder,
    FreeVectors,
    MLPEncoder,
    PromptEncoder,
    Template,
    TriggerTokens,
)

_CHOOSE_BY = 64
"""How many training facts of a relation its prompts are chosen by."""


@dataclass(frozen=True)
class Problem:
    """Facts that this model can be asked, as tensors on its device.

    Attributes:
        facts: what is left after dropping, with the counts of what was dropped.
        templates: one per relation.
        allowed: [relation, v] bool, the answers each relation may give; v tokens, or names.
        sentences: each non-empty split, laid out.
        prompts: each relation's written prompts, where the method has several.
        spelling: how names of any length are asked for; None where tokens are the answers.
    """

    backbone: LanguageModel
    facts: FactSet
    templates: tuple[Template, ...]
    allowed: Tensor
    sentences: dict[Split, Sentences]
    prompts: tuple[tuple[Template, ...], ...] = ()
    spelling: Spelling | None = None

    def text(self, answer: int) -> str:
        """Return an answer as people read it."""
        if self.spelling is not None:
            return self.spelling.names.texts[answer]
        return self.backbone.vocabulary.text(answer)

    def counts(self) -> dict[str, int] | None:
        """Return how many candidates each relation has; None where tokens are the answers."""
        if self.spelling is None:
            return None
        return dict(zip(self.relations, self.allowed.sum(1).tolist(), strict=True))

    def candidates(self, k: int) -> int:
        """Return how many candidates to keep of every fact: k, or all where there are fewer."""
        return min(k, int(self.allowed.sum(1).min()))

    @property
    def several(self) -> tuple[tuple[Template, ...], ...]:
        """Each relation's written prompts, none where the method has one template."""
        return self.prompts or ((),) * len(self.templates)

    @property
    def relations(self) -> tuple[str, ...]:
        """The relations' names, in the order of every leading axis."""
        return self.facts.names

    def part(self, first: int, stop: int) -> Problem:
        """Return the problem of some consecutive relations alone."""
        sentences: dict[Split, Sentences] = {}
        for split, every in self.sentences.items():
            owner = every.forth.relations
            rows = np.flatnonzero((owner >= first) & (owner < stop))
            if len(rows):
                sentences[split] = every.take(rows, owner[rows] - first)
        return Problem(
            self.backbone,
            self.facts.select(self.relations[first:stop]),
            self.templates[first:stop],
            self.allowed[first:stop],
            sentences,
        )


def load_config_facts(source: str, config: FactsConfig) -> FactSet:
    """Load a source of facts as a config says."""
    return load_facts(
        source,
        layout=config.layout,
        relations=config.relations,
        templates=config.templates,
        seed=config.split_seed,
    )


def prepare(
    config: RunConfig,
    backbone: LanguageModel,
    facts: FactSet,
    *,
    prompts: Mapping[str, Sequence[str]] | None = None,
) -> Problem:
    """Drop what cannot be asked (counted), lay out the rest, and say which answers are allowed.

    Args:
        prompts: each relation's written prompts, if they are known; otherwise they are loaded and
            chosen as the config says.

    Raises:
        DataError: a relation has no usable facts in a split that the method needs, or with
            ``facts.strict`` any fact cannot be used.
        ConfigError: K is larger than a relation's set of answers, or the config asks what a causal
            model cannot be asked.
    """
    if backbone.causal:
        _refuse_for_causal(config)
    written: tuple[tuple[Template, ...], ...] = ()
    if config.method.name in SEVERAL_PROMPTS:
        written = _written(config, backbone, facts, prompts or {})
        templates = tuple(longest_prompt(backbone.vocabulary, own) for own in written)
    else:
        templates = make_templates(config, backbone.vocabulary, facts)
    usable = drop_unusable(
        config, backbone.vocabulary, facts, templates, max_length=backbone.max_length
    )
    refuse_empty(config, usable)
    spelling = None
    if config.facts.objects == "any-length":
        spelling = spell(config, backbone, usable, templates, listed_words(config))
        allowed = spelling.allowed
    else:
        allowed = allowed_answers(config, backbone, usable, templates).to(backbone.device)
    refuse_few(config, usable, allowed)
    swapped = config.method.blanks == "swapped"
    sentences: dict[Split, Sentences] = {}
    answers: dict[tuple[str, str], set[str]] = {}
    for split in SPLITS:
        # Training may know what training facts say, dev also dev's, and only test everything.
        # Facts that were dropped are true all the same.
        for fact in facts.facts(split):
            answers.setdefault((fact.relation, fact.subject), set()).add(fact.object)
        listed = usable.facts(split)
        if listed:
            sentences[split] = lay_out(
                backbone,
                templates,
                usable.names,
                listed,
                answers,
                swapped=swapped,
                spelling=spelling,
                several=bool(written),
            )
    return Problem(backbone, usable, templates, allowed, sentences, written, spelling)


def _written(
    config: RunConfig, backbone: LanguageModel, facts: FactSet, known: Mapping[str, Sequence[str]]
) -> tuple[tuple[Template, ...], ...]:
    """Return each relation's written prompts: the known ones, or loaded and chosen."""
    vocabulary = backbone.vocabulary
    if set(facts.names) <= set(known):
        return tuple(tuple(map(Template.parse, known[name])) for name in facts.names)
    written = load_ensemble(config, vocabulary, facts)
    if config.method.name != "softprompt" or not config.ensemble.most:
        return written
    templates = tuple(longest_prompt(vocabulary, own) for own in written)
    usable = drop_unusable(config, vocabulary, facts, templates, max_length=backbone.max_length)
    listed = [
        relation.train[at]
        for relation in usable.relations
        for at in sorted(set(np.linspace(0, len(relation.train) - 1, _CHOOSE_BY, dtype=int)))
        if relation.train
    ]
    if not listed:
        return tuple(own[: config.ensemble.most] for own in written)
    answers = {(fact.relation, fact.subject): [fact.object] for fact in listed}
    some = lay_out(backbone, templates, facts.names, listed, answers, swapped=False, several=True)
    allowed = allowed_answers(config, backbone, usable, templates).to(backbone.device)
    return choose_prompts(config, backbone, written, some, allowed)


def _refuse_for_causal(config: RunConfig) -> None:
    """Refuse ways back that need a model which sees both sides."""
    if config.method.name != "spe":
        return
    if config.method.blanks == "kept":
        raise ConfigError(
            'method.blanks = "kept" leaves the subject before the object, where a causal model '
            'cannot see the object; use "swapped".'
        )
    if config.method.masking == "whole":
        raise ConfigError(
            'method.masking = "whole" hides a subject\'s tokens from each other, and a causal '
            'model masks nothing: each token follows from those before it; use "one".'
        )


def make_method(config: RunConfig, problem: Problem) -> Method:
    """Build the method a config names, its encoders drawn from the config's seed."""
    backbone = problem.backbone
    if config.method.name == "manual":
        for name, template in zip(problem.relations, problem.templates, strict=True):
            if template.vectors:
                raise ConfigError(
                    f"the manual template of relation {name} has learned vectors, and manual "
                    f"prompts learn none: {template}."
                )
        return Manual(backbone)
    if config.method.name == "finetune":
        return _make_fine_tune(config, problem)
    if config.method.name == "lpaqa":
        return LPAQA(
            backbone,
            problem.prompts,
            config.ensemble,
            max_tokens=config.max_tokens or backbone.token_budget(),
        )
    if config.method.name == "softprompt":
        return make_soft_prompt(config, backbone, problem.relations, problem.prompts)
    if config.method.name == "majority":
        return Majority(backbone, object_counts(problem))
    if config.method.name == "autoprompt":
        return _make_autoprompt(config, problem)
    forth = make_encoder(config, problem, "forth")
    if isinstance(forth, FreeVectors) and config.method.name == "optiprompt":
        return OptiPrompt(backbone, forth)
    if config.method.name == "ptuning":
        return PTuning(backbone, forth)
    separate = config.method.vectors == "separate"
    back = make_encoder(config, problem, "back") if separate else None
    return SPE(backbone, forth, back, config.method)


def _make_fine_tune(config: RunConfig, problem: Problem) -> FineTune:
    for name, template in zip(problem.relations, problem.templates, strict=True):
        if template.vectors:
            raise ConfigError(
                f"the template of relation {name} has learned vectors, and finetune learns weights "
                f'instead: {template}; write --template "[X] [Y]" or --template manual.'
            )
    tuning = config.tuning

    def make_tuning(model: nn.Module) -> Tuning:
        if tuning.tune == "full":
            return FullTuning(model)
        return LoraTuning(
            model, rank=tuning.lora_rank, alpha=tuning.lora_alpha, targets=tuning.lora_targets
        )

    return FineTune(problem.backbone, StackedModel(problem.backbone, make_tuning))


def object_counts(problem: Problem) -> Tensor:
    """Return how often each answer is a training object of each relation, [relation, v]."""
    vocabulary, spelling = problem.backbone.vocabulary, problem.spelling
    size = problem.backbone.vocabulary_size if spelling is None else len(spelling.names)
    counts = torch.zeros(len(problem.templates), size, dtype=torch.float64)
    for row, (relation, template) in enumerate(
        zip(problem.facts.relations, problem.templates, strict=True)
    ):
        objects = [fact.object for fact in relation.train]
        if spelling is None:
            answers = allowed_tokens(vocabulary, template, objects)
        else:
            spaced = [template.space_before("object")] * len(objects)
            read = vocabulary.encode_names(objects, spaced)
            places = [spelling.names.find(tokens) for tokens in read]
            answers = [place for place in places if place is not None]
        counts[row] = torch.bincount(torch.tensor(answers, dtype=torch.long), minlength=size)
    return counts


def _make_autoprompt(config: RunConfig, problem: Problem) -> AutoPrompt:
    """Build AutoPrompt, its words masks at first or those of the manual templates."""
    backbone = problem.backbone
    start = torch.full(
        (len(problem.relations), _vectors(config, problem)), placeholder(backbone.vocabulary)
    )
    if config.prompt.start == "manual":
        for index, tokens in enumerate(_manual_tokens(problem)):
            start[index, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
    triggers = TriggerTokens(start, backbone.embed, dtype=_exact(backbone)).to(backbone.device)
    objects = [
        sorted({fact.object for fact in relation.train}) for relation in problem.facts.relations
    ]
    return AutoPrompt(
        backbone, triggers, problem.templates, problem.relations, objects, config.search
    )


def _vectors(config: RunConfig, problem: Problem) -> int:
    """Return how many vectors the longest template has, refusing templates without."""
    count = max(template.vectors for template in problem.templates)
    if count == 0:
        raise ConfigError(
            f"template {config.prompt.template!r} has no learned vector, so {config.method.name} "
            'has nothing to train; write some, as in "<3> [X] <3> [Y] <3>".'
        )
    return count


def _exact(backbone: LanguageModel) -> torch.dtype:
    return torch.float64 if backbone.dtype == torch.float64 else torch.float32


def make_encoder(config: RunConfig, problem: Problem, part: str) -> PromptEncoder:
    """Build one part's prompt encoder on the model's device, in float32 (float64 for float64)."""
    backbone, prompt = problem.backbone, config.prompt
    count = _vectors(config, problem)
    uneven = {template.vectors for template in problem.templates} != {count}
    if uneven and prompt.encoder == "bilstm":
        raise ConfigError(
            'prompt.encoder = "bilstm" reads the vectors as one sequence, so every template must '
            'have as many; use "free" or "mlp" with templates of different lengths.'
        )
    encoder = _encoder(prompt, problem, count, (config.seed, part))
    return encoder.to(device=backbone.device, dtype=_exact(backbone))


def _encoder(
    prompt: PromptConfig, problem: Problem, count: int, seed: tuple[object, ...]
) -> PromptEncoder:
    names, width = problem.relations, problem.backbone.width
    if prompt.encoder == "bilstm":
        hidden = width if prompt.lstm_hidden == -1 else prompt.lstm_hidden or None
        return BiLSTMEncoder(names, count, width, seed=seed, lstm_hidden=hidden)
    if prompt.encoder == "mlp":
        return MLPEncoder(names, count, width, seed=seed)
    backbone = problem.backbone
    if prompt.start == "random":
        # As the model reads them: Gemma's kind multiplies the rows of its table.
        every = torch.arange(backbone.vocabulary_size, device=backbone.device)
        scale = float(backbone.embed(every).detach().float().std())
        return FreeVectors(names, count, width, seed=seed, scale=scale)
    start = torch.zeros(len(names), count, width)
    for index, tokens in enumerate(_manual_tokens(problem)):
        words = backbone.embed(torch.tensor(tokens, dtype=torch.long, device=backbone.device))
        start[index, : len(tokens)] = words.detach().float().cpu()
    return FreeVectors(names, count, width, seed=seed, start=start)


def _manual_tokens(problem: Problem) -> list[list[int]]:
    """Return the tokens of the words of each relation's manual template."""
    vocabulary = problem.backbone.vocabulary
    written = [manual_template(vocabulary, relation) for relation in problem.facts.relations]
    return [words_to_vectors(vocabulary, template)[1] for template in written]
