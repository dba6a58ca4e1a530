"""Scans as torch's ops; and what each op of the closed list means in torch, which runs all maps."""
