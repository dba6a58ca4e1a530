"""Index tensors on a GPU: each moved there once."""

from __future__ import annotations

import torch
from torch import Tensor

from stepnet.data.modes import outside_modes
from stepnet.errors import LoopError

# By name and GPU: the tensor, and the stream that it was made on.
Kept = dict[tuple[str, int], tuple[Tensor, int]]
_OF_GRAPHS: set[Tensor] = set()  # what CUDA graphs were captured with, which read it at each replay


def moved(kept: Kept, name: str, index: Tensor, device: torch.device) -> Tensor:
    """An index on a GPU, from those kept or moved.

    Raises:
        LoopError: it is not kept, and a CUDA graph is being captured.
    """
    gpu = torch.cuda.current_device() if device.index is None else device.index
    stream, capturing = torch._C._cuda_getCurrentRawStream(gpu), torch.cuda.is_current_stream_capturing()
    found = kept.get((name, gpu))
    if found is None:
        if capturing:
            raise LoopError(
                "a CUDA graph is being captured, and the lengths of this batch are not on the GPU yet",
                got="lengths that no call had before, or none with gradients",
                remedy="make the same call once before, as torch.cuda.make_graphed_callables does",
            )
        found = kept[name, gpu] = _copy(index, device), stream
    there, made_on = found
    if capturing:
        _OF_GRAPHS.add(there)
    elif stream != made_on:  # its memory is not given away before this stream has read it
        there.record_stream(torch.cuda.current_stream(gpu))
    return there


@outside_modes
def _copy(index: Tensor, device: torch.device) -> Tensor:
    return index.to(device)
