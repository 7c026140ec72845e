"""Stacked encoders against torch's own modules, relation by relation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from symprompt.prompts import BiLSTMEncoder, FreeVectors, MLPEncoder, PromptEncoder, TriggerTokens

NAMES = ("capital", "in", "near")
COUNT, WIDTH = 7, 12


def torch_mlp(encoder: MLPEncoder | BiLSTMEncoder, relation: int) -> nn.Sequential:
    """P-tuning's MLP as torch has it, with one relation's weights."""
    inner = encoder.weight_1.shape[2]
    mlp = nn.Sequential(nn.Linear(inner, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).double()
    names = {"0.weight": "weight_1", "0.bias": "bias_1", "2.weight": "weight_2", "2.bias": "bias_2"}
    mlp.load_state_dict(
        {name: encoder.get_parameter(ours)[relation].detach() for name, ours in names.items()}
    )
    return mlp


def torch_lstm(encoder: BiLSTMEncoder, relation: int) -> nn.LSTM:
    """torch.nn.LSTM with one relation's weights."""
    lstm = nn.LSTM(
        WIDTH, encoder.hidden, num_layers=2, bidirectional=True, batch_first=True
    ).double()
    state: dict[str, Tensor] = {}
    for layer in range(2):
        for direction, suffix in enumerate(("", "_reverse")):
            place = f"l{layer}{suffix}"
            take = (relation, direction)
            state[f"weight_ih_{place}"] = encoder.get_parameter(f"input_{layer}")[take]
            state[f"weight_hh_{place}"] = encoder.get_parameter(f"recurrent_{layer}")[take]
            biases = encoder.get_parameter(f"biases_{layer}")[take]
            state[f"bias_ih_{place}"], state[f"bias_hh_{place}"] = biases[0], biases[1]
    lstm.load_state_dict({name: value.detach() for name, value in state.items()})
    return lstm


@pytest.mark.parametrize("hidden", [None, 12, 5])
def test_stacked_bilstm_equals_torch_lstm_and_mlp(hidden: int | None) -> None:
    encoder = BiLSTMEncoder(NAMES, COUNT, WIDTH, lstm_hidden=hidden).double()
    assert encoder.hidden == (hidden or WIDTH // 2)
    found = encoder()
    assert found.shape == (3, COUNT, WIDTH)
    weight = torch.randn(found.shape, dtype=torch.float64)
    (found * weight).sum().backward()
    for relation in range(3):
        lstm, mlp = torch_lstm(encoder, relation), torch_mlp(encoder, relation)
        base = encoder.base[relation].detach().requires_grad_()
        wanted = mlp(lstm(base[None])[0])[0]
        torch.testing.assert_close(found[relation], wanted, rtol=0, atol=1e-12)
        # The gradients are what training sees: both biases must move as torch's do.
        (wanted * weight[relation]).sum().backward()
        gradients: dict[str, Any] = {name: own.grad for name, own in encoder.named_parameters()}
        biases = gradients["biases_1"][relation, 1]
        for found_gradient, wanted_gradient in (
            (gradients["base"][relation], base.grad),
            (biases[0], lstm.get_parameter("bias_ih_l1_reverse").grad),
            (biases[1], lstm.get_parameter("bias_hh_l1_reverse").grad),
            (gradients["recurrent_0"][relation, 0], lstm.get_parameter("weight_hh_l0").grad),
        ):
            torch.testing.assert_close(found_gradient, wanted_gradient, rtol=0, atol=1e-12)


def test_stacked_mlp_equals_torch_mlp() -> None:
    encoder = MLPEncoder(NAMES, COUNT, WIDTH).double()
    found = encoder()
    for relation in range(3):
        wanted = torch_mlp(encoder, relation)(encoder.base[relation])
        torch.testing.assert_close(found[relation], wanted, rtol=0, atol=1e-12)


def make(kind: str, names: tuple[str, ...], seed: tuple[object, ...] = (0,)) -> PromptEncoder:
    kinds = {"free": FreeVectors, "mlp": MLPEncoder, "bilstm": BiLSTMEncoder}
    encoder: PromptEncoder = kinds[kind](names, COUNT, WIDTH, seed=seed)
    return encoder


@pytest.mark.parametrize("kind", ["free", "mlp", "bilstm"])
def test_first_parameters_are_drawn_from_seed_relation_and_part_alone(kind: str) -> None:
    before = torch.random.get_rng_state()
    together = dict(make(kind, NAMES).named_parameters())
    assert torch.equal(torch.random.get_rng_state(), before)
    for names in (("in",), ("near", "in"), ("other", "in", "capital")):
        for name, value in make(kind, names).named_parameters():
            assert torch.equal(value[names.index("in")], together[name][1]), name
    first = make(kind, NAMES)()
    assert (first[0] - first[1]).abs().max() > 1e-3
    for seed in ((1,), (0, "back")):
        assert (make(kind, NAMES, seed)() - first).abs().max() > 1e-3
    assert torch.equal(make(kind, NAMES)(), first)


@pytest.mark.parametrize("kind", ["free", "mlp", "bilstm"])
def test_a_relations_vectors_depend_on_its_own_parameters_alone(kind: str) -> None:
    encoder = make(kind, NAMES)
    encoder()[1].square().sum().backward()
    for value in encoder.parameters():
        assert value.grad is not None
        assert (value.grad[[0, 2]] == 0).all()
        assert value.grad[1].abs().sum() > 0


def test_initial_weights_have_torchs_spread() -> None:
    encoder = BiLSTMEncoder(NAMES, COUNT, WIDTH, lstm_hidden=25)
    for name, inner in (("weight_1", 50), ("bias_1", 50), ("weight_2", WIDTH), ("input_0", 25)):
        value = encoder.get_parameter(name).detach()
        assert value.abs().max() <= inner**-0.5
        assert value.abs().max() > 0.8 * inner**-0.5


def test_free_vectors_are_drawn_with_the_asked_spread_or_start_as_told() -> None:
    vectors = FreeVectors(NAMES, 50, 40, scale=0.05)().detach()
    assert vectors.shape == (3, 50, 40)
    assert vectors.std() == pytest.approx(0.05, rel=0.05)
    # Or they start where they are told, with a copy of their own.
    start = torch.randn(3, COUNT, WIDTH)
    encoder = FreeVectors(NAMES, COUNT, WIDTH, start=start)
    assert torch.equal(encoder(), start)
    start.zero_()
    assert encoder().abs().sum() > 0


def test_trigger_tokens_give_their_embeddings_and_take_no_gradient() -> None:
    table = torch.randn(9, 4)
    start = torch.tensor([[1, 8], [3, 3]])
    encoder = TriggerTokens(start, lambda ids: table[ids], dtype=torch.float64)
    assert torch.equal(encoder(), table[start].double())
    ((name, tokens),) = encoder.named_parameters()
    assert (name, tokens.dtype, tokens.requires_grad) == ("tokens", torch.int64, False)
    tokens[1, 0] = 7
    assert torch.equal(encoder()[1, 0], table[7].double())
    assert start[1, 0] == 3
    assert encoder.to(torch.float32).tokens.dtype == torch.int64


def test_recurrent_weights_read_in_bfloat16_are_those_weights_rounded() -> None:
    exact, half = (BiLSTMEncoder(NAMES, COUNT, WIDTH) for _ in range(2))
    half._half = True
    for layer in range(exact.layers):
        # Numbers that bfloat16 holds: then nothing is lost, forth or back.
        for encoder in (exact, half):
            weight = encoder.get_parameter(f"recurrent_{layer}")
            weight.data = weight.data.bfloat16().float()
    vectors = [encoder() for encoder in (exact, half)]
    torch.testing.assert_close(*vectors)
    for one, other in zip(
        *(
            torch.autograd.grad(found.square().sum(), list(encoder.parameters()))
            for found, encoder in zip(vectors, (exact, half), strict=True)
        ),
        strict=True,
    ):
        assert one.dtype == other.dtype == torch.float32
        torch.testing.assert_close(one, other)
    weight = half.get_parameter("recurrent_0")
    weight.data = weight.data * 1.001
    # A change of less than half a step of bfloat16 is rounded away.
    assert torch.equal(half(), vectors[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("hidden", [16, 24, 256, 384])
@pytest.mark.parametrize("half", [True, False])
def test_the_recurrence_kernels_are_the_plain_recurrence(hidden: int, half: bool) -> None:
    names = [f"P{number}" for number in range(5)]
    plain = BiLSTMEncoder(names, 9, 2 * hidden, lstm_hidden=hidden).cuda()
    quick = BiLSTMEncoder(names, 9, 2 * hidden, lstm_hidden=hidden).cuda()
    quick.compile_steps(half=half)
    plain._half = half
    assert quick._recurrence != plain._recurrence
    vectors = [encoder() for encoder in (plain, quick)]
    torch.testing.assert_close(*vectors, rtol=1e-4, atol=1e-5)
    weight = torch.linspace(-1, 1, vectors[0].numel(), device="cuda").view_as(vectors[0])
    gradients = [
        torch.autograd.grad((found * weight).sum(), list(encoder.parameters()))
        for found, encoder in zip(vectors, (plain, quick), strict=True)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [BiLSTMEncoder, MLPEncoder])
def test_factors_multiply_to_the_gradients_of_matrices(
    kind: type[BiLSTMEncoder] | type[MLPEncoder],
) -> None:
    encoder = kind(NAMES, COUNT, WIDTH).double()
    names, values = zip(*encoder.named_parameters(), strict=True)
    wanted = torch.autograd.grad(encoder().square().sum(), values)
    vectors = encoder()
    before = {name: value.detach().clone() for name, value in encoder.named_parameters()}
    factors: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def take(name: str, left: torch.Tensor, right: torch.Tensor) -> None:
        factors[name] = left.clone(), right.clone()
        # The walk back has no more use for it: an optimiser may change it now.
        encoder.get_parameter(name).data.fill_(torch.nan)

    with encoder.factoring(take):
        found = torch.autograd.grad(vectors.square().sum(), values, allow_unused=True)
    for name, value in encoder.named_parameters():
        value.data.copy_(before[name])
    matrices = {name for name in names if "weight" in name or "input" in name or "recur" in name}
    assert set(factors) == matrices
    for name, value, one, other in zip(names, values, wanted, found, strict=True):
        if name in factors:
            assert other is None
            left, right = factors[name]
            other = torch.einsum("bno,bni->boi", left, right).view_as(value)
        torch.testing.assert_close(one, other)
    # Afterwards gradients are made again.
    again = torch.autograd.grad(encoder().square().sum(), values)
    assert all(torch.equal(one, other) for one, other in zip(wanted, again, strict=True))
