"""Functions of torch and stepnet that somebody replaces are what a step calls from then on, under their own
layers, too."""

from __future__ import annotations

import copy
import math
import sys
import types
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import linear as linear_layer
from torch.nn.utils import prune

from covering import few
from key_changes import changes_are_seen
from stepnet import cells, recurrent
from stepnet.compiler.reads.monkeypatches import patched
from stepnet.compiler.reads.reach import reach
from stepnet.compiler.reads.unchanged import tells, words
from stepnet.data import sequence
from stepnet.data.offsets import LoD
from stepnet.errors import Unsupported
from stepnet.executors.c.memory import unchanged
from stepnet.executors.layout import Layout, _ragged

BACKEND = "eager"  # another plan is made, whoever runs it
D = torch.float64
SCALE = [0.5]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.act = nn.Linear(3, 3, dtype=D), nn.Tanh()

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.act(self.into(x) + h)
        return h, h


class Functions(nn.Module):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = F.softmax(torch.einsum("bi,bi->bi", x, h), -1)
        return h, h


class Deep(nn.Module):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        near = torch.distributions.Normal(h, 1.0).log_prob(x)
        h = torch.tanh(near / near.norm(dim=-1, keepdim=True))
        return h, h


norm, near = torch.linalg.vector_norm, torch.distributions.Normal.log_prob
linear, tanh, add, cell = F.linear, torch.tanh, Tensor.__add__, torch.gru_cell
rnn = sys.modules["stepnet.cells.rnn"]
einsum = vars(torch.functional)["_VF"].einsum


def scaled(made: Tensor) -> Tensor:
    return made * SCALE[0] if made.is_floating_point() else made


PATCHES = {
    "a function of layers": (Layers, F, "linear", lambda *a: linear(*a) * SCALE[0]),
    "a function of torch": (Layers, torch, "tanh", lambda x: tanh(x) * SCALE[0]),
    "an operator": (Layers, Tensor, "__add__", lambda a, b: scaled(add(a, b))),
    "what a layer calls it by": (
        Layers,
        linear_layer,
        "F",
        types.SimpleNamespace(linear=lambda *a: linear(*a) * SCALE[0]),
    ),
    "what a function calls it by": (
        Functions,
        torch.functional,
        "_VF",
        types.SimpleNamespace(einsum=lambda *a: einsum(*a) * SCALE[0]),
    ),
    "what a function of tensors ends in": (
        Deep,
        torch.linalg,
        "vector_norm",
        lambda *a, **how: norm(*a, **how) * SCALE[0],
    ),
    "a method of a class in a module": (
        Deep,
        torch.distributions.Normal,
        "log_prob",
        lambda *a: near(*a) + SCALE[0],
    ),
    "a global of such a method": (
        Deep,
        torch.distributions.normal,
        "math",
        types.SimpleNamespace(log=lambda _: SCALE[0], sqrt=math.sqrt, pi=math.pi),
    ),
    "a method that a class inherits": (
        Layers,
        nn.Linear,
        "__call__",
        lambda self, x: linear(x, self.weight) * SCALE[0],
    ),
    "a function of a cell of ours": (
        lambda: cells.RNN(3, 3, dtype=D),
        rnn,
        "seen",
        lambda h, _: h * SCALE[0],
    ),
    "a cell": (lambda: nn.GRUCell(3, 3, dtype=D), torch._VF, "gru_cell", lambda *a: cell(*a) * SCALE[0]),
}


@pytest.mark.parametrize("kind", few(PATCHES, [*PATCHES][::5]))
@pytest.mark.filterwarnings("ignore:step")
@torch.no_grad()
def test_another_function(kind):
    make, owner, name, other = PATCHES[kind]
    step = make()
    x = torch.randn(3, 2, 3, dtype=D)
    h = torch.randn(2, 3, dtype=D)
    key = reach(step).key

    def same() -> Tensor:
        found = [recurrent(step, x, h)[0] for _ in range(4)][-1]
        torch.testing.assert_close(found, recurrent(step, x, h, backend="naive")[0])
        return found

    first = same()
    with mock.patch.object(owner, name, other):
        second = same()
        SCALE[0] = 0.25
        third = same()
        SCALE[0] = 0.5
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert torch.equal(same(), first)
    assert reach(step).key == key
    assert patched() == ()


def _doubled(input, alpha=1.0, inplace=False):
    return input * 2 * alpha


def _named(input, *, alpha=3.0, inplace=False):
    return input * alpha


PARTS = {
    "defaults": (F.elu, {"__defaults__": (3.0, False)}),
    "code": (F.elu, {"__code__": _doubled.__code__}),
    "names": (F.elu, {"__code__": _named.__code__, "__kwdefaults__": _named.__kwdefaults__}),
    "defaults of a method": (Tensor.norm, {"__defaults__": (1.0, None, False, None)}),
    "code of a layer": (nn.Linear.forward, {"__code__": (lambda self, input: input * 2).__code__}),
}


class Python(Layers):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = F.elu(self.into(x) + h) / h.norm(dim=-1, keepdim=True)
        return h, h


@pytest.mark.parametrize("part", PARTS)
def test_code_and_defaults_of_a_function_of_torch(part):
    (function, parts), step = PARTS[part], Python()
    key = reach(step).key
    assert patched() == ()
    first = {name: getattr(function, name) for name in parts}
    try:
        for name, value in parts.items():
            setattr(function, name, value)
        assert [patch.held for patch in patched()] == [function]
        assert reach(step).key != key
    finally:
        for name, value in first.items():
            setattr(function, name, value)
    assert reach(step).key == key
    assert patched() == ()


@pytest.mark.exhaustive
@torch.no_grad()
def test_results_by_other_defaults():
    step, x, h = Python(), torch.randn(3, 2, 3, dtype=D), torch.ones(2, 3, dtype=D)
    for defaults in ((1.0, False), (3.0, False), (5.0, False), (1.0, False)):
        with mock.patch.object(F.elu, "__defaults__", defaults):
            for _ in range(3):
                torch.testing.assert_close(
                    recurrent(step, x, h)[0], recurrent(step, x, h, backend="naive")[0]
                )


class Deeper(Deep):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 1)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(self.conv(x[:, None])[:, 0], h)


def _plain(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return F.softmax(x, -1), h


def _called(self, *args, **kwargs):
    return args


def _convolved(self, input, weight, bias):
    return input


def _normed(self, weight_g, weight_v):
    return weight_v


SET = {
    "code of a method": (near, "__code__", (lambda self, value: value * self.scale).__code__),
    "defaults of a method": (torch.distributions.Normal.__init__, "__defaults__", (False,)),
    "code of a property": (
        torch.distributions.Normal.mean.fget,  # pyright: ignore[reportAttributeAccessIssue]
        "__code__",
        (lambda self: self.loc * 2).__code__,
    ),
    "code that calls layers": (nn.Module._call_impl, "__code__", _called.__code__),
    "code within a layer": (nn.Conv1d._conv_forward, "__code__", _convolved.__code__),
    "code of a parametrization": (
        nn.utils.parametrizations._WeightNorm.forward,  # pyright: ignore[reportPrivateUsage]
        "__code__",
        _normed.__code__,
    ),
}


@pytest.mark.parametrize("part", SET)
def test_code_and_defaults_of_what_a_step_comes_by(part, monkeypatch):
    """They are looked at for steps that come by torch.distributions or a layer, in words of memory, too."""
    (function, name, other), step = SET[part], Deeper()
    told, others = words(reach(step)), reach(_plain).key
    assert (told is not None) == tells()
    ask = told and unchanged(told.checks, told.tensors)
    assert ask is None or ask() is not None
    if part == "code of a parametrization":  # of which no words tell
        nn.utils.parametrizations.weight_norm(step.conv)
    key = reach(step).key
    monkeypatch.setattr(function, name, other)
    assert reach(step).key != key
    assert reach(_plain).key == others
    assert ask is None or ask() is None
    monkeypatch.undo()
    assert reach(step).key == key


@torch.no_grad()
def test_results_by_other_code_of_a_distribution(monkeypatch):
    step, x, h = Deep(), torch.randn(3, 2, 3, dtype=D), torch.ones(2, 3, dtype=D)
    for code in (near.__code__, (lambda self, value: value * self.loc).__code__, near.__code__):
        monkeypatch.setattr(near, "__code__", code)
        for _ in range(3):
            torch.testing.assert_close(recurrent(step, x, h)[0], recurrent(step, x, h, backend="naive")[0])


def _gained(nonlinearity, param=None):
    return 7.0


def _mapped(func, in_dims=0, out_dims=0, randomness="error", *, chunk_size=None):
    return lambda x: func(x) * 0.5


def _masked(self, module):
    return module.weight_orig * 0.5


def gained(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return x * nn.init.calculate_gain("leaky_relu"), h


def mapped(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return torch.func.vmap(torch.tanh)(x), h


def pooled(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return F.max_pool1d(x[:, None], 1)[:, 0], h


def reflected(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return 1 - x, h


def pruned() -> Any:
    layer = nn.Linear(3, 3, dtype=D)
    prune.l1_unstructured(layer, "weight", amount=2)
    return lambda x, h: (layer(x), h)


def _cell(function: Any, name: str) -> Any:
    return dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))[name]


_MAPS = torch.func.vmap
_SET_BY_NAME = {
    "code of a function": (lambda: gained, nn.init.calculate_gain, "__code__", _gained.__code__),
    "defaults of a function": (lambda: gained, nn.init.calculate_gain, "__defaults__", (3.0,)),
    "what is a default, and the user's": (lambda: gained, nn.init.calculate_gain, "__defaults__", (SCALE,)),
    "code of a transform": (lambda: mapped, _MAPS, "__code__", _mapped.__code__),
    "named defaults of a transform": (lambda: mapped, _MAPS, "__kwdefaults__", {"chunk_size": 1}),
    "what a closure holds": (lambda: pooled, _cell(F.max_pool1d, "if_false"), "cell_contents", torch.relu),
    "code in a decorator": (
        lambda: reflected,
        _cell(Tensor.__rsub__, "f").cell_contents,
        "__code__",
        (lambda self, other: self).__code__,
    ),
    "code of a class imported late": (
        pruned,
        prune.BasePruningMethod.apply_mask,
        "__code__",
        _masked.__code__,
    ),
}


@pytest.mark.parametrize("part", _SET_BY_NAME)
def test_parts_of_functions_that_a_step_names_or_comes_by(part, monkeypatch):
    """Those of any of torch's modules; what is the user's in them is walked from then on."""
    make, owner, name, other = _SET_BY_NAME[part]
    step = make()
    key = reach(step).key
    assert reach(step).key == key
    changes_are_seen(step, lambda: monkeypatch.setattr(owner, name, other))
    if part == "what is a default, and the user's":
        before, SCALE[0] = reach(step).key, 0.25
        after, SCALE[0] = reach(step).key, 0.5
        assert after != before
    monkeypatch.undo()
    assert reach(step).key == key


_softmax, _einsum, _norm = F.softmax, torch.einsum, Tensor.norm
_ASKED_BY_NAME = {
    "a function of layers": (F, "softmax", lambda *a, **how: _softmax(*a, **how) * 0.5),
    "a function of torch": (torch.functional, "einsum", lambda *a: _einsum(*a) * 0.5),
    "a method of tensors": (Tensor, "norm", lambda *a, **how: _norm(*a, **how) * 0.5),
    "a function that is called by another name": (torch.functional, "norm", lambda *a, **how: 5.0),
}


class Dispatching(nn.Module):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        sizes = x.norm(dim=-1, keepdim=True) + torch.norm(h, dim=-1, keepdim=True)
        h = F.softmax(torch.einsum("bi,bi->bi", x, h) / sizes, -1)
        return h, h


@pytest.mark.parametrize("kind", _ASKED_BY_NAME)
@pytest.mark.filterwarnings("ignore:step")
@torch.no_grad()
def test_functions_of_torch_whose_name_stands_for_another(kind):
    """Under a mode, as it is tried, a function of torch's asks for itself by its name."""
    step, x, h = Dispatching(), torch.randn(3, 2, 3, dtype=D), torch.randn(2, 3, dtype=D)
    with mock.patch.object(*_ASKED_BY_NAME[kind]):
        with pytest.raises(Unsupported, match="in the place of which somebody put another"):
            recurrent(step, x, h, backend=BACKEND)
        for _ in range(2):
            found = recurrent(step, x, h, backend="auto")[0]
            torch.testing.assert_close(found, recurrent(step, x, h, backend="naive")[0])


class Seeded(Layers):
    """Its noise is made with it: no step sets a seed."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = torch.Generator().manual_seed(7)


def test_a_function_beneath_those_of_sequences():
    key = reach(Layers()).key
    with mock.patch.object(sequence, "_sums", math.prod):
        assert [name for name, *_ in patched()] == ["stepnet.data.sequence._sums"]
        assert reach(Layers()).key != key
    assert reach(Layers()).key == key


def test_a_cache_that_torch_begins_anew_is_nothing_replaced():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    for _ in range(2):
        with nn.utils.parametrize.cached():
            assert patched() == ()  # whether it is on a walk takes of parametrized modules
            layer(torch.ones(1, 2))
        assert patched() == ()


@pytest.mark.parametrize("name", ["compile", "load", "save"])
def test_what_computes_nothing_may_be_replaced(name):
    """Lightning's `torch.compile` notes how it was called, by copies of that."""
    original = getattr(torch, name)

    def noted(*args: Any, **how: Any) -> Any:
        return original(*copy.deepcopy(args), **how)

    with mock.patch.object(torch, name, noted):
        assert patched() == ()
        assert reach(Layers()).refused is None


def test_how_torch_traces_is_nothing_replaced():
    class Traced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            if nn.Module.__call__ is not call:
                found.append(patched())
            return self.layer(x)

    found: list[Any] = []
    call = nn.Module.__call__
    torch.fx.symbolic_trace(Traced())
    torch.export.export(Traced(), (torch.ones(1, 2),))
    assert found
    assert set(found) == {()}


@pytest.mark.parametrize("held", [{"a": 1}, types.SimpleNamespace(), torch.nn.Parameter(torch.ones(2))])
def test_how_a_step_was_made_is_no_matter_of_what_was_replaced(held):
    """Torch's code that finds `collections` makes objects: of torch's classes, not of the step's."""
    with mock.patch.object(nn.utils.parametrize, "collections", held):
        assert len(patched()) == 1
        assert reach(Seeded()).refused is None


@pytest.mark.parametrize("backend", ["auto", "c"])
@pytest.mark.filterwarnings("ignore:Warning only once", "ignore:step")
def test_a_kernel_of_an_operator(backend: Any):
    """No Python shows it, and generated C would not compute by it."""
    layers, x, h = Layers(), torch.randn(3, 2, 3, dtype=D), torch.randn(2, 3, dtype=D)

    def run(backend: Any) -> Tensor:
        return [recurrent(layers, x, h, backend=backend)[0] for _ in range(4)][-1]

    first, library = run(backend), torch.library.Library("aten", "IMPL")
    library.impl("tanh", lambda x: x / 2, "CPU")
    try:
        plain = run("naive")
        assert not torch.allclose(first, plain)
        if backend == "auto":
            torch.testing.assert_close(run(backend), plain)
        else:
            with pytest.raises(Unsupported, match="aten/tanh/CPU"):
                run(backend)
    finally:
        library._destroy()
    assert patched() == ()
    assert torch.equal(run(backend), first)


OPERATORS = [
    "__sub__",
    "__add__",
    "__mul__",
    "__getitem__",
    "cumsum",
    "clamp",
    "diff",
    "argsort",
    "flatten",
    "sum",
]


@pytest.mark.parametrize("name", OPERATORS)
def test_where_rows_stand_is_not_computed_by_replaced_operators(name):
    """Generated code writes there, and it is kept for all runs over such lengths, as offsets are."""

    def places() -> list[Any]:
        layout = Layout.of(lod, True)
        own = [
            layout.starts,
            layout.backward.starts,
            layout.order,
            layout.rank,
            layout.packed,
            layout.unpacked,
        ]
        own += [layout.sequence_of, *layout.begins, layout.last, layout.dealt(2), layout.times(2).starts]
        nested = LoD.from_lengths([[2, 0, 1], [2, 0, 5]])
        own += [nested.owner(), *nested.levels, *nested.span(0, 2)[0], lod.lengths()]
        own += [nested.take(torch.tensor([2, 0]))[1], *nested.take(torch.tensor([2, 0]))[0].levels]
        return [*(t.tolist() for t in own), layout.steps, layout.active, layout.is_packed, layout.ends]

    original = getattr(Tensor, name)
    lod = LoD([[0, 2, 2, 7, 8, 11]])
    _ragged.cache_clear()
    expected = places()
    _ragged.cache_clear()
    with mock.patch.object(Tensor, name, lambda *args, **kwargs: original(*args, **kwargs).add(1)):
        found = places()
    assert found == expected == places()


def test_offsets_are_made_by_what_was_imported():
    with mock.patch.object(torch, "from_numpy", lambda array: torch.zeros(len(array), dtype=torch.int64)):
        nested = LoD.from_lengths([[2, 1], [2, 0, 5]])
        made = [*nested.levels, nested.lengths(), nested.owner()]
    assert [t.tolist() for t in made] == [[0, 2, 3], [0, 2, 2, 7], [2, 0, 5], [0, 0, 2, 2, 2, 2, 2]]
