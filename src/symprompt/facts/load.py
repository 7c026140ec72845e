"""One door to every source of facts: world facts, LAMA folders, BEAR's, your own tables.

A LAMA folder has one of the two layouts in which the benchmark and its training sets are passed
around, told apart by content: a folder per relation with train.jsonl, dev.jsonl and test.jsonl
(soft-prompts, AutoPrompt), and a file per relation, P36.jsonl, whose facts are all test facts (the
original LAMA). A table is a CSV, TSV or JSONL file with subject, relation and object.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from symprompt.errors import ConfigError, DataError
from symprompt.facts.bear import find_bear, load_bear
from symprompt.facts.templates import add_templates, find_templates, template_in
from symprompt.facts.types import (
    BAD_ROW,
    SPLITS,
    Dropped,
    Fact,
    FactSet,
    Relation,
    Split,
    choose_names,
    deal_by_subject,
    fact_in,
)
from symprompt.facts.world import world_facts
from symprompt.files.parquet import is_dataset
from symprompt.files.reading import (
    TABLES,
    Row,
    Source,
    collect_bad,
    ends_in,
    find_column,
    load_lines,
    load_rows,
    parse_row,
    read_columns,
    refuse_bad,
    rename,
    shorten,
    split_in,
    text_in,
)

WORLD = "world"
LAYOUTS = ("auto", "lama", "bear", "table", WORLD)
Files = Mapping[Split, Path]

# The label spellings come first: Google-RE lines hold machine identifiers under "sub" and "obj"
# and the text under "sub_label" and "obj_label".
SUBJECT_KEYS = ("sub_label", "subject", "sub")
OBJECT_KEYS = ("obj_label", "object", "obj")
_KEYS = SUBJECT_KEYS, OBJECT_KEYS
_ROLES: dict[str, tuple[str, ...]] = {
    "subject": SUBJECT_KEYS,
    "relation": ("relation",),
    "object": OBJECT_KEYS,
    "split": ("split",),
    "template": ("template",),
}
QUESTION_ROLES = {role: _ROLES[role] for role in ("relation", "subject", "object")}
"""What a table of questions has, and what its columns go by."""
BadRows = Literal["refuse", "skip"]

_RELATION_FILE = re.compile(r"P[0-9]+\.jsonl")
_SEARCH_DEPTH = 3
_EXPECTED = "<relation>/train.jsonl, dev.jsonl, test.jsonl, or files such as P36.jsonl"


def load_facts(
    source: str,
    *,
    layout: str = "auto",
    relations: Sequence[str] = (),
    templates: str = "",
    seed: int = 0,
    shares: Sequence[int] = (),
    columns: Mapping[str, str] | Sequence[str] = (),
    bad_rows: BadRows = "refuse",
    skip_unusable: bool = False,
) -> FactSet:
    """Return the facts of a source with their splits and manual templates.

    Args:
        source: "world" for the built-in world facts, a LAMA folder, BEAR's or BEAR-big's, or a
            .csv, .tsv, .jsonl or .parquet file, or a folder of the datasets library, with the
            columns subject, relation, object and, if wanted, split and template. Write "./world"
            for a folder of that name.
        layout: "auto" tells them apart; "lama", "bear", "table" and "world" insist on one.
        relations: names of the relations to load; none means all.
        templates: a file or folder of manual templates. When empty, a LAMA folder is searched
            for them (and up to two folders above it), and a relation may end up without one.
        seed: makes the split where the source has none, or where shares are given.
        shares: percent of each relation's subjects in train, dev and test. Given, all facts are
            dealt anew, also where the source has a split; empty keeps that, and is 60, 20, 20 where
            there is none, 40, 20, 40 for BEAR.
        columns: what a table calls its columns, as {"subject": "company"} or ["subject=company"].
            If it then has no relation, all facts are of one, called as the file.
        bad_rows: "skip" leaves rows that cannot be used out and counts them; "refuse" names them.
        skip_unusable: leave relations out that have too few subjects to be dealt to splits, and
            name them.

    Example:
        >>> facts = load_facts("world", relations=["capital"])
        >>> facts["capital"].template
        'The capital of [X] is [Y] .'
    """
    if isinstance(relations, str):
        relations = (relations,)
    kind = _tell_layout(source, layout)
    if columns and kind != "table":
        raise ConfigError(
            f"columns are those of a table of your own, and {source} is none; leave them out."
        )
    if shares and (len(shares) != 3 or sum(shares) != 100 or min(shares) < 0):
        raise ConfigError(
            f"facts.shares is {' '.join(map(str, shares))}; give three percentages that sum to "
            "100, of train, dev and test, such as 40 20 40."
        )
    found: Path | None = Path(templates) if templates else None
    dealing: dict[str, Any] = {"relations": relations, "seed": seed, "shares": shares}
    dealing |= {"bad_rows": bad_rows, "skip_unusable": skip_unusable}
    if kind == WORLD:
        facts = world_facts(seed, shares)
        facts = facts.select(choose_names(facts.names, relations, facts.source))
    elif kind == "table":
        facts = load_table(Path(source), **dealing, columns=columns)
    elif kind == "bear":
        facts = load_bear(Path(source), **dealing)
    else:
        facts, home = load_lama(Path(source), **dealing)
        found = found or find_templates(home)
    if found is not None:
        facts = add_templates(facts, found, insist=bool(templates))
    return facts


def _tell_layout(source: str, layout: str) -> str:
    if layout not in LAYOUTS:
        raise DataError(
            f"layout is {layout!r}, but only {', '.join(LAYOUTS)} are allowed; choose one of them."
        )
    if not source:
        raise DataError('no source of facts was given; give "world", a folder or a file.')
    if layout == WORLD and source != WORLD:
        raise DataError(
            f'layout "world" reads no files but the source is {source!r}; '
            'give the source "world" or another layout.'
        )
    if layout != "auto":
        return layout
    if source == WORLD:
        return WORLD
    # os.path answers False where Path.exists raises, such as for a name that is too long.
    if not os.path.exists(source):
        raise DataError(
            f'{source} does not exist; give "world", an existing folder, '
            "or a .csv, .tsv, .jsonl or .parquet file."
        )
    if not os.path.isdir(source) or is_dataset(Path(source)):
        return "table"
    return "bear" if find_bear(Path(source)) else "lama"


def load_lama(
    folder: Path,
    *,
    relations: Sequence[str] = (),
    seed: int = 0,
    shares: Sequence[int] = (),
    bad_rows: BadRows = "refuse",
    skip_unusable: bool = False,
) -> tuple[FactSet, Path]:
    """Return the facts in or below ``folder``, and the folder that holds them.

    Every fact is kept, repeats too: the published counts contain them. Dealt anew, repeats are
    dropped and counted.

    Args:
        folder: the folder of relations, one above it (if it holds just one such folder), or the
            folder of a single relation.
        relations: names to load; none means all.
        seed, shares: deal all facts anew, see ``load_facts``.
        bad_rows, skip_unusable: see ``load_facts``.
    """
    if not os.path.isdir(folder):
        got = "is a file" if os.path.exists(folder) else "does not exist"
        raise DataError(f"{folder} {got}, but a folder is needed that holds {_EXPECTED}.")
    home, files = _find_relations(folder)
    names = choose_names(files, relations, str(folder))
    loaded, composed = [], 0
    bad: list[str] = []
    dropped: list[Dropped] = []
    for name in names:
        facts: dict[str, Any] = {}
        for split, path in files[name].items():
            before, read = len(bad), []
            for number, row in load_rows(path, any_case=True, bad=bad):
                with collect_bad(bad):
                    read.append(fact_in(row, _KEYS, name, path, number))
            if len(bad) > before:
                dropped.append(Dropped(name, split, BAD_ROW, len(bad) - before))
            facts[split] = tuple(fact for fact, _ in read)
            composed += sum(changed for _, changed in read)
        loaded.append(Relation(name, **facts))
    if bad_rows == "refuse":
        refuse_bad(bad, folder)
    skipped: dict[str, str] = {}
    if shares:
        dealt, left_out, skipped = deal_by_subject(
            {relation.name: relation.all() for relation in loaded},
            folder,
            seed=seed,
            shares=shares,
            skip_unusable=skip_unusable,
        )
        loaded, dropped = list(dealt.values()), dropped + left_out
    return FactSet(tuple(loaded), str(folder), "lama", tuple(dropped), composed, skipped), home


def _find_relations(folder: Path) -> tuple[Path, dict[str, Files]]:
    single = _split_files(folder)
    if single:
        home = folder.resolve()
        return home.parent, {home.name: single}
    homes = _homes(folder, _SEARCH_DEPTH)
    if not homes:
        raise DataError(
            f"{folder} holds no facts that are recognised; give a folder that holds {_EXPECTED}."
        )
    if len(homes) > 1:
        listed = ", ".join(str(home) for home in homes)
        raise DataError(
            f"{folder} holds {len(homes)} sets of facts and only one can be loaded; "
            f"give one of these folders: {listed}."
        )
    return homes[0], _relation_files(homes[0])


def _homes(folder: Path, depth: int) -> list[Path]:
    """Return every folder of relations at or below ``folder``."""
    if _relation_files(folder):
        return [folder]
    if depth == 0:
        return []
    return [home for below in _subfolders(folder) for home in _homes(below, depth - 1)]


def _relation_files(folder: Path) -> dict[str, Files]:
    folders = {below.name: _split_files(below) for below in _subfolders(folder)}
    folders = {name: files for name, files in folders.items() if files}
    flat: dict[str, Files] = {
        path.stem: {"test": path}
        for path in _entries(folder)
        if _RELATION_FILE.fullmatch(path.name) and path.is_file() and not _holds_template(path)
    }
    if folders and flat:
        raise DataError(
            f"{folder} holds both relation folders ({min(folders)}/) and relation files "
            f"({min(flat)}.jsonl); keep one kind in a folder."
        )
    return folders or flat


def _split_files(folder: Path) -> Files:
    paths = {split: folder / f"{split}.jsonl" for split in SPLITS}
    return {split: path for split, path in paths.items() if path.is_file()}


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_dir() and not path.name.startswith(".")]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{folder} cannot be listed ({reason}); give a readable folder.") from None


def _holds_template(path: Path) -> bool:
    """Say whether P36.jsonl is a template file: prompt folders use the same names as LAMA."""
    try:
        with path.open(encoding="utf-8-sig") as stream:
            row = parse_row(path, 1, stream.readline(), any_case=True)
    except (OSError, UnicodeDecodeError, DataError):
        # Not a template file for sure; reading it as facts reports what is wrong with it.
        return False
    return "template" in row and not any(key in row for key in (*SUBJECT_KEYS, *OBJECT_KEYS))


def load_table(
    path: Source,
    *,
    relations: Sequence[str] = (),
    seed: int = 0,
    shares: Sequence[int] = (),
    columns: Mapping[str, str] | Sequence[str] = (),
    bad_rows: BadRows = "refuse",
    skip_unusable: bool = False,
) -> FactSet:
    """Return the facts of a table file, split by its split column or else by the seed.

    Repeats of a fact inside a split are dropped and counted as "duplicate". Bad rows that are left
    out are counted with train; those that name no relation, with the first one.

    Args:
        path: a .csv or .tsv file with a header, a .jsonl or .parquet file, a folder of the datasets
            library, or rows at hand.
        relations: names to load; none means all.
        seed, shares: make the split where the file has no split column; shares, in any case.
        columns, bad_rows, skip_unusable: see ``load_facts``.
    """
    called = read_columns(columns, _ROLES)
    bad: list[str] = []
    first: Row | None = None
    only, splits_given = "", False
    templates: dict[str, str] = {}
    grouped: dict[str, list[tuple[Fact, Split | None]]] = {}
    composed, unread = 0, Counter[str]()
    for number, row in load_rows(path, any_case=True, bad=bad):
        if first is None:
            first = rename(row, called, _ROLES, path, number)
            splits_given = "split" in first
            # Where the user has named columns and none of relations there is but one.
            stem = path.stem if isinstance(path, Path) else "facts"
            only = stem if called and "relation" not in first else ""
            if not ends_in(path, ".jsonl"):
                # What the header lacks is missing in every row.
                for role in ("subject", "object") if only else ("relation", "subject", "object"):
                    find_column(first, _ROLES[role], path, number)
        name, before = only, len(bad)
        with collect_bad(bad):
            row = rename(row, called, _ROLES, path, number)
            name = name or text_in(row, ("relation",), path, number, one_line=True)
            fact, changed = fact_in(row, _KEYS, name, path, number)
            split = _split(row, path, number, given=splits_given)
            template = row.get("template", "")
            if template is None and not ends_in(path, ".jsonl"):
                template = ""  # how tables in columns say that nothing stands there
            # An empty cell is how a table says that a line has no template of its own.
            if not isinstance(template, str) or template.strip():
                template = template_in(row, path, number)
                if templates.setdefault(name, template) != template:
                    raise DataError(
                        f"{path}, line {number}: relation {name!r} has a second template "
                        f"{shorten(template)}; keep one template per relation."
                    )
            composed += changed
            grouped.setdefault(name, []).append((fact, split))
        unread[name] += len(bad) - before
    if bad_rows == "refuse" or not grouped:
        refuse_bad(bad, path)
    if not grouped:
        raise DataError(f"{path} has a header but no facts; add at least one line.")
    dropped: list[Dropped] = []
    names = choose_names(grouped, relations, str(path))
    unread[names[0]] += len(bad) - sum(unread[name] for name in grouped)
    dropped += [Dropped(name, "train", BAD_ROW, unread[name]) for name in names if unread[name]]
    skipped: dict[str, str] = {}
    if splits_given and not shares:
        found: dict[str, Relation] = {}
        for name in names:
            given: dict[str, Any] = {}
            for split in SPLITS:
                facts = [fact for fact, own in grouped[name] if own == split]
                # dict.fromkeys keeps the first of each repeat, in the file's order.
                given[split] = tuple(dict.fromkeys(facts))
                if lost := len(facts) - len(given[split]):
                    dropped.append(Dropped(name, split, "duplicate", lost))
            found[name] = Relation(name, **given)
    else:
        found, left_out, skipped = deal_by_subject(
            {name: [fact for fact, _ in grouped[name]] for name in names},
            path,
            seed=seed,
            shares=shares,
            skip_unusable=skip_unusable,
        )
        dropped += left_out
    loaded = (replace(own, template=templates.get(own.name, "")) for own in found.values())
    return FactSet(tuple(loaded), str(path), "table", tuple(dropped), composed, skipped)


def _split(row: Row, path: Source, number: int, *, given: bool) -> Split | None:
    """Return the split of a row; None where the file says none."""
    if "split" in row and not given:
        raise DataError(
            f"{path}, line {number}: this line says its split but the first one does not; "
            "give every line a split or none."
        )
    return split_in(row, "split", path, number) if given else None


def load_subjects(path: Path, columns: Mapping[str, str] | Sequence[str] = ()) -> list[str]:
    """Return the subjects of a table's column, or of a text file with one a line."""
    if path.suffix.lower() in TABLES:
        called, found = read_columns(columns, _ROLES), []
        for number, row in load_rows(path, any_case=True):
            named = rename(row, called, _ROLES, path, number)
            found.append(text_in(named, SUBJECT_KEYS, path, number, one_line=True))
        return found
    return [line.strip() for line in load_lines(path) if line.strip()]


def read_question(
    row: Row,
    called: Mapping[str, str],
    path: Path,
    number: int,
    *,
    want: str = "",
    relation: str = "",
) -> tuple[str, bool, str]:
    """Return a row's relation, whether it asks about a subject, else an object, and the name.

    Args:
        called: what the table calls its columns, see ``read_columns``.
        want: "objects" or "subjects"; without it a row with a subject asks for its objects.
        relation: of rows that name none.

    Raises:
        DataError: the row asks nothing.
    """
    row = rename(row, called, _ROLES, path, number) if called else row
    if row.get("relation") or not relation:
        relation = text_in(row, ("relation",), path, number, one_line=True)
    keys = OBJECT_KEYS
    if want != "subjects" and (want or row.get("subject") or any(map(row.get, SUBJECT_KEYS))):
        keys = SUBJECT_KEYS
    elif not want and not any(map(row.get, OBJECT_KEYS)):
        raise DataError(
            f"{path}, line {number}: there is neither a subject nor an object to ask about, only "
            f"{shorten(row, 200)}; fill one in, or name the columns with --columns."
        )
    return relation, keys is SUBJECT_KEYS, text_in(row, keys, path, number, one_line=True)
