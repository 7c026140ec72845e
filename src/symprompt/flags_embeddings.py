"""The flags of the commands about word vectors, as dataclasses that tyro reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from symprompt.backbone import SHIPPED


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
