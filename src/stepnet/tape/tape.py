"""Tape: the layers of a network in the order they were made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from numbers import Integral
from typing import Any

from torch import Tensor, nn

from stepnet.data.arguments import name_of
from stepnet.data.tree import leaves, map_leaves
from stepnet.errors import StepnetError, TapeError
from stepnet.locks import Lock
from stepnet.user_line import user_line
from stepnet.watchers import during

from .creation import (
    PLAYING,
    UNKNOWN,
    Creation,
    Group,
    Memory,
    Place,
    Ref,
    describe,
    evaluating,
    larger,
    trial,
)
from .evaluator import Evaluator
from .holding import hold_tensors
from .item import TapeItem
from .topology import Topology, play, select

# The tapes that `with` has opened here, innermost last, each with the recurrent group being recorded.
_OPEN: ContextVar[tuple[tuple[Tape, Group | None], ...]] = ContextVar("stepnet_open_tapes", default=())


class Tape:
    """An ordered list of layer creations. Any output's topology is the tape played up to it.

    Layer functions record on the current tape: the innermost `with Tape():` of this thread or task, or else
    the global one, `Tape.current()`. A thread starts with the global tape; tapes may be filled and played by
    several threads at once.

    Iterating gives the creations, `tape["name"]` and `tape[3]` the items, `print(tape)` a table.

    Args:
        weights: another tape. Layers that are given the name of a layer there share its weights, so a network
            that is made again, under another tape, is the same network.

    Raises:
        TapeError: `weights` is no tape.

    Source: the Tape of Paddle's design of topologies (its v2 API).

    >>> import torch
    >>> from stepnet.layers import Dense, data, fc
    >>> with Tape() as tape:
    ...     img = data("img", Dense(4))
    ...     scores = fc(img, 3, name="scores")
    >>> print(tape)
    #  name    kind  inputs  value
    0  img     data          float32 [*, 4]
    1  scores  fc    img     float32 [*, 3]
    >>> net = tape.topology(scores)
    >>> out, metrics = net(img=torch.zeros(2, 4))
    >>> out.shape, list(net.state_dict())
    (torch.Size([2, 3]), ['scores.weight', 'scores.bias'])
    """

    def __init__(self, weights: Tape | None = None) -> None:
        if weights is not None and not isinstance(weights, Tape):
            raise TapeError(
                "Tape: 'weights' is another tape",
                got=type(weights).__name__,
                remedy="topology.load_state_dict(weights) of a state_dict",
            )
        self.weights = weights
        self._creations: list[Creation] = []
        self._names: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._lock = Lock()

    # The current tape

    @staticmethod
    def current() -> Tape:
        """The tape that layers are recorded on here and now."""
        opened = _OPEN.get()
        return opened[-1][0] if opened else _GLOBAL

    @staticmethod
    def opened() -> Tape | None:
        """The tape that a `with` has opened here, if there is one and it is not being played."""
        opened = _OPEN.get()
        return opened[-1][0] if opened and not PLAYING.get() else None

    def __enter__(self) -> Tape:
        _OPEN.set((*_OPEN.get(), (self, None)))
        return self

    def __exit__(self, *_: object) -> None:
        _OPEN.set(_OPEN.get()[:-1])

    def recording(self, group: Group) -> AbstractContextManager[None]:
        """Record into a recurrent group in a block of code."""
        return during(_OPEN, (*_OPEN.get(), (self, group)))

    @property
    def group(self) -> Group | None:
        """The recurrent group that is being recorded here, if any."""
        opened = _OPEN.get()
        return opened[-1][1] if opened and opened[-1][0] is self else None

    # Recording

    def append(self, creation: Creation | Callable[[], Any]) -> int:
        """Put a creation, or anything that can be called without arguments, at the end; returns its index.

        A creation without a name gets one from its kind: `fc_0`, `fc_1`.

        Raises:
            TapeError: the name is taken, or no name for a layer.
        """
        if not isinstance(creation, Creation):
            if not callable(creation):
                raise TapeError(
                    "a tape holds creations, or what can be called",
                    got=type(creation).__name__,
                    remedy="layers.apply(function, item); layers record themselves as they are called",
                )
            creation = Creation(creation, kind=getattr(creation, "__name__", "call").strip("<>_"))
        with self._lock:
            if creation.name:
                self._check_name(creation)
            else:
                creation.name = self._free_name(creation.kind)
            creation.line = creation.line or user_line()
            self._creations.append(creation)
            self._names[creation.name] = index = len(self._creations) - 1
        return index

    def record(
        self,
        kind: str,
        function: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        act: Callable[..., Any] | None = None,
        example: Any = UNKNOWN,
        classes: int | None = None,
        body: Group | None = None,
    ) -> TapeItem:
        """Record the call of a function or module on items and other values; every layer comes through here.

        The call is tried once, on a small example batch and without gradients, so that what does not fit is
        an error at this line; `example` is its result where trying is not wanted.

        Raises:
            TapeError: an item of another tape or group, a name that is taken, or the call fails.
        """
        group = self.group
        given = (tuple(args), dict(kwargs or {}))
        line = user_line()
        if name is not None:
            name_of(f"{kind}: 'name'", name, error=TapeError)
        where = Place(kind, name, line)
        self.check_items(leaves(given, TapeItem), where)
        references = map_leaves(given, TapeItem, lambda item: Ref(item.index))
        if next(leaves(references, Tensor), None) is not None:
            function, references = hold_tensors(function, references)
        creation = Creation(
            function, references[0], references[1], name or "", kind, act, group, line, example, classes, body
        )
        if example is UNKNOWN:
            creation.example = self._try(creation, where)
            creation.tried = True
        with self._lock:
            self._resolve(creation, where)
            return TapeItem(self, self.append(creation), creation)

    def check_items(self, items: Iterable[TapeItem], where: str | Place, group: Any = UNKNOWN) -> None:
        """Refuse items that are not on this tape, or not in a recurrent group; in that recorded here if none
        is named. `where`: what errors begin with.

        Raises:
            TapeError: one is not.
        """
        group = self.group if group is UNKNOWN else group
        for item in items:
            found = item.creation
            if item.tape is not self or Tape.current() is not self:
                raise TapeError(
                    f"{where}: its input '{item.name}' is an item of another tape",
                    got=f"{found.place}",
                    remedy="make a network under one `with Tape():`, all of it",
                )
            if not (item.index < len(self._creations) and self._creations[item.index] is found):
                raise TapeError(
                    f"{where}: its input '{item.name}' is no longer on the tape",
                    got=found.place,
                    remedy="after tape.clear(), make the layers anew",
                )
            if found.group != group:
                if found.group is not None and not _within(group, found.group):
                    raise TapeError(
                        f"{where}: its input '{item.name}' is inside the recurrent group "
                        f"'{found.group.name}'",
                        got=found.place,
                        remedy="return it from the step; the group's result is one row per step",
                    )
                raise TapeError(
                    f"{where}: its input '{item.name}' is outside the recurrent group "
                    f"'{group.name if group else ''}'",
                    got=found.place,
                    remedy="pass it to the group: as an input, StaticInput(item), or a memory's boot",
                )

    def _try(self, creation: Creation, where: Place) -> Any:
        """The result for examples; unknown where one of the inputs is."""
        examples = {index: self._creations[index].example for index in creation.inputs}
        for index in examples:
            if isinstance(self._creations[index].function, Evaluator):
                name = self._creations[index].name
                raise TapeError(
                    f"{where}: its input '{name}' is an evaluator, whose value no layer takes",
                    got=f"{self._creations[index]}",
                    remedy=f"metrics['{name}'] of what the topology gives is its value so far",
                )
        if not examples or any(value is UNKNOWN for value in examples.values()):
            return UNKNOWN
        try:
            return _tried(creation, examples)
        except Exception as error:
            lines = (str(error) or repr(error)).splitlines()
            ours = isinstance(error, StepnetError)  # all of it is in the user's words
            said = "; ".join(" ".join(line.split()) for line in lines) if ours else lines[0]
            raise TapeError(
                f"{where} does not fit its inputs: {said}",
                got=", ".join(f"'{self._creations[i].name}' {describe(v)}" for i, v in examples.items()),
                remedy="the message is that of a trial on a small batch",
            ) from error

    def larger(self, item: TapeItem) -> Any:
        """The value of an item for a larger batch than its example; unknown where that cannot be computed."""
        if self._creations[item.index : item.index + 1] != [item.creation]:
            return UNKNOWN  # the tape was cleared
        waiting = [item.creation]
        while waiting:
            creation = waiting[-1]
            inputs = {i: self._creations[i] for i in creation.inputs} if creation.tried else {}
            missing = [c for c in inputs.values() if c.larger is None]
            waiting += missing
            if not missing:
                waiting.pop().larger = _larger_of(creation, {i: c.larger for i, c in inputs.items()})
        return item.creation.larger

    def _check_name(self, creation: Creation) -> None:
        name = creation.name
        if not isinstance(name, str) or not name or "." in name:
            raise TapeError(
                f"{creation.kind}: a layer's name must be a string without dots, as keys of state_dict have",
                got=repr(name),
                remedy=repr(name.replace(".", "_")) if isinstance(name, str) and name else None,
            )
        if name in self._names:
            raise TapeError(
                f"{creation.place}: the name '{name}' is taken",
                got=self._creations[self._names[name]].place,
                remedy="give each layer of a tape a name of its own; tape.clear() starts anew",
            )

    def new_name(self, kind: str) -> str:
        """A name that no layer has yet."""
        with self._lock:
            return self._free_name(kind)

    def _free_name(self, kind: str) -> str:
        while True:
            count = self._counts.get(kind, 0)
            self._counts[kind] = count + 1
            if f"{kind}_{count}" not in self._names:
                return f"{kind}_{count}"

    # Memories: links by name, made when the layer of that name is

    def _resolve(self, creation: Creation, where: Place) -> None:
        if creation.group is None or not creation.name:
            return
        for memory in creation.group.memories:
            if memory.layer == creation.name and memory.source is None:
                check_memory(memory, creation, where)
                memory.source = len(self._creations)

    def find(self, name: str) -> Creation | None:
        """The creation of a name, if there is one."""
        return self._creations[self._names[name]] if name in self._names else None

    def since(self, start: int) -> tuple[Creation, ...]:
        """The creations from an index on."""
        return tuple(self._creations[start:])

    def truncate(self, length: int, group: Group) -> None:
        """Take back what a recurrent group that failed has recorded, if nothing else was recorded since."""
        with self._lock:
            if all(_within(c.group, group) for c in self._creations[length:]):
                for creation in self._creations[length:]:
                    del self._names[creation.name]
                del self._creations[length:]

    # Playing

    def call(self, end: Any = -1, skip: Any = (), feeds: Mapping[str, Any] | None = None) -> dict[int, Any]:
        """Play the tape: run its creations from the beginning to `end`, and give their values by index.

        `end` is an index, a name or an item, `skip` one or several; -1 is the last creation. `feeds` has the
        values of data layers by name. A recurrent group is run whole, as one creation.

        Raises:
            TapeError: as `topology`.

        >>> tape = Tape()
        >>> tape.append(lambda: 3), tape.append(lambda: 4)
        (0, 1)
        >>> tape.call(), tape.call(end=0)
        ({0: 3, 1: 4}, {0: 3})
        """
        if not self._creations:
            return {}
        ends = [self._index(end, "end")]
        chosen = select(self._creations, ends, self._skipped(skip), prune=False)
        return play([(i, c) for i, c in chosen if c.group is None], {}, feeds or {})

    def topology(self, outputs: Any, skip: Any = (), prune: bool = False) -> Topology:
        """The network that gives `outputs`: the tape from its beginning to the last of them.

        Args:
            outputs: an item, its name or its index, or a tuple (with names, too), list or dict of them. An
                evaluator among them ends a topology too.
            skip: an item, or several, that are left out, for a tape with branches; indices and names will do.
            prune: leave out what neither an output, nor an evaluator, nor a recurrent group needs.

        Returns:
            A module over the tape's own layers: topologies of one tape share their parameters.

        Raises:
            TapeError: an item of another tape, one inside a recurrent group, or one whose input is skipped.
        """
        references = map_leaves(
            outputs, (TapeItem, str, Integral), lambda item: Ref(self._index(item, "outputs"))
        )
        ends = [ref.index for ref in leaves(references, Ref)]
        if not ends:
            raise TapeError(
                "Tape.topology: 'outputs' holds no item",
                got=repr(outputs)[:80],
                expected="an item, its name or its index; or a tuple, list or dict of them",
            )
        return Topology(select(self._creations, ends, self._skipped(skip), prune), references)

    def _skipped(self, skip: Any) -> list[int]:
        one = isinstance(skip, (TapeItem, str)) or not isinstance(skip, Iterable)
        return [self._index(item, "skip") for item in ([skip] if one else skip)]

    def _index(self, item: Any, what: str) -> int:
        if isinstance(item, TapeItem):
            known = item.tape is self and self._creations[item.index : item.index + 1] == [item.creation]
            if not known:
                raise TapeError(
                    f"Tape: '{what}' names an item that is not on this tape",
                    got=repr(item),
                    remedy="item.tape.topology(...); Tape(weights=tape) shares the weights of another",
                )
            return item.index
        if isinstance(item, str) and item in self._names:
            return self._names[item]
        count = len(self._creations)
        if isinstance(item, Integral) and not isinstance(item, bool) and -count <= int(item) < count:
            return int(item) % count
        raise TapeError(
            f"Tape: '{what}' names no layer of this tape",
            got=repr(item)[:80],
            expected=f"an item, the name of a layer, or an index below {count}" if count else "layers first",
        )

    # Looking

    def __len__(self) -> int:
        return len(self._creations)

    def __iter__(self) -> Iterator[Creation]:
        return iter(tuple(self._creations))

    def __getitem__(self, key: int | str) -> TapeItem:
        """The item at an index, or of a name."""
        index = self._index(key, "key")
        return TapeItem(self, index, self._creations[index])

    def __bool__(self) -> bool:
        return True

    def clear(self) -> None:
        """Forget all layers. Topologies that were taken stay as they are.

        Raises:
            TapeError: a recurrent group is being recorded.
        """
        if self.group is not None:
            raise TapeError(
                f"Tape.clear inside the recurrent group '{self.group.name}'",
                remedy="call it when recurrent_group has returned",
            )
        with self._lock:
            self._creations.clear()
            self._names.clear()
            self._counts.clear()

    def __repr__(self) -> str:
        return f"Tape({len(self)} layers)"

    def __str__(self) -> str:
        creations = tuple(self._creations)
        if not creations:
            return "an empty tape"
        rows = [("#", "name", "kind", "inputs", "value")]
        for i, creation in enumerate(creations):
            inputs = ", ".join(creations[k].name for k in creation.inputs)
            name = "  " * (len(creation.group.chain) if creation.group else 0) + creation.name
            rows.append(
                (str(i), name, creation.kind, inputs, describe(creation.example, self.larger(self[i])))
            )
        widths = [max(len(row[k]) for row in rows) for k in range(4)]
        cells = ([c.ljust(w) for c, w in zip(row, [*widths, 0], strict=True)] for row in rows)
        return "\n".join("  ".join(row).rstrip() for row in cells)


_GLOBAL = Tape()


def _tried(creation: Creation, inputs: dict[int, Any]) -> Any:
    """What a creation gives for examples; the statistics of its modules stay."""
    called = (creation.function, creation.act)
    with evaluating([m for m in called if isinstance(m, nn.Module)]):
        return trial(lambda: creation.run(inputs))


def _larger_of(creation: Creation, inputs: dict[int, Any]) -> Any:
    """What a creation gives for a larger batch; unknown where one of its inputs is."""
    if creation.example is UNKNOWN or any(value is UNKNOWN for value in inputs.values()):
        return UNKNOWN
    if not creation.tried:
        return larger(creation.example)
    try:
        return _tried(creation, inputs)
    except Exception:  # a function that takes the example alone; what it says comes when the tape is played
        return UNKNOWN


def check_memory(memory: Memory, layer: Creation, where: str | Place) -> None:
    """Refuse a layer that cannot be what a memory remembers."""
    known = layer.example
    fits = isinstance(known, Tensor) and known.dim() == 2 and known.shape[1] == memory.size
    if known is not UNKNOWN and not fits:
        raise TapeError(
            f"{where}: the memory of '{memory.layer}' has another size than the layer",
            got=f"{describe(layer.example)}; memory({memory.layer!r}, size={memory.size}) at {memory.line}",
            expected="a tensor [rows, size] at each step",
            remedy=f"memory({memory.layer!r}, size={known.shape[-1]})"
            if isinstance(known, Tensor) and known.dim() == 2
            else None,
        )


def _within(inner: Group | None, outer: Group) -> bool:
    """Whether a group is another or lies in it."""
    return inner is not None and outer in inner.chain
