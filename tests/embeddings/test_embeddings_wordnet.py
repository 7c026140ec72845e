"""WordNet from its files and the package wn, tagged text, base forms, what to do without them."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wn

from symprompt.embeddings.sense_corpora import load_sense_corpus, load_test_sets
from symprompt.embeddings.sense_evaluation import find_words
from symprompt.embeddings.wordnet import WordNet, find_wordnet, load_wordnet
from symprompt.errors import DataError
from tiny.wordnet import (
    MONEY,
    RIVER,
    write_lexicon,
    write_semcor,
    write_test_set,
    write_wordnet,
)


@pytest.fixture(scope="module")
def wordnet(tmp_path_factory: pytest.TempPathFactory) -> WordNet:
    return WordNet.load(write_wordnet(tmp_path_factory.mktemp("wordnet")))


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No WordNet in the usual places."""
    monkeypatch.setattr("symprompt.embeddings.wordnet._PLACES", (str(tmp_path / "none"),))
    for name in ("WNSEARCHDIR", "WNHOME"):
        monkeypatch.delenv(name, raising=False)


def test_senses_stand_in_their_order(wordnet: WordNet) -> None:
    assert [sense.key for sense in wordnet.of("Bank", "n")][:2] == [MONEY, RIVER]
    assert [sense.number for sense in wordnet.of("bank", "n")] == [1, 2, 3]
    assert wordnet.gloss(wordnet.of("bank", "n")[1]) == "land beside a river"
    assert wordnet.of("prime minister", "n")[0].synset == "00000600n"
    assert wordnet.of("nothing", "n") == ()
    assert wordnet.senses[MONEY].count == 9


def test_synsets_know_their_relations(wordnet: WordNet) -> None:
    bank, ancient, happen = map(wordnet.synset, ("00000200n", "00002200a", "00001100v"))
    assert bank.hypernyms == ("00000400n",)
    assert bank.lexname == 17
    # Satellite adjectives are adjectives.
    assert ancient.similar == ("00002100a",)
    assert wordnet.of("ancient", "a")[0].synset == "00002200a"
    # Verb frames stand between pointers and gloss.
    assert happen.gloss == "come to pass"


@pytest.mark.parametrize(
    ("form", "pos", "base"),
    [
        ("banks", "n", ("bank",)),
        ("Banked", "v", ("bank",)),
        ("banking", "v", ("bank",)),
        ("lay", "v", ("lie",)),
        ("lies", "v", ("lie",)),
        ("older", "a", ("old",)),
        ("happens", "v", ("happen",)),
        ("glass", "n", ()),
        ("now", "r", ("now",)),
    ],
)
def test_base_forms(wordnet: WordNet, form: str, pos: str, base: tuple[str, ...]) -> None:
    assert wordnet.base_forms(form, pos) == base


def test_content_words_of_running_text(wordnet: WordNet) -> None:
    text, names = find_words("The old banks took place; 3 prime ministers of happen.", wordnet)
    assert text.words() == ["old", "banks", "took place", "prime ministers", "happen"]
    assert names[1:3] == [(("bank", "n"), ("bank", "v")), (("take_place", "v"),)]


def test_both_layouts_are_read_alike(wordnet: WordNet, tmp_path: Path) -> None:
    semcor = load_sense_corpus(write_semcor(tmp_path / "semcor"), wordnet.senses)
    sets = load_test_sets(write_test_set(tmp_path / "sets", "senseval2"), wordnet.senses)
    one, other = semcor.instances, sets["senseval2"].instances
    assert len(one) == len(other) == 25
    assert [entry.keys for entry in one] == [entry.keys for entry in other]
    assert [entry.lemma for entry in one] == [entry.lemma for entry in other]
    assert one[0].first == 2
    assert [s.words for s in semcor.sentences] == [s.words for s in sets["senseval2"].sentences]
    assert len({sentence.document for sentence in semcor.sentences}) > 5
    again = load_sense_corpus(tmp_path / "sets" / "senseval2", wordnet.senses)
    assert again.instances == other


def test_what_semcor_writes_in_its_own_way(wordnet: WordNet, tmp_path: Path) -> None:
    (tmp_path / "br-a01").write_text(
        '<contextfile concordance="brown">\n<context filename=br-a01 paras=yes>\n<s snum=1>\n'
        "<punc>``</punc>\n"
        '<wf cmd="done" pos="JJ" lemma="ancient" wnsn="1" lexsn="5:00:00:old(a):00">ancient</wf>\n'
        "<wf cmd=done pos=VB lemma=take_place wnsn=1 lexsn=2:30:00::>took_place</wf>\n"
        '<wf cmd="done" pos="NN" lemma="bank" wnsn="1;2" lexsn="1:14:00::;1:17:01::">bank</wf>\n'
        '<wf cmd="done" pos="NN" lemma="bank" wnsn="0" lexsn="1:99:00::">bank</wf>\n'
        "<punc>AT&amp;T</punc>\n</s>\n</context>\n</contextfile>\n"
    )
    corpus = load_sense_corpus(tmp_path, wordnet.senses)
    (sentence,) = corpus.sentences
    assert sentence.words == ('"', "ancient", "took", "place", "bank", "bank", "AT&T")
    assert [(entry.first, entry.last) for entry in sentence.instances] == [(1, 2), (2, 4), (4, 5)]
    assert sentence.instances[0].keys == ("ancient%5:00:00:old:00",)
    assert sentence.instances[2].keys == (MONEY, RIVER)
    assert corpus.dropped == {"sense not in WordNet": 1}


@pytest.mark.usefixtures("nowhere")
def test_a_missing_wordnet_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("", tmp_path):
        with pytest.raises(DataError, match="apt-get install wordnet-base wordnet-sense-index"):
            WordNet.load(place)
    folder = write_wordnet(tmp_path / "home" / "dict")
    monkeypatch.setenv("WNHOME", str(tmp_path / "home"))
    assert find_wordnet() == folder
    (folder / "index.sense").unlink()
    with pytest.raises(DataError, match=r"no index\.sense; install"):
        find_wordnet()
    (folder / "index.sense").write_text("this is no index\n")
    with pytest.raises(DataError, match=r"index\.sense, line 1: 'this is no index"):
        WordNet.load(folder)
    write_wordnet(folder)
    (folder / "data.noun").write_text("00000100 14 n xx\n")
    with pytest.raises(DataError, match=r"data\.noun, line 1"):
        WordNet.load(folder)


def test_what_is_no_tagged_text_is_told(wordnet: WordNet, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder of tagged text"):
        load_sense_corpus(tmp_path / "none", wordnet.senses)
    with pytest.raises(DataError, match="holds no SemCor files"):
        load_sense_corpus(tmp_path, wordnet.senses)
    with pytest.raises(DataError, match="holds no test set senseval2, senseval3"):
        load_test_sets(tmp_path, wordnet.senses)
    place = write_test_set(tmp_path, "semeval2015") / "semeval2015"
    (place / "semeval2015.gold.key.txt").write_text("other.d000 bank%1:17:01::\n")
    with pytest.raises(DataError, match="is garbled"):
        load_test_sets(tmp_path, wordnet.senses)
    (place / "semeval2015.gold.key.txt").unlink()
    with pytest.raises(DataError, match="does not exist"):
        load_test_sets(tmp_path, wordnet.senses)


# ------------------------------------------------------------------------------ the package wn


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write_wordnet(tmp_path / "wordnet")


@pytest.fixture
def database(tmp_path: Path, nowhere: None) -> Iterator[Path]:
    """An empty database of wn's, and no WordNet in the usual places."""
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


@pytest.mark.usefixtures("database")
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
    (words, names), (other_words, other_names) = find_words(text, one), find_words(text, other)
    assert (words.words(), names) == (other_words.words(), other_names)
    assert one.synset("nothing") is other.synset("nothing") is None


@pytest.mark.usefixtures("database")
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


@pytest.mark.usefixtures("nowhere")
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
