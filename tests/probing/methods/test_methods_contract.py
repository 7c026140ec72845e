"""What every method must do, whatever it learns; run for every method and every family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from symprompt.errors import ConfigError
from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from symprompt.probing.evaluate import dev_scores, predict
from symprompt.probing.methods.base import Method
from symprompt.probing.prepare import Problem, make_method, prepare
from tiny.models import run_config
from tiny.runs import write_prompts

METHODS = {
    "autoprompt": {"name": "autoprompt"},
    "lpaqa": {"name": "lpaqa"},
    "majority": {"name": "majority"},
    "manual": {"name": "manual"},
    "optiprompt": {"name": "optiprompt"},
    "ptuning": {"name": "ptuning"},
    "softprompt": {"name": "softprompt"},
    "softprompt deep": {"name": "softprompt"},
    "spe": {"name": "spe"},
    "spe separate": {"name": "spe", "vectors": "separate"},
}
WRITTEN: dict[str, Path] = {}


@pytest.fixture(params=list(METHODS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", autouse=True)
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written prompts, for the method that has several."""
    return write_prompts(WRITTEN.setdefault("here", tmp_path_factory.mktemp("prompts")))


def build(name: str, backbone: LanguageModel, facts: FactSet) -> tuple[Problem, Method]:
    encoder = "bilstm" if name.startswith(("ptuning", "spe")) else "free"
    config = run_config(
        method=METHODS[name],
        prompt={"encoder": encoder},
        ensemble={"prompts": [str(WRITTEN["here"])], "deep": name.endswith("deep")},
        dtype="float64",
    )
    problem = prepare(config, backbone, facts)
    return problem, make_method(config, problem)


def test_losses_and_scores_have_their_shapes_and_are_finite(
    name: str, backbone: LanguageModel, facts: FactSet
) -> None:
    problem, method = build(name, backbone, facts)
    sentences, vectors = problem.sentences["train"], method.vectors()
    rows = np.array([3, 0, 8, 12])
    loss = method.loss(sentences, rows, vectors)
    assert loss.shape == (4,)
    assert (loss > 0).all()
    scores = method.scores(sentences, rows, vectors)
    assert scores.dtype == torch.float32
    assert scores.shape == (4, backbone.vocabulary_size)
    torch.testing.assert_close(scores.exp().sum(1), torch.ones(4), rtol=1e-4, atol=1e-4)
    assert len(method.sentences_per_fact(sentences, rows)) == 4
    assert (method.sentences_per_fact(sentences, rows) >= 1).all()


def test_loss_does_not_depend_on_the_batch(name: str, bert: LanguageModel, facts: FactSet) -> None:
    problem, method = build(name, bert, facts)
    sentences, vectors = problem.sentences["train"], method.vectors()
    rows = np.arange(len(sentences))
    together = method.loss(sentences, rows, vectors)
    alone = torch.cat([method.loss(sentences, rows[row : row + 1], vectors) for row in rows])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-10)


def test_vectors_have_a_relation_axis_and_gradients_reach_them(
    name: str, bert: LanguageModel, facts: FactSet
) -> None:
    problem, method = build(name, bert, facts)
    vectors = method.vectors()
    parts = {
        "lpaqa": {"weights"},
        "majority": set(),
        "manual": set(),
        "softprompt": {"forth", "weights"},
        "softprompt deep": {"forth", "weights", "deep"},
        "spe separate": {"forth", "back"},
    }
    wanted = parts.get(name, {"forth"})
    assert set(vectors) == set(method.parts) == wanted
    if name == "lpaqa":
        assert vectors["weights"].shape == (3, 4, 1)
        return
    if not name.startswith("softprompt"):
        for value in vectors.values():
            assert value.shape == (3, 5, bert.width)
    if vectors:
        if name == "autoprompt":  # its vectors are words' embeddings; a search wants their gradient
            vectors = {"forth": vectors["forth"].requires_grad_()}
        method.loss(problem.sentences["train"], np.arange(14), vectors).sum().backward()
        if name == "autoprompt":
            assert (vectors["forth"].grad.abs().sum(2) > 0).all()
            return
        for encoder in method.encoders.values():
            for parameter in filter(lambda own: own.requires_grad, encoder.parameters()):
                assert parameter.grad is not None
                assert (parameter.grad.flatten(1).abs().sum(1) > 0).all()


def test_every_method_predicts_and_scores_dev(
    name: str, bert: LanguageModel, facts: FactSet
) -> None:
    problem, method = build(name, bert, facts)
    vectors = {part: value.detach() for part, value in method.vectors().items()}
    found = predict(
        method, problem.sentences["test"], vectors, allowed=problem.allowed, k=5, max_tokens=100
    )
    assert len(found) == len(problem.facts.facts("test"))
    assert found.asked_back == method.has_subject_prompt == name.startswith("spe")
    scores = dev_scores(
        method,
        problem.sentences["dev"],
        run_config().training,
        allowed=problem.allowed,
        max_tokens=100,
    )
    assert set(scores) == ({"forth"} | set(method.encoders))
    assert all(value.shape == (3,) and np.isfinite(value).all() for value in scores.values())


def test_methods_that_do_not_ask_back_say_so(bert: LanguageModel, facts: FactSet) -> None:
    problem, method = build("ptuning", bert, facts)
    with pytest.raises(TypeError, match="PTuning has no subject prompt"):
        method.subject_scores(
            problem.sentences["test"],
            np.array([0]),
            torch.tensor([[1]]),
            method.vectors(),
            max_tokens=10,
        )


def test_manual_scores_are_the_models_own_answers(
    load_family: Callable[..., LanguageModel], facts: FactSet, family: str
) -> None:
    backbone = load_family(family)
    config = run_config(method={"name": "manual"}, prompt={"template": "manual"}, dtype="float64")
    problem = prepare(config, backbone, facts)
    method = make_method(config, problem)
    tokenizer = backbone.vocabulary.tokenizer
    listed = problem.facts.facts("test")
    scores = method.scores(problem.sentences["test"], np.arange(len(listed)), {})
    for row, fact in enumerate(listed):
        text = facts[fact.relation].template.replace("[X]", fact.subject)
        ids = torch.tensor([tokenizer(text.replace("[Y]", tokenizer.mask_token))["input_ids"]])
        with torch.no_grad():
            logits = backbone.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        at = int((ids[0] == tokenizer.mask_token_id).nonzero())
        wanted = logits[0, at].log_softmax(0).float()
        torch.testing.assert_close(scores[row], wanted, rtol=1e-5, atol=1e-5)


def test_nothing_to_train_is_refused(bert: LanguageModel, facts: FactSet) -> None:
    config = run_config(method={"name": "ptuning"}, prompt={"template": "[X] is in [Y] ."})
    problem = prepare(config, bert, facts)
    with pytest.raises(ConfigError, match="no learned vector"):
        make_method(config, problem)
