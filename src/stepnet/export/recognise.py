"""Is a step an LSTM, a GRU or a plain RNN? By its normal form, not by its class.

Values of one row are followed as sums of products of atoms (a gate, a carried value), and what goes into a
gate as an affine function of the carried value and of what the loop does not carry. So it does not matter in
which order the gates stand, whether x and h have a matrix each or one together, or how a sum is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.ir.graph import Graph, Node
from stepnet.ir.plan import LoopPlan

Poly = dict[tuple[str, ...], float]
_ACTIVATIONS = ("sigmoid", "tanh", "relu")


@dataclass(frozen=True)
class KnownCell:
    """A recognised cell: `inputs` are the values that make up its x, side by side.

    `states` are carried parameters in the order that a `Cell` takes them, `weights` the rest of that.
    """

    inputs: tuple[str, ...]
    states: tuple[str, ...]
    weights: dict[str, Any]


@dataclass
class Affine:
    """bias + sum of base @ matrix; a matrix of None is the identity.

    `picks`: its matrices only pick and join features, so that a product with another matrix is one matrix.
    """

    terms: dict[str, Tensor | None]
    bias: Tensor
    picks: bool = False


@dataclass
class _Reader:
    """Reads the nodes of a body as polynomials and affine functions."""

    graph: Graph
    constants: Mapping[str, Tensor]
    found: dict[str, Affine | Poly] = field(default_factory=dict)
    acts: dict[str, tuple[str, Affine | Poly]] = field(default_factory=dict)
    affine_atoms: dict[str, Affine] = field(default_factory=dict)

    def read(self, node: Node) -> None:
        name = node.outputs[0]
        value = self.graph.values[name]
        if len(node.outputs) != 1 or value.kind != "row" or len(value.shape) != 1:
            return
        made = getattr(self, f"_{node.op}", None)
        result = self._activation(node) if node.op in _ACTIVATIONS else made(node) if made else None
        if result is not None:
            self.found[name] = result

    # what a name is

    def at(self, name: str) -> Affine | Poly:
        found = self.found.get(name)
        return self.base(name) if found is None else found

    def base(self, name: str) -> Affine:
        return Affine({name: None}, self._zeros(name), picks=True)

    def _zeros(self, name: str) -> Tensor:
        return torch.zeros(self.graph.values[name].shape, dtype=torch.float64)

    def affine(self, name: str) -> Affine:
        found = self.at(name)
        return found if isinstance(found, Affine) else self.base(name)

    def poly(self, value: Affine | Poly, name: str) -> Poly:
        """A value as a sum of products; an affine function is an atom, a base by its own name."""
        if not isinstance(value, Affine):
            return value
        if len(value.terms) == 1 and next(iter(value.terms.values())) is None and not value.bias.any():
            return {(next(iter(value.terms)),): 1.0}
        self.affine_atoms[f"affine:{name}"] = value
        return {(f"affine:{name}",): 1.0}

    def _constant(self, name: str) -> Tensor | None:
        found = self.constants.get(name)
        if found is None or not found.is_floating_point():
            return None
        return found.double()

    def _scalar(self, name: str) -> float | None:
        found = self._constant(name)
        return float(found) if found is not None and found.numel() == 1 else None

    # ops

    def _activation(self, node: Node) -> Poly:
        atom = f"{node.op}:{node.output}"
        self.acts[atom] = (node.op, self.at(node.inputs[0]))
        return {(atom,): 1.0}

    def _matmul(self, node: Node) -> Affine | None:
        source, weight = node.inputs
        matrix = self._constant(weight)
        if matrix is None or matrix.dim() != 2 or self.graph.values[source].kind != "row":
            return None
        given = self.affine(source)
        if not given.picks:
            given = self.base(source)
        terms = {n: matrix if m is None else m @ matrix for n, m in given.terms.items()}
        return Affine(dict(terms), given.bias @ matrix)

    def _combined(self, node: Node, sign: float) -> Affine | Poly | None:
        a, b = node.inputs
        ca, cb = self._constant(a), self._constant(b)
        if ca is not None or cb is not None:
            name, constant = (b, ca) if ca is not None else (a, cb)
            assert constant is not None
            factor = sign if ca is not None else 1.0
            shift = constant * (1.0 if ca is not None else sign)
            if self.graph.values[name].shape != self.graph.values[node.output].shape:
                return None
            value = self.at(name)
            if isinstance(value, Affine) and not (value.picks and constant.numel() == 1):
                scaled = _scaled(value, factor)
                return Affine(scaled.terms, scaled.bias + shift)
            if constant.numel() != 1:
                return None
            poly = {k: v * factor for k, v in self.poly(value, name).items()}
            poly[()] = poly.get((), 0.0) + float(shift)
            return poly
        shapes = {self.graph.values[n].shape for n in (a, b, node.output)}
        if len(shapes) > 1:
            return None
        first, second = self.at(a), self.at(b)
        plain = (isinstance(v, Affine) and not v.picks for v in (first, second))
        if all(plain) and isinstance(first, Affine) and isinstance(second, Affine):
            other = _scaled(second, sign)
            terms = dict(first.terms)
            for n, m in other.terms.items():
                before = terms.get(n)
                if n in terms and (before is None or m is None):
                    return None
                terms[n] = m if before is None or m is None else before + m
            return Affine(terms, first.bias + other.bias)
        total = dict(self.poly(first, a))
        for k, v in self.poly(second, b).items():
            total[k] = total.get(k, 0.0) + sign * v
        return {k: v for k, v in total.items() if v}

    def _add(self, node: Node) -> Affine | Poly | None:
        return self._combined(node, 1.0)

    def _sub(self, node: Node) -> Affine | Poly | None:
        return self._combined(node, -1.0)

    def _neg(self, node: Node) -> Affine | Poly:
        value = self.at(node.inputs[0])
        if isinstance(value, Affine) and not value.picks:
            return _scaled(value, -1.0)
        return {k: -v for k, v in self.poly(value, node.inputs[0]).items()}

    def _mul(self, node: Node) -> Affine | Poly | None:
        a, b = node.inputs
        for scale, name in ((a, b), (b, a)):
            number = self._scalar(scale)
            if number is None or self.graph.values[name].kind != "row":
                continue
            value = self.at(name)
            if isinstance(value, Affine) and not value.picks:
                return _scaled(value, number)
            return {k: v * number for k, v in self.poly(value, name).items()}
        if any(self.graph.values[n].kind != "row" for n in (a, b)):
            return None
        if self.graph.values[a].shape != self.graph.values[b].shape:
            return None
        out: Poly = {}
        for k1, v1 in self.poly(self.at(a), a).items():
            for k2, v2 in self.poly(self.at(b), b).items():
                key = tuple(sorted(k1 + k2))
                out[key] = out.get(key, 0.0) + v1 * v2
        return out

    def _slice(self, node: Node) -> Affine | None:
        value = self.at(node.inputs[0])
        if not isinstance(value, Affine) or len(self.graph.values[node.inputs[0]].shape) != 1:
            return None
        part = slice(node.attr("start"), node.attr("end"), node.attr("step"))
        if any(m is None for m in value.terms.values()):
            return None
        terms = {n: m[:, part] for n, m in value.terms.items() if m is not None}
        return Affine(dict(terms), value.bias[part], value.picks)

    def _cat(self, node: Node) -> Affine | None:
        if any(self.graph.values[n].kind != "row" for n in node.inputs):
            return None
        parts = [self.affine(n) for n in node.inputs]
        widths = [self.graph.values[n].size for n in node.inputs]
        total, start, terms = sum(widths), 0, {}
        for part, width in zip(parts, widths, strict=True):
            for n, m in part.terms.items():
                own = torch.eye(width, dtype=torch.float64) if m is None else m
                wide = torch.zeros(own.shape[0], total, dtype=torch.float64)
                wide[:, start : start + width] = own
                terms[n] = wide if n not in terms else terms[n] + wide
            start += width
        return Affine(terms, torch.cat([p.bias for p in parts]), all(p.picks for p in parts))


def _scaled(value: Affine, number: float) -> Affine:
    if number == 1.0:
        return value
    return Affine({n: None if m is None else m * number for n, m in value.terms.items()}, value.bias * number)


def recognise(plan: LoopPlan, constants: Mapping[str, Tensor]) -> KnownCell | None:
    """The cell that the only scan of a plan is, if it is one."""
    scans = [region for region in plan.regions if region.kind == "scan"]
    if len(scans) != 1 or any(c.parameter == c.result for c in scans[0].carries):
        return None
    scan = scans[0]
    reader = _Reader(plan.body, constants)
    for node in plan.body.nodes:
        if plan.body.values[node.outputs[0]].kind == "row":
            reader.read(node)
    made = scan.made
    if any(name not in {c.result for c in scan.carries} for name in plan.outputs(scan)):
        return None
    pairs = [(c.parameter, c.result) for c in scan.carries]
    shapes = {plan.body.values[p].shape for p, _ in pairs}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        return None
    if {plan.body.values[p].dtype for p, _ in pairs} - {"float32", "float64"}:
        return None
    candidates = [pairs, pairs[::-1]] if len(pairs) == 2 else [pairs]
    for candidate in candidates:
        found = _lstm(reader, candidate) if len(pairs) == 2 else None
        if found is None and len(pairs) == 1:
            found = _gru(reader, *candidate[0]) or _rnn(reader, *candidate[0])
        if found is None:
            continue
        kind, gates, attributes = found
        cell = _cell(reader, kind, gates, attributes, [p for p, _ in candidate])
        if cell is not None and not any(n in made for n in cell.inputs):
            return cell
    return None


Found = tuple[str, list[Affine], dict[str, Any]]


def _gate(reader: _Reader, atom: str, function: str) -> Affine | None:
    """What goes into a gate, if it is an affine function."""
    kind, argument = reader.acts.get(atom, ("", {}))
    return argument if kind == function and isinstance(argument, Affine) else None


def _lstm(reader: _Reader, pairs: list[tuple[str, str]]) -> Found | None:
    (_, h_new), (c, c_new) = pairs
    cell, out = reader.at(c_new), reader.at(h_new)
    if isinstance(cell, Affine) or isinstance(out, Affine) or len(cell) != 2 or len(out) != 1:
        return None
    if set(cell.values()) | set(out.values()) != {1.0}:
        return None
    ((o, t),) = (_two(k) for k in out)
    if not t.startswith("tanh"):
        o, t = t, o
    if t not in reader.acts or reader.acts[t] != ("tanh", cell):
        return None
    kept = [k for k in cell if c in k]
    added = [k for k in cell if c not in k]
    if len(kept) != 1 or len(added) != 1 or len(kept[0]) != 2 or len(added[0]) != 2:
        return None
    f = kept[0][0] if kept[0][1] == c else kept[0][1]
    i, g = added[0] if added[0][1].startswith("tanh") else added[0][::-1]
    if len({f, i, o}) < 3:
        return None  # an LSTM would compute a gate that is used twice as two
    gates = [_gate(reader, f, "sigmoid"), _gate(reader, i, "sigmoid"), _gate(reader, g, "tanh"),
             _gate(reader, o, "sigmoid")]  # fmt: skip
    if any(g is None or c in g.terms for g in gates):
        return None
    return "lstm", [g for g in gates if g is not None], {}


def _two(key: tuple[str, ...]) -> tuple[str, str]:
    return (key[0], key[1]) if len(key) == 2 else ("", "")


def _gru(reader: _Reader, h: str, h_new: str) -> Found | None:
    out = reader.at(h_new)
    if isinstance(out, Affine) or len(out) != 3:
        return None
    tanhs = {a for k in out for a in k if a.startswith("tanh")}
    gates = {a for k in out for a in k if a.startswith("sigmoid")}
    if len(tanhs) != 1 or len(gates) != 1:
        return None
    (n,), (z,) = tanhs, gates
    zn, zh = tuple(sorted((z, n))), tuple(sorted((z, h)))
    if out == {(n,): 1.0, zn: -1.0, zh: 1.0}:
        sign = 1.0
    elif out == {zn: 1.0, (h,): 1.0, zh: -1.0}:
        sign = -1.0  # 1 - sigmoid(a) is sigmoid(-a)
    else:
        return None
    update = _gate(reader, z, "sigmoid")
    if update is None:
        return None
    update = _scaled(update, sign)
    inner = reader.acts[n][1]
    if isinstance(inner, Affine):  # tanh(x W + (r * h) R + b)
        mixed = [name for name in inner.terms if name in reader.found and name != h]
        if len(mixed) != 1 or h in inner.terms:
            return None
        product = reader.found[mixed[0]]
        if isinstance(product, Affine) or len(product) != 1 or set(product.values()) != {1.0}:
            return None
        a, b = _two(next(iter(product)))
        reset = b if a == h else a
        r = _gate(reader, reset, "sigmoid")
        if h not in (a, b) or r is None or reset == z:  # a GRU would compute one gate as two
            return None
        terms = {h if name == mixed[0] else name: m for name, m in inner.terms.items()}
        return "gru", [update, r, Affine(terms, inner.bias)], {"linear_before_reset": False}
    return _gru_before(reader, z, update, inner, h)


def _gru_before(reader: _Reader, z: str, update: Affine, inner: Poly, h: str) -> Found | None:
    """tanh(x W + b + r * (h R + c))"""
    if len(inner) != 2 or set(inner.values()) != {1.0}:
        return None
    single = [k for k in inner if len(k) == 1]
    double = [k for k in inner if len(k) == 2]
    if len(single) != 1 or len(double) != 1:
        return None
    own = reader.affine_atoms.get(single[0][0])
    gate, state = sorted(double[0], key=lambda a: not a.startswith("sigmoid"))
    r, reset = _gate(reader, gate, "sigmoid"), reader.affine_atoms.get(state)
    if gate == z or own is None or r is None or reset is None or h in own.terms or set(reset.terms) != {h}:
        return None
    return "gru", [update, r, own, reset], {"linear_before_reset": True}


def _rnn(reader: _Reader, h: str, h_new: str) -> Found | None:
    out = reader.at(h_new)
    if isinstance(out, Affine) or len(out) != 1 or set(out.values()) != {1.0} or len(next(iter(out))) != 1:
        return None
    function, argument = reader.acts.get(next(iter(out))[0], ("", {}))
    if not isinstance(argument, Affine):
        return None
    return "rnn", [argument], {"activation": function}


def _cell(
    reader: _Reader, kind: str, gates: list[Affine], attributes: dict[str, Any], states: list[str]
) -> KnownCell | None:
    """The cell's weights side by side."""
    h = states[0]
    size = reader.graph.values[h].size
    dtype = dtype_of(reader.graph.values[h].dtype)
    inputs = tuple(dict.fromkeys(n for gate in gates for n in gate.terms if n != h))
    shapes = [reader.graph.values[n] for n in inputs]
    if not inputs or any(v.kind != "row" or len(v.shape) != 1 or v.dtype != shapes[0].dtype for v in shapes):
        return None
    if any(
        n in reader.found and not isinstance(reader.found[n], Affine) and _reads(reader, n, states)
        for n in inputs
    ):
        return None

    def matrix(gate: Affine, name: str) -> Tensor:
        if name not in gate.terms:
            return torch.zeros(reader.graph.values[name].size, size, dtype=torch.float64)
        found = gate.terms[name]
        return torch.eye(size, dtype=torch.float64) if found is None else found

    if any(gate.bias.numel() != size for gate in gates):
        return None
    before = attributes.get("linear_before_reset") is True
    shown = gates[:3] if before else gates
    w = torch.cat([torch.cat([matrix(g, n) for n in inputs]) for g in shown], 1).t()
    recurrent = [*gates[:2], gates[3]] if before else gates
    r = torch.cat([matrix(g, h) for g in recurrent], 1).t()
    b = torch.cat([g.bias for g in gates])
    w, r, b = (t.to(dtype).contiguous() for t in (w, r, b))
    return KnownCell(inputs, tuple(states), {"kind": kind, "w": w, "r": r, "b": b} | attributes)


def _reads(reader: _Reader, name: str, states: list[str]) -> bool:
    """Whether a value depends on a carried one."""
    producers = reader.graph.producers
    todo, seen = [name], set()
    while todo:
        top = todo.pop()
        if top in states:
            return True
        if top not in seen and top in producers:
            seen.add(top)
            todo += producers[top].inputs
    return False
