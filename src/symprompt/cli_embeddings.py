"""The commands about word vectors: embed, similarity, isotropy, senses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from symprompt.backbone import SHIPPED, Backbone
from symprompt.cli_data import print_json
from symprompt.embeddings import Choice, describe_corpus, read_corpus, write_embeddings
from symprompt.embeddings.isotropy import Standardiser
from symprompt.embeddings.isotropy_runs import measure_model
from symprompt.embeddings.mapping import find_occurrences, make_map, why_not_umap
from symprompt.embeddings.sense_runs import (
    check_model,
    evaluate_senses,
    learn_senses,
    plain_tags,
    tag_texts,
)
from symprompt.embeddings.senses import SenseTagger, SenseVectors
from symprompt.embeddings.similarity import Occurrence, compare
from symprompt.embeddings.wordnet_package import load_wordnet
from symprompt.errors import ConfigError, SympromptError
from symprompt.files import write_json
from symprompt.flags import parse
from symprompt.flags_embeddings import (
    EmbedFlags,
    IsotropyFlags,
    SensesEvaluateFlags,
    SensesMapFlags,
    SensesTagFlags,
    SensesTrainFlags,
    SimilarityFlags,
)
from symprompt.report import show, show_progress
from symprompt.report.embeddings import (
    frequency_table,
    isotropy_table,
    save_isotropy_plot,
    senses_notes,
    senses_table,
    similarity_table,
    tags_table,
)
from symprompt.report.figures import can_draw, check_figure, save_figure
from symprompt.report.senses_map import caption, save_map, write_map_page
from symprompt.report.vectors_plot import draw_cosines, draw_senses

NO_PICTURE = "picture: none drawn, as matplotlib is not installed (pip install symprompt[report])."


def run_embed(arguments: Sequence[str]) -> None:
    """Run ``symprompt embed FILE --out FOLDER``."""
    flags = parse(EmbedFlags, arguments, "symprompt embed")
    choice = Choice(flags.layers, flags.pool, flags.window, flags.max_tokens)
    source = describe_corpus(flags.text, flags.by)
    backbone = Backbone.load(flags.model, device=flags.device)
    with show_progress() as tick:
        store = write_embeddings(
            backbone,
            read_corpus(flags.text, flags.by),
            flags.out,
            choice,
            dtype=flags.dtype,
            source=source,
            tick=tick,
        )
    words, texts = store.about["words"], store.about["texts"]
    print(f"{words} words of {texts} texts, vectors of {store.about['width']} numbers: {flags.out}")
    print(f'use it: numpy.load("{flags.out}/vectors.npy", mmap_mode="r")')


def run_similarity(arguments: Sequence[str]) -> None:
    """Run ``symprompt similarity TEXT TEXT``."""
    flags = parse(SimilarityFlags, arguments, "symprompt similarity")
    if len(flags.texts) < 2:
        raise ConfigError(
            f"{len(flags.texts)} texts were given; give two or more, each with a word in brackets."
        )
    check_figure(flags.figure)
    marked = [Occurrence.parse(text) for text in flags.texts]
    fitted = Standardiser.load(flags.standardise) if flags.standardise else None
    backbone = Backbone.load(flags.model, device=flags.device)
    cosines = compare(marked, backbone, Choice(flags.layers, flags.pool), fitted).tolist()
    if flags.figure:
        save_figure(draw_cosines(flags.texts, cosines), Path(flags.figure))
    if flags.json:
        print_json({"texts": flags.texts, "cosines": cosines})
    else:
        show(similarity_table(flags.texts, cosines).to_rich())


def run_isotropy(arguments: Sequence[str]) -> None:
    """Run ``symprompt isotropy TEXT --measure TEXT --out FOLDER``."""
    flags = parse(IsotropyFlags, arguments, "symprompt isotropy")
    backbone = Backbone.load(flags.model, device=flags.device)
    with show_progress() as tick:
        report = measure_model(
            backbone,
            flags.text,
            flags.measure,
            flags.out,
            pool=flags.pool,
            limit=flags.limit,
            seed=flags.seed,
            tick=tick,
        )
    plain = report.to_dict()
    drawn = NO_PICTURE
    if can_draw():
        picture = Path(flags.out) / "isotropy.png"
        save_isotropy_plot(plain, picture)
        drawn = f"picture: {picture}"
    if flags.json:
        print_json(plain)
        return
    show(isotropy_table(plain).to_rich())
    show(frequency_table(plain).to_rich())
    print(drawn)
    for layers, path in report.standardisers.items():
        print(f"standardiser: {path} (symprompt similarity --layers {layers} --standardise ...)")


def run_senses(arguments: Sequence[str]) -> None:
    """Run ``symprompt senses train|evaluate|tag|map``."""
    commands = {
        "train": _train_senses,
        "evaluate": _evaluate_senses,
        "tag": _tag_senses,
        "map": _map_senses,
    }
    if arguments[:1] in (["-h"], ["--help"]):
        print(
            "usage: symprompt senses train SEMCOR --out FOLDER [flags]\n"
            "       symprompt senses evaluate FOLDER --data TEST_SETS [flags]\n"
            "       symprompt senses tag FOLDER TEXT [flags]\n"
            "       symprompt senses map WORD --corpus FILE [flags]    (each has its own --help)"
        )
        return
    if not arguments or arguments[0] not in commands:
        got = arguments[0] if arguments else "nothing"
        raise SympromptError(
            f"senses takes the command train, evaluate, tag or map, got {got}: symprompt senses "
            "train SEMCOR --out FOLDER."
        )
    commands[arguments[0]](arguments[1:])


def _train_senses(arguments: Sequence[str]) -> None:
    flags = parse(SensesTrainFlags, arguments, "symprompt senses train")
    wordnet = load_wordnet(flags.wordnet)
    backbone = Backbone.load(flags.model, device=flags.device)
    with show_progress() as tick:
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
    print(f"{len(made.keys)} senses from {int(made.counts.sum())} tags ({dropped} not in WordNet)")
    weights = f"{made.scoring.cosine:.2f} x cosine + {made.scoring.frequency:.2f} x log count"
    print(f"how a sense is scored: {weights}")
    print(f"score them: symprompt senses evaluate {flags.out} --data TEST_SETS")


def _evaluate_senses(arguments: Sequence[str]) -> None:
    flags = parse(SensesEvaluateFlags, arguments, "symprompt senses evaluate")
    check_figure(flags.figure)
    senses = SenseVectors.load(flags.senses)
    wordnet = load_wordnet(flags.wordnet)
    backbone = Backbone.load(flags.model or senses.about["model"], device=flags.device)
    with show_progress() as tick:
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
    plain = found.to_dict()
    if flags.out:
        write_json(Path(flags.out), plain)
    if flags.figure:
        save_figure(draw_senses(plain), Path(flags.figure))
    if flags.json:
        print_json(plain)
    else:
        show(senses_table(plain).to_rich())
        for line in senses_notes(plain):
            print(line)


def _tag_senses(arguments: Sequence[str]) -> None:
    flags = parse(SensesTagFlags, arguments, "symprompt senses tag")
    texts = [flags.text]
    if flags.file:
        texts = [text.text for text in read_corpus([flags.text], "line")]
    senses = SenseVectors.load(flags.senses)
    wordnet = load_wordnet(flags.wordnet)
    backbone = Backbone.load(flags.model or senses.about["model"], device=flags.device)
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
        print_json(
            [
                {"text": text, "words": plain_tags(own)}
                for text, own in zip(texts, found, strict=True)
            ]
        )
        return
    for own in found:
        if own:
            show(tags_table(plain_tags(own)))
    if not any(found):
        print("no content word that WordNet knows.")


def _map_senses(arguments: Sequence[str]) -> None:
    flags = parse(SensesMapFlags, arguments, "symprompt senses map")
    forms = [form.strip() for form in flags.word.split(",") if form.strip()]
    if not forms:
        raise ConfigError("the word is empty; give a word, or several forms parted by commas.")
    if flags.colour == "sense" and not flags.senses:
        raise ConfigError("--colour sense needs --senses, a folder that senses train wrote.")
    lines = read_corpus(flags.corpus, "line", holding=forms)
    texts = find_occurrences(lines, forms, flags.most, flags.seed)
    senses = SenseVectors.load(flags.senses) if flags.senses else None
    place = flags.model or (senses.about["model"] if senses else SHIPPED)
    backbone = Backbone.load(place, device=flags.device)
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
    write_map_page(found, f"{out}.html")
    print(caption(found))
    if why_not_umap(found):
        print(why_not_umap(found))
    print(f"page: {out}.html")
    if can_draw():
        save_map(found, f"{out}.png")
        print(f"picture: {out}.png")
    else:
        print(NO_PICTURE)


def _map_choice(flags: SensesMapFlags, senses: SenseVectors | None, backbone: Backbone) -> Choice:
    if senses is not None and (flags.colour == "sense" or not flags.layers):
        if flags.layers not in ("", senses.about["layers"]):
            raise ConfigError(
                f"--layers is {flags.layers}, but the sense vectors have {senses.about['layers']}; "
                "leave it out."
            )
        return Choice(senses.about["layers"], senses.about["pool"])
    count = min(4, int(backbone.model.config.get_text_config().num_hidden_layers))
    return Choice(flags.layers or f"sum-last-{count}")
