"""How a command ends where something is wrong: exit codes, one sentence, nothing that a terminal obeys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import normec
from conftest import Outcome, quadratic
from normec.algorithms.server_steps import ServerAdam
from normec.commands.answers import as_text
from normec.errors import BadInput, TrainingFailed, printable
from normec.hashed import read_with_hash, with_hash
from normec.terminal.console import Terminal

LONG = "x" * 300
HOSTILE = "a\x1b[31mb\x9b2J\u202ec\x07"
SHOWN = "a\\x1b[31mb\\x9b2J\\u202ec\\x07"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("train", "rounds=1", "--out", LONG), "out"),
        (("train", "rounds=1", "--out", "/".join(["y" * 200] * 30)), "out"),
        (("train", f"{LONG}.toml"), LONG),
        (("train", "rounds=1", f"data.source={LONG}.csv"), "data.source"),
        (("train", "rounds=1", f"model.start={LONG}.safetensors"), "model.start"),
        (("audit", "--out", LONG), "out"),
        (("ledger", LONG), LONG[:200]),
        (("report", LONG), LONG[:200]),
        (("datasets", f"{LONG}.csv"), LONG[:200]),
        (("datasets", "digits", "--picture", f"{LONG}.png"), "picture"),
    ],
)
def test_a_path_that_is_too_long_is_bad_input(words: tuple[str, ...], named: str, command: Callable[..., Outcome]) -> None:
    found = command(*words)
    last = found.err.splitlines()[-1]
    assert found.code == 2 and named in last and "intact" not in found.err, found.err
    assert not list(Path.cwd().iterdir())


def test_control_characters_are_shown_and_not_obeyed(command: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    assert printable(HOSTILE) == SHOWN and printable("ε\tα\n") == "ε\tα\n"
    assert json.loads(as_text({HOSTILE: HOSTILE})) == {HOSTILE: HOSTILE} and printable(as_text(HOSTILE)) == as_text(HOSTILE)
    from rich.table import Table

    table = Table()
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    console = Terminal(width=100)
    console.print(table)
    console.print(HOSTILE, markup=False)
    shown = capsys.readouterr().out
    assert shown.count(SHOWN) == 3 and printable(shown) == shown
    Path("F.toml").write_text('"k\\u001b[31m\\nnormec: fine" = 1\n')
    found = command("train", "F.toml")
    assert found.code == 2 and found.err.count("\n") == 1 and printable(found.err) == found.err and "\\x1b" in found.err


def test_names_of_a_table_are_shown_escaped(command: Callable[..., Outcome]) -> None:
    rows = "".join(f"{i / 7},{'ab'[i % 2]}\x1b]0;t\x07,c{i % 4}\x1b[2J\n" for i in range(40))
    Path("t.csv").write_text(f"x\x1b[31m,label,client\n{rows}")
    for words in (("datasets", "t.csv", "partition=column"), ("datasets", "t.csv", "partition=column", "--json")):
        found = command(*words)
        assert found.code == 0 and "\x1b" not in found.out + found.err and "\x07" not in found.out, found.err


def private(folder: Path, spoil: Callable[[Path], object], round: int) -> None:
    """A private run of 4 rounds, at one of which something happens to its folder."""

    class Observer:
        def started(self, plan: object) -> None: ...

        def round(self, row: dict[str, Any]) -> None:
            if row["round"] == round:
                spoil(folder)

    privacy = normec.Privacy(trust="central", noise_multiplier=1.0, delta=1e-3)
    quadratic([[1.0], [2.0]], algorithm=normec.FedNormEC(), privacy=privacy, rounds=4, out=folder, observer=Observer())


def replaced(path: Path) -> None:
    """The same content in another file."""
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


@pytest.mark.parametrize("round", [0, 2, 4])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda f: (f / "ledger.jsonl").unlink(),
        lambda f: (f / "metrics.jsonl").unlink(),
        lambda f: replaced(f / "ledger.jsonl"),
        lambda f: replaced(f / "metrics.jsonl"),
        lambda f: (f / "ledger.jsonl").open("a").write("{}\n"),
        lambda f: f.rename(f.with_name("moved")),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_run_whose_files_are_taken_away_ends(spoil: Callable[[Path], object], round: int, tmp_path: Path) -> None:
    with pytest.raises((TrainingFailed, OSError), match=r"ledger\.jsonl|metrics\.jsonl|No such file"):
        private(tmp_path / "run", spoil, round)
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"server": ServerAdam(tau=2e19)}, "server.tau"),
        ({"server": ServerAdam(tau=1e-25)}, "server.tau"),
    ],
)
def test_numbers_beyond_the_dtype_are_refused(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(BadInput, match=rf"^{name}="):
        quadratic([[1.0]], algorithm=normec.FedAvg(), engine=normec.Engine(dtype="float32"), **settings)
    quadratic([[1.0]], algorithm=normec.FedAvg(), **settings)  # float64 holds them


@pytest.mark.parametrize(
    ("name", "value"), [("rounds_done", "2"), ("rounds_done", None), ("given_up", 0.5), ("seconds", "x"), ("transmissions", [1])]
)
def test_a_checkpoint_with_counts_of_another_type_is_damaged(name: str, value: object, tmp_path: Path) -> None:
    out = tmp_path / "run"
    quadratic([[1.0]], algorithm=normec.FedAvg(), out=out)
    path = out / "checkpoint" / "state.safetensors"
    tensors, metadata = read_with_hash(path)
    path.write_bytes(with_hash(tensors, metadata | {name: json.dumps(value)}))
    with pytest.raises(BadInput, match=rf"^resume: the checkpoint is damaged \({name}="):
        quadratic([[1.0]], algorithm=normec.FedAvg(), out=out, resume=True)


def test_ctrl_c_while_the_command_is_built_ends_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "typer.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path / "slow"), *filter(None, sys.path)])
    found = subprocess.run(
        [sys.executable, "-m", "normec", "--help"], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 130 and found.stderr == "normec: interrupted\n" and not found.stdout


def test_no_module_of_the_working_directory_stands_for_a_library(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("open('ran', 'w')\n")
    found = subprocess.run([sys.executable, "-m", "normec", "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0 and found.stdout.startswith("normec ") and not (tmp_path / "ran").exists()


def test_a_reader_who_goes_away_ends_a_run_in_one_line_and_it_goes_on(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    words = [sys.executable, "-m", "normec", "train", "rounds=30", "privacy.trust=none", "--out", "run"]
    going = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert going.stdout is not None and going.stderr is not None
    assert going.stdout.readline().startswith("fed-normec: 100 clients")
    going.stdout.close()
    said = going.stderr.read().splitlines()[-1:]
    going.stderr.close()
    sentence = "normec: Nobody reads the output any more. What was saved is intact; resume with: normec train --out run --resume"
    assert (going.wait(), said) == (1, [sentence])
    resumed = command("train", "--out", str(tmp_path / "run"), "--resume")
    assert resumed.code == 0 and len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 31
