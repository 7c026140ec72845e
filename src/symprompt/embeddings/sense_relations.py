"""Vectors for senses that never occur, through WordNet's relations (after LMMS, 2019).

A sense without occurrences takes the mean vector of its synset's other senses; without any, that of
the synsets beside it (same hypernym), of the hypernym itself, of its own hyponyms and of adjectives
said to be similar; without any, that of its broad class (the lexicographer file, such as
noun.animal). Each mean is over unit vectors, so frequent senses count no more than rare ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from symprompt.embeddings.isotropy import unit
from symprompt.embeddings.wordnet import Sense, WordNet

Vector = npt.NDArray[np.floating]


class Relations:
    """Finds vectors of senses that have none of their own; final.

    Args:
        wordnet: synsets and their relations.
        index: sense key -> row.
        units: [senses, h], unit vectors of senses with occurrences.
    """

    def __init__(self, wordnet: WordNet, index: Mapping[str, int], units: Vector) -> None:
        self._wordnet, self._index, self._units = wordnet, index, units
        members: dict[str, list[int]] = defaultdict(list)
        for key, row in index.items():
            if key in wordnet.senses:
                members[wordnet.senses[key].synset].append(row)
        self._synsets = {name: unit(units[rows].mean(axis=0)) for name, rows in members.items()}
        below: dict[str, list[Vector]] = defaultdict(list)
        classes: dict[int, list[Vector]] = defaultdict(list)
        for name, vector in self._synsets.items():
            if name in wordnet.synsets:
                found = wordnet.synsets[name]
                classes[found.lexname].append(vector)
                for parent in found.hypernyms:
                    below[parent].append(vector)
        self._below = {name: unit(np.mean(own, axis=0)) for name, own in below.items()}
        self._classes = {name: unit(np.mean(own, axis=0)) for name, own in classes.items()}
        self._found: dict[str, Vector | None] = {}

    def vector(self, sense: Sense) -> Vector | None:
        """Return a sense's unit vector; None if nothing related to it occurs."""
        row = self._index.get(sense.key)
        if row is not None:
            found: Vector = self._units[row]
            return found
        if sense.synset not in self._found:
            self._found[sense.synset] = self._related(sense.synset)
        return self._found[sense.synset]

    def _related(self, name: str) -> Vector | None:
        if name in self._synsets:
            return self._synsets[name]
        synset = self._wordnet.synsets.get(name)
        if synset is None:
            return None
        near = [self._below[parent] for parent in synset.hypernyms if parent in self._below]
        beside = (*synset.hypernyms, *synset.similar)
        near += [self._synsets[other] for other in beside if other in self._synsets]
        near += [self._below[name]] if name in self._below else []
        if near:
            return unit(np.mean(near, axis=0))
        return self._classes.get(synset.lexname)
