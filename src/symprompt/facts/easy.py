"""Facts that need no language model: the training facts alone give their objects away."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from symprompt.facts.types import Fact, FactSet, Relation

_WORD = re.compile(r"\w+")


def easy_facts(facts: FactSet) -> set[Fact]:
    """Return the test facts that a baseline without a model answers: LAMA-easy, the rest is hard.

    After OptiPrompt (Zhong et al., 2021, section 5), whose baselines are the majority class, naive
    Bayes over the subject's word pieces, and tuned models with random weights. Here they are the
    first two, with words for word pieces, so that the split depends on the facts alone; fewer
    facts are easy than in theirs.
    """
    easy: set[Fact] = set()
    for relation in facts.relations:
        if not relation.train:
            continue
        majority = Counter(fact.object for fact in relation.train).most_common(1)[0][0]
        guesses = naive_bayes(relation, [fact.subject for fact in relation.test])
        easy |= {
            fact
            for fact, guess in zip(relation.test, guesses, strict=True)
            if fact.object in (majority, guess)
        }
    return easy


def naive_bayes(relation: Relation, subjects: Sequence[str]) -> list[str]:
    """Return the most probable object of each subject by naive Bayes over words, add-one smoothed.

    Learned from the relation's training facts; ties go to the object met first.
    """
    names = list(dict.fromkeys(fact.object for fact in relation.train))
    objects = {name: row for row, name in enumerate(names)}
    words: dict[str, int] = {}
    for fact in relation.train:
        for word in _words(fact.subject):
            words.setdefault(word, len(words))
    counts = np.zeros((len(objects), len(words) + 1))
    prior = np.zeros(len(objects))
    for fact in relation.train:
        prior[objects[fact.object]] += 1
        for word in _words(fact.subject):
            counts[objects[fact.object], words[word]] += 1
    # The last column stands for every word that training has not seen.
    likelihood = np.log((counts + 1) / (counts.sum(1, keepdims=True) + counts.shape[1]))
    guesses = []
    for subject in subjects:
        seen = [words.get(word, len(words)) for word in _words(subject)]
        guesses.append(names[int(np.argmax(np.log(prior) + likelihood[:, seen].sum(1)))])
    return guesses


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
