"""Re-rank any method's candidates by the subject prompt of an SPE run.

A finished run stores every fact's top K candidates with their object scores, whatever method found
them. How likely the subject is given each of them (SPE, equation 9) does not depend on that method,
so the subject prompt another run learned on the same model can re-rank them (equation 10).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from symprompt.errors import ConfigError, RunError
from symprompt.facts import SPLITS, Split
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.probing.ask import Run, stored_method, stored_problem
from symprompt.probing.config import RunConfig
from symprompt.probing.evaluate import add_subject_scores, require_dev, start_run, write_results
from symprompt.probing.methods.base import Method, method_class
from symprompt.probing.problem import Problem, tensorise
from symprompt.probing.results import (
    ASKED,
    CARD,
    COMMANDS,
    FACTS,
    PRIOR,
    PROMPTS,
    VOCABULARY,
    Predictions,
    load_asked,
    load_card,
    load_facts,
    method_name,
    open_run,
    predictions_file,
    run_config,
)
from symprompt.prompts import Template
from symprompt.runs.folder import Folder


@dataclass(frozen=True)
class SubjectPrompt:
    """The subject prompt of a finished SPE run, with the facts whose candidates it re-ranks.

    Attributes:
        path: the run it comes from.
        problem: the facts in that run's templates, each split that is asked.
        vectors: of the relations asked, each part [relation, n, width].
    """

    path: Path
    method: Method
    problem: Problem
    vectors: dict[str, Tensor]

    def ask(
        self, found: Mapping[Split, Predictions], *, tick: Tick, seconds: dict[str, float]
    ) -> dict[Split, Predictions]:
        """Return predictions with the subject's score given each candidate.

        Raises:
            RunError: the run reads an object as another token than the one that found it.
        """
        asked: dict[Split, Predictions] = {}
        for split, predictions in found.items():
            sentences = self.problem.sentences[split]
            if not np.array_equal(sentences.gold.cpu().numpy(), predictions.gold):
                raise RunError(
                    f"{self.path} reads objects as other tokens than the run to be re-ranked (one "
                    "template has [Y] at its start, the other after a space); their candidates do "
                    "not fit each other."
                )
            begun = time.perf_counter()
            asked[split] = add_subject_scores(
                self.method,
                sentences,
                self.vectors,
                predictions,
                max_tokens=self.problem.max_tokens,
                tick=tick,
                stage=f"asking back {split}",
            )
            seconds[f"asking back {split}"] = time.perf_counter() - begun
        return asked


def with_subject_prompt(config: RunConfig, source: Folder) -> RunConfig:
    """Return a config whose re-ranking is that of an SPE run, K excepted.

    Raises:
        RunError: there is no finished run, or it learned no subject prompt.
    """
    source.require_finished(*COMMANDS)
    theirs = run_config(source)
    if not method_class(theirs.method.name).has_subject_prompt or theirs.rerank:
        raise RunError(
            f"{source.path} was made by {method_name(theirs)} and learned no subject prompt; give "
            "a run of spe."
        )
    # That prompt has seen all training facts.
    own = config.method
    method = replace(
        theirs.method, name=own.name, object_prompts=own.object_prompts, k=own.k, evidence="dev"
    )
    return replace(config, rerank=str(source.path), method=method)


def load_subject_prompt(config: RunConfig, problem: Problem) -> SubjectPrompt:
    """Load the subject prompt that a config names, for a problem's facts and answers.

    Raises:
        RunError: the run was made on another model, or about other facts.
    """
    source, backbone, facts = Folder(config.rerank), problem.backbone, problem.facts
    card, theirs = load_card(source), run_config(source)
    if card["base_model_fingerprint"] != backbone.fingerprint:
        raise RunError(
            f"{source.path} was made by another model ({card['base_model']}); a subject prompt "
            "fits only the model it was learned on."
        )
    # What a subject prompt saw in training must not be asked here.
    learned_from = load_facts(source)
    for relation in facts.relations:
        if relation.name not in learned_from.names:
            raise RunError(
                f"{source.path} has no relation {relation.name}; it has: "
                f"{', '.join(learned_from.names)}."
            )
        for split in SPLITS:
            here, there = relation.split(split), learned_from[relation.name].split(split)
            if here != there:
                raise RunError(
                    f"{source.path} was made with other {split} facts of relation {relation.name}: "
                    f"{len(there)} there, {len(here)} here, "
                    f"{len(set(here) & set(there))} shared; use the same data and limits for both."
                )
    names = list(card["relations"])
    rows = [names.index(name) for name in facts.names]
    templates = tuple(Template.parse(card["relations"][name]["template"]) for name in facts.names)
    answers, swapped = facts.true_objects(), theirs.method.blanks == "swapped"
    sentences = {
        split: tensorise(
            backbone,
            templates,
            facts.names,
            facts.facts(split),
            answers,
            swapped=swapped,
            spelling=problem.spelling,
        )
        for split in ASKED
        if facts.facts(split)
    }
    asked = replace(problem, templates=templates, sentences=sentences)
    method = stored_method(theirs, asked)
    return SubjectPrompt(source.path, method, asked, method.load_vectors(source, rows))


def rerank_run(
    run: str | Path,
    way_back: str | Path,
    out: str | Path,
    *,
    k: int = 0,
    choose_weight: str = "",
    model: str = "",
    device: str = "auto",
    max_tokens: int = 0,
    tick: Tick = silent,
    backbone: LanguageModel | None = None,
) -> Run:
    """Re-rank a finished run's candidates by an SPE run's subject prompt; write a new run folder.

    The new run is what training the first one's config with ``rerank`` would give; its candidates
    and object scores are those that are stored, so the first method is not asked again.

    Args:
        run: a finished run of any method.
        way_back: a finished SPE run on the same model and facts.
        out: the new run's folder; a finished one of the same config is returned as it is.
        k: how many of the stored candidates to re-rank; 0 takes all.
        choose_weight: fixed, dev, dev-relation or dev-fit; "" does as the SPE run does.
        model: where the model is now, if it moved since the runs were made.
        device: auto, cpu, cuda, cuda:N or mps.
        max_tokens: most tokens in one pass; 0 chooses by device.
        tick: called with every step of progress.
        backbone: the model, if it is loaded already.

    Raises:
        SympromptError: one clear sentence.

    Example:
        >>> rerank_run("runs/ptuning", "runs/spe", "runs/back").metrics["method"]
        'ptuning + asking back'
    """
    source = open_run(run)
    found = {
        split: load_asked(source, split).predictions
        for split in ASKED
        if source.has(predictions_file(split))
    }
    stored = found["test"].candidates.shape[1]
    config = with_subject_prompt(run_config(source), Folder(way_back))
    method = replace(config.method, k=k or stored)
    if choose_weight:
        if choose_weight not in ("fixed", "dev", "dev-relation", "dev-fit"):
            raise ConfigError(
                f"choose_weight is {choose_weight!r}; allowed are: fixed, dev, dev-relation, "
                "dev-fit."
            )
        method = replace(method, choose_weight=choose_weight)  # type: ignore[arg-type]
        if choose_weight != "dev-fit":
            # The fit alone weighs further subject prompts.
            method = replace(method, second="none", third="none")
    config = replace(config, out=str(out), method=method)
    if config.method.k > stored:
        raise ConfigError(
            f"k is {config.method.k}, but {source.path} stores {stored} candidates; choose a "
            "smaller k, or train again with a larger one."
        )
    require_dev(config, found)
    if config.method.weighs_prior and any(PRIOR not in own.terms for own in found.values()):
        raise ConfigError(
            f"{way_back} weighs the template prior, which {source.path} does not store; choose "
            "another weight (--choose-weight dev), or train the first again with that term."
        )
    folder = Folder(out)
    data = source.manifest.data_fingerprint
    if folder.check("rerank", config, resume=True, data_fingerprint=data):
        return Run(folder)
    backbone = backbone or LanguageModel.load(
        model or config.model, device=device, dtype=config.dtype, tick=tick
    )
    if load_card(source)["base_model_fingerprint"] != backbone.fingerprint:
        raise RunError(
            f"{source.path} was made by another model than {model or config.model}: its weights "
            "differ; name the right one with --model."
        )
    problem = stored_problem(source, backbone, max_tokens=max_tokens)
    loaded = load_subject_prompt(config, problem)
    seconds: dict[str, float] = {}
    cut = {
        split: predictions.first(config.method.k).near(config.method.within)
        for split, predictions in found.items()
    }
    asked = loaded.ask(cut, tick=tick, seconds=seconds)
    start_run(folder, "rerank", config, problem, data)
    # The new run is about what the first one was about.
    folder.write_json(CARD, {**load_card(source), "method": method_name(config)})
    for name in (FACTS, PROMPTS, VOCABULARY):
        if source.has(name):
            folder.write(name, (source.path / name).read_bytes())
    before = source.manifest.details
    write_results(
        folder,
        config,
        loaded.problem,
        asked,
        dropped=before["dropped"],
        seconds=seconds,
        unfilled=before["unfilled"],
    )
    return Run(folder)
