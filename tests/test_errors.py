"""Names from anywhere are shown and do nothing."""

from __future__ import annotations

import json

import pytest

from symprompt.cli import main
from symprompt.cli.output import print_json
from symprompt.errors import Medium, escape


@pytest.mark.parametrize(
    ("medium", "text", "shown"),
    [
        ("terminal", "Zoë 東京 \u200d <b> a\nb", "Zoë 東京 \u200d <b> a\nb"),
        ("terminal", "\x07\t\r\x9b\x7f", r"\u0007\u0009\u000d\u009b\u007f"),
        ("terminal", "\u202e\u2066\u200f\u2028", r"\u202e\u2066\u200f\u2028"),
        ("terminal", "\udc80", r"\udc80"),
        ("html", "<b> & 'c'", "&lt;b&gt; &amp; &#x27;c&#x27;"),
        ("markdown", "<script> </b> <!-- &lt;", "&lt;script> &lt;/b> &lt;!-- &amp;lt;"),
        ("markdown", "[a](javascript:b)", r"[a]\(javascript:b)"),
        ("markdown", "<3> [X] [Y] p < 0.01 R&D", "<3> [X] [Y] p < 0.01 R&D"),
    ],
)
def test_what_is_shown_of_a_name(medium: Medium, text: str, shown: str) -> None:
    assert escape(text, medium) == shown


def test_errors_and_json_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["table", "no\x1b[31m\u202erun"])
    print_json(["\u202e", "\x9b", "\n"])
    said = capsys.readouterr()
    assert r"no\u001b[31m\u202erun" in said.err
    assert said.out.isascii()
    assert json.loads(said.out) == ["\u202e", "\x9b", "\n"]
