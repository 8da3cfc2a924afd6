"""The commands of a deployment: an app to start from, and a whole federation on this machine to try it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normec.errors import BadInput, NormecError


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

    from normec.config import parse_assignments
    from normec.console import progress
    from normec.files import Lock, making
    from normec.flower.loopback import Run, federation

    if owners not in ("local", "central", "none"):
        raise BadInput("owners", f"={owners!r} must be local, central or none.")
    if not (app / "pyproject.toml").is_file():
        raise BadInput("APP", f"={str(app)!r} holds no pyproject.toml. Write an app with: normec flower-app DIR")
    folder = out.resolve()
    settings = {"clients": clients, "folder": str(folder / "experiment"), **parse_assignments(changes or [])}
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
        state = run.state()
    if state != "finished:completed":
        raise NormecError(f"the run has ended as {state!r}. The logs are in {folder}.")
