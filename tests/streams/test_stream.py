"""Streams: any cutting into pushes gives what whole sequences give; what cannot be cut is refused."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import stepnet
from covering import examples, few
from stepnet import LoDTensor, Recurrent, Resets, cells, recurrent, stream
from stepnet.errors import StreamError, UnknownStream
from stepnet.streams import streams as stream_file
from threads import at_once

BACKEND = "auto"
DTYPE = torch.float64
F, H = 2, 3
CLOSE = {"rtol": 0, "atol": 1e-10}


def double(module):
    return module.to(DTYPE).eval()


class Learned(nn.Module):
    """Two layers around a row-wise one, whose first state is learned."""

    def __init__(self):
        super().__init__()
        self.first, self.head = cells.LSTM(F, H), nn.Linear(H, H)
        self.second = stepnet.nn.GRU(H, H, num_layers=2)
        self.h0 = nn.Parameter(torch.randn(H))

    def forward(self, x):
        n = len(x)
        y, _ = recurrent(self.first, x, (self.h0.expand(n, H), self.h0.new_ones(n, H)))
        return {"y": self.second(torch.tanh(y.map(self.head)))[0], "first": y}


class Words(nn.Module):
    """A recurrence over characters inside each word, then one over the words."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = Recurrent(cells.GRU(F, H)), Recurrent(cells.RNN(H, H))

    def forward(self, x):
        _, h = self.inner(x.drop_levels())
        return self.outer(LoDTensor(h, x.lod[:1]))


class Inside(nn.Module):
    """The same, the inner recurrence in the step of the outer one."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = cells.GRU(F, H), cells.RNN(H, H)

    def step(self, x, h):
        _, inner = recurrent(self.inner, x, h)
        return self.outer(inner, h)

    def forward(self, x):
        return recurrent(self.step, x, torch.zeros(len(x), H, dtype=DTYPE), level=0)


MODULES = {
    "learned": Learned,
    "lstm": lambda: stepnet.nn.LSTM(F, H, num_layers=2),
    "stack": lambda: stepnet.nn.Stack([cells.GRU(F, H), cells.LSTM(H, H)], residual=(False, True)),
    "minGRU": lambda: Recurrent(cells.MinGRU(F, H)),
}
MADE: dict[str, nn.Module] = {}


def module(name):
    if name not in MADE:
        torch.manual_seed(4)
        MADE[name] = double((MODULES | {"words": Words, "inside": Inside})[name]())
    return MADE[name]


def whole(net, x):
    with torch.no_grad():
        y = net(x)
    return y[0] if isinstance(y, tuple) else y["y"] if isinstance(y, dict) else y


def y_of(out):
    return out["y"] if isinstance(out, dict) else out


@st.composite
def pushes(draw):
    """The lengths of a few streams, and how each is cut; the order in which the pieces are pushed."""
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4))
    plan = []
    left = list(lengths)
    while any(left):
        taken = {}
        for k, rows in enumerate(left):
            if draw(st.booleans()):
                taken[k] = draw(st.integers(0, rows))
                left[k] -= taken[k]
        plan.append(taken)
    return lengths, plan


@pytest.mark.parametrize("name", few(MODULES, ["lstm", "learned"]))
def test_any_cutting(name):
    @settings(max_examples=examples(20))
    @given(pushes(), st.integers(0, 2**20))
    def law(cut, seed):
        lengths, plan = cut
        net, generator = module(name), torch.Generator().manual_seed(seed)
        rows = [torch.randn(n, F, dtype=DTYPE, generator=generator) for n in lengths]
        live, at = stream(net), [0] * len(rows)
        ids: dict[int, object] = {}
        got = [[] for _ in rows]
        for taken in plan:
            for k in taken:
                if k not in ids:  # streams join late, in any order
                    ids[k] = live.open()
            order = reversed(list(taken)) if seed % 2 else list(taken)
            out = live.push({ids[k]: rows[k][at[k] : at[k] + taken[k]] for k in order})
            for k, n in taken.items():
                at[k] += n
                got[k].append(y_of(out[ids[k]]))
        if sum(lengths):
            for own, y in zip(got, whole(net, LoDTensor.from_sequences(rows)), strict=True):
                if own:
                    torch.testing.assert_close(torch.cat(own), y, **CLOSE)

    law()


@pytest.mark.parametrize("name", ["words", "inside"])
@pytest.mark.parametrize("lengths", [[[3, 1], [2, 0, 4, 1]], [[1, 1], [1, 1]], [[2, 0], [1, 1]]], ids=str)
def test_nested_chunks(name, lengths):
    net = module(name)
    x = LoDTensor.from_lengths(torch.randn(sum(lengths[1]), F, dtype=DTYPE), lengths)
    expected, live = whole(net, x), stream(net)
    ids = [live.open() for _ in range(len(x))]
    got = [[] for _ in ids]
    for step in range(max(lengths[0])):
        words = {i: own[step : step + 1] for i, own in zip(ids, x, strict=True) if len(own) > step}
        for i, y in live.push(words).items():
            got[i].append(y)
    for own, y in zip(got, expected, strict=True):
        torch.testing.assert_close(torch.cat([torch.zeros(0, H, dtype=DTYPE), *own]), y, **CLOSE)


@pytest.mark.parametrize("name", ["is_init", "done"])
@pytest.mark.parametrize("start", ["cell", "state"])
def test_resets_in_a_stream(name, start):
    cell = double(cells.GRU(F, H))
    step = cell if start == "cell" else lambda x, h: cell(x, h)

    def net(x):
        state = None if start == "cell" else torch.full((len(x["x"]), H), 0.5, dtype=DTYPE)
        return recurrent(step, x["x"], state, resets=Resets(**{name: x["marks"]}))

    rows, marks = torch.randn(9, F, dtype=DTYPE), torch.tensor([0, 0, 1, 0, 1, 1, 0, 0, 1]).bool()
    x = {"x": LoDTensor(rows, [[0, 9]]), "marks": LoDTensor(marks, [[0, 9]])}
    live = stream(net)
    live.open("a")
    parts = zip(rows.split([2, 3, 4]), marks.split([2, 3, 4]), strict=True)
    got = [live.push({"a": {"x": a, "marks": b}})["a"] for a, b in parts]
    torch.testing.assert_close(torch.cat(got), whole(net, x).values, **CLOSE)


def test_a_memory_that_all_steps_see():
    cell = double(cells.GRU(F, H))

    def net(x):
        memory = torch.arange(1.0, len(x) + 1, dtype=DTYPE)[:, None]
        start = torch.zeros(len(x), H, dtype=DTYPE)
        return recurrent(lambda x, h, m: cell(x * m, h), x, start, static=memory)

    x = LoDTensor.from_lengths(torch.randn(8, F, dtype=DTYPE), [[3, 5]])
    live = stream(net)
    a, b = live.open(), live.open()
    parts = [live.push({a: x[0][:2], b: x[1][:1]}), live.push({a: x[0][2:], b: x[1][1:]})]
    for i, y in zip((a, b), whole(net, x), strict=True):
        torch.testing.assert_close(torch.cat([p[i] for p in parts]), y, **CLOSE)


def test_reset_and_close_give_a_fresh_start():
    net, x = module("lstm"), torch.randn(4, F, dtype=DTYPE)
    live = stream(net, max_streams=2)
    live.open("a")
    first = live.push({"a": x})["a"]
    assert not torch.equal(live.push({"a": x})["a"], first)
    live.reset("a")
    torch.testing.assert_close(live.push({"a": x})["a"], first, **CLOSE)
    live.close("a")
    live.open("b")  # in the place of a
    torch.testing.assert_close(live.push({"b": x})["b"], first, **CLOSE)
    assert live.ids == ["b"]
    assert "b" in live
    assert len(live) == 1


@pytest.mark.parametrize("kind", ["inputs", "module"])
def test_a_push_that_fails_leaves_every_state(kind):
    calls = []

    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Recurrent(cells.GRU(F, H)), Recurrent(cells.GRU(H, H))

        def forward(self, x):
            y, _ = self.first(x)
            if calls:
                raise RuntimeError("out of something")
            return self.second(y)

    net = double(Fails())
    live, x = stream(net), torch.randn(6, F, dtype=DTYPE)
    live.open(0)
    live.open(1)
    live.push({0: x[:2], 1: x[:3]})
    if kind == "module":
        calls.append(1)
        with pytest.raises(RuntimeError, match="out of something"):
            live.push({1: x[:1], 0: x[:3]})
        calls.clear()
    else:
        with pytest.raises(StreamError, match="must be rows, like those of the others"):
            live.push({0: x[:1], 1: x[:1, :1]})
        with pytest.raises(UnknownStream, match="stream 7 is not open"):
            live.push({0: x[:1], 7: x[:1]})
        with pytest.raises(StreamError, match="push takes the next rows of each stream"):
            live.push([x[:1], x[:1]])
    got = live.push({0: x[2:], 1: x[3:]})
    expected = whole(net, LoDTensor.from_sequences([x, x]))
    torch.testing.assert_close(got[0], expected[0][2:], **CLOSE)
    torch.testing.assert_close(got[1], expected[1][3:], **CLOSE)


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = Recurrent(cells.GRU(F, H))

    def forward(self, x):
        y, _ = self.rnn(x)
        return stepnet.sequence_pool(y, "mean")


def dense(x):
    return recurrent(lambda x, s: (x + s, x + s), x.to_padded()[0], torch.zeros(4, F, dtype=DTYPE))


def ends(x):
    return recurrent(lambda x, s: (x + s, x + s), x, torch.zeros(len(x), F, dtype=DTYPE))[1]


def halved(x):
    half = LoDTensor.from_sequences([rows[::2] for rows in x])
    return recurrent(lambda x, s: (x + s, x + s), half, torch.zeros(len(x), F, dtype=DTYPE))


CELL = double(cells.GRU(F, H))
REFUSED = {
    "bidirectional": (lambda: stepnet.nn.LSTM(F, H, bidirectional=True), "runs backwards"),
    "reverse": (lambda: Recurrent(cells.GRU(F, H), reverse=True), "runs backwards"),
    "reverse call": (lambda: lambda x: recurrent(CELL, x, reverse=True), "backwards, from"),
    "torch.nn": (lambda: nn.Sequential(nn.GRU(F, H)), "holds a torch.nn.GRU"),
    "a cell": (lambda: cells.GRU(F, H), "is a step, which runs one row"),
    "nothing": (lambda: None, "'module' must be a function"),
    "a torch cell": (lambda: nn.GRUCell(F, H), "is a step, which runs one row"),
    "pooled": (Pooled, "takes 'mean' of the rows of a stream"),
    "softmax": (lambda: stepnet.sequence_softmax, "takes 'softmax' of the rows of a stream"),
    "turned": (lambda: stepnet.sequence_reverse, "takes 'reverse' of the rows of a stream"),
    "a slice": (lambda: lambda x: stepnet.sequence_slice(x, [0], [1]), "takes 'slice' of the rows"),
    "pieces": (
        lambda: lambda x: recurrent(CELL, x.split_at(x.values[:, 0] > 0))[0],
        "over pieces of a chunk",
    ),
    "dense": (lambda: dense, "is not over the streams"),
    "last states": (lambda: ends, "must give a sequence of rows for each stream"),
    "other lengths": (lambda: halved, "is not over the streams"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused(name):
    make, text = REFUSED[name]
    with pytest.raises(StreamError, match=text):  # noqa: PT012
        net = make()
        live = stream(double(net) if isinstance(net, nn.Module) else net)
        live.open(0)
        live.push({0: torch.randn(4, F, dtype=DTYPE)})


def test_a_while_loop_over_the_rows_is_refused():
    def net(x):
        sums, rows = stepnet.TensorArray(), stepnet.TensorArray(unstack_from=x.values)
        loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == 4)
            sums.write(s, sums.read(s - 1, torch.zeros(F, dtype=DTYPE)) + rows.read(s))
            loop.update(s, s + 1)
        return x.with_values(sums.stack())

    live = stream(net)
    live.open(0)
    with pytest.raises(StreamError, match=r"a loop over .* that is no recurrence"):
        live.push({0: torch.randn(4, F, dtype=DTYPE)})


def test_pooling_inside_a_step():
    """Of words, which lie within a push: a step sees them whole."""
    cell = double(cells.GRU(F, H))

    def net(x):
        def step(words, h):
            return cell(stepnet.sequence_pool(words, "mean"), h)

        return recurrent(step, x, torch.zeros(len(x), H, dtype=DTYPE), level=0)

    x = LoDTensor.from_lengths(torch.randn(7, F, dtype=DTYPE), [[3], [2, 4, 1]])
    live = stream(net)
    live.open(0)
    got = torch.cat([live.push({0: x[0][:2]})[0], live.push({0: x[0][2:]})[0]])
    torch.testing.assert_close(got, whole(net, x).values, **CLOSE)


def test_other_recurrences_at_a_later_push():
    nets = [Recurrent(double(cells.GRU(F, H))), Recurrent(double(cells.LSTM(F, H)))]
    use = [nets[0]]

    def net(x):
        return next(y for y, _ in [each(x) for each in use])

    live = stream(net)
    live.open(0)
    x = torch.randn(2, F, dtype=DTYPE)
    first = live.push({0: x})[0]
    use[:] = nets[1:]
    with pytest.raises(StreamError, match="recurrence 0 of the module is not the one"):
        live.push({0: x})
    use[:] = nets
    with pytest.raises(StreamError, match="did not run at earlier pushes"):
        live.push({0: x})
    use[:] = nets[:1]
    expected = whole(nets[0], LoDTensor.from_sequences([torch.cat([x, x])])).values
    torch.testing.assert_close(torch.cat([first, live.push({0: x})[0]]), expected, **CLOSE)


def test_bounds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(stream_file, "monotonic", lambda: now[0])
    live = stream(module("lstm"), max_streams=2, idle_seconds=10)
    a, _ = live.open(), live.open("b")
    with pytest.raises(StreamError, match="no more streams may be open"):
        live.open()
    with pytest.raises(StreamError, match="must be hashable"):
        live.open([1])
    with pytest.raises(StreamError, match="stream 'b' is open"):
        live.open("b")
    now[0] = 8.0
    live.push({a: torch.zeros(1, F, dtype=DTYPE)})
    now[0] = 12.0
    live.open("c")  # b is idle
    with pytest.raises(UnknownStream, match="had no push for 10 seconds"):
        live.push({"b": torch.zeros(1, F, dtype=DTYPE)})
    assert live.ids == [a, "c"]
    with pytest.raises(KeyError):
        live.close("b")
    assert live.push({}) == {}


def test_saved_and_loaded():
    net, x = module("learned"), torch.randn(8, F, dtype=DTYPE)
    live = stream(net)
    for name in "abc":
        live.open(name)
    live.push({"a": x[:3], "c": x[:5]})
    live.close("b")
    live.open("d")
    file = io.BytesIO()
    torch.save(live.state_dict(), file)
    file.seek(0)
    other = stream(net, max_streams=3)
    other.load_state_dict(torch.load(file))
    live.push({"a": x, "c": x})  # goes its own way
    assert other.ids == ["a", "c", "d"]
    out = other.push({"d": x, "c": x[5:], "a": x[3:]})
    expected = whole(net, LoDTensor.from_sequences([x]))[0]
    torch.testing.assert_close(out["a"]["y"], expected[3:], **CLOSE)
    torch.testing.assert_close(out["c"]["y"], expected[5:], **CLOSE)
    torch.testing.assert_close(out["d"]["y"], expected, **CLOSE)
    with pytest.raises(StreamError, match="no more streams may be open"):
        stream(net, max_streams=2).load_state_dict(other.state_dict())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda live: pickle.loads(pickle.dumps(live))])
def test_a_copy_goes_on_by_itself(again):
    net, x = module("lstm"), torch.randn(6, F, dtype=DTYPE)
    live = stream(net, max_streams=2)
    live.push({live.open(): x[:4]})
    twin = again(live)
    live.push({0: x})
    torch.testing.assert_close(twin.push({0: x[4:]})[0], whole(net, x[:, None])[4:, 0], **CLOSE)
    assert twin.open() == 1
    with pytest.raises(StreamError, match="max_streams=2"):
        twin.open()


def test_what_is_no_state_changes_nothing():
    net, x = module("lstm"), torch.randn(6, F, dtype=DTYPE)
    live = stream(net)
    live.push({live.open(): x[:4]})
    state = live.state_dict()
    name, left = state["recurrences"][0]
    wrong = [{}, 3, {**state, "begun": []}, {**state, "ids": [0, 0], "begun": [True, True]}]
    ways = [
        lambda t: t[:0],
        lambda t: t.to_sparse(),
        lambda t: t[:, :1].expand(-1, 1000),
    ]  # not as large as it says
    wrong += [{**state, "recurrences": [(name, tuple(map(way, left)))]} for way in ways]
    for other in (*wrong, {**state, "recurrences": [3]}):
        with pytest.raises(StreamError, match="no state of a stream"):
            live.load_state_dict(other)
    torch.testing.assert_close(live.push({0: x[4:]})[0], whole(net, x[:, None])[4:, 0], **CLOSE)


def test_a_module_may_write_to_the_states_it_gets():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = Recurrent(cells.GRU(F, H))

        def forward(self, x):
            y, h = self.rnn(x)
            h.zero_()
            return y

    net, x = double(Writes()), torch.randn(6, F, dtype=DTYPE)
    live = stream(net)
    live.open(0)
    found = torch.cat([live.push({0: part})[0] for part in x.split(2)])
    torch.testing.assert_close(found, whole(net.rnn, x[:, None])[:, 0], **CLOSE)


def test_a_module_is_taken_anew_where_no_stream_has_begun():
    net, x = cells.GRU(F, H), torch.randn(3, F)
    live = stream(Recurrent(net))
    live.push({live.open(): x})
    net.double()
    live.close(0)
    y = live.push({live.open("b"): x.double()})["b"]
    torch.testing.assert_close(y, whole(live.module, x[:, None].double())[:, 0])


def test_a_push_is_run_on_numbers():
    net, x = module("lstm"), torch.randn(4, F, dtype=DTYPE)
    live = stream(net)
    live.open(0)

    def push(rows):
        return live.push({0: rows})[0]

    first = push(x[:2])
    for transformed in (torch.func.vmap(push), torch.func.grad(lambda rows: push(rows).sum())):
        with pytest.raises(StreamError, match="not traced, nor transformed"):
            transformed(torch.zeros(2, 2, F, dtype=DTYPE))
    with FakeTensorMode() as mode, pytest.raises(StreamError, match="not traced, nor transformed"):
        push(mode.from_tensor(x))
    compiled = torch.compile(lambda rows: push(rows + 0) * 2, backend="eager")
    found = torch.cat([first, compiled(x[2:]) / 2])
    torch.testing.assert_close(found, whole(net, x[:, None])[:, 0], **CLOSE)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "many"])
def test_limits_that_are_none(limit):
    with pytest.raises(StreamError, match="'max_streams' must be a positive whole number"):
        stream(module("lstm"), max_streams=limit)
    if limit != 1.5:
        with pytest.raises(StreamError, match="'idle_seconds' must be None or seconds above 0"):
            stream(module("lstm"), idle_seconds=limit)


def test_threads():
    """Each pushes to its own stream, all at once."""
    net, x = module("lstm"), torch.randn(4, 24, F, dtype=DTYPE)
    expected = whole(net, LoDTensor.from_sequences(list(x)))
    live = stream(net)

    def run(k):
        live.open(k)
        return torch.cat([live.push({k: row[None]})[k] for row in x[k]])

    torch.testing.assert_close(at_once(run), list(expected), **CLOSE)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_modes_around_a_push(mode):
    net, x = module("lstm"), torch.randn(6, F, dtype=DTYPE)
    live = stream(net)
    live.open(0)
    with mode():
        first = live.push({0: x[:2].clone()})[0]
    second = live.push({0: x[2:4]})[0]
    with torch.inference_mode():
        third = live.push({0: x[4:].clone()})[0]
    expected = whole(net, LoDTensor.from_sequences([x])).values
    torch.testing.assert_close(torch.cat([first, second, third]), expected, **CLOSE)
    assert not second.requires_grad


def test_outputs_and_states_share_no_memory():
    """What callers do with outputs and chunks changes no state."""
    net = lambda x: recurrent(lambda x, s: (s + x, s + x), x, torch.zeros(len(x), 1))  # noqa: E731
    live = stream(net)
    live.open(0)
    chunk = torch.ones(1, 1)
    out = live.push({0: chunk})[0]
    out.fill_(100)
    chunk.fill_(7)
    assert live.push({0: torch.ones(1, 1)})[0].item() == 2


@pytest.mark.parametrize("streams", [1, 2])
def test_a_module_may_write_to_the_rows_it_gets(streams):
    class Doubled(nn.Module):
        def forward(self, x):
            x.values.mul_(2)
            return x

    chunks = {k: torch.ones(3, 2) for k in range(streams)}
    live = stream(Doubled())
    for id in chunks:
        live.open(id)
    y = live.push(chunks)
    for k, chunk in chunks.items():
        assert chunk.eq(1).all()
        assert y[k].eq(2).all()
        assert y[k].untyped_storage().data_ptr() != chunk.untyped_storage().data_ptr()


def test_a_step_that_writes_to_its_state_and_fails():
    broken = []

    def step(x, s):
        s += x
        if broken:
            raise ValueError("no")
        return s.clone(), s

    net = lambda x: recurrent(step, x, torch.zeros(len(x), 1), backend="naive")  # noqa: E731
    live = stream(net)
    live.open(0)
    live.push({0: torch.ones(1, 1)})
    broken.append(1)
    with pytest.raises(ValueError, match="no"):
        live.push({0: torch.ones(1, 1)})
    broken.clear()
    assert live.push({0: torch.ones(1, 1)})[0].item() == 2


@pytest.mark.exhaustive
@torch.no_grad()
def test_a_compiled_module():
    net = stepnet.nn.GRU(F, H).eval()
    compiled = torch.compile(lambda x: net(x)[0], backend="eager")
    x = torch.randn(5, F)
    expected = compiled(LoDTensor.from_sequences([x])).values
    live = stream(compiled)
    live.open(0)
    got = torch.cat([live.push({0: x[:2]})[0], live.push({0: x[2:]})[0]])
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(compiled(LoDTensor.from_sequences([x])).values, expected)
