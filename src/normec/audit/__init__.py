"""Audit: an attack that every private run can be put through."""
