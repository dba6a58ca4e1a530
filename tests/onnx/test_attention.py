"""Attention of ONNX files beside torch's own; and places of one number."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

parser = pytest.importorskip("onnx").parser
pytest.importorskip("onnx_ir")
import stepnet.onnx  # noqa: E402
from stepnet.errors import IRError  # noqa: E402


@pytest.fixture
def run(tmp_path):
    """What a graph gives for its inputs."""

    def call(text, *inputs):
        model = parser.parse_model('<ir_version: 10, opset_import: ["": 23]>\n' + text)
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        return stepnet.onnx.load(tmp_path / "m.onnx")(*inputs)

    return call


GENERATOR = torch.Generator().manual_seed(0)
Q, K, V, PAST_K, PAST_V = (
    torch.randn(2, heads, rows, 5, generator=GENERATOR)
    for heads, rows in ((4, 3), (2, 6), (2, 6), (2, 2), (2, 2))
)
HEAD = "g (float[B,H,Q,D] q, float[B,K,S,D] k, float[B,K,S,D] v) => (float[B,H,Q,D] y) "


@pytest.mark.parametrize("said", ["", "<q_num_heads=4, kv_num_heads=2>", "<softcap=-2.0>"])
def test_groups_of_heads(said, run):
    found = run(f"{HEAD} {{ y = Attention{said}(q, k, v) }}", Q, K, V)[0]
    torch.testing.assert_close(found, F.scaled_dot_product_attention(Q, K, V, enable_gqa=True))


@pytest.mark.parametrize("causal", [0, 1])
def test_a_past_without_a_mask(causal, run):
    ends = ", ".join(f"float[B,K,T,D] {name}" for name in ("nk", "nv"))
    head = HEAD.replace(" v)", " v, float[B,K,P,D] a, float[B,K,P,D] b)").replace(" y)", f" y, {ends})")
    text = f"{head} {{ y, nk, nv = Attention<is_causal={causal}>(q, k, v, , a, b) }}"
    y, keys, values = run(text, Q, K, V, PAST_K, PAST_V)
    assert torch.equal(keys, torch.cat([PAST_K, K], 2))
    assert torch.equal(values, torch.cat([PAST_V, V], 2))
    seen = torch.ones(3, 8, dtype=torch.bool).tril(2) if causal else None
    torch.testing.assert_close(
        y, F.scaled_dot_product_attention(Q, keys, values, attn_mask=seen, enable_gqa=True)
    )


def test_heads_that_do_not_fit(run):
    with pytest.raises(IRError, match=r"node 0 '' \(Attention\): heads of Q are no multiple"):
        run(f"{HEAD} {{ y = Attention(q, k, v) }}", Q[:, :3], K, V)


def test_one_place_of_all(run):
    text = "g (float[N,M] x, int64[K] i) => (float y) { y = GatherND(x, i) }"
    assert run(text, Q[0, 0], torch.tensor([1, -1]))[0] == Q[0, 0, 1, -1]


def test_backwards_from_before_the_first(run):
    numbers = ", ".join(f"int64[1] {name}" for name in "abcd")
    text = f"g (float[N] x, {numbers}) => (float[M] y) {{ y = Slice(x, a, b, c, d) }}"
    given = (torch.tensor([n]) for n in (-9, -9, 0, -1))
    assert torch.equal(run(text, Q[0, 0, 0], *given)[0], Q[0, 0, 0, :1])
