"""What ONNX itself says of each operator: its attributes, its outputs, and the shapes and types that fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    defs,
    shape_inference,
)

from stepnet.data.dtypes import dtype_name
from stepnet.file_model import Broken, Misfitting, shorten

from .cells import GATES, check_sizes
from .info import FITTING, Misfit, attributes_text, dtype_of, error
from .places import name_of

_SMALL = 2**10  # bytes of a constant that may say a shape
_PLACE = re.compile(r"(?:\[\w+\] ?)*(?:Inference error\(s\): )?\(op_type:(\w*), node name: @(\d+)\): ")


# Operators whose shapes ONNX infers without trust in the lists that a file holds: others end the process.
_SAFE = {
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "Constant", "Cos", "Div", "Dropout", "Elu",
    "Equal", "Erf", "Exp", "Floor", "GRU", "Gather", "Gemm", "Greater", "GreaterOrEqual", "HardSigmoid",
    "Identity", "If", "LSTM", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "Loop", "MatMul",
    "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "RNN", "Reciprocal", "Relu", "Round",
    "Scan", "Selu", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Sub", "Sum",
    "Tanh", "Transpose", "Where", "Xor",
}  # fmt: skip
# Attributes that say yes or no.
_FLAGS = {
    "align_corners", "allowzero", "antialias", "ceil_mode", "center_point_box", "count_include_pad",
    "detect_negative", "detect_positive", "exclude_outside", "exclusive", "fmod", "input_forget",
    "interleaved", "inverse", "is_causal", "keepdims", "largest", "layout", "linear_before_reset", "new_axis",
    "noop_with_empty_axes", "onesided", "periodic", "reverse", "saturate", "select_last_index", "sorted",
    "storage_order", "training_mode", "transA", "transB", "upper",
}  # fmt: skip
_OF_ONNX = (shape_inference.InferenceError, RuntimeError, ValueError)
_UNCHECKED = "unchecked"
# what ONNX infers of an unchecked operator is 0, and what a graph in a node leaves open: nothing
_DECLARED = re.compile(
    r"existing shape differ|merge shape info|inferred and declared dim|inferred=0\b|declared=0\b"
)


def check_version(proto: ModelProto, where: str) -> None:
    """Refuse files of a form that ONNX does not know.

    Raises:
        IRError: they are.
    """
    if not 1 <= proto.ir_version <= onnx.IR_VERSION:
        raise Broken(
            f"{where}: of a version of the format that is not known", got=f"ir_version {proto.ir_version}",
            expected=f"1 to {onnx.IR_VERSION}",
            remedy="write the model for an older version, or install a newer onnx",
        )  # fmt: skip


def check_opset(proto: ModelProto, domains: Sequence[str], where: str) -> int:
    """The version of the operators.

    Raises:
        IRError: ONNX does not know it.
    """
    versions = {imported.domain: imported.version for imported in proto.opset_import}
    if versions.keys().isdisjoint(domains):
        raise Broken(
            f"{where}: says of no version of ONNX's operators that it is written for",
            got=", ".join(map(shorten, versions)) or "no opset_import",
            expected="an opset_import of the domain ''",
        )  # fmt: skip
    opset = max((versions.get(domain, 0) for domain in domains), default=0)
    newest = defs.onnx_opset_version()
    if opset > newest:
        raise Broken(
            f"{where}: of a set of operators that is not known", got=opset, expected=f"at most {newest}",
            remedy="write the model for an older set, or install a newer onnx",
        )  # fmt: skip
    return opset


def check_rules(proto: ModelProto, domains: Sequence[str], where: str) -> None:
    """Refuse nodes that ONNX does not know in this form, and static shapes and types that do not fit.

    Raises:
        IRError: says the node, and what it is given.
    """
    opset = check_opset(proto, domains, where)
    for place, node in _nodes(proto.graph, where):
        if node.domain in domains and defs.has(node.op_type):
            _check_form(node, opset, place)
    _check_shapes(proto, domains, where)


def _nodes(graph: GraphProto, where: str) -> Iterator[tuple[str, NodeProto]]:
    """All nodes, with what errors call them."""
    for number, node in enumerate(graph.node):
        place = f"{where}: {name_of(number, node)}"
        yield place, node
        for attribute in node.attribute:
            yield from _nodes(attribute.g, f"{place}, {shorten(attribute.name)}")


def _check_form(node: NodeProto, opset: int, place: str) -> None:
    try:
        schema = defs.get_schema(node.op_type, opset)
    except defs.SchemaError:  # of a later set, which the table of operators may know
        return
    given = [attribute.name for attribute in node.attribute]
    for attribute in node.attribute:
        name = attribute.name
        if name not in schema.attributes:
            known = ", ".join(sorted(schema.attributes)) or "no attributes"
            got = shorten(name) or "no name"
            raise Broken(f"{place}: has no attribute of this name", got=got, expected=known)
        if given.count(name) > 1:
            raise Broken(f"{place}: has the attribute '{name}' twice", got=given.count(name), expected=1)
        kind = AttributeProto.AttributeType.Name(attribute.type)
        wanted = str(schema.attributes[name].type).removeprefix("AttrType.")
        if kind not in ("UNDEFINED", wanted):  # of old files it is not said
            raise Broken(f"{place}: attribute '{name}' is of another type", got=kind, expected=wanted)
        if name in _FLAGS and attribute.i not in (0, 1):
            raise Broken(f"{place}: attribute '{name}' says yes or no", got=attribute.i, expected="0 or 1")
    missing = [name for name, known in schema.attributes.items() if known.required and name not in given]
    if missing:
        what = f"{place}: attribute '{missing[0]}' is not there"
        raise Broken(what, got=", ".join(given) or "no attributes", expected=f"{missing[0]}=...")
    for name, known in zip(node.input, schema.inputs, strict=False):
        if not name and known.option == defs.OpSchema.FormalParameterOption.Single:
            raise Broken(
                f"{place}: the input '{known.name}' is left out",
                got="no name",
                expected=f"a value for {known.name}",
            )
    if len(node.output) > schema.max_output:
        raise Broken(
            f"{place}: has more outputs than its operator",
            got=len(node.output), expected=f"at most {schema.max_output}",
        )  # fmt: skip


def _check_shapes(proto: ModelProto, domains: Sequence[str], where: str) -> None:
    light = _light(proto)
    if any(node.op_type in GATES and node.domain in domains for node in proto.graph.node):
        _check_cells(proto.graph, domains, _known(light), where)
    try:
        shape_inference.infer_shapes(light, check_type=True, strict_mode=True)
    except _OF_ONNX as problem:
        _blame(proto.graph, light, str(problem), where)


def _blame(graph: GraphProto, light: ModelProto, text: str, where: str) -> None:
    """Raise what ONNX says of a node, and what the node is given."""
    path: list[tuple[str, int]] = []
    while match := _PLACE.match(text):
        path.append((match[1], int(match[2])))
        text = text[match.end() :]
    what = re.sub(r"^(\[\w+\] ?)+", "", text).strip().splitlines() or ["does not fit"]
    if not path or "(op_type:" in what[0]:  # in a function of ONNX's own, which is run as one operator here
        return
    if _DECLARED.search(what[0]):  # states may change, and what a file declares besides is not read
        return
    place, node = where, graph.node[path[0][1]]
    for depth, (kind, number) in enumerate(path):
        if depth:
            bodies = (a for a in node.attribute if len(a.g.node) > number)
            body = next(a for a in bodies if a.g.node[number].op_type == kind)
            graph, place = body.g, f"{place}, {shorten(body.name)}"
        node = graph.node[number]
        place = f"{place}: {name_of(number, node)}"
    known = {} if len(path) > 1 else _known(light)
    given = (_shown(known[name]) if name in known else shorten(name) or "nothing" for name in node.input)
    shown = ", ".join(given) or "no inputs"
    raise Misfitting(f"{place}: {what[0][:200]}", got=shown, expected=FITTING)


def _check_cells(
    graph: GraphProto, domains: Sequence[str], known: Mapping[str, ValueInfoProto], where: str
) -> None:
    for number, node in enumerate(graph.node):
        if node.op_type not in GATES or node.domain not in domains:
            continue
        said = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        directions = 2 if said.get("direction") == b"bidirectional" else 1
        shapes = [_sizes(known.get(name)) for name in node.input]
        try:
            check_sizes(node.op_type, directions, said.get("layout", 0), said.get("hidden_size"), shapes)
        except Misfit as misfit:
            place = f"{where}: {name_of(number, node)}"
            raise error(place, misfit, attributes_text(said), FITTING) from misfit


def _light(proto: ModelProto) -> ModelProto:
    """The model without functions, the numbers of its large constants, and the shapes that it declares for
    what its nodes make; nodes are named by their numbers."""
    graph = GraphProto(name="g", input=proto.graph.input)
    graph.node.extend(proto.graph.node)
    for value in proto.graph.output:
        graph.output.add(name=value.name)
    for tensor in proto.graph.initializer:
        if tensor.ByteSize() <= _SMALL and not tensor.external_data:
            graph.initializer.add().CopyFrom(tensor)
        else:
            graph.initializer.add(
                name=tensor.name, dims=tensor.dims, data_type=tensor.data_type,
                data_location=TensorProto.EXTERNAL,
            )  # fmt: skip
    old = all(imported.version < 9 for imported in proto.opset_import if not imported.domain)
    _number(graph, _SAFE - {"Constant"} if old else _SAFE)  # which says of old ones that they are fractions
    light = ModelProto(ir_version=proto.ir_version, graph=graph)
    light.opset_import.extend(proto.opset_import)
    light.opset_import.add(domain=_UNCHECKED, version=1)
    return light


def _number(graph: GraphProto, safe: Collection[str]) -> None:
    for number, node in enumerate(graph.node):
        node.name = f"@{number}"
        if node.op_type not in safe:
            node.domain = _UNCHECKED
        for attribute in node.attribute:
            _number(attribute.g, safe)


def known_values(proto: ModelProto) -> dict[str, ValueInfoProto]:
    """The values of the outer graph of which ONNX knows something."""
    return _known(_light(proto))


def _known(light: ModelProto) -> dict[str, ValueInfoProto]:
    """The values of the outer graph of which ONNX knows something."""
    try:
        graph = shape_inference.infer_shapes(light).graph
    except _OF_ONNX:  # of nodes that lack an input, say
        graph = light.graph
    made = onnx.helper.make_tensor_value_info
    constants = [made(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in graph.initializer]
    return {value.name: value for value in (*graph.input, *graph.value_info, *constants)}


def _sizes(value: ValueInfoProto | None) -> list[int | None] | None:
    if value is None or not value.type.tensor_type.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim]


def _shown(value: ValueInfoProto) -> str:
    kind, sizes = value.type.tensor_type, _sizes(value)
    try:
        name = dtype_name(dtype_of(kind.elem_type))
    except Misfit:
        name = "?"
    shape = "..." if sizes is None else ", ".join("?" if size is None else str(size) for size in sizes)
    return f"{name}[{shape}]"
