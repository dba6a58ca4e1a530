"""The RNN op: shapes by name, memories by reference, scopes that can be read, memory that does not grow."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import stepnet
from front.live_memory import LiveMemory
from stepnet.compiler.reads.reach import reach
from stepnet.data.lod import LoDTensor
from stepnet.errors import StepError
from stepnet.front.memory import Memory
from stepnet.front.scope import Scope
from stepnet.loops.recurrent_op import RecurrentOp

T, B, I, H = 7, 5, 3, 2
U = torch.randn(H, H, dtype=torch.float64, requires_grad=True)


def rnn(step: Scope) -> None:
    """Two inputs, two memories, two outputs."""
    step["gate"] = torch.sigmoid(step["m"])
    step["h"] = torch.tanh(step["h_pre"] @ U + step["gate"] * (step["x"] @ step["W"]))
    step["count"] = step["count_pre"] + 1
    step["y"] = step["h"] * step["count"]


MEMORIES = [Memory("h", "h_pre", init="h_boot"), Memory("count", "count_pre", shape=(1,), value=2.0)]


def an_op(reverse: bool = False) -> RecurrentOp:
    return RecurrentOp(rnn, ["x", "m"], ["y", "h"], MEMORIES, reverse=reverse)


def a_scope(steps: int = T) -> Scope:
    values = {"x": (steps, B, I), "m": (steps, B, 1), "W": (I, H), "h_boot": (B, H)}
    weights = {
        name: torch.randn(shape, dtype=torch.float64, requires_grad=True) for name, shape in values.items()
    }
    return Scope({"W": weights.pop("W")}).new_scope(weights)


def plain(scope: Scope, reverse: bool) -> tuple[Tensor, Tensor]:
    x, m, h, ys, hs = scope["x"], scope["m"], scope["h_boot"], {}, {}
    order = range(len(x))
    for count, t in enumerate(reversed(order) if reverse else order, 3):
        h = torch.tanh(h @ U + torch.sigmoid(m[t]) * (x[t] @ scope["W"]))
        ys[t], hs[t] = h * count, h
    return torch.stack([ys[t] for t in order]), torch.stack([hs[t] for t in order])


@pytest.mark.parametrize("keep_scopes", [True, False], ids=["scopes", "compiled"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("steps", [1, T])
def test_outputs_and_gradients_are_those_of_a_plain_loop(keep_scopes, reverse, steps):
    scope = a_scope(steps)
    op = an_op(reverse)
    op.run(scope, keep_scopes=keep_scopes)
    expected = plain(scope, reverse)
    wanted = [scope[name] for name in ("x", "m", "W", "h_boot")] + [U]
    for ours, theirs in zip((scope["y"], scope["h"]), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
        seeds = torch.randn_like(theirs)
        torch.testing.assert_close(
            torch.autograd.grad(ours, wanted, seeds, retain_graph=True),
            torch.autograd.grad(theirs, wanted, seeds, retain_graph=True),
        )
    torch.testing.assert_close(op.last["h"], expected[1][0 if reverse else -1])
    assert op.last["count"].unique().tolist() == [2.0 + steps]


def test_no_steps_give_empty_outputs_and_the_inits():
    scope = a_scope(0)
    op = an_op()
    op.run(scope)
    assert scope["y"].shape == (0, B, H)
    assert torch.equal(op.last["h"], scope["h_boot"])
    assert len(op.scopes) == 0


def test_step_scopes_can_be_read():
    scope = a_scope()
    op = an_op()
    op.run(scope)
    assert len(op.scopes) == T
    for t, step in enumerate(op.scopes):
        assert torch.equal(step["h"], scope["h"][t])
        assert torch.equal(step["gate"], torch.sigmoid(scope["m"][t]))
        assert step["W"] is scope["W"]  # through the parents
    assert torch.equal(op.scopes[-1]["h"], op.last["h"])
    with pytest.raises(IndexError, match="there is no step 7"):
        op.scopes[T]


@pytest.mark.parametrize("training", [True, False])
def test_a_pre_memory_is_a_reference(training):
    scope = a_scope()
    op = an_op()
    with torch.set_grad_enabled(training):
        op.run(scope)
    assert op.scopes[T - 1]["h_pre"] is op.scopes[T - 2]["h"]
    if training:
        assert op.scopes[0]["h_pre"] is scope["h_boot"]


def test_the_four_calls_by_hand():
    scope = a_scope()
    op = an_op()
    steps = op.create_scopes(scope)
    assert len(steps) == T
    op.init_memories(steps)
    assert steps[0]["h_pre"] is scope["h_boot"]
    for step in steps:
        rnn(step)
    torch.testing.assert_close(torch.stack([step["y"] for step in steps]), plain(scope, False)[0])
    with torch.no_grad():
        assert len(op.create_scopes(scope)) == 2


def test_shapes_are_inferred_without_running_on_data():
    calls = []

    def watched(step: Scope) -> None:
        rnn(step)
        calls.append(step["h"].device.type)

    op = RecurrentOp(watched, ["x", "m"], ["y", "h", "gate"], MEMORIES)
    assert op.infer_shape(a_scope()) == {"y": (T, B, H), "h": (T, B, H), "gate": (T, B, 1)}
    assert calls == ["meta"]


def test_shapes_of_a_module_are_inferred():
    cell = nn.GRUCell(I, H).double()

    def net(step: Scope) -> None:
        step["h"] = cell(step["x"], step["h_pre"])

    op = RecurrentOp(net, ["x"], ["h"], [Memory("h", "h_pre", "h_boot")])
    assert op.infer_shape(a_scope()) == {"h": (T, B, H)}


def test_inference_has_two_scopes_and_the_same_outputs():
    scope = a_scope()
    op = an_op()
    with torch.no_grad():
        op.run(scope)
    torch.testing.assert_close(scope["y"], plain(scope, False)[0])
    assert torch.equal(op.scopes[T - 1]["h"], scope["h"][-1])
    with pytest.raises(StepError, match="scope of step 2 was used again"):
        op.scopes[2]


def peak_of_inference(steps: int) -> int:
    def wide(step: Scope) -> None:
        step["a"] = step["h_pre"] + step["x"]
        step["b"] = torch.tanh(step["a"])
        step["h"] = step["b"] * 0.5

    x, boot = torch.randn(1, 1).expand(steps, 1), torch.zeros(64, 64)
    op = RecurrentOp(wide, ["x"], [], [Memory("h", "h_pre", "boot")])
    with torch.no_grad(), LiveMemory() as memory:
        op.run(Scope({"x": x, "boot": boot}))
    assert torch.equal(op.last["h"], op.scopes[-1]["h"])
    return memory.peak


def test_memory_in_inference_does_not_grow_with_the_steps():
    assert peak_of_inference(400) == peak_of_inference(40) <= 8 * 64 * 64 * 4


def broken(step: Scope) -> None:
    step["h"] = step["x"] @ torch.ones(I, H + 1, dtype=torch.float64)
    step["extra"] = 3


@pytest.mark.parametrize(
    ("stepnet_", "values", "options", "words"),
    [
        (broken, {}, {}, ["3 thing(s)", "memory 'h' starts as float64[5, 2] and becomes float64[5, 3]",
                          "output 'y' is never written", "output 'extra' is no tensor"]),
        (rnn, {"m": torch.ones(T + 1, B, 1)}, {}, ["different lengths: 'x' 7, 'm' 8"]),
        (rnn, {"x": LoDTensor(torch.ones(3, I), [[0, 1, 3]])}, {}, ["'x' is ragged", "dynamic_recurrent"]),
        (rnn, {"x": 3}, {}, ["input 'x' is int"]),
        (rnn, {"h_boot": 3}, {}, ["memory 'h': its init 'h_boot' is no tensor"]),
        (rnn, {"W": torch.ones(4, 4).double()}, {}, ["stepnet 'rnn' fails", "x float64[5, 3]"]),
        (rnn, {}, {"inputs": ["x", "m", "z"]}, ["input 'z' is not in the scope"]),
    ],
)  # fmt: skip
def test_every_mismatch_is_named(stepnet_, values, options, words):
    scope = a_scope()
    for name, value in values.items():
        scope[name] = value
    outputs = ["y", "h", "extra"] if stepnet_ is broken else ["y"]
    op = RecurrentOp(stepnet_, options.get("inputs", ["x", "m"]), outputs, [MEMORIES[0], *MEMORIES[1:]][: 1 if stepnet_ is broken else 2])  # fmt: skip # noqa: E501
    with pytest.raises(StepError) as caught:
        op.infer_shape(scope)
    for word in words:
        assert word in str(caught.value)
    with pytest.raises(StepError, match=r"do not fit|fails"):
        op.run(scope)


def test_a_dict_is_no_scope():
    op, values = RecurrentOp(rnn, ["x"], ["y"]), {"x": torch.ones(2, B, I)}
    for call in (op.run, op.infer_shape, op.create_scopes):
        with pytest.raises(StepError, match="are in a Scope"):
            call(values)


def test_a_memory_needs_one_beginning():
    for wrong in ({}, {"init": "a", "shape": (1,)}):
        with pytest.raises(StepError, match="either from an init or from a shape"):
            Memory("h", "h_pre", **wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"shape": 4}, "'shape' is that of one row, a tuple"),
        ({"shape": (2.5,)}, "a size in 'shape' must be"),
        ({"shape": (4,), "value": "zero"}, "'value' must be a number"),
        ({"shape": (4,), "value": True}, "'value' must be a number"),
    ],
)
def test_a_memory_is_told_what_does_not_make_one(wrong, words):
    with pytest.raises(StepError, match=f"memory 'h': {words}"):
        Memory("h", "h_pre", **wrong)


@pytest.mark.parametrize("start", [False, True])
def test_a_memory_of_truth_values_starts_with_one(start):
    def net(scope):
        scope["seen"] = scope["seen_pre"] | (scope["x"] > 1)

    op = RecurrentOp(
        net, ["x"], ["seen"], [Memory("seen", "seen_pre", shape=(1,), value=start, dtype=torch.bool)]
    )
    scope = Scope({"x": torch.tensor([0.0, 2, 0]).reshape(3, 1, 1)})
    op.run(scope)
    assert scope["seen"].flatten().tolist() == [start, True, True]


@pytest.mark.parametrize("given", [None, [3], [Scope({"x": 1, "m": 1})], [Scope().new_scope()]])
def test_only_scopes_of_steps_have_memories(given):
    with pytest.raises(StepError, match="init_memories"):
        an_op().init_memories(given)


@pytest.mark.parametrize("pre_names", [("h_pre", "h_pre"), ("h_pre", "other")], ids=["pre_name", "name"])
def test_memories_have_names_of_their_own(pre_names):
    names = ("h", "h") if pre_names[1] == "other" else ("h", "g")
    memories = [Memory(*both, shape=(H,)) for both in zip(names, pre_names, strict=True)]
    with pytest.raises(StepError, match="RecurrentOp: two memories have the name 'h"):
        RecurrentOp(rnn, ["x"], ["h"], memories)
    with pytest.raises(StepError, match="dynamic_recurrent: two memories have the name 'h"):
        stepnet.dynamic_recurrent(rnn, Scope(), ["x"], ["h"], memories)


def test_a_pre_memory_hides_no_input():
    memory = Memory("h", "x", shape=(H,))
    with pytest.raises(StepError, match="RecurrentOp: an input and a pre-memory have the name 'x'"):
        RecurrentOp(rnn, ["x"], ["h"], [memory])
    with pytest.raises(StepError, match="dynamic_recurrent: an input and a pre-memory have the name 'x'"):
        stepnet.dynamic_recurrent(rnn, Scope(), ["y"], ["h"], [memory], static_inputs=["x"])


def test_an_output_is_not_written_over_an_init():
    memory = Memory("h", "h_pre", init="h")  # a second run would start from [T, B, H]
    with pytest.raises(StepError, match="RecurrentOp: an output and an init have the name 'h'"):
        RecurrentOp(rnn, ["x"], ["h"], [memory])
    with pytest.raises(StepError, match="dynamic_recurrent: an output and an init have the name 'h'"):
        stepnet.dynamic_recurrent(rnn, Scope(), ["x"], ["h"], [memory])


def test_what_a_step_writes_over_its_pre_memory_is_its_own():
    def over(step):
        step["h_pre"] = step["h_pre"] + 100
        step["h"] = step["h_pre"] + step["x"]

    op = RecurrentOp(over, ["x"], ["h"], [Memory("h", "h_pre", "h_boot")])
    scope = Scope({"x": torch.ones(3, 1, 1), "h_boot": torch.zeros(1, 1)})
    op.run(scope)
    assert [step["h"].item() for step in op.scopes] == scope["h"].flatten().tolist() == [101, 202, 303]


def test_an_op_is_copied_without_what_its_run_left():
    op, scope = an_op(), a_scope()
    op.run(scope)  # what it holds now has gradients: torch would not copy it
    again = copy.deepcopy(op)
    assert (len(again.scopes), again.last) == (0, {})
    y = scope["y"]
    again.run(scope)
    assert torch.equal(scope["y"], y)


class OwnStep(nn.Module):
    """A module whose op runs a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(I, H)
        self.op = RecurrentOp(self.step, ["x"], ["h"], [Memory("h", "h_pre", shape=(H,))])

    def step(self, step: Scope) -> None:
        step["h"] = self.cell(step["x"], step["h_pre"])


def test_what_runs_left_is_read_only_by_code_that_names_it():
    module = OwnStep()

    def reader(step: Scope) -> None:
        step["h"] = step["h_pre"] + module.op.last["h"].sum()

    keys = set()
    for steps in (2, 3):
        module.op.run(Scope({"x": torch.randn(steps, B, I)}))
        keys.add(reach(module.step).key)
        assert any(tensor is module.op.last["h"] for tensor in reach(reader).tensors)
    assert len(keys) == 1  # one plan, however many steps a run before had


def test_a_run_that_keeps_no_scopes_says_so():
    op = an_op()
    op.run(a_scope(), keep_scopes=False)
    with pytest.raises(StepError, match="kept no scopes"):
        op.scopes[0]


def test_what_a_scope_lacks_is_told_beside_all_that_is_in_reach():
    with pytest.raises(StepError, match=r"one of \['w', 'h'\]"):
        Scope({"w": 1}).new_scope({"h": 2})["z"]
    with pytest.raises(StepError, match="must be a dict"):
        Scope(3)  # type: ignore[arg-type]


def test_a_variable_is_shared_not_copied():
    outer = Scope({"a": 1})
    inner = outer.new_scope()
    inner.share("b", outer.var("a"))
    outer["a"] = 5
    assert (inner["b"], inner["a"], list(inner)) == (5, 5, ["b"])
    assert inner.var("new").value is None
    assert "new" not in inner
    assert inner.all_values() == {"a": 5, "b": 5}
    with pytest.raises(StepError, match="no value named 'z'"):
        inner["z"]


def test_names_are_exported():
    assert stepnet.RecurrentOp is RecurrentOp
    assert stepnet.Memory is Memory


def test_outputs_of_no_steps_have_the_dtypes_of_others():
    def counting(step):
        step["n"] = step["n_pre"] + 1
        step["odd"], step["wide"] = step["n"] % 2 == 1, step["x"].double()

    op = RecurrentOp(counting, ["x"], ["n", "odd", "wide", "x"], [Memory("n", "n_pre", "n_boot")])
    found = []
    for steps in (2, 0):
        scope = Scope({"x": torch.ones(steps, 3, 2), "n_boot": torch.zeros(3, dtype=torch.int64)})
        op.run(scope)
        found.append([(scope[name].dtype, scope[name].shape[1:]) for name in op.outputs])
    assert found[0] == found[1]


@pytest.mark.parametrize("step", ["h", slice(1, 3), 1.0])
def test_scopes_are_asked_for_by_number(step):
    op = an_op()
    op.run(a_scope())
    with pytest.raises(StepError, match=r"op.scopes: a step must be a whole number"):
        op.scopes[step]


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("keep", [True, False])
def test_the_last_memories_are_no_tensors_of_the_callers(steps, keep):
    def stepnet(step):
        step["h"], step["g"] = step["h_pre"], step["g_pre"]

    memories = [Memory("h", "h_pre", "boot"), Memory("g", "g_pre", "boot")]
    op = RecurrentOp(stepnet, inputs=["x"], outputs=[], memories=memories)
    scope = Scope({"x": torch.ones(steps, 3, 2), "boot": torch.zeros(3, 2)})
    op.run(scope, keep_scopes=keep)
    op.last["h"].add_(1.0)
    assert not op.last["g"].any()
    assert not scope["boot"].any()


def test_a_memory_over_words_says_its_dtype():
    table, words = nn.Embedding(5, H).double(), torch.randint(5, (T, B))
    memories = [Memory("h", "h_pre", shape=(H,), dtype=torch.float64), Memory("count", "count_pre", shape=())]

    def read(step: Scope) -> None:
        step["h"] = torch.tanh(step["h_pre"] @ U + table(step["word"]))
        step["count"] = step["count_pre"] + 1

    h, expected = torch.zeros(B, H, dtype=torch.float64), []
    for word in words:
        h = torch.tanh(h @ U + table(word))
        expected.append(h)
    scopes = [Scope({"word": words}) for _ in range(3)]
    RecurrentOp(read, ["word"], ["h", "count"], memories).run(scopes[0])
    RecurrentOp(read, ["word"], ["h", "count"], memories).run(scopes[1], keep_scopes=False)
    for scope in scopes[:2]:
        torch.testing.assert_close(scope["h"], torch.stack(expected))
        assert scope["count"].dtype is torch.int64
        assert scope["count"][-1].eq(T).all()
    with pytest.raises(StepError, match=r"memory 'h'(.|\n)*dtype="):
        RecurrentOp(read, ["word"], ["h"], [Memory("h", "h_pre", shape=(H,)), memories[1]]).run(scopes[2])


@pytest.mark.parametrize("how", [{"init": "boot", "dtype": torch.int64}, {"shape": (1,), "dtype": "float32"}])
def test_a_dtype_is_that_of_a_memory_without_an_init(how):
    with pytest.raises(StepError, match="memory 'h': 'dtype'"):
        Memory("h", "h_pre", **how)
