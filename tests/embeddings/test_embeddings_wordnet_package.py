"""WordNet through the package wn: the same as from its files, and what to do without it."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wn

from symprompt.embeddings.sense_evaluation import find_words
from symprompt.embeddings.wordnet import WordNet, load_wordnet
from symprompt.errors import DataError
from tiny.wordnet import MONEY, RIVER, write_lexicon, write_wordnet


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write_wordnet(tmp_path / "wordnet")


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty database of wn's, and no WordNet in the usual places."""
    monkeypatch.setattr("symprompt.embeddings.wordnet._PLACES", (str(tmp_path / "none"),))
    monkeypatch.delenv("WNSEARCHDIR", raising=False)
    monkeypatch.delenv("WNHOME", raising=False)
    before = wn.config.data_directory
    wn.config.data_directory = tmp_path / "wn"
    yield tmp_path / "wn"
    opened = wn._db.pool.pop(wn.config.database_path, None)
    if opened is not None:
        opened.close()
    wn.config.data_directory = before


def add(files: Path, name: str, version: str, keys: str = "id") -> None:
    lexicon = write_lexicon(
        files.parent / f"{name}.xml", WordNet.load(files), name, version, keys=keys
    )
    wn.add(lexicon, progress_handler=None)


@pytest.mark.parametrize(
    ("name", "version", "keys"),
    [("oewn", "2024", "id"), ("omw-en", "1.4", "note"), ("mine", "1", "note")],
)
def test_it_says_the_same_as_the_files(files: Path, name: str, version: str, keys: str) -> None:
    add(files, name, version, keys)
    one, other = WordNet.load(files), load_wordnet(f"wn:{name}:{version}")
    assert other.source == f"wn {name}:{version}"
    assert {key: (s.number, s.count, s.pos) for key, s in one.senses.items()} == {
        key: (s.number, s.count, s.pos) for key, s in other.senses.items()
    }
    assert one.by_lemma.keys() == other.by_lemma.keys()
    assert [sense.key for sense in other.of("Bank", "n")][:2] == [MONEY, RIVER]
    for key, sense in one.senses.items():
        here, there = one.synset(sense.synset), other.synset(other.senses[key].synset)
        assert (here.gloss, here.lexname) == (there.gloss, there.lexname)
        for kind in ("hypernyms", "similar"):
            expected = [f"{name}-{target}" for target in getattr(here, kind)]
            assert list(getattr(there, kind)) == expected
    text = "The old banks took place; ancient 3 prime ministers lay."
    assert find_words(text, one) == find_words(text, other)
    assert one.synset("nothing") is other.synset("nothing") is None


def test_the_files_come_first_and_wordnet_3_before_others(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(files, "omw-en", "1.4", "note")
    add(files, "oewn", "2024")
    assert load_wordnet().source == load_wordnet("wn").source == "wn omw-en:1.4"
    assert load_wordnet("wn:oewn").source == "wn oewn:2024"
    assert load_wordnet(files).source == "WordNet's files"
    monkeypatch.setenv("WNSEARCHDIR", str(files))
    assert load_wordnet().source == "WordNet's files"


def test_what_is_not_there_says_how_to_get_it(files: Path, database: Path) -> None:
    routes = r"apt-get install wordnet-base .*python -m wn download omw-en:1\.4"
    for place in ("", "wn", "wn:oewn:2024"):
        with pytest.raises(DataError, match=routes):
            load_wordnet(place)
    assert not database.exists(), "looking for a lexicon must not make a database"
    add(files, "mine", "1", "nowhere")
    with pytest.raises(DataError, match=r"no lexicon oewn:2024, only mine:1; .*" + routes):
        load_wordnet("wn:oewn:2024")
    with pytest.raises(DataError, match=r"mine:1 has no Princeton sense keys.*" + routes):
        load_wordnet("wn:mine:1")


# The package leaves the connection that failed to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_database_is_told(database: Path) -> None:
    database.mkdir()
    wn.config.database_path.write_bytes(b"this is no database" * 100)
    with pytest.raises(DataError, match="the database of wn cannot be read"):
        load_wordnet("wn")


def test_without_the_package_its_absence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "wn":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match="the package wn is not installed; install Debian's"):
        load_wordnet("wn:oewn:2024")
    with pytest.raises(DataError, match="WordNet is not in "):
        load_wordnet()
