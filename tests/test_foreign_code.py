"""A file that names code by an import path: nothing of it runs unless it is trusted or typed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Outcome
from normec.errors import BadInput
from normec.imports import check_trust, load_object, named_code

SMALL = 'rounds = 1\n[privacy]\ntrust = "none"\n'
DATA = "[data]\nclients = 4\n"
MODULE = """
from pathlib import Path
Path("ran").write_text("")
import torch, normec
from normec import FedAvg, register
def make(input_shape, classes): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
def loss(outputs, targets): return torch.nn.functional.cross_entropy(outputs, targets)
def data():
    x, y = torch.rand(40, 64), torch.arange(40) % 10
    return normec.Federation.from_clients([(x[i::4].numpy(), y[i::4].numpy()) for i in range(4)])
class Right:
    def update(self, outputs, targets): pass
    def compute(self): return 0.5
    def reset(self): pass
"""
FILES = {
    "model.name": SMALL + DATA + '[model]\nname = "strange_code:make"\n',
    "model.loss": SMALL + DATA + '[model]\nloss = "strange_code:loss"\n',
    "data.source": SMALL + '[data]\nsource = "strange_code:data"\n',
    "evaluation.metrics": SMALL + DATA + '[evaluation]\nmetrics = [{name = "strange_code:Right"}]\n',
}
COMMANDS = {
    "train": ("train", "F.toml", "--out", "run"),
    "dry-run": ("train", "F.toml", "--dry-run"),
    "sweep": ("sweep", "F.toml", "--out", "swept", "--workers", "1"),
    "compare": ("compare", "F.toml", "--algorithms", "fedavg", "--seeds", "1", "--out", "compared", "--workers", "1"),
}


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The marker that a module in the working directory leaves when it is imported."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "strange_code.py").write_text(MODULE)
    yield tmp_path / "ran"
    sys.modules.pop("strange_code", None)


def forget(marker: Path) -> None:
    """As if a new process began."""
    sys.modules.pop("strange_code", None)
    marker.unlink(missing_ok=True)


def refused(outcome: Outcome, file: str, setting: str, marker: Path) -> None:
    """One sentence that names the file, the setting and the import path, and nothing ran."""
    code, out, err = outcome
    assert code == 2 and not out and err.count("\n") <= 4, err  # progress may stand above
    last = err.splitlines()[-1]
    assert file in last and f"{setting}='strange_code:" in last and "--trust-code" in last
    assert not marker.exists()


@pytest.mark.parametrize("setting", FILES)
@pytest.mark.parametrize("name", ["train", "dry-run"])
def test_code_that_a_file_names_runs_only_with_the_flag(name: str, setting: str, command: Callable[..., Outcome], foreign: Path) -> None:
    Path("F.toml").write_text(FILES[setting])
    refused(command(*COMMANDS[name]), "F.toml", setting, foreign)
    done = command(*COMMANDS[name], "--trust-code")
    assert done.code == 0 and foreign.exists(), done.err


@pytest.mark.parametrize("name", ["sweep", "compare"])
def test_sweeps_and_comparisons_pass_the_trust_on(name: str, command: Callable[..., Outcome], foreign: Path) -> None:
    Path("F.toml").write_text(FILES["model.name"])
    refused(command(*COMMANDS[name]), "F.toml", "model.name", foreign)
    done = command(*COMMANDS[name], "--trust-code")
    assert done.code == 0 and foreign.exists(), done.err
    if name == "compare":
        assert "--trust-code" in " ".join(Path("compared/comparison.json").read_text().split())


def test_cases_of_a_sweep_are_files_too(command: Callable[..., Outcome], foreign: Path) -> None:
    Path("F.toml").write_text(SMALL + DATA + '[[case]]\nmodel.name = ["logistic", "strange_code:make"]\n')
    refused(command(*COMMANDS["sweep"]), "F.toml", "model.name", foreign)


def test_algorithms_need_it_too(command: Callable[..., Outcome], foreign: Path) -> None:
    Path("F.toml").write_text(SMALL + DATA + '[algorithm]\nname = "strange_code:Mine"\n')
    refused(command(*COMMANDS["train"]), "F.toml", "algorithm.name", foreign)


def test_datasets_and_audits_need_it(command: Callable[..., Outcome], foreign: Path) -> None:
    Path("F.toml").write_text(FILES["data.source"])
    refused(command("datasets", "F.toml"), "F.toml", "data.source", foreign)
    assert command("datasets", "F.toml", "--trust-code").code == 0 and foreign.exists()
    forget(foreign)
    refused(command("audit", "F.toml", "privacy.trust=central", "privacy.epsilon=8"), "F.toml", "data.source", foreign)
    command("audit", "F.toml", "privacy.trust=central", "privacy.epsilon=8", "--canaries", "2", "--trust-code")
    assert foreign.exists()


def test_datasets_do_not_ask_for_what_they_never_import(command: Callable[..., Outcome], foreign: Path) -> None:
    Path("F.toml").write_text(FILES["model.name"])
    assert command("datasets", "F.toml").code == 0 and not foreign.exists()


def test_a_folder_from_somebody_else_is_resumed_with_the_flag(command: Callable[..., Outcome], foreign: Path) -> None:
    Path("F.toml").write_text(FILES["model.name"])
    assert command(*COMMANDS["train"], "--trust-code").code == 0
    forget(foreign)
    refused(command("train", "--out", "run", "--resume"), "run.toml", "model.name", foreign)
    assert command("report", "run").code == 0 and not foreign.exists()
    assert command("train", "--out", "run", "--resume", "--trust-code").code == 0 and foreign.exists()


def test_what_was_typed_needs_no_flag(command: Callable[..., Outcome], foreign: Path) -> None:
    Path("F.toml").write_text(FILES["model.name"])
    assert command(*COMMANDS["dry-run"], "model.name=strange_code:make").code == 0 and foreign.exists()
    forget(foreign)
    assert command(*COMMANDS["dry-run"], "model.name=logistic").code == 0 and not foreign.exists()
    refused(command(*COMMANDS["dry-run"], "model.loss=strange_code:loss"), "F.toml", "model.name", foreign)


def test_an_interrupted_run_says_how_it_goes_on(command: Callable[..., Outcome], foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    Path("F.toml").write_text(FILES["model.name"])
    with monkeypatch.context() as patch:
        patch.setattr("normec.runs.loop.execute", interrupted)
        for extra, flag in (([], " --trust-code"), (["model.name=logistic"], "")):
            out = f"run{len(extra)}"
            stopped = command("train", "F.toml", *extra, "--out", out, "--trust-code")
            assert stopped.code == 130
            assert stopped.err.splitlines()[-1].endswith(f"resume with: normec train --out {out} --resume{flag}")


def test_named_code_finds_lists_and_tables_and_spares_the_rest() -> None:
    tree = {
        "data": {"source": "my.module:data", "label_column": "time:event"},
        "model": {"name": ["cnn", "m:f"], "loss": "torch.nn.functional:mse_loss"},
        "evaluation": {"metrics": [["a:B"], [{"name": "c:D", "arguments": {"x": "e:F"}}, "torchmetrics.classification:BinaryAUROC"]]},
        "case": [{"algorithm": {"name": "g:H"}}],
    }
    assert named_code(tree) == {
        "my.module:data": "data.source", "m:f": "model.name", "a:B": "evaluation.metrics", "c:D": "evaluation.metrics",
        "g:H": "algorithm.name",
    }  # fmt: skip
    check_trust("f", tree, {"x": 1} | tree)
    with pytest.raises(BadInput, match=r"^model\.name='m:f' in f is code.*--trust-code"):
        check_trust("f", {"model": {"name": "m:f"}}, {})


def test_an_import_leaves_the_path_as_it_was(foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert load_object("model.name", "strange_code:make").__module__ == "strange_code"
    with pytest.raises(BadInput):
        load_object("model.name", "nowhere_at_all:make")
    assert sys.path == before and os.getcwd() not in sys.path


def test_a_library_is_not_looked_for_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("normec.imports.LIBRARIES", ("strange_library",))
    Path("strange_library.py").write_text("def make(): ...\n")
    with pytest.raises(BadInput, match="No module named"):
        load_object("model.name", "strange_library:make")
