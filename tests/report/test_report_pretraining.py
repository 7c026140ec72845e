"""A pretraining run on the terminal and as a picture."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from symprompt.report.figures import can_draw, draw_loss, save_loss_curve
from symprompt.report.records import pretrain_summary


def make_training(**changes: Any) -> dict[str, Any]:
    history = [
        {
            "step": step,
            "parts": {"mlm": 5 - step / 10, "nsp": 0.7},
            "validation": {"mlm": 5.1 - step / 10, "nsp": 0.6} if step % 10 == 0 else None,
        }
        for step in range(1, 21)
    ]
    training: dict[str, Any] = {
        "model": {"type": "bert", "parameters": 12_345},
        "corpus": {
            "documents": 7,
            "tokens": 1_000,
            "sequences": 62,
            "empty_documents": 0,
            "languages": [],
        },
        "vocabulary": {"broken": []},
        "loss": history[-1]["parts"],
        "validation": history[-1]["validation"],
        "steps": 20,
        "tokens": 5_120,
        "passes": 5.16,
        "seconds": 3.4,
        "tokens_per_second": 1505.9,
        "history": history,
    }
    return training | changes


def shown(training: dict[str, Any]) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(pretrain_summary(training))
        return console.export_text()


def test_the_summary_has_losses_speed_languages_and_what_is_missing() -> None:
    text = shown(make_training())
    assert "bert, 12,345 weights" in text
    assert ["mlm", "3.000", "3.100"] in [line.split() for line in text.splitlines()]
    assert "20 steps, 5,120 tokens, 5.16 passes, 3 s, 1,506 tokens/s" in text
    assert "language" not in text
    assert "left out" not in text
    training = make_training(validation=None, vocabulary={"broken": list("abcdefg")})
    training["corpus"]["empty_documents"] = 3
    text = shown(training)
    assert " - " in text
    assert "7 listed words not one token: a, b, c, d, e, ..." in text
    assert "left out: 3 documents without a token" in text
    training = make_training()
    training["corpus"]["languages"] = [
        {"language": "de", "before": 100, "prior": 0.1, "share": 0.34, "after": 340},
        {"language": "en", "before": 900, "prior": 0.9, "share": 0.66, "after": 660},
    ]
    row = next(line for line in shown(training).splitlines() if line.split()[:1] == ["de"])
    assert row.split() == ["de", "100", "10.0", "%", "340", "34.0", "%"]


def test_the_picture_has_a_line_and_dots_for_every_part(tmp_path: Path) -> None:
    assert can_draw()
    axes = draw_loss(make_training()).axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        "masked tokens, training",
        "masked tokens, validation",
        "next sentence, training",
        "next sentence, validation",
    ]
    assert [len(line.get_xdata()) for line in axes.get_lines()] == [20, 2, 20, 2]
    save_loss_curve(make_training(), tmp_path / "loss.png")
    content = (tmp_path / "loss.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">II", content[16:24]) == (1440, 800)


def test_a_picture_that_cannot_be_written_is_no_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert save_loss_curve(make_training(), tmp_path / "loss.png") == "No space left on device"
    assert not list(tmp_path.iterdir())
