"""What is missing in a scope is told by the line that asks, with what would put it there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stepnet
from stepnet import Memory, RecurrentOp, Scope, TensorArray, layers
from stepnet.errors import ArrayError, StepError
from stepnet.tape import Tape

BACKEND = "auto"  # one by name says what it declines in its own words

NETS: dict[str, Any] = {
    "h_pre": lambda s: s.__setitem__("h", s["h_pre"] + s["x"]),
    "h_prev": lambda s: s.__setitem__("h", s["h_prev"] + s["x"]),
    "X": lambda s: s.__setitem__("h", s["X"]),
    "w": lambda s: s.__setitem__("h", s["x"] @ s["w"]),
    "h": lambda s: s.__setitem__("h", s["h"] + s["x"]),
}


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("keep_scopes", [True, False])
@pytest.mark.parametrize("missing", NETS)
def test_a_name_that_is_not_in_the_scope(missing, keep_scopes):
    memories = [] if missing == "h_pre" else [Memory("h", "h_pre", "b")]
    op = RecurrentOp(NETS[missing], ["x"], ["h"], memories)
    with pytest.raises(StepError, match=f"no value named '{missing}'") as caught:
        op.run(Scope({"x": torch.ones(3, 2, 2), "b": torch.zeros(2, 2)}), keep_scopes=keep_scopes)
    error = caught.value
    assert str(error.got).startswith("test_named_by_the_user.py:")
    assert "'x'" in str(error.expected)
    assert f"Memory(name, pre_name='{missing}'" in str(error)
    assert f"scope['{missing}'] = value" in str(error)


@pytest.mark.parametrize(
    ("args", "remedy"), [((0,), "behind the last"), ((0, 1.0), "as_tensor"), ((1, [1]), "as_tensor")]
)
def test_a_value_that_is_no_tensor(args, remedy):
    with pytest.raises(ArrayError, match=remedy):
        TensorArray().write(*args)


CALLS: dict[str, Any] = {
    "expand": lambda h, n: h[:1].expand(n, 2),
    "repeat": lambda h, n: h[:1].repeat(n, 1),
    "narrow": lambda h, n: h.narrow(0, 0, n),
    "new_zeros": lambda h, n: h.new_zeros(n, 2) + h[:1],
    "a slice": lambda h, n: h[:n],
    "a place": lambda h, n: h[n - 1],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_size_of_a_step_in_a_method_of_an_item(call):
    """The size is no tensor to torch: the item itself has to hand it to the frame."""
    x, h = torch.ones(3, 2), torch.tensor([[1.0, 1], [2, 2], [3, 3], [4, 4]])

    def rows(s: Any) -> Any:
        return torch.arange(4)[torch.arange(4) >= s].shape[0]

    with Tape() as tape:
        steps, outs = TensorArray(unstack_from=layers.data("x", layers.Dense(2))), TensorArray()  # pyright: ignore
        given = layers.data("h", layers.Dense(2))
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == steps.size())
            outs.write(s, steps.read(s) * call(given, rows(s)).sum())
            loop.update(s, s + 1)
        out = outs.stack()
    found = tape.topology([out])(x=x, h=h)[0][0]
    torch.testing.assert_close(found, torch.stack([x[s] * call(h, rows(s)).sum() for s in range(3)]))
