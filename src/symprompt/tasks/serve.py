"""Several tasks' prompts served from one model, inputs of all tasks in one batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.config import layers_of
from symprompt.engine.batches import few_widths, make_batches
from symprompt.errors import ConfigError
from symprompt.models import Inputs, LanguageModel
from symprompt.models.prefix import Prefix
from symprompt.tasks.features import Batch, Features
from symprompt.tasks.kinds.base import Head
from symprompt.tasks.predict import StoredPrompt
from symprompt.tasks.trainables import gather, read_off


class Server:
    """One frozen model that answers for many tasks; final.

    Prefixes of different lengths stand side by side, and each row of a batch reads its own task's;
    so a batch may mix inputs of all tasks, and gives what each task gives alone.

    Args:
        backbone: the model all prompts were learned for.
        prompts: deep prefixes (pt2, mpt2), each of another task.

    Raises:
        RunError: a prompt is for another model, or is no deep prefix.
        ConfigError: two prompts are of tasks of one name, or differ in whether positions shift or
            in the layers that read them.

    Example:
        >>> server = Server(LanguageModel.load("shipped"), [StoredPrompt.load("runs/tickets")])
        >>> answers = server.answer({"tickets": ["My invoice is wrong."]})
        >>> list(answers)
        ['tickets']
    """

    def __init__(self, backbone: LanguageModel, prompts: Sequence[StoredPrompt]) -> None:
        if not prompts:
            raise ConfigError("no prompt was given; a server needs one or more.")
        self.backbone = backbone
        self.prompts = {prompt.task: prompt for prompt in prompts}
        if len(self.prompts) < len(prompts):
            raise ConfigError(
                "two prompts are of tasks of the same name; serve one of them, or rename a task."
            )
        self.heads: dict[str, Head] = {}
        states = []
        for prompt in prompts:
            prompt.prefix()  # refuses a run that learned no deep prefix
            model = prompt.model(backbone)
            self.heads[prompt.task] = model.heads[prompt.task]
            states.append(model.tuned.tensors()["prompt.prefix"])
        shifts = {prompt.config.prefix.shift_positions for prompt in prompts}
        if len(shifts) > 1:
            raise ConfigError(
                "some of the prompts shift positions and some do not; serve the two kinds apart."
            )
        self.shift = shifts.pop()
        named = {prompt.config.prefix.layers for prompt in prompts}
        if len({layers_of(text, backbone.prefix_shape.layers) for text in named}) > 1:
            raise ConfigError(
                f"the prompts are read in different layers ({'; '.join(sorted(named))}); serve "
                "those of the same layers together."
            )
        self.layers = named.pop()
        self.states, self.visible = _side_by_side(states)

    def answer(
        self,
        examples: Mapping[str, Iterable[object]],
        *,
        max_tokens: int = 0,
        probabilities: bool = False,
    ) -> dict[str, list[dict[str, Any]]]:
        """Return each task's predictions, in the order of its examples.

        Args:
            examples: task -> what to predict for: texts, pairs, lists of words, dictionaries, as
                ``TaskRun.predict`` takes them.
            max_tokens: most tokens in one pass; 0 chooses by device.
            probabilities: give those of all classes too, where a task has classes.
        """
        for task in examples:
            if task not in self.prompts:
                raise ConfigError(f"no prompt of task {task!r} is served: {', '.join(self.heads)}.")
        read = {task: self.prompts[task].read(own, ()) for task, own in examples.items() if own}
        asked = {
            task: self.prompts[task].tensorise(own, self.backbone) for task, own in read.items()
        }
        scores = self.scores(asked, max_tokens or self.backbone.token_budget())
        return {
            task: self.prompts[task]
            .predict(
                read[task],
                asked[task],
                scores[task],
                probabilities=probabilities and bool(self.prompts[task].classes),
            )
            .rows
            if task in read
            else []
            for task in examples
        }

    def scores(self, asked: Mapping[str, Features], max_tokens: int) -> dict[str, Tensor]:
        """Return each task's scores, all tasks' inputs together in passes of similar length."""
        if not asked:
            return {}
        device = self.backbone.device
        lengths = np.concatenate([own.lengths for own in asked.values()])
        owner = np.repeat(list(asked), [len(own) for own in asked.values()])
        place = np.concatenate([np.arange(len(own)) for own in asked.values()])
        inputs = {task: own.batch(device) for task, own in asked.items()}
        found: dict[str, list[tuple[Tensor, Tensor]]] = {task: [] for task in asked}
        widest = max(int(own.ids.shape[1]) for own in asked.values())
        width = partial(few_widths, widest=widest)
        for step in make_batches(lengths, max_tokens, width=width, order="longest"):
            tasks = owner[step.rows]
            parts = {
                task: torch.from_numpy(place[step.rows[tasks == task]]).to(device)
                for task in asked
                if task in tasks
            }
            self._pass(inputs, parts, step.width, found)
        return {
            task: gather(self.prompts[task].kind, asked[task], own) for task, own in found.items()
        }

    @torch.no_grad()
    def _pass(
        self,
        inputs: Mapping[str, Batch],
        parts: Mapping[str, Tensor],
        width: int,
        found: Mapping[str, list[tuple[Tensor, Tensor]]],
    ) -> None:
        """Run one batch of rows of several tasks, and put the scores where they belong."""
        batches = {task: inputs[task].select(rows, width) for task, rows in parts.items()}
        each, sizes = list(batches.values()), [len(batch) for batch in batches.values()]
        numbers = torch.tensor([list(self.prompts).index(task) for task in parts])
        row = numbers.repeat_interleave(torch.tensor(sizes)).to(self.backbone.device)
        ids = torch.cat([_padded(batch.ids, width) for batch in each])
        tokens = torch.arange(width, device=ids.device)
        mask = tokens < torch.cat([batch.lengths for batch in each])[:, None]
        types = None
        if any(batch.types is not None for batch in each):
            # Without segments every token is in the first.
            own = [torch.zeros_like(x.ids) if x.types is None else x.types for x in each]
            types = torch.cat([_padded(entry, width) for entry in own])
        together = Inputs(self.backbone.embed(ids), mask, types=types)
        prefix = Prefix(self.states, row, self.shift, self.visible, layers=self.layers)
        states = self.backbone.states(together, prefix=prefix)
        for (task, batch), part in zip(batches.items(), torch.split(states, sizes), strict=True):
            scores = read_off(self.heads[task], part[:, : batch.ids.shape[1]], batch)
            found[task].append((parts[task], scores))


def _side_by_side(states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return prefixes of several lengths as one tensor, and which of its keys are real."""
    lengths = torch.tensor([entry.shape[3] for entry in states])
    longest = int(lengths.max())
    padded = [functional.pad(entry, (0, 0, 0, longest - entry.shape[3])) for entry in states]
    visible = torch.arange(longest) < lengths[:, None]
    return torch.stack(padded), visible.to(states[0].device)


def _padded(values: Tensor, width: int) -> Tensor:
    return functional.pad(values, (0, width - values.shape[1]))
