"""Methods on causal models: questions end before their answers, training, refusals, commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from symprompt import Run, cli
from symprompt.errors import ConfigError, DataError
from symprompt.facts import FactSet
from symprompt.models import LanguageModel
from symprompt.probing.prepare import CAUSAL_TEMPLATE, make_method, make_templates, prepare
from tiny.models import causal_config, make_facts, make_trainer, run_training, train
from tiny.runs import write_csv

SEPARATE = {"name": "spe", "vectors": "separate"}


def test_a_question_ends_before_its_answer(gpt2: LanguageModel, facts: FactSet) -> None:
    layout = prepare(causal_config(), gpt2, facts).sentences["train"].object_prompt
    rows = torch.arange(3)
    asked = layout.question(rows, layout.object_at[rows], width=layout.ids.shape[1], mask_id=None)
    assert torch.equal(asked.at, layout.object_at[rows] - 1)
    assert torch.equal(asked.mask.sum(1), layout.object_at[rows])
    assert torch.equal(asked.target, layout.ids[rows, layout.object_at[rows]])
    # The object is the last token of its sentence: no frame follows.
    assert torch.equal(layout.object_at + 1, layout.length)


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
    problem, spe, _ = make_trainer(causal_config(dtype="float64"), gpt2, facts)
    # One sentence asks for all of a subject's tokens, which recorded passes do not hold.
    assert spe.queries(problem.sentences["train"], np.arange(2)) is None


@pytest.mark.parametrize("name", ["ptuning", "spe"])
def test_training_lowers_the_loss(name: str, causal: LanguageModel, facts: FactSet) -> None:
    training = {"epochs": 15, "rate": 0.03, "schedule": "constant"}
    config = causal_config(
        method={"name": name}, prompt={"encoder": "free"}, learning=training, dtype="float64"
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


@pytest.mark.parametrize(("key", "value"), [("blanks", "kept"), ("masking", "whole")])
def test_subject_prompts_that_need_both_sides_are_refused(
    key: str, value: str, gpt2: LanguageModel, facts: FactSet
) -> None:
    with pytest.raises(ConfigError, match=rf'method\.{key} = "{value}".*use "'):
        prepare(causal_config(method={"name": "spe", key: value}), gpt2, facts)
    prepare(causal_config(method={"name": "ptuning", key: value}), gpt2, facts)


def test_one_and_chain_are_the_same_to_a_causal_model(gpt2: LanguageModel, facts: FactSet) -> None:
    learned = []
    for masking in ("one", "chain"):
        config = causal_config(method={"name": "spe", "masking": masking}, dtype="float64")
        run = train(config, gpt2, facts)
        learned.append((run.vectors()["forth"], run.predict().subject_score))
    assert torch.equal(learned[0][0], learned[1][0])
    assert np.array_equal(learned[0][1], learned[1][1])


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
    model, out = str(family_folder("qwen2")), str(tmp_path / "run")
    data = write_csv(make_facts(), tmp_path / "facts.csv")
    place = ["--model", model, "--data", str(data), "--out", out, "--device", "cpu"]
    cli.main(["train", config, *place, "--epochs", "1"])
    cli.main(["table", out, "--draws", "20"])
    cli.main(["data", "check", str(data), "--model", model])
    assert "run folder" in capsys.readouterr().out
    run = Run.load(out)
    assert run.metrics["test"]["facts"] == 10
    predictions, _ = run.predictions("test")
    assert len(run.ask("capital", subject="France", top=5, device="cpu")) == 5
    if config == "lama-spe-gpt":
        assert predictions.asked_back
        subjects = run.ask("capital", object="Paris", top=8, device="cpu")
        known = {fact.subject for fact in make_facts()["capital"].all()}
        assert {answer.text for answer in subjects} <= known
        assert all(np.isfinite(answer.subject_score) for answer in subjects)  # type: ignore[arg-type]
