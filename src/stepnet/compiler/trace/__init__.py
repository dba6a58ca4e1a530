"""A step as a graph of what it asks torch for, forward and backward together."""
