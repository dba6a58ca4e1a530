"""The picture as a reader of XML sees it: nothing missing, nothing overlapping, nothing outside."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from covering import few
from report import steps
from stepnet.cells import GRU, LSTM, LayerNormLSTM, MinGRU
from stepnet.report import explain

T, B, I, H = 4, 2, 3, 5
SVG = "{http://www.w3.org/2000/svg}"


def stacked():
    first, second = GRU(I, H), LayerNormLSTM(H, H)

    def step(x, state):
        y, a = first(x, state[0])
        y, b = second(y, state[1])
        return y, (a, b)

    return explain(step, torch.zeros(T, B, I), (torch.zeros(B, H), second.initial_state(B)))


def markup(x, h):
    h = h + x * {"<&>\"'": 2.0}["<&>\"'"]
    return h, h


TOLD = {
    "LSTM": lambda: explain(LSTM(I, H), torch.zeros(T, B, I)),
    "LSTM with the gradient of x": lambda: explain(LSTM(I, H), torch.zeros(T, B, I, requires_grad=True)),
    "GRU by torch": lambda: explain(GRU(I, H), torch.zeros(T, B, I), backend="eager"),
    "LayerNormLSTM": lambda: explain(LayerNormLSTM(I, H), torch.zeros(T, B, I)),
    "MinGRU": lambda: explain(MinGRU(I, H), torch.zeros(T, B, I)),
    "torch.nn.LSTMCell": lambda: explain(nn.LSTMCell(I, H), torch.zeros(T, B, I)),
    "stacked": stacked,
    "least squares": lambda: explain(steps.least_squares, torch.zeros(T, B, 3), torch.zeros(B, 3)),
    "refused": lambda: explain(steps.branching, torch.zeros(T, B, I), torch.zeros(B, H)),
    "refused by name": lambda: explain(
        steps.least_squares, torch.zeros(T, B, 3), torch.zeros(B, 3), backend="c"
    ),
    "plain": lambda: explain(LSTM(I, H), torch.zeros(T, B, I), backend="naive"),
    "no state": lambda: explain(lambda x, _: (2 * x, ()), torch.zeros(T, B, I), ()),
    "markup": lambda: explain(markup, torch.zeros(T, B, I), torch.zeros(B, I)),
    "nothing in it": lambda: explain(lambda x, h: (x, h), torch.zeros(T, B, I), torch.zeros(B, I)),
}


LIKE_OTHERS = {"LSTM with the gradient of x", "MinGRU", "torch.nn.LSTMCell"}


@pytest.fixture(params=few(TOLD, TOLD.keys() - LIKE_OTHERS), scope="module")
def drawn(request):
    told = TOLD[request.param]()
    return told, ElementTree.fromstring(told.to_svg())


def tips(root):
    """What a pointer over each box shows: a list of lines for each."""
    groups = [group.find(f"{SVG}title") for group in root.iter(f"{SVG}g")]
    return [title.text.splitlines() for title in groups]


def rectangles(root):
    """(left, top, right, bottom) of the boxes and of the panels around them."""
    found = {"box": [], "panel": []}
    for parent, kind in ((group, "box") for group in root.iter(f"{SVG}g")):
        found[kind].append(corners(parent.find(f"{SVG}rect")))
    found["panel"] = [corners(r) for r in root.iter(f"{SVG}rect") if r.get("rx") == "12"]
    return found


def corners(rectangle):
    x, y, w, h = (float(rectangle.get(key)) for key in ("x", "y", "width", "height"))
    return x, y, x + w, y + h


def test_every_op_that_computes_is_in_one_box(drawn):
    told, root = drawn
    in_boxes = sorted(line.split()[0] for lines in tips(root) for line in lines if "FLOP" in line)
    ops = sorted(op.name for op in told.find() if op.weight != "move")
    joins = [name for name in in_boxes if name in ("cat", "stack")]
    assert sorted([*ops, *joins]) == in_boxes


def test_a_box_tells_the_users_lines(drawn):
    told, root = drawn
    for region in told.regions:
        for line in region.lines:
            if line.at and any(op.weight != "move" for op in line.ops):
                wanted = f"{line.at}  {line.code or ''}".rstrip()
                assert any(wanted in lines for lines in tips(root))


def test_boxes_do_not_overlap_and_lie_in_the_picture(drawn):
    _, root = drawn
    found = rectangles(root)
    width, height = map(float, root.get("viewBox").split()[2:])
    for a, b in [*combinations(found["box"], 2), *combinations(found["panel"], 2)]:
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    for left, top, right, bottom in (*found["box"], *found["panel"]):
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.get("x")) <= width
        assert 0 <= float(text.get("y")) <= height


def test_each_state_goes_round_its_loop(drawn):
    told, root = drawn
    turns = [p for p in root.iter(f"{SVG}path") if p.get("marker-end") == "url(#to-step)"]
    carries = sum(len(region.carries) for region in told.regions)
    legend = bool(told.loops)
    assert len(turns) == carries + legend
    for turn in turns[: len(turns) - legend]:  # from below to above
        heights = [float(y) for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", turn.get("d"))]
        assert heights[0] > heights[-1]


def test_arrows_lead_forward(drawn):
    _, root = drawn
    for path in root.iter(f"{SVG}path"):
        if path.get("marker-end") == "url(#to-wire)":
            numbers = [float(n) for n in re.findall(r"[\d.]+", path.get("d"))]
            points = list(zip(numbers[::2], numbers[1::2], strict=True))
            (x, y), (u, v) = points[0], points[-1]
            assert v > y or u > x
            upright = all(b[1] >= a[1] for a, b in pairwise(points))
            assert upright or u > x


def test_colours_say_what_runs_once(drawn):
    told, root = drawn
    panels = [r.get("stroke") for r in root.iter(f"{SVG}rect") if r.get("rx") == "12"]
    shown = [r for r in told.regions if r.kind in ("map", "scan", "loop")]
    assert panels.count("#c45500") == sum(r.per_step for r in shown)
    assert panels.count("#0072b2") <= sum(not r.per_step for r in shown)


def test_the_file_and_the_notebook(tmp_path):
    told = TOLD["MinGRU"]()
    drawing = told.to_svg(tmp_path / "step.svg")
    assert (tmp_path / "step.svg").read_text(encoding="utf-8") == drawing == told._repr_svg_()
    page = told._repr_html_()
    assert page.startswith(drawing)
    assert "once, on all" in page or "in blocks, on all" in page


def test_what_was_declined_is_framed_and_said():
    root = ElementTree.fromstring(TOLD["refused"]().to_svg())
    words = " ".join(text.text for text in root.iter(f"{SVG}text"))
    assert "the compiler declined: Python control flow" in words
    frames = [r for r in root.iter(f"{SVG}rect") if r.get("stroke-dasharray")]
    assert len(frames) == 2  # the op, and the legend
