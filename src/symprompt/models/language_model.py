"""The language model as a function: embeddings in, logits at the wanted positions out.

Or the hidden states of a model's body, for heads of one's own. Whether a model answers packed rows
as it answers padded sentences is found out by trying; nothing is compiled for that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.modeling_outputs import BaseModelOutput

from symprompt.accel.compiling import SWITCHES, choose, compile_often, weights_per_token
from symprompt.accel.packing import Packing, longest_on, pack, packed
from symprompt.accel.product import SplitProduct
from symprompt.accel.rows import RowLayers
from symprompt.config import Compile
from symprompt.errors import ModelError
from symprompt.files.progress import Tick, silent
from symprompt.models.layers import Added, LayerInputs
from symprompt.models.loading import (
    HALF,
    cast_model,
    find_decoder,
    find_model,
    fingerprint,
    keep_in_float32,
    load_model,
    load_vocabulary,
)
from symprompt.models.prefix import Prefix, PrefixAttention, PrefixShape
from symprompt.models.trained import find_positions, find_trained
from symprompt.models.vocabulary import Vocabulary
from symprompt.runs.environment import choose_device, choose_dtype

# cuDNN's attention is left out: it builds a plan for each new shape, 130 ms at 20 tokens.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_CPU_TOKENS = 8192
_CPU_MEMORY = 2 << 30
_GPU_TOKENS = 1 << 18
_PROBED = (2, 3)
_ENDLESS = 1 << 30


@dataclass(frozen=True)
class Inputs:
    """What the model reads: embeddings [b, t, width] and a mask [b, t], true on real tokens.

    Real tokens come first, padding after them; without a mask there is none.

    Attributes:
        added: layer, from 1 on -> [b, t, h], added to the hidden states that layer reads.
        types: [b, t] int64, 0 for a pair's first text and 1 for its second; models that know no
            such types (RoBERTa, DistilBERT, causal models) do not read them.
        prefix: keys and values that every layer reads before the tokens' own; not of packed rows.
        packing: where sentences stand one after the other in a single row, b = 1, without mask.
    """

    embeddings: Tensor
    mask: Tensor | None
    added: Added | None = None
    types: Tensor | None = None
    prefix: Prefix | None = None
    packing: Packing | None = None


class LanguageModel:
    """A frozen language model, masked or causal; final.

    A masked model predicts the token at a masked position, a causal one the token after a position;
    the vocabulary knows which. The head runs at the wanted positions only: a hook on the model's
    body hands the head the gathered hidden states, which every head of transformers treats
    position by position. The last matrix product runs in float32 (or float64) whatever the body's
    dtype, because half precision logits tie at the top often enough to move P@1.

    Attributes:
        decoder: the linear layer onto the vocabulary; None where the head keeps it hidden.
        last_product: its weight [v, h] and bias as the product is computed with them.
        compiled: whether layers are compiled.
        records: whether training steps are to be recorded as CUDA graphs.
        acceleration: what ``accelerate`` chose, for people to read.
        first_position: of a sentence's first token; RoBERTa's kind counts on from the padding.
        reads_types: whether the two texts of a pair are distinguished by token types.
        trained: which positions and segments were trained; what cannot be known counts as trained.
        untrained: a line about what was not, for people to read; "" if there is nothing to say.

    Example:
        >>> backbone = LanguageModel.load("shipped", device="cpu")
        >>> backbone.causal, backbone.vocabulary.text(backbone.vocabulary.mask_id)
        (False, '[MASK]')
    """

    def __init__(
        self, model: Any, vocabulary: Vocabulary, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.vocabulary = vocabulary
        self.device = device
        self.dtype = dtype
        self.source = ""
        self.fingerprint = ""
        self.compiled = False
        self.records = device.type == "cuda"
        self.acceleration = ""
        self._compiled_by: dict[str, Any] = {}
        self._wanted: tuple[Tensor, Tensor | None] | None = None
        self.model = model.requires_grad_(False).eval()
        self.decoder = decoder = find_decoder(model)
        self.split_product: SplitProduct | None = None
        if dtype in HALF:
            if decoder is None:
                raise ModelError(
                    f"the head of {type(model).__name__} hides its last product, so it cannot "
                    f"run in float32 under {dtype}; load this model with dtype float32."
                )
            *kept, self.split_product = keep_in_float32(decoder, device)
        cast_model(self.model, device, dtype)
        if decoder is not None and dtype not in HALF:
            kept = [decoder.weight, decoder.bias]
        self.last_product = None if decoder is None else (kept[0], kept[1])
        self.model.base_model.register_forward_hook(self._gather)
        self._config = model.config.get_text_config()
        self._arguments = frozenset(inspect.signature(model.base_model.forward).parameters)
        self.first_position, self._positions = _count_positions(model.base_model, self._config)
        types = int(getattr(self._config, "type_vocab_size", 0) or 0)
        self.reads_types = types > 1 and "token_type_ids" in self._arguments
        self.trained, self.untrained = find_trained(model.base_model, self._config)

    @classmethod
    def load(
        cls,
        path: str,
        *,
        device: str = "auto",
        dtype: str = "auto",
        head: bool = True,
        tick: Tick = silent,
    ) -> LanguageModel:
        """Load a language model from a folder, by its hub name, or the one that ships.

        A model that transformers has a masked-LM head for is masked, else one that it has a
        causal-LM head for is causal.

        Args:
            path: a folder written by ``save_pretrained``, a hub name ("bert-base-cased"), a GGUF
                file (its path ends in .gguf), or "shipped" for the model in the package.
            device: auto, cpu, cuda, cuda:N or mps.
            dtype: auto (bfloat16 on CUDA, else float32), float32, bfloat16, float16 or float64.
            head: whether its head is needed. Its hidden states alone can be had of a checkpoint
                without one too, such as a sentence encoder's; the head then scores at random.
            tick: called with a line about positions and segments that were not trained.

        Raises:
            ModelError: no such model, no weights, no head for either kind, or a masked model
                without a mask token.
        """
        where = choose_device(device)
        kind = choose_dtype(dtype, where)
        source = find_model(path)
        model = load_model(source, head=head)
        if dtype == "auto" and kind in HALF and find_decoder(model) is None:
            kind = torch.float32
        vocabulary = load_vocabulary(path, source)
        backbone = cls(model, vocabulary, device=where, dtype=kind)
        backbone.source = path
        backbone.fingerprint = fingerprint(source)
        if backbone.causal:
            _require_causal(backbone)
        if backbone.untrained:
            tick("untrained", 0, 0, backbone.untrained)
        return backbone

    @property
    def causal(self) -> bool:
        """Whether the model predicts the next token, instead of a masked one."""
        return self.vocabulary.causal

    @property
    def width(self) -> int:
        """The size of one input embedding (ALBERT's and ELECTRA's differ from the hidden size)."""
        return int(self.model.get_input_embeddings().weight.shape[1])

    @cached_property
    def layers(self) -> LayerInputs:
        """The inputs of each layer, found when first needed.

        Raises:
            ModelError: this kind of model has none that can be found.
        """
        layers = LayerInputs(self.model.base_model, self._config.num_hidden_layers)
        with layers.probing(*_PROBED):
            self._probe()
        return layers

    @cached_property
    def attention(self) -> PrefixAttention:
        """The attention calls of each layer, found when first needed.

        Raises:
            ModelError: a prefix would not be read by every layer.
        """
        attention = PrefixAttention(self.model.base_model, self._config.num_hidden_layers)
        with attention.probing(*_PROBED):
            self._probe()
        return attention

    def _probe(self) -> None:
        """Make a pass over nothing in particular."""
        ids = torch.zeros(_PROBED, dtype=torch.long, device=self.device)
        inputs = Inputs(self.embed(ids), torch.ones_like(ids, dtype=torch.bool))
        with self.passing(inputs) as given:
            self.model.base_model(**given)

    @property
    def vocabulary_size(self) -> int:
        """The number of scores the head gives, padding rows of the matrix included."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def max_length(self) -> int:
        """The longest sequence within trained positions, special tokens included."""
        trained = self.trained.positions
        return self.positions if trained is None else min(trained, self.positions)

    @property
    def positions(self) -> int:
        """The longest sequence the model can read at all, trained or not."""
        return min(self._positions, self.vocabulary.max_length)

    def token_budget(self, *, training: bool = False) -> int:
        """Return how many tokens one pass may hold: in a quarter of a GPU's memory, or 2 GiB.

        Scoring is bound by the logits (one mask in about twelve tokens, three copies; a causal
        model gives all of a subject's tokens at once, one in about four), training by the
        activations kept for the gradient (about 34 values per hidden unit, layer and token).
        """
        memory, most = _CPU_MEMORY, _CPU_TOKENS
        if self.device.type == "cuda":
            memory = self.training_memory() // 2
            most = _GPU_TOKENS
        per_token = self.vocabulary_size * 4 * 3 / (4 if self.causal else 12)
        if training:
            width = self._config.hidden_size * self._config.num_hidden_layers
            per_token += 34 * width * self.dtype.itemsize
        return max(1024, min(most, int(memory / per_token)))

    def training_memory(self) -> int:
        """Return how many bytes weights in training may take: half of a GPU's memory, or 2 GiB.

        Of a GPU only what this process may take counts (``set_per_process_memory_fraction``).
        """
        if self.device.type != "cuda":
            return _CPU_MEMORY
        index = self.device.index
        place = torch.cuda.current_device() if index is None else index
        share = torch.cuda.get_per_process_memory_fraction(place) / 2
        return int(torch.cuda.get_device_properties(self.device).total_memory * share)

    def accelerate(self, wanted: Compile = "auto", *, tokens: float = 0.0) -> str:
        """Choose how a run's passes and steps are accelerated, once; return the choice in words.

        ``accel.compiling.choose`` states the rule. What an earlier run chose is undone.

        Args:
            wanted: a config's ``compile``.
            tokens: how many tokens training reads, in all epochs.

        Raises:
            ModelError: layers are to be compiled, and the model has no list of as many layers as
                its config states.
        """
        work = tokens * weights_per_token(self.model.base_model)
        choice = choose(wanted, self.device, work=work)
        self.compile_layers(choice.compiled, **choice.options)
        self.records = choice.recorded
        longest, reason = self._packing
        parts = [
            "packed rows" * bool(longest),
            "joined products" * bool(longest and self.row_layers),
            "compiled layers" * choice.compiled,
            "recorded steps" * choice.recorded,
        ]
        chosen = ", ".join(filter(None, parts))
        if reason:
            chosen = f"{chosen}; padded rows: {reason}" if chosen else f"plain: {reason}"
        self.acceleration = chosen
        return chosen

    def compile_layers(self, on: bool = True, *, backend: Any = "inductor", **options: Any) -> None:
        """Compile the model's layers, one after the other the same code, for any shape.

        On a GPU element-wise work is fused; the first passes take some ten seconds longer.

        Args:
            on: False has them run as they are again.
            options: of torch's compiler.

        Raises:
            ModelError: the model has no list of as many layers as its config states.
        """
        count = self._config.num_hidden_layers
        lists = [
            module
            for module in self.model.base_model.modules()
            if isinstance(module, nn.ModuleList) and len(module) == count
        ]
        if on and not lists:
            raise ModelError(
                f"{type(self.model).__name__} has no list of {count} layers to compile; use "
                "--compile off."
            )
        given = {"backend": backend, "dynamic": True, "options": options or None} if on else {}
        if given == self._compiled_by:
            return
        compile_often()
        for layer in lists[0] if lists else ():
            layer._compiled_call_impl = None
            if on:
                layer.compile(**given)
        self.compiled, self._compiled_by = on, given
        self.__dict__.pop("row_layers", None)

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input embeddings [b, t, width] of token ids [b, t]."""
        embeddings: Tensor = self.model.get_input_embeddings()(ids)
        return embeddings

    def logits_at(self, inputs: Inputs, positions: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the logits at the wanted positions only.

        Args:
            inputs: embeddings and mask of b sequences.
            positions: [b], one position a sequence, or [b, m], several.
            rows: [n], which sequence each position is of; positions are then [n], any number of
                them from each sequence. Of a packed row, positions [n] count through it.

        Returns:
            [b, v], [b, m, v] or [n, v], float32 (float64 for a float64 model). A masked model's are
            about the token at a position, a causal model's about the one after it.
        """
        wanted = positions if positions.dim() == 2 else positions[:, None]
        if inputs.packing is not None:
            if self.row_layers is not None and self.row_layers.fits(inputs):
                return self._head(self.row_layers.states_at(inputs, positions))
            if not self._packs_itself:
                raise ModelError(
                    f"{type(self.model).__name__} reads packed sentences by layers of joined "
                    "products alone, and its weights have changed, or its layers are given more "
                    "than embeddings; give sentences padded."
                )
            rows = torch.zeros_like(positions)
        with self.passing(inputs) as given:
            self._wanted = wanted, rows
            try:
                output = self.model(**given)
            finally:
                self._wanted = None
        logits: Tensor = output.logits
        if logits.shape[:2] != wanted.shape:
            raise ModelError(
                f"the head of {type(self.model).__name__} gave scores of shape "
                f"{tuple(logits.shape[:2])} for positions of shape {tuple(wanted.shape)}: it does "
                "not read its body's output position by position, so this model cannot be asked."
            )
        return logits if positions.dim() == 2 else logits[:, 0]

    def states(
        self, inputs: Inputs, *, prefix: Prefix | None = None, grad_model: bool = False
    ) -> Tensor:
        """Return the last hidden states [b, t, h] of the model's body; its head is not run.

        Args:
            inputs: embeddings, mask, token types and what layers read.
            prefix: keys and values before the tokens', in place of ``inputs.prefix``; the output
                has a state for each token and none for the prefix.
            grad_model: whether the model's weights are being trained. If not, they must be frozen,
                and a pass that reads nothing learned keeps nothing for a gradient.

        Raises:
            ModelError: the prefix does not fit the model, or the body gave no state for each token.
        """
        if prefix is not None:
            inputs = replace(inputs, prefix=prefix)
        learned = inputs.embeddings.requires_grad or inputs.added is not None
        if inputs.prefix is not None:
            learned = learned or inputs.prefix.states.requires_grad
        wanted = torch.is_grad_enabled() and (grad_model or learned)
        with torch.set_grad_enabled(wanted), self.passing(inputs) as given:
            states: Tensor = self.model.base_model(**given).last_hidden_state
        if states.shape[:2] != inputs.embeddings.shape[:2]:
            raise ModelError(
                f"the body of {type(self.model).__name__} gave states of shape "
                f"{tuple(states.shape[:2])} for tokens of shape "
                f"{tuple(inputs.embeddings.shape[:2])}, so labels would not line up with tokens; "
                "take another model."
            )
        return states

    def layer_states(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return the hidden states [b, t, h] of the embeddings and after each layer."""
        with self.passing(inputs) as given:
            output = self.model.base_model(**given, output_hidden_states=True)
        return tuple(output.hidden_states)

    @property
    def prefix_shape(self) -> PrefixShape:
        """The layers, key-value heads and head size that a prefix for this model has.

        Raises:
            ModelError: a prefix would not be read by every layer of this kind of model.
        """
        return self.attention.shape

    def _head(self, states: Tensor) -> Tensor:
        """Return the head's answers [s, v] to states [s, h] that the body would have given."""
        body, given = self.model.base_model, cast(torch.FloatTensor, states[None])
        body.forward = lambda *_, **_given: BaseModelOutput(last_hidden_state=given)
        try:
            return self.model(inputs_embeds=given).logits.squeeze(0)  # type: ignore[no-any-return]
        finally:
            del body.forward

    @cached_property
    def row_layers(self) -> RowLayers | None:
        """The layers for packed rows, on CUDA, of models whose layers are BERT's kind."""
        quick = self.device.type == "cuda" and SWITCHES["rows"]
        layers = self.find_row_layers() if quick else None
        if layers is not None and self.compiled:
            layers.compile(self._compiled_by["options"])
        return layers

    @contextmanager
    def passing(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        """Give what the model or its body is called with; what layers read is put in place.

        One pass is made within.
        """
        given: dict[str, Any] = {"inputs_embeds": inputs.embeddings, "return_dict": True}
        mask, prefix, packing = inputs.mask, inputs.prefix, inputs.packing
        reading: AbstractContextManager[None] = nullcontext()
        if packing is not None:
            given["attention_mask"] = packing.as_mask()
            given["position_ids"] = packing.place[None] + self.first_position
            reading = packed(self.model)
        elif self.causal:
            # Padding stands on the right, where no token sees it. Masking it would only leave
            # padding with nothing to look at under a sliding window, which is not a number and
            # spreads.
            given["use_cache"] = False
        elif mask is not None:
            # Of floats: what attention adds, [b, 1, t, t], made by the caller.
            given["attention_mask"] = mask if mask.is_floating_point() else mask.to(torch.long)
        if inputs.types is not None and self.reads_types:
            given["token_type_ids"] = inputs.types
        if prefix is not None and prefix.length > 0:
            reading = self.attention.reading(prefix, inputs.embeddings.shape[0])
            if prefix.shift_positions:
                given["position_ids"] = self._shifted(prefix, *inputs.embeddings.shape[:2])
        deep = nullcontext() if inputs.added is None else self.layers.adding(inputs.added)
        with sdpa_kernel(self._attention_kernels), deep, reading:
            yield given

    @property
    def _attention_kernels(self) -> list[SDPBackend]:
        """Which of torch's kernels attend."""
        half = self.dtype in HALF or torch.is_autocast_enabled("cpu")
        if self.device.type == "cpu" and half and torch.is_grad_enabled():
            # On a CPU the others' backward pass is four times as slow in bfloat16.
            return [SDPBackend.MATH]
        return _ATTENTION

    def _shifted(self, prefix: Prefix, rows: int, tokens: int) -> Tensor:
        """Return the tokens' positions after a prefix, [b, t].

        Raises:
            ModelError: the model takes no positions, or has not as many.
        """
        if "position_ids" not in self._arguments:
            raise ModelError(
                f"{type(self.model.base_model).__name__} takes no positions from outside, so a "
                "prefix cannot shift them; leave the shift of positions out."
            )
        if prefix.length + tokens > self.positions:
            raise ModelError(
                f"{tokens} tokens after a prefix of {prefix.length} that shifts positions need "
                f"{prefix.length + tokens} of them, and the model has {self.positions}; leave the "
                "shift of positions out, or take shorter texts."
            )
        return prefix.positions(rows, tokens) + self.first_position

    @cached_property
    def longest_packed(self) -> int:
        """How long sentences may be that stand one after the other in a row; 0: none does."""
        return self._packing[0]

    @cached_property
    def _packing(self) -> tuple[int, str]:
        """How long sentences may be that are packed into a row, or 0 and the reason.

        Rows are packed on CUDA alone, where it is faster, and not for causal models, whose
        sentences end before what is asked.
        """
        if self.device.type != "cuda":
            return 0, f"rows are packed on CUDA alone, and the device is {self.device.type}"
        if self.causal:
            return 0, "the model is causal"
        if self.dtype.itemsize != 2:
            return 0, f"rows are packed in half precision alone, and the dtype is {self.dtype}"
        longest = longest_on(self.device, self.dtype, self.model.config)
        if not longest or not SWITCHES["packing"]:
            return 0, "the model's heads do not fit on this GPU"
        if not self.can_pack():
            return 0, (
                f"{type(self.model).__name__} does not answer packed sentences as it answers "
                "padded ones (relative positions, or an attention of its own)"
            )
        return longest, ""

    def can_pack(self) -> bool:
        """Return whether packed sentences get the answers that padded ones get."""
        return self._packs_itself or self.row_layers is not None

    @cached_property
    def _packs_itself(self) -> bool:
        """Whether the model's own layers read packed sentences as they read padded ones."""
        if "position_ids" not in self._arguments:
            return False
        lengths, _, row = self._short_sentences()
        return self._answers_alike(
            self._padded_states, lambda: self.states(row)[0, lengths.cumsum(0) - 1]
        )

    def find_row_layers(self) -> RowLayers | None:
        """Return the layers for packed rows if they give the model's own states."""
        layers = RowLayers.of(self.model.base_model, self.first_position)
        if layers is None:
            return None
        lengths, _, row = self._short_sentences()
        at = lengths.cumsum(0) - 1
        alike = self._answers_alike(self._padded_states, lambda: layers.states_at(row, at))
        return layers if alike else None

    def _padded_states(self) -> Tensor:
        """Return the states [3, h] of the last tokens of short sentences, which are padded."""
        lengths, ids, _ = self._short_sentences()
        mask = torch.arange(5, device=self.device) < lengths[:, None]
        states = self.states(Inputs(self.embed(ids), mask))
        return states[torch.arange(3, device=self.device), lengths - 1]

    def _short_sentences(self) -> tuple[Tensor, Tensor, Inputs]:
        """Return the lengths of three sentences, their tokens padded [3, 5], and them in a row."""
        lengths = torch.tensor([3, 5, 4], device=self.device)
        ids = torch.arange(15, device=self.device).view(3, 5)
        packing, owner = pack(lengths, 14, 5)
        row = Inputs(self.embed(ids[owner, packing.place])[None], None, packing=packing)
        return lengths, ids, row

    def _answers_alike(self, usual: Callable[[], Tensor], quick: Callable[[], Tensor]) -> bool:
        """Return whether two ways give the same tensor as far as the dtype goes."""
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            try:
                one, other = usual(), quick()
            except Exception:
                # Whatever a model or the kernels' compiler raises: then the usual way is taken.
                return False
        allowed = 0.1 if self.dtype.itemsize == 2 else 1e-3
        spread, apart = (one - one.mean(0)).abs().max(), (one - other).abs().max()
        return bool(torch.isfinite(other).all() and apart <= allowed * spread)

    @contextmanager
    def dropout(self, on: bool = True) -> Iterator[None]:
        """Run the model with its own dropout on; the P-tuning reference code trains so."""
        before = self.model.training
        self.model.train(on)
        try:
            yield
        finally:
            self.model.train(before)

    def _gather(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        if self._wanted is None:
            return output
        positions, rows = self._wanted
        hidden = output.last_hidden_state
        if rows is None:
            index = positions[:, :, None].expand(-1, -1, hidden.shape[-1])
            return type(output)(last_hidden_state=hidden.gather(1, index))
        flat = hidden.flatten(0, 1).index_select(0, rows * hidden.shape[1] + positions[:, 0])
        return type(output)(last_hidden_state=flat[:, None])


def _require_causal(backbone: LanguageModel) -> None:
    """Refuse a model whose answers change with what follows (XLNet has a causal-LM head too).

    Raises:
        ModelError: the model sees what follows.
    """
    ids = torch.tensor([[0, 1, 1, 1], [0, 2, 2, 2]], device=backbone.device)
    inputs = Inputs(backbone.embed(ids), torch.ones_like(ids, dtype=torch.bool))
    with torch.no_grad():
        one, other = backbone.logits_at(inputs, torch.zeros_like(ids[:, 0]))
    near = 1e-2 * float(one.abs().max().nan_to_num())
    if not torch.allclose(one, other, rtol=1e-2, atol=near, equal_nan=True):
        raise ModelError(
            f"{backbone.source} is a {backbone.model.config.model_type} model, whose answers "
            "change with what comes after them, so it is not causal; give a masked or a causal "
            "language model."
        )


def _count_positions(body: nn.Module, config: Any) -> tuple[int, int]:
    """Return the position of a sentence's first token, and how many tokens have one."""
    table, first = find_positions(body)
    if table is None:
        return 0, int(getattr(config, "max_position_embeddings", 0) or _ENDLESS)
    # OPT's table counts its first rows itself.
    return 0 if hasattr(table, "offset") else first, table.num_embeddings - first
