"""A client's own coin: whether it takes part in a round, where the server that asks is the adversary.

One for each round of an experiment, from the operating system's generator. It is on the client's ledger before anything depends on it,
so that neither a crash nor a server that asks again gives a second one.
"""

from __future__ import annotations

import secrets

from normec.privacy.ledger import Ledger

COIN = "coin"
"""The kind of a ledger's line that holds one."""


def heads(rate: float) -> bool:
    """True with probability `rate`, exactly: a float is a fraction of whole numbers."""
    numerator, denominator = rate.as_integer_ratio()
    return secrets.randbelow(denominator) < numerator


def coin_of(ledger: Ledger | None, k: int) -> bool | None:
    """The coin of round k; None where it was not drawn."""
    lines = ledger.lines if ledger else []
    return next((bool(line["heads"]) for line in lines if line["kind"] == COIN and line["round"] == k), None)


def note_coin(ledger: Ledger, k: int, coin: bool) -> None:
    """Writes down the coin of round k."""
    ledger.note(COIN, {"round": k, "heads": coin})
