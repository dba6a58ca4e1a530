"""The programs in this folder are read by type checkers; the tests say what becomes of them."""

collect_ignore = ["client.py", "wrong.py"]
