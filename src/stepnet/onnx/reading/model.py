"""A model read from an ONNX file, as a torch module."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import ModelProto, NodeProto
from onnx.inliner import inline_selected_functions
from onnx_ir.tensor_adapters import to_torch_dtype
from torch import Tensor, nn

from stepnet.data.arguments import path_of
from stepnet.data.in_graph import by_python
from stepnet.data.outputs import Outputs
from stepnet.errors import IRError
from stepnet.file_model import (
    ERRORS,
    STATES,
    Broken,
    FileModel,
    LoopReport,
    Named,
    NotRead,
    Socket,
    Unreadable,
    beside,
    named,
    opened,
    shorten,
)

from .graph import DOMAINS, Graph, inputs_of
from .info import NUMBERS, TABLE
from .microsoft import DOMAIN, OWN
from .operators import OPERATORS as OPERATORS
from .optimised import FUSED
from .places import name_of
from .rules import check_opset, check_rules, check_version, known_values
from .scopes import check_scopes
from .sequences import elements_of
from .sparse import fill_in
from .tables import as_tables
from .tensors import check_constants

_OWN, _ALSO = OWN | FUSED, frozenset({"Gelu"})  # of `com.microsoft` alone; those that ONNX has, too
_FEW = 64  # numbers that a pickled graph holds
OLDEST = 7  # of the sets of operators that are read


class ONNXModel(FileModel):
    """A model read from ONNX; `load` makes one.

    Call it with its inputs by position, in the order of `inputs`, or by name. It returns `Outputs`: by name,
    by number, or unpacked in order.

    Attributes:
        inputs: name, shape and dtype of each input, in the order of the file.
        outputs: the same of each output.
        defaults: the same of constants that are inputs, too: a call may give others, by name.
        metadata: what the file notes of itself, text by key.
        opset: the version of its operators.

    >>> import tempfile
    >>> from stepnet import onnx
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     onnx.save(torch.nn.ReLU(), f"{folder}/relu.onnx", torch.ones(2, 3))
    ...     model = onnx.load(f"{folder}/relu.onnx")
    >>> model.inputs[0].dtype, model(torch.tensor([[-1.0, 0.0, 1.0]]))[0], [*model.loops]
    (torch.float32, tensor([[0., 0., 1.]]), [])
    """

    def __init__(self, model: ir.Model, where: str, *, trainable: bool) -> None:
        opset = max((v for d, v in model.opset_imports.items() if d in DOMAINS), default=0)
        if opset < OLDEST:
            raise NotRead(
                f"{where}: of a set of operators that is not read", got=opset, expected=f"{OLDEST} on"
            )
        constants: dict[ir.Value, Tensor] = {}
        graph = Graph(model.graph, constants, opset, where)
        fed = _given_defaults(model)
        ends = inputs_of(model.graph), model.graph.outputs
        inputs, outputs = ([_socket(value, where) for value in values] for values in ends)
        if not outputs:
            raise Broken(f"{where}: the graph has no outputs", got=0, expected="one at least")
        super().__init__(model.graph.name or "", where, tuple(inputs), tuple(outputs))
        self.graph, self.metadata, self.opset = graph, dict(model.metadata_props), opset
        self.defaults, self._fed = tuple(_socket(value, where) for value in fed), fed
        # what runs where a call gives others: nothing that a constant decides is decided in it
        self._general = graph
        if fed:
            known = {v: data for v, data in constants.items() if v.is_initializer() and v not in fed}
            self._general = Graph(model.graph, known, opset, where, fed)
            constants = known | constants
        for sockets in ((*self.inputs, *self.defaults), self.outputs):
            names = [socket.name for socket in sockets]
            if len(set(names)) < len(names):
                what = f"{where}: two inputs or outputs have one name"
                raise Broken(what, got=", ".join(names), expected="a name of its own for each")
        self.states = self._said_states()
        self._names = tuple(socket.name for socket in self.outputs)
        self._model = model
        self._constants: dict[ir.Value, str] = {}
        for value in dict.fromkeys((*self.graph.captured, *self._general.captured, *fed)):
            name = f"constant_{len(self._constants)}"
            self._constants[value] = name
            data = constants[value]
            if trainable and data.dtype.is_floating_point:
                self.register_parameter(name, nn.Parameter(data))
            else:
                self.register_buffer(name, data)
        self._own = frozenset({*vars(self), "_own"})

    @property
    def content(self) -> str | None:
        """See `ToldByContent`."""
        general = self._general.content if self.defaults else ""
        return self._content_with(self.graph.content + general)

    def _said_states(self) -> dict[str, str]:
        """The pairs that the metadata lists."""
        text = self.metadata.get(STATES, "{}")
        try:
            said = json.loads(text)
        except ValueError:
            said = None
        ends = {s.name for s in (*self.inputs, *self.defaults)}, {s.name for s in self.outputs}
        if not isinstance(said, dict) or not all(a in ends[0] and b in ends[1] for a, b in said.items()):
            raise Broken(
                f"{self._where}: the metadata '{STATES}' is no pairs of inputs and outputs",
                got=shorten(text),
                expected='{"NAME of an input": "NAME of an output"}',
            )
        return said

    def _recipe(self) -> tuple[Any, ...]:
        """The file without its large numbers of floating point, which the state of the module holds."""
        model, large = self._model.clone(), []
        for place, value in _initializers(model):
            data = value.const_value
            assert data is not None
            kind, shape = data.dtype, data.shape.numpy()
            if data.size > _FEW and kind.is_floating_point():
                large.append((place, kind.value, shape))
                data = ir.Tensor(np.zeros(0, kind.numpy()), name=value.name)
            elif isinstance(data, ir.ExternalTensor):
                data = ir.Tensor(data.numpy().copy(), kind, name=value.name)
            value.const_value = data
        versions = [node.version for node in model.graph.all_nodes()]
        return ir.to_proto(model).SerializeToString(), large, versions, self._where

    @classmethod
    def _anew(cls, *recipe: Any) -> ONNXModel:
        content, large, versions, where = recipe
        model = ir.from_proto(ModelProto.FromString(content))
        for node, version in zip(model.graph.all_nodes(), versions, strict=True):
            node.version = version
        values = dict(_initializers(model))
        for place, kind, shape in large:
            zeros = np.broadcast_to(np.zeros((), ir.DataType(kind).numpy()), shape)
            values[place].const_value = ir.Tensor(zeros, ir.DataType(kind), name=values[place].name)
        return cls(model, where, trainable=False)

    @by_python("a model from a file computes sizes in Python")
    def forward(self, *args: Any, **kwargs: Any) -> Outputs:
        """Run the model on tensors or numpy arrays; on lists of them where an input is a sequence.

        Raises:
            IRError: an input is missing, unknown, or of another type or shape than the file declares; or a
                node cannot run on what it is given.
        """
        constants, graph, others = _Constants(self), self.graph, []
        ordered = self.ordered(args, kwargs)
        if ordered is not None:  # a call like the one before is one of inputs that were checked
            results = graph.again(ordered, constants)
            if results is not None:
                return Outputs(self._names, results)
        given = self.others(kwargs)
        if given:
            graph = self._general
            kwargs = {name: value for name, value in kwargs.items() if name not in given}
            others = [
                self._checked(socket, given[socket.name]) if socket.name in given else constants[value]
                for socket, value in zip(self.defaults, self._fed, strict=True)
            ]
        checked = [*self.checked(args, kwargs), *others]
        results = graph.again(checked, constants)
        if results is None:
            with beside(checked):
                results = graph.run(checked, constants)
        return Outputs(self._names, tuple(results))

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """As of any model from a file; no call is like one before then."""
        self.graph.forget_last()
        return super()._apply(*args, **kwargs)

    @property
    def loops(self) -> tuple[LoopReport, ...]:
        """How each Scan and each Loop ran last: compiled, or by the plain loop and why."""
        found = tuple(_reports(self.graph))
        return found if not self.defaults or any(it.ran for it in found) else tuple(_reports(self._general))

    def _takes(self, given: torch.dtype, declared: torch.dtype) -> bool:
        return given in {t.dtype for t in (*self.parameters(), *self.buffers())}


def _initializers(model: ir.Model) -> Iterator[tuple[tuple[int, str], ir.Value]]:
    """The constants of all graphs, and where they are."""
    for number, graph in enumerate(model.graphs()):
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield (number, name), value


class _Constants(Mapping[ir.Value, Tensor]):
    """The constants of a model as they are now."""

    __slots__ = ("_model", "_names")

    def __init__(self, model: ONNXModel) -> None:
        self._model, self._names = model, model._constants

    def __getitem__(self, value: ir.Value) -> Tensor:
        return named(self._model, self._names[value])

    def picked(self, values: Sequence[ir.Value]) -> Sequence[Tensor]:
        """Several of them."""
        return [self[value] for value in values]

    def picker(self, values: Sequence[ir.Value]) -> Callable[[_Constants], Sequence[Tensor]]:
        """What picks several of them as they then are."""
        pick = Named([self._names[value] for value in values])
        return lambda now: pick(now._model)

    def __iter__(self) -> Iterator[ir.Value]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _given_defaults(model: ir.Model) -> list[ir.Value]:
    """The constants that a call may give others for: before version 4 of the format all are listed so."""
    if model.ir_version < 4:
        return []
    return [value for value in model.graph.inputs if value.const_value is not None]


def _reports(graph: Graph) -> Iterator[LoopReport]:
    for step in graph.steps:
        report = getattr(step.run, "reports", None)
        if report is not None:
            yield report
        for body in step.info.bodies.values():
            yield from _reports(body)


def _socket(value: ir.Value, where: str) -> Socket:
    dtype = None
    if isinstance(value.type, ir.TensorType):
        try:
            dtype = to_torch_dtype(value.dtype) if value.dtype is not None else None
        except (TypeError, ValueError, KeyError) as problem:
            raise NotRead(
                f"{where}: '{value.name}': torch has no such element type", got=value.dtype, expected=NUMBERS
            ) from problem
    shape = (
        None
        if value.shape is None
        else tuple(d if isinstance(d, int) and d >= 0 else -1 for d in value.shape)
    )
    return Socket(value.name or "", shape, dtype, None if dtype else elements_of(value))


def load(path: str | os.PathLike[str], *, trainable: bool = False) -> ONNXModel:
    """Read a model from an ONNX file.

    LSTM, GRU, RNN, Scan and Loops that only a trip count ends run as recurrences do, compiled where their
    bodies treat each row of the batch alike; Loops that their bodies end by compiled blocks of steps, from
    the second call on, where they are long and need no gradients. If and the operators on sequences run as
    they are written. `supported_types()` lists the operators. Constants outside the file are read from its
    folder alone, and nothing is allocated for a size that a file merely declares.

    Args:
        path: NAME.onnx.
        trainable: make floating-point constants parameters instead of buffers.

    Returns:
        The model, a torch.nn.Module.

    Raises:
        IRError: the file is no model, or breaks a rule; says the file, the node, what was found and what is
            expected. Operators that are not known are all listed in one error.

    >>> load("missing.onnx")
    Traceback (most recent call last):
    stepnet.errors.IRError: missing.onnx: cannot be read: No such file or directory
    ...
    """
    place = Path(path_of("load: 'path'", path, error=IRError))
    where = place.name
    with opened(place, "an ONNX file"):
        pass
    try:
        proto = onnx.load(place, load_external_data=False)
        if not proto.HasField("graph"):
            raise Unreadable(
                f"{where}: holds no graph", got=f"{place.stat().st_size} bytes", expected="an ONNX file"
            )
        check_version(proto, where)
        check_opset(proto, DOMAINS, where)
        fill_in(proto.graph, where)
        check_constants(proto, where)
        check_scopes(proto, where)
        model = ir.from_proto(_written_out(proto))
        if model.functions:
            from onnx_ir.passes.common import InlinePass

            _note_versions(model)
            InlinePass()(model)
        ir.external_data.set_base_dir(model.graph, place.parent)
    except IRError:
        raise
    except Exception as problem:  # of protobuf and of onnx-ir, which name no common class
        cause: BaseException = problem
        while cause.__context__ is not None:  # what went wrong first, not what onnx-ir failed to say of it
            cause = cause.__context__
        text = str(cause).strip().splitlines()
        raise Unreadable(
            f"{where}: cannot be read: {text[0][:300] if text else type(problem).__name__}",
            got=type(problem).__name__,
            expected="an ONNX file",
        ) from problem
    try:
        _check_names(model, where)
        _check_operators(model, where)
        as_tables(model.graph)
        read = ONNXModel(model, where, trainable=trainable)
        check_rules(proto, DOMAINS, where)
        return read
    except IRError:
        raise
    except (OSError, *ERRORS) as problem:  # of onnx-ir, which reads much of a file when it is asked for it
        text = str(problem).strip().splitlines()
        what = f"{where}: breaks a rule: {text[0][:300] if text else type(problem).__name__}"
        raise Broken(what, got=type(problem).__name__, expected="a file by the rules of ONNX") from problem


def supported_types() -> list[str]:
    """Every operator that runs.

    >>> "Scan" in supported_types()
    True
    """
    own = [f"{DOMAIN}.{name}" for name in (*_OWN, *_ALSO)]
    return sorted([*own, *(name for name in TABLE if name not in _OWN), "Constant"])


def _written_out(proto: ModelProto) -> ModelProto:
    """A model without the operators that have no row here, where ONNX says what they are made of."""
    before: set[tuple[str, str]] = set()
    while (kinds := _composed(proto)) and kinds != before:  # some are made of others
        before = kinds
        said = {value.name for value in proto.graph.value_info}
        found = known_values(proto)  # the inliner asks for the types of what an operator takes
        proto.graph.value_info.extend(value for name, value in found.items() if name not in said)
        if "" not in said:
            proto.graph.value_info.add()  # that of an input that is left out
        own = [(function.domain, function.name) for function in proto.functions]
        try:
            proto = inline_selected_functions(proto, [*sorted(kinds), *own], inline_schema_functions=True)
        except RuntimeError:  # they are told as not read
            break
        finally:
            kept = [value for value in proto.graph.value_info if value.name in said]
            del proto.graph.value_info[:]
            proto.graph.value_info.extend(kept)
    return proto


def _note_versions(model: ir.Model) -> None:
    """Tell nodes of functions which set of operators they are of, where it is another than the model's."""
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            own = model.opset_imports.setdefault(domain, version)
            for node in function.all_nodes() if own != version else ():
                if node.domain == domain:
                    node.version = version
            function.opset_imports[domain] = own


def _composed(proto: ModelProto) -> set[tuple[str, str]]:
    """Operators of a model that have no row here, and that ONNX says what they are made of; their nodes get
    the attributes that they leave out, which the inliner passes over."""
    versions = [imported.version for imported in proto.opset_import if imported.domain in DOMAINS]
    kinds: set[tuple[str, str]] = set()
    parts = (proto.graph.node, *(function.node for function in proto.functions))
    for node in (node for part in parts for node in _all_nodes(part)):
        if node.domain not in DOMAINS or node.op_type in TABLE or not onnx.defs.has(node.op_type):
            continue
        try:
            schema = onnx.defs.get_schema(node.op_type, max(versions, default=0))
        except onnx.defs.SchemaError:  # of later sets of operators
            continue
        if not (schema.has_function or schema.has_context_dependent_function):  # pyright: ignore
            continue
        kinds.add(("", node.op_type))
        said = {attribute.name for attribute in node.attribute}
        defaults = (a.default_value for name, a in schema.attributes.items() if name not in said)
        node.attribute.extend(value for value in defaults if value.type)
    return kinds


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those of the graphs in them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_nodes(graph.node)


def _check_names(model: ir.Model, where: str) -> None:
    """Refuse names that are no text, which protobuf lets pass."""
    for node in model.graph.all_nodes():
        names = [node.name, node.op_type, node.domain, *(v.name for v in (*node.inputs, *node.outputs) if v)]
        wrong = next((name for name in names if name is not None and not isinstance(name, str)), None)
        if wrong is not None:
            raise Broken(f"{where}: a name is no text", got=repr(wrong)[:100], expected="UTF-8")


def _check_operators(model: ir.Model, where: str) -> None:
    unknown = list(_unknown(model.graph, ""))
    if unknown:
        kinds = sorted({kind for kind, _ in unknown})
        shown = [place for _, place in unknown[:50]]
        if len(unknown) > 50:
            shown.append(f"and {len(unknown) - 50} more")
        raise NotRead(
            f"{where}: {len(unknown)} node(s) of operators that are not read: {', '.join(kinds)[:400]}",
            got="; ".join(shown),
            expected="operators that stepnet.onnx.supported_types() lists",
        )


def _unknown(graph: ir.Graph, within: str) -> Iterator[tuple[str, str]]:
    """The operators that have no row here, and where each of their nodes is."""
    for number, node in enumerate(graph):
        place = f"{within}{name_of(number, node)}"
        if node.domain == DOMAIN and node.op_type in _OWN | _ALSO:
            pass
        elif node.domain not in DOMAINS:
            yield shorten(f"{node.domain}.{node.op_type}"), place
        elif (node.op_type not in TABLE and node.op_type != "Constant") or node.op_type in _OWN:
            yield shorten(node.op_type) or "''", place
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _unknown(attribute.as_graph(), f"{place}, {shorten(name)}: ")
