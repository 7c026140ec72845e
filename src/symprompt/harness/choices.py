"""Facts as documents of multiple choice for lm-eval: every answer in the manual template."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any

from datasets import Dataset

import symprompt.harness.models  # noqa: F401  (a task by its file names the models to lm-eval)
from symprompt.config import build
from symprompt.errors import ConfigError, DataError, counted
from symprompt.probing.config import FactsConfig
from symprompt.probing.prepare import load_config_facts
from symprompt.probing.whole_texts import fill_template
from symprompt.prompts import Template


def choices(
    data: str = "", split: str = "test", answers: str = "facts", **metadata: Any
) -> dict[str, Dataset]:
    """Return a source's facts as documents: relation, subject, object, answers, texts and label.

    A relation's answers are its answer space where the data has one, as BEAR has, otherwise the
    objects of its facts.

    Args:
        data: whatever ``--data`` takes: a LAMA or BEAR folder, a table of facts, "world".
        split: train, dev or test.
        answers: "facts" takes the objects of all facts, "train" those of training facts, as
            ``facts.vocabulary = "objects"`` does; other facts are then left out and counted.
        metadata: settings of the config's ``[facts]``, such as relations, templates, wording and
            shares; what else is there, such as the model's arguments, is not looked at.

    Raises:
        SympromptError: there are no such facts, or a relation has no manual template.
    """
    if not data:
        raise ConfigError(
            'no facts were named; give their folder or file: --metadata \'{"data": "FOLDER"}\'.'
        )
    if answers not in ("facts", "train"):
        raise ConfigError(f"answers is {answers!r}; it may be facts or train.")
    known = {field.name for field in fields(FactsConfig)}
    given = {key: value for key, value in metadata.items() if key in known}
    facts = load_config_facts(data, build(FactsConfig, given))
    documents, lost = [], 0
    for relation in facts.relations:
        if not relation.template:
            raise DataError(
                f"relation {relation.name} has no manual template; add one, or name others with "
                "relations."
            )
        template = str(Template.parse(relation.template))
        every = {fact.object for fact in relation.all()}
        space = relation.candidates() if relation.answers or answers == "train" else every
        listed = sorted(space)
        for fact in relation.split(split):  # type: ignore[arg-type]
            if fact.object not in space:
                lost += 1
                continue
            documents.append(
                {
                    "relation": relation.name,
                    "subject": fact.subject,
                    "object": fact.object,
                    "answers": listed,
                    "texts": [fill_template(template, fact.subject, own) for own in listed],
                    "label": listed.index(fact.object),
                }
            )
    if lost:
        logging.getLogger(__name__).warning(
            "%s left out: the object is none of the relation's answers", counted(lost, "fact")
        )
    if not documents:
        raise DataError(f"{data} has no {split} facts to ask; choose another split.")
    return {split: Dataset.from_list(documents)}
