"""Names and comments of generated C."""

from __future__ import annotations

import re

# What generated code uses besides names of values, which step aside.
_RESERVED = (
    "a active arguments b before chunk chunk_row chunk_slot count float double for h i index int j left "
    "length member members barrier given order row rows run space start steps stride t t0 t1 together "
    "wrong data pool now auto break case char const continue default do else enum extern goto if inline "
    "long register restrict return short signed sizeof static struct switch typedef union unsigned void "
    "volatile while memcpy memset sense f0 f1 r0 r1 s0 shares sequences space_bytes pack "
    "first_column run_share size type n k of i0 l lanes r "
)


def identifier(name: str) -> str:
    """A C identifier for a value.

    >>> identifier("state['a b']"), identifier("for"), identifier("x*/é")
    ('state_a_b', 'for_', 'x')
    """
    out = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
    out = out if out[:1].isalpha() else f"v{out}"
    taken = out in _RESERVED.split() or re.match(r"sn_|SN_|j[0-9]+$|[A-Z_]+$", out)
    return f"{out}_" if taken else out


def without_comments(text: str) -> str:
    """Generated C as it is compiled: one library serves steps that differ in where they are written.

    >>> without_comments("/* of a.py:3 */\\nint a; /* b */\\n")
    'int a;\\n'
    """
    lines = (line.rstrip() for line in re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def comment(text: str) -> str:
    """Text as it may stand in a comment: nothing in it ends the comment or a line.

    >>> comment("y = tanh(x)  # a.py:3"), comment("x*/ y")
    ('y = tanh(x)  # a.py:3', 'x* / y')
    """
    plain = text.encode("ascii", "backslashreplace").decode()
    plain = "".join(c if c == "\n" or " " <= c <= "~" else "?" for c in plain).replace("\\", "?")
    return re.sub(r"(?<=[*/?])(?=[*/?])", " ", plain).replace("\n", "\n * ")
