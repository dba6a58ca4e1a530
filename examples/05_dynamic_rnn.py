"""A variable-length RNN by unpack and pack, as in Paddle's design of the TensorArray (2017).

    TensorArray::unpack(input, 1/*level*/, true/*sort_by_length*/, &ta, &indice_map);
    for (int step = 0; step = ta.size(); step++) {
      auto state = states.read(step);
      auto step_input = ta.read(step);
      auto step_output = rnnstep(step_input, state);
      step_outputs.write(step_output, true/*data_shared*/);
    }
    LoDTensor rnn_output = ta.pack(ta, indice_map);

Written by hand as there, and then by `stepnet.recurrent`, which does the same. By hand it departs from the
document where that could not run: the only level is 0; the loop counts to the size; the state goes from step
to step, first the boot state, and is cut to the sentences that still run; and the outputs are packed, not the
inputs.
"""

from __future__ import annotations

import torch
from torch import nn

import stepnet
from stepnet import LoDTensor, TensorArray


def by_hand(rnnstep: nn.Module, sentence_input: LoDTensor, boot_state: torch.Tensor) -> LoDTensor:
    ta, indice_map = TensorArray.unpack(sentence_input, level=0, sort_by_length=True)
    step_outputs = TensorArray()
    state = boot_state[indice_map[:, 2].long()]  # the longest sentence first
    for step in range(ta.size()):
        step_input = ta.read(step)
        state = rnnstep(step_input, state[: len(step_input)])  # ended sentences are not there
        step_outputs.write(state, True)  # data_shared
    return step_outputs.pack(0, indice_map)


def main() -> None:
    torch.manual_seed(0)
    rnnstep = nn.GRUCell(3, 4)
    sentence_input = LoDTensor.from_lengths(torch.randn(9, 3), [[2, 0, 4, 3]])
    boot_state = torch.randn(4, 4)

    rnn_output = by_hand(rnnstep, sentence_input, boot_state)
    same, last = stepnet.recurrent(rnnstep, sentence_input, boot_state)

    print(rnn_output)
    torch.testing.assert_close(rnn_output.values, same.values)
    assert torch.equal(rnn_output.lengths(), sentence_input.lengths())
    torch.testing.assert_close(last[1], boot_state[1])  # a sentence without words keeps its state
    print("by hand and by recurrent agree")


if __name__ == "__main__":
    main()
