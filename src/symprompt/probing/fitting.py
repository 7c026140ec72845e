"""The fit of prompts' weights, one relation after the other: a training without gradient steps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from symprompt.accel.compiling import Recorder
from symprompt.engine.loop import State, fill
from symprompt.probing.config import RunConfig
from symprompt.probing.methods.lpaqa import LPAQA
from symprompt.probing.prepare import Problem


class WeightFit:
    """Fits a method's weights, a relation a step; final, an engine's Trainable."""

    stage = "weighing prompts"
    note = ""
    stopped = False
    best_epochs: Mapping[str, list[int]] = {}

    def __init__(self, problem: Problem, method: LPAQA) -> None:
        self.problem = problem
        self.method = method
        self.device = method.backbone.device
        self.recorder = Recorder(self.device, wanted=False)
        self.steps = len(problem.relations)

    @classmethod
    def of_run(cls, config: RunConfig, problem: Problem, method: LPAQA) -> WeightFit:
        """Return the fit of a run's method."""
        return cls(problem, method)

    def training(self) -> AbstractContextManager[None]:
        """Return a context that changes nothing."""
        return nullcontext()

    def step(self, number: int) -> None:
        """Fit the weights of one relation."""
        self.method.fit(self.problem.sentences["train"], number, self.problem.allowed[number])

    def evaluates_after(self, done: int) -> bool:
        """Never: the loss is convex, and dev chooses nothing."""
        return False

    def evaluate(self, done: int) -> None:
        """Not called."""

    def failure(self) -> str:
        """Return "": weights of a mixture are finite."""
        return ""

    def state_dict(self) -> State:
        """Return the weights found so far."""
        return {"weights": self.method.weights}, {}

    def load_state_dict(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Go on from a stored state."""
        fill(self.method.weights, tensors["weights"])

    def load_best(self) -> None:
        """Leave the weights as they are."""
