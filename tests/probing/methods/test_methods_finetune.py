"""Fine-tuning: stacks against ordinary loops and the peft library; runs in stacks."""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

import symprompt
from symprompt import Run, cli
from symprompt.errors import ConfigError, ModelError, RunError, TrainingError
from symprompt.facts import Fact, FactSet, Relation
from symprompt.models import LanguageModel
from symprompt.probing.config import RunConfig
from symprompt.probing.evaluate import predict
from symprompt.probing.methods.finetune import FineTune, _places, _rounds
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.problem import Problem
from symprompt.probing.results import load_asked, load_card
from symprompt.runs.environment import derive_seed
from symprompt.runs.folder import Folder
from tiny.loops import answer_text
from tiny.models import make_facts, make_trainer, run_config, train, world_facts
from tiny.runs import Make, accept_files, timeless, write_csv

MANUAL = {"template": "manual"}
ALONE = {"template": "[X] [Y]"}
Named = dict[str, Tensor]


def tuning_config(**sections: Any) -> RunConfig:
    tables = {"method": {"name": "finetune"}, "prompt": MANUAL, "dtype": "float64"}
    return run_config(**(tables | sections))


def build(config: RunConfig, backbone: LanguageModel, facts: FactSet) -> tuple[Problem, FineTune]:
    problem, method, _ = make_trainer(config, backbone, facts)
    assert isinstance(method, FineTune)
    return problem, method


# ------------------------------------------------------------------------- an ordinary loop


def ask(backbone: LanguageModel, model: Any, relation: Relation, prompt: str, fact: Fact) -> Tensor:
    """The logits of one fact's object, from text, one sentence at a time."""
    template = relation.template if prompt == "manual" else prompt
    return answer_text(backbone, template, fact, model)


def gold(backbone: LanguageModel, fact: Fact) -> Tensor:
    (token,) = backbone.vocabulary.single_tokens([fact.object], after_space=True)
    return torch.tensor(token)


def plain_loop(
    backbone: LanguageModel, model: Any, relation: Relation, config: RunConfig, named: Named
) -> list[Named]:
    """Train a model on one relation with torch's own optimiser; every epoch's weights."""
    training, epochs = config.learning, []
    kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
    optimizer = kind(list(named.values()), lr=training.rate, weight_decay=training.weight_decay)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, training.decay)
    for epoch in range(training.epochs):
        seed = derive_seed(config.seed, "shuffle", relation.name, epoch)
        order = np.random.default_rng(seed).permutation(len(relation.train))
        for start in range(0, len(order), training.batch):
            batch = [relation.train[index] for index in order[start : start + training.batch]]
            logits = torch.stack(
                [ask(backbone, model, relation, config.prompt.template, fact) for fact in batch]
            )
            wanted = torch.stack([gold(backbone, fact) for fact in batch])
            optimizer.zero_grad()
            functional.cross_entropy(logits, wanted).backward()
            optimizer.step()
        schedule.step()
        epochs.append({name: value.detach().clone() for name, value in named.items()})
    return epochs


def exact_norm(norm: LlamaRMSNorm, states: Tensor) -> Tensor:
    """Llama's norm in the dtype of its input."""
    variance = states.square().mean(-1, keepdim=True)
    return norm.weight * (states * torch.rsqrt(variance + norm.variance_epsilon))


def exact_angles(
    rotary: LlamaRotaryEmbedding, x: Tensor, position_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """The cosines and sines of Llama's positions in the dtype of its input."""
    angles = (position_ids[..., None].to(x) * rotary.inv_freq.to(x)).repeat(1, 1, 2)
    return angles.cos(), angles.sin()


def own_model(backbone: LanguageModel) -> Any:
    """A copy of the model that gives logits at every position."""
    model = copy.deepcopy(backbone, {id(backbone.vocabulary): backbone.vocabulary}).model
    model.base_model._forward_hooks.clear()
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("bert", MANUAL),
        ("roberta", MANUAL),
        ("distilbert", ALONE),
        ("gpt2", ALONE),
        # Manual templates are cut after the object.
        ("gpt2", MANUAL),
        ("llama-tied", MANUAL),
    ],
)
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_stack_is_trained_as_each_model_alone_by_an_ordinary_loop(
    load_family: Callable[..., LanguageModel],
    facts: FactSet,
    name: str,
    prompt: dict[str, str],
    optimizer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Llama's norms, angles and softmax round to float32 whatever its dtype, which Adam magnifies.
    softmax = functional.softmax
    monkeypatch.setattr(functional, "softmax", lambda states, dim, **_: softmax(states, dim=dim))
    monkeypatch.setattr(LlamaRMSNorm, "forward", exact_norm)
    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", exact_angles)
    backbone = load_family(name)
    training = {"rate": 2e-3, "weight_decay": 0.01, "select": "loss", "optimizer": optimizer}
    config = tuning_config(prompt=prompt, learning=training)
    trained = train(config, backbone, facts)
    assert isinstance(trained.method, FineTune)
    rows = trained.vectors()["forth"]
    best = trained.trainer.stopping["forth"].best
    for index, relation in enumerate(trained.problem.facts.relations):
        model = own_model(backbone).requires_grad_(True)
        epochs = plain_loop(backbone, model, relation, config, dict(model.named_parameters()))
        found = trained.method.stacked.tuning.to_tensors(rows[index])
        wanted = epochs[best[index]]
        assert set(found) == set(wanted)
        for key, value in found.items():
            torch.testing.assert_close(value, wanted[key], rtol=0, atol=1e-8, msg=key)
        # The best epoch is the one whose dev loss is least.
        model.requires_grad_(False)
        losses = []
        for weights in epochs:
            for key, value in model.named_parameters():
                value.copy_(weights[key])
            asked = [
                functional.cross_entropy(
                    ask(backbone, model, relation, config.prompt.template, fact),
                    gold(backbone, fact),
                )
                for fact in relation.dev
            ]
            losses.append(float(torch.stack(asked).mean()))
        assert int(np.argmin(losses)) == best[index]
        dev = [-float(entry["forth"][index]) for entry in trained.dev_history]
        np.testing.assert_allclose(dev, losses, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "prompt", "targets"),
    [
        ("bert", MANUAL, ("query", "value")),
        ("roberta", ALONE, ()),
        ("distilbert", MANUAL, ("q_lin", "lin1")),
        ("gpt2", ALONE, ("c_attn", "c_fc")),
    ],
)
def test_adapters_are_trained_as_by_the_peft_library(
    load_family: Callable[..., LanguageModel],
    facts: FactSet,
    name: str,
    prompt: dict[str, str],
    targets: tuple[str, ...],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import peft

    backbone = load_family(name)
    config = tuning_config(
        prompt=prompt,
        learning={"rate": 5e-3, "select": "loss"},
        tuning={"tune": "lora", "lora_rank": 3, "lora_alpha": 5.0, "lora_targets": targets},
    )
    trained = train(config, backbone, facts)
    assert isinstance(trained.method, FineTune)
    tuning = trained.method.stacked.tuning
    start = tuning.start(trained.problem.relations, (config.seed,))
    for index, relation in enumerate(trained.problem.facts.relations):
        settings = peft.LoraConfig(
            r=3,
            lora_alpha=5,
            target_modules=list(targets) or "all-linear",
            fan_in_fan_out=name == "gpt2",
        )
        model = peft.get_peft_model(own_model(backbone), settings)
        stored = {
            key.replace(".default", ""): value
            for key, value in model.named_parameters()
            if value.requires_grad
        }
        for key, value in tuning.to_tensors(start[index]).items():
            stored[key].data = value.clone()
        assert len(stored) == len(tuning.shapes)
        epochs = plain_loop(backbone, model, relation, config, stored)
        best = trained.trainer.stopping["forth"].best[index]
        for key, value in tuning.to_tensors(trained.vectors()["forth"][index]).items():
            torch.testing.assert_close(value, epochs[best][key], rtol=0, atol=1e-8, msg=key)


# ------------------------------------------------------------------------------- the contract


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_losses_scores_and_gradients(bert: LanguageModel, facts: FactSet, tune: str) -> None:
    problem, method = build(tuning_config(tuning={"tune": tune}), bert, facts)
    sentences, weights = problem.sentences["train"], method.vectors()
    rows = np.arange(len(sentences))
    together = method.loss(sentences, rows, weights)
    alone = torch.cat([method.loss(sentences, rows[row : row + 1], weights) for row in rows])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-10)
    # A relation's gradient is of its own facts.
    learned: Any = method.encoders["forth"].rows
    (gradient,) = torch.autograd.grad(together[sentences.relations == 1].sum(), learned)
    assert gradient.abs().sum(1).gt(0).tolist() == [False, True, False]
    scores = method.scores(sentences, rows[::-1].copy(), weights)
    assert scores.dtype == torch.float32
    alone = torch.cat([method.scores(sentences, rows[row : row + 1], weights) for row in rows])
    torch.testing.assert_close(scores.flip(0), alone, rtol=0, atol=1e-6)
    assert method.queries(sentences, rows) is None


@pytest.mark.parametrize("max_tokens", [30, 4096])
def test_untrained_weights_answer_as_manual_prompts_do(
    bert: LanguageModel, facts: FactSet, max_tokens: int
) -> None:
    problem, method = build(tuning_config(), bert, facts)
    weights = {"forth": method.vectors()["forth"].detach()}
    plain = make_method(run_config(method={"name": "manual"}, prompt=MANUAL), problem)
    for split in ("dev", "test"):
        sentences = problem.sentences[split]  # type: ignore[index]
        found, wanted = (
            predict(asked, sentences, given, allowed=problem.allowed, k=5, max_tokens=max_tokens)
            for asked, given in ((method, weights), (plain, {}))
        )
        assert np.array_equal(found.candidates, wanted.candidates)
        assert np.array_equal(found.better, wanted.better)
        np.testing.assert_allclose(found.object_score, wanted.object_score, rtol=1e-5)


@pytest.mark.parametrize("tune", ["full", "lora"])
@pytest.mark.parametrize("prompt", [MANUAL, ALONE], ids=["manual", "alone"])
def test_every_causal_family_is_tuned_by_what_comes_before_the_object(
    causal: LanguageModel, facts: FactSet, prompt: dict[str, str], tune: str
) -> None:
    training = {"epochs": 6, "rate": 2e-3 if tune == "full" else 2e-2, "schedule": "constant"}
    tables = {"prompt": prompt, "tuning": {"tune": tune, "lora_rank": 2}}
    config = tuning_config(learning=training, **tables)
    problem, method = build(config, causal, facts)
    sentences, weights = problem.sentences["train"], method.vectors()
    rows = np.arange(len(sentences))
    losses, listed = method.loss(sentences, rows, weights).detach(), problem.facts.facts("train")
    for row in rows[::5]:
        fact = listed[row]
        relation = next(own for own in facts.relations if own.name == fact.relation)
        logits = ask(causal, own_model(causal), relation, prompt["template"], fact)
        wanted = functional.cross_entropy(logits, gold(causal, fact))
        torch.testing.assert_close(losses[row], wanted, rtol=0, atol=5e-5)
    trained = train(config, causal, facts)
    with torch.no_grad():
        last = trained.method.loss(sentences, rows, trained.vectors())
    assert last.mean() < 0.8 * losses.mean()


def test_rounds_hold_every_row_once_and_no_line_twice_as_long_as_it_must() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        owner = draw.integers(0, draw.integers(1, 8), draw.integers(1, 40)) ** 2
        rounds = list(_rounds(owner))
        listed = np.concatenate([members for members, _ in rounds])
        assert sorted(listed) == list(range(len(owner)))
        for members, present in rounds:
            assert set(owner[members]) == set(present)
        room = sum(
            len(present) * (_places(owner[members]).max() + 1) for members, present in rounds
        )
        assert room < 2 * len(owner) + len(rounds) * len(set(owner))


def test_dropout_is_drawn_for_each_relation_and_depends_on_the_seed(
    bert: LanguageModel, facts: FactSet
) -> None:
    problem, method = build(tuning_config(), bert, facts)
    assert bert.model.config.hidden_dropout_prob > 0
    sentences, rows = problem.sentences["train"], np.arange(14)

    def losses(seed: int) -> Tensor:
        with torch.random.fork_rng(devices=[]), method.dropout():
            torch.manual_seed(seed)
            return method.loss(sentences, rows, method.vectors()).detach()

    assert torch.equal(losses(0), losses(0))
    assert not torch.equal(losses(0), losses(1))
    plain = method.loss(sentences, rows, method.vectors())
    assert torch.equal(plain, method.loss(sentences, rows, method.vectors()))


@pytest.mark.parametrize(
    ("tuning", "rate"), [({"tune": "full"}, 1e-3), ({"tune": "lora", "lora_rank": 4}, 1e-2)]
)
def test_fine_tuning_learns_what_the_model_can_be_asked(
    knowing_bert: LanguageModel, tuning: dict[str, Any], rate: float
) -> None:
    training = {"rate": rate, "epochs": 12, "select": "p@1"}
    config = tuning_config(prompt=ALONE, dtype="float32", learning=training, tuning=tuning)
    facts = world_facts()
    _, before = build(config, knowing_bert, facts)
    trained = train(config, knowing_bert, facts)
    sentences = trained.problem.sentences["train"]
    rows = np.arange(len(sentences))
    with torch.no_grad():
        first = before.loss(sentences, rows, before.vectors()).mean()
        last = trained.method.loss(sentences, rows, trained.method.vectors()).mean()
    assert last < first / 5
    # Test towns were never trained on: what is right there was known and is now asked for.
    ranks = trained.predict().ranks().realistic
    start = {"forth": before.vectors()["forth"].detach()}
    untrained = predict(
        before,
        trained.problem.sentences["test"],
        start,
        allowed=trained.problem.allowed,
        k=5,
        max_tokens=4096,
    )
    assert float((ranks <= 1).mean()) > 0.5
    assert (1 / ranks).mean() > (1 / untrained.ranks().realistic).mean() + 0.2


# ---------------------------------------------------------------------------------- bad input


def test_templates_with_vectors_are_refused(bert: LanguageModel, facts: FactSet) -> None:
    config = tuning_config(prompt={"template": "<2> [X] [Y]"})
    with pytest.raises(ConfigError, match=r"learns weights instead.*--template manual"):
        make_method(config, prepare(config, bert, facts))


def test_weights_that_blow_up_are_reported(bert: LanguageModel, facts: FactSet) -> None:
    config = tuning_config(learning={"rate": 1e30})
    with pytest.raises(TrainingError, match="not finite at epoch 1"):
        train(config, bert, facts)


FILES = {
    "config.toml",
    "facts.jsonl",
    "history.json",
    "predictions/dev.safetensors",
    "predictions/test.safetensors",
    "prompts.json",
    "symprompt.json",
}
RESULTS = (
    "facts.jsonl",
    "predictions/dev.safetensors",
    "predictions/test.safetensors",
    "prompts.json",
)


@pytest.fixture(scope="module")
def make(family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Configs of fine-tuning runs; the run folder is the first argument."""
    data = write_csv(make_facts(), tmp_path_factory.mktemp("facts") / "facts.csv")

    def config(out: Path, **sections: Any) -> RunConfig:
        tables: dict[str, Any] = {
            "model": str(family_folder("bert")),
            "data": str(data),
            "out": str(out),
            "method": {"name": "finetune"},
            "prompt": {"template": "manual"},
            "learning": {"epochs": 3, "rate": 5e-3},
            "tuning": {"at_once": 1},
        }
        for key, value in sections.items():
            tables[key] = {**tables.get(key, {}), **value} if isinstance(value, dict) else value
        return run_config(**tables)

    return config


@pytest.fixture(scope="module")
def finished(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of three stacks, weights stored; tests must not change its folder."""
    out = tmp_path_factory.mktemp("finished") / "run"
    return symprompt.train(make(out, tuning={"save_weights": True}))


@pytest.fixture(scope="module")
def adapted(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with adapters; tests must not change its folder."""
    out = tmp_path_factory.mktemp("adapted") / "run"
    return symprompt.train(make(out, tuning={"tune": "lora"}))


@pytest.fixture(scope="module")
def unbroken(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three stacks, weights not stored."""
    return symprompt.train(make(tmp_path_factory.mktemp("unbroken") / "run")).folder.path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def assert_same_results(one: Path, other: Path) -> None:
    for name in RESULTS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert timeless(one) == timeless(other)


# ---------------------------------------------------------------------------------- a whole run


def test_a_run_leaves_its_files_and_weights_only_if_asked(finished: Run, unbroken: Path) -> None:
    assert files(unbroken) == FILES
    assert not (unbroken / "parts").exists()
    weights = {f"weights/000{place}/model.safetensors" for place in range(3)}
    assert files(finished.folder.path) == FILES | weights
    assert_same_results(finished.folder.path, unbroken)


def test_metrics_history_and_card_tell_of_every_relation(finished: Run) -> None:
    metrics, folder = finished.metrics, finished.folder
    assert metrics["method"] == "finetune"
    assert metrics["weights"] is None
    assert set(metrics["seconds"]) == {"training", "asking dev", "asking test"}
    assert set(metrics["test"]["relations"]) == {"capital", "in", "near"}
    history = folder.read_json("history.json")
    assert len(history["best_epoch"]["forth"]) == 3
    assert [entry["relations"] for entry in history["epochs"]] == [
        [name] for name in ("capital", "in", "near") for _ in range(3)
    ]
    assert load_card(folder)["parts"] == []
    predictions, facts = finished.predictions("test")
    names = list(load_card(folder)["relations"])
    assert [names[index] for index in predictions.relation] == [fact.relation for fact in facts]


def test_the_size_of_a_stack_changes_rounding_alone(
    make: Make, unbroken: Path, tmp_path: Path
) -> None:
    run = symprompt.train(make(tmp_path / "run", tuning={"at_once": 0}))
    assert "relations" not in run.folder.read_json("history.json")["epochs"][0]
    for split in ("dev", "test"):
        one, _ = run.predictions(split)  # type: ignore[arg-type]
        other, _ = Run.load(unbroken).predictions(split)  # type: ignore[arg-type]
        assert np.array_equal(one.relation, other.relation)
        np.testing.assert_allclose(one.gold_score, other.gold_score, rtol=1e-3, atol=1e-3)


def test_the_model_is_loaded_in_float32_and_half_precision_is_refused(
    make: Make, finished: Run, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    assert finished.metrics["dtype"] == "float32"
    half = LanguageModel.load(str(family_folder("bert")), device="cpu", dtype="bfloat16")
    with pytest.raises(ModelError, match="float32 to fine-tune"):
        symprompt.train(make(tmp_path / "run"), backbone=half)
    assert not (tmp_path / "run").exists()


def test_a_causal_model_is_tuned_and_asked(
    make: Make, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    run = symprompt.train(
        make(
            tmp_path / "run",
            model=str(family_folder("gpt2")),
            prompt={"template": "[X] [Y]"},
            tuning={"at_once": 2, "save_weights": True},
        )
    )
    predictions, facts = run.predictions("test")
    answers = run.ask(facts[-1].relation, subject=facts[-1].subject, top=5, device="cpu")
    assert [answer.text for answer in answers] == load_asked(run.folder, "test").candidates()[-1]
    assert np.isfinite(predictions.gold_score).all()


# ------------------------------------------------------------------------------------ resuming


class Killed(BaseException):
    """Stands for a kill: nothing on the way catches it."""


@pytest.mark.parametrize(
    ("tune", "stage", "stack"),
    [
        ("full", "training", 1),
        ("full", "asking test", 3),
        ("lora", "training", 3),
        ("lora", "asking dev", 2),
    ],
)
def test_a_run_stopped_at_any_stage_resumes_to_the_same_numbers(
    make: Make, finished: Run, adapted: Run, tmp_path: Path, tune: str, stage: str, stack: int
) -> None:
    whole = (finished if tune == "full" else adapted).folder.path
    config = make(tmp_path / "run", tuning={"tune": tune, "save_weights": tune == "full"})

    def kill(now: str, done: int, total: int, note: str) -> None:
        if now == stage and f"relations {stack}-{stack} " in note:
            raise Killed

    with pytest.raises(Killed):
        symprompt.train(config, tick=kill)
    assert not Folder(tmp_path / "run").finished
    resumed = symprompt.train(config, resume=True).folder.path
    assert_same_results(resumed, whole)
    assert files(resumed) == files(whole)
    for name in files(whole):
        if name.endswith(".safetensors"):
            assert (whole / name).read_bytes() == (resumed / name).read_bytes()


def stop_after_one(config: RunConfig) -> Path:
    """Run the first stack only; give its file."""

    def kill(now: str, done: int, total: int, note: str) -> None:
        if "relations 2-" in note:
            raise Killed

    with pytest.raises(Killed):
        symprompt.train(config, tick=kill)
    return Path(config.out) / "parts/0000.safetensors"


def test_another_size_of_stack_may_go_on_with_what_is_done(
    make: Make, unbroken: Path, tmp_path: Path
) -> None:
    stop_after_one(make(tmp_path / "run"))
    config = make(tmp_path / "run", tuning={"at_once": 2})
    run = symprompt.train(config, resume=True)
    one, _ = run.predictions("test")
    other, _ = Run.load(unbroken).predictions("test")
    np.testing.assert_allclose(one.gold_score, other.gold_score, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("damage", ["bytes", "note", "columns"])
def test_a_damaged_stack_is_named(make: Make, tmp_path: Path, damage: str) -> None:
    config = make(tmp_path / "run")
    stored = stop_after_one(config)
    if damage == "bytes":
        stored.write_bytes(b"nothing")
    else:
        tensors = load_file(stored)
        about = {"about": json.dumps({"relations": ["near"]})}
        if damage == "columns":
            del tensors["test/known"]
        save_file(tensors, stored, metadata=about)
    with pytest.raises(RunError, match=r"parts.0000\.safetensors"):
        symprompt.train(config, resume=True)


# -------------------------------------------------------------------------------------- asking


def test_adapters_are_always_stored_and_answer_as_they_did(adapted: Run) -> None:
    run = adapted
    weights = {
        f"weights/000{place}/{name}"
        for place in range(3)
        for name in ("adapter_model.safetensors", "adapter_config.json")
    }
    assert files(run.folder.path) == FILES | weights
    _, facts = run.predictions("test")
    answers = run.ask(facts[0].relation, subject=facts[0].subject, top=5, device="cpu")
    assert [answer.text for answer in answers] == load_asked(run.folder, "test").candidates()[0]


def test_stored_adapters_can_be_loaded_by_the_peft_library(
    adapted: Run, family_folder: Callable[[str], Path]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import peft
    run = adapted
    backbone = LanguageModel.load(str(family_folder("bert")), device="cpu", dtype="float32")
    model = backbone.model
    model.base_model._forward_hooks.clear()
    tokenizer = backbone.vocabulary.tokenizer
    adapted = peft.PeftModel.from_pretrained(model, run.folder.path / "weights/0001").eval()
    predictions, facts = run.predictions("test")
    row = next(index for index, fact in enumerate(facts) if fact.relation == "in")
    text = f"{facts[row].subject} lies in {tokenizer.mask_token} ."
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    at = int((ids[0] == tokenizer.mask_token_id).nonzero())
    with torch.no_grad():
        logits = adapted(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, at]
    scores = logits.log_softmax(0)[torch.from_numpy(predictions.candidates[row])].numpy()
    np.testing.assert_allclose(scores, predictions.object_score[row], rtol=1e-4, atol=1e-4)


def test_a_run_without_weights_says_so_before_it_loads_the_model(
    unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RunError, match=r"weights were not stored.*--save-weights"):
        Run.load(unbroken).ask("in", subject="New York", model="no such model")
    with pytest.raises(SystemExit):
        cli.main(["ask", str(unbroken), "--relation", "in", "--subject", "New York"])
    assert "--save-weights" in capsys.readouterr().err


def test_weights_that_do_not_fit_are_refused(finished: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished.folder.path, folder)
    stored = folder / "weights/0001/model.safetensors"
    tensors = load_file(stored)
    name = min(tensors)
    del tensors[name]
    save_file(tensors, stored, metadata={"about": "{}"})
    accept_files(folder)
    with pytest.raises(RunError, match=f"0001/model.safetensors is damaged: {name}"):
        Run.load(folder).ask("in", subject="New York", device="cpu")
