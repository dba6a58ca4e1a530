"""From a captured step to a plan: a flat list of passes."""
