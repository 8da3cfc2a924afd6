"""The runs that each figure of the paper needs, at three scales and under two readings of its noise."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

from normec.config import RunConfig, merge
from normec.errors import BadInput
from normec.privacy import Trust
from normec.privacy.accountant import epsilon
from normec.privacy.table import Query, paper_noise
from normec.runs.experiment import prepare
from normec.settings import Tree
from normec.studies.grid import Point
from normec.studies.sweep import Sweep

EPSILON, DELTA = 8.0, 1e-5
"""The paper's claim."""
Figure = Literal["figure1", "figure2", "figure3", "figure4"]
Scale = Literal["tiny", "small", "paper"]
NoiseReading = Literal["total", "coordinate"]
"""How the paper's formula s is read: the norm of the whole noise vector is β s in the mean, or each coordinate has deviation β s."""
FIGURES: tuple[Figure, ...] = ("figure1", "figure2", "figure3", "figure4")
SCALES: tuple[Scale, ...] = ("tiny", "small", "paper")
NOISE_READINGS: tuple[NoiseReading, ...] = ("total", "coordinate")


SET_BY_FIGURES = {
    "algorithm": ("name", "beta", "server_lr"),
    "local": ("lr",),
    "participation": ("scheme", "rate"),
    "privacy": ("trust", "epsilon", "noise_multiplier", "delta"),
}
"""Settings in which the runs of a figure differ, or on which its captions rest."""


class Label(NamedTuple):
    """What a run is: the method, the rate p, β and γ. honest: whether its noise is calibrated to a true ε."""

    method: Literal["ours", "fedavg"]
    rate: float
    beta: float
    gamma: float
    honest: bool = False

    @property
    def name(self) -> str:
        """The name of its folder."""
        kind = "honest" if self.honest else self.method
        return f"{kind}_p={self.rate:g}_beta={self.beta:g}_gamma={self.gamma:g}"


@dataclass(frozen=True)
class Experiments:
    """The runs of the paper's figures. base: what all have in common. d: parameters of the model. setup: the [figures] section.

    noise: how the paper's noise is read.
    """

    base: Tree
    setup: Tree
    noise: NoiseReading
    d: int

    @classmethod
    def at(cls, scale: Scale, noise: NoiseReading, path: Path | None, changes: Tree) -> Experiments:
        """The experiments at a scale, with CIFAR-10 from `path` and with further changes to all runs.

        Raises:
            BadInput: where the data is missing, or a change is not a setting.
        """
        tree = tomllib.loads(resources.files("normec.studies.paper").joinpath(f"{scale}.toml").read_text(encoding="utf-8"))
        setup = tree.pop("figures")
        if tree["data"]["source"] == "cifar10":
            if path is None:
                raise BadInput("--data", f"is missing: --scale {scale} trains on CIFAR-10", remedy="Give the folder that holds it")
            tree["data"]["path"] = str(path)
        for section, keys in SET_BY_FIGURES.items():
            own = set(keys) & set(changes.get(section, {}) if isinstance(changes.get(section), dict) else {})
            if own:
                raise BadInput(
                    f"{section}.{min(own)}",
                    "is set by the figure for each of its runs",
                    remedy="Change other keys, or write a sweep of your own",
                )
        base = merge(tree, changes)
        plain = merge(base, {"privacy": {"trust": "none"}})  # no noise has to be calibrated to know d
        return cls(base, setup, noise, prepare(RunConfig.from_tree(plain).experiment()).model.d)

    @property
    def clients(self) -> int:
        return int(self.base["data"]["clients"])

    @property
    def rounds(self) -> int:
        return int(self.base["rounds"])

    def noise_multiplier(self, rate: float) -> float:
        """Standard deviation, per coordinate, of the noise that a participant adds to its message of norm 1."""
        s = paper_noise(rate, self.rounds, EPSILON, DELTA)
        return s / math.sqrt(self.d) if self.noise == "total" else s

    def true_epsilon(self, rate: float) -> dict[Trust, float]:
        """The ε that this noise really gives at δ.

        local: to a server that sees each message. secagg: to one that sees sums of pM messages. central: to whoever sees the
        models, if a trusted server adds the noise of pM participants at once and keeps the cohorts secret.
        """
        common: Tree = {"clients": self.clients, "rounds": self.rounds, "delta": DELTA, **_sampling(rate)}
        query = Query(noise_multiplier=self.noise_multiplier(rate), **common)
        at_once = Query(noise_multiplier=self.noise_multiplier(rate) * math.sqrt(rate * self.clients), **common)
        asked: list[tuple[Trust, Query]] = [("local", query), ("secagg", query), ("central", at_once)]
        return {trust: epsilon(each.mechanism(trust), DELTA).epsilon for trust, each in asked}

    def labels(self, figure: Figure) -> list[Label]:
        """The runs of a figure; they share runs."""
        first, rates = self.setup["rates"][0], self.setup["rates"]
        shown = {"figure1": (first, rates[-1]), "figure2": rates, "figure3": (first,), "figure4": ()}[figure]
        labels = [Label("ours", rate, beta, gamma) for rate in shown for beta, gamma in self.setup["ours"]]
        if figure in ("figure3", "figure4"):
            labels += [Label("fedavg", first, beta, gamma) for beta, gamma in self.setup["fedavg"]]
        if figure == "figure1":
            labels += [Label("ours", first, beta, gamma, honest=True) for beta, gamma in self.setup["ours"]]
        return labels

    def sweep(self, figure: Figure) -> Sweep:
        """The runs of a figure by their names."""
        points = {label.name: Point(merge(self.base, self._changes(label)), label._asdict()) for label in self.labels(figure)}
        return Sweep(self.base, points, self.setup["target"], table=f"{figure}-runs")

    def _changes(self, label: Label) -> Tree:
        """The server's step is the plain one, with η = γ."""
        method: Tree = {"name": "fed-normec"} if label.method == "ours" else {"name": "dp-fedavg-norm", "on": "update"}
        algorithm = {"alpha": self.base["algorithm"]["alpha"], "beta": label.beta, "server_lr": label.gamma}
        noisy: Tree = {"trust": "local", "noise_multiplier": self.noise_multiplier(label.rate), "delta": DELTA}
        return {
            "algorithm": method | algorithm,
            "local": {"lr": label.gamma},
            "participation": _sampling(label.rate),
            "privacy": {"trust": "central", "epsilon": EPSILON, "delta": DELTA} if label.honest else noisy,
        }


def _sampling(rate: float) -> Tree:
    """Who takes part at a rate p."""
    return {"scheme": "full"} if rate == 1 else {"scheme": "poisson", "rate": rate}
