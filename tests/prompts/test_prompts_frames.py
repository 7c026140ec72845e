"""Sentences put together on the device against the same sentences laid out one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from symprompt.models import LanguageModel
from symprompt.prompts import Template, encode_facts, make_frames, make_layout, make_names

TEMPLATES = (
    ("[X] is the capital of [Y] .", "<2> [Y] lies in <1> [X]", "The [X] <3> [Y]"),
    ("[Y], [X]",),
    ("[X] <1> [Y]", "in [X] the <2> [Y]."),
)
FACTS = (("Peru", "Lima"), ("Saint Lucia", "Cuba"), ("Oslo river", "Rome"))


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "gpt2"])
def test_pairs_are_the_sentences_that_a_layout_has(
    load_family: Callable[..., LanguageModel], name: str
) -> None:
    backbone = load_family(name)
    vocabulary = backbone.vocabulary
    templates = [
        [Template.parse(text) for text in own if not backbone.causal or text.endswith("[Y]")]
        for own in TEMPLATES
    ]
    templates = [own for own in templates if own]
    frames = make_frames(vocabulary, templates, backbone.device)
    names = make_names(vocabulary, [subject for subject, _ in FACTS], backbone.device)
    used = 0
    flat = [(relation, template) for relation, own in enumerate(templates) for template in own]
    for number, (relation, template) in enumerate(flat):
        used = used if number and flat[number - 1][0] == relation else 0
        encoded = encode_facts(
            vocabulary, [template], [(0, subject, answer) for subject, answer in FACTS]
        )
        layout = make_layout(vocabulary, [template], encoded, max_length=48)
        rows, width = torch.arange(3), layout.ids.shape[1]
        wanted = layout.question(rows, layout.object_at, width=width, mask_id=vocabulary.mask_id)
        found = frames.question(
            names,
            rows,
            torch.full((3,), number),
            wanted.target,
            width=width,
            mask_id=vocabulary.mask_id,
        )
        seen = wanted.mask
        assert torch.equal(found.mask, seen)
        assert torch.equal(found.ids[seen], wanted.ids[seen])
        slots = torch.where(wanted.slots >= 0, wanted.slots + used, -1)
        assert torch.equal(found.slots[seen], slots[seen])
        assert torch.equal(found.at, wanted.at)
        assert found.relation.tolist() == [relation] * 3
        lengths = frames.pair_lengths(names, np.arange(3), np.full(3, number))
        assert lengths.tolist() == layout.lengths.tolist()
        used += template.vectors
