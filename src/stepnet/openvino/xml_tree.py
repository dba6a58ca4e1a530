"""The XML of an IR file as a tree of elements: no DTD, no entities, nothing fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepnet.errors import MissingExtraError
from stepnet.file_model import Broken, Unreadable, opened


def parse(path: Path) -> Any:
    """The root element of a file.

    Raises:
        IRError: it cannot be read, is not XML, or declares a DTD or an entity.
        MissingExtraError: defusedxml is not installed.
    """
    try:
        from defusedxml import DefusedXmlException, DTDForbidden, ElementTree
    except ImportError as error:
        raise MissingExtraError("reading OpenVINO IR", package="defusedxml", extra="openvino") from error
    with opened(path, "an .xml file") as file:
        content = file.read().lstrip()
    if not content:
        raise Unreadable(
            f"{path.name}: the file is empty: not an OpenVINO IR",
            got="nothing, or blanks",
            expected="<net ...>",
        )
    try:
        root = ElementTree.fromstring(content, forbid_dtd=True, forbid_entities=True, forbid_external=True)
    except DefusedXmlException as error:
        raise Broken(
            f"{path.name}: DTD and entity declarations are refused",
            got="a DTD" if isinstance(error, DTDForbidden) else "an entity",
            expected="XML without <!DOCTYPE>",
        ) from error
    except (ElementTree.ParseError, ValueError, LookupError, OverflowError) as error:
        raise Unreadable(
            f"{path.name}: not XML",
            got=str(error)[:120],
            expected="an OpenVINO IR, <net ...>",
            remedy="stepnet.onnx.load reads ONNX files" if path.suffix.lower() == ".onnx" else None,
        ) from error
    if root.tag.endswith("}net"):  # with xmlns="...", which means nothing here
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
    return root


def only(element: Any, tag: str, where: str) -> Any:
    """The child of a tag, None if there is none.

    Raises:
        IRError: there are several.
    """
    children = element.findall(tag)
    if len(children) > 1:
        count = len(children)
        raise Broken(f"{where}: has {count} times <{tag}>", got=f"{count} of them", expected=f"one <{tag}>")
    return children[0] if children else None
