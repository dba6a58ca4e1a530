"""The C of scans, built: forward and backward together where they share one core."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from . import build as c_build
from . import few_rows as c_few
from . import threads as c_threads
from .library_calls import headers
from .memory import comparison
from .numbers import OF_LIBM
from .products import BY_DTYPE
from .source import Source, text_of_part
from .text import without_comments


class Code(NamedTuple):
    """The C of a scan, and its function."""

    source: Source
    run: Callable[..., None]
    address: int

    @classmethod
    def of(cls, source: Source, library: c_build.Library) -> Code:
        run = library.function("run", ctypes.POINTER(c_threads.Pool), ctypes.c_void_p)
        return cls(source, run, ctypes.cast(run, ctypes.c_void_p).value or 0)


def codes(sources: Sequence[Source]) -> list[Code]:
    """By as many compilers at a time as there are threads: where there is one, it builds all at once."""
    if not sources:  # of a step without a state
        return []
    parts, threads = [_part([source]) for source in sources], torch.get_num_threads()
    if threads == 1 or len(parts) == 1:
        libraries = c_build.build_together(
            parts, lambda chosen: _part([sources[at] for at in chosen], chosen)
        )
    else:
        with ThreadPoolExecutor(min(threads, len(parts))) as pool:
            alone = pool.map(lambda part: c_build.build(part.source, *part.linked, libm=part.libm), parts)
            libraries = [*alone]
    comparison()
    c_few.library()
    return [Code.of(source, library) for source, library in zip(sources, libraries, strict=True)]


def _part(sources: Sequence[Source], numbers: Sequence[int] = ()) -> c_build.Part:
    """What is compiled of scans; names of their own end in these numbers, where there are several."""
    programs = [source.program for source in sources]
    products = {
        BY_DTYPE[p.value(name).dtype].suffix for p in programs for name in p.matrices if name not in p.by_row
    }
    suffixes = sorted(products.union(BY_DTYPE[p.real].sums for p in programs))
    texts = [without_comments(source.text) for source in sources]
    if numbers:
        texts = [text_of_part(text, number) for text, number in zip(texts, numbers, strict=True)]
    head = c_build.preamble(*suffixes, linked=True) + headers(programs)
    libm = any(node.op in OF_LIBM for p in programs for node in p.nodes)
    return c_build.Part(head + "".join(texts), tuple(suffixes), libm)
