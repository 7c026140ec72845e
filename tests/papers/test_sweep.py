"""Sweeps: every setting and seed is a job, dev chooses, test is shown of the best alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from symprompt.cluster import executor
from symprompt.cluster.executor import Event, Executor
from symprompt.errors import RunError, SympromptError
from symprompt.papers import sweep as sweeping
from symprompt.papers import worker
from symprompt.papers.settings import SweepSettings
from symprompt.papers.sweep import chosen_and_reported, make_sweep_plan, sweep
from symprompt.probing.results import load_metrics
from symprompt.report.records import list_runs
from symprompt.runs.folder import JOBS, Folder
from tiny.labelled import write_labelled, write_long_model
from tiny.runs import Call, InlineExecutor, write_lama


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    write_labelled(folder / "data")
    write_long_model(folder / "toy")
    return folder


@pytest.fixture
def settings(place: Path, tmp_path: Path) -> SweepSettings:
    return SweepSettings(
        recipe="rte-pt2",
        grid=("learning.rate=1e-3,1e-2", "prefix.length=2"),
        seeds=(1, 2),
        model=str(place / "toy"),
        data=str(place / "data/rte"),
        set=("learning.epochs=1",),
        out=str(tmp_path / "out"),
    )


def test_the_best_on_dev_comes_first_and_alone_shows_test(
    settings: SweepSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sweep(settings, executor=InlineExecutor())
    assert len(made.outcome.made) == 4
    plan, tried = make_sweep_plan(settings)
    assert tried == [{"learning.rate": rate, "prefix.length": 2} for rate in (0.001, 0.01)]
    by_hand = {}
    for setting in tried:
        rate = setting["learning.rate"]
        jobs = [job for job in plan.jobs if job.config.learning.rate == rate]  # type: ignore[union-attr]
        by_hand[rate] = [chosen_and_reported(job.config) for job in jobs]
    best = max(by_hand, key=lambda rate: fmean(dev for _, dev, _ in by_hand[rate]))
    assert made.best.setting["learning.rate"] == best
    assert made.best.test == tuple(test for _, _, test in by_hand[best])
    (rows,) = made.grid.sections
    assert made.grid.header == (
        *("learning.rate", "prefix.length", "seeds"),
        *("accuracy, dev", "accuracy, test"),
    )
    assert [row[-1] == "–" for row in rows] == [False, True]
    page = (Path(settings.out) / "report.md").read_text()
    assert f"{fmean(made.best.test):.2f}" in page
    # The toy's figures may tie.
    stated = lambda config: ("accuracy", 100 * config.learning.rate + config.seed, -1.0)  # noqa: E731
    monkeypatch.setattr(sweeping, "chosen_and_reported", stated)
    again = sweep(settings, executor=InlineExecutor())
    assert not again.outcome.made
    assert [one.setting["learning.rate"] for one in again.tried] == [0.01, 0.001]
    assert again.best.dev == (2.0, 3.0)


def test_a_sweep_goes_on_and_takes_more_values(settings: SweepSettings) -> None:
    first = sweep(replace(settings, seeds=(1,)), executor=InlineExecutor())
    more = replace(settings, grid=("learning.rate=1e-3,1e-2,3e-2", "prefix.length=2"), seeds=(1,))
    again = sweep(more, executor=InlineExecutor())
    assert set(again.outcome.skipped) == set(first.outcome.made)
    assert [name.split("/")[1] for name in again.outcome.made] == [
        "learning.rate=0.03-prefix.length=2-1"
    ]
    with pytest.raises(RunError, match=r"another value of learning\.epochs"):
        sweep(replace(more, set=("learning.epochs=2",)), executor=InlineExecutor())


def test_a_setting_that_fails_is_reported_and_never_the_best(
    settings: SweepSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = worker.tune

    def broken(config: Any, **options: Any) -> Any:
        if config.learning.rate == 1e-2 and config.seed == 2:
            raise SympromptError("the loss is not finite.")
        return real(config, **options)

    monkeypatch.setattr(worker, "tune", broken)
    made = sweep(settings, executor=InlineExecutor())
    assert list(made.outcome.failed.values()) == ["the loss is not finite."]
    assert made.best.setting["learning.rate"] == 1e-3
    assert made.grid.sections[0][1][2] == "1 of 2"
    assert "failed: the loss is not finite." in (Path(settings.out) / "report.md").read_text()


def test_recipes_of_facts_and_patterns_are_swept_too(
    family_folder: Callable[[str], Path], place: Path, tmp_path: Path
) -> None:
    facts = SweepSettings(
        recipe="lama-ptuning",
        grid=("learning.rate=1e-3,1e-2",),
        model=str(family_folder("bert")),
        data=str(write_lama(tmp_path / "lama")),
        set=("learning.epochs=1",),
        out=str(tmp_path / "facts"),
    )
    made = sweep(facts, executor=InlineExecutor())
    assert made.best.metric == "MRR"
    rate = made.best.setting["learning.rate"]
    folder = Folder(next((tmp_path / "facts/runs").glob(f"*/learning.rate={rate}-*")))
    stored = load_metrics(folder)["dev"]["raw"]["realistic"]["mean over relations"]["mrr"]
    assert made.best.dev == (stored,)
    words = SweepSettings(
        recipe="fewglue-rte",
        grid=("learning.prompt_rate=1e-4,1e-3",),
        seeds=(7,),
        model=str(place / "toy"),
        data=str(place / "data/FewGLUE_32dev"),
        set=("learning.epochs=1", "keep_weights=false"),
        out=str(tmp_path / "words"),
    )
    assert len(sweep(words, executor=InlineExecutor()).tried) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "rte-pt3"}, r"recipe 'rte-pt3' is neither .*did you mean rte-pt"),
        ({"grid": ("learning.rat=1",)}, r"unknown key learning\.rat; did you mean learning\.rate"),
        ({"grid": ("lerning.rate=1",)}, r"unknown key lerning\.rate; did you mean learning\.rate"),
        ({"grid": ("learning.rate",)}, "--grid has 'learning.rate'; give KEY=VALUE"),
        ({"grid": ("learning.rate=0.0",)}, r"learning\.rate is 0\.0; it must be in \(0, 1e\+30\]"),
        ({"grid": ("seed=1,2",)}, "--grid has seed, which has a flag of its own"),
        ({"grid": ("learning.epochs=1,2",)}, "--grid has learning.epochs, which"),
        ({"grid": ("length=3",)}, "length may be prefix.length or span.length"),
        ({"grid": ("a=1", "a=2")}, "--grid has a twice"),
        ({"seeds": (1, 1)}, "--seeds has one twice"),
        ({"model": "/no/such"}, "/no/such is not a model folder"),
        ({"jobs": 0}, "jobs is 0"),
    ],
)
def test_bad_settings_are_one_sentence(
    settings: SweepSettings, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SympromptError, match=message) as caught:
        make_sweep_plan(replace(settings, **changes))
    assert "\n" not in str(caught.value)
    assert not Path(settings.out).exists()


def test_the_command_prints_the_table(
    call: Call, settings: SweepSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "LocalExecutor", lambda *_, **__: InlineExecutor())
    words = ["sweep", settings.recipe, "--grid", *settings.grid, "--set", *settings.set]
    words += ["--model", settings.model, "--data", settings.data, "--out", settings.out]
    said = call(*words, "--seeds", "1,2", "--dry-run").done
    assert "4 runs, 0 of them done" in said
    said = call(*words, "--seeds", "1", "--jobs", 1).done
    assert "accuracy, dev" in said
    # A second seed is estimated from the first.
    code, said, _ = call(*words, "--seeds", "1,2", "--dry-run")
    assert "4 runs, 2 of them done" in said
    assert said.count(" about ") == 2
    assert said.count(" GiB of memory") == 2
    assert "of work in runs like those that are done" in said
    said = call("table", Path(settings.out) / "results.json", "--format", "markdown").done
    assert "learning.rate=0.01-prefix.length=2" in said
    code, _, error = call("sweep")
    assert code == 2
    assert "recipe" in error


class Stopping(Executor):
    """Makes the first job, fails at the second, and is stopped at the third."""

    def run(self, jobs: Sequence[Any]) -> Generator[Event, None, None]:
        first, second, third, *_ = jobs
        yield from InlineExecutor().run([first])
        yield Event(second.name, "failed", "it does not fit.")
        yield Event(third.name, "progress", "training 2/9")
        seen.append(list_runs(str(Path(third.config.out).parents[2])))
        raise KeyboardInterrupt


seen: list[list[dict[str, Any]]] = []


def test_the_list_of_runs_has_the_state_of_every_job(call: Call, settings: SweepSettings) -> None:
    own = replace(settings, seeds=(1, 2))
    with pytest.raises(KeyboardInterrupt):
        sweep(own, executor=Stopping())
    made, failed, going, waiting = [job.config.out for job in make_sweep_plan(own)[0].jobs]

    def states(rows: list[dict[str, Any]]) -> dict[str, str]:
        return {row["name"]: row["state"] for row in rows if row.get("command") != "sweep"}

    names = [str(Path(out).relative_to(own.out)) for out in (made, failed, going, waiting)]
    told = ["finished", "failed: it does not fit.", "running: training 2/9", "waiting"]
    assert states(seen[0]) == dict(zip(names, told, strict=True))
    # Nobody is at work there any more.
    told[2:] = ["stopped", "stopped"]
    assert states(list_runs(own.out)) == dict(zip(names, told, strict=True))
    said = call("runs", own.out).done
    assert "failed: it does not fit." in said
    sweep(own, executor=InlineExecutor())
    assert set(states(list_runs(own.out)).values()) == {"finished"}
    assert not (Path(own.out) / JOBS).exists()
