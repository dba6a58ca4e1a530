"""A recurrence as text: the step as a list of calls of torch's operators, and how it is run.

It travels in the graphs of `torch.export`, to be run wherever stepnet is imported. What is read is checked:
it names operators of torch's library, tensors' sizes and plain values, and nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import operator
from collections.abc import Callable, Iterable, Sequence
from inspect import isfunction
from keyword import iskeyword
from typing import Any

import torch
from torch import Tensor, fx

from stepnet.data.convert import DEEPEST
from stepnet.data.modes import outside_modes
from stepnet.errors import StepError

from .calls import add_kind, unreadable
from .flow import Way
from .recurrence import Leaf, Recurrence, autocast_as, autocast_now
from .sizes import for_open_sizes, row_shape
from .transforms import with_no_grad_noted

KIND = "recurrence"
_ROWS = 7
_NUMBERS = (
    *("getitem", "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pow"),
    *("eq", "ne", "lt", "le", "gt", "ge"),  # of sizes, in what torch asserts of them
)
_FILES = ("from_file",)
_AUTOCAST, _END = "autocast", "end of autocast"
_BLOCKS: dict[Any, str] = {
    torch.amp.autocast_mode._enter_autocast: _AUTOCAST,
    torch.amp.autocast_mode._exit_autocast: _END,
}
_SIMPLE = (type(None), bool, int, float, str)
# What wrong texts raise where they are read.
_WRONG = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, SyntaxError)
_NONE = type(None)
_BY_OTHERS = "torch.compile takes it; stepnet.onnx.save and stepnet.openvino.save write it, if they can"
_KINDS_OF_WAY: dict[str, tuple[type, ...]] = {
    "name": (str,), "reverse": (bool,), "axis": (int,), "levels": (int,), "inside": (int,),
    "backend": (_NONE, str), "resets": (str,), "checkpoint": (_NONE, int, bool),
    "detach_every": (_NONE, int),
}  # fmt: skip
_NAMED: dict[str, type] = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def text_of(recurrence: Recurrence, tensors: Sequence[Tensor], reads: Sequence[Any]) -> str:
    """A recurrence as text, which `load` reads.

    Args:
        recurrence: what to write.
        tensors: what it is run on, without numbers.
        reads: what its step reads besides.

    Raises:
        StepError: the step does what a text cannot say.
    """
    graph, opened = _traced(recurrence, tensors, reads)
    if _settled(recurrence, graph, opened):
        graph, _ = _traced(recurrence, tensors, reads)
    places = {node: i for i, node in enumerate(graph.graph.nodes)}
    calls = [_call(recurrence, graph, node, places) for node in graph.graph.nodes if node.op != "output"]
    out, rows = _results(recurrence, graph)
    return f"{KIND} " + json.dumps(
        {
            "way": dataclasses.asdict(recurrence.way),
            "counts": recurrence.counts,
            "y": [
                [[*map(int, t.shape[1:])], _name(t.dtype), leaf.whole]
                for t, leaf in zip(rows, recurrence.y, strict=True)
            ],
            "calls": calls,
            "results": [places[node] for node in out],
        }
    )


def _results(recurrence: Recurrence, graph: fx.GraphModule) -> tuple[Any, list[Tensor]]:
    """The nodes that a step gives, and the rows of y."""
    (out,) = next(n for n in graph.graph.nodes if n.op == "output").args
    return out, [node.meta["val"] for node in out[: len(recurrence.y)]]


def _settled(recurrence: Recurrence, graph: fx.GraphModule, opened: Iterable[tuple[Any, Any]]) -> bool:
    """Whether rows of y have sizes that the program leaves open. They are numbers in a text: they are made so
    in the program, which torch tells whoever named them.

    Raises:
        StepError: one is known as it runs.
    """
    rows = _results(recurrence, graph)[1]
    sizes: list[Any] = [size for t in rows for size in t.shape[1:] if type(size) is not int]
    asked = {symbol for size in sizes for symbol in size.node.expr.free_symbols}
    settled = [outer for outer, inner in opened if inner.node.expr in asked]
    try:
        for outer in settled:
            int(outer)
    except RuntimeError as error:
        raise refusal(recurrence, "its y has rows of a size that only a run knows") from error
    return bool(settled)


@outside_modes
def load(text: str) -> Recurrence:
    """Read what `text_of` wrote.

    Raises:
        StepError: it is no such text.
    """
    try:
        form = json.loads(text)
        way = _way(form["way"])
        y = tuple(
            Leaf(tuple(map(_count, shape)), _checked(getattr(torch, name), torch.dtype), *map(bool, whole))
            for shape, name, *whole in form["y"]
        )
        a, b, c, d = map(_count, form["counts"])
        step = _step(form["calls"], form["results"])
        least, results = a + b + c + way.inside, len(y) + b
        if len(way.rounded) not in (0, results):
            raise ValueError(f"it rounds {len(way.rounded)} results of {results}")
        if form["calls"].count(None) < least or len(form["results"]) != results or not a:
            raise ValueError(f"its step takes {least} values at least and gives {results}")
        return Recurrence(way, step, (a, b, c, d), y)
    except _WRONG as error:
        raise unreadable(str(error)) from error


def under(text: str, call: Recurrence, tensors: Sequence[Tensor]) -> str:
    """The text of a recurrence that runs these under the autocast of now, whatever is around it then."""
    around = autocast_now()
    key = (around, *[t.dtype for t in tensors])
    known = call.texts.get(key)
    if known is not None:
        return known
    head = f"{KIND} "
    form = json.loads(text.removeprefix(head))
    form["way"] |= {"autocast": around, "rounded": ()}
    form["y"] = [
        [shape, _name(dtype), *whole]
        for (shape, _, *whole), dtype in zip(form["y"], call.types_of(tensors), strict=True)
    ]
    return call.texts.setdefault(key, head + json.dumps(form))


def _way(said: dict[str, Any]) -> Way:
    """How it runs, each of the types that it is written with."""
    autocast = said["autocast"]
    autocast = None if autocast is None else tuple(map(tuple, autocast))
    way = Way(**{**said, "autocast": autocast, "rounded": tuple(said.get("rounded", ()))})
    for name, kinds in _KINDS_OF_WAY.items():
        if type(getattr(way, name)) not in kinds:
            raise ValueError(f"its {name} is {getattr(way, name)!r}")
    if not 0 <= way.inside <= way.levels <= DEEPEST or way.resets not in ("", "is_init", "done"):
        raise ValueError(f"it runs over {way.inside} of {way.levels} levels, resets {way.resets!r}")
    known = way.autocast or ()
    if not all(type(part) is str for part in sum(known, ())) or any(len(p) != 2 for p in known):
        raise ValueError(f"its autocast is {way.autocast!r}")
    if not all(type(of) is bool for of in way.rounded):
        raise ValueError(f"its rounded results are {way.rounded!r}")
    return way


add_kind(KIND, load)


def _traced(
    recurrence: Recurrence, tensors: Sequence[Tensor], reads: Sequence[Any]
) -> tuple[fx.GraphModule, Iterable[tuple[Any, Any]]]:
    """The operators that the step calls, on any number of rows, as autograd is to see them; and sizes that
    the program leaves open, each with what stands for it here."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        StatelessSymbolicContext,
        has_static_value,
    )

    way, (n_x, n_state, n_static, _) = recurrence.way, recurrence.counts
    around = autocast_now() if way.autocast is None else way.autocast
    shapes = [(row_shape(t, way.axis, way.levels), t.dtype, t.device) for t in tensors[:n_x]]
    shapes += [(tuple(t.shape[1:]), t.dtype, t.device) for t in tensors[n_x : n_x + n_state + n_static]]
    fixed = [(tuple(t.shape), t.dtype, t.device) for t in reads if isinstance(t, Tensor)]
    if len(fixed) < len(reads):
        raise refusal(recurrence, "it reads a size that the program leaves open")
    with for_open_sizes() as (_, fake):
        context = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
        hints = itertools.count(_ROWS, 2)

        def some() -> Any:
            return fake.from_tensor(torch.empty(next(hints), 1), symbolic_context=context).shape[0]

        n, pieces = some(), [some(), some()]
        opened: dict[str, tuple[Any, Any]] = {}  # by what the program calls them

        def known(shape: Sequence[Any]) -> tuple[Any, ...]:
            found = list[Any]()
            for size in shape:
                if not has_static_value(size) and str(size) not in opened:
                    opened[str(size)] = size, some()
                found.append(int(size) if has_static_value(size) else opened[str(size)][1])
            return tuple(found)

        shapes, fixed = ([(known(s), d, at) for s, d, at in some_of] for some_of in (shapes, fixed))
        with fake:
            rows = pieces[0] if way.inside else n
            inputs = [torch.empty((rows, *shape), dtype=d, device=at) for shape, d, at in shapes[:n_x]]
            inputs += [torch.empty((n, *shape), dtype=d, device=at) for shape, d, at in shapes[n_x:]]
            ends = [n, *pieces[1:] * way.inside][: way.inside]
            inputs += [torch.empty(m + 1, dtype=torch.int64) for m in ends]
            inputs += [torch.empty(shape, dtype=d, device=at) for shape, d, at in fixed]
        try:
            # Autocast is of what the step makes from nothing, too; gradients are off where it says so.
            with fake, autocast_as(around), torch.enable_grad():
                step = recurrence.step
                if recurrence.transforms:
                    step = with_no_grad_noted(step, functools.partial(refusal, recurrence))
                graph = make_fx(step, pre_dispatch=not recurrence.transforms)(*inputs)
        except RuntimeError as error:  # what torch says of a size that is a number
            said = str(error).splitlines()[0]
            raise refusal(recurrence, f"it does not run on any number of rows: {said}") from error
    graph.graph.eliminate_dead_code()
    return graph, opened.values()


def _call(recurrence: Recurrence, graph: fx.GraphModule, node: fx.Node, places: dict[fx.Node, int]) -> Any:
    """One node: an input, a constant, or a call with its arguments."""

    def plain(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return {"value": places[value]}
        if isinstance(value, (list, tuple)):
            return [plain(part) for part in value]
        if isinstance(value, _SIMPLE):
            return value
        if isinstance(value, torch.device):
            return {"device": str(value)}
        for kind, cls in _NAMED.items():
            if isinstance(value, cls):
                return {kind: _name(value)}
        raise refusal(recurrence, f"it passes {type(value).__name__} to {node.target}")

    if node.op == "placeholder":
        return None
    if node.op == "get_attr":
        constant = getattr(graph, str(node.target))
        if not isinstance(constant, Tensor):  # the body of torch.cond, of a loop of torch's, of an autocast
            raise refusal(recurrence, f"it calls {next(iter(node.users)).target} with a part of the step")
        return {"constant": constant.tolist(), "dtype": _name(constant.dtype)}
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload) and _is_known(str(target)):
        name = str(target)
    elif target is torch._C._set_grad_enabled:
        name = "set_grad_enabled"
    elif target in _BLOCKS:
        name = _BLOCKS[target]
    elif getattr(operator, getattr(target, "__name__", ""), None) is target and target.__name__ in _NUMBERS:
        name = f"operator.{target.__name__}"
    else:
        called = f"{target.__module__}.{target.__name__}" if isfunction(target) else target
        raise refusal(recurrence, f"it calls {called}")
    return {"call": name, "args": plain(node.args), "named": {k: plain(v) for k, v in node.kwargs.items()}}


def refusal(recurrence: Recurrence, why: str) -> StepError:
    """The error of a recurrence that no text can hold."""
    return refused(recurrence.way, why)


def refused(way: Way, why: str, remedy: str | None = _BY_OTHERS) -> StepError:
    """The error of a step that no text can hold."""
    return StepError(f"step '{way.name}' cannot be part of an exported program: {why}", remedy=remedy)


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value


def _count(value: Any) -> int:
    """A number that counts something."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} counts nothing")
    return value


def _is_known(name: str) -> bool:
    """Whether a text may name an operator."""
    namespace, called, *_ = name.split(".")
    return (namespace in ("aten", "prims") and called not in _FILES) or name == "stepnet.run.default"


def _function(name: str) -> Callable[..., Any]:
    """What a text may call, by name."""
    if name == "set_grad_enabled":
        return torch.set_grad_enabled
    namespace, called, *kind = name.split(".")
    if namespace == "operator" and called in _NUMBERS:
        return getattr(operator, called)
    packet = getattr(getattr(torch.ops, namespace), called) if _is_known(name) else None
    overload: Any = _checked(getattr(packet, *kind), torch._ops.OpOverload)
    if name == "aten.lstm.input":
        return torch.lstm  # by this name compiled steps know it
    return overload._op  # the object around it remembers things, as no step may


def _step(calls: Sequence[Any], results: Sequence[int]) -> Callable[..., tuple[Any, ...]]:
    """The calls as a function, whose names are all made here."""
    space: dict[str, Any] = {}
    inputs = [f"v{i}" for i, call in enumerate(calls) if call is None]
    made: set[int] = {i for i, call in enumerate(calls) if call is None}
    blocks: list[dict[str, int]] = []  # those that a line stands in, as the values that name them
    lines = [f"def step({', '.join(inputs)}):"]

    def name_of(at: Any) -> str:
        if type(at) is not int or at not in made:
            raise ValueError(f"nothing made the value {at!r} before it is read")
        return f"v{at}"

    def written(value: Any) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(written, value))}]"
        if isinstance(value, dict):
            ((kind, content),) = value.items()
            if kind == "value":
                return name_of(content)
            found = torch.device(content) if kind == "device" else getattr(torch, content)
            space[f"held{len(space)}"] = _checked(found, torch.device if kind == "device" else _NAMED[kind])
            return f"held{len(space) - 1}"
        if isinstance(value, float):
            return f"float({str(value)!r})"
        return repr(_checked(value, _SIMPLE))  # pyright: ignore[reportArgumentType]

    for i, call in enumerate(calls):
        if call is None:
            continue
        indent = "    " * (1 + len(blocks))
        if "constant" in call:
            dtype = _checked(getattr(torch, call["dtype"]), torch.dtype)
            space[f"held{len(space)}"] = torch.tensor(call["constant"], dtype=dtype)
            lines.append(f"{indent}v{i} = held{len(space) - 1}")
            made.add(i)
            continue
        if call["call"] == _END:
            if [blocks.pop()] != call["args"]:
                raise ValueError("an autocast ends where another does")
            continue
        begins = call["call"] == _AUTOCAST
        space[f"held{len(space)}"] = torch.autocast if begins else _function(call["call"])
        callee = f"held{len(space) - 1}"
        named = [f"{_identifier(k)}={written(v)}" for k, v in call["named"].items()]
        called = f"{callee}({', '.join([*map(written, call['args']), *named])})"
        if begins:
            lines.append(f"{indent}with {called}:")
            blocks.append({"value": i})
            indent, called = indent + "    ", "None"
        lines.append(f"{indent}v{i} = {called}")
        made.add(i)
    lines.append(f"    return ({''.join(f'{name_of(i)}, ' for i in results)})")
    exec(compile("\n".join(lines), "<step of an exported program>", "exec"), space)
    return space["step"]


def _identifier(name: str) -> str:
    if not name.isidentifier() or iskeyword(name):
        raise ValueError(f"{name!r} is no name")
    return name
