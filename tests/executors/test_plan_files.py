"""Plans on disk: found again by the same step alone, and never trusted."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import subprocess
import sys
import threading
import types
import warnings
from collections import namedtuple

import pytest
import torch

from covering import every, few
from forks import in_a_fork
from stepnet import recurrent
from stepnet.cells import GRU
from stepnet.compiler.reads import step_digest
from stepnet.compiler.reads.reach import reach
from stepnet.engine import make, plans
from stepnet.executors import cache_folder, plan_files

PLANS_ON_DISK = True  # see around_tests
OPTIMISED = False
WEIGHT = torch.randn(4, 4, dtype=torch.float64)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A folder of its own; what this process knows of plans is forgotten by `forget`."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(folder))
    forget()
    yield folder
    forget()


def forget():
    plans.forget()


@pytest.fixture
def compiled(monkeypatch):
    """The names of steps that were compiled."""
    found = []
    real = make.compile_loop

    def counted(call, signature, *rest):
        found.append(signature.name)
        return real(call, signature, *rest)

    monkeypatch.setattr(make, "compile_loop", counted)
    return found


def step(x, h):
    h = torch.tanh(x + h @ WEIGHT)
    return h, h


def run(step=step, backend="eager"):
    x = torch.randn(5, 2, 4, dtype=torch.float64, requires_grad=True)
    return recurrent(step, x, torch.zeros(2, 4, dtype=torch.float64), backend=backend)


def kept(cache):
    return sorted(cache.rglob("*.plan"))


def test_the_next_process_compiles_nothing(cache, compiled):
    run()
    assert len(kept(cache)) == 1
    forget()
    run()
    assert compiled == ["step"]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
def test_a_plan_from_disk_gives_the_same_numbers(kind, compiled):
    cell = GRU(3, 4, dtype=kind)
    x = torch.randn(6, 2, 3, dtype=kind, requires_grad=True)

    def everything():
        y, h = recurrent(cell, x, backend="c")
        return [y, h, *torch.autograd.grad(y.sum() + h.square().sum(), [x, *cell.parameters()])]

    fresh = everything()
    forget()
    again = everything()
    assert compiled == ["GRU"]
    for a, b in zip(fresh, again, strict=True):
        assert torch.equal(a, b)


def test_other_code_other_numbers_and_other_shapes_have_plans_of_their_own(cache, compiled):
    def made(factor):
        def scaled(x, h):
            return x * factor, h + x

        return scaled

    run(made(2.0))
    run(made(3.0))
    run(lambda x, h: (x * 2.0, h - x))
    forget()
    run(made(2.0))
    assert compiled == ["scaled", "scaled", "<lambda>"]
    assert len(kept(cache)) == 3


def test_another_version_of_the_package_compiles_anew(compiled, monkeypatch):
    run()
    forget()
    monkeypatch.setattr(step_digest, "_versions", lambda: "another")
    run()
    assert compiled == ["step", "step"]


def other(x, h):
    h = torch.tanh(x - h @ WEIGHT)
    return h, h


def replaced(path, data):
    """The file of a key with other bytes and the name that fits them."""
    path.unlink()
    key = path.name.partition("-")[0]
    path.with_name(f"{key}-{hashlib.sha256(data).hexdigest()}.plan").write_bytes(data)


class Evil:
    """What must never be called."""

    def __reduce__(self):
        return pytest.fail, ("code from a plan file ran",)


def test_a_wrong_plan_is_noticed_and_replaced(cache, compiled):
    """A plan of another step under this step's key, as if the key told too little."""
    run(other)
    (wrong,) = kept(cache)
    data = wrong.read_bytes()
    wrong.unlink()
    expected = run()[0].detach()
    (right,) = kept(cache)
    good = right.read_bytes()
    replaced(right, data)
    forget()
    torch.manual_seed(0)
    assert run()[0].shape == expected.shape
    assert compiled == ["other", "step", "step"]
    (again,) = kept(cache)
    assert again.read_bytes() == good


@pytest.mark.parametrize(
    "data",
    every(
        3, [b"", b"not a plan", pickle.dumps(Evil()), b"{}", b"null", b"\xff", b"[" * 100_000, b"1" * 100_000]
    ),
    ids=["empty", "text", "code", "form", "nothing", "no text", "deep", "long"],
)
def test_a_file_that_holds_no_plan_is_compiled_over(data, cache, compiled):
    run()
    (path,) = kept(cache)
    replaced(path, data)
    forget()
    run()
    assert compiled == ["step", "step"]


def test_a_text_in_a_plan_is_only_a_text(cache, compiled):
    """A right digest, and lines of the user's that would end a comment of C."""
    run(backend="c")
    (path,) = kept(cache)
    assert b"test_plan_files.py:" in path.read_bytes()
    replaced(path, path.read_bytes().replace(b"test_plan_files.py:", rb"*/\n#error evil\n/*"))
    forget()
    torch.manual_seed(0)
    y = run(backend="c")[0]
    torch.manual_seed(0)
    assert torch.equal(y, run(backend="c")[0])
    assert compiled == ["step"]


def test_a_plan_that_no_executor_could_write_is_compiled_over(cache, compiled):
    """A number that its type does not hold, where generated C writes it."""

    def counted(x, h):
        h = torch.tanh(x + (h * 9).long().remainder(5))
        return h, h

    run(counted, "c")
    (path,) = kept(cache)
    assert b'"value":5' in path.read_bytes()
    replaced(path, path.read_bytes().replace(b'"value":5', b'"value":Infinity'))
    forget()
    run(counted, "c")
    assert compiled == ["counted", "counted"]


def test_other_names_of_results_in_a_plan_are_noticed(cache):
    x, h = torch.randn(3, 2, 3), torch.zeros(2, 3)
    expected = recurrent(named, x, h, backend="eager")[0]["first"]
    (path,) = kept(cache)
    replaced(path, path.read_bytes().replace(b'"first"', b'"other"'))
    forget()
    assert torch.equal(recurrent(named, x, h, backend="eager")[0]["first"], expected)


def named(x, h):
    h = torch.tanh(x + h)
    return {"first": h}, h


def test_a_damaged_file_is_removed(cache, compiled):
    run()
    (path,) = kept(cache)
    path.write_bytes(path.read_bytes()[:-1])
    assert plan_files.read(path.name.partition("-")[0]) is None
    assert not path.exists()


def test_what_another_process_could_not_know_again_is_not_kept(cache):
    Pair = namedtuple("Pair", "a b")
    lock = threading.Lock()
    run(lambda x, h: (Pair(x, x), h + x))
    run(lambda x, h: (x * (lock is not None), h + x))
    assert kept(cache) == []
    assert reach(lambda x, h: (x * (lock is not None), h)).open is not None


def test_a_step_that_draws_noise_is_not_kept(cache):
    run(lambda x, h: (torch.nn.functional.dropout(x, 0.5), h + x))
    assert kept(cache) == []


def test_a_folder_that_takes_nothing_costs_time_only(cache, compiled, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_folder.os, "replace", full)
    plan_files.write("0" * 40, b"data")
    assert kept(cache) == []


FIRST = """
import os, torch
from stepnet import recurrent
step = lambda x, h: (x * len(os.environ["HOME"]), torch.tanh(x + h))
x = torch.randn(3, 2, 1, requires_grad=True)
recurrent(step, x, torch.zeros(2, 1), backend="eager")[0].sum().backward()
"""
DIGESTS = """
import torch
from stepnet import Recurrent, cells, nn, recurrent
from stepnet.engine import make
from stepnet.errors import Unsupported

def refuse(*_):
    raise Unsupported("only the digest is asked for")

digests = []
make.compile_loop = refuse
real = make._digest
make._digest = lambda *given: digests.append(real(*given)) or digests[-1]
x = torch.randn(3, 2, 4)
for name in ("GRU", "LayerNormLSTM"):
    Recurrent(getattr(cells, name)(4, 4))(x)
nn.LSTM(4, 4, bidirectional=True)(x)
inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))

class Base(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = inner

class Own(Base):
    factor = 2.0

    def forward(self, x, h):
        return h, torch.tanh(self.inner(x) * self.factor + h)

recurrent(Own(), x, torch.zeros(2, 4))
recurrent(lambda x, h: (h, torch.tanh(inner(x) + h)), x, torch.zeros(2, 4))
"""


CLASSES = """
import torch

class Meta(type): ...
class Scale:
    def of(self, x): return x * 2
class Other(Scale): ...
class Base(torch.nn.Module):
    @property
    def half(self): return 0.5
class Step(Base):
    factor = 2.0
    scale = Scale()
    @property
    def bias(self): return 1.0
    def helped(self, x): return x + self.bias
    def forward(self, x, h):
        if isinstance(self, torch.nn.Sequential): x = x * 3
        if type(self.scale) is Other: x = x * 5
        return x, self.helped(self.scale.of(x)) * self.factor + h * self.half
"""
SAME = {"again": ("", ""), "unread": ("self.half", "self.half\n    def unread(self): ...")}
CHANGED = {
    "an attribute": ("factor = 2.0", "factor = 3.0"),
    "a method": ("x + self.bias", "x - self.bias"),
    "a property": ("return 1.0", "return 1.5"),
    "of the base": ("return 0.5", "return 0.25"),
    "of an object": ("return x * 2", "return x * 4"),
    "another base": ("Base(torch.nn.Module)", "Base(torch.nn.Sequential)"),
    "another metaclass": ("class Scale:", "class Scale(metaclass=Meta):"),
    "another class beside": ("scale = Scale()", "scale = Other()"),
    "one of its name": ("class Other(Scale): ...", "Other = type('Scale', (), vars(Scale) | {})"),
    "a base of another name": ("Base", "Bass"),
}


def of_a_class(old, new):
    source = CLASSES.replace(old, new) if old else CLASSES
    assert not old or source != CLASSES
    module = types.ModuleType("classes_of_a_user")
    exec(compile(source, "/classes_of_a_user.py", "exec"), vars(module))
    sys.modules[module.__name__] = module
    digests = []
    with pytest.MonkeyPatch.context() as patch:
        real = make._digest
        patch.setattr(make, "_digest", lambda *given: digests.append(real(*given)) or digests[-1])
        run(module.Step().double())
    del sys.modules[module.__name__]
    return digests[0]


@pytest.mark.parametrize("change", SAME)
def test_a_class_of_the_users_is_known_again_by_what_it_holds(change):
    assert of_a_class("", "") == of_a_class(*SAME[change]) is not None


@pytest.mark.parametrize("change", few(CHANGED, [*CHANGED][::3]))
def test_a_class_that_holds_something_else_is_another_one(change):
    assert of_a_class("", "") != of_a_class(*CHANGED[change])


@pytest.mark.exhaustive  # a process that imports torch anew
def test_in_a_process_of_its_own(tmp_path, monkeypatch):
    """Its first step may read its environment. A digest does not depend on the order of sets, which each
    process has for itself."""
    (tmp_path / "made_digests.py").write_text(DIGESTS)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{FIRST}\nimport made_digests\nprint(*made_digests.digests)"],
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        digests = in_a_fork(lambda: importlib.import_module("made_digests").digests)
    assert done.stdout.split() == digests
    assert len(digests) >= 5
    assert None not in digests
