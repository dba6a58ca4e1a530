"""What stepnet.nn's modules do beside torch.nn's: more inputs, dropout, copies, errors."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations

from duplicates import DUPLICATES, check_duplicate
from stepnet import nn as ours
from stepnet.data.in_graph import CAN_CAPTURE
from stepnet.data.lod import LoDTensor
from stepnet.errors import StepError

MODULES = {"LSTM": ours.LSTM, "GRU": ours.GRU, "RNN": ours.RNN}


def states(final):
    return list(final) if isinstance(final, tuple) else [final]


# --- inputs that torch.nn refuses


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (0, 0)], ids=["no steps", "no sequences", "neither"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
@pytest.mark.parametrize("name", MODULES)
def test_dense_of_nothing(name, batch_first, shape):
    module = MODULES[name](2, 3, num_layers=2, bidirectional=True, batch_first=batch_first)
    x = torch.zeros(*(shape[::-1] if batch_first else shape), 2)
    hx = torch.randn(4, shape[1], 3)
    y, final = module(x, (hx, hx) if name == "LSTM" else hx)
    assert y.shape == (*x.shape[:2], 6)
    for state in states(final):
        assert torch.equal(state, hx)


@pytest.mark.parametrize("lengths", [[0, 0], []], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_lod_of_nothing(name, lengths):
    module = MODULES[name](2, 3, num_layers=2, bidirectional=True)
    y, final = module(LoDTensor.from_lengths(torch.zeros(0, 2), [lengths]))
    assert y.values.shape == (0, 6)
    assert y.lengths().tolist() == lengths
    assert all(torch.equal(state, torch.zeros(4, len(lengths), 3)) for state in states(final))


def test_unbatched_of_no_steps():
    y, h = ours.GRU(2, 3)(torch.zeros(0, 2))
    assert y.shape == (0, 3)
    assert torch.equal(h, torch.zeros(1, 3))


def test_lod_of_two_levels_runs_over_the_last():
    module = ours.GRU(2, 3, bidirectional=True)
    rows = torch.randn(6, 2)
    deep = LoDTensor.from_lengths(rows, [[2, 0, 1], [3, 1, 2]])
    (y, h), (flat, h_flat) = module(deep), module(LoDTensor.from_lengths(rows, [[3, 1, 2]]))
    assert y.recursive_sequence_lengths() == [[2, 0, 1], [3, 1, 2]]
    assert torch.equal(y.values, flat.values)
    assert torch.equal(h, h_flat)


# --- dropout between layers


@pytest.mark.parametrize("kind", ["dense", "lod"])
def test_dropout_lies_between_layers_and_only_in_training(kind):
    module = ours.RNN(2, 3, num_layers=2, dropout=1.0)
    rows = torch.randn(4, 2)
    x = rows if kind == "dense" else LoDTensor.from_lengths(rows, [[3, 0, 1]])
    other = torch.randn(4, 2)
    x_other = other if kind == "dense" else LoDTensor.from_lengths(other, [[3, 0, 1]])

    def values(given):
        y = module(given)[0]
        return y.values if isinstance(y, LoDTensor) else y

    # All of layer 0's output dropped: the output of layer 1 no longer depends on the input.
    assert torch.equal(values(x), values(x_other))
    module.eval()
    assert not torch.equal(values(x), values(x_other))
    plain = ours.RNN(2, 3, num_layers=2)
    plain.load_state_dict(module.state_dict())
    expected = plain(x)[0]
    assert torch.equal(values(x), expected.values if isinstance(expected, LoDTensor) else expected)


def test_dropout_drops_at_its_rate_and_scales_the_rest():
    module = ours.RNN(1, 1, num_layers=2, nonlinearity="relu", bias=False, dropout=0.25)
    with torch.no_grad():
        for name, values in module.named_parameters():
            values.fill_(float("ih" in name))
    y, _ = module(torch.ones(1, 4000, 1))
    torch.testing.assert_close(y.unique(), torch.tensor([0.0, 1 / 0.75]))
    assert abs((y == 0).float().mean().item() - 0.25) < 0.04


def test_dropout_without_a_layer_to_drop_warns():
    with pytest.warns(UserWarning, match=r"LSTM\(dropout=0.5\) drops nothing") as caught:
        ours.LSTM(2, 3, dropout=0.5)
    assert caught[0].filename == __file__


# --- modules as modules


@pytest.mark.parametrize("name", MODULES)
def test_only_the_parameters_are_registered(name):
    module = MODULES[name](2, 3, num_layers=2)
    module(torch.zeros(3, 1, 2))
    assert list(module.state_dict()) == list(getattr(nn, name)(2, 3, num_layers=2).state_dict())
    assert [type(m) for m in module.modules()] == [MODULES[name]]


@pytest.mark.parametrize("duplicate", DUPLICATES)
@pytest.mark.parametrize("name", MODULES)
def test_a_duplicate_is_equal_and_its_own(name, duplicate):
    module = MODULES[name](2, 3, num_layers=2, bidirectional=True)
    check_duplicate(module, DUPLICATES[duplicate](module), torch.randn(3, 2, 2))


def test_parameters_are_read_at_each_call():
    module, peer = ours.GRU(2, 3, num_layers=2), nn.GRU(2, 3, num_layers=2)
    x = torch.randn(4, 2, 2)
    torch.testing.assert_close(functional_call(module, peer.state_dict(), (x,))[0], peer(x)[0])
    parametrizations.weight_norm(module, "weight_hh_l1")
    parametrizations.weight_norm(peer, "weight_hh_l1")
    module.load_state_dict(peer.state_dict(), strict=True)
    torch.testing.assert_close(module(x)[0], peer(x)[0])
    module.flatten_parameters()
    torch.testing.assert_close(module(x)[0], peer(x)[0])


def test_what_changes_between_calls_is_seen():
    module, plain, x = ours.RNN(2, 3), nn.RNN(2, 3), torch.randn(4, 1, 2)

    def same():
        plain.load_state_dict(module.state_dict())
        for _ in range(3):
            torch.testing.assert_close(module(x), plain(x))

    same()
    module.weight_hh_l0 = nn.Parameter(torch.randn(3, 3))
    same()
    module.nonlinearity, plain = "relu", nn.RNN(2, 3, nonlinearity="relu")
    same()
    other = {name: torch.randn_like(value) for name, value in module.named_parameters()}
    torch.testing.assert_close(functional_call(module, other, x), functional_call(plain, other, x))
    same()


def test_a_module_that_ran_can_go():
    module = ours.GRU(2, 3)
    for _ in range(3):
        module(torch.zeros(1, 1, 2))
    gone = weakref.ref(module), weakref.ref(module.weight_hh_l0)
    del module
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_moved_to_another_dtype_and_device():
    module = ours.LSTM(2, 3, num_layers=2).double()
    y, (h, c) = module(torch.zeros(3, 1, 2, dtype=torch.float64))
    assert {v.dtype for v in (y, h, c)} == {torch.float64}
    meta = ours.LSTM(2, 3, device="meta", dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in meta.parameters()} == {("meta", torch.bfloat16)}


def test_frozen_parameters_get_no_gradient():
    module = ours.GRU(2, 3)
    module.weight_hh_l0.requires_grad_(False)
    module(torch.randn(3, 2, 2))[0].sum().backward()
    assert module.weight_hh_l0.grad is None
    assert module.weight_ih_l0.grad.any()


@pytest.mark.parametrize("name", [*MODULES, "LSTM proj"])
def test_autocast(name):
    module = ours.LSTM(2, 4, proj_size=2) if name == "LSTM proj" else MODULES[name](2, 4, num_layers=2)
    x = torch.randn(3, 2, 2)
    expected, _ = module(x)
    with torch.autocast("cpu", torch.bfloat16):
        for given in (x, x.bfloat16()):
            y, final = module(given)
            keeps = given.dtype if name == "GRU" else torch.bfloat16  # as torch.nn's: see below
            assert {states(final)[0].dtype} == {y.dtype} == {keeps}
            torch.testing.assert_close(y.float(), expected, rtol=0, atol=0.03)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.covering(1)
@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", [*MODULES, "LSTM proj"])
def test_autocast_gives_the_dtypes_of_torch(name, lower):
    kind, sizes = name.split()[0], {"proj_size": 2} if name.endswith("proj") else {}
    module, theirs = MODULES[kind](2, 4, **sizes), getattr(torch.nn, kind)(2, 4, **sizes)
    theirs.load_state_dict(module.state_dict())
    compared, fused = 0, torch.ops.mkldnn._is_mkldnn_bf16_supported()
    for given, state, packed in itertools.product(
        (torch.float32, lower), (None, torch.float32, lower), (0, 1)
    ):
        if name == "LSTM" and lower == torch.bfloat16 and not packed and not fused:
            continue  # torch has its own dtypes there, where it does not fail: ours are the same on every CPU
        x = torch.randn(3, 2, 2).to(given)
        hx = None if state is None else torch.zeros(1, 2, sizes.get("proj_size", 4), dtype=state)
        hx = (hx, torch.zeros(1, 2, 4, dtype=state)) if kind == "LSTM" and hx is not None else hx
        with torch.autocast("cpu", lower), torch.set_grad_enabled(given == torch.float32):
            rows = torch.nn.utils.rnn.pack_padded_sequence(x, [3, 2]) if packed else x
            y, final = module(rows, hx)
            try:
                expected, expected_final = theirs(rows, hx)
            except RuntimeError:  # it has no kernel for float16, or for this CPU
                continue
        assert [y.data.dtype, *(s.dtype for s in states(final))] == [
            expected.data.dtype,
            *(s.dtype for s in states(expected_final)),
        ], (given, state, packed)
        torch.testing.assert_close(y.data.float(), expected.data.float(), rtol=0, atol=0.03)
        compared += 1
    assert compared


def test_autocast_leaves_doubles_as_they_are():
    module = ours.LSTM(2, 4, dtype=torch.float64)
    x = torch.randn(3, 2, 2, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        y, final = module(x)
    assert {y.dtype, *(s.dtype for s in states(final))} == {torch.float64}
    torch.testing.assert_close(y, module(x)[0], rtol=0, atol=0)


# --- errors


GRU, LSTM, BOTH = ours.GRU(2, 3), ours.LSTM(2, 3, proj_size=1), ours.GRU(2, 3, 2, bidirectional=True)
X = torch.zeros(4, 5, 2)
ERRORS = {
    "features": (lambda: GRU(torch.zeros(4, 5, 7)), r"7 features.*\n.*input_size=2\n.*input_size=7"),
    "features unbatched": (lambda: GRU(torch.zeros(4, 7)), "expected: input_size=2"),
    "features lod": (lambda: GRU(LoDTensor.from_lengths(torch.zeros(3, 7), [[3]])), "expected: input_size=2"),
    "4-D": (lambda: GRU(torch.zeros(1, 2, 3, 2)), r"GRU cannot run.*\n.*4-D tensor \[1, 2, 3, 2\]"),
    "1-D": (lambda: GRU(torch.zeros(2)), r"1-D tensor.*\n.*\[time, batch, features\], \[time, features\]"),
    "4-D batch first": (
        lambda: ours.GRU(2, 3, batch_first=True)(torch.zeros(2)),
        r"\[batch, time, features\]",
    ),
    "rows of a lod": (
        lambda: GRU(LoDTensor.from_lengths(torch.zeros(3, 2, 2), [[3]])),
        r"rows \[3, 2, 2\]",
    ),
    "no tensor": (lambda: GRU([[1.0, 2.0]]), "got:      list"),
    "dtype": (lambda: GRU(X.double()), r"GRU cannot mix dtypes: input\n.*float64\n.*float32"),
    "h of the batch": (
        lambda: GRU(X, torch.zeros(1, 4, 3)),
        r"GRU 'hx' has a wrong h_0\n.*\[1, 4, 3\]\n.*\[1, 5, 3\]",
    ),
    "h of the layers": (lambda: BOTH(X, torch.zeros(2, 5, 3)), r"expected: \[4, 5, 3\]"),
    "h unbatched": (lambda: GRU(X[:, 0], torch.zeros(1, 1, 3)), r"expected: \[1, 3\]"),
    "h batched": (lambda: GRU(X, torch.zeros(1, 3)), r"expected: \[1, 5, 3\]"),
    "h dtype": (lambda: GRU(X, torch.zeros(1, 5, 3).double()), "cannot mix dtypes: h_0"),
    "h no tensor": (lambda: GRU(X, 0), "'hx' has a wrong h_0\n.*int"),
    "h of proj": (lambda: LSTM(X, (torch.zeros(1, 5, 3),) * 2), r"wrong h_0\n.*\n.*\[1, 5, 1\]"),
    "c": (lambda: LSTM(X, (torch.zeros(1, 5, 1),) * 2), r"wrong c_0\n.*\n.*\[1, 5, 3\]"),
    "no pair": (lambda: LSTM(X, torch.zeros(1, 5, 1)), r"must be the pair \(h_0, c_0\)\n.*a Tensor"),
    "three": (lambda: LSTM(X, (X, X, X)), r"must be the pair \(h_0, c_0\)\n.*a tuple of 3"),
    "h of a lod": (
        lambda: GRU(LoDTensor.from_lengths(torch.zeros(3, 2), [[1, 2]]), torch.zeros(1, 3, 3)),
        r"expected: \[1, 2, 3\]",
    ),
    "input_size": (lambda: ours.LSTM(0, 3), "LSTM 'input_size' must be a positive whole number"),
    "hidden_size": (lambda: ours.GRU(2, 2.5), "GRU 'hidden_size' must be a positive whole number"),
    "num_layers": (lambda: ours.RNN(2, 3, 0), "RNN 'num_layers' must be a positive whole number"),
    "proj_size": (lambda: ours.LSTM(2, 3, proj_size=3), r"'proj_size' must be smaller.*\n.*3\n.*0 to 2"),
    "dropout": (lambda: ours.LSTM(2, 3, 2, dropout=2), "LSTM 'dropout' must be a probability"),
    "nested": (
        lambda: ours.GRU(2, 3)(torch.nested.nested_tensor([torch.ones(1, 2)], layout=torch.jagged)),
        r"over a NestedTensor\n.*LoDTensor\.from_nested",
    ),
    "order": (lambda: ours.GRU(2, 3, 2, 0.5), "GRU 'bias' must be True or False\n.*0.5"),
    "nonlinearity": (lambda: ours.RNN(2, 3, nonlinearity="sine"), "'tanh', 'relu'"),
}


@pytest.mark.parametrize(("call", "text"), ERRORS.values(), ids=ERRORS)
def test_errors(call, text):
    with pytest.raises(StepError, match=text):
        call()


@pytest.mark.parametrize("module", [ours.GRU, ours.RNN])
def test_only_lstm_projects(module):
    with pytest.raises(TypeError, match="proj_size"):
        module(2, 3, proj_size=1)


@pytest.mark.skipif(CAN_CAPTURE, reason="tests/graph shows it in one graph")
@pytest.mark.parametrize("given", [False, True], ids=["from zeros", "from hx"])
@pytest.mark.parametrize("name", MODULES)
def test_compiled_around_by_older_torch(name, given):
    torch._dynamo.reset()
    module, x, h = MODULES[name](2, 3), torch.randn(4, 2, 2), torch.randn(1, 2, 3)
    hx = ((h, h) if name == "LSTM" else h) if given else None
    torch.testing.assert_close(torch.compile(module, backend="eager")(x, hx), module(x, hx))
