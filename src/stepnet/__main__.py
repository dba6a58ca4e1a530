"""`python -m stepnet` is the `stepnet` command."""

from __future__ import annotations

from .cli import main

main()
