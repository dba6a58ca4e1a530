"""stepnet.nn against torch.nn with the same weights, in float64: outputs, final states, every gradient."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import outcomes
from covering import every, few
from stepnet import nn as ours
from stepnet import set_backend
from stepnet.data.lod import LoDTensor

FEATURES, HIDDEN = 2, 3
DTYPE = torch.float64
CLOSE = {"rtol": 0, "atol": 1e-10}
KINDS = {
    "LSTM": (ours.LSTM, nn.LSTM, {}),
    "LSTM proj": (ours.LSTM, nn.LSTM, {"proj_size": 2}),
    "GRU": (ours.GRU, nn.GRU, {}),
    "RNN tanh": (ours.RNN, nn.RNN, {}),
    "RNN relu": (ours.RNN, nn.RNN, {"nonlinearity": "relu"}),
}
STACKS = {
    f"{layers} layer{'s' * (layers > 1)}{', both ways' * both}{', no bias' * (not bias)}": {
        "num_layers": layers,
        "bidirectional": both,
        "bias": bias,
    }
    for layers, both, bias in itertools.product((1, 2), (False, True), (True, False))
}
GIVEN = ["no hx", "hx with grad", "hx without grad"]
LAYOUTS = ["time first", "batch first", "unbatched"]


def cases(*names):
    """Every kind with every stack (and layout); each kind, each stack and each layout meets every way to
    give hx."""
    grid = itertools.product(enumerate(KINDS), enumerate(STACKS), *(enumerate(n) for n in names))
    found = []
    for choice in grid:
        given = GIVEN[sum(at for at, _ in choice) % len(GIVEN)]
        kind, stack, *rest = (name for _, name in choice)
        found.append(
            pytest.param(kind, STACKS[stack], *rest, given, id="-".join((kind, stack, *rest, given)))
        )
    return found


def pair(kind, **options):
    """One module of each library with the same weights, loaded from ours into theirs."""
    our_class, their_class, more = KINDS[kind]
    module = our_class(FEATURES, HIDDEN, **options, **more, dtype=DTYPE)
    peer = their_class(FEATURES, HIDDEN, **options, **more, dtype=DTYPE)
    peer.load_state_dict(module.state_dict(), strict=True)
    return module, peer


def some_hx(module, n, given):
    """hx as the module takes it; n None for a sequence without a batch dimension."""
    if given == "no hx":
        return None
    count = module.num_layers * (2 if module.bidirectional else 1)
    batch = () if n is None else (n,)
    h = torch.randn(count, *batch, getattr(module, "proj_size", 0) or HIDDEN, dtype=DTYPE)
    c = torch.randn(count, *batch, HIDDEN, dtype=DTYPE)
    h, c = (v.requires_grad_(given == "hx with grad") for v in (h, c))
    return (h, c) if isinstance(module, ours.LSTM) else h


def leaves(tree):
    return list(tree) if isinstance(tree, (tuple, list)) and not isinstance(tree, PackedSequence) else [tree]


def check_same(found, expected):
    """Outputs and gradients, each a list of tensors."""
    assert [v.shape for v in found] == [v.shape for v in expected]
    torch.testing.assert_close(found, expected, **CLOSE)


def gradients(outputs, x, hx, module):
    states = [] if hx is None else [v for v in leaves(hx) if v.requires_grad]
    return outcomes.gradients(outputs, [x, *states, *module.parameters()])


@pytest.mark.covering(2)
@pytest.mark.parametrize(("kind", "stack", "layout", "given"), cases(LAYOUTS))
def test_dense(kind, stack, layout, given):
    module, peer = pair(kind, **stack, batch_first=layout == "batch first")
    shape = {"time first": (4, 2), "batch first": (2, 4), "unbatched": (4,)}[layout]
    x = torch.randn(*shape, FEATURES, dtype=DTYPE, requires_grad=True)
    hx = some_hx(module, None if layout == "unbatched" else 2, given)
    y, final = module(x, hx)
    y_peer, final_peer = peer(x, hx)
    found, expected = [y, *leaves(final)], [y_peer, *leaves(final_peer)]
    assert isinstance(final, tuple) == isinstance(final_peer, tuple)
    check_same(found, expected)
    check_same(gradients(found, x, hx, module), gradients(expected, x, hx, peer))


@pytest.mark.parametrize(("kind", "stack", "given"), every(4, cases()))
def test_packed_unsorted(kind, stack, given):
    module, peer = pair(kind, **stack)
    lengths = [2, 4, 1, 2]
    rows = torch.randn(sum(lengths), FEATURES, dtype=DTYPE, requires_grad=True)
    hx = some_hx(module, len(lengths), given)
    y, final = module(pack_sequence(rows.split(lengths), enforce_sorted=False), hx)
    y_peer, final_peer = peer(pack_sequence(rows.split(lengths), enforce_sorted=False), hx)
    assert isinstance(y, PackedSequence)
    assert torch.equal(y.batch_sizes, y_peer.batch_sizes)
    assert torch.equal(y.sorted_indices, y_peer.sorted_indices)
    assert torch.equal(y.unsorted_indices, y_peer.unsorted_indices)
    found, expected = [y.data, *leaves(final)], [y_peer.data, *leaves(final_peer)]
    check_same(found, expected)
    check_same(gradients(found, rows, hx, module), gradients(expected, rows, hx, peer))


@pytest.mark.parametrize("kind", few(KINDS, ["LSTM proj"]))
def test_compiled(kind):
    set_backend("auto")
    module, peer = pair(kind, num_layers=2, bidirectional=True)
    for form, lengths in (("dense", [3, 3]), ("packed", [2, 4, 1, 2])):
        rows = torch.randn(sum(lengths), FEATURES, dtype=DTYPE, requires_grad=True)
        hx = some_hx(module, len(lengths), "hx with grad")
        results = []
        for run in (module, peer):
            packed = pack_sequence(rows.split(lengths), enforce_sorted=False)
            y, final = run(packed if form == "packed" else rows.reshape(3, 2, FEATURES), hx)
            outputs = [y.data, *leaves(final)]
            results.append([*outputs, *gradients(outputs, rows, hx, run)])
        check_same(*results)


@pytest.mark.parametrize("lengths", [[4, 2, 2, 1], [3], [1, 1]], ids=str)
def test_packed_sorted(lengths):
    module, peer = pair("GRU", num_layers=2)
    packed = pack_sequence([torch.randn(n, FEATURES, dtype=DTYPE) for n in lengths])
    assert packed.sorted_indices is None
    hx = some_hx(module, len(lengths), "hx without grad")
    (y, h), (y_peer, h_peer) = module(packed, hx), peer(packed, hx)
    assert y.sorted_indices is None
    check_same([y.data, h], [y_peer.data, h_peer])


def test_packed_with_equal_lengths_in_any_order():
    """torch's own sort need not be stable: places of rows are those of the input, whatever sorted it."""
    module, peer = pair("RNN tanh")
    rows = torch.randn(3, 4, FEATURES, dtype=DTYPE)  # 3 steps of 4 sequences
    order = torch.tensor([2, 0, 3, 1])
    packed = PackedSequence(rows.flatten(0, 1), torch.tensor([4, 4, 4]), order, None)
    (y, h), (y_peer, h_peer) = module(packed), peer(packed)
    check_same([y.data, h], [y_peer.data, h_peer])


@pytest.mark.parametrize(("kind", "stack", "given"), every(4, cases()))
def test_lod_equals_torch_on_each_sequence(kind, stack, given):
    module, peer = pair(kind, **stack)
    lengths = [2, 0, 3, 1]
    x = torch.randn(sum(lengths), FEATURES, dtype=DTYPE, requires_grad=True)
    hx = some_hx(module, len(lengths), given)
    y, final = module(LoDTensor.from_lengths(x, [lengths]), hx)
    assert y.lengths().tolist() == lengths

    rows, states = [], []
    for b, sequence in enumerate(x.split(lengths)):
        one = None if hx is None else [v[:, b] for v in leaves(hx)]
        one = tuple(one) if isinstance(hx, tuple) else one and one[0]
        if not len(sequence):  # torch.nn refuses it: no row, and the state as it came
            stays = leaves(one) if one is not None else [torch.zeros_like(v[:, b]) for v in leaves(final)]
            states.append(stays)
            continue
        out, last = peer(sequence, one)
        rows.append(out)
        states.append(leaves(last))
    expected = [torch.cat(rows), *(torch.stack(leaf, 1) for leaf in zip(*states, strict=True))]
    found = [y.values, *leaves(final)]
    check_same(found, expected)
    check_same(gradients(found, x, hx, module), gradients(expected, x, hx, peer))


@pytest.mark.parametrize("both", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN tanh"])
def test_initialisation_is_torchs(kind, both):
    our_class, their_class, _ = KINDS[kind]
    torch.manual_seed(7)
    peer = their_class(FEATURES, HIDDEN, 2, bidirectional=both)
    torch.manual_seed(7)
    module = our_class(FEATURES, HIDDEN, 2, bidirectional=both)
    assert list(module.state_dict()) == list(peer.state_dict())
    for key, values in peer.state_dict().items():
        assert torch.equal(module.state_dict()[key], values), key
    assert [[w.shape for w in ws] for ws in module.all_weights] == [
        [w.shape for w in ws] for ws in peer.all_weights
    ]


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_loads_from_torch(kind, stack):
    module, peer = pair(kind, **stack)
    peer.reset_parameters()
    module.load_state_dict(peer.state_dict(), strict=True)
    x = torch.randn(3, 2, FEATURES, dtype=DTYPE)
    torch.testing.assert_close(module(x)[0], peer(x)[0], **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_repr_says_what_torchs_says(kind):
    module, _ = pair(kind, num_layers=2, bias=False, batch_first=True, dropout=0.5, bidirectional=True)
    for part in (
        "2, 3",
        "num_layers=2",
        "bias=False",
        "batch_first=True",
        "dropout=0.5",
        "bidirectional=True",
    ):
        assert part in repr(module)


def test_hx_may_be_a_list():
    module, peer = pair("LSTM")
    x, hx = torch.randn(3, 2, FEATURES, dtype=DTYPE), torch.randn(2, 1, 2, HIDDEN, dtype=DTYPE)
    torch.testing.assert_close(module(x, list(hx))[0], peer(x, tuple(hx))[0], **CLOSE)
