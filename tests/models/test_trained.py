"""What of a model was trained: the record of it."""

from __future__ import annotations

import pytest
from transformers import BertConfig

from symprompt.errors import ModelError
from symprompt.models.trained import KEY, Trained, read_record


def test_a_run_that_goes_on_adds_to_what_was_trained() -> None:
    first = Trained(128, 1, ("mlm",))
    assert first.then(Trained(256, 2, ("mlm", "nsp"))) == Trained(256, 2, ("mlm", "nsp"))
    # What a later run does not reach stays trained, as where its embeddings are frozen.
    assert first.then(Trained(0, 0, ("mlm", "sbo"))) == Trained(128, 1, ("mlm", "sbo"))
    assert Trained(None, 0, ("mlm",)).then(Trained(None, 0)) == Trained(None, 0, ("mlm",))


def test_the_record_lasts_through_a_config_of_transformers(tmp_path: object) -> None:
    config = BertConfig()
    assert read_record(config) is None
    for record in (Trained(128, 1, ("mlm", "sbo")), Trained(None, 0)):
        record.write(config)
        config.save_pretrained(str(tmp_path))
        assert read_record(BertConfig.from_pretrained(str(tmp_path))) == record


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"positions": 3}, "symprompt_trained.segments is"),
        ({"positions": "many", "segments": 1}, "symprompt_trained.positions is 'many'"),
        ([1], "symprompt_trained is"),
    ],
)
def test_a_damaged_record_is_refused(stored: object, said: str) -> None:
    config = BertConfig()
    setattr(config, KEY, stored)
    with pytest.raises(ModelError, match=f"config.json of m is damaged: {said}"):
        read_record(config, "m")
