"""What one run knows and another does not, fact by fact, from their stored predictions.

Two models, two methods, or a model before and after training: counts with a sign test, by relation,
and examples. Runs on labelled tasks are compared by example.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symprompt.errors import ConfigError, RunError, counted
from symprompt.files.atomic import to_json_lines, write_file
from symprompt.files.grid import Grid, Grids
from symprompt.probing.results import COMMANDS, load_asked, load_combination, open_run
from symprompt.report.records import reported_split
from symprompt.report.tables import (
    RankKind,
    facts_split,
    load_scores,
    remarks_of,
    shared_facts,
    shared_notes,
)
from symprompt.runs.folder import PREDICTIONS, Folder
from symprompt.runs.statistics import correct, sign_test

_LISTED = 5
"""So many names a note lists."""


@dataclass(frozen=True, eq=False)
class _Answered:
    """What a run answers to every fact or example; lists are in the order of ``keys``.

    Attributes:
        path: the run's folder.
        keys: what tells facts apart, their group (relation or class) first.
        known: whether the answer counts as right.
        answers: the first answer to each.
        ranks: of the right answer; none where answers have no rank.
        notes: what it is, and what was left out of it.
    """

    path: Path
    keys: Sequence[tuple[str, ...]]
    known: list[bool]
    answers: list[str]
    ranks: list[float]
    notes: list[str]


@dataclass(frozen=True, eq=False)
class RunDiff:
    """How two runs differ; final.

    Attributes:
        rows: every fact that one run alone knows.
        tables: counts, by relation, and examples; ``tables.values`` are plain values for JSON.
    """

    rows: list[dict[str, Any]]
    tables: Grids

    def _repr_html_(self) -> str:
        return self.tables.to_html()

    def write(self, path: str) -> None:
        """Write every fact that one run alone knows, as JSON lines or CSV by the name's ending.

        Raises:
            ConfigError: another ending.
        """
        check_ending(path)
        if path.endswith(".jsonl"):
            write_file(Path(path), to_json_lines(self.rows))
            return
        text = io.StringIO()
        table = csv.DictWriter(text, self.tables.values["columns"], lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        write_file(Path(path), text.getvalue().encode())


def check_ending(path: str) -> None:
    """Refuse a file that rows cannot be written to.

    Raises:
        ConfigError: it is neither .jsonl nor .csv.
    """
    if not path.endswith((".jsonl", ".csv")):
        raise ConfigError(f"--out is {path!r}; the name must end in .jsonl or .csv.")


def diff_runs(
    first: str | Path,
    second: str | Path,
    *,
    split: str = "",
    top: int = 1,
    filtered: bool = False,
    ranks: RankKind = "realistic",
    examples: int = 5,
) -> RunDiff:
    """Return which facts one run knows and the other does not, on the facts that both have.

    No model is loaded. A fact is known if the right object's rank is at most ``top``; an example of
    a labelled task if the prediction is right as a whole.

    Args:
        first: a finished run folder, of ``train`` or ``rerank``; or of ``tune``.
        second: another one of the same kind.
        split: of facts dev or test; of a task what predictions are stored of (of a run through a
            pattern: a seed). Empty takes test, or what the run reports.
        top: how high the right object must rank.
        filtered: leave other true objects of the same subject out of the ranks.
        ranks: how ties count.
        examples: most facts of each side in the tables; all are in ``rows``.

    Raises:
        RunError: there is no finished run, the two are of different kinds, or they have no fact in
            common.
        ConfigError: there is no such split.

    Example:
        >>> found = diff_runs("runs/ptuning", "runs/spe")
        >>> found.write("differing.csv")
    """
    paths = [Path(first), Path(second)]
    of_facts = [_is_of_facts(path) for path in paths]
    if of_facts[0] != of_facts[1]:
        raise RunError(
            f"{paths[of_facts.index(True)]} is a run on facts and {paths[of_facts.index(False)]} "
            "one on a labelled task; give two of the same kind."
        )
    if of_facts[0]:
        runs = [_of_facts(path, split, top, ranks, filtered=filtered) for path in paths]
        columns = ("relation", "subject", "object")
    else:
        if top != 1 or filtered or ranks != "realistic":
            raise ConfigError(
                "ranks are of runs on facts alone; leave --top, --ranks and --filtered out."
            )
        runs = [_of_task(path, split) for path in paths]
        columns = ("class", "example", "gold")
    told = {"rank": top, "ranks": ranks, "filtered": filtered} if of_facts[0] else {}
    return _compare(runs, columns, told, examples)


def _is_of_facts(path: Path) -> bool:
    return Folder(path).require_finished(*COMMANDS, "tune").command in COMMANDS


def _of_facts(path: Path, split: str, top: int, ranks: RankKind, *, filtered: bool) -> _Answered:
    of = facts_split(split)
    scores = load_scores(str(path), split=of, kind=ranks, filtered=filtered)
    folder = open_run(path)
    asked = load_asked(folder, of)
    found = asked.predictions.first_answer(load_combination(folder), filtered=filtered)
    return _Answered(
        path,
        asked.keys(),
        (scores.rank <= top).tolist(),
        asked.read(found),
        scores.rank.tolist(),
        remarks_of(scores),
    )


def _of_task(path: Path, split: str) -> _Answered:
    folder = Folder(path)
    own = folder.manifest
    start = f"{PREDICTIONS}/"
    stored = [name.removeprefix(start)[:-6] for name in own.files if name.startswith(start)]
    if own.details.get("tasks"):
        raise ConfigError(
            f"{path} holds several tasks; give the folder of one, such as "
            f"{path / next(iter(own.details['tasks']))}."
        )
    wanted = split or reported_split(own)
    if not split and wanted not in stored and len(stored) == 1:
        wanted = stored[0]
    if wanted not in stored:
        raise ConfigError(
            f"{path} stores no predictions of {wanted!r}; --split may be one of: "
            f"{', '.join(stored)}."
        )
    name = f"{start}{wanted}.jsonl"
    rows = folder.read_rows(name)
    with folder.refuse_damage(name):
        if not rows or "gold" not in rows[0]:
            raise ConfigError(f"{path} knows no right answers of {wanted!r}; take another --split.")
        keys = [(_group(row["gold"]), str(row["id"]), _shown(row["gold"])) for row in rows]
        return _Answered(
            path,
            keys,
            [_is_right(row) for row in rows],
            [_shown(row["prediction"]) for row in rows],
            [],
            [f"data {own.data}", f"{own.method} on {Path(own.model).name}"],
        )


def _group(gold: Any) -> str:
    """Return the class of an example; "" where its answer is no class."""
    return gold if isinstance(gold, str) else ""


def _shown(answer: Any) -> str:
    if isinstance(answer, list):
        parts = ("-".join(map(str, own)) if isinstance(own, list) else str(own) for own in answer)
        return " ".join(parts)
    return str(answer)


def _is_right(row: Mapping[str, Any]) -> bool:
    """Return whether a prediction is right as a whole: all tags, all spans with their relations."""
    found, gold = row["prediction"], row["gold"]
    if isinstance(found, str) and isinstance(gold, list):
        # Answers are compared as SQuAD does.
        from symprompt.tasks.kinds.questions import normalise

        return normalise(found) in ({normalise(text) for text in gold} - {""} or {""})
    if found and gold and isinstance(found[0], list) and isinstance(gold[0], list):
        return set(map(tuple, found)) == set(map(tuple, gold)) and (
            "gold_relations" not in row
            or set(_between(found, row["relations"])) == set(_between(gold, row["gold_relations"]))
        )
    return bool(found == gold)


def _between(spans: Sequence[Any], relations: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return ((name, *map(tuple, (spans[one], spans[other]))) for name, one, other in relations)


# ------------------------------------------------------------------------------ comparing


def _compare(
    runs: Sequence[_Answered], columns: tuple[str, ...], told: Mapping[str, Any], examples: int
) -> RunDiff:
    first, second = runs
    names = [run.path.resolve().name for run in runs]
    if names[0] == names[1]:
        names = [str(run.path) for run in runs]
    pairs = shared_facts(first.keys, second.keys).tolist()
    what = "fact" if told else "example"
    if not pairs:
        raise RunError(f"{first.path} and {second.path} have no {what} in common.")
    states: dict[str, Counter[tuple[bool, bool]]] = {}
    rows: list[dict[str, Any]] = []
    for ours, theirs in pairs:
        key, known = first.keys[ours], (first.known[ours], second.known[theirs])
        states.setdefault(key[0], Counter())[known] += 1
        if known[0] != known[1]:
            row = dict(zip(columns, key, strict=True)) | {
                "known_by": "first" if known[0] else "second"
            }
            for side, run, place in (("first", first, ours), ("second", second, theirs)):
                row[f"{side}_answer"] = run.answers[place]
                if run.ranks:
                    rank = run.ranks[place]
                    row[f"{side}_rank"] = int(rank) if rank == int(rank) else rank
            rows.append(row)
    groups = [{columns[0]: name, **_counts(own)} for name, own in states.items()]
    differing = [row for row in groups if row["first_alone"] + row["second_alone"]]
    for row, p in zip(differing, correct([row["p"] for row in differing]), strict=True):
        row["p_corrected"] = p
    notes = _about(told, what, len(differing), len(groups) - len(differing), columns[0])
    remarks = {}
    for name, run, places in zip(names, runs, zip(*pairs, strict=True), strict=True):
        remarks[name] = [*run.notes, *_unpaired(run, set(places), what)]
    notes += shared_notes(remarks)
    every = sum(states.values(), Counter[tuple[bool, bool]]())
    wide = [
        "known_by",
        *(f"{side}_{own}" for side in ("first", "second") for own in ("answer", "rank")),
    ]
    values = {
        "runs": [
            {"name": name, "folder": str(run.path), what + "s": len(run.keys)}
            for name, run in zip(names, runs, strict=True)
        ],
        **told,
        "all": _counts(every),
        "groups": groups,
        "notes": notes,
        "columns": [*columns, *(own for own in wide if told or not own.endswith("rank"))],
    }
    grids = [_counts_grid(values, names, columns[0], what)]
    values["examples"] = {}
    for side, name in zip(("first", "second"), names, strict=True):
        own = [row for row in rows if row["known_by"] == side]
        shown = values["examples"][side] = _in_turn(own, columns[0])[:examples]
        if shown:
            title = f"Known by {name} alone: {len(shown)} of {counted(len(own), what)}"
            title += "; in brackets the right object's rank" if told else ""
            grids.append(_examples_grid(shown, title, names, columns))
    return RunDiff(rows, Grids(values, grids, notes))


def _counts(states: Mapping[tuple[bool, bool], int]) -> dict[str, Any]:
    more, fewer = states.get((True, False), 0), states.get((False, True), 0)
    return {
        "facts": sum(states.values()),
        "both": states.get((True, True), 0),
        "first_alone": more,
        "second_alone": fewer,
        "neither": states.get((False, False), 0),
        "p": sign_test(more, fewer),
    }


def _about(told: Mapping[str, Any], what: str, tested: int, others: int, group: str) -> list[str]:
    known = "known: the prediction is right as a whole"
    if told:
        order = "filtered" if told["filtered"] else "raw"
        known = (
            f"known: the right object's rank is at most {told['rank']} ({told['ranks']}, {order})"
        )
    test = f"p: two-sided sign test (exact) on the {what}s that one run alone knows"
    more = f"; corrected for {counted(tested, group)} (Holm)" if tested > 1 else ""
    same = [f"without a difference: {counted(others, group)}"] if others else []
    return [known, test + more, *same]


def _unpaired(run: _Answered, paired: set[int], what: str) -> list[str]:
    """Return a note on what the other run does not have."""
    rest = [key for place, key in enumerate(run.keys) if place not in paired]
    if not rest:
        return []
    groups = Counter(key[0] for key in rest)
    shown = [f"{group} {count}".strip() for group, count in groups.most_common(_LISTED)]
    more = f" and {len(groups) - _LISTED} more" if len(groups) > _LISTED else ""
    count = counted(len(rest), what)
    return [f"{count} that the other run does not have, not compared: {', '.join(shown)}{more}"]


def _in_turn(rows: Sequence[dict[str, Any]], group: str) -> list[dict[str, Any]]:
    """Return rows with one of each group first, then a second of each, and so on."""
    seen: Counter[str] = Counter()

    def turn(row: Mapping[str, Any]) -> int:
        seen[row[group]] += 1
        return seen[row[group]]

    return sorted(rows, key=turn)


def _counts_grid(values: Mapping[str, Any], names: Sequence[str], group: str, what: str) -> Grid:
    keys = ("facts", "both", "first_alone", "second_alone", "neither")

    def cells(row: Mapping[str, Any], *ps: str) -> tuple[str, ...]:
        return (*(f"{row[key]:,}" for key in keys), *(_p(row[p]) if p in row else "" for p in ps))

    several = len(values["groups"]) > 1
    ps = ("p", *["p_corrected"] * several)
    parts: list[tuple[tuple[str, ...], ...]] = [(("all", *cells(values["all"], *ps)),)]
    if several:
        # Where nothing differs there is nothing to see; --json has these too.
        parts.append(
            tuple(
                (row[group], *cells(row, *ps)) for row in values["groups"] if "p_corrected" in row
            )
        )
    header = (group if several else "", f"{what}s", "both", *(f"{name} alone" for name in names))
    header += ("neither", "p", *["p corrected"] * several)
    return Grid(f"What {names[0]} and {names[1]} know", header, tuple(parts))


def _examples_grid(
    rows: Sequence[Mapping[str, Any]], title: str, names: Sequence[str], columns: tuple[str, ...]
) -> Grid:
    def answer(row: Mapping[str, Any], side: str) -> str:
        rank = f" ({row[side + '_rank']:g})" if f"{side}_rank" in row else ""
        return f"{row[f'{side}_answer']}{rank}"

    # The class of an example is its right answer.
    own = columns if "relation" in columns else columns[1:]
    cells = tuple(
        (*(row[name] for name in own), *(answer(row, side) for side in ("first", "second")))
        for row in rows
    )
    header = (*own[:-1], f"right {own[-1]}" if own == columns else "right answer", *names)
    return Grid(title, header, (cells,), folded=tuple(range(1, len(header))))


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
