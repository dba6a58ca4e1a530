"""The RNN op of Paddle's RNN design (2017): a stepnet, its memories, and a scope for each time step.

    h[t] = U h[t-1] + W x[t]

`h` is the memory, `h_pre` its pre-memory, `h_boot` what it starts from. It departs from the document in two
places: a sequence is a row here, so U and W stand behind, and the state goes through tanh. The same stepnet
then runs over sequences of different lengths, as Paddle's dynamic_recurrent_op did.
"""

from __future__ import annotations

import torch

from stepnet import LoDTensor, Memory, RecurrentOp, Scope, dynamic_recurrent


def stepnet(scope: Scope) -> None:
    scope["h"] = torch.tanh(scope["h_pre"] @ scope["U"] + scope["x"] @ scope["W"])


def main() -> None:
    torch.manual_seed(0)
    scope = Scope({"U": torch.randn(4, 4), "W": torch.randn(3, 4, requires_grad=True)})
    scope["x"] = torch.randn(6, 2, 3)  # 6 steps of 2 sequences
    scope["h_boot"] = torch.zeros(2, 4)

    memory = Memory("h", pre_name="h_pre", init="h_boot")
    op = RecurrentOp(stepnet, inputs=["x"], outputs=["h"], memories=[memory])
    print("shapes ", op.infer_shape(scope))  # without running a step
    op.run(scope)
    print("outputs", tuple(scope["h"].shape))

    # After a run the scope of each step can be read; a pre-memory is the memory before, not a copy of it.
    assert op.scopes[3]["h_pre"] is op.scopes[2]["h"]
    assert torch.equal(op.scopes[5]["h"], scope["h"][5])
    scope["h"].sum().backward()
    assert scope["W"].grad is not None

    # In inference two scopes take turns, so memory does not grow with the number of steps.
    with torch.no_grad():
        op.run(scope)
        assert len(op.create_scopes(scope)) == 2

    # Sequences of 6, 0 and 2 steps, three rows in the boot: the same stepnet.
    ragged = scope.new_scope({"x": LoDTensor.from_lengths(torch.randn(8, 3), [[6, 0, 2]])})
    ragged["h_boot"] = torch.zeros(3, 4)
    last = dynamic_recurrent(stepnet, ragged, ["x"], ["h"], [memory])
    print("ragged ", ragged["h"])
    assert torch.equal(last["h"][2], ragged["h"][2][-1])
    assert not last["h"][1].any()


if __name__ == "__main__":
    main()
