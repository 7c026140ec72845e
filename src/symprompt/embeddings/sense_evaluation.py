"""Sense vectors in use: learn them from tagged text, score the test sets, tag running text.

Running text has no part-of-speech tags: a stretch of up to four words that WordNet knows as one
lemma is taken as one ("took place", "prime ministers"), the longest first. Words of the closed
classes (articles, pronouns, prepositions, conjunctions, modal and auxiliary verbs) are left out, as
are numbers and marks.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from symprompt.embeddings.sense_corpora import SETS, SenseCorpus, load_sense_corpus, load_test_sets
from symprompt.embeddings.senses import (
    Coverage,
    Rule,
    SenseTagger,
    SenseVectors,
    instance_texts,
    train_senses,
)
from symprompt.embeddings.store import write_embeddings
from symprompt.embeddings.vectors import Choice, Text, embed
from symprompt.embeddings.wordnet import PARTS, WordNet
from symprompt.errors import RunError
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.runs import statistics as averages
from symprompt.runs.environment import describe_environment, made_with
from symprompt.runs.folder import Folder, Manifest, Record

_LONGEST = 4
_CLOSED_WORDS = """
a an the this that these those each every either neither some any no both all such what which
who whom whose i me my mine myself you your yours yourself yourselves he him his himself she her
hers herself it its itself we us our ours ourselves they them their theirs themselves one ones
somebody someone something anybody anyone anything nobody nothing everybody everyone everything
about above across after against along amid among around as at before behind below beneath
beside besides between beyond by concerning despite down during except for from in inside into
like near of off on onto out outside over past per regarding since than through throughout till
to toward towards under underneath until unto up upon via versus with within without and but or
nor so yet if because although though unless whereas while whether when where why how there can
could may might must shall should will would ought not n't am are is was were be been being do
does did have has had having
"""
_CLOSED = frozenset(_CLOSED_WORDS.split())


Names = tuple[tuple[str, str], ...]
"""The (lemma, part of speech) pairs that a word may be of."""


def find_words(text: str, wordnet: WordNet) -> tuple[Text, list[Names]]:
    """Return a text with the content words that WordNet knows as its words, and their names."""
    read = Text.running(text)
    words = read.words()
    first, last, found = [], [], []
    at = 0
    while at < len(words):
        step = 1
        for length in range(min(_LONGEST, len(words) - at), 0, -1):
            names = _names(words[at : at + length], wordnet)
            if names:
                first.append(at)
                last.append(at + length - 1)
                found.append(names)
                step = length
                break
        at += step
    places = np.array([first, last], dtype=np.int64)
    return Text(text, read.starts[places[0]], read.ends[places[1]]), found


def _names(part: list[str], wordnet: WordNet) -> Names:
    """Return the lemmas that words may be together; none for a word of a closed class."""
    if not all(any(sign.isalpha() for sign in word) for word in part):
        return ()
    if len(part) == 1:
        if part[0].lower() in _CLOSED:
            return ()
        return tuple((form, pos) for pos in PARTS for form in wordnet.base_forms(part[0], pos))
    # As written, or with the base form of a verb's first word or of a noun's last.
    lower = [word.lower() for word in part]
    whole = "_".join(lower)
    nouns = ("_".join([*lower[:-1], base]) for base in wordnet.possible_forms(lower[-1], "n"))
    verbs = ("_".join([base, *lower[1:]]) for base in wordnet.possible_forms(lower[0], "v"))
    forms = {"n": (whole, *nouns), "v": (whole, *verbs), "a": (whole,), "r": (whole,)}
    names = ((form, pos) for pos, own in forms.items() for form in own)
    return tuple(name for name in dict.fromkeys(names) if name in wordnet.by_lemma)


Bools = npt.NDArray[np.bool_]


def learn_senses(
    corpus: str | Path,
    out: str | Path,
    backbone: LanguageModel,
    wordnet: WordNet,
    choice: Choice,
    *,
    standardise: bool = False,
    tick: Tick = silent,
) -> SenseVectors:
    """Read tagged text, embed its tagged words, and write sense vectors to a folder.

    The words' own vectors stay in OUT/occurrences; an interrupted run continues there.

    Args:
        corpus: SemCor's folder, or any that ``load_sense_corpus`` reads.
        out: the folder to write.
        backbone: the model.
        wordnet: the inventory of senses.
        choice: layers and pooling; the chapter sums the last four layers.
        standardise: z-score the vectors, fitted on the tagged words.
        tick: called with the sentences done, stage "embed".
    """
    read = load_sense_corpus(corpus, wordnet.senses)
    texts = instance_texts(read)
    lines = "\n".join(f"{text.text} {text.starts.tolist()}" for text in texts)
    digest = hashlib.sha256(lines.encode("utf-8", errors="surrogatepass")).hexdigest()
    folder = Folder(out)
    manifest = Manifest(
        command="senses",
        model=backbone.source,
        model_fingerprint=backbone.fingerprint,
        data=read.name,
        data_fingerprint=digest,
        method=f"{choice.layers}, {choice.pool}" + (", standardised" if standardise else ""),
        positions=backbone.max_length,
        **made_with(backbone.device, backbone.dtype),
    )
    folder.start(None, manifest)
    source = {
        "corpus": read.name,
        "instances": len(read.instances),
        "sentences": len(texts),
        "sha256": digest,
    }
    store = write_embeddings(
        backbone,
        texts,
        Path(out) / "occurrences",
        choice,
        source=source,
        total=len(texts),
        tick=tick,
    )
    about = {
        **{key: store.about[key] for key in ("model", "fingerprint", "layers", "pool", "source")},
        "dropped": read.dropped,
        "wordnet": wordnet.source,
        "standardised": standardise,
    }
    made = train_senses(read, store.vectors, wordnet, about, standardise=standardise)
    made.save(out)
    counts = {"senses": len(made.keys), "tags": int(made.counts.sum())}
    records = [Record(metric=name, value=count) for name, count in counts.items()]
    folder.finish(records=records, details=about)
    return made


def check_model(senses: SenseVectors, backbone: LanguageModel) -> None:
    """Refuse another model than the sense vectors were made with.

    Raises:
        RunError: it is another.
    """
    if senses.about["fingerprint"] != backbone.fingerprint:
        raise RunError(
            f"the sense vectors were made with {senses.about['model']}, not {backbone.source}; "
            "give that model, or train on this one."
        )


def most_frequent_sense(senses: SenseVectors, wordnet: WordNet, lemma: str, pos: str) -> str:
    """Return the sense that is most frequent in the tagged text; WordNet's order breaks ties.

    For a lemma that does not occur there it is WordNet's first sense, for one that WordNet does not
    know an empty string.
    """
    found = wordnet.of(lemma, pos)
    if not found:
        return ""
    best = max(found, key=lambda entry: (senses.count_of.get(entry.key, 0), -entry.number))
    return best.key


@dataclass(frozen=True)
class SetScore:
    """F1 in percent on one set, or on part of one; all words are answered, so F1 is accuracy.

    Attributes:
        baseline: of the most frequent sense in the same tagged text.
        difference: F1 minus baseline, its 95 % interval and two-sided p by paired bootstrap.
    """

    name: str
    instances: int
    f1: float
    baseline: float
    difference: averages.Difference


@dataclass(frozen=True)
class Evaluation:
    """Scores of each set and of all, of all without back-off, and by part of speech."""

    sets: tuple[SetScore, ...]
    all: SetScore
    seen: SetScore
    parts: tuple[SetScore, ...]
    seconds: float
    about: dict[str, Any]

    def to_records(self) -> list[Record]:
        """Return the scores as records: F1, the baseline, and their difference."""
        own = {"command": "senses", "model": str(self.about["model"]), "method": "sense vectors"}
        records = []
        for score in (*self.sets, self.all, self.seen, *self.parts):
            shared: dict[str, Any] = {**own, "label": score.name, "n": score.instances}
            change = score.difference
            records += [
                Record(metric="F1", value=score.f1, **shared),
                Record(metric="most frequent sense", value=score.baseline, **shared),
                Record(
                    metric="F1",
                    value=change.difference,
                    low=change.low,
                    high=change.high,
                    p=change.p,
                    versus="most frequent sense",
                    **shared,
                ),
            ]
        return records


def evaluate_senses(
    senses: SenseVectors,
    data: str | Path,
    backbone: LanguageModel,
    wordnet: WordNet,
    *,
    rule: Rule = "fitted",
    coverage: Coverage = "seen",
    discourse: bool = False,
    sets: Sequence[str] = (),
    draws: int = 10_000,
    tick: Tick = silent,
) -> Evaluation:
    """Score the standard test sets against the most frequent sense.

    Args:
        senses: the sense vectors.
        data: the folder of the test sets.
        backbone: the model they were made with.
        wordnet: the inventory of senses.
        rule: see ``SenseTagger``.
        coverage: see ``SenseTagger``.
        discourse: give a lemma one sense in each document.
        sets: only these sets, such as ("semeval2007",) to choose settings on; empty takes those
            that are there.
        draws: of the paired bootstrap.
        tick: called with the sets done, stage "evaluate".
    """
    check_model(senses, backbone)
    begun = time.monotonic()
    corpora = load_test_sets(data, wordnet.senses, sets)
    tagger = SenseTagger(senses, wordnet, rule=rule, coverage=coverage)
    answers: dict[str, Bools] = {}
    parts: list[str] = []
    for done, (name, corpus) in enumerate(corpora.items(), start=1):
        answers[name] = _answer(tagger, corpus, backbone, discourse=discourse)
        parts += [entry.pos for entry in corpus.instances]
        tick("evaluate", done, len(corpora), name)
    right, base, seen = np.concatenate(list(answers.values()), axis=1)
    number = np.repeat(np.arange(len(answers)), [found.shape[1] for found in answers.values()])
    of = np.array(parts)

    def score(name: str, chosen: Bools) -> SetScore:
        own, baseline = right[chosen], base[chosen]
        if not len(own):
            nothing = float("nan")
            return SetScore(name, 0, nothing, nothing, averages.Difference(*([nothing] * 4)))
        # As ranks, right is 1 and wrong is 2: P@1 is then the share of right answers.
        change = averages.paired_bootstrap(2 - baseline, 2 - own, number[chosen], draws=draws)
        f1, f1_before = (100 * float(hits.mean()) for hits in (own, baseline))
        return SetScore(name, len(own), f1, f1_before, change[averages.OVER_FACTS]["p1"])

    return Evaluation(
        tuple(score(name, number == place) for place, name in enumerate(answers)),
        score("all", np.ones_like(seen)),
        score("all, a sense of the lemma was seen", seen),
        tuple(score(pos, of == pos) for pos in "nvar" if (of == pos).any()),
        time.monotonic() - begun,
        {
            **senses.about,
            "rule": rule,
            "coverage": coverage,
            "one sense per discourse": discourse,
            "wordnet": wordnet.source,
            "sets that are not there": [name for name in SETS if not sets and name not in corpora],
            "words left out": {name: own.dropped for name, own in corpora.items() if own.dropped},
            "scoring": asdict(tagger.scoring),
            "environment": describe_environment(backbone.device),
        },
    )


def embed_instances(
    senses: SenseVectors, texts: Sequence[Text], backbone: LanguageModel
) -> npt.NDArray[np.floating]:
    """Return the vectors of texts' words, made as the sense vectors were."""
    made = {key: senses.about[key] for key in ("layers", "pool")}
    return embed(texts, model=backbone, **made).vectors


def _answer(
    tagger: SenseTagger, corpus: SenseCorpus, backbone: LanguageModel, *, discourse: bool
) -> Bools:
    """Return whether the answer is right, the baseline is, and a sense was seen, [3, words]."""
    vectors = embed_instances(tagger.senses, instance_texts(corpus), backbone)
    instances = corpus.instances
    documents = [sentence.document for sentence in corpus.sentences for _ in sentence.instances]
    names = [[(entry.lemma, entry.pos)] for entry in instances]
    tags = tagger.tag(names, vectors, documents if discourse else None)
    found = []
    for entry, tag in zip(instances, tags, strict=True):
        frequent = most_frequent_sense(tagger.senses, tagger.wordnet, entry.lemma, entry.pos)
        known = tagger.wordnet.of(entry.lemma, entry.pos)
        seen = any(sense.key in tagger.senses.index for sense in known)
        right = tag.sense is not None and tag.sense.key in entry.keys
        found.append((right, frequent in entry.keys, seen))
    return np.array(found, dtype=np.bool_).reshape(-1, 3).T


def tag_texts(
    senses: SenseVectors,
    texts: Sequence[str],
    backbone: LanguageModel,
    wordnet: WordNet,
    *,
    rule: Rule = "fitted",
    coverage: Coverage = "seen",
    discourse: bool = False,
) -> list[list[dict[str, Any]]]:
    """Tag every content word of running texts with sense, gloss and confidence.

    Lemma and part of speech are not known here: every base form that Morphy's rules give, as every
    part of speech, brings its senses in as candidates, and the best of all is taken.

    Args:
        senses: the sense vectors.
        texts: running texts; each is one discourse.
        backbone: the model they were made with.
        wordnet: the inventory of senses.
        rule: see ``SenseTagger``.
        coverage: see ``SenseTagger``.
        discourse: give a word one sense in each text.

    Returns:
        The content words of each text: word, start, end, lemma, pos, sense, gloss; how, "vector" or
        "first" where no sense of it occurs in the tagged text; and confidence, the probability
        among the candidates, None where the first sense was taken.
    """
    check_model(senses, backbone)
    tagger = SenseTagger(senses, wordnet, rule=rule, coverage=coverage)
    found = [find_words(text, wordnet) for text in texts]
    tagged: list[list[dict[str, Any]]] = [[] for _ in texts]
    places = [
        (number, start, end)
        for number, (text, _) in enumerate(found)
        for start, end in zip(text.starts.tolist(), text.ends.tolist(), strict=True)
    ]
    if not places:
        return tagged
    vectors = embed_instances(senses, [text for text, _ in found], backbone)
    names = [own for _, words in found for own in words]
    groups = [number for number, _, _ in places] if discourse else None
    for (number, start, end), tag in zip(places, tagger.tag(names, vectors, groups), strict=True):
        sense = tag.sense
        assert sense is not None, "words that WordNet does not know are not looked for"
        tagged[number].append(
            {
                "word": texts[number][start:end],
                "start": start,
                "end": end,
                "lemma": sense.lemma,
                "pos": PARTS[sense.pos],
                "sense": sense.key,
                "gloss": wordnet.gloss(sense),
                "confidence": tag.confidence,
                "how": tag.how,
            }
        )
    return tagged
