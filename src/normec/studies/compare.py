"""Several algorithms on the same data, model, cohorts and ε: what `normec compare` runs, as two sweeps that resume.

DIR/tuning holds the tries, DIR/results the seeds of what they found, DIR/compare.toml what is compared, DIR/comparison.json the rows.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import tomli_w

from normec.algorithms import Algorithm
from normec.config import RunConfig, merge, merged, parse_assignment, parse_assignments, read_toml
from normec.errors import BadInput
from normec.files import write_atomically
from normec.imports import TRUST
from normec.runs.experiment import prepare
from normec.runs.record import Record
from normec.settings import Tree, difference, flat
from normec.studies.contenders import Contender, edges, spread
from normec.studies.grid import Point
from normec.studies.outcomes import ComparisonRow, Promised, judged_by, largest, mean, rose, score, standard_error, values
from normec.studies.rows import SweepRow
from normec.studies.sweep import Sweep, open_folder
from normec.theory.guarantees import guarantee

TUNING_SEEDS_FROM = 1000
"""Tuning uses seed + 1000, which no result uses: other cohorts and noise, and for drawn partitions another split."""
MARKER = "compare.toml"
Trained = Callable[[Sweep, Path], list[SweepRow]]
"""Trains a sweep in a folder, and returns its rows."""


@dataclass(frozen=True)
class Comparison:
    """A comparison: a configuration, and the algorithms that take the place of its [algorithm] section in turn.

    base: a tree of settings. algorithms: names of contenders. settings: of single ones, by name. seeds: how many seeds, from the
    configuration's. tries: how many settings a small search tries for each; 0 for none. given: the arguments that say `base`.
    """

    base: Tree
    algorithms: tuple[str, ...]
    settings: dict[str, Tree] = field(default_factory=dict)
    seeds: int = 3
    tries: int = 0
    given: tuple[str, ...] = ()

    @classmethod
    def of(cls, file: Path | None, assignments: list[str], names: str, seeds: int, tries: int, *, trust_code: bool = False) -> Comparison:
        """The comparison of a configuration file and `key=value` or `NAME.key=value`. names: those of the algorithms, A,B,…

        trust_code: code that the file names may run.
        """
        chosen = tuple(name.strip() for name in names.split(",") if name.strip())
        changes = parse_assignments(assignments)
        own = {name: changes.pop(name) for name in chosen if isinstance(changes.get(name), dict)}
        if isinstance(changes.get("algorithm"), dict):
            key, one = next(iter(changes["algorithm"])), (*chosen, "NAME")[0]
            raise BadInput(f"algorithm.{key}", "would be for one algorithm of several", remedy=f"Write NAME.{key}, such as {one}.{key}")
        common = [text for text in assignments if next(iter(parse_assignment(text))) not in own]
        given = ([str(file)] if file else []) + common + ([TRUST] if trust_code else [])
        typed = {"algorithms": [name.partition("+")[0] for name in chosen]}
        tree = merged(file, changes, trust_code, typed)
        return cls(tree, chosen, own, seeds=seeds, tries=tries, given=tuple(given))

    def __post_init__(self) -> None:
        if not self.algorithms:
            raise BadInput("algorithms", "names none", value="", remedy="Add --algorithms A,B; see normec algorithms")
        for contender in self.contenders:
            self._check_search(contender)
        configs = [self.config(contender, {}, 0).toml() for contender in self.contenders]
        if len(set(configs)) < len(configs):
            raise BadInput("algorithms", "names one twice", value=",".join(self.algorithms), remedy="Name each once")
        _ = self.promises

    def _check_search(self, contender: Contender) -> None:
        """Refuses settings that a search cannot move, or that it would move although they are given."""
        name, ranges = contender.name, contender.ranges
        if not self.tries:
            if ranges:
                key = next(iter(ranges))
                raise BadInput(f"{name}.{key}", "is a range to search", value=list(ranges[key]), remedy="Add --tune, or give one value")
            return
        fixed = sorted(set(contender.algorithm) & set(contender.kind.tuned))
        if fixed:
            value = contender.algorithm[fixed[0]]
            raise BadInput(f"{name}.{fixed[0]}", "is fixed, and --tune would move it", value=value, remedy="Leave out one of them")
        if not contender.kind.tuned and not ranges:
            raise BadInput("algorithms", f"hold {name!r}, which names no settings to tune", remedy="Compare it without --tune")
        for side in (0, 1):
            self.config(contender, {key: ends[side] for key, ends in ranges.items()}, 0)

    @cached_property
    def contenders(self) -> tuple[Contender, ...]:
        return tuple(Contender.named(name, self.settings.get(name, {})) for name in self.algorithms)

    @cached_property
    def promises(self) -> dict[str, Promised]:
        """The promise of a run of each algorithm, which does not depend on its outcome.

        Raises:
            BadInput: for what would fail only after other runs are done.
        """
        return {contender.name: _promise(contender.name, self.config(contender, {}, self.seed)) for contender in self.contenders}

    @property
    def seed(self) -> int:
        """The first seed."""
        return RunConfig.from_tree(self.base).schedule.seed

    @property
    def source(self) -> Tree:
        """The comparison as one tree."""
        return {"base": self.base, "algorithms": list(self.algorithms), "settings": self.settings, "seeds": self.seeds, "tries": self.tries}

    @property
    def folder(self) -> Path:
        """The default folder: the same comparison always finds the same one."""
        key = hashlib.blake2b(json.dumps(self.source, sort_keys=True, default=str).encode(), digest_size=4).hexdigest()
        return Path("runs") / f"compare-{key}"

    def config(self, contender: Contender, chosen: Tree, seed: int) -> RunConfig:
        """The configuration of one run."""
        return RunConfig.from_tree(merge(self.base, contender.changes(self.base, chosen, seed)))

    def points(self, contender: Contender) -> list[dict[str, float]]:
        """The settings that the search tries for a contender."""
        return spread(contender.searched(self.config(contender, {}, self.seed)), self.tries)

    def run(self, folder: Path, trained: Trained) -> list[ComparisonRow]:
        """Trains the runs that are not finished yet; returns one row per contender, also written to comparison.json.

        Raises:
            BadInput: for a folder that holds something else, or another comparison.
        """
        open_folder(folder, MARKER, "a comparison")
        marker, text = folder / MARKER, tomli_w.dumps(self.source)
        unlike = difference(read_toml(marker), json.loads(json.dumps(self.source))) if marker.is_file() else None
        if unlike:
            raise BadInput("out", f": {folder} holds another comparison ({unlike})", remedy="Choose another folder")
        write_atomically(marker, text.encode)
        tuning = trained(self._sweep(self._tuning_runs()), folder / "tuning") if self.tries else []
        chosen = {each.name: self._best(each, tuning) for each in self.contenders}
        ends = trained(self._sweep(self._result_runs(chosen)), folder / "results")
        rows = [self._row(each, chosen[each.name], tuning, ends, folder / "results") for each in self.contenders]
        write_atomically(folder / "comparison.json", json.dumps(rows, indent=2, allow_nan=False, ensure_ascii=False).encode)
        return rows

    def _sweep(self, runs: dict[str, Tree]) -> Sweep:
        """The runs by name, each of some changes to what all share."""
        points = {name: Point(merge(self.base, changes), flat(changes)) for name, changes in runs.items()}
        return Sweep({**self.base, "case": list(runs.values())}, points)

    def _tuning_runs(self) -> dict[str, Tree]:
        """Every try, evaluated before and after it alone."""
        seed, rounds = self.seed + TUNING_SEEDS_FROM, RunConfig.from_tree(self.base).schedule.rounds
        return {
            _run_name(contender, f"try={number}"): contender.changes(self.base, dict(point), seed) | {"engine": {"eval_every": rounds}}
            for contender in self.contenders
            for number, point in enumerate(self.points(contender), start=1)
        }

    def _result_runs(self, chosen: dict[str, Tree]) -> dict[str, Tree]:
        return {
            _run_name(contender, f"seed={seed}"): contender.changes(self.base, chosen[contender.name], seed)
            for contender in self.contenders
            for seed in range(self.seed, self.seed + self.seeds)
        }

    def _best(self, contender: Contender, tuning: list[SweepRow]) -> Tree:
        """The try that did best, by the final score of `judged_by`; none where all failed."""
        points = self.points(contender) if self.tries else []
        _, key, sign = judged_by(tuning)
        scores = [score(row, key, sign) for row in _of(contender, tuning)]
        return dict(points[scores.index(max(scores))]) if max(scores, default=-math.inf) > -math.inf else {}

    def _row(self, contender: Contender, chosen: Tree, tuning: list[SweepRow], ends: list[SweepRow], folder: Path) -> ComparisonRow:
        of_seeds, of_tries = _of(contender, ends), _of(contender, tuning)
        done = [Record.read(folder / row["run"]) for row in of_seeds if row["status"] == "done"]
        config = self.config(contender, chosen, self.seed)
        promise = self.promises[contender.name]
        return {
            "algorithm": contender.name,
            **promise,
            "epsilon": largest(promise["epsilon"], done),
            "test_accuracy": mean(done, "test_accuracy"),
            "test_accuracy_se": standard_error(done, "test_accuracy"),
            "largest_class": max(values(done, "test_largest_class"), default=None),
            "metrics": {name: mean(done, name) for name in done[0].last_metrics} if done else {},
            "test_loss": mean(done, "test_loss"),
            "test_loss_se": standard_error(done, "test_loss"),
            "train_loss": mean(done, "train_loss"),
            "train_loss_se": standard_error(done, "train_loss"),
            "transmissions": mean(done, "transmissions"),
            "bytes_up": mean(done, "bytes_up"),
            "bytes_down": mean(done, "bytes_down"),
            "rounds": config.schedule.rounds,
            "seeds": self.seeds,
            "failed": len(of_seeds) - len(done),
            "problem": next((row["problem"] for row in [*of_seeds, *of_tries] if row["problem"]), None),
            "rose": any(rose(run) for run in done),
            "tries": self.tries,
            "tries_failed": sum(row["status"] != "done" for row in of_tries),
            "tuned_by": judged_by(of_tries or of_seeds)[0],
            "edges": edges(chosen, self.points(contender)) if chosen else {},
            "ranges": {key: list(ends) for key, ends in contender.searched(config).items()} if self.tries else {},
            "settings": config.algorithm.table(),
            "server": {"optimizer": config.server.optimizer, **config.server.table()},
            "chosen": _unlike_default(config.algorithm),
            "command": self._command(contender, chosen),
            "local": {"method": config.local.method, "steps": config.local.steps},
            "one_gradient": config.algorithm.one_gradient,
            "curves": [[row["test_accuracy"] for row in run.metrics] for run in done],
        }

    def _command(self, contender: Contender, chosen: Tree) -> str:
        """What trains the first of its results again."""
        changes = flat(contender.changes(self.base, chosen, self.seed))
        words = [*self.given, *(f"{key}={_word(value)}" for key, value in changes.items() if key != "seed")]
        return shlex.join(["normec", "train", *words])


def _promise(name: str, config: RunConfig) -> Promised:
    if config.privacy.trust != "none" and math.isinf(config.algorithm.operator.bound):
        raise BadInput(
            "algorithms",
            f"hold {name!r}, which bounds no message and cannot be compared at an ε",
            remedy="Leave it out, or set privacy.trust=none",
        )
    plan = prepare(config.experiment())
    private, planned = plan.mechanism.private, plan.spent.planned
    return {
        "epsilon": planned.epsilon if private else None,
        "epsilon_every_round": planned.every_round,
        "delta": plan.delta if private else None,
        "adjacency": plan.mechanism.adjacency if private else None,
        "trust": plan.mechanism.trust.name,
        "convergence": str(guarantee(plan.experiment.algorithm, plan.experiment.server, plan.experiment.local, plan.mechanism, plan.model)),
    }


def _run_name(contender: Contender, tail: str) -> str:
    return f"{contender.name.replace(':', '-')}_{tail}"


def _of(contender: Contender, rows: list[SweepRow]) -> list[SweepRow]:
    """Those rows of a sweep that are runs of a contender."""
    return [row for row in rows if row["run"].rpartition("_")[0] == _run_name(contender, "").removesuffix("_")]


def _word(value: object) -> str:
    """A setting's value as `key=value` takes it."""
    text = value if isinstance(value, str) else tomli_w.dumps({"v": value}).partition("=")[2].strip()
    same = parse_assignment(f"v={text}") == {"v": value}
    return text if same else json.dumps(value, ensure_ascii=False)


def _unlike_default(algorithm: Algorithm) -> Tree:
    """The settings that are not the algorithm's defaults."""
    defaults = type(algorithm)().table()
    return {name: value for name, value in algorithm.table().items() if defaults.get(name) != value}
