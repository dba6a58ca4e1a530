"""The inputs of a run: arrays from files, or random ones; pickles are never loaded."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from stepnet.errors import IRError
from stepnet.file_model.misfit import MOST
from stepnet.report.sizes import check_shapes, fitting, shapes_at

from .options import shapes_of
from .outcome import CommandError

if TYPE_CHECKING:
    from stepnet.file_model import Socket
    from stepnet.openvino import OpenVINOModel

# What numpy and zipfile raise for files that they cannot read.
UNREADABLE = (
    ValueError, OSError, EOFError, MemoryError, NotImplementedError, SyntaxError, TokenError,
    zipfile.BadZipFile,
)  # fmt: skip
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_DEFLATED = 1032  # bytes that one byte of what numpy compresses can stand for
DYNAMIC = 8  # of dynamic dimensions that no shape is given for


def gather(
    model: OpenVINOModel,
    files: Sequence[str] | None,
    shapes: Sequence[str] | None,
    seed: int,
    *,
    random: bool,
) -> dict[str, Any]:
    """Values of all inputs by name.

    Raises:
        CommandError: an option is wrong, a file cannot be read, or an input is missing.
        IRError: a shape is for no input or does not fit it.
    """
    sizes = shapes_of(shapes)
    check_shapes(model, sizes)
    found = from_files(model, files or ())
    both = next((name for name in sizes if name in found), None)
    if both is not None:
        raise CommandError(f"input '{both}' has an array and a --shape", remedy="give one of them")
    missing = [socket for socket in model.inputs if socket.name not in found]
    if missing and not random:
        raise CommandError(
            f"input '{missing[0].name}' is not given",
            expected=str(missing[0]),
            remedy=f"--input {missing[0].name}=FILE.npy, or --random",
        )
    return fill(model, found, sizes, seed)


def from_files(model: OpenVINOModel, given: Sequence[str]) -> dict[str, np.ndarray]:
    """Inputs by name, as `--input` gives them.

    Raises:
        CommandError: a file cannot be read or holds what is no array, or a name is no input's.
    """
    known = _names(model)
    found: dict[str, np.ndarray] = {}
    for text in given:

        def check(key: str, text: str = text) -> None:
            if key not in known:
                raise CommandError(
                    f"--input {text}: the model has no input '{key}'", expected=", ".join(known)
                )

        name = max((name for name in known if text.startswith(f"{name}=")), key=len, default=None)
        if name is not None:
            arrays = {name: _read(Path(text[len(name) + 1 :]))}
        elif text.endswith(".npz"):
            arrays = _read_all(Path(text), check)
        else:
            raise CommandError(
                f"--input {text}: names no input",
                expected=f"NAME=FILE.npy or FILE.npz, NAME of {', '.join(known)}",
            )
        for key, array in arrays.items():
            inner = known[key]
            if inner in found:
                raise CommandError(f"--input {text}: input '{inner}' is given twice")
            found[inner] = array
    return found


def fill(
    model: OpenVINOModel, found: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], seed: int
) -> dict[str, Any]:
    """Random values for the inputs that are missing: normal numbers, integers and truth values 0 or 1.

    Raises:
        CommandError: an input of any rank has no shape.
    """
    make = torch.Generator().manual_seed(seed)
    known = {**{name: np.shape(value) for name, value in found.items()}, **shapes}
    sizes = (fitting if _is_ir(model) else shapes_at)(model, known, DYNAMIC)
    filled = {}
    for socket in model.inputs:
        if socket.name in found:
            filled[socket.name] = found[socket.name]
            continue
        if socket.name not in sizes:
            raise CommandError(f"input '{socket.name}' has no shape", remedy=f"--shape {socket.name}=2,10,64")
        filled[socket.name] = _random(socket, sizes[socket.name], make)
    return filled | model.others(found)


@contextmanager
def told_sizes(model: OpenVINOModel, values: Mapping[str, Any]) -> Iterator[None]:
    """Say with an error of the model which inputs it got at the size that `fill` gives to open dimensions.

    Raises:
        IRError: that of the model.
    """
    try:
        yield
    except IRError as error:
        made = [s.name for s in model.inputs if _is_made_up(s.shape or (), values[s.name])]
        if not made:
            raise
        told = f"{error.remedy}; " if error.remedy else ""
        told += f"open sizes of {', '.join(made)} were {DYNAMIC}: --shape {made[0]}=2,10,64 gives others"
        raise IRError(error.where, got=error.got, expected=error.expected, remedy=told) from error


def _is_made_up(shape: Sequence[int], value: Any) -> bool:
    """Whether an open dimension has the size that `fill` gives it."""
    sizes: Sequence[int] = getattr(value, "shape", ())
    return any(open_size == -1 and size == DYNAMIC for open_size, size in zip(shape, sizes, strict=False))


def write(path: Path, values: Mapping[str, Tensor]) -> None:
    """An .npz with arrays by name, whatever the names are.

    Raises:
        CommandError: it cannot be written.
    """
    try:
        with zipfile.ZipFile(path, "w") as file:
            for name, value in values.items():
                with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, array(value), allow_pickle=False)
    except OSError as error:
        raise CommandError(f"{path}: cannot be written: {error.strerror}") from error


def tensors(found: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Outputs by name, those of a list by its name and their place.

    >>> list(tensors([("y", 1), ("rows", [2, 3])]))
    ['y', 'rows[0]', 'rows[1]']
    """
    return {
        f"{name}[{k}]" if isinstance(value, list) else name: part
        for name, value in found
        for k, part in enumerate(value if isinstance(value, list) else [value])
    }


def array(value: Tensor) -> np.ndarray:
    """A tensor for numpy, which has no bfloat16: such numbers become float32."""
    return (value.float() if value.dtype is torch.bfloat16 else value).detach().numpy()


def _is_ir(model: Any) -> bool:
    """Whether shapes and other names of inputs can be told from the layers, as those of OpenVINO IR can."""
    from stepnet.openvino import OpenVINOModel

    return isinstance(model, OpenVINOModel)


def _names(model: OpenVINOModel) -> dict[str, str]:
    """The inputs by every name that they have: their layers', then those of the tensors."""
    if not _is_ir(model):
        return {socket.name: socket.name for socket in (*model.inputs, *model.defaults)}
    net = model.graph.net
    pairs = list(zip(model.inputs, (net.layers[i] for i in net.parameters), strict=True))
    aliases = {alias: socket.name for socket, layer in pairs for alias in layer.outputs[0].names}
    return {socket.name: socket.name for socket, _ in pairs} | {
        alias: name for alias, name in aliases.items() if alias not in {s.name for s, _ in pairs}
    }


def _read(path: Path) -> np.ndarray:
    found = _load(path)
    if not isinstance(found, np.ndarray):
        found.close()
        raise CommandError(f"{path}: holds several arrays", expected="one array, as numpy.save writes it")
    return found


def _read_all(path: Path, check: Callable[[str], None]) -> dict[str, np.ndarray]:
    """Arrays by name; those with a name that `check` refuses are not read."""
    found = _load(path)
    if isinstance(found, np.ndarray):
        raise CommandError(f"{path}: holds one array", expected="arrays by name, as numpy.savez writes them")
    with found:
        arrays = {}
        for name in found.files:
            check(name)
            try:
                _check_entry(found, name)
                arrays[name] = found[name]
            except UNREADABLE as error:
                raise _unreadable(path, error, name) from error
            if not isinstance(arrays[name], np.ndarray):
                raise CommandError(f"{path}: '{name}' is no array")
        return arrays


def _load(path: Path) -> Any:
    if path.exists() and not (path.is_file() or path.is_dir()):  # one may be waited for without end
        raise CommandError(f"{path} cannot be read: it is a pipe or a device", expected="a file")
    try:
        with path.open("rb") as file:
            _check_size(file, path.stat().st_size)
        return np.load(path, allow_pickle=False)
    except UNREADABLE as error:
        raise _unreadable(path, error) from error


def _check_entry(found: Any, name: str) -> None:
    names = set(found.zip.namelist())
    entry = found.zip.getinfo(name if name in names else f"{name}.npy")
    most = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: _DEFLATED}.get(entry.compress_type)
    if most is None:
        raise ValueError("it is compressed in a way that numpy does not write")
    with found.zip.open(entry) as file:
        _check_size(file, entry.compress_size * most)


def _check_size(file: IO[bytes], size: int) -> None:
    """Refuse an array of more numbers than can be in a file of `size` bytes: numpy makes it before it reads
    them."""
    magic = np.lib.format.MAGIC_PREFIX
    if file.read(len(magic)) != magic:
        return  # numpy says what else it is
    file.seek(0)
    version = np.lib.format.read_magic(file)
    header = _HEADERS.get(version)
    if header is None:
        raise ValueError(f"it is written in version {'.'.join(map(str, version))} of numpy's format")
    shape, _, dtype = header(file)
    needed = math.prod(shape) * dtype.itemsize
    if needed > size and not dtype.hasobject:
        raise ValueError(f"it promises {needed} bytes, {dtype} {list(shape)}, and is shorter")


def _unreadable(path: Path, error: BaseException, name: str | None = None) -> CommandError:
    where = f"{path}: '{name}'" if name else str(path)
    text = str(error).lower()
    if "pickle" in text or "object array" in text:
        return CommandError(f"{where} holds Python objects, which are never loaded", expected="numbers")
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0] if str(error) else "it is damaged"
    return CommandError(f"{where} cannot be read: {reason}", expected="an array as numpy writes it")


def _random(socket: Socket, shape: tuple[int, ...], make: torch.Generator) -> Tensor:
    if socket.dtype is None:
        raise CommandError(f"input '{socket.name}' cannot be made", got="an input that is no tensor")
    if math.prod(shape) > MOST:  # which may be no more than what a file declares
        raise CommandError(
            f"input '{socket.name}' cannot be made: it is too large",
            got=str(shape),
            expected=f"at most {MOST} numbers",
            remedy=f"--input {socket.name}=FILE.npy",
        )
    try:
        if socket.dtype.is_floating_point:
            return torch.randn(shape, generator=make).to(socket.dtype)
        return torch.randint(0, 2, shape, generator=make).to(socket.dtype)
    except RuntimeError as error:
        raise CommandError(f"input '{socket.name}' cannot be made", got=str(shape)) from error
