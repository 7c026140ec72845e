"""The commands about data: look at facts, and at the words that models share."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from symprompt.cli.flags import CheckFlags, VocabularyFlags
from symprompt.cli.output import print_json
from symprompt.errors import ConfigError
from symprompt.facts import check, load_facts, uhn
from symprompt.files.atomic import write_file
from symprompt.models import load_vocabulary
from symprompt.probing.config import FactsConfig, MethodConfig, PromptConfig, RunConfig
from symprompt.probing.prepare import drop_unusable, load_config_facts
from symprompt.probing.shared_vocabulary import require_several, share_vocabulary
from symprompt.probing.templates import CAUSAL_TEMPLATE, make_templates
from symprompt.report import show
from symprompt.report.answers import check_table, vocabulary_table


def run_check(flags: CheckFlags) -> None:
    """Run ``symprompt data check SOURCE``."""
    for name in ("strict", "vocabulary"):
        if not flags.model and getattr(flags.facts, name) != getattr(FactsConfig(), name):
            raise ConfigError(f"--{name} is about a model's tokens; name the model with --model.")
    facts = load_config_facts(flags.source, flags.facts)
    if flags.model:
        vocabulary = load_vocabulary(flags.model)
        prompt = PromptConfig(template=CAUSAL_TEMPLATE) if vocabulary.causal else PromptConfig()
        config = RunConfig(facts=flags.facts, prompt=prompt, method=MethodConfig(name="ptuning"))
        facts = drop_unusable(config, vocabulary, facts, make_templates(config, vocabulary, facts))
    elif flags.facts.uhn:
        facts = uhn(facts, ("test",))
    report = check(facts).to_dict()
    if flags.json:
        print_json(report)
    else:
        show(check_table(report))


def run_vocabulary(flags: VocabularyFlags) -> None:
    """Run ``symprompt data vocabulary --models A,B --out FILE``."""
    names = list(flags.models)
    require_several(names)
    facts = load_facts(flags.data) if flags.data else None
    shared = share_vocabulary({name: load_vocabulary(name) for name in names}, facts)
    write_file(Path(flags.out), "".join(word + "\n" for word in shared.words).encode())
    report = asdict(shared)
    if flags.json:
        print_json(report | {"words": len(shared.words), "file": flags.out})
        return
    show(vocabulary_table(report))
    print(f"word list: {flags.out}")
    print(f"use it: symprompt train CONFIG --model MODEL --vocabulary {flags.out}")
