"""The plan: which runs there are, which rows say why they have none, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from symprompt.cluster.executor import list_devices
from symprompt.config import shipped_configs
from symprompt.errors import ConfigError, DataError, ModelError, RunError, SympromptError
from symprompt.papers import fact_jobs
from symprompt.papers.fact_jobs import (
    NAMES,
    NAMES_RUN,
    PARAPHRASES,
    ROWS,
    Row,
    list_names,
    list_paraphrases,
    list_rows,
    make_fact_plan,
)
from symprompt.papers.jobs import hold_folder
from symprompt.papers.settings import FactSettings
from symprompt.prompts import Template
from tiny.runs import make_lama, other_model, write_lama, write_lama_prompts


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lama(tmp_path_factory.mktemp("data") / "lama")


@pytest.fixture
def settings(data: Path, family_folder: Callable[[str], Path], tmp_path: Path) -> FactSettings:
    return FactSettings(
        data=str(data),
        out=str(tmp_path / "out"),
        models=(f"toy={family_folder('bert')}",),
        methods=("manual", "ptuning", "spe"),
        seeds=(1, 2),
    )


def test_every_method_model_and_seed_has_a_run(
    settings: FactSettings, family_folder: Callable[[str], Path]
) -> None:
    models = (*settings.models, f"other={family_folder('bert')}")
    found = make_fact_plan(replace(settings, models=models))
    for model in ("toy", "other"):
        names = [run.name for run in found.jobs if run.model == model]
        assert names == [
            f"{model}/{name}"
            for name in (
                "lama-manual-1",
                "lama-ptuning-1",
                "lama-ptuning-2",
                "lama-spe-1",
                "lama-spe-k30-1",
                "lama-spe-2",
                "lama-spe-k30-2",
                "paraphrase-1",
                "paraphrase-2",
                "paraphrase-3",
                "names",
            )
        ]
    larger = found.of_row("toy", "lama-spe-k30")
    assert [run.source and run.source.name for run in larger] == [
        "toy/lama-spe-1",
        "toy/lama-spe-2",
    ]
    assert {run.config.method.k for run in larger} == {30}


def test_a_plan_writes_nothing_until_told(settings: FactSettings) -> None:
    found = make_fact_plan(settings)
    assert not Path(settings.out).exists()
    found.begin()
    assert (Path(settings.out) / "inputs/toy/names.csv").is_file()
    assert make_fact_plan(settings) == found


def test_trial_settings_reach_every_run(settings: FactSettings) -> None:
    trial = replace(settings, limit=2, epochs=3, relations=("P36", "P17"))
    for run in make_fact_plan(trial).jobs:
        assert run.config.facts.test_limit == 2
        assert set(run.config.facts.relations) == {"P36", "P17"}
        if run.row == "lama-ptuning":
            assert run.config.learning.epochs == 3


def test_causal_models_get_configs_and_templates_that_end_with_the_object(
    settings: FactSettings, family_folder: Callable[[str], Path]
) -> None:
    models = (f"gpt={family_folder('gpt2')}",)
    found = make_fact_plan(replace(settings, models=models, methods=()))
    assert found.models[0].source.causal
    for run in found.jobs:
        template = run.config.prompt.template
        if run.config.method.name != "manual" and template != "manual":
            assert Template.parse(template).ends_with_object, run.name
    (spe, _) = found.of_row("gpt", "lama-spe")
    assert spe.config.prompt.template == "<3> [X] <3> [Y]"


def test_a_row_without_a_config_is_not_listed_and_every_listed_one_ships() -> None:
    shipped = set(shipped_configs("train"))
    for row in list_rows():
        assert row.config in shipped
        assert not row.causal or row.causal in shipped
    assert {row.config for row in ROWS} >= {row.config for row in list_rows()}


def test_rows_that_cannot_be_run_say_why(
    settings: FactSettings,
    family_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = (
        Row("written", "lama-manual", "lama-manual", needs_prompts=True),
        Row("masked only", "lama-ptuning"),
    )
    monkeypatch.setattr(fact_jobs, "ROWS", table)
    models = (*settings.models, f"gpt={family_folder('gpt2')}")
    found = make_fact_plan(replace(settings, models=models, methods=()))
    assert found.missing == {
        "toy/lama-manual": "needs --prompts",
        "gpt/lama-manual": "needs --prompts",
        "gpt/lama-ptuning": "not for causal models",
    }


def test_written_prompts_are_combined_in_three_ways(settings: FactSettings, tmp_path: Path) -> None:
    folder = write_lama_prompts(tmp_path / "prompts")
    methods = ("lpaqa", "lpaqa-uniform", "lpaqa-top1")
    found = make_fact_plan(replace(settings, methods=methods, prompts=(str(folder),)))
    # In the tables' order, each of them once: no seed changes them.
    assert [run.name for run in found.jobs if run.row != NAMES_RUN] == [
        "toy/lama-lpaqa-top1-1",
        "toy/lama-lpaqa-uniform-1",
        "toy/lama-lpaqa-1",
    ]
    ways = [run.config.ensemble.combine for run in found.jobs if run.row != NAMES_RUN]
    assert ways == ["top1", "uniform", "optimised"]
    assert all(run.config.ensemble.prompts == (str(folder),) for run in found.jobs[:3])
    missing = make_fact_plan(replace(settings, methods=methods)).missing
    assert list(missing.values()) == ["needs --prompts"] * 3
    for wanted in ("off", "on"):
        found = make_fact_plan(replace(settings, compile=wanted))
        assert {run.config.compile for run in found.jobs} == {wanted}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"methods": ("nonsense",)}, ConfigError, "method 'nonsense' is not known"),
        ({"seeds": ()}, ConfigError, "seeds is"),
        ({"seeds": (1, 1)}, ConfigError, "seeds"),
        ({"jobs": 0}, ConfigError, "jobs is 0"),
        ({"threads": -1}, ConfigError, "threads is -1"),
        ({"limit": -1}, ConfigError, "limit is -1"),
        ({"memory_gib": -1.0}, ConfigError, "memory_gib is -1.0"),
        ({"data": ""}, ConfigError, "--data is missing"),
        ({"data": "/no/such/place"}, DataError, "/no/such/place"),
        ({"relations": ("P36", "P9")}, DataError, "P9"),
        ({"models": ("/no/such/model",)}, ModelError, "/no/such/model is not a model folder"),
        ({"models": ("a b=shipped",)}, ConfigError, "--models has 'a b=shipped'"),
        ({"models": ("shipped", "shipped")}, ConfigError, "two models of the name shipped"),
    ],
)
def test_bad_settings_are_refused_before_a_folder_is_made(
    settings: FactSettings,
    changes: dict[str, object],
    error: type[SympromptError],
    words: str,
) -> None:
    with pytest.raises(error, match=words.replace("(", r"\(")):
        make_fact_plan(replace(settings, **changes))  # type: ignore[arg-type]
    assert not Path(settings.out).exists()


def test_folders_of_other_things_are_refused(settings: FactSettings, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no facts"):
        make_fact_plan(replace(settings, data=str(tmp_path / "empty")))
    Path(settings.out).mkdir()
    (Path(settings.out) / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is not a run folder"):
        make_fact_plan(settings)
    (Path(settings.out) / "config.toml").write_text("")
    with pytest.raises(RunError, match="holds another command's run"):
        make_fact_plan(settings)


@pytest.mark.parametrize(
    ("key", "value"),
    [("limit", 3), ("epochs", 1), ("relations", ("P36",)), ("vocabulary", "objects")],
)
def test_a_folder_made_with_other_settings_is_refused_by_key(
    settings: FactSettings, key: str, value: object
) -> None:
    make_fact_plan(settings).begin()
    with pytest.raises(RunError, match=f"another value of {key} "):
        make_fact_plan(replace(settings, **{key: value}))  # type: ignore[arg-type]


def test_methods_seeds_and_models_may_be_added(
    settings: FactSettings, family_folder: Callable[[str], Path]
) -> None:
    make_fact_plan(settings).begin()
    models = (f"new={family_folder('roberta')}",)
    more = make_fact_plan(replace(settings, seeds=(1, 2, 3), methods=(), models=models))
    assert set(more.begin().manifest.details["models"]) == {"toy", "new"}


def test_other_weights_under_the_same_name_are_refused(
    settings: FactSettings, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    make_fact_plan(settings).begin()
    changed = other_model(family_folder("bert"), tmp_path / "changed")
    with pytest.raises(RunError, match="another model of the name toy"):
        make_fact_plan(replace(settings, models=(f"toy={changed}",)))


def test_two_reproductions_in_one_folder_are_refused(tmp_path: Path) -> None:
    with (
        hold_folder(tmp_path),
        pytest.raises(RunError, match="another process is at work"),
        hold_folder(tmp_path, patience=0.1),
    ):
        raise AssertionError
    with hold_folder(tmp_path):
        pass


def test_devices_are_those_named_or_all_there_are() -> None:
    assert list_devices(("cpu", "cpu")) == ["cpu", "cpu"]
    with pytest.raises(ConfigError, match="'tpu' is not known"):
        list_devices(("tpu",))


def test_every_paraphrase_and_name_query_is_a_template() -> None:
    for texts in PARAPHRASES.values():
        for text in texts:
            Template.parse(text).cut_after_object()
    for text in NAMES.values():
        assert Template.parse(text).vectors == 0
    facts = make_lama()
    assert [set(one) for one in list_paraphrases(facts)] == [{"P17", "P19", "P36"}] * 3
    assert list_paraphrases(facts.select(["P36"]))[0] == {"P36": PARAPHRASES["P36"][0]}


def test_names_are_asked_word_by_word_for_relations_about_people() -> None:
    found = list_names(make_lama())
    assert {row[1] for row in found} == {"P19"}
    words = {(row[0], row[2]) for row in found}
    for fact in make_lama()["P19"].test:
        for word in fact.subject.split():
            assert (word, fact.object) in words
    assert NAMES_RUN == "names"
