"""What the API page lists says what it does and raises, with an example; examples are run as doctests."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import stepnet
from stepnet import errors
from stepnet.errors import LoDIndexError

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "api.md").read_text(encoding="utf-8")
LISTED = re.compile(r"^::: (?P<name>\S+)\n(?:    options:\n(?P<options>(?:      .*\n)*))?", re.MULTILINE)
OF_ANOTHER = re.compile(r"\b[Aa]rguments\b.* as (of )?`|; see `")  # where it is said


def at(dotted: str) -> Any:
    """What a dotted name of the page stands for."""
    parts = dotted.split(".")
    for k in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:k]))
        except ModuleNotFoundError:
            continue
        for name in parts[k:]:
            found = getattr(found, name)
        return found
    raise LookupError(dotted)


def public(module: ModuleType) -> list[str]:
    """Names that a module defines, or that its package names as its own."""
    mine = module.__name__ if not hasattr(module, "__path__") else ""
    return [
        name
        for name, it in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(it) or inspect.isfunction(it))
        and (it.__module__ == mine or (not mine and it.__module__.startswith(module.__name__)))
    ]


def listed() -> dict[str, Any]:
    """Every class and function of the page, by its dotted name."""
    found = {}
    for match in LISTED.finditer(PAGE):
        name, it = match["name"], at(match["name"])
        if inspect.ismodule(it):
            members = re.search(r" members: \[(.*)\]", match["options"] or "")
            names = members[1].split(", ") if members else public(it)
            found |= {f"{name}.{member}": getattr(it, member) for member in names}
        else:
            found[name] = it
    return {name: it for name, it in found.items() if callable(it)}


def methods(kind: type) -> dict[str, Any]:
    """Public methods and properties that `kind` has of stepnet's own classes."""
    own = [vars(base).items() for base in reversed(kind.__mro__) if base.__module__.startswith("stepnet")]
    plain = {name: getattr(it, "__func__", getattr(it, "fget", it)) for items in own for name, it in items}
    return {name: it for name, it in plain.items() if not name.startswith("_") and inspect.isfunction(it)}


def said_of(kind: type, name: str) -> str:
    """The docstring of a method: its own, or that of one of stepnet's that it is in the place of."""
    own = [vars(base).get(name) for base in kind.__mro__ if base.__module__.startswith("stepnet")]
    return next(filter(None, (getattr(it, "__doc__", None) for it in own)), "")


LIST = listed()
CLASSES = {name: it for name, it in LIST.items() if inspect.isclass(it) and not issubclass(it, BaseException)}
FUNCTIONS = {name: it for name, it in LIST.items() if not inspect.isclass(it)}


def parameters_unsaid(function: Callable[..., Any]) -> list[str]:
    """Parameters that a docstring does not name; the `name` of a layer is the same everywhere."""
    said = inspect.getdoc(function) or ""
    if OF_ANOTHER.search(said):
        return []
    names = inspect.signature(function).parameters
    return [name for name in names if name != "name" and not re.search(rf"\b{name}\b", said)]


def errors_unsaid(function: Callable[..., Any], said: str) -> list[str]:
    """Errors of stepnet that a function raises itself, neither they nor what they are a kind of named."""
    plain = inspect.unwrap(function)
    if OF_ANOTHER.search(said) or not any(hasattr(errors, name) for name in plain.__code__.co_names):
        return []
    source = ast.parse(textwrap.dedent(inspect.getsource(plain)))
    calls = [node.exc for node in ast.walk(source) if isinstance(node, ast.Raise)]
    names = [call.func.id for call in calls if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)]
    kinds = [getattr(errors, name) for name in names if hasattr(errors, name)]
    kinds = [kind for kind in kinds if not issubclass(kind, errors.Unsupported)]
    return [
        kind.__name__
        for kind in kinds
        if not any(base.__name__ in said for base in kind.__mro__[: kind.__mro__.index(Exception)])
    ]


def test_every_name_of_the_package_is_listed():
    assert not set(public(stepnet)) - {name.rpartition(".")[2] for name in LIST}


def test_all_classes_and_functions_have_an_example():
    assert not [name for name, it in (CLASSES | FUNCTIONS).items() if ">>> " not in (it.__doc__ or "")]


def test_all_methods_have_a_docstring():
    unsaid = [
        f"{name}.{own}"
        for name, kind in CLASSES.items()
        for own in methods(kind)
        if not said_of(kind, own) and own != "extra_repr"  # torch's, which says it
    ]
    assert not unsaid


def test_all_parameters_of_functions_are_named():
    unsaid = {name: parameters_unsaid(it) for name, it in FUNCTIONS.items()}
    assert not {name: names for name, names in unsaid.items() if names}


def test_all_errors_that_functions_raise_are_named():
    own = {name: (it, inspect.getdoc(it) or "") for name, it in FUNCTIONS.items()}
    for name, kind in CLASSES.items():
        if "__init__" in vars(kind) and not is_dataclass(kind):  # whose __init__ nobody wrote
            own[name] = (vars(kind)["__init__"], inspect.getdoc(kind) or "")
        own |= {f"{name}.{each}": (it, said_of(kind, each)) for each, it in methods(kind).items()}
    unsaid = {name: errors_unsaid(it, said) for name, (it, said) in own.items()}
    assert not {name: names for name, names in unsaid.items() if names}


def planted(x: int, y: int) -> None:
    """Of x."""
    raise LoDIndexError(f"planted {x} {y}")


def test_what_is_left_out_is_seen():
    assert parameters_unsaid(planted) == ["y"]
    assert errors_unsaid(planted, "Of x.") == ["LoDIndexError"]
    assert errors_unsaid(planted, "Raises LoDError for others.") == []
