"""Scans as C that is generated, compiled once, and kept on disk."""
