"""Fission: cut a loop body into maps (all rows at once) and scans (step after step).

    for t: a = f(x[t]); h = g(a, h); y[t] = k(h)     ->     A = f(X);  for t: h = g(A[t], h);  Y = k(H)

A value belongs to a scan if it lies on a cycle through a carried value: the strongly connected
components of the body with its back edges. The components in order give an alternation of maps and
scans; independent scans at the same depth run as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import prod

from stepnet.ir.graph import Graph, Node, in_order
from stepnet.ir.ops import OPS, ROUNDED, VIEWS, Stage, is_cheap
from stepnet.ir.plan import Carry, LoopPlan, Region

from .new_values import further


def fission(
    body: Graph, carries: Sequence[Carry], wanted: Sequence[str], *, fuse: bool, beside: bool = False
) -> LoopPlan:
    """Cut a body.

    Args:
        body: the graph of one step.
        carries: its carried values.
        wanted: the row and sum values asked for after the loop.
        fuse: move cheap ops that border on a scan into it. Right for generated code, where a pass over
            memory costs more than the arithmetic; wrong for torch ops, where every op of a step costs.
        beside: those, too, that no scan reads, where one reads what they do.
    """
    turning, depth = depths(body, carries)
    cut = _placed(body, turning, depth)
    _place_carries(cut, body, carries, wanted, turning, depth)
    if fuse:
        _fuse(cut, body, beside)
    body = _spread(body, cut.maps)
    return LoopPlan(body, tuple(carries), _regions(cut, body), tuple(wanted))


@dataclass
class _Cut:
    """Where the nodes of a body go. `maps[d]` comes behind `scans[d]`, which has d - 1 scans before it."""

    maps: list[list[Node]]
    scans: list[list[Node]]
    carries: list[list[Carry]]  # of each scan
    prologue: list[Node] = field(default_factory=list)
    once: list[Node] = field(default_factory=list)  # for each sequence, before the scans
    after_loop: list[Node] = field(default_factory=list)  # for each sequence, of sums over its steps
    epilogue: list[Node] = field(default_factory=list)


def _placed(body: Graph, turning: Set[str], depth: Mapping[str, int]) -> _Cut:
    """Each node where the kind of its result and the scans that it waits for put it."""
    levels = range(max(depth.values(), default=0) + 1)
    cut = _Cut([[] for _ in levels], [[] for _ in levels], [[] for _ in levels])
    summed: set[str] = set()
    for node in body.nodes:
        kinds = {body.values[name].kind for name in node.outputs if name}
        if node.op == "sum_steps":
            summed.update(node.outputs)
        elif summed.intersection(node.inputs) and (kinds == {"sequence"} or OPS[node.op].stage is Stage.ROWS):
            summed.update(node.outputs if kinds == {"sequence"} else ())
            cut.after_loop.append(node)
            continue
        elif kinds == {"sequence"}:
            cut.once.append(node)
            continue
        if kinds == {"shared"}:
            cut.prologue.append(node)
        elif kinds == {"sum"} and OPS[node.op].stage is not Stage.ROWS:
            cut.epilogue.append(node)
        else:
            home = cut.scans if node.outputs[0] in turning else cut.maps
            home[depth[node.outputs[0]]].append(node)
    return cut


def _place_carries(
    cut: _Cut, body: Graph, carries: Sequence[Carry], wanted: Sequence[str],
    turning: Set[str], depth: Mapping[str, int],
) -> None:  # fmt: skip
    """What turns is carried by its scan; what stays as it was is an input of the scans, or rows for maps; of
    all else the rows of the step before are known, and are read one step later."""
    kept = {c.parameter for c in carries if c.parameter == c.result}
    # of what turns in no scan the last value is found among its rows
    rows = {*wanted, *(c.result for c in carries if c.parameter not in kept and c.parameter not in turning)}
    read = {name for node in body.nodes for name in node.inputs} | rows
    in_maps = {name for nodes in cut.maps for node in nodes for name in node.inputs} | rows
    held = [c for c in carries if c.parameter in kept and body.values[c.parameter].kind == "row"]
    spread = [c for c in held if c.parameter in in_maps]
    cut.maps[0] += [Node("spread", (), (c.parameter,)) for c in spread]
    for d, scan in enumerate(cut.scans):
        cut.carries[d] += [c for c in carries if c.parameter in turning and depth[c.parameter] == d]
        inside = {name for node in scan for name in node.inputs}
        cut.carries[d] += [c for c in held if c not in spread and c.parameter in inside]
    for carry in carries:
        if carry.parameter not in kept and carry.parameter not in turning and carry.parameter in read:
            shift = Node("shift", (carry.result,), (carry.parameter,))
            cut.maps[depth[carry.parameter]].append(shift)


def _fuse(cut: _Cut, body: Graph, beside: bool) -> None:
    """Move cheap ops into the scans that they border on, and join scans that belong together."""
    maps, scans, carries = cut.maps, cut.scans, cut.carries
    pulled = _pulled(body)
    deepest = len(scans) - 1
    for d in range(1, deepest + 1):
        if d < deepest:  # what is larger than what it is made of is best made where it is read
            sizes = [(node, sum(body.values[n].size for n in node.inputs)) for node in maps[d]]
            growing = {id(node) for node, read in sizes if body.values[node.outputs[0]].size > read}
            _sink(body, maps[d], scans[d + 1], carries[d + 1], pulled, growing)
        _absorb(body, maps[d], scans[d], carries[d], pulled)
        _sink(body, maps[d - 1], scans[d], carries[d], pulled, beside=beside and d == 1)
    for d in range(deepest, 1, -1):
        if _join(body, maps, scans, carries, d):
            _sink(body, maps[d - 2], scans[d - 1], carries[d - 1], pulled)
            del maps[d], scans[d], carries[d]
    _wait(cut, body, pulled)
    there = -1
    while there != (there := sum(map(len, scans))):
        for d in range(len(scans) - 1, 0, -1):
            _sink(body, maps[d - 1], scans[d], carries[d], pulled)
            _absorb(body, maps[d], scans[d], carries[d], pulled)
    _in_place(cut, body, pulled | _behind_products(cut.maps[-1], body))
    _sink_views(body, cut.once, scans)


def _wait(cut: _Cut, body: Graph, pulled: Set[str]) -> None:
    """Sums over rows, and what only they read, are made behind the last scan where before it they hold back
    what the scan makes on its way: what they are made of, or what is made of what it reads. Others stay."""
    users = body.users()
    here = {name for scan in cut.scans for node in scan for name in node.inputs}
    here |= {carry.result for carries in cut.carries for carry in carries}
    for d in reversed(range(len(cut.maps) - 1)):
        stay: list[Node] = []
        free: list[Node] = []
        read = here.copy()
        for node in reversed(in_order(cut.maps[d])):
            name = node.outputs[0]
            is_sum = body.values[name].kind == "sum"
            if len(node.outputs) == 1 and name not in read and (is_sum or users[name]):
                free.insert(0, node)
            else:
                stay.insert(0, node)
                read.update(node.inputs)
        left = stay.copy()
        _sink(body, left, cut.scans[d + 1].copy(), cut.carries[d + 1], pulled)
        held = {name for node in stay if node not in left for name in node.outputs}
        late = free.copy()
        _absorb(body, late, cut.scans[d + 1].copy(), cut.carries[d + 1], pulled)
        made = [node for node in free if node not in late and OPS[node.op].stage in _ELEMENTS]
        held.update(name for node in made for name in node.inputs)
        behind = []
        for node in free:
            if held.isdisjoint(node.inputs):
                stay.append(node)
            else:
                behind.append(node)
                held.update(node.outputs)
        cut.maps[-1][:0] = behind
        cut.maps[d][:] = stay
        here.update(name for node in stay for name in node.inputs)


def _in_place(cut: _Cut, body: Graph, pulled: Set[str]) -> None:
    """What belongs into a scan and is still in a map, as between products, gets a scan of its own, which
    carries nothing."""
    d = 0
    while d < len(cut.maps):
        before, inside, after = [], [], []
        types: set[str] = set()
        made: set[str] = set()  # in the scan
        late: set[str] = set()  # behind it
        for node in in_order(cut.maps[d]):
            free = node.outputs[0] in pulled and _fusible(body, node, pulled) and late.isdisjoint(node.inputs)
            if free and _agree(types | _types(body, [node])):
                inside.append(node)
                types |= _types(body, [node])
                made.update(node.outputs)
            elif late.isdisjoint(node.inputs) and made.isdisjoint(node.inputs):
                before.append(node)
            else:
                after.append(node)
                late.update(node.outputs)
        many = sum(is_cheap(node.op) for node in inside) >= _PASSES
        if many or any(node.op == "matmul" for node in inside):  # a vector per sequence is as well spread
            cut.maps[d : d + 1] = [before, after]
            cut.scans.insert(d + 1, inside)
            cut.carries.insert(d + 1, [])
            _absorb(body, after, inside, [], pulled)
            _sink(body, before, inside, [], pulled)
        d += 1


def _behind_products(after: Sequence[Node], body: Graph) -> set[str]:
    """What cheap ops make of the products behind the last scan."""
    found = {node.output for node in after if is_product(body, node)}
    products = found.copy()
    for node in in_order(after):
        if _in_pass(body, node) and node.op != "matmul" and not found.isdisjoint(node.inputs):
            found.add(node.output)
    return found - products


def _regions(cut: _Cut, body: Graph) -> tuple[Region, ...]:
    """The regions in the order in which they run."""
    regions = [Region("prologue", tuple(cut.prologue))] if cut.prologue else []
    if cut.once:
        regions.append(Region("sequences", tuple(cut.once)))
    for scan, carries, after in zip(cut.scans, cut.carries, cut.maps, strict=True):
        if scan or carries:
            nodes = in_order(scan)
            regions.append(Region("scan", nodes, tuple(carries), _linear(body, nodes, carries)))
        if after:
            regions.append(Region("map", in_order(after)))
    if cut.after_loop:
        regions.append(Region("sequences", tuple(cut.after_loop)))
    if cut.epilogue:
        regions.append(Region("epilogue", tuple(cut.epilogue)))
    return tuple(regions)


def depths(body: Graph, carries: Sequence[Carry]) -> tuple[set[str], dict[str, int]]:
    """Values that lie on a cycle, and for every value the number of scans before it (its own included)."""
    before: dict[str, list[str]] = {name: [] for name in body.values}
    for node in body.nodes:
        for name in node.outputs:
            if name:
                before[name] = list(node.inputs)
    for carry in carries:
        if carry.parameter != carry.result:  # a value that never changes turns no loop
            before[carry.parameter] = [carry.result]
    live = set(before)
    turning: set[str] = set()
    depth: dict[str, int] = {}
    for component in components({n: [m for m in before[n] if m in live] for n in before}):
        cyclic = len(component) > 1 or any(name in before[name] for name in component)
        level = max((depth[m] for n in component for m in before[n] if m not in component), default=0)
        depth.update(dict.fromkeys(component, level + cyclic))
        if cyclic:
            turning |= component
    # nodes of several outputs go where any of them goes
    for node in body.nodes:
        names = [n for n in node.outputs if n]
        if len(names) > 1 and turning.intersection(names):
            turning.update(names)
            top = max(depth[n] for n in names)
            depth.update(dict.fromkeys(names, top))
    return turning, depth


def components(before: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """Strongly connected components, each after those it depends on.

    >>> [sorted(c) for c in components({"a": [], "b": ["a", "c"], "c": ["b"], "d": ["c"]})]
    [['a'], ['b', 'c'], ['d']]
    """
    import networkx as nx  # 0.1 s: not before somebody compiles or reads a plan

    return list(nx.strongly_connected_components(nx.DiGraph(dict(before))))


def _pulled(body: Graph) -> set[str]:
    """Row values that belong into a scan, whatever they cost: those made from a value per sequence, which
    would have to be there for every row, or by small products, those that only such or sums over steps read,
    and those between."""
    users = body.users()
    found = {node.output for node in body.nodes if node.op == "sum_steps"}
    passed = [node for node in body.nodes if _in_pass(body, node)]
    for node in reversed(passed):
        name = node.output
        reads = any(body.values[n].kind == "sequence" for n in node.inputs) or _is_small_product(body, node)
        only = bool(users[name]) and all(u.outputs[0] in found for u in users[name])
        if reads or (only and name not in body.results):
            found.add(name)
    follows = found.copy()
    for node in passed:
        if not follows.isdisjoint(node.inputs):
            follows.add(node.output)
    for node in reversed(passed):
        if node.output in follows and any(u.outputs[0] in found for u in users[node.output]):
            found.add(node.output)
    return found


def _is_small_product(body: Graph, node: Node) -> bool:
    """Whether a node multiplies two small matrices of each row, or one by a weight that stays in the cache:
    what torch makes on all rows at once leaves it, and takes longer than a pass."""
    if node.op != "matmul":
        return False
    a, b = (body.values[name] for name in node.inputs)
    if (a.kind, b.kind) == ("row", "shared"):
        near = b.bytes <= _NEAR and a.dtype in _MULTIPLIED
        return near and len(a.shape) > 1 and len(b.shape) == 2
    return a.kind == b.kind == "row" and prod(a.shape[-2:]) * b.shape[-1] <= _SMALL_PRODUCT


def _in_pass(body: Graph, node: Node) -> bool:
    """Whether a node makes a row value, and can do so in a pass over elements in generated code."""
    if len(node.outputs) > 1 or body.values[node.output].kind != "row":
        return False
    if node.op == "matmul":
        return all(body.values[n].kind != "shared" for n in node.inputs) or _is_small_product(body, node)
    return is_cheap(node.op) or node.op in VIEWS


def _sink_views(body: Graph, once: list[Node], scans: list[list[Node]]) -> None:
    """Views of values per sequence move into the scan, if it alone reads them: there they cost nothing."""
    users = body.users()
    homes = {id(node): at for at, nodes in enumerate(scans) for node in nodes}
    for node in reversed(once.copy()):
        at = {homes.get(id(user), -1) for user in users[node.output]} if node.op in VIEWS else set()
        if len(at) == 1 and -1 not in at and node.output not in body.results:
            once.remove(node)
            (place,) = at
            scans[place].append(node)
            homes[id(node)] = place


def _spread(body: Graph, maps: list[list[Node]]) -> Graph:
    """Values per sequence that a map reads beside rows are made rows, too."""
    values = dict(body.values)
    rows: dict[str, str] = {}
    for nodes in maps:
        for node in nodes.copy():
            names = [n for n in node.inputs if n in values and values[n].kind == "sequence"]
            if not names:
                continue
            for name in names:
                if name not in rows:
                    rows[name] = further(values, f"{name}_rows", values[name], kind="row")
                    maps[0].insert(0, Node("spread", (name,), (rows[name],)))
            nodes[nodes.index(node)] = replace(node, inputs=tuple(rows.get(n, n) for n in node.inputs))
    return replace(body, values=values)


_ELEMENTS = (Stage.POINTWISE, Stage.REDUCE)
_PASSES = 4  # ops that torch would run one by one, each over memory, where a scan is called for less
_SMALL_PRODUCT = 1 << 15  # products of numbers; up to here generated C is the faster, whatever the order
_NEAR = 1 << 20  # bytes of weights that stay in the cache of a core
_MULTIPLIED = ("float32", "float64", "bfloat16")  # float16 is torch's
_FUSIBLE = ("float32", "float64", "bfloat16", "float16", "bool")


def _fusible(body: Graph, node: Node, pulled: Set[str]) -> bool:
    cheap = is_cheap(node.op) or node.op == "sum_rows" or node.outputs[0] in pulled
    floats = all(body.values[n].dtype in _FUSIBLE for n in (*node.inputs, *node.outputs))
    return cheap and floats


def _types(body: Graph, nodes: Iterable[Node]) -> set[str]:
    return {body.values[name].dtype for node in nodes for name in (*node.inputs, *node.outputs) if name}


def _agree(types: Set[str]) -> bool:
    """Whether one scan of generated C computes in these types: in float64, or in others."""
    return "float64" not in types or types.isdisjoint({"float32", *ROUNDED})


def _absorb(body: Graph, after: list[Node], scan: list[Node], carries: list[Carry], pulled: Set[str]) -> None:
    """Cheap ops of the map after a scan move into it, if they read what it makes or reads, and nothing that
    is made behind it."""
    late = {name for node in after for name in node.outputs}
    at_hand = {name for node in scan for name in (*node.inputs, *node.outputs)}
    at_hand = {name for name in at_hand if body.values[name].kind == "row"} | {c.parameter for c in carries}
    types = _types(body, scan)
    left = []
    for node in after:
        near = any(name in at_hand for name in node.inputs) or node.outputs[0] in pulled
        fits = _fusible(body, node, pulled) and _agree(types | _types(body, [node]))
        if near and fits and not any(name in late for name in node.inputs):
            scan.append(node)
            types |= _types(body, [node])
            at_hand.update(node.outputs)
            late.difference_update(node.outputs)
        else:
            left.append(node)
    after[:] = left


def _sink(
    body: Graph, before: list[Node], scan: list[Node], carries: list[Carry], pulled: Set[str],
    only: Set[int] | None = None, beside: bool = False,
) -> None:  # fmt: skip
    """Cheap ops of the map before a scan move into it, if it reads them and nothing before it does; of these
    `only` some, if that is said; `beside`, those that nothing reads, too."""
    inside = {id(node) for node in scan}
    users = body.users()
    turned = {c.result for c in carries}
    shifted = {name for node in before if node.op == "shift" for name in node.inputs}
    types = _types(body, scan)
    left = []
    stay: set[int] = set()
    for node in reversed(before):
        reading = {id(user) for name in node.outputs for user in users[name]}
        read = not inside.isdisjoint(reading) or turned.intersection(node.outputs) or (beside and not reading)
        if (
            read
            and (only is None or id(node) in only)
            and stay.isdisjoint(reading)
            and _fusible(body, node, pulled)
            and _agree(types | _types(body, [node]))
            and node.op != "sum_rows"
            and not shifted.intersection(node.outputs)
        ):
            scan.append(node)
            types |= _types(body, [node])
            inside.add(id(node))
        else:
            left.append(node)
            stay.add(id(node))
    before[:] = reversed(left)


def _join(
    body: Graph, maps: list[list[Node]], scans: list[list[Node]], carries: list[list[Carry]], d: int
) -> bool:
    """A scan joins the one before it where both multiply by the same weights, and little but such products is
    between them: what one gives the other, as a step gives its derivative, then never leaves the cache."""

    def weights(nodes: Sequence[Node]) -> set[str]:
        names = {name for node in nodes if node.op == "matmul" for name in node.inputs}
        return {name for name in names if body.values[name].kind == "shared"}

    waits = {name for node in scans[d] for name in node.inputs}
    between: list[Node] = []
    for node in reversed(in_order(maps[d - 1])):
        if waits.intersection(node.outputs):
            between.append(node)
            waits.update(node.inputs)
    own = weights(scans[d])
    products = {node.output for node in between if own and is_product(body, node)}
    more = sum(body.values[name].bytes for name in weights(between) - own)
    inside = products | {name for node in between if node.op in VIEWS for name in node.outputs}
    reals = {body.values[n].dtype for node in (*scans[d - 1], *between, *scans[d]) for n in node.outputs if n}
    fits = more <= _NEAR and all(_fusible(body, node, inside) for node in between)
    if own != weights(scans[d - 1]) or not fits or reals >= {"float32", "float64"}:
        return False
    scans[d - 1] += [*between, *scans[d]]
    maps[d - 1] = [*(node for node in maps[d - 1] if node not in between), *maps[d]]
    carries[d - 1] += [c for c in carries[d] if c not in carries[d - 1]]
    return True


def is_product(body: Graph, node: Node) -> bool:
    """Whether a node multiplies rows, each a vector, by a matrix."""
    if node.op != "matmul":
        return False
    row, weight = (body.values[name] for name in node.inputs)
    return row.kind == "row" and weight.kind == "shared" and (len(row.shape), len(weight.shape)) == (1, 2)


def linear_states(body: Graph, region: Region) -> tuple[str, ...]:
    """The carries that are made of carries by sums, views and products with what no carry goes into, of
    matrices too: of themselves alone, or of each other, as the two parts of a complex number are."""
    left = {c.parameter for c in region.carries}
    while True:
        given = {c.parameter: 1 if c.parameter in left else 2 for c in region.carries}
        degree = _degrees(body, region.nodes, given)
        kept = {c.parameter for c in region.carries if degree.get(c.result, 0) < 2}
        if kept == left:
            break
        left = kept
    turning = [c for c in region.carries if c.parameter != c.result]
    return tuple(c.parameter for c in turning if degree.get(c.result, 0) == 1)


def _linear(body: Graph, nodes: Sequence[Node], carries: Sequence[Carry]) -> tuple[str, ...]:
    """Carries of the form h = a * h + b, where neither a nor b depends on a carried value of the scan."""
    found = []
    for carry in carries:
        given = {c.parameter: 2 for c in carries} | {carry.parameter: 1}
        degree = _degrees(body, nodes, given, body.values[carry.parameter].shape)
        if degree.get(carry.result, 0) == 1:
            found.append(carry.parameter)
    return tuple(found)


def _degrees(
    body: Graph, nodes: Sequence[Node], given: Mapping[str, int], shape: tuple[int, ...] | None = None
) -> dict[str, int]:
    """How values depend on carried ones, of which this is given. 0: not at all; 1: linearly, and element by
    element where all are to be of one shape; 2: in any other way."""
    products = ("mul",) if shape is not None else ("mul", "matmul")
    alone = ("neg", "copy") if shape is not None else ("neg", "copy", "sum", "cumsum")
    degree = dict(given)
    for node in nodes:
        degrees = [degree.get(name, 0) for name in node.inputs]
        if not any(degrees):
            continue
        found = 2
        if len(node.outputs) == 1 and shape in (None, body.values[node.output].shape):
            moves = shape is None and (node.op in VIEWS or node.op == "cat")
            if node.op in ("add", "sub") or moves or (node.op == "where" and not degrees[0]):
                found = max(degrees)
            elif node.op in products:
                found = min(sum(degrees), 2)
            elif node.op in alone or (node.op == "div" and not degrees[1]):
                found = degrees[0]
        degree.update(dict.fromkeys(node.outputs, found))
    return degree
