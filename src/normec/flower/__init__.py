"""Real federations on Flower: `ClientMod` for the clients' app, `Strategy` for the server's. Needs the extra `normec[flower]`."""

import importlib.util

from normec.errors import BadInput

if importlib.util.find_spec("flwr") is None:
    raise BadInput("normec.flower", "needs Flower, which is not installed", remedy="Install it with pip install 'normec[flower]'")

from normec.flower.client import ClientMod
from normec.flower.evaluation import ClientEvaluation
from normec.flower.owner import Owner
from normec.flower.strategy import Strategy

__all__ = ["ClientEvaluation", "ClientMod", "Owner", "Strategy"]
