"""Ways in: what a user writes becomes a loop."""
