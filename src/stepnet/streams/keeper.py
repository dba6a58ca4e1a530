"""What answers the recurrences of a module during one push: each starts where its streams were left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _torch_module
from torch.nn.utils.rnn import PackedSequence

from stepnet.api import Recurrent, recurrent, warm
from stepnet.data import sequence
from stepnet.data.attributes import begins_by_itself
from stepnet.data.lod import LoDTensor
from stepnet.data.recording import RECORDER
from stepnet.data.tree import Spec, flatten, unflatten
from stepnet.errors import StreamError
from stepnet.executors.base import Backend
from stepnet.executors.setting import check_backend
from stepnet.front.step import WithStatic, as_step, boot_state, describe_leaf, step_name
from stepnet.ir.loop import Loop
from stepnet.resets import as_resets
from stepnet.watchers import SEQUENCES, during, kept_by, nobody_else, watched

from .states import Left, Slots, States


class Keeper:
    """Runs the recurrences of one push, and notes the states that they leave.

    Args:
        states: of all streams.
        slots: of the streams of this push.
        begun: which of them had rows before.
        levels: the offsets of the batch of chunks, outermost first.
    """

    def __init__(self, states: States, slots: Slots, begun: Sequence[bool], levels: Sequence[Tensor]) -> None:
        self.states, self.slots, self.begun, self.levels = states, slots, begun, levels
        self.n = len(begun)
        self.all_begun, self.none_begun = all(begun), not any(begun)
        self.ran: list[tuple[str, Spec]] = []  # the recurrences over the streams
        # steps that ran by a plan: as the module has them, and as they run
        self.warm: list[tuple[Any, Any]] = []
        self._left: list[list[Tensor]] = []

    def done(self) -> None:
        """Keep the states that the recurrences left."""
        self.states.leave(self.ran, Left(self.slots, self._left))

    def by_plans(self) -> bool:
        """Whether the module did nothing but run recurrences, each as a call like one before."""
        return 0 < len(self.warm) == len(self.ran)

    def answer(self, module: Callable[[Any], Any], x: Any) -> Any:
        """What a module gives, where this answers for what it does. x may lie in memory of the caller's."""
        if self.all_begun and type(x) is LoDTensor and len(self.levels) == 1 and is_alone():
            steps, backend = steps_of(module, x)
            for step in steps:
                x = self._alone(step, x, backend)
            if steps:
                return x
        x = self._own(x)
        with (
            during(SEQUENCES, _of_whole_sequences), during(sequence.WHOLE, _refuse_whole),
            kept_by(self.run), watched(_refuse_loop),
        ):  # fmt: skip
            return module(x)

    def _own(self, x: Any) -> Any:
        """x where a module or a step may write to it: a lone chunk is the caller's."""
        return LoDTensor.of(x.values.clone(), x.structure) if self.n == 1 and type(x) is LoDTensor else x

    def _alone(self, own: Any, x: LoDTensor, backend: Any) -> Any:
        """y of a recurrence whose last state nobody else sees."""
        step = as_step(own)
        name = step_name(step)
        kept = self.states.left(len(self.ran), name, self.slots)
        if kept is not None:
            _, out = warm(step, x, unflatten(*kept), (False, -1, 0, check_backend(backend)))
            if out is not None:  # a plan's: states like those that it was given
                self.ran.append((name, kept[0]))
                self._left.append(flatten(out[1])[0])
                self.warm.append((own, step))
                return out[0] if type(out[0]) is LoDTensor else out
        out = recurrent(step, self._own(x), self._start(step, name, None), backend=backend)
        self._keep(name, *flatten(out[1]))
        return out[0] if type(out[0]) is LoDTensor else out

    def run(
        self, step: Any, x: Any, state: Any, *, steps: Any, resets: Any, reverse: bool, level: int,
        checkpoint: Any = None, detach_every: Any = None, **how: Any,
    ) -> Any:  # fmt: skip
        """A call of `recurrent`: as it was made, but for windows, and the state that it starts from."""
        with during(SEQUENCES, None), during(sequence.WHOLE, None), watched(None):
            how |= {"steps": steps, "reverse": reverse, "level": level}
            if not self._goes_on(step, x, steps, level):
                return recurrent(step, x, state, resets=resets, **how)
            if reverse:
                raise StreamError(
                    f"the module runs '{step_name(as_step(step))}' backwards, from the end of sequences that "
                    "have not ended",
                    remedy="a bidirectional module needs whole sequences; stream one that runs forwards",
                )
            return self._run(as_step(step), x, state, resets, how)

    def _run(self, step: Any, x: Any, state: Any, resets: Any, how: dict[str, Any]) -> Any:
        name = step_name(step)
        if isinstance(state, WithStatic):
            raise StreamError(
                f"the recurrence over '{name}' is in a compiled region, and its step sees a memory (static=)",
                remedy="stream the module as it was before torch.compile",
            )
        if resets is not None:
            resets = as_resets(resets)
            if resets.state is None and not begins_by_itself(step):
                resets = replace(resets, state=state)  # not the one that is carried on
        out = recurrent(step, x, self._start(step, name, state), resets=resets, **how)
        leaves, spec = flatten(out[1])
        self._keep(name, [leaf.clone() for leaf in leaves], spec)  # the module may write to its own
        return out

    def _keep(self, name: str, leaves: list[Tensor], spec: Spec) -> None:
        at, known = len(self.ran), self.states.calls
        if at < len(known):
            known[at].check(name, spec, leaves, at)
        self.ran.append((name, spec))
        self._left.append(leaves)

    def _start(self, step: Any, name: str, state: Any) -> Any:
        """The states of streams that go on, and the initial ones of those that begin."""
        at = len(self.ran)
        if self.none_begun:
            return boot_state(step, self.n) if state is None else state
        if at >= len(self.states.calls):
            raise StreamError(
                f"the module runs a recurrence over '{name}' that it did not run at earlier pushes",
                remedy="a module that streams runs the same recurrences, in the same order, at every push",
            )
        kept = self.states.calls[at]
        if self.all_begun:
            leaves = self.states.of(at, self.slots)
            if state is not None or name != kept.name:
                given, spec = (leaves, kept.spec) if state is None else flatten(state)
                kept.check(name, spec, given, at)
            return unflatten(kept.spec, leaves)
        first, spec = flatten(boot_state(step, self.n) if state is None else state)
        kept.check(name, spec, first, at)
        places = [k for k, goes_on in enumerate(self.begun) if goes_on]
        carried = self.states.of(at, tuple([self.slots[k] for k in places]))
        begun = torch.tensor(places)
        leaves = [a.index_copy(0, begun.to(a.device), b) for a, b in zip(first, carried, strict=True)]
        return unflatten(kept.spec, leaves)

    def _goes_on(self, step: Any, x: Any, steps: Any, level: int) -> bool:
        """Whether a recurrence is over the streams; else over sequences that lie inside one step of theirs.

        Raises:
            StreamError: it is over something that this cannot be told of.
        """
        if isinstance(steps, int):
            return False
        leaf = next(iter(flatten(x)[0]), None)
        if isinstance(leaf, PackedSequence):
            leaf = LoDTensor.from_packed(leaf)
        if not isinstance(leaf, LoDTensor) or steps is not None:
            raise StreamError(
                f"the recurrence over '{step_name(as_step(step))}' is not over the streams",
                got="steps=, a number for each sequence" if leaf is None else describe_leaf(leaf),
                expected="LoDTensors with a sequence for each stream",
                remedy="a module that streams gets a LoDTensor, and hands LoDTensors from layer to layer",
            )
        own: Sequence[Tensor] = leaf.structure.levels
        if len(own) > len(self.levels):
            raise StreamError(
                f"the recurrence over '{step_name(as_step(step))}' is over pieces of a chunk",
                got=f"lengths {leaf.structure.show()}",
                expected=f"{self.levels[0].diff().tolist()}, those of the chunks",
                remedy="a piece may go on in the next chunk: recurrent(..., resets=marks) cuts streams, too",
            )
        if level % len(own):
            return False
        if len(self.levels) > 1 and own[0] is not self.levels[0] and own[0] is self.levels[1]:
            return False  # the outer level was dropped
        if own[0] is self.levels[0] or torch.equal(own[0], self.levels[0]):
            return True
        if len(self.levels) > 1:
            return False
        raise StreamError(
            f"the recurrence over '{step_name(as_step(step))}' is not over the streams",
            got=f"lengths {leaf.structure.show()}",
            expected=f"{self.levels[0].diff().tolist()}, those of the chunks",
            remedy="what makes rows longer or shorter, as a strided convolution, cannot be cut anywhere",
        )


_CALL, _FORWARD = nn.Module.__call__, Recurrent.forward


def hooks_of_all() -> bool:
    """Whether something else runs at each call of any module."""
    return bool(_torch_module._global_forward_hooks or _torch_module._global_forward_pre_hooks)


def runs_alone(module: nn.Module) -> bool:
    """Whether a call of a module has no hook of its own, and is not compiled."""
    return not (module._forward_hooks or module._forward_pre_hooks) and module._compiled_call_impl is None


def steps_of(module: Any, x: LoDTensor) -> tuple[Sequence[Any], Backend | None]:
    """The steps that a module runs one after the other over what it is given, if it does nothing else; and
    by which backend."""
    kind = type(module)
    if (
        not (kind is Recurrent or hasattr(kind, "_in_turn"))
        or type(module).__call__ is not _CALL
        or "forward" in (own := vars(module))
        or not runs_alone(module)
        or hooks_of_all()
    ):
        return (), None
    if kind is not Recurrent:
        return module._in_turn(x), None
    other = own["reverse"] or own["scopes"] or own["level"] not in (-1, 0) or kind.forward is not _FORWARD
    step = own["_modules"].get("step")  # where torch looks after all else
    return () if other else (module.step if step is None else step,), own["backend"]


def is_alone() -> bool:
    """Whether nobody else answers, keeps, watches or records calls here."""
    return nobody_else() and SEQUENCES.get() is RECORDER.get() is None


def _refuse_loop(loop: Loop | str, *_: Any, **__: Any) -> None:
    name = loop if isinstance(loop, str) else loop.body.name
    raise StreamError(
        f"the module runs a loop over '{name}' that is no recurrence, and keeps no state between chunks",
        remedy="write it as a step: stepnet.recurrent(step, x, state)",
    )


def _of_whole_sequences(name: Any, of: LoDTensor, x: Tensor, fill: float) -> Any:
    """Pooling, softmax and turning around inside one step of a stream, and what is no such thing.

    Raises:
        StreamError: they are over streams, which have not ended.
    """
    with during(SEQUENCES, None):
        if name == "expand":
            return sequence.sequence_expand(x, of).values
        if of.lod_level > 1:
            same = {"softmax": sequence.sequence_softmax, "reverse": sequence.sequence_reverse}.get(name)
            made = sequence.sequence_pool(of, name, fill) if same is None else same(of)
            return made.values
    return _refuse_whole(name, of)


def _refuse_whole(name: str, of: LoDTensor) -> None:
    """Refuse what takes the rows of a chunk for those of a whole stream."""
    if of.lod_level == 1:
        raise StreamError(
            f"the module takes '{name}' of the rows of a stream, of which it sees a chunk at a time",
            remedy="stream the part of the module before it, or carry the value as the state of a step",
        )
