"""dynamic_recurrent against one loop per sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stepnet
from stepnet.data.lod import LoDTensor
from stepnet.errors import LoDError, StepError, Unsupported
from stepnet.front.memory import Memory
from stepnet.front.scope import Scope
from stepnet.loops.dynamic import dynamic_recurrent
from stepnet.loops.recurrent_op import RecurrentOp

LENGTHS = [[3, 5, 1], [2], [0, 4, 0, 4, 1], [1, 1], [0], []]
U = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
MEMORIES = [Memory("h", "h_pre", init="boot"), Memory("n", "n_pre", shape=(1,), value=4.0)]


def f64(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def rnn(step: Scope) -> None:
    step["n"] = step["n_pre"] + 1
    step["h"] = torch.tanh(step["h_pre"] @ U + step["x"] @ step["W"] + step["scale"]) * step["m"]
    step["y"] = step["h"] + step["n"]


def a_scope(lengths: list[int]) -> Scope:
    n, rows = len(lengths), sum(lengths)
    x, m = (LoDTensor.from_lengths(f64(rows, size), [lengths]) for size in (3, 1))
    return Scope({"x": x, "m": m, "boot": f64(n, 2), "scale": f64(n, 1), "W": f64(3, 2)})


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", [None, "naive"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_each_sequence_is_run_by_itself(lengths, reverse, backend):
    scope = a_scope(lengths)
    options = {"static_inputs": ["scale"], "reverse": reverse, "backend": backend}
    last = dynamic_recurrent(rnn, scope, ["x", "m"], ["y", "h"], MEMORIES, **options)
    ys, hs, ns = [], [], []
    for i in range(len(lengths)):
        h, n, outputs = scope["boot"][i : i + 1], 4.0, []
        pairs = list(zip(scope["x"][i], scope["m"][i], strict=True))
        for x, m in reversed(pairs) if reverse else pairs:
            h, n = torch.tanh(h @ U + x @ scope["W"] + scope["scale"][i]) * m, n + 1
            outputs.append(h + n)
        ys += reversed(outputs) if reverse else outputs
        hs.append(h)
        ns.append(n)
    expected = torch.cat([*ys, torch.zeros(0, 2, dtype=torch.float64)])
    final = torch.cat([*hs, torch.zeros(0, 2, dtype=torch.float64)])
    torch.testing.assert_close(scope["y"].values, expected)
    torch.testing.assert_close(last["h"], final)
    assert last["n"].flatten().tolist() == ns
    assert scope["h"].lengths().tolist() == lengths
    if sum(lengths):
        wanted = [scope["x"].values, scope["m"].values, scope["boot"], scope["scale"], scope["W"], U]
        ours = (scope["y"].values.pow(2).sum() + last["h"].sum()).reshape(())
        theirs = expected.pow(2).sum() + final.sum()
        torch.testing.assert_close(torch.autograd.grad(ours, wanted), torch.autograd.grad(theirs, wanted))


def attend(step: Scope) -> None:
    """Attention over a ragged memory: a softmax within each sequence, by sums over its rows."""
    memory = step["memory"]
    owner = torch.repeat_interleave(torch.arange(len(memory)), memory.lengths())
    scores = (memory.values * step["h_pre"][owner]).sum(1).exp()
    zeros = torch.zeros(len(memory), dtype=scores.dtype)
    shares = scores / zeros.index_add(0, owner, scores)[owner]
    context = torch.zeros_like(step["h_pre"]).index_add(0, owner, memory.values * shares[:, None])
    step["h"] = torch.tanh(context + step["x"])


def test_a_ragged_static_input_is_in_the_callers_order_and_shrinks():
    lengths, held = [2, 4, 1, 0], [[3, 1, 2, 2]]
    sizes = []

    def watched(step: Scope) -> None:
        sizes.append(step["memory"].lengths().tolist())
        attend(step)

    scope = Scope({"x": LoDTensor.from_lengths(f64(7, 2), [lengths]), "boot": f64(4, 2),
                   "memory": LoDTensor.from_lengths(f64(8, 2), held)})  # fmt: skip
    dynamic_recurrent(watched, scope, ["x"], ["h"], MEMORIES[:1], static_inputs=["memory"])
    assert sizes == [[1, 3, 2], [1, 3], [1], [1]]
    expected = []
    for i in range(len(lengths)):
        h, rows = scope["boot"][i], scope["memory"][i]
        for x in scope["x"][i]:
            h = torch.tanh((rows @ h).softmax(0) @ rows + x)
            expected.append(h)
    torch.testing.assert_close(scope["h"].values, torch.stack(expected))
    wanted = [scope["memory"].values, scope["x"].values, scope["boot"]]
    ours = torch.autograd.grad(scope["h"].values.pow(2).sum(), wanted)
    theirs = torch.autograd.grad(torch.stack(expected).pow(2).sum(), wanted)
    torch.testing.assert_close(ours, theirs)


def test_explain_says_why_a_ragged_static_input_is_not_compiled():
    def model(scope: Scope) -> None:
        dynamic_recurrent(attend, scope, ["x"], ["h"], MEMORIES[:1], static_inputs=["memory"])

    x, memory = (LoDTensor.from_lengths(f64(4, 2), [[1, 3]]) for _ in range(2))
    told = stepnet.explain(model, Scope({"x": x, "memory": memory, "boot": f64(2, 2)}))
    (one,) = told.recurrences
    assert one.executor == "naive"
    assert "static input 'memory' is ragged" in str(one)
    assert "padded=['memory']" in str(one)


@pytest.mark.parametrize("backend", ["c", "eager"])
def test_a_backend_by_name_says_why_it_does_not_run_a_ragged_static_input(backend):
    x, memory = (LoDTensor.from_lengths(f64(4, 2), [[1, 3]]) for _ in range(2))
    scope = Scope({"x": x, "memory": memory, "boot": f64(2, 2)})
    with pytest.raises(Unsupported, match=r"(?s)'memory' is ragged.*padded=\['memory'\]"):
        dynamic_recurrent(
            attend, scope, ["x"], ["h"], MEMORIES[:1], static_inputs=["memory"], backend=backend
        )


def attend_padded(step: Scope) -> None:
    """The same attention over rows side by side, which compiles."""
    rows, mask = step["memory"]
    scores = (rows * step["h_pre"][:, None]).sum(2).masked_fill(~mask, -torch.inf)
    step["h"] = torch.tanh((torch.softmax(scores, 1)[..., None] * rows).sum(1) + step["x"] * step["scale"])


def attended(stepnet_: Any, backend: Any, reverse: bool, **how: Any) -> list[Tensor]:
    torch.manual_seed(1)
    scope = Scope({"x": LoDTensor.from_lengths(f64(7, 2), [[2, 4, 0, 1]]), "boot": f64(4, 2),
                   "memory": LoDTensor.from_lengths(f64(8, 2), [[3, 1, 2, 2]])})  # fmt: skip
    scope["scale"] = f64(4, 1)
    names = ["memory", "scale"]
    last = dynamic_recurrent(
        stepnet_,
        scope,
        ["x"],
        ["h"],
        MEMORIES[:1],
        static_inputs=names,
        backend=backend,
        reverse=reverse,
        **how,
    )
    wanted = [scope[name].values for name in ("memory", "x")] + [scope["boot"], scope["scale"]]
    total = scope["h"].values.pow(2).sum() + last["h"].sum()
    return [scope["h"].values, last["h"], *torch.autograd.grad(total, wanted)]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_a_padded_static_input_compiles(reverse):
    def ragged(step: Scope) -> None:
        step["x"] = step["x"] * step["scale"]
        attend(step)

    expected = attended(ragged, "naive", reverse)
    for backend in ("naive", "c"):
        found = attended(attend_padded, backend, reverse, padded=["memory"])
        torch.testing.assert_close(found, expected)


def test_only_static_inputs_are_padded():
    scope = a_scope([2, 1])
    with pytest.raises(StepError, match="'m' in padded= is no static input"):
        dynamic_recurrent(rnn, scope, ["x", "m"], ["h"], MEMORIES, static_inputs=["scale"], padded=["m"])


def test_steps_over_an_outer_level_get_whole_sequences():
    x = LoDTensor.from_lengths(torch.arange(9.0)[:, None], [[2, 1], [3, 2, 4]])

    def longest(step: Scope) -> None:
        step["h"] = torch.maximum(step["h_pre"], step["x"].lengths()[:, None].float())

    scope = Scope({"x": x})
    memory = Memory("h", "h_pre", shape=(1,))
    last = dynamic_recurrent(longest, scope, ["x"], ["h"], [memory], level=0, backend="naive")
    assert last["h"].flatten().tolist() == [3, 4]
    assert scope["h"].lengths().tolist() == [2, 1]


def test_the_same_stepnet_runs_in_both():
    def net(step: Scope) -> None:
        step["h"] = torch.tanh(step["h_pre"] @ U + step["x"])

    x, boot = f64(4, 3, 2), f64(3, 2)
    fixed = Scope({"x": x, "boot": boot})
    RecurrentOp(net, ["x"], ["h"], MEMORIES[:1]).run(fixed)
    ragged = Scope({"x": LoDTensor.from_padded(x, [4, 4, 4], batch_first=False), "boot": boot})
    dynamic_recurrent(net, ragged, ["x"], ["h"], MEMORIES[:1])
    torch.testing.assert_close(ragged["h"].to_padded(batch_first=False)[0], fixed["h"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"x": torch.ones(3, 2)}, ["input 'x' is float32[3, 2]", "RecurrentOp"]),
        ({"boot": torch.ones(2, 2)}, ["init 'boot' of memory 'h' is float32[2, 2]", "3 rows"]),
        ({"scale": torch.ones(4, 1)}, ["static input 'scale' is float32[4, 1]", "3 rows"]),
        ({"scale": None}, ["static input 'scale' is not in the scope"]),
        ({"m": LoDTensor.from_lengths(torch.ones(9, 1), [[5, 3, 1]])}, ["same lengths"]),
    ],
    ids=["no LoDTensor", "init", "static input", "no static input", "lengths"],
)
def test_errors_name_what_does_not_fit(values, words):
    scope = a_scope([3, 5, 1])
    for name, value in values.items():
        scope[name] = value
    with pytest.raises((StepError, LoDError)) as caught:
        dynamic_recurrent(rnn, scope, ["x", "m"], ["y"], MEMORIES, static_inputs=["scale"])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"inputs": "xm"}, "'inputs' must be a list"),
        ({"outputs": "y"}, "'outputs' must be a list"),
        ({"static_inputs": "scale"}, "'static_inputs' must be a list"),
        ({"padded": [3]}, "'padded' must be a list"),
        ({"level": "words"}, "'level' must be a whole number"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_arguments_of_another_kind_are_told(wrong, words):
    given = {"inputs": ["x", "m"], "outputs": ["y"], "memories": MEMORIES} | wrong
    with pytest.raises(StepError, match=f"dynamic_recurrent: {words}"):
        dynamic_recurrent(rnn, a_scope([2, 1]), **given)


def test_what_the_stepnet_forgets_is_named():
    scope = a_scope([2, 1])
    with pytest.raises(StepError, match="did not write 'z'"):
        dynamic_recurrent(rnn, scope, ["x", "m"], ["z"], MEMORIES, static_inputs=["scale"], backend="naive")


def test_weights_in_the_scope_are_found_and_read_anew():
    x, weight = LoDTensor.from_lengths(torch.randn(6, 3), [[2, 0, 4]]), torch.randn(3, 3, requires_grad=True)

    def stepnet_(scope):
        scope["h"] = torch.tanh(scope["x"] @ scope["W"] + scope["before"])

    def run(backend, weight):
        scope = Scope({"x": x, "W": weight})
        memory = Memory("h", "before", shape=(3,))
        dynamic_recurrent(stepnet_, scope, ["x"], ["h"], [memory], backend=backend)
        values = scope["h"].values
        return values, *torch.autograd.grad(values.sum(), weight)

    for given in (weight, (weight * 2).detach().requires_grad_()):
        torch.testing.assert_close(run("eager", given), run("naive", given))
