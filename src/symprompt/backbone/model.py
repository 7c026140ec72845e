"""The language model as a function: embeddings in, logits at the wanted positions out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer
from transformers.utils.hub import cached_file

from symprompt.backbone.shipped import locate_model
from symprompt.backbone.vocabulary import Vocabulary
from symprompt.errors import ModelError
from symprompt.runtime import choose_device, choose_dtype

_HALF = (torch.bfloat16, torch.float16)
# cuDNN's attention is left out: it builds a plan for each new shape, 130 ms at 20 tokens.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_CPU_TOKENS = 8192
_CPU_MEMORY = 2 << 30
_GPU_TOKENS = 1 << 18


@dataclass(frozen=True)
class Inputs:
    """What the model reads: embeddings [b, t, width] and a mask [b, t], true on real tokens."""

    embeddings: Tensor
    mask: Tensor


class Backbone:
    """A frozen masked language model; final.

    The head runs at the wanted positions only: a hook on the model's body hands the head the
    gathered hidden states, which every head of transformers treats position by position. The
    last matrix product runs in float32 (or float64) whatever the body's dtype, because half
    precision logits tie at the top often enough to move P@1.

    Example:
        >>> backbone = Backbone.load("bert-base-cased", device="cpu")  # doctest: +SKIP
        >>> logits = backbone.logits_at(inputs, positions)             # doctest: +SKIP
    """

    def __init__(
        self, model: Any, vocabulary: Vocabulary, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.vocabulary = vocabulary
        self.device = device
        self.dtype = dtype
        self.source = ""
        self.fingerprint = ""
        self._positions: Tensor | None = None
        self.model = model.requires_grad_(False).eval()
        decoder = _decoder(model)
        if dtype in _HALF:
            if decoder is None:
                raise ModelError(
                    f"the head of {type(model).__name__} hides its last product, so it cannot "
                    f"run in float32 under {dtype}; load this model with dtype float32."
                )
            _keep_in_float32(decoder, device)
        self.model.to(device=device, dtype=dtype)
        self.model.base_model.register_forward_hook(self._gather)

    @classmethod
    def load(cls, path: str, *, device: str = "auto", dtype: str = "auto") -> Backbone:
        """Load a masked language model from a folder, by its hub name, or the one that ships.

        Args:
            path: a folder written by ``save_pretrained``, a hub name ("bert-base-cased"), or
                "shipped" for the model in the package.
            device: auto, cpu, cuda, cuda:N or mps.
            dtype: auto (bfloat16 on CUDA, else float32), float32, bfloat16, float16 or float64.

        Raises:
            ModelError: no such model, no weights, no masked-LM head or no mask token.
        """
        where = choose_device(device)
        kind = choose_dtype(dtype, where)
        place = locate_model(path)
        model = _load_model(place)
        if dtype == "auto" and kind in _HALF and _decoder(model) is None:
            kind = torch.float32
        vocabulary = load_vocabulary(path)
        rows = int(model.get_input_embeddings().weight.shape[0])
        # Without tokenizer files transformers makes an empty tokenizer of the model's kind.
        if not rows // 2 <= len(vocabulary) <= rows:
            raise ModelError(
                f"the tokenizer of {path} has {len(vocabulary)} tokens and the model {rows}; save "
                "the model's own tokenizer files (tokenizer.json) beside it."
            )
        backbone = cls(model, vocabulary, device=where, dtype=kind)
        backbone.source = path
        backbone.fingerprint = _fingerprint(place)
        return backbone

    @property
    def width(self) -> int:
        """The size of one input embedding (ALBERT's and ELECTRA's differ from the hidden size)."""
        return int(self.model.get_input_embeddings().weight.shape[1])

    @property
    def vocabulary_size(self) -> int:
        """The number of scores the head gives, padding rows of the matrix included."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def max_length(self) -> int:
        """The longest sequence the model takes, special tokens included."""
        limit = int(getattr(self.model.config, "max_position_embeddings", 0) or 1 << 30)
        for name, module in self.model.base_model.named_modules():
            # RoBERTa's kind starts counting positions after the padding index.
            if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
                if module.padding_idx is not None:
                    limit = module.num_embeddings - module.padding_idx - 1
                break
        return min(limit, self.vocabulary.max_length)

    def token_budget(self, *, training: bool = False) -> int:
        """Return how many tokens one pass may hold: in a quarter of a GPU's memory, or 2 GiB.

        Scoring is bound by the logits (one mask in about twelve tokens, three copies), training by
        the activations kept for the gradient (about 34 numbers per hidden unit, layer and token).
        """
        memory, most = _CPU_MEMORY, _CPU_TOKENS
        if self.device.type == "cuda":
            memory = torch.cuda.get_device_properties(self.device).total_memory // 4
            most = _GPU_TOKENS
        per_token = self.vocabulary_size * 4 * 3 / 12
        if training:
            config = self.model.config
            per_token += 34 * config.hidden_size * config.num_hidden_layers * self.dtype.itemsize
        return max(1024, min(most, int(memory / per_token)))

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input embeddings [b, t, width] of token ids [b, t]."""
        embeddings: Tensor = self.model.get_input_embeddings()(ids)
        return embeddings

    def logits_at(self, inputs: Inputs, positions: Tensor) -> Tensor:
        """Return the logits at the wanted positions only.

        Args:
            inputs: embeddings and mask of b sequences.
            positions: [b], one position a sequence, or [b, m], several.

        Returns:
            [b, v] or [b, m, v], float32 (float64 for a float64 model).
        """
        wanted = positions if positions.dim() == 2 else positions[:, None]
        self._positions = wanted
        try:
            with sdpa_kernel(_ATTENTION):
                output = self.model(
                    inputs_embeds=inputs.embeddings,
                    attention_mask=inputs.mask.to(torch.long),
                    return_dict=True,
                )
        finally:
            self._positions = None
        logits: Tensor = output.logits
        return logits if positions.dim() == 2 else logits[:, 0]

    @contextmanager
    def dropout(self, on: bool = True) -> Iterator[None]:
        """Run the model with its own dropout on; the P-tuning reference code trains so."""
        self.model.train(on)
        try:
            yield
        finally:
            self.model.eval()

    def _gather(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        if self._positions is None:
            return output
        hidden = output.last_hidden_state
        index = self._positions[:, :, None].expand(-1, -1, hidden.shape[-1])
        return type(output)(last_hidden_state=hidden.gather(1, index))


def _decoder(model: Any) -> nn.Linear | None:
    """Return the linear layer onto the vocabulary, or None where the head keeps it hidden."""
    decoder = model.get_output_embeddings()
    rows = model.get_input_embeddings().weight.shape[0]
    # DeBERTa-v2's newer head answers with an inner layer and multiplies by the embeddings itself.
    if isinstance(decoder, nn.Linear) and decoder.out_features == rows:
        return decoder
    return None


def _keep_in_float32(decoder: nn.Linear, device: torch.device) -> None:
    """Make the vocabulary product run on float32 copies of its weights."""
    weight = decoder.weight.detach().to(device, torch.float32, copy=True)
    bias = None if decoder.bias is None else decoder.bias.detach().to(device, torch.float32)

    def forward(hidden: Tensor) -> Tensor:
        return functional.linear(hidden.to(torch.float32), weight, bias)

    decoder.forward = forward  # type: ignore[method-assign, assignment]


def _load_model(path: str) -> Any:
    folder = Path(path)
    looks_local = path.startswith((".", "/", "~")) or folder.exists()
    if looks_local and not (folder / "config.json").is_file():
        raise ModelError(
            f"{path} is not a model folder (no config.json in it); give a folder written by "
            "save_pretrained, or a hub name such as bert-base-cased."
        )
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # a garbled config fails in many ways, each a class of its own
        raise ModelError(
            f"cannot read the config of model {path!r}: {_first_line(error)}"
        ) from error
    if type(config) not in AutoModelForMaskedLM._model_mapping:
        raise ModelError(
            f"{path} is a {config.model_type} model, which transformers has no masked-LM head for; "
            "give a masked language model (BERT, RoBERTa, ALBERT, ELECTRA, DeBERTa, ...)."
        )
    try:
        # float32 first: the vocabulary product keeps these weights when the body is halved.
        model, report = AutoModelForMaskedLM.from_pretrained(
            path,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # as above, and damaged weights besides
        raise ModelError(
            f"cannot load weights of model {path!r} (only safetensors are read): "
            f"{_first_line(error)}"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"{path} holds no complete masked-LM model: {len(missing)} weights are missing, such "
            f"as {missing[0]}; give a checkpoint that was saved with its masked-LM head."
        )
    return model


def load_vocabulary(path: str) -> Vocabulary:
    """Load the tokenizer of a model alone; the name means what it means to ``Backbone.load``."""
    place = locate_model(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises plain Exception
        raise ModelError(
            f"cannot load the tokenizer of model {path!r}: {_first_line(error)}"
        ) from error
    return Vocabulary(tokenizer, name=path)


def _fingerprint(path: str) -> str:
    """Return a digest of a model's config, weights and tokenizer files, whatever their dtype."""
    digest = hashlib.sha256()
    index = _find(path, "model.safetensors.index.json")
    shards: list[str] = []
    if index is not None:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    for name in ("config.json", "model.safetensors", *shards, "tokenizer.json", "vocab.txt"):
        found = _find(path, name)
        if found is not None:
            with found.open("rb") as stream:
                digest.update(
                    f"{name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode()
                )
    return digest.hexdigest()[:16]


def _find(path: str, name: str) -> Path | None:
    found = cached_file(path, name, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
