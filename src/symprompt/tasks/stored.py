"""Prompts that were learned and stored: read, checked against a model, put into use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from symprompt.errors import ConfigError, RunError
from symprompt.models import LanguageModel, Prefix
from symprompt.tasks.config import TuneConfig, make_tune_config
from symprompt.tasks.data.examples import LabelSet
from symprompt.tasks.folder import CARD, Card, load_card, open_task
from symprompt.tasks.kinds import KINDS, Kind, Target
from symprompt.tasks.model import TaskModel, make_task_head
from symprompt.tasks.trainables import make_body


@dataclass(frozen=True, eq=False)
class StoredPrompt:
    """A prompt file and its card: what a task needs besides the model; final.

    Attributes:
        path: the folder it was read from.
        card: what the prompt is.
        config: how its body and head are made.
        tensors: its numbers.
    """

    path: str
    card: Card
    config: TuneConfig
    tensors: dict[str, Tensor]

    @classmethod
    def load(cls, path: str | Path) -> StoredPrompt:
        """Read the prompt of a finished run.

        Raises:
            RunError: there is none, or it is damaged.
        """
        folder = open_task(path)
        card = load_card(folder)
        try:
            method = "pt2" if card["method"] == "mpt2" else card["method"]
            tables = ("prefix", "lora", "head", "weights", "span")
            own = {key: value for key, value in card.items() if key in tables}
            config = make_tune_config({"method": method, **own})
            if card["kind"] not in KINDS:
                raise ValueError(f"kind is {card['kind']!r}")
            _ = {key: int(card["features"][key]) for key in ("max_length", "stride")}
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"{folder.path / CARD} is damaged: {error}.") from error
        tensors, _ = folder.read_tensors(card["file"])
        # A network that made a prefix is not stored, only what it gave.
        plain = replace(config, prefix=replace(config.prefix, encoder="free"))
        return cls(str(path), card, plain, tensors)

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.card["task"])

    @property
    def kind(self) -> Kind[Any, Any]:
        """The kind of task."""
        return KINDS[self.card["kind"]]

    @property
    def target(self) -> Target:
        """The labels that its head scores, and how."""
        return Target(
            LabelSet(tuple(self.card["labels"])),
            LabelSet(tuple(self.card["relations"])),
            self.config.head,
            self.config.span,
            every_token=bool(self.card["features"].get("label_all_tokens", False)),
        )

    def prefix(self) -> Prefix:
        """Return the keys and values, for a pass of one's own or for ``write_peft``.

        Raises:
            RunError: the run learned something else.
        """
        states = self.tensors.get("prompt.prefix")
        if states is None:
            raise RunError(
                f"{self.path} was trained by {self.card['method']}, which learns no prefix; give a "
                "run of pt2 or mpt2."
            )
        return Prefix(states[None], shift_positions=self.config.prefix.shift_positions)

    def model(self, backbone: LanguageModel) -> TaskModel:
        """Return the model with this prompt and head in place.

        Raises:
            RunError: the prompt is for another model.
        """
        card = self.card
        check_backbone(card["base_model"], card["base_model_fingerprint"], backbone, self.path)
        body = make_body(backbone, self.config, seed=())
        head = make_task_head(self.kind, self.target, body, seed=())
        model = TaskModel(body, {self.task: head})
        load_numbers(model, self.task, self.tensors)
        return model


def check_backbone(name: str, fingerprint: str, backbone: LanguageModel, where: str) -> None:
    """Refuse a prompt that was learned for another model.

    Args:
        name: the model it was learned for, and its fingerprint.

    Raises:
        RunError: saying whose prompt it is.
    """
    if fingerprint != backbone.fingerprint:
        raise RunError(
            f"the prompt in {where} was learned for another model ({name}, "
            f"{fingerprint}), not for {backbone.source} "
            f"({backbone.fingerprint}); a prompt serves only its own model: name it with --model."
        )


def load_numbers(model: TaskModel, task: str, tensors: Mapping[str, Tensor]) -> None:
    """Put a stored prompt and, if there is one, its head in place.

    Raises:
        RunError: they do not fit.
    """
    model.body.load(tensors)
    head = {
        name.removeprefix("head."): value
        for name, value in tensors.items()
        if name.startswith("head.")
    }
    if not head:
        return
    try:
        model.heads[task].load_state_dict(head)
    except RuntimeError as error:
        raise RunError(
            "the stored head does not fit the task: it has other labels or another kind."
        ) from error
