"""Several written prompts per relation, in the layouts that LPAQA's files come in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from symprompt.errors import DataError
from symprompt.facts.reading import load_json_lines, text_at
from symprompt.facts.templates import check_template

_USUAL_PLACES = ("prompts/trex_mine", "prompts/trex_paraphrase", "prompt/mine", "prompt/paraphrase")


def find_prompts(source: Path) -> list[Path]:
    """Return the folders of written prompts in ``source`` or up to three folders above."""
    start = source.resolve()
    for place in (start, *start.parents[:3]):
        found = [place / usual for usual in _USUAL_PLACES if (place / usual).is_dir()]
        if found:
            return found
    return []


def load_prompts(paths: Sequence[Path], names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return each named relation's templates, in the order of the files, each once.

    Weights in the files are passed by: they were learned for another model.

    Args:
        paths: folders with one ``<relation>.jsonl`` per relation, a template a line, or JSONL
            files with the keys relation and template.
        names: the relations wanted; those without a template are missing in the answer.

    Raises:
        DataError: no such file or folder, one without a template for any of the relations, or a
            template without [X] and [Y].
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        if not path.exists():
            raise DataError(
                f"{path} does not exist; give a folder with files such as P36.jsonl, or a JSONL "
                "file with the keys relation and template."
            )
        read = _read_folder(path, names) if path.is_dir() else _read_file(path, names)
        if not read:
            raise DataError(
                f"{path} holds no prompt for any of the relations; it must name relations such as "
                f"{sorted(names)[0]!r}."
            )
        for name, template in read:
            found.setdefault(name, []).append(template)
    return {name: tuple(dict.fromkeys(templates)) for name, templates in found.items()}


def _read_folder(folder: Path, names: Collection[str]) -> list[tuple[str, str]]:
    return [
        (path.stem, check_template(text_at(row, ("template",), path, number), path, number))
        for path in sorted(folder.glob("*.jsonl"))
        if path.stem in names
        for number, row in load_json_lines(path)
    ]


def _read_file(path: Path, names: Collection[str]) -> list[tuple[str, str]]:
    read = []
    for number, row in load_json_lines(path):
        name = text_at(row, ("relation",), path, number)
        if name in names:
            template = text_at(row, ("template",), path, number)
            read.append((name, check_template(template, path, number)))
    return read
