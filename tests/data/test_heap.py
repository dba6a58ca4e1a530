"""Memory of tables: used again when nobody holds it, and only then."""

import copy
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stepnet
from covering import examples
from stepnet.data import heap
from stepnet.executors.c import new_tables

SHAPE, DTYPE = (512, 256), torch.float32


@pytest.fixture(autouse=True)
def _nothing_kept():
    heap.give_back()
    yield
    heap.give_back()


HOLDERS = {
    "itself": lambda t: t,
    "a view": lambda t: t[5:6],
    "another type": lambda t: t.view(torch.int32),
    "a copy that shares": copy.copy,
    "its storage": lambda t: t.untyped_storage(),
    "numpy": lambda t: t.numpy()[3:],
    "a buffer": lambda t: memoryview(t.numpy()),
    "a capsule": lambda t: t.__dlpack__(),
    "a lazy clone": torch._lazy_clone,  # pyright: ignore[reportPrivateImportUsage]
}
CHANGES = {
    "shared with processes": lambda t: t.share_memory_(),
    "let go": lambda t: t.untyped_storage().resize_(0),
    "grown": lambda t: t.resize_(4096, 256),
}


@pytest.mark.parametrize("how", HOLDERS | CHANGES)
def test_what_is_held_or_changed_is_not_used_again(how):
    table = heap.new_table(SHAPE, DTYPE)
    at = table.data_ptr()
    held = HOLDERS[how](table) if how in HOLDERS else CHANGES[how](table)
    if how in CHANGES:
        held = None
    del table
    again = heap.new_table(SHAPE, DTYPE)
    assert again.untyped_storage().nbytes() == again.nbytes
    assert not again.is_shared()
    assert how in CHANGES or held is not None
    assert how in CHANGES or again.data_ptr() != at


def test_memory_of_one_size_and_of_somewhat_more():
    at = heap.new_table((600, 256), DTYPE).data_ptr()
    assert heap.new_table(SHAPE, DTYPE).data_ptr() != at  # a caller's has no more than it needs
    assert heap.new_table((128, 256), DTYPE, shown=False).data_ptr() != at
    assert heap.new_table((300, 512), torch.float32).data_ptr() == at
    assert heap.new_table((590, 128), torch.float64, shown=False).data_ptr() == at


def test_no_more_is_kept_than_was_said(monkeypatch):
    monkeypatch.setattr(heap, "_ALL", 1 << 21)
    for rows in range(512, 560):
        heap.new_table((rows, 256), DTYPE)
    assert sum(storage.nbytes() for storage in heap._kept.values()) <= 1 << 21
    monkeypatch.setattr(heap, "_MANY", 2)
    heap.new_table((700, 256), DTYPE)
    assert len(heap._kept) <= 2


def test_memory_of_earlier_turns_is_forgotten():
    heap.forget_older()
    for rows in (512, 600, 600, 700):
        at = heap.new_table((rows, 256), DTYPE).data_ptr()
        heap.forget_older()
    assert [address for address in heap._kept if address] == [at]


def test_threads_have_memory_of_their_own():
    wrong = []

    def work(number: int) -> None:
        for _ in range(200):
            tables = [heap.new_table(SHAPE, DTYPE, shown=False).fill_(number) for _ in range(3)]
            if not all(bool((table[::64] == number).all()) for table in tables):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.sampled_from(["run", "backward", "drop"]), st.integers(0, 3)), max_size=12))
def test_any_order_of_runs_and_gradients(turns):
    """Tables as small as can be are used again: each result and each gradient stays what it was."""
    net = stepnet.nn.LSTM(3, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_tables, "KEPT", 1)
        patch.setattr(heap, "KEPT", 1)
        alive: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        for turn, k in turns:
            if turn == "run" or not alive:
                x = torch.randn(5, 2 + k % 2, 3, requires_grad=True)
                y = net(x)[0]
                alive.append((x, y, y.detach().clone()))
            elif turn == "backward":
                x, y, _ = alive.pop(k % len(alive))
                own = x.detach().requires_grad_()
                (found,) = torch.autograd.grad(y.square().sum(), x)
                reference = torch.nn.LSTM(3, 4)
                reference.load_state_dict(net.state_dict())
                (expected,) = torch.autograd.grad(reference(own)[0].square().sum(), own)
                torch.testing.assert_close(found, expected)
            else:
                alive.pop(k % len(alive))
            for _, y, was in alive:
                assert torch.equal(y, was)
