"""The commands of a deployment: an app to start from, and a whole federation on this machine to try it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from normec.errors import BadInput, NormecError, nearest


def flower_app(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")],
    table: Annotated[bool, typer.Option("--table", help="Each node reads a CSV file of its own, in place of digits.")] = False,
) -> None:
    """Write a complete Flower app to start from: handwritten digits, three clients; or with --table a CSV file on each node."""
    import shutil

    from normec.files import new_folder

    templates, unwanted = Path(__file__).parent.parent / "flower", shutil.ignore_patterns("__pycache__")
    new_folder(out)
    for template in ("app", "table_app") if table else ("app",):
        shutil.copytree(templates / template, out, dirs_exist_ok=True, ignore=unwanted)
    try_it = f"normec flower-run {out}"
    if table:
        try_it += "".join(f" --node data={out}-data/{name}.csv" for name in write_example_tables(out.with_name(f"{out.name}-data")))
    typer.echo(f"{out}: read its README.md; try it with: {try_it}")


def flower_run(
    app: Annotated[Path, typer.Argument(metavar="APP", help="An app's directory.")],
    changes: Annotated[list[str] | None, typer.Argument(metavar="[key=value …]", help="Changes to the app's config.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, max=100, metavar="M", help="How many nodes; 3, or one for each --node.")] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="'key=value …'", help="Of the first node's config, the second's, …")] = None,
    owners: Annotated[str, typer.Option(metavar="TRUST", help="What each node's owner accepts at least: local, central or none.")] = "none",
    max_epsilon: Annotated[float, typer.Option(metavar="ε", help="What each owner's client may spend, unless owners is none.")] = 10.0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="For certificates, states, logs; a run resumes from what lies there.")] = Path(
        "loopback"
    ),
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="What the run may take.")] = 3600.0,
) -> None:
    """Run a Flower app on this machine, over loopback, with TLS and a key for each node; all processes end with it.

    The nodes are node0, node1, … and read `partition-id` from their config. The app's config gets `clients` and `folder`.
    Each --node adds to the config of the next node, or changes it: --node 'data=a.csv max-epsilon=2'. A file that is there is
    given with its whole path.
    """
    import contextlib
    import re
    import signal
    import sys

    from normec.config import parse_assignments
    from normec.files import Lock, making
    from normec.flower.loopback import Run, federation
    from normec.terminal.console import progress

    if owners not in ("local", "central", "none"):
        raise BadInput("owners", value=owners, must="be local, central or none")
    if not (app / "pyproject.toml").is_file():
        raise BadInput("APP", "holds no pyproject.toml", value=app, remedy="Write an app with: normec flower-app DIR")
    folder, known, given_nodes = out.resolve(), app_settings(app), node or []
    if folder.is_relative_to(app.resolve()):
        raise BadInput(
            "--out", "lies in the app, and Flower would ship what is in it to the nodes", value=out, remedy="Choose a folder outside"
        )
    clients = clients or len(given_nodes) or 3
    if len(given_nodes) > clients:
        raise BadInput("--node", f"is given {len(given_nodes)} times for {clients} clients", remedy="Raise --clients, or leave some out")
    given = parse_assignments(changes or [])
    for key in given:
        if key not in known:
            raise BadInput(key, "is not a setting of the app ([tool.flwr.app.config] in its pyproject.toml)", remedy=nearest(key, known))
    limits: dict[str, object] = {"trust": owners} | ({"max-epsilon": max_epsilon} if owners != "none" else {})
    configs = [node_config(i, folder, limits, given_nodes[i] if i < len(given_nodes) else "") for i in range(clients)]
    for ending in (signal.SIGTERM, signal.SIGHUP):  # so that what was started ends, too
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    settings = {"clients": clients, "folder": str(folder / "experiment"), **given}
    with making(folder):
        lock = Lock(folder, BadInput("--out", f": another federation is at work in {out}", remedy="Wait for it, or choose another folder"))
    with lock, contextlib.ExitStack() as started:
        with progress(f"starting a SuperLink and {clients} SuperNodes"):
            link, _ = started.enter_context(federation(folder, configs))
        run = started.enter_context(Run(link, app, settings))
        run.follow(WithoutTracebacks(lambda text: typer.echo(text, nl=False)), timeout)
        state, text = run.state(), run.text()
    if state != "finished:completed":
        reasons = re.findall(r"normec\.errors\.\w+: (.+)", text)
        raise NormecError(f"{reasons[-1] if reasons else 'the run has failed.'} (It ended as {state!r}; the logs are in {folder}.)")
    typer.echo(
        f"done: the server's side is in {out / 'experiment'} (normec report, normec ledger), each client's in {out / 'node0'} and so on"
    )


def node_config(number: int, folder: Path, limits: Mapping[str, object], text: str) -> str:
    """A node's config as Flower reads it, changed by what the command line says of this node.

    Raises:
        BadInput: for what is no config, or what the owner's half of it does not allow.
    """
    import json
    import shlex

    from normec.config import parse_assignments
    from normec.flower.owner import Owner

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput("--node", f"cannot be read ({error})", value=text, remedy="Write it as 'key=value key=value'") from None
    given = parse_assignments(words)
    for key, value in given.items():
        if not isinstance(value, str | int | float):
            raise BadInput(f"--node: {key}", value=value, must="be a text or a number")
        if isinstance(value, str) and Path(value).exists():
            given[key] = str(Path(value).resolve())
    name = f"node{number}"
    config = {"partition-id": number, "client-id": name, "state-dir": str(folder / name), **limits, **given}
    Owner.of(config)
    return " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in config.items())


class WithoutTracebacks:
    """Shows a growing log but for Python's tracebacks, whose last line alone is shown: the whole log lies in its file."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._rest, self._inside = show, "", False

    def __call__(self, text: str) -> None:
        """Shows more of the log; an unfinished line waits for its end."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.startswith("Traceback (most recent call last):"):
                self._inside = True
            elif self._inside and line and not line[0].isspace():
                self._inside = False
            if not self._inside:
                self._show(f"{line}\n")


def write_example_tables(folder: Path) -> list[str]:
    """Three hospitals' tables to try the app with, drawn at random: age, blood pressure, marker, and whether the outcome came.

    Raises:
        BadInput: where the folder holds something already.
    """
    import numpy as np

    from normec.files import new_folder

    new_folder(folder)
    names = ["a", "b", "c"]
    for number, name in enumerate(names):
        draw = np.random.default_rng(number)
        age, pressure, marker = draw.triangular(30, 60 + 5 * number, 95, 240), draw.triangular(90, 130, 180, 240), draw.gamma(2, 1.5, 240)
        chance = 1 / (1 + np.exp(-((age - 65) / 12 + (pressure - 130) / 20 + marker - 3)))
        rows = zip(age, pressure, marker, draw.random(240) < chance, strict=True)
        lines = ["age,pressure,marker,outcome", *(f"{a:.0f},{p:.0f},{m:.2f},{int(y)}" for a, p, m, y in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return names


def app_settings(app: Path) -> dict[str, object]:
    """The settings of an app, with their defaults.

    Raises:
        BadInput: where its pyproject.toml cannot be read.
    """
    import tomllib

    try:
        return dict(tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"].get("config", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput("APP", f": its pyproject.toml is of no Flower app ({type(error).__name__}: {error})", value=app) from None
