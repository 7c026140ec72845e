"""What configs are made of: frozen dataclasses that pydantic checks, and types with ranges."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, TypeVar, cast, dataclass_transform

from pydantic import AfterValidator, ConfigDict, Field, Strict, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from symprompt.config.explain import explain
from symprompt.errors import ConfigError

T = TypeVar("T")

# ------------------------------------------------------------------------------ types

Count = Annotated[int, Field(ge=0)]
"""A whole number from 0."""
Positive = Annotated[int, Field(ge=1)]
"""A whole number from 1."""
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""Any whole number that TOML can hold."""
Amount = Annotated[float, Field(ge=0)]
"""A number from 0."""
Rate = Annotated[float, Field(gt=0)]
"""A number above 0."""
Share = Annotated[float, Field(ge=0, lt=1)]
"""A share or probability that is never all: in [0, 1)."""
Portion = Annotated[float, Field(ge=0, le=1)]
"""A share from none to all."""
Factor = Annotated[float, Field(gt=0, le=1)]
"""What something shrinks by: in (0, 1]."""
Compile = Literal["auto", "on", "off", "max-autotune"]
"""Whether a run compiles and records; ``accel.compiling.choose`` states the rule."""


def _different(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) != len(values):
        raise ValueError("each may be there only once")
    return values


Several = Annotated[tuple[T, ...], Strict(False)]
"""A list, kept as a tuple."""
Different = Annotated[tuple[T, ...], Strict(False), Field(min_length=1), AfterValidator(_different)]
"""A list of one or more values, no two the same."""

# ------------------------------------------------------------------------------ marks

INCIDENTAL, COMMON, POSITIONAL = "incidental", "common", "positional"
Incidental = Annotated[T, INCIDENTAL]
"""A setting in which two halves of the same run may differ: it does not change the recipe."""
Common = Annotated[T, COMMON]
"""A setting that the short part of a command's help shows."""
Positional = Annotated[T, POSITIONAL]
"""An argument of a command that has no flag: its place says what it is."""


# ------------------------------------------------------------------------------ classes


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def settings(kind: type[T]) -> type[T]:
    """Make a class a frozen dataclass whose values are checked whenever one is made.

    A field's type says which values are allowed; its docstring is the help text. Checks that
    concern several fields go to ``__post_init__``. A field that is such a class itself is a table.
    ``dataclasses.replace`` and ``asdict`` work as they do with any dataclass.

    Raises (when one is made):
        ConfigError: one sentence that names the key, what was got and what is allowed.
    """
    checks = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
    made: Any = dataclass(kind, frozen=True, kw_only=True, config=checks)
    made.__table__ = ""
    for name, entry in fields_of(made).items():
        if is_dataclass(entry.annotation):
            cast(Any, entry.annotation).__table__ = f"{name}."
        elif entry.description is None:
            # A field with another default than its base class's keeps the help text.
            bases = [base for base in kind.__bases__ if hasattr(base, "__pydantic_fields__")]
            texts = [fields_of(base)[name].description for base in bases if name in fields_of(base)]
            entry.description = next(iter(texts), None)
    made.__init__ = _explaining(made.__init__)
    return cast("type[T]", made)


def _explaining(check: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(check)
    def __init__(self: Any, **values: Any) -> None:  # noqa: N807
        try:
            check(self, **values)
        except ValidationError as error:
            raise ConfigError(explain(error, fields_of(type(self)), self.__table__)) from None

    return __init__


def fields_of(kind: type[Any]) -> dict[str, FieldInfo]:
    """Return the fields of a class of settings: type, range, default and help text by name."""
    return cast("dict[str, FieldInfo]", kind.__pydantic_fields__)


def tables_of(kind: type[Any]) -> dict[str, type[Any]]:
    """Return the tables of a config: those of its fields that are settings themselves."""
    return {
        name: cast("type[Any]", entry.annotation)
        for name, entry in fields_of(kind).items()
        if is_dataclass(entry.annotation)
    }


def flat_fields(kind: type[Any]) -> dict[str, FieldInfo]:
    """Return the fields of a config and of its tables: dotted key -> field."""
    found: dict[str, FieldInfo] = {}
    tables = tables_of(kind)
    for name, entry in fields_of(kind).items():
        if name in tables:
            found |= {f"{name}.{key}": own for key, own in fields_of(tables[name]).items()}
        else:
            found[name] = entry
    return found
