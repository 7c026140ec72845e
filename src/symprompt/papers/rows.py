"""The rows of the tables: which methods, by which shipped configs. Adding a method is one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symprompt.config import shipped_configs
from symprompt.errors import ConfigError


@dataclass(frozen=True)
class Row:
    """One method of the tables.

    Attributes:
        name: what the tables call it.
        config: the shipped config for masked models.
        causal: the config for causal models; "" where the method is not for them.
        kind: P-tuning's Table 2 sorts by it: "baseline", "original" (manual prompts), "discrete",
            "continuous" or "tuned" (the model itself changes).
        seeded: whether another seed gives other numbers; others are run once.
        needs_prompts: whether it needs folders of written prompts (--prompts).
        published: the papers' name for it, under which their figures are kept.
    """

    name: str
    config: str
    causal: str = ""
    kind: str = "continuous"
    seeded: bool = False
    needs_prompts: bool = False
    published: str = ""

    @property
    def short(self) -> str:
        """The name for --methods."""
        return self.config.removeprefix("lama-")


# Order as in SPE's Table 1. A row whose config does not ship is not listed.
# fmt: off
ROWS = (
    Row("majority object", "lama-majority", "lama-majority", "baseline"),
    Row("manual prompts", "lama-manual", "lama-manual", "original", published="Manual"),
    # The papers' LPAQA is its top-1: AutoPrompt's table, where 34.1 comes from, names it so.
    Row("LPAQA, top-1", "lama-lpaqa-top1", "", "discrete", needs_prompts=True, published="LPAQA"),
    Row("LPAQA, uniform weights", "lama-lpaqa-uniform", "", "discrete", needs_prompts=True),
    Row("LPAQA, learned weights", "lama-lpaqa", "", "discrete", needs_prompts=True),
    Row("AutoPrompt", "lama-autoprompt", "lama-autoprompt", "discrete", seeded=True,
        published="AutoPrompt"),
    Row("OptiPrompt, random start", "lama-optiprompt", "lama-optiprompt", seeded=True),
    Row("OptiPrompt, manual start", "lama-optiprompt-manual", "lama-optiprompt-manual",
        seeded=True, published="OptiPrompt (manual)"),
    Row("SoftPrompt", "lama-softprompt", "", seeded=True, needs_prompts=True,
        published="SoftPrompt (mined)"),
    Row("P-tuning", "lama-ptuning", "lama-ptuning-gpt", seeded=True, published="P-tuning"),
    Row("SPE", "lama-spe", "lama-spe-gpt", seeded=True, published="SPE"),
    Row("fine-tuning, subject alone", "lama-ft", "lama-ft", "tuned", seeded=True, published="FT"),
    Row("LoRA, subject alone", "lama-ft-lora", "lama-ft-lora", "tuned", seeded=True),
    Row("manual prompts + fine-tuning", "lama-mp-ft", "lama-mp-ft", "tuned", seeded=True,
        published="MP+FT"),
    Row("manual prompts + LoRA", "lama-mp-lora", "lama-mp-lora", "tuned", seeded=True),
)
# fmt: on

PTUNING, SPE, MANUAL, MAJORITY = "lama-ptuning", "lama-spe", "lama-manual", "lama-majority"


def list_rows(methods: Sequence[str] = ()) -> tuple[Row, ...]:
    """Return the rows whose configs ship, or of these the named ones, in the tables' order.

    Args:
        methods: short names such as "ptuning"; none means all.

    Raises:
        ConfigError: a name is not among them.
    """
    there = [row for row in ROWS if row.config in shipped_configs()]
    known = {row.short: row for row in there}
    for name in methods:
        if name not in known:
            raise ConfigError(f"method {name!r} is not known; the methods are: {', '.join(known)}.")
    return tuple(row for row in there if not methods or row.short in methods)
