"""Functions of sequences in what torch compiles or exports: each is one operator, which runs the function.

The offsets of sequences are numbers that no graph knows. The operator `stepnet::run` is given its function
as text; `stepnet.graph` says what runs, and of which shapes its results are.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data.offsets import LoD
from stepnet.errors import LoDError
from stepnet.watchers import instead

_F = TypeVar("_F", bound=Callable[..., Any])
_VERSION: Any = torch.__version__
# Whether torch.export traces what runs; torch 2.6 tells it from nothing else that traces.
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
_LODTENSORS = "stepnet.data.lod"
NO_RESULT = "a program that torch.export writes is for any lengths, and cannot give a LoDTensor of them"
OPEN_ROWS = (
    "how many rows of a LoDTensor there are is not known before the graph runs, and its offsets are of a "
    "known number: choose rows outside of the graph; mark sizes by maybe_mark_dynamic, not mark_unbacked"
)
AS_TENSORS = "return x.values and x.lod, which are tensors of the program"
CAN_CAPTURE: bool = _VERSION >= (2, 13)  # what the nodes stand on is private to torch, and changes


def not_followed(function: _F, *, calls: bool = False) -> _F:
    """A function that Dynamo leaves alone, with all that it calls, where it gave up on what calls it; or only
    the function itself, and Dynamo follows its `calls`."""
    written: Any = function
    if CAN_CAPTURE:
        native: Any = torch._C
        dynamo = native._dynamo.eval_frame
        skip, default = dynamo._FrameAction.SKIP, dynamo._FrameAction.DEFAULT
        strategy = dynamo._FrameExecStrategy(skip, default if calls else skip)
        dynamo.set_code_exec_strategy(written.__code__, strategy)
    elif not calls:

        @functools.wraps(function)
        def alone(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                return torch.compiler.disable(written)(*args, **kwargs)
            return written(*args, **kwargs)

        return cast(_F, alone)
    return function


def fixed(value: Any) -> Any:
    """A whole number that Dynamo may have left open as the one that it is here: a graph is made for it."""
    return operator.index(value) if isinstance(value, int) and not isinstance(value, bool) else value


def end_graph(why: str) -> None:
    """End a graph of Dynamo before the call that it is in, and begin one after it, where it may."""
    import torch._dynamo as dynamo

    if CAN_CAPTURE:
        dynamo.graph_break(msg=why)
    else:
        dynamo.graph_break()  # torch 2.6 takes no reason


def end_compiled_backward() -> None:
    """End a graph of compiled autograd before the backward of a run that was no part of a graph."""
    if torch.compiler.is_dynamo_compiling():
        end_graph(
            "stepnet: the backward of a recurrence that was not compiled is run by Python: compile the "
            'module that calls it, too, by backend="aot_eager" or "inductor"'
        )


def by_python(why: str) -> Callable[[_F], _F]:
    """A function that is no part of a graph, nor followed by itself: Python runs it, between two graphs."""

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                end_graph(f"stepnet: {why}")
            else:
                _note_skipped(why)
            return function(*args, **kwargs)

        not_followed(function)
        return cast(_F, not_followed(call))

    return decorate


def _note_skipped(why: str) -> None:
    """Tell `fullgraph=True` why Dynamo skips a function that is all that it was to compile."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    noted = None if dynamo is None else getattr(getattr(dynamo, "dynamo_tls", None), "skip_reasons", None)
    if noted is not None:  # a list of texts, where a call with fullgraph=True has met no graph yet
        noted.append(f"stepnet: {why}")


def leave_to_python(why: str) -> None:
    """End what Dynamo compiles: Python runs the function that it follows, and all that called it."""
    import torch._dynamo as dynamo

    if CAN_CAPTURE:
        dynamo.skip_frame(msg=why)
    else:
        dynamo.graph_break()  # torch 2.6 takes no reason


def tell_products_apart() -> None:
    """Let Dynamo hand on `x @ w` of a LoDTensor as it does other operators, as `Tensor.__rmatmul__(w, x)`: it
    knows no such twin of this one, and takes both for `w @ x`. It follows once more what it had followed."""
    from torch._dynamo import exc, symbolic_convert

    turned = twins()
    if operator.matmul not in turned:
        turned[operator.matmul] = turned[operator.imatmul] = Tensor.__rmatmul__
        symbolic_convert.InstructionTranslator.current_tx().speculation_log.clear()
        raise exc.RestartAnalysis("stepnet: `x @ w` is not `w @ x`")


def twins() -> dict[Any, Any]:
    """What Dynamo hands operators on as whose first operand is no tensor: `Tensor.__radd__` for `+`."""
    from torch._dynamo.variables import builtin, torch_function

    name = "BUILTIN_TO_TENSOR_RFN_MAP"
    return getattr(builtin if hasattr(builtin, name) else torch_function, name)  # torch 2.6: in the latter


def teach_forms() -> bool:
    """Let Dynamo follow `~x` and `x @ y` of LoDTensors as it does `-x` and `x + y`, and look for them in
    tuples of arguments as in lists. It calls this where it meets anything of this package."""
    from torch._dynamo.variables import builtin, torch_function
    from torch._dynamo.variables.lists import TupleVariable
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    known: Any = builtin.BuiltinVariable
    functions: Any = torch_function
    flat = getattr(functions, "_flatten_vts", None)
    if flat is None or flat.__name__ == "in_tuples":  # another torch; taught before
        return True

    def method(name: str) -> Callable[..., Any]:
        def call(self: Any, tx: Any, x: Any, *others: Any) -> Any:
            ours = isinstance(x, UserDefinedObjectVariable) and x.python_type().__module__ == _LODTENSORS
            return x.call_method(tx, name, [*others], {}) if ours else None

        return call

    def in_tuples(variables: Any) -> list[Any]:
        found: list[Any] = []
        for each in flat(variables):
            found += in_tuples(each.items) if isinstance(each, TupleVariable) else [each]
        return found

    known.call_invert, known.call_matmul = method("__invert__"), method("__matmul__")
    functions._flatten_vts = in_tuples
    _give_lodtensors()
    return True


def _give_lodtensors() -> None:
    """Let Dynamo give, from what it exports, LoDTensors of offsets that came in with an argument, which a
    program is for; of others say that it cannot."""
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.variables.base import AsPythonConstantNotImplementedError
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    class NoResult(AsPythonConstantNotImplementedError, LoDError):
        def __init__(self, variable: Any) -> None:
            LoDError.__init__(self, NO_RESULT, remedy=AS_TENSORS)
            self.vt = variable

    of_object: Any = UserDefinedObjectVariable.as_python_constant

    @functools.wraps(of_object)
    def constant(self: Any) -> Any:
        if type(self.value) is LoD and InstructionTranslator.current_tx().export:
            if not hasattr(self.value, "levels"):  # made by what is exported: Dynamo fills none
                raise NoResult(self)
            return self.value
        return of_object(self)

    UserDefinedObjectVariable.as_python_constant = constant


for _told in (tell_products_apart, teach_forms):
    _called: Any = _told
    _called._dynamo_marked_constant = True  # Dynamo calls it


def follow(callback: Any) -> Any:
    """Let Dynamo follow what this thread runs from here on, as `callback` has it; None: nothing. Gives what
    was before."""
    native: Any = torch._C
    return native._dynamo.eval_frame.set_eval_frame(callback)


not_followed(follow, calls=True)
_called: Any = follow
_called._torchdynamo_disable = True  # nor what calls it: torch 2.14 warned of what it cannot follow


def is_followed() -> bool:
    """Whether torch compiles or exports what runs, so that a call is to be made by `call`."""
    if torch.compiler.is_dynamo_compiling():
        return CAN_CAPTURE and teach_forms()
    return CAN_CAPTURE and is_exporting() and instead() is None


def is_exported() -> bool:
    """Whether it goes into a program for other processes, where a call stays one operator, known by its name.
    What is compiled for this process joins torch's own operators with what is around them."""
    return is_followed() and is_exporting()


def structure(function: str, levels: Sequence[Tensor], rows: int) -> LoD:
    """Offsets that a graph is given, checked as it runs.

    Args:
        function: "offsets" or "lengths", which is what `levels` hold.
        levels: outermost first.
        rows: how many rows there are.
    """
    # A program is for any number of sequences: of one computed from the size of a tensor, torch asks whether
    # it is 1, and then takes no other.
    counts = [] if is_exported() else [t.shape[0] for t in levels]
    own = call(function, levels, [], sizes=[rows, *counts])
    return LoD.trusted(tuple(own[: len(levels)]), rows)


def differ(rows: int, expected: int) -> bool:
    """Whether there are more or fewer rows than there should be. Where nobody knows before a graph runs,
    it ends here, and Python asks."""
    if CAN_CAPTURE and torch.compiler.is_dynamo_compiling():
        from torch.fx.experimental.symbolic_shapes import guard_or_false

        same: Any = rows == expected
        if not guard_or_false(same) and not guard_or_false(rows != expected):  # pyright: ignore[reportArgumentType]
            end_graph(f"stepnet: {OPEN_ROWS}")
    return rows != expected


def check_whole(rows: Tensor, offsets: Tensor) -> None:
    """Let the graph check that offsets name all rows, also where nothing reads them but the rows are used."""
    whole = (offsets[0] == 0) & (offsets[-1] == rows.shape[0])
    torch.ops.aten._assert_async.msg(
        whole, "LoDTensor.from_nested in a graph takes NestedTensors without holes; call it outside"
    )


def levels_of(lod: object) -> list[Tensor] | None:
    """Levels as tensors of a graph, also those of numbers: the graph checks them as it runs. None where what
    they are made of is no part of one."""
    if not (is_followed() and isinstance(lod, (list, tuple)) and lod and all(map(_is_level, lod))):
        return None
    return [t if isinstance(t, Tensor) else torch.tensor(t, dtype=torch.int64, device="cpu") for t in lod]


def _is_level(level: object) -> bool:
    if isinstance(level, (list, tuple)):
        return all(type(number) is int for number in level)
    return isinstance(level, Tensor)


def unpacked(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """The rows of a PackedSequence sequence after sequence, and their offsets."""
    rows, offsets = call("unpack", _parts(packed.data, packed), [])
    return rows, offsets


def packed_like(packed: PackedSequence, rows: Tensor) -> Tensor:
    """The data of a PackedSequence like another, of rows that stand sequence after sequence."""
    (data,) = call("pack", _parts(rows, packed), [])
    return data


def joined(sequences: Sequence[Tensor]) -> tuple[Tensor, LoD]:
    """Tensors that differ in length alone, one after the other."""
    rows = torch.cat([*sequences])
    (offsets,) = call("ends", [rows], [], sizes=[t.shape[0] for t in sequences])
    return rows, LoD.trusted((offsets,), rows.shape[0])


def of_lengths(lengths: Tensor, known: Sequence[int]) -> tuple[Tensor, LoD]:
    """Rows of nothing, as many as sequences of these lengths have, and which are whose. `known`: the lengths,
    if the graph has them as numbers."""
    rows, offsets = call("rows", [lengths], [], sizes=known)
    return rows, LoD.trusted((offsets,), rows.shape[0])


def _parts(data: Tensor, packed: PackedSequence) -> list[Tensor]:
    order = packed.unsorted_indices
    return [data, packed.batch_sizes] if order is None else [data, packed.batch_sizes, order]


def call(
    function: str, values: Sequence[Tensor], lods: Sequence[LoD], *options: object, sizes: Sequence[int] = ()
) -> list[Tensor]:
    """A call of a function in the graph: its rows, then its offsets if they are new ones.

    Args:
        function: its name.
        values: its tensors, and the rows of its LoDTensors.
        lods: the offsets of its LoDTensors.
        options: plain values.
        sizes: numbers that the graph may leave open.
    """
    counts = tuple([len(lod.levels) for lod in lods])
    plain = tuple([str(o) if isinstance(o, float) and not math.isfinite(o) else fixed(o) for o in options])
    what = f"sequence {function} {counts!r} {plain!r}"
    offsets = [level for lod in lods for level in lod.levels]
    return torch.ops.stepnet.run([*values, *offsets], [*sizes], what)
