"""Methods on causal models: the contract, and both directions against loops over full forwards.

The oracle uses nothing of the package but the model and the tokenizer: every question is a Python
list of token ids and vectors, run through one full forward that ends where the answer begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from symprompt import Run, cli
from symprompt.errors import ConfigError, DataError
from symprompt.facts import Fact, FactSet
from symprompt.models import LanguageModel
from symprompt.probing.methods.base import Method
from symprompt.probing.prepare import Problem, make_method, prepare
from symprompt.probing.queries import object_logits
from symprompt.probing.templates import CAUSAL_TEMPLATE, make_templates
from tiny.causal import CAUSAL_FAMILIES, causal_config
from tiny.models import Trained, make_facts, make_trainer, run_training, train

METHODS: dict[str, dict[str, Any]] = {
    "autoprompt": {"name": "autoprompt"},
    "manual": {"name": "manual"},
    "ptuning": {"name": "ptuning"},
    "spe": {"name": "spe"},
    "spe separate": {"name": "spe", "vectors": "separate"},
}
Item = int | Tensor


def tolerance(family: str) -> float:
    return 1e-9 if CAUSAL_FAMILIES[family].exact else 5e-5


def build(name: str, backbone: LanguageModel, facts: FactSet) -> tuple[Problem, Method]:
    prompt = {"encoder": "free" if name == "autoprompt" else "bilstm"}
    config = causal_config(method=METHODS[name], prompt=prompt, dtype="float64")
    problem = prepare(config, backbone, facts)
    return problem, make_method(config, problem)


def free_run(backbone: LanguageModel, facts: FactSet, **method: Any) -> Trained:
    """An untrained run with wide random vectors."""
    config = causal_config(
        prompt={"encoder": "free"},
        method={"name": "spe", "k": 6, **method},
        learning={"epochs": 0},
        dtype="float64",
    )
    run = train(config, backbone, facts)
    generator = torch.Generator().manual_seed(5)
    for encoder in run.method.encoders.values():
        with torch.no_grad():
            for value in encoder.parameters():
                value.copy_(torch.randn(value.shape, generator=generator, dtype=value.dtype))
    return run


class Loops:
    """Both directions for the template "<2> [X] <1> [Y]", one full forward per token asked for."""

    def __init__(self, run: Trained) -> None:
        self.run = run
        self.backbone = run.problem.backbone
        self.vectors = run.vectors()

    def tokens(self, name: str) -> list[int]:
        """A name as it stands inside a sentence."""
        tokenizer = self.backbone.vocabulary.tokenizer
        host, whole = (
            tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("in", "in " + name)
        )
        return list(whole[len(host) :])

    def after(self, items: list[Item]) -> Tensor:
        """The log-probabilities of what comes after a sentence."""
        start = self.backbone.vocabulary.tokenizer.bos_token_id
        items = ([] if start is None else [start]) + items
        ids = torch.tensor([item if isinstance(item, int) else 0 for item in items])
        embeddings = self.backbone.embed(ids).clone()
        for place, item in enumerate(items):
            if not isinstance(item, int):
                embeddings[place] = item
        with torch.no_grad():
            logits: Tensor = self.backbone.model(inputs_embeds=embeddings[None]).logits
        return logits[0, -1].log_softmax(0)

    def forth(self, fact: Fact) -> Tensor:
        v = list(self.vectors["forth"][self.run.problem.relations.index(fact.relation)])
        return self.after([v[0], v[1], *self.tokens(fact.subject), v[2]])

    def back(self, fact: Fact, candidate: int) -> list[float]:
        """Each subject token's log-likelihood after "<2> [Y] <1>" and the tokens before it."""
        vectors = self.vectors.get("back", self.vectors["forth"])
        v = list(vectors[self.run.problem.relations.index(fact.relation)])
        sentence: list[Item] = [v[0], v[1], candidate, v[2]]
        found = []
        for token in self.tokens(fact.subject):
            found.append(float(self.after(sentence)[token]))
            sentence.append(token)
        return found


@pytest.mark.parametrize("name", list(METHODS))
def test_losses_and_scores_have_their_shapes_and_are_finite(
    name: str, causal: LanguageModel, facts: FactSet
) -> None:
    problem, method = build(name, causal, facts)
    sentences, vectors = problem.sentences["train"], method.vectors()
    rows = np.array([3, 0, 8, 12])
    loss = method.loss(sentences, rows, vectors)
    assert loss.shape == (4,)
    assert (loss > 0).all()
    scores = method.scores(sentences, rows, vectors)
    assert scores.dtype == torch.float32
    assert scores.shape == (4, causal.vocabulary_size)
    torch.testing.assert_close(scores.exp().sum(1), torch.ones(4), rtol=1e-4, atol=1e-4)
    assert method.sentences_per_fact(sentences, rows).tolist() == [2 if "spe" in name else 1] * 4


@pytest.mark.parametrize("name", list(METHODS))
def test_loss_does_not_depend_on_the_batch(
    name: str, causal_family: str, causal: LanguageModel, facts: FactSet
) -> None:
    problem, method = build(name, causal, facts)
    sentences, vectors = problem.sentences["train"], method.vectors()
    rows = np.arange(len(sentences))
    together = method.loss(sentences, rows, vectors)
    alone = torch.cat([method.loss(sentences, rows[row : row + 1], vectors) for row in rows])
    torch.testing.assert_close(together, alone, rtol=0, atol=tolerance(causal_family))


def test_the_object_never_leaks_into_its_own_question(gpt2: LanguageModel, facts: FactSet) -> None:
    run = free_run(gpt2, facts)
    layout, vectors = run.problem.sentences["train"].object_prompt, run.vectors()["forth"]
    before = object_logits(gpt2, layout, np.arange(3), vectors)
    layout.ids.scatter_(1, layout.object_at[:, None], 7)
    assert torch.equal(object_logits(gpt2, layout, np.arange(3), vectors), before)


def test_a_question_ends_before_its_answer(gpt2: LanguageModel, facts: FactSet) -> None:
    layout = free_run(gpt2, facts).problem.sentences["train"].object_prompt
    rows = torch.arange(3)
    asked = layout.question(rows, layout.object_at[rows], width=layout.ids.shape[1], mask_id=None)
    assert torch.equal(asked.at, layout.object_at[rows] - 1)
    assert torch.equal(asked.mask.sum(1), layout.object_at[rows])
    assert torch.equal(asked.target, layout.ids[rows, layout.object_at[rows]])
    # The object is the last token of its sentence: no frame follows.
    assert torch.equal(layout.object_at + 1, layout.length)


def test_both_directions_equal_loops_over_full_forwards(
    causal_family: str, causal: LanguageModel, facts: FactSet
) -> None:
    run = free_run(causal, facts, average="sum")
    loops, near = Loops(run), tolerance(causal_family)
    sentences, listed = run.problem.sentences["test"], run.problem.facts.facts("test")
    rows = np.arange(len(listed))
    forth = object_logits(
        causal, sentences.object_prompt, rows, run.vectors()["forth"]
    ).log_softmax(1)
    wanted = torch.stack([loops.forth(fact) for fact in listed])
    torch.testing.assert_close(forth, wanted, rtol=0, atol=near)
    candidates = torch.tensor([[10, 20, 30]] * len(listed))
    found = run.method.subject_scores(sentences, rows, candidates, run.vectors(), max_tokens=100)
    sums = [[sum(loops.back(fact, token)) for token in (10, 20, 30)] for fact in listed]
    torch.testing.assert_close(
        found, torch.tensor(sums, dtype=torch.float64), rtol=0, atol=10 * near
    )
    assert max(len(loops.tokens(fact.subject)) for fact in listed) > 2


@pytest.mark.parametrize("average", ["log", "probability", "sum"])
@pytest.mark.parametrize("vectors", ["shared", "separate"])
def test_averages_and_the_training_loss_equal_the_loops(
    average: str, vectors: str, gpt2: LanguageModel, facts: FactSet
) -> None:
    run = free_run(gpt2, facts, average=average, vectors=vectors, train_weight=0.7)
    loops = Loops(run)
    sentences, listed = run.problem.sentences["train"], run.problem.facts.facts("train")
    rows = np.arange(len(listed))[::-1].copy()
    loss = run.method.loss(sentences, rows, run.vectors())
    gold = sentences.gold[rows]
    scores = run.method.subject_scores(
        sentences, rows, gold[:, None], run.vectors(), max_tokens=4096
    )[:, 0]
    for place, row in enumerate(rows):
        (answer,) = loops.tokens(listed[row].object)
        back = np.array(loops.back(listed[row], answer))
        forth = float(loops.forth(listed[row])[answer])
        assert float(loss[place]) == pytest.approx(-forth - 0.7 * back.mean(), abs=1e-9)
        how = {"log": back.mean(), "sum": back.sum(), "probability": np.log(np.exp(back).mean())}
        assert float(scores[place]) == pytest.approx(how[average], abs=1e-9)


def test_manual_scores_are_the_models_own_continuations(
    causal_family: str, causal: LanguageModel, facts: FactSet
) -> None:
    config = causal_config(method={"name": "manual"}, dtype="float64")
    problem = prepare(config, causal, facts)
    assert [str(template) for template in problem.templates] == [
        "The capital of [X] is [Y]",
        "[X] lies in [Y]",
        "[X] lies in [Y]",
    ]
    method = make_method(config, problem)
    tokenizer = causal.vocabulary.tokenizer
    listed = problem.facts.facts("test")
    scores = method.scores(problem.sentences["test"], np.arange(len(listed)), {})
    for row, fact in enumerate(listed):
        text = facts[fact.relation].template.partition(" [Y]")[0].replace("[X]", fact.subject)
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            wanted = causal.model(input_ids=ids).logits[0, -1].log_softmax(0).float()
        torch.testing.assert_close(scores[row], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["ptuning", "spe separate"])
def test_relations_trained_in_one_stack_equal_each_trained_alone(
    name: str, gpt2: LanguageModel, facts: FactSet
) -> None:
    config = causal_config(method=METHODS[name], learning={"clip": 0.1}, dtype="float64")
    stacked = train(config, gpt2, facts)
    together = stacked.predict()
    for relation, relation_name in enumerate(facts.names):
        alone = train(config, gpt2, facts.select([relation_name]), max_tokens=60)
        for part, value in stacked.vectors().items():
            torch.testing.assert_close(value[relation], alone.vectors()[part][0], rtol=0, atol=1e-9)
        mine = together.take(torch.nonzero(together.relation == relation)[:, 0])
        assert torch.equal(mine.candidates, alone.predict().candidates)


def test_fixed_shapes_train_as_passes_that_come_as_they_are(
    gpt2: LanguageModel, facts: FactSet
) -> None:
    config = causal_config(method={"name": "ptuning"}, dtype="float64")
    found = []
    for capture in (False, True):
        _, method, trainer = make_trainer(config, gpt2, facts, capture=capture)
        run_training(trainer)
        found.append(method.vectors()["forth"])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-9)
    problem, spe = build("spe", gpt2, facts)
    # One sentence asks for all of a subject's tokens, which recorded passes do not hold.
    assert spe.queries(problem.sentences["train"], np.arange(2)) is None


@pytest.mark.parametrize("name", ["ptuning", "spe"])
def test_training_lowers_the_loss(name: str, causal: LanguageModel, facts: FactSet) -> None:
    training = {"epochs": 15, "rate": 0.03, "schedule": "constant"}
    config = causal_config(
        method=METHODS[name], prompt={"encoder": "free"}, learning=training, dtype="float64"
    )
    _, _, trainer = make_trainer(config, causal, facts)
    losses = [entry["loss"] for entry in run_training(trainer).history]
    assert losses[-1] < 0.85 * losses[0]


def test_vectors_start_as_the_model_reads_its_words(
    load_family: Callable[..., LanguageModel], facts: FactSet
) -> None:
    gemma = load_family("gemma")
    prompt = {"encoder": "free", "start": "manual"}
    config = causal_config(prompt=prompt, method={"name": "ptuning"}, dtype="float64")
    problem = prepare(config, gemma, facts)
    vectors = make_method(config, problem).vectors()["forth"]
    # "The capital of [X] is [Y]": four words; Gemma's embeddings are scaled as they are looked up.
    words = gemma.vocabulary.encode(["The"])[0] + gemma.vocabulary.encode_words(["capital"])[0]
    wanted = gemma.embed(torch.tensor(words)).float().double()
    torch.testing.assert_close(vectors[0, :2], wanted, rtol=0, atol=1e-6)
    assert str(problem.templates[0]) == "<3> [X] <1> [Y]"
    random = (
        make_method(
            replace(config, prompt=replace(config.prompt, start="random")),
            prepare(causal_config(dtype="float64"), gemma, facts),
        )
        .vectors()["forth"]
        .detach()
    )
    table = gemma.model.get_input_embeddings().weight
    assert float(random.std() / table.std()) == pytest.approx(32**0.5, rel=0.2)


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("template", ["<3> [X] <3> [Y] <3>", "<2> [Y] <2> [X]", "<1> [X] in [Y] ."])
def test_a_template_that_goes_on_after_the_object_is_refused(
    template: str, gpt2: LanguageModel, facts: FactSet
) -> None:
    config = causal_config(prompt={"template": template})
    with pytest.raises(ConfigError, match=r"\[Y\] must stand last.*lama-spe-gpt") as error:
        prepare(config, gpt2, facts)
    assert CAUSAL_TEMPLATE in str(error.value)


@pytest.mark.parametrize("change", [{"blanks": "kept"}, {"masking": "whole"}])
def test_ways_back_that_need_both_sides_are_refused(
    change: dict[str, str], gpt2: LanguageModel, facts: FactSet
) -> None:
    ((key, value),) = change.items()
    with pytest.raises(ConfigError, match=rf'method\.{key} = "{value}".*use "'):
        prepare(causal_config(method={"name": "spe", **change}), gpt2, facts)
    prepare(causal_config(method={"name": "ptuning", **change}), gpt2, facts)


def test_a_manual_template_with_the_subject_last_is_refused(
    gpt2: LanguageModel, facts: FactSet
) -> None:
    turned = replace(facts["near"], template="[Y] is near [X] .")
    given = replace(facts, relations=(turned,))
    with pytest.raises(DataError, match=r"relation near.*subject after the object"):
        make_templates(causal_config(method={"name": "manual"}), gpt2.vocabulary, given)


# ------------------------------------------------------------------------------- from end to end


@pytest.mark.parametrize("config", ["lama-manual", "lama-ptuning-gpt", "lama-spe-gpt"])
def test_the_commands_work_with_a_causal_model(
    config: str,
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, out, data = str(family_folder("qwen2")), str(tmp_path / "run"), tmp_path / "facts.tsv"
    lines = ["subject\trelation\tobject\tsplit\ttemplate"]
    for relation in make_facts().relations:
        for split in ("train", "dev", "test"):
            lines += [
                f"{fact.subject}\t{fact.relation}\t{fact.object}\t{split}\t{relation.template}"
                for fact in relation.split(split)  # type: ignore[arg-type]
            ]
    data.write_text("\n".join(lines) + "\n")
    place = ["--model", model, "--data", str(data), "--out", out, "--device", "cpu"]
    cli.main(["train", config, *place, "--epochs", "1"])
    cli.main(["table", out, "--draws", "20"])
    cli.main(["data", "check", str(data), "--model", model])
    assert "run folder" in capsys.readouterr().out
    run = Run.load(out)
    assert run.metrics["test"]["facts"] == 10
    predictions, _ = run.predictions("test")
    answers = run.ask("capital", subject="France", top=5, device="cpu")
    assert len(answers) == 5
    if config == "lama-spe-gpt":
        assert predictions.asked_back
        subjects = run.ask("capital", object="Paris", top=8, device="cpu")
        assert {answer.text for answer in subjects} <= {fact.subject for fact in _capitals()}
        assert all(np.isfinite(answer.subject_score) for answer in subjects)  # type: ignore[arg-type]


def _capitals() -> tuple[Fact, ...]:
    return tuple(make_facts()["capital"].all())
