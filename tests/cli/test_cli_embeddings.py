"""The commands about word vectors on tiny models: what they print, write and refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from symprompt import cli
from symprompt.embeddings.sense_map import (
    SenseMap,
    find_occurrences,
    k_means,
    nearest_others,
    neighbour_agreement,
    project,
    why_not_umap,
)
from symprompt.embeddings.vectors import Text
from symprompt.errors import DataError
from symprompt.report.figures import can_draw, legend_labels, map_caption
from symprompt.report.pages import map_page
from tiny.runs import Call
from tiny.wordnet import MONEY, RIVER, write_semcor, write_test_set, write_wordnet


@pytest.fixture(scope="module")
def model(family_folder: Callable[[str], Path]) -> Path:
    return family_folder("bert")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text, other text, WordNet, SemCor and a test set."""
    folder = tmp_path_factory.mktemp("place")
    lines = [f"The old river bank of {name} .\n\nThe capital {name} Bank" for name in "abcdefghij"]
    (folder / "text.txt").write_text("\n\n".join(lines))
    (folder / "other.txt").write_text("the old river\n\nThe capital of Peru is Lima .\n")
    write_wordnet(folder / "wordnet")
    write_semcor(folder / "semcor")
    write_test_set(folder / "sets", "semeval2007")
    return folder


@pytest.fixture(scope="module")
def senses(place: Path, model: Path) -> Path:
    cli.main(
        [
            *("senses", "train", str(place / "semcor"), "--out", str(place / "senses")),
            *("--model", str(model), "--layers", "sum-last-2", "--device", "cpu"),
            *("--wordnet", str(place / "wordnet")),
        ]
    )
    return place / "senses"


def test_embed_writes_a_folder(call: Call, place: Path, model: Path, tmp_path: Path) -> None:
    words = ("embed", place / "text.txt", "--out", tmp_path / "out", "--model", model)
    said = call(*words, "--layers", "mean-last-2", "--pool", "first").done
    assert " words of 20 texts" in said
    vectors = np.load(tmp_path / "out" / "vectors.npy", mmap_mode="r")
    assert vectors.dtype == np.float16
    assert vectors.shape[1] == 32
    assert "was made with layers" in call(*words, "--layers", "last").refusal
    lines = call(
        "embed", place / "text.txt", "--out", tmp_path / "l", "--model", model, "--by", "line"
    )
    assert "20 texts" in lines.out
    assert call("embed", place / "none.txt", "--out", tmp_path / "n", "--model", model).code == 2
    assert call("embed", place / "text.txt", "--out", tmp_path / "n", "--layers", "up").code == 2


def test_embed_refuses_text_that_changed_and_a_second_writer(
    call: Call, place: Path, model: Path, tmp_path: Path
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("the old river")
    words = ("embed", text, "--out", out, "--model", model)
    assert call(*words).code == 0
    text.write_text("the new river")
    assert "other data than are there now" in call(*words).refusal
    hold = "import fcntl, sys; own = open(sys.argv[1], 'w'); fcntl.lockf(own, fcntl.LOCK_EX)"
    hold += "; print(flush=True); input()"
    for name in ("embed", "senses"):
        (tmp_path / name).mkdir()
        if name == "senses":
            words = ("senses", "train", place / "semcor", "--wordnet", place / "wordnet")
        flags = ("--model", model, "--layers", "last", "--out", tmp_path / name)
        with subprocess.Popen(
            [sys.executable, "-c", hold, str(tmp_path / name / ".running")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as other:
            other.stdout.readline()
            said = call(*(words[:2] if name == "embed" else words), *flags)
            other.stdin.close()
        assert "another process is at work" in said.refusal


def test_similarity_and_isotropy(call: Call, place: Path, model: Path, tmp_path: Path) -> None:
    said = call(
        *("isotropy", place / "text.txt", "--measure", place / "other.txt"),
        *("--out", tmp_path / "iso", "--model", model),
    ).done
    assert "sum-last-2" in said
    stored = json.loads((tmp_path / "iso" / "isotropy.json").read_text())
    assert [layer["layer"] for layer in stored["layers"]] == ["0", "1", "2", "sum-last-2"]
    assert (tmp_path / "iso" / "isotropy.png").exists() == can_draw()
    marked = ("the old [bank]", "the river [bank]", "the [capital]")
    plain = call("similarity", *marked, "--model", model, "--layers", "last", "--json")
    found = np.array(json.loads(plain.out)["cosines"])
    assert found.shape == (3, 3)
    fitted = tmp_path / "iso" / "standardiser-last.safetensors"
    other = call("similarity", *marked, "--model", model, "--standardise", fitted, "--json")
    assert not np.allclose(found, json.loads(other.out)["cosines"])
    assert call("similarity", "one [word]", "--model", model).code == 2
    wrong = call("similarity", *marked, "--model", model, "--layers", "1", "--standardise", fitted)
    assert "symprompt isotropy" in wrong.err
    other_file = call("similarity", *marked, "--model", model, "--standardise", place / "text.txt")
    assert "give a file that symprompt isotropy wrote" in other_file.err
    few = (place / "text.txt", "--measure", place / "other.txt", "--out", tmp_path / "few")
    assert call("isotropy", *few, "--model", model, "--limit", "4", "--json").code == 0
    assert call("isotropy", *few, "--model", model, "--limit", "-1").code == 2


def test_embed_writes_vectors_of_texts(
    call: Call, place: Path, model: Path, tmp_path: Path, family_folder: Callable[[str], Path]
) -> None:
    words = ("embed", place / "text.txt", "--out", tmp_path / "out", "--pool", "text-cls")
    said = call(*words, "--model", model).done
    assert said.startswith("20 texts, vectors of 32 numbers")
    assert np.load(tmp_path / "out" / "vectors.npy").shape == (20, 32)
    other = ("embed", place / "text.txt", "--out", tmp_path / "gpt", "--model")
    refused = call(*other, family_folder("gpt2"), "--pool", "text-cls").refusal
    assert "has no [CLS] token" in refused
    assert not (tmp_path / "gpt").exists()
    assert call(*other, family_folder("gpt2"), "--pool", "text-last").code == 0
    # What was stored says how a query is read: model, layers, pooling.
    query = ("similarity", "The old river bank of a .", "--among", tmp_path / "out", "--top", 3)
    found = call(*query, "--json").done
    (entry,) = json.loads(found)
    assert entry["nearest"][0]["text"] == "The old river bank of a ."
    assert entry["nearest"][0]["cosine"] == pytest.approx(1, abs=1e-3)
    assert len(entry["nearest"]) == 3
    assert "Nearest to: The old river bank of a ." in call(*query).out
    wrong = call(*query, "--pool", "text-mean").refusal
    assert "pool 'text-cls', not 'text-mean'" in wrong


def test_texts_are_compared(call: Call, place: Path, model: Path, tmp_path: Path) -> None:
    whole = ("--model", model, "--pool", "text-mean")
    three = call("similarity", "the old river", "the river", "Peru", *whole)
    assert "Cosine of texts" in three.out
    if can_draw():
        picture = tmp_path / "c.png"
        assert call("similarity", "the old", "Peru", *whole, "--figure", picture).code == 0
        assert picture.exists()
    table = "first,second,score\nthe old,the,2\nPeru,Lima,3\nof,is,1\n"
    (tmp_path / "pairs.csv").write_text(table)
    pairs = ("similarity", "--pairs", tmp_path / "pairs.csv", *whole)
    found = json.loads(call(*pairs, "--json").out)
    assert len(found["cosines"]) == 3
    assert -1 <= found["spearman"] <= 1
    shown = call(*pairs, "--top", 2).out
    assert "Spearman, 3 pairs" in shown
    assert "the first 2 of 3 pairs" in shown
    (tmp_path / "same.csv").write_text("first,second,score\nthe old,the,2\nPeru,Lima,2\n")
    same = call("similarity", "--pairs", tmp_path / "same.csv", *whole)
    assert "none, as all are the same" in same.out
    (tmp_path / "plain.tsv").write_text("first\tsecond\nthe [old] bank\tthe old [river]\n")
    words = call("similarity", "--pairs", tmp_path / "plain.tsv", "--model", model)
    assert (words.code, "Spearman" in words.out) == (0, False)
    near = call("similarity", "the [old]", "--among", f"en={place / 'text.txt'}", "--model", model)
    assert "] Bank" in near.out
    assert "language" in near.out
    iso = ("isotropy", place / "text.txt", "--measure", place / "other.txt", *whole)
    fitted = call(*iso, "--out", tmp_path / "iso").done
    assert "Expected cosine of two random texts" in fitted
    assert "frequency" not in fitted
    file = tmp_path / "iso" / "standardiser-last.safetensors"
    assert call("similarity", "the old", "Peru", *whole, "--standardise", file).code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pairs", "a.csv", "--among", "b.txt"), "give one of them"),
        (("text", "--pairs", "a.csv"), "leave the others out"),
        (("a", "b", "--columns", "first=x"), "give that file"),
        (("a", "--among", "b.txt", "--figure", "c.png"), "leave --pairs and --among out"),
        (("--among", "b.txt"), "0 texts given; give one or more"),
        (("[a]",), "1 text given; give two or more"),
        (("--pairs", "none.csv"), "does not exist"),
        (("a", "--among", "none.txt", "--pool", "text-mean"), "none.txt"),
    ],
)
def test_comparisons_that_make_no_sense_are_refused(
    call: Call, words: tuple[str, ...], message: str
) -> None:
    said = call("similarity", *words)
    assert len(said.err.strip().splitlines()) == 1
    assert message in said.refusal


def test_senses_are_evaluated_and_tagged(
    call: Call, place: Path, senses: Path, tmp_path: Path
) -> None:
    wordnet = ("--wordnet", place / "wordnet", "--device", "cpu")
    said = call(
        *("senses", "evaluate", senses, "--data", place / "sets", *wordnet),
        *("--draws", 50, "--out", tmp_path / "scores.json"),
    ).done
    assert "semeval2007" in said
    stored = json.loads((tmp_path / "scores.json").read_text())
    of_all = [own for own in stored["records"] if own["label"] == "all"]
    every = {(own["metric"], own.get("versus")): own for own in of_all}
    assert every["F1", None]["n"] == 25
    assert every["F1", None]["value"] > every["most frequent sense", None]["value"]
    options = ("--rule", "nearest", "--coverage", "relations", "--discourse", "--json")
    plain = call("senses", "evaluate", senses, "--data", place / "sets", *wordnet, *options)
    assert json.loads(plain.out)["about"]["rule"] == "nearest"
    tagged = call("senses", "tag", senses, "the old river bank lies located .", *wordnet)
    assert RIVER in tagged.out
    assert "land beside a river" in tagged.out
    (tmp_path / "lines.txt").write_text("The Paris bank in France .\n")
    lines = call("senses", "tag", senses, tmp_path / "lines.txt", "--file", "--json", *wordnet)
    assert json.loads(lines.out)[0]["words"][0]["sense"] == MONEY
    assert call("senses", "see").refusal
    assert "no content word" in call("senses", "tag", senses, "of the", *wordnet).out
    assert call("senses", "tag", tmp_path, "text", *wordnet).code == 2


def test_a_missing_wordnet_is_one_sentence(call: Call, place: Path, tmp_path: Path) -> None:
    said = call("senses", "train", place / "semcor", "--out", tmp_path, "--wordnet", tmp_path)
    assert "apt-get install wordnet-base wordnet-sense-index" in said.refusal
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize("colour", ["sense", "cluster", "language"])
def test_a_map_is_drawn(
    call: Call, place: Path, senses: Path, tmp_path: Path, colour: str, model: Path
) -> None:
    out = tmp_path / "bank"
    said = call(
        *("senses", "map", "bank", "--corpus", f"en={place / 'text.txt'}", "--colour", colour),
        *("--senses", senses, "--wordnet", place / "wordnet", "--out", out, "--clusters", 2),
    ).done
    assert "20 occurrences" in said
    assert ("same label: 100.0 %, by chance 100.0 %" in said) == (colour == "language")
    page = out.with_suffix(".html").read_text()
    expected = {"sense": "land beside a river", "cluster": "cluster 1", "language": '"en'}
    assert expected[colour] in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert out.with_suffix(".png").exists() == can_draw()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("bank --colour sense", "needs --senses"),
        ("bank --most 0", "most is 0"),
        ("unseen", "occurs 0 times"),
        (",", "is empty"),
        ("bank --senses SENSES --wordnet WORDNET --colour sense --layers 1", "leave it out"),
    ],
)
def test_what_cannot_be_mapped_is_told(
    call: Call, place: Path, senses: Path, flags: str, message: str
) -> None:
    given = {"SENSES": senses, "WORDNET": place / "wordnet"}
    words = [given.get(word, word) for word in flags.split()]
    assert message in call("senses", "map", *words, "--corpus", place / "text.txt").refusal


# ---------------------------------------------------------------------------------- the parts


def test_without_umap_the_principal_components_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    vectors = np.random.default_rng(0).normal(size=(40, 6)) * [9, 1, 5, 1, 1, 1]
    points, how = project(vectors)
    assert how == "PCA"
    # The same as by the covariance's eigenvectors, but for signs.
    centred = vectors - vectors.mean(axis=0)
    values, axes = np.linalg.eigh(centred.T @ centred)
    for place, axis in enumerate(np.argsort(values)[::-1][:2]):
        np.testing.assert_allclose(np.abs(points[:, place]), np.abs(centred @ axes[:, axis]))


def test_neighbours_agree_as_often_as_a_loop_counts() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(30, 5))
    labels = ["a"] * 12 + ["b"] * 18
    right = expected = 0.0
    for one in range(30):
        others = [other for other in range(30) if other != one]
        cosines = [
            vectors[one] @ vectors[other] / np.linalg.norm(vectors[other]) for other in others
        ]
        right += labels[others[int(np.argmax(cosines))]] == labels[one]
        expected += sum(labels[other] == labels[one] for other in others) / 29
    share, chance = neighbour_agreement(nearest_others(vectors), labels)
    assert (share, chance) == (pytest.approx(right / 30), pytest.approx(expected / 30))


def test_why_a_map_is_not_umaps_is_told() -> None:
    def made(count: int, projection: str) -> SenseMap:
        hover = (("", "die", ""),) * count
        return SenseMap("die", np.zeros((count, 2)), ("a",) * count, hover, projection, "cluster")

    assert why_not_umap(made(40, "UMAP")) == ""
    assert "more than 15 occurrences" in why_not_umap(made(15, "PCA"))
    assert "umap-learn is not installed" in why_not_umap(made(40, "PCA"))
    # What stands below the picture must fit its width.
    assert len(map_caption(made(1000, "PCA"))) < 115


def test_clusters_are_found_and_numbered_by_size() -> None:
    generator = np.random.default_rng(0)
    centres = np.eye(8)[:3] * 10
    owner = np.array([0] * 10 + [1] * 30 + [2] * 20)
    points = centres[owner] + generator.normal(size=(60, 8)) * 0.3
    found = k_means(points / np.linalg.norm(points, axis=1, keepdims=True), 3)
    assert [set(found[owner == place]) for place in (1, 2, 0)] == [{0}, {1}, {2}]
    with pytest.raises(DataError, match="clusters is 0"):
        k_means(points, 0)


def test_occurrences_are_drawn_evenly() -> None:
    texts = [Text.running(f"a bank {number} Banks bank") for number in range(50)]
    found = find_occurrences(iter(texts), ["bank"], 10)
    assert len(found) == 10
    assert all(text.words() == ["bank", "bank"] for text in found)
    both = find_occurrences(iter(texts), ["BANK", "banks"], 99)
    assert both[0].words() == ["bank", "Banks", "bank"]


def test_a_page_takes_texts_literally() -> None:
    evil = ("</script><b>", "die", "&amp; <i>")
    found = SenseMap(
        "<die>", np.array([[0.0, 0.0], [1.0, 1.0]]), ("a", "b"), (evil, evil), "PCA", "x"
    )
    page = map_page(found)
    assert page.count("</script>") == 1
    assert "<title>“&lt;die&gt;”" in page
    many = [f"label {number}" for number in range(12)] + ["label 3"]
    shown = legend_labels(many)
    assert shown[0] == "label 3"
    assert shown[-1] == "other"
    assert len(shown) == 7


def test_a_map_leaves_the_number_of_threads_as_it_was() -> None:
    pytest.importorskip("umap", reason="the extra [report] is not installed")
    before = torch.get_num_threads()
    # As many as a machine has are what UMAP would leave.
    other = 1 if (os.cpu_count() or 1) > 1 else 2
    torch.set_num_threads(other)
    try:
        assert project(np.random.default_rng(0).normal(size=(60, 8)))[1] == "UMAP"
        assert torch.get_num_threads() == other
    finally:
        torch.set_num_threads(before)


def test_umap_parts_what_is_far_apart() -> None:
    pytest.importorskip("umap", reason="the extra [report] is not installed")
    generator = np.random.default_rng(0)
    centres = np.eye(8)[:2] * 10
    owner = np.repeat([0, 1], 30)
    points, how = project(centres[owner] + generator.normal(size=(60, 8)) * 0.3, seed=1)
    assert how == "UMAP"
    middles = [points[owner == place].mean(axis=0) for place in (0, 1)]
    spread = max(points[owner == place].std() for place in (0, 1))
    assert np.linalg.norm(middles[0] - middles[1]) > 2 * spread
