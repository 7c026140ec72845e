"""What every method must do, whatever it learns; run for every method and every family."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import symprompt
from symprompt.errors import ConfigError, DataError
from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig
from symprompt.probing.evaluate import dev_scores, predict
from symprompt.probing.inspect import describe_prompts
from symprompt.probing.methods import METHODS
from symprompt.probing.methods.base import Method, method_class
from symprompt.probing.methods.majority import Majority
from symprompt.probing.methods.ptuning import PTuning
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.problem import Problem
from tiny.loops import answer_text
from tiny.models import CAUSAL_FAMILIES, FAMILIES, causal_config, facts_of, make_facts, run_config
from tiny.runs import Killed, Make, kill_at, metrics_of

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
SEVERAL = ("lpaqa", "softprompt", "softprompt deep")


@pytest.fixture(params=list(VARIANTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[*FAMILIES, *CAUSAL_FAMILIES])
def family(request: pytest.FixtureRequest) -> str:
    """Every family's name in turn, masked and causal."""
    return str(request.param)


def build(
    name: str, backbone: LanguageModel, facts: FactSet, prompts: Path
) -> tuple[Problem, Method]:
    """A method moved a little from where it starts."""
    encoder = "bilstm" if name.startswith(("ptuning", "spe")) else "free"
    config = (causal_config if backbone.causal else run_config)(
        method=VARIANTS[name],
        prompt={"encoder": encoder},
        ensemble={"prompts": [str(prompts)], "deep": name.endswith("deep")},
        dtype="float64",
    )
    problem = prepare(config, backbone, facts)
    method = make_method(config, problem)
    draw = torch.Generator().manual_seed(3)
    for encoder_ in method.encoders.values():
        for value in filter(lambda own: own.requires_grad, encoder_.parameters()):
            value.data += 0.1 * torch.randn(value.shape, generator=draw).to(value)
    return problem, method


def test_losses_and_scores_are_finite_and_do_not_depend_on_the_batch(
    name: str, family: str, backbone: LanguageModel, facts: FactSet, prompts: Path
) -> None:
    problem, method = build(name, backbone, facts, prompts)
    sentences = problem.sentences["train"]
    vectors = {part: value.detach() for part, value in method.vectors().items()}
    rows = np.arange(len(sentences))
    loss = method.loss(sentences, rows, vectors)
    assert loss.shape == (14,)
    assert (loss > 0).all()
    alone = torch.cat([method.loss(sentences, rows[row : row + 1], vectors) for row in rows])
    torch.testing.assert_close(loss, alone, rtol=0, atol=1e-10 if family == "bert" else 5e-5)
    rows = np.array([3, 0, 8, 12])
    scores = method.scores(sentences, rows, vectors)
    assert (scores.shape, scores.dtype) == ((4, backbone.vocabulary_size), torch.float32)
    torch.testing.assert_close(scores.exp().sum(1), torch.ones(4), rtol=1e-4, atol=1e-4)
    counts = method.sentences_per_fact(sentences, rows)
    assert len(counts) == 4
    assert (counts >= 1).all()
    if backbone.causal and name not in SEVERAL:
        assert counts.tolist() == [2 if "spe" in name else 1] * 4


def test_vectors_have_a_relation_axis_and_gradients_reach_them(
    name: str, bert: LanguageModel, facts: FactSet, prompts: Path
) -> None:
    problem, method = build(name, bert, facts, prompts)
    vectors = method.vectors()
    parts = {
        "lpaqa": {"weights"},
        "majority": set(),
        "manual": set(),
        "softprompt": {"forth", "weights"},
        "softprompt deep": {"forth", "weights", "deep"},
        "spe separate": {"forth", "back"},
    }
    assert set(vectors) == set(method.parts) == parts.get(name, {"forth"})
    if name == "lpaqa":
        assert vectors["weights"].shape == (3, 4, 1)
    if name in SEVERAL[:1] or not vectors:
        return
    if not name.startswith("softprompt"):
        assert {value.shape for value in vectors.values()} == {(3, 5, bert.width)}
    learned = [value for own in method.encoders.values() for value in own.parameters()]
    if name == "autoprompt":  # its vectors are words' embeddings; a search wants their gradient
        vectors = {"forth": vectors["forth"].requires_grad_()}
        learned = [vectors["forth"]]
    method.loss(problem.sentences["train"], np.arange(14), vectors).sum().backward()
    for value in filter(lambda own: own.requires_grad, learned):
        assert value.grad is not None
        assert (value.grad.flatten(1).abs().sum(1) > 0).all()


def test_every_method_predicts_and_scores_dev(
    name: str, bert: LanguageModel, facts: FactSet, prompts: Path
) -> None:
    problem, method = build(name, bert, facts, prompts)
    vectors = {part: value.detach() for part, value in method.vectors().items()}
    found = predict(
        method, problem.sentences["test"], vectors, allowed=problem.allowed, k=5, max_tokens=100
    )
    assert len(found) == len(problem.facts.facts("test"))
    assert found.asked_back == method.has_subject_prompt == name.startswith("spe")
    scores = dev_scores(method, replace(problem, max_tokens=100), "mrr")
    assert set(scores) == ({"forth"} | set(method.encoders))
    assert all(value.shape == (3,) and np.isfinite(value).all() for value in scores.values())
    if not method.has_subject_prompt:
        one = np.array([0]), torch.tensor([[1]])
        with pytest.raises(TypeError, match="has no subject prompt"):
            method.subject_scores(problem.sentences["test"], *one, vectors, max_tokens=10)


@torch.no_grad()
def test_manual_scores_are_the_models_own_answers(
    backbone: LanguageModel, facts: FactSet, prompts: Path
) -> None:
    problem, method = build("manual", backbone, facts, prompts)
    listed = problem.facts.facts("test")
    templates = [own.template for own in facts.relations]
    if backbone.causal:
        templates = [own.partition("[Y]")[0] + "[Y]" for own in templates]
    assert [str(template) for template in problem.templates] == templates
    scores = method.scores(problem.sentences["test"], np.arange(len(listed)), {})
    for row, fact in enumerate(listed):
        wanted = answer_text(backbone, facts[fact.relation].template, fact).log_softmax(0)
        near = 1e-4 if backbone.causal else 1e-5
        torch.testing.assert_close(scores[row], wanted.float(), rtol=near, atol=near)


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
    assert {variant["name"] for variant in VARIANTS.values()} | {"finetune", "sentence"} == set(
        METHODS
    )
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
# Whole sentences rank names alone, which these facts are not: test_methods_sentence has their runs.
WHOLE = [name for name in METHODS if name != "sentence"]


def run_of(name: str, make: Make, out: Path, prompts: Path, **more: object) -> RunConfig:
    """A short run of a method; of a search so short that some places are never drawn."""
    traits = METHODS[name]
    prompt = {"encoder": traits.encoder} if traits.encoder else {}
    return make(
        out,
        method={"name": name, "weight": 1.7},
        prompt={"template": "manual"} if name == "finetune" else prompt,
        ensemble={"prompts": [str(prompts)], "deep": True, "most": 3},
        learning={"epochs": 2},
        search={"steps": 3},
        tuning={"save_weights": True},
        checkpoint_seconds=0.0,
        **more,
    )


@pytest.fixture(scope="module")
def runs(make: Make, data: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A finished run of every method, whose facts' and prompts' files are gone."""
    folder = tmp_path_factory.mktemp("runs")
    facts = shutil.copy(data, folder / "facts.csv")
    copied = shutil.copytree(prompts, folder / "prompts")
    made = {}
    for name in WHOLE:
        symprompt.train(run_of(name, make, folder / name, copied, data=str(facts)))
        made[name] = symprompt.Run.load(folder / name)
    facts.unlink()
    shutil.rmtree(copied)
    return made


@pytest.mark.parametrize("name", WHOLE)
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
    assert all(answer.joint is None and answer.subject_score is None for answer in answers)
    with pytest.raises(ConfigError, match=f"{name}, learned no subject prompt"):
        run.ask("in", object="Cuba")


@pytest.mark.parametrize("name", WHOLE)
def test_a_finished_runs_prompts_are_described(name: str, runs: Runs) -> None:
    views = describe_prompts(runs[name], top=2, device="cpu")
    assert [view.relation for view in views] == ["capital", "in"]
    for view in views:
        assert bool(view.vectors) == METHODS[name].vectors
        assert view.about or view.prompts
    if method_class(name).several_prompts:
        assert "manual templates: " in views[0].about


@pytest.mark.parametrize("name", WHOLE)
def test_a_finished_runs_candidates_are_reranked(name: str, runs: Runs, tmp_path: Path) -> None:
    paths = runs[name].folder.path, runs["spe"].folder.path
    again = symprompt.rerank_run(*paths, tmp_path / "again", device="cpu")
    before, after = runs[name].predictions()[0], again.predictions()[0]
    assert np.array_equal(before.candidates, after.candidates)
    assert after.asked_back
    assert again.metrics["method"] == f"{name} + asking back"


@pytest.mark.parametrize("name", WHOLE)
def test_a_run_killed_after_training_ends_with_the_same_bytes(
    name: str, make: Make, runs: Runs, prompts: Path, tmp_path: Path
) -> None:
    config = run_of(name, make, tmp_path / "run", prompts)
    with pytest.raises(Killed):
        symprompt.train(config, tick=kill_at("asking test"))
    run, whole = symprompt.train(config, resume=True), runs[name]
    assert metrics_of(run) == metrics_of(whole)
    if name == "autoprompt":
        assert whole.metrics["unfilled"]
    names = ("encoder", "prompts", "weights", "predictions/test")
    for file in ("prompts.json", *(f"{own}.safetensors" for own in names)):
        path = whole.folder.path / file
        if path.exists():
            assert path.read_bytes() == (run.folder.path / file).read_bytes(), file


def test_majority_gives_shares_of_the_training_objects_without_a_pass(
    bert: LanguageModel, facts: FactSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config(method={"name": "majority"})
    problem = prepare(config, bert, facts)
    monkeypatch.setattr(bert, "logits_at", None)
    method = make_method(config, problem)
    assert isinstance(method, Majority)
    listed = problem.facts.facts("test")
    scores = method.scores(problem.sentences["test"], np.arange(len(listed)), {})
    assert method.loss(problem.sentences["test"], np.array([0, 1]), {}).shape == (2,)
    size = bert.vocabulary_size
    for row, fact in enumerate(listed):
        train = [entry.object for entry in facts[fact.relation].train]
        wanted = torch.full((size,), 1 / size / (len(train) + 1)).double()
        for word, count in Counter(train).items():
            (token,) = bert.vocabulary.single_tokens([word])
            assert token is not None
            wanted[token] = (count + 1 / size) / (len(train) + 1)
        torch.testing.assert_close(scores[row], wanted.log().float())


def test_majority_needs_training_facts_and_no_dev_facts(bert: LanguageModel) -> None:
    relation = make_facts()["in"]
    config = run_config(method={"name": "majority"})

    def alone(**splits: object) -> FactSet:
        values = {name: getattr(relation, name) for name in ("train", "test")} | splits
        made = type(relation)("in", dev=(), template=relation.template, **values)  # type: ignore[arg-type]
        return FactSet((made,), source="made up", layout="table")

    assert set(prepare(config, bert, alone()).sentences) == {"train", "test"}
    with pytest.raises(DataError, match="no usable train facts"):
        prepare(config, bert, alone(train=()))


def test_optiprompt_learns_free_vectors_and_no_others(bert: LanguageModel, facts: FactSet) -> None:
    config = run_config(method={"name": "optiprompt"}, prompt={"encoder": "free"})
    method = make_method(config, prepare(config, bert, facts))
    assert isinstance(method, PTuning)
    assert [list(vectors.state_dict()) for vectors in method.encoders.values()] == [["vectors"]]
    with pytest.raises(ConfigError, match='encoder = "free", not "mlp"'):
        run_config(method={"name": "optiprompt"}, prompt={"encoder": "mlp"})
    with pytest.raises(ConfigError, match='"majority" learns none'):
        run_config(method={"name": "majority"}, prompt={"encoder": "free", "start": "manual"})


def test_a_relation_answers_its_most_frequent_object_first(bert: LanguageModel) -> None:
    pairs = [("Oslo", "Peru"), ("York", "Cuba"), ("Rome", "Cuba")]
    listed = facts_of("in", pairs)
    relation = type(make_facts()["in"])("in", listed, (), listed, template="[X] lies in [Y] .")
    config = run_config(method={"name": "majority", "k": 2})
    problem = prepare(config, bert, FactSet((relation,), source="made up", layout="table"))
    scores = make_method(config, problem).scores(problem.sentences["test"], np.array([0]), {})
    words = [bert.vocabulary.text(token) for token in scores[0].topk(2).indices.tolist()]
    assert words == ["Cuba", "Peru"]
