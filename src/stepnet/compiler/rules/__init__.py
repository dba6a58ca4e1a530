"""From a trace to the closed list of ops: a table with a row for each call of aten, a file for each kind."""
