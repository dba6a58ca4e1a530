"""What a run of a loop depends on: its key, and the tensors that its body reads.

Most bodies are closed: a walk over what they reach tells all that their code can read
(`compiler.reads.reach`). One that is open, because it looks names up by itself or reads what no walk sees
into, is recorded on a few rows at every call (`compiler.trace.record`): what it did is its key.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import itertools
from collections.abc import Sequence, Set
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.compiler.passes.rowwise_probe import ROWS
from stepnet.compiler.reads.code_facts import Facts, line_that_sets, words
from stepnet.compiler.reads.followed_numbers import Uses
from stepnet.compiler.reads.imports import after_imports
from stepnet.compiler.reads.numbers import but_for_numbers
from stepnet.compiler.reads.put_back import Held, places_of, plain, put_back
from stepnet.compiler.reads.reach import Reach
from stepnet.compiler.reads.undo import Snapshot, is_only_thread, undone
from stepnet.compiler.reads.walk_state import END
from stepnet.compiler.reads.walk_torch_modules import OF_BACKWARD_HOOKS
from stepnet.compiler.rewritten.inner_loops import MOST, inner_loops, too_long
from stepnet.compiler.trace.draws import kept
from stepnet.compiler.trace.iteration import code_of, iteration, reached
from stepnet.compiler.trace.record import Record, has_own_backward, record
from stepnet.compiler.trace.set_aside import without_hooks, without_modes
from stepnet.data.bounded_cache import Bounded
from stepnet.data.modes import FOUND_AGAIN, Around, casts_let_go, draws_put_back
from stepnet.data.offsets import OF_EACH_SEQUENCE
from stepnet.errors import LoDError, StepnetError, Unsupported
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop
from stepnet.user_line import Line, line_in, raised_at
from stepnet.watchers import during

from .cached_parametrizations import NOTHING, Cached, cached_here
from .calls_in_progress import is_called_elsewhere
from .failures import told
from .rows import Sequences, samples
from .varying_numbers import Did, Following, Inputs, Steps, inputs_of, varying


class ReadsChanged(Unsupported):
    """Another thread changed what the step reads while a plan was made of it."""

    def __init__(self) -> None:
        super().__init__(
            "another thread changed what the step reads while it was compiled",
            remedy="change it between calls, or backend='naive'",
        )


class ChangesObjects(Unsupported):
    """The step changes objects as it runs."""


# Steps that changed objects as they were tried: how often they were met since, and why they have no plan.
# Those that are tried once more.
_changing: dict[int, tuple[int, Unsupported]] = {}
_once_more: dict[int, int] = {}
_RARELY = 256


def note_changing(found: Reach, names: frozenset[str]) -> Unsupported:
    """From now on take steps that read the same, but for what a step counts and collects, to change it.

    Args:
        found: what such a step reads.
        names: by which it changed what its objects hold.
    """
    if len(_changing) + len(_once_more) > 10_000:
        forget_changing()
    like, refusal = but_for_counts(found), _changes(found, names)
    _changing[like] = _once_more.pop(like, 0), refusal
    return refusal


def forget_changing() -> None:
    """Take no step to change objects until it does."""
    _changing.clear()
    _once_more.clear()


def why_changing(found: Reach, step: Any) -> Unsupported | None:
    """Why a step that is known to change objects has no plan. It is tried again from time to time, ever more
    rarely, and not while another thread is in a call of it."""
    like = but_for_counts(found) if _changing else None
    if like not in _changing:
        return None
    met, refusal = _changing[like]
    if is_called_elsewhere(step):
        return refusal
    met += 1
    _changing[like] = met, refusal
    if met & (met - 1) and met % _RARELY:
        return refusal
    _once_more[like] = _changing.pop(like)[0]
    return None


def _changes(found: Reach, names: frozenset[str]) -> Unsupported:
    """Why there is no plan: the first attribute that its code sets, where it was one."""
    what, line, more = "a list, a counter", None, ""
    for code in (item.code for item in found.key if type(item) is Facts and not names.isdisjoint(item.sets)):
        if (at := line_that_sets(code, names)) is not None:
            what, line = f"it sets .{at[0]}", Line(code.co_filename, at[1]).short
            more = "assign to local names, not to attributes: what the next step needs is state; "
            break
    return ChangesObjects(
        f"the step changes Python objects as it runs ({what}): a compiled loop would not",
        remedy=f"{more}return what is collected as part of y, or backend='naive'",
        line=line,
    )


def but_for_counts(found: Reach) -> int:
    """What a step reads without numbers, but for attributes that none of its code sets, and without how many
    there are of anything."""
    sets = {END}.union(*(item.sets for item in found.key if type(item) is Facts))
    told = [
        now if type(now) is Facts else (before, now)
        for before, now in itertools.pairwise(found.key)
        if type(now) in _NO_COUNTS or (type(now) is int and type(before) is str and before not in sets)
    ]
    return hash((found.key[0], frozenset(told)))


_NO_COUNTS = (bool, str, NoneType, Facts)


class FailsOnSamples(Unsupported):
    """The step failed on sample rows. Mostly the plain loop does on the caller's, and tells it."""

    def __init__(self, error: Exception) -> None:
        first = error.__cause__ or error
        text = str(first) if isinstance(first, StepnetError) else told(first)
        line = raised_at(first)
        ragged = f"{OF_EACH_SEQUENCE}; " if isinstance(first, LoDError) else ""
        super().__init__(
            f"the step fails on sample rows: {text.splitlines()[0]}",
            remedy=f"{ragged}a step is tried on rows of its own and other numbers of sequences: let it take "
            "those (x_t.shape[0] is their number); backend='naive' accepts that, without a warning",
            line=None if line is None else line.short,
        )
        self.error = error
        inner: BaseException | None = error
        while inner is not None:  # it is kept, and the frames it came by hold tensors
            inner = inner.with_traceback(None).__cause__ or inner.__context__

    def error_anew(self) -> Exception:
        """One like the error, to be raised: what is raised holds the frames it came by."""
        made = type(self.error).__new__(type(self.error), *self.error.args)
        made.__dict__.update(self.error.__dict__)
        return made


_CACHE = functools._lru_cache_wrapper
_long: set[Any] = set()  # code of open steps with long recurrences inside, not recorded at each call
# Of while loops with a condition for each row, by the code of the step.
_inner_steps = Bounded[Any, int](10_000)


def steps_of_inner_loops(reads: Reads, seen: int = 0) -> int:
    """How many steps of a while loop in a body are unrolled: those that runs needed before, or more than were
    seen on sample rows; 0 if they are too many."""
    root = reads.root
    if root not in _inner_steps and seen:
        _inner_steps[root] = min(MOST, max(_FEW, 1 << (seen + 1).bit_length()))
    return _inner_steps.get(root, _FEW)


def more_inner_steps(reads: Reads) -> None:
    """Unroll more of them from now on."""
    now = steps_of_inner_loops(reads)
    _inner_steps[reads.root] = 2 * now if now < MOST else 0


_FEW = 4


class Reads(NamedTuple):
    """`key` identifies all that the step's Python reads; `tensors` are read anew at each call; the loop's
    invariants are among them.

    `open` tells why the step was recorded, None for a closed one; `answers`, what its Python then asked of
    tensors. `refusal`: why there is no key. `inputs`: numbers of Python's that the plan is given as tensors,
    the last of them; `walked`: the key of all that a step reads that has such, these numbers, too. `cached`:
    what it reads that a block of `parametrize.cached()` around keeps.
    """

    reach: Reach
    key: tuple[Any, ...]
    tensors: list[Tensor]
    open: str | None = None
    refusal: Unsupported | None = None
    answers: Sequence[Any] = ()
    inputs: Inputs | None = None
    walked: tuple[Any, ...] = ()
    cached: Cached = NOTHING

    @property
    def whole(self) -> tuple[Any, ...]:
        """What tells all that the step reads, but for the numbers of tensors."""
        return self.walked or self.key

    @property
    def read(self) -> list[Tensor]:
        """The tensors that the step reads itself."""
        return self.tensors if self.inputs is None else self.tensors[: -len(self.inputs.tensors)]

    @property
    def files(self) -> frozenset[str]:
        """The source files of the step's own functions."""
        return self.reach.files

    @property
    def code(self) -> tuple[Any, ...]:
        """All code and classes among what the step reads, without the values."""
        return tuple(item for item in self.reach.key if isinstance(item, (Facts, type)))

    @property
    def root(self) -> Any:
        """What is the same for all steps that one piece of source makes."""
        return self.reach.key[0]


def looks(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """What plans depend on of tensors that a step reads, but for their numbers."""
    return tuple([(type(t), t.shape, t.dtype, t.requires_grad, t.device) for t in tensors])


def looks_of_rows(tables: Sequence[Tensor]) -> tuple[Any, ...]:
    """The same of tables of rows."""
    return tuple([(t.shape[1:], t.dtype, t.requires_grad, t.device) for t in tables])


def settings() -> tuple[Any, ...]:
    """What plans depend on of what is set around a call."""
    return torch.is_grad_enabled(), *Around.now()


def read_anew(reads: Reads, loop: Loop, rows: Sequences) -> Reach | None:
    """What a walk finds now; None if a run depends on something else by now than the numbers of tensors."""
    if reads.open is None:
        now = reached(loop)
        same = now.key == reads.reach.key
    else:
        again = read(loop, rows.x_rows, rows.states, rows.shared)
        now, same = again.reach, again.refusal is None and again.whole == reads.whole
    return now if same and looks(now.tensors) == looks(reads.reach.tensors) else None


def closed(found: Reach, tensors: list[Tensor]) -> Reads:
    """What a step reads of which all is found. Which of it is one tensor is part of the key: an invariant may
    be what the step reads, too, and a derivative holds the tensors that it moves along."""
    first: dict[int, int] = {}
    places = ((i, first.setdefault(id(t), i)) for i, t in enumerate(tensors))
    key = "reach", *found.key, *((i, k) for i, k in places if i != k)
    return Reads(found, key, tensors, cached=cached_here(tensors))


def read(
    loop: Loop, x: Sequence[Tensor], states: Sequence[Tensor], shared: Sequence[Tensor], lifts: bool = True,
    walked: Reach | None = None,
) -> Reads:  # fmt: skip
    """What a run depends on.

    Args:
        loop: the loop.
        x, states: tables of rows, or a few rows of them.
        shared: the values of its invariants.
        lifts: whether numbers of Python's may be inputs.
        walked: what the body was just found to reach.
    """
    known = [walked]

    def attempt() -> Reads:  # another one comes after an import, and sees more
        found = known.pop() if known else None
        return _read(loop, reached(loop) if found is None else found, x, states, shared, lifts)

    return after_imports(attempt)


def _read(
    loop: Loop, found: Reach, x: Sequence[Tensor], states: Sequence[Tensor], shared: Sequence[Tensor],
    lifts: bool,
) -> Reads:  # fmt: skip
    if found.uncached and found.refused is None:
        found = _cached(loop, found)
    tensors = [*found.tensors, *shared]
    if found.refused is not None:
        return Reads(found, (), tensors, refusal=Unsupported(found.refused))
    if found.open is None:
        if found.complete:
            known = closed(found, tensors)
            like = varying(known.key) if lifts else None
            return known if like is None else _lifted(loop, known, like, x, states, shared)
        found.open = "more objects, or larger arrays, than a key can hold"
    if (changes := why_changing(found, code_of(loop).function)) is not None:
        return Reads(found, (), tensors, refusal=changes)
    made = _recorded(loop, found, x, states, shared)
    if isinstance(made, Unsupported):
        return Reads(found, (), tensors, found.open, made)
    walked = ("record", *found.beneath, *made.key, *(number.coded for number in made.numbers))
    how = {"answers": made.answers, "walked": walked, "cached": cached_here(found.tensors)}
    known = Reads(found, walked, made.tensors, found.open, **how)
    if not lifts:
        return known
    key, inputs = inputs_of(("record", *found.beneath, *made.key), made.numbers, _device(x, states))
    tensors = made.tensors if inputs is None else [*made.tensors, *inputs.tensors]
    return known._replace(key=key, tensors=tensors, inputs=inputs)


def _cached(loop: Loop, found: Reach) -> Reach:
    """What a step reads in a block of `parametrize.cached()`, which keeps what its first iteration would make
    of parameters."""
    if not found.names.isdisjoint(_SETS_MODES):
        found.refused = "it sets a mode, and may be the first to read what parametrize.cached() keeps"
        return found
    try:
        for module, name in found.uncached:
            getattr(module, name)
    except Exception as error:
        let_through(error)
        found.refused = f"what parametrize.cached() is to keep cannot be made: {type(error).__name__}"
        return found
    return reached(loop)


def asks_for_gradients(names: Set[str], batched: bool) -> bool:
    """Whether a step may ask tensors whether they want a gradient: what torch.func's transforms make of them
    tells it otherwise. Where those are `batched`, torch leaves out hooks of modules, too."""
    return not names.isdisjoint(_OF_GRADIENTS) or (batched and not names.isdisjoint(OF_BACKWARD_HOOKS))


_OF_GRADIENTS = words("requires_grad grad_fn is_leaf register_hook retain_grad")
_SETS_MODES = words("no_grad enable_grad set_grad_enabled inference_mode autocast")


def _lifted(
    loop: Loop, known: Reads, like: Steps, x: Sequence[Tensor], states: Sequence[Tensor],
    shared: Sequence[Tensor],
) -> Reads:  # fmt: skip
    """What a run of a closed step depends on, whatever its numbers are."""
    # Python may ask rows for it
    around = looks_of_rows((*x, *states)), looks(known.tensors), settings()
    did = like.recorded.get((known.key, *around))
    following = None
    if did is None and like.places:
        following, did = _followed(like, known.reach.key, around)
    if did is None or not (following is None or following.proved):
        made = _recorded(loop, known.reach, x, states, shared)
        places = {id(t): at for at, t in enumerate(known.tensors)}
        if isinstance(made, Unsupported) or not all(id(t) in places for t in made.tensors):
            like.lifts = isinstance(made, FailsOnSamples)  # for this number
            return known
        used = tuple([places[id(t)] for t in made.tensors])
        key = "numbers", known.reach.beneath, but_for_numbers(known.key), used, made.key
        foretold, did = did, Did(key, made.numbers)
        if reached(loop).key != known.reach.key:  # another thread changed it meanwhile
            return known
        if is_only_thread():
            like.recorded[(known.key, *around)] = did
            if following is None or foretold is None:
                _follow(loop, known.reach, like, around, did, made, (x, states, shared))
            elif foretold.coded == did.coded:
                following.proved = True
            else:
                following.uses.failed = True
    key, inputs = inputs_of(did.key, did.numbers, _device(x, states))
    if inputs is None:
        return known
    tensors = [*known.tensors, *inputs.tensors]
    return known._replace(key=key, tensors=tensors, inputs=inputs, walked=known.key)


def _followed(like: Steps, key: Sequence[Any], around: Any) -> tuple[Following | None, Did | None]:
    """What a step does that reads this, where numbers were followed through it."""
    values = [plain(key[at]) for at in like.places]
    for following in like.followed.get((_but_for(key, like.places), *around), ()):
        if not following.uses.failed and (did := following.with_(values)) is not None:
            return following, did
    return None, None


def _follow(
    loop: Loop, found: Reach, like: Steps, around: Any, did: Did, made: Record,
    given: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
) -> None:  # fmt: skip
    """Follow the numbers that have changed since a plan was made through one more run of the step."""
    like.tries += 1
    looks_at_more = made.answers or has_own_backward(made.key) or any(map(_tells_classes, found.key))
    if looks_at_more or like.tries > _MOST_TRIES:
        return
    then = next(iter(like.planned))
    first = dataclasses.replace(found, key=then[1 : 1 + len(found.key)])
    held = places_of(first, functools.partial(reached, loop))
    if held is None:
        return
    like.places = tuple(sorted({*held, *like.places}))
    values = [plain(found.key[at]) for at in like.places]
    of = like.followed.setdefault((_but_for(found.key, like.places), *around), [])
    if held.keys() != {*like.places}:
        return
    uses = Uses()
    stands = zip(like.places, uses.follow(values), strict=True)
    again = _recorded(loop, found, *given, uses, [held[at]._replace(value=value) for at, value in stands])
    uses.failed |= isinstance(again, Unsupported) or not _same(again, made)
    of.append(Following(did, uses))


def _same(again: Record, made: Record) -> bool:
    told = [(record.key, [number.coded for number in record.numbers]) for record in (again, made)]
    tensors = [[*map(id, record.tensors)] for record in (again, made)]
    return not again.answers and told[0] == told[1] and tensors[0] == tensors[1]


def _tells_classes(item: Any) -> bool:
    """Whether code may ask for the very class of a number."""
    return type(item) is Facts and not item.trusted and (item.reads_class or "type" in item.globals)


def _but_for(key: Sequence[Any], places: Sequence[int]) -> tuple[Any, ...]:
    """A key without the numbers at some places; their types stay."""
    without = list(key)
    for at in places:
        without[at] = type(plain(key[at]))
    return tuple(without)


_MOST_TRIES = 16


def _device(*rows: Sequence[Tensor]) -> torch.device:
    return next((t.device for part in rows for t in part), torch.device("cpu"))


def _recorded(
    loop: Loop, found: Reach, x: Sequence[Tensor], states: Sequence[Tensor], shared: Sequence[Tensor],
    uses: Uses | None = None, places: Sequence[Held] = (),
) -> Record | Unsupported:  # fmt: skip
    """What a step does on sample rows, or why that is not known. `uses`: gets what it does with numbers that
    are followed; `places`: what stands for these."""
    rows = samples(x, ROWS), samples(states, ROWS)
    return contextvars.copy_context().run(_record, loop, found, rows, shared, uses, places)


def _record(
    loop: Loop, found: Reach, rows: tuple[list[Tensor], list[Tensor]], shared: Sequence[Tensor],
    uses: Uses | None, places: Sequence[Held],
) -> Record | Unsupported:  # fmt: skip
    """The same, of rows that are samples; what it changes is undone."""
    if found.key[0] in _long:
        return too_long()
    whole = reached(loop, everything=True)
    if whole.refused is not None:
        return Unsupported(whole.refused)

    def run() -> tuple[Any, list[Any]]:
        with put_back(places):
            spec, y, new = iteration(loop, *rows, shared)
        return spec, [*y, *new]

    def attempt(_: Snapshot) -> Record | Unsupported:
        try:
            most = _inner_steps.get(found.key[0], _FEW)
            with (
                draws_put_back(),
                without_hooks(),
                without_modes(),
                casts_let_go(),
                inner_loops(most, line_in(found.files)) as loops,
                kept(found.generators),
                during(FOUND_AGAIN, True),
            ):
                made = record(run, [*rows[0], *rows[1]], uses)
            if loops.too_long is not None:
                if len(_long) > 10_000:
                    _long.clear()
                _long.add(found.key[0])
                raise loops.too_long.fresh()
        except Unsupported as refusal:
            return refusal
        except Exception as error:
            let_through(error)
            return FailsOnSamples(error)
        return made

    caches = [(held, held.cache_info().currsize) for held in whole.holders if type(held) is _CACHE]
    made, changes = undone(whole.holders, found.key[0], attempt)
    if changes is None and any(held.cache_info().currsize > size for held, size in caches):
        # what they keep now is seen by one more walk, and whether a run changes it by one more
        made, changes = undone(reached(loop, everything=True).holders, found.key[0], attempt)
        for held, size in caches if changes is not None else ():
            if not size:
                held.cache_clear()
    if changes is not None and not isinstance(made, Unsupported):
        return note_changing(found, changes)
    return made
