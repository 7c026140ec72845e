"""Learned prompts to and from the folders of the peft library (peft 0.21).

Vectors within a template are TRAINABLE_TOKENS: a new token of the tokenizer for each vector, whose
row of the embedding table is the vector. New tokens follow the model's last row: where the table
has more rows than there are tokens, fillers take these, so that no row of the model is changed.

Deep prefixes are PREFIX_TUNING. Such a folder holds ``adapter_config.json`` and
``adapter_model.safetensors``, whose tensor "prompt_embeddings" [length, layers x 2 x width] lists a
place's keys and values layer by layer: the order of our own free prefixes. The two libraries mean
the same by it where the model reads a cache of past keys and values (BERT, RoBERTa, ELECTRA, GPT-2,
Llama and the like), with positions shifted by the prefix's length, and where no layer has a sliding
window: there peft's prefix slides out of sight, and ours never does. Whatever else is exchanged is
refused.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AddedToken

from symprompt.config import layers_of
from symprompt.errors import ModelError, RunError
from symprompt.files.atomic import read_json, reason, write_file, write_json, write_tensors
from symprompt.files.reading import refuse_pipe
from symprompt.models import LanguageModel, LoraTuning, Prefix, PrefixShape
from symprompt.runs.folder import CONFIG, EXPORTED, MANIFEST, Folder
from symprompt.runs.sharing import HELD, inner_names, require_inside, require_new

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_FLAT = "prompt_embeddings"
_TASK_TYPES = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "CAUSAL_LM", "FEATURE_EXTRACTION")


@dataclass(frozen=True)
class Exchanged:
    """What a peft folder holds.

    Attributes:
        prefix: of one task, positions shifted.
        task_type: peft's name for the kind of task; None: not said.
        others: the other tensors, by peft's names: a head that was trained with the prefix.
    """

    prefix: Prefix
    task_type: str | None = None
    others: Mapping[str, Tensor] = field(default_factory=dict)


def write_peft(
    folder: str | Path,
    prefix: Prefix,
    backbone: LanguageModel,
    *,
    task: int = 0,
    task_type: str = "FEATURE_EXTRACTION",
    others: Mapping[str, Tensor] | None = None,
) -> None:
    """Write one task's prefix as a folder that ``peft.PeftModel.from_pretrained`` reads.

    Args:
        folder: made if it is not there.
        prefix: with positions shifted.
        backbone: the model it was learned for.
        task: which of its tasks.
        task_type: SEQ_CLS, TOKEN_CLS, QUESTION_ANS, CAUSAL_LM or FEATURE_EXTRACTION.
        others: tensors of a head, by peft's names.

    Raises:
        ModelError: peft would read the prefix otherwise than it was learned, or it is another
            model's.
    """
    shape = _agreed(backbone)
    if not prefix.shift_positions:
        raise ModelError(
            "the prefix was learned with positions that begin at 0, and peft's begin after the "
            "prefix; learn one with prefix.shift_positions (--prefix.shift-positions)."
        )
    if len(layers_of(prefix.layers, shape.layers)) < shape.layers:
        raise ModelError(
            f"the prefix is read in the layers {prefix.layers} alone, and peft's in all "
            f"{shape.layers}; keep this prefix in symprompt's own format, or learn one in all "
            "layers."
        )
    if task_type not in _TASK_TYPES:
        raise ModelError(f"task type {task_type!r} is not peft's; use {', '.join(_TASK_TYPES)}.")
    if not 0 <= task < prefix.states.shape[0]:
        raise ModelError(
            f"task {task} was asked for, and the prefix has {prefix.states.shape[0]} tasks, from "
            "0 on; name one of them."
        )
    own = prefix.states[task].detach()
    if prefix.visible is not None:
        own = own[:, :, :, prefix.visible[task]]
    layers, both, heads, length, size = own.shape
    if (layers, both, heads, size) != (shape.layers, 2, shape.kv_heads, shape.head_dim):
        raise ModelError(
            f"the prefix has the shape {tuple(own.shape)}, and {type(backbone.model).__name__} "
            f"reads {shape.layers} layers of {shape.kv_heads} heads of {shape.head_dim}; write it "
            "with the model it was learned for."
        )
    flat = own.permute(3, 0, 1, 2, 4).reshape(length, -1)
    config = _virtual_tokens("PREFIX_TUNING", backbone, length, shape.width) | {
        "encoder_hidden_size": shape.width,
        "init_weights": None,
        "prefix_projection": False,
        "task_type": task_type,
    }
    _write(folder, config, {_FLAT: flat, **(others or {})}, backbone)


def read_peft(
    folder: str | Path, backbone: LanguageModel, *, same_model: bool = False
) -> Exchanged:
    """Read a prefix that peft saved, or ``write_peft``.

    A prefix that peft learned through an MLP is read too: its folder holds the MLP's output.

    Args:
        folder: with adapter_config.json and adapter_model.safetensors.
        backbone: the model it was learned for.
        same_model: take the caller's word that it is, where the folder names another place.

    Raises:
        RunError: the folder is not whole, or holds something else than a prefix.
        ModelError: it was learned for another model, or peft reads it otherwise with this one.
    """
    source = Path(folder)
    config, tensors, fingerprint = _read(source, "PREFIX_TUNING", "deep prefixes")
    flat = tensors.pop(_FLAT, None)
    if flat is None or flat.dim() != 2:
        raise RunError(
            f"{source / _WEIGHTS} holds no {_FLAT} of two axes; save the adapter again with peft."
        )
    shape = _agreed(backbone)
    _check_model(source, config, fingerprint, backbone, same_model=same_model)
    _check_sizes(source, config, flat, shape)
    layers, heads, size = shape
    states = flat.view(-1, layers, 2, heads, size).permute(1, 2, 3, 0, 4)[None]
    return Exchanged(
        Prefix(states.to(backbone.device, torch.float32).contiguous(), shift_positions=True),
        config.get("task_type"),
        tensors,
    )


def write_adapters(folder: str | Path, tuning: LoraTuning, row: Tensor, source: str) -> None:
    """Write low-rank adapters as a folder that ``peft.PeftModel.from_pretrained`` reads.

    Args:
        tuning: which layers have adapters, of which rank.
        row: their parameters.
        source: the model they were learned for.
    """
    write_tensors(Path(folder) / _WEIGHTS, tuning.to_tensors(row.detach().cpu()), {})
    write_json(Path(folder) / _CONFIG, lora_config(tuning, source))


def lora_config(tuning: LoraTuning, source: str) -> dict[str, Any]:
    """Return what the peft library must know to load low-rank adapters."""
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": source,
        "task_type": None,
        "inference_mode": True,
        "r": tuning.rank,
        "lora_alpha": tuning.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": tuning.transposed,
        "target_modules": tuning.targets,
    }


def write_input_prompt(folder: str | Path, vectors: Tensor, backbone: LanguageModel) -> None:
    """Write vectors in front of the first token [n, width] as a folder of PROMPT_TUNING."""
    config = _virtual_tokens("PROMPT_TUNING", backbone, len(vectors), backbone.width)
    _write(folder, config, {_FLAT: vectors.detach().float()}, backbone)


def write_tokens(folder: str | Path, backbone: LanguageModel, vectors: Mapping[str, Tensor]) -> Any:
    """Write vectors as tokens of a peft adapter, with the tokenizer that knows them; return it.

    Args:
        folder: made if it is not there.
        backbone: the model they were learned for.
        vectors: each new token's name and vector [width].

    Raises:
        ModelError: the tokenizer cannot take the tokens, or has one of them already.
    """
    embeddings = backbone.model.get_input_embeddings()
    rows, scale = int(embeddings.weight.shape[0]), embedding_scale(backbone)
    tokenizer = padding_tokenizer(backbone)
    fillers = [f"<filler:{number}>" for number in range(rows - len(tokenizer))]
    # Found as they are written, whatever the tokenizer does to letters and spaces.
    tokenizer.add_tokens(
        [AddedToken(name, normalized=False, special=False) for name in (*fillers, *vectors)]
    )
    indices: list[int] = tokenizer.convert_tokens_to_ids(list(vectors))
    if indices != list(range(rows, rows + len(vectors))):
        name = next(name for name, own in zip(vectors, indices, strict=True) if own < rows)
        raise ModelError(
            f"the tokenizer of {backbone.source} gives the new token {name!r} a row that is taken; "
            "peft cannot be handed these prompts for this model."
        )
    names = {id(own): name for name, own in backbone.model.named_modules()}
    places = [names[id(embeddings)]]
    head = backbone.model.get_output_embeddings()
    if head is not None and getattr(head, "weight", None) is embeddings.weight:
        places.append(names[id(head)])
    table = torch.stack([own.detach().float().cpu() for own in vectors.values()]) / scale
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(target)
    tensors = {f"base_model.model.{own}.trainable_tokens_delta": table.clone() for own in places}
    config = _adapter("TRAINABLE_TOKENS", backbone) | {
        "init_weights": True,
        "target_modules": [places[0]],
        "task_type": None,
        "token_indices": indices,
    }
    _write(target, config, tensors, backbone, scale=scale)
    return tokenizer


def write_export(
    part: Path, run: Folder, about: Mapping[str, Any], left_out: Collection[str]
) -> None:
    """Write what an exported folder has beside its adapter: its notes, and the run's own files.

    Args:
        part: the folder, whose adapter is written already.
        about: what ``symprompt.json`` says of it.
        left_out: files of what was learned, which the adapter holds.
    """
    noted = {**about, "adapter_sha256": _digest(part / _WEIGHTS)}
    write_json(part / MANIFEST, noted)
    for name in (CONFIG, MANIFEST, *run.manifest.files):
        if run.has(name) and name not in left_out:
            write_file(part / HELD / name, (run.path / name).read_bytes())


def read_export(folder: str | Path, kind: str) -> dict[str, Any]:
    """Return what the ``symprompt.json`` of an exported folder says.

    Args:
        kind: what it must hold, as it says itself.

    Raises:
        RunError: the folder is no such export, or of a newer format.
    """
    source = Path(folder)
    if not (source / MANIFEST).is_file():
        raise RunError(
            f"{source} has no {MANIFEST}, which says where the vectors of an adapter stand; give a "
            "folder written by symprompt export --to peft."
        )
    said = read_json(source / MANIFEST)
    if not isinstance(said, dict) or said.get(EXPORTED) != kind:
        raise RunError(
            f"{source} is no export of {kind}; give a folder written by symprompt export --to peft."
        )
    if said.get("format") != 1:
        raise RunError(
            f"{source} was written in version {said.get('format')} of the format, and this "
            "symprompt reads 1; install a newer one."
        )
    return said


def import_export(
    folder: str | Path,
    out: str | Path,
    config: object,
    files: Mapping[str, bytes],
    learned: tuple[str, Mapping[str, Tensor]],
    *,
    model: str,
) -> Folder:
    """Make a run of an exported folder.

    An adapter that was trained further has no figures and no predictions: those are of others.

    Args:
        config: of the new run.
        files: what takes the place of the run's own files, by name.
        learned: the file of what was learned, and its tensors.
        model: where the model is.
    """
    source, target = Path(folder), Folder(require_new(out, "with --out"))
    held = Folder(source / HELD)
    manifest = held.manifest
    names = inner_names(manifest, held.path / MANIFEST)
    require_inside(learned[0], held.path)
    changed = _digest(source / _WEIGHTS) != read_json(source / MANIFEST).get("adapter_sha256")
    fresh = {"state": "begun", "files": {}, "records": (), "model": model}
    target.start(config, manifest.model_copy(update=fresh))
    for name in names:
        if held.has(name) and not (changed and name.startswith("predictions/")):
            target.write(name, files.get(name) or (held.path / name).read_bytes())
    name, tensors = learned
    target.write_tensors(name, tensors, {})
    target.finish(
        records=() if changed else manifest.records,
        seconds=manifest.seconds,
        details=manifest.details | {"imported": "changed" if changed else "as exported"},
    )
    return target


def read_adapter(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the tensors of any peft folder.

    Raises:
        RunError: the folder is not whole.
    """
    source = Path(folder)
    config = read_json(source / _CONFIG)
    if not isinstance(config, dict):
        raise RunError(f"{source / _CONFIG} is damaged: it is no table.")
    return config, _read_tensors(source / _WEIGHTS)[0]


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}.") from error


def padding_tokenizer(backbone: LanguageModel) -> Any:
    """Return a copy of the tokenizer that fills texts up on the right, as we do."""
    tokenizer = copy.deepcopy(backbone.vocabulary.tokenizer)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(backbone.vocabulary.pad_id)
    tokenizer.padding_side = "right"
    return tokenizer


def embedding_scale(backbone: LanguageModel) -> float:
    """Return what the model multiplies the rows of its embedding table by; 1 but for Gemma's."""
    return float(getattr(backbone.model.get_input_embeddings(), "embed_scale", 1.0))


def read_tokens(folder: str | Path, *, scale: float = 1.0) -> dict[int, Tensor]:
    """Read the vectors of an adapter of tokens, by token id; no model is needed.

    Args:
        scale: what the model multiplies the rows of its embedding table by.

    Raises:
        RunError: the folder is not whole, or holds something else.
    """
    source = Path(folder)
    config, tensors, _ = _read(source, "TRAINABLE_TOKENS", "vectors within a template")
    # A tied model's rows stand there twice, once for its head.
    table = next(iter(tensors.values()), torch.empty(0))
    indices = config.get("token_indices")
    same = all(torch.equal(own, table) for own in tensors.values())
    if not isinstance(indices, list) or table.dim() != 2 or len(table) != len(indices) or not same:
        raise RunError(
            f"{source / _WEIGHTS} holds no vectors of {_CONFIG}'s token_indices, or several; save "
            "the adapter again with peft."
        )
    if not bool(table.isfinite().all()):
        raise RunError(f"{source / _WEIGHTS} holds a value that is not finite (NaN or infinity).")
    return dict(zip(indices, table.float() * scale, strict=True))


def _read(source: Path, wanted: str, held: str) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    """Return a folder's config, tensors and model's fingerprint; refuse another kind of adapter."""
    config = read_json(source / _CONFIG)
    if not isinstance(config, dict) or config.get("peft_type") != wanted:
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise RunError(
            f"{source / _CONFIG} is of {kind or 'no known kind'}; only folders of peft's {wanted} "
            f"hold {held}."
        )
    return config, *_read_tensors(source / _WEIGHTS)


def _agreed(backbone: LanguageModel) -> PrefixShape:
    """Return a prefix's shape if peft and we mean the same by it."""
    shape = backbone.prefix_shape
    body = backbone.model.base_model
    name = type(body).__name__
    if "past_key_values" not in inspect.signature(body.forward).parameters:
        raise ModelError(
            f"{name} reads no cache of past keys and values, through which peft hands over a "
            "prefix; keep this prefix in symprompt's own format."
        )
    config = backbone.model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    # Mistral's kind has one window for all layers, and no list of their kinds.
    slides = getattr(config, "sliding_window", None) is not None
    if any(kind != "full_attention" for kind in kinds) if kinds else slides:
        raise ModelError(
            f"{name} has layers with a sliding window, out of which peft's prefix slides and ours "
            "does not; keep this prefix in symprompt's own format."
        )
    return shape


def _adapter(kind: str, backbone: LanguageModel) -> dict[str, Any]:
    """Return what the config of any adapter of a model says."""
    return {
        "auto_mapping": None,
        "base_model_name_or_path": backbone.source or None,
        "inference_mode": True,
        "peft_type": kind,
        "revision": None,
    }


def _virtual_tokens(kind: str, backbone: LanguageModel, length: int, width: int) -> dict[str, Any]:
    """Return what the config of vectors before the first token says."""
    return _adapter(kind, backbone) | {
        "modules_to_save": None,
        "num_attention_heads": backbone.prefix_shape.kv_heads,
        "num_layers": backbone.prefix_shape.layers,
        "num_transformer_submodules": 1,
        "num_virtual_tokens": length,
        "task_type": "FEATURE_EXTRACTION",
        "token_dim": width,
    }


def _write(
    folder: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    backbone: LanguageModel,
    **about: float,
) -> None:
    """Write an adapter, and the fingerprint of its model."""
    noted = {"base_model_fingerprint": backbone.fingerprint, **about}
    write_tensors(Path(folder) / _WEIGHTS, tensors, noted)
    write_json(Path(folder) / _CONFIG, config)


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """Read a file's tensors, and the fingerprint of their model; "" where it was not noted."""
    refuse_pipe(path, RunError)
    try:
        with safe_open(str(path), framework="pt") as stream:
            tensors = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118
            about = json.loads((stream.metadata() or {}).get("about", "{}"))
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise RunError(f"cannot read {path}: {error}.") from error
    fingerprint = about.get("base_model_fingerprint") if isinstance(about, dict) else None
    return tensors, fingerprint if isinstance(fingerprint, str) else ""


def _check_model(
    source: Path,
    config: Mapping[str, Any],
    fingerprint: str,
    backbone: LanguageModel,
    *,
    same_model: bool,
) -> None:
    """Refuse a prefix of another model: by its fingerprint, else by its name."""
    named, place = config.get("base_model_name_or_path"), backbone.source
    same = named == place or (named and place and Path(named).resolve() == Path(place).resolve())
    if fingerprint and backbone.fingerprint:
        if fingerprint != backbone.fingerprint:
            raise ModelError(
                f"the prefix in {source} was learned for another model ({named}) than {place}; "
                "load that model."
            )
    elif not (same or same_model):
        raise ModelError(
            f"the prefix in {source} was learned for {named}, and the model was loaded from "
            f"{place}; load that model, or say that it is the same (same_model)."
        )


def _check_sizes(source: Path, config: Mapping[str, Any], flat: Tensor, shape: PrefixShape) -> None:
    """Refuse keys and values of other sizes, or of two parts of a model."""
    names = ("num_layers", "num_attention_heads", "token_dim", "num_virtual_tokens")
    got = tuple(config.get(name) for name in names)
    wanted = (shape.layers, shape.kv_heads, shape.width, flat.shape[0])
    whole = flat.shape[1] == shape.layers * 2 * shape.width
    if got != wanted or not whole or config.get("num_transformer_submodules") not in (1, None):
        raise ModelError(
            f"the prefix in {source} has (layers, key-value heads, width, length) {got} and "
            f"{flat.shape[1]} numbers in a place, and the model reads {wanted} and "
            f"{shape.layers * 2 * shape.width}; load the model it was learned for."
        )
