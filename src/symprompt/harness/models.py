"""The models that lm-eval gets: a masked model by pseudo-likelihood, and a run by its prompts.

Both answer tasks that rank given texts (``loglikelihood``; multiple choice is that). Neither writes
text, so tasks that generate are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from symprompt.errors import ConfigError, DataError
from symprompt.facts import compose
from symprompt.files.progress import silent
from symprompt.models import LanguageModel
from symprompt.opening import locate_run
from symprompt.probing.ask import JOINT, Askable, Run, rank_objects
from symprompt.probing.problem import answer_ids
from symprompt.probing.whole_texts import TextMasking, score_texts

_BLOCK = 1024
"""Texts that are tokenised at once."""
_SUBJECTS = 128
"""Subjects that a run is asked about at once."""
_UNDER = 1e-6
"""How far below the re-ranked answers the others begin."""
Masking = Literal["word-l2r", "one"]
_MASKED_WITH: dict[str, TextMasking] = {"word-l2r": "word", "one": "one"}


class _Ranking(LM):  # type: ignore[misc]  # lm-eval has no types
    """What cannot be had of either model."""

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Refuse to write text."""
        raise ConfigError(
            "this model ranks given texts and writes none; choose tasks of multiple choice or "
            "loglikelihood."
        )

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval's cache of requests goes by: texts are given as they are."""
        return ""


@register_model("symprompt-mlm")
class MaskedModel(_Ranking):
    """A masked model, whose log-likelihood of a text is the pseudo-log-likelihood; final.

    The continuation's tokens are asked for one by one, each masked ("one", Salazar et al., 2020) or
    masked with those after it in its word ("word-l2r", Kauf and Ivanova, 2023), with the context
    and all other tokens in sight; their log-likelihoods are summed. A context that is too long
    loses its beginning.

    Args:
        pretrained: folder or hub name.
        masking: word-l2r or one.
        device: auto, cpu, cuda, cuda:N or mps; without a GPU auto in the place of cuda.
        dtype: auto, float32, bfloat16, ...
        max_tokens: most tokens in one pass; 0 chooses by device. lm-eval's batch size is not used.
    """

    def __init__(
        self,
        pretrained: str,
        masking: Masking = "word-l2r",
        device: str | None = None,
        dtype: str = "auto",
        max_tokens: int = 0,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if masking not in _MASKED_WITH:
            raise ConfigError(
                f"masking is {masking!r}; symprompt-mlm takes {' or '.join(get_args(Masking))}."
            )
        self.masking = _MASKED_WITH[masking]
        self.max_tokens = max_tokens
        self.backbone = LanguageModel.load(str(pretrained), device=_device(device), dtype=dtype)
        if self.backbone.causal:
            raise ConfigError(
                f"{pretrained} is a causal model; symprompt-mlm scores masked ones, so use "
                "--model hf."
            )

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return each continuation's score, and whether all its tokens are the first answers."""
        found: list[tuple[float, bool]] = []
        for start in tqdm(range(0, len(requests), _BLOCK), disable=disable_tqdm):
            part = [request.args for request in requests[start : start + _BLOCK]]
            scores = score_texts(
                self.backbone,
                [context + text for context, text in part],
                masking=self.masking,
                max_tokens=self.max_tokens,
                given=[len(context) for context, _ in part],
                cut=True,
            )
            totals, missed = scores.total.tolist(), scores.missed.tolist()
            own = [(value, not wrong) for value, wrong in zip(totals, missed, strict=True)]
            for arguments, result in zip(part, own, strict=True):
                self.cache_hook.add_partial("loglikelihood", arguments, result)
            found += own
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Return each text's score; one that is longer than the model takes is refused."""
        texts = [request.args[0] for request in requests]
        found: list[float] = []
        for start in tqdm(range(0, len(texts), _BLOCK), disable=disable_tqdm):
            part = texts[start : start + _BLOCK]
            scores = score_texts(
                self.backbone, part, masking=self.masking, max_tokens=self.max_tokens
            )
            found += scores.total.tolist()
        return found


@register_model("symprompt-run")
class PromptedRun(_Ranking):
    """A run of train, whose learned prompts rank the answers of a fact; final.

    It reads no text: a task's documents must have ``relation``, ``subject`` and ``answers``, as
    those of ``symprompt.harness.choices`` have, and the n-th choice is the n-th answer. An answer's
    score is the run's joint score; below all that are re-ranked stand the others, by object score,
    shifted to begin just under them. What is no answer of the run is infinitely unlikely.

    Args:
        run: the run's folder, or its name on the hub.
        model: where its model is now, if it moved.
        device: auto, cpu, cuda, cuda:N or mps.
    """

    def __init__(
        self,
        run: str,
        model: str = "",
        device: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.run = Run.load(locate_run(str(run)))
        self.run.check_asking(1)
        self.model, self.torch_device = str(model), _device(device)

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return each answer's score, and whether it is the run's first."""
        asked: dict[str, dict[tuple[str, ...], list[int]]] = {}
        for row, request in enumerate(requests):
            relation, *rest = _fact_of(request.doc)
            asked.setdefault(relation, {}).setdefault(tuple(rest), []).append(row)
        found = [(-np.inf, False)] * len(requests)
        for relation, questions in tqdm(asked.items(), disable=disable_tqdm):
            question = self.run.question(
                [self.run.check_relation(relation, 1)], self.model, self.torch_device, silent
            )
            listed = list(questions.items())
            for start in range(0, len(listed), _SUBJECTS):
                part = listed[start : start + _SUBJECTS]
                for (_, rows), scores in zip(
                    part, _scores(question, [own for own, _ in part]), strict=True
                ):
                    for row in rows:
                        found[row] = scores[requests[row].idx]
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Refuse texts: a run answers questions."""
        raise ConfigError("a run's prompts rank answers and score no texts; use symprompt-mlm.")


def _device(named: str | None) -> str:
    """Return the device to use: lm-eval names cuda:0 where the user named none."""
    none = named is None or (named.startswith("cuda") and not torch.cuda.is_available())
    return "auto" if none else str(named)


def _fact_of(document: Any) -> tuple[str, ...]:
    """Return relation, subject and all answers of a document."""
    try:
        return (document["relation"], document["subject"], *document["answers"])
    except (KeyError, TypeError):
        raise DataError(
            "a document of this task has no relation, subject and answers; symprompt-run takes the "
            "tasks symprompt_facts, symprompt_lama and symprompt_bear, and your own made like them."
        ) from None


def _scores(question: Askable, asked: Sequence[tuple[str, ...]]) -> list[list[tuple[float, bool]]]:
    """Return the score of every answer of some subjects, and whether it is the first of all.

    Args:
        asked: subject and answers.
    """
    problem = question.problem
    names = [compose(subject.strip()) for subject, *_ in asked]
    sentences, kept, _ = question.tensorise(np.zeros(len(names), dtype=np.int64), names)
    found = [[(-np.inf, False)] * (len(own) - 1) for own in asked]
    if not len(kept):
        return found
    ranked = rank_objects(question, sentences, int(problem.allowed.sum(1).max()))()
    for place, row in enumerate(kept.tolist()):
        tokens = ranked.tokens[place]
        scores = ranked.object_score[place].astype(np.float64)
        if JOINT in ranked.others:
            joint = ranked.others[JOINT][place]
            joint = joint[~np.isnan(joint)]
            scores[: len(joint)] = joint
            rest = scores[len(joint) :]
            if len(rest) and tokens[len(joint)] >= 0:
                rest += min(0.0, joint[-1] - rest[0] - _UNDER)
        order = {token: at for at, token in enumerate(tokens.tolist()) if token >= 0}
        own = answer_ids(
            problem.backbone.vocabulary, problem.templates[0], asked[row][1:], problem.spelling
        )
        places = [None if token is None else order.get(token) for token in own]
        found[row] = [
            (-np.inf, False) if at is None else (float(scores[at]), at == 0) for at in places
        ]
    return found
