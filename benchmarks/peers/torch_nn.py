"""torch.nn.LSTM and GRU, on padded input and on a PackedSequence."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils import rnn

from benchmarks.harness import Contender
from benchmarks.work import Setting

from .way import Way, as_contenders

MODULES = {"lstm": nn.LSTM, "gru": nn.GRU}


def contenders(setting: Setting, training: bool) -> dict[str, Contender]:
    return as_contenders(ways(setting), training)


def ways(setting: Setting) -> dict[str, Way]:
    """`nn`, and for ragged input `nn packed`; none for cells that torch.nn does not have."""
    if setting.work.name not in MODULES:
        return {}
    H = setting.size.H
    module = MODULES[setting.work.name](H, H)
    module.load_state_dict({f"{name}_l0": weight for name, weight in setting.weights.items()})
    weights = {name.removesuffix("_l0"): weight for name, weight in module.named_parameters()}
    x = setting.x.clone().requires_grad_()
    found = {"nn": Way(setting, lambda: module(x)[0], x, weights, setting.seeds, setting.to_rows)}
    if not setting.ragged:
        return found

    def pack(padded: Tensor) -> rnn.PackedSequence:
        return rnn.pack_padded_sequence(padded, setting.lengths, enforce_sorted=False)

    shape = pack(setting.x)
    data = shape.data.clone().requires_grad_()
    packed = shape._replace(data=data)

    def to_rows(table: Tensor) -> Tensor:
        return setting.to_rows(rnn.pad_packed_sequence(shape._replace(data=table))[0])

    seeds = pack(setting.seeds).data
    found["nn packed"] = Way(setting, lambda: module(packed)[0].data, data, weights, seeds, to_rows)
    return found
