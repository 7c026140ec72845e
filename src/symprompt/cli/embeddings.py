"""The commands about vectors of words and texts: embed, similarity, isotropy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from symprompt.cli.flags import EmbedFlags, IsotropyFlags, SimilarityFlags
from symprompt.cli.output import draw_picture, give
from symprompt.embeddings import (
    Choice,
    EmbeddingStore,
    describe_corpus,
    read_corpus,
    write_embeddings,
)
from symprompt.embeddings.isotropy import Standardiser, measure_model
from symprompt.embeddings.similarity import Comparer, read_pairs, spearman
from symprompt.errors import ConfigError, counted
from symprompt.files.progress import show_progress
from symprompt.models import SHIPPED, LanguageModel
from symprompt.report.answers import (
    frequency_table,
    isotropy_table,
    neighbour_table,
    pair_table,
    similarity_table,
)
from symprompt.report.figures import check_figure, draw_cosines, draw_isotropy, save_figure
from symprompt.report.printing import show
from symprompt.runs.folder import Folder


def run_embed(flags: EmbedFlags) -> None:
    """Run ``symprompt embed FILE --out FOLDER``."""
    choice = Choice(flags.layers, flags.pool, flags.window, flags.max_tokens)
    source = describe_corpus(flags.text, flags.by)
    with show_progress() as tick:
        backbone = LanguageModel.load(flags.model, device=flags.device, head=False, tick=tick)
        store = write_embeddings(
            backbone,
            read_corpus(flags.text, flags.by),
            flags.out,
            choice,
            dtype=flags.dtype,
            source=source,
            tick=tick,
        )
    about = store.about
    made = counted(about["texts"], "text")
    if not choice.of_texts:
        made = f"{counted(about['words'], 'word')} of {made}"
    show(f"{made}, vectors of {about['width']} numbers: {flags.out}")
    show(f'use it: numpy.load("{flags.out}/vectors.npy", mmap_mode="r")')
    query = "TEXT" if choice.of_texts else "the [word] in a text"
    show(f'find the nearest: symprompt similarity "{query}" --among {flags.out}')


def run_similarity(flags: SimilarityFlags) -> None:
    """Run ``symprompt similarity TEXT TEXT``."""
    _check_similarity(flags)
    check_figure(flags.figure)
    pairs = read_pairs(flags.pairs, flags.columns) if flags.pairs else None
    store = None
    if len(flags.among) == 1 and Folder(flags.among[0]).holds_run:
        store = EmbeddingStore.load(flags.among[0])
    made: dict[str, Any] = (
        store.about if store else {"model": SHIPPED, "layers": "last", "pool": "mean"}
    )
    choice = Choice(flags.layers or made["layers"], flags.pool or made["pool"])
    texts = [choice.read(text) for text in flags.texts]
    fitted = Standardiser.load(flags.standardise) if flags.standardise else None
    with show_progress() as tick:
        place = flags.model or made["model"]
        backbone = LanguageModel.load(place, device=flags.device, head=False, tick=tick)
    comparer = Comparer(backbone, choice, fitted)
    if pairs:
        with show_progress() as tick:
            values = comparer.pairs(pairs, tick).tolist()
        agree = spearman(values, pairs.scores) if pairs.scores else None
        found = {**asdict(pairs), "cosines": values, "spearman": agree}
        give(flags.json, found, pair_table(found, flags.top))
    elif flags.among:
        with show_progress() as tick:
            among = store or read_corpus(flags.among, "line")
            nearest = comparer.nearest(texts, among, flags.top, tick)
        listed = [
            {"text": text, "nearest": [asdict(neighbour) for neighbour in own]}
            for text, own in zip(flags.texts, nearest, strict=True)
        ]
        give(flags.json, listed, *(neighbour_table(entry) for entry in listed))
    else:
        cosines = comparer.table(texts).tolist()
        kind = "text" if choice.of_texts else "word"
        if flags.figure:
            save_figure(draw_cosines(flags.texts, cosines, kind), Path(flags.figure))
        table = similarity_table(flags.texts, cosines, kind)
        give(flags.json, {"texts": flags.texts, "cosines": cosines}, table)


def _check_similarity(flags: SimilarityFlags) -> None:
    """Refuse flags that do not go together, and too few texts."""
    count, least = len(flags.texts), 0 if flags.pairs else 1 if flags.among else 2
    refusals = {
        "--pairs and --among are both given; give one of them.": flags.pairs and flags.among,
        "--pairs has the texts in its file; leave the others out.": flags.pairs and flags.texts,
        "--columns names those of --pairs; give that file.": flags.columns and not flags.pairs,
        "--figure draws the cosines of texts; leave --pairs and --among out.": (
            flags.figure and (flags.pairs or flags.among)
        ),
        f"{counted(count, 'text')} given; give {('one', 'two')[least - 1]} or more, each with a "
        "word in brackets, or with --pool text-mean as they are.": count < least,
    }
    for message, refused in refusals.items():
        if refused:
            raise ConfigError(message)


def run_isotropy(flags: IsotropyFlags) -> None:
    """Run ``symprompt isotropy TEXT --measure TEXT --out FOLDER``."""
    with show_progress() as tick:
        backbone = LanguageModel.load(flags.model, device=flags.device, head=False, tick=tick)
        plain = measure_model(
            backbone,
            flags.text,
            flags.measure,
            flags.out,
            pool=flags.pool,
            limit=flags.limit,
            seed=flags.seed,
            tick=tick,
        )
    drawn = draw_picture(Path(flags.out) / "isotropy.png", lambda: draw_isotropy(plain))
    give(
        flags.json,
        plain,
        isotropy_table(plain),
        *([frequency_table(plain)] if plain["before"] else []),
        drawn,
        *(
            f"standardiser: {path} (symprompt similarity --layers {layers} --standardise ...)"
            for layers, path in plain["standardisers"].items()
        ),
    )
