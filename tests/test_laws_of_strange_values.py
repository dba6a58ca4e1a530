"""What the API page lists, given tensors of other layouts, sizes beyond memory, and several strange values at
once: a result, or an error that says what is wrong with them."""

from __future__ import annotations

import inspect
import math
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import stepnet
from stepnet import LoDTensor, Memory, RecurrentOp, Scope, TensorArray, cells, decode, layers
from stepnet.data.arguments import brief
from stepnet.distributed import row_mean
from stepnet.errors import StepnetError
from stepnet.tape import Tape
from test_docstrings import methods
from test_laws_of_errors import (
    CALLS,
    GOOD,
    OBJECTS,
    OF_TAPES,
    PLUMBING,
    RIGHT,
    STRANGE,
    _apart,
    array,
    at,
    called,
    halves,
    names,
    opened,
    scores,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures(_apart.__name__)

X = GOOD["x"]
CELL = cells.GRU(3, 4)
ROWS, TABLE, STEPS = torch.randn(6, 3), torch.randn(3, 4), torch.randn(5, 3, 3)

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse": Tensor.to_sparse,
    "csr": Tensor.to_sparse_csr,
    "mkldnn": Tensor.to_mkldnn,
    "jagged": lambda t: torch.nested.nested_tensor(list(t), layout=torch.jagged),
}


def pieces(x: Any, state: Any) -> None:
    for piece in stepnet.truncated(x, state, rows=2):
        _, piece.state = stepnet.recurrent(CELL, piece.x, piece.state)


# What takes a tensor whose rows must have places.
TAKERS: dict[str, Callable[[Any], Any]] = {
    "recurrent x": lambda to: stepnet.recurrent(CELL, to(STEPS)),
    "recurrent static": lambda to: stepnet.recurrent(lambda x, h, s: (h, h), X, TABLE, static=to(TABLE)),
    "LoDTensor": lambda to: LoDTensor(to(ROWS), [[0, 6]]),
    "from_lengths": lambda to: LoDTensor.from_lengths(to(ROWS), [[6]]),
    "with_values": lambda to: X.with_values(to(ROWS)),
    "from_padded": lambda to: LoDTensor.from_padded(to(STEPS), [1, 2, 3, 1, 2]),
    "from_sequences": lambda to: LoDTensor.from_sequences([ROWS, to(ROWS)]),
    "sequence_expand": lambda to: stepnet.sequence_expand(to(TABLE), X),
    "TensorIterator": lambda to: OBJECTS["TensorIterator"]()(to(STEPS)),
    "RecurrentOp": lambda to: RecurrentOp(halves, ["x"], ["h"], [Memory("h", "before", "b")]).run(
        Scope({"x": to(STEPS), "b": torch.zeros(3, 3)})
    ),
    "push": lambda to: opened().push({"one": to(ROWS)}),
    "greedy": lambda to: decode.greedy(scores, to(TABLE), bos=0, eos=1, max_length=2),
    "beam_search": lambda to: decode.beam_search(
        scores, to(TABLE), bos=0, eos=1, beam_size=2, max_length=2
    ),
    "truncated x": lambda to: pieces(to(STEPS), None),
    "truncated state": lambda to: pieces(STEPS, to(TABLE)),
    "row_mean": lambda to: row_mean(torch.ones(()), to(torch.ones(1, 1))),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_whose_rows_have_no_places_are_refused(layout):
    other = []
    for name, taken in TAKERS.items():
        try:
            taken(LAYOUTS[layout])
            other.append(f"{name}: no error")
        except StepnetError as error:
            other += [] if error.got and error.remedy else [f"{name}: {error}"]
        except Exception as error:
            other.append(f"{name}: {error!r}")
    assert not other


def test_tensors_without_numbers_are_refused_where_numbers_are_read():
    meta = torch.zeros(3, 4, device="meta")
    for read in (
        lambda: decode.greedy(scores, meta, bos=0, eos=1, max_length=2),
        lambda: decode.beam_search(scores, meta, bos=0, eos=1, beam_size=2, max_length=2),
        lambda: row_mean(torch.ones(()), meta[:1, 0]),
        lambda: array().read(meta[0, 0].long()),
    ):
        with pytest.raises(StepnetError):
            read()


SIZES = ("input_size", "hidden_size", "size", "num_layers", "key_size", "state_size", "dt_rank", "decay_rank")


@pytest.mark.parametrize("size", [10**18, 2**62, np.int64(2**62), 2**31])
def test_sizes_that_no_memory_holds_are_refused(size):
    makers = [at(name) for name in names() if name.startswith(("cells.", "nn."))]
    tried = 0
    for maker in makers:
        parameters = inspect.signature(maker).parameters
        good = {name: GOOD[name] for name in ("input_size", "hidden_size", "size") if name in parameters}
        for name in set(SIZES) & set(parameters):
            with pytest.raises(StepnetError, match=f"'{name}' is more than fits in memory"):
                maker(**good | {name: size})
            tried += 1
    assert tried > 25
    with Tape(), pytest.raises(StepnetError, match="more than fits"):
        layers.fc(layers.data("x", layers.Dense(3)), size)
    with pytest.raises(StepnetError, match="more than fits"):
        stepnet.sequence_mask([1, 2], size)
    with pytest.raises(StepnetError, match="more than fits"):
        decode.beam_search(scores, TABLE, bos=0, eos=1, beam_size=size, max_length=2)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "MinLSTM", "MLSTM", "SelectiveSSM", "RGLRU"])
def test_sizes_of_narrow_integers_are_multiplied_as_numbers(name):
    maker = getattr(cells, name)
    own = {n: 64 for n in inspect.signature(maker).parameters if n in ("input_size", "hidden_size", "size")}
    shapes = [[w.shape for w in maker(**own).parameters()]]
    shapes.append([w.shape for w in maker(**{n: np.uint8(v) for n, v in own.items()}).parameters()])
    assert shapes[0] == shapes[1]


def test_what_cannot_be_shown_is_named_by_its_type():
    class Odd:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    with pytest.raises(StepnetError, match=r"got: +Odd, which cannot be shown"):
        cells.GRU(3, Odd())  # pyright: ignore[reportArgumentType]
    assert brief(nn.parameter.UninitializedParameter()).startswith("UninitializedParameter, ")


@pytest.mark.parametrize("value", [1e300, 1j, np.uint64(2**64 - 1), object()])
def test_numbers_to_fill_with_are_of_the_dtype(value):
    for fill in (
        lambda: X.to_padded(padding_value=value),
        lambda: stepnet.sequence_pool(X, "sum", pad_value=value),
    ):
        with pytest.raises(StepnetError, match=r"padding_value|pad_value"):
            fill()


# ---- several at once

MORE: list[Any] = [
    False, 1, 2, 3, -2, 0.5, 1.0, "auto", "eager", "sum", "mean", "tanh", "relu", "a", "cpu", "meta",
    torch.float16, torch.float64, torch.complex64, X, X.to(torch.float64), X.to_packed(), (X, X),
    {"a": X, "b": X}, STEPS, TABLE,
    torch.zeros(1, 3, 4), (torch.zeros(1, 3, 4), torch.zeros(1, 3, 4)), torch.tensor([1, 2, 0]),
    torch.tensor([True, False, True, False, False, True]), torch.zeros(0, 3), torch.tensor(0), [1, 1, 1],
    [0, 2], [ROWS, ROWS], ["a", "b"],
    LoDTensor(torch.zeros(0, 3), [[0, 0, 0]]), LoDTensor(torch.zeros(0, 3), [[0]]),
    LoDTensor.from_lengths(ROWS, [[2, 1], [3, 1, 2]]), X.map(Tensor.long), X.map(lambda v: v.to("meta")),
    ROWS.to(torch.complex64).conj(), ROWS.to(torch.complex64).conj().imag, ROWS[:1].expand(6, 3),
    torch.randn(10).as_strided((6, 3), (1, 1)), ROWS.half(), torch.zeros(6, 3, dtype=torch.int8),
    nn.Parameter(ROWS), TensorArray(), torch.tanh, lambda a: a, lambda a, b: (a, b), slice(None), range(3),
    1j, 10**18, [10**18] * 3, math.inf, np.broadcast_to(np.float32(1), (6, 3)), np.ones((6, 3), ">f4")[::-1],
    'a b"\n\\\0/../x', *GOOD.values(),
]  # fmt: skip
# Where a number of that size is how long a user is ready to wait.
ENDLESS = {"decode.greedy max_length", "decode.beam_search max_length"}


CHANGE_THE_PROCESS = {"executors.register", "executors.unregister"}


def targets() -> Iterator[tuple[str, Callable[[], Any]]]:
    for name in (name for name in names() if name not in CHANGE_THE_PROCESS):
        yield name, lambda name=name: at(name)
    for name, make in OBJECTS.items():
        kind = at(name)
        for method in sorted(methods(kind)):
            short = f"{name.rpartition('.')[2]}.{method}"
            if not isinstance(inspect.getattr_static(kind, method), property) and short not in PLUMBING:
                yield short, lambda make=make, method=method: getattr(make(), method)


def answer(name: str, get: Callable[[], Any], given: dict[str, Any]) -> str | None:
    """None for a result, "" for an error of ours that helps, else the error."""
    with Tape(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            called(get(), inspect.signature(get()).parameters.values(), given)
        except StepnetError as error:
            told = error.got or error.expected or error.remedy or "must" in error.where
            return "" if told else f"says: {error}"
        except MemoryError:
            return ""
        except Exception as error:
            right = isinstance(error, AssertionError) and name.startswith("testing.")
            return "" if right or "can't allocate" in str(error) else repr(error)[:300]
    return None


def wrong_together(name: str, get: Callable[[], Any], seed: int, times: int) -> list[str]:
    """Errors of others for two to four values at once, each of which was taken beside good ones."""
    parameters = inspect.signature(get()).parameters.values()
    known = GOOD | (OF_TAPES if name.startswith("layers.") else {}) | CALLS.get(name, {})
    good = {
        p.name: known[p.name]
        for p in parameters
        if (p.default is p.empty and p.kind not in (2, 4)) or p.name in CALLS.get(name, {})
    }
    taken: dict[str, list[Any]] = {}
    for parameter in parameters:
        place = f"{name} {parameter.name}"
        if place not in RIGHT and place not in ENDLESS:
            fit = [v for v in (*STRANGE, *MORE) if answer(name, get, {**good, parameter.name: v}) is None]
            taken |= {parameter.name: fit} if fit else {}
    draw = random.Random(f"{seed} {name}")
    found = []
    for _ in range(times if len(taken) > 1 else 0):
        chosen = draw.sample([*taken], min(len(taken), draw.choice((2, 2, 2, 3, 4))))
        given = {parameter: draw.choice(taken[parameter]) for parameter in chosen}
        said = answer(name, get, good | given)
        if said:
            found.append(f"{name}({', '.join(f'{k}={brief(v)}' for k, v in given.items())}) {said}")
    return found


@pytest.mark.exhaustive  # a minute; one value at a time is in test_laws_of_errors
@pytest.mark.parametrize("of", [*dict.fromkeys(name.partition(".")[0] for name, _ in targets())])
def test_values_that_are_taken_alone_are_taken_together_or_refused(of):
    found = []
    for name, get in targets():
        if name.partition(".")[0] == of:
            found += wrong_together(name, get, 1156000, 100)
    assert not found


def test_what_is_wrong_only_together_is_seen():
    def planted(x, size=0, of=None):
        return [1][size] if of is None else size

    def mixed(a=None, b=None):
        return len(a) if b == 7 and a is not None else None

    assert not wrong_together("planted", lambda: planted, 1, 30)
    assert wrong_together("mixed", lambda: mixed, 1, 300)
