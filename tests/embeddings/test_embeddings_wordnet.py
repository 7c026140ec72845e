"""WordNet's files, tagged text in both layouts, base forms, and what to do without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from symprompt.embeddings.sense_corpora import load_sense_corpus, load_test_sets
from symprompt.embeddings.sense_evaluation import find_words
from symprompt.embeddings.wordnet import WordNet, find_wordnet
from symprompt.errors import DataError
from tiny.wordnet import MONEY, RIVER, write_semcor, write_test_set, write_wordnet


@pytest.fixture(scope="module")
def wordnet(tmp_path_factory: pytest.TempPathFactory) -> WordNet:
    return WordNet.load(write_wordnet(tmp_path_factory.mktemp("wordnet")))


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
    found = find_words("The old banks took place; 3 prime ministers of happen.", wordnet)
    assert [word.word for word in found] == [
        *("old", "banks", "took place", "prime ministers", "happen")
    ]
    assert found[1].names == (("bank", "n"), ("bank", "v"))
    assert found[2].names == (("take_place", "v"),)


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


def test_a_missing_wordnet_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symprompt.embeddings.wordnet._PLACES", (str(tmp_path / "none"),))
    monkeypatch.delenv("WNSEARCHDIR", raising=False)
    monkeypatch.delenv("WNHOME", raising=False)
    with pytest.raises(DataError, match="apt-get install wordnet-base wordnet-sense-index"):
        WordNet.load()
    with pytest.raises(DataError, match="apt-get install wordnet-base wordnet-sense-index"):
        WordNet.load(tmp_path)
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
