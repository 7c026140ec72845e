"""Facts by relation and split: Fact -> Relation -> FactSet.

Make train, dev and test out of facts that come without splits; leave facts out on purpose, and
count them.
"""

from __future__ import annotations

import difflib
import hashlib
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from symprompt.config import nearest
from symprompt.errors import DataError, counted
from symprompt.files.parquet import rows_of
from symprompt.files.reading import GivenRows, Row, Source, load_text, shorten, text_in
from symprompt.files.reading import Split as Split

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
SHARES = (60, 20, 20)
"""Percent of a relation's subjects in train, dev and test, where facts come without a split."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One triple: the relation's name, the subject's text and the object's text.

    Example:
        >>> Fact("capital", "Peru", "Lima").object
        'Lima'
    """

    relation: str
    subject: str
    object: str


@dataclass(frozen=True)
class Relation:
    """One relation with its facts by split.

    Args:
        name: the identifier used everywhere ("P36").
        label: what people call it ("capital"); may be empty.
        template: a manual template with [X] for the subject and [Y] for the object; may be empty.
        rewordings: further manual templates that come with the data, as BEAR's do.
        answers: the answer space, where the data has one or nothing is trained on: what every fact
            is ranked among. Empty leaves it to the training objects.
    """

    name: str
    train: tuple[Fact, ...] = ()
    dev: tuple[Fact, ...] = ()
    test: tuple[Fact, ...] = ()
    label: str = ""
    template: str = ""
    rewordings: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()

    def split(self, name: Split) -> tuple[Fact, ...]:
        """Return the facts of one split."""
        facts: tuple[Fact, ...] = getattr(self, name)
        return facts

    def all(self) -> tuple[Fact, ...]:
        """Return train, dev and test facts, in that order."""
        return self.train + self.dev + self.test

    def candidates(self) -> set[str]:
        """Return the objects that may answer: the answer space, or what training facts have."""
        return set(self.answers) or {fact.object for fact in self.train}


BAD_ROW = "row cannot be used"
"""Why a bad row is left out."""
NOT_ONE_TOKEN = "object is not one token of the model"
"""Why most facts are left out."""
UNUSABLE = "their relation cannot be used"
"""Why the facts of a whole relation are left out."""


def with_advice(reason: str) -> str:
    """Return why facts were left out, with the flags that keep them if there are any."""
    if reason != NOT_ONE_TOKEN:
        return reason
    return f"{reason} (--objects any-length --vocabulary objects keeps such facts)"


@dataclass(frozen=True)
class Dropped:
    """How many facts were left out of one relation's split, and why."""

    relation: str
    split: Split
    reason: str
    count: int


@dataclass(frozen=True)
class FactSet:
    """Relations with their facts, and the count of every fact that was left out on the way.

    Args:
        skipped: relations that were left out as they cannot be used, each with its reason.
        composed: facts whose names were read in decomposed Unicode (NFD); they are kept in composed
            one (NFC), so that a name is one name however it was typed.

    Example:
        >>> world_facts().select(["capital"]).names
        ('capital',)
    """

    relations: tuple[Relation, ...]
    source: str
    layout: str
    dropped: tuple[Dropped, ...] = field(default=())
    composed: int = 0
    skipped: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        columns: Mapping[str, str] | Sequence[str] = (),
        relations: Sequence[str] = (),
        seed: int = 0,
        shares: Sequence[int] = (),
    ) -> FactSet:
        """Return the facts of a DataFrame of pandas or polars, or of any table's rows.

        Args:
            frame: with the columns subject, relation, object and, if wanted, split and template; a
                table of pyarrow, a data set of the datasets library or a list of dictionaries too.
            columns: what it calls its columns, as {"subject": "company"}; if it then has no
                relation, all facts are of one, called "facts".
            relations: names to load; none means all.
            seed, shares: make the split, see ``load_facts``.

        Raises:
            DataError: it is no table, or a row cannot be used.

        Example:
            >>> rows = [{"land": land, "city": city} for land, city in
            ...         (("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"))]
            >>> columns = {"subject": "land", "object": "city"}
            >>> len(FactSet.from_frame(rows, columns=columns).facts())
            3
        """
        from symprompt.facts.load import load_table

        rows = [{key.lower(): own for key, own in row.items()} for row in rows_of(frame)]
        return load_table(
            GivenRows(rows), relations=relations, seed=seed, shares=shares, columns=columns
        )

    def to_columns(self) -> dict[str, list[str]]:
        """Return relation, subject, object, split and template of every fact, as columns."""
        rows = [
            (relation.name, fact.subject, fact.object, split, relation.template)
            for relation in self.relations
            for split in SPLITS
            for fact in relation.split(split)
        ]
        names = ("relation", "subject", "object", "split", "template")
        return {name: [row[place] for row in rows] for place, name in enumerate(names)}

    @property
    def names(self) -> tuple[str, ...]:
        """The relations' names, in order."""
        return tuple(relation.name for relation in self.relations)

    def __getitem__(self, name: str) -> Relation:
        for relation in self.relations:
            if relation.name == name:
                return relation
        raise DataError(
            f"relation {name!r} is not in {self.source}; it has: {', '.join(self.names)}."
        )

    def facts(self, split: Split | None = None) -> list[Fact]:
        """Return one split's facts, or those of all, relation after relation."""
        return [
            fact
            for relation in self.relations
            for fact in (relation.split(split) if split else relation.all())
        ]

    def select(self, names: Iterable[str]) -> FactSet:
        """Return the set with only the named relations, in the order of the set."""
        wanted = dict.fromkeys(names)
        for name in wanted.keys() - set(self.names):
            self[name]  # refuses it
        kept = tuple(relation for relation in self.relations if relation.name in wanted)
        dropped = tuple(entry for entry in self.dropped if entry.relation in wanted)
        return replace(self, relations=kept, dropped=dropped)

    def drop(
        self, unwanted: Collection[Fact], reason: str, splits: Sequence[Split] = SPLITS
    ) -> FactSet:
        """Return the set without some facts, counted under ``reason``.

        Args:
            splits: where to look; other splits are kept as they are.
        """
        relations: list[Relation] = []
        dropped = list(self.dropped)
        for relation in self.relations:
            kept: dict[str, Any] = {}
            for split in splits:
                before = relation.split(split)
                kept[split] = tuple(fact for fact in before if fact not in unwanted)
                lost = len(before) - len(kept[split])
                if lost:
                    dropped.append(Dropped(relation.name, split, reason, lost))
            relations.append(replace(relation, **kept))
        return replace(self, relations=tuple(relations), dropped=tuple(dropped))

    def leave_out(self, reasons: Mapping[str, str]) -> FactSet:
        """Return the set without some relations, which it names with their reasons.

        Their facts are counted as dropped.

        Args:
            reasons: why each relation that is left out cannot be used.

        Raises:
            DataError: no relation is left.
        """
        facts = {fact for name in reasons for fact in self[name].all()}
        kept = tuple(relation for relation in self.relations if relation.name not in reasons)
        if not kept:
            listed = "; ".join(f"{name}: {why}" for name, why in reasons.items())
            raise DataError(f"no relation of {self.source} can be used ({listed}); add facts.")
        dropped = self.drop(facts, UNUSABLE).dropped
        skipped = {**self.skipped, **reasons}
        return replace(self, relations=kept, dropped=dropped, skipped=skipped)

    def dropped_by_reason(self) -> dict[str, int]:
        """Return how many facts each reason cost, over all relations and splits."""
        counts: Counter[str] = Counter()
        for entry in self.dropped:
            counts[entry.reason] += entry.count
        return dict(counts)

    def worded(self, number: int) -> FactSet:
        """Return the set with each relation's template of this number, from 1, as its manual one.

        Args:
            number: 0 takes them all: each is a relation of its own, "P36.1", "P36.2" and so on,
                unless there is but one.

        Raises:
            DataError: a relation has fewer.
        """
        relations: list[Relation] = []
        names: dict[str, list[str]] = {}
        for relation in self.relations:
            known = (relation.template, *relation.rewordings)
            if number > len(known):
                raise DataError(
                    f"facts.wording is {number}, but relation {relation.name!r} of {self.source} "
                    f"has {counted(len(known), 'manual template')}; take 1 to {len(known)}."
                )
            if number or len(known) == 1:
                place = max(0, number - 1)
                others = known[:place] + known[place + 1 :]
                relations.append(replace(relation, template=known[place], rewordings=others))
                continue
            for place, template in enumerate(known, 1):
                name = f"{relation.name}.{place}"
                names.setdefault(relation.name, []).append(name)
                moved: dict[str, Any] = {
                    split: tuple(replace(fact, relation=name) for fact in relation.split(split))
                    for split in SPLITS
                }
                relations.append(
                    replace(relation, name=name, template=template, rewordings=(), **moved)
                )
        dropped = tuple(
            replace(entry, relation=name)
            for entry in self.dropped
            for name in names.get(entry.relation, [entry.relation])
        )
        return replace(self, relations=tuple(relations), dropped=dropped)

    def true_objects(self) -> dict[tuple[str, str], set[str]]:
        """Return every true object of each (relation, subject), over all splits."""
        answers: dict[tuple[str, str], set[str]] = {}
        for fact in self.facts():
            answers.setdefault((fact.relation, fact.subject), set()).add(fact.object)
        return answers

    def fingerprint(self) -> str:
        """Return a digest of every fact, its place and the templates; equal for equal sets."""
        digest = hashlib.sha256()
        for relation in self.relations:
            digest.update(f"{relation.name}\t{relation.template}\n".encode())
            for own in (*relation.rewordings, *relation.answers):
                digest.update(f"\t{own}\n".encode())
            for split in SPLITS:
                for fact in relation.split(split):
                    line = "\t".join((relation.name, split, fact.subject, fact.object))
                    digest.update(line.encode() + b"\n")
        return digest.hexdigest()


def natural_key(name: str) -> tuple[tuple[int, int, str, str], ...]:
    """Return a sort key that puts P17 before P101 before P1001."""
    # Numbers are compared by length, then digit by digit: int() refuses very long ones.
    key: list[tuple[int, int, str, str]] = []
    for part in re.findall(r"[0-9]+|[^0-9]+", name):
        digits = part.lstrip("0")
        key.append((0, len(digits), digits, part) if part[0] in "0123456789" else (1, 0, "", part))
    return tuple(key)


def choose_names(available: Iterable[str], wanted: Sequence[str], source: str) -> tuple[str, ...]:
    """Return the wanted relation names in natural order, or all when none is named."""
    names = sorted(set(available), key=natural_key)
    for name in wanted:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "it has: "
            listed = "" if close else shorten(", ".join(names), 200) + "."
            raise DataError(f"relation {name!r} is not in {source}; {hint}{listed}")
    return tuple(name for name in names if not wanted or name in wanted)


def split_by_subject(
    name: str,
    facts: Iterable[Fact],
    *,
    seed: int,
    shares: Sequence[int] = (),
    label: str = "",
    template: str = "",
) -> Relation:
    """Return a relation whose subjects are dealt to train, dev and test.

    The split depends on the seed, the relation's name and its set of facts, and on nothing else:
    not on the order of the facts and not on other relations. All facts of one subject stay
    together, so that no subject of test is seen in training. Repeated facts are kept once.

    Args:
        name: the relation's name.
        facts: its facts, with a subject at least for every split that gets some.
        seed: another seed gives another split.
        shares: percent of the subjects in train, dev and test; empty is ``SHARES``. Without any in
            train the objects of all facts are the answer space.
        label: what people call the relation.
        template: its manual template.
    """
    by_subject: dict[str, list[Fact]] = {}
    facts = sorted(set(facts), key=lambda fact: (fact.subject, fact.object))
    for fact in facts:
        by_subject.setdefault(fact.subject, []).append(fact)
    percent = dict(zip(SPLITS, shares or SHARES, strict=True))
    wanted = [split for split in SPLITS if percent[split]]
    if len(by_subject) < len(wanted):
        raise DataError(
            f"relation {name!r} has {len(by_subject)} subject(s), but at least {len(wanted)} are "
            f"needed so that {' and '.join(wanted)} get one each; add facts, or leave the relation "
            "out with --skip-unusable."
        )
    subjects = list(by_subject)
    # Written out, because Python promises the same random() for the same seed in every version,
    # but does not promise the same shuffle().
    generator = random.Random(f"{seed}/{name}")
    for last in range(len(subjects) - 1, 0, -1):
        other = int(generator.random() * (last + 1))
        subjects[last], subjects[other] = subjects[other], subjects[last]
    ordered: dict[str, list[str]] = {split: [] for split in SPLITS}
    left = subjects
    for split in reversed(wanted):
        count = max(1, round(len(subjects) * percent[split] / 100))
        # The first split takes what is left, and every other one leaves it a subject at least.
        count = len(left) if split == wanted[0] else min(count, len(left) - wanted.index(split))
        ordered[split], left = left[:count], left[count:]
    dealt: dict[str, Any] = {
        split: tuple(fact for subject in chosen for fact in by_subject[subject])
        for split, chosen in ordered.items()
    }
    # Where nothing is left to train on, what may be answered is what any fact has.
    objects = () if percent["train"] else tuple(sorted({fact.object for fact in facts}))
    return Relation(name, **dealt, label=label, template=template, answers=objects)


def deal_by_subject(
    grouped: Mapping[str, Sequence[Fact]],
    place: object,
    *,
    seed: int,
    shares: Sequence[int] = (),
    skip_unusable: bool = False,
) -> tuple[dict[str, Relation], list[Dropped], dict[str, str]]:
    """Return relations dealt by ``split_by_subject``, what was left out, and why relations were.

    Args:
        grouped: the facts of each relation.
        place: where they come from.
        seed, shares: see ``split_by_subject``.
        skip_unusable: leave out relations with too few subjects.

    Raises:
        DataError: naming all of these otherwise, or none is left.
    """
    dealt: dict[str, Relation] = {}
    dropped: list[Dropped] = []
    few: dict[str, str] = {}
    for name, facts in grouped.items():
        try:
            relation = dealt[name] = split_by_subject(name, facts, seed=seed, shares=shares)
        except DataError as error:
            few[name] = str(error)
            dropped.append(Dropped(name, "train", UNUSABLE, len(facts)))
            continue
        split_of = {fact: split for split in SPLITS for fact in relation.split(split)}
        read = Counter(split_of[fact] for fact in facts)
        dropped += [
            Dropped(name, split, "duplicate", lost)
            for split in SPLITS
            if (lost := read[split] - len(relation.split(split)))
        ]
    if few and not (skip_unusable and dealt):
        all_of_them = (
            f"{len(few)} relations have too few subjects to be dealt to splits: {', '.join(few)}; "
            "add facts, or leave them out with --skip-unusable."
        )
        raise DataError(f"{place}: {all_of_them if len(few) > 1 else next(iter(few.values()))}")
    return dealt, dropped, dict.fromkeys(few, "too few subjects to deal to splits")


def uhn(facts: FactSet) -> FactSet:
    """Return the set without test facts whose object is named in the subject, as in LAMA-UHN.

    A fact goes when its lower-cased object is a substring of its lower-cased subject ("Apple
    Watch" is made by "Apple"). This is the string filter of E-BERT (Poerner et al., 2020). Their
    second filter, which asks a language model whether a person's name gives the answer away, is
    not included, so that more facts stay than in the published LAMA-UHN.
    """
    named = {fact for fact in facts.facts() if fact.object.lower() in fact.subject.lower()}
    return facts.drop(named, "object named in the subject", ("test",))


def in_word_list(facts: FactSet, words: Collection[str]) -> FactSet:
    """Return the set with only the facts whose object is one of ``words``."""
    allowed = frozenset(words)
    others = {fact for fact in facts.facts() if fact.object not in allowed}
    return facts.drop(others, "object not in the word list")


def at_most(facts: FactSet, limits: Mapping[Split, int], *, seed: int = 0) -> FactSet:
    """Return the set with at most so many facts of each relation in each split, drawn by seed.

    Whether a fact stays depends on the seed, its text and the facts of its own relation's split,
    and on nothing else. Those that stay keep their order; a repeat stays with its like.

    Args:
        limits: facts per relation by split; 0, or a split that is not named, takes all.
    """

    def own_number(fact: Fact) -> bytes:
        text = f"{seed}/{fact.relation}/{fact.subject}/{fact.object}"
        return hashlib.sha256(text.encode()).digest()

    for split, limit in limits.items():
        beyond: set[Fact] = set()
        for relation in facts.relations:
            drawn = sorted(relation.split(split), key=own_number)
            beyond |= {*drawn[limit or len(drawn) :]} - {*drawn[:limit]}
        facts = facts.drop(beyond, f"beyond the {split} limit of {limit}", (split,))
    return facts


def fact_in(
    row: Row, keys: Sequence[Sequence[str]], relation: str, path: Source, number: int
) -> tuple[Fact, bool]:
    """Return a row's fact in composed Unicode, and whether it was written otherwise.

    Args:
        keys: what the subject and the object may be called.
    """
    names = [text_in(row, own, path, number, one_line=True) for own in keys]
    composed = [*map(compose, names)]
    return Fact(relation, *composed), composed != names


def nearest_name(name: str, known: Collection[str]) -> str:
    """Return the known name that was probably meant; an empty text if none is like it."""
    folded = {_fold(own): own for own in known}
    wanted = _fold(name)
    return folded.get(wanted) or folded.get(nearest(wanted, folded), "")


def _fold(name: str) -> str:
    """Return what is the same in all spellings of a name: no case, composed characters."""
    return compose(name.strip()).casefold()


def compose(text: str) -> str:
    """Return a text in composed Unicode (NFC): the letter é is one character, not two."""
    return unicodedata.normalize("NFC", text)


def load_word_list(path: str | Path) -> tuple[str, ...]:
    """Return the words of a file with one word per line, in order, each once."""
    lines = (compose(line.strip()) for line in load_text(Path(path)).split("\n"))
    return tuple(dict.fromkeys(line for line in lines if line))
