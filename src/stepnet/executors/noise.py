"""The noise of a call that is differentiated again: what it drew is drawn once more, from where its generator
stood."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .call import Call


def generator_of(device: torch.device) -> torch.Generator:
    """The generator that torch's own noise comes from."""
    if device.type == "cpu":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    generators: Any = torch.cuda.default_generators
    return generators[index]


def noise_of(call: Call) -> list[Tensor] | None:
    """Each table of noise of a call, in the order in which the step draws it; None where it is lost."""
    if call.noise is not None:
        return [*call.noise]
    if call.before is None:
        return None
    device, before = call.before
    generator = generator_of(device)
    now = generator.get_state()
    try:
        generator.set_state(before)
        return call.ready.forward.draw(call.layout, device)
    finally:
        generator.set_state(now)
