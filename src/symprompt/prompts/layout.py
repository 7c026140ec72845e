"""Templates, and facts tensorised in them once, so that no batch needs Python per example.

A template says where the learned vectors, the anchor words and the two blanks stand. A layout holds
every fact's sentence with both blanks filled. A question is the same sentence with some positions
masked: the object's, or in a subject prompt one subject token's. For a causal model nothing is
masked: the output before a position is about the token that stands there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, zip_longest
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.errors import DataError, TemplateError
from symprompt.models import Inputs, LanguageModel, Vocabulary
from symprompt.runs.environment import send

Kind = Literal["vectors", "words", "subject", "object"]
_MOST_VECTORS = 1000
_ROWS_AT_ONCE = 1 << 16
_BLANKS: dict[str, Literal["subject", "object"]] = {"[X]": "subject", "[Y]": "object"}
_MARK = r"\[X\]|\[Y\]|<\d+>"
# White space, then a blank, vectors, or words up to the next of them.
_PIECE = re.compile(rf"(\s*)({_MARK}|\S.*?(?=\s*(?:{_MARK}|\Z)))", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a template; ``space`` says whether white space stands before it."""

    kind: Kind
    space: bool
    text: str = ""
    count: int = 0

    def __str__(self) -> str:
        shown = {"subject": "[X]", "object": "[Y]", "vectors": f"<{self.count}>"}
        return shown.get(self.kind, self.text)


@dataclass(frozen=True, slots=True)
class Template:
    """A sentence with a blank for the subject [X], one for the object [Y] and learned vectors <n>.

    Words are anchor tokens. A manual template is one without vectors.

    Example:
        >>> template = Template.parse("<3> [X] <3> [Y] <3>")
        >>> template.vectors
        9
        >>> str(Template.parse("[X]  is located in [Y] ."))
        '[X] is located in [Y] .'
    """

    pieces: tuple[Piece, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Read a template text.

        Raises:
            TemplateError: a blank is missing or stands twice, <0> is written, or a letter touches
                a blank or a vector.
        """
        pieces: list[Piece] = []
        for before, part in _PIECE.findall(text):
            space = bool(before and pieces)
            if part in _BLANKS:
                pieces.append(Piece(_BLANKS[part], space))
            elif re.fullmatch(_MARK, part):
                count = int(part[1:-1])
                if not 1 <= count <= _MOST_VECTORS:
                    raise TemplateError(
                        f"{part} asks for {count} vectors in a row; write <1> to <{_MOST_VECTORS}>."
                    )
                pieces.append(Piece("vectors", space, count=count))
            else:
                pieces.append(Piece("words", space, " ".join(part.split())))
        for blank, kind in _BLANKS.items():
            found = sum(piece.kind == kind for piece in pieces)
            if found != 1:
                raise TemplateError(
                    f"template {text!r} has {found} {blank}; it needs exactly one [X] (the "
                    "subject) and one [Y] (the object)."
                )
        for one, after in pairwise(pieces):
            touching = one.text[-1:] + after.text[:1]
            if not after.space and any(character.isalnum() for character in touching):
                raise TemplateError(
                    f"template {text!r}: {one}{after} run together; put a space between them."
                )
        return cls(tuple(pieces))

    def __str__(self) -> str:
        return "".join((" " if piece.space else "") + str(piece) for piece in self.pieces)

    @property
    def vectors(self) -> int:
        """How many learned vectors the template has."""
        return sum(piece.count for piece in self.pieces)

    def swapped(self) -> Template:
        """Return the template with the blanks exchanged, every vector where it was."""
        other: dict[Kind, Kind] = {"subject": "object", "object": "subject"}
        return Template(
            tuple(replace(piece, kind=other.get(piece.kind, piece.kind)) for piece in self.pieces)
        )

    def reworded(self, words: Template) -> Template:
        """Return other words, with this template's vectors in their places around the blanks.

        Vectors stand before the first blank, between the two or after the second as they did, and
        the words follow them there; which blank comes first is up to the words. Words of this
        template are gone.

        Example:
            >>> own = Template.parse("<3> [X] <2> [Y] <1> .")
            >>> str(own.reworded(Template.parse("[Y], the capital of [X]")))
            '<3> [Y] <2> , the capital of [X] <1>'
        """
        pieces: list[Piece] = []
        before, after = self._gaps(), words._gaps()
        blanks = [piece for piece in words.pieces if piece.kind in ("subject", "object")]
        for count, own, blank in zip_longest(
            (sum(piece.count for piece in gap) for gap in before), after, blanks
        ):
            if count:
                pieces.append(Piece("vectors", bool(pieces), count=count))
            for piece in (*own, *([blank] if blank else ())):
                learned = bool(pieces) and pieces[-1].kind == "vectors"
                pieces.append(replace(piece, space=piece.space or learned))
        return Template(tuple(pieces))

    def _gaps(self) -> list[list[Piece]]:
        """Return what stands before the first blank, between the two and after the second."""
        gaps: list[list[Piece]] = [[]]
        for piece in self.pieces:
            if piece.kind in ("subject", "object"):
                gaps.append([])
            else:
                gaps[-1].append(piece)
        return gaps

    @property
    def ends_with_object(self) -> bool:
        """Whether nothing stands after [Y], as causal models need it."""
        return self.pieces[-1].kind == "object"

    def cut_after_object(self) -> Template:
        """Return the template without what stands after [Y].

        Raises:
            TemplateError: the subject stands there.
        """
        at = next(index for index, piece in enumerate(self.pieces) if piece.kind == "object")
        if any(piece.kind == "subject" for piece in self.pieces[at:]):
            raise TemplateError(
                f"template {str(self)!r} has the subject after the object, and a causal model "
                "reads left to right: it would answer before it is asked; put [X] before [Y]."
            )
        return Template(self.pieces[: at + 1])

    def space_before(self, kind: Literal["subject", "object"]) -> bool:
        """Return whether a blank follows white space (its word then starts with the space mark)."""
        return next(piece.space for piece in self.pieces if piece.kind == kind)


@dataclass(frozen=True)
class Question:
    """A batch of sentences with queried positions, ready to embed.

    Shapes: ids, slots, mask [b, t]; relation, at, target [b]. The model's output at
    ``at`` is about ``target``. No mask means no padding.
    """

    ids: Tensor
    slots: Tensor
    mask: Tensor | None
    relation: Tensor
    at: Tensor
    target: Tensor

    def inputs(
        self, backbone: LanguageModel, vectors: Tensor | None, words: Tensor | None = None
    ) -> Inputs:
        """Return the model's input: word embeddings, with learned vectors at their slots.

        Args:
            vectors: [relation, n, width]; None for templates without vectors.
            words: the embeddings of ``ids``, where they are there already.
        """
        embeddings = backbone.embed(self.ids) if words is None else words
        if vectors is not None:
            count = vectors.shape[1]
            index = self.relation[:, None] * count + self.slots.clamp(min=0)
            learned = functional.embedding(index, vectors.reshape(-1, vectors.shape[2]))
            is_slot = (self.slots >= 0)[:, :, None]
            embeddings = torch.where(is_slot, learned.to(embeddings.dtype), embeddings)
        return Inputs(embeddings, self.mask)


@dataclass(frozen=True)
class Layout:
    """Every fact's sentence, both blanks filled.

    Device tensors: ids, slots [n, t] (slot -1: a word); relation, object_at, subject_at, length,
    subject_length, object_length [n]. CPU arrays: lengths, subject_lengths, object_lengths,
    relations [n], to plan batches without waiting for the device. ``limit`` is the longest sentence
    the model takes.
    """

    ids: Tensor
    slots: Tensor
    relation: Tensor
    object_at: Tensor
    subject_at: Tensor
    length: Tensor
    subject_length: Tensor
    object_length: Tensor
    lengths: np.ndarray
    subject_lengths: np.ndarray
    object_lengths: np.ndarray
    relations: np.ndarray
    limit: int

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> Layout:
        """Return the layout with its tensors on a device."""
        moved: dict[str, Any] = {
            key: send(own, device) for key, own in vars(self).items() if isinstance(own, Tensor)
        }
        return replace(self, **moved)

    def filled(self, rows: np.ndarray, tokens: Tensor, lengths: np.ndarray) -> Layout:
        """Return the sentences of some rows with other objects, of any length, in place.

        Args:
            rows: [b] fact indices; one may stand several times.
            tokens: [b, t] the objects' tokens, on the device.
            lengths: [b] how many of them there are in each row, from 0.
        """
        index = torch.from_numpy(rows).to(self.ids.device)
        length = torch.from_numpy(lengths).to(self.ids.device)
        longer = lengths - self.object_lengths[rows]
        total = self.lengths[rows] + longer
        width = min(round_up(int(total.max(initial=1))), self.limit)
        steps = torch.arange(width, device=self.ids.device)[None, :]
        start = self.object_at[index]
        shift = length - self.object_length[index]
        before, after = steps < start[:, None], steps >= (start + length)[:, None]
        # Every position takes what stood there, or so many places earlier once past the object.
        source = torch.where(after, steps - shift[:, None], steps.expand(len(rows), -1))
        source = source.clamp(0, self.ids.shape[1] - 1)
        inside = (steps - start[:, None]).clamp(0, tokens.shape[1] - 1)
        ids, slots = self.ids[index].gather(1, source), self.slots[index].gather(1, source)
        fixed = before | after
        return replace(
            self,
            ids=torch.where(fixed, ids, tokens.gather(1, inside)),
            slots=slots.masked_fill(~fixed, -1),
            relation=self.relation[index],
            object_at=start,
            subject_at=self.subject_at[index] + shift * (self.subject_at[index] > start),
            length=self.length[index] + shift,
            subject_length=self.subject_length[index],
            object_length=length,
            lengths=total,
            subject_lengths=self.subject_lengths[rows],
            object_lengths=lengths,
            relations=self.relations[rows],
        )

    def sentences(self, at: Tensor) -> Question:
        """Return all sentences as they stand, nothing masked, to be read at positions ``at``."""
        steps = torch.arange(self.ids.shape[1], device=self.ids.device)
        mask = steps[None, :] < self.length[:, None]
        return Question(self.ids, self.slots, mask, self.relation, at, at)

    def take(self, rows: np.ndarray, relations: np.ndarray) -> Layout:
        """Return some facts' sentences, as facts of the relations with these indices."""
        device = self.ids.device
        index = torch.from_numpy(rows).to(device)
        taken: dict[str, Any] = {
            key: own[index] if isinstance(own, Tensor) else own[rows]
            for key, own in vars(self).items()
            if key != "limit"
        }
        named = {"relation": torch.from_numpy(relations).to(device), "relations": relations}
        return replace(self, **taken | named)

    def without_subjects(self, rows: np.ndarray, mask_id: int) -> Layout:
        """Return some facts' sentences with a mask in the place of each subject token."""
        found = self.take(rows, self.relations[rows])
        steps = torch.arange(found.ids.shape[1], device=found.ids.device)
        place = steps - found.subject_at[:, None]
        inside = (place >= 0) & (place < found.subject_length[:, None])
        return replace(found, ids=found.ids.masked_fill(inside, mask_id))

    def width(self, rows: np.ndarray) -> int:
        """Return a width that holds these rows: theirs if all are as long, else one of a few."""
        lengths = self.lengths[rows]
        longest = int(lengths.max())
        if int(lengths.min()) == longest:
            return longest
        return min(round_up(longest), self.ids.shape[1])

    def is_padded(self, rows: np.ndarray, width: int) -> bool:
        """Say whether any of these rows is shorter than the width."""
        return int(self.lengths[rows].min()) < width

    def question(
        self,
        rows: Tensor,
        at: Tensor,
        *,
        width: int,
        mask_id: int | None,
        objects: Tensor | None = None,
        since: Tensor | None = None,
        until: Tensor | None = None,
        padded: bool = True,
    ) -> Question:
        """Return the sentences of some rows that ask for what stands at the positions ``at``.

        Args:
            rows: [b] fact indices, on the device.
            at: [b] positions asked about.
            width: what the batch is cut to, see ``width``.
            mask_id: the mask token, which takes those positions; None for a causal model, whose
                output is read one position earlier (P-tuning, section 4.1) and whose sentences end
                before the position asked about.
            objects: [b] token ids that replace the true objects (candidates); None keeps them.
            since, until: [b] the first and the last position to be masked; None is the queried one.
            padded: false if every row is as long as the width, see ``is_padded``: attention without
                a mask is faster.
        """
        ids = self.ids[rows, :width]
        if objects is not None:
            ids = ids.scatter(1, self.object_at[rows, None], objects[:, None])
        target = ids.gather(1, at[:, None])[:, 0]
        steps = torch.arange(width, device=ids.device)
        length = self.length[rows]
        if mask_id is None:
            length, at = at, at - 1
        else:
            ids = ids.masked_fill(hidden_places(steps, at[:, None], since, until), mask_id)
        return Question(
            ids=ids,
            slots=self.slots[rows, :width],
            mask=steps[None, :] < length[:, None] if padded else None,
            relation=self.relation[rows],
            at=at,
            target=target,
        )


def hidden_places(place: Tensor, at: Tensor, since: Tensor | None, until: Tensor | None) -> Tensor:
    """Return which places are masked: the queried ones, or all from ``since`` to ``until``.

    Args:
        place, at: of shapes that broadcast.
        since, until: [b], see ``Layout.question``; given the shape of ``at``.
    """
    if since is None and until is None:
        return place == at
    first = at if since is None else since.view(at.shape)
    last = at if until is None else until.view(at.shape)
    return (place >= first) & (place <= last)


def round_up(length: int) -> int:
    """Return the width that sentences of a length are padded to."""
    return -(-length // 8) * 8


@dataclass(frozen=True)
class EncodedFacts:
    """Facts as token ids: each fact's relation index, subject token ids and object token id.

    ``names`` holds all tokens of objects that may have several; ``objects`` then their first ones.
    """

    relation: np.ndarray
    subjects: list[list[int]]
    objects: np.ndarray
    names: list[list[int]] | None = None

    def __len__(self) -> int:
        return len(self.subjects)


def encode_facts(
    vocabulary: Vocabulary,
    templates: Sequence[Template],
    facts: Sequence[tuple[int, str, str]],
    *,
    swapped: bool = False,
    any_length: bool = False,
) -> EncodedFacts:
    """Turn (relation index, subject, object) triples into token ids.

    Each name is read as it stands in its relation's template: after a space, or at the start.
    In a subject prompt (``swapped``) the subject is read as it stands there, but an object keeps
    the token it has as an answer. With ``any_length`` objects may have several.

    Raises:
        DataError: an object is not one token of the vocabulary, or a name has no token.
    """
    spaced_subject = [
        (template.swapped() if swapped else template).space_before("subject")
        for template in templates
    ]
    spaced_object = [template.space_before("object") for template in templates]
    subjects = vocabulary.encode_names(
        [subject for _, subject, _ in facts], [spaced_subject[fact[0]] for fact in facts]
    )
    objects = vocabulary.encode_names(
        [name for _, _, name in facts], [spaced_object[fact[0]] for fact in facts]
    )
    for (_, subject, name), subject_ids, object_ids in zip(facts, subjects, objects, strict=True):
        if not object_ids or (len(object_ids) > 1 and not any_length):
            raise DataError(
                f"object {name!r} is {len(object_ids)} tokens of this model, not one; drop such "
                "facts first."
            )
        if not subject_ids:
            raise DataError(f"subject {subject!r} has no token in this model's vocabulary.")
    return EncodedFacts(
        relation=np.array([relation for relation, _, _ in facts], dtype=np.int64),
        subjects=subjects,
        objects=np.array([ids[0] for ids in objects], dtype=np.int64),
        names=objects if any_length else None,
    )


def make_layout(
    vocabulary: Vocabulary,
    templates: Sequence[Template],
    facts: EncodedFacts,
    *,
    max_length: int,
    swapped: bool = False,
) -> Layout:
    """Tensorise facts in their relations' templates.

    Args:
        templates: one per relation.
        max_length: the longest sentence the model takes.
        swapped: exchange the blanks, for the subject prompt (SPE, equation 4).

    Raises:
        DataError: a sentence is longer than the model takes.
        TemplateError: an anchor word is a mask token.
    """
    frames = [
        Frame(vocabulary, template.swapped() if swapped else template) for template in templates
    ]
    subjects, subject_lengths = pad_rows(facts.subjects)
    if facts.names is None:
        objects, object_lengths = facts.objects[:, None], np.ones(len(facts.objects), np.int64)
    else:
        objects, object_lengths = pad_rows(facts.names)
    words, lengths = pad_rows([frame.ids for frame in frames])
    slots, _ = pad_rows([frame.slots for frame in frames])
    relation = facts.relation
    first = np.array([frame.subject_first for frame in frames])[relation]
    about = [(frame.subject_at, frame.object_at) for frame in frames]
    subject_at, object_at = np.array(about, dtype=np.int64)[relation].T
    # Where the blanks are once names stand in them: what comes first moves the other on.
    subject_at = subject_at + np.where(first, 0, object_lengths)
    object_at = object_at + np.where(first, subject_lengths, 0)
    lengths = lengths[relation] + subject_lengths + object_lengths
    longest = int(lengths.max(initial=1))
    if longest > max_length:
        raise DataError(
            f"a fact needs {longest} tokens in its template and the model takes {max_length}; "
            "shorten the subject or the template."
        )
    steps = np.arange(min(round_up(longest), max_length))[None, :]
    ids = np.full((len(relation), steps.shape[1]), vocabulary.pad_id, dtype=np.int64)
    placed = np.full_like(ids, -1)
    names = ((subjects, subject_at, subject_lengths), (objects, object_at, object_lengths))
    # Some rows at a time: what is made on the way takes several times the memory of what stays.
    for start in range(0, len(relation), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        owner = relation[rows, None]
        # All other places hold what stands so many places earlier in the frame.
        source = steps.repeat(len(owner), 0)
        for _, at, count in names:
            source = source - np.where(steps >= at[rows, None], count[rows, None], 0)
        source = np.clip(source, 0, words.shape[1] - 1)
        is_word = steps < lengths[rows, None]
        np.copyto(ids[rows], words[owner, source], where=is_word)
        for table, at, count in names:
            place = steps - at[rows, None]
            inside = (place >= 0) & (place < count[rows, None])
            own = np.take_along_axis(table[rows], np.clip(place, 0, table.shape[1] - 1), 1)
            np.copyto(ids[rows], own, where=inside)
            is_word &= ~inside
        np.copyto(placed[rows], slots[owner, source], where=is_word)
    return Layout(
        ids=torch.from_numpy(ids),
        slots=torch.from_numpy(placed),
        relation=torch.from_numpy(relation),
        object_at=torch.from_numpy(object_at),
        subject_at=torch.from_numpy(subject_at),
        length=torch.from_numpy(lengths),
        subject_length=torch.from_numpy(subject_lengths),
        object_length=torch.from_numpy(object_lengths),
        lengths=lengths,
        subject_lengths=subject_lengths,
        object_lengths=object_lengths,
        relations=relation,
        limit=max_length,
    )


def pad_rows(rows: Sequence[Sequence[int]], filler: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows filled up to the longest, [n, t], one column at least, and their lengths [n]."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    table = np.full((len(rows), int(lengths.max(initial=1))), filler, dtype=np.int64)
    inside = np.arange(table.shape[1]) < lengths[:, None]
    table[inside] = np.fromiter(chain.from_iterable(rows), dtype=np.int64)
    return table, lengths


def fixed_length(vocabulary: Vocabulary, template: Template) -> int:
    """Return how many tokens a template takes besides its subject, with an object of one token."""
    return len(Frame(vocabulary, template, answer=[vocabulary.pad_id]).ids)


class Frame:
    """A template as tokens, its blanks empty unless names are given.

    Attributes:
        ids, slots: each position's token and the number of its vector, -1 for a word.
        subject_at, object_at: where the blanks begin.
        subject_first: whether the subject stands before the object.

    Raises:
        TemplateError: an anchor word is a mask token.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        template: Template,
        *,
        subject: Sequence[int] = (),
        answer: Sequence[int] = (),
    ) -> None:
        self.ids, self.slots = list(vocabulary.prefix), [-1] * len(vocabulary.prefix)
        self.subject_at = self.object_at = -1
        vectors = 0
        for index, piece in enumerate(template.pieces):
            ids: Sequence[int] = [vocabulary.pad_id] * piece.count
            if piece.kind == "words":
                ids = encode_piece(vocabulary, piece, first=index == 0)
                if vocabulary.mask_id in ids:
                    raise TemplateError(
                        f"template {str(template)!r} contains the mask token; the blanks are "
                        "written [X] and [Y]."
                    )
            elif piece.kind == "subject":
                self.subject_at, ids = len(self.ids), subject
                self.subject_first = self.object_at < 0
            elif piece.kind == "object":
                self.object_at, ids = len(self.ids), answer
            self.ids += ids
            slots = range(vectors, vectors + piece.count) if piece.count else [-1] * len(ids)
            self.slots += slots
            vectors += piece.count
        self.ids += vocabulary.suffix
        self.slots += [-1] * len(vocabulary.suffix)


def encode_piece(vocabulary: Vocabulary, piece: Piece, *, first: bool) -> list[int]:
    """Return the ids of a piece of words as it stands in its template."""
    if piece.space:
        return vocabulary.encode_words([piece.text])[0]
    return vocabulary.encode([piece.text])[0] if first else vocabulary.encode_glued(piece.text)
