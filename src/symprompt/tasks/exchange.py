"""What a run of tune has learned as a folder for peft and transformers, and as a run again.

The folder holds one adapter of the model's body (PREFIX_TUNING, LORA or PROMPT_TUNING), the head in
``head.safetensors``, the tokenizer, ``symprompt.json``, a card with a script, and in ``run`` what
else the run has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from symprompt.config import load
from symprompt.errors import ExchangeError, ModelError
from symprompt.files.atomic import making_folder, read_tensors, to_json, write_file, write_tensors
from symprompt.models import LanguageModel
from symprompt.prompts.exchange import (
    import_export,
    padding_tokenizer,
    read_adapter,
    read_export,
    write_adapters,
    write_export,
    write_input_prompt,
    write_peft,
)
from symprompt.runs.folder import CONFIG, EXPORTED, Folder
from symprompt.runs.sharing import HELD, ON_HUB, card_end, card_figures, card_head, require_new
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.predict import CARD, Card, StoredPattern, StoredPrompt, TaskRun
from symprompt.tasks.trainables import Adapters

_HEAD = "head.safetensors"
# The hub's words for kinds of tasks; others tag words.
_TYPES = {"sequence": "text-classification", "pair": "text-classification"}
_TYPES |= {"question": "question-answering"}
KIND = "a task for peft"
"""What the folder of a task says that it holds."""


def export_task(run: TaskRun, folder: str | Path, *, model: str = "", device: str = "cpu") -> Path:
    """Write a run's prefix, adapters or prompt as a folder that peft and transformers load.

    Args:
        run: of pt2, lora or pt.
        folder: must not be there, or be empty.
        model: where the model is now, if it moved since the run was made.

    Raises:
        SympromptError: peft cannot express what was learned; the reason is said.
    """
    stored, where = run.stored, run.folder.path
    if isinstance(stored, StoredPattern):
        raise ExchangeError(
            f"{where} answers through a pattern, whose vectors stand within its sentence; export a "
            "run of pt2, lora or pt with a head, or prompts of train."
        )
    if stored.config.method == "ft":
        raise ExchangeError(
            f"{where} was made by ft, which changed weights of the model and learned no adapter; "
            "export a run of pt2, lora or pt."
        )
    target = require_new(folder, "to export to")
    tuned = stored.prepare(model, device=device, dtype="float32").tuned
    backbone = tuned.backbone
    head = {key: own for key, own in stored.tensors.items() if key.startswith("head.")}
    with making_folder(target) as part:
        try:
            if isinstance(tuned, Adapters):
                write_adapters(part, tuned.tuning, tuned.row, stored.card["base_model"])
            elif "prompt.prefix" in stored.tensors:
                write_peft(part, stored.prefix(), backbone)
            else:
                write_input_prompt(part, stored.tensors["prompt.vectors"], backbone)
        except ModelError as error:
            raise ExchangeError(str(error)) from error
        write_tensors(part / _HEAD, {key[5:]: own for key, own in head.items()}, {})
        padding_tokenizer(backbone).save_pretrained(part)
        about = _about(run, stored, backbone)
        write_export(part, run.folder, about, [stored.card["file"]])
        write_file(part / "README.md", _readme(run, about).encode())
    return target


def _about(run: TaskRun, stored: StoredPrompt, backbone: LanguageModel) -> dict[str, Any]:
    card = stored.card
    return {
        EXPORTED: KIND,
        "format": 1,
        "base_model": card["base_model"],
        "base_model_fingerprint": backbone.fingerprint,
        "method": card["method"],
        "task": card["task"],
        "kind": card["kind"],
        "labels": card["labels"],
        "segments": bool(run.folder.manifest.segments),
        "causal": backbone.causal,
        "head": stored.config.head.kind,
        "virtual_tokens": len(stored.tensors.get("prompt.vectors", ())),
    }


_SCRIPT = """import json
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

folder, base = ".", {base!r}
with open(f"{{folder}}/symprompt.json", encoding="utf-8") as file:
    about = json.load(file)
tokenizer, head = AutoTokenizer.from_pretrained(folder), load_file(f"{{folder}}/head.safetensors")
model = AutoModel.from_pretrained(base, dtype=torch.float32)
model = PeftModel.from_pretrained(model, folder).eval()
options = {{"padding": True, "return_token_type_ids": about["segments"], "return_tensors": "pt"}}
batch = tokenizer({texts!r}, **options)
with torch.no_grad():
    states = model(**batch).last_hidden_state
states = states[:, about["virtual_tokens"] :]
if "hidden.weight" in head:
    states = torch.tanh(states @ head["hidden.weight"].T + head["hidden.bias"])
scores = (states @ head["output.weight"].T + head["output.bias"]).log_softmax(-1)
shares = {read}.exp().double()
print(about["labels"], shares.numpy().round(4).tolist())
"""


def _readme(run: TaskRun, about: Mapping[str, Any]) -> str:
    """Return the card of the folder: what it is, figures, and a script that predicts."""
    read = "scores"
    if about["kind"] in ("sequence", "pair"):
        read = "scores[:, 0]"
        if about["causal"]:
            read = 'scores[torch.arange(len(scores)), batch["attention_mask"].sum(1) - 1]'
    figures = ", ".join(
        f"{own.metric} {own.value:.1f} on {own.split}" for own in run.folder.manifest.records
    )
    script = _SCRIPT.format(base=about["base_model"], texts=["A text.", "Another."], read=read)
    manifest = run.folder.manifest
    head = card_head(
        name=f"{about['task']} by {about['method']}",
        library="peft",
        base=about["base_model"],
        tags=("symprompt", "peft"),
        data=manifest.data,
        task=_TYPES.get(about["kind"], "token-classification"),
        figures=card_figures(manifest),
    )
    return (
        f"{head}\n# {about['task']} by {about['method']} for {Path(about['base_model']).name}\n\n"
        f"{figures}. The adapter is of the model's body; `head.safetensors` is the layer on its "
        f"states, `symprompt.json` names its labels.\n\n```python\n{script}```\n"
        + card_end(about["base_model"], f"predict {ON_HUB} FILE", "to predict")
    )


def import_task(folder: str | Path, out: str | Path, *, model: str = "") -> TaskRun:
    """Make a run of a folder that ``export_task`` wrote; what it learned is the adapter's.

    Args:
        out: the new run's folder.
        model: where the model is on this machine, if not where the run was made.

    Raises:
        RunError: the folder is none of those, or damaged.
    """
    source = Path(folder)
    read_export(source, KIND)
    held = Folder(source / HELD)
    card = held.load(CARD, Card)
    config = load(TuneConfig, held.path / CONFIG)
    where = model or config.model
    adapter, tensors = read_adapter(source)
    head, _ = read_tensors(source / _HEAD)
    with held.refuse_damage(CARD):
        if adapter.get("peft_type") == "PREFIX_TUNING":
            flat = tensors["prompt_embeddings"]
            layers, heads = adapter["num_layers"], adapter["num_attention_heads"]
            states = flat.view(len(flat), layers, 2, heads, -1).permute(1, 2, 3, 0, 4)
            tensors = {"prompt.prefix": states.contiguous()}
        elif adapter.get("peft_type") == "PROMPT_TUNING":
            tensors = {"prompt.vectors": tensors["prompt_embeddings"]}
    learned = {**tensors, **{f"head.{key}": own for key, own in head.items()}}
    files = {CARD: to_json({**card, "base_model": where})}
    config = replace(config, out=str(out), model=where)
    import_export(source, out, config, files, (card["file"], learned), model=where)
    return TaskRun.load(out)
