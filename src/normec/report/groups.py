"""Runs of one setting and several seeds are one line, with a mean and a standard deviation; its name says only what differs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normec.runs.record import Record
from normec.settings import Tree, flat
from normec.studies.compare import MARKER
from normec.terminal.cells import number

MOST_PARTS = 5
"""Of a name that is made of settings; with more, the folder's name says it better."""


KINDS = {"algorithm": "algorithm.name", "server": "server.optimizer"}
"""Sections whose settings are those of what one of them names."""


@dataclass(frozen=True)
class Group:
    """Runs that differ by their seed alone. name: in the page. runs: by the names of their folders."""

    name: str
    runs: dict[str, Record]

    @property
    def seeds(self) -> int:
        return len(self.runs)

    @property
    def settings(self) -> Tree:
        """On one level, as `section.key`; the seed names those of all."""
        settings = flat(next(iter(self.runs.values())).settings)
        if self.seeds > 1:
            settings["seed"] = ", ".join(str(run.settings.get("seed")) for run in self.runs.values())
        return settings

    def member(self, name: str) -> str:
        """What a single run of it is called."""
        return self.name if self.seeds == 1 else f"{self.name}, seed={self.runs[name].settings.get('seed')}"

    def values(self, of: Callable[[Record], float | None]) -> list[float]:
        """A number of each run, without those that have none."""
        return [value for value in map(of, self.runs.values()) if value is not None]

    def shown(self, of: Callable[[Record], float | None], form: str) -> str:
        """Mean ± standard deviation over the runs; a number alone for one run or equal ones, and a dash for none."""
        values = self.values(of)
        if not values:
            return "–"
        mean = statistics.fmean(values)
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        if not spread:
            return number(mean if form != ",d" else round(mean), form)
        form = ",.0f" if form == ",d" else form
        return f"{number(mean, form).removesuffix('%')} ± {number(spread, form)}"


def grouped(runs: dict[str, Record]) -> list[Group]:
    """The runs by their settings without the seed, in the order of their first ones.

    Runs of two sweeps stay apart, since one may have been searched on the seeds of the other. A second run of the same seed, and
    an audit, is a group of its own. Runs of other data are too, where they say so.
    """
    members: dict[tuple[Any, ...], dict[str, Record]] = {}
    taken: dict[tuple[Any, ...], int] = {}
    for name, run in runs.items():
        settings = {key: repr(value) for key, value in flat(run.settings).items()}
        seed = settings.pop("seed", None)
        settings.pop("model.fingerprint", None)  # of the initial weights, which a seed draws
        alone = name if run.audit is not None or seed is None else ""
        same = (_sweep(run), alone, tuple(sorted(settings.items())))
        taken[*same, seed] = taken.get((*same, seed), 0) + 1
        members.setdefault((*same, taken[*same, seed]), {})[name] = run
    homes: dict[Path | None, list[dict[str, Record]]] = {}
    for (home, *_), group in members.items():
        homes.setdefault(home, []).append(group)
    found = {next(iter(group)): name for groups in homes.values() for name, group in zip(_names(groups), groups, strict=True)}
    names = list(found.values())
    return [Group(_unlike(found[first], first, names), group) for group in members.values() for first in [next(iter(group))]]


def _sweep(run: Record) -> Path | None:
    """The folder of the sweep that a run belongs to."""
    return run.path.parent if (run.path.parent / "sweep.toml").exists() else None


def _unlike(name: str, folder: str, names: list[str]) -> str:
    return f"{name} ({folder})" if names.count(name) > 1 else name


def _names(groups: list[dict[str, Record]]) -> list[str]:
    """Names of the groups of one sweep, or of those that belong to none: the folder's of a run that stands alone, else what differs."""
    settings = [flat(next(iter(group.values())).settings) for group in groups]
    differing = _differing(settings)
    last = [key.rpartition(".")[2] for key in dict.fromkeys(key for keys in differing for key in keys)]
    found: list[str] = []
    for group, own, keys in zip(groups, settings, differing, strict=True):
        folder, run = next(iter(group.items()))
        parts = [_part(key, own[key], last) for key in keys if key in own]
        short = (_sweep(run) or len(group) > 1) and len(parts) <= MOST_PARTS
        said = ", ".join(parts) or str(own.get("algorithm.name", folder))
        found.append(f"{_home(folder, run)}{said}" if short else folder)
    return found


def _home(folder: str, run: Record) -> str:
    """Which sweep a run is of, where the page shows several."""
    home = Path(folder).parent
    if home.name == "results" and (run.path.parent.parent / MARKER).exists():
        home = home.parent
    return "" if str(home) == "." or _sweep(run) is None else f"{home}: "


def _differing(settings: list[Tree]) -> list[list[str]]:
    """Which settings tell each group from others: an algorithm's among groups of that algorithm, a server step's likewise."""
    keys = [key for key in dict.fromkeys(key for own in settings for key in own) if key != "seed" and not key.endswith("fingerprint")]
    values: dict[tuple[str, object], set[str]] = {}
    for own in settings:
        for key in keys:
            values.setdefault((key, _kind(key, own)), set()).add(repr(own.get(key)))
    keys.sort(key=lambda key: key != "algorithm.name")
    return [[key for key in keys if len(values[key, _kind(key, own)]) > 1] for own in settings]


def _kind(key: str, own: Tree) -> object:
    """Among which groups a setting is compared."""
    kind = KINDS.get(key.partition(".")[0])
    return None if kind == key or kind is None else own.get(kind)


def _part(key: str, value: object, last: list[str]) -> str:
    name = key.rpartition(".")[2]
    if key == "algorithm.name":
        return str(value)
    return f"{name if last.count(name) == 1 else key}={value}"
