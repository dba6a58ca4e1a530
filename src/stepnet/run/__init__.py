"""Executors: the plain loop, torch ops over hoisted rows, generated C."""
