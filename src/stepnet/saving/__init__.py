"""Topologies as OpenVINO IR files, and back."""
