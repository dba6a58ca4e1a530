"""Random models, and what is done with them: by plans and by the plain loop, which must agree.

A model is some recurrences one after or beside the other, of steps of many kinds, over ragged, dense or
packed rows, with resets, windows, states handed on and weights that are shared. It is trained, differentiated
twice, transformed, copied, changed and run in modes, each as users of torch do it.

`python -m fuzz.models [first] [count]` runs those of some seeds.
"""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

import stepnet
from stepnet import LoDTensor
from threads import at_once

from . import seeds
from .compare import same
from .model import H, Model

LENGTHS = ([3, 0, 1, 4], [1], [2], [5], [0, 0], [2, 5, 1], [3, 3], [1, 1, 2, 6], [7, 2])
# How far numbers may lie apart, where not 1e-8: torch adds gradients of weights up in bfloat16.
LOWER = {"amp": 0.2}

# ---- what is done with a model


class World:
    """A model and its inputs, the same at each time for a seed."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64):
        self.pick = random.Random(seed)
        self.model = Model(self.pick)
        self.noise = torch.Generator().manual_seed(seed)
        self.lengths = list(self.pick.choice(LENGTHS))
        self.form = self.pick.choice(["ragged", "ragged", "dense", "packed"])
        if self.form == "dense":
            self.lengths = [4] * len(self.lengths)
        if self.form == "packed":
            self.lengths = [max(1, n) for n in self.lengths]
        count = sum(self.lengths)
        self.model.to(dtype)
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(self.random(*p.shape) * 0.6)
        self.rows, self.state = self.random(count, H).to(dtype), self.random(len(self.lengths), H).to(dtype)
        self.starts = torch.rand(count, generator=self.noise) < 0.3
        self.rows.requires_grad_(self.pick.random() < 0.6)
        self.state.requires_grad_(self.pick.random() < 0.5)
        self.wanted = [*self.model.parameters(), *(t for t in (self.rows, self.state) if t.requires_grad)]

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.noise, dtype=torch.float64)

    def formed(self, rows: Tensor) -> Any:
        """Rows as sequences."""
        if self.form == "ragged":
            return LoDTensor.from_lengths(rows, [self.lengths])
        if self.form == "dense":
            return rows.view(4, len(self.lengths), *rows.shape[1:])
        return pack_sequence(list(rows.split(self.lengths)), enforce_sorted=False)

    def arguments(self, rows: Tensor, state: Tensor) -> tuple[Any, ...]:
        return self.formed(rows), state, self.formed(self.starts)

    def run(self, model: nn.Module | None = None, *, cut: bool = False) -> tuple[Tensor, ...]:
        rows, state = (self.rows.detach(), self.state.detach()) if cut else (self.rows, self.state)
        return (model or self.model)(*self.arguments(rows, state))

    def loss(self, out: Any) -> Tensor:
        """A number that all results have a part in."""
        weights = torch.Generator().manual_seed(5)
        total = torch.zeros((), dtype=torch.float64)
        for t in out:
            if t.is_floating_point():
                weight = torch.randn(t.shape, generator=weights, dtype=torch.float64)
                total = total + (t.double() * weight).sum() + 0.1 * t.double().square().sum()
        return total

    def gradients(self, out: Any, **how: Any) -> list[Tensor | None]:
        loss = self.loss(out)
        return (
            [*torch.autograd.grad(loss, self.wanted, allow_unused=True, **how)] if loss.requires_grad else []
        )


Results = list[Any]
WAYS: dict[str, Callable[[World], Results]] = {}


def way(function: Callable[[World], Results]) -> Callable[[World], Results]:
    WAYS[function.__name__] = function
    return function


@way
def trained(w: World) -> Results:
    out: Any = ()
    for _ in range(3):
        out = w.run()
        loss = w.loss(out)
        if loss.requires_grad:
            loss.backward()
        clip_grad_norm_(w.model.parameters(), 0.5)
        with torch.no_grad():
            for p in w.model.parameters():
                if p.grad is not None:
                    p.sub_(p.grad * 0.1)
    return [*out, *(t.grad for t in w.wanted)]


@way
def twice(w: World) -> Results:
    out = w.run()
    return [*out, *w.gradients(out, retain_graph=True), *w.gradients(out)]


@way
def changed(w: World) -> Results:
    kept = [t.detach().clone() for t in w.run()]
    with torch.no_grad():
        for p in w.model.parameters():
            p.mul_(-1.1)
    kept += w.run()
    for p in w.model.parameters():
        p.data = p.data.clone() * 0.5
    out = w.run()
    return [*kept, *out, *w.gradients(out)]


@way
def second(w: World) -> Results:
    out = w.run()
    first = w.gradients(out, create_graph=True)
    again = [g.square().sum() for g in first if g is not None and g.requires_grad]
    more = torch.autograd.grad(sum(again), w.wanted, allow_unused=True) if again else ()
    return [*out, *first, *more]


@way
def modes(w: World) -> Results:
    with torch.no_grad():
        kept = [*w.run()]
    with torch.inference_mode():
        kept += [t.clone() for t in w.run(cut=True)]
    out = w.run()
    return [*kept, *out, *w.gradients(out)]


@way
def amp(w: World) -> Results:
    w = World(w.pick.randrange(10**6), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = w.run()
    return [*out, *w.gradients(out)]


@way
def recomputed(w: World) -> Results:
    out: Any = checkpoint(w.run, use_reentrant=False)
    return [*out, *w.gradients(out)]


@way
def hooked(w: World) -> Results:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        out = w.run()
    return [*out, *w.gradients(out)]


@way
def transformed(w: World) -> Results:
    weights = {k: v.detach() for k, v in w.model.named_parameters()}

    def called(weights: Any, rows: Tensor) -> Any:
        return torch.func.functional_call(w.model, weights, w.arguments(rows, w.state.detach()))

    rows = w.rows.detach()
    of_weights, of_rows = torch.func.grad(lambda *a: w.loss(called(*a)), (0, 1))(weights, rows)
    stacked = {k: torch.stack([v, v * 0.5]) for k, v in weights.items()}
    many = torch.func.vmap(lambda own: called(own, rows))(stacked)
    return [*of_weights.values(), of_rows, *many]


@way
def batched(w: World) -> Results:
    out = [t for t in w.run() if t.requires_grad]
    sent = [w.random(3, *t.shape) for t in out]
    if not out:
        return []
    return [*torch.autograd.grad(out, w.wanted, sent, is_grads_batched=True, allow_unused=True)]


@way
def copied(w: World) -> Results:
    kept = [*w.run(pickle.loads(pickle.dumps(w.model)))]
    other = copy.deepcopy(w.model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.1)
    out = w.run()
    return [*kept, *w.run(other), *out, *w.gradients(out)]


@way
def threads(w: World) -> Results:
    def run(_: int) -> Results:
        out = w.run()
        return [*out, *w.gradients(out)]

    return [t for one in at_once(run, 2) for t in one]


@way
def frozen(w: World) -> Results:
    kept, w.wanted = w.wanted, []
    for t in kept:
        if t.is_leaf and w.pick.random() < 0.5:
            t.requires_grad_(False)
        else:
            w.wanted.append(t)
    out = w.run()
    flags = torch.tensor([t.requires_grad for t in out])
    return [*out, flags, *(w.gradients(out) if w.wanted else [])]


# ---- both ways


def outcome(seed: int, backend: Any) -> tuple[str, Results | Exception]:
    """What is done with the model of a seed, and what it gives, or what fails."""
    world = World(seed)
    name = random.Random(seed + 1).choice([*WAYS])
    stepnet.set_backend(backend)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return name, [None if t is None else t.detach().clone() for t in WAYS[name](world)]
    except Exception as error:
        return name, error
    finally:
        stepnet.set_backend("auto")


def difference(seed: int) -> str | None:
    """How plans and the plain loop differ."""
    (name, plain), (_, ours) = outcome(seed, "naive"), outcome(seed, "auto")
    if isinstance(plain, Exception) or isinstance(ours, Exception):
        return None if type(plain) is type(ours) else f"{name}: {ours!r}, not {plain!r}"[:1000]
    far = [
        k for k, (a, b) in enumerate(zip(ours, plain, strict=True)) if not same(a, b, LOWER.get(name, 1e-8))
    ]
    return f"{name}: {far} of {len(plain)} differ: {ours[far[0]]}, not {plain[far[0]]}" if far else None


def told(seed: int) -> str | None:
    """The same, with what the model is."""
    found = difference(seed)
    return None if found is None else f"---- seed {seed}: {World(seed).model.how}\n{found}"


if __name__ == "__main__":
    seeds.main(told, "models")
