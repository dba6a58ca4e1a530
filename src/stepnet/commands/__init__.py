"""The commands of `stepnet`, a file each. What they need is imported when they run."""
