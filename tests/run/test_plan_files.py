"""Plans on disk: found again by the same step alone, and never trusted."""

from __future__ import annotations

import hashlib
import pickle
from collections import namedtuple

import pytest
import torch

from stepnet import engine, recurrent
from stepnet.cells import GRU
from stepnet.compiler import portable, stored
from stepnet.compiler.reach import reach
from stepnet.run import plan_files

PLANS_ON_DISK = True  # see conftest
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
    engine._entries.clear()


@pytest.fixture
def compiled(monkeypatch):
    """The names of steps that were compiled."""
    found = []
    real = engine.compile_step

    def counted(call, signature, *rest):
        found.append(signature.name)
        return real(call, signature, *rest)

    monkeypatch.setattr(engine, "compile_step", counted)
    return found


def step(x, h):
    h = torch.tanh(x + h @ WEIGHT)
    return h, h


def run(step=step):
    x = torch.randn(5, 2, 4, dtype=torch.float64, requires_grad=True)
    return recurrent(step, x, torch.zeros(2, 4, dtype=torch.float64), backend="c")


def plans(cache):
    return sorted(cache.glob("*.plan"))


def test_the_next_process_compiles_nothing(cache, compiled):
    run()
    assert len(plans(cache)) == 1
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
    assert len(plans(cache)) == 3


def test_another_version_of_the_package_compiles_anew(compiled, monkeypatch):
    run()
    forget()
    monkeypatch.setattr(portable, "_versions", lambda: "another")
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
    (wrong,) = plans(cache)
    data = wrong.read_bytes()
    wrong.unlink()
    expected = run()[0].detach()
    (right,) = plans(cache)
    good = right.read_bytes()
    replaced(right, data)
    forget()
    torch.manual_seed(0)
    assert run()[0].shape == expected.shape
    assert compiled == ["other", "step", "step"]
    (again,) = plans(cache)
    assert again.read_bytes() == good


@pytest.mark.parametrize(
    "data",
    [b"", b"not a plan", pickle.dumps(Evil()), pickle.dumps(("fused", 1))],
    ids=["empty", "text", "code", "form"],
)
def test_a_file_that_holds_no_plan_is_compiled_over(data, cache, compiled):
    run()
    (path,) = plans(cache)
    replaced(path, data)
    forget()
    run()
    assert compiled == ["step", "step"]


def test_a_damaged_file_is_removed(cache, compiled):
    run()
    (path,) = plans(cache)
    path.write_bytes(path.read_bytes()[:-1])
    assert plan_files.read(path.name.partition("-")[0]) is None
    assert not path.exists()


def test_what_another_process_could_not_know_again_is_not_kept(cache):
    Pair = namedtuple("Pair", "a b")
    generator = torch.Generator()
    run(lambda x, h: (Pair(x, x), h + x))
    run(lambda x, h: (x * (generator is not None), h + x))
    assert plans(cache) == []
    assert portable.digest(reach(lambda x, h: (x * (generator is not None), h)).key) is None


def test_a_step_that_draws_noise_is_not_kept(cache):
    run(lambda x, h: (torch.nn.functional.dropout(x, 0.5), h + x))
    assert plans(cache) == []


def test_a_folder_that_takes_nothing_costs_time_only(cache, compiled, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plan_files.os, "replace", full)
    plan_files.write("0" * 40, b"data")
    assert plans(cache) == []


def test_what_is_written_is_read_back():
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    h = torch.zeros(2, 3, dtype=torch.float64)
    recurrent(lambda x, h: (x + torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), h + x), x, h)
    (entry,) = engine._entries.values()
    assert entry.compiled is not None
    data = stored.dump(entry.compiled)
    assert data is not None
    loaded = stored.load(data)
    assert loaded.fused == entry.compiled.fused
    assert loaded.y_spec == entry.compiled.y_spec
    assert hash(loaded.y_spec) == hash(entry.compiled.y_spec)
    assert [t.tolist() for t in loaded.constants.values()] == [[1.0, 2.0, 3.0]]
