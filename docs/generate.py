"""Pages of the site that are made from what is in the package and in experiments/results.

Commands and configs come from the tables that ``--help`` reads, the API from what ``symprompt``
exports, results from stored records. They are written to docs/generated when Sphinx starts; nothing
there is kept by hand.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import symprompt
from symprompt.cli import COMMANDS, load_attribute
from symprompt.cli.parsing import ABOUT_FLAGS, Help, describe
from symprompt.config import TABLES, shipped_configs
from symprompt.errors import escape
from symprompt.facts import check
from symprompt.files.atomic import read_json, to_json, write_file
from symprompt.files.grid import DASH, Grid
from symprompt.papers.fact_jobs import Row, list_rows
from symprompt.papers.ptuning import draw_ptuning, ptuning_sections
from symprompt.papers.ptuning_v2 import draw_v2, v2_sections
from symprompt.papers.records import load_results, published
from symprompt.papers.report import TITLES
from symprompt.papers.settings import PTUNING_V2
from symprompt.papers.spe import MODELS, TABLE_1, TABLE_34K, published_cell
from symprompt.probing.demo import count_moves
from symprompt.probing.results import load_facts
from symprompt.report.figures import Bar, draw_method_rows, save_figure
from symprompt.report.pages import Picture, Section
from symprompt.report.records import METRIC_NAMES, figure_cell, plain_results
from symprompt.report.records import load_results as load_stored
from symprompt.report.tables import RunScores, comparison, load_scores
from symprompt.runs.folder import Record
from symprompt.runs.statistics import OVER_FACTS, OVER_RELATIONS

DOCS = Path(__file__).parent
RECORDS = DOCS.parent / "experiments" / "results"
# What stored results are called; others go by their file's name.
NAMES = {
    "demo": "The demo, facts about the world",
    "demo-seeds": "The demo with ten other seeds",
    "lama34k": "LAMA-34k, every method",
    "lama34k-ask-back": "LAMA-34k, what each ingredient of asking back gives",
    "bear": "BEAR, what each ingredient of asking back gives",
    "bear-big-shipped": "BEAR-big with the shipped model, the same",
    "bear-big-cross": "BEAR-big, weights with evidence of training facts",
    "conceptnet": "ConceptNet with the shipped model, the same",
    "shipped-lama": "LAMA-34k with the shipped model, and with uniform masking rates",
    "mpnet-wiki": "LAMA-34k with mpnet-wiki",
    "mpnet-wiki-ask-back": "LAMA-34k with mpnet-wiki, what each ingredient of asking back gives",
    "shipped-ptuning-settings": "LAMA-34k with the shipped model, settings of P-tuning",
    "mpnet-wiki-tasks": "Labelled tasks with mpnet-wiki",
    "shipped-tasks": "CoNLL-2004 with the shipped model",
    "smollm2-12-relations": "LAMA with a causal model, SmolLM2",
    "ptuning-v2": "Labelled tasks with BERT 8x512",
    "fewglue": "FewGLUE, 32 examples",
    "superglue-rte": "SuperGLUE, RTE",
    "conll2003-pt2-grid": "CoNLL-2003, the grid of settings on dev",
    "conll2004-pt2-grid": "CoNLL-2004, the grid of settings on dev",
    "squad-pt2-grid": "SQuAD 1.1, the grid of settings on held-out questions",
    "spans": "Spans, CRF, relations, nested names",
    "senses": "Word senses",
    "sense-layers": "Word senses, layers chosen on Semeval-2007",
    "isotropy": "Isotropy",
    "fact-steps": "Seconds of a step, facts",
    "task-methods": "Seconds and memory of a step, tasks",
}
# Rows of LAMA-34k that another file has, as experiments/ask_back.py labels them.
BASELINE, SPE = "P-tuning", "SPE (lama-spe)"
TWO, NO_BACK = "asked back by one and whole, within 4", "the fit without subject scores"
THREE = "SPE, three subject prompts, K = 30"
# Rows of LAMA-34k that are variants of a method, as records label them.
VARIANTS = {
    "ptuning-18-vectors": "P-tuning with as many vectors as SPE learns for both ways (18)",
    "ptuning-paper": "P-tuning with its authors' settings (their code puts the object first)",
    "spe-paper": "SPE as its paper has it (lama-spe-paper)",
    NO_BACK: "SPE's fit of weights without subject scores",
    TWO: "SPE with two subject prompts (lama-spe-two)",
    THREE: "SPE with three (lama-spe-two --second chain --third whole --within 0)",
}
# The README's rows of LAMA-34k.
SHORT = {
    "majority": "most frequent training object",
    "manual": "manual prompts",
    "lpaqa": "LPAQA, learned weights",
    "autoprompt": "AutoPrompt",
    "optiprompt-manual": "OptiPrompt, from the manual template",
    "softprompt": "SoftPrompt",
    "ptuning": "P-tuning",
    "mp-ft": "manual prompts + fine-tuning (39 M weights a relation)",
    BASELINE: "P-tuning, runs beside those of SPE",
    f"{BASELINE}, frequency, copy, prior fitted": "the same with SPE's further terms fitted",
    SPE: "SPE (`lama-spe`)",
    TWO: "SPE, two subject prompts (`lama-spe-two`)",
    THREE: "SPE, three (`--second chain --third whole --within 0`)",
}
# What the API is about, by the first part of a module's name.
ROOMS = {
    "opening": "Open a run",
    "probing": "Facts: train and ask",
    "facts": "Facts: read and check",
    "report": "Compare",
    "tasks": "Labelled tasks",
    "prompts": "Prompts",
    "pretraining": "Pretraining",
    "embeddings": "Word vectors",
    "models": "Models",
    "papers": "The papers' tables",
    "config": "Configs",
    "files": "Progress",
    "errors": "Errors",
}
# What records call the model of most of them.
PROTOTYPE = "BERT 8x512"
ABOUT_MODEL = (
    "Our figures are of one small model unless a row names another: **BERT 8x512 (39 M "
    "parameters), a prototype: positions to 128 and one segment are trained; its pretraining text "
    "included LAMA evidence sentences.** The papers' models are larger. So the heights of the two "
    "do not compare; what one method gains over another does."
)

ABOUT_PAIRS = (
    "The runs of BERT 8x512 laid pairs and questions out with a second segment and positions "
    "beyond 128, **which this model never learned**: fine-tuning repairs that, prompts cannot, so "
    "its rows of SQuAD, roles, BoolQ and RTE say little about the methods and will be measured "
    "anew (tags of single sentences are hardly touched by it)."
)
ABOUT_PATTERNS = (
    "Texts of these runs reached beyond position 128, **which this model never learned** (BoolQ's "
    "[MASK] in 58.3 % of the 3,270 examples), so the rows of long texts say little about the "
    "methods."
)
# What else must be known beside figures of the model.
CAVEATS = {
    "ptuning-v2": ABOUT_PAIRS,
    "squad-pt2-grid": ABOUT_PAIRS,
    "ptuning": ABOUT_PATTERNS,
    "fewglue": ABOUT_PATTERNS,
    "superglue-rte": ABOUT_PATTERNS,
}


# Whether a table's claim holds here, by how its section's title begins; figures are the page's.
HOLDS = {
    "SPE, Table 1": "asking back gains, as the paper says, with two subject prompts in P@1 by as "
    "much (+2.16; the paper's 50.3 against 48.2) and in P@10 and MRR by less. As the paper has it "
    "SPE gains in P@10 and MRR alone (41.57 P@1), and training both ways without asking back gives "
    "nothing. Learned vectors are far above manual prompts and searched words, as both papers say; "
    "P-tuning is not above fine-tuning with manual prompts (41.57 against 42.26).",
    "P-tuning, Tables 3 and 4": "not known: P-tuning's own rows are not measured. On RTE a manual "
    "pattern (57.04) is no better than a head on [CLS] (57.76), one seed.",
    "P-tuning, Table 5": "not in general. Beside a whole model that is trained too, learned "
    "vectors leave the noise of five seeds on no task with BERT 8x512; with SmolLM2-135M they are "
    "better on BoolQ, WiC and WSC, and worse on MultiRC and COPA.",
    "P-tuning, Table 6": "not known: the rows of manual patterns are not measured.",
    "P-tuning v2, Table 1": "on SST-2, with mpnet-wiki: P-tuning v2 has 93.77, fine-tuning 93.65 "
    "(three seeds). On RTE it is behind (66.79 against 72.08; one seed of three is near "
    "chance) and far above prompts at the input (55.35), which are there as in the paper. With "
    "BERT 8x512, whose settings were not searched, it has 81.42 against 88.42 on SST-2. BoolQ: not "
    "known, since no model was measured on a sound layout.",
    "P-tuning v2, Table 2": "nearly, with mpnet-wiki. On CoNLL-2003 P-tuning v2 has 89.25 and "
    "fine-tuning 90.65; the paper's BERT-large 90.2 and 92.8. On CoNLL-2004 it has 84.22, "
    "fine-tuning 87.36. Prompts at the input are far behind on both (85.37, 77.05), by less than "
    "in the paper on CoNLL-2003.",
    "P-tuning v2, Table 3": "yes, with mpnet-wiki and 20,000 training questions, one seed: F1 "
    "85.45, fine-tuning 86.81, prompts at the input 74.28, which here are not as bad as the "
    "paper's. Not in the runs of BERT 8x512 (43.13 against 74.25), whose layout spoils prompts and "
    "not fine-tuning, as said above.",
    "P-tuning v2, Table 4": "not in these runs (48.98 F1 against fine-tuning's 68.40), whose "
    "layout spoils prompts and not fine-tuning, as said above; prompts at the input have 34.75.",
    "Section 11.3.1": "yes: the nearest sense alone is above the most frequent one (69.37 against "
    "66.11 on sets that chose nothing), but best it is not: a rule that weighs how often a sense "
    "occurs beside the cosine has 71.02.",
    "Section 11.3.2": "in kind. Two random words have a cosine of 0.345 in the last layer, far "
    "from 1, and one dimension gives 42.00 % of it; standardised they have 0.005.",
    "Section 11.5.2": "yes, for names in names, a set made by hand: spans find inner names (recall "
    "98.08), which one tag a word cannot (0.09). On CoNLL-2003, where no name stands in another, "
    "spans are level with a CRF (89.42 and 89.05), and both above single tags (87.83).",
    "P-tuning v2, section 2.3": "not for RTE, where a verbalizer (58.12, one seed) does not hinder "
    "against a head (55.35); reparameterisation is not measured.",
}
# What of the chapter was measured: its section, what it says, and the records.
CHAPTER = {
    "Section 11.3.1, word senses": (
        "“The best performing WSD algorithm is a simple 1-nearest-neighbor algorithm using "
        "contextual word embeddings.”",
        ("sense-layers", "senses"),
    ),
    "Section 11.3.2, similarity": (
        "Vectors of any two words are extremely similar, because a few dimensions dominate; "
        "standardising mends it.",
        ("isotropy",),
    ),
    "Section 11.5.2, spans": (
        "Labels of spans, unlike one tag a word, can stand for names within names.",
        ("spans",),
    ),
}
UNMEASURED = (
    "Next sentence prediction (11.2.2), read off RTE.",
    "Parts of speech (11.4.3), beyond the trial in the log.",
    "Span masking with the span boundary objective (11.5.1) beside plain masking at equal steps, "
    "read off SQuAD.",
)


def setup(app: Any) -> dict[str, bool]:
    """Make the pages before Sphinx reads any."""
    app.connect("builder-inited", lambda _app: make_pages(DOCS / "generated"))
    return {"parallel_read_safe": True}


def make_pages(folder: Path) -> None:
    """Write every made page below a folder; those that are the same keep their time."""
    pages = {**command_pages(), **config_pages(), "api.md": api_page(), **result_pages(folder)}
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def literal(text: str) -> str:
    """Return a text that is no Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", escape(text))


def joined(*parts: str) -> str:
    """Return blocks of a page as one text."""
    return "\n\n".join(part for part in parts if part) + "\n"


def listed(rows: Iterable[tuple[str, str]]) -> str:
    """Return names, which are code, and what they mean."""
    return "\n\n".join(f"`{name}`\n: {literal(text)}" for name, text in rows)


def toctree(names: Iterable[str]) -> str:
    """Return a list of pages that stands in the menu alone."""
    return "\n".join(["```{toctree}", ":hidden:", "", *names, "```"])


# ------------------------------------------------------------------------------ commands, configs


def command_pages() -> dict[str, str]:
    """Return a page for each command, and one that lists them."""
    pages = {}
    for name, command in COMMANDS.items():
        flags = load_attribute(command.flags)
        kinds = [load_attribute(kind) for kind in command.configs]
        helps = [describe(name, flags, kind()) for kind in kinds] or [describe(name, flags)]
        parts = [f"# symprompt {name}", *command_parts(helps[0])]
        for kind, further in zip(kinds[1:], helps[1:], strict=True):
            about = (inspect.getdoc(kind) or "").splitlines()[0]
            parts += [f"## With another config: {literal(about)}", *flag_parts(further, "###")]
        if command.goes_on != "never":
            how = {"by itself": "goes on where it was when it is given again"}
            told = how.get(command.goes_on, f"goes on {command.goes_on}")
            parts.append(f"Interrupted, the command {told}.")
        pages[f"commands/{name.replace(' ', '-')}.md"] = joined(*parts)
    rows = [
        f"| [`{name}`]({name.replace(' ', '-')}.md) | {literal(command.about)} |"
        for name, command in COMMANDS.items()
    ]
    pages["commands/index.md"] = joined(
        "# Commands",
        "`symprompt COMMAND --help` prints what these pages show; `--json`, where a command has "
        "it, is for scripts. A mistake ends in one sentence and exit code 2.",
        "\n".join(["| command | what it does |", "|---|---|", *rows]),
        toctree(name.replace(" ", "-") for name in COMMANDS),
    )
    return pages


def command_parts(found: Help) -> list[str]:
    """Return usage, text and flags of a command as blocks."""
    parts = [f"```text\n{found.usage}\n```"]
    for paragraph in found.about.split("\n\n"):
        lines = paragraph.splitlines()
        code = all(line.startswith("  ") for line in lines)
        parts.append(f"```text\n{inspect.cleandoc(paragraph)}\n```" if code else literal(paragraph))
    parts.append(listed(found.places))
    if found.configs:
        group = found.usage.split()[1]
        names = ", ".join(f"[`{name}`](../configs/{group}.md#{name})" for name in found.configs)
        parts += [f"Configs that ship: {names}.", ABOUT_FLAGS]
    return [*parts, *flag_parts(found, "##")]


def flag_parts(found: Help, level: str) -> list[str]:
    """Return the flags of a command, a table for each heading."""
    parts = []
    for title, entries in found.sections.items():
        parts += [f"{level} {literal(title[0].upper() + title[1:])}", listed(entries)]
    return parts


def config_pages() -> dict[str, str]:
    """Return a page for the configs of each command, with all of their text."""
    pages = {}
    for command in TABLES:
        parts = [
            f"# Configs of symprompt {command}",
            f"`symprompt configs NAME` prints one; save it, change it and give its path instead. "
            f"[What every setting means](../commands/{command}.md).",
        ]
        for name, path in shipped_configs(command).items():
            text = path.read_text(encoding="utf-8").rstrip()
            parts += [f"({name})=\n## {name}", f"```toml\n{text}\n```"]
        pages[f"configs/{command}.md"] = joined(*parts)
    return pages


# ------------------------------------------------------------------------------ API


def api_page() -> str:
    """Return what the package exports, each thing by its docstring."""
    parts = [
        "# Python API",
        "All of it is in the package itself: `import symprompt`. Every error that a user can cause "
        "is a `SympromptError` of one sentence.",
    ]
    homes = {name: getattr(symprompt, name).__module__.split(".")[1] for name in symprompt.__all__}
    assert set(homes.values()) <= set(ROOMS), set(homes.values()) - set(ROOMS)
    for room, title in ROOMS.items():
        lines = []
        for name in (name for name, home in homes.items() if home == room):
            kind = "class" if inspect.isclass(getattr(symprompt, name)) else "function"
            lines.append(f".. auto{kind}:: symprompt.{name}")
            lines += ["   :members:", ""] if kind == "class" else [""]
        if lines:
            parts += [f"## {title}", "\n".join(["```{eval-rst}", *lines, "```"])]
    return joined(*parts)


# ------------------------------------------------------------------------------ results


def html(text: str) -> str:
    """Return HTML that stands in the page as it is."""
    return "```{raw} html\n" + text.replace("<table>", '<table class="data">') + "\n```"


def holds(title: str) -> list[str]:
    """Return the line that says whether a table's claim holds here."""
    found = [text for start, text in HOLDS.items() if title.startswith(start)]
    return [f"**Does it hold here?** {literal(text[0].upper() + text[1:])}" for text in found]


def section_parts(section: Section) -> list[str]:
    """Return a section of a report as blocks of a page."""
    parts = [f"## {literal(section.title)}", *map(literal, section.text)]
    parts += [html(grid.to_html()) for grid in section.grids]
    parts.append("\n".join(f"- {literal(note)}" for note in section.notes))
    parts += [f"![{literal(picture.about)}]({picture.file})" for picture in section.pictures]
    return parts


def result_pages(folder: Path) -> dict[str, str]:
    """Return the papers' tables, ours beside theirs, and all stored results."""
    figures = folder / "results" / "figures"
    pages = {"results/facts.md": facts_page(figures)}
    for paper, draw, sections in (
        (PTUNING_V2, draw_v2, v2_sections),
        ("ptuning", draw_ptuning, ptuning_sections),
    ):
        entries = load_results([str(RECORDS)], paper)
        found = sections(entries)
        drawn: Any = draw(entries, figures / paper)
        groups: Sequence[Sequence[Picture]] = (
            list(drawn.values()) if isinstance(drawn, dict) else [drawn]
        )
        shown = [
            f"![{literal(picture.about)}](figures/{paper}/{Path(picture.file).name})"
            for group in groups
            for picture in group
        ]
        parts = [f"# {TITLES[paper]}", ABOUT_MODEL, CAVEATS[paper], *shown]
        for section in found:
            parts += [*section_parts(section), *holds(section.title)]
        command = f"symprompt reproduce {paper} --from-results experiments/results --out report"
        parts.append(f"The same tables from the same records:\n\n```\n{command}\n```")
        pages[f"results/{paper}.md"] = joined(*parts)
    pages["results/chapter.md"] = chapter_page()
    names = []
    order = [*NAMES, *sorted(path.stem for path in RECORDS.glob("*.json"))]
    for path in sorted(RECORDS.glob("*.json"), key=lambda path: order.index(path.stem)):
        pages[f"results/{path.stem}-records.md"] = records_page(path)
        names.append(f"{path.stem}-records")
    pages["results/records.md"] = joined(
        "# All stored results",
        ABOUT_MODEL,
        "`experiments/results` holds them as JSON; `symprompt table FILE` prints them.",
        "\n".join(
            f"- [{NAMES.get(name.removesuffix('-records'), name)}]({name}.md)" for name in names
        ),
        toctree(names),
    )
    return pages


def records_page(path: Path) -> str:
    """Return the tables of a file of results, its note first.

    A results.json of ``reproduce`` has the papers' tables in it; they are shown as they are.
    """
    tables = load_stored(str(path)).tables()
    parts = [f"# {NAMES.get(path.stem, path.stem)}"]
    if PROTOTYPE in path.read_text(encoding="utf-8"):
        parts += [ABOUT_MODEL, CAVEATS.get(path.stem, "")]
    parts += map(literal, tables.notes)
    parts.append(f"```\nsymprompt table experiments/results/{path.name}\n```")
    sections = read_json(path).get("tables", [])
    for section in sections:
        found = (stored_grid(**own) for own in section["tables"])
        notes = tuple(section.get("notes", ()))
        parts += section_parts(Section(section["title"], (), tuple(found), notes))
    return joined(*parts, *(() if sections else (html(own.to_html()) for own in tables.grids)))


def stored_grid(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    """Return a table that a report stored as plain values, the papers' columns marked again."""
    marked = tuple(at for at, name in enumerate(header) if name.startswith("published"))
    return Grid(title, tuple(header), (tuple(map(tuple, rows)),), marked)


def facts_page(figures: Path) -> str:
    """Return the papers' tables of facts: our figures on LAMA-34k, and theirs."""
    records, note = lama_records()
    rows = list_rows()
    grids = [facts_grid(records, rows, mean) for mean in (OVER_RELATIONS, OVER_FACTS)]
    save_figure(draw_facts(records, rows), figures / "lama34k.png")
    return joined(
        "# Facts: SPE's Tables 1 and 2, P-tuning's Tables 1 and 2, BEAR's",
        ABOUT_MODEL,
        "![Methods on LAMA-34k with their intervals](figures/lama34k.png)",
        "## SPE, Table 1, and P-tuning, Table 2, LAMA-34k",
        "P@1, P@10 and MRR in percent with 95 % intervals. The columns headed “published” are "
        "the papers' own figures for other models: [S] is SPE's Table 1, [P] is P-tuning's Table 2 "
        "(P@1 alone).",
        *(html(grid.to_html()) for grid in grids),
        *holds("SPE, Table 1"),
        literal(f"The runs: {note}"),
        "## Tables without runs of ours in the records",
        "Printed by the papers, in percent; `symprompt reproduce spe` and "
        "`symprompt reproduce bear` make them on your models.",
        *(html(grid.to_html()) for grid in published_grids()),
    )


def chapter_page() -> str:
    """Return what was measured of the chapter's claims, a section each."""
    parts = ["# The chapter: contextual vectors, senses, spans", ABOUT_MODEL]
    for title, (claim, names) in CHAPTER.items():
        parts += [f"## {title}", claim]
        for name in names:
            parts += [html(own.to_html()) for own in records_grids(name)]
        runs = ", ".join(f"[{NAMES[name]}]({name}-records.md)" for name in names)
        parts += [*holds(title), f"The runs: {runs}."]
    missing = "\n".join(f"- {line}" for line in UNMEASURED)
    return joined(*parts, "## Not measured", missing)


def records_grids(name: str) -> list[Grid]:
    """Return the tables of stored results."""
    return load_stored(str(RECORDS / f"{name}.json")).tables().grids


def lama_records() -> tuple[list[Record], str]:
    """Return the records of LAMA-34k, those of asking back among them, and what they are."""
    stored = [
        load_stored(str(RECORDS / f"{name}.json")) for name in ("lama34k", "lama34k-ask-back")
    ]
    records = [record for own in stored for record in own.records]
    return records, " ".join(own.about["note"] for own in stored)


def label_of(row: Row) -> str:
    """Return what the records of LAMA-34k call a method."""
    return SPE if row.short == "spe" else row.short


def chosen(records: Sequence[Record], label: str, mean: str, versus: str = "") -> dict[str, Record]:
    """Return a row's records by metric, of one average; differences where one is named."""
    return {
        record.metric: record
        for record in records
        if (record.label or record.method) == label
        and record.settings.get("mean") == mean
        and record.versus == versus
    }


def facts_grid(records: Sequence[Record], rows: Sequence[Row], mean: str) -> Grid:
    """Return our figures of every method, and what the papers print of it."""

    def cells(label: str, versus: str = "") -> tuple[str, ...]:
        own = chosen(records, label, mean, versus)
        seeds = {seed for record in own.values() for seed in record.seeds}
        figures = (figure_cell([own[metric]]) if metric in own else DASH for metric in METRIC_NAMES)
        return (str(len(seeds)) if own and not versus else "", *figures)

    none = (DASH,) * len(MODELS)
    methods = tuple(
        (
            row.name,
            *cells(label_of(row)),
            *(published_cell(row, model) for model in MODELS),
        )
        for row in rows
    )
    variants = tuple((name, *cells(label), *none) for label, name in VARIANTS.items())
    changes = tuple(
        (f"{name} minus P-tuning, runs beside it", *cells(label, BASELINE), *none)
        for label, name in (
            (SPE, "SPE"),
            (TWO, "SPE with two subject prompts"),
            (THREE, "SPE with three"),
        )
    )
    header = ("method", "seeds", *METRIC_NAMES.values(), *(f"published:\n{own}" for own in MODELS))
    return Grid(mean.capitalize(), header, (methods, variants, changes), marked=(5, 6, 7))


def draw_facts(records: Sequence[Record], rows: Sequence[Row]) -> Any:
    """Draw every method with its interval."""
    bars = []
    for metric, name in METRIC_NAMES.items():
        for row in rows:
            own = chosen(records, label_of(row), OVER_RELATIONS).get(metric)
            if own is not None and own.low is not None and own.high is not None:
                bars.append(Bar(row.name, name, own.value, own.low, own.high))
    caption = (
        "LAMA-34k, 41 relations, 34,039 test facts, mean over relations, 95 % intervals. BERT "
        "8x512 (39 M parameters), a prototype whose pretraining text included LAMA evidence "
        "sentences."
    )
    return draw_method_rows(bars, title="Methods on LAMA-34k", caption=caption)


def published_grids() -> list[Grid]:
    """Return the papers' tables of facts that stored records have nothing of."""
    tables: dict[str, dict[str, Mapping[str, Mapping[str, float]]]] = {}
    for name in shipped_configs("train"):
        for table, values in published(name).items():
            if table not in (TABLE_1, TABLE_34K):
                tables.setdefault(table, {})[name] = values
    grids = []
    for table, recipes in tables.items():
        models = list(dict.fromkeys(model for values in recipes.values() for model in values))
        rows = tuple(
            (model, *(percents(values.get(model, {})) for values in recipes.values()))
            for model in models
        )
        header = ("", *(f"published:\n{name.removeprefix('lama-')}" for name in recipes))
        grids.append(Grid(table, header, (rows,), marked=tuple(range(1, len(header)))))
    return grids


def percents(values: Mapping[str, float]) -> str:
    """Return a cell of published figures."""
    return " / ".join(f"{value:.1f}" for value in values.values()) or DASH


# ------------------------------------------------------------------------------ README

METHODS = {"manual": "manual prompts", "ptuning": "P-tuning", "spe": "SPE"}
MAJORITY = "most frequent training object"


def write_demo(folder: Path) -> None:
    """Store what a finished demo measured as records, as other results are, and its figures."""
    runs = [symprompt.Run.load(folder / name) for name in METHODS]
    metrics, facts = runs[-1].metrics, check(load_facts(runs[-1].folder))
    scores = [load_scores(str(run.folder.path)) for run in runs]
    about = {"split": "test", "model": "shipped", "data": "world", "seeds": (metrics["seed"],)}
    records = [
        Record(
            metric="p1",
            value=100 * (facts.majority_mean_over_relations or 0.0),
            **about | {"seeds": (), "label": MAJORITY, "settings": {"mean": OVER_RELATIONS}},
        )
    ]
    records += run_records(scores, list(METHODS.values()), about, list(METHODS).index("ptuning"))
    moves = count_moves(runs[-1])
    note = (
        f"symprompt demo: the shipped model, {len(metrics['test']['relations'])} relations about "
        f"countries and cities, {moves.facts} test facts, seed {metrics['seed']}, CPU. Asking back "
        f"brought {moves.risen} right answers to the top and took {moves.fallen} from it."
    )
    stored = plain_results({"note": note, "moves": vars(moves)}, records)
    write_file(RECORDS / "demo.json", to_json(stored))
    for name in ("methods", "question"):
        picture = (folder / "figures" / f"{name}.png").read_bytes()
        write_file(DOCS / "pictures" / f"demo-{name}.png", picture)


def run_records(
    scores: Sequence[RunScores], labels: Sequence[str], about: dict[str, Any], reference: int = 0
) -> list[Record]:
    """Return what runs scored, and each minus the reference, as records under these labels."""
    found = comparison(scores, reference=reference).values
    names = {run.name: label for run, label in zip(scores, labels, strict=True)}
    records = []
    for row in [*found["runs"], *found["differences"]]:
        versus = names[row["to"]] if "to" in row else ""
        for mean in (OVER_RELATIONS, OVER_FACTS):
            for metric, values in row[mean].items():
                own = {"value": values["difference"], **values} if versus else dict(values)
                own.pop("difference", None)
                settings = {"settings": {"mean": mean}, "n": row["facts"], "versus": versus}
                label = names[row["name"]]
                records.append(Record(metric=metric, label=label, **own, **settings, **about))
    return records


def readme_demo() -> str:
    """Return the README's table of the demo, and what asking back moved, from its records."""
    stored = load_stored(str(RECORDS / "demo.json"))
    lines = ["| | P@1 | P@10 | MRR |", "|---|---|---|---|"]
    rows = [(MAJORITY, ""), *((name, "") for name in METHODS.values()), ("SPE", "P-tuning")]
    for label, versus in rows:
        own = chosen(stored.records, label, OVER_RELATIONS, versus)
        sign = "+" if versus else ""
        cells = [interval(own[metric], sign) if metric in own else "" for metric in METRIC_NAMES]
        name = f"{label} minus {versus}" if versus else label
        lines.append(" ".join(["|", name, "|", *(f"{cell} |".lstrip() for cell in cells)]))
    moves = stored.about["moves"]
    others = load_stored(str(RECORDS / "demo-seeds.json"))
    gains = chosen(others.records, "SPE", OVER_RELATIONS, "P-tuning")
    told = " / ".join(f"{gains[metric].value:+.2f}" for metric in METRIC_NAMES)
    more = others.about["moves"]
    return "\n".join(lines) + (
        f"\n\n{moves['risen']} right answers came to the top when asked back, {moves['fallen']} "
        f"left it. Ten other seeds\ngained {told} in the mean, {more['risen']} came and "
        f"{more['fallen']} left\n(`symprompt table experiments/results/demo-seeds.json`)."
    )


def interval(record: Record, sign: str = "") -> str:
    """Return a figure with its interval, where it has one."""
    if record.low is None:
        return f"{record.value:.2f}"
    return f"{record.value:{sign}z.2f} ({record.low:{sign}z.2f} to {record.high:{sign}z.2f})"


def readme_table() -> str:
    """Return the README's table of LAMA-34k, from its records."""
    records, _ = lama_records()
    lines = ["| method | seeds | P@1 | P@10 | MRR |", "|---|---|---|---|---|"]
    for label, name in SHORT.items():
        own = chosen(records, label, OVER_RELATIONS)
        seeds = len({seed for record in own.values() for seed in record.seeds})
        cells = [f"{own[metric].value:.2f}" for metric in METRIC_NAMES]
        lines.append(f"| {' | '.join([name, str(seeds), *cells])} |")
    for label, name in ((SPE, "SPE"), (TWO, "two"), (THREE, "three")):
        change = chosen(records, label, OVER_RELATIONS, BASELINE)
        cells = [interval(change[metric], "+") for metric in METRIC_NAMES]
        lines.append(f"| {name} - P-tuning | | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_tables(text: str) -> str:
    """Return the README's text with its tables as the records have them now."""
    for name, table in (("demo", readme_demo()), ("lama34k", readme_table())):
        marks = re.compile(rf"<!-- {name} -->\n.*?<!-- end -->", re.DOTALL)
        block = f"<!-- {name} -->\n\n{table}\n\n<!-- end -->"
        text = marks.sub(lambda _found, block=block: block, text, count=1)
    return text


if __name__ == "__main__":
    # With the folder of a finished demo (demo/shipped-...) its figures are stored first.
    for given in sys.argv[1:]:
        write_demo(Path(given))
    readme = DOCS.parent / "README.md"
    readme.write_text(with_tables(readme.read_text(encoding="utf-8")), encoding="utf-8")
