"""The commands about word senses: train, evaluate, tag, map."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from symprompt.cli.embeddings import NO_PICTURE
from symprompt.cli.flags import (
    SensesEvaluateFlags,
    SensesMapFlags,
    SensesTagFlags,
    SensesTrainFlags,
)
from symprompt.cli.output import print_json
from symprompt.embeddings import Choice, read_corpus
from symprompt.embeddings.sense_evaluation import (
    check_model,
    evaluate_senses,
    learn_senses,
    tag_texts,
)
from symprompt.embeddings.sense_map import default_layers, find_occurrences, make_map, why_not_umap
from symprompt.embeddings.senses import SenseTagger, SenseVectors
from symprompt.embeddings.wordnet import load_wordnet
from symprompt.errors import ConfigError, counted
from symprompt.files.atomic import write_file
from symprompt.files.progress import show_progress
from symprompt.models import SHIPPED, LanguageModel
from symprompt.report.answers import senses_notes, senses_table, tags_table
from symprompt.report.figures import (
    can_draw,
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


def run_evaluate(flags: SensesEvaluateFlags) -> None:
    """Run ``symprompt senses evaluate``."""
    check_figure(flags.figure)
    senses = SenseVectors.load(flags.senses)
    wordnet = load_wordnet(flags.wordnet)
    place = flags.model or senses.about["model"]
    with show_progress() as tick:
        backbone = LanguageModel.load(place, device=flags.device, head=False, tick=tick)
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
    if flags.json:
        print_json(plain)
    else:
        show(senses_table(plain))
        for line in senses_notes(plain):
            show(line)


def run_tag(flags: SensesTagFlags) -> None:
    """Run ``symprompt senses tag``."""
    texts = [flags.text]
    if flags.file:
        texts = [text.text for text in read_corpus([flags.text], "line")]
    senses = SenseVectors.load(flags.senses)
    wordnet = load_wordnet(flags.wordnet)
    place = flags.model or senses.about["model"]
    with show_progress() as tick:
        backbone = LanguageModel.load(place, device=flags.device, head=False, tick=tick)
    found = tag_texts(
        senses,
        texts,
        backbone,
        wordnet,
        rule=flags.rule,
        coverage=flags.coverage,
        discourse=flags.discourse,
    )
    if flags.json:
        print_json([{"text": text, "words": own} for text, own in zip(texts, found, strict=True)])
        return
    for own in found:
        if own:
            show(tags_table(own))
    if not any(found):
        show("no content word that WordNet knows.")


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
    if can_draw():
        save_figure(draw_map(found), Path(f"{out}.png"))
        show(f"picture: {out}.png")
    else:
        show(NO_PICTURE)


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
