"""What more facts, larger models and more GPUs would take, by arithmetic that measurements check.

The tables of docs/scale.md are this script's output; measured figures are those of docs/log.md and
experiments/results. Nothing is trained or asked here.

    python benchmarks/scale.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PEAK = 780e12
"""Floating-point operations a second of the largest bfloat16 product on one H200."""
TOKENS = 16.7
"""Of a question: LAMA's sentences in `<3> [X] <3> [Y] <3>`."""
SUBJECT = 3.75
"""Tokens of a subject, each of which is asked back for."""
K = 15
VECTORS = 9
GPUS = (1, 8, 64)
LINKS = (450e9, 50e9)
"""Bytes a second between GPUs of a machine, and of machines (400 Gbit/s); all go twice."""
STATE = 4 + 4 + 4 + 4 + 2
"""Bytes a weight in pretraining: itself, its gradient, two moments, and a copy in bfloat16."""
MANY = Path(__file__).parent / "results" / "many-facts.json"


@dataclass(frozen=True)
class Model:
    """A language model's sizes.

    Attributes:
        gated: the feed-forward layer has three matrices.
        embedding: width of the vocabulary's table, if it is not the layers'.
    """

    name: str
    layers: int
    hidden: int
    inner: int
    vocabulary: int
    gated: bool = False
    embedding: int = 0

    @property
    def layer(self) -> float:
        """Weights of a layer's products."""
        return 4 * self.hidden**2 + (3 if self.gated else 2) * self.hidden * self.inner

    @property
    def weights(self) -> float:
        """All of them, the vocabulary's table once."""
        return self.layers * self.layer + self.head

    @property
    def head(self) -> float:
        """Weights of the vocabulary's product."""
        if not self.embedding:
            return self.hidden * self.vocabulary
        return self.embedding * (self.vocabulary + self.hidden)

    def operations(self, tokens: float, asked: float) -> float:
        """Return those of a pass forward; the last layer and the head run where it is asked."""
        body = (self.layers - 1) * self.layer * tokens
        return 2 * (body + (self.layer + self.head) * asked)


SHIPPED = Model("shipped (ELECTRA 4x512)", 4, 512, 2048, 16_384, embedding=192)
MEDIUM = Model("BERT 8x512", 8, 512, 2048, 26_880)
BASE = Model("BERT-base", 12, 768, 3072, 28_996)
MPNET = Model("MPNet-base", 12, 768, 3072, 30_527)
LARGE = Model("BERT-large", 24, 1024, 4096, 28_996)
SEVEN = Model("7B (32x4096)", 32, 4096, 11_008, 32_000, gated=True)
# Facts a second, asked for K candidates and asked back, the way forth not counted: log and
# experiments/results/fact-steps.md.
ASKED_BACK = {MEDIUM: 34_039 / 4.320, BASE: 1_002 / 0.353}
# Tokens a second in pretraining, and the share of tokens that are asked for.
TRAINED = {SHIPPED: 3.99e6, MEDIUM: 2.25e6, MPNET: 762_700.0}
ASKED_SHARE = 0.15
# Facts a second in steps of P-tuning, 41 relations x 8 facts.
LEARNED = {MEDIUM: 328 / 3.83e-3, BASE: 328 / 8.63e-3}
# Questions a second one way, the passes alone: 34,039 of test in 0.3 s.
ONE_WAY = {MEDIUM: 34_039 / 0.3}


def share_back(model: Model) -> float:
    """Return which share of the largest product's rate asking back kept."""
    return ASKED_BACK[model] * K * SUBJECT * model.operations(TOKENS, 1) / PEAK


def share_trained(model: Model) -> float:
    """Return which share of the largest product's rate pretraining kept, its gradient counted."""
    return TRAINED[model] * 3 * model.operations(1, ASKED_SHARE) / PEAK


def share_learned(model: Model) -> float:
    """Return which share of the largest product's rate steps of P-tuning kept."""
    return LEARNED[model] * 2 * model.operations(TOKENS, 1) / PEAK


RATE = share_back(MEDIUM)
"""The share of the peak that all else is computed with: that of one model, checked on others."""
STEPS = share_learned(MEDIUM)
"""The same for steps, which are small."""
HEAD = 1 / ONE_WAY[MEDIUM] - MEDIUM.operations(TOKENS, 1) / (RATE * PEAK)
"""Seconds a question beside the products one way: ranking a vocabulary, laying out, launching."""


def one_way(model: Model) -> float:
    """Return questions a second for the object alone, on one GPU."""
    return 1 / (model.operations(TOKENS, 1) / (RATE * PEAK) + HEAD)


def both_ways(model: Model) -> float:
    """Return questions a second, K candidates asked back, on one GPU."""
    back = K * SUBJECT * model.operations(TOKENS, 1) / (RATE * PEAK)
    return 1 / (1 / one_way(model) + back)


def learned(model: Model) -> float:
    """Return facts a second of training an object prompt: forward, and back to the vectors."""
    return STEPS * PEAK / (2 * model.operations(TOKENS, 1))


def pretrained(model: Model) -> float:
    """Return tokens a second of pretraining, on one GPU."""
    return RATE * PEAK / (3 * model.operations(1, ASKED_SHARE))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def shown(value: float) -> str:
    """Return a number with the digits that it deserves."""
    if value >= 1e6:
        return f"{value / 1e6:,.2f} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 1 else f"{value:.2f}"


def check() -> str:
    """Return what the model gives beside what was measured."""
    rows = []
    for model, rate in ASKED_BACK.items():
        own = RATE * PEAK / (K * SUBJECT * model.operations(TOKENS, 1))
        rows.append((f"{model.name}, facts asked back", rate, own, share_back(model)))
    for model, rate in LEARNED.items():
        rows.append((f"{model.name}, facts learned", rate, learned(model), share_learned(model)))
    for model, rate in TRAINED.items():
        own = pretrained(model)
        rows.append((f"{model.name}, tokens of pretraining", rate, own, share_trained(model)))
    return table(
        ("a second on one H200", "measured", "computed", "ratio", "share of the peak"),
        [
            (name, shown(rate), shown(own), f"{own / rate:.2f}", f"{share:.0%}")
            for name, rate, own, share in rows
        ],
    )


def rates() -> str:
    """Return what each size of model gives on one GPU."""
    models = (SHIPPED, MEDIUM, BASE, LARGE, SEVEN)
    asked = ("questions/s one way", "both ways, K = 15")
    return table(
        ("model", "weights", *asked, "facts/s learned", "tokens/s"),
        [
            (
                own.name,
                shown(own.weights),
                shown(one_way(own)),
                shown(both_ways(own)),
                shown(learned(own)),
                shown(pretrained(own)),
            )
            for own in models
        ],
    )


def billion() -> str:
    """Return the hours that a billion facts take."""
    rows = []
    for model in (MEDIUM, BASE, SEVEN):
        for what, rate in (
            ("asked one way", one_way(model)),
            ("asked both ways", both_ways(model)),
            ("learned from once (object prompt)", learned(model)),
        ):
            hours = [1e9 / rate / 3600 / gpus for gpus in GPUS]
            rows.append((model.name, what, *map(shown, hours)))
    return table(
        ("model", "10^9 facts", "hours on 1 GPU", *(f"on {own}" for own in GPUS[1:])), rows
    )


def host_seconds() -> float:
    """Return what a question takes of one core: reading, tokenising, ranking, writing."""
    one, other = json.loads(MANY.read_text(encoding="utf-8"))[:2]
    more = other["ask"]["seconds"] - one["ask"]["seconds"]
    return float(more / (other["facts"] - one["facts"]))


def memory() -> str:
    """Return what a billion facts and a large model take in memory and on disk."""
    found = json.loads(MANY.read_text(encoding="utf-8"))
    last, first = found[-1], found[0]
    facts = last["facts"] - first["facts"]
    rows: list[tuple[str, str, str]] = []
    for name in ("check", "train", "ask"):
        each = (last[name]["MiB"] - first[name]["MiB"]) * 2**20 / facts
        whole = f"{each * 1e9 / 2**40:.1f} TiB"
        rows.append((f"host memory of `{name}`", f"{each:,.0f} bytes a fact", whole))
    # Of the first two, since no more questions are asked of the third.
    each = host_seconds()
    name = "host time of `ask --file`, a tiny model's passes included"
    rows.append((name, f"{each * 1e6:.0f} µs a question", f"{each * 1e9 / 3600:,.0f} core-hours"))
    disk = (last["train"]["disk MiB"] - first["train"]["disk MiB"]) * 2**20 / facts
    rows.append(("run folder", f"{disk:,.0f} bytes a fact", f"{disk * 1e9 / 2**40:.2f} TiB"))
    for model in (BASE, SEVEN):
        each = VECTORS * model.hidden * 4
        name = f"prompts of {model.name}, with Adam's moments and the best"
        rows.append((name, f"{4 * each / 2**10:,.0f} KiB a relation and way", ""))
        half = model.weights * 2 / 2**30
        rows.append((f"weights of {model.name} in bfloat16", "", f"{half:.1f} GiB"))
        gradients = model.weights * 4
        name = f"gradients of {model.name}, added up in every step"
        told = ", ".join(f"{2 * gradients / own:.2g} s at {own / 1e9:.0f} GB/s" for own in LINKS)
        rows.append((name, f"{gradients / 1e9:.2g} GB", told))
        states = f"{model.weights * STATE / 2**30:.0f} GiB a GPU"
        rows.append((f"pretraining {model.name}: weights, gradients, moments", "", states))
    return table(("what", "each", "10^9 facts, or in all"), rows)


def many() -> str:
    """Return what was measured of many facts, see many_facts.py."""
    rows = []
    for own in json.loads(MANY.read_text(encoding="utf-8")):
        for name, what in (("check", "data check"), ("train", "train"), ("ask", "ask --file")):
            cost = own[name]
            disk = f"{cost['disk MiB']:,.0f}" if "disk MiB" in cost else ""
            cells = (f"{own['facts']:,}", f"`{what}`", f"{cost['seconds']:,.0f}")
            rows.append((*cells, f"{cost['MiB']:,}", disk))
    return table(("facts", "command", "CPU seconds", "peak MiB", "MiB on disk"), rows)


def main() -> None:
    """Print all tables."""
    for title, own in (
        ("What is computed, beside what was measured", check()),
        ("One H200", rates()),
        ("A billion facts", billion()),
        ("Memory and disk", memory()),
        ("Many facts", many()),
    ):
        print(f"<!-- {title} -->\n{own}\n")


if __name__ == "__main__":
    main()
