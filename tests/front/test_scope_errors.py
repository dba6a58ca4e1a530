"""What scopes and RNN ops say of a stepnet that does not fit, in the names of its scope."""

import copy
import pickle

import pytest
import torch

from stepnet import Memory, RecurrentOp, Scope
from stepnet.errors import StepError


def halves(step):
    step["h"] = step["h_pre"] * 0.5 + step["x"]


@pytest.mark.parametrize("keep_scopes", [True, False])
def test_an_init_of_another_shape_is_told_by_its_name(keep_scopes):
    op = RecurrentOp(halves, ["x"], ["h"], [Memory("h", "h_pre", "boot")])
    for sizes in ((2, 3), (3, 4), (1, 3)):
        scope = Scope({"x": torch.ones(3, 2, 4), "boot": torch.zeros(sizes)})
        with pytest.raises(StepError, match=r"h_pre float32(.|\n)*'h_pre' starts as 'boot' is"):
            op.run(scope, keep_scopes=keep_scopes)
    for sizes in ((), (4,), (2, 1)):
        scope = Scope({"x": torch.ones(3, 2, 4), "boot": torch.zeros(sizes)})
        with pytest.raises(StepError, match=r"memory 'h' (was|starts as) float32"):
            op.run(scope, keep_scopes=keep_scopes)


@pytest.mark.parametrize("keep_scopes", [True, False])
def test_values_are_items(keep_scopes):
    def reads(step):
        step["h"] = step.h_pre + step["x"]

    op = RecurrentOp(reads, ["x"], ["h"], [Memory("h", "h_pre", "boot")])
    with pytest.raises(StepError, match=r"no attribute 'h_pre'(.|\n)*remedy:   scope\['h_pre'\]"):
        op.run(Scope({"x": torch.ones(3, 2, 4), "boot": torch.zeros(2, 4)}), keep_scopes=keep_scopes)


def test_a_scope_is_asked_for_attributes_as_any_object_is():
    scope = Scope({"x": 1})
    assert not hasattr(scope, "x")
    assert not hasattr(scope, "__array__")
    for other in (copy.copy(scope), copy.deepcopy(scope), pickle.loads(pickle.dumps(scope))):
        assert other["x"] == 1
