"""A node of a file, as the function that makes its operator sees it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype
from torch import Tensor

from stepnet.data.dtypes import dtype_name
from stepnet.errors import IRError
from stepnet.file_model import ERRORS, Broken, CutOff, Misfit, NotRead, attributes_text, error, shorten
from stepnet.file_model import check_size as check_size
from stepnet.file_model import given as given


@dataclass
class Info:
    """What is known of a node before anything runs.

    Attributes:
        node: the node.
        opset: the version of the operators.
        where: the file and the node, for errors.
        known: the numbers of inputs that are constants, as nested lists: whole numbers, and those of others
            that the operator asks for.
        constants: the inputs that are constants, of a size that sizes and positions have.
        bodies: the graphs in its attributes.
        outer: the values that they read from around, which follow the inputs of a call.
        read: the inputs that the operator reads as numbers.
    """

    node: ir.Node
    opset: int
    where: str
    known: dict[int, Any] = field(default_factory=dict)
    constants: dict[int, Tensor] = field(default_factory=dict)
    bodies: dict[str, Any] = field(default_factory=dict)
    outer: tuple[ir.Value, ...] = ()
    read: set[int] = field(default_factory=set)

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute: a number, a text, or a list of them."""
        found = self.node.attributes.get(name)
        if found is None:
            return default
        value = found.value
        if found.type in (ir.AttributeType.GRAPH, ir.AttributeType.TENSOR):
            return value
        value = list(value) if isinstance(value, (tuple, list)) else value
        if default is not None and not _alike(value, default):
            got = "nothing" if value is None else value
            raise Misfit(f"attribute '{name}' is of another type", got, f"as {default!r}")
        return value

    def choice(self, name: str, known: Collection[str], default: str) -> str:
        """An attribute that is one of some words.

        Raises:
            Misfit: it is another one.
        """
        found = self.get(name, default)
        if found not in known:
            raise Misfit(f"attribute '{name}' is not known", found, ", ".join(known))
        return found

    def has(self, index: int) -> bool:
        """Whether an input is connected."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def numbers(self, index: int, name: str | None = None) -> Callable[[Sequence[Any]], Any]:
        """A function from the inputs of a call to the numbers of one: an input of recent operator sets, the
        attribute `name` of older ones; None where there is neither."""
        if name is not None and name in self.node.attributes:
            fixed = self.get(name)
            return lambda inputs: fixed
        if index in self.constants and index not in self.known:
            self.known[index] = self.constants[index].tolist()
        if index in self.known:
            known = self.known[index]
            return lambda inputs: known
        if not self.has(index):
            return lambda inputs: None
        self.read.add(index)
        return lambda inputs: numbers_of(inputs[index])

    def listed(self, index: int, name: str | None = None) -> Callable[[Sequence[Any]], list[int] | None]:
        """`numbers`, of which one alone is a list, too."""
        found = self.numbers(index, name)

        def run(inputs: Sequence[Any]) -> list[int] | None:
            got = found(inputs)
            return got if got is None or isinstance(got, list) else [got]

        return run

    def number(self, index: int, name: str | None = None) -> Callable[[Sequence[Any]], Any]:
        """`numbers`, of which there is one: exporters write it as a scalar or as a list."""
        found, what = self.numbers(index, name), name or f"input {index}"

        def run(inputs: Sequence[Any]) -> Any:
            got = found(inputs)
            if isinstance(got, list):
                if len(got) != 1 or isinstance(got[0], list):
                    raise Misfit(f"{what} must be one number", got[:8], "one")
                (got,) = got
            return got

        return run

    @property
    def kind(self) -> str:
        """The name of its operator."""
        return self.node.op_type

    @property
    def count(self) -> int:
        """How many outputs the node has."""
        return len(self.node.outputs)

    def wants(self, index: int) -> bool:
        """Whether anything may read an output."""
        return index < self.count and bool(self.node.outputs[index].name)


def _alike(value: Any, default: Any) -> bool:
    if isinstance(default, float):
        return isinstance(value, (int, float))
    return isinstance(value, type(default))


def numbers_of(value: Any) -> Any:
    """The numbers of a tensor.

    Raises:
        Misfit: there are too many for sizes or positions.
    """
    if not isinstance(value, Tensor):
        if hasattr(value, "tolist"):
            return value.tolist()
        raise Misfit("a tensor of numbers is needed", given([value]), "a tensor")
    if value.numel() > 2**16:
        raise Misfit("too many numbers for sizes or positions", value.numel(), f"at most {2**16}")
    return value.tolist()


def dtype_of(number: int) -> torch.dtype:
    """The type of torch for that of ONNX.

    Raises:
        Misfit: torch has none.
    """
    try:
        return to_torch_dtype(ir.DataType(number))
    except (ValueError, TypeError, KeyError) as error:
        raise Misfit("torch has no such element type", number, NUMBERS) from error


# Of four bits and fewer, which torch does not compute with.
_IN_BYTES = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8"}
_TAKE_BYTES = ("DequantizeLinear", "Cast")  # and make the same of a number, whatever its type
_LINE = 64  # bytes


def tensor_of(data: ir.TensorProtocol, where: str, value: ir.Value | None = None) -> Tensor:
    """The numbers of a constant, in memory of its own. Those of less than a byte, which torch has no type
    for, have one each if all that reads the `value` makes numbers of another type of them.

    Raises:
        IRError: they do not fit its shape, are of a type that torch does not have, or lie where none may.
    """
    try:
        if isinstance(data, ir.ExternalTensor):
            _check_outside(data, where)
        if any(isinstance(size, int) and size < 0 for size in data.shape):
            raise Broken(f"{where}: a size is negative", got=list(data.shape), expected="sizes >= 0")
        array = data.numpy()
        if array.dtype.name in _IN_BYTES:
            read = value is not None and all(use.node.op_type in _TAKE_BYTES for use in value.uses())
            if value is None or not read or value.is_graph_output():
                what = f"{data.dtype.name} is read by more than {' and '.join(_TAKE_BYTES)}"
                raise Misfit(what, array.dtype.name, "such numbers as weights that are dequantised")
            return _copied(array.astype(_IN_BYTES[array.dtype.name]))
        if array.dtype.kind in "biufc" and array.dtype.isbuiltin == 1:
            return _copied(array)
        same = getattr(torch, array.dtype.name, None)  # what numpy does not have, as bfloat16
        if not isinstance(same, torch.dtype):
            raise Misfit("is of a type that torch does not have", array.dtype.name, NUMBERS)
        return _copied(array.view(f"int{8 * array.itemsize}")).view(same)
    except IRError:
        raise
    except Misfit as misfit:
        raise NotRead(f"{where}: {misfit.what}", got=misfit.got, expected=misfit.expected) from misfit
    except (*ERRORS, OSError) as problem:
        raise error(where, problem, f"{data.dtype}{list(data.shape)}", FILLED) from problem


def _copied(array: np.ndarray) -> Tensor:
    """The same numbers where a line of the cache begins, as they do in torch's own memory: products that read
    them as they lie take up to 1.2 times as long elsewhere."""
    size = array.nbytes
    room = np.empty(size + _LINE, np.uint8)
    begin = -room.ctypes.data % _LINE
    copied = room[begin : begin + size].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return torch.from_numpy(copied)


def _check_outside(data: ir.ExternalTensor, where: str) -> None:
    """Refuse numbers that lie outside the folder of the model, or behind the end of their file.

    Raises:
        IRError: they do.
    """
    location, folder = str(data.location), Path(data.base_dir).resolve()
    named, file = PurePosixPath(location), folder / location
    try:
        inside, there = file.resolve().is_relative_to(folder), file.is_file()
    except (OSError, ValueError) as problem:  # too long, say, or with a zero in it
        what = f"{where}: its file has a name that none can have"
        raise CutOff(what, got=shorten(location), expected=_BESIDE) from problem
    if named.is_absolute() or ".." in named.parts or not inside:
        what = f"{where}: lies outside the folder of the model"
        raise CutOff(what, got=shorten(location), expected=_BESIDE)
    if not there:
        raise CutOff(f"{where}: its file is not there", got=shorten(location), expected=_BESIDE)
    size = file.stat().st_size
    end = (data.offset or 0) + (data.nbytes if data.length is None else data.length)
    if min(data.offset or 0, data.length or 0) < 0 or end > size:
        what = f"{where}: lies behind the end of its file"
        raise CutOff(what, got=f"bytes up to {end}", expected=f"at most {size}")
    if data.length not in (None, data.nbytes):
        what = f"{where}: does not fill its shape"
        raise CutOff(what, got=f"{data.length} bytes", expected=f"{data.nbytes} bytes")


_BESIDE = "a file of numbers in the folder of the model"
Run = Callable[..., Any]
Make = Callable[[Info], Run]


@dataclass(frozen=True)
class Row:
    """An operator: what makes its function, and how many inputs it takes."""

    make: Make
    least: int
    most: int


TABLE: dict[str, Row] = {}


def op(*names: str, inputs: tuple[int, int] = (1, 1)) -> Callable[[Make], Make]:
    """Put what makes the functions of operators into the table."""

    def register(make: Make) -> Make:
        TABLE.update({name: Row(make, *inputs) for name in names})
        return make

    return register


def of_inputs(*names: str, inputs: tuple[int, int] = (1, 1)) -> Callable[[Run], Run]:
    """Put a function of the inputs into the table. What it takes by name is an attribute if it has a default,
    which of one that says yes or no is a truth value, and else what is known of the node."""

    def register(run: Run) -> Run:
        op(*names, inputs=inputs)(lambda node: with_said(run, functools.partial(_said, node)))
        return run

    return register


def with_said(run: Run, said: Callable[[str, Any], Any]) -> Run:
    """A function with what is `said` for each name that it takes, and its default."""
    code = getattr(run, "__code__", None)
    if code is None or not code.co_kwonlyargcount:  # torch's own among them
        return run
    names = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    defaults = run.__kwdefaults__ or {}
    return functools.partial(run, **{name: said(name, defaults.get(name, _KNOWN)) for name in names})


_KNOWN = object()


def _said(node: Info, name: str, default: Any) -> Any:
    if default is _KNOWN:
        return getattr(node, name)
    return bool(node.get(name, int(default))) if isinstance(default, bool) else node.get(name, default)


def functions(inputs: tuple[int, int], named: Mapping[str, Run]) -> None:
    """Put functions of the inputs into the table, as `of_inputs` does."""
    for name, run in named.items():
        of_inputs(name, inputs=inputs)(run)


FITTING = "inputs and attributes that fit this operator, as ONNX defines it"
FILLED = "numbers that fill its shape"
NUMBERS = "a type of numbers that torch has, as FLOAT, INT64 or BOOL"


def body_of(node: Info, name: str, inputs: int | None) -> Any:
    """A graph in an attribute, which takes so many values."""
    graph = node.bodies.get(name)
    if graph is None:
        raise Misfit(f"the graph '{name}' is not there", attributes_text(node.node.attributes), f"{name}=...")
    if inputs is not None and len(graph.inputs) != inputs:
        raise Misfit(f"the graph '{name}' takes another number of values", len(graph.inputs), inputs)
    return graph


def one_value(value: Any, what: str, dtype: torch.dtype = torch.bool) -> Tensor:
    """A tensor of one element, as a scalar."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise Misfit(f"the {what} must be one value", given([value]), "one number")
    if value.dtype != dtype:
        raise Misfit(f"the {what} is of another type", dtype_name(value.dtype), dtype_name(dtype))
    return value.reshape(())
