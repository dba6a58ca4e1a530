"""Sparse constants of a file, with all of their numbers."""

from __future__ import annotations

import math

import numpy as np
from onnx import AttributeProto, GraphProto, SparseTensorProto, TensorProto, numpy_helper

from stepnet.file_model import Broken, shorten

_MOST = 1000  # zeros for each number that a file holds: what is allocated stays in proportion to the file


def fill_in(graph: GraphProto, where: str) -> None:
    """Put tensors with all numbers in the place of sparse constants, those of graphs inside among them.

    Raises:
        IRError: one has places that it has not, or hardly any numbers for its size.
    """
    for sparse in graph.sparse_initializer:
        graph.initializer.append(_filled(sparse, where))
    del graph.sparse_initializer[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                dense = _filled(attribute.sparse_tensor, where)
                attribute.CopyFrom(AttributeProto(name="value", type=AttributeProto.TENSOR, t=dense))
            elif attribute.type == AttributeProto.GRAPH:
                fill_in(attribute.g, where)


def _filled(sparse: SparseTensorProto, where: str) -> TensorProto:
    where = f"{where}: sparse constant '{shorten(sparse.values.name)}'"
    for part, name in ((sparse.values, "numbers"), (sparse.indices, "places")):
        if part.data_location == TensorProto.EXTERNAL:
            what = f"{where}: its {name} stand in another file"
            raise Broken(what, got="external data", expected="numbers in the model's own")
    sizes, numbers = list(sparse.dims), numpy_helper.to_array(sparse.values)
    places = numpy_helper.to_array(sparse.indices)
    count = numbers.shape[0] if numbers.ndim == 1 else -1
    if min(sizes, default=0) < 0 or math.prod(sizes) > _MOST * max(count, 1):
        raise Broken(
            f"{where}: has {max(count, 0)} numbers for its size",
            got=sizes,
            expected=f"one number at least in {_MOST}",
        )
    if places.shape not in ((count,), (count, len(sizes))) or places.dtype != np.int64:
        expected = f"int64[{count}] or int64[{count}, {len(sizes)}]"
        raise Broken(f"{where}: its places are of another shape", got=list(places.shape), expected=expected)
    most = np.array(sizes if places.ndim == 2 else [math.prod(sizes)])
    if ((places < 0) | (places >= most)).any():
        raise Broken(f"{where}: has a place outside of its size", got=int(places.max()), expected=sizes)
    dense = np.zeros(sizes, numbers.dtype)
    if places.ndim == 2:
        dense[tuple(places.T)] = numbers
    else:
        dense.reshape(-1)[places] = numbers
    return numpy_helper.from_array(dense, sparse.values.name)
