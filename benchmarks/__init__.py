"""Benchmarks: the same work done by several contenders, values compared first, then timed turn by turn.

`python -m benchmarks --help` says how to run them. A topic is a module with a `TOPIC`, listed in `topics.py`.
"""
