"""Real federations on Flower: `ClientMod` for the clients' app, `Strategy` for the server's. Needs the extra `normec[flower]`."""

from normec.flower.client import ClientMod
from normec.flower.owner import Owner
from normec.flower.strategy import Strategy

__all__ = ["ClientMod", "Owner", "Strategy"]
