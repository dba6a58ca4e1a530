"""What layers compute: one file per kind, one row per type."""
