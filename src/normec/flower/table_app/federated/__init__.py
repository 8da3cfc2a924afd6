"""A table's outcome, learned by a federation of nodes that keep their rows."""
