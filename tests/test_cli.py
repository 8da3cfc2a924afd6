"""The command: help without waiting, the table, the folder, precedence of settings."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import normec
from conftest import Outcome
from normec.runs.experiment import prepare
from normec.runs.loop import execute
from normec.studies.compare import Comparison
from normec.terminal.console import ConsoleObserver

Command = Callable[..., Outcome]


def test_help_does_not_import_torch() -> None:
    code = "import sys; sys.argv = ['normec', '--help']\nfrom normec.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "heavy = {'torch', 'scipy', 'sklearn', 'pyarrow', 'pydantic', 'dp_accounting'} & set(sys.modules)\nassert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout


def test_help_shows_whole_summaries_and_plain_brackets(command: Command) -> None:
    overview = " ".join(command("--help").out.split())
    for ending in ("of a client's directory all of them, and their total.", "and the bound they give.", "it works offline."):
        assert ending in overview
    assert "..." not in overview.partition("Commands:")[2]
    assert "[required]" in command("ledger", "--help").out and "\\[" not in command("compare", "--help").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compar"], "No such command 'compar'. Did you mean 'compare'? See normec --help."),
        (["--versoin"], "No such option '--versoin'. Did you mean '--version'? See normec --help."),
        (["train", "--rsume"], "No such option '--rsume'. Did you mean '--resume'? See normec train --help."),
        (["ledger"], "Missing argument 'DIR'. See normec ledger --help."),
        (["ledger", "run", "--delta", "x"], "Invalid value for '--delta': 'x' is not a valid float. See normec ledger --help."),
    ],
)
def test_a_command_line_that_is_none_is_answered_in_one_line(command: Command, arguments: list[str], said: str) -> None:
    assert command(*arguments) == Outcome(2, "", f"normec: {said}\n")


def test_a_module_is_run_as_the_command_is() -> None:
    done = subprocess.run([sys.executable, "-m", "normec", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"normec {normec.__version__}\n")


def test_completion_can_be_installed(command: Command) -> None:
    assert "--install-completion" in command("--help").out


def test_progress_in_a_notebook_is_lines_of_one_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel says of its output that it is a terminal."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ConsoleObserver() as observer:
        observer.round({"round": 0, "train_loss": 0.5, "test_accuracy": None, "epsilon": None})
        assert not observer.console.is_terminal and observer._progress.console is observer.console
    assert capsys.readouterr().out == "round    0/0  loss 0.5000  accuracy –  not private\n"


def test_version(command: Command) -> None:
    assert command("--version").out.strip() == f"normec {normec.__version__}"


def test_train_writes_a_folder_and_ends_with_the_claim(command: Command) -> None:
    done = command("train", "rounds=12", "privacy.epsilon=3", "participation.rate=1.0", "--out", "run")
    assert done.code == 0 and done.err == ""
    assert "\x1b" not in done.out and "\r" not in done.out  # no control characters when it is not a terminal
    for word in (
        "test accuracy", "test loss", "(ε, δ)", "client", "zero-out", "central", "full", "accountant", "transmissions", "1,200", "bytes", "run",
    ):  # fmt: skip
        assert word in done.out
    last = done.out.strip().splitlines()[-1]
    assert last.startswith("Client-level (ε = 3.000, δ = 1e-05)") and "simulation, not for release" in last
    assert "round   12/12" in done.out and "ε spent 3.000" in done.out

    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(13))
    assert set(rows[1]) == {
        "round", "train_loss", "test_loss", "test_accuracy", "transmissions", "bytes_up", "bytes_down", "epsilon", "seconds",
        "simulation_only", "hash",
    }  # fmt: skip
    assert rows[0]["epsilon"] == 0 and rows[0]["transmissions"] == 0
    assert [row["transmissions"] for row in rows] == [100 * k for k in range(13)]
    assert rows[-1]["bytes_up"] == rows[-1]["bytes_down"] == 4 * 650 * 1200
    assert all(b["epsilon"] > a["epsilon"] for a, b in itertools.pairwise(rows)) and rows[-1]["epsilon"] <= 3

    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["epsilon"] == rows[-1]["epsilon"] and summary["claim"] == last
    assert {path.name for path in Path("run").iterdir()} == {
        "run.toml",
        "metrics.jsonl",
        "ledger.jsonl",
        "ledger.head",
        "summary.json",
        "clients.json",
        "model.safetensors",
        "checkpoint",
    }


def test_not_private_says_so_everywhere(command: Command) -> None:
    done = command("train", "rounds=2", "privacy.trust=none", "--out", "run")
    assert done.code == 0
    assert done.out.strip().splitlines()[-1] == "Not private: nobody adds noise, ε = ∞."
    text = Path("run/summary.json").read_text() + Path("run/metrics.jsonl").read_text()
    assert "Infinity" not in text and "NaN" not in text
    assert json.loads(Path("run/summary.json").read_text())["private"] is False


def test_later_settings_win(command: Command) -> None:
    Path("run.toml").write_text("rounds = 50\n[local]\nlr = 0.1\nsteps = 2\n[privacy]\nepsilon = 2.0\n")
    assert command("train", "run.toml", "rounds=3", "local.lr=0.2", "local.lr=0.3", "privacy.noise_multiplier=5", "--out", "run").code == 0
    resolved = tomllib.loads(Path("run/run.toml").read_text())
    assert resolved["rounds"] == 3 and resolved["local"]["lr"] == 0.3 and resolved["local"]["steps"] == 2
    assert resolved["privacy"]["noise_multiplier"] == 5 and "epsilon" not in resolved["privacy"]


def test_another_algorithm_starts_its_section_afresh(command: Command) -> None:
    Path("run.toml").write_text('[algorithm]\nname = "fed-normec"\nalpha = 0.5\n')
    assert command("train", "run.toml", "algorithm.name=dp-fedavg-clip", "algorithm.clip_norm=2", "rounds=1", "--out", "run").code == 0
    assert tomllib.loads(Path("run/run.toml").read_text())["algorithm"] == {
        "name": "dp-fedavg-clip", "clip_norm": 2, "server_lr": 1.0, "on": "gradient",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("[algorithm]\nalpha = 0.5", ["algorithm.clip_norm=2", "algorithm.name=dp-fedavg-clip"]),
        ('[data]\npartition = "dirichlet"\nconcentration = 0.1', ["data.partition=iid"]),
        ('[data]\npartition = "shards"\nclasses_per_client = 3', ["data.partition=dirichlet", "data.concentration=1.0"]),
        ('[participation]\nscheme = "fixed"\nrate = 0.1', ["participation.scheme=full"]),
        ("[privacy]\nnoise_multiplier = 3.0", ["privacy.epsilon=2.0"]),
        ("[local]\nlr = 0.125\nsteps = 2", ["local.method=rr"]),
        ('[local]\nmethod = "poisson"\nrate = 0.3\nlr = 0.125\nsteps = 2', ["local.method=sgd"]),
    ],
)
def test_settings_of_a_file_give_way_to_contradicting_changes(command: Command, file: str, changes: list[str]) -> None:
    from normec.config import resolve

    Path("run.toml").write_text(file)
    resolved = tomllib.loads(resolve(Path("run.toml"), changes).toml())
    for change in changes:
        key, value = change.split("=")
        section, name = key.split(".")
        assert str(resolved[section][name]) in (value, f"{value}.0")
    if "local" in file:
        assert resolved["local"]["lr"] == 0.125 and resolved["local"]["steps"] == 2


def test_the_data_path_is_kept_whole(command: Command) -> None:
    from normec.config import resolve

    assert tomllib.loads(resolve(None, ["data.source=table.csv"]).toml())["data"]["source"] == str(Path("table.csv").absolute())


def test_privacy_can_be_switched_off_over_a_file(command: Command) -> None:
    Path("run.toml").write_text("rounds = 1\n[privacy]\nepsilon = 2.0\ndelta = 1e-6\n")
    assert command("train", "run.toml", "privacy.trust=none", "--out", "run").code == 0


def test_delta_that_is_too_large_is_warned_about(command: Command) -> None:
    done = command("train", "rounds=1", "privacy.delta=0.02", "--out", "run")
    assert "warning: delta=0.02 is not below 1/clients=0.01" in done.out
    assert json.loads(Path("run/summary.json").read_text())["claim"].endswith("Warning: δ is not below 1/clients = 0.01.")


def test_default_folder_is_new_each_time(command: Command) -> None:
    assert command("train", "rounds=1").code == command("train", "rounds=1").code == 0
    assert len(list(Path("runs").iterdir())) == 2


def test_diverging_run_names_the_round(command: Command) -> None:
    done = command("train", "rounds=30", "privacy.trust=none", "algorithm.server_lr=1e30", "model.name=mlp", "--out", "run")
    assert done.code == 1
    assert done.err.startswith("normec: round ") and len(done.err.strip().splitlines()) == 1
    assert Path("run/metrics.jsonl").read_text().count("\n") >= 1


def test_own_data_and_model_by_import_path(command: Command) -> None:
    Path("own_things.py").write_text(
        "import numpy as np, torch, normec\n"
        "def data():\n"
        "    x = np.random.default_rng(0).normal(size=(60, 3))\n"
        "    return normec.Federation.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(60) % 6, test=(x, (x[:, 0] > 0).astype(int)))\n"
        "def model(classes):\n"
        "    return torch.nn.Linear(3, classes)\n"
    )
    done = command("train", "data.source=own_things:data", "model.name=own_things:model", "privacy.trust=none", "rounds=3", "--out", "run")
    assert done.code == 0, done.err
    assert "6 clients, 60 training samples, 8 parameters" in done.out


@pytest.mark.parametrize("scheme", ["poisson", "fixed", "full"])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_every_sampling_and_adjacency_trains_within_its_epsilon(command: Command, scheme: str, adjacency: str) -> None:
    rate = [] if scheme == "full" else ["participation.rate=0.3"]
    done = command("train", "rounds=3", f"participation.scheme={scheme}", *rate, f"privacy.adjacency={adjacency}", "--out", "run")
    assert done.code == 0, done.err
    summary = json.loads(Path("run/summary.json").read_text())
    assert 7.99 <= summary["epsilon"] <= 8 and summary["sampling"] == scheme and summary["adjacency"] == adjacency
    assert summary["sensitivity"] == (2 if adjacency == "replace-one" else 1)


def test_what_a_reader_should_notice_in_a_result(command: Command) -> None:
    """A loss that rose again, a client that spent more than the claim before sampling, a column that says nothing."""
    done = command("train", "algorithm.name=dp-scaffold", "algorithm.clip_norm=0.3", "algorithm.server_lr=1")
    assert done.code == 0 and "warning: the training loss rose again, from" in done.out
    done = command("train", "privacy.trust=local", "rounds=3")
    assert "the client that took part most spent" in done.out and "privacy.client_limit=8 would keep every client within" in done.out
    Path("t.csv").write_text("a,hospital,label\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(40)))
    done = command("train", "data.source=t.csv", "data.client_column=hospital", "data.clients=4", "rounds=1")
    assert "warning: the samples are dealt to 4 clients (iid); the column 'hospital' does not say who holds what" in done.out


def test_a_setting_without_its_section_is_found(command: Command) -> None:
    assert "Did you mean privacy.epsilon?" in command("train", "epsilon=4").err
    assert "Did you mean local.lr?" in command("train", "lr=4").err


def test_the_ledger_answers_first(command: Command) -> None:
    command("train", "rounds=3", "--out", "r")
    assert "spent: ε = 8.000 at δ = 1e-05, trust central" in command("ledger", "r").out


def test_a_dry_run_prints_a_configuration_that_can_be_trained_and_leaves_nothing(command: Command, tmp_path: Path) -> None:
    shown = command("train", "privacy.epsilon=2", "rounds=3", "--dry-run")
    assert shown.code == 0 and "# planned: ε = 2.000 at δ = 1e-05 for 3 rounds" in shown.out and not list(tmp_path.iterdir())
    (tmp_path / "run.toml").write_text(shown.out)
    assert command("train", "run.toml", "--out", "r").code == 0
    assert (tmp_path / "r" / "run.toml").read_text().rpartition("# hash")[0] == shown.out[shown.out.index("rounds = 3") :]
    refused = command("train", "privacy.epsilon=-2", "--dry-run")
    assert refused.code == 2 and "privacy.epsilon=-2" in refused.err


def test_privacy_says_which_min_honest_it_assumes(command: Command) -> None:
    assert "secagg: min_honest = 50, the expected number of participants, is assumed" in command("privacy", "epsilon=8").out
    assert "is assumed" not in command("privacy", "epsilon=8", "min_honest=20").out


def test_defaults_of_private_methods_learn() -> None:
    """Untuned, at ε = 8 on the demo: none rises above its start."""
    names = "fed-normec,alpha-normec,clip21,clip21-sgd2m,dp-fedavg-clip,dp-fedavg-norm,dp-normfedavg,dp-sgd,dp-scaffold"
    comparison = Comparison({"engine": {"eval_every": 60}}, tuple(names.split(",")))
    runs = {each.name: execute(prepare(comparison.config(each, {}, 42).experiment())) for each in comparison.contenders}
    assert {name: run.summary["test_accuracy"] for name, run in runs.items() if not run.summary["test_accuracy"] > 0.8} == {}
    assert not [name for name, run in runs.items() if run.metrics[-1]["train_loss"] > run.metrics[0]["train_loss"]]


def test_a_bound_that_the_noise_drowns_is_told_with_the_ratio(tmp_path: Path, command: Command) -> None:
    """d = 650, σ = 4 × the bound on a sum of 2: √650 · 4 / 2 = 51 times the bound of one message, on the mean."""
    done = command(
        "train", "data.clients=2", "privacy.noise_multiplier=4", "rounds=1", "participation.rate=1", "privacy.delta=1e-5",
        "participation.scheme=full", "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "its expected norm on the mean is 51 times the norm bound of a message" in done.out + done.err


@pytest.mark.parametrize(
    "moment",
    ["typer.main.get_command = pressing(typer.main.get_command)", "sys.path.insert(0, sys.argv.pop()); catalogue.answer = importing"],
    ids=["while the command is built", "while a module is imported that swallows it"],
)
def test_ctrl_c_before_there_is_anything_to_keep_ends_in_one_line(moment: str, tmp_path: Path) -> None:
    """Typer reads every command's signature after the module is imported; a library may catch whatever its imports raise."""
    swallowing = "import signal\ntry: signal.raise_signal(signal.SIGINT)\nexcept BaseException: print('swallowed')\n"
    (tmp_path / "swallowing.py").write_text(swallowing)
    script = (
        "import signal, sys, typer.main\n"
        "from normec.commands import catalogue\n"
        "pressing = lambda build: lambda app: (signal.raise_signal(signal.SIGINT), build(app))[1]\n"
        "importing = lambda *shown: __import__('swallowing')\n"
        f"{moment}\n"
        "import normec.__main__\n"
        "normec.__main__.main()\n"
    )
    arguments = [sys.executable, "-c", script, "algorithms", *([str(tmp_path)] if "argv" in moment else [])]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "normec: interrupted\n")


def test_ctrl_c_in_a_command_ends_in_one_line() -> None:
    script = (
        "import signal\n"
        "from normec.commands import catalogue\n"
        "catalogue.answer = lambda *shown: signal.raise_signal(signal.SIGINT)\n"
        "import normec.__main__, sys\n"
        "sys.argv = ['normec', 'algorithms']\n"
        "normec.__main__.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "normec: interrupted\n")
