"""The contenders of a comparison: algorithms, each with a server step, and the settings that a search tries for each."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from normec.algorithms import Algorithm, algorithm_kind
from normec.algorithms.server_steps import SERVER_STEPS
from normec.config import RunConfig
from normec.errors import BadInput
from normec.local import ONE_GRADIENT
from normec.settings import Tree, choose


class Contender(NamedTuple):
    """An algorithm and, where its name has a `+`, a step of the server: `dp-fedavg-clip`, `dp-fedavg-clip+momentum`.

    algorithm: its settings. server: those of the step; empty for the step that the configuration has. ranges: the ends between
    which a search moves some of its settings, in place of those that the algorithm names.
    """

    name: str
    kind: type[Algorithm]
    algorithm: Tree
    server: Tree
    ranges: dict[str, tuple[float, float]]

    @classmethod
    def named(cls, name: str, settings: Tree) -> Contender:
        """settings: of this contender alone; those that its algorithm does not know are the step's, and a list is a range to search.

        Raises:
            BadInput: for an unknown algorithm or step, and a setting that would run another algorithm.
        """
        of_algorithm, plus, optimizer = name.partition("+")
        kind = algorithm_kind("algorithms", of_algorithm)
        if "name" in settings:
            raise BadInput(f"{name}.name", "would run another algorithm under this label", value=settings["name"], remedy="Remove it")
        ends = {key: _range(f"{name}.{key}", value, kind) for key, value in settings.items() if isinstance(value, list)}
        fixed = {key: value for key, value in settings.items() if key not in ends}
        if not plus:
            return cls(name=name, kind=kind, algorithm={"name": of_algorithm, **fixed}, server={}, ranges=ends)
        step = choose("algorithms", optimizer, SERVER_STEPS)
        of_step = {key: fixed[key] for key in fixed if key in step.model_fields and key not in kind.model_fields}
        algorithm = {"name": of_algorithm} | {key: value for key, value in fixed.items() if key not in of_step}
        return cls(name=name, kind=kind, algorithm=algorithm, server={"optimizer": optimizer, **of_step}, ranges=ends)

    def searched(self, config: RunConfig) -> dict[str, tuple[float, float]]:
        """The settings that a search moves, with the ends of their ranges; the server's stepsize has those of its step."""
        tuned, step = type(config.algorithm).tuned, config.server
        own = {name: _rounded(step.searched(ends) if name == "server_lr" else ends) for name, ends in tuned.items()}
        return own | self.ranges

    def changes(self, base: Tree, chosen: Tree, seed: int) -> Tree:
        """The changes of its run to the configuration that all share. chosen: the settings that a search has chosen.

        An algorithm that takes one gradient per round has local.steps = 1.
        """
        changes: Tree = {"algorithm": {**self.algorithm, **chosen}, "seed": seed}
        if self.server:
            changes["server"] = self.server
        local = base.get("local", {})
        if self.kind.one_gradient and isinstance(local, dict):
            method = local.get("method", "gd")
            changes["local"] = {"steps": 1, "method": method if method in ONE_GRADIENT else "gd"}
        return changes


def _rounded(ends: tuple[float, float]) -> tuple[float, float]:
    low, high = ends
    return float(f"{low:.3g}"), float(f"{high:.3g}")


def _range(setting: str, value: list[Any], kind: type[Algorithm]) -> tuple[float, float]:
    """The ends of a range that was given as a list."""
    key = setting.rpartition(".")[2]
    if key not in kind.model_fields:
        raise BadInput(setting, "is a range, and only settings of the algorithm are searched", value=value, remedy="Give one value")
    numbers = len(value) == 2 and all(isinstance(each, int | float) and not isinstance(each, bool) for each in value)
    if not numbers or not 0 < value[0] < value[1] < math.inf:
        raise BadInput(setting, value=value, must="be a range to search: two numbers, 0 < LOW < HIGH, such as [0.1, 10]")
    return float(value[0]), float(value[1])


def spread(ends: dict[str, tuple[float, float]], tries: int) -> list[dict[str, float]]:
    """Points that fill the ranges evenly in their logarithms: a Halton sequence, so that a longer search tries the same first."""
    import numpy as np
    from scipy.stats import qmc

    sequence = qmc.Halton(len(ends), scramble=False)
    sequence.fast_forward(1)  # its first point is a corner
    low, high = (np.log([each[side] for each in ends.values()]) for side in (0, 1))
    points = np.exp(low + (high - low) * sequence.random(tries))
    return [{name: float(f"{value:.3g}") for name, value in zip(ends, point, strict=True)} for point in points]


Edge = Literal["smallest", "largest"]


def edges(chosen: Tree, points: list[dict[str, float]]) -> dict[str, Edge]:
    """The chosen settings that are the smallest or the largest of their tries, beyond which a better one may lie."""
    outermost: dict[str, Edge] = {}
    for name, value in chosen.items():
        values: list[Any] = [point[name] for point in points]
        if min(values) < max(values) and value in (min(values), max(values)):
            outermost[name] = "smallest" if value == min(values) else "largest"
    return outermost
