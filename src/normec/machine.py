"""What this machine has."""

from __future__ import annotations


def available() -> int:
    """Physical memory in bytes that can be had without swapping."""
    import psutil

    return psutil.virtual_memory().available


def installed() -> int:
    """Physical memory in bytes."""
    import psutil

    return psutil.virtual_memory().total
