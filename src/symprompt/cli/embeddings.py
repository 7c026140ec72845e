"""The flags of the commands about word vectors, as dataclasses that tyro reads.

The commands about word vectors: embed, similarity, isotropy, senses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from symprompt.cli.data import print_json
from symprompt.cli.flags import parse
from symprompt.embeddings import Choice, describe_corpus, read_corpus, write_embeddings
from symprompt.embeddings.isotropy import Standardiser, measure_model
from symprompt.embeddings.sense_evaluation import (
    check_model,
    evaluate_senses,
    learn_senses,
    plain_tags,
    tag_texts,
)
from symprompt.embeddings.sense_map import find_occurrences, make_map, why_not_umap
from symprompt.embeddings.senses import SenseTagger, SenseVectors
from symprompt.embeddings.similarity import Occurrence, compare
from symprompt.embeddings.wordnet import load_wordnet
from symprompt.errors import ConfigError, SympromptError
from symprompt.files.atomic import write_json
from symprompt.models import SHIPPED, LanguageModel
from symprompt.report import show, show_progress
from symprompt.report.embeddings import (
    frequency_table,
    isotropy_table,
    senses_notes,
    senses_table,
    similarity_table,
    tags_table,
    write_map_page,
)
from symprompt.report.figures import (
    can_draw,
    check_figure,
    draw_cosines,
    draw_isotropy,
    draw_map,
    draw_senses,
    map_caption,
    save_figure,
)


@dataclass(frozen=True)
class EmbedFlags:
    """Write a contextual vector of every word of every text into a folder.

    OUT/vectors.npy [words, h] can be memory-mapped by numpy; OUT/words.npy says where each word
    stands (text, first character, character after the last, sub-tokens), OUT/texts.jsonl holds the
    texts. Long texts are read in windows that overlap by half. Interrupted, the same command goes
    on where it was.
    """

    text: tyro.conf.Positional[tuple[str, ...]]
    """Text files or folders: UTF-8 text, documents parted by blank lines, or JSON lines with a
    "text"; .gz, .xz, .bz2 too. de=FILE says that a file is in language de."""
    out: str
    """Folder to write."""
    model: str = SHIPPED
    """Folder or hub name of a masked or causal language model."""
    layers: str = "last"
    """last, mean-last-4, sum-last-4 (or another number than 4), or the number of one layer."""
    pool: Literal["first", "mean"] = "mean"
    """A word's first sub-token, or the mean of all of them."""
    by: Literal["document", "line"] = "document"
    """What a word's context is: its document, or its line alone."""
    window: int = 0
    """Tokens of a window; 0 takes as many as the model reads."""
    dtype: Literal["float16", "float32"] = "float16"
    """Of the stored vectors."""
    max_tokens: int = 0
    """Most tokens in one pass through the model; 0 chooses by device."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""


@dataclass(frozen=True)
class SimilarityFlags:
    """Compare word occurrences by the cosine of their vectors; mark one word in each text.

    Example: symprompt similarity "the [die] is cast" "they [die] young"
    """

    texts: tyro.conf.Positional[tuple[str, ...]]
    """Two or more texts, each with one word in brackets."""
    model: str = SHIPPED
    """Folder or hub name of a masked or causal language model."""
    layers: str = "last"
    """last, mean-last-4, sum-last-4 (or another number than 4), or the number of one layer."""
    pool: Literal["first", "mean"] = "mean"
    """A word's first sub-token, or the mean of all of them."""
    standardise: str = ""
    """A standardiser's file, made by: symprompt isotropy. Without one all cosines are high."""
    figure: str = ""
    """PNG file to draw the cosines to."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class IsotropyFlags:
    """Say how much all word vectors point one way, and standardise them.

    The expected cosine of two random words, layer by layer, before and after subtracting each
    dimension's mean and dividing by its deviation, which are fitted on one text and measured on
    another; the dimensions that make it (rogue ones); and cosines by word frequency. OUT holds the
    numbers, a picture, and standardisers for symprompt similarity.
    """

    text: tyro.conf.Positional[tuple[str, ...]]
    """Text files or folders to fit on."""
    measure: tuple[str, ...]
    """Other text files or folders to measure on."""
    out: str
    """Folder to write."""
    model: str = SHIPPED
    """Folder or hub name of a masked or causal language model."""
    pool: Literal["first", "mean"] = "mean"
    """A word's first sub-token, or the mean of all of them."""
    limit: int = 100_000
    """Most words of each text, in lines drawn from all over it; 0 takes all."""
    seed: int = 0
    """Of the draw."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    json: bool = False
    """Print JSON instead of tables."""


@dataclass(frozen=True)
class SensesTrainFlags:
    """Make sense vectors: the mean of each sense's occurrences in tagged text (SemCor)."""

    corpus: tyro.conf.Positional[str]
    """SemCor's folder of context files (WordNet 3.0 senses), or a NAME.data.xml with gold keys."""
    out: str
    """Folder to write. An interrupted training goes on there."""
    model: str = SHIPPED
    """Folder or hub name of a masked or causal language model."""
    layers: str = "sum-last-4"
    """last, mean-last-4, sum-last-4 (or another number than 4), or the number of one layer."""
    pool: Literal["first", "mean"] = "mean"
    """A word's first sub-token, or the mean of all of them."""
    standardise: bool = False
    """Standardise the vectors first, fitted on the tagged words."""
    wordnet: str = ""
    """Folder of WordNet 3.0's files, or wn:NAME (wn:omw-en:1.4) for a lexicon of the package wn;
    empty looks where Debian's packages put the files, then in wn."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""


@dataclass(frozen=True)
class SensesEvaluateFlags:
    """Score the five standard test sets by F1, against the most frequent sense of the same text."""

    senses: tyro.conf.Positional[str]
    """Folder that senses train wrote."""
    data: str
    """Folder of the test sets: NAME/NAME.data.xml and NAME/NAME.gold.key.txt."""
    sets: tuple[str, ...] = ()
    """Only these sets, such as semeval2007 to choose settings on; empty takes those there."""
    rule: Literal["nearest", "fitted"] = "fitted"
    """nearest: the cosine alone (equation 11.9). fitted: how often a sense occurs counts too, as
    fits held-out documents of the tagged text."""
    coverage: Literal["seen", "relations"] = "seen"
    """relations reaches senses without occurrences through WordNet; else the first sense is taken
    for lemmas without any."""
    discourse: bool = False
    """Give a lemma one sense in each document."""
    out: str = ""
    """JSON file to write the scores to."""
    figure: str = ""
    """PNG file to draw the scores to."""
    model: str = ""
    """Where the model is now, if it moved since the vectors were made."""
    wordnet: str = ""
    """Folder of WordNet 3.0's files, or wn:NAME (wn:omw-en:1.4) for a lexicon of the package wn;
    empty looks where Debian's packages put the files, then in wn."""
    draws: int = 10_000
    """Bootstrap draws."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class SensesTagFlags:
    """Tag every content word of a text with its WordNet sense, gloss and confidence."""

    senses: tyro.conf.Positional[str]
    """Folder that senses train wrote."""
    text: tyro.conf.Positional[str]
    """The text; or, with --file, a file whose lines are texts."""
    file: bool = False
    """TEXT names a UTF-8 file, one text a line."""
    rule: Literal["nearest", "fitted"] = "fitted"
    """nearest: the cosine alone. fitted: how often a sense occurs counts too."""
    coverage: Literal["seen", "relations"] = "seen"
    """relations reaches senses without occurrences through WordNet."""
    discourse: bool = False
    """Give a word one sense in each text."""
    model: str = ""
    """Where the model is now, if it moved since the vectors were made."""
    wordnet: str = ""
    """Folder of WordNet 3.0's files, or wn:NAME (wn:omw-en:1.4) for a lexicon of the package wn;
    empty looks where Debian's packages put the files, then in wn."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    json: bool = False
    """Print JSON instead of tables."""


@dataclass(frozen=True)
class SensesMapFlags:
    """Draw a word's occurrences in the plane: a picture (PNG) and a page with hover text (HTML)."""

    word: tyro.conf.Positional[str]
    """The word; several forms parted by commas: die,dies,died."""
    corpus: tuple[str, ...]
    """Text files or folders to look for it in; de=FILE says that a file is in language de."""
    out: str = ""
    """Where to write, without ending; empty takes the word. Makes OUT.png and OUT.html."""
    colour: Annotated[
        Literal["sense", "cluster", "language"], tyro.conf.arg(aliases=["--color"])
    ] = "cluster"
    """sense (needs --senses), cluster (of the vectors) or language (as given with the corpus)."""
    senses: str = ""
    """Folder that senses train wrote; its model and layers are taken."""
    model: str = ""
    """Folder or hub name of the model; empty takes that of --senses, or the shipped one."""
    layers: str = ""
    """Empty takes those of --senses, or sum-last-4 as far as the model has layers."""
    clusters: int = 3
    """How many clusters."""
    most: int = 1000
    """Most texts with the word; more are drawn from evenly."""
    seed: int = 0
    """Of the draw, the clusters and the projection."""
    wordnet: str = ""
    """Folder of WordNet 3.0's files, or wn:NAME (wn:omw-en:1.4) for a lexicon of the package wn;
    empty looks where Debian's packages put the files, then in wn."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""


NO_PICTURE = "picture: none drawn, as matplotlib is not installed (pip install symprompt[report])."


def run_embed(arguments: Sequence[str]) -> None:
    """Run ``symprompt embed FILE --out FOLDER``."""
    flags = parse(EmbedFlags, arguments, "symprompt embed")
    choice = Choice(flags.layers, flags.pool, flags.window, flags.max_tokens)
    source = describe_corpus(flags.text, flags.by)
    backbone = LanguageModel.load(flags.model, device=flags.device)
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
    backbone = LanguageModel.load(flags.model, device=flags.device)
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
    backbone = LanguageModel.load(flags.model, device=flags.device)
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
        save_figure(draw_isotropy(plain), picture)
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
    backbone = LanguageModel.load(flags.model, device=flags.device)
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
    backbone = LanguageModel.load(flags.model or senses.about["model"], device=flags.device)
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
    backbone = LanguageModel.load(flags.model or senses.about["model"], device=flags.device)
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
    backbone = LanguageModel.load(place, device=flags.device)
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
    print(map_caption(found))
    if why_not_umap(found):
        print(why_not_umap(found))
    print(f"page: {out}.html")
    if can_draw():
        save_figure(draw_map(found), Path(f"{out}.png"))
        print(f"picture: {out}.png")
    else:
        print(NO_PICTURE)


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
    count = min(4, int(backbone.model.config.get_text_config().num_hidden_layers))
    return Choice(flags.layers or f"sum-last-{count}")
