"""Contextual word vectors: made, compared, and used to tell a word's senses apart."""

from symprompt.embeddings.store import EmbeddingStore, write_embeddings
from symprompt.embeddings.vectors import (
    Choice,
    Text,
    WordVectors,
    describe_corpus,
    embed,
    read_corpus,
)

__all__ = [
    "Choice",
    "EmbeddingStore",
    "Text",
    "WordVectors",
    "describe_corpus",
    "embed",
    "read_corpus",
    "write_embeddings",
]
