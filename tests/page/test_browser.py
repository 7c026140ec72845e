"""The page in a real browser: what one sees, by mouse and by keyboard, served and as a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symprompt.page.data import Library
from symprompt.page.export import write_export
from symprompt.probing.results import SUBJECT, Combination, load_asked, load_combination
from symprompt.report.tables import load_scores
from symprompt.runs.folder import MANIFEST, PROGRESS, Folder, Manifest, Record
from tiny.big import HOSTILE
from tiny.runs import begun_run

RANKS = """async ([run, k, scale, filtered, stored]) => {
  const { openSource } = await import(document.baseURI.split("#")[0] + "source.js");
  const facts = await openSource().facts(run);
  const settings = { k, scale, filtered };
  const ranks = stored ? facts.after(settings) : facts.compute(settings);
  return Array.from({ length: facts.count }, (_, row) => ranks.at(row));
}"""
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const part = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ground = (element) => {
    for (let own = element; own; own = own.parentElement) {
      const found = rgb(getComputedStyle(own).backgroundColor);
      if (found[3] > 250) return found;
    }
    return [255, 255, 255];
  };
  const weak = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!text || !element.checkVisibility()) continue;
    if (element.closest("option, :disabled, script")) continue;
    const style = getComputedStyle(element);
    const svg = element.closest("svg");
    const [one, other] = [light(rgb(svg ? style.fill : style.color)), light(ground(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const told = `${element.tagName} ${element.textContent.slice(0, 20)} ${ratio.toFixed(2)}`;
    if (ratio < 4.5) weak.push(told);
  }
  return weak;
}"""
UNNAMED = """() => {
  const named = (own) =>
    own.textContent.trim() || own.getAttribute("aria-label") || own.labels?.length;
  const kinds = "button, input, select, textarea, a, [role=button], [role=grid]";
  return [...document.querySelectorAll(kinds)]
    .filter((own) => own.checkVisibility() && !named(own))
    .map((own) => own.outerHTML.slice(0, 80));
}"""
Serve = Callable[..., str]
Open = Callable[..., Any]


def numbers(page: Any, selector: str) -> list[str]:
    """Return the texts of some elements."""
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


def exported(folder: Path, *runs: Path) -> str:
    """Write runs as one file; return its address."""
    return write_export(Library(list(map(str, runs))), str(folder / "report.html")).as_uri()


@pytest.mark.parametrize("run", ["small_run", "other_run"])
def test_the_browser_ranks_as_the_run_does(
    serve: Serve, open_page: Open, request: pytest.FixtureRequest, run: str
) -> None:
    folder = Folder(request.getfixturevalue(run))
    page = open_page(serve(folder.path) + "#facts")
    predictions, combination = load_asked(folder, "test").predictions, load_combination(folder)
    assert combination is not None
    for k, scale, filtered in ((15, 1.0, False), (15, 1.0, True), (5, 1.0, False), (1, 2.5, True)):
        weights = {
            term: own * (scale if term == SUBJECT else 1.0)
            for term, own in combination.weights.items()
        }
        ranks = predictions.reranked(Combination(weights), k=k, filtered=filtered)
        found = page.evaluate(RANKS, [0, k, scale, filtered, False])
        assert np.array_equal(found, ranks.realistic)


def test_a_file_shows_the_table_s_ranks(small_run: Path, tmp_path: Path, open_page: Open) -> None:
    page = open_page(exported(tmp_path, small_run) + "#facts")
    rank = load_scores(str(small_run)).rank
    before = load_scores(str(small_run), forward=True).rank
    assert numbers(page, ".chips button")[:3] == [
        "All 300",
        f"Rose {(rank < before).sum()}",
        f"Fell {(rank > before).sum()}",
    ]
    shown = page.locator(".row:not(.head):visible .figure").all_inner_texts()
    wanted = [
        f"{value:,.1f}".removesuffix(".0")
        for pair in zip(before, rank, strict=True)
        for value in pair
    ]
    assert shown == wanted[: len(shown)]
    # The sliders work without a server too.
    slider = page.get_by_role("slider", name="Weight of asking back")
    slider.fill("0")
    assert numbers(page, ".chips button")[1] == "Rose 0" or "16 bits" in page.content()
    slider.fill("1")
    assert numbers(page, ".chips button")[1] == f"Rose {(rank < before).sum()}"


def test_names_from_data_stay_text(
    small_run: Path, serve: Serve, tmp_path: Path, open_page: Open
) -> None:
    for address in (serve(small_run), exported(tmp_path, small_run)):
        page = open_page(address + "#facts")
        shown = numbers(page, ".space .row:visible span:nth-child(2)")[: len(HOSTILE)]
        assert shown[0] == HOSTILE[0]
        assert shown[2] == "\\u202eevil\\u0000\\u001b[31m"
        for name in HOSTILE[:2]:
            page.goto("about:blank")
            page.goto(f"{address}#ask?relation=P17&subject={name}")
            page.wait_for_selector(".answers")
            assert name in page.inner_text(".sentence")
        assert page.evaluate("window.hacked") is None
        # No text becomes markup, even if a script tried.
        refused = """() => { try { document.body.innerHTML = "<b>x</b>"; return false; }
                            catch { return true; } }"""
        assert page.evaluate(refused)
        wrong = open_page.wrong  # type: ignore[attr-defined]
        wrong[:] = [told for told in wrong if "TrustedHTML" not in told]


def test_a_question_is_asked_re_ranked_and_turned_round(
    small_run: Path, serve: Serve, open_page: Open
) -> None:
    page = open_page(serve(small_run) + "#facts")
    asked = load_asked(Folder(small_run), "test")
    combination = load_combination(Folder(small_run))
    assert combination is not None
    row = 20
    _, subject, answer = asked.keys()[row]
    page.get_by_role("searchbox").fill(subject)
    page.locator(".space .row:visible").first.click()
    page.wait_for_selector(".answers")
    joint = asked.predictions.joint(combination)[row]
    order = np.argsort(-joint, kind="stable")
    names = [asked.candidates()[row][place] for place in order]
    assert numbers(page, ".answer") == names
    assert numbers(page, ".answers tr[data-key] td:last-child .value") == [
        f"{value:.2f}" for value in joint[order]
    ]
    assert numbers(page, ".is-right .answer") == [answer] * (answer in names)
    # Only the first is asked back, so all stay where the object score has them.
    page.get_by_role("slider", name="Candidates asked back").fill("1")
    assert numbers(page, ".answer") == asked.candidates()[row]


def test_a_question_is_turned_round(small_run: Path, tmp_path: Path, open_page: Open) -> None:
    asked = load_asked(Folder(small_run), "test")
    relation, subject, _ = asked.keys()[30]
    address = exported(tmp_path, small_run)
    page = open_page(f"{address}#ask?relation={relation}&subject={subject}")
    answer = numbers(page, ".answer")[0]
    page.get_by_role("button", name="Turn round").click()
    page.wait_for_url("**object=*")
    # The address changes before the answers do.
    back = page.get_by_role("button", name=subject, exact=True)
    back.wait_for()
    wanted = {
        key[1]
        for key, listed in zip(asked.keys(), asked.candidates(), strict=True)
        if key[0] == relation and answer in listed
    }
    shown = numbers(page, ".answer")
    assert set(shown) <= wanted
    assert len(shown) == min(50, len(wanted))
    back.click()
    page.wait_for_url("**subject=*")
    page.locator(".answer").filter(has_text=answer).first.wait_for()
    assert numbers(page, ".answer")[0] == answer


def test_the_keyboard_moves_through_facts(small_run: Path, serve: Serve, open_page: Open) -> None:
    page = open_page(serve(small_run) + "#facts")
    grid = page.get_by_role("grid", name="Test facts")
    assert grid.get_attribute("aria-rowcount") == "301"
    grid.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowUp")
    active = grid.get_attribute("aria-activedescendant")
    assert page.locator(f"#{active}").get_attribute("aria-rowindex") == "300"
    page.keyboard.press("Enter")
    page.wait_for_selector(".answers")
    assert (
        page.locator("#name").input_value() == load_asked(Folder(small_run), "test").keys()[298][1]
    )


def test_filters_search_and_relation_narrow_the_facts(
    small_run: Path, serve: Serve, open_page: Open
) -> None:
    page = open_page(serve(small_run) + "#facts")
    rank = load_scores(str(small_run)).rank
    before = load_scores(str(small_run), forward=True).rank
    lost = int(((before == 1) & (rank != 1)).sum())
    page.get_by_role("button", name="Lost").click()
    grid = page.get_by_role("grid", name="Test facts")
    assert grid.get_attribute("aria-rowcount") == str(lost + 1)
    assert page.get_by_role("button", name="Lost").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="All").click()
    page.get_by_label("Relation").select_option(index=2)
    inside = int((load_asked(Folder(small_run), "test").predictions.relation == 1).sum())
    assert grid.get_attribute("aria-rowcount") == str(inside + 1)


def test_a_broken_run_is_told(
    small_run: Path, tmp_path: Path, serve: Serve, open_page: Open
) -> None:
    page = open_page(serve(tmp_path, small_run))
    assert "One run cannot be read" in page.inner_text("#broken")
    page.click("#broken summary")
    assert "neither a run folder" in page.inner_text("#broken")
    assert page.locator("nav a").all_inner_texts()[:2] == ["Ask", "Facts"]


def test_compare_shows_the_table_and_opens_the_facts_that_differ(
    small_run: Path, other_run: Path, serve: Serve, open_page: Open, tmp_path: Path
) -> None:
    library = Library([str(small_run), str(other_run)])
    for address in (serve(small_run, other_run), exported(tmp_path, small_run, other_run)):
        page = open_page(address + "#compare")
        found = library.compare([0, 1])
        wanted = [f"{run['mean over relations']['p1']['value']:.2f}" for run in found["runs"]]
        assert numbers(page, ".total .shade b") == wanted
        page.get_by_role("button", name="other", exact=True).click()
        shown = [float(own) for own in numbers(page, "tbody + tbody tr td:last-child b")]
        assert shown == sorted(shown, reverse=True)
        header = page.get_by_role("columnheader", name="other")
        assert header.get_attribute("aria-sort") == "descending"
        page.locator("tr.total .shade button").last.click()
        page.wait_for_selector(".differing .rows")
        both = library.diff(0, 1)["all"]
        assert [own.rpartition(": ")[2] for own in numbers(page, ".differing h4")] == [
            str(both["second_alone"]),
            str(both["first_alone"]),
        ]


def test_the_map_counts_as_diff_does(
    small_run: Path, other_run: Path, serve: Serve, open_page: Open
) -> None:
    library = Library([str(small_run), str(other_run)])
    page = open_page(serve(small_run, other_run) + "#map")
    page.wait_for_selector(".diff")
    values = library.diff(0, 1)
    rows = page.locator(".diff tbody tr").all()
    shown = {}
    for row in rows:
        name = row.locator("th").inner_text()
        shown[name] = [int(own.inner_text()) for own in row.locator("td.figure").all()[1:3]]
    wanted = {
        own["relation"]: [own["first_alone"], own["second_alone"]] for own in values["groups"]
    }
    wanted["all"] = [values["all"]["first_alone"], values["all"]["second_alone"]]
    assert shown == wanted
    assert page.locator("circle.point").count() == 8
    page.locator("circle.point").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".differing .rows")


def test_a_run_in_training_is_watched(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    folder = begun_run(tmp_path / "run")
    rows = [{"epoch": 0, "loss": 2.5, "dev": {"forth": 0.5}}, {"epoch": 1, "loss": 2.0}]
    note = {"done": 3, "total": 9, "history": rows, "stage": "training", "seconds": 6.0}
    folder.write_json(PROGRESS, note)
    page = open_page(serve(folder.path) + "#live")
    page.wait_for_selector("text=step 3 of 9")
    assert "about 12 s left" in page.inner_text("main")
    assert numbers(page, ".curve b") == ["2.000", "0.500"]
    assert "dev, object prompt" in page.inner_text("main")
    folder.write_json(PROGRESS, note | {"done": 6, "history": [*rows, {"epoch": 2, "loss": 1.5}]})
    page.wait_for_selector("text=step 6 of 9")
    assert numbers(page, ".curve b") == ["1.500", "0.500"]
    folder.write(MANIFEST, Manifest(command="train", state="finished").to_json())
    page.wait_for_selector("text=finished")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_and_fits(
    small_run: Path, other_run: Path, tmp_path: Path, open_page: Open, width: int, scheme: str
) -> None:
    address = exported(tmp_path, small_run, other_run)
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    for view in ("ask?relation=P17&subject=__proto__", "facts", "compare", "map"):
        page = open_page(f"{address}#{view}", **options)
        page.wait_for_timeout(100)
        weak = page.evaluate(CONTRAST)
        assert not weak, f"{view}: {weak[:5]}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not page.evaluate(UNNAMED)
        page.context.close()


SENTENCE = "Anna Weber of the Oslo Bank met Berlin"
ANSWERS = {
    "0": {"prediction": "billing", "probabilities": {"praise": 0.25, "billing": 0.75}},
    "1": {
        "kind": "tagging",
        "text": SENTENCE,
        "prediction": ["B-PER", "I-PER", "O", "O", "B-ORG", "I-ORG", "O", "B-LOC"],
    },
    "2": {
        "kind": "relations",
        "text": SENTENCE,
        "prediction": [["PER", 0, 2], ["ORG", 3, 6], ["LOC", 4, 5]],
        "odds": [2.0, 1.5, 1.0],
        "relations": [["works for", 0, 1]],
    },
    "3": {
        "kind": "question",
        "prediction": "in Berlin",
        "candidates": [{"text": "in Berlin", "score": 3.5}],
    },
    "4": {"error": "this task reads <b>two</b> texts."},
}


def mocked(page: Any, path: str, value: Any) -> None:
    """Have the server answer a path with a value."""
    page.route(f"**/{path}", lambda route: route.fulfill(json=value))


def test_tasks_are_drawn_on_the_text(small_run: Path, serve: Serve, open_page: Open) -> None:
    address = serve(small_run)
    page = open_page(address)
    run = {"kind": "task", "method": "pt2", "task_kind": "tagging", "figures": []}
    runs = [{**run, "id": number, "name": f"run {number}"} for number in range(5)]
    mocked(page, "api/runs", {"runs": runs, "models": [], "corpus": False})
    answers = {"answers": ANSWERS, "batches": 1, "together": 4}
    mocked(page, "api/predict", answers)
    page.goto("about:blank")
    page.goto(address + "#tasks")
    page.get_by_label("Text, or the question").fill("Where ?")
    page.get_by_label("Second text").fill("They met in Berlin .")
    page.get_by_role("button", name="Ask all").click()
    page.wait_for_selector(".cards")
    assert numbers(page, ".shares th") == ["billing", "praise"]
    cards = page.locator(".task")
    spans = cards.nth(1).locator(".span").all_inner_texts()
    assert spans == ["Anna WeberPER", "Oslo BankORG", "BerlinLOC"]
    assert cards.nth(2).locator(".span").all_inner_texts()[1] == "the Oslo BankORG 1.50"
    assert "Oslo LOC 1.00" in cards.nth(2).inner_text()
    assert "Anna Weber — works for → the Oslo Bank" in cards.nth(2).inner_text()
    assert cards.nth(3).locator("mark").inner_text() == "in Berlin"
    assert "<b>two</b>" in cards.nth(4).inner_text()
    assert "one mixed batch" in page.inner_text("main")


def test_words_are_drawn_with_their_nearest(small_run: Path, serve: Serve, open_page: Open) -> None:
    address = serve(small_run)
    page = open_page(address)
    model = {"id": 0, "kind": "model", "name": "shipped"}
    mocked(page, "api/runs", {"runs": [model], "models": [model], "corpus": True})
    found = {
        "word": "bank",
        "projection": "PCA",
        "labels": ["cluster 1: money", "cluster 2: <i>river</i>"],
        "points": [[0, 0], [1, 1], [0.2, 0.1]],
        "label": [0, 1, 0],
        "text": [["a ", "bank", " lends"], ["the ", "bank", " <b>grows</b>"], ["my ", "bank", ""]],
        "near": [[2, 1], [2, 0], [0, 1]],
    }
    mocked(page, "api/words", found)
    page.goto("about:blank")
    page.goto(address + "#words")
    page.get_by_label("Word").fill("bank")
    page.get_by_role("button", name="Draw").click()
    page.wait_for_selector("circle.point")
    page.get_by_role("button", name="the bank <b>grows</b>").focus()
    page.keyboard.press("Enter")
    told = page.inner_text(".around")
    assert told.index("<b>grows</b>") < told.index("my bank") < told.index("a bank lends")
    assert page.locator("circle.near").count() == 2
    assert "<i>river</i>" in page.inner_text(".legend")


def test_a_file_without_a_model_says_so(small_run: Path, tmp_path: Path, open_page: Open) -> None:
    own = Manifest(command="tune", state="finished", method="pt2", model="/m/bert")
    own = own.model_copy(update={"records": (Record(metric="f1", value=91.5, split="test"),)})
    Folder(tmp_path / "names").write(MANIFEST, own.to_json())
    address = exported(tmp_path, small_run, tmp_path / "names")
    page = open_page(address + "#tasks")
    assert "test f1\t91.50" in page.inner_text("main")
    page = open_page(address + "#ask?relation=P17&subject=Nobody")
    assert "holds no model" in page.inner_text("main")
    assert "null" not in page.inner_text("main")
