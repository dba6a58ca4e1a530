"""Text with gaps: what stands where, and what is not written at all."""

from __future__ import annotations

import pytest

from stepnet.executors.c.template import fill

LOOP = """for (;;) {
@if chunks
@each rows
    take($name, $n);
@end
@else
    all($n);
@end
    $body
}"""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"chunks": True, "rows": [], "body": ""}, "for (;;) {\n}"),
        ({"chunks": False, "rows": [], "body": "a();"}, "for (;;) {\n    all(7);\n    a();\n}"),
        (
            {"chunks": True, "rows": [{"name": "x", "n": 1}, {"name": "y"}], "body": "a();\n  b();"},
            "for (;;) {\n    take(x, 1);\n    take(y, 7);\n    a();\n      b();\n}",
        ),
    ],
    ids=["nothing", "otherwise", "each, lines"],
)
def test_it_is_filled(values, expected):
    assert fill(LOOP, {"n": 7, **values}) == expected


def test_what_is_put_in_is_not_read_again():
    assert fill("$text\n/* $text */", {"text": "@if $n"}) == "@if $n\n/* @if $n */"


def test_a_gap_without_a_value_is_an_error():
    with pytest.raises(KeyError, match="rows"):
        fill("int64_t $rows;", {})
    with pytest.raises(KeyError, match="late"):
        fill("@if late\n@end", {})


def test_a_block_that_does_not_end_is_an_error():
    with pytest.raises(ValueError, match="line 2 has no @end: @if a"):
        fill("x\n@if a\n@each b\n@end", {"a": 1, "b": []})
