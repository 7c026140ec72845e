"""A tuned model as one ONNX graph, prompt and head folded in, to be run without torch.

The graph reads token ids, their mask and, where the run has them, segments; it gives the
log-probabilities of the classes. It is run beside torch before the folder is written.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

from symprompt.errors import ConfigError, ModelError, RunError
from symprompt.files.atomic import making_folder, to_json
from symprompt.runs.environment import make_generator
from symprompt.runs.sharing import require_new
from symprompt.tasks.features import Batch, Sheet, takes_types
from symprompt.tasks.kinds.classes import Classes
from symprompt.tasks.predict import StoredPattern, TaskRun, load_metrics
from symprompt.tasks.trainables import TaskModel

GRAPH = "model.onnx"
ABOUT = "task.json"
SCRIPT = "predict.py"
ALLOWED = 1e-4
"""How far log-probabilities may be from torch's."""
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
# A graph of more bytes than protobuf takes has its weights in a file beside it.
_LARGEST = 1_800_000_000
_SCRIPT = '''\
"""Predict with this folder: python predict.py TEXT [TEXT ...]; of pairs two texts each.

Needs onnxruntime, tokenizers and numpy alone. Longer texts are cut at the end.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

here = Path(__file__).parent
task = json.loads((here / "task.json").read_text(encoding="utf-8"))
session = onnxruntime.InferenceSession(here / "model.onnx")
texts, size = sys.argv[1:] or sys.exit(__doc__), task["texts"]
rows = texts if size == 1 else list(zip(texts[::2], texts[1::2], strict=True))
read = Tokenizer.from_file(str(here / "tokenizer.json")).encode_batch(rows)
columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
given = {own.name: np.array([getattr(row, columns[own.name]) for row in read], np.int64)
         for own in session.get_inputs()}
for row in session.run(["log_probabilities"], given)[0]:
    shares = [round(share, 4) for share in np.exp(row).tolist()]
    print(json.dumps(dict(zip(task["labels"], shares, strict=True))))
'''


class _Graph(nn.Module):
    """What is exported: token ids in, log-probabilities of the classes out; final."""

    def __init__(self, model: TaskModel, task: str) -> None:
        super().__init__()
        # Registered, so that weights are stored by their names.
        self.body = model.tuned.backbone.model.base_model
        self.head = model.heads[task]
        self._tuned = [model.tuned]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return log-probabilities [b, classes]."""
        batch = Batch(input_ids, attention_mask.sum(1), token_type_ids)
        return self.head.scores(self._tuned[0].states(batch), batch)


def export_onnx(run: TaskRun, folder: str | Path, *, model: str = "") -> Path:
    """Write a run's tuned model as a folder that onnxruntime and tokenizers serve without torch.

    In it are the graph, its tokenizer, what its classes are, a card and a script.

    Args:
        run: of tune, on texts or pairs of texts with classes, of an encoder.
        folder: must not be there, or be empty.
        model: where the model is now, if it moved since the run was made.

    Raises:
        ConfigError: the extra is not installed, or the folder is not empty.
        RunError: the run predicts something else than classes.
        ModelError: torch's exporter cannot write the model, or the graph scores otherwise.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"--to onnx needs {' and '.join(missing)}; run: pip install 'symprompt[onnx]'."
        )
    target = require_new(folder, "to export to")
    stored = run.stored
    if isinstance(stored, StoredPattern):
        raise RunError(
            f"{run.folder.path} answers through a pattern, whose words the model's own head "
            "scores; --to onnx takes runs of tune with a head, so use symprompt predict."
        )
    if not isinstance(stored.kind, Classes):
        raise RunError(
            f"{run.folder.path} is of kind {stored.card['kind']}, which is decoded outside the "
            "model; --to onnx takes kinds sequence and pair, so use symprompt predict."
        )
    tuned = stored.prepare(model, device="cpu", dtype="float32")
    backbone = tuned.tuned.backbone
    if backbone.causal:
        raise RunError(
            f"{run.folder.path} is of a causal model; --to onnx takes encoders, so use symprompt "
            "predict."
        )
    settings = stored.config.task
    types = takes_types(backbone, settings.segments)
    sheet = Sheet.make(backbone.vocabulary, max_length=settings.max_length, types=types)
    graph = _Graph(tuned, stored.task).eval()
    with making_folder(target) as part:
        backbone.vocabulary.tokenizer.save_pretrained(part)
        _framed(sheet).save(str(part / "tokenizer.json"))
        largest = _write(graph, part / GRAPH, sheet)
        about = {
            "format": 1,
            "task": stored.task,
            "kind": stored.card["kind"],
            "texts": len(stored.inputs),
            "labels": list(stored.target.labels.names),
            "max_length": sheet.max_length,
            "method": stored.card["method"],
            "base_model": Path(stored.card["base_model"]).name,
            "base_model_fingerprint": backbone.fingerprint,
            "difference_from_torch": largest,
        }
        (part / ABOUT).write_bytes(to_json(about))
        (part / SCRIPT).write_text(_SCRIPT, encoding="utf-8")
        (part / "README.md").write_text(_card(about, load_metrics(run.folder)), encoding="utf-8")
    return target


def _framed(sheet: Sheet) -> Tokenizer:
    """Return the tokenizer with special tokens, padding and cutting as training had them.

    Raises:
        ModelError: the tokenizers library does not run it.
    """
    vocabulary = sheet.vocabulary
    own = getattr(vocabulary.tokenizer, "backend_tokenizer", None)
    if not isinstance(own, Tokenizer):
        raise ModelError(
            f"{type(vocabulary.tokenizer).__name__} is not of the tokenizers library, so no "
            "tokenizer.json can be written; give a model with a fast tokenizer."
        )
    found = Tokenizer.from_str(own.to_str())
    before, between, after = (
        [str(found.id_to_token(token)) for token in ids]
        for ids in (sheet.before, sheet.between, sheet.after)
    )
    special = {*sheet.before, *sheet.between, *sheet.after}
    found.post_processor = TemplateProcessing(
        single=[*_typed(before, 0), "$A:0", *_typed(after, 0)],
        pair=[*_typed([*before], 0), "$A:0", *_typed(between, 0), "$B:1", *_typed(after, 1)],
        special_tokens=[(str(found.id_to_token(token)), token) for token in special],
    )
    found.enable_truncation(sheet.max_length)
    found.enable_padding(
        pad_id=vocabulary.pad_id, pad_token=str(found.id_to_token(vocabulary.pad_id))
    )
    return found


def _typed(tokens: list[str], segment: int) -> list[str]:
    return [f"{token}:{segment}" for token in tokens]


def _write(graph: _Graph, path: Path, sheet: Sheet) -> float:
    """Write the graph, run it beside torch; return the largest difference of log-probabilities.

    Raises:
        ModelError: it cannot be written, or differs by more than ``ALLOWED``.
    """
    name = type(graph.body).__name__
    given = _draw(sheet, 2, 9)
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    size = sum(value.numel() * value.element_size() for value in graph.parameters())
    with _quiet(), torch.no_grad():
        try:
            torch.onnx.export(
                graph,
                (),
                str(path),
                kwargs=given,
                dynamic_shapes=dict.fromkeys(given, free),
                input_names=list(given),
                output_names=["log_probabilities"],
                dynamo=True,
                verbose=False,
                external_data=size > _LARGEST,
            )
        except Exception as error:  # torch's exporter, onnxscript and the model raise what they do
            raise ModelError(
                f"torch's exporter cannot write {name} with this prompt as ONNX ({_why(error)}); "
                "serve it with symprompt predict, or take another model."
            ) from error
        longest = sheet.max_length
        shapes = [(1, 3), (3, min(13, longest)), (2, longest)]
        return max(_difference(graph, path, _draw(sheet, *shape), name) for shape in shapes)


def _difference(graph: _Graph, path: Path, given: Mapping[str, Tensor], name: str) -> float:
    import onnxruntime

    wanted = graph(**given)
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found = session.run(None, {key: value.numpy() for key, value in given.items()})[0]
    except Exception as error:  # onnxruntime's own classes have no common one
        raise ModelError(
            f"onnxruntime cannot run what torch wrote of {name} ({_why(error)}); serve it with "
            "symprompt predict, or take another model."
        ) from error
    apart = float((torch.from_numpy(found) - wanted).abs().max())
    if not apart <= ALLOWED:
        raise ModelError(
            f"what torch's exporter wrote of {name} scores otherwise than torch does, by {apart:g} "
            f"where {ALLOWED:g} is allowed; serve it with symprompt predict, or take another model."
        )
    return apart


def _draw(sheet: Sheet, rows: int, tokens: int) -> dict[str, Tensor]:
    """Return rows of any tokens, of falling length, the second half in the second segment."""
    generator = make_generator("onnx", rows, tokens)
    most = len(sheet.vocabulary)
    ids = torch.randint(0, most, (rows, tokens), generator=generator)
    lengths = (tokens - 2 * torch.arange(rows)).clamp(min=1)
    places = torch.arange(tokens)
    mask = (places < lengths[:, None]).long()
    given = {"input_ids": ids, "attention_mask": mask}
    if sheet.types:
        given["token_type_ids"] = (places >= tokens // 2).long() * mask
    return given


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter says to its developers from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _why(error: BaseException) -> str:
    """Return the innermost error's first line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def _card(about: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Return what is in the folder and how to use it, in Markdown."""
    figures = [
        f"| {split} | {name} | {value:.2f} |"
        for split, own in metrics["splits"].items()
        for name, value in own.items()
    ]
    asked = '"a text"' if about["texts"] == 1 else '"first text" "second text"'
    return "\n".join(
        [
            f"# {about['task']}: {about['base_model']}, tuned by {about['method']}",
            "",
            f"{GRAPH} holds the language model, what was learned and the head. Inputs: input_ids",
            "and attention_mask [batch, tokens], and token_type_ids where the graph has them;",
            "output: log_probabilities [batch, classes]. Special tokens, padding and the longest",
            f"input ({about['max_length']} tokens) stand in tokenizer.json, the classes in",
            f"{ABOUT}.",
            "",
            "```",
            f"python {SCRIPT} {asked}",
            "```",
            "",
            *(["| split | metric | % |", "|---|---|---|", *figures, ""] if figures else []),
            "Log-probabilities differ from torch's by "
            f"{about['difference_from_torch']:.1e} at most on rows of random tokens.",
            "",
            f"Classes: {json.dumps(about['labels'], ensure_ascii=False)}",
            "",
        ]
    )
