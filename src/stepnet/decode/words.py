"""What both ways of decoding ask of a step and of a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from stepnet.data.arguments import brief, check_dense, function, whole
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import traced, transforms
from stepnet.data.tree import Spec, flatten, flatten_as, names, unflatten
from stepnet.errors import StepError
from stepnet.front.static import with_static
from stepnet.front.step import (
    WithStatic,
    describe_leaf,
    describe_leaves,
    own_spec,
    step_name,
    why_not_taken,
)

WordStep = Callable[..., tuple[Tensor, Any]]


def checked_state(step: WordStep, state: Any, static: Any, where: str) -> tuple[list[Tensor], Spec, int]:
    """The leaves of an initial state and of what the step sees at every word, their structure, and the
    number of sequences."""
    leaves, spec = flatten(state)
    for name, leaf in zip(names(spec, "state"), leaves, strict=True):
        if isinstance(leaf, Tensor):
            check_dense(f"{where}: {name}", leaf)
            if leaf.is_meta:
                raise StepError(
                    f"{where} goes by the numbers of scores, of which {name} leaves none",
                    got=f"{brief(leaf)}, on meta",
                    remedy="a state on the device that the step runs on",
                )
    plain = all(isinstance(v, Tensor) and not isinstance(v, LoDTensor) and v.dim() for v in leaves)
    if not leaves or not plain or len({len(v) for v in leaves}) != 1:
        raise StepError(
            f"{where}: the state must be tensors with a row per sequence",
            got=", ".join(
                f"{n} {describe_leaf(v)}" for n, v in zip(names(spec, "state"), leaves, strict=True)
            )
            or "no tensor",
            remedy="all leaves [B, ...]; a step without a state may carry torch.zeros(B, 1)",
        )
    rows = len(leaves[0])
    if static is not None:
        leaves, spec = flatten(with_static(state, static, rows, step_name(step)))
    return leaves, spec, rows


def checked_words(where: str, step: Any, bos: Any, eos: Any) -> tuple[int, int]:
    """The words that begin and end a sequence, of a step that can be called.

    Raises:
        StepError: they are no words, or it cannot; or what runs is traced, or under vmap.
    """
    if traced():
        raise StepError(
            f"{where} goes by the numbers of scores, which no graph holds",
            remedy="export or trace the step, a graph of one word for each sequence, and decode with it",
        )
    if "Vmap" in transforms():
        raise StepError(
            f"{where} goes by the numbers of scores, of which torch.vmap shows none",
            remedy="decode outside of it: all its sequences are rows of one state, [batches * B, ...]",
        )
    function(f"{where}: 'step'", step, "step(words, state) -> (scores, new_state)")
    return whole(f"{where}: 'bos'", bos), whole(f"{where}: 'eos'", eos, 0)


def scores_of(
    step: WordStep, words: Tensor, leaves: list[Tensor], spec: Spec, eos: int
) -> tuple[Tensor, list[Tensor]]:
    """One call of the step: the scores [n, V] of the next word, of 32 bits at least, for they are added up;
    and the leaves of the new state."""
    given = unflatten(spec, leaves)
    how = given if spec.kind is WithStatic else (given,)
    try:
        result = step(words.clone(), *how)  # which it may write
    except TypeError:
        _check_parameters(step, static=spec.kind is WithStatic)
        raise
    if not (isinstance(result, tuple) and len(result) == 2):
        raise StepError(
            f"step '{step_name(step)}' must return a pair (scores, new_state)",
            got=type(result).__name__,
            remedy="return scores, None where it has no state",
        )
    scores, state = result
    if not isinstance(scores, Tensor) or scores.dim() != 2 or scores.shape[0] != words.shape[0]:
        raise StepError(
            f"step '{step_name(step)}' must return a score for each word of the vocabulary",
            got=describe_leaf(scores),
            expected=f"float[{len(words)}, V]",
            remedy="the step is given a word for each sequence, and no dimension of time",
        )
    if not scores.is_floating_point():
        raise StepError(
            f"step '{step_name(step)}' must return logits or log probabilities",
            got=describe_leaf(scores),
            expected=f"float[{len(words)}, V]",
            remedy="return what the last layer gives, not the words chosen of it",
        )
    if not 0 <= eos < scores.shape[1]:
        raise StepError(
            f"eos is not in the vocabulary of step '{step_name(step)}'",
            got=f"eos={eos}, V={scores.shape[1]}",
            expected=f"0 to {scores.shape[1] - 1}",
        )
    if spec.kind is WithStatic:  # what the step set in its containers is dropped
        state = WithStatic(state, unflatten(spec, leaves).static)
    new, new_spec = flatten_as(spec, state)
    if new_spec != spec:
        raise StepError(
            f"step '{step_name(step)}' changed the structure of the state",
            got=own_spec(new_spec),
            expected=own_spec(spec),
            remedy="return a state nested as state= is, all of it at each step",
        )
    n = words.shape[0]
    if any(not isinstance(leaf, Tensor) or not leaf.dim() or leaf.shape[0] != n for leaf in new):
        raise StepError(
            f"step '{step_name(step)}' must return a state with a row per sequence",
            got=describe_leaves(own := [*names(own_spec(spec), "state")], new[: len(own)]),
            expected=f"{n} rows",
            remedy="let the step read what is alike for all, or expand it: x.expand(len(words), -1)",
        )
    return scores.float() if scores.dtype.itemsize == 2 else scores, new


def _check_parameters(step: WordStep, *, static: bool) -> None:
    """Refuse a step that does not take what it is handed at each word."""
    handed = ("words", "state", "static") if static else ("words", "state")
    if (misfit := why_not_taken(step, handed)) is not None:
        why, parameters = misfit
        raise StepError(
            f"step '{step_name(step)}' does not take what it is called with: {why}",
            got=f"{step_name(step)}{parameters}",
            expected=f"{step_name(step)}({', '.join(handed)}) -> (scores, new_state)",
            remedy="a step takes a third argument where there is static=, and only there",
        ) from None


def normaliser(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The largest score of each row, and the log of the sum of all beside it: a score without both is a log
    probability, as by `log_softmax`."""
    most = scores.amax(1, keepdim=True)
    return most, (scores - most).exp().sum(1, keepdim=True).log()
