"""Further subject prompts, masked in other ways, whose scores are further terms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import symprompt
from symprompt.errors import ConfigError
from symprompt.facts import FactSet
from symprompt.files.progress import silent
from symprompt.models import LanguageModel
from symprompt.probing.asked_once import AskedBack, score_subjects
from symprompt.probing.evaluate import predict_splits
from symprompt.probing.inspect import describe_prompts
from symprompt.probing.rerank import rerank_run
from symprompt.probing.results import Combination, load_combination
from tiny.models import CAUSAL_TEMPLATE, run_config, train
from tiny.runs import SEPARATE, Make

FITTED: dict[str, Any] = {**SEPARATE, "choose_weight": "dev-fit"}


def further(*ways: str) -> dict[str, str]:
    """Return the settings of subject prompts beside the first, which mask so."""
    return dict(zip(("second", "third"), ways, strict=False))


@pytest.mark.parametrize("ways", [["chain"], ["whole"], ["whole", "chain"]])
def test_they_learn_beside_the_first_and_change_nothing_there(
    ways: list[str], bert: LanguageModel, facts: FactSet
) -> None:
    learning = {"epochs": 4, "rate": 0.02}
    method = {"name": "spe", **FITTED}
    alone = train(run_config(method=method, learning=learning, dtype="float64"), bert, facts)
    both = train(
        run_config(method={**method, **further(*ways)}, learning=learning, dtype="float64"),
        bert,
        facts,
    )
    for part in ("forth", "back"):
        torch.testing.assert_close(both.vectors()[part], alone.vectors()[part], rtol=0, atol=1e-9)
    assert set(both.vectors()) == {"forth", "back", *further(*ways)}
    # Their own losses on dev fall, and are those of subjects masked their way.
    first, last = both.dev_history[0], both.dev_history[-1]
    for part in further(*ways):
        assert (last[part] > first[part]).all()
        assert not np.allclose(first[part], first["back"])


def test_its_score_is_by_its_own_vectors_and_masking(bert: LanguageModel, facts: FactSet) -> None:
    config = run_config(
        method={"name": "spe", **FITTED, **further("chain", "whole")},
        learning={"epochs": 1},
        dtype="float64",
    )
    run = train(config, bert, facts)
    found = predict_splits(run.method, run.problem, run.vectors(), 4, silent, {})["test"]
    sentences = run.problem.sentences["test"]
    for part, masking, stored in (
        ("back", "one", found.subject_score),
        ("second", "chain", found.terms["second"]),
        ("third", "whole", found.terms["third"]),
    ):
        wanted = score_subjects(
            bert,
            AskedBack.fetch(
                sentences.subject_prompt,
                np.arange(len(sentences)),
                torch.from_numpy(found.candidates),
            ),
            run.vectors()[part],
            masking=masking,  # type: ignore[arg-type]
            average=config.method.average,
            max_tokens=4096,
        )
        np.testing.assert_allclose(stored, wanted.numpy(), atol=1e-5)


def test_a_run_stores_it_apart_and_answers_by_it(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {
        "subject": [0.5, 2.0], "second": [1.5, 0.25], "frequency": [0.75, 1.25], "copy": [0.0, 0.0]
    }  # fmt: skip
    fitted = Combination({name: np.array(own) for name, own in weights.items()})
    monkeypatch.setattr("symprompt.probing.evaluate.fit_combination", lambda *_, **__: fitted)
    run = symprompt.train(make(tmp_path / "run", method={**FITTED, "second": "chain"}))
    assert run.metrics["weights"]["second"] == {"capital": 1.5, "in": 0.25}
    stored = load_combination(run.folder)
    assert stored is not None
    predictions, facts = run.predictions("test")
    joint = predictions.joint(stored)
    for row, fact in enumerate(facts):
        answers = run.ask(fact.relation, subject=fact.subject, top=joint.shape[1])
        by_object = sorted(answers, key=lambda answer: -answer.object_score)
        found = [answer.terms["second"] for answer in by_object]
        assert found == pytest.approx(predictions.terms["second"][row].tolist(), abs=1e-5)
        assert [own.joint for own in by_object] == pytest.approx(joint[row].tolist(), abs=1e-5)
    # So are the subjects of an object.
    pairs = 0
    subjects = run.ask("in", object="Cuba", top=20)
    assert subjects.weights == {"subject": 2.0, "second": 0.25}
    for one in subjects:
        assert one.subject_score is not None
        joint_score = one.object_score + 2.0 * one.subject_score + 0.25 * one.terms["second"]
        assert one.joint == pytest.approx(joint_score, abs=1e-5)
        for answer in run.ask("in", subject=one.text, top=5):
            if answer.text == "Cuba" and answer.joint is not None:
                assert answer.terms["second"] == pytest.approx(one.terms["second"], abs=1e-5)
                pairs += 1
    assert pairs
    # Another run's candidates are asked back by both prompts too.
    ptuning = symprompt.train(make(tmp_path / "ptuning", method={"name": "ptuning"}, seed=5))
    back = rerank_run(ptuning.folder.path, run.folder.path, tmp_path / "back", device="cpu")
    assert "second" in back.predictions("test")[0].terms
    np.testing.assert_array_equal(
        back.predictions("test")[0].candidates, ptuning.predictions("test")[0].candidates
    )


@pytest.mark.parametrize("ways", [["chain"], ["chain", "whole"]])
def test_all_are_fitted_answered_by_and_asked_for_others(
    ways: list[str], make: Make, tmp_path: Path
) -> None:
    run = symprompt.train(make(tmp_path / "run", method={**FITTED, **further(*ways)}))
    asked = {"subject", *further(*ways)}
    assert set(run.metrics["weights"]) == {*asked, "frequency", "copy"}
    (answer, *_) = run.ask("in", subject="Cuba", top=2)
    assert asked - {"subject"} <= set(answer.terms)
    assert set(run.ask("in", object="Cuba", top=2).weights or ()) == asked
    # Its prompts are shown, the subject's turned around.
    (view,) = describe_prompts(run, relations=["in"], device="cpu")
    assert set(view.prompts) == {"forth", "back", *further(*ways)}
    assert len({view.prompts[part] for part in ("back", *further(*ways))}) == 1
    # A weight that is not fitted is the first one's.
    ptuning = symprompt.train(make(tmp_path / "ptuning", method={"name": "ptuning"}, seed=5))
    back = rerank_run(
        ptuning.folder.path, run.folder.path, tmp_path / "back", choose_weight="dev", device="cpu"
    )
    assert set(back.metrics["weights"]) == {"subject"}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"vectors": "shared"}, 'vectors = "shared"'),
        ({"choose_weight": "dev"}, 'choose_weight = "dev"'),
        ({"masking": "chain"}, 'masking = "chain"'),
        ({"third": "chain"}, 'second = "chain"'),
        ({"second": "none", "third": "chain"}, 'second = "none"'),
        ({"name": "ptuning"}, 'name = "ptuning"'),
    ],
)
def test_what_it_does_not_go_with_is_refused(
    changed: dict[str, Any], named: str, make: Make, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"does not go with method.{named}"):
        symprompt.train(make(tmp_path / "run", method={**FITTED, "second": "chain", **changed}))
    assert not (tmp_path / "run").exists()


def test_a_causal_model_masks_nothing(
    make: Make, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    config = make(
        tmp_path / "run",
        model=str(family_folder("gpt2")),
        method={**FITTED, "second": "chain"},
        prompt={"template": CAUSAL_TEMPLATE},
    )
    with pytest.raises(ConfigError, match="a causal model masks nothing"):
        symprompt.train(config)
    assert not (tmp_path / "run").exists()
