from __future__ import annotations

import ctypes
import sys

import pytest

import signal_stack

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sigaltstack of Linux")


def test_a_stack_left_by_a_library_is_put_back():
    before = signal_stack.current()
    memory = ctypes.create_string_buffer(1 << 16)
    left = signal_stack.Stack(ctypes.addressof(memory), 0, len(memory))
    with signal_stack.kept():
        assert ctypes.CDLL(None).sigaltstack(ctypes.byref(left), None) == 0
        assert signal_stack.current().place == left.place
    assert signal_stack.current().place == before.place
