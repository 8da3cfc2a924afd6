"""The version of the package, and of what its numbers depend on."""

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """Those that a run's numbers depend on, and without which it cannot be resumed exactly."""
    import torch

    return {"normec": __version__, "torch": str(torch.__version__)}
