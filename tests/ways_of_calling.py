"""A model from a file, called so that its graph is run in every way that it has."""

from __future__ import annotations

import pickle

import torch


def altered(value):
    """Other numbers of the same kind; whole numbers, which may be places, stay."""
    if isinstance(value, list):
        return [altered(item) for item in value]
    if value is None or not value.is_floating_point():
        return value
    return (value.flip(-1) if value.dim() else value) * 0.5


def called(model, values, *, pickled=True):
    """What a model gives: node by node; after other numbers were noted; perhaps of a pickled twin."""
    yield model(*values)
    model(*map(altered, values))
    yield model(*values)
    if pickled:
        yield pickle.loads(pickle.dumps(model))(*values)


def functions(graph):
    """How many functions a graph of a model has."""
    return sum(len(ways or ()) for ways in graph._prepared._functions.values())


def as_nodes(model, values):
    """What the nodes of a model give, one by one."""
    graph = model.graph
    around = {key: getattr(model, name) for key, name in getattr(model, "_constants", {}).items()}
    around = around or {slot: getattr(graph, name) for slot, name in getattr(graph, "constant_slots", ())}
    return graph.plainly([torch.as_tensor(value) for value in values], around, None)
