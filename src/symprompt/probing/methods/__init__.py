"""The methods: one line each in ``METHODS``, one file each beside this one.

The table is read by configs and by the command line, so it imports no torch: a line holds the data
that checks need, and names the class, which is imported when a run needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal


@dataclass(frozen=True)
class MethodTraits:
    """What the checks of a config must know of a method; what else it needs, its class states.

    Attributes:
        where: "file:class".
        vectors: it learns vectors, which a template, an encoder and a warm start are about.
        encoder: the only kind of encoder it goes with; "" for any.
        any_length: it can be asked for objects of several tokens.
        subject_prompt: it asks for the subject too.
        object_prompts: it can learn several prompts that ask for the object.
        dtype: what the dtype "auto" means; half precision is then refused. "" leaves it open.
    """

    where: str
    vectors: bool = True
    encoder: str = ""
    any_length: bool = False
    subject_prompt: bool = False
    object_prompts: bool = False
    dtype: str = ""


METHODS: dict[str, MethodTraits] = {
    "autoprompt": MethodTraits("autoprompt:AutoPrompt", encoder="free"),
    "finetune": MethodTraits("finetune:FineTune", vectors=False, any_length=True, dtype="float32"),
    "lpaqa": MethodTraits("lpaqa:LPAQA", vectors=False),
    "majority": MethodTraits("majority:Majority", vectors=False, any_length=True),
    "manual": MethodTraits("manual:Manual", vectors=False, any_length=True),
    "optiprompt": MethodTraits(
        "ptuning:PTuning", encoder="free", any_length=True, object_prompts=True
    ),
    "ptuning": MethodTraits("ptuning:PTuning", any_length=True, object_prompts=True),
    "sentence": MethodTraits("sentence:Sentence", vectors=False, any_length=True),
    "softprompt": MethodTraits("softprompt:SoftPrompt", encoder="free"),
    "spe": MethodTraits("spe:SPE", any_length=True, subject_prompt=True, object_prompts=True),
}

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]
