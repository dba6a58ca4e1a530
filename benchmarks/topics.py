"""All topics, by the name the command line knows them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import (
    attention,
    compiled_loop,
    compiled_model,
    first_call,
    kept_heap,
    kernels,
    linear_cells,
    long_sequences,
    loop_memory,
    memory,
    nested,
    onnx_models,
    onnx_written,
    openvino_ir,
    read_cost,
    recurrences,
    sequences,
    sixteen_bits,
    unpack_pack,
    warm_call,
    while_loops,
)
from .harness import Topic

TOPICS: dict[str, Topic] = {
    topic.name: topic
    for topic in (
        read_cost.TOPIC,
        unpack_pack.TOPIC,
        kernels.TOPIC,
        *recurrences.TOPICS,
        *sixteen_bits.TOPICS,
        linear_cells.TOPIC,
        sequences.RESETS,
        sequences.STREAMS,
        sequences.ONE_SEQUENCE,
        long_sequences.TIME,
        long_sequences.MEMORY,
        memory.HELD,
        memory.PEAK,
        first_call.TOPIC,
        warm_call.TOPIC,
        compiled_loop.TOPIC,
        compiled_model.TOPIC,
        while_loops.TOPIC,
        loop_memory.TOPIC,
        nested.TOPIC,
        attention.TOPIC,
        *openvino_ir.TOPICS,
        onnx_models.TOPIC,
        onnx_written.TOPIC,
        kept_heap.TOPIC,  # the last one: it changes how this process keeps memory
    )
}

# Names that stand for several topics.
GROUPS: dict[str, tuple[str, ...]] = {
    "recurrences": tuple(topic.name for topic in recurrences.TOPICS),
    "sequences": ("resets", "streams", "one_sequence", "checkpoint_time", "checkpoint_memory"),
}


def resolve(names: Sequence[str], topics: Mapping[str, Topic] = TOPICS) -> list[str]:
    """The topics meant by names of topics and groups, in the order of `topics`, then names of none.

    Where none is named: all that need no request.
    """
    if not names:
        return [name for name, topic in topics.items() if not topic.on_request]
    wanted = dict.fromkeys(topic for name in names for topic in GROUPS.get(name, (name,)))
    return [name for name in topics if name in wanted] + [name for name in wanted if name not in topics]
