"""`recurrent` and `Recurrent` as a caller meets them: what goes in, what comes out, what errors say."""

from __future__ import annotations

import pickle
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import stepnet
from stepnet import LoDTensor, Recurrent, recurrent
from stepnet.errors import LoDError, SlowPathWarning, StepError

BACKENDS = ["eager", "naive"]  # C is tested by every cell and every odd step
I = 3
X, H = torch.ones(4, 2, I), torch.zeros(2, I)
RAGGED = LoDTensor.from_lengths(torch.arange(18.0).view(6, I), [[4, 2]])
OTHER = LoDTensor.from_lengths(torch.ones(6, I), [[2, 4]])


def total(x, h):
    h = h + x
    return h, h


def named_pair(x, s):
    return x[0] + x[1] + s, s


MISTAKES = {
    "x of numbers": (
        lambda: recurrent(total, [1, 2], H),
        "must be tensors, LoDTensors or PackedSequences",
        "int",
    ),
    "x an array": (lambda: recurrent(total, X.numpy(), H), "must be tensors", "ndarray"),
    "no x": (lambda: recurrent(total, None, H), "x holds no tensor", "remedy"),
    "an empty x": (lambda: recurrent(total, (), H), "x holds no tensor", "remedy"),
    "no step": (lambda: recurrent(3, X, H), "a step must be callable", "int"),
    "a class": (lambda: recurrent(nn.GRUCell, X, H), "a step must be callable", r"the class GRUCell"),
    "no state": (lambda: recurrent(total, X), "step 'total' has no initial state", "pass state="),
    "a module of whole sequences": (lambda: recurrent(nn.LSTM(3, 4), X), "'LSTM' is no step", "LSTMCell"),
    "a list of sequences": (
        lambda: recurrent(nn.GRUCell(3, 4), [X[:, 0], X[:2, 0]]),
        "x has no dimension of features",
        "LoDTensor.from_sequences",
    ),
    "a state of text": (
        lambda: recurrent(total, X, "a"),
        "initial state of step 'total' must be a tensor",
        "str",
    ),
    "states in an object of another class": (
        lambda: recurrent(total, X, UserDict(h=H)),
        "initial state of step 'total' must be a tensor",
        r"UserDict[\s\S]*several are a tuple, list, dict, NamedTuple or dataclass",
    ),
    "x in one": (
        lambda: recurrent(total, UserDict(x=X), H),
        "x must be tensors",
        r"UserDict[\s\S]*several are a tuple, list, dict, NamedTuple or dataclass",
    ),
    "a ragged state": (lambda: recurrent(total, RAGGED, RAGGED), "must be a tensor", "LoDTensor"),
    "a state of other rows": (
        lambda: recurrent(total, RAGGED, (torch.zeros(3, I),)),
        r"initial state\[0\] of step 'total'",
        "2 rows",
    ),
    "a state without rows": (
        lambda: recurrent(total, RAGGED, H.sum()),
        "one row per sequence",
        r"float32\[\]",
    ),
    "a state of other features": (
        lambda: recurrent(total, X, torch.zeros(2, 4)),
        "step 'total' failed at step 0",
        r"state float32\[2, 4\]",
    ),
    "batch first without axis": (
        lambda: recurrent(total, X.transpose(0, 1), H),
        "step 'total' failed at step 0",
        "the other way with axis=1",
    ),
    "a list of one state": (
        lambda: recurrent(total, RAGGED, [H]),
        r"step 'total' failed at step 0: can only concatenate list",
        "nested as they were given",
    ),
    "x without features": (
        lambda: recurrent(lambda x, h: (torch.cat([x, h], 1), h), X[:, :, 0], H),
        "step '<lambda>' failed at step 0: Dimension out of range",
        "x float32",
    ),
    "a dimension that is not there": (
        lambda: recurrent(lambda x, h: (x.sum(3), h), X, H),
        "step '<lambda>' failed at step 0: Dimension out of range",
        "x float32",
    ),
    "one state of two": (
        lambda: recurrent(nn.LSTMCell(I, 4), X, torch.zeros(2, 4)),
        "initial state of step 'LSTMCell' is nested in another way",
        r"expected: \(\*, \*\)",
    ),
    "another dtype": (
        lambda: recurrent(nn.RNNCell(I, I), X.double()),
        "step 'RNNCell' failed at step 0",
        r"float64[\s\S]*weights one dtype",
    ),
    "no such axis": (lambda: recurrent(total, X, H, axis=5), "no dimension 5", r"\[4, 2, 3\]"),
    "no such level": (
        lambda: recurrent(total, RAGGED, H, level=3),
        "recurrent: 'level': no such level",
        "3",
    ),
    "no such backend": (
        lambda: recurrent(total, X, H, backend="cuda"),
        "no such backend",
        "auto, c, eager, naive",
    ),
    "no such backend for all": (lambda: stepnet.set_backend("fast"), "no such backend", "'fast'"),
    "y alone": (lambda: recurrent(lambda x, h: x, X, H), r"must return a pair \(y, new_state\)", "float32"),
    "one parameter": (
        lambda: recurrent(lambda h: (h, h), steps=3, state=H),
        "does not take what it is called with",
        "x_t is None where there are only steps=",
    ),
    "a parameter more": (
        lambda: recurrent(lambda x, h, m: (h, h), X, H),
        "missing a required argument: 'm'",
        r"<lambda>\(x_t, state\)[\s\S]*`h, c = state`",
    ),
    "no parameter for static": (
        lambda: recurrent(total, X, H, static=H),
        "does not take what it is called with",
        r"total\(x_t, state, static\)",
    ),
    "a state that grows": (
        lambda: recurrent(lambda x, h: (x, torch.cat([h, h], 1)), X, H),
        "changed the state's shape or dtype",
        "3, 6|2, 6",
    ),
    "a state of another dtype": (
        lambda: recurrent(lambda x, h: (x, h.double()), X, H),
        "shape or dtype",
        "float64",
    ),
    "a state nested otherwise": (
        lambda: recurrent(lambda x, s: (x, {"b": s["a"]}), X, {"a": H}),
        "changed the structure",
        "{'b': ",
    ),
    "x of other lengths": (lambda: recurrent(named_pair, (RAGGED, OTHER), H), "same lengths", r"x\[1\]"),
    "x of other steps": (
        lambda: recurrent(named_pair, (X, X[:3]), H),
        "different numbers of steps",
        "4 and 3",
    ),
    "x of two kinds": (lambda: recurrent(named_pair, (RAGGED, X), H), "is a LoDTensor and", "tensor"),
    "fewer rows of y": (
        lambda: recurrent(lambda x, h: (x[:1], h), RAGGED, H),
        "y must have one row",
        "2 rows",
    ),
}


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_the_callers_words(name):
    call, says, shows = MISTAKES[name]
    with pytest.raises((StepError, LoDError), match=says) as caught:
        call()
    assert caught.match(shows)


def test_a_dict_with_a_factory_is_a_dict():
    def step(x, state):
        h = torch.tanh(x + state["h"])
        return defaultdict(list, y=h), defaultdict(list, h=h)

    x = torch.randn(3, 2, 4)
    y, state = recurrent(step, x, defaultdict(list, h=torch.zeros(2, 4)))
    assert torch.equal(y["y"][-1], state["h"])
    assert type(y) is dict


Point = namedtuple("Point", "left right")


@dataclass(frozen=True)
class Frozen:
    left: torch.Tensor
    right: torch.Tensor


@dataclass(slots=True)
class Slots:
    left: torch.Tensor
    right: torch.Tensor
    twice: torch.Tensor = field(init=False)

    def __post_init__(self):
        self.twice = 2 * self.left


class OfAttrs:
    """As attrs makes it, which the tests do not install."""

    __slots__ = ("left", "right")
    __attrs_attrs__ = (SimpleNamespace(name="left"), SimpleNamespace(name="right"))

    def __init__(self, left, right):
        self.left, self.right = left, right


def mirrored(x, s):
    """x and the state as a named tuple, y as a dict: each leaf once, in its own place."""
    point = type(s)(s.left + x["a"], s.right - x["b"][0])
    return {"sum": point.left + point.right, "both": [point.left, (point.right,)]}, point


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("ragged", "kind"), [(False, Point), (True, Point), (False, Frozen), (True, Slots), (True, OfAttrs)]
)
def test_structures_go_through(backend, ragged, kind):
    a, b = (torch.randn(6, I) for _ in range(2))
    if ragged:
        x = {"a": LoDTensor.from_lengths(a, [[4, 2]]), "b": (LoDTensor.from_lengths(b, [[4, 2]]),)}
    else:
        x = {"a": a.view(3, 2, I), "b": (b.view(3, 2, I),)}
    y, final = recurrent(mirrored, x, kind(H, H), backend=backend)
    assert type(final) is kind
    assert list(y) == ["sum", "both"]
    assert type(y["both"]) is list
    assert type(y["both"][1]) is tuple
    assert type(y["sum"]) is (LoDTensor if ragged else torch.Tensor)
    rows = [[0, 1, 2, 3], [4, 5]] if ragged else [[0, 2, 4], [1, 3, 5]]
    for n, at in enumerate(rows):
        torch.testing.assert_close(final.left[n], a[at].sum(0))
        torch.testing.assert_close(final.right[n], -b[at].sum(0))
    if ragged:
        torch.testing.assert_close(y["both"][0].values[3], a[:4].sum(0))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sort", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("reverse", [False, True])
def test_packed_sequences_come_back_packed(backend, sort, reverse):
    lengths = [5, 3, 1] if sort else [1, 5, 3]
    padded = torch.randn(5, 3, I)
    packed = pack_padded_sequence(padded, torch.tensor(lengths), enforce_sorted=sort)
    cell = nn.GRUCell(I, 4)
    y, h = recurrent(cell, packed, reverse=reverse, backend=backend)
    assert isinstance(y, PackedSequence)
    assert torch.equal(y.batch_sizes, packed.batch_sizes)
    back, counts = pad_packed_sequence(y)
    assert counts.tolist() == lengths
    for n, length in enumerate(lengths):
        alone, last = recurrent(cell, padded[:length, n : n + 1], reverse=reverse, backend="naive")
        torch.testing.assert_close(back[:length, n], alone[:, 0])
        torch.testing.assert_close(h[n], last[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_any_axis_may_be_time(backend, axis):
    time_first = torch.randn(5, 2, 3, 4)
    x = time_first.movedim(0, axis)
    h = torch.zeros(2, 3, 4)
    y, final = recurrent(total, x, h, axis=axis, backend=backend)
    assert y.shape == x.shape
    torch.testing.assert_close(y.movedim(axis, 0), time_first.cumsum(0))
    torch.testing.assert_close(final, time_first.sum(0))


NOTHING = {
    "no steps": torch.zeros(0, 2, I),
    "no sequences": torch.zeros(4, 0, I),
    "no features": torch.zeros(4, 2, 0),
    "sequences of no steps": LoDTensor.from_lengths(torch.zeros(0, I), [[0, 0]]),
    "no sequences in a table": LoDTensor.from_lengths(torch.zeros(0, I), [[]]),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", NOTHING)
def test_nothing_gives_nothing(backend, reverse, name):
    x = NOTHING[name]
    rows = x.values if isinstance(x, LoDTensor) else x
    n = len(x.lengths()) if isinstance(x, LoDTensor) else x.shape[1]
    h = torch.randn(n, rows.shape[-1], requires_grad=True)
    y, final = recurrent(total, x, h, reverse=reverse, backend=backend)
    y = y.values if isinstance(y, LoDTensor) else y
    assert y.shape == rows.shape
    torch.testing.assert_close(final, h)  # of no steps the state stays
    (gradient,) = torch.autograd.grad(final.sum(), h)
    assert torch.equal(gradient, torch.ones_like(h))


def test_scopes_hold_each_step():
    y, _, scopes = recurrent(total, RAGGED, H, scopes=True)
    assert len(scopes) == 4
    assert [len(scope["x"]) for scope in scopes] == [2, 2, 1, 1]
    torch.testing.assert_close(scopes[3]["y"], y.values[3:4])
    torch.testing.assert_close(scopes[0]["new_state"], RAGGED.values[[0, 4]])


def test_a_module_is_the_function_with_its_settings(monkeypatch):
    cell = nn.GRUCell(I, 4)
    module = Recurrent(cell, reverse=True, axis=1, backend="naive")
    x = torch.randn(2, 5, I)
    y, h = module(x)
    other, last = recurrent(cell, x, reverse=True, axis=1, backend="naive")
    assert torch.equal(y, other)
    assert torch.equal(h, last)
    assert "reverse=True, axis=1, backend='naive'" in repr(module)
    inner = {f"step.cell.{name}" for name, _ in cell.named_parameters()}
    assert {name for name, _ in module.named_parameters()} == inner


def test_a_module_can_be_pickled_and_copied():
    module = Recurrent(stepnet.cells.LSTM(I, 4))
    again = pickle.loads(pickle.dumps(module))
    x = torch.randn(5, 2, I)
    assert torch.equal(module(x)[0], again(x)[0])


def test_the_backend_of_the_process():

    def branching(x, h):
        h = h + x if h.sum() < 1 else h
        return h, h

    stepnet.set_backend("naive")
    recurrent(branching, X, H)  # asked for: nothing to warn of
    stepnet.set_backend("auto")
    with pytest.warns(SlowPathWarning, match="branching"):
        recurrent(branching, X, H)
    stepnet.set_backend("eager")
    with pytest.raises(stepnet.errors.Unsupported, match="control flow"):
        recurrent(branching, X, H)
    recurrent(branching, X, H, backend="naive")  # a call's own wish goes first


def test_results_are_the_callers_to_write_to():
    """y, each final state and the input are tensors of their own, whatever the step returns."""

    def passing(x, h):
        return x, (h[0], h[0])

    for backend in BACKENDS:
        x, h = X.clone(), H.clone()
        y, (first, second) = recurrent(passing, x, (h, h), backend=backend)
        for result in (y, first, second):
            result.add_(1)
        assert torch.equal(first, H + 1), backend
        assert torch.equal(x, X), backend
        assert torch.equal(h, H), backend


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_a_nested_tensor_is_told_how_to_become_a_ragged_one(layout):
    nested = torch.nested.nested_tensor([torch.ones(2, I), torch.ones(1, I)], layout=layout)
    with pytest.raises(StepError, match=r"x is a NestedTensor(.|\n)*LoDTensor.from_nested"):
        recurrent(lambda x, h: (h + x, h + x), nested, H)


@pytest.mark.parametrize("backend", ["naive", "eager"])
def test_dicts_of_the_state_may_come_back_in_another_order(backend):
    def step(x, s):
        return x, {"in": {"q": s["in"]["q"] + 1, "p": s["in"]["p"] * x}, "n": s["n"] - 1}

    _, last = recurrent(step, X, {"n": H, "in": {"p": H + 2, "q": H}}, backend=backend)
    assert [*last] == ["n", "in"]
    assert [*last["in"]] == ["p", "q"]
    assert [t.unique().item() for t in (last["n"], *last["in"].values())] == [-4, 2, 4]


class Table:
    """A step that finds what it reads in a table, which knows nothing else."""

    def __init__(self, **table):
        self.__dict__["table"] = table

    def __getattr__(self, name):
        return self.__dict__["table"][name]

    def __call__(self, x, h):
        h = torch.tanh(x * self.scale + h)
        return h, h


class TableModule(nn.Module):
    """A module that looks in a table, too."""

    def __init__(self, **table):
        super().__init__()
        self.table = table

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return self.__dict__["table"][name]

    forward = Table.__call__


@pytest.mark.parametrize("kind", [Table, TableModule])
def test_an_object_that_raises_what_it_likes_for_attributes_it_does_not_have(kind):
    x, h = torch.randn(3, 2, 4), torch.zeros(2, 4)
    step, found = kind(scale=2.0), []
    for backend in ("naive", "eager"):
        found.append(recurrent(step, x, h, backend=backend))
        step.table["scale"] = 2.0
    torch.testing.assert_close(*found)
    stepnet.explain(step, x, h)
    with pytest.raises(StepError, match="has no initial state"):
        recurrent(step, x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_of_a_module_that_calls_the_function_names_the_export():
    class Calls(nn.Module):
        def forward(self, x):
            return recurrent(nn.GRUCell(3, 4), x)[0]

    with pytest.raises(StepError, match=r"torch\.jit\.script cannot .*\n.*torch\.export\.export"):
        torch.jit.script(Calls())


@pytest.mark.parametrize(("given", "returned"), [(dict, OrderedDict), (OrderedDict, dict)])
def test_a_state_of_another_class_is_told_by_its_class(given, returned):
    with pytest.raises(StepError, match="changed the structure of the state") as told:
        recurrent(lambda x, s: (x, returned(h=s["h"] + x)), torch.zeros(3, 2, 4), given(h=torch.zeros(2, 4)))
    got, expected = (line for line in str(told.value).splitlines() if "'h'" in line)
    assert ("OrderedDict" in got, "OrderedDict" in expected) == (
        returned is OrderedDict,
        given is OrderedDict,
    )
