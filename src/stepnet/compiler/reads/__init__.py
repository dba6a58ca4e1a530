"""What a step can read, and whether it still reads the same."""
