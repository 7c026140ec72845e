"""Query a split's facts, choose the weights of the joint score on dev, write a run's results.

The subject prompt scores how likely the subject is given an object; by Bayes' rule the object's own
frequency belongs beside it: log P(object | subject) = log P(subject | object) + log P(object) +
constant. So candidates are ranked by

    object_score + w_r * (subject_score + c_r * log P(object)),

with P(object) from the relation's training facts, and w_r, c_r of each relation r fitted by
likelihood on dev: the candidates' softmax is to give the true object. What relations differ by is
penalised, because dev facts are few. The paper has one weight and no frequencies (equation 10).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.engine.batches import make_batches
from symprompt.errors import DataError
from symprompt.facts import Split, count_inverses, count_leakage
from symprompt.files.progress import Tick, silent
from symprompt.probing.config import RunConfig
from symprompt.probing.methods.base import Method, Vectors
from symprompt.probing.problem import (
    Problem,
    Sentences,
    excluded_answers,
    log_frequencies,
)
from symprompt.probing.queries import APART, OBJECT_PART, ranks, top_k
from symprompt.probing.results import (
    ASKED,
    CARD,
    FREQUENCY,
    PROMPTS,
    Array,
    Predictions,
    load_card,
    measure,
    method_name,
    to_records,
    write_predictions,
)
from symprompt.runs.environment import made_with
from symprompt.runs.folder import Folder, Manifest
from symprompt.runs.statistics import summarise

_FACTS_AT_ONCE = 2048
WEIGHTS: tuple[float, ...] = (
    *(round(0.05 * step, 2) for step in range(20)),
    *(round(1 + 0.1 * step, 1) for step in range(11)),
    *(2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0),
)
"""The re-ranking weights tried on dev."""
_PENALTY = 0.01
"""Of a relation's squared distance from the shared weights; the best of 3e-4 to 3e-2 on dev."""
_FACTS = 10
"""So many facts' worth is the penalty of the shared weights' distance from where they start, and
that of a relation's where there are less than a thousand facts: a few may not move them far."""
_START = (1.0, 0.1, 0.0)
_LEAST = 1e-6
_FORWARD = 0.2
"""An object score that weighs less is noise of few facts."""


@torch.no_grad()
def predict(
    method: Method,
    sentences: Sentences,
    vectors: Vectors,
    *,
    allowed: Tensor,
    k: int,
    max_tokens: int,
    tick: Tick = silent,
    stage: str = "asking",
) -> Predictions:
    """Rank every fact's object and, where the method has a subject prompt, re-score the top k.

    Args:
        allowed: [relation, v] bool, the answers each relation may give.
        k: candidates per fact.

    Returns:
        Predictions in the order of the facts.
    """
    parts: list[Predictions] = []
    passes = _query_passes(method, sentences, k if method.has_subject_prompt else 0, max_tokens)
    done = 0
    for rows in passes:
        parts.append(_predict_rows(method, sentences, rows, vectors, allowed, k, max_tokens))
        done += len(rows)
        tick(stage, done, len(sentences), "")
    found = Predictions.concatenate(parts)
    return found.take(np.argsort(np.concatenate(passes), kind="stable"))


def predict_splits(
    method: Method,
    problem: Problem,
    vectors: Vectors,
    k: int,
    tick: Tick,
    seconds: dict[str, float],
) -> dict[Split, Predictions]:
    """Return the predictions of dev and test, and note how long each took."""
    found: dict[Split, Predictions] = {}
    for split in ASKED:
        if split in problem.sentences:
            begun = time.perf_counter()
            found[split] = predict(
                method,
                problem.sentences[split],
                vectors,
                allowed=problem.allowed,
                k=k,
                max_tokens=problem.max_tokens,
                tick=tick,
                stage=f"asking {split}",
            )
            seconds[f"asking {split}"] = time.perf_counter() - begun
    return found


@torch.no_grad()
def add_subject_scores(
    method: Method,
    sentences: Sentences,
    vectors: Vectors,
    found: Predictions,
    *,
    max_tokens: int,
    tick: Tick = silent,
    stage: str = "scoring subjects",
) -> Predictions:
    """Return predictions with the subject scores of their candidates, whoever found these.

    Args:
        method: one with a subject prompt.
        sentences: the facts of the predictions, in their order.
    """
    subject_score = np.zeros_like(found.object_score)
    done = 0
    for rows in _query_passes(method, sentences, found.candidates.shape[1], max_tokens):
        candidates = torch.from_numpy(found.candidates[rows]).to(method.backbone.device)
        scores = method.subject_scores(sentences, rows, candidates, vectors, max_tokens=max_tokens)
        subject_score[rows] = scores.float().cpu().numpy()
        done += len(rows)
        tick(stage, done, len(sentences), "")
    return replace(found, subject_score=subject_score, terms={})


def _query_passes(
    method: Method, sentences: Sentences, k: int, max_tokens: int
) -> list[np.ndarray]:
    """Return the row sets in which a split is queried, with k subject scores of each fact."""
    # Subject scores read k sentences for every subject token, or k for a causal model; passes are
    # kept to what these can hold.
    lengths = sentences.subject_prompt.subject_lengths
    tokens = np.ones_like(lengths) if method.backbone.causal else lengths
    return _passes(sentences, 1 + k * tokens, max_tokens)


def _predict_rows(
    method: Method,
    sentences: Sentences,
    rows: np.ndarray,
    vectors: Vectors,
    allowed: Tensor,
    k: int,
    max_tokens: int,
) -> Predictions:
    index = torch.from_numpy(rows).to(method.backbone.device)
    gold, relation = sentences.gold[index], sentences.object_prompt.relation[index]
    known = sentences.known[index]
    scores = sentences.permitted(method.scores(sentences, rows, vectors), rows, allowed)
    raw, filtered = ranks(scores, gold), ranks(scores, gold, known)
    object_score, candidates = top_k(scores, k)
    if method.has_subject_prompt:
        subject_score = method.subject_scores(
            sentences, rows, candidates, vectors, max_tokens=max_tokens
        ).float()
    else:
        subject_score = torch.full_like(object_score, torch.nan)
    is_known = (candidates[:, :, None] == known[:, None, :]).any(2)
    columns = {
        "relation": relation,
        "gold": gold,
        "gold_score": scores.gather(1, gold[:, None])[:, 0],
        "better": raw.better,
        "equal": raw.equal,
        "better_filtered": filtered.better,
        "equal_filtered": filtered.equal,
        "candidates": candidates,
        "object_score": object_score,
        "subject_score": subject_score,
        "known": is_known & (candidates != gold[:, None]),
    }
    return Predictions.from_columns({name: own.cpu().numpy() for name, own in columns.items()})


@torch.no_grad()
def dev_scores(method: Method, problem: Problem, select: str) -> dict[str, np.ndarray]:
    """Return each part's dev score per relation, higher is better.

    The object prompt is scored by ``select`` (p@1, mrr or loss), other parts by their negative
    loss.
    """
    sentences, allowed = problem.sentences["dev"], problem.allowed
    vectors = {part: value.detach() for part, value in method.vectors().items()}
    relations = len(allowed)
    totals: dict[str, Tensor] = {}
    count = torch.bincount(sentences.object_prompt.relation, minlength=relations).double()
    counts = method.sentences_per_fact(sentences, np.arange(len(sentences)))
    for rows in _passes(sentences, counts, problem.max_tokens):
        index = torch.from_numpy(rows).to(method.backbone.device)
        relation = sentences.object_prompt.relation[index]
        scores = method.scores(sentences, rows, vectors)
        gold = sentences.gold[index]
        if select == "loss":
            own = -functional.nll_loss(scores, gold, reduction="none")
        else:
            rank = ranks(sentences.permitted(scores, rows, allowed), gold).realistic
            own = (rank <= 1).double() if select == "p@1" else 1 / rank
        losses = method.dev_losses(sentences, rows, vectors)
        for part, value in {
            OBJECT_PART: own,
            **{name: -loss for name, loss in losses.items()},
        }.items():
            total = totals.setdefault(part, torch.zeros_like(count))
            total.index_add_(0, relation, value.double())
    return {part: (total / count).cpu().numpy() for part, total in totals.items()}


def _passes(sentences: Sentences, counts: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Return row sets, short sentences first, small enough for one forward pass each.

    Args:
        counts: how many sentences each fact is asked by.
    """
    found = make_batches(
        sentences.object_prompt.lengths,
        max_tokens,
        sequences=counts,
        apart=APART,
        most=_FACTS_AT_ONCE,
    )
    return [batch.rows for batch in found]


def choose_weights(predictions: Predictions, relations: int, *, per_relation: bool) -> Array:
    """Return the re-ranking weight [relation] with the best MRR (realistic ranks) on these facts.

    Ties take the smaller weight.
    """
    owner = predictions.relation
    table = np.stack([1 / predictions.reranked(weight).realistic for weight in WEIGHTS])
    if not per_relation:
        overall = [summarise(1 / row, owner)["mean over relations"].mrr for row in table]
        return np.full(relations, WEIGHTS[int(np.argmax(overall))])
    best = [
        WEIGHTS[int(np.argmax(table[:, owner == index].mean(1)))] if (owner == index).any() else 0.0
        for index in range(relations)
    ]
    return np.array(best, dtype=np.float64)


def fit_combination(
    predictions: Predictions, frequencies: Tensor, relations: int
) -> tuple[Array, Array]:
    """Fit w and c of each relation on facts whose true object is among the candidates.

    Every relation counts the same, however many facts it has. A relation that the subject
    prompt does not help gets the weight 0, and its frequencies count nothing either.

    Args:
        predictions: of dev facts, with subject scores.
        frequencies: [relation, v], see ``log_frequencies``.
        relations: how many relations there are.

    Returns:
        [relation] float64 each: w of the subject score, c of log P(object) beside it.
    """
    is_gold = predictions.candidates == predictions.gold[:, None]
    rows = is_gold.any(1).nonzero()[0]
    if not len(rows):
        return np.zeros(relations), np.zeros(relations)
    found = predictions.take(rows)
    features = torch.stack(
        [
            _centred(torch.from_numpy(found.object_score)),
            _centred(torch.from_numpy(found.subject_score)),
            _centred(_of_candidates(found, frequencies)),
        ],
        dim=-1,
    )
    gold = torch.from_numpy(is_gold[rows].argmax(1))
    theta = _fit(features, gold, torch.from_numpy(found.relation), relations)
    helps = theta[:, 1] > _LEAST * theta[:, 0]
    nothing = torch.zeros(relations, dtype=torch.float64)
    weights = torch.where(helps, theta[:, 1] / theta[:, 0], nothing)
    shares = torch.where(helps, theta[:, 2] / theta[:, 1], nothing)
    return weights.numpy(), shares.numpy()


def add_frequencies(predictions: Predictions, frequencies: Tensor, shares: Array) -> Predictions:
    """Return predictions with a further term: the candidates' frequencies, c * log P."""
    each = torch.from_numpy(shares[predictions.relation, None])
    term = (each * _of_candidates(predictions, frequencies)).float().numpy()
    return replace(predictions, terms={**predictions.terms, FREQUENCY: term})


def _of_candidates(predictions: Predictions, frequencies: Tensor) -> Tensor:
    relation = torch.from_numpy(predictions.relation[:, None])
    found: Tensor = frequencies[relation, torch.from_numpy(predictions.candidates)]
    return found


def _centred(scores: Tensor) -> Tensor:
    """Return float64 scores less each fact's mean, which its softmax does not see."""
    wide = scores.double()
    # Candidates that a relation does not allow have no score, and no chance.
    wide = wide.masked_fill(wide.isinf(), float(wide[wide.isfinite()].min()) - 1.0)
    return wide - wide.mean(1, keepdim=True)


def _fit(features: Tensor, gold: Tensor, relation: Tensor, relations: int) -> Tensor:
    """Return the weights [relation, 3] of greatest penalised likelihood; the first is positive."""
    start = torch.tensor(_START, dtype=torch.float64)
    shared = start.clone().requires_grad_()
    own = torch.zeros(relations, 3, dtype=torch.float64, requires_grad=True)
    count = torch.bincount(relation, minlength=relations).double()
    weight = (1 / count.clamp(min=1))[relation] / int((count > 0).sum())
    few = _FACTS / len(gold)
    optimizer = torch.optim.LBFGS(
        [shared, own], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        scores = (features * (shared + own)[relation, None]).sum(-1)
        losses = functional.cross_entropy(scores, gold, reduction="none")
        total = (losses * weight).sum() + max(_PENALTY, few) * own.square().sum()
        total = total + few * (shared - start).square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    step: Callable[[Callable[[], Tensor]], object] = optimizer.step
    step(loss)
    with torch.no_grad():
        theta = shared + own
        theta = torch.where(theta[:, :1] > _FORWARD, theta, shared.expand_as(theta))
        # Where even the shared weights leave the object score aside, nothing is learned.
        if float(shared[0]) > _FORWARD:
            return theta
        return torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).expand_as(theta)


def require_dev(config: RunConfig, splits: Mapping[Split, Any]) -> None:
    """Refuse to choose a re-ranking weight on dev facts that are not there."""
    if config.method.choose_weight != "fixed" and "dev" not in splits:
        raise DataError(
            f'method.choose_weight = "{config.method.choose_weight}" needs dev facts, and there '
            "are none; add some, or choose fixed."
        )


def start_run(
    folder: Folder, command: str, config: RunConfig, problem: Problem, data_fingerprint: str
) -> None:
    """Begin a run on facts; its manifest states what it is made from."""
    backbone = problem.backbone
    manifest = Manifest(
        command=command,
        model=config.model,
        model_fingerprint=backbone.fingerprint,
        data=config.data,
        data_fingerprint=data_fingerprint,
        method=method_name(config),
        seeds=(config.seed,),
        positions=backbone.max_length,
        acceleration=backbone.acceleration,
        **made_with(backbone.device, backbone.dtype),
    )
    folder.start(config, manifest)


def write_results(
    folder: Folder,
    config: RunConfig,
    problem: Problem,
    found: Mapping[Split, Predictions],
    *,
    dropped: Mapping[str, int],
    seconds: Mapping[str, float],
    unfilled: Sequence[str],
) -> None:
    """Choose the weights, write predictions, the card with its figures, and last the manifest.

    Args:
        found: what was found for each split, in the order of the problem's facts.
        dropped: how many facts each reason cost.
        seconds: how long each stage took.
        unfilled: relations whose prompts lack words that a search should have found.
    """
    relations, names = len(problem.relations), problem.relations
    asked_back = all(predictions.asked_back for predictions in found.values())
    weights: Array | None = np.full(relations, config.method.weight, dtype=np.float64)
    choose = config.method.choose_weight
    shares: Array | None = None
    if not asked_back:
        weights = None
    elif choose == "dev-fit":
        frequencies = log_frequencies(problem.object_counts())
        weights, shares = fit_combination(found["dev"], frequencies, relations)
        found = {
            split: add_frequencies(predictions, frequencies, shares)
            for split, predictions in found.items()
        }
    elif choose != "fixed":
        weights = choose_weights(found["dev"], relations, per_relation=choose == "dev-relation")
    for split, predictions in found.items():
        answers = np.unique(predictions.candidates).tolist()
        texts = {answer: problem.text(answer) for answer in answers}
        write_predictions(folder, split, predictions, problem.facts.facts(split), names, texts)
    measured = {split: measure(own, names, weights) for split, own in found.items()}
    card = load_card(folder)
    if folder.has(PROMPTS):
        # The words that were found and the weights of manual templates, as they are stored.
        tensors, note = folder.read_tensors(PROMPTS)
        with folder.refuse_damage(PROMPTS):
            for row, about in enumerate(card["relations"].values()):
                if "found prompts" in note:
                    about["words"] = note["found prompts"][row]["words"]
                    about["prompt"] = note["found prompts"][row]["prompt"]
                if "prompts" in about:
                    own_weights = tensors["weights"][row, : len(about["prompts"]), 0].tolist()
                    about["prompt_weights"] = [round(weight, 6) for weight in own_weights]
    # The card states what the prompts are worth, for who gets no more than the prompts.
    card["metrics"] = {split: figures["raw"]["realistic"] for split, figures in measured.items()}
    folder.write_json(CARD, card)
    stored = found["test"].candidates.shape[1]
    lowered = asked_back and stored < config.method.k
    by_name = {
        key: None if values is None else dict(zip(names, values.tolist(), strict=True))
        for key, values in {"weights": weights, "frequency_shares": shares}.items()
    }
    details = {
        "vocabulary": config.facts.vocabulary,
        "objects": config.facts.objects,
        "candidates": problem.counts(),
        "excluded": excluded_answers(config, problem),
        "k": stored if asked_back else None,
        "k_lowered_by": problem.smallest_relation() if lowered else None,
        **by_name,
        "dropped": dict(dropped),
        **({"skipped": dict(problem.facts.skipped)} if problem.facts.skipped else {}),
        "unfilled": list(unfilled),
        "leakage": count_leakage(problem.facts),
        "inverses": count_inverses(problem.facts, "test"),
    }
    folder.finish(records=to_records(measured), seconds=seconds, details=details)
