"""Word senses by the nearest sense vector (equations 11.8 and 11.9 of the chapter).

A sense's vector is the mean of its occurrences in tagged text. An occurrence is given the sense,
among those its lemma has as its part of speech, whose vector has the highest cosine with its own.
Two additions, each of which can be turned off:

- How often a sense occurs counts too: a sense's score is its cosine plus its weighted log
  frequency, with the weight that fits documents that were held out.
- Senses without occurrences get a vector through WordNet's relations (after LMMS, Loureiro and
  Jorge 2019): the mean vector of the synset's other senses; without any, that of the synsets beside
  it (same hypernym), of the hypernym itself, of its own hyponyms and of similar adjectives; without
  any, that of its broad class (the lexicographer file, such as noun.animal). Each mean is over unit
  vectors, so frequent senses count no more than rare ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from symprompt.embeddings.isotropy import Moments, Standardiser, unit
from symprompt.embeddings.sense_corpora import Instance, SenseCorpus
from symprompt.embeddings.vectors import Ints, Text
from symprompt.embeddings.wordnet import Sense, WordNet
from symprompt.errors import RunError
from symprompt.files.atomic import read_finite_arrays, write_arrays

Vector = npt.NDArray[np.floating]


class Relations:
    """Finds vectors of senses that have none of their own; final.

    Args:
        wordnet: synsets and their relations.
        index: sense key -> row.
        units: [senses, h], unit vectors of senses with occurrences.
    """

    def __init__(self, wordnet: WordNet, index: Mapping[str, int], units: Vector) -> None:
        self._wordnet = wordnet
        members: dict[str, list[int]] = defaultdict(list)
        for key, row in index.items():
            if key in wordnet.senses:
                members[wordnet.senses[key].synset].append(row)
        self._synsets = {name: unit(units[rows].mean(axis=0)) for name, rows in members.items()}
        below: dict[str, list[Vector]] = defaultdict(list)
        classes: dict[int, list[Vector]] = defaultdict(list)
        for name, vector in self._synsets.items():
            found = wordnet.synset(name)
            if found is not None:
                classes[found.lexname].append(vector)
                for parent in found.hypernyms:
                    below[parent].append(vector)
        self._below = {name: unit(np.mean(own, axis=0)) for name, own in below.items()}
        self._classes = {name: unit(np.mean(own, axis=0)) for name, own in classes.items()}

    def vector(self, sense: Sense) -> Vector | None:
        """Return the unit vector of a sense without occurrences; None if nothing related occurs."""
        name, synset = sense.synset, self._wordnet.synset(sense.synset)
        if name in self._synsets:
            return self._synsets[name]
        if synset is None:
            return None
        near = [self._below[parent] for parent in synset.hypernyms if parent in self._below]
        beside = (*synset.hypernyms, *synset.similar)
        near += [self._synsets[other] for other in beside if other in self._synsets]
        near += [self._below[name]] if name in self._below else []
        if near:
            return unit(np.mean(near, axis=0))
        return self._classes.get(synset.lexname)


Floats = npt.NDArray[np.float64]
Examples = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], Ints]

_PAIRS = 1 << 15
_STEPS = 50
# Weights of frequency against the cosine that are tried: 0.005, 0.01, ...
_RATIOS = 60
_STEP = 0.005
# Keeps the fit finite where every held-out word is right already, as in very small corpora.
_RIDGE = 1e-3


@dataclass(frozen=True)
class Scoring:
    """The logit of a sense: ``cosine`` times its cosine plus ``frequency`` times its log count.

    Probabilities are the softmax over the candidates. A weight of 0 for frequency is the chapter's
    nearest neighbour.
    """

    cosine: float = 20.0
    frequency: float = 0.0


def pair_cosines(
    table: npt.NDArray[np.floating], vectors: npt.NDArray[np.floating], rows: Ints, owner: Ints
) -> Floats:
    """Return the cosine of table[row] and vectors[owner] for every pair; both are unit vectors."""
    found = np.empty(len(rows), dtype=np.float64)
    for start in range(0, len(rows), _PAIRS):
        part = slice(start, start + _PAIRS)
        found[part] = np.einsum("ij,ij->i", table[rows[part]], vectors[owner[part]])
    return found


def fit_scoring(groups: Sequence[Examples]) -> Scoring:
    """Return the weights that serve held-out words best.

    How much frequency weighs against the cosine is what makes most held-out words right; how sure
    that makes one is then fitted by likelihood, of a softmax over each word's candidates. (Both by
    likelihood weighed frequency 1.6 times as much on SemCor.) Several right senses share a word's
    weight.

    Args:
        groups: for each fold the cosines, log frequencies, whether a candidate is right, and which
            word it is a candidate of, words one after the other.
    """
    kept = [group for group in groups if len(group[0])]
    if not kept:
        return Scoring()
    cosines, frequencies = (
        np.concatenate([group[place] for group in kept]).astype(np.float64) for place in (0, 1)
    )
    right = np.concatenate([group[2] for group in kept]).astype(np.float64)
    owner = np.concatenate([group[3] for group in kept])
    fold = np.repeat(np.arange(len(kept)), [len(group[0]) for group in kept])
    words = _Words(
        np.flatnonzero(np.diff(owner, prepend=-1) | np.diff(fold, prepend=-1)), len(fold)
    )
    ratios = np.arange(_RATIOS + 1) * _STEP
    hits = [words.hits(cosines + ratio * frequencies, right) for ratio in ratios]
    # Neighbours are counted in: one ratio that is best by a word or two is chance.
    smooth = np.convolve(hits, np.ones(3) / 3, mode="valid")
    ratio = float(ratios[1 + int(np.argmax(smooth))])
    scale = words.fit_scale(cosines + ratio * frequencies, right)
    return Scoring(scale, scale * ratio)


@dataclass(frozen=True)
class _Words:
    """Where each word's candidates begin among all, and how many candidates there are."""

    starts: Ints
    count: int

    def spread(self, values: Floats) -> Floats:
        """Return each word's value for each of its candidates."""
        return np.repeat(values, np.diff(np.append(self.starts, self.count)))

    def hits(self, scores: Floats, right: Floats) -> float:
        """Return how many words' best candidate is right."""
        best = scores == self.spread(np.maximum.reduceat(scores, self.starts))
        tied = np.add.reduceat(best.astype(np.float64), self.starts)
        return float((np.add.reduceat(best * right, self.starts) / tied).sum())

    def fit_scale(self, scores: Floats, right: Floats) -> float:
        """Return what to multiply scores by, so that right candidates are likeliest (Newton)."""
        target = right / self.spread(np.add.reduceat(right, self.starts))
        scale = 1.0
        for _ in range(_STEPS):
            logits = scale * scores
            powers = np.exp(logits - self.spread(np.maximum.reduceat(logits, self.starts)))
            chance = powers / self.spread(np.add.reduceat(powers, self.starts))
            centred = scores - self.spread(np.add.reduceat(chance * scores, self.starts))
            slope = float(((target - chance) * scores).sum()) - _RIDGE * scale
            bend = float((chance * centred**2).sum()) + _RIDGE
            # Newton may overshoot far from the maximum; a step at most doubles or halves.
            new = min(max(scale + slope / bend, scale / 2), scale * 2)
            if abs(new - scale) < 1e-8 * scale:
                break
            scale = new
        return scale


Coverage = Literal["seen", "relations"]
Rule = Literal["nearest", "fitted"]
FOLDS = 5
_FILE = "senses.safetensors"
# What a sense without occurrences counts as having: less than one.
_UNSEEN = 0.2


@dataclass(frozen=True)
class Tag:
    """The sense given to one occurrence.

    Attributes:
        sense: the sense; None where WordNet does not know the lemma.
        confidence: its probability among the candidates; None after backing off.
        how: "vector", or "first" where no candidate has a vector and the first sense was taken.
    """

    sense: Sense | None
    confidence: float | None
    how: str


@dataclass(frozen=True)
class SenseVectors:
    """Sense vectors and what is needed to use them; final.

    Attributes:
        keys: sense keys.
        vectors: [senses, h], the mean of each sense's occurrences (equation 11.8).
        counts: [senses], their number.
        scoring: the weights of cosine and frequency.
        about: model, layers, pooling, corpus.
        standardiser: applied to vectors before anything else; None leaves them as they are.
    """

    keys: tuple[str, ...]
    vectors: npt.NDArray[np.float32]
    counts: Ints
    scoring: Scoring
    about: dict[str, Any]
    standardiser: Standardiser | None = None

    @cached_property
    def index(self) -> dict[str, int]:
        """Sense key -> row."""
        return {key: row for row, key in enumerate(self.keys)}

    @cached_property
    def count_of(self) -> dict[str, int]:
        """Sense key -> occurrences."""
        return dict(zip(self.keys, self.counts.tolist(), strict=True))

    def save(self, folder: str | Path) -> None:
        """Write them into a folder, as one safetensors file."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "vectors": self.vectors.astype(np.float16),
            "counts": self.counts,
        }
        if self.standardiser is not None:
            arrays |= {"mean": self.standardiser.mean, "deviation": self.standardiser.deviation}
        about = {"keys": self.keys, "scoring": asdict(self.scoring), "about": self.about}
        write_arrays(Path(folder) / _FILE, arrays, about)

    @classmethod
    def load(cls, folder: str | Path) -> SenseVectors:
        """Read them back.

        Raises:
            RunError: the folder holds none.
        """
        path = Path(folder) / _FILE
        if not path.is_file():
            raise RunError(
                f"{folder} holds no sense vectors; make them with: symprompt senses train."
            )
        arrays, note = read_finite_arrays(path)
        try:
            if not len(note["keys"]) == len(arrays["vectors"]) == len(arrays["counts"]):
                raise TypeError("keys, vectors and counts differ in number")
            fitted = None
            if "mean" in arrays:
                fitted = Standardiser(arrays["mean"], arrays["deviation"], {})
            return cls(
                tuple(note["keys"]),
                arrays["vectors"].astype(np.float32),
                arrays["counts"],
                Scoring(**note["scoring"]),
                note["about"],
                fitted,
            )
        except (KeyError, TypeError) as error:
            raise RunError(f"{path} holds no sense vectors ({error}); make them again.") from None


def instance_texts(corpus: SenseCorpus) -> list[Text]:
    """Return the sentences that have tagged words, as texts whose only words those are."""
    texts = []
    for sentence in corpus.sentences:
        if sentence.instances:
            whole = Text.of_words(sentence.words)
            first = np.array([entry.first for entry in sentence.instances])
            last = np.array([entry.last for entry in sentence.instances]) - 1
            texts.append(Text(whole.text, whole.starts[first], whole.ends[last], sentence.document))
    return texts


def train_senses(
    corpus: SenseCorpus,
    vectors: npt.NDArray[np.floating],
    wordnet: WordNet,
    about: dict[str, Any],
    *,
    standardise: bool = False,
) -> SenseVectors:
    """Average every sense's occurrences, and fit how much frequency counts.

    The weights are fitted by likelihood on documents whose occurrences are left out of the
    averages: five times, a fifth of the documents each. They do not know WordNet's order of senses,
    which was made from the same text.

    Args:
        corpus: tagged text.
        vectors: [instances, h], of its tagged words in order.
        wordnet: the senses of each lemma.
        about: what the vectors were made with.
        standardise: z-score the vectors first.
    """
    instances = corpus.instances
    ready = np.asarray(vectors, dtype=np.float32)
    fitted = None
    if standardise:
        moments = Moments()
        moments.add(ready)
        fitted = moments.standardiser()
        ready = np.asarray(fitted.apply(ready), dtype=np.float32)
    keys = sorted({key for entry in instances for key in entry.keys})
    rows = {key: row for row, key in enumerate(keys)}
    pairs = [(place, rows[key]) for place, entry in enumerate(instances) for key in entry.keys]
    owner, sense = np.array(pairs, dtype=np.int64).T
    documents: dict[str, int] = {}
    numbers = [
        documents.setdefault(sentence.document, len(documents))
        for sentence in corpus.sentences
        for _ in sentence.instances
    ]
    fold = np.array(numbers, dtype=np.int64) % FOLDS
    sums = np.zeros((FOLDS, len(keys), ready.shape[1]), dtype=np.float32)
    counts = np.zeros((FOLDS, len(keys)), dtype=np.int64)
    np.add.at(sums, (fold[owner], sense), ready[owner])
    np.add.at(counts, (fold[owner], sense), 1)
    total, number = sums.sum(axis=0), counts.sum(axis=0)
    made = SenseVectors(
        tuple(keys), total / number[:, None], number, Scoring(), dict(about), fitted
    )
    groups = []
    for place in range(FOLDS):
        others = np.maximum(number - counts[place], 0)
        part = replace(
            made, vectors=(total - sums[place]) / np.maximum(others, 1)[:, None], counts=others
        )
        own = np.flatnonzero(fold == place)
        groups.append(_examples(part, wordnet, [instances[row] for row in own], ready[own]))
    return replace(made, scoring=fit_scoring(groups))


def _examples(
    senses: SenseVectors, wordnet: WordNet, instances: Sequence[Instance], ready: npt.NDArray[Any]
) -> Examples:
    """Return each candidate's cosine, log frequency, whether it is right, and its instance."""
    rows, owner, right = [], [], []
    for place, entry in enumerate(instances):
        found = [senses.index.get(sense.key) for sense in wordnet.of(entry.lemma, entry.pos)]
        own = [row for row in found if row is not None and senses.counts[row]]
        good = [senses.keys[row] in entry.keys for row in own]
        if len(own) > 1 and any(good):
            rows += own
            right += good
            owner += [place] * len(own)
    row, of = np.array(rows, dtype=np.int64), np.array(owner, dtype=np.int64)
    cosines = pair_cosines(unit(senses.vectors), unit(ready), row, of)
    return cosines, np.log(senses.counts[row]), np.array(right, dtype=bool), of


class SenseTagger:
    """Gives occurrences their senses; final.

    Args:
        senses: the sense vectors.
        wordnet: the candidates of each lemma.
        rule: nearest (the chapter's equation 11.9: cosine alone) or fitted (frequency counts too).
        coverage: seen (only senses with occurrences) or relations (all of WordNet's, through their
            synset, hypernyms or broad class).
    """

    def __init__(
        self,
        senses: SenseVectors,
        wordnet: WordNet,
        *,
        rule: Rule = "fitted",
        coverage: Coverage = "seen",
    ) -> None:
        self.senses, self.wordnet = senses, wordnet
        self.scoring = senses.scoring
        if rule == "nearest":
            self.scoring = replace(senses.scoring, frequency=0.0)
        self._units = unit(senses.vectors)
        self._relations = None
        if coverage == "relations":
            self._relations = Relations(wordnet, senses.index, self._units)

    def tag(
        self,
        names: Sequence[Sequence[tuple[str, str]]],
        vectors: npt.NDArray[np.floating],
        groups: Sequence[object] | None = None,
    ) -> list[Tag]:
        """Return each occurrence's sense.

        Args:
            names: for each occurrence the (lemma, part of speech) pairs it may be of.
            vectors: [occurrences, h], as the model gave them.
            groups: a document for each occurrence, in which a lemma keeps one sense: the one whose
                scores add up to most there. None decides each by itself.
        """
        ready = np.asarray(vectors, dtype=np.float32)
        if self.senses.standardiser is not None:
            ready = np.asarray(self.senses.standardiser.apply(ready), dtype=np.float32)
        # The vector of every sense that any of the occurrences may have, and each name's senses.
        vectors_of: dict[str, Vector] = {}
        senses_of: dict[tuple[str, str], list[Sense]] = {}
        for pair in {pair for pairs in names for pair in pairs}:
            senses_of[pair] = []
            for sense in self.wordnet.of(*pair):
                row = self.senses.index.get(sense.key)
                vector = None if row is None else self._units[row]
                if row is None and self._relations is not None:
                    vector = self._relations.vector(sense)
                if vector is not None:
                    vectors_of[sense.key] = vector
                    senses_of[pair].append(sense)
        options = [tuple(sense for pair in pairs for sense in senses_of[pair]) for pairs in names]
        counts = np.array([len(own) for own in options], dtype=np.int64)
        owner = np.repeat(np.arange(len(options)), counts)
        flat = [sense for own in options for sense in own]
        table = np.array(list(vectors_of.values()), dtype=self._units.dtype)
        place_of = {key: place for place, key in enumerate(vectors_of)}
        rows = np.array([place_of[sense.key] for sense in flat], dtype=np.int64)
        cosines = pair_cosines(table, unit(ready), rows, owner)
        times = np.array([self.senses.count_of.get(sense.key, _UNSEEN) for sense in flat])
        logits = self.scoring.cosine * cosines + self.scoring.frequency * np.log(times)
        bounds = np.append(0, np.cumsum(counts))
        scores = [logits[bounds[place] : bounds[place + 1]] for place in range(len(options))]
        if groups is not None:
            # Every occurrence of a lemma in a document has the sum of their scores.
            sums: dict[object, Any] = defaultdict(float)
            owners = list(zip(groups, options, strict=True))
            for name, score in zip(owners, scores, strict=True):
                sums[name] = sums[name] + score
            scores = [sums[name] for name in owners]
        return [
            self._decide(pairs, own, score)
            for pairs, own, score in zip(names, options, scores, strict=True)
        ]

    def _decide(
        self,
        pairs: Sequence[tuple[str, str]],
        options: tuple[Sense, ...],
        scores: npt.NDArray[np.float64],
    ) -> Tag:
        if not len(options):
            every = [sense for pair in pairs for sense in self.wordnet.of(*pair)]
            # Of several lemmas the sense that WordNet counted most; its order decides within one.
            first = max(every, key=lambda sense: (sense.count, -sense.number), default=None)
            single = len(set(pairs)) == 1 and every
            return Tag(every[0] if single else first, None, "first")
        best = int(np.argmax(scores))
        powers = np.exp(scores - scores.max())
        sure = float((powers / powers.sum())[best])
        return Tag(options[best], sure, "vector")
