"""A graph in a call like one before: its inputs and what it captures are looked at once, all together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from stepnet.data.modes import nothing_around, settings
from stepnet.data.tensor_guards import alike
from stepnet.executors.registry import tried
from stepnet.executors.setting import get_backend
from stepnet.watchers import nobody_answers

from .recording import Function, picked

Pick = Callable[[Any], Sequence[Tensor]]


def modes() -> tuple[Any, ...]:
    """What the functions of a graph depend on besides their inputs."""
    return *settings(), torch.is_inference_mode_enabled()


def nothing_watches() -> bool:
    """Whether nothing traces or watches what is called here."""
    return not torch.compiler.is_compiling() and nobody_answers() and nothing_around()


class Again:
    """A function of a graph, for calls like one.

    Args:
        kind: of that call.
        modes: of that call.
        function: that ran in it, `settled`.
        arguments, around: of that call.

    Attributes:
        kind, function: those.
    """

    def __init__(
        self, kind: Any, modes: tuple[Any, ...], function: Function, arguments: Sequence[Tensor],
        around: Mapping[Any, Tensor],
    ) -> None:  # fmt: skip
        settled = function.run.settled()
        assert settled is not None
        self.kind, self._modes, self.function = kind, modes, function
        self._run, self._executors = settled
        folded, twins = function.folded.keys, [key for pair in function.twins for key in pair]
        keys = [*dict.fromkeys((*function.constants, *folded, *twins))]
        self._count = len(function.constants)
        self._folded = _at([keys.index(key) for key in folded])
        self._pick = picker(around, keys)
        self._same = alike([*arguments, *self._pick(around)])

    def fed(self, arguments: Sequence[Any], around: Mapping[Any, Any]) -> Sequence[Tensor] | None:
        """What the function reads of the constants, where a call is like that one; else None."""
        constants = self._pick(around)
        if (
            self._same(*arguments, *constants)
            and self._modes == modes()
            and (self._executors is None or self._executors is tried(get_backend()))
            and self.function.folded.are_still(self._folded(constants))
            and nothing_watches()
        ):
            return constants[: self._count]
        return None

    def run(self, arguments: Sequence[Tensor], constants: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs. `constants`: what `fed` gave.

        Raises:
            Otherwise: a branch is another than the one that it takes.
        """
        return self._run(*arguments, *constants)


def picker(around: Mapping[Any, Tensor], keys: Sequence[Any]) -> Pick:
    """What picks the values of some keys from such mappings."""
    of_mapping = getattr(around, "picker", None)
    if of_mapping is not None:
        return of_mapping(keys)
    if len(keys) < 2:
        return lambda now: picked(now, keys)
    return itemgetter(*keys)


class Named:
    """Picks buffers and parameters of a module by their names, as they are now."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._take = itemgetter(*names) if len(names) > 1 else None

    def __call__(self, module: nn.Module) -> Sequence[Tensor]:
        if self._take is not None:
            try:
                return self._take(module._buffers)
            except KeyError:
                pass
        return [named(module, name) for name in self._names]


def named(module: nn.Module, name: str) -> Tensor:
    """A buffer, a parameter, or what stands for one."""
    found = module._buffers.get(name)
    if found is None:
        found = module._parameters.get(name)
    return getattr(module, name) if found is None else found


def _at(places: Sequence[int]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    """What picks the values at some places."""
    begin = places[0] if places else 0
    if [*range(begin, begin + len(places))] == [*places]:
        return itemgetter(slice(begin, begin + len(places)))
    return itemgetter(*places)
