"""symprompt in lm-eval, the harness: masked models, runs with their prompts, and tasks of facts.

lm-eval knows the models that it ships and has no door for those of other packages, so this command
opens one: it names symprompt's models and tasks to lm-eval and then is lm-eval's own command, with
all of its flags.

symprompt-lm-eval --model symprompt-mlm --model_args pretrained=FOLDER --tasks arc_easy
symprompt-lm-eval --model symprompt-run --model_args run=RUN --tasks symprompt_lama
    --metadata '{"data": "FOLDER"}'

lm-eval's command itself finds them where a task of symprompt's is named by its file, which is read
before the model: ``lm_eval --model symprompt-mlm --tasks FOLDER/lama.yaml``; the folder is printed
by ``python -m symprompt.harness --task-folder``. In Python ``import symprompt.harness.models`` is
enough.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from symprompt.errors import ConfigError, SympromptError, escape

TASKS = Path(__file__).parent / "tasks"
"""The folder of task files, for ``--include_path``."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run lm-eval's command with symprompt's models and tasks; mistakes end as everywhere here."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--task-folder"]:
        sys.stdout.write(f"{TASKS}\n")
        return
    try:
        _run(words)
    except SympromptError as error:
        sys.stderr.write(f"symprompt-lm-eval: error: {escape(str(error))}\n")
        raise SystemExit(2) from None


def _run(words: list[str]) -> None:
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError:
        raise ConfigError(
            "lm-eval is not installed; pip install 'symprompt[lm-eval]' brings it."
        ) from None
    import symprompt.harness.models  # noqa: F401  (names the models to lm-eval)
    from symprompt.models.loading import silence_transformers

    silence_transformers()
    if not any(word.split("=")[0] == "--include_path" for word in words) and "--tasks" in words:
        words += ["--include_path", str(TASKS)]
    sys.argv[1:] = words
    cli_evaluate()
