"""The commands about facts: train, ask, re-rank, show prompts, check data, and the demo."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from symprompt.cli.flags import (
    AskFlags,
    CheckFlags,
    CoherencyFlags,
    ConsistencyFlags,
    DemoFlags,
    PromptsFlags,
    RerankFlags,
    TrainFlags,
    VocabularyFlags,
)
from symprompt.cli.output import give
from symprompt.cli.page import require_server, show_runs
from symprompt.cli.streams import stream_file
from symprompt.errors import ConfigError
from symprompt.facts import SPLITS, check, load_facts, load_subjects, uhn
from symprompt.files.atomic import write_file
from symprompt.files.progress import show_progress
from symprompt.models import load_vocabulary
from symprompt.papers.shards import AskShard
from symprompt.probing.answer_tables import question_table
from symprompt.probing.ask import Run, ask_template
from symprompt.probing.coherency import measure_coherency
from symprompt.probing.config import FactsConfig, MethodConfig, PromptConfig, RunConfig
from symprompt.probing.demo import make_demo
from symprompt.probing.inspect import describe_prompts
from symprompt.probing.prepare import (
    CAUSAL_TEMPLATE,
    drop_unusable,
    load_config_facts,
    make_templates,
    unusable_relations,
)
from symprompt.probing.rerank import rerank_run
from symprompt.probing.rewording import measure_consistency
from symprompt.probing.shared_vocabulary import require_several, share_vocabulary
from symprompt.probing.summary import run_summary
from symprompt.probing.train import train
from symprompt.report.answers import (
    check_table,
    prompts_table,
    vocabulary_table,
)
from symprompt.report.consistency import consistency_tables
from symprompt.report.demo import show_demo
from symprompt.report.printing import show
from symprompt.report.tables import comparison, load_scores


def run_train(flags: TrainFlags, config: RunConfig) -> None:
    """Run ``symprompt train CONFIG [flags]``."""
    with show_progress() as tick:
        run = train(config, resume=flags.resume, tick=tick)
    _tell(run)


def _tell(run: Run, *others: str) -> None:
    """Print what came of a run, and how it is compared with others."""
    show(run_summary(run.metrics))
    print(f"run folder: {run.folder.path}")
    print(f"compare it: symprompt table {' '.join([*others, str(run.folder.path)])}")


def run_ask(flags: AskFlags) -> None:
    """Run ``symprompt ask RUN --relation NAME --subject|--object TEXT``, or by ``--template``."""
    if bool(flags.run) == bool(flags.template):
        raise ConfigError("give either a run folder or a --template to ask by.")
    if (flags.subject, flags.object, flags.file or None).count(None) != 2:
        raise ConfigError("give either a --subject or an --object to ask about, or a --file.")
    if flags.template and (flags.object is not None or flags.relation):
        raise ConfigError(
            "--template asks for objects without a run; give --subject or --file, and leave "
            "--object and --relation out."
        )
    if flags.words and flags.run:
        raise ConfigError(
            "--words goes with --template; a run answers as it was trained: train it with "
            "--words auto --copies auto."
        )
    if flags.out:
        _ask_file(flags)
        return
    if flags.want or flags.overwrite or flags.as_given or flags.dry_run:
        raise ConfigError(
            "--want, --overwrite, --dry-run, --on, --jobs and what is said of jobs go with --out; "
            "name the file to write."
        )
    subjects = (
        load_subjects(Path(flags.file), flags.columns) if flags.file else [flags.subject or ""]
    )
    with show_progress() as tick:
        options: Any = {"top": flags.top, "device": flags.device, "tick": tick}
        if flags.template:
            options |= {"words": flags.words}
            asked = ask_template(flags.model or "shipped", flags.template, subjects, **options)
        elif flags.object is not None:
            options |= {"model": flags.model, "object": flags.object}
            asked = [Run.load(flags.run).ask(flags.relation, **options)]
        else:
            run = Run.load(flags.run)
            asked = run.ask_all(subjects, flags.relation, model=flags.model, **options)
    plain = [answers.to_dict() for answers in asked]
    give(flags.json, plain if flags.file else plain[0], question_table(plain))


def _ask_file(flags: AskFlags) -> None:
    """Write the answers to a file's questions."""
    if not flags.file or not flags.run or flags.json:
        raise ConfigError(
            "--out writes a run's answers to the questions of a file; give a run and a --file, and "
            "leave --json out."
        )
    names = ("run", "file", "out", "relation", "want", "columns", "top", "model", "device")
    config = AskShard(**{name: getattr(flags, name) for name in names})
    stream_file(config, Run.load(flags.run), flags, "question")


def run_rerank(flags: RerankFlags) -> None:
    """Run ``symprompt rerank RUN --with SPE_RUN --out FOLDER``."""
    with show_progress() as tick:
        run = rerank_run(
            flags.run,
            flags.with_,
            flags.out,
            k=flags.k,
            choose_weight=flags.choose_weight,
            model=flags.model,
            device=flags.device,
            max_tokens=flags.max_tokens,
            tick=tick,
        )
    _tell(run, flags.run)


def run_coherency(flags: CoherencyFlags) -> None:
    """Run ``symprompt coherency RUN [RUN ...]``."""
    runs = [Run.load(path) for path in flags.runs]
    with show_progress() as tick:
        for run in runs:
            measure_coherency(
                run,
                facts=flags.facts,
                split=flags.split,
                seed=flags.seed,
                model=flags.model,
                device=flags.device,
                max_tokens=flags.max_tokens,
                tick=tick,
            )
    scores = [load_scores(path, split=flags.split, coherency=True) for path in flags.runs]
    found = comparison(scores, draws=flags.draws)
    give(flags.json, found.values, found)


def run_consistency(flags: ConsistencyFlags) -> None:
    """Run ``symprompt consistency RUN [RUN ...] --templates FOLDER``."""
    runs = [Run.load(path) for path in flags.runs]
    with show_progress() as tick:
        measured = [
            measure_consistency(
                run,
                flags.templates,
                facts=flags.facts,
                split=flags.split,
                seed=flags.seed,
                model=flags.model,
                device=flags.device,
                tick=tick,
            )
            for run in runs
        ]
    found = consistency_tables(
        dict(zip(flags.runs, measured, strict=True)),
        by_relation=flags.by == "relation",
        forward=flags.forward,
        draws=flags.draws,
    )
    give(flags.json, found.values, found)


def run_prompts(flags: PromptsFlags) -> None:
    """Run ``symprompt prompts show RUN``."""
    views = describe_prompts(
        Run.load(flags.run),
        relations=flags.relations,
        top=flags.top,
        by=flags.by,
        model=flags.model,
        device=flags.device,
    )
    plain = [asdict(view) for view in views]
    give(flags.json, plain, prompts_table(plain, flags.by))


def run_demo(flags: DemoFlags) -> None:
    """Run ``symprompt demo``."""
    if flags.page:
        require_server()
    with show_progress() as tick:
        demo = make_demo(Path(flags.out), model=flags.model, tick=tick)
    show_demo(demo)
    if flags.page:
        show_runs([str(run.folder.path) for run in demo.runs])


def run_check(flags: CheckFlags) -> None:
    """Run ``symprompt data check SOURCE``."""
    for name in ("strict", "vocabulary", "skip_unusable"):
        if not flags.model and getattr(flags.facts, name) != getattr(FactsConfig(), name):
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is about a model's tokens; name the model with --model.")
    facts, unusable = load_config_facts(flags.source, flags.facts), {}
    if flags.model:
        vocabulary = load_vocabulary(flags.model)
        prompt = PromptConfig(template=CAUSAL_TEMPLATE) if vocabulary.causal else PromptConfig()
        config = RunConfig(facts=flags.facts, prompt=prompt, method=MethodConfig(name="ptuning"))
        templates = make_templates(config, vocabulary, facts)
        facts = drop_unusable(config, vocabulary, facts, templates)
        unusable = unusable_relations(config, vocabulary, facts, templates, SPLITS)
        if flags.facts.skip_unusable:
            facts, unusable = facts.leave_out(unusable), {}
    elif flags.facts.uhn:
        facts = uhn(facts)
    report = check(facts).to_dict() | {"skipped": facts.skipped, "unusable": unusable}
    give(flags.json, report, check_table(report))


def run_vocabulary(flags: VocabularyFlags) -> None:
    """Run ``symprompt data vocabulary --models A,B --out FILE``."""
    names = list(flags.models)
    require_several(names)
    facts = load_facts(flags.data) if flags.data else None
    shared = share_vocabulary({name: load_vocabulary(name) for name in names}, facts)
    write_file(Path(flags.out), "".join(word + "\n" for word in shared.words).encode())
    report = asdict(shared)
    give(
        flags.json,
        report | {"words": len(shared.words), "file": flags.out},
        vocabulary_table(report),
        f"word list: {flags.out}",
        f"use it: symprompt train CONFIG --model MODEL --vocabulary {flags.out}",
    )
