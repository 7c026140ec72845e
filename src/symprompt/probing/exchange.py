"""Slotted prompts of a run as a folder for peft and transformers, and such a folder as a run again.

The folder holds one TRAINABLE_TOKENS adapter with the vectors of all relations and both directions,
the tokenizer that knows their tokens, ``symprompt.json``, which says how each relation is asked, a
card, and in ``run`` what else the run has: config, manifest, facts and predictions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import with_config
from typing_extensions import TypedDict

from symprompt.errors import ExchangeError, ModelError, RunError, counted
from symprompt.files.atomic import making_folder, write_file
from symprompt.models import LanguageModel, Vocabulary
from symprompt.probing.ask import Run, stored_problem
from symprompt.probing.config import MethodConfig
from symprompt.probing.methods import METHODS
from symprompt.probing.problem import Problem
from symprompt.probing.queries import FURTHER_PARTS, OBJECT_PART, SUBJECT_PART
from symprompt.probing.results import (
    ENCODER,
    FACTS,
    PROMPTS,
    load_card,
    load_prompts,
    method_name,
    run_config,
)
from symprompt.prompts import Frame, Template
from symprompt.prompts.exchange import (
    embedding_scale,
    import_export,
    read_export,
    read_tokens,
    write_export,
    write_tokens,
)
from symprompt.runs.folder import EXPORTED, MANIFEST, Folder, validated
from symprompt.runs.sharing import HELD, ON_HUB, card_end, card_figures, card_head, require_new

_KIND = "prompts for peft"
_KEYS = {
    OBJECT_PART: "object_prompt",
    SUBJECT_PART: "subject_prompt",
    **{part: f"{part}_subject_prompt" for part in FURTHER_PARTS},
}
_SLOTTED = ("optiprompt", "ptuning", "spe")


@with_config(extra="allow")
class _Prompt(TypedDict):
    token_ids: list[int]


@with_config(extra="allow")
class _Relation(TypedDict):
    object_prompt: _Prompt


@with_config(extra="allow")
class _About(TypedDict):
    """What import reads of ``symprompt.json``."""

    embedding_scale: float
    parts: list[str]
    relations: dict[str, _Relation]


# ------------------------------------------------------------------------------ export


def export_prompts(run: Run, folder: str | Path, *, model: str = "", device: str = "cpu") -> Path:
    """Write a run's slotted prompts as a folder that peft and transformers load without symprompt.

    Args:
        run: of ptuning, optiprompt or spe.
        folder: must not be there, or be empty.
        model: where the model is now, if it moved since the run was made.

    Raises:
        RunError: the run's prompts are none that peft can express; the reason is said.
    """
    config = run_config(run.folder)
    _refuse_others(run, config.method, rerank=config.rerank)
    target = require_new(folder, "to export to")
    backbone = run.load_backbone(model, device)
    problem = stored_problem(run.folder, backbone)
    card = load_card(run.folder)
    learned = load_prompts(run.folder, card["parts"])
    tokens: dict[str, list[list[str]]] = {
        part: [
            [f"<{name}:{f'{part}:' * (part != OBJECT_PART)}{slot}>" for slot in range(own.vectors)]
            for name, own in zip(problem.relations, problem.templates, strict=True)
        ]
        for part in learned
    }
    vectors = {
        token: learned[part][row, slot]
        for part, rows in tokens.items()
        for row, names in enumerate(rows)
        for slot, token in enumerate(names)
    }
    with making_folder(target) as part:
        try:
            tokenizer = write_tokens(part, backbone, vectors)
        except ModelError as error:
            raise ExchangeError(str(error)) from error
        about = {
            EXPORTED: _KIND,
            "format": 1,
            "base_model": config.model,
            "base_model_fingerprint": backbone.fingerprint,
            "kind": "causal" if backbone.causal else "masked",
            "vocabulary_size": backbone.vocabulary_size,
            "embedding_scale": embedding_scale(backbone),
            "method": config.method.name,
            "parts": list(learned),
            "objects": config.facts.objects,
            **_asking_back(run),
            "relations": _describe(run, problem, tokenizer, tokens),
        }
        write_export(part, run.folder, about, (PROMPTS, ENCODER))
        write_file(part / "README.md", _readme(run, about, backbone).encode())
    return target


def _refuse_others(run: Run, settings: MethodConfig, *, rerank: str) -> None:
    """Refuse runs without vectors in the slots of one template a relation."""
    where, method = run.folder.path, settings.name
    if rerank:
        raise ExchangeError(f"{where} re-ranked by the prompts of {rerank}; export that run.")
    if settings.object_prompts > 1:
        raise ExchangeError(
            f"{where} averages the scores of {settings.object_prompts} object prompts, which a "
            "peft adapter cannot hold; export a run with method.object_prompts = 1."
        )
    if method in _SLOTTED:
        return
    reasons = {
        "softprompt": "mixes several prompts by weights, which a peft adapter cannot hold",
        "autoprompt": "found words and learned no vectors: symprompt prompts show prints them, and "
        "any model reads them as they are",
        "finetune": "changed weights of the model; with LoRA each relation's folder in "
        f"{where / 'weights'} is an adapter of peft already",
    }
    said = reasons.get(method, "learned no vectors")
    raise ExchangeError(
        f"{where} was made by {method}, which {said}; export a run of {', '.join(_SLOTTED)}."
    )


def _asking_back(run: Run) -> dict[str, Any]:
    """Return how subjects are scored given objects, and how many candidates are."""
    method = run_config(run.folder).method
    if not METHODS[method.name].subject_prompt:
        return {}
    ways = zip(FURTHER_PARTS, method.further, strict=False)
    further = {f"{part}_masking": masking for part, masking in ways}
    return {"masking": method.masking, **further, "average": method.average, "k": method.k}


def _describe(
    run: Run, problem: Problem, tokenizer: Any, tokens: Mapping[str, Sequence[Sequence[str]]]
) -> dict[str, Any]:
    """Return how each relation is asked, in both directions."""
    config, card = run_config(run.folder), load_card(run.folder)
    weights = run.folder.manifest.details.get("weights") or {}
    vocabulary, found = problem.backbone.vocabulary, {}
    back = METHODS[config.method.name].subject_prompt
    for row, (name, template) in enumerate(zip(problem.relations, problem.templates, strict=True)):
        own = card["relations"][name]
        facts = [(fact.subject, fact.object) for fact in problem.facts[name].all()]
        about: dict[str, Any] = {
            "label": own["label"],
            "template": own["template"],
            "manual_template": own["manual_template"],
            "object_prompt": _prompt(
                vocabulary, tokenizer, template, tokens[OBJECT_PART][row], facts
            ),
        }
        turned = template.swapped() if config.method.blanks == "swapped" else template
        for part in (
            (SUBJECT_PART, *(own for own in FURTHER_PARTS if own in tokens)) if back else ()
        ):
            # Vectors may be shared by both directions.
            listed = tokens.get(part, tokens[OBJECT_PART])[row]
            about[_KEYS[part]] = _prompt(
                vocabulary, tokenizer, turned, listed, facts, answer=template
            )
        about["weights"] = {term: each[name] for term, each in weights.items()}
        about["copies"] = bool(not problem.copies or problem.copies[row])
        if problem.spelling is not None:
            ids = problem.allowed[row].nonzero()[:, 0].tolist()
            about["answers"] = [problem.text(answer) for answer in ids]
        elif not bool(problem.allowed[row, : len(vocabulary)].all()):
            about["answer_ids"] = problem.allowed[row].nonzero()[:, 0].tolist()
        found[name] = about
    return found


def _prompt(
    vocabulary: Vocabulary,
    tokenizer: Any,
    template: Template,
    tokens: Sequence[str],
    facts: Iterable[tuple[str, str]],
    *,
    answer: Template | None = None,
) -> dict[str, Any]:
    """Return one direction's prompt: as text, where the tokenizer reads it right, and as ids.

    Args:
        template: with the blanks where they stand in this direction.
        answer: of a subject prompt, the template whose spaces tell an object's tokens.
    """
    frame, own = Frame(vocabulary, template), tokenizer.convert_tokens_to_ids(list(tokens))
    ids: list[Any] = [
        own[slot] if slot >= 0 else word for word, slot in zip(frame.ids, frame.slots, strict=True)
    ]
    at = [(frame.subject_at, not frame.subject_first, "[X]")]
    at.append((frame.object_at, frame.subject_first, "[Y]"))
    for place, _, blank in sorted(at, reverse=True):
        ids.insert(place, blank)
    text, used = "", 0
    for piece in template.pieces:
        # Spaces before new tokens would be tokens of their own.
        text += "".join(tokens[used : used + piece.count]) if piece.count else ""
        text += "" if piece.count else " " * piece.space + str(piece)
        used += piece.count
    if answer is None and vocabulary.causal:
        ids, text = ids[: ids.index("[Y]")], text.partition("[Y]")[0].rstrip()
    spaced = {
        "[X]": template.space_before("subject"),
        "[Y]": (answer or template).space_before("object"),
    }
    facts = list(dict.fromkeys(facts if answer else ((subject, "") for subject, _ in facts)))
    read = {
        blank: vocabulary.encode_names(
            [fact[place] for fact in facts], [spaced[blank]] * len(facts)
        )
        for place, blank in enumerate(("[X]", "[Y]"))
    }
    if answer is None:
        read["[Y]"] = [[vocabulary.mask_id or 0]] * len(facts)
    wanted = [
        [token for own in ids for token in (read[own][row] if own in read else [own])]
        for row in range(len(facts))
    ]
    texts = [
        _fill(text, subject, name if answer else tokenizer.mask_token or "")
        for subject, name in facts
    ]
    before = {blank: vocabulary.space * own for blank, own in spaced.items()}
    exact = tokenizer(texts, verbose=False)["input_ids"] == wanted
    about = {"text": text} if exact else {}
    return {**about, "ids": ids, "before": before, "tokens": list(tokens), "token_ids": own}


def _fill(text: str, subject: str, name: str) -> str:
    return re.sub(r"\[[XY]\]", lambda found: subject if found[0] == "[X]" else name, text)


def _readme(run: Run, about: Mapping[str, Any], backbone: LanguageModel) -> str:
    """Return the card of the folder: what it is, figures, and a script that asks."""
    manifest, names = run.folder.manifest, list(about["relations"])
    base, data = str(about["base_model"]), Path(manifest.data).name
    figures = card_figures(manifest)
    head = card_head(
        name=f"{method_name(run_config(run.folder))} prompts for {Path(base).name}",
        library="peft",
        base=base,
        tags=("symprompt", "peft", "trainable-tokens", "factual-probing"),
        data=manifest.data,
        task="text-generation" if backbone.causal else "fill-mask",
        figures=figures,
    )
    asked = [(name, _subject(run, name)) for name in names[:2]]
    measured = ", ".join(f"{own.metric} {own.value:.1f}" for own in figures)
    return (
        f"{head}\n# Learned prompts of {counted(len(names), 'relation')} for "
        f"{Path(base).name}\n\nMade by symprompt's {about['method']} on {data}"
        f"{f': {measured} on test (mean over relations)' if measured else ''}. Every vector is a "
        "new token within the sentence; one adapter of peft holds them all. `symprompt.json` has "
        "each relation's sentence in both directions (`text`, and `ids` with the blanks [X], the "
        "subject, and [Y], the object) and the weights of the joint score.\n\n```python\n"
        f"{_script(about, asked)}```\n"
        + card_end(base, f"ask {ON_HUB} --relation RELATION --subject TEXT", "to ask both ways")
    )


def _subject(run: Run, relation: str) -> str:
    """Return a subject of a relation, for an example: the first of its test facts."""
    rows = run.folder.read_rows(FACTS)
    own = [row for row in rows if row["relation"] == relation]
    return str(next((row for row in own if row["split"] == "test"), own[0])["subject"])


_HEAD = """import json
import torch
from peft import PeftModel
from transformers import {auto}, AutoTokenizer

folder, base = ".", {{base!r}}
with open(f"{{{{folder}}}}/symprompt.json", encoding="utf-8") as file:
    about = json.load(file)
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {auto}.from_pretrained(base, dtype=torch.float32)
model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
model = PeftModel.from_pretrained(model, folder)
model = model.merge_and_unload().eval()  # unmerged, peft leaves out the bias of a head (peft#3649)
asked = {{asked!r}}
prompts = [about["relations"][relation]["object_prompt"] for relation, _ in asked]
{batch}ids, mask = batch["input_ids"], batch["attention_mask"]
"""
_TAIL = """scores = logits[:, : about["vocabulary_size"]].log_softmax(-1)
for (relation, subject), row in zip(asked, scores):
    best = row.topk(5)
    pairs = zip(tokenizer.convert_ids_to_tokens(best.indices), best.values.tolist())
    print(relation, subject, *(f"{{token}} {{score:.3f}}" for token, score in pairs))
"""
_BY_TEXT = """texts = [own["text"].replace("[X]", name) for own, (_, name) in zip(prompts, asked)]
{mask}batch = tokenizer(texts, padding=True, return_tensors="pt")
"""
_BY_IDS = """def fill(prompt, subject):  # this tokenizer reads names within a text otherwise
    name = tokenizer(prompt["before"]["[X]"] + subject, add_special_tokens=False)["input_ids"]
    blanks = {{"[X]": name, "[Y]": [tokenizer.mask_token_id]}}
    return [token for part in prompt["ids"] for token in blanks.get(part, [part])]
rows = [fill(prompt, subject) for prompt, (_, subject) in zip(prompts, asked)]
batch = tokenizer.pad({{"input_ids": rows}}, return_tensors="pt")
"""
_MASK = 'texts = [text.replace("[Y]", tokenizer.mask_token) for text in texts]\n'
_MASKED = """with torch.no_grad():
    logits = model(input_ids=ids, attention_mask=mask).logits[ids == tokenizer.mask_token_id]
"""
_CAUSAL = """with torch.no_grad():
    logits = model(input_ids=ids, attention_mask=mask).logits
logits = logits[torch.arange(len(ids)), mask.sum(1) - 1]
"""


def _script(about: Mapping[str, Any], asked: Sequence[tuple[str, str]]) -> str:
    """Return a script that asks for objects with peft and transformers alone."""
    causal = about["kind"] == "causal"
    auto = "AutoModelForCausalLM" if causal else "AutoModelForMaskedLM"
    prompts = [own["object_prompt"] for own in about["relations"].values()]
    batch = _BY_IDS
    if all("text" in own for own in prompts):
        batch = _BY_TEXT.format(mask="" if causal else _MASK)
    whole = _HEAD.format(auto=auto, batch=batch) + (_CAUSAL if causal else _MASKED) + _TAIL
    return whole.format(base=about["base_model"], asked=list(asked))


# ------------------------------------------------------------------------------ import


def import_prompts(folder: str | Path, out: str | Path, *, model: str = "") -> Run:
    """Make a run of a folder that ``export_prompts`` wrote; its vectors are the adapter's.

    An adapter that was trained further since has no predictions: those that are there are of other
    vectors. Such a run is asked, and re-ranks others, but has no figures.

    Args:
        out: the new run's folder.
        model: where the model is on this machine, if not where the run was made.

    Raises:
        RunError: the folder is none of those, or damaged.
    """
    about = validated(_About, read_export(folder, _KIND), Path(folder) / MANIFEST)
    config = run_config(Folder(Path(folder) / HELD))
    config = replace(config, out=str(out), model=model or config.model)
    learned = (PROMPTS, _vectors(Path(folder), about))
    return Run(import_export(folder, out, config, {}, learned, model=config.model))


def _vectors(source: Path, about: _About) -> dict[str, torch.Tensor]:
    """Return each part's vectors [relation, n, width] from the adapter."""
    rows = read_tokens(source, scale=about["embedding_scale"])
    found = {}
    try:
        for part in about["parts"]:
            prompts: list[Any] = [own[_KEYS[part]] for own in about["relations"].values()]  # type: ignore[literal-required]
            own = [[rows[token] for token in prompt["token_ids"]] for prompt in prompts]
            count = max(map(len, own))
            width = len(next(iter(rows.values())))
            table = torch.zeros(len(own), count, width)
            for row, listed in enumerate(own):
                if listed:
                    table[row, : len(listed)] = torch.stack(listed)
            found[part] = table
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{source / MANIFEST} names vectors that the adapter does not hold ({error}); give the "
            "folder as it was exported."
        ) from error
    return found
