"""Templates: where the learned vectors, the anchor words and the two blanks stand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from symprompt.errors import TemplateError

Kind = Literal["vectors", "words", "subject", "object"]
_MOST_VECTORS = 1000
_TOKEN = re.compile(r"(\[X\]|\[Y\]|<\d+>)")


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
        space = False
        for part in _TOKEN.split(text):
            if not part:
                continue
            if not _TOKEN.fullmatch(part):
                words = " ".join(part.split())
                space = space or part[0].isspace()
                if words:
                    pieces.append(Piece("words", space and bool(pieces), words))
                    space = False
                space = space or part[-1].isspace()
                continue
            here = space and bool(pieces)
            pieces.append(_blank(part, here))
            space = False
        template = cls(tuple(pieces))
        template._check(text)
        return template

    def _check(self, text: str) -> None:
        for blank, kind in (("[X]", "subject"), ("[Y]", "object")):
            found = sum(piece.kind == kind for piece in self.pieces)
            if found != 1:
                raise TemplateError(
                    f"template {text!r} has {found} {blank}; it needs exactly one [X] (the "
                    "subject) and one [Y] (the object)."
                )
        for before, after in zip(self.pieces, self.pieces[1:], strict=False):
            touching = before.text[-1:] + after.text[:1]
            if not after.space and any(character.isalnum() for character in touching):
                raise TemplateError(
                    f"template {text!r}: {before}{after} run together; put a space between them."
                )

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
            tuple(
                Piece(other.get(piece.kind, piece.kind), piece.space, piece.text, piece.count)
                for piece in self.pieces
            )
        )

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
        """Say whether a blank follows white space (its word then starts with the space mark)."""
        return next(piece.space for piece in self.pieces if piece.kind == kind)


def _blank(part: str, space: bool) -> Piece:
    if part == "[X]":
        return Piece("subject", space)
    if part == "[Y]":
        return Piece("object", space)
    count = int(part[1:-1])
    if not 1 <= count <= _MOST_VECTORS:
        raise TemplateError(
            f"{part} asks for {count} vectors in a row; write <1> to <{_MOST_VECTORS}>."
        )
    return Piece("vectors", space, count=count)
