"""The engine: how the clients of a simulation compute."""

from normec.engine.loop import Clients, ClientStatistics
from normec.engine.settings import Engine
from normec.engine.workers import Workers

__all__ = ["ClientStatistics", "Clients", "Engine", "Workers"]
