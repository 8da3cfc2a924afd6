"""The typed configuration: TOML files and `key=value` arguments, merged in order, become an experiment."""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from normec.algorithms import Algorithm, ServerStep, algorithm_from_table, algorithm_table, server_step_from_table
from normec.data import Data, Federation, load
from normec.data.settings import NEEDS
from normec.engine import Engine
from normec.errors import BadInput, nearest
from normec.evaluation import Evaluation
from normec.imports import check_trust
from normec.local import LocalMethod, local_from_table
from normec.models import Model, factory, loss_function
from normec.models.readings import wanted
from normec.privacy import Privacy
from normec.privacy.participation import Participation, participation_from_table
from normec.runs.experiment import Experiment, Schedule, Theory
from normec.settings import Settings, Tree
from normec.streams import Streams

SECTIONS = ("data", "model", "local", "algorithm", "server", "participation", "privacy", "engine", "theory", "evaluation")
DEFAULT_ALGORITHM = "fed-normec"


@dataclass(frozen=True)
class RunConfig:
    """A resolved configuration: every setting of a run, checked except for what needs the data."""

    schedule: Schedule
    data: Data
    model: Model
    local: LocalMethod
    algorithm: Algorithm
    server: ServerStep
    participation: Participation
    privacy: Privacy
    engine: Engine
    theory: Theory
    evaluation: Evaluation

    @classmethod
    def from_tree(cls, tree: Tree) -> RunConfig:
        """Checks a merged tree of settings; what it leaves out takes its default.

        Raises:
            BadInput: naming the first setting that is unknown, of a wrong type or out of range.
        """
        tables = {name: _table(tree, name) for name in SECTIONS}
        root = {key: value for key, value in tree.items() if key not in SECTIONS}
        for key in root:
            if key not in Schedule.model_fields:
                raise BadInput(key, "is not a setting", remedy=_hint(key))
        algorithm = algorithm_from_table(tables["algorithm"])
        if algorithm.one_gradient:
            tables["local"] = {"steps": 1, **tables["local"]}
        return cls(
            schedule=Schedule(**root),
            data=Data.from_table("data", tables["data"]),
            model=Model.from_table("model", tables["model"]),
            local=local_from_table(tables["local"]),
            algorithm=algorithm,
            server=server_step_from_table(tables["server"]),
            participation=participation_from_table(tables["participation"]),
            privacy=Privacy.from_table("privacy", _with_default_promise(tables["privacy"])),
            engine=Engine.from_table("engine", tables["engine"]),
            theory=Theory.from_table("theory", tables["theory"]),
            evaluation=Evaluation.from_table("evaluation", tables["evaluation"]),
        )

    def toml(self, delta: float | None = None) -> str:
        """The configuration in full, with the δ that was chosen, from which the run can be repeated anywhere."""
        tree: Tree = {
            **self.schedule.table(),
            "data": self.data.resolved().table(),
            "model": self.model.resolved().table(),
            "local": {"method": self.local.method, **self.local.table()},
            "algorithm": algorithm_table(self.algorithm),
            "server": {"optimizer": self.server.optimizer, **self.server.table()},
            "participation": {"scheme": self.participation.scheme, **self.participation.table()},
            "privacy": self.privacy.changed(delta=delta or self.privacy.delta).table(),
            "engine": self.engine.table(),
            "theory": self.theory.table(),
            "evaluation": self.evaluation.table(),
        }
        return tomli_w.dumps(tree)

    def evaluated_at_the_end(self) -> RunConfig:
        """The same run, evaluated before and after it alone."""
        return replace(self, engine=self.engine.changed(eval_every=self.schedule.rounds))

    def federation(self) -> Federation:
        """The data, with the targets that the loss asks for.

        Raises:
            BadInput: for a source that cannot be used.
        """
        return load(self.data, Streams(self.schedule.seed), wanted(loss_function(self.model)))

    def experiment(self) -> Experiment:
        """Loads the data and the model's factory.

        Raises:
            BadInput: for a source or a factory that cannot be used.
        """
        return Experiment(
            model=factory(self.model),
            data=self.federation(),
            algorithm=self.algorithm,
            local=self.local,
            participation=self.participation,
            privacy=self.privacy,
            schedule=self.schedule,
            server=self.server,
            engine=self.engine,
            theory=self.theory,
            evaluation=self.evaluation,
            loss=loss_function(self.model),
            start=None if self.model.start is None else Path(self.model.start),
        )


def resolve(file: Path | None, assignments: Iterable[str], trust_code: bool = False) -> RunConfig:
    """The configuration of a TOML file (or the built-in demo) changed by `key=value` arguments; later ones win."""
    return RunConfig.from_tree(merged(file, parse_assignments(assignments), trust_code))


def merged(file: Path | None, changes: Tree, trust_code: bool, typed: Tree | None = None) -> Tree:
    """The settings of a TOML file, changed. trust_code: whether code that the file names may run. typed: what else nobody's file says.

    Raises:
        BadInput: for code that is not trusted, before any of it runs.
    """
    tree = merge(read_toml(file) if file else {}, changes)
    if not trust_code:
        check_trust(file, tree, {**changes, **(typed or {})})
    return tree


def resolve_data(source: Path | None, assignments: Iterable[str], trust_code: bool = False) -> tuple[Data, int]:
    """The [data] section and the seed of a TOML file, or of a `data.source`, changed by `key=value`, where key may leave out `data.`.

    Raises:
        BadInput: as for a run, and for a key of another section.
    """
    short = re.compile(r"\s*(?!seed\s*=)[^.=]+=")
    changes = parse_assignments(f"data.{text.strip()}" if short.match(text) else text for text in assignments)
    for section in changes:
        if section not in ("data", "seed"):
            raise BadInput(section, "is not a setting of the data", remedy="Give keys of [data], or seed")
    if source is None or source.suffix == ".toml":
        before = {key: value for key, value in (read_toml(source) if source else {}).items() if key in ("data", "seed")}
    else:
        before = {"data": {"source": str(source)}}
    tree = merge(before, changes)
    if source is not None and source.suffix == ".toml" and not trust_code:
        check_trust(source, tree, changes)
    seed = {"seed": tree["seed"]} if "seed" in tree else {}
    return Data.from_table("data", _table(tree, "data")), Schedule(**seed).seed


def read_toml(path: Path) -> Tree:
    """A TOML file as a tree of settings."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise BadInput(str(path), "does not exist", remedy="Give the path of a TOML file") from None
    except OSError as error:
        raise BadInput(str(path), f"cannot be read ({error.strerror})", remedy="Give a readable TOML file") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(str(path), f"is not valid TOML: {error}") from None


def parse_assignments(texts: Iterable[str]) -> Tree:
    """Several `key=value` as one tree, from left to right."""
    tree: Tree = {}
    for text in texts:
        tree = _overlay(tree, parse_assignment(text))
    return tree


def parse_assignment(text: str) -> Tree:
    """`a.b=c` as a tree; c is a TOML value, or else a plain string."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts) or len(parts) > 2:
        raise BadInput(repr(text), "is not a setting", remedy="Write key=value or section.key=value")
    parsed: Any = value.strip()
    with contextlib.suppress(ValueError, RecursionError):
        parsed = parsed if "\n" in parsed else tomllib.loads(f"value = {parsed}")["value"]
    return {parts[0]: parsed} if len(parts) == 1 else {parts[0]: {parts[1]: parsed}}


def merge(file: Tree, changes: Tree) -> Tree:
    """The settings of a file changed by those of the command line, which win.

    A changed `algorithm.name` starts its section afresh, since the file's keys belonged to another algorithm, and so does a changed
    `server.optimizer`. Keys of the
    file that contradict a change give way: epsilon and noise_multiplier to each other and both to trust="none", rate to
    scheme="full" and to another local method, and the settings of a partition to another partition.
    """
    before = {name: {**table} if isinstance(table, dict) else table for name, table in file.items()}
    for section, changed in changes.items():
        if isinstance(changed, dict) and isinstance(before.get(section), dict):
            for key in _outdated(section, before[section], changed):
                before[section].pop(key, None)
    return _overlay(before, changes)


def _outdated(section: str, before: Tree, changes: Tree) -> set[str]:
    """The keys of a file's section that changes to it make void."""
    if section == "algorithm" and changes.get("name", DEFAULT_ALGORITHM) != before.get("name", DEFAULT_ALGORITHM):
        return set(before) if "name" in changes else set()
    if section == "server" and changes.get("optimizer", before.get("optimizer")) != before.get("optimizer", "sgd"):
        return set(before)
    void: set[str] = set()
    if section == "privacy":
        void |= {"epsilon"} if "noise_multiplier" in changes else set()
        void |= {"noise_multiplier"} if "epsilon" in changes else set()
        void |= {"epsilon", "noise_multiplier", "delta", "stop_at"} if changes.get("trust") == "none" else set()
        void |= {"min_honest", "colluders", "dropouts"} if changes.get("trust", "secagg") != "secagg" else set()
        void |= {"client_limit"} if changes.get("trust", "local") not in ("secagg", "local") else set()
    if section == "local" and changes.get("method", "poisson") != "poisson":
        void |= {"rate"}
    if section == "participation" and changes.get("scheme") == "full":
        void |= {"rate"}
    if section == "data" and "partition" in changes:
        void |= set(NEEDS) if changes["partition"] != before.get("partition") else set()
        void |= {"clients"} if changes["partition"] == "column" else set()
    return void


def _overlay(tree: Tree, changes: Tree) -> Tree:
    """Both trees, `changes` winning key by key."""
    both = dict(tree)
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = both[key] | value if nested else value
    return both


def _with_default_promise(privacy: Tree) -> Tree:
    """The demo's trust and ε, where a configuration names neither noise nor another trust."""
    promise: Tree = {"trust": "central"} | privacy
    if promise["trust"] != "none" and not {"epsilon", "noise_multiplier"} & privacy.keys():
        promise["epsilon"] = 8.0
    return promise


def _hint(key: str) -> str:
    """The section that has a setting of this name, or the nearest name."""
    groups: dict[str, type[Settings]] = {
        "data": Data, "model": Model, "local": LocalMethod, "privacy": Privacy, "engine": Engine, "theory": Theory,
        "evaluation": Evaluation,
    }  # fmt: skip
    homes = [f"{section}.{key}" for section, group in groups.items() if key in group.model_fields]
    return f"Did you mean {' or '.join(homes)}?" if homes else nearest(key, (*Schedule.model_fields, *SECTIONS))


def _table(tree: Tree, name: str) -> Tree:
    table = tree.get(name, {})
    if not isinstance(table, dict):
        raise BadInput(name, value=table, must="be a section", remedy=f"Write [{name}] in the file, or {name}.key=value")
    return table
