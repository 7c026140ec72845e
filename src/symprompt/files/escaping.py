"""What names may not do on their way out: control a terminal, turn text around, or be markup."""

from __future__ import annotations

import html
import re
from typing import Literal

Medium = Literal["terminal", "markdown", "html"]
# Control characters but the line break; half characters; and marks that turn the text after them
# around or part lines. They are shown by their codes, as JSON writes them.
_UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# What opens a tag or an entity in Markdown; a sign before a space or a number is no tag.
_TAG = re.compile(r"<(?=[A-Za-z/!?])|&(?=#?\w+;)")


def escape(text: str, medium: Medium = "terminal") -> str:
    """Return a text that may hold names from anywhere, safe to show.

    Args:
        medium: where it is shown; in Markdown and HTML it is no markup.

    Example:
        >>> escape("a\\x1b[31m <b>", "html")
        'a\\\\u001b[31m &lt;b&gt;'
    """
    shown = _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    if medium == "html":
        return html.escape(shown)
    if medium == "markdown":
        return _TAG.sub(lambda found: html.escape(found[0]), shown).replace("](", "]\\(")
    return shown
