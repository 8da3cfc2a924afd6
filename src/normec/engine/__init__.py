"""The engine: how the clients of a simulation compute."""

from normec.engine.backends import choose_backend
from normec.engine.clients import Clients, ClientStatistics
from normec.engine.loop import Backend
from normec.engine.ranks import Ranks
from normec.engine.record_steps import Noised, RecordSteps
from normec.engine.records import choose_way
from normec.engine.settings import Engine
from normec.engine.workers import Workers

__all__ = [
    "Backend",
    "ClientStatistics",
    "Clients",
    "Engine",
    "Noised",
    "Ranks",
    "RecordSteps",
    "Workers",
    "choose_backend",
    "choose_way",
]
