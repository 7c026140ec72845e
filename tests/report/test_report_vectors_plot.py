"""Pictures of word vectors show the numbers they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from symprompt.cli.commands import main
from symprompt.report.figures import draw_cosines, draw_senses, save_figure


def texts(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_cosines_are_written_into_their_cells(tmp_path: Path) -> None:
    figure = draw_cosines(["a", "b"], [[1.0, -0.25], [-0.25, 1.0]])
    assert texts(figure) == ["1.00", "-0.25", "-0.25", "1.00"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b"]
    assert save_figure(figure, tmp_path / "cosines.png").stat().st_size > 0


def test_a_large_table_has_colours_alone() -> None:
    size = 25
    figure = draw_cosines([str(place) for place in range(size)], [[0.0] * size] * size)
    assert texts(figure) == []


def test_senses_stand_beside_the_most_frequent_one() -> None:
    def score(name: str, f1: float, baseline: float) -> dict[str, Any]:
        change = {"difference": f1 - baseline, "low": 0.5, "high": 4.0, "p": 0.001}
        own = {"f1": f1, "baseline": baseline, "difference": change}
        return {"name": name, "instances": 1200, **own}

    evaluation = {
        "sets": [score("one", 70.0, 68.0)],
        "all": score("all", 71.5, 68.0),
        "seen": score("seen", 60.0, 61.0),
    }
    axes = draw_senses(evaluation).axes[0]
    assert [text.get_text() for text in axes.texts] == ["+2.0", "+3.5", "-1.0"]
    (baseline, nearest) = axes.lines[-2:]
    assert list(baseline.get_xdata()) == [68.0, 68.0, 61.0]
    assert list(nearest.get_xdata()) == [70.0, 71.5, 60.0]
    assert axes.get_yticklabels()[0].get_text() == "one (1,200)"


def test_similarity_draws_its_cosines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "cosines.png"
    main(["similarity", "the [die] is cast", "they [die] young", "--figure", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "occurrence" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["similarity", "a [b]", "[c] d"], ["senses", "evaluate", "s"]])
def test_a_figure_that_is_no_png_is_refused_before_the_work(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    extra = ["--data", "nowhere"] if command[0] == "senses" else []
    with pytest.raises(SystemExit) as ended:
        main([*command, *extra, "--figure", "picture.pdf"])
    assert ended.value.code == 2
    assert "give a name in .png" in capsys.readouterr().err
