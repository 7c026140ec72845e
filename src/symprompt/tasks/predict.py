"""Predict for a user's file with a stored prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from symprompt.config import override
from symprompt.files.atomic import write_file
from symprompt.files.progress import Tick, silent
from symprompt.models import LanguageModel
from symprompt.tasks.data.load import load_examples
from symprompt.tasks.model import ask
from symprompt.tasks.outcome import Outcome
from symprompt.tasks.patterns.folder import is_pattern_run
from symprompt.tasks.patterns.predict import predict_verbal
from symprompt.tasks.prepare import columns_of
from symprompt.tasks.serve import predictions_of, tensorise_for
from symprompt.tasks.stored import StoredPrompt
from symprompt.tasks.trainables import TRAINABLES


def predict_file(
    run: str | Path,
    file: str | Path,
    *,
    columns: Sequence[str] = (),
    model: str = "",
    device: str = "auto",
    dtype: str = "auto",
    max_tokens: int = 0,
    out: str = "",
    tick: Tick = silent,
) -> Outcome:
    """Return what a run of tune predicts for the examples of a file, in their order.

    Args:
        columns: role=column pairs for the file.
        model: where the model is now, if not where the run says.
        out: file of JSON lines to write.

    Returns:
        One row for each example; figures too if every example has its label.

    Raises:
        SympromptError: the run, the file or the model cannot be used; a prompt for another model.
    """
    if is_pattern_run(run):
        found = predict_verbal(
            run,
            file,
            columns=columns,
            model=model,
            device=device,
            dtype=dtype,
            max_tokens=max_tokens,
            tick=tick,
        )
        _write(out, found)
        return found
    prompt = StoredPrompt.load(run)
    examples = load_examples(
        file,
        str(prompt.card["kind"]),
        columns=columns_of(columns),
        labels=prompt.target.labels,
        name=prompt.task,
    )
    prompt = replace(prompt, config=override(prompt.config, dtype=dtype))
    kept = TRAINABLES[prompt.config.method].load_dtype(dtype)
    name = model or str(prompt.card["base_model"])
    backbone = LanguageModel.load(name, device=device, dtype=kept)
    trained = prompt.model(backbone)
    features = tensorise_for(prompt, examples, backbone)
    scores = ask(
        trained,
        prompt.task,
        prompt.kind,
        features,
        features.batch().to(backbone.device),
        max_tokens=max_tokens or backbone.token_budget(),
        tick=tick,
        stage="predicting",
    )
    outcome = predictions_of(prompt, examples, features, scores)
    _write(out, outcome)
    return outcome


def _write(out: str, outcome: Outcome) -> None:
    if out:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in outcome.rows)
        write_file(Path(out), lines.encode())
