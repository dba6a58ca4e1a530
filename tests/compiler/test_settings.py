"""What a step's Python asks torch of settings and modes, by whatever name it has the function that tells."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from outcomes import as_the_plain_loop, same
from stepnet.api import recurrent
from stepnet.errors import Unsupported
from tables import holds

BACKEND = "eager"
X, H = torch.arange(12.0).reshape(3, 2, 2), torch.zeros(2, 2)


@contextlib.contextmanager
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@contextlib.contextmanager
def rounded():
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


@contextlib.contextmanager
def unfilled():
    setting: Any = torch.utils.deterministic
    setting.fill_uninitialized_memory = False
    yield
    setting.fill_uninitialized_memory = True


ASKED = {
    "from torch import get_num_threads as f": ("f() == 2", two_threads),
    "from torch import get_float32_matmul_precision as f": ("f() == 'medium'", rounded),
    "from torch.backends.cuda import flash_sdp_enabled as f": (
        "not f()",
        lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ),
    "from torch import is_inference_mode_enabled as f": ("f()", torch.inference_mode),
    "from torch import is_autocast_enabled as f": ("f('cpu')", lambda: torch.autocast("cpu")),
    "from torch._C import _len_torch_function_stack as f": ("f() > 0", lambda: torch.device("cpu")),
    "from torch.backends import cudnn as b": (
        "b.benchmark",
        lambda: torch.backends.cudnn.flags(benchmark=True),
    ),
    "import torch.utils.deterministic as b": ("not b.fill_uninitialized_memory", unfilled),
    "from gc import isenabled as f": ("f()", contextlib.nullcontext),
    "import torch": (
        "torch.sparse.check_sparse_tensor_invariants.is_enabled()",
        torch.sparse.check_sparse_tensor_invariants,
    ),
    "import torch.nn.utils.parametrize as p": ("p._cache_enabled", torch.nn.utils.parametrize.cached),
}


def asking(before, asked, more=""):
    names = {}
    exec(
        f"{before}\nimport torch\n"
        f"def step(x, h):\n    h = h + x * (5.0 if {asked} else 1.0){more}\n    return h, h",
        names,
    )
    return names["step"]


def test_a_setting_is_asked_for_at_each_call_or_by_the_plain_loop():
    def law(before, asked, around):
        step = asking(before, asked)
        for context in (contextlib.nullcontext, around, contextlib.nullcontext):
            with context(), contextlib.suppress(Unsupported):
                ours, plain = (recurrent(step, X, H, backend=backend) for backend in (BACKEND, "naive"))
                same(ours, plain)

    holds(law, {before: (before, *case) for before, case in ASKED.items()})


def test_whether_gradients_are_on_is_told_where_no_row_wants_one():
    # noise: nothing holds the plan against the plain loop
    noisy = asking("", "torch.is_grad_enabled()", " + 0 * torch.rand_like(x)")
    y, _ = recurrent(noisy, X, H, backend=BACKEND)
    assert torch.equal(y, 5 * X.cumsum(0))

    def differentiates(x, h):
        guess = x.detach().requires_grad_()
        (found,) = torch.autograd.grad((guess * h).tanh().sum(), guess)
        return found, h + x

    as_the_plain_loop(differentiates, X.double(), H.double(), BACKEND)


def test_a_result_that_wants_a_gradient_for_what_the_step_makes():
    def leaf(x, h):
        guess = x.detach().requires_grad_()
        return h + guess, h + x

    with pytest.raises(Unsupported, match="for tensors alone that the step makes"):
        recurrent(leaf, X, H, backend=BACKEND)
