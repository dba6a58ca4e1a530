"""The program that `stepnet demo` runs: which of nine speakers spoke? Read `model.py` first."""

from __future__ import annotations
