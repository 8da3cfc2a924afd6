"""Several algorithms on the same data, model, cohorts and ε: what `normec compare` runs."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from normec.algorithms import Algorithm, algorithm_kind
from normec.config import RunConfig, Tree, merge, parse_assignments, read_toml
from normec.errors import BadInput, TrainingFailed
from normec.experiment import prepare
from normec.training import execute

TUNING_SEEDS_FROM = 1000
"""Tuning uses seed + 1000, which no result uses: other cohorts and noise, and for drawn partitions another split."""
Step = Callable[[str], None]
"""Told what runs next."""


@dataclass(frozen=True)
class Comparison:
    """What is compared: a configuration and the algorithms that take its [algorithm] section in turn.

    base: a tree of settings. settings: of single algorithms, by name. seeds: how many seeds, from the configuration's.
    tries: configurations that a small search tries for each algorithm, a square number; 0 for none.
    """

    base: Tree
    algorithms: tuple[str, ...]
    settings: dict[str, Tree] = field(default_factory=dict)
    seeds: int = 3
    tries: int = 0

    @classmethod
    def of(cls, file: Path | None, assignments: list[str], names: str, seeds: int, tries: int) -> Comparison:
        """Of a configuration file and `key=value` or `NAME.key=value`; names: of the algorithms, A,B,…"""
        chosen = tuple(name.strip() for name in names.split(",") if name.strip())
        changes = parse_assignments(assignments)
        own = {name: changes.pop(name) for name in chosen if isinstance(changes.get(name), dict)}
        if isinstance(changes.get("algorithm"), dict):
            key, one = next(iter(changes["algorithm"])), (*chosen, "NAME")[0]
            raise BadInput(f"algorithm.{key}", f" would be for one algorithm of several. Write NAME.{key}, such as {one}.{key}.")
        return cls(merge(read_toml(file) if file else {}, changes), chosen, own, seeds, tries)

    def __post_init__(self) -> None:
        kinds = [algorithm_kind("algorithms", name) for name in self.algorithms]
        if len(set(kinds)) != len(kinds) or not kinds:
            what = "names one twice. Name each once" if kinds else "names none. Add --algorithms A,B; see normec algorithms"
            raise BadInput("algorithms", f"={','.join(self.algorithms)!r} {what}.")
        if self.tries and math.isqrt(self.tries) ** 2 != self.tries:
            problem = f"={self.tries} must be a square number, so that one or two tuned settings make the same number of tries."
            raise BadInput("tries", f"{problem} Use 4, 9 or 16.")
        for name, kind in zip(self.algorithms, kinds, strict=True):
            own = self.settings.get(name, {})
            if "name" in own:
                raise BadInput(f"{name}.name", f"={own['name']!r} would run another algorithm under this label. Remove it.")
            fixed = sorted(set(own) & set(kind.tuned)) if self.tries else []
            if fixed:
                raise BadInput(f"{name}.{fixed[0]}", f"={own[fixed[0]]!r} is fixed, and --tune would move it. Leave out one of them.")
            if self.tries and not kind.tuned:
                raise BadInput("algorithms", f" hold {name!r}, which names no settings to tune. Compare it without --tune.")
            self._check(name)

    def _check(self, name: str) -> None:
        """Refuses what would fail only after other runs are done."""
        config = self.config(name, {}, 0)
        if config.privacy.trust != "none" and math.isinf(config.algorithm.operator.bound):
            problem = f" hold {name!r}, which bounds no message and cannot be compared at an ε."
            raise BadInput("algorithms", f"{problem} Leave it out, or set privacy.trust=none.")
        prepare(config.experiment())

    @property
    def seed(self) -> int:
        """The first seed."""
        return RunConfig.from_tree(self.base).schedule.seed

    @property
    def runs(self) -> int:
        """How many runs it takes."""
        return len(self.algorithms) * (self.seeds + self.tries)

    def config(self, name: str, settings: Tree, seed: int) -> RunConfig:
        """The configuration of one run. An algorithm that takes one gradient a round has local.steps = 1."""
        algorithm = {"name": name, **self.settings.get(name, {}), **settings}
        tree = merge(self.base, {"algorithm": algorithm, "seed": seed})
        RunConfig.from_tree(tree)  # refuses what is no section
        if algorithm_kind("algorithms", name).one_gradient:
            local = tree.get("local", {})
            method = local.get("method", "gd")
            tree = merge(tree, {"local": {"steps": 1, "method": method if method in ("gd", "sgd") else "gd"}})
        return RunConfig.from_tree(tree)

    def rows(self, next_run: Step = lambda name: None) -> Iterator[dict[str, Any]]:
        """Runs everything; one row an algorithm, as it is done."""
        for name in self.algorithms:
            tuned = self._tune(name, next_run) if self.tries else {}
            yield self._row(name, tuned, next_run)

    def _tune(self, name: str, next_run: Step) -> Tree:
        """The settings of the grid that did best, by final test accuracy, or by training loss where there is no test set."""
        scores = []
        for point in grid(algorithm_kind("algorithms", name), self.tries):
            next_run(name)
            end = _outcome(self.config(name, point, self.seed + TUNING_SEEDS_FROM), curve=False)
            scores.append((_score(end), point))
        best = max(scores, key=lambda pair: pair[0])
        return best[1] if best[0] > -math.inf else {}

    def _row(self, name: str, tuned: Tree, next_run: Step) -> dict[str, Any]:
        ends = []
        for seed in range(self.seed, self.seed + self.seeds):
            next_run(name)
            ends.append(_outcome(self.config(name, tuned, seed), curve=True))
        done = [end for end in ends if end["summary"] is not None]
        config = self.config(name, tuned, self.seed)
        return {
            "algorithm": name,
            **ends[0]["promise"],
            "test_accuracy": _mean(done, "test_accuracy"),
            "test_accuracy_se": _standard_error(done, "test_accuracy"),
            "train_loss": _mean(done, "train_loss"),
            "train_loss_se": _standard_error(done, "train_loss"),
            "transmissions": _mean(done, "transmissions"),
            "bytes_up": _mean(done, "bytes_up"),
            "bytes_down": _mean(done, "bytes_down"),
            "rounds": config.schedule.rounds,
            "seeds": self.seeds,
            "failed": len(ends) - len(done),
            "rose": any(end["rose"] for end in done),
            "tries": self.tries,
            "tuned_by": "test accuracy" if done and done[0]["summary"]["test_accuracy"] is not None else "training loss",
            "settings": config.algorithm.table(),
            "chosen": _unlike_default(config.algorithm),
            "local": {"method": config.local.method, "steps": config.local.steps},
            "one_gradient": config.algorithm.one_gradient,
            "curves": [end["curve"] for end in done],
        }


def grid(kind: type[Algorithm], tries: int) -> list[Tree]:
    """Settings to try: `tries` values of the one tuned setting, or the square root of that of each of two, log-spaced."""
    each = tries if len(kind.tuned) == 1 else math.isqrt(tries)
    axes = [[(name, float(f"{value:.3g}")) for value in np.geomspace(*ends, each)] for name, ends in kind.tuned.items()]
    return [dict(point) for point in itertools.product(*axes)]


def _outcome(config: RunConfig, curve: bool) -> dict[str, Any]:
    """What a run promises, its summary and its test accuracy by round; the last two None where it diverged."""
    if not curve:
        config = config.evaluated_at_the_end()
    plan = prepare(config.experiment())
    claim, private = plan.spent.planned.epsilon, plan.mechanism.private
    promise = {
        "epsilon": claim if private else None,
        "delta": plan.delta if private else None,
        "adjacency": plan.mechanism.adjacency if private else None,
        "trust": plan.mechanism.trust,
        "convergence": plan.experiment.algorithm.convergence,
    }
    try:
        run = execute(plan)
    except TrainingFailed:
        return {"promise": promise, "summary": None, "curve": None}
    first, last = run.metrics[0]["train_loss"], run.summary["train_loss"]
    rose = first is not None and last is not None and last > first
    return {"promise": promise, "summary": run.summary, "curve": [row["test_accuracy"] for row in run.metrics], "rose": rose}


def _unlike_default(algorithm: Algorithm) -> Tree:
    """The settings that are not the algorithm's defaults."""
    defaults = type(algorithm)().table()
    return {name: value for name, value in algorithm.table().items() if defaults.get(name) != value}


def _score(end: dict[str, Any]) -> float:
    if end["summary"] is None:
        return -math.inf
    accuracy, loss = end["summary"]["test_accuracy"], end["summary"]["train_loss"]
    return float(accuracy if accuracy is not None else -loss)


def _values(done: list[dict[str, Any]], key: str) -> list[float]:
    return [end["summary"][key] for end in done if end["summary"][key] is not None]


def _mean(done: list[dict[str, Any]], key: str) -> float | None:
    values = _values(done, key)
    return statistics.fmean(values) if values else None


def _standard_error(done: list[dict[str, Any]], key: str) -> float | None:
    values = _values(done, key)
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
