"""A model that knows words, and sentences to tag with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from symprompt.models import LanguageModel
from tiny.labelled import write_toy


@pytest.fixture(scope="session")
def knowing(knowing_bert: LanguageModel) -> Path:
    """The folder of a tiny BERT that can learn the toy tasks."""
    return Path(knowing_bert.source)


@pytest.fixture(scope="session")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a toy task of tagging."""
    return write_toy(tmp_path_factory.mktemp("tagged"), "tagging")
