"""Errors say what to do: read from the source."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache, reduce
from pathlib import Path

import torch

import stepnet
from stepnet import errors

SOURCE = Path(stepnet.__file__).parent
# What declines says a reason and, where it is the user's, the line; what is broken in stepnet has no remedy.
OF_NO_REMEDY = {"StepnetError", "MissingExtraError", "Unsupported", "NotBuilt", "NoCompiler", "GraphError"}
OURS = {name for name, kind in vars(errors).items() if name[0].isupper() and isinstance(kind, type)}
# These hand on the text of another error, which has its own.
HANDED_ON = {
    ("export/trace.py", "{where} cannot be written: {cause}"),
    ("tape/topology.py", "{first}', *rest"),
}
ROOTS = ("stepnet", "torch", "LoDTensor", "TensorArray", "layers", "decode", "cells", "openvino", "onnx")


@cache
def raised() -> list[tuple[str, int, ast.Call]]:
    """Every call in the source that makes an error of ours, or hands one a remedy."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text("utf-8")
        if "remedy" in text or any(f"{name}(" in text for name in OURS):
            calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
            found += [(path.relative_to(SOURCE).as_posix(), call.lineno, call) for call in calls]
    return found


def name_of(function: ast.expr) -> str:
    """The last part of what is called."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_every_error_says_what_to_do():
    """By a remedy, or by what was expected: as a part of its own, or said as what must be."""
    silent = []
    for file, line, call in raised():
        named = {keyword.arg for keyword in call.keywords}
        if name_of(call.func) in OURS - OF_NO_REMEDY and not named & {
            "expected",
            "remedy",
        }:
            said = ast.unparse(call)
            told = None in named or re.search(r"\bmust\b", said) is not None
            if not told and not any(file == known and part in said for known, part in HANDED_ON):
                silent.append(f"{file}:{line}: {said}")
    assert not silent, "\n".join(silent)


def test_what_remedies_name_is_there():
    names = "|".join(ROOTS)
    found, unknown = 0, []
    for file, line, call in raised():
        for keyword in call.keywords:
            text = ast.unparse(keyword.value) if keyword.arg == "remedy" else ""
            for name in re.findall(rf"(?<![\w./-])(?:{names})(?:\.[A-Za-z]\w*)+", text):
                found += 1
                if name[-1] != "_" and not exists(name):  # else the beginning of several
                    unknown.append(f"{file}:{line}: {name}")
    assert found > 50
    assert not unknown, "\n".join(unknown)


@cache
def exists(name: str) -> bool:
    root, *rest = name.split(".")
    start = {"stepnet": stepnet, "torch": torch}.get(root) or getattr(stepnet, root, None)
    if start is None:
        start = importlib.import_module(f"stepnet.{root}")
    try:
        reduce(getattr, rest, start)
    except AttributeError:
        return False
    return True
