"""The page as one file that needs no server: scripts, styles and data inside, from any folder."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from symprompt.errors import ConfigError
from symprompt.files.atomic import write_file
from symprompt.page.data import Library, static_files

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) )", re.MULTILINE)
_NAME = re.compile(r"^(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)


def join_modules(files: Mapping[str, str], first: str = "main.js") -> str:
    """Return modules as one: each after those it imports, without its imports and exports.

    Args:
        files: names and texts; they import each other by name alone.

    Raises:
        ValueError: two modules declare the same name, or import each other.
    """
    order: list[str] = []
    begun: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        if name in begun:
            raise ValueError(f"{name} imports itself through {begun[-1]}")
        begun.append(name)
        for _, other in _IMPORT.findall(files[name]):
            visit(other)
        order.append(name)

    visit(first)
    bodies = [_EXPORT.sub("", _IMPORT.sub("", files[name])) for name in order]
    declared = [own for body in bodies for own in _NAME.findall(body)]
    twice = sorted({own for own in declared if declared.count(own) > 1})
    if twice:
        raise ValueError(f"two modules declare {', '.join(twice)}")
    return "\n".join(bodies)


def make_file(library: Library) -> bytes:
    """Return the page with its data inside; its policy lets no other script or style run.

    Raises:
        ConfigError: there is no run on facts to show.
    """
    everything = library.everything()
    whole = [own["id"] for own in everything["runs"] if own["kind"] == "facts"]
    if not whole and not everything["live"]:
        raise ConfigError("--export shows stored facts and curves; give a finished run of train.")
    files = {name: content.decode() for name, content in static_files().items()}
    script, style = join_modules(files), files["style.css"]
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    blocks = [_data_block("about", "application/json", _as_json(everything))]
    for number in whole:
        content = base64.b64encode(library.columns(number, small=True)).decode()
        blocks.append(_data_block(f"columns-{number}", "text/plain", content))
    page = files["index.html"]
    page = page.replace(
        '<meta charset="utf-8">',
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
    )
    page = re.sub(r'<link rel="(?:icon|modulepreload)".*\n', "", page)
    page = page.replace('<link rel="stylesheet" href="style.css">', f"<style>{style}</style>")
    # The module runs when the page was read to its end, so its data is there.
    page = page.replace(
        '<script type="module" src="main.js"></script>',
        f'<script type="module">{script}</script>',
    )
    return page.replace("</body>", "\n".join([*blocks, "</body>"])).encode()


def write_export(library: Library, path: str) -> Path:
    """Write the page as one file.

    Raises:
        ConfigError: the name does not end in .html, or there is nothing to show.
    """
    if not path.endswith((".html", ".htm")):
        raise ConfigError(f"--export is {path!r}; the name must end in .html.")
    target = Path(path)
    write_file(target, make_file(library))
    return target


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _as_json(value: object) -> str:
    """Return JSON that no HTML parser takes for markup."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data_block(name: str, kind: str, content: str) -> str:
    return f'<script type="{kind}" id="{name}">{content}</script>'
