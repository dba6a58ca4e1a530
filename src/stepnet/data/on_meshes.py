"""Tensors that are spread over processes, torch's DTensors: what ops take together with them."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def on_mesh_of(values: Tensor, index: Tensor) -> Tensor:
    """An index that each process has, as an op takes it together with `values`."""
    mesh: Any = getattr(values, "device_mesh", None)
    if mesh is None or hasattr(index, "device_mesh"):
        return index
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(index.to(values.device), mesh, [Replicate()] * mesh.ndim, run_check=False)


def whole_along(tensor: Tensor, axis: int) -> Tensor:
    """A tensor that is not spread along an axis: torch takes no other one apart there."""
    if type(tensor) is Tensor:
        return tensor
    placements: Any = getattr(tensor, "placements", ())
    if not any(each.is_shard(axis) for each in placements):
        return tensor
    from torch.distributed.tensor import Replicate

    spread: Any = tensor
    return spread.redistribute(placements=[Replicate() if p.is_shard(axis) else p for p in placements])
