"""Load a model and its tokenizer by name: folders, hub names, GGUF files, the packaged model."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from symprompt.accel.compiling import SWITCHES
from symprompt.accel.product import SplitProduct
from symprompt.errors import ModelError, RunError
from symprompt.files.hub import fetching
from symprompt.models.vocabulary import Vocabulary

SHIPPED = "shipped"
"""The name of the packaged model; "./shipped" is a folder of that name in the current one."""

FOLDER = Path(__file__).parents[1] / "models" / "shipped"


def locate_model(name: str) -> str:
    """Return where to load a model from: the packaged folder for "shipped", else the name itself.

    The name always means the packaged model, also where the current folder holds one called
    "shipped", so that a run means the same wherever it is read.

    Raises:
        ModelError: "shipped" was asked for and this installation has no such folder.
    """
    if name != SHIPPED:
        return name
    if not (FOLDER / "config.json").is_file():
        raise ModelError(
            f'the model "{SHIPPED}" is not in this installation ({FOLDER} holds no config.json); '
            "install symprompt again, or name another model with --model."
        )
    return str(FOLDER)


HALF = (torch.bfloat16, torch.float16)
_GGUF = ".gguf"
_WEIGHTS = ("config.json", "model.safetensors")
_INDEX = "model.safetensors.index.json"
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
_PADDING = 1024
_PADDING_SHARE = 32


@dataclass(frozen=True)
class Source:
    """Where a model is, its config, and what kind of language model it is.

    Attributes:
        place: a folder or hub name.
        gguf: the GGUF file in it, or "" for a transformers folder.
        options: what ``from_pretrained`` is given besides the place.
    """

    place: str
    gguf: str
    config: Any
    causal: bool
    options: Mapping[str, str]


def find_model(path: str) -> Source:
    """Find a model and read its config.

    A config that transformers has a masked-LM head for is a masked model's, also where it has a
    causal one too (BERT); one with a causal-LM head alone is a causal model's.

    Raises:
        ModelError: there is no model, its config cannot be read, or it has neither head.
    """
    place, gguf = _split(locate_model(path))
    if not gguf and not Path(place).exists():
        _require_hub(place)
    options = {"gguf_file": gguf} if gguf else {}
    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=False, **options)
    except Exception as error:  # a garbled config fails in many ways, each a class of its own
        raise ModelError(
            f"cannot read the config of model {path!r}: {_first_line(error)}"
        ) from error
    masked = type(config) in AutoModelForMaskedLM._model_mapping
    if not masked and type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelError(
            f"{path} is a {config.model_type} model, which transformers has neither a masked-LM "
            "nor a causal-LM head for; give a masked language model (BERT, RoBERTa, ALBERT, "
            "ELECTRA, DeBERTa, ...) or a causal one (GPT-2, Llama, Qwen, Gemma, ...)."
        )
    return Source(place, gguf, config, not masked, options)


def _split(path: str) -> tuple[str, str]:
    """Return the folder or hub name of a model and its GGUF file, if it is one."""
    folder = Path(path)
    if folder.suffix == _GGUF:
        _check_gguf(path)
        return str(folder.parent), folder.name
    looks_local = path.startswith((".", "/", "~")) or folder.exists()
    if looks_local and not (folder / "config.json").is_file():
        raise ModelError(
            f"{path} is not a model folder (no config.json in it); give a folder written by "
            "save_pretrained, a GGUF file, or a hub name such as bert-base-cased."
        )
    return path, ""


def _require_hub(name: str) -> None:
    """Ask the hub once for a model that is not in its cache, and refuse it if nobody answers.

    transformers would ask again and again for half a minute before it gives up.

    Raises:
        ModelError: there is no connection, no such model, or it may not be read.
    """
    try:
        if try_to_load_from_cache(name, "config.json") is None:
            with fetching(name, "config.json", "model"):
                get_hf_file_metadata(hf_hub_url(name, "config.json"))
    except HFValidationError:
        return  # none of the hub's names: loading reports it
    except RunError as error:
        raise ModelError(str(error)) from error


def _check_gguf(path: str) -> None:
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise ModelError(
            f"{path} is a GGUF file, which needs the package {missing[0]}; install the extra "
            "[gguf]: pip install 'symprompt[gguf]'."
        )
    # Three parts may be a file of a hub name, "user/name/file.gguf".
    maybe_hub = len(Path(path).parts) == 3 and not path.startswith((".", "/", "~"))
    if not maybe_hub and not Path(path).is_file():
        raise ModelError(f"there is no file {path}; give the path of a GGUF file.")


def load_model(source: Source, *, head: bool = True) -> Any:
    """Load a model with its head in float32; where it is not needed and not there, one is made.

    Raises:
        ModelError: weights are missing, damaged, not finite or not safetensors.
    """
    return load_with_head(source, seed=None if head else 0)[0]


def load_with_head(
    source: Source, *, kind: Any = None, seed: int | None = None
) -> tuple[Any, list[str]]:
    """Load a model in float32; a head that its checkpoint holds nothing of is made.

    Args:
        kind: the class of transformers that loads it; None: by what the source is.
        seed: of the weights of such a head, or of a pooler; None refuses such a checkpoint. The
            caller's random state is not touched.

    Returns:
        The model, and the names of the weights that were made.

    Raises:
        ModelError: weights are missing, damaged, not finite or not safetensors.
    """
    kind = kind or (AutoModelForCausalLM if source.causal else AutoModelForMaskedLM)
    if source.config.model_type == "deberta-v2" and not getattr(source.config, "legacy", True):
        # This head multiplies by the embeddings itself: it has no weight to tie, which
        # transformers 5.17 looks for.
        source.config.tie_word_embeddings = False
    options = dict(source.options)
    if getattr(source.config.get_text_config(), "attn_logit_softcapping", None):
        # Gemma 2 caps attention scores, which some releases of transformers leave out
        # without a word where torch's own kernels attend.
        options["attn_implementation"] = "eager"
    name = str(Path(source.place, source.gguf)) if source.gguf else source.place
    _require_weights(source)
    try:
        with _seeded(seed):
            # float32 first: the vocabulary product keeps these weights when the body is halved.
            model, report = kind.from_pretrained(
                source.place,
                config=source.config,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                # So that they are named here.
                ignore_mismatched_sizes=True,
                **options,
            )
    except Exception as error:  # as above, and damaged weights besides
        raise ModelError(
            f"cannot load weights of model {name!r} (only safetensors and GGUF are read): "
            f"{_first_line(error)}"
        ) from error
    if unfit := sorted(report["mismatched_keys"]):
        key, stored, wanted = unfit[0]
        raise ModelError(
            f"{name} does not fit its config.json: {key} is {list(stored)} in the weights and "
            f"{list(wanted)} by the config; give the config that was saved with the weights."
        )
    missing = sorted(report["missing_keys"])
    if missing and (seed is None or not _lacks_heads_alone(model, missing)):
        head = "causal-LM" if source.causal else "masked-LM"
        raise ModelError(
            f"{name} holds no complete {head} model: {len(missing)} weights are missing, such "
            f"as {missing[0]}; give a checkpoint that was saved with its {head} head."
        )
    for key, weight in model.named_parameters():
        # The sum shows it without a copy; only where it is not finite each weight is looked at.
        if not weight.detach().sum().isfinite() and not weight.isfinite().all():
            raise ModelError(
                f"{name} holds a weight that is not finite (NaN or infinity) in {key}; the "
                "file is damaged or training failed: give another checkpoint."
            )
    return model, missing


def _require_weights(source: Source) -> None:
    """Refuse a folder without weights that are read.

    Raises:
        ModelError: it has none, or only such as run code when they are read.
    """
    folder = Path(source.place)
    if source.gguf or not folder.is_dir():
        return
    if any((folder / name).is_file() for name in (_WEIGHTS[1], _INDEX)):
        return
    unread = min(folder.glob("*model*.bin"), default=None)
    if unread is not None:
        raise ModelError(
            f"{folder} holds its weights as {unread.name}, and only safetensors and GGUF are read, "
            "as reading that file may run code; if you trust it, load it with transformers and "
            "write it with save_pretrained, then give that folder."
        )
    raise ModelError(f"{folder} holds no weights; {_WEIGHTS[1]} is missing.")


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Draw from a seed while the block runs, quietly: that weights are missing is no news."""
    if seed is None:
        yield
        return
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        transformers_logging.set_verbosity(before)


def _lacks_heads_alone(model: Any, missing: Sequence[str]) -> bool:
    """Return whether what is missing are whole heads, and the body's pooler, which heads read."""
    body = f"{model.base_model_prefix}."
    if any(name.startswith(body) and not name.startswith(f"{body}pooler.") for name in missing):
        return False
    # A part of a head is a damaged file.
    tied = {id(value) for value in model.base_model.parameters()}
    names = [name for name, value in model.named_parameters() if id(value) not in tied]
    apart = [name for name in names if "seq_relationship" in name]
    rest = [name for name in names if name not in apart]
    return all(len(set(own) & set(missing)) in (0, len(own)) for own in (apart, rest))


def load_vocabulary(path: str, source: Source | None = None) -> Vocabulary:
    """Load the tokenizer of a model alone; the name means what it means to ``LanguageModel.load``.

    Args:
        source: where the name leads, if it was looked up already.

    Raises:
        ModelError: there is no such model, or its tokenizer cannot be its own.
    """
    source = source or find_model(path)
    folder = Path(source.place)
    if folder.is_dir() and not (
        source.gguf or any((folder / name).is_file() for name in _TOKENIZER)
    ):
        # transformers makes an empty one of the model's kind.
        raise ModelError(
            f"{path} has no tokenizer; save the model's own tokenizer files (tokenizer.json) in it."
        )
    tokenizer = load_tokenizer(source.place, f"of model {path!r}", **source.options)
    vocabulary = Vocabulary(tokenizer, name=path, causal=source.causal)
    rows = getattr(source.config.get_text_config(), "vocab_size", None)
    if isinstance(rows, int):
        refuse_other_size(vocabulary, rows, path)
    return vocabulary


def load_tokenizer(place: str | Path, whose: str, **options: Any) -> Any:
    """Load a tokenizer of transformers; code that comes with it is never run.

    Args:
        place: a folder or hub name.
        whose: what to call it in errors.

    Raises:
        ModelError: there is none, or it is damaged.
    """
    try:
        return AutoTokenizer.from_pretrained(str(place), trust_remote_code=False, **options)
    except Exception as error:  # the tokenizers library raises plain Exception
        raise ModelError(f"cannot load the tokenizer {whose}: {_first_line(error)}") from error


def refuse_other_size(vocabulary: Vocabulary, rows: int, path: str) -> None:
    """Refuse a tokenizer that is not the model's, by their sizes.

    A model may have more rows of embeddings than there are tokens, which makes them a round number:
    at most 1,024, or one in 32 of a large vocabulary, and never half of them (without tokenizer
    files transformers makes an empty tokenizer of the model's kind).

    Args:
        rows: of the model's embeddings.

    Raises:
        ModelError: naming both sizes.
    """
    highest = max(vocabulary.tokenizer.get_vocab().values(), default=0)
    tokens = max(len(vocabulary), highest + 1)
    if not 0 <= rows - tokens <= min(rows // 2, max(_PADDING, rows // _PADDING_SHARE)):
        raise ModelError(
            f"the tokenizer of {path} has {tokens:,} tokens and the model {rows:,}; save the "
            "model's own tokenizer files (tokenizer.json) beside it."
        )


def present_fingerprint(path: str) -> str:
    """Return the fingerprint of a model on this disk; "" of a hub name, or where it is gone."""
    return fingerprint(find_model(path)) if Path(locate_model(path)).exists() else ""


def fingerprint(source: Source) -> str:
    """Return a digest of a model's config, weights and tokenizer files, whatever their dtype."""
    digest = hashlib.sha256()
    find = partial(cached_file, source.place, _raise_exceptions_for_missing_entries=False)
    index = None if source.gguf else find(_INDEX)
    shards: list[str] = []
    if index is not None:
        listed = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(listed.values()))
    names = [*_WEIGHTS, *shards, *_TOKENIZER]
    # A GGUF file holds all of it.
    for name in [source.gguf] if source.gguf else names:
        found = find(name)
        if found is not None:
            with Path(found).open("rb") as stream:
                digest.update(
                    f"{name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode()
                )
    return digest.hexdigest()[:16]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def find_decoder(model: Any) -> nn.Linear | None:
    """Return the linear layer onto the vocabulary, or None where the head keeps it hidden."""
    decoder = model.get_output_embeddings()
    rows = model.get_input_embeddings().weight.shape[0]
    # DeBERTa-v2's newer head answers with an inner layer and multiplies by the embeddings itself.
    if isinstance(decoder, nn.Linear) and decoder.out_features == rows:
        return decoder
    return None


def cast_model(model: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Move a model; what is computed rather than learned stays in float32 under a half dtype.

    Rotary frequencies are such: rounded to bfloat16 they turn by the wrong angles.
    """
    computed = {
        (module, name): buffer
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name in module._non_persistent_buffers_set and buffer.is_floating_point()
    }
    model.to(device=device, dtype=dtype)
    if dtype in HALF:
        for (module, name), buffer in computed.items():
            setattr(module, name, buffer.to(device))


def keep_in_float32(
    decoder: nn.Linear, device: torch.device
) -> tuple[Tensor, Tensor | None, SplitProduct | None]:
    """Make the vocabulary product run on float32 copies of its weights; return these.

    The third is how it runs on the tensor cores of a GPU; None elsewhere.
    """
    weight = decoder.weight.detach().to(device, torch.float32, copy=True)
    bias = None if decoder.bias is None else decoder.bias.detach().to(device, torch.float32)
    quick = device.type == "cuda" and SWITCHES["product"]
    split = SplitProduct(weight, bias) if quick else None

    def forward(hidden: Tensor) -> Tensor:
        if split is not None and hidden.dtype == torch.bfloat16:
            rows = hidden.reshape(-1, hidden.shape[-1])
            return split.logits(rows).view(*hidden.shape[:-1], -1)
        return functional.linear(hidden.to(torch.float32), weight, bias)

    decoder.forward = forward  # type: ignore[method-assign, assignment]
    return weight, bias, split


def silence_transformers() -> None:
    """Keep transformers from printing progress and warnings of its own."""
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
