"""Plans on labelled tasks: what is run, what is not there, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from symprompt.errors import ConfigError, DataError, RunError
from symprompt.papers.jobs import load_metrics, run_jobs
from symprompt.papers.settings import V2_TASKS, TaskSettings
from symprompt.papers.task_jobs import VERBALIZED, make_task_plan, task_recipe
from symprompt.tasks.config import PatternRunConfig, load_pattern_config
from symprompt.tasks.patterns.pattern import TASKS
from tiny.labelled import write_labelled, write_long_model
from tiny.runs import InlineExecutor


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labelled(tmp_path_factory.mktemp("labelled"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_long_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def settings(data: Path, tmp_path: Path, model: Path) -> TaskSettings:
    return TaskSettings(
        paper="ptuning-v2",
        data=str(data),
        out=str(tmp_path / "out"),
        models=(f"toy={model}",),
        seeds=(1, 2),
        epochs=1,
    )


def names(settings: TaskSettings) -> list[str]:
    return [job.name.removeprefix("toy/") for job in make_task_plan(settings).jobs]


def test_every_task_method_and_seed_is_run(settings: TaskSettings) -> None:
    found = names(settings)
    for name in ("rte-ft-1", "rte-pt2-2", "boolq-lora-1", "conll2003-pt-2", "squad-pt2-1"):
        assert name in found
    assert {"rte-pt2-mlp-1", "conll2004-pt2-mlp-2", "rte-verbalizer"} <= set(found)
    assert "boolq-pt2-verbalizer" in found
    assert "squad-pt2-mlp-1" not in found
    assert "conll2003-verbalizer" not in found
    assert [name for name in found if "mpt2" in name] == ["ner-mpt2-1", "ner-mpt2-2"]
    assert len(found) == len(set(found))


def test_what_is_not_there_is_told(settings: TaskSettings) -> None:
    missing = make_task_plan(settings).missing
    absent = {"sst2", "mnli", "cb", "ontonotes", "squad2", "conll05", "conll12", "propbank-ewt"}
    assert absent <= set(missing)
    assert "MPT-2 on squad, squad2" in missing
    assert "there is squad" in missing["MPT-2 on squad, squad2"]
    assert "none of them" in missing["MPT-2 on conll12, conll05, propbank-ewt"]


def test_a_set_without_training_examples_is_not_measured(
    settings: TaskSettings, tmp_path: Path
) -> None:
    folder = tmp_path / "only_dev" / "squad2"
    folder.mkdir(parents=True)
    source = Path(settings.data, "squad/dev-v1.1.json").read_text()
    (folder / "dev-v2.0.json").write_text(source)
    write_labelled(tmp_path / "only_dev")
    changed = replace(settings, data=str(tmp_path / "only_dev"), tasks=("squad2", "rte"))
    plan = make_task_plan(changed)
    assert plan.missing["squad2"] == "squad2 has no training examples"
    assert {job.tasks for job in plan.jobs} == {("rte",)}


def test_a_task_may_be_anywhere_in_the_data(settings: TaskSettings, tmp_path: Path) -> None:
    root = write_labelled(tmp_path / "moved")
    (root / "rte").rename(root / "elsewhere")
    changed = replace(settings, data=str(root), tasks=("rte=elsewhere",), methods=("pt2",))
    (job, _) = make_task_plan(changed).jobs
    assert job.config.data == str(root / "elsewhere")


def test_ptuning_takes_32_examples_and_whole_sets(settings: TaskSettings) -> None:
    assert replace(settings, paper="ptuning").known_tasks == tuple(TASKS)
    found = names(replace(settings, paper="ptuning"))
    expected = {
        *("rte-32-zero-shot-ptuning", "rte-32-cls", "rte-32-mp-ptuning", "rte-32-ptuning"),
        *(f"rte-32-pet-pet-{number}" for number in range(5)),
        *(f"rte-32-table6-{name}" for name in ("agree-1", "agree-2", "named", "truth")),
        *("cb-32-ptuning", "cb-32-pet-pet-0", "rte-full-ptuning", "boolq-full-mp-pet-0"),
    }
    assert expected <= set(found)
    # Not in the paper; one pattern alone on whole sets; patterns of Table 6 for RTE alone.
    assert not [name for name in found if "frozen" in name or "full-pet" in name]
    assert not [name for name in found if "table6" in name and not name.startswith("rte-32")]
    # The whole of CB is not there, and neither are WiC's 32 examples.
    assert not [name for name in found if name.startswith(("cb-full", "wic"))]
    missing = make_task_plan(replace(settings, paper="ptuning")).missing
    assert {"cb, full training set", "wic, 32 examples", "wic, full training set"} <= set(missing)
    assert "rte, 32 examples" not in missing


def test_causal_models_have_patterns_that_end_with_the_answer(
    settings: TaskSettings, family_folder: Callable[[str], Path]
) -> None:
    model = f"toy={family_folder('gpt2')}"
    found = names(replace(settings, paper="ptuning", models=(model,), tasks=("rte",)))
    assert [name for name in found if "pet-pet" in name] == ["rte-32-pet-pet-4"]


def test_trials_are_short_in_every_config(settings: TaskSettings) -> None:
    for paper in ("ptuning-v2", "ptuning"):
        chosen: Any = replace(settings, paper=paper, limit=3)  # type: ignore[arg-type]
        for job in make_task_plan(chosen).jobs:
            assert job.config.learning.epochs == 1
            if isinstance(job.config, PatternRunConfig):
                assert job.config.pattern.test_limit == job.config.pattern.train_limit == 3
            else:
                assert job.config.task.train_limit == job.config.task.test_limit == 3


@pytest.mark.parametrize("task", V2_TASKS)
def test_every_method_has_a_recipe_for_every_task(task: str) -> None:
    methods = ("pt2", "pt2-mlp", "pt", "ft", "lora")
    for method in methods:
        config = task_recipe(task, method)
        assert config.task.name == task
        assert config.method == method.removesuffix("-mlp")
        assert config.prefix.encoder == ("mlp" if method.endswith("-mlp") else "free")
    assert len({task_recipe(task, method).task.max_length for method in methods}) == 1


def test_done_runs_are_skipped_and_seeds_may_be_added(settings: TaskSettings) -> None:
    chosen = ("pt2", "pt2-verbalizer", "verbalizer")
    own = replace(settings, tasks=("rte",), methods=chosen, seeds=(1,))
    plan = make_task_plan(own)
    plan.begin()
    first = run_jobs(plan, InlineExecutor())
    assert set(first.made) == {"toy/rte-pt2-1", "toy/rte-pt2-verbalizer", "toy/rte-verbalizer"}
    assert not first.failed
    again = run_jobs(make_task_plan(own), InlineExecutor())
    assert set(again.skipped) == set(first.made)
    assert not again.made
    more = run_jobs(make_task_plan(replace(own, seeds=(1, 2))), InlineExecutor())
    assert set(more.made) == {"toy/rte-pt2-2", "toy/rte-pt2-verbalizer", "toy/rte-verbalizer"}
    assert more.skipped == ("toy/rte-pt2-1",)
    (job,) = [job for job in plan.jobs if job.row == "verbalizer"]
    assert load_metrics(job.config)["seeds"] == [1, 2]


def test_words_and_a_head_are_trained_alike() -> None:
    for task in VERBALIZED:
        for method in ("pt", "pt2"):
            like = task_recipe(task, method)
            words = load_pattern_config(f"superglue-{task}-{method}")
            assert words.learning.prompt_rate == like.learning.rate
            assert words.learning.epochs == like.learning.epochs
            assert words.learning.batches == (like.learning.batch,)
            assert words.pattern.max_length == like.task.max_length
            assert not words.learning.model_dropout
            assert not like.learning.dropout
            if method == "pt2":
                assert words.pattern.method == "pt2"
                assert words.pattern.prefix_length == like.prefix.length
                assert words.pattern.prefix_dropout == like.prefix.dropout
            else:
                assert not words.pattern.train_model
                assert f"<{like.prefix.length}>" in words.pattern.template


def test_a_folder_made_otherwise_is_refused(settings: TaskSettings) -> None:
    own = replace(settings, tasks=("rte",), methods=("pt2",))
    make_task_plan(own).begin()
    with pytest.raises(RunError, match="another value of epochs"):
        make_task_plan(replace(own, epochs=2))
    with pytest.raises(RunError, match="another value of paper"):
        make_task_plan(replace(own, paper="ptuning", methods=()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("nonsense",)}, "method 'nonsense' is not known; known are: ft, pt"),
        ({"methods": ("ft", "ft")}, "--methods has ft twice"),
        ({"tasks": ("nonsense",)}, "task 'nonsense' is not known; known are: sst2"),
        ({"tasks": ("rte=nowhere",)}, "which is no folder"),
        ({"tasks": ("mnli",)}, "nothing to train .mnli: no files of it"),
        ({"tasks": ("rte",), "methods": ("mpt2",)}, "nothing to train"),
        ({"data": ""}, "--data is missing"),
        ({"data": "/no/such"}, "which is no folder"),
        ({"seeds": (1, 1)}, "--seeds has 1 twice"),
        ({"limit": -1}, "limit is -1"),
        ({"models": ()}, "--models is empty"),
    ],
)
def test_bad_settings_are_one_sentence(
    settings: TaskSettings, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        make_task_plan(replace(settings, **changes))
    assert "\n" not in str(caught.value)
    assert not Path(settings.out).exists()


def test_files_that_cannot_be_read_are_no_gap(settings: TaskSettings, tmp_path: Path) -> None:
    root = write_labelled(tmp_path / "broken")
    (root / "rte/train.jsonl").write_text("{nonsense\n")
    with pytest.raises(DataError, match=r"train.jsonl"):
        make_task_plan(replace(settings, data=str(root)))
