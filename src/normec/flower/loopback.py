"""A whole federation on this machine, over loopback: to try an app before it goes out (`normec flower-run`).

A SuperLink with TLS, a SuperNode with its own key for each client, and `flwr run`, as separate processes whose files lie in one
folder. A token in the environment marks all that a process starts; everything is ended by pid, whatever happens.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil
from cryptography.hazmat.primitives import serialization as ser
from cryptography.hazmat.primitives.asymmetric import ec

from normec.errors import BadInput, NormecError

QUICKER = """import time
_sleep = time.sleep
time.sleep = lambda seconds: _sleep(0.3 if seconds == 3 else seconds)
"""
"""Of Flower's processes on this machine, as a `sitecustomize`: the polls that it fixes at 3 s take 0.3 s."""

Config = Mapping[str, str | int | float | bool]


def certificates(folder: Path, nodes: int) -> Path:
    """Write ca.crt, server.crt, server.key (for 127.0.0.1 and localhost, one day) and P-384 keys node0, node0.pub, ... for SuperNodes."""
    try:
        import trustme
    except ImportError:
        raise BadInput(
            "normec.flower", "needs trustme for a federation on this machine", remedy="Install it with pip install 'normec[flower]'"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    authority, tomorrow = trustme.CA(), datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    server = authority.issue_cert("localhost", "127.0.0.1", not_after=tomorrow)
    certificate, key = server.cert_chain_pems[0], server.private_key_pem
    files = {"ca.crt": authority.cert_pem.bytes(), "server.crt": certificate.bytes(), "server.key": key.bytes()}
    for i in range(nodes):
        node = ec.generate_private_key(ec.SECP384R1())
        files[f"node{i}"] = node.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.OpenSSH, ser.NoEncryption())
        files[f"node{i}.pub"] = node.public_key().public_bytes(ser.Encoding.OpenSSH, ser.PublicFormat.OpenSSH)
    for name, data in files.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(data)
    return folder


def quicker(folder: Path) -> dict[str, str]:
    """The environment in which Flower's processes poll more often than their own defaults do."""
    path = folder / "quicker"
    path.mkdir(parents=True, exist_ok=True)
    (path / "sitecustomize.py").write_text(QUICKER)
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH"))))}


def free_port() -> int:
    """Return a TCP port of loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def until(condition: Callable[[], object], timeout: float, what: str) -> None:
    """Wait for the condition, at most `timeout` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise NormecError(f"{what}: not within {timeout:.0f} s")
        time.sleep(0.05)


class Process:
    """One Flower command (not started yet) with everything it spawns, its log file and its private FLWR_HOME."""

    def __init__(self, folder: Path, name: str, extra: Mapping[str, str], home: Path | None = None) -> None:
        self.folder, self.name, self.log, self.home = folder, name, folder / f"{name}.log", home or folder / f"home-{name}"
        self.home.mkdir(parents=True, exist_ok=True)
        self.popen: subprocess.Popen[bytes] | None = None
        self.offset, self.token, path = 0, uuid.uuid4().hex, sysconfig.get_path("scripts") + os.pathsep + os.environ.get("PATH", "")
        self.environment = os.environ | {"FLWR_HOME": str(self.home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        self.environment |= {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2", "PATH": path}
        self.environment |= {"PYTHONUNBUFFERED": "1", "NORMEC_LOOPBACK": self.token, **extra}
        self.environment.setdefault("OMP_NUM_THREADS", "1")  # several nodes share this machine

    def launch(self, *command: str | Path) -> None:
        """Start the command in a session of its own; its output is appended to the log."""
        with self.log.open("ab") as log:
            self.offset = log.tell()
            self.popen = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,  # noqa: S603
                                          cwd=self.folder, start_new_session=True)  # fmt: skip

    def text(self) -> str:
        """Return what was logged since the last start (the file `log` keeps everything)."""
        return self.log.read_bytes()[self.offset :].decode(errors="replace") if self.log.exists() else ""

    def until(self, pattern: str, timeout: float, begin: Callable[[], None] | None = None, again: str = "") -> re.Match[str]:
        """Wait until the log matches the pattern. Where the command ended without it: begin (anew, if its log shows `again`), or raise."""
        end = time.monotonic() + timeout
        while True:
            if begin and not self.alive():
                begin()
            until(lambda: re.search(pattern, self.text()) or not self.alive(), end - time.monotonic(), f"{pattern!r} in {self.log}")
            if found := re.search(pattern, self.text()):
                return found
            self.kill()
            if not (begin and re.search(again, self.text())):
                raise NormecError(f"{self.name} ended without {pattern!r}:\n{self.text()[-2000:]}")

    def alive(self) -> bool:
        """Say whether the command itself still runs."""
        return self.popen is not None and self.popen.poll() is None

    def pids(self) -> list[int]:
        """Return the pids of the command and of everything it spawned that still runs, orphans and other sessions included."""
        processes = psutil.process_iter(["environ"])
        return [each.pid for each in processes if (each.info["environ"] or {}).get("NORMEC_LOOPBACK") == self.token]

    def kill(self, first: signal.Signals = signal.SIGKILL, timeout: float = 10) -> None:
        """End the command and all its descendants with SIGKILL, as a power failure would."""
        if self.popen is not None and self.alive():
            os.killpg(self.popen.pid, first)  # start_new_session: the group's id is the pid
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(timeout)
        for pid in (pid for _ in range(100) for pid in self.pids()):  # until none is left
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not (self.alive() or self.pids()), timeout, f"the end of {self.name}")

    def stop(self) -> None:
        """End the command as Ctrl-C would (a SuperNode says goodbye), then kill whatever is left."""
        self.kill(signal.SIGINT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


class Link(Process):
    """A `flower-superlink` with TLS, SuperNode authentication and a database that survives it; start it again: the port stays."""

    def __init__(self, folder: Path, certs: Path, extra: Mapping[str, str]) -> None:
        super().__init__(folder, "link", extra)
        self.certs, self.extra, self.port = certs.resolve(), extra, 0

    def start(self, timeout: float = 60) -> Self:
        """Start and wait until it serves; take another port where the first one was taken meanwhile."""
        fixed = self.port

        def begin() -> None:
            self.port = fixed or free_port()
            self.launch("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--ssl-ca-certfile", self.certs / "ca.crt",
                        "--ssl-certfile", self.certs / "server.crt", "--ssl-keyfile", self.certs / "server.key", "--enable-supernode-auth",
                        "--disable-runtime-dependency-installation", "--database", self.folder / "state.db")  # fmt: skip

        self.until("Uvicorn running on https://", timeout, begin, "address already in use")
        address = f'[superlink.test]\naddress = "127.0.0.1:{self.port}"\nroot-certificates = {json.dumps(str(self.certs / "ca.crt"))}\n'
        (self.home / "config.toml").write_text(address)
        return self

    def flwr(self, *calls: Sequence[object]) -> str:
        """Run `flwr` commands against this SuperLink, all in one process (each start costs seconds); return what they printed."""
        code = f"from flwr.cli.app import app\nfor call in {[list(map(str, call)) for call in calls]}: app(call, standalone_mode=False)"
        command = [sys.executable, "-c", code]
        done = subprocess.run(  # noqa: S603 (our own arguments, no shell)
            command, env=self.environment, capture_output=True, text=True, timeout=60, cwd=self.folder
        )
        if done.returncode:
            raise NormecError(f"flwr {calls}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def register(self, nodes: int) -> list[int]:
        """Register the first SuperNodes' public keys; return their node ids."""
        printed = self.flwr(*(["supernode", "register", self.certs / f"node{i}.pub", "test", "--format", "json"] for i in range(nodes)))
        return [int(found) for found in re.findall(r'"node-id": "?(\d+)', printed)]


class Node(Process):
    """A `flower-supernode` of a Link, with the key of that number, a node config ('client-id="a" n=3') and further options."""

    def __init__(self, link: Link, number: int, config: str = "", *options: str) -> None:
        super().__init__(link.folder, f"node{number}", link.extra)
        self.link, self.id, self.options = link, 0, [*(["--node-config", config] if config else []), *options]

    def begin(self) -> None:
        """Start without waiting, so that several nodes come up side by side."""
        self.launch("flower-supernode", "--superlink", f"127.0.0.1:{self.link.port}", "--root-certificates", self.link.certs / "ca.crt",
                    "--auth-supernode-private-key", self.link.certs / self.name, "--port", str(free_port()), *self.options)  # fmt: skip

    def start(self, timeout: float = 90) -> Self:
        """Start and wait for the SuperLink to accept the node; try again while it refuses (exit 305: it holds the last one for alive)."""
        self.id = int(self.until(r"SuperNode ID: (\d+)", timeout, self.begin, "Exit Code: 305|address already in use")[1])
        return self


class Run(Process):
    """A run that `flwr run --stream` submits and follows: its log is the ServerApp's. The app must know the config's keys."""

    def __init__(self, link: Link, app: Path, config: Config | None = None) -> None:
        super().__init__(link.folder, f"run-{uuid.uuid4().hex[:8]}", link.extra, link.home)
        self.link, file = link, self.log.with_suffix(".toml")
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in (config or {}).items()))
        self.launch("flwr", "run", app.resolve(), "test", "--stream", *(("--run-config", file) if config else ()))

    def state(self) -> str:
        """Ask the SuperLink: pending, starting, running, finished:completed, finished:failed, finished:stopped; or refused."""
        if found := re.search(r"Successfully started run (\d+)", self.text()):
            listed = self.link.flwr(["list", "test", "--run-id", found[1], "--format", "json"])
            return str(re.findall(r'"status": "(.*?)"', listed)[0])
        return "refused"

    def follow(self, show: Callable[[str], None], timeout: float) -> None:
        """Shows the ServerApp's log as it grows, until the run ends.

        Raises:
            NormecError: where that takes longer than `timeout` seconds.
        """
        shown, end = 0, time.monotonic() + timeout
        while (alive := self.alive()) or shown < len(self.text()):
            text = self.text()
            show(text[shown:])
            shown = len(text)
            if alive and time.monotonic() > end:
                raise NormecError(f"the run did not end within {timeout:g} s and was stopped; its log is {self.log}")
            time.sleep(0.2 if alive else 0)

    def wait(self, timeout: float) -> tuple[str, str]:
        """Wait for the end of the run; return its state and its log."""
        until(lambda: not self.alive(), timeout, f"the end of the run, see {self.log}")
        return self.state(), self.text()


def run(link: Link, app: Path, config: Config | None = None, timeout: float = 120) -> tuple[str, str]:
    """Submit an app and wait for its end; return the run's state and the ServerApp's log."""
    with Run(link, app, config) as submitted:
        return submitted.wait(timeout)


@contextlib.contextmanager
def federation(folder: Path, configs: Sequence[str], extra: Mapping[str, str] | None = None) -> Iterator[tuple[Link, list[Node]]]:
    """Start a SuperLink and one registered SuperNode for each node config, side by side; end all processes whatever happens."""
    with contextlib.ExitStack() as stack:
        certs, environment = certificates(folder / "certificates", len(configs)), {**quicker(folder), **(extra or {})}
        link = stack.enter_context(Link(folder, certs, environment)).start()
        link.register(len(configs))
        nodes = [stack.enter_context(Node(link, i, config)) for i, config in enumerate(configs)]
        for node in nodes:
            node.begin()
        yield link, [node.start() for node in nodes]
