"""Handwritten digits, learned by a federation of nodes that keep their data."""
