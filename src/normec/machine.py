"""What this machine has."""

from __future__ import annotations


def available() -> int:
    """Free physical memory in bytes, as far as the system tells (Linux), else no limit."""
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":") for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 2**63
