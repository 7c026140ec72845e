"""Sentences with tags, or with spans and relations: sets of entities and roles, files of your own.

One word to a line, as the CoNLL shared tasks write them, bracketed columns, or rows of a table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from symprompt.errors import ConfigError, DataError
from symprompt.files.reading import (
    Row,
    Sentence,
    Source,
    ends_in,
    find_column,
    load_lines,
    load_rows,
    load_sentences,
    shorten,
    words_in,
)
from symprompt.tasks.data.examples import (
    NULL,
    OUTSIDE,
    USUAL,
    Columns,
    Example,
    LabelSet,
    Read,
    Relation,
    Span,
    SpanExample,
    StandardSet,
    TaggedExample,
    TaskData,
    has_column,
    spans_of,
    to_iob2,
)

IN_COLUMNS = (".conll", ".conllu", ".txt", ".bio", ".iob", ".iob2", ".ner", ".pos")
"""Endings of files with a word to a line."""
CONLLU = ".conllu"
"""The ending of Universal Dependencies' files: words in column 1, their tags in 3 or 4."""
ANY = "SPAN"
"""The one type of spans that are only to be found."""
_COLUMNS = 5
# CoNLL-2004 repeats the type at the end, "*A1)"; entities of one word may have no star.
_CELL = re.compile(r"((?:\([^()*\s]+)*)(\*?)((?:[^()*\s]*\))*)")


def tags_of_brackets(
    cells: Sequence[str], path: Source, line: int, *, in_columns: bool = True
) -> tuple[str, ...]:
    """Return IOB2 tags of one bracketed column, or refuse it with the line of what is wrong.

    Of phrases inside each other the outer one is taken, as a word has one tag.

    Args:
        in_columns: whether every cell stands on a line of its own.
    """

    def wrong(place: int, what: str) -> DataError:
        return DataError(f"{path}, line {line + place * in_columns}: {what}; correct it.")

    tags: list[str] = []
    opened: list[str] = []
    for place, cell in enumerate(cells):
        match = _CELL.fullmatch(cell)
        if match is None or not cell:
            raise wrong(place, f"{cell!r} is no bracketed tag")
        names = match[1].split("(")[1:]
        outer = opened[0] if opened else None
        opened += names
        if outer is not None:
            tags.append(f"I-{outer}")
        else:
            tags.append(f"B-{opened[0]}" if opened else OUTSIDE)
        closed = match[3].count(")")
        if closed > len(opened):
            raise wrong(place, f"{cell!r} closes a bracket that was not opened")
        del opened[len(opened) - closed :]
    if opened:
        raise wrong(len(cells) - 1, f"the bracket of {opened[0]!r} is never closed")
    return tuple(tags)


# IOBES and BILOU say more about where phrases end than IOB2, which is all that is kept.
_MARKS = {"S": "B", "U": "B", "E": "I", "L": "I"}


def check_tags(
    tags: Sequence[str], path: Source, line: int, *, in_columns: bool = False
) -> tuple[str, ...]:
    """Return tags in IOB2, or refuse the first that is none with its line."""
    found = []
    for offset, tag in enumerate(tags):
        mark = _MARKS.get(tag[:1], tag[:1])
        entry = mark + tag[1:] if tag[1:2] == "-" else tag
        if entry != OUTSIDE and (entry[:2] not in ("B-", "I-") or len(entry) < 3):
            raise DataError(
                f"{path}, line {line + offset * in_columns}: {shorten(tag)} is no tag of a span; "
                "allowed are O, and B- or I- before a type, such as B-PER (tags of single words, "
                "such as NOUN, are read with task.kind words)."
            )
        found.append(entry)
    return to_iob2(found)


def make_tagged(
    name: str,
    words: Sequence[str],
    tags: Sequence[str] | None,
    place: tuple[Source, int],
    *,
    predicate: object = None,
    roles: bool = True,
) -> TaggedExample:
    """Make an example, or refuse tags that do not fit the words or a predicate that is none.

    Args:
        place: the file and line it is from.
        roles: whether there must be a predicate.
    """
    path, line = place
    if tags is not None and len(tags) != len(words):
        raise DataError(
            f"{path}, line {line}: got {len(tags)} tag(s) for {len(words)} word(s), so they are "
            "not aligned; every word needs one."
        )
    own = None if tags is None else tuple(tags)
    if not roles:
        return TaggedExample(name, tuple(words), own)
    if isinstance(predicate, str) and predicate.strip().isdigit():
        predicate = int(predicate)
    if type(predicate) is not int or not 0 <= predicate < len(words):
        raise DataError(
            f"{path}, line {line}: the predicate is {shorten(predicate)}, but only the place of "
            f"one of the {len(words)} word(s) is allowed, from 0 on; correct it."
        )
    return TaggedExample(name, tuple(words), own, predicate)


# ------------------------------------------------------------------------------ your own files


def read_words(
    path: Source,
    columns: Columns,
    split: str,
    labelled: bool | None,
    *,
    roles: bool = False,
    spans: bool = True,
) -> Read:
    """Read a user's sentences: a word to a line, or a table with a sentence in each row.

    Args:
        labelled: whether every sentence must have its tags; None takes what is there, and a file
            to predict may have words alone.
        roles: whether each row of a table has the place of a predicate too, or a list of frames.
        spans: whether tags are of spans and become IOB2; if not, any tags are taken as they are.
    """
    if roles and has_column(path, "frames", but_not=columns.predicate):
        return read_propbank(path, split)
    if ends_in(path, *IN_COLUMNS) and not roles:
        tag: int | None = columns.tag_column
        if not labelled:
            cells = next((line.split() for line in load_lines(path) if line.strip()), [])
            tag = tag if len(cells) > 1 else None
        return read_tagged(path, split, word=columns.word_column, tag=tag, spans=spans)
    read = Read()
    for number, row in load_rows(path):
        words = words_in(row, (columns.words,), path, number)
        name = str(row.get(columns.id, f"{split}-{number}"))
        tags = predicate = None
        if labelled or columns.tags in row:
            tags = words_in(row, (columns.tags,), path, number)
            tags = check_tags(tags, path, number) if spans else tags
        if roles:
            predicate = row[find_column(row, (columns.predicate,), path, number)]
        place = path, number
        read.add(make_tagged(name, words, tags, place, predicate=predicate, roles=roles), *place)
    return read


def tags_spans(path: Path, columns: Columns) -> bool:
    """Return whether a file's tags are of spans: all are, or some begin with B- or I-.

    So the tags that are wrong among those of spans are refused by their lines.
    """
    read = read_words(path, columns, "row", labelled=True, spans=False)
    tags = {tag for example in read.examples for tag in example.labels}
    marked = {tag for tag in tags if tag[1:2] == "-" and len(tag) > 2 and tag[0] in "BIELSU"}
    return tags <= {OUTSIDE, *marked} or any(tag[0] in "BI" for tag in marked)


def with_spans(read: Read) -> Read:
    """Return what was read with spans in place of tags."""
    examples = [
        SpanExample(x.id, x.words, None if x.tags is None else tuple(spans_of(x.tags)))
        for x in read.examples
    ]
    return replace(read, examples=examples, in_columns=False)


# -------------------------------------------------------------------------------- standard sets


def read_tagged(
    path: Path, split: str, *, word: int = 0, tag: int | None = -1, spans: bool = True
) -> Read:
    """Read tagged sentences in columns; IOB1 becomes IOB2.

    Of a .conllu file column 1 is read for the words and column 3 for the tags where no others are
    named, words of several tokens and words that were left out are passed by, and a sentence whose
    tags are all _ has none.

    Args:
        word: the column of words, from 0 on; a negative one counts from the last.
        tag: the column of tags; None if there is none.
        spans: whether tags are of spans; if not, they are taken as they are.
    """
    universal = ends_in(path, CONLLU)
    if universal:
        word = 1 if word == USUAL.word_column else word
        tag = 3 if tag == USUAL.tag_column else tag
    read = Read(in_columns=not universal)
    for number, sentence in enumerate(load_sentences(path)):
        if universal:
            own = [row for row in sentence.rows if row[0].isdigit()]
            sentence = replace(sentence, rows=own or sentence.rows)
        words = tuple(_column(sentence, word, path, "words"))
        tags: tuple[str, ...] | None = None
        if tag is not None:
            tags = tuple(_column(sentence, tag, path, "tags"))
            width = len(sentence.rows[0])
            if word % width == tag % width:
                raise DataError(
                    f"{path}, line {sentence.line}: words and tags would both be column "
                    f"{word % width} of {width}; give files with a column of tags, or name it with "
                    "--columns tag_column=1."
                )
            if spans:
                tags = check_tags(tags, path, sentence.line, in_columns=True)
            elif universal and set(tags) == {"_"}:
                tags = None
        read.add(TaggedExample(f"{split}-{number}", words, tags), path, sentence.line)
        read.documents.append(sentence.document)
    return read


def _column(sentence: Sentence, column: int, path: Path, what: str) -> list[str]:
    width = len(sentence.rows[0])
    if not -width <= column < width:
        raise DataError(
            f"{path}, line {sentence.line}: there are {width} column(s), so the {what} cannot be "
            f"column {column}; give another column or correct the file."
        )
    cells = [row[column] for row in sentence.rows]
    if "" in cells:
        raise DataError(
            f"{path}, line {sentence.line + cells.index('')}: the column of {what} is empty, so "
            "words and tags are not aligned; fill it in."
        )
    return cells


_WORD, _ENTITY, _ROLES = 3, 10, 11
_SPLITS = {"train": ("train",), "dev": ("development", "dev"), "test": ("test",)}


def find_gold_conll(folder: Path) -> dict[str, list[Path]]:
    """Return the *gold_conll files of each split: those that have its folder in their path."""
    found: dict[str, list[Path]] = {split: [] for split in _SPLITS}
    for path in sorted(folder.rglob("*gold_conll")):
        *folders, file = path.relative_to(folder).parts
        for split, names in _SPLITS.items():
            if any(name in folders or file.startswith(name) for name in names):
                found[split].append(path)
                break
    return {split: paths for split, paths in found.items() if paths}


def read_gold_conll(paths: Sequence[Path], split: str, *, roles: bool) -> Read:
    """Read CoNLL-2012: the named entities of every sentence, or the roles of every predicate."""
    read = Read(in_columns=True)
    listed = ((path, sentence) for path in paths for sentence in load_sentences(path))
    for number, (path, sentence) in enumerate(listed):
        rows, line = sentence.rows, sentence.line
        width = len(rows[0])
        if width < _ROLES + 1:
            raise DataError(
                f"{path}, line {line}: got {width} column(s), but a *gold_conll file has at least "
                f"{_ROLES + 1}; give files made with skeleton2conll."
            )
        words = tuple(row[_WORD] for row in rows)
        if not roles:
            tags = tags_of_brackets([row[_ENTITY] for row in rows], path, line)
            read.add(TaggedExample(f"{split}-{number}", words, tags), path, line)
            continue
        # The last column is coreference; one column for each predicate stands before it.
        for column in range(_ROLES, width - 1):
            tags = tags_of_brackets([row[column] for row in rows], path, line)
            if "B-V" not in tags:
                raise DataError(
                    f"{path}, line {line}: column {column} has no predicate (V*), so its roles "
                    "belong to nothing; correct the file."
                )
            name = f"{split}-{number}-{column - _ROLES}"
            read.add(TaggedExample(name, words, tags, tags.index("B-V")), path, line)
    return read


def read_propbank(path: Source, split: str) -> Read:
    """Read sentences with a list of frames, one example for each of them."""
    read = Read()
    for number, row in load_rows(path):
        words = words_in(row, ("words",), path, number)
        frames = row.get("frames")
        if not isinstance(frames, list):
            raise DataError(f"{path}, line {number}: there is no list of 'frames'; add one.")
        for place, frame in enumerate(frames):
            if not isinstance(frame, dict) or not isinstance(frame.get("args"), list):
                raise DataError(
                    f"{path}, line {number}: frame {place} is {shorten(frame)}, but it needs 'i' "
                    "and a list of 'args'; correct it."
                )
            cells = [str(cell) for cell in frame["args"]]
            tags = tags_of_brackets(cells, path, number, in_columns=False)
            name, where = f"{split}-{number}-{place}", (path, number)
            read.add(make_tagged(name, words, tags, where, predicate=frame.get("i")), *where)
    return read


def read_conll05(paths: Sequence[Path], split: str) -> Read:
    """Read CoNLL-2005; one example for each predicate.

    It is read from pairs of files with words and roles (x.words and x.props), from files in
    columns with the word first and the roles last, or from lines such as
    "1 We saw him ||| B-A0 B-V B-A1", where the number is the predicate's place from 0 on.
    """
    read = Read()
    for path in paths:
        name = f"{split}-{path.name}"
        first = next(line for line in load_lines(path) if line.strip())
        read.in_columns = path.suffix == ".props" or "|||" not in first
        if read.in_columns:
            _read_columns(read, path, name)
        else:
            _read_lines(read, path, name)
    return read


def _read_lines(read: Read, path: Path, name: str) -> None:
    """Read lines "predicate words ||| tags"."""
    for number, line in enumerate(load_lines(path), start=1):
        if not line.strip():
            continue
        left, bar, right = line.partition("|||")
        predicate, *words = left.split() or [""]
        if not bar or not words:
            raise DataError(
                f"{path}, line {number}: {shorten(line)} is not of the form 'place words ||| "
                "tags'; correct it."
            )
        tags, place = check_tags(right.split(), path, number), (path, number)
        read.add(make_tagged(f"{name}-{number}", words, tags, place, predicate=predicate), *place)


def _read_columns(read: Read, path: Path, name: str) -> None:
    """Read the predicates named in a column, each with the roles of its own column after it.

    Words stand in the first column, with anything between them and the predicates; those of a file
    of roles (x.props) in the file beside it.
    """
    sentences = list(load_sentences(path))
    texts, beside = sentences, path.with_suffix(".words")
    if path.suffix == ".props":
        texts = list(load_sentences(beside))
    if len(texts) != len(sentences):
        raise DataError(
            f"{beside} has {len(texts)} sentence(s) and {path.name} {len(sentences)}, so words and "
            "roles are not aligned; give files of the same text."
        )
    for number, (text, sentence) in enumerate(zip(texts, sentences, strict=True)):
        rows, words = sentence.rows, [row[0] for row in text.rows]
        if len(words) != len(rows):
            raise DataError(
                f"{path}, line {sentence.line}: got roles for {len(rows)} word(s), but the "
                f"sentence has {len(words)} ({beside.name}, line {text.line}); align them."
            )
        column = 0 if path.suffix == ".props" else _predicate_column(sentence, path)
        places = [place for place, row in enumerate(rows) if row[column] != "-"]
        width = len(rows[0]) - column - 1
        if len(places) != width:
            raise DataError(
                f"{path}, line {sentence.line}: got {len(places)} predicate(s) and {width} "
                "column(s) of roles; every predicate needs one."
            )
        for order, place in enumerate(places):
            tags = tags_of_brackets([row[column + 1 + order] for row in rows], path, sentence.line)
            example = TaggedExample(f"{name}-{number}-{order}", tuple(words), tags, place)
            read.add(example, path, sentence.line)


def _predicate_column(sentence: Sentence, path: Path) -> int:
    """Return the column of predicates: as many words have one as there are columns after it."""
    width = len(sentence.rows[0])
    for column in range(width - 1, 0, -1):
        named = sum(row[column] != "-" for row in sentence.rows)
        roles = range(column + 1, width)
        if named == len(roles) and all(
            any("(V*" in row[role] for row in sentence.rows) for role in roles
        ):
            return column
    raise DataError(
        f"{path}, line {sentence.line}: no column names as many predicates as there are columns of "
        "roles after it; give the word first and the roles last."
    )


# ------------------------------------------------------------------------- spans and relations


def identified(data: TaskData) -> TaskData:
    """Return the data with one type for all spans: where they are is asked, not what they are.

    Raises:
        ConfigError: the examples have no spans, or relations between them.
    """
    if data.relations.names or not all(
        isinstance(x, SpanExample) for own in data.splits.values() for x in own
    ):
        raise ConfigError(
            f"task.identify finds spans, and {data.name} is read as {data.kind}; set task.kind to "
            '"spans".'
        )
    splits: dict[str, list[Example]] = {}
    for split, examples in data.splits.items():
        splits[split] = [
            replace(x, spans=None if x.spans is None else tuple((ANY, *own[1:]) for own in x.spans))
            for x in examples
            if isinstance(x, SpanExample)
        ]
    return replace(data, splits=splits, labels=LabelSet.of_spans([ANY]), unseen=())


def read_conll04(paths: Sequence[Path], split: str) -> Read:
    """Read CoNLL-2004: entities, and relations between them.

    A line is a word's number, the word, its tag, and lists of relations that the entity which ends
    here has and of the last words of the entities it has them to; the list of a word without
    relations is ['N'] and its own number.
    """
    read, path = Read(), paths[0]
    for number, sentence in enumerate(load_sentences(path)):
        rows, line = sentence.rows, sentence.line
        if len(rows[0]) != _COLUMNS:
            raise DataError(
                f"{path}, line {line}: got {len(rows[0])} column(s), but entities with relations "
                "have five: number, word, tag, relations, their last words."
            )
        spans = tuple(spans_of(check_tags([row[2] for row in rows], path, line, in_columns=True)))
        ends = {end - 1: place for place, (_, _, end) in enumerate(spans)}
        relations = []
        for word, row in enumerate(rows):
            names = _cell(row[3], str, path, line + word)
            heads = _cell(row[4], int, path, line + word)
            if len(names) != len(heads):
                raise DataError(
                    f"{path}, line {line + word}: {len(names)} relation(s) but {len(heads)} "
                    "place(s); every relation needs one."
                )
            for relation, other in zip(names, heads, strict=True):
                if relation == "N":
                    continue
                if word not in ends or other not in ends:
                    raise DataError(
                        f"{path}, line {line + word}: the relation {shorten(relation)} is between "
                        f"words {word} and {other}, and not both end an entity; correct it."
                    )
                relations.append(Relation(relation, ends[word], ends[other]))
        words, between = tuple(row[1] for row in rows), tuple(dict.fromkeys(relations))
        read.add(SpanExample(f"{split}-{number}", words, spans, between), path, line)
    return read


def read_spans(
    path: Source, columns: Columns, split: str, labelled: bool | None, *, related: bool
) -> Read:
    """Read a table with a sentence's words, its spans and their relations in each row.

    A span is [type, first word, word after the last]; a relation is [name, place of the one span
    in the list of spans, place of the other], both counted from 0. Where relations are not asked
    for, tags may stand in place of spans.

    Args:
        labelled: whether every row must have its spans; None takes what is there.
        related: whether relations are asked for.
    """
    if not related and (
        ends_in(path, *IN_COLUMNS) or has_column(path, columns.tags, but_not=columns.spans)
    ):
        return with_spans(read_words(path, columns, split, labelled))
    read = Read()
    for number, row in load_rows(path):
        own = words_in(row, (columns.words,), path, number)
        spans: tuple[Span, ...] | None = None
        relations: tuple[Relation, ...] | None = None
        if labelled or columns.spans in row:
            what = "a span [type, first word, word after the last]"
            spans = _triples(row, columns.spans, what, path, number)
            _check_spans(spans, len(own), columns.spans, path, number)
        if related and spans is not None and (labelled or columns.relations in row):
            what = "a relation [name, one span, other span]"
            triples = _triples(row, columns.relations, what, path, number)
            for triple in triples:
                if triple[1] == triple[2] or not {*triple[1:]} <= {*range(len(spans))}:
                    raise DataError(
                        f"{path}, line {number}: the relation {shorten(list(triple))} is not "
                        f"between two of the {len(spans)} span(s), which are counted from 0; "
                        "correct it."
                    )
            relations = tuple(Relation(*triple) for triple in triples)
        name = str(row.get(columns.id, f"{split}-{number}"))
        read.add(SpanExample(name, own, spans, relations), path, number)
    return read


def _check_spans(spans: Sequence[Span], words: int, column: str, path: Source, number: int) -> None:
    for span in spans:
        if not 0 <= span[1] < span[2] <= words:
            raise DataError(
                f"{path}, line {number}: the span {shorten(list(span))} is not within the {words} "
                "word(s); words are counted from 0, and the end is the word after the last."
            )
    if len({span[1:] for span in spans}) < len(spans):
        raise DataError(
            f"{path}, line {number}: two spans of {column!r} are the same words; a span has one "
            "type."
        )


def _triples(
    row: Row, column: str, what: str, path: Source, number: int
) -> tuple[tuple[str, int, int], ...]:
    """Return a list of a name and two whole numbers each."""
    value = row.get(column)
    if not isinstance(value, list):
        raise DataError(
            f"{path}, line {number}: {column!r} is {shorten(value)}, but only a list is allowed; "
            "an empty one says that there is nothing."
        )
    for entry in value:
        types = [type(part) for part in entry] if isinstance(entry, list) else []
        if types != [str, int, int] or not entry[0].strip() or entry[0] == NULL:
            raise DataError(
                f"{path}, line {number}: {shorten(entry)} is not {what}; correct it (the name "
                f"{NULL} is taken)."
            )
    return tuple(tuple(entry) for entry in value)


def _cell(text: str, kind: type, path: Path, line: int) -> list[Any]:
    """Read a list written as Python writes it, of words or of numbers."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, list) or not all(type(entry) is kind for entry in value):
        raise DataError(
            f"{path}, line {line}: {shorten(text)} is no list of "
            f"{'words' if kind is str else 'whole numbers'}, such as "
            f"{'[' + repr('Live_In') + ']' if kind is str else '[4]'}; correct it."
        )
    return value


# -------------------------------------------------------------------------- what sets there are


def _entities(
    files: Mapping[str, Sequence[str]],
    word: int = 0,
    tag: int = -1,
    *,
    related: bool = False,
    pos: int | None = None,
) -> StandardSet:
    """Return a set of named entities in columns, which can be read as tags and as spans.

    Args:
        pos: the column of words' parts of speech, if there is one.
    """

    def read(paths: Sequence[Path], split: str) -> Read:
        if paths[0].name.endswith("gold_conll"):
            return read_gold_conll(paths, split, roles=False)
        return read_tagged(paths[0], split, word=word, tag=tag)

    def read_pos(paths: Sequence[Path], split: str) -> Read:
        return read_tagged(paths[0], split, word=word, tag=pos, spans=False)

    return StandardSet(
        files,
        {
            "tagging": read,
            "spans": lambda paths, split: with_spans(read(paths, split)),
            **({"relations": read_conll04} if related else {}),
            **({"words": read_pos} if pos is not None else {}),
        },
    )


_ENDINGS = (".txt", ".conll", ".tsv", ".bio", ".ner")
_ROLE_ENDINGS = (".props", ".txt", ".conll", "-set")
SENTENCE_SETS = {
    "conll2003": _entities(
        {
            "train": ("eng.train", "train.txt"),
            "dev": ("eng.testa", "valid.txt", "dev.txt"),
            "test": ("eng.testb", "test.txt"),
        },
        pos=1,
    ),
    "conll2004": _entities(
        {split: (f"{split}.txt",) for split in _SPLITS}, word=1, tag=2, related=True
    ),
    # One file, whose documents are parted 80/10/10 by the seed.
    "wikigold": replace(_entities({"train": ("wikigold.conll.txt",)}), by_document=True),
    "gum": _entities(
        {"train": ("data/train/gum-train.conll",), "test": ("data/test/gum-test.conll",)}
    ),
    # CoNLL-2012's *gold_conll files, or files in columns (the word first, the tag last).
    "ontonotes": replace(
        _entities(
            {
                split: tuple(name + ending for name in names for ending in _ENDINGS)
                for split, names in {**_SPLITS, "dev": ("dev", "development", "valid")}.items()
            }
        ),
        find=find_gold_conll,
    ),
    "propbank-ewt": StandardSet(
        {split: (f"{split}.jsonl",) for split in _SPLITS},
        {
            "roles": lambda paths, split: read_propbank(paths[0], split),
            "words": lambda paths, split: read_words(
                paths[0], Columns(tags="pos"), split, labelled=True, spans=False
            ),
        },
        columns={"tags": "pos"},
    ),
    # The test set is WSJ.
    "conll05": StandardSet(
        {
            "train": tuple(f"*train*{ending}" for ending in _ROLE_ENDINGS),
            "dev": tuple(
                f"{name}{ending}" for name in ("*devel*", "*dev*") for ending in _ROLE_ENDINGS
            ),
            "test": (*(f"*test*wsj*{ending}" for ending in _ROLE_ENDINGS), "*test*wsj"),
            "test-brown": (*(f"*test*brown*{ending}" for ending in _ROLE_ENDINGS), "*test*brown"),
        },
        {"roles": read_conll05},
    ),
    "conll12": StandardSet(
        {split: tuple(f"{name}/*gold_conll" for name in own) for split, own in _SPLITS.items()},
        {"roles": partial(read_gold_conll, roles=True)},
        find=find_gold_conll,
    ),
}
