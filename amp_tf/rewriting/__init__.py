"""From a painting to a new graph: plan the edits, apply them, verify the result."""
