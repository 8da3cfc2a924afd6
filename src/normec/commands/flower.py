"""The commands of a deployment: an app to start from, and a whole federation on this machine to try it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normec.errors import BadInput, NormecError, nearest


def flower_app(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")],
) -> None:
    """Write a complete Flower app to start from: handwritten digits, three clients."""
    import shutil

    from normec.files import new_folder

    shutil.copytree(
        Path(__file__).parent.parent / "flower" / "app", new_folder(out), dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    typer.echo(f"{out}: read its README.md; try it with: normec flower-run {out}")


def flower_run(
    app: Annotated[Path, typer.Argument(metavar="APP", help="An app's directory.")],
    changes: Annotated[list[str] | None, typer.Argument(metavar="[key=value …]", help="Changes to the app's config.")] = None,
    clients: Annotated[int, typer.Option(min=1, max=100, metavar="M", help="How many nodes to start.")] = 3,
    owners: Annotated[str, typer.Option(metavar="TRUST", help="What each node's owner accepts at least: local, central or none.")] = "none",
    max_epsilon: Annotated[float, typer.Option(metavar="ε", help="What each owner's client may spend, unless owners is none.")] = 10.0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="For certificates, states, logs; a run goes on with what lies there.")] = Path(
        "loopback"
    ),
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="What the run may take.")] = 3600.0,
) -> None:
    """Run a Flower app on this machine, over loopback, with TLS and a key for each node; all processes end with it.

    The nodes are node0, node1, … and read `partition-id` from their config. The app's config gets `clients` and `folder`.
    """
    import contextlib
    import json
    import re
    import signal
    import sys

    from normec.config import parse_assignments
    from normec.console import progress
    from normec.files import Lock, making
    from normec.flower.loopback import Run, federation

    if owners not in ("local", "central", "none"):
        raise BadInput("owners", f"={owners!r} must be local, central or none.")
    if not (app / "pyproject.toml").is_file():
        raise BadInput("APP", f"={str(app)!r} holds no pyproject.toml. Write an app with: normec flower-app DIR")
    folder, known = out.resolve(), app_settings(app)
    if folder.is_relative_to(app.resolve()):
        raise BadInput(
            "--out", f"={str(out)!r} lies in the app, and Flower would ship what is in it to the nodes. Choose a folder outside."
        )
    given = parse_assignments(changes or [])
    for key in given:
        if key not in known:
            raise BadInput(key, f" is no setting of the app ([tool.flwr.app.config] in its pyproject.toml). {nearest(key, known)}")
    for ending in (signal.SIGTERM, signal.SIGHUP):  # so that what was started ends, too
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    settings = {"clients": clients, "folder": str(folder / "experiment"), **given}
    names = [f"node{i}" for i in range(clients)]
    states = [f'partition-id={i} client-id="{name}" state-dir={json.dumps(str(folder / name))}' for i, name in enumerate(names)]
    limits = f'trust="{owners}"' + (f" max-epsilon={max_epsilon}" if owners != "none" else "")
    with making(folder):
        lock = Lock(folder, f"another federation is at work in {out}")
    with lock, contextlib.ExitStack() as started:
        with progress(f"starting a SuperLink and {clients} SuperNodes"):
            link, _ = started.enter_context(federation(folder, [f"{state} {limits}" for state in states]))
        run = started.enter_context(Run(link, app, settings))
        run.follow(lambda text: typer.echo(text, nl=False), timeout)
        state, text = run.state(), run.text()
    if state != "finished:completed":
        reasons = re.findall(r"normec\.errors\.\w+: (.+)", text)
        raise NormecError(f"{reasons[-1] if reasons else 'the run has failed.'} (It ended as {state!r}; the logs are in {folder}.)")
    typer.echo(
        f"done: the server's side is in {out / 'experiment'} (normec report, normec ledger), each client's in {out / 'node0'} and so on"
    )


def app_settings(app: Path) -> dict[str, object]:
    """The settings of an app, with their defaults.

    Raises:
        BadInput: where its pyproject.toml cannot be read.
    """
    import tomllib

    try:
        return dict(tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"].get("config", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput("APP", f"={str(app)!r}: its pyproject.toml is of no Flower app ({type(error).__name__}: {error}).") from None
