"""Small OpenVINO IR files, built layer by layer."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np

NAMES = {
    "float64": ("f64", "FP64"), "float32": ("f32", "FP32"), "float16": ("f16", "FP16"),
    "int64": ("i64", "I64"), "int32": ("i32", "I32"), "int8": ("i8", "I8"), "uint8": ("u8", "U8"),
    "bool": ("boolean", "BOOL"),
}  # fmt: skip
Ref = tuple[int, int]  # layer id, output port


class Net:
    """A net being written; bodies of its loops share its constants."""

    def __init__(self, weights: bytearray | None = None) -> None:
        self.weights = bytearray(b"\0\0\0") if weights is None else weights  # nothing is aligned
        self.layers: list[str] = []
        self.edges: list[str] = []

    def add(
        self, kind: str, inputs: list[Ref] = (), outputs: list[str] = ("FP32",),
        version: str = "opset1", name: str | None = None, inner: str = "",
        dims: list[tuple[int, ...]] | None = None, given: list[tuple[int, ...]] | None = None,
        **attributes: object,
    ) -> Ref:  # fmt: skip
        """A layer; its first output. Output ports follow the inputs; `given` and `dims` are their shapes."""
        at = len(self.layers)
        data = "".join(f" {k.rstrip('_')}={quoteattr(str(v))}" for k, v in attributes.items())
        sizes = ["".join(f"<dim>{d}</dim>" for d in shape) for shape in given or [()] * len(inputs)]
        ports = "".join(f'<port id="{i}">{sizes[i]}</port>' for i in range(len(inputs)))
        outs = ""
        for i, precision in enumerate(outputs):
            shape = "" if dims is None else "".join(f"<dim>{d}</dim>" for d in dims[i])
            outs += f'<port id="{len(inputs) + i}" precision="{precision}">{shape}</port>'
        self.layers.append(
            f'<layer id="{at}" name={quoteattr(name or f"{kind}_{at}")} type="{kind}" version="{version}">'
            f"{f'<data{data}/>' if data else ''}{inner}<input>{ports}</input><output>{outs}</output></layer>"
        )
        for i, (layer, port) in enumerate(inputs):
            self.edges.append(
                f'<edge from-layer="{layer}" from-port="{port}" to-layer="{at}" to-port="{i}"/>'
            )
        return at, len(inputs)

    def parameter(self, name: str, shape: str, dtype: str = "float32") -> Ref:
        """An input; shape as IR writes it."""
        short, precision = NAMES[dtype]
        return self.add("Parameter", outputs=[precision], name=name, element_type=short, shape=shape)

    def const(self, value: object, dtype: str | None = None) -> Ref:
        """A constant at the end of the weights."""
        array = np.asarray(value, dtype=dtype)
        short, precision = NAMES[str(array.dtype)]
        offset, size = len(self.weights), array.nbytes or 1  # OpenVINO writes a byte for no numbers
        self.weights += array.tobytes() or b"\0"
        shape = ", ".join(map(str, array.shape))
        return self.add(
            "Const", outputs=[precision], element_type=short, shape=shape, offset=offset, size=size
        )

    def result(self, source: Ref, name: str | None = None) -> int:
        """An output; its layer id."""
        return self.add("Result", [source], outputs=[], name=name)[0]

    def body(self) -> Net:
        """A net for the body of a loop."""
        return Net(self.weights)

    def loop(
        self, body: Net, inputs: list[Ref], port_map: str, back_edges: str = "",
        outputs: list[str] = ("FP32",), kind: str = "TensorIterator", version: str = "opset1",
        dims: list[tuple[int, ...]] | None = None,
    ) -> Ref:  # fmt: skip
        """A TensorIterator or Loop around a body."""
        inner = f"<port_map>{port_map}</port_map><back_edges>{back_edges}</back_edges>"
        inner += f"<body>{body.content()}</body>"
        return self.add(kind, inputs, outputs, version, inner=inner, dims=dims)

    def content(self) -> str:
        """`<layers>` and `<edges>`."""
        return f"<layers>{''.join(self.layers)}</layers><edges>{''.join(self.edges)}</edges>"

    def write(self, folder: Path, version: int = 11) -> Path:
        """model.xml and model.bin; the path of the first."""
        path = folder / "model.xml"
        path.write_text(f'<?xml version="1.0"?><net name="m" version="{version}">{self.content()}</net>')
        path.with_suffix(".bin").write_bytes(bytes(self.weights))
        return path


def sliced(kind: str, port: int, layer: int, **attributes: object) -> str:
    """A row of a port map."""
    more = "".join(f' {k}="{v}"' for k, v in attributes.items())
    return f'<{kind} external_port_id="{port}" internal_layer_id="{layer}"{more}/>'


def edge(start: int, end: int) -> str:
    """A back edge."""
    return f'<edge from-layer="{start}" to-layer="{end}"/>'


def write_layer(
    folder: Path,
    kind: str,
    inputs: list,
    expected: object,
    version: str,
    attributes: dict,
    *,
    dynamic: bool | tuple[int, ...] = False,
) -> tuple[Path, list, tuple]:
    """A model of one layer; what its inputs are given that are no constants, as `("const", array)` says; and
    its outputs. `dynamic`: all sizes are open, or those of some inputs."""
    net = Net()
    sources, given = [], []
    for i, value in enumerate(inputs):
        if isinstance(value, tuple):
            sources.append(net.const(value[1]))
        else:
            is_open = dynamic if isinstance(dynamic, bool) else i in dynamic
            shape = ",".join("?" if is_open else str(d) for d in value.shape)
            sources.append(net.parameter(f"x{i}", shape, str(value.dtype)))
            given.append(value)
    outputs = expected if isinstance(expected, tuple) else (expected,)
    layer, port = net.add(kind, sources, ["FP32"] * len(outputs), version, **attributes)
    for i in range(len(outputs)):
        net.result((layer, port + i))
    return net.write(folder), given, outputs
