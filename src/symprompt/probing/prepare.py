"""From a config to something trainable: facts the model can answer, templates, a method.

Facts that the model cannot read or answer are dropped, every one counted with its reason.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from symprompt.errors import ConfigError, DataError, RunError, TemplateError, counted
from symprompt.facts import (
    NOT_ONE_TOKEN,
    SPLITS,
    FactSet,
    Split,
    at_most,
    find_prompts,
    in_word_list,
    load_facts,
    load_prompts,
    uhn,
    with_advice,
)
from symprompt.models import LanguageModel, Vocabulary
from symprompt.probing.config import FactsConfig, RunConfig
from symprompt.probing.methods.base import Method, method_class
from symprompt.probing.problem import (
    Problem,
    Prompts,
    Sentences,
    allowed_answers,
    candidate_names,
    listed_words,
    longest_prompt,
    manual_template,
    tensorise,
    words_to_vectors,
)
from symprompt.probing.results import COMMANDS, ENCODER, load_card, run_config
from symprompt.prompts import (
    Frame,
    Template,
    fixed_length,
    read_names,
)
from symprompt.runs.folder import Folder

CAUSAL_TEMPLATE = "<3> [X] <3> [Y]"
"""P-tuning's template for causal models: (3, sub, 3, obj), section 4.1."""


def load_config_facts(source: str, config: FactsConfig) -> FactSet:
    """Load a source of facts by a config's settings."""
    facts = load_facts(
        source,
        layout=config.layout,
        relations=config.relations,
        templates=config.templates,
        seed=config.split_seed,
        shares=config.shares,
        columns=config.columns,
        bad_rows=config.bad_rows,
        skip_unusable=config.skip_unusable,
    )
    return facts if config.wording == 1 else facts.worded(config.wording)


def fingerprint_data(config: RunConfig, facts: FactSet) -> str:
    """Return a digest of what a run reads: its facts and the lines of its word list."""
    lines = (facts.fingerprint(), *listed_words(config))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def prepare(
    config: RunConfig,
    backbone: LanguageModel,
    facts: FactSet,
    *,
    prompts: Mapping[str, Sequence[str]] | None = None,
) -> Problem:
    """Drop what cannot be asked (counted), tensorise the rest, find which answers are allowed.

    Args:
        prompts: each relation's manual templates for a method that has several, if they are known;
            otherwise they are loaded and chosen by the config.

    Raises:
        DataError: relations cannot be used and ``facts.skip_unusable`` does not leave them out, or
            with ``facts.strict`` any fact cannot be used.
        ConfigError: the config asks what a causal model cannot be asked.
    """
    kind = method_class(config.method.name)
    kind.check_model(config, backbone)
    _check_fit(config, backbone)
    written: Prompts = ()
    if config.facts.skip_unusable:
        facts = facts.leave_out(_without_template(config, backbone.vocabulary, facts))
    if kind.several_prompts:
        known = prompts or {}
        if kind.manual_templates:
            _require_manual(facts)
            written = tuple((Template.parse(own.template),) for own in facts.relations)
        elif set(facts.names) <= set(known):
            written = tuple(tuple(map(Template.parse, known[name])) for name in facts.names)
        else:
            facts, found = load_ensemble(config, backbone.vocabulary, facts)
            chosen = kind.choose_prompts(config, backbone, facts, found)
            # Of those that are known some relations may be missing that turn out to be unusable.
            written = tuple(
                tuple(map(Template.parse, known.get(name, ()))) or own
                for name, own in zip(facts.names, chosen, strict=True)
            )
        templates = tuple(longest_prompt(backbone.vocabulary, own) for own in written)
    else:
        templates = make_templates(config, backbone.vocabulary, facts)
    usable = drop_unusable(
        config, backbone.vocabulary, facts, templates, max_length=backbone.max_length
    )
    needed = kind.needed_splits(config)
    reasons = unusable_relations(config, backbone.vocabulary, usable, templates, needed)
    if reasons and not config.facts.skip_unusable:
        raise DataError(_refusal(usable, reasons))
    if reasons:
        rows = [row for row, name in enumerate(usable.names) if name not in reasons]
        usable = usable.leave_out(reasons)
        facts, templates = facts.select(usable.names), tuple(templates[row] for row in rows)
        written = tuple(written[row] for row in rows) if written else ()
    tokens = config.max_tokens or backbone.token_budget()
    allowed, spelling, copies = allowed_answers(config, backbone, usable, templates)
    sentences: dict[Split, Sentences] = {}
    answers: dict[tuple[str, str], set[str]] = {}
    for split in SPLITS:
        # Training may know what training facts say, dev also dev's, and only test everything.
        # Facts that were dropped are true all the same.
        for fact in facts.facts(split):
            answers.setdefault((fact.relation, fact.subject), set()).add(fact.object)
        listed = usable.facts(split)
        if listed:
            sentences[split] = tensorise(
                backbone,
                templates,
                usable.names,
                listed,
                answers,
                swapped=config.method.blanks == "swapped",
                spelling=spelling,
                several=kind.several_prompts,
                copies=copies,
            )
    return Problem(
        backbone, usable, templates, allowed, sentences, tokens, written, spelling, copies
    )


def _check_fit(config: RunConfig, backbone: LanguageModel) -> None:
    """Refuse a template prior where no subject can be masked in one prompt, and folds likewise."""
    kind, why = method_class(config.method.name), ""
    if config.method.evidence == "cross" and kind.several_prompts:
        raise ConfigError(
            'method.evidence = "cross" trains one prompt a relation anew, and method.name = '
            f'"{config.method.name}" has several; use "dev".'
        )
    if backbone.causal:
        why = f"{config.model} is a causal model, which has no mask"
    elif kind.several_prompts or not kind.has_prompt:
        why = f'method.name = "{config.method.name}" has not one prompt'
    if config.method.weighs_prior and why:
        raise ConfigError(
            "method.terms has prior, the object score of a prompt whose subject is masked, and "
            f"{why}; leave prior out (--terms subject,frequency,copy)."
        )


def make_method(config: RunConfig, problem: Problem) -> Method:
    """Build the method a config names, its encoders drawn from the config's seed.

    Raises:
        ConfigError: the templates do not suit the method.
    """
    return method_class(config.method.name)(config, problem)


def drop_unusable(
    config: RunConfig,
    vocabulary: Vocabulary,
    facts: FactSet,
    templates: Sequence[Template],
    *,
    max_length: int | None = None,
) -> FactSet:
    """Return the facts that can be asked, every other one counted with its reason.

    Args:
        max_length: the longest sentence the model takes; None asks the tokenizer.

    Raises:
        DataError: with ``facts.strict``, if there is any other one.
    """
    words = listed_words(config)
    any_length = config.facts.objects == "any-length"
    answers: set[tuple[str, str]] = set()
    room: dict[str, int] = {}
    for relation, template in zip(facts.relations, templates, strict=True):
        names = sorted({fact.object for fact in relation.all()})
        answers |= {(relation.name, name) for name in _read(config, vocabulary, template, names)}
        length = fixed_length(vocabulary, template)
        room[relation.name] = (max_length or vocabulary.max_length) - length
    kept = facts.drop(
        {fact for fact in facts.facts() if (fact.relation, fact.object) not in answers},
        "object is not readable text" if any_length else NOT_ONE_TOKEN,
    )
    subjects = sorted({fact.subject for fact in kept.facts()})
    encoded = dict(zip(subjects, vocabulary.encode_words(subjects), strict=True))
    odd = {name for name, ids in encoded.items() if not ids or vocabulary.mask_id in ids}
    unreadable = {fact for fact in kept.facts() if fact.subject in odd}
    kept = kept.drop(unreadable, "subject is not readable text")
    if any_length:
        # The longest candidate takes the object's place.
        for relation, template in zip(kept.relations, templates, strict=True):
            names = sorted(candidate_names(relation, words))
            names_read = read_names(
                vocabulary, names, [template.space_before("object")] * len(names)
            )
            room[relation.name] -= max((len(ids) for ids in names_read if ids), default=1) - 1
    long = {fact for fact in kept.facts() if len(encoded[fact.subject]) > room[fact.relation]}
    kept = kept.drop(long, "sentence longer than the model takes")
    if any_length or config.facts.vocabulary == "objects":
        # The training facts that stay are those that the limit leaves.
        seen = at_most(kept, {"train": config.facts.train_limit}, seed=config.facts.split_seed)
        listed = {relation.name: candidate_names(relation, words) for relation in seen.relations}
        others = {fact for fact in kept.facts() if fact.object not in listed[fact.relation]}
        kept = kept.drop(
            others,
            "object not among the candidates"
            if any_length and words
            else "object not among the relation's answers"
            if any(relation.answers for relation in facts.relations)
            else "object not among the relation's training objects",
            ("dev", "test"),
        )
    elif words:
        kept = in_word_list(kept, set(words))
    if config.facts.uhn:
        kept = uhn(kept)
    new = len(facts.dropped)
    if config.facts.strict and len(kept.dropped) > new:
        first = kept.dropped[new]
        total = sum(entry.count for entry in kept.dropped[new:])
        raise DataError(
            f"{counted(total, 'fact')} cannot be used, the first in relation {first.relation} "
            f"({first.split}): {with_advice(first.reason)}; drop facts.strict to leave them out "
            "and count them."
        )
    # Last, so that a limit counts facts that can be asked.
    limits: dict[Split, int] = {split: getattr(config.facts, f"{split}_limit") for split in SPLITS}
    return at_most(kept, limits, seed=config.facts.split_seed)


def _read(
    config: RunConfig, vocabulary: Vocabulary, template: Template, names: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Return the tokens of those names that can be answers in a template's blank."""
    spaced = template.space_before("object")
    if config.facts.objects == "any-length":
        several = read_names(vocabulary, names, [spaced] * len(names))
        return {name: tuple(ids) for name, ids in zip(names, several, strict=True) if ids}
    found = vocabulary.single_tokens(names, after_space=spaced)
    return {name: (one,) for name, one in zip(names, found, strict=True) if one is not None}


def unusable_relations(
    config: RunConfig,
    vocabulary: Vocabulary,
    facts: FactSet,
    templates: Sequence[Template],
    needed: Sequence[Split],
) -> dict[str, str]:
    """Return why relations cannot be used, by name: a split without facts, or nothing to rank.

    Args:
        facts: what is left after dropping.
        needed: splits that every relation must have facts in.
    """
    reasons: dict[str, str] = {}
    few = config.facts.objects == "any-length" or config.facts.vocabulary == "objects"
    words = listed_words(config)
    for relation, template in zip(facts.relations, templates, strict=True):
        names = sorted(candidate_names(relation, words)) if few else []
        empty = [split for split in needed if not relation.split(split)]
        if empty:
            shown = " and ".join(filter(None, (", ".join(empty[:-1]), empty[-1])))
            reasons[relation.name] = f"no usable {shown} facts"
        elif few and len({*_read(config, vocabulary, template, names).values()}) < 2:
            reasons[relation.name] = "one possible answer alone"
    return reasons


def _refusal(facts: FactSet, reasons: Mapping[str, str]) -> str:
    """Return the sentence that names all unusable relations, and what was dropped from them."""
    groups: dict[str, list[str]] = {}
    for name, why in reasons.items():
        groups.setdefault(why, []).append(name)
    told, one = [], len(reasons) == 1
    for why, names in groups.items():
        lost: Counter[str] = Counter()
        for entry in facts.dropped:
            if entry.relation in names and entry.split in why:
                lost[entry.reason] += entry.count
        listed = "; ".join(f"{n:,} dropped: {with_advice(own)}" for own, n in lost.items())
        head = f"relation {names[0]} has {why}" if one else f"{why}: {', '.join(names)}"
        told.append(f"{head}{f' ({listed})' if listed else ''}")
    count = "" if one else f"{len(reasons)} relations cannot be used; "
    them = "it" if one else "them"
    return f"{count}{'; '.join(told)}; add facts, or leave {them} out with --skip-unusable."


def _asks_by_manual(config: RunConfig) -> bool:
    """Return whether each relation's own manual template is needed."""
    manual = method_class(config.method.name).manual_templates
    return manual or config.prompt.template == "manual" or config.prompt.start == "manual"


def _without_template(config: RunConfig, vocabulary: Vocabulary, facts: FactSet) -> dict[str, str]:
    """Return why relations cannot be asked by a manual template that is needed, by name."""
    kind, reasons = method_class(config.method.name), dict[str, str]()
    if not _asks_by_manual(config) or (kind.several_prompts and not kind.manual_templates):
        return {}
    for relation in facts.relations:
        if not relation.template:
            reasons[relation.name] = "no manual template"
            continue
        if kind.several_prompts:
            # Whole sentences are read, by causal models too.
            continue
        try:
            manual_template(vocabulary, relation)
        except DataError:
            reasons[relation.name] = "a manual template that a causal model cannot be asked by"
    return reasons


def make_templates(
    config: RunConfig, vocabulary: Vocabulary, facts: FactSet
) -> tuple[Template, ...]:
    """Return each relation's template: the config's, the manual one, or vectors in its shape.

    Raises:
        ConfigError: a causal model's template goes on after the object, or a manual template with
            vectors of its own is to be started from.
        DataError: a relation has no manual template, or one that a causal model cannot be asked by.
    """
    prompt = config.prompt
    if not _asks_by_manual(config):
        template = Template.parse(prompt.template)
        if vocabulary.causal and not template.ends_with_object:
            raise ConfigError(
                f"prompt.template is {prompt.template!r}; a causal model is asked for what comes "
                f'next, so [Y] must stand last: write --template "{CAUSAL_TEMPLATE}", or take the '
                "config lama-ptuning-gpt or lama-spe-gpt."
            )
        return (template,) * len(facts.relations)
    _require_manual(facts)
    written = tuple(manual_template(vocabulary, relation) for relation in facts.relations)
    if prompt.start == "random":
        return written
    for relation, template in zip(facts.relations, written, strict=True):
        if template.vectors:
            raise ConfigError(
                f"the manual template of relation {relation.name} has learned vectors of its own, "
                f"so they cannot start from its words: {template}."
            )
    return tuple(words_to_vectors(vocabulary, template)[0] for template in written)


def _require_manual(facts: FactSet) -> None:
    missing = [relation.name for relation in facts.relations if not relation.template]
    if missing:
        raise DataError(
            f"{_have(missing)} no manual template; add a template column, name a file with "
            "facts.templates, or leave out what cannot be asked with --skip-unusable."
        )


def load_ensemble(
    config: RunConfig, vocabulary: Vocabulary, facts: FactSet
) -> tuple[FactSet, Prompts]:
    """Return the facts, and each relation's manual templates, its own first.

    A causal model's are cut after the object; those with the subject behind it are left out.
    Relations without any are left out of the facts with ``facts.skip_unusable``.

    Raises:
        DataError: no prompts were found, relations have none, or one has learned vectors.
    """
    paths = [Path(path) for path in config.ensemble.prompts] or find_prompts(Path(config.data))
    if not paths:
        raise DataError(
            f"no manual templates were found near {config.data}; name folders or files of them "
            "with --prompts."
        )
    read = load_prompts(paths, facts.names)
    found: dict[str, tuple[Template, ...]] = {}
    for relation in facts.relations:
        manual = (relation.template,) if config.ensemble.with_manual and relation.template else ()
        written = distinct_templates(
            vocabulary,
            [Template.parse(text) for text in (*manual, *read.get(relation.name, ()))],
        )
        for template in written:
            if template.vectors:
                raise DataError(
                    f"a manual template of relation {relation.name} has learned vectors, and this "
                    f"method learns none: {template}."
                )
        found[relation.name] = written
    missing = [name for name, written in found.items() if not written]
    behind = " with the subject before the object" if vocabulary.causal else ""
    if missing and not config.facts.skip_unusable:
        raise DataError(
            f"{_have(missing)} no manual template{behind} in {', '.join(map(str, paths))}; add "
            "some, or leave out what cannot be asked with --skip-unusable."
        )
    facts = facts.leave_out(dict.fromkeys(missing, f"no manual template{behind}"))
    return facts, tuple(found[name] for name in facts.names)


def _have(names: Sequence[str]) -> str:
    noun, verb = ("relation", "has") if len(names) == 1 else ("relations", "have")
    return f"{noun} {', '.join(names)} {verb}"


def distinct_templates(
    vocabulary: Vocabulary, templates: Sequence[Template]
) -> tuple[Template, ...]:
    """Return the prompts that the model can be asked by, each once as the model reads it.

    Files have "[X] in [Y] ." beside "[X] in [Y].", the same tokens to many a model; a prompt that
    stands twice would count twice.
    """
    found: dict[tuple[object, ...], Template] = {}
    for template in templates:
        if vocabulary.causal:
            try:
                template = template.cut_after_object()
            except TemplateError:
                continue
        row = Frame(vocabulary, template, answer=[vocabulary.pad_id])
        places = (row.subject_at, row.object_at)
        spaces = (template.space_before("subject"), template.space_before("object"))
        found.setdefault((*row.ids, *row.slots, *places, *spaces), template)
    return tuple(found.values())


@torch.no_grad()
def load_encoders(method: Method, source: Folder, config: RunConfig, problem: Problem) -> None:
    """Warm start: put another run's encoders in place, to train them further.

    Raises:
        RunError: it keeps none, or they were learned for another model, template, method or subject
            prompt.
    """
    source.require_finished(*COMMANDS)
    if not source.has(ENCODER):
        raise RunError(
            f"{source.path} keeps no encoder to train further; it was made with keep_encoder = "
            "false, or by a method that learns nothing."
        )
    card = load_card(source)
    if card["base_model_fingerprint"] != problem.backbone.fingerprint:
        raise RunError(
            f"{source.path} was made by another model ({card['base_model']}); prompts fit only "
            "the model they were learned on."
        )
    for index, name in enumerate(problem.relations):
        if name not in card["relations"]:
            raise RunError(f"{source.path} has no prompts for relation {name}.")
        theirs, template = card["relations"][name], str(problem.templates[index])
        if theirs["template"] != template:
            raise RunError(
                f"{source.path} was trained with another template for relation {name}: "
                f"{theirs['template']!r}, not {template!r}; vectors fit only the places they were "
                "learned in."
            )
        written = [str(prompt) for prompt in problem.prompts[index]] if problem.prompts else []
        if theirs.get("prompts", []) != written:
            raise RunError(
                f"{source.path} was trained with other manual templates for relation {name}; "
                "vectors fit only the places they were learned in."
            )
    before, now = run_config(source).method, config.method
    if method.has_subject_prompt and before.name == now.name and before.blanks != now.blanks:
        raise RunError(
            f'{source.path} was trained with method.blanks = "{before.blanks}", not '
            f'"{now.blanks}"; its vectors learned that subject prompt.'
        )
    tensors, note = source.read_tensors(ENCODER)
    with source.refuse_damage(ENCODER):
        rows = [note["relations"].index(name) for name in problem.relations]
    for part, encoder in method.encoders.items():
        wanted = dict(encoder.named_parameters())
        # Both ways: the parameters of an MLP are also among those of an LSTM with an MLP.
        stored = {
            name.removeprefix(f"{part}/"): value
            for name, value in tensors.items()
            if name.startswith(f"{part}/")
        }
        for name in sorted(wanted.keys() | stored):
            start, value = stored.get(name), wanted.get(name)
            if start is None or value is None or start.shape[1:] != value.shape[1:]:
                raise RunError(
                    f"{source.path} was trained with another method, template or encoder: "
                    f"{part}/{name} does not fit."
                )
            value[: len(rows)] = start[rows].to(value)
