"""The commands about word senses: train, evaluate, tag, map."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from symprompt.cli.flags import (
    SensesEvaluateFlags,
    SensesMapFlags,
    SensesTagFlags,
    SensesTrainFlags,
)
from symprompt.cli.output import draw_picture, give
from symprompt.embeddings import Choice, read_corpus
from symprompt.embeddings.sense_evaluation import (
    check_model,
    evaluate_senses,
    learn_senses,
    tag_texts,
)
from symprompt.embeddings.sense_map import default_layers, find_occurrences, make_map, why_not_umap
from symprompt.embeddings.senses import SenseTagger, SenseVectors
from symprompt.embeddings.wordnet import WordNet, load_wordnet
from symprompt.errors import ConfigError, counted
from symprompt.files.atomic import write_file
from symprompt.files.progress import Tick, show_progress
from symprompt.models import SHIPPED, LanguageModel
from symprompt.report.answers import senses_notes, senses_table, tags_table
from symprompt.report.figures import (
    check_figure,
    draw_map,
    draw_senses,
    map_caption,
    save_figure,
)
from symprompt.report.pages import map_page
from symprompt.report.printing import show
from symprompt.runs.folder import records_to_json


def run_train(flags: SensesTrainFlags) -> None:
    """Run ``symprompt senses train``."""
    wordnet = load_wordnet(flags.wordnet)
    with show_progress() as tick:
        backbone = LanguageModel.load(flags.model, device=flags.device, head=False, tick=tick)
        made = learn_senses(
            flags.corpus,
            flags.out,
            backbone,
            wordnet,
            Choice(flags.layers, flags.pool),
            standardise=flags.standardise,
            tick=tick,
        )
    dropped = sum(made.about["dropped"].values())
    tags = counted(int(made.counts.sum()), "tag")
    show(f"{counted(len(made.keys), 'sense')} from {tags} ({dropped} not in WordNet)")
    weights = f"{made.scoring.cosine:.2f} x cosine + {made.scoring.frequency:.2f} x log count"
    show(f"how a sense is scored: {weights}")
    show(f"score them: symprompt senses evaluate {flags.out} --data TEST_SETS")


def _open(
    flags: SensesEvaluateFlags | SensesTagFlags, tick: Tick
) -> tuple[SenseVectors, LanguageModel, WordNet]:
    """Load sense vectors, their model and WordNet."""
    senses, wordnet = SenseVectors.load(flags.senses), load_wordnet(flags.wordnet)
    place = flags.model or senses.about["model"]
    return senses, LanguageModel.load(place, device=flags.device, head=False, tick=tick), wordnet


def run_evaluate(flags: SensesEvaluateFlags) -> None:
    """Run ``symprompt senses evaluate``."""
    check_figure(flags.figure)
    with show_progress() as tick:
        senses, backbone, wordnet = _open(flags, tick)
        found = evaluate_senses(
            senses,
            flags.data,
            backbone,
            wordnet,
            rule=flags.rule,
            coverage=flags.coverage,
            discourse=flags.discourse,
            sets=flags.sets,
            draws=flags.draws,
            tick=tick,
        )
    plain = asdict(found)
    if flags.out:
        write_file(Path(flags.out), records_to_json({"about": found.about}, found.to_records()))
    if flags.figure:
        save_figure(draw_senses(plain), Path(flags.figure))
    give(flags.json, plain, senses_table(plain), *senses_notes(plain))


def run_tag(flags: SensesTagFlags) -> None:
    """Run ``symprompt senses tag``."""
    texts = [flags.text]
    if flags.file:
        texts = [text.text for text in read_corpus([flags.text], "line")]
    with show_progress() as tick:
        senses, backbone, wordnet = _open(flags, tick)
    found = tag_texts(
        senses,
        texts,
        backbone,
        wordnet,
        rule=flags.rule,
        coverage=flags.coverage,
        discourse=flags.discourse,
    )
    plain = [{"text": text, "words": own} for text, own in zip(texts, found, strict=True)]
    tables = [tags_table(own) for own in found if own]
    give(flags.json, plain, *tables, *["no content word that WordNet knows."] * (not tables))


def run_map(flags: SensesMapFlags) -> None:
    """Run ``symprompt senses map``."""
    forms = [form.strip() for form in flags.word.split(",") if form.strip()]
    if not forms:
        raise ConfigError("the word is empty; give a word, or several forms parted by commas.")
    if flags.colour == "sense" and not flags.senses:
        raise ConfigError("--colour sense needs --senses, a folder that senses train wrote.")
    lines = read_corpus(flags.corpus, "line", holding=forms)
    texts = find_occurrences(lines, forms, flags.most, flags.seed)
    senses = SenseVectors.load(flags.senses) if flags.senses else None
    place = flags.model or (senses.about["model"] if senses else SHIPPED)
    with show_progress() as tick:
        backbone = LanguageModel.load(place, device=flags.device, head=False, tick=tick)
    tagger = None
    if senses is not None:
        check_model(senses, backbone)
        tagger = SenseTagger(senses, load_wordnet(flags.wordnet))
    found = make_map(
        texts,
        ", ".join(forms),
        backbone,
        _map_choice(flags, senses, backbone),
        colour=flags.colour,
        tagger=tagger,
        clusters=flags.clusters,
        seed=flags.seed,
    )
    out = flags.out or forms[0]
    write_file(Path(f"{out}.html"), map_page(found).encode())
    show(map_caption(found))
    if found.agreement:
        share, chance = (f"{100 * value:.1f} %" for value in found.agreement)
        show(f"nearest other occurrence (cosine) with the same label: {share}, by chance {chance}")
    if why_not_umap(found):
        show(why_not_umap(found))
    show(f"page: {out}.html")
    show(draw_picture(Path(f"{out}.png"), lambda: draw_map(found)))


def _map_choice(
    flags: SensesMapFlags, senses: SenseVectors | None, backbone: LanguageModel
) -> Choice:
    if senses is not None and (flags.colour == "sense" or not flags.layers):
        if flags.layers not in ("", senses.about["layers"]):
            raise ConfigError(
                f"--layers is {flags.layers}, but the sense vectors have {senses.about['layers']}; "
                "leave it out."
            )
        return Choice(senses.about["layers"], senses.about["pool"])
    return Choice(flags.layers or default_layers(backbone))
