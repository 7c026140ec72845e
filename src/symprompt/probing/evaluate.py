"""Query a split's facts, choose the weights of the joint score, write a run's results.

The subject prompt scores how likely the subject is given an object; by Bayes' rule the object's own
frequency belongs beside it: log P(object | subject) = log P(subject | object) + log P(object) +
constant. The paper has one weight and no further terms (equation 10); ``combine`` fits weights of
all terms.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.engine.batches import make_batches
from symprompt.errors import DataError
from symprompt.facts import Fact, Split, count_inverses, count_leakage
from symprompt.files.progress import Tick, silent
from symprompt.probing.combine import fit_combination
from symprompt.probing.config import RunConfig
from symprompt.probing.methods.base import Method, Vectors
from symprompt.probing.problem import (
    Problem,
    Sentences,
    excluded_answers,
    log_frequencies,
)
from symprompt.probing.queries import APART, ranks, top_k
from symprompt.probing.results import (
    ASKED,
    CARD,
    COPY,
    FREQUENCY,
    PRIOR,
    PROMPTS,
    SUBJECT,
    SUBJECTS,
    Array,
    Combination,
    Predictions,
    load_card,
    measure,
    method_name,
    to_records,
    write_predictions,
)
from symprompt.runs.environment import made_with, send
from symprompt.runs.folder import Folder, Manifest
from symprompt.runs.statistics import summarise

_FACTS_AT_ONCE = 2048
_QUERIES_AT_ONCE = 1 << 21
"""Subjects' tokens that are asked together, for each candidate."""
WEIGHTS: tuple[float, ...] = (
    *(round(0.05 * step, 2) for step in range(20)),
    *(round(1 + 0.1 * step, 1) for step in range(11)),
    *(2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0),
)
"""The re-ranking weights tried on dev."""


@torch.no_grad()
def predict(
    method: Method,
    sentences: Sentences,
    vectors: Vectors,
    *,
    allowed: Tensor,
    k: int,
    max_tokens: int,
    within: float = 0.0,
    tick: Tick = silent,
    stage: str = "asking",
) -> Predictions:
    """Rank every fact's object and, where the method has a subject prompt, re-score the top k.

    Args:
        allowed: [relation, v] bool, the answers each relation may give.
        k: candidates per fact.
        within: how far below the first one the others may score, see ``MethodConfig``.

    Returns:
        Predictions in the order of the facts.
    """
    parts: list[Predictions] = []
    passes = query_passes(sentences, max_tokens)
    done = 0
    for rows in passes:
        parts.append(_predict_rows(method, sentences, rows, vectors, allowed, k).near(within))
        done += len(rows)
        tick(stage, done, len(sentences), "")
    found = Predictions.concatenate(parts).take(np.argsort(np.concatenate(passes), kind="stable"))
    if not method.has_subject_prompt:
        return found
    return add_subject_scores(
        method,
        sentences,
        vectors,
        found,
        max_tokens=max_tokens,
        tick=tick,
        stage=stage.replace("asking", "asking back"),
    )


def predict_splits(
    method: Method,
    problem: Problem,
    vectors: Vectors,
    k: int,
    tick: Tick,
    seconds: dict[str, float],
    *,
    splits: Sequence[Split] = ASKED,
    prior: bool = False,
    within: float = 0.0,
) -> dict[Split, Predictions]:
    """Return the predictions of dev and test, and note how long each took.

    Args:
        splits: others than these.
        prior: with the template prior of each candidate as a term.
        within: see ``predict``.
    """
    found: dict[Split, Predictions] = {}
    for split in splits:
        if split in problem.sentences:
            begun = time.perf_counter()
            found[split] = predict(
                method,
                problem.sentences[split],
                vectors,
                allowed=problem.allowed,
                k=k,
                max_tokens=problem.max_tokens,
                within=within,
                tick=tick,
                stage=f"asking {split}",
            )
            if prior:
                found[split] = _add_prior(method, problem, split, vectors, found[split])
            seconds[f"asking {split}"] = time.perf_counter() - begun
    return found


def _add_prior(
    method: Method, problem: Problem, split: Split, vectors: Vectors, found: Predictions
) -> Predictions:
    """Return a split's predictions with the template prior of their candidates."""
    candidates = torch.from_numpy(found.candidates).to(method.backbone.device)
    scores = prior_scores(
        method,
        problem.sentences[split],
        np.arange(len(found)),
        candidates,
        vectors,
        max_tokens=problem.max_tokens,
    )
    return replace(found, terms={**found.terms, PRIOR: scores.cpu().numpy()})


@torch.no_grad()
def prior_scores(
    method: Method,
    sentences: Sentences,
    rows: np.ndarray,
    candidates: Tensor,
    vectors: Vectors,
    *,
    max_tokens: int,
) -> Tensor:
    """Return each candidate's object score where every token of the subject is masked, [b, k].

    It says what the prompt answers whatever it is asked about, and depends on the relation and on
    the subject's length alone, so one sentence is read for each pair of these.

    Args:
        rows: [b] facts.
        candidates: [b, k] tokens, or ids of names; -1 is none and scores 0.
    """
    layout, mask_id = sentences.object_prompt, method.backbone.vocabulary.mask_id
    assert mask_id is not None  # causal models are refused
    pairs = np.stack([layout.relations[rows], layout.subject_lengths[rows]])
    _, first, kind = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    masked = replace(sentences, object_prompt=layout.without_subjects(rows[first], mask_id))
    found = torch.zeros(candidates.shape, dtype=torch.float32, device=candidates.device)
    lengths = masked.object_prompt.lengths
    for asked, _ in make_batches(lengths, max_tokens, apart=APART, most=_FACTS_AT_ONCE):
        scores = method.scores(masked, asked, vectors)
        line = np.full(len(first), -1)
        line[asked] = np.arange(len(asked))
        own = np.flatnonzero(line[kind] >= 0)
        here, there = (send(index, candidates.device) for index in (own, line[kind[own]]))
        found[here] = scores[there[:, None], candidates[here].clamp(min=0)]
    return found.masked_fill(candidates < 0, 0)


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
    # Of the terms only the prior is of whoever found the candidates.
    prior = {name: own for name, own in found.terms.items() if name == PRIOR}
    found = replace(found, terms=prior)
    candidates = torch.from_numpy(found.candidates).to(method.backbone.device)
    asked = ask_back(
        method,
        sentences,
        candidates,
        vectors,
        max_tokens=max_tokens,
        prompts=method.subject_terms,
        tick=tick,
        stage=stage,
    )
    scores = {name: own.cpu().numpy() for name, own in asked.items()}
    return replace(found, subject_score=scores.pop(SUBJECT), terms={**found.terms, **scores})


@torch.no_grad()
def ask_back(
    method: Method,
    sentences: Sentences,
    candidates: Tensor,
    vectors: Vectors,
    *,
    max_tokens: int,
    prompts: Sequence[str] = (SUBJECT,),
    tick: Tick = silent,
    stage: str = "asking back",
) -> dict[str, Tensor]:
    """Return how likely each fact's subject is given its candidates, [n, k] float32.

    Args:
        candidates: [n, k] tokens, or ids of names; -1 is none and is not asked.
        prompts: by which subject prompts, see ``Method.subject_scores``.
    """
    facts = len(candidates)
    found = {
        name: torch.zeros(candidates.shape, dtype=torch.float32, device=candidates.device)
        for name in prompts
    }
    # Facts of a relation share sentences.
    order = np.argsort(sentences.subject_prompt.relations, kind="stable")
    queries = int(sentences.subject_prompt.subject_lengths.sum()) * candidates.shape[1]
    before = 0
    for rows in np.array_split(order, 1 + queries // _QUERIES_AT_ONCE):
        index = send(rows, candidates.device)

        def report(share: float, before: int = before, count: int = len(rows)) -> None:
            tick(stage, before + int(share * count), facts, "")

        asked = method.subject_scores(
            sentences,
            rows,
            candidates[index],
            vectors,
            max_tokens=max_tokens,
            prompts=prompts,
            done=report,
        )
        for name, scores in asked.items():
            found[name][index] = scores.float()
        before += len(rows)
    return found


def query_passes(
    sentences: Sentences, max_tokens: int, counts: np.ndarray | int = 1
) -> list[np.ndarray]:
    """Return row sets, short sentences first, small enough for one forward pass each.

    Args:
        counts: how many sentences each fact is asked by.
    """
    found = make_batches(
        sentences.object_prompt.lengths,
        max_tokens,
        sequences=counts,
        apart=APART,
        # Their object scores fill memory.
        most=_FACTS_AT_ONCE,
    )
    return [batch.rows for batch in found]


def _predict_rows(
    method: Method,
    sentences: Sentences,
    rows: np.ndarray,
    vectors: Vectors,
    allowed: Tensor,
    k: int,
) -> Predictions:
    """Return rows' ranks and candidates by object score."""
    index = torch.from_numpy(rows).to(method.backbone.device)
    gold, relation = sentences.gold[index], sentences.object_prompt.relation[index]
    known = sentences.known[index]
    scores = sentences.permitted(method.scores(sentences, rows, vectors), rows, allowed)
    raw, filtered = ranks(scores, gold), ranks(scores, gold, known)
    object_score, candidates = top_k(scores, k)
    is_known = (candidates[:, :, None] == known[:, None, :]).any(2) & (candidates >= 0)
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
        "subject_score": torch.full_like(object_score, torch.nan),
        "known": is_known & (candidates != gold[:, None]),
    }
    return Predictions.from_columns({name: own.cpu().numpy() for name, own in columns.items()})


@torch.no_grad()
def dev_scores(method: Method, problem: Problem, select: str) -> dict[str, np.ndarray]:
    """Return each part's dev score per relation, higher is better.

    Each object prompt is scored by ``select`` (p@1, mrr or loss), other parts by their negative
    loss.
    """
    sentences, allowed = problem.sentences["dev"], problem.allowed
    vectors = {part: value.detach() for part, value in method.vectors().items()}
    relations = len(allowed)
    totals: dict[str, Tensor] = {}
    count = torch.bincount(sentences.object_prompt.relation, minlength=relations).double()
    counts = method.sentences_per_fact(sentences, np.arange(len(sentences)))
    for rows in query_passes(sentences, problem.max_tokens, counts):
        index = torch.from_numpy(rows).to(method.backbone.device)
        relation = sentences.object_prompt.relation[index]
        gold, found = sentences.gold[index], dict[str, Tensor]()
        for part in method.object_parts:
            others = set(method.object_parts) - {part}
            alone = {name: own for name, own in vectors.items() if name not in others}
            scores = method.scores(sentences, rows, alone)
            if select == "loss":
                found[part] = -functional.nll_loss(scores, gold, reduction="none")
            else:
                rank = ranks(sentences.permitted(scores, rows, allowed), gold).realistic
                found[part] = (rank <= 1).double() if select == "p@1" else 1 / rank
        losses = method.dev_losses(sentences, rows, vectors)
        for part, value in (found | {name: -loss for name, loss in losses.items()}).items():
            total = totals.setdefault(part, torch.zeros_like(count))
            total.index_add_(0, relation, value.double())
    return {part: (total / count).cpu().numpy() for part, total in totals.items()}


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


def add_terms(
    predictions: Predictions, problem: Problem, split: Split, terms: Sequence[str]
) -> Predictions:
    """Return predictions with further terms of their candidates, those that are not there."""
    relation, candidates = torch.from_numpy(predictions.relation), predictions.candidates
    found = dict(predictions.terms)
    if FREQUENCY in terms and FREQUENCY not in found:
        frequencies = log_frequencies(problem.object_counts())
        shares = frequencies[relation[:, None], torch.from_numpy(candidates)].float().numpy()
        found[FREQUENCY] = np.where(candidates >= 0, shares, np.float32(0))
    if COPY in terms and COPY not in found:
        copies = problem.sentences[split].copy[:, None]
        found[COPY] = ((candidates == copies) & (candidates >= 0)).astype(np.float32)
    return replace(predictions, terms=found)


def _join(dev: Predictions, held_out: Predictions | None) -> Predictions:
    return dev if held_out is None else Predictions.concatenate([dev, held_out])


def store_predictions(
    folder: Folder,
    problem: Problem,
    split: Split,
    predictions: Predictions,
    facts: Sequence[Fact],
) -> None:
    """Write a split's predictions of some facts, with their candidates' texts."""
    answers = np.unique(predictions.candidates).tolist()
    texts = {answer: problem.text(answer) for answer in answers if answer >= 0}
    write_predictions(folder, split, predictions, facts, problem.relations, texts)


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
    held_out: Predictions | None = None,
) -> None:
    """Choose the weights, write predictions, the card with its figures, and last the manifest.

    Args:
        found: what was found for each split, in the order of the problem's facts.
        held_out: training facts that were asked by prompts which had not seen them, with the terms
            of the fit: evidence beside dev.
        dropped: how many facts each reason cost.
        seconds: how long each stage took.
        unfilled: relations whose prompts lack words that a search should have found.
    """
    relations, names = len(problem.relations), problem.relations
    asked_back = all(predictions.asked_back for predictions in found.values())
    choose, combination = config.method.choose_weight, None
    if choose == "dev-fit":
        terms = [name for name in config.method.fitted if asked_back or name not in SUBJECTS]
        found = {split: add_terms(own, problem, split, terms) for split, own in found.items()}
        begun, evidence = time.perf_counter(), _join(found["dev"], held_out)
        combination = fit_combination(evidence, terms, relations, seed=config.seed)
        seconds = {**seconds, "fitting weights": time.perf_counter() - begun}
    elif asked_back:
        weights = np.full(relations, config.method.weight, dtype=np.float64)
        if choose != "fixed":
            evidence = _join(found["dev"], held_out)
            weights = choose_weights(evidence, relations, per_relation=choose == "dev-relation")
        combination = Combination({SUBJECT: weights})
    for split, predictions in found.items():
        store_predictions(folder, problem, split, predictions, problem.facts.facts(split))
    measured = {split: measure(own, names, combination) for split, own in found.items()}
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
    weights_by_name = combination and {
        term: dict(zip(names, own.tolist(), strict=True))
        for term, own in combination.weights.items()
    }
    details = {
        "vocabulary": config.facts.vocabulary,
        "objects": config.facts.objects,
        "candidates": problem.counts(),
        "excluded": excluded_answers(config, problem),
        "k": None if combination is None else stored,
        **({"within": config.method.within} if combination and config.method.within else {}),
        "fewer_answers": {} if combination is None else problem.fewer_answers(stored),
        "weights": weights_by_name,
        **(
            {"evidence": {"dev": len(found["dev"]), "train": len(held_out)}}
            if held_out is not None
            else {}
        ),
        "dropped": dict(dropped),
        **({"skipped": dict(problem.facts.skipped)} if problem.facts.skipped else {}),
        "unfilled": list(unfilled),
        "leakage": count_leakage(problem.facts),
        "inverses": count_inverses(problem.facts, "test"),
    }
    folder.finish(records=to_records(measured), seconds=seconds, details=details)
