"""How a scan is computed, step by step and row by row, whatever language it is written in."""
