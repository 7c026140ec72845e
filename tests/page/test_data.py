"""Run folders as columns: what a browser gets is what the run stores and tables show."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symprompt.errors import ConfigError, RunError
from symprompt.page.data import Library, curves, pack_facts, read_progress
from symprompt.page.export import join_modules, make_file, write_export
from symprompt.probing.results import load_asked, load_combination
from symprompt.report.tables import load_scores
from symprompt.runs.folder import MANIFEST, PROGRESS, Folder, Manifest
from tiny.big import CANDIDATES, FACTS, FEW, write_big_run
from tiny.runs import begun_run


def unpack(whole: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a block back, slowly and by its description."""
    length = int.from_bytes(whole[:4], "little")
    note = json.loads(whole[4 : 4 + length])
    found: dict[str, np.ndarray] = {}
    for about in note["columns"]:
        kind = np.dtype("<" + about["type"])
        count = int(np.prod(about["shape"]))
        start = 4 + length + about["start"]
        raw = whole[start : start + count * kind.itemsize]
        if about.get("planes"):
            raw = np.frombuffer(raw, np.uint8).reshape(kind.itemsize, count).T.tobytes()
        column = np.frombuffer(raw, kind).reshape(about["shape"])
        if about.get("falling"):
            column = (-np.cumsum(column.astype(np.int64), axis=1)) % (1 << 16)
        if "low" in about:
            step = (about["high"] - about["low"]) / 65534
            column = np.where(column == 65535, -np.inf, about["low"] + column * step)
        if about.get("pairs"):
            seen: dict[tuple[int, int], float] = {}
            values = iter(column.tolist())
            rows = zip(found["relation"].tolist(), found["candidates"].tolist(), strict=True)
            column = np.array(
                [
                    [
                        seen[key] if key in seen else seen.setdefault(key, next(values))
                        for key in ((own, each) for each in row)
                    ]
                    for own, row in rows
                ]
            )
        found[about["name"]] = column
    return note, found


@pytest.mark.parametrize("small", [False, True])
def test_columns_hold_what_the_run_stores(small_run: Path, small: bool) -> None:
    folder = Folder(small_run)
    whole = pack_facts(folder, small=small)
    note, columns = unpack(gzip.decompress(whole) if small else whole)
    asked = load_asked(folder, "test")
    own, texts = asked.predictions, np.array(note["texts"], dtype=object)
    assert note["facts"] == len(own) == 300
    keys = list(
        zip(
            (note["relations"][place]["name"] for place in columns["relation"].tolist()),
            texts[columns["subject"]].tolist(),
            texts[columns["object"]].tolist(),
            strict=True,
        )
    )
    assert keys == asked.keys()
    shown = [[text for text in row if text] for row in texts[columns["candidates"]].tolist()]
    assert shown == asked.candidates()
    assert {len(row) for row in shown} == {CANDIDATES, FEW}
    assert (columns["known"] == own.known).all()
    combination = load_combination(folder)
    assert combination is not None
    assert note["terms"] == list(combination.weights)
    scores = {"object_score": own.object_score} | {
        f"term/{name}": own.term(name) for name in note["terms"]
    }
    for name, wanted in scores.items():
        if small:
            there = np.isfinite(wanted)
            assert (columns[name][~there] == -np.inf).all()
            step = np.ptp(wanted[there]) / 65534
            assert np.abs(columns[name][there] - wanted[there]).max() <= 0.51 * step + 1e-6
        else:
            assert (columns[name] == wanted).all()


@pytest.mark.parametrize("filtered", [False, True])
def test_ranks_are_those_of_the_table(small_run: Path, filtered: bool) -> None:
    _, columns = unpack(gzip.decompress(pack_facts(Folder(small_run), small=True)))
    end = "_filtered" if filtered else ""
    for when, forward in (("before", True), ("after", False)):
        better, equal = (
            columns[f"{when}_{what}{end}"].astype(float) for what in ("better", "equal")
        )
        wanted = load_scores(str(small_run), filtered=filtered, forward=forward).rank
        assert (better + equal / 2 + 1 == wanted).all()


def test_a_page_is_read_without_torch(small_run: Path) -> None:
    code = (
        "import sys; from symprompt.page.server import make_app; "
        "from symprompt.page.models import Models; from symprompt.page.data import Library; "
        f"own = Library([{str(small_run)!r}]); make_app(Models(own), 't', 1); own.columns(0); "
        "own.compare([0]); own.everything(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_broken_run_is_told_and_harms_no_other(small_run: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(small_run, tmp_path / "broken")
    (broken / MANIFEST).write_text('{"command": "train", "state": "fin')
    cut = shutil.copytree(small_run, tmp_path / "cut")
    target = cut / "predictions/test.safetensors"
    target.write_bytes(target.read_bytes()[:1000])
    (tmp_path / "empty").mkdir()
    library = Library([str(broken), str(small_run), str(cut), str(tmp_path / "empty"), "shipped"])
    about = library.about()
    assert [own["kind"] for own in about] == ["broken", "facts", "facts", "broken", "model"]
    assert "broken" in about[0]["error"]
    assert "neither a run folder" in about[3]["error"]
    with pytest.raises(RunError, match="cannot read"):
        library.columns(2)
    assert len(library.columns(1)) > 1000
    everything = library.everything()
    assert [own["kind"] for own in everything["runs"]][:3] == ["broken", "facts", "broken"]
    assert b"cannot read" in make_file(library)
    with pytest.raises(RunError, match="run 9 is not on this page; it has 5"):
        library.source(9)


def test_two_runs_of_one_name_are_told_apart(small_run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(small_run, tmp_path / "small")
    paths = [str(small_run), str(other), str(other)]
    names = [own["name"] for own in Library(paths).about()]
    assert names == [f"{small_run.parent.name}/small", "small", "small (3)"]


def test_a_folder_of_runs_stands_for_them(small_run: Path, tmp_path: Path) -> None:
    for name in ("b", "a", "deep/c"):
        shutil.copytree(small_run, tmp_path / name)
    shutil.copytree(small_run, tmp_path / "a/inner")
    library = Library([str(tmp_path), "shipped"])
    assert [own["name"] for own in library.about()] == ["a", "b", "c", "shipped"]


def test_of_a_mixture_each_task_is_shown(tmp_path: Path) -> None:
    for name, tasks in (("mixed", ["one", "two"]), ("mixed/one", []), ("mixed/two", [])):
        own = Manifest(command="tune", state="finished", details={"tasks": tasks})
        Folder(tmp_path / name).write(MANIFEST, own.to_json())
    about = Library([str(tmp_path / "mixed")]).about()
    assert [(own["name"], own["kind"]) for own in about] == [("one", "task"), ("two", "task")]


def test_a_pretraining_is_seen_where_it_works(tmp_path: Path) -> None:
    library = Library([str(tmp_path / "model")])
    assert library.about()[0]["kind"] == "broken"
    work = Folder(tmp_path / "model.work")
    work.write(MANIFEST, Manifest(command="pretrain").to_json())
    work.write_json(PROGRESS, {"done": 1, "total": 4, "history": []})
    assert library.about()[0]["kind"] == "training"
    assert read_progress(library.source(0).folder)["done"] == 1
    done = Manifest(command="pretrain", state="finished")
    Folder(tmp_path / "model").write(MANIFEST, done.to_json())
    assert library.about()[0]["kind"] == "model"


def test_a_run_that_was_made_again_is_read_again(small_run: Path, tmp_path: Path) -> None:
    own = shutil.copytree(small_run, tmp_path / "own")
    library = Library([str(own)])
    first = library.columns(0)
    assert library.columns(0) is first
    write_big_run(own, 200, relations=4, seed=1)
    assert library.columns(0) != first


def test_progress_of_a_run_in_training(tmp_path: Path) -> None:
    folder = begun_run(tmp_path / "run")
    assert read_progress(folder) == {
        "state": "begun",
        "done": 0,
        "total": 0,
        "seconds": 0.0,
        "curves": {},
    }
    rows = [{"epoch": 0, "loss": 2.5, "dev": {"forth": 0.5}}, {"epoch": 1, "loss": float("nan")}]
    folder.write_json(PROGRESS, {"done": 3, "total": 9, "history": rows, "stage": "training"})
    now = read_progress(folder)
    assert (now["done"], now["total"]) == (3, 9)
    assert now["curves"] == {"loss": [[0.0, 2.5]], "dev forth": [[0.0, 0.5]]}
    assert curves([{"step": 5, "validation": {"mlm": 1.0}}, "odd"]) == {
        "validation mlm": [[5.0, 1.0]]
    }


# ------------------------------------------------------------------------------ one file


def test_modules_are_joined_in_the_order_they_need() -> None:
    files = {
        "main.js": 'import { a } from "./a.js";\nimport {\n  b,\n} from "./b.js";\na(b);\n',
        "a.js": 'import { b } from "./b.js";\nexport function a() {}\n',
        "b.js": "export const b = 1;\n",
    }
    assert join_modules(files) == "const b = 1;\n\nfunction a() {}\n\na(b);\n"
    with pytest.raises(ValueError, match="two modules declare b"):
        join_modules(files | {"a.js": "export function a() {}\nconst b = 2;\n"})
    with pytest.raises(ValueError, match="imports itself"):
        join_modules(files | {"b.js": 'import { a } from "./a.js";\n'})


def test_a_file_of_its_own_names_no_path_and_nothing_else(small_run: Path, tmp_path: Path) -> None:
    page = write_export(Library([str(small_run)]), str(tmp_path / "report.html")).read_text()
    assert str(small_run.parent) not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert "src=" not in page.replace("&lt;img src=", "")
    assert "href=" not in page.replace('href="#', "").replace("href: `#", "")
    with pytest.raises(ConfigError, match=r"must end in \.html"):
        write_export(Library([str(small_run)]), str(tmp_path / "report.txt"))


def test_a_file_of_a_whole_lama_run_is_below_five_megabytes(tmp_path: Path) -> None:
    run = write_big_run(tmp_path / "lama", FACTS)
    assert len(make_file(Library([str(run)]))) < 5_000_000
