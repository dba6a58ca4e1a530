"""Ranges that a step names to torch's profiler, `with torch.profiler.record_function("attention")`. They
compute nothing: no record or trace of a step holds them."""

from __future__ import annotations

from typing import Any

import torch

_PROFILER: Any = torch.ops.profiler
# as a TorchFunctionMode is told of them
RANGES = frozenset({_PROFILER._record_function_enter_new, _PROFILER._record_function_exit._RecordFunction})
