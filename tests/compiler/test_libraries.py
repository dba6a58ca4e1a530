"""Packages that are known and installed are trusted as torch is; copies of them elsewhere are not."""

from __future__ import annotations

import importlib
import sys
import textwrap

import pytest
import torch

from stepnet.compiler.reads.reach import reach
from stepnet.compiler.reads.unchanged import words

PLANS_ON_DISK = False  # keys alone tell steps apart

SOURCE = {
    "einops": """
        import functools
        import sys

        def beneath(x, by):
            return x * by

        class Backend:
            def scaled(self, x, by):
                return beneath(x, by)

        @functools.lru_cache
        def backend(kind):
            return Backend() if "torch" in sys.modules else None

        def scale(x, by):
            return backend(type(x)).scaled(x, by)
        """,
    "beartype": """
        import functools
        import sys

        class Conf:
            __slots__ = ("modules",)

        def checked(function):
            conf = Conf()
            conf.modules = sys.modules

            @functools.wraps(function)
            def checks(*args):
                assert conf.modules and len(args) == 2
                return function(*args)

            return checks
        """,
}


@pytest.fixture(params=["site-packages", "copies"])
def packages(request, tmp_path, monkeypatch):
    folder = tmp_path / request.param
    for name, source in SOURCE.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(textwrap.dedent(source))
        for known in [known for known in sys.modules if known.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, known)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    return request.param == "site-packages", *(sys.modules[name] for name in SOURCE)


def test_what_a_library_keeps_is_its_own(packages):
    installed, einops, beartype = packages
    gain = [2.0]

    @beartype.checked
    def step(x, h):
        return einops.scale(x, gain[0]), h

    found = reach(step)
    if not installed:
        assert "sys.modules" in str(found.refused)
        return
    assert (found.refused, found.open) == (None, None)
    assert (words(found) is None) == (words(reach(lambda x, h: (x, h))) is None)
    gain[0] = 3.0
    assert reach(step).key != found.key


def test_a_library_that_somebody_changed(packages, monkeypatch):
    installed, einops, _ = packages
    if not installed:
        return
    weight = torch.ones(2)

    def step(x, h):
        return einops.scale(x, 2.0), h

    before = reach(step).key
    for owner, name in ((einops, "scale"), (einops, "beneath"), (einops.Backend, "scaled")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *args: args[-2] * weight)
            assert reach(step).key != before
            assert any(tensor is weight for tensor in reach(step).tensors)
        assert not reach(step).tensors
