"""The commands about word vectors: embed, similarity, isotropy."""

from __future__ import annotations

from pathlib import Path

from symprompt.cli.flags import EmbedFlags, IsotropyFlags, SimilarityFlags
from symprompt.cli.output import print_json
from symprompt.embeddings import Choice, describe_corpus, read_corpus, write_embeddings
from symprompt.embeddings.isotropy import Occurrence, Standardiser, compare, measure_model
from symprompt.errors import ConfigError, counted
from symprompt.files.progress import show_progress
from symprompt.models import LanguageModel
from symprompt.report.answers import frequency_table, isotropy_table, similarity_table
from symprompt.report.figures import (
    can_draw,
    check_figure,
    draw_cosines,
    draw_isotropy,
    save_figure,
)
from symprompt.report.grid import show

NO_PICTURE = "picture: none drawn, as matplotlib is not installed (pip install symprompt[report])."


def run_embed(flags: EmbedFlags) -> None:
    """Run ``symprompt embed FILE --out FOLDER``."""
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
    about = store.about
    made = f"{counted(about['words'], 'word')} of {counted(about['texts'], 'text')}"
    show(f"{made}, vectors of {about['width']} numbers: {flags.out}")
    show(f'use it: numpy.load("{flags.out}/vectors.npy", mmap_mode="r")')


def run_similarity(flags: SimilarityFlags) -> None:
    """Run ``symprompt similarity TEXT TEXT``."""
    if len(flags.texts) < 2:
        raise ConfigError(
            f"{counted(len(flags.texts), 'text')} given; give two or more, each with a word in "
            "brackets."
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
        show(similarity_table(flags.texts, cosines))


def run_isotropy(flags: IsotropyFlags) -> None:
    """Run ``symprompt isotropy TEXT --measure TEXT --out FOLDER``."""
    backbone = LanguageModel.load(flags.model, device=flags.device)
    with show_progress() as tick:
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
    drawn = NO_PICTURE
    if can_draw():
        picture = Path(flags.out) / "isotropy.png"
        save_figure(draw_isotropy(plain), picture)
        drawn = f"picture: {picture}"
    if flags.json:
        print_json(plain)
        return
    show(isotropy_table(plain))
    show(frequency_table(plain))
    show(drawn)
    for layers, path in plain["standardisers"].items():
        show(f"standardiser: {path} (symprompt similarity --layers {layers} --standardise ...)")
