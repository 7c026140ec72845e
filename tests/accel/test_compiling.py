"""What is compiled serves every model and setting that one process meets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from transformers import BertConfig, BertModel

from symprompt.accel import rows, without
from symprompt.accel.compiling import PAYS_AFTER, SWITCHES, choose
from symprompt.accel.rows import RowLayers
from symprompt.engine.stacked_adam import StackedAdam
from symprompt.models import Inputs, LanguageModel, ReadOut, pack
from symprompt.probing.config import LearningConfig
from symprompt.prompts import PackedQuestion
from symprompt.prompts.packed import _compiled


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounter]:
    """Count what is compiled, which here runs as it is written."""
    found = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=found))
    torch.compiler.reset()
    _compiled.cache_clear()
    with torch._dynamo.config.patch(recompile_limit=8):
        yield found
    torch.compiler.reset()
    _compiled.cache_clear()


def test_every_kind_of_update_is_compiled(counter: CompileCounter) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"bias": (3, 5), "base": (3, 4, 6), "biases": (3, 2, 2, 5)}
    start = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    slope = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    active = torch.tensor([True, False, True])
    rate = torch.tensor([1e-2, 1e-2, 3e-2], dtype=torch.float64)
    for kind, decay, clip in product(("adam", "adamw"), (0.0, 0.1), (0.0, 0.5)):
        config = LearningConfig(optimizer=kind, weight_decay=decay, clip=clip)  # type: ignore[arg-type]
        found = []
        for quick in (False, True):
            values = {name: nn.Parameter(value.clone()) for name, value in start.items()}
            optimizer = StackedAdam(values, config)
            if quick:
                optimizer.compile()
            for name, value in values.items():
                value.grad = slope[name].clone()
            optimizer.step(active, rate)
            found.append(values)
        for name, value in found[0].items():
            torch.testing.assert_close(found[1][name], value)
    # More than the compiler does for one function unless it is told to.
    assert counter.frame_count > 8


def make_question(relations: int, count: int, tokens: int, sentences: int) -> PackedQuestion:
    """Return some sentences of two tokens at least; each vector stands in each, from the start."""
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(0, 15, (tokens,), generator=generator)
    owner = torch.arange(tokens) // (tokens // sentences)
    lengths = torch.full((sentences,), tokens // sentences)
    packing, _ = pack(lengths, tokens, tokens // sentences)
    place, starts = packing.place, packing.starts
    relation = torch.randint(0, relations, (sentences,), generator=generator)
    slots = torch.where(place < count, place, -1)
    places = starts[:-1, None] + torch.arange(count)
    at = starts[:-1].long()
    return PackedQuestion(ids, slots, owner, relation, packing, at, ids[at], places)


def test_vectors_are_put_among_words_by_one_function_for_all_sizes(
    counter: CompileCounter, bert: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [(3, 2, 24, 4), (6, 2, 30, 5), (3, 4, 60, 6), (5, 3, 16, 2)]
    for relations, count, tokens, sentences in sizes:
        question = make_question(relations, count, tokens, sentences)
        vectors = torch.randn(relations, count, bert.width, dtype=bert.dtype)
        results = []
        for compiled in (False, True):
            monkeypatch.setattr(bert, "compiled", compiled)
            leaf = vectors.clone().requires_grad_()
            found = question.inputs(bert, leaf).embeddings
            weight = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)
            (gradient,) = torch.autograd.grad((found * weight).sum(), [leaf])
            with torch.no_grad():
                asked = question.inputs(bert, vectors).embeddings
            results.append((found.detach(), gradient, asked))
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)
        learned = results[0][0][0][question.slots >= 0]
        wanted = vectors[question.relation[question.owner], question.slots.clamp(min=0)]
        torch.testing.assert_close(learned, wanted[question.slots >= 0])
    assert counter.frame_count == 2


def test_finding_out_what_a_model_can_do_compiles_nothing(
    counter: CompileCounter, family_folder: Callable[[str], Path]
) -> None:
    backbone = LanguageModel.load(str(family_folder("bert")), device="cpu", dtype="float64")
    backbone.compile_layers(backend=counter)  # type: ignore[arg-type]
    assert backbone.can_pack()
    assert backbone.find_row_layers() is not None
    assert ReadOut(backbone).width == backbone.width
    assert counter.frame_count == 0
    backbone.logits_at(Inputs(backbone.embed(torch.arange(4)[None]), None), torch.tensor([2]))
    assert counter.frame_count > 0


def states_and_gradient(layers: RowLayers, width: int, device: str) -> tuple[Tensor, Tensor]:
    """Return states of three sentences, and the gradient of their words."""
    lengths = torch.tensor([3, 5, 4], device=device)
    packing, _ = pack(lengths, 14, 5)
    words = torch.randn(1, 14, width, generator=torch.Generator().manual_seed(4))
    leaf = words.to(device, layers._own[0][0].dtype).requires_grad_()
    states = layers.states_at(Inputs(leaf, None, packing=packing), lengths.cumsum(0) - 1)
    across = torch.linspace(-1, 1, states.numel()).view_as(states).to(states)
    (gradient,) = torch.autograd.grad((states * across).sum(), [leaf])
    return states.detach().double().cpu(), gradient.double().cpu()


def make_layers(width: int, device: str, dtype: torch.dtype) -> RowLayers:
    """Return the layers of a random BERT, some of them before one that reads their product."""
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "vocab_size": 40}
    config = BertConfig(num_hidden_layers=4, num_attention_heads=2, **sizes)
    layers = RowLayers.of(BertModel(config).to(device, dtype).eval(), 0)
    assert layers is not None
    return layers


# Of what the compiler itself does.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
def test_compiled_layers_give_the_gradients_of_plain_ones(
    counter: CompileCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_layer(work: Callable[..., Any], **_options: object) -> Callable[..., Any]:
        # What is around them asks for numbers on a CPU, where a graph ends.
        return torch.compile(work) if work is rows._layer else work

    monkeypatch.setattr(rows, "compile_function", compile_layer)
    layers = make_layers(24, "cpu", torch.float64)
    plain = states_and_gradient(layers, 24, "cpu")
    layers.compile()
    for one, other in zip(plain, states_and_gradient(layers, 24, "cpu"), strict=True):
        torch.testing.assert_close(one, other)
    assert counter.frame_count == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_layers_give_the_gradients_of_plain_ones_on_a_gpu() -> None:
    exact = states_and_gradient(make_layers(128, "cpu", torch.float64), 128, "cpu")
    layers = make_layers(128, "cuda", torch.bfloat16)
    for compiled in (False, True):
        if compiled:
            layers.compile()
        for one, other in zip(states_and_gradient(layers, 128, "cuda"), exact, strict=True):
            assert float((one - other).norm() / other.norm()) < 0.03


@pytest.mark.parametrize(
    ("wanted", "device", "work", "compiled", "recorded"),
    [
        ("auto", "cuda", PAYS_AFTER, True, True),
        ("auto", "cuda", PAYS_AFTER / 2, False, True),
        ("auto", "cpu", PAYS_AFTER, False, False),
        ("on", "cpu", 0.0, True, False),
        ("on", "cuda", 0.0, True, True),
        ("max-autotune", "cuda", 0.0, True, True),
        ("off", "cuda", PAYS_AFTER, False, False),
    ],
)
def test_a_run_compiles_and_records_where_it_pays(
    wanted: Any, device: str, work: float, compiled: bool, recorded: bool
) -> None:
    found = choose(wanted, torch.device(device), work=work)
    assert found[:2] == (compiled, recorded)
    assert bool(found.options) == (wanted == "max-autotune")


def test_what_a_run_chose_is_reported_and_undone_by_the_next(
    family_folder: Callable[[str], Path],
) -> None:
    backbone = LanguageModel.load(str(family_folder("bert")), device="cpu")
    assert backbone.accelerate("on").startswith("compiled layers; padded rows: ")
    assert backbone.compiled
    assert backbone.accelerate("auto", tokens=1e30).startswith("plain: rows are packed on CUDA")
    assert backbone.acceleration == backbone.accelerate("off")
    assert not backbone.compiled
    assert not any(module._compiled_call_impl for module in backbone.model.modules())


def test_a_switch_is_off_within_its_block_alone() -> None:
    with without("gelu", "query"):
        assert not SWITCHES["gelu"]
    assert all(SWITCHES.values())
    with pytest.raises(KeyError, match="no acceleration is called 'gelo'"), without("gelo"):
        pass
