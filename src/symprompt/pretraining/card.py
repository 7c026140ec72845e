"""The model card: what a pretrained model is, what it was made from, and what it is good for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symprompt.pretraining.config import PretrainConfig

_OBJECTIVES = {
    "mlm": "masked tokens (MLM)",
    "mlm+nsp": "masked tokens (MLM) and next-sentence prediction (NSP)",
    "mlm+sbo": "masked tokens (MLM) and the span-boundary objective (SBO)",
}


def model_card(config: PretrainConfig, training: Mapping[str, Any], name: str) -> str:
    """Return the card as Markdown, from the run's config and what it states."""
    parts = [
        _header(config, training, name),
        _use(config),
        _data(config, training),
        _vocabulary(config, training),
        _model(config, training),
        _recipe(config, training),
        _result(training),
        _limits(training),
    ]
    return "\n\n".join(parts) + "\n"


def _header(config: PretrainConfig, training: Mapping[str, Any], name: str) -> str:
    languages = sorted({row["language"] for row in training["inputs"]["text"]} - {""})
    listed = "".join(f"\n- {language}" for language in languages)
    front = f"language:{listed}\n" if languages else ""
    weights = training["model"]["parameters"]
    return (
        f"---\n{front}library_name: transformers\npipeline_tag: fill-mask\n---\n\n# {name}\n\n"
        f"A masked language model of {weights:,} weights, trained from scratch by "
        f"`symprompt pretrain` on {training['corpus']['tokens']:,} tokens of text."
    )


def _use(config: PretrainConfig) -> str:
    return (
        "## Use\n\n```python\nfrom transformers import AutoModelForMaskedLM, AutoTokenizer\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\n'
        'model = AutoModelForMaskedLM.from_pretrained("FOLDER")\n```\n\n'
        "```\nsymprompt train lama-spe --model FOLDER --data DATA --out RUN\n```\n\n"
        "It is meant for filling masks, for probing what a model knows, and as a start for "
        f"fine-tuning, on texts of up to {config.corpus.length} tokens."
    )


def _data(config: PretrainConfig, training: Mapping[str, Any]) -> str:
    corpus = training["corpus"]
    files = [
        [row["name"], row["language"] or "-", f"{row['bytes']:,}"]
        for row in training["inputs"]["text"]
    ]
    lines = [
        "## Text",
        "",
        _table(["file", "language", "bytes"], files),
        "",
        f"{corpus['documents']:,} documents, {corpus['tokens']:,} tokens, "
        f"{corpus['sequences']:,} sequences of {config.corpus.length} tokens "
        f"({config.corpus.packing}); {corpus['held_out_documents']:,} documents were held out for "
        "the validation loss.",
    ]
    if config.prepared:
        seed = training["inputs"]["prepared text"]["seed"]
        lines[-1] += f" Vocabulary and held-out documents were made beforehand, with seed {seed}."
    if len(corpus["languages"]) > 1:
        rows = [
            [
                row["language"] or "-",
                f"{row['before']:,}",
                f"{row['prior']:.4f}",
                f"{row['after']:,}",
                f"{row['share']:.4f}",
            ]
            for row in corpus["languages"]
        ]
        head = ["language", "sequences", "share", "after sampling", "share after"]
        about = f"Languages are sampled with alpha = {config.corpus.alpha}, in every pass:"
        lines += ["", about, "", _table(head, rows)]
    return "\n".join(lines)


def _vocabulary(config: PretrainConfig, training: Mapping[str, Any]) -> str:
    about = training["vocabulary"]
    if config.vocabulary.tokenizer:
        kind = f"the tokenizer given as {training['vocabulary']['tokenizer']}"
    else:
        case = "cased" if config.vocabulary.cased else "uncased"
        kind = f"{config.vocabulary.kind}, {case}, learned from the text"
    lines = ["## Vocabulary", "", f"{about['size']:,} tokens: {kind}."]
    if about["whole"] or about["broken"]:
        lines[-1] += (
            f" {about['whole']:,} listed words are one token each; {len(about['broken']):,} could "
            "not be."
        )
    return "\n".join(lines)


def _model(config: PretrainConfig, training: Mapping[str, Any]) -> str:
    shape, model = config.shape, training["model"]
    rows: list[list[object]] = [
        ["family", model["type"]],
        ["layers", shape.layers],
        ["hidden size", shape.hidden],
        ["attention heads", shape.heads],
        ["feed-forward size", shape.feedforward or 4 * shape.hidden],
        ["embedding size", shape.embedding or shape.hidden],
        ["positions", config.corpus.length],
        ["weights", f"{model['parameters']:,}"],
        ["stored as", config.save_dtype],
    ]
    return "## Model\n\n" + _table(["", ""], rows)


def _recipe(config: PretrainConfig, training: Mapping[str, Any]) -> str:
    learning, corruption = config.learning, config.corruption
    environment = training["environment"]
    rows: list[list[object]] = [
        ["objective", _OBJECTIVES[config.objective]],
        ["corruption", f"{corruption.kind}, {corruption.share:.0%} of the tokens"],
        ["optimiser", f"AdamW, betas {learning.beta_1} and {learning.beta_2}"],
        ["weight decay", learning.weight_decay],
        ["highest rate", f"{learning.rate:g}, after {learning.warmup:.0%} of the steps"],
        ["schedule", "linear warm-up, linear decay to zero"],
        ["batch", f"{learning.batch:,} sequences of {config.corpus.length} tokens"],
        ["dropout", config.shape.dropout],
        ["steps", f"{training['steps']:,}"],
        ["tokens seen", f"{training['tokens']:,}"],
        ["passes over the text", f"{training['passes']:.2f}"],
        ["seed", config.seed],
        ["passes computed in", training["dtype"]],
        ["device", f"{training['processes']} x {environment['device']}"],
        ["time", f"{training['seconds']:,.0f} s, {training['tokens_per_second']:,.0f} tokens/s"],
        ["torch", environment["torch"]],
        ["transformers", environment["transformers"]],
    ]
    note = (
        "\n\nThe corruption of kind tokens, words and spans puts the mask token at "
        f"{corruption.mask:.0%} of the chosen positions, a random token at {corruption.random:.0%}."
        if corruption.kind in ("tokens", "words", "spans")
        else ""
    )
    return (
        "## Training\n\n"
        + _table(["", ""], rows)
        + note
        + "\n\n`config.toml` beside this card is the config that repeats it, `history.json` "
        "the whole loss curve."
    )


def _result(training: Mapping[str, Any]) -> str:
    final = training["loss"]
    validation = training["validation"] or {}
    rows = [
        [part, f"{value:.4f}", f"{validation[part]:.4f}" if part in validation else "-"]
        for part, value in final.items()
    ]
    return "## Losses at the end\n\n" + _table(["", "training", "validation"], rows)


def _limits(training: Mapping[str, Any]) -> str:
    return (
        "## Limits\n\nThe model has read nothing but the text above: it knows no more than that "
        "text, and repeats its errors, its age and its leanings. It is small, it was not tuned to "
        "follow instructions or to be harmless, and what it fills in is a likely word, not a "
        "checked fact. Do not decide about people with it."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
