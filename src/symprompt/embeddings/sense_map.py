"""A word's occurrences as points in the plane, labelled by sense, cluster or language (11.7)."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from symprompt.embeddings.isotropy import unit
from symprompt.embeddings.senses import SenseTagger
from symprompt.embeddings.vectors import Choice, Ints, Text, embed, layer_count, read_corpus
from symprompt.embeddings.wordnet import PARTS
from symprompt.errors import DataError, counted
from symprompt.models import LanguageModel
from symprompt.runs.environment import keep_threads

Colour = Literal["sense", "cluster", "language"]
Floats = npt.NDArray[np.float64]
# So many occurrences are too few for UMAP, which looks at as many neighbours.
_FEW = 15
_AROUND = 90
_NEAR = 8
_ROUNDS = 50
# Words that name a cluster: so many, of three letters or more.
_TYPICAL = 4
_WORD = re.compile(r"[^\W\d_]{3,}")


@dataclass(frozen=True)
class SenseMap:
    """Points to draw.

    Attributes:
        word: the word, or its forms.
        points: [n, 2].
        labels: [n], what each is coloured by.
        hover: [n], (before, word, after) of the text around each.
        projection: "UMAP" or "PCA".
        colour: what the labels are.
        agreement: how often an occurrence's nearest other one has the same label, and how often it
            would by chance; only of labels that were given, as those made from the vectors agree.
        near: [n, m] int64, the nearest other occurrences of each by cosine, nearest first.
    """

    word: str
    points: Floats
    labels: tuple[str, ...]
    hover: tuple[tuple[str, str, str], ...]
    projection: str
    colour: str
    agreement: tuple[float, float] | None = None
    near: Ints | None = None


def draw_word(
    forms: Sequence[str],
    corpus: Sequence[str],
    backbone: LanguageModel,
    *,
    clusters: int = 3,
    most: int = 1000,
    seed: int = 0,
) -> SenseMap:
    """Return a word's occurrences in text files as points, in clusters, with each one's nearest.

    Args:
        forms: how the word may be written.
        corpus: files or folders.
        most: at most so many texts.

    Raises:
        DataError: it occurs less than three times, or a file is missing.
    """
    texts = find_occurrences(read_corpus(corpus, "line", holding=forms), forms, most, seed)
    count = sum(map(len, texts))
    return make_map(
        texts,
        ", ".join(forms),
        backbone,
        Choice(default_layers(backbone)),
        clusters=min(clusters, count),
        seed=seed,
    )


def default_layers(backbone: LanguageModel) -> str:
    """Return the layers that words are compared in: the sum of the last four there are."""
    return f"sum-last-{min(4, layer_count(backbone))}"


def find_occurrences(
    texts: Iterable[Text], forms: Sequence[str], most: int, seed: int = 0
) -> list[Text]:
    """Return the texts that hold a word, with its occurrences as their only words.

    Args:
        texts: read once.
        forms: how the word may be written; upper and lower case are the same.
        most: at most so many texts, drawn evenly by a seed if there are more.
        seed: of the draw.

    Raises:
        DataError: it occurs less than three times.
    """
    wanted = {form.casefold() for form in forms}
    found = []
    for text in texts:
        own = [place for place, word in enumerate(text.words()) if word.casefold() in wanted]
        if own:
            found.append(Text(text.text, text.starts[own], text.ends[own], text.label))
    count = sum(len(text) for text in found)
    if count < 3:
        raise DataError(
            f"{' or '.join(forms)} occurs {counted(count, 'time')} in the corpus; at least 3 "
            "are needed."
        )
    if len(found) > most:
        chosen = np.random.default_rng(seed).choice(len(found), most, replace=False)
        found = [found[place] for place in sorted(chosen.tolist())]
    return found


def make_map(
    texts: Sequence[Text],
    word: str,
    backbone: LanguageModel,
    choice: Choice,
    *,
    colour: Colour = "cluster",
    tagger: SenseTagger | None = None,
    clusters: int = 3,
    seed: int = 0,
) -> SenseMap:
    """Embed a word's occurrences and project them into the plane.

    Args:
        texts: as ``find_occurrences`` gives them.
        word: what to call it.
        backbone: the model.
        choice: layers and pooling.
        colour: sense (needs a tagger), cluster (of the vectors, by k-means) or language (the texts'
            label).
        tagger: gives the senses.
        clusters: how many, for colour cluster.
        seed: of the projection and the clusters.

    Raises:
        DataError: colour is sense, and WordNet does not know the word.
    """
    vectors = embed(texts, model=backbone, layers=choice.layers, pool=choice.pool).vectors
    spelled = [written for text in texts for written in text.words()]
    hover = tuple(
        (whole[max(0, start - _AROUND) : start], whole[start:end], whole[end : end + _AROUND])
        for whole, places in ((text.text, (text.starts, text.ends)) for text in texts)
        for start, end in np.stack(places, axis=1).tolist()
    )
    if colour == "sense":
        assert tagger is not None, "it is given with the folder of sense vectors"
        labels = _senses(tagger, spelled, vectors)
    elif colour == "language":
        labels = [text.label or "no language given" for text in texts for _ in range(len(text))]
    else:
        groups = k_means(unit(vectors), clusters, seed)
        labels = _clusters(groups, hover, spelled)
    points, projection = project(vectors, seed)
    near = nearest_others(vectors)[:, :_NEAR]
    agreement = neighbour_agreement(near, labels) if colour == "language" else None
    return SenseMap(word, points, tuple(labels), hover, projection, colour, agreement, near)


def _clusters(
    groups: Ints, around: Sequence[tuple[str, str, str]], spelled: Sequence[str]
) -> list[str]:
    """Return each occurrence's cluster, named by the words around that tell it from the others."""
    own = {word.casefold() for word in spelled}
    words = [
        {word for word in _WORD.findall(f"{before} {after}".casefold()) if word not in own}
        for before, _, after in around
    ]
    names = {}
    for group in sorted(set(groups.tolist())):
        inside = [found for found, other in zip(words, groups, strict=True) if other == group]
        outside = [found for found, other in zip(words, groups, strict=True) if other != group]
        there = Counter(word for found in inside for word in found)
        elsewhere = Counter(word for found in outside for word in found)
        share = {
            word: count / len(inside) - elsewhere[word] / max(1, len(outside))
            for word, count in there.items()
            if count > 1
        }
        typical = sorted(share, key=lambda word: (-share[word], word))[:_TYPICAL]
        names[group] = f"cluster {group + 1}" + (f": {', '.join(typical)}" if typical else "")
    return [names[group] for group in groups.tolist()]


def _senses(
    tagger: SenseTagger, spelled: Sequence[str], vectors: npt.NDArray[np.floating]
) -> list[str]:
    names = [
        [(form, pos) for pos in PARTS for form in tagger.wordnet.base_forms(word, pos)]
        for word in spelled
    ]
    if not any(names):
        raise DataError(f"WordNet does not know {spelled[0]}; colour by cluster instead.")
    labels = []
    for tag in tagger.tag(names, vectors):
        if tag.sense is None:
            labels.append("not in WordNet")
            continue
        gloss = tagger.wordnet.gloss(tag.sense).split(";")[0]
        labels.append(f"{tag.sense.lemma} ({tag.sense.pos}{tag.sense.number}): {gloss}")
    return labels


def project(vectors: npt.NDArray[np.floating], seed: int = 0) -> tuple[Floats, str]:
    """Return [n, 2] and how: UMAP by cosine where it is installed, else principal components."""
    if len(vectors) > _FEW:
        # Its warnings: a seed keeps it to one thread; numba's: what is deprecated.
        with suppress(ImportError), keep_threads(), warnings.catch_warnings(action="ignore"):
            import umap

            reducer = umap.UMAP(n_neighbors=_FEW, metric="cosine", random_state=seed)
            points = reducer.fit_transform(vectors.astype(np.float32))
            return np.asarray(points, dtype=np.float64), "UMAP"
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    return left[:, :2] * sizes[:2], "PCA"


def neighbour_agreement(near: Ints, labels: Sequence[str]) -> tuple[float, float]:
    """Return how often the nearest other vector has the same label.

    Args:
        near: every vector's others, nearest first; see ``nearest_others``.

    Returns:
        That share; and the share expected if the other one were drawn by chance.
    """
    own = np.asarray(labels)
    _, counts = np.unique(own, return_counts=True)
    chance = float((counts * (counts - 1)).sum()) / (len(own) * (len(own) - 1))
    return float((own[near[:, 0]] == own).mean()), chance


def nearest_others(vectors: npt.NDArray[np.floating]) -> Ints:
    """Return every vector's others by cosine, nearest first, [n, n - 1] int64."""
    units = unit(vectors.astype(np.float64))
    cosines = units @ units.T
    np.fill_diagonal(cosines, -np.inf)
    found: Ints = np.argsort(-cosines, axis=1, kind="stable")[:, :-1]
    return found


def why_not_umap(found: SenseMap) -> str:
    """Return why the map is not UMAP's, in one sentence; empty if it is."""
    if found.projection == "UMAP":
        return ""
    if len(found.labels) <= _FEW:
        return f"no UMAP: it needs more than {_FEW} occurrences."
    return "no UMAP: umap-learn is not installed (pip install symprompt[report])."


def k_means(units: npt.NDArray[np.floating], count: int, seed: int = 0) -> Ints:
    """Return the cluster of each unit vector, by cosine; clusters are numbered by size.

    Raises:
        DataError: there are more clusters than vectors, or none.
    """
    if not 1 <= count <= len(units):
        raise DataError(f"clusters is {count}; allowed are 1 to {len(units)} for so many words.")
    generator = np.random.default_rng(seed)
    centres = units[[int(generator.integers(len(units)))]]
    while len(centres) < count:
        # k-means++: far points are likelier to be the next centre.
        far = np.maximum(0, 1 - (units @ centres.T).max(axis=1))
        share = far / far.sum() if far.sum() > 0 else None
        centres = np.concatenate([centres, units[[int(generator.choice(len(units), p=share))]]])
    owner = np.full(len(units), -1)
    for _ in range(_ROUNDS):
        new = (units @ centres.T).argmax(axis=1)
        if (new == owner).all():
            break
        owner = new
        kept = [
            units[owner == place].mean(axis=0) if (owner == place).any() else centres[place]
            for place in range(count)
        ]
        centres = unit(np.stack(kept))
    order = np.argsort(-np.bincount(owner, minlength=count), kind="stable")
    found: Ints = np.argsort(order)[owner]
    return found
