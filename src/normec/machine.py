"""What this machine has."""

from __future__ import annotations

import os


def available() -> int:
    """Free physical memory in bytes, as far as the system tells (Linux), else no limit."""
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":") for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 2**63


def installed() -> int:
    """Physical memory in bytes, as far as the system tells, else no limit."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2**63
