"""`normec datasets`: who has what, by hand; the keys it takes; pictures of few and many clients and classes."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image

import normec
from conftest import Outcome
from normec.data import Data
from normec.data.overview import catalogue, overview
from normec.data.picture import draw

Command = Callable[..., Outcome]


def federation(labels: list[list[int]], classes: int) -> normec.Federation:
    """One client for each list of labels, which may be empty."""
    pairs = [(client, label) for client, held in enumerate(labels) for label in held]
    return normec.Federation.from_arrays(
        np.zeros((len(pairs), 3)), [label for _, label in pairs], [client for client, _ in pairs],
        classes=[f"c{c}" for c in range(classes)], empty_clients=range(len(labels)),
    )  # fmt: skip


def random_federation(clients: int, classes: int) -> normec.Federation:
    generator = np.random.default_rng(0)
    return federation([generator.integers(0, classes, generator.integers(1, 30)).tolist() for _ in range(clients)], classes)


def test_overview_by_hand() -> None:
    """Shares (1, 0), (½, ½) and none, against (¾, ¼) in all: distances ¼ and ¼."""
    found = overview(federation([[0, 0], [0, 1], []], 2))
    assert (found["clients"], found["samples"], found["features"], found["test_samples"]) == (3, 4, [3], 0)
    assert found["sizes"] == {"min": 0, "10%": pytest.approx(0.4), "median": 2, "90%": 2, "max": 2}
    assert found["clients_without_samples"] == 1 and found["counts"] == [3, 1]
    assert found["heterogeneity"] == 0.25 and found["classes_per_client"] == {"min": 1, "mean": 1.5, "max": 2}
    assert [row["counts"] for row in found["by_client"]] == [[2, 0], [1, 1], [0, 0]]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_distance_by_chance_is_the_mean_over_all_deals() -> None:
    """Over all 280 orders of eight samples, dealt in sizes 5, 2 and 1."""
    labels = [0, 0, 0, 0, 1, 1, 1, 2]
    deals = set(itertools.permutations(labels))
    parts = [[list(order[:5]), list(order[5:7]), list(order[7:])] for order in deals]
    distances = [overview(federation(part, 3))["heterogeneity"] for part in parts]
    assert len(deals) == 280
    assert overview(federation(parts[0], 3))["heterogeneity_by_chance"] == pytest.approx(np.mean(distances))


def test_one_client_has_no_distance_by_chance() -> None:
    found = overview(federation([[0, 1, 1, 2]], 3))
    assert found["heterogeneity"] == found["heterogeneity_by_chance"] == 0


def test_the_catalogue_holds_every_partition() -> None:
    names = [row["name"] for row in catalogue()["partitions"]]
    assert sorted(names) == sorted(get_args(Data.model_fields["partition"].annotation))


def test_without_a_source_it_lists_them(command: Command) -> None:
    done = command("datasets")
    assert done.code == 0 and done.err == ""
    for name in (
        "digits",
        "cifar10",
        "PATH.csv",
        "PATH.txt",
        "package.module:function",
        "iid",
        "dirichlet",
        "shards",
        "power-law",
        "column",
    ):
        assert len([line for line in done.out.splitlines() if line.startswith(f"  {name}: ")]) == 1
    assert json.loads(command("datasets", "--json").out) == catalogue()


def test_digits(command: Command) -> None:
    done = command("datasets", "digits", "data.clients=25", "partition=dirichlet", "concentration=0.1")
    assert done.code == 0, done.err
    assert done.out.count("│") > 20 * 10 and "and 5 more clients" in done.out and "1,438" in done.out and "no promise" in done.out
    found = json.loads(command("datasets", "digits", "clients=25", "data.partition=dirichlet", "data.concentration=0.1", "--json").out)
    assert found["clients"] == 25 and found["test_samples"] == 359 and sum(found["counts"]) == found["samples"] == 1438
    assert found["heterogeneity"] > 2 * found["heterogeneity_by_chance"]
    other = json.loads(command("datasets", "digits", "clients=25", "partition=dirichlet", "concentration=0.1", "seed=7", "--json").out)
    assert other["by_client"] != found["by_client"]


def test_it_shows_what_a_run_would_train_on(command: Command) -> None:
    """The [data] section and the seed of a file are used, the rest is not even read; changes win as for `normec train`."""
    from normec.config import resolve

    Path("run.toml").write_text('seed = 3\n[data]\npartition = "dirichlet"\nconcentration = 0.2\nclients = 12\n')
    trained = resolve(Path("run.toml"), []).experiment().data
    Path("run.toml").write_text(Path("run.toml").read_text() + '[algorithm]\nname = "nothing"\n')
    found = json.loads(command("datasets", "run.toml", "--json").out)
    assert [row["samples"] for row in found["by_client"]] == trained.sizes.tolist()
    found = json.loads(command("datasets", "run.toml", "partition=power-law", "--json").out)
    assert found["clients"] == 12 and found["sizes"]["max"] > 3 * found["sizes"]["median"]


def test_natural_clients_of_a_table(command: Command) -> None:
    Path("t.csv").write_text(
        "f,hospital,sick\n" + "".join(f"{i},{'north' if i < 9 else 'south'},{'yes' if i % 3 else 'no'}\n" for i in range(12))
    )
    done = command(
        "datasets", "t.csv", "partition=column", "client_column=hospital", "label_column=sick", "test_fraction=0", "--picture", "p.svg"
    )
    assert done.code == 0, done.err
    assert "north" in done.out and "south" in done.out and "features: f" in done.out
    assert Path("p.svg").read_text().startswith("<?xml")


def test_many_classes_are_listed_largest_first(command: Command) -> None:
    Path("many_classes.py").write_text(
        "import normec, numpy as np\n"
        "def make():\n"
        "    y = np.repeat(np.arange(40), np.arange(1, 41))\n"
        "    return normec.Federation.from_arrays(np.zeros((820, 2)), y, np.zeros(820, dtype=int))\n"
    )
    out = " ".join(command("datasets", "many_classes:make").out.replace("│", " ").split())
    assert "820 39: 40, 38: 39, 37: 38" in out and "0: 1" in out and "and 30 smaller ones" in out


def test_regression_targets(command: Command) -> None:
    Path("regression.py").write_text(
        "import normec, numpy as np\n"
        "def make(): return normec.Federation.from_arrays(np.zeros((6, 2)), np.ones((6, 3)), ['[b]', 1, 1, 1, 'x', ' '])\n"
    )
    done = command("datasets", "regression:make", "--picture", "p.pdf")
    assert done.code == 0 and "no classes" in done.out and "[b]" in done.out and "' '" in done.out, done
    assert Path("p.pdf").read_bytes().startswith(b"%PDF")
    found = json.loads(command("datasets", "regression:make", "--json").out)
    assert found["classes"] is found["counts"] is found["heterogeneity"] is None and found["targets"] == [3]


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (10, 2), (10, 100), (40, 10), (41, 2), (1000, 2), (1000, 100)])
def test_pictures(tmp_path: Path, clients: int, classes: int) -> None:
    draw(overview(random_federation(clients, classes)), tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.size[0] == 1350 and 300 < picture.size[1] < 1800
        assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 10


def test_pictures_are_the_same_twice_and_show_names_as_they_are(tmp_path: Path) -> None:
    names = ["$x^$", "a$b", "\n", "漢字", "a long name of a class, of which the middle gives way"]
    data = normec.Federation.from_arrays(np.zeros((5, 1)), names, [f"client with a long name {i}" for i in range(5)])
    for name in ("a.svg", "b.svg"):
        draw(overview(data), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = (tmp_path / "a.svg").read_text()
    assert "<!-- $x^$ -->" in text and "<!-- a long n…ves way -->" in text and "<!-- client w… name 4 -->" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digits", "local.lr=1"], ["local is not a setting of the data", "[data], or seed"]),
        (["digits", "concentraton=1"], ["data.concentraton", "concentration?"]),
        (["digits", "min_size=15"], ["data.min_size=15", "fewer clients"]),
        (["digits", "seed=-1"], ["seed=-1"]),
        (["digits", "more"], ["'more' is not a setting"]),
        (["nothing.toml"], ["nothing.toml does not exist"]),
        (["nothing.csv"], ["data.source='nothing.csv' is not a file"]),
        (["digits", "--picture", "p.gif"], ["picture='p.gif'", ".png, .svg or .pdf"]),
        (["digits", "--picture", "no/p.png"], ["picture='no/p.png'", "no is not a folder"]),
        (["--picture", "p.png"], ["picture='p.png' needs a source"]),
    ],
)
def test_refusals(command: Command, arguments: list[str], words: list[str]) -> None:
    done = command("datasets", *arguments)
    assert done.code == 2 and done.out == "" and len(done.err.strip().splitlines()) == 1
    for word in words:
        assert word in done.err
    assert not list(Path().iterdir())


def test_without_matplotlib_it_says_how_to_get_it(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = command("datasets", "digits", "--picture", "p.png")
    assert done.code == 2 and "pip install 'normec[plot]'" in done.err and not Path("p.png").exists()
    assert command("datasets", "digits").code == 0
