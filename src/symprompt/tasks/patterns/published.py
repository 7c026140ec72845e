"""Patterns and verbalizers that papers have published for the SuperGLUE tasks.

PET's (Schick and Schütze, 2020, "It's Not Just Size That Matters", section 4.1), those of
P-tuning's Table 6, and P-tuning's own, in which ``<1>`` stands where its code has the prompt. For
causal models a pattern in which a text follows the answer does not serve; the lists hold enough
others. Words are written as in the papers; a verbalizer's words stand in the order of the task's
labels.
"""

from __future__ import annotations

from dataclasses import dataclass

from symprompt.tasks.patterns.pattern import Pattern
from symprompt.tasks.patterns.superglue import VerbalTask


@dataclass(frozen=True, slots=True)
class Worded:
    """A pattern, the words that say the labels in it, and its name; final.

    Attributes:
        words: one text for each label; empty where examples bring their own answers.
    """

    name: str
    text: str
    words: tuple[str, ...] = ()

    @property
    def pattern(self) -> Pattern:
        """The pattern, read."""
        return Pattern.parse(self.text)


_NO_YES = ("No", "Yes")
_FALSE_TRUE = ("False", "True")
_ENTAILED = ("Yes", "No", "Maybe")
_QUESTION = "{passage} Question: {question:bare}?"


def _nli(pair: tuple[str, ...], truth: tuple[str, ...]) -> tuple[Worded, ...]:
    """Return what CB and RTE share."""
    return (
        Worded("pet-0", '"{hypothesis:bare}"? [SEP] [MASK], "{premise:bare}"', pair),
        Worded("pet-1", "{hypothesis:bare}? [SEP] [MASK], {premise}", pair),
        Worded("pet-2", '"{hypothesis:bare}"? [SEP] [MASK]. "{premise:bare}"', pair),
        Worded("pet-3", "{hypothesis:bare}? [SEP] [MASK]. {premise}", pair),
        Worded("pet-4", "{premise} question: {hypothesis} true or false? answer: [MASK]", truth),
    )


def _agree(pair: tuple[str, ...]) -> tuple[Worded, ...]:
    """Return the patterns of P-tuning's Table 6, and P-tuning's with its prompt left out."""
    return (
        Worded("agree-1", "Does {premise:bare} agree with {hypothesis:bare}? [MASK].", pair),
        Worded("agree-2", "Does {hypothesis:bare} agree with {premise:bare}? [MASK].", pair),
        Worded("named", "Premise: {premise} Hypothesis: {hypothesis} Answer: [MASK].", pair),
        Worded(
            "truth", "{premise} question: {hypothesis:bare}. true or false? answer: [MASK].", pair
        ),
    )


_BASED = "{passage} Based on the previous passage, {question:bare}?"
MANUAL: dict[str, tuple[Worded, ...]] = {
    "boolq": (
        Worded("pet-0", f"{_QUESTION} Answer: [MASK].", _NO_YES),
        Worded("pet-1", f"{_QUESTION} Answer: [MASK].", _FALSE_TRUE),
        Worded("pet-2", f"{_BASED} [MASK].", _NO_YES),
        Worded("pet-3", f"{_BASED} [MASK].", _FALSE_TRUE),
        Worded(
            "pet-4",
            "Based on the following passage, {question:bare}? [MASK]. {passage}",
            _NO_YES,
        ),
        Worded(
            "pet-5",
            "Based on the following passage, {question:bare}? [MASK]. {passage}",
            _FALSE_TRUE,
        ),
    ),
    "cb": (
        *_nli(_ENTAILED, ("true", "false", "neither")),
        Worded("ptuning", "{premise} [SEP] {hypothesis:bare}? answer: [MASK]", _ENTAILED),
        *_agree(_ENTAILED),
    ),
    "wic": (
        Worded(
            "pet-0", '"{sentence1}" / "{sentence2}" Similar sense of "{word}"? [MASK].', _NO_YES
        ),
        Worded(
            "pet-1",
            "{sentence1} {sentence2} Does {word} have the same meaning in both sentences? [MASK]",
            _NO_YES,
        ),
        Worded("pet-2", '{word}. Sense (1) (a) "{sentence1}" ([MASK]) "{sentence2}"', ("2", "b")),
        Worded("ptuning", "{sentence1} [SEP] {sentence2} * {word} *? [MASK]", _NO_YES),
    ),
    "rte": (
        *_nli(_NO_YES, ("false", "true")),
        Worded("ptuning", "{premise} Question: {hypothesis:bare}? Answer: [MASK].", _NO_YES),
        *_agree(_NO_YES),
    ),
    "multirc": (
        Worded("pet-0", f"{_QUESTION} Is it {{answer:bare}}? [MASK].", _NO_YES),
        Worded("pet-1", f'{_QUESTION} Is the correct answer "{{answer:bare}}"? [MASK].', _NO_YES),
        Worded("pet-2", f'{_BASED} Is the correct answer "{{answer:bare}}"? [MASK].', _NO_YES),
    ),
    "wsc": (
        Worded("pet-0", "{text} The pronoun '*{pronoun}*' refers to [MASK]."),
        Worded(
            "pet-1", "{text} In the previous sentence, the pronoun '*{pronoun}*' refers to [MASK]."
        ),
        Worded(
            "pet-2",
            "{text} In the passage above, what does the pronoun '*{pronoun}*' refer to? Answer: "
            "[MASK].",
        ),
    ),
    "copa": (
        Worded(
            "pet-0",
            '"{choice1:bare,small}" or "{choice2:bare,small}"? {premise:bare}, {link} '
            "[MASK:bare,small].",
        ),
        Worded(
            "pet-1",
            "{choice1:bare,small} or {choice2:bare,small}? {premise:bare}, {link} "
            "[MASK:bare,small].",
        ),
        Worded("plain", "{premise:bare} {link} [MASK:bare,small]."),
    ),
}
"""By task: patterns without vectors."""

PTUNING: dict[str, Worded] = {
    "boolq": Worded(
        "ptuning", "{passage} . <1> Question: {question:bare}? Answer: [MASK].", _NO_YES
    ),
    "cb": Worded("ptuning", "{premise} [SEP] {hypothesis:bare}? <1> answer: [MASK]", _ENTAILED),
    "wic": Worded("ptuning", "{sentence1} [SEP] {sentence2} <1> * {word} *? [MASK]", _NO_YES),
    "rte": Worded("ptuning", "{premise} Question: {hypothesis:bare}? <1> Answer: [MASK].", _NO_YES),
    "multirc": Worded("ptuning", f"{_QUESTION} Is it {{answer:bare}}? <1> [MASK].", _NO_YES),
    "wsc": Worded("ptuning", "<1> {text} <1> pronoun '*{pronoun}*' refers to [MASK]."),
    "copa": Worded(
        "ptuning",
        "{choice1:bare,small} or {choice2:bare,small}? {premise:bare} {link} <1> "
        "[MASK:bare,small].",
    ),
}
"""By task: the pattern of P-tuning's few-shot code."""

REFERENCE: dict[str, str] = {
    "boolq": "pet-0",
    "cb": "ptuning",
    "wic": "ptuning",
    "rte": "ptuning",
    "multirc": "pet-0",
    "wsc": "pet-0",
    "copa": "pet-1",
}
"""By task: the manual pattern whose words P-tuning's anchors are taken from (Tables 3 and 4)."""

PAIRS: dict[str, tuple[str, ...]] = {
    "boolq": ("{passage} [SEP] {question} [MASK]",),
    "cb": ("{premise} [SEP] {hypothesis} [MASK]",),
    "wic": ("{word}: {sentence1} [SEP] {sentence2} [MASK]",),
    "rte": ("{premise} [SEP] {hypothesis} [MASK]",),
    "multirc": ("{passage} [SEP] {question} {answer} [MASK]",),
    "wsc": ("{text} [SEP] {pronoun}: {span} [MASK]",),
    "copa": (
        "{premise} {link} [SEP] {choice1} [MASK]",
        "{premise} {link} [SEP] {choice2} [MASK]",
    ),
}
"""By task: how a head on [CLS] reads an example, without words; COPA's choices apart. The answer's
place is where a causal model's last token is read, and left out otherwise."""


def manual_patterns(task: VerbalTask, *, causal: bool) -> tuple[Worded, ...]:
    """Return a task's patterns without vectors that serve a kind of model."""
    return tuple(one for one in MANUAL[task.name] if one.pattern.answer_last or not causal)


def reference_pattern(task: VerbalTask) -> Worded:
    """Return the manual pattern whose words are P-tuning's anchors."""
    return next(one for one in MANUAL[task.name] if one.name == REFERENCE[task.name])
