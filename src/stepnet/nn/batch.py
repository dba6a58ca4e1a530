"""The kinds of input that the drop-in modules take, as what a recurrence takes, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data.dtypes import dtype_name
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import surely_differ
from stepnet.data.no_graph import refuse_proxies
from stepnet.data.recording import AS_A_LAYER, StandIn
from stepnet.data.values import rows_of, without_packed
from stepnet.errors import StepError


class Batch(NamedTuple):
    """An input of a module named `name`: `x` of `n` sequences, stepped along `axis` if it is a tensor."""

    name: str
    given: Tensor | PackedSequence | LoDTensor
    x: Tensor | LoDTensor
    n: int
    axis: int = 0
    pack: Callable[[LoDTensor], PackedSequence] | None = None  # as the input was

    @staticmethod
    def of(name: str, given: Any, batch_first: bool) -> Batch:
        """Tell the kinds apart.

        Raises:
            StepError: it is none of them.
        """
        if type(given) is Tensor and not given.is_nested and given.dim() == 3:
            return Batch(name, given, given, given.shape[0 if batch_first else 1], int(batch_first))
        if isinstance(given, PackedSequence):
            x, pack = without_packed(given)
            return Batch(name, given, x, x.structure.count(-1), pack=pack)
        if isinstance(given, LoDTensor):
            if given.values.dim() == 2:
                return Batch(name, given, given, given.structure.count(-1))
            got = f"a LoDTensor of rows {list(given.values.shape)}"
        elif isinstance(given, Tensor) and given.is_nested:
            raise StepError(
                f"{name} cannot run over a NestedTensor", remedy="LoDTensor.from_nested(x), of jagged layout"
            )
        elif isinstance(given, Tensor):
            if given.dim() == 2:
                return Batch(name, given, given.unsqueeze(1), 1)
            if given.dim() == 3:
                return Batch(name, given, given, given.shape[0 if batch_first else 1], int(batch_first))
            got = f"a {given.dim()}-D tensor {list(given.shape)}"
        else:
            refuse_proxies([given])
            got = type(given).__name__
        layout = "[batch, time, features]" if batch_first else "[time, batch, features]"
        raise StepError(
            f"{name} cannot run over its input",
            got=got,
            expected=f"{layout}, [time, features], a PackedSequence, or a LoDTensor of rows [rows, features]",
            remedy=AS_A_LAYER
            if isinstance(given, StandIn)
            else "bring the dimensions into this form"
            if isinstance(given, (Tensor, LoDTensor))
            else "torch.as_tensor(...) or LoDTensor.from_sequences(...) makes one",
        )

    @property
    def rows(self) -> Tensor:
        """All values of x."""
        return rows_of(self.x)

    @property
    def unbatched(self) -> bool:
        """Whether the input is one sequence without a dimension for it."""
        return isinstance(self.given, Tensor) and self.given.dim() == 2

    def check_rows(self, features: int, dtype: torch.dtype) -> None:
        """Refuse an input of other features or dtype than the module's."""
        rows = self.rows
        if rows.shape[-1] != features:
            raise StepError(
                f"{self.name} was built for other features than its input has",
                got=f"{rows.shape[-1]} features, input {list(rows.shape)}",
                expected=f"input_size={features}",
                remedy=f"build it with input_size={rows.shape[-1]}, or check the order of dimensions",
            )
        if rows.dtype is not dtype:
            self._check_dtype("input", rows, dtype)

    def check_state(self, leaf_name: str, leaf: Any, count: int, size: int) -> Tensor:
        """A tensor of hx as [count, n, size], or an error that says what it should be."""
        wanted = [count, size] if self.unbatched else [count, self.n, size]
        fits = isinstance(leaf, Tensor) and leaf.dim() == len(wanted)
        if not fits or any(map(surely_differ, leaf.shape, wanted)):
            raise StepError(
                f"{self.name} 'hx' has a wrong {leaf_name}",
                got=str(list(leaf.shape)) if isinstance(leaf, Tensor) else type(leaf).__name__,
                expected=f"{wanted}: [layers * directions, "
                + ("features]" if self.unbatched else "sequences, features]"),
                remedy="a sequence without a batch dimension takes 2-D states, all else 3-D",
            )
        self._check_dtype(leaf_name, leaf, self.rows.dtype)
        return leaf.unsqueeze(1) if self.unbatched else leaf

    def _check_dtype(self, what: str, values: Tensor, dtype: torch.dtype) -> None:
        if values.dtype != dtype and not torch.is_autocast_enabled(values.device.type):
            raise StepError(
                f"{self.name} cannot mix dtypes: {what}",
                got=dtype_name(values.dtype),
                expected=dtype_name(dtype),
                remedy=f"{what}.to({dtype}), or module.to(...)",
            )

    def dropped(self, x: Any, p: float, training: bool) -> Any:
        """Dropout of what a layer gave, drawn in the order of torch.nn: step after step."""
        if not training:
            return x
        if self.pack is not None:
            packed = self.pack(x)
            rows, _ = without_packed(packed._replace(data=F.dropout(packed.data, p)))
            return x.with_values(rows.values)
        if self.axis:
            return F.dropout(x.transpose(0, 1).contiguous(), p).transpose(0, 1)
        return dropped(p, training=True)(x)

    def close(self, y: Any) -> Any:
        """The output in the kind of the input."""
        if self.pack is not None:
            return self.pack(y)
        return y.squeeze(1) if self.unbatched else y

    def close_state(self, state: Tensor) -> Tensor:
        """[layers * directions, n, features] as the kind of the input has it."""
        return state.squeeze(1) if self.unbatched else state


def side_by_side(*ys: Any) -> Any:
    """The features of tensors, or of the rows of LoDTensors of the same LoD, side by side."""
    return _like(ys[0], torch.cat([*map(rows_of, ys)], -1))


def dropped(p: float, training: bool) -> Callable[[Any], Any]:
    """Dropout of a tensor, or of the rows of a LoDTensor."""
    return lambda x: _like(x, F.dropout(rows_of(x), p, training))


def _like(x: Any, rows: Tensor) -> Any:
    return x.with_values(rows) if isinstance(x, LoDTensor) else rows
