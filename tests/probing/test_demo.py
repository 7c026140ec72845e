"""The demo, small: three runs on a toy model, the table, the questions and the figures."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import BertPreTokenizer

from symprompt import cli
from symprompt.facts import world_facts
from symprompt.probing.demo import (
    METHODS,
    Demo,
    DemoSize,
    _config,
    count_moves,
    demo_questions,
    make_demo,
)
from symprompt.probing.results import load_combination, load_facts
from symprompt.probing.results import run_config as stored_config
from symprompt.prompts import Template
from symprompt.report.demo import write_figures
from symprompt.report.tables import comparison, load_scores
from tiny.models import save_taught_bert
from tiny.runs import other_model

SMALL = DemoSize(
    relations=("continent", "language"), train_limit=80, dev_limit=30, test_limit=40, epochs=3
)


# Other words than the relations' manual templates have, as a real corpus's would be.
WORDINGS = {
    "continent": ("{0} lies in {1} .", "Among the lands of {1} we find {0} ."),
    "language": ("People of {0} speak {1} .", "{1} is heard all over {0} ."),
}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy model that has read every fact and knows nothing else."""
    texts, names = [], set()
    for relation in world_facts().select(SMALL.relations).relations:
        for fact in relation.all():
            pair = fact.subject, fact.object
            texts += [wording.format(*pair) for wording in WORDINGS[relation.name]]
            names |= split_words(" ".join(pair))
    words = sorted(set.union(*map(split_words, texts)))
    folder = tmp_path_factory.mktemp("model") / "toy"
    return save_taught_bert(folder, texts, sorted(names), words, steps=500, layers=1, rate=4e-3)


def split_words(text: str) -> set[str]:
    return {word for word, _ in BertPreTokenizer().pre_tokenize_str(text)}


@pytest.fixture(scope="module")
def made(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return make_demo(tmp_path_factory.mktemp("demo"), model=str(toy), size=SMALL)


@pytest.fixture
def small_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symprompt.cli.facts.make_demo", partial(make_demo, size=SMALL))
    monkeypatch.setenv("COLUMNS", "160")


def test_the_demo_makes_three_runs_in_a_folder_named_after_the_model(made: Demo) -> None:
    assert made.made
    assert made.earlier == ()
    assert made.folder.name.startswith("toy-")
    assert {path.name for path in made.folder.iterdir()} >= set(METHODS)
    assert [run.metrics["method"] for run in made.runs] == list(METHODS)
    for run in made.runs:
        assert set(run.metrics["test"]["relations"]) == set(SMALL.relations)
        assert stored_config(run.folder).learning.epochs == SMALL.epochs


def test_learned_prompts_beat_manual_ones(made: Demo) -> None:
    manual, ptuning, spe = (
        run.metrics["test"]["raw"]["realistic"]["mean over relations"]["mrr"] for run in made.runs
    )
    assert ptuning > manual
    assert spe > manual


def test_no_split_is_larger_than_its_limit_and_the_rest_is_counted(made: Demo) -> None:
    for relation in load_facts(made.runs[0].folder).relations:
        assert len(relation.train) <= SMALL.train_limit
        assert len(relation.dev) <= SMALL.dev_limit
        assert len(relation.test) <= SMALL.test_limit
    assert made.runs[0].metrics["dropped"]["beyond the train limit of 80"] > 0


def test_what_is_made_is_not_made_again(made: Demo, toy: Path) -> None:
    stages: set[str] = set()
    again = make_demo(
        made.folder.parent,
        model=str(toy),
        size=SMALL,
        tick=lambda stage, *_: stages.add(stage),
    )
    assert stages == {"loading"}
    assert not again.made
    assert again.folder == made.folder


def test_every_stage_names_its_run(toy: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    size = DemoSize(("continent",), train_limit=8, dev_limit=4, test_limit=4, epochs=1)
    ends: dict[str, tuple[int, int]] = {}

    def tick(stage: str, done: int, total: int, note: str) -> None:
        stages.append(stage)
        ends[stage] = done, total

    make_demo(tmp_path, model=str(toy), size=size, tick=tick)
    assert ends["loading"] == (1, 1)
    asked = ("asking dev", "asking test")
    asked_back = ("asking dev", "asking back dev", "asking test", "asking back test")
    stages_of = {
        "manual": ("acceleration", *asked),
        "ptuning": ("acceleration", "training", *asked),
        "spe": ("acceleration", "training", *asked_back),
    }
    wanted = [f"{name}: {stage}" for name, own in stages_of.items() for stage in own]
    assert list(dict.fromkeys(stages)) == ["loading", *wanted]


def test_another_model_or_size_gets_a_folder_of_its_own(toy: Path, tmp_path: Path) -> None:
    size = DemoSize(("continent",), train_limit=8, dev_limit=4, test_limit=4, epochs=1)
    first = make_demo(tmp_path / "demo", model=str(toy), size=size)
    # The same name and place, other weights: what the run folders say of the model is the same.
    other_model(toy, tmp_path / "changed")
    (toy / "model.safetensors").rename(tmp_path / "kept")
    try:
        (tmp_path / "changed/model.safetensors").rename(toy / "model.safetensors")
        second = make_demo(tmp_path / "demo", model=str(toy), size=size)
    finally:
        (tmp_path / "kept").rename(toy / "model.safetensors")
    assert second.made
    assert second.earlier == (first.folder,)
    fingerprints = {demo.runs[-1].folder.manifest.model_fingerprint for demo in (first, second)}
    assert len(fingerprints) == 2
    longer = DemoSize(("continent",), train_limit=8, dev_limit=4, test_limit=4, epochs=2)
    third = make_demo(tmp_path / "demo", model=str(toy), size=longer)
    assert set(third.earlier) == {first.folder, second.folder}


def test_questions_are_about_facts_that_rose_to_the_top(made: Demo) -> None:
    run = made.runs[-1]
    predictions, facts = run.predictions()
    before = predictions.ranks().realistic
    after = predictions.final(load_combination(run.folder)).realistic
    rose = {
        fact.relation: max(
            float(before[row] - 1)
            for row, other in enumerate(facts)
            if other.relation == fact.relation and after[row] == 1
        )
        for row, fact in enumerate(facts)
        if after[row] == 1 and before[row] > 1
    }
    questions = demo_questions(run)
    assert questions
    assert {question.fact.relation for question in questions} == set(rose)
    for question in questions:
        assert question.rank == 1
        assert question.forward_rank - 1 == rose[question.fact.relation]
        assert question.answers[0].text == question.fact.object
        assert len(question.answers) == run.metrics["k"]
    assert len(demo_questions(run, count=1)) == 1
    assert demo_questions(made.runs[0]) == []


def test_the_stored_answers_are_those_the_model_gives(made: Demo) -> None:
    run = made.runs[-1]
    (question,) = demo_questions(run, count=1)
    fact = question.fact
    asked = run.ask(fact.relation, subject=fact.subject, top=5, device="cpu")
    assert [answer.text for answer in asked] == [answer.text for answer in question.answers[:5]]
    for one, other in zip(asked, question.answers, strict=False):
        assert one.object_score == pytest.approx(other.object_score, abs=1e-3)
        assert one.subject_score == pytest.approx(other.subject_score, abs=1e-3)
        assert one.joint == pytest.approx(other.joint, abs=1e-3)


def test_moves_to_and_from_the_top_are_counted(made: Demo) -> None:
    run = made.runs[-1]
    predictions, facts = run.predictions()
    pairs = list(
        zip(
            predictions.ranks().realistic.tolist(),
            predictions.final(load_combination(run.folder)).realistic.tolist(),
            strict=True,
        )
    )
    moves = count_moves(run)
    assert moves.facts == len(facts)
    assert moves.risen == sum(before > 1 and after == 1 for before, after in pairs)
    assert moves.fallen == sum(before == 1 and after > 1 for before, after in pairs)


@pytest.mark.usefixtures("small_command")
def test_the_command_shows_it_all(
    made: Demo, toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["demo", "--out", str(made.folder.parent), "--model", str(toy)])
    said = capsys.readouterr()
    assert said.err.splitlines()[0].startswith("loading: 0/1")
    assert "training" not in said.err
    for words in (
        "at most 80 training, 30 dev and 40 test facts",
        "drawn by a fixed seed",
        "All of this was made before",
        "Mean over relations",
        "facts left out: beyond the train limit of 80",
        "most frequent training object is right in",
        "minus ptuning",
        "SPE minus P-tuning (points, 95 % paired bootstrap): P@1 ",
        "-> 1",
        f"symprompt ask {made.folder / 'spe'} --relation continent",
    ):
        assert words in " ".join(said.out.split()), words
    for name in ("methods", "candidates", "question"):
        path = made.folder / f"figures/{name}.png"
        assert str(path) in said.out
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000


@pytest.mark.usefixtures("small_command")
def test_without_matplotlib_all_but_the_figures_is_shown(
    made: Demo, toy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    cli.main(["demo", "--out", str(made.folder.parent), "--model", str(toy)])
    said = capsys.readouterr().out
    assert "no figures: figures need matplotlib" in said
    assert "pip install symprompt[report]" in said
    assert "try next:" in said


def test_without_a_question_that_rose_there_are_two_figures(made: Demo, tmp_path: Path) -> None:
    elsewhere = Demo(tmp_path, made.runs, made.size, made=True, earlier=())
    found = comparison([load_scores(str(run.folder.path)) for run in made.runs], draws=10)
    written = write_figures(elsewhere, found, None, [])
    assert [path.name for path in written] == ["methods.png", "candidates.png"]


def test_without_the_shipped_model_the_demo_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("symprompt.models.loading.FOLDER", tmp_path / "none")
    with pytest.raises(SystemExit) as end:
        cli.main(["demo", "--out", str(tmp_path / "demo")])
    assert end.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith('symprompt: the model "shipped" is not in this installation')
    assert not (tmp_path / "demo").exists()


def test_a_causal_model_is_asked_with_the_object_last() -> None:
    for name in ("manual", "ptuning", "spe"):
        masked, causal = (_config(name, "any", SMALL, causal=kind) for kind in (False, True))
        assert causal.method.name == masked.method.name == name
        assert Template.parse(causal.prompt.template).ends_with_object == (name != "manual")
        assert causal.learning == masked.learning


def test_the_demo_offers_the_page_and_opens_it(
    toy: Path,
    small_command: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown: list[list[str]] = []
    monkeypatch.setattr("symprompt.cli.facts.show_runs", shown.append)
    for more in ([], ["--page"]):
        cli.main(["demo", "--model", str(toy), "--out", str(tmp_path), *more])
        assert "symprompt page" in capsys.readouterr().out
    assert [[Path(path).name for path in paths] for paths in shown] == [list(METHODS)]
    monkeypatch.setattr("symprompt.cli.page.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        cli.main(["demo", "--model", str(toy), "--out", str(tmp_path / "new"), "--page"])
    assert "pip install symprompt[page]" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
