"""Ways in: what a user writes, and the record of the loop that it is."""
