"""What LSTM, GRU and RNN share: parameters as torch.nn names them, and layers of recurrences over them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from stepnet.api import recurrent
from stepnet.cells.cell import check_factory, draw, positive_size
from stepnet.cells.wrapper import check_probability
from stepnet.checks import unscripted
from stepnet.data.arguments import brief, truth, whole
from stepnet.data.in_graph import CAN_CAPTURE, is_exporting
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import autocast_dtype
from stepnet.data.recording import UNKNOWN, recorded_in_frames
from stepnet.errors import StepError
from stepnet.front.step import step_name
from stepnet.graph import Rounding
from stepnet.resets import as_resets
from stepnet.watchers import PACKED, instead, said

from .batch import Batch, side_by_side


class LayerStep(Rounding):
    """One direction of one layer as a step: `function(x, state, **weights)`, and y cast to `dtype`.

    It holds the weights, under the names they have in their module, and nothing else of it: a step that is
    new is walked, with all that it reaches.
    """

    def __init__(
        self,
        name: str,
        suffix: str,
        function: Callable[..., Any],
        weights: Mapping[str, Tensor],
        dtype: torch.dtype | None = None,
        rounded: tuple[bool, ...] = (),
    ) -> None:
        self.__name__ = name
        self.rounded = rounded
        self.function = function
        self.dtype = dtype
        self.places = {keyword: f"{keyword}_{suffix}" for keyword in weights}
        for keyword, weight in weights.items():
            setattr(self, self.places[keyword], weight)

    def __call__(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, new = self.function(x, state, **{k: getattr(self, place) for k, place in self.places.items()})
        return (y if self.dtype is None else y.to(self.dtype)), new

    def is_of(
        self, module: nn.Module, function: Callable[..., Any], dtype: torch.dtype | None,
        rounded: tuple[bool, ...],
    ) -> bool:  # fmt: skip
        """Whether it is the step of a function with the weights that a module has in their places."""
        held, given, own = self.__dict__, module._parameters, module.__dict__
        for place in self.places.values():
            if given.get(place) is not held[place] or place in own:
                return False
        return self.dtype is dtype and self.function is function and self.rounded == rounded


# of each module, by the suffix of a layer: those of its parameters, which are as alive as it is
_STEPS: WeakKeyDictionary[nn.Module, dict[str, LayerStep]] = WeakKeyDictionary()


def _like(module: RNNBase, *_: Any, **__: Any) -> Any:
    """What a call in a frame gives, of which nothing is known but its parts."""
    state = (UNKNOWN,) * len(module.state_sizes)
    return UNKNOWN, state if len(state) > 1 else UNKNOWN


class RNNBase(nn.Module):
    """Layers of a recurrence, in one direction or both; arguments as of LSTM, GRU and RNN.

    Raises:
        StepError: a size is no whole number above 0, or `proj_size` none below `hidden_size`.

    >>> from stepnet import nn
    >>> isinstance(nn.LSTM(3, 4), nn.RNNBase), nn.GRU(3, 4, num_layers=2).all_weights[1][0].shape
    (True, torch.Size([12, 4]))
    """

    weight_ih_l0: nn.Parameter
    gates: ClassVar[int]  # blocks of hidden_size rows in the weights
    takes_sequences: ClassVar[bool] = True  # for `explain`: not a step, although it takes x and a state

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size = positive_size(self, "input_size", input_size)
        self.hidden_size = hidden_size = positive_size(self, "hidden_size", hidden_size)
        self.num_layers = num_layers = positive_size(self, "num_layers", num_layers)
        self.bias = self._flag("bias", bias)
        self.batch_first = self._flag("batch_first", batch_first)
        self.dropout = check_probability(type(self).__name__, "dropout", dropout)
        if dropout and num_layers == 1:
            warnings.warn(
                f"{type(self).__name__}(dropout={dropout}) drops nothing: it lies between layers, "
                "and num_layers=1",
                stacklevel=2 if type(self).__init__ is RNNBase.__init__ else 3,
            )
        self.bidirectional = self._flag("bidirectional", bidirectional)
        self.proj_size = proj_size = whole(f"{type(self).__name__} 'proj_size'", proj_size, 0)
        if proj_size >= hidden_size:
            raise StepError(
                f"{type(self).__name__} 'proj_size' must be smaller than hidden_size, or 0 for no projection",
                got=brief(proj_size),
                expected=f"0 to {hidden_size - 1}",
            )

        check_factory(self, device, dtype)
        self._names = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if bias else ()))
        self._names += ("weight_hr",) if proj_size else ()
        directions = 2 if bidirectional else 1
        rows, out = self.gates * hidden_size, proj_size or hidden_size
        for layer in range(num_layers):
            features = input_size if layer == 0 else directions * out
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, features), "weight_hh": (rows, out)}
            if bias:
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
            if proj_size:
                shapes["weight_hr"] = (proj_size, hidden_size)
            for suffix in self._suffixes(layer):
                for name, shape in shapes.items():
                    values = torch.empty(shape, device=device, dtype=dtype)
                    self.register_parameter(f"{name}_{suffix}", nn.Parameter(values))
        self.reset_parameters()

    def _flag(self, name: str, value: Any) -> bool:
        return truth(
            f"{type(self).__name__} '{name}'",
            value,
            remedy="check the order of the arguments, or pass them by name",
        )

    def _suffixes(self, layer: int) -> tuple[str, ...]:
        forward = f"l{layer}"
        return (forward, f"{forward}_reverse") if self.bidirectional else (forward,)

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """The features of each tensor of hx, by its name."""
        return {"h_0": self.hidden_size}

    @property
    def step(self) -> Callable[..., tuple[Tensor, Any]]:
        """`step(x, state, weight_ih=..., weight_hh=..., ...)`: one step of any layer and direction."""
        raise NotImplementedError

    def weights(self, suffix: str) -> dict[str, Tensor]:
        """The parameters of the layer and direction `suffix`, by their names without it."""
        return {name: getattr(self, f"{name}_{suffix}") for name in self._names}

    def reset_parameters(self) -> None:
        """Draw all parameters anew, uniformly within 1 / sqrt(hidden_size), as torch.nn does."""
        draw(self.parameters(), self.hidden_size)

    __prepare_scriptable__ = staticmethod(unscripted)

    def flatten_parameters(self) -> None:
        """Nothing to do: torch.nn's modules gather weights for cuDNN here. Code that calls it still runs."""

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters, a list per layer and direction."""
        suffixes = [suffix for layer in range(self.num_layers) for suffix in self._suffixes(layer)]
        return [list(self.weights(suffix).values()) for suffix in suffixes]

    @recorded_in_frames(_like)
    def forward(self, input: Any, hx: Any = None, resets: Any = None) -> tuple[Any, Any]:
        """Run all layers; see the class for shapes. `resets` is as in `recurrent`: a marked row starts from
        zeros, or from `Resets(state=...)`, which is like hx."""
        if isinstance(input, PackedSequence) and resets is None and (padded := said(PACKED)) is not None:
            out = padded(input, hx, self._over_padded)
            if out is not None:
                return out
        return self._over(Batch.of(type(self).__name__, input, self.batch_first), hx, resets)

    def _over_padded(self, rows: Tensor, hx: Any) -> tuple[Any, Any]:
        """The same over rows [batch, time, features], whatever `batch_first` is."""
        return self._over(Batch(type(self).__name__, rows, rows, rows.shape[0], 1), hx, None)

    def _over(self, batch: Batch, hx: Any, resets: Any) -> tuple[Any, Any]:
        weight = self._parameters.get("weight_ih_l0")
        batch.check_rows(self.input_size, (self.weight_ih_l0 if weight is None else weight).dtype)
        given = self._given(batch, hx)
        asked = None if resets is None else as_resets(resets)
        fresh = given
        if asked is not None and not (hx is None and asked.state is None):
            fresh = self._given(batch, asked.state)
        x = batch.x
        finals: list[Any] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = batch.dropped(x, self.dropout, self.training)
            ys = []
            for suffix, reverse in zip(self._suffixes(layer), (False, True), strict=False):
                k = len(finals)
                dtypes = self._result_dtypes(batch, given[k])
                rounded = self._rounded(batch, given[k])
                step = self._layer(suffix, dtypes[0] if dtypes else None, rounded)
                again = None if asked is None else replace(asked, state=fresh[k])
                y, final = recurrent(step, x, given[k], reverse=reverse, axis=batch.axis, resets=again)
                ys.append(y)
                finals.append(final if dtypes is None else _cast(final, dtypes))
            x = side_by_side(*ys) if len(ys) > 1 else ys[0]
        return batch.close(x), self._join(batch, finals)

    def _layer(self, suffix: str, dtype: torch.dtype | None, rounded: tuple[bool, ...] = ()) -> LayerStep:
        """The step of a layer and direction, as long as the same weights are in their places."""
        # Dynamo would guard on all modules in the table, of which some are gone by then.
        steps = {} if torch.compiler.is_dynamo_compiling() else _STEPS.get(self)
        if steps is None:
            steps = _STEPS[self] = {}
        step, function = steps.get(suffix), self.step
        if step is None or not step.is_of(self, function, dtype, rounded):
            weights = self.weights(suffix)
            step = LayerStep(f"{step_name(self)} {suffix}", suffix, function, weights, dtype, rounded)
            if all(type(weight) is nn.Parameter for weight in weights.values()):
                steps[suffix] = step
        return step

    def _in_turn(self, x: LoDTensor) -> Sequence[LayerStep]:
        """The steps of its layers, if all that a call does is to run these over the rows of x, forwards."""
        rows, draws = x.values, self.dropout and self.training and self.num_layers > 1
        if (
            type(self).forward is not _FORWARD
            or self.bidirectional
            or draws
            or torch._C._is_any_autocast_enabled()
            or rows.shape[1:] != (self.input_size,)
            or rows.dtype is not self.weight_ih_l0.dtype
        ):
            return ()
        return [self._layer(f"l{layer}", None) for layer in range(self.num_layers)]

    def _by_layer(self) -> list[tuple[str, Any]] | None:
        """The name of each step that a call runs, and its state for one sequence; None if it runs others."""
        if type(self).forward is not _FORWARD or self.bidirectional:
            return None
        states = [torch.empty(1, size) for size in self.state_sizes.values()]
        state = tuple(states) if len(states) > 1 else states[0]
        return [(self._layer(f"l{layer}", None).__name__, state) for layer in range(self.num_layers)]

    def _result_dtypes(self, batch: Batch, state: Any) -> tuple[torch.dtype, ...] | None:
        """What autocast makes of y and of each tensor of the state, as torch.nn's modules have it; None where
        it is off, or leaves all as they are, or is that of a run of an exported program."""
        if _is_exported():
            return None
        low = autocast_dtype(batch.rows.device.type) if torch._C._is_any_autocast_enabled() else None
        if low is None or batch.rows.dtype == torch.float64:
            return None
        parts = state if isinstance(state, tuple) else (state,)
        if batch.rows.is_cuda:  # cuDNN returns all in float16, whatever was asked for
            return (low,) * (1 + len(parts))
        return self._cast_to(low, batch, *parts)

    def _rounded(self, batch: Batch, state: Any) -> tuple[bool, ...]:
        """Which of y and of the state an exported program gives in the type of the autocast around it."""
        if not _is_exported() or batch.rows.dtype == torch.float64:
            return ()
        parts, low = state if isinstance(state, tuple) else (state,), torch.bfloat16
        if batch.rows.is_cuda:
            return (True,) * (1 + len(parts))
        return tuple([dtype == low for dtype in self._cast_to(low, batch, *parts)])

    def _cast_to(self, low: torch.dtype, batch: Batch, *state: Tensor) -> tuple[torch.dtype, ...]:
        """The dtypes of y and of the state under autocast to `low`."""
        return (low,) * (1 + len(state))

    def _given(self, batch: Batch, hx: Any) -> list[Any]:
        """The initial state of each direction of each layer."""
        name, count = type(self).__name__, self.num_layers * (2 if self.bidirectional else 1)
        sizes = self.state_sizes
        if hx is None:
            rows = batch.rows
            parts = [[rows.new_zeros(batch.n, size) for size in sizes.values()] for _ in range(count)]
        else:
            leaves = hx if len(sizes) > 1 else (hx,)
            if not isinstance(leaves, (tuple, list)) or len(leaves) != len(sizes):
                raise StepError(
                    f"{name} 'hx' must be the pair (h_0, c_0)",
                    got=f"a {type(hx).__name__}"
                    + (f" of {len(hx)}" if isinstance(hx, (tuple, list)) else ""),
                    remedy="pass hx=(h_0, c_0), or None for zeros",
                )
            given = list(zip(sizes.items(), leaves, strict=True))  # Dynamo of torch 2.6 cannot leave a zip
            checked = [batch.check_state(part, leaf, count, size) for (part, size), leaf in given]
            parts = [list(leaves) for leaves in zip(*(leaf.unbind(0) for leaf in checked), strict=True)]
        return [tuple(part) if len(sizes) > 1 else part[0] for part in parts]

    def _join(self, batch: Batch, finals: list[Any]) -> Any:
        """Final states as torch.nn has them: h_n, or (h_n, c_n)."""
        if isinstance(finals[0], Tensor):
            return batch.close_state(_stacked(finals))
        parts = list(zip(*finals, strict=True))  # Dynamo of torch 2.6 cannot leave a zip
        return tuple([batch.close_state(_stacked(leaves)) for leaves in parts])

    def extra_repr(self) -> str:
        defaults = {
            "proj_size": 0,
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
        }
        shown = [f"{k}={getattr(self, k)}" for k, v in defaults.items() if getattr(self, k) != v]
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *shown])


_FORWARD = RNNBase.forward


def _is_exported() -> bool:
    """Whether what runs goes into a program that runs under an autocast of its own."""
    followed = CAN_CAPTURE and is_exporting()
    return followed and (torch.compiler.is_dynamo_compiling() or instead() is None)


def _cast(final: Any, dtypes: tuple[torch.dtype, ...]) -> Any:
    if isinstance(final, tuple):
        return tuple(leaf.to(dtype) for leaf, dtype in zip(final, dtypes[1:], strict=True))
    return final.to(dtypes[1])


def _stacked(leaves: Sequence[Tensor]) -> Tensor:
    return torch.stack(tuple(leaves))  # of one, too: no view, as torch.nn gives none
