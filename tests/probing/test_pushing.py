"""Runs on the hub: pushed to a stand-in server, asked by name, each refusal in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, constants

import symprompt
from symprompt import Run, SympromptError
from symprompt.runs.folder import MANIFEST
from symprompt.runs.sharing import card_figures
from tiny.hub import Hub
from tiny.runs import Call, Make

ADAPTER = "adapter_model.safetensors"
# What another machine does: nothing but names, each answer on a line.
SCRIPT = """
import contextlib, io, json, sys
from symprompt.cli import main
for words in json.load(sys.stdin):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(words)
    print(json.dumps(printed.getvalue()))
"""


def elsewhere(hub: Hub, home: Path, *commands: list[str], **env: str) -> tuple[list[str], str]:
    """Run commands in a process that has the stand-in and an empty cache; return what each said."""
    left_out = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=home,
        env=kept | {"HF_HOME": str(home), "HF_ENDPOINT": hub.address, "OMP_NUM_THREADS": "1"} | env,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()], done.stdout + done.stderr


def contents(*folders: Path) -> Iterable[bytes]:
    for folder in folders:
        yield from (path.read_bytes() for path in folder.rglob("*") if path.is_file())


def assert_one_sentence(said: Any) -> str:
    assert said.code == 2, said
    assert not said.out
    assert said.err.startswith("symprompt: ")
    assert said.err.count("\n") == 1
    assert said.err.endswith(".\n")
    return str(said.err)


def test_a_pushed_run_is_asked_by_its_name_in_another_process(
    hub: Hub, finished: Run, model: Path, call: Call, tmp_path: Path, monkeypatch: Any
) -> None:
    hub.add("you/tiny-bert", {path.name: path.read_bytes() for path in model.iterdir()})
    run = finished.folder.path
    monkeypatch.setenv("HF_TOKEN", hub.writer)
    said = call("push", run, "me/capitals", "--base", "you/tiny-bert", "--private")
    assert said.code == 0, said.err
    assert f"pushed: {hub.address}/me/capitals" in said.out
    assert "ask it: symprompt ask me/capitals --relation NAME --subject TEXT" in said.out
    repo = hub.repos["me/capitals"]
    assert repo.private
    files = repo.commits[repo.branches["main"]]
    assert ("PUT", "/lfs/" + next(iter(hub.objects)), False) in hub.asked
    # The model too is fetched by name.
    question = ["--relation", "in", "--top", "5", "--device", "cpu", "--json"]
    template = ["--template", "[X] lies in [Y] .", "--subject", "Oslo", "--device", "cpu", "--json"]
    found, printed = elsewhere(
        hub,
        tmp_path / "home",
        ["ask", "me/capitals", "--subject", "Oslo", *question],
        ["ask", "me/capitals", "--object", "France", *question],
        ["ask", "--model", "you/tiny-bert", *template],
        ["table", "me/capitals", "--json"],
        ["import", "me/capitals", "--out", "again"],
        ["rerank", "me/capitals", "--with", "again", "--out", "reranked", "--device", "cpu"],
        HF_TOKEN=hub.reader,
        HF_HUB_DISABLE_XET="1",
    )
    here = [
        finished.ask("in", subject="Oslo", top=5, device="cpu").to_dict(),
        finished.ask("in", object="France", top=5, device="cpu").to_dict(),
        symprompt.ask_template(str(model), template[1], ["Oslo"], device="cpu")[0].to_dict(),
    ]
    assert [json.loads(text) for text in found[:3]] == here
    own, wanted = (
        json.loads(text)["runs"][0] for text in (found[3], call("table", run, "--json").out)
    )
    assert own["mean over facts"] == wanted["mean over facts"]
    assert own["label"] == "me--capitals"
    assert "run folder: again" in found[4]
    # No token and no path of this machine is anywhere.
    kept = [*contents(tmp_path / "home", run), *files.values()]
    for token in (hub.writer, hub.reader):
        assert token not in said.out + said.err + printed
        assert not [own for own in kept if token.encode() in own]
    for place in (run.parent, model, tmp_path):
        assert not [path for path, own in files.items() if str(place).encode() in own]
    # What is in the cache is asked offline, too.
    offline, _ = elsewhere(
        hub,
        tmp_path / "home",
        ["ask", "me/capitals", "--subject", "Oslo", *question],
        HF_HUB_OFFLINE="1",
    )
    assert json.loads(offline[0]) == here[0]


def test_a_dry_run_lists_files_and_asks_nobody(
    hub: Hub, finished: Run, call: Call, tmp_path: Path
) -> None:
    said = call("push", finished.folder.path, "me/capitals", "--dry-run")
    assert said.code == 0, said.err
    assert hub.asked == []
    exported = symprompt.export_run(finished.folder.path, tmp_path / "out")
    size = (exported / ADAPTER).stat().st_size
    assert f"{size:>12,}  {ADAPTER}" in said.out
    listed = {line.split()[1] for line in said.out.splitlines() if line.split()[0][0].isdigit()}
    assert listed - {"bytes"} == {
        path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()
    }
    assert "note: the run has its model from a folder" in said.out
    assert "nothing was sent; without --dry-run this goes to me/capitals" in said.out
    plain = json.loads(call("push", finished.folder.path, "me/capitals", "--dry-run", "--json").out)
    assert plain["files"][ADAPTER] == size
    assert hub.asked == []


def test_the_card_has_the_figures_that_the_run_stored(
    hub: Hub, finished: Run, monkeypatch: Any
) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.writer)
    symprompt.push_run(finished.folder.path, "me/capitals", base="you/tiny-bert")
    repo = hub.repos["me/capitals"]
    text = repo.commits[repo.branches["main"]]["README.md"].decode()
    data = ModelCard(text).data
    assert "`symprompt ask me/capitals --relation RELATION --subject TEXT`" in text
    assert "`hf download me/capitals --local-dir FOLDER`" in text
    assert (data.library_name, data.base_model) == ("peft", "you/tiny-bert")
    assert {"symprompt", "peft"} <= set(data.tags)
    assert data.datasets == ["facts.csv"]
    stored = {own.metric: own.value for own in card_figures(finished.folder.manifest)}
    assert data.metrics == list(stored)
    assert {own.metric_type: own.metric_value for own in data.eval_results} == {
        metric: round(value, 2) for metric, value in stored.items()
    }
    assert {own.dataset_split for own in data.eval_results} == {"test"}
    # A folder of this machine is no model of the hub.
    symprompt.push_run(finished.folder.path, "me/local")
    repo = hub.repos["me/local"]
    files = repo.commits[repo.branches["main"]]
    assert ModelCard(files["README.md"].decode()).data.base_model is None
    with pytest.raises(SympromptError, match=r"is not a model folder \(no config.json in it\)"):
        symprompt.load("me/local").ask("in", subject="Oslo")


def test_what_is_there_is_kept_unless_it_is_said(
    hub: Hub, finished: Run, make: Make, call: Call, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.writer)
    run = finished.folder.path
    assert call("push", run, "me/capitals").code == 0
    before = dict(hub.repos["me/capitals"].branches)
    message = assert_one_sentence(call("push", run, "me/capitals"))
    assert "me/capitals is on the hub already; --overwrite puts this in its place" in message
    assert hub.repos["me/capitals"].branches == before
    # Peft cannot express manual templates: the run itself is put in the place of the adapter.
    manual = symprompt.train(make(tmp_path / "manual", method={"name": "manual"}))
    path = manual.folder.path
    said = call("push", path, "me/capitals", "--overwrite")
    assert said.code == 0, said.err
    assert "the run itself, for symprompt alone: manual was made by manual, which" in said.out
    repo = hub.repos["me/capitals"]
    files = repo.commits[repo.branches["main"]]
    assert ADAPTER not in files
    assert {".gitattributes", "README.md", MANIFEST, "run/symprompt.json"} <= set(files)
    assert not [name for name, own in files.items() if str(tmp_path).encode() in own]
    loaded = symprompt.load("me/capitals")
    question = {"subject": "Oslo", "model": finished.folder.manifest.model}
    assert loaded.ask("in", **question) == manual.ask("in", **question)
    # A branch of its own, and one that is there.
    said = call("push", run, "me/capitals", "--revision", "spe")
    assert said.code == 0, said.err
    assert "symprompt ask me/capitals@spe" in said.out
    spe = symprompt.load("me/capitals@spe")
    assert spe.ask("in", **question) == finished.ask("in", **question)
    card = repo.commits[repo.branches["spe"]]["README.md"].decode()
    assert "hf download me/capitals --revision spe --local-dir" in card
    assert "symprompt ask me/capitals@spe --relation" in card
    message = assert_one_sentence(call("push", run, "me/capitals", "--revision", "spe"))
    assert "me/capitals@spe is on the hub already" in message
    assert call("push", run, "me/capitals", "--revision", "spe", "--overwrite").code == 0
    message = assert_one_sentence(call("push", run, "me/capitals", "--overwrite", "--private"))
    assert "me/capitals is on the hub already, and public" in message
    message = assert_one_sentence(call("ask", "me/capitals@no", "--subject", "Oslo"))
    assert "me/capitals on the hub has no revision 'no'" in message


@pytest.mark.parametrize(
    ("token", "name", "message"),
    [
        ("", "me/x", "takes nothing without a token; set HF_TOKEN, or log in once"),
        ("hf_wrong_0123456789", "me/x", "the hub refuses the token (401)"),
        (Hub.reader, "me/x", "the token may not write me/x (403)"),
        (Hub.writer, "you/x", "the token may not write you/x (403); give one with write access to"),
        (Hub.writer, "me/a/b", "'me/a/b' is no name of the hub; give owner/name"),
        (Hub.writer, "me/a--b", "'me/a--b' is no name of the hub"),
        (Hub.writer, "me/ä", "is no name of the hub"),
        (Hub.writer, "", "is no name of the hub"),
        (Hub.writer, "me/offline", "HF_HUB_OFFLINE is set, so nothing is sent"),
        (Hub.writer, "me/down", "cannot be reached, or the connection broke ([Errno 111]"),
        (Hub.writer, "me/busy", "the hub fails (refused: Bearer ***); push again with --overwrite"),
        (Hub.writer, "me/broken", "answers with an error (refused: Bearer ***); try again later"),
    ],
)
def test_a_refused_push_is_one_sentence_without_the_token(
    hub: Hub, finished: Run, call: Call, monkeypatch: Any, token: str, name: str, message: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    if name == "me/offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if name == "me/down":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    if name == "me/broken":
        # The stand-in's answer repeats the token.
        hub.failing["/preupload/"] = 418
    if name == "me/busy":
        hub.failing["/commit/"] = 500
        monkeypatch.setattr("time.sleep", lambda _: None)
    said = assert_one_sentence(call("push", finished.folder.path, name))
    assert message in said
    assert not token or token not in said
    assert not any(len(repo.commits) > 1 for repo in hub.repos.values())


def test_a_name_that_cannot_be_fetched_is_one_sentence(
    hub: Hub, call: Call, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    hub.add("you/model", {"config.json": b"{}", "model.safetensors": b"much"})
    hub.add("you/secret", {MANIFEST: b"{}"}, private=True)

    def ask(name: str) -> str:
        return assert_one_sentence(call("ask", name, "--subject", "Oslo"))

    assert "you/model on the hub has no symprompt.json and is no run; name" in ask("you/model")
    assert not any("model.safetensors" in path for _, path, _ in hub.asked)
    for name in ("you/nothing", "you/secret"):
        assert f"there is no folder '{name}', and the hub has no {name}, or it is" in ask(name)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_0123456789")
    assert "or it is private and the token" in ask("you/secret")
    monkeypatch.delenv("HF_TOKEN")
    # Beside a folder that is there, a name is a path.
    (tmp_path / "runs").mkdir()
    asked = len(hub.asked)
    assert "runs/spe is not a run folder" in ask("runs/spe")
    assert "is not a run folder" in ask("./runs/spe")
    assert "is not a run folder" in ask("spe")
    assert len(hub.asked) == asked
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "and HF_HUB_OFFLINE keeps from looking for it on the hub" in ask("you/nothing")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("waited"))
    said = ask("you/nothing")
    assert "the hub, where it may be a run's name, cannot be reached ([Errno 111]" in said


@pytest.mark.parametrize("name", ["../outside.json", "/tmp/outside.json", "a/../../outside.json"])
def test_a_forged_manifest_writes_nothing_outside(
    hub: Hub, finished: Run, tmp_path: Path, name: str
) -> None:
    found = symprompt.push_run(finished.folder.path, "me/x", dry_run=True)
    assert MANIFEST in found.files
    exported = symprompt.export_run(finished.folder.path, tmp_path / "out")
    held = exported / "run" / MANIFEST
    said = json.loads(held.read_text())
    said["files"][name] = {"bytes": 1}
    held.write_text(json.dumps(said))
    with pytest.raises(SympromptError, match="it names a file outside of its folder"):
        symprompt.import_run(exported, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_files_that_are_small_for_the_hub_go_into_the_commit(
    hub: Hub, finished: Run, monkeypatch: Any
) -> None:
    # The way of huggingface's library with its own storage protocol installed.
    hub.lfs = (".never",)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    # The token is that of hf auth login.
    Path(constants.HF_TOKEN_PATH).parent.mkdir()
    Path(constants.HF_TOKEN_PATH).write_text(hub.writer)
    pushed = symprompt.push_run(finished.folder.path, "capitals")
    assert pushed.name == "me/capitals"
    repo = hub.repos["me/capitals"]
    assert set(pushed.files) == set(repo.commits[repo.branches["main"]]) - {".gitattributes"}
    assert not hub.objects
