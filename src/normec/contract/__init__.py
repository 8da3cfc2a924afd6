"""The contract that every registered algorithm keeps: `check("my-algorithm")`."""

from normec.contract.points import POINTS, ContractBroken, check, example

__all__ = ["POINTS", "ContractBroken", "check", "example"]
