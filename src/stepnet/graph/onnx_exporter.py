"""torch's exporter to ONNX, which has to be told how recurrences are written."""

from __future__ import annotations

import sys
from types import FrameType

import torch

from stepnet.errors import StepError

_CORE = "torch.onnx._internal.exporter._core"


def check_translated() -> None:
    """Tell that the exporter lacks our translations, where it is being run without.

    Raises:
        StepError: the exporter would say that it found no function for an operator.
    """
    core = sys.modules.get(_CORE)
    frame: FrameType | None = sys._getframe(1) if core is not None else None
    while frame is not None:
        if frame.f_code.co_filename == core.__file__ and frame.f_code.co_name == "export":  # pyright: ignore
            registry = frame.f_locals.get("registry")
            known = getattr(registry, "is_registered", None)
            if known is not None and not known(torch.ops.stepnet.run.default):
                raise StepError(
                    "torch.onnx.export has not been told how recurrences are written",
                    got="no translation of stepnet::run",
                    expected="a custom_translation_table that has it",
                    remedy="torch.onnx.export(..., custom_translation_table=stepnet.onnx.translations()); "
                    "or stepnet.onnx.save, which writes the module without torch's exporter",
                )
            return
        frame = frame.f_back
