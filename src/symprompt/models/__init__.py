"""Small models that symprompt makes itself."""

from symprompt.models.toy import make_toy_model

__all__ = ["make_toy_model"]
