"""Tokenizers that rows are made with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from symprompt.models import LanguageModel
from symprompt.models.vocabulary import Vocabulary
from tiny.models import CAUSAL_FAMILIES, FAMILIES


@pytest.fixture(params=[*FAMILIES, *CAUSAL_FAMILIES])
def vocabulary(
    request: pytest.FixtureRequest, load_family: Callable[..., LanguageModel]
) -> Vocabulary:
    """Every family's tokenizer, masked and causal, in turn."""
    return load_family(str(request.param)).vocabulary


@pytest.fixture
def plain(load_family: Callable[..., LanguageModel]) -> Vocabulary:
    return load_family("bert").vocabulary
