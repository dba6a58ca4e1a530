"""On a GPU: everything beside the plain loop, on the CPU or there. Left out where there is none."""

from __future__ import annotations

import functools
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import stepnet
from stepnet import LoDTensor, cells, decode, recurrent
from stepnet.data.collate import collate
from stepnet.data.in_graph import CAN_CAPTURE
from stepnet.data.tree import flatten
from stepnet.errors import LoopError, StepError, Unsupported

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
BACKEND = "auto"
GPU, DTYPE = "cuda", torch.float64
LENGTHS = ([3, 0, 5, 1], [1], [], [0, 0], [4, 4, 4])
CELLS = {
    "RNN": cells.RNN,
    "LSTM": cells.LSTM,
    "GRU": cells.GRU,
    "peepholes": cells.PeepholeLSTM,
    "layer norm": cells.LayerNormLSTM,
    "SLSTM": cells.SLSTM,
    "MinGRU": cells.MinGRU,
    "MinLSTM": cells.MinLSTM,
    "GRU with masks": lambda *a, **k: cells.VariationalDropout(cells.GRU(*a, **k), 0.5, 0.5),
    "torch LSTMCell": nn.LSTMCell,
}
close = functools.partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
near = functools.partial(torch.testing.assert_close, rtol=2e-4, atol=2e-4)


def ragged(lengths, size=4, dtype=DTYPE):
    rows = torch.randn(sum(lengths), size, dtype=dtype, device=GPU, requires_grad=True)
    return LoDTensor.from_lengths(rows, [lengths])


def states(step, n, dtype=DTYPE, size=4):
    given = [torch.randn(n, size, dtype=dtype, device=GPU, requires_grad=True) for _ in range(2)]
    if hasattr(step, "initial_state"):
        return None
    return tuple(given) if "LSTM" in type(step).__name__ else given[0]


def outcome(step, x, state, backend, **how):
    """Results and gradients."""
    torch.manual_seed(3)
    y, last = recurrent(step, x, state, backend=backend, **how)
    leaves = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in flatten((y, last))[0]]
    ins = [x.values if isinstance(x, LoDTensor) else x, *flatten(state)[0]]
    ins += [*step.parameters()] if isinstance(step, nn.Module) else []
    wanted = [t for t in ins if isinstance(t, torch.Tensor) and t.requires_grad]
    torch.manual_seed(1)
    loss = sum((leaf * torch.randn_like(leaf)).sum() for leaf in leaves)
    return [*leaves, *(torch.autograd.grad(loss, wanted, allow_unused=True) if loss.requires_grad else ())]


def check(step, x, state, same=close, **how):
    for _ in range(2):  # the second call finds what the first one made
        ours, plain = (outcome(step, x, state, backend, **how) for backend in ("auto", "naive"))
        assert all(t is None or t.is_cuda for t in ours)
        same(ours, plain)


@pytest.mark.parametrize("name", CELLS)
def test_cells_over_any_lengths(name):
    for dtype, same in ((DTYPE, close), (torch.float32, near)):
        step = CELLS[name](4, 4).to(GPU, dtype)
        for lengths in LENGTHS:
            check(step, ragged(lengths, dtype=dtype), states(step, len(lengths), dtype), same)


def test_ways_of_calling():
    step, lengths = cells.GRU(4, 6).to(GPU, DTYPE), [6, 0, 9, 3]
    x, h = ragged(lengths), states(None, 4, size=6)
    marks = LoDTensor.from_lengths(torch.rand(18) < 0.3, [lengths])
    for how in ({"resets": marks}, {"resets": marks.to(GPU)}, {"checkpoint": True}, {"checkpoint": 3},
                {"detach_every": 2}, {"reverse": True}):  # fmt: skip
        check(step, x, h, **how)
    dense = torch.randn(7, 4, 4, dtype=DTYPE, device=GPU, requires_grad=True)
    for x in (dense, dense.transpose(0, 1).detach().requires_grad_()):
        check(step, x, h, axis=int(x is not dense))
    check(step, dense, h, resets=torch.rand(7, 4, device=GPU) < 0.3)
    check(step, dense, h, reverse=True)

    def attend(x, h, memory):
        a = torch.softmax((memory @ h.unsqueeze(-1)).squeeze(-1), -1)
        h = torch.tanh(h + (a.unsqueeze(-1) * memory).sum(1))
        return h, h

    check(attend, ragged(lengths), h, static=torch.randn(4, 5, 6, device=GPU, dtype=DTYPE))
    check(
        lambda x, h: (h * 0.9 + x, h * 0.9 + x), ragged([40, 0, 33, 1], 6), h
    )  # linear: by passes over all rows
    check(lambda x, h: (h * x, h * x), ragged([40, 33, 0, 1], 6), h)


def test_noise_is_drawn_on_the_gpu():
    def step(x, h):
        h = torch.tanh(x + h + torch.randn_like(h)) * nn.functional.dropout(x, 0.5)
        return h, h

    x, h = ragged([3, 0, 5]), states(None, 3)
    runs = []
    for seed in (5, 5, 6):  # the first call, which tries the step, draws no more than the others
        torch.manual_seed(seed)
        runs.append((recurrent(step, x, h)[0].values, torch.rand(3, device=GPU)))
    close(runs[0], runs[1])
    assert not torch.equal(runs[0][0], runs[2][0])
    drawn = [outcome(step, x, h, "auto", **how) for how in ({}, {}, {"checkpoint": 2})]
    close(drawn[0], drawn[1])
    assert len(drawn[2]) == len(drawn[0])


MODULES = [(stepnet.nn.LSTM, nn.LSTM), (stepnet.nn.GRU, nn.GRU), (stepnet.nn.RNN, nn.RNN)]


@pytest.mark.parametrize(("make", "of_torch"), MODULES)
def test_modules_are_those_of_torch(make, of_torch):
    how = {"num_layers": 2, "bidirectional": True, "device": GPU}
    ours, theirs = make(8, 16, **how, dtype=DTYPE), of_torch(8, 16, **how, dtype=DTYPE)
    theirs.load_state_dict(ours.state_dict())
    sequences = [torch.randn(n, 8, device=GPU, dtype=DTYPE) for n in (1, 5, 3)]
    packed = nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
    for x in (packed, torch.randn(7, 3, 8, device=GPU, dtype=DTYPE), sequences[1]):
        y, last = zip(ours(x), theirs(x), strict=True)
        a, b = (part.data if x is packed else part for part in y)
        close(a, b)
        close(*last)
        close(*(torch.autograd.grad(t.sum(), m.parameters()) for t, m in ((a, ours), (b, theirs))))
    low = make(8, 16, **how), of_torch(8, 16, **how)
    low[1].load_state_dict(low[0].state_dict())
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast(GPU, dtype), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = torch.randn(7, 3, 8, device=GPU)
            (a, last), (b, _) = (m(x) for m in low)
        assert {t.dtype for t in (a, *flatten(last)[0])} == {dtype}
        torch.testing.assert_close(a.float(), b.float(), rtol=0.02, atol=0.02)


def test_a_module_that_moves():
    module, x = stepnet.nn.LSTM(4, 6), torch.randn(5, 2, 4)
    there = module(x)[0].detach()
    for device, dtype in ((GPU, torch.float32), ("cpu", torch.float32), (GPU, DTYPE)):
        module.to(device, dtype)
        y = module(x.to(device, dtype))[0]
        y.sum().backward()
        near(y.detach().cpu().float(), there)
        assert module.weight_hh_l0.grad.device.type == device


def test_where_torch_makes_all_on_the_gpu():
    try:
        torch.set_default_device(GPU)
        module, step = stepnet.nn.GRU(4, 6), cells.LSTM(4, 6)
        x = torch.randn(5, 2, 4)
        assert module(x)[0].is_cuda
        check(step, torch.randn(5, 2, 4, requires_grad=True), None, near)
        check(lambda x, h: ((h := torch.tanh(x + h + torch.ones(4))), h), x, torch.zeros(2, 4), near)
    finally:
        torch.set_default_device(None)
    near(module(x)[0], module(x)[0])


def test_derivatives():
    step = cells.GRU(4, 6).to(GPU, DTYPE)
    h = torch.zeros(3, 6, device=GPU, dtype=DTYPE)
    x = torch.randn(5, 3, 4, device=GPU, dtype=DTYPE, requires_grad=True)

    def loss(x, backend="auto"):
        return recurrent(step, x, h, backend=backend)[0].square().sum()

    plain = functools.partial(loss, backend="naive")
    close(torch.func.grad(loss)(x), torch.func.grad(plain)(x))
    close(torch.func.jvp(loss, (x,), (x,)), torch.func.jvp(plain, (x,), (x,)))
    many = torch.randn(4, 5, 3, 4, device=GPU, dtype=DTYPE)
    close(torch.vmap(torch.func.grad(loss))(many), torch.stack([torch.func.grad(plain)(v) for v in many]))
    (first,), (plainly,) = (torch.autograd.grad(f(x), x, create_graph=True) for f in (loss, plain))
    close(*(torch.autograd.grad(g.square().sum(), x) for g in (first, plainly)))


class Model(nn.Module):
    def __init__(self, kind=stepnet.nn.LSTM):
        super().__init__()
        self.layer, self.out = kind(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        y = self.layer(x)[0]
        return self.out(stepnet.sequence_pool(y, "max") if isinstance(y, LoDTensor) else y)


def test_compiled_and_exported():
    model = Model().to(GPU)
    compiled = torch.compile(model, fullgraph=CAN_CAPTURE, backend="aot_eager")
    for x in (
        torch.randn(5, 3, 4, device=GPU),
        torch.randn(8, 3, 4, device=GPU),
        ragged([3, 1], 4, torch.float32),
    ):
        a, b = compiled(x), model(x)
        near(a, b)
        near(*(torch.autograd.grad(t.sum(), model.parameters()) for t in (a, b)))
    if not CAN_CAPTURE:
        return
    dims = {0: torch.export.Dim("T"), 1: torch.export.Dim("B")}
    program = torch.export.export(model, (torch.randn(5, 3, 4, device=GPU),), dynamic_shapes=(dims,))
    x = torch.randn(9, 2, 4, device=GPU)
    near(program.module()(x), model(x))


@pytest.mark.parametrize("kind", ["time first", "batch first", "ragged"])
@pytest.mark.parametrize("trained", [False, True])
def test_a_cuda_graph_of_a_call(kind, trained):
    module = stepnet.nn.GRU(4, 8, device=GPU, batch_first=kind == "batch first")
    lengths = [3, 1, 0, 5]
    rows = torch.randn(9, 4, device=GPU)
    x = LoDTensor.from_lengths(rows, [lengths]) if kind == "ragged" else torch.randn(5, 3, 4, device=GPU)

    def call():
        with torch.set_grad_enabled(trained):
            y = module(x)[0]
            y = y.values if isinstance(y, LoDTensor) else y
            return [y, *(torch.autograd.grad(y.square().sum(), module.parameters()) if trained else ())]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for _ in range(2):
        (rows if kind == "ragged" else x).normal_()
        graph.replay()
        near(captured, call())


def test_a_cuda_graph_of_a_batch_that_is_new():
    module, graph = stepnet.nn.GRU(4, 8, device=GPU), torch.cuda.CUDAGraph()
    x = LoDTensor.from_lengths(torch.randn(9, 4, device=GPU), [[2, 7]])
    module(LoDTensor.from_lengths(torch.randn(9, 4, device=GPU), [[1, 8]]))
    with pytest.raises(LoopError, match="once before"), torch.cuda.graph(graph):
        module(x)
    torch.cuda.synchronize()
    assert module(x)[0].values.is_cuda


def test_several_streams():
    module, x = stepnet.nn.GRU(64, 64, device=GPU), ragged([50, 3, 0, 17], 64, torch.float32)
    wanted = module(x)[0].values.detach()
    streams = [torch.cuda.Stream() for _ in range(3)]
    found = []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            found.append(module(x)[0].values)
    torch.cuda.synchronize()
    for y in found:
        near(y, wanted)


def test_streams_and_words():
    module = stepnet.nn.LSTM(4, 6, device=GPU, dtype=DTYPE)
    x = torch.randn(9, 4, device=GPU, dtype=DTYPE)
    stream = stepnet.stream(module)
    a, b = stream.open(), stream.open()
    got = [stream.push({a: x[i:j], b: x[i:j]}) for i, j in ((0, 2), (2, 3), (3, 9))]
    close(torch.cat([part[a] for part in got]), module(x)[0])
    table, cell, out = nn.Embedding(9, 4), cells.GRU(4, 6), nn.Linear(6, 9)

    def step(word, h):
        y, h = cell(table(word), h)
        return out(y), h

    h = torch.randn(3, 6)
    for search in (decode.greedy, functools.partial(decode.beam_search, beam_size=2)):
        found = []
        for device in ("cpu", GPU):
            for module in (table, cell, out):
                module.to(device)
            found.append(search(step, h.to(device), bos=0, eos=1, max_length=7))
            found[-1] = search(step, h.to(device), bos=0, eos=1, max_length=7)
        (words, score), (words_there, score_there) = found
        assert words_there.values.is_cuda
        assert words_there.values.tolist() == words.values.tolist()
        if isinstance(score, LoDTensor):
            score, score_there = score.values, score_there.values
        assert score_there.is_cuda
        near(score_there.cpu(), score)


def test_batches():
    x = ragged([3, 0, 5])
    for result in (x + 1, torch.tanh(x), stepnet.sequence_reverse(x), x.detach().clone(), x[1:],
                   stepnet.sequence_softmax(ragged([3, 0], 1)),
                   stepnet.sequence_expand(ragged([1, 1, 1]), x)):  # fmt: skip
        assert result.values.is_cuda
    for pooling in ("sum", "mean", "sqrt", "max", "first", "last"):
        near(stepnet.sequence_pool(x, pooling).cpu(), stepnet.sequence_pool(x.cpu(), pooling))
    sequences = [torch.randn(n, 4) for n in (3, 1, 5, 2)]
    for workers in (0, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fork beside threads
            loader = DataLoader(sequences, 2, collate_fn=collate, pin_memory=True, num_workers=workers)
            for batch in loader:
                assert batch.values.is_pinned()
                assert batch.to(GPU, non_blocking=True).values.is_cuda
    file = io.BytesIO()
    torch.save(x.detach(), file)
    file.seek(0)
    assert torch.load(file, weights_only=False, map_location="cpu").values.is_cpu
    near(pickle.loads(pickle.dumps(x.detach())).values, x.values.detach())
    jagged = torch.nested.nested_tensor([torch.randn(n, 4, device=GPU) for n in (3, 1)], layout=torch.jagged)
    assert LoDTensor.from_nested(jagged).values.is_cuda
    array = stepnet.TensorArray()
    array.unpack(x, 0)
    assert array.read(0).device.type == GPU


@pytest.mark.parametrize("format", ["onnx", "openvino"])
def test_files(format, tmp_path):
    pytest.importorskip(format)
    module, x = stepnet.nn.LSTM(4, 8, device=GPU), torch.randn(5, 2, 4, device=GPU)
    path = tmp_path / ("a.onnx" if format == "onnx" else "a.xml")
    getattr(stepnet, format).save(module, path, x)
    loaded, x = getattr(stepnet, format).load(path), torch.randn(7, 3, 4, device=GPU)
    found = loaded(x.cpu())
    near(next(iter(found.values())), module(x)[0].cpu())
    near(next(iter(loaded.to(GPU)(x).values())), module(x)[0])


def test_loops():
    zero = torch.zeros((), dtype=torch.long, device=GPU)
    i, h = stepnet.while_loop(
        lambda i, h: i < 5, lambda i, h: (i + 1, h * 2), (zero, torch.ones(3, device=GPU))
    )
    assert i.item() == 5
    assert h.tolist() == [32.0] * 3
    h = torch.rand(5, 3, device=GPU)
    for place in ("cpu", GPU):
        with torch.device(place):
            (grown,) = stepnet.while_loop(lambda h: h.sum(1) < 9, lambda h: (h * 1.5,), (h,))
        assert grown.is_cuda
        assert (grown.sum(1) >= 9).all()
    assert stepnet.map_fn(lambda x: x * 2, torch.ones(3, 2, device=GPU)).is_cuda


def test_mixed_precision_training():
    model = Model(stepnet.nn.GRU).to(GPU)
    optimizer, scaler = torch.optim.Adam(model.parameters(), 1e-2), torch.amp.GradScaler(GPU)
    x, target = ragged([9, 2, 0, 5], 4, torch.float32).detach(), torch.randn(4, 2, device=GPU)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast(GPU, torch.float16), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = nn.functional.mse_loss(model(x), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.7


def test_tensors_on_two_devices():
    step, x = cells.GRU(4, 6), ragged([3, 2], 4, torch.float32)
    there, here = torch.zeros(2, 6, device=GPU), torch.zeros(2, 6)
    for rows, state in ((x, there), (x, here), (x.cpu(), there)):
        with pytest.raises(StepError, match=r"one device: .to\(x.device\)"):
            recurrent(step, rows, state)
    step.to(GPU)
    for rows, state in ((x.cpu(), here), (x, here)):
        with pytest.raises(StepError, match="one device"):
            recurrent(step, rows, state)
    with pytest.raises(Unsupported, match="generated C runs on the CPU"):
        recurrent(step, x, there, backend="c")
    assert recurrent(step, x, there)[0].values.is_cuda
