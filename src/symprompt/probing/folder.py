"""A run folder: written atomically, resumed after a kill, read back without the model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import ConfigError, RunError
from symprompt.facts import SPLITS, Fact, FactSet, Relation, Split
from symprompt.probing.config import RunConfig, load_config
from symprompt.probing.predictions import Predictions
from symprompt.probing.rank import rerank
from symprompt.runs.folder import CONFIG, ENVIRONMENT, METRICS, Folder
from symprompt.runs.shapes import (
    CARD_SHAPE,
    ENVIRONMENT_SHAPE,
    METRICS_SHAPE,
    RELATION_SHAPE,
    require,
)

FACTS = "facts.jsonl"
PROMPTS = "prompts.safetensors"
CARD = "prompts.json"
ENCODER = "encoder.safetensors"
VOCABULARY = "vocabulary.txt"


class RunFolder(Folder[RunConfig]):
    """The files of one run on facts; final."""

    def load_config(self) -> RunConfig:
        """Read the run's config back."""
        try:
            return load_config(str(self.path / CONFIG))
        except ConfigError as error:
            raise RunError(f"{self.path} holds no readable run: {error}") from error

    def require_finished(self) -> None:
        """Refuse a folder without a finished run.

        Raises:
            RunError: saying what is missing and what to do.
        """
        self.require_made_by("train")
        # Runs on labelled tasks have the same two files.
        self.load_config()

    def load_card(self) -> dict[str, Any]:
        """Read what the run's prompts are: model, method, parts, and each relation's template.

        Raises:
            RunError: the file is missing or lacks what is relied on; so for the next ones.
        """
        card = self.load_checked(CARD, CARD_SHAPE)
        with self.refuse_damage(CARD):
            if not card["relations"]:
                raise ValueError("no relations")
            for about in card["relations"].values():
                require(about, RELATION_SHAPE)
        return card

    def load_metrics(self) -> dict[str, Any]:
        """Read the run's numbers."""
        return self.load_checked(METRICS, METRICS_SHAPE)

    def load_environment(self) -> dict[str, Any]:
        """Read what the run was made with: device, dtype, versions, fingerprints."""
        return self.load_checked(ENVIRONMENT, ENVIRONMENT_SHAPE)

    def load_weights(self) -> Tensor | None:
        """Read the re-ranking weights [relation] float64; None if the run does not ask back."""
        weights = self.load_metrics()["weights"]
        if weights is None:
            return None
        names = self.load_card()["relations"]
        with self.refuse_damage(METRICS):
            return torch.tensor([weights[name] for name in names], dtype=torch.float64)

    def load_frequency_shares(self) -> Tensor | None:
        """Read what objects' frequencies weigh within the backward score, [relation] float64.

        None if they are no part of it.
        """
        shares = self.load_metrics().get("frequency_shares")
        if shares is None:
            return None
        names = self.load_card()["relations"]
        with self.refuse_damage(METRICS):
            return torch.tensor([shares[name] for name in names], dtype=torch.float64)

    def load_prompts(self, parts: Iterable[str]) -> dict[str, Tensor]:
        """Read the learned vectors of these parts, each [relation, n, width]."""
        if not parts:
            return {}
        tensors, _ = self.read_tensors(PROMPTS)
        count = len(self.load_card()["relations"])
        with self.refuse_damage(PROMPTS):
            for part in parts:
                if tensors[part].dim() != 3 or len(tensors[part]) != count:
                    raise ValueError(f"{part} has the shape {list(tensors[part].shape)}")
            return {part: tensors[part] for part in parts}

    def write_facts(self, facts: FactSet) -> None:
        """Write the facts the run uses, one a line."""
        lines = (
            {"split": split, **_fact_fields(fact)}
            for split in SPLITS
            for fact in facts.facts(split)
        )
        self.write(FACTS, _json_lines(lines))

    def load_facts(self) -> FactSet:
        """Read the run's facts back, with labels and manual templates from its card."""
        card = self.load_card()
        groups: dict[tuple[str, str], list[Fact]] = {}
        relations = []
        with self.refuse_damage(FACTS):
            for row in self._rows(FACTS):
                groups.setdefault((row["relation"], row["split"]), []).append(_fact(row))
            for name, about in card["relations"].items():
                train, dev, test = (tuple(groups.get((name, split), ())) for split in SPLITS)
                if not (train or dev or test):
                    raise ValueError(f"no facts of relation {name}")
                relations.append(
                    Relation(name, train, dev, test, about["label"], about["manual_template"])
                )
        return FactSet(tuple(relations), source=str(self.path), layout="run")

    def write_predictions(
        self,
        split: Split,
        predictions: Predictions,
        facts: Iterable[Fact],
        weights: Tensor,
        text: Mapping[int, str],
    ) -> None:
        """Write every fact's ranks and candidates, one fact a line.

        Args:
            weights: [relation], of the backward score in the joint one.
            text: candidates' tokens as people read them.
        """
        columns: dict[str, list[Any]] = {
            "rank": predictions.final(weights).realistic.tolist(),
            "id": predictions.gold.tolist(),
            "score": _short(predictions.gold_score),
            "better": predictions.better.tolist(),
            "equal": predictions.equal.tolist(),
            "better_filtered": predictions.better_filtered.tolist(),
            "equal_filtered": predictions.equal_filtered.tolist(),
            "candidates": [
                [text[token] for token in row] for row in predictions.candidates.tolist()
            ],
            "candidate_ids": predictions.candidates.tolist(),
            "known": predictions.known.int().tolist(),
            "forward": _short(predictions.forward),
        }
        if predictions.asked_back:
            weight = weights[predictions.relation].float()
            joint = rerank(predictions.forward, predictions.backward, weight=weight)
            columns |= {"backward": _short(predictions.backward), "joint": _short(joint)}
        rows = zip(*columns.values(), strict=True)
        lines = (
            _fact_fields(fact) | dict(zip(columns, row, strict=True))
            for fact, row in zip(facts, rows, strict=True)
        )
        self.write(f"predictions/{split}.jsonl", _json_lines(lines))

    def load_predictions(self, split: Split) -> tuple[Predictions, list[Fact]]:
        """Read a split's predictions back, with the facts they are about.

        Raises:
            RunError: the file is missing or damaged.
        """
        predictions, facts, _ = self.load_asked(split)
        return predictions, facts

    def load_asked(self, split: Split) -> tuple[Predictions, list[Fact], list[list[str]]]:
        """Read a split's predictions, their facts, and the candidates as people read them.

        Raises:
            RunError: the file is missing or damaged.
        """
        name = f"predictions/{split}.jsonl"
        rows, relations = self._rows(name), self.load_card()["relations"]
        with self.refuse_damage(name):
            if not rows:
                raise ValueError("no predictions")
            texts = [[str(text) for text in row["candidates"]] for row in rows]
            return _predictions(rows, list(relations)), [_fact(row) for row in rows], texts

    def load_candidates(self, split: Split) -> list[list[str]]:
        """Read the candidates of every fact of a split as people read them, best first."""
        return self.load_asked(split)[2]

    def _rows(self, name: str) -> list[dict[str, Any]]:
        try:
            with (self.path / name).open(encoding="utf-8") as stream:
                return [json.loads(line) for line in stream]
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {self.path / name}: {error}.") from error


def _fact_fields(fact: Fact) -> dict[str, str]:
    return {"relation": fact.relation, "subject": fact.subject, "object": fact.object}


def _fact(row: Mapping[str, Any]) -> Fact:
    return Fact(row["relation"], row["subject"], row["object"])


def _predictions(rows: list[dict[str, Any]], relations: list[str]) -> Predictions:
    place = {name: index for index, name in enumerate(relations)}
    return Predictions(
        relation=torch.tensor([place[row["relation"]] for row in rows]),
        gold=_column(rows, "id", torch.long),
        gold_score=_column(rows, "score", torch.float32),
        better=_column(rows, "better", torch.long),
        equal=_column(rows, "equal", torch.long),
        better_filtered=_column(rows, "better_filtered", torch.long),
        equal_filtered=_column(rows, "equal_filtered", torch.long),
        candidates=_column(rows, "candidate_ids", torch.long),
        forward=_column(rows, "forward", torch.float32),
        backward=torch.tensor(
            [row.get("backward", [np.nan] * len(row["forward"])) for row in rows],
            dtype=torch.float32,
        ),
        known=_column(rows, "known", torch.bool),
    )


def _short(values: Tensor) -> list[Any]:
    """Return float32 numbers that print with as few digits as read back to the same float32."""
    return values.numpy().astype("U32").astype(np.float64).tolist()  # type: ignore[no-any-return]


def _column(rows: list[dict[str, Any]], key: str, dtype: torch.dtype) -> Tensor:
    return torch.tensor([row[key] for row in rows], dtype=dtype)


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
