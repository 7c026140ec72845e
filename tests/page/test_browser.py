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
from symprompt.runs.folder import Folder
from tiny.big import HOSTILE

RANKS = """async ([run, k, scale, filtered, stored]) => {
  const { openSource } = await import(document.baseURI.split("#")[0] + "source.js");
  const facts = await openSource().facts(run);
  const settings = { k, scale, filtered };
  const ranks = stored ? facts.after(settings) : facts.compute(settings);
  return Array.from({ length: facts.count }, (_, row) => ranks.at(row));
}"""
Serve = Callable[..., str]
Open = Callable[..., Any]


def numbers(page: Any, selector: str) -> list[str]:
    """Return the texts of some elements."""
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


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
    write_export(Library([str(small_run)]), str(tmp_path / "report.html"))
    page = open_page((tmp_path / "report.html").as_uri() + "#facts")
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
    write_export(Library([str(small_run)]), str(tmp_path / "report.html"))
    for address in (serve(small_run), (tmp_path / "report.html").as_uri()):
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
    write_export(Library([str(small_run)]), str(tmp_path / "report.html"))
    asked = load_asked(Folder(small_run), "test")
    relation, subject, _ = asked.keys()[30]
    address = (tmp_path / "report.html").as_uri()
    page = open_page(f"{address}#ask?relation={relation}&subject={subject}")
    answer = numbers(page, ".answer")[0]
    page.get_by_role("button", name="Turn round").click()
    page.wait_for_url("**object=*")
    page.wait_for_selector(".answers")
    wanted = {
        key[1]
        for key, listed in zip(asked.keys(), asked.candidates(), strict=True)
        if key[0] == relation and answer in listed
    }
    shown = numbers(page, ".answer")
    assert set(shown) <= wanted
    assert len(shown) == min(50, len(wanted))
    page.get_by_role("button", name=subject, exact=True).click()
    page.wait_for_url("**subject=*")
    page.wait_for_selector(".answers")
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
