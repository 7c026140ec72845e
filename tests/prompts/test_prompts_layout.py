"""Layouts against the tokenizer's own reading of the written-out sentence, for every family."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from symprompt.errors import DataError, TemplateError
from symprompt.facts import FactSet, Relation
from symprompt.models import LanguageModel
from symprompt.probing.methods.base import make_encoder
from symprompt.probing.prepare import make_method, prepare
from symprompt.probing.queries import object_logits
from symprompt.prompts import EncodedFacts, Frame, Layout, Template, encode_facts, make_layout
from symprompt.prompts import layout as layout_module
from tiny.models import facts_of, run_config

Load = Callable[..., LanguageModel]
MANUAL = (
    "[X] is located in [Y] .",
    "The capital of [X] is [Y] .",
    "[X]'s capital is [Y] .",
    "[Y] is the capital of [X].",
    "in the city of [X] , [Y] .",
)
PAIRS = (("France", "Paris"), ("New York", "Spain"), ("Oslo", "Rome"))


def lay_out(
    backbone: LanguageModel,
    template: str,
    pairs: Sequence[tuple[str, str]] = PAIRS,
    *,
    swapped: bool = False,
) -> tuple[EncodedFacts, Layout]:
    templates = [Template.parse(template)]
    encoded = encode_facts(backbone.vocabulary, templates, [(0, *pair) for pair in pairs])
    layout = make_layout(
        backbone.vocabulary, templates, encoded, max_length=backbone.max_length, swapped=swapped
    )
    return encoded, layout


def row_ids(layout: Layout, row: int) -> list[int]:
    ids: list[int] = layout.ids[row, : layout.lengths[row]].tolist()
    return ids


@pytest.mark.parametrize("template", MANUAL)
def test_filled_sentence_is_read_as_the_tokenizer_reads_it(
    backbone: LanguageModel, template: str
) -> None:
    _, layout = lay_out(backbone, template)
    for row, (subject, answer) in enumerate(PAIRS):
        text = template.replace("[X]", subject).replace("[Y]", answer)
        assert row_ids(layout, row) == backbone.vocabulary.tokenizer(text)["input_ids"]


@pytest.mark.parametrize("template", [text for text in MANUAL if " [Y] " in text])
def test_question_is_read_as_the_tokenizer_reads_the_mask_token(
    backbone: LanguageModel, template: str
) -> None:
    _, layout = lay_out(backbone, template)
    vocabulary = backbone.vocabulary
    question = layout.question(
        torch.arange(3), layout.object_at, width=layout.ids.shape[1], mask_id=vocabulary.mask_id
    )
    for row, (subject, _) in enumerate(PAIRS):
        text = template.replace("[X]", subject).replace("[Y]", vocabulary.tokenizer.mask_token)
        wanted = vocabulary.tokenizer(text)["input_ids"]
        assert question.ids[row][question.mask[row]].tolist() == wanted
        assert question.ids[row, question.at[row]] == vocabulary.mask_id


@pytest.mark.parametrize("at_once", [7, 1000])
def test_facts_of_many_templates_are_laid_out_as_each_frame_is_filled(
    bert: LanguageModel, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout_module, "_ROWS_AT_ONCE", at_once)
    texts = ["[X] [Y]", "[Y] [X] .", "<2> [X] of <1> [Y] in <3>", "in [Y] , <2> [X]", "[X] is [Y]."]
    templates = [Template.parse(text) for text in texts]
    generator = np.random.default_rng(0)
    count = 60
    facts = EncodedFacts(
        relation=generator.integers(0, len(templates), count),
        subjects=[
            generator.integers(5, 15, generator.integers(1, 5)).tolist() for _ in range(count)
        ],
        objects=np.zeros(count, dtype=np.int64),
        names=[generator.integers(5, 15, generator.integers(1, 4)).tolist() for _ in range(count)],
    )
    assert facts.names is not None
    for swapped in (False, True):
        layout = make_layout(
            bert.vocabulary, templates, facts, max_length=bert.max_length, swapped=swapped
        )
        width = layout.ids.shape[1]
        for row in range(count):
            template = templates[facts.relation[row]]
            wanted = Frame(
                bert.vocabulary,
                template.swapped() if swapped else template,
                subject=facts.subjects[row],
                answer=facts.names[row],
            )
            more = width - len(wanted.ids)
            assert layout.ids[row].tolist() == wanted.ids + [bert.vocabulary.pad_id] * more
            assert layout.slots[row].tolist() == wanted.slots + [-1] * more
            assert layout.subject_at[row] == wanted.subject_at
            assert layout.object_at[row] == wanted.object_at
            assert layout.length[row] == len(wanted.ids)


def test_vector_slots_are_numbered_in_reading_order(bert: LanguageModel) -> None:
    encoded, layout = lay_out(bert, "<2> [X] <1> the <3> [Y] <1>")
    city = bert.vocabulary.encode(["the"])[0]
    pad = bert.vocabulary.pad_id
    for row, subject in enumerate(encoded.subjects):
        gap = [-1] * len(subject)
        slots = layout.slots[row, : layout.lengths[row]].tolist()
        assert slots == [-1, 0, 1, *gap, 2, -1, 3, 4, 5, -1, 6, -1]
        answer = int(encoded.objects[row])
        wanted = [pad, pad, *subject, pad, *city, pad, pad, pad, answer, pad]
        assert row_ids(layout, row) == [
            *bert.vocabulary.prefix, *wanted, *bert.vocabulary.suffix
        ]  # fmt: skip
    # Nothing but padding follows a sentence.
    beyond = torch.arange(layout.ids.shape[1])[None] >= layout.length[:, None]
    assert (layout.slots[beyond] == -1).all()
    assert (layout.ids[beyond] == pad).all()


@pytest.mark.parametrize("hidden", ["at", "until", "since and until"])
def test_question_masks_the_asked_positions_and_nothing_else(
    hidden: str, bert: LanguageModel
) -> None:
    encoded, layout = lay_out(bert, "<1> [X] in [Y] .")
    mask_id, rows = bert.vocabulary.mask_id, torch.tensor([1, 2, 1])
    first = layout.subject_at[rows]
    at, width = first + 1, layout.width(np.array([1, 2]))
    since = first if "since" in hidden else None
    until = at + 1 if "until" in hidden else None
    question = layout.question(rows, at, width=width, mask_id=mask_id, since=since, until=until)
    original = layout.ids[rows, :width]
    masked = torch.zeros_like(original, dtype=torch.bool).scatter_(1, at[:, None], True)
    for place, start in enumerate(first.tolist()):
        masked[place, start] = since is not None
        masked[place, start + 2] = until is not None
    assert (question.ids[masked] == mask_id).all()
    assert torch.equal(question.ids[~masked], original[~masked])
    assert question.target.tolist() == [encoded.subjects[row][1] for row in (1, 2, 1)]
    assert torch.equal(question.slots, layout.slots[rows, :width])
    assert question.mask is not None
    assert question.mask.sum(1).tolist() == layout.lengths[[1, 2, 1]].tolist()


def test_question_puts_candidates_in_the_place_of_the_objects(bert: LanguageModel) -> None:
    encoded, layout = lay_out(bert, "<1> [X] in [Y] .", swapped=True)
    rows, candidates = torch.tensor([0, 0, 1]), torch.tensor([20, 21, 22])
    question = layout.question(
        rows,
        layout.subject_at[rows],
        width=layout.ids.shape[1],
        mask_id=bert.vocabulary.mask_id,
        objects=candidates,
    )
    assert question.ids[torch.arange(3), layout.object_at[rows]].tolist() == [20, 21, 22]
    assert question.target.tolist() == [encoded.subjects[row][0] for row in (0, 0, 1)]
    changed = question.ids != layout.ids[rows]
    assert changed.sum(1).tolist() == [2, 2, 2]
    # Asking for the object hides a replaced one too.
    question = layout.question(
        rows,
        layout.object_at[rows],
        width=layout.ids.shape[1],
        mask_id=bert.vocabulary.mask_id,
        objects=candidates,
    )
    assert set(question.ids[torch.arange(3), question.at].tolist()) == {bert.vocabulary.mask_id}
    assert question.target.tolist() == [20, 21, 22]
    # The layout itself is left as it was.
    assert layout.ids[0, layout.object_at[0]] == encoded.objects[0]


def test_vectors_stand_at_their_slots_and_words_elsewhere(bert: LanguageModel) -> None:
    templates = [Template.parse("<2> [X] [Y]"), Template.parse("[X] <1> [Y] <2>")]
    encoded = encode_facts(bert.vocabulary, templates, [(0, "France", "Rome"), (1, "Oslo", "Rome")])
    layout = make_layout(bert.vocabulary, templates, encoded, max_length=48)
    vectors = torch.randn(2, 3, bert.width, dtype=torch.float64)
    question = layout.question(
        torch.tensor([1, 0]),
        layout.object_at[[1, 0]],
        width=layout.ids.shape[1],
        mask_id=bert.vocabulary.mask_id,
    )
    inputs = question.inputs(bert, vectors)
    for row, relation in enumerate((1, 0)):
        for at, slot in enumerate(question.slots[row].tolist()):
            word = bert.embed(question.ids[row, at][None, None])[0, 0]
            wanted = vectors[relation, slot] if slot >= 0 else word
            assert torch.equal(inputs.embeddings[row, at], wanted)


def test_width_holds_the_rows_and_fits_the_model(bert: LanguageModel) -> None:
    _, layout = lay_out(bert, "[X] in [Y] .")
    for row in range(3):
        width = layout.width(np.array([row]))
        assert layout.lengths[row] <= width <= layout.ids.shape[1]


def test_sentence_of_exactly_the_longest_length_is_taken(backbone: LanguageModel) -> None:
    encoded, layout = lay_out(backbone, "[X] in [Y] .", [("France", "Paris")])
    room = backbone.max_length - int(layout.lengths[0])
    template = f"<{room}> [X] in [Y] ."
    spaced, full = lay_out(backbone, template, [("France", "Paris")])
    # A name after a space may be another number of tokens than at the start; here it is not.
    assert len(spaced.subjects[0]) == len(encoded.subjects[0])
    assert full.lengths[0] == full.ids.shape[1] == backbone.max_length
    vectors = torch.zeros(1, room, backbone.width, dtype=torch.float64)
    assert object_logits(backbone, full, np.array([0]), vectors).isfinite().all()
    with pytest.raises(DataError, match=rf"needs {backbone.max_length + 1} tokens"):
        lay_out(backbone, f"<{room + 1}> [X] in [Y] .", [("France", "Paris")])


@pytest.mark.parametrize(
    ("template", "pair", "message"),
    [
        ("[X] [MASK] [Y]", PAIRS[0], "contains the mask token"),
        ("[X] in [Y]", ("France", "New York"), "'New York' is 2 tokens"),
        ("[X] in [Y]", ("", "Paris"), "has no token"),
    ],
)
def test_what_the_model_cannot_read_is_refused(
    backbone: LanguageModel, template: str, pair: tuple[str, str], message: str
) -> None:
    text = template.replace("[MASK]", backbone.vocabulary.tokenizer.mask_token)
    with pytest.raises((DataError, TemplateError), match=message):
        lay_out(backbone, text, [pair])


@pytest.mark.parametrize("template", MANUAL)
def test_free_vectors_started_from_words_ask_what_the_words_ask(
    backbone: LanguageModel, template: str
) -> None:
    facts = FactSet(
        (Relation("r", *[facts_of("r", PAIRS)] * 3, template=template),), "made up", "table"
    )
    logits = []
    for prompt in ({"encoder": "free", "start": "manual"}, {"template": "manual"}):
        name = "ptuning" if "encoder" in prompt else "manual"
        config = run_config(prompt=prompt, method={"name": name, "k": 3}, dtype="float64")
        problem = prepare(config, backbone, facts)
        assert (problem.templates[0].vectors > 0) == (name == "ptuning")
        vectors = make_method(config, problem).vectors().get("forth")
        logits.append(
            object_logits(
                backbone, problem.sentences["test"].object_prompt, np.arange(3), vectors
            ).detach()
        )
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-6)


def test_encoder_is_on_the_models_device_in_full_precision(load_family: Load) -> None:
    backbone = load_family("bert", "bfloat16")
    facts = FactSet((Relation("r", *[facts_of("r", PAIRS)] * 3),), "made up", "table")
    config = run_config()
    encoder = make_encoder(config, prepare(config, backbone, facts), "forth")
    # Adam's small steps would be lost in half precision.
    assert {value.dtype for value in encoder.parameters()} == {torch.float32}
