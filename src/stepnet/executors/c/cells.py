"""The C of all steps of a cell in a line of small calls: of each a product and a loop over features."""

from __future__ import annotations

from collections.abc import Sequence

_GATES = {"lstm": "ifgo", "gru": "rzn", "rnn": "h"}
_OF_FEATURES = {
    "lstm": """
            const float i = sn_sigmoid_f32(XI + MI), f = sn_sigmoid_f32(XF + MF), o = sn_sigmoid_f32(XO + MO);
            const float new = f * c[u] + i * sn_tanh_f32(XG + MG);
            c[u] = new;
            h[u] = o * sn_tanh_f32(new);""",
    "gru": """
            const float r = sn_sigmoid_f32(XR + MR), z = sn_sigmoid_f32(XZ + MZ);
            const float n = sn_tanh_f32(XN + r * (MN));
            h[u] = n + z * (p[u] - n);""",
    "rnn": """
            h[u] = sn_tanh_f32(XH + MH);""",
}


def steps_text(
    kind: str, names: Sequence[str], order: Sequence[int], sizes: tuple[int, int, int], product: str,
    *, backwards: bool,
) -> list[str]:  # fmt: skip
    """The lines.

    Args:
        kind: lstm, gru or rnn.
        names: where its states are to be, what of x comes, the first state, room for the product of a step,
            and what else `executors.line.Op` says, begin.
        order: see there.
        sizes: steps, batch and features.
        product: the product of a step, of the rows `before`.
        backwards: whether the last step comes first.
    """
    (steps, batch, hidden), gates = sizes, len(order)
    made, of_x, first, room, *more = names
    body, added = _OF_FEATURES[kind], kind == "gru" and bool(more)
    for gate, block in zip(_GATES[kind].upper(), order, strict=True):
        at = f"[{block} * H + u]"
        body = body.replace(f"X{gate}", f"x{at}").replace(f"M{gate}", f"m{at} + b{at}" if added else f"m{at}")
    also = [f"float *restrict c = {more[0]} + q * H;"] if kind == "lstm" else []
    also += [f"const float *restrict b = {more[0]};"] if added else []
    also += ["const float *p = before.base + q * before.stride;"] if kind == "gru" else []
    return f"""    {{
    enum {{ H = {hidden}, Q = {batch}, T = {steps} }};
    for (int64_t s = 0; s < T; ++s) {{
        const int64_t t = {"T - 1 - s" if backwards else "s"}, late = {"t + 1" if backwards else "t - 1"};
        const sn_rows_f32 before = {{s ? {made} + late * Q * H : {first}, H, 0}};
        {product}
        for (int64_t q = 0; q < Q; ++q) {{
        const float *restrict x = {of_x} + (t * Q + q) * {gates} * H, *restrict m = {room} + q * {gates} * H;
        float *restrict h = {made} + (t * Q + q) * H;
        {" ".join(also)}
        _Pragma("omp simd")
        for (int64_t u = 0; u < H; ++u) {{{body}
        }}
        }}
    }}
    }}""".splitlines()
