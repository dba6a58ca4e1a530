"""Whether a step over sentences computes of each word and of each sentence by itself.

Seen by running it without data, on numbers of words and of sentences that nothing else has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stepnet.data.modes import without_any_mode
from stepnet.data.tree import leaves
from stepnet.errors import Unsupported
from stepnet.front.meta import OnMeta
from stepnet.interrupts import let_through

WORDS, SENTENCES = 1_000_003, 999_983  # primes
# What has a finite derivative wherever it has finite arguments: computed of what a sentence ends with, also
# where it does not end, where the gradient is zero.
_NAMES = """
    add sub rsub mul neg mm addmm bmm baddbmm matmul linear dot mv addmv addcmul lerp tanh sigmoid
    relu silu gelu softplus elu leaky_relu hardtanh hardsigmoid hardswish clamp clamp_min clamp_max
    maximum minimum abs sign where masked_fill cat stack slice select split split_with_sizes
    unsafe_split chunk unbind view _unsafe_view reshape unsqueeze squeeze expand permute t transpose
    alias detach clone copy _to_copy to contiguous lift_fresh zeros ones full empty zeros_like
    ones_like full_like empty_like new_zeros new_ones new_full new_empty fill zero sum mean _softmax
    _log_softmax eq ne lt le gt ge logical_and logical_or logical_not sin cos narrow glu mish argmax
    argmin any all flatten unflatten gru_cell lstm_cell rnn_tanh_cell rnn_relu_cell max min amax
    amin
"""
_TAME = frozenset(_NAMES.split())


class Levels(TorchDispatchMode):
    """Sees which operations meet words and sentences.

    Raises:
        Unsupported: from an operation that joins both, goes from one to the other, draws noise, or may have
            no finite derivative where a sentence does not end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._aside = False
        self._late: dict[int, Tensor] = {}  # values that hold at the last word alone, by their ids

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Where words are met one by one."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Unsupported("the step draws noise, in the order of its sentences")
        result = func(*args, **(kwargs or {}))
        if self._aside:
            return result
        fresh = func.overloadpacket.__name__.startswith("new_")  # its tensor tells a dtype alone
        met = set() if fresh else {_level(t) for t in leaves((args, kwargs), Tensor)} - {None}
        made = {_level(t) for t in leaves(result, Tensor)}
        if met and (len(met) > 1 or made - met):
            raise Unsupported("the step joins words of a sentence, or words and sentences")
        if any(map(self.is_late, leaves((args, kwargs), Tensor))):
            self.late(leaves(result, Tensor))
            if _is_tame(func, args):
                return result
            what = func.overloadpacket.__name__
            raise Unsupported(f"what the step computes of a sentence ({what}) may be no number in it")
        return result

    def late(self, tensors: Iterable[Tensor]) -> None:
        """Note values that hold at the last word alone."""
        self._late |= {id(tensor): tensor for tensor in tensors}

    def is_late(self, tensor: Tensor) -> bool:
        """Whether a value holds at the last word alone."""
        return id(tensor) in self._late

    def must_be(self, leaf: Any, *, words: bool) -> None:
        """Refuse a result that does not have a row for each word, or for each sentence."""
        if not isinstance(leaf, Tensor) or _level(leaf) != (WORDS if words else SENTENCES):
            raise Unsupported("a result of the step does not have a row for each sentence")


@contextlib.contextmanager
def watched() -> Iterator[Levels]:
    """Run a step for what it does with words and sentences.

    Raises:
        Unsupported: see `Levels`; or it cannot run without data.
    """
    try:
        with without_any_mode(), OnMeta(), Levels() as seen:
            yield seen
    except Unsupported:
        raise
    except Exception as error:  # the step's own code may raise any, of what has no numbers
        let_through(error)
        raise Unsupported("the step does not run without data") from error


def _is_tame(func: Any, args: Sequence[Any]) -> bool:
    name = func.overloadpacket.__name__
    if name == "native_layer_norm":
        return args[-1] > 0
    return name in _TAME or name.rstrip("_") in _TAME


def of_words(leaf: Tensor) -> Tensor:
    """A leaf like this one, with a row for each word."""
    return _rows(leaf, WORDS)


def of_sentence(leaf: Tensor) -> Tensor:
    """A leaf like this one, with a row for each sentence."""
    return _rows(leaf, SENTENCES)


def like(leaf: Tensor) -> Tensor:
    """A leaf like this one without rows."""
    return _rows(leaf, 0)


def _rows(leaf: Tensor, rows: int) -> Tensor:
    return torch.empty(rows, *leaf.shape[1:], dtype=leaf.dtype, device="meta")


def _level(tensor: Tensor) -> int | None:
    """WORDS or SENTENCES, by the first dimension; 0 where they are in another one."""
    found = [level for size in tensor.shape for level in (WORDS, SENTENCES) if size and size % level == 0]
    if not found:
        return None
    first = tensor.shape[0]
    return found[0] if len(found) == 1 and first % found[0] == 0 else 0
