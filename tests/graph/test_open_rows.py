"""Rows of a LoDTensor of which a graph does not know how many there are, though its offsets say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported

from covering import few
from stepnet import LoDTensor, recurrent, sequence_pool
from stepnet.errors import LoDError

from .models import assert_alike, ragged

# torch's own, where Python calls functions with what others made
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "map": lambda x: x.map(torch.tanh),
    "with_values": lambda x: x.with_values(x.values * 2),
    "an operator": lambda x: x + x * 2,
    "a function": torch.tanh,
    "a product": lambda x: x @ torch.ones(3, 2, dtype=torch.float64),
    "a recurrence": lambda x: recurrent(
        lambda a, h: (h + a, h + a), torch.sin(x), x.values.new_zeros(len(x), 3)
    )[0],
    "pooling": lambda x: sequence_pool(x.map(torch.sin) + x, "max"),
}


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


# A map gives rows as `with_values` does; a function and a product go by a call of torch, as an operator does.
@pytest.mark.parametrize("name", few(FUNCTIONS, ["with_values", "an operator", "a recurrence", "pooling"]))
def test_rows_that_are_marked_unbacked(name: str) -> None:
    """A graph that is to be whole says so; elsewhere Python asks whether there are as many."""
    torch._dynamo.reset()  # it leaves code alone that it once gave up on
    model = Of(FUNCTIONS[name])
    for whole, lengths in ((True, [4, 0, 3]), (False, [4, 0, 3]), (False, [2, 5]), (False, [1])):
        x = ragged(lengths)
        torch._dynamo.decorators.mark_unbacked(x.values, 0)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=whole)
        if whole:
            with pytest.raises(Unsupported, match="maybe_mark_dynamic"):
                compiled(x)
        else:
            assert_alike(model, compiled, (x,))


def chosen(x: LoDTensor, mask: Tensor) -> LoDTensor:
    return x.map(lambda rows: rows[mask])


def test_as_many_rows_as_the_data_say() -> None:
    torch._dynamo.reset()
    model = Of(chosen)
    for whole, lengths in ((True, [2, 1]), (False, [4, 0, 3]), (False, [2, 3]), (False, [1, 1])):
        x, mask = ragged(lengths), torch.ones(sum(lengths), dtype=torch.bool)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=whole)
        if whole:
            with pytest.raises(Unsupported, match="not known before the graph runs"):
                compiled(x, mask)
            continue
        assert_alike(model, compiled, (x, mask))
        mask[0] = False
        with pytest.raises(LoDError, match="must end at the number of rows"):
            compiled(x, mask)
