"""How anything is learned: what the table [learning] of every config has, with one meaning."""

from __future__ import annotations

from typing import Literal

from symprompt.config.fields import Amount, Common, Count, Factor, Positive, Rate, Share, settings


@settings
class LearningConfig:
    """What every kind of training takes."""

    weight_decay: Amount = 0.0
    """Weight decay, AdamW's; biases, norms and prompts are not decayed."""
    warmup: Share = 0.0
    """Share of all steps over which the rate rises from zero."""
    clip: Amount = 0.0
    """Largest gradient norm; 0 does not clip."""


@settings
class EpochLearningConfig(LearningConfig):
    """What training takes that goes over its examples again and again, and dev chooses from."""

    rate: Common[Rate] = 5e-4
    """Highest learning rate."""
    schedule: Literal["constant", "exponential", "linear"] = "linear"
    """linear: to zero at the last step; exponential: times decay after each epoch."""
    decay: Factor = 0.98
    """Factor per epoch of the exponential schedule."""
    batch: Common[Positive] = 32
    """Examples per step; of facts, examples of each relation."""
    epochs: Common[Count] = 20
    """Most passes over the training examples."""
    patience: Count = 0
    """Stop after this many epochs without a better dev score; 0 never stops early."""
