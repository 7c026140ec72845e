"""What every method must do, whatever it learns; run for every method and every family."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import symprompt
from symprompt.errors import ConfigError
from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from symprompt.probing.evaluate import dev_scores, predict
from symprompt.probing.inspect import describe_prompts
from symprompt.probing.methods import METHODS, method_class
from symprompt.probing.methods.base import Method
from symprompt.probing.prepare import Problem, make_method, prepare
from tiny.models import make_facts, run_config
from tiny.runs import write_csv, write_prompts

VARIANTS = {
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


@pytest.fixture(params=list(VARIANTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", autouse=True)
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written prompts, for the method that has several."""
    return write_prompts(WRITTEN.setdefault("here", tmp_path_factory.mktemp("prompts")))


def build(name: str, backbone: LanguageModel, facts: FactSet) -> tuple[Problem, Method]:
    encoder = "bilstm" if name.startswith(("ptuning", "spe")) else "free"
    config = run_config(
        method=VARIANTS[name],
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
        run_config().learning,
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


# --------------------------------------------------------------------------------- the one table


def test_every_method_has_one_line_and_one_file() -> None:
    folder = Path(method_class("spe").__module__.replace(".", "/")).parent
    files = {traits.where.partition(":")[0] for traits in METHODS.values()}
    found = {path.stem for path in (Path(symprompt.__file__).parents[1] / folder).glob("*.py")}
    assert found == files | {"__init__", "base", "ensemble"}
    assert {variant["name"] for variant in VARIANTS.values()} | {"finetune"} == set(METHODS)
    for name in METHODS:
        assert issubclass(method_class(name), Method)


def test_no_other_file_switches_on_a_method() -> None:
    switch = re.compile(r"method\.name (==|!=|in|not in) |isinstance\([\w.]*method, ")
    folder = Path(symprompt.__file__).parent
    lines = [
        f"{path.relative_to(folder)}: {line.strip()}"
        for path in sorted((folder / "probing").rglob("*.py"))
        for line in path.read_text().splitlines()
        if switch.search(line)
    ]
    assert lines == []


def test_the_table_is_read_without_torch() -> None:
    table = Path(symprompt.__file__).parent / "probing" / "methods" / "__init__.py"
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(table)], check=True)


# ----------------------------------------------------------------------------------- whole runs

Runs = dict[str, symprompt.Run]


@pytest.fixture(scope="module")
def runs(family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A finished run of every method, whose prompts' files are gone."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_csv(make_facts().select(["capital", "in"]), folder / "facts.csv")
    prompts = write_prompts(folder / "prompts")
    made = {}
    for name, traits in METHODS.items():
        prompt = {"encoder": traits.encoder} if traits.encoder else {}
        config = run_config(
            model=str(family_folder("bert")),
            data=str(data),
            out=str(folder / name),
            dtype="float32",
            method={"name": name, "weight": 1.7},
            prompt={"template": "manual"} if name == "finetune" else prompt,
            ensemble={"prompts": [str(prompts)]},
            learning={"epochs": 1},
            search={"steps": 5},
            tuning={"save_weights": True},
        )
        symprompt.train(config)
        made[name] = symprompt.Run.load(folder / name)
    data.unlink()
    for path in prompts.iterdir():
        path.unlink()
    return made


@pytest.mark.parametrize("name", METHODS)
def test_a_finished_run_is_asked_as_it_was_scored(name: str, runs: Runs) -> None:
    run = runs[name]
    assert run.metrics["method"] == name
    predictions, facts = run.predictions("test")
    assert predictions.asked_back == method_class(name).has_subject_prompt
    for row in (0, len(facts) - 1):
        answers = run.ask(facts[row].relation, subject=facts[row].subject, top=5, device="cpu")
        found = sorted((answer.object_score for answer in answers), reverse=True)
        assert found == pytest.approx(predictions.object_score[row].tolist(), abs=1e-4)
    if method_class(name).has_subject_prompt:
        assert run.ask("in", object="Cuba", device="cpu")[0].joint is not None
        return
    with pytest.raises(ConfigError, match=f"{name}, learned no subject prompt"):
        run.ask("in", object="Cuba")


@pytest.mark.parametrize("name", METHODS)
def test_a_finished_runs_prompts_are_described(name: str, runs: Runs) -> None:
    views = describe_prompts(runs[name], top=2, device="cpu")
    assert [view.relation for view in views] == ["capital", "in"]
    for view in views:
        assert bool(view.vectors) == METHODS[name].vectors
        assert view.about or view.prompts
    if method_class(name).several_prompts:
        assert "manual templates: " in views[0].about


@pytest.mark.parametrize("name", METHODS)
def test_a_finished_runs_candidates_are_reranked(name: str, runs: Runs, tmp_path: Path) -> None:
    paths = runs[name].folder.path, runs["spe"].folder.path
    again = symprompt.rerank_run(*paths, tmp_path / "again", device="cpu")
    before, after = runs[name].predictions()[0], again.predictions()[0]
    assert np.array_equal(before.candidates, after.candidates)
    assert after.asked_back
    assert again.metrics["method"] == f"{name} + asking back"
