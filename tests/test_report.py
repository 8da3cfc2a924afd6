"""The report page: what stands in it, and what it does in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normec
from conftest import Outcome, rewritten
from normec.hashed import sealed
from normec.report import sections
from normec.report.claims import claim, voids
from normec.report.curves import curves, thinned
from normec.report.groups import grouped
from normec.report.markup import templates
from normec.report.page import read, write
from normec.runs.folder import RunFolder
from normec.runs.record import Record

pytest.importorskip("plotly", reason="plotly is not installed")

Command = Callable[..., Outcome]
X = np.random.default_rng(0).normal(size=(40, 6))
BROWSER = shutil.which("chromium")
in_browser = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")


def trained(folder: Path, **changes: Any) -> normec.Run:
    choices: dict[str, Any] = {
        "algorithm": normec.FedNormEC(), "privacy": normec.Privacy(trust="central", epsilon=4.0, delta=1e-3), "rounds": 5, "participation": normec.Poisson(0.5),
    }  # fmt: skip
    data = normec.Federation.from_arrays(
        X[:30], np.arange(30) % 3, np.arange(30) % 5, test=(X[30:], np.arange(10) % 3), test_client_ids=np.arange(10) % 4
    )
    from normec.models import logistic

    return normec.train(**{"model": logistic, "data": data, "local": normec.GD(steps=2), "out": folder} | choices | changes)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs."""
    folder = tmp_path_factory.mktemp("two")
    trained(folder / "ours")
    trained(folder / "fedavg", algorithm=normec.FedAvg(), privacy=normec.Privacy(trust="none"))
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def seen(page: Path, script: str, width: int = 800) -> Any:
    """What a script finds in the page, in a browser whose window is so wide."""
    wrapped = f"<script>{{const found = (() => {{{script}}})(); const e = document.createElement('pre'); e.id = 'seen'; "
    wrapped += "e.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(found)))); document.body.append(e); }</script></body>"
    copy = page.with_name("copy.html")
    copy.write_text(page.read_text().replace("</body>", wrapped))
    command = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={page.parent / 'profile'}",
        "--dump-dom",
        f"--window-size={width},900",
    ]
    done = subprocess.run([*command, "--virtual-time-budget=4000", copy.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    encoded = re.search(r'<pre id="seen">([^<]*)</pre>', done.stdout)
    assert encoded is not None, done.stdout[-2000:]
    import base64

    return json.loads(base64.b64decode(encoded.group(1)))


def test_a_summary_stands_first_then_the_picture_then_the_claims(two: Path) -> None:
    page = write(read([two / "ours", two / "fedavg"]))
    body = page[page.index("<main>") : page.index('<script type="application/json"')]
    summary = json.loads((two / "ours" / "summary.json").read_text())
    top = body[: body.index('id="chart"')]
    for words in (f"{summary['test_accuracy']:.1%}", "client, central", "not private", "Seeded noise: for simulation", "<td>4.0"):
        assert words in top, words
    assert summary["claim"].replace("'", "&#39;") in body[len(top) :]
    for words in (
        "Not private: nobody adds noise",
        "Whoever knows the seed can subtract the noise",
        "The server sees every message",
        "mean of the worst tenth",
    ):
        assert words in body
    assert '<tr class="differs"><th scope=row>algorithm.name' in body and '<tr class="same"><th scope=row>rounds' in body


def test_the_largest_class_is_told_of_the_runs_whose_data_has_it(tmp_path: Path) -> None:
    x, uneven = X[:, :2], np.array([0, 0, 0, 1] * 10)
    data = normec.Federation.from_arrays(x, uneven, np.arange(40) % 5, test=(x, uneven))
    trained(tmp_path / "even")
    assert "largest class" not in sections.summary(grouped(read([tmp_path]).runs))
    trained(tmp_path / "uneven", data=data)
    assert "right on 75.0% of the test targets of uneven.</p>" in sections.summary(grouped(read([tmp_path]).runs))
    assert "right on 75.0% of the test targets.</p>" in sections.summary(grouped(read([tmp_path / "uneven"]).runs))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a sweep of two settings and two seeds, deep inside, beside the tries of a comparison."""
    folder = tmp_path_factory.mktemp("seeds")
    for algorithm in (normec.FedNormEC(), normec.FedNormEC(beta=0.5)):
        for seed in (1, 2):
            trained(folder / "a" / "b" / f"beta={algorithm.beta}_seed={seed}", algorithm=algorithm, seed=seed)
    (folder / "a" / "b" / "sweep.toml").touch()
    shutil.copytree(folder / "a" / "b", folder / "c" / "tuning")
    (folder / "c" / "compare.toml").touch()
    (folder / "a" / "round").symlink_to(folder)
    return folder


def test_runs_are_found_at_any_depth_and_what_is_left_out_is_counted(seeds: Path, tmp_path: Path, command: Command) -> None:
    done = command("report", str(seeds), "--out", str(tmp_path / "r.html"))
    assert done.code == 0 and "4 of 8 runs" in done.out, done.err
    assert f"left out: 4 tuning runs in {seeds / 'c' / 'tuning'}" in done.err
    assert "Left out: 4 tuning runs" in (tmp_path / "r.html").read_text()
    assert len(read([seeds, seeds / "a"]).runs) == 4, "a run that is reached twice is shown once"
    assert len(read([seeds / "c" / "tuning"]).runs) == 4


def test_seeds_of_one_setting_are_one_line_with_a_band(seeds: Path) -> None:
    shown = read([seeds])
    groups = grouped(shown.runs)
    beta = normec.FedNormEC().beta
    assert [(group.name, group.seeds) for group in groups] == [(f"beta={beta}", 2), ("beta=0.5", 2)]
    ends = [rows_of(run.path)[-1]["test_accuracy"] for run in groups[0].runs.values()]
    mean, deviation = np.mean(ends), np.std(ends, ddof=1)
    line = curves(groups)["runs"][0]
    assert line["columns"]["test_accuracy"][-1] == pytest.approx(mean) and line["columns"]["round"] == list(range(6))
    assert line["spread"]["test_accuracy"][-1] == pytest.approx(deviation, rel=1e-5) and "round" not in line["spread"]
    losses = [rows_of(run.path)[-1]["train_loss"] for run in groups[1].runs.values()]
    page = write(shown)
    assert f"{np.mean(losses):.4f} ± {np.std(losses, ddof=1):.4f}" in page and "beta=0.5 (2 seeds)" in page


def test_a_regression_is_shown_by_its_own_score_and_the_least_loss_first(tmp_path: Path) -> None:
    """Seeds whose initial weights differ are one group; the error of a regression is better when it is smaller."""
    row = {"round": 0, "test_accuracy": None, "epsilon": None, "train_loss": 1.0, "transmissions": 1, "seconds": 1.0}
    for name, lr, seed, loss in (("worse", 1.0, 1, 9.0), ("better", 2.0, 1, 4.0), ("also better", 2.0, 2, 1.0)):
        folder = tmp_path / name
        (folder / "checkpoint").mkdir(parents=True)
        rewritten(folder, [row | {"test_loss": loss, "metrics": {"rmse": loss**0.5}}])
        settings = {"seed": seed, "local": {"lr": lr}, "algorithm": {"name": "fedavg"}, "model": {"fingerprint": name}}
        (folder / "checkpoint" / "settings.json").write_text(json.dumps(sealed(settings)))
    groups = grouped(read([tmp_path]).runs)
    assert sorted((group.name, group.seeds) for group in groups) == [("lr=2.0", 2), ("worse", 1)]
    shown = sections.summary(groups)
    assert shown.index("lr=2.0 (2 seeds)") < shown.index("worse") and ">rmse<" in shown and "1.5 ± 0.7071" in shown
    assert sections.summary(groups[::-1]).index("lr=2.0 (2 seeds)") < sections.summary(groups[::-1]).index("worse")


def test_runs_that_differ_by_more_than_a_seed_are_not_averaged(seeds: Path, tmp_path: Path) -> None:
    """A repeated seed, another sweep, and rounds that not all have."""
    shutil.copytree(seeds / "a" / "b", tmp_path / "s")
    name = "beta=0.5_seed=1"
    shutil.copytree(tmp_path / "s" / name, tmp_path / "s" / "again")
    groups = grouped(read([tmp_path / "s"]).runs)
    assert sorted(group.seeds for group in groups) == [1, 2, 2] and len({group.name for group in groups}) == 3
    shutil.copytree(seeds / "a" / "b" / name, tmp_path / "t" / "beta=0.5_seed=3")
    settings = tmp_path / "t" / "beta=0.5_seed=3" / "checkpoint" / "settings.json"
    settings.write_text(json.dumps(sealed(json.loads(settings.read_text()) | {"seed": 3})))
    (tmp_path / "t" / "sweep.toml").touch()
    assert len(grouped(read([tmp_path / "s", tmp_path / "t"]).runs)) == 4
    short = tmp_path / "s" / name / "metrics.jsonl"
    rewritten(short.parent, rows_of(short.parent)[:3])
    lines = {line["name"]: line for line in curves(grouped(read([tmp_path / "s"]).runs))["runs"]}
    assert sorted(len(line["columns"]["round"]) for line in lines.values()) == [3, 6, 6]


def test_the_page_needs_nothing_else_and_is_small(two: Path, tmp_path: Path, command: Command) -> None:
    done = command("report", str(two), "--out", str(tmp_path / "r.html"))
    assert done.code == 0, done.err
    page = (tmp_path / "r.html").read_text()
    assert len(page.encode()) < 6e6 and "default-src 'none'" in page
    own = page[: page.index("<script type")] + page[page.rindex("<script>") :]
    assert "http://" not in own and "https://" not in own


@in_browser
def test_it_shows_the_numbers_of_the_runs_and_toggles(two: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    page.write_text(write(read([two])))
    found = seen(
        page,
        """
        const chart = document.getElementById('chart');
        const traces = () => chart.data.map((t) => ({ name: t.name, x: t.x, y: t.y }));
        const set = (id, value) => { const e = document.getElementById(id); e.value = value; e.dispatchEvent(new Event('input', { bubbles: true })); };
        const drawn = () => chart.querySelectorAll('.scatterlayer .trace').length;
        const result = { first: traces(), drawn: drawn() };
        document.getElementById('run-0').click();
        result.off = traces().map((t) => t.name); result.drawn_off = drawn(); result.hash = location.hash;
        document.getElementById('run-0').click();
        set('metric', 'train_loss'); set('axis', 'transmissions');
        result.second = traces(); result.titles = [chart.layout.xaxis.title.text, chart.layout.yaxis.title.text];
        set('smoothing', '0.9'); result.smooth = traces();
        document.getElementById('only-differences').click();
        const style = (row) => getComputedStyle(row).display;
        result.same = style(document.querySelector('tr.same')); result.differs = style(document.querySelector('tr.differs'));
        return result;
        """,
    )
    names = ["fedavg", "ours"]
    assert [trace["name"] for trace in found["first"]] == names and found["drawn"] == 2
    for trace, second in zip(found["first"], found["second"], strict=True):
        rows = rows_of(two / trace["name"])
        assert trace["x"] == [row["round"] for row in rows] and second["x"] == [row["transmissions"] for row in rows]
        np.testing.assert_allclose(trace["y"], [row["test_accuracy"] for row in rows], rtol=1e-5)
        np.testing.assert_allclose(second["y"], [row["train_loss"] for row in rows], rtol=1e-5)
    assert found["off"] == ["ours"] and found["drawn_off"] == 1 and "off=fedavg" in found["hash"]
    assert found["titles"] == ["transmissions", "train loss"]
    smooth, rough = found["smooth"][0]["y"], found["second"][0]["y"]
    assert smooth[0] == rough[0] and smooth[1] == pytest.approx(0.9 * rough[0] + 0.1 * rough[1])
    assert found["same"] == "none" and found["differs"] == "table-row"


@in_browser
def test_on_a_narrow_screen_the_summary_fits_and_a_band_lies_around_the_mean(seeds: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    page.write_text(write(read([seeds])))
    found = seen(
        page,
        """
        const rows = [...document.querySelectorAll('.summary tbody tr')].map((row) => row.getBoundingClientRect());
        const chart = document.getElementById('chart');
        return { wide: document.documentElement.scrollWidth - document.documentElement.clientWidth, tall: Math.max(...rows.map((r) => r.height)),
                 chart: chart.getBoundingClientRect().top, traces: chart.data.map((t) => [t.name, t.y]) };
        """,
        500,
    )
    assert found["wide"] == 0 and found["tall"] < 100 and found["chart"] < 900
    (_, low), (_, high), (name, mean) = found["traces"][:3]
    assert [each[0] for each in found["traces"]].count("band") == 4 and name.startswith("beta=")
    ends = [rows_of(run.path)[-1]["test_accuracy"] for run in grouped(read([seeds]).runs)[0].runs.values()]
    assert [low[-1], mean[-1], high[-1]] == pytest.approx(
        [np.mean(ends) - np.std(ends, ddof=1), np.mean(ends), np.mean(ends) + np.std(ends, ddof=1)], rel=1e-4
    )


@in_browser
def test_hostile_names_and_values_stay_text(two: Path, tmp_path: Path) -> None:
    name = "<img src=x onerror=hacked=1>{{code}}"
    hostile = tmp_path / name
    shutil.copytree(two / "ours", hostile)
    RunFolder(hostile).save_config('rounds = 5\n[data]\nsource = "</td><script>hacked=3</script>"\n')
    lines = rows_of(hostile)
    lines[-1]["metrics"] = {"</script><script>hacked=4</script>": 0.5}
    rewritten(hostile, lines, convergence="</p><script>hacked=2</script>")
    shutil.copytree(two / "fedavg", tmp_path / "other")
    page = tmp_path / "r.html"
    page.write_text(write(read([hostile, tmp_path / "other"])))
    found = seen(
        page,
        """
        const metric = document.getElementById('metric');
        metric.value = [...metric.options].map((o) => o.value).find((v) => v.includes('hacked'));
        metric.dispatchEvent(new Event('input', { bubbles: true }));
        return { hacked: typeof hacked, title: document.title,
                 images: document.querySelectorAll('img').length, legend: document.querySelector('#runs label').textContent,
                 values: [...document.querySelectorAll('#settings td')].map((e) => e.textContent) };
        """,
    )
    assert found["hacked"] == "undefined" and found["images"] == 0
    assert name in found["title"] and found["legend"] == name
    assert "&lt;/p&gt;&lt;script&gt;hacked=2&lt;/script&gt;" in page.read_text() and "</td><script>hacked=3</script>" in found["values"]


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(two: Path, tmp_path: Path, command: Command) -> None:
    for name in ("ours", "fedavg"):
        shutil.copytree(two / name, tmp_path / name)
    shutil.copytree(two / "ours", tmp_path / "damaged")
    (tmp_path / "damaged" / "summary.json").write_text("{")
    (tmp_path / "ours" / "summary.json").unlink()
    with (tmp_path / "ours" / "metrics.jsonl").open("a") as half:
        half.write('{"round": 6, "te')
    versions = json.loads((tmp_path / "fedavg" / "summary.json").read_text())["versions"]
    rewritten(tmp_path / "fedavg", versions=versions | {"normec": "9.9"})
    shutil.copytree(two / "ours", tmp_path / "today")
    (tmp_path / "foreign").mkdir()
    folders = [str(tmp_path / name) for name in ("ours", "fedavg", "today", "damaged", "foreign", "nowhere")]
    done = command("report", *folders, "--out", str(tmp_path / "r.html"))
    assert done.code == 0 and "3 of 6 runs" in done.out
    lines = done.err.strip().splitlines()
    assert len(lines) == 3 and all(line.startswith("normec: left out: ") for line in lines)
    assert "damaged/summary.json is damaged" in lines[0] and "foreign holds no run" in lines[1] and "nowhere holds no run" in lines[2]
    page = (tmp_path / "r.html").read_text()
    assert "Unfinished: 5 of " in page and "and 9.9: compare them with care" in page and "foreign holds no run" in page
    done = command("report", str(tmp_path / "foreign"))
    assert done.code == 2 and "holds no run" in done.err and done.err.count("\n") == 1
    done = command("report", str(two / "ours"), "--out", str(tmp_path / "no" / "r.html"))
    assert done.code == 2 and "is not a folder" in done.err


def test_many_rounds_are_thinned_and_the_last_stays(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "fedavg", tmp_path / "long")
    (tmp_path / "long" / "summary.json").unlink()
    last = rows_of(tmp_path / "long")[-1]
    rows = [last | {"round": number, "test_accuracy": number / 1e6} for number in range(30_001)]
    rewritten(tmp_path / "long", rows)
    page = write(read([tmp_path / "long"]))
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL).group(1))  # type: ignore[union-attr]
    assert len(page.encode()) < 6e6 and data["left_out"] > 0 and data["runs"][0]["columns"]["round"][-1] == 30_000


@pytest.mark.parametrize("kind", ["a folder", "a run's own file", "a pipe"])
def test_a_page_replaces_nothing_else(kind: str, two: Path, tmp_path: Path, command: Command) -> None:
    place = tmp_path / "place"
    if kind == "a folder":
        place.mkdir()
    elif kind == "a pipe":
        os.mkfifo(place)
    else:
        place = two / "ours" / "metrics.jsonl"
    before = place.read_bytes() if place.is_file() else None
    outcome = command("report", str(two), "--out", str(place))
    assert outcome.code == 2 and ("is a folder" in outcome.err or "holds something else than a page" in outcome.err)
    assert before is None or place.read_bytes() == before


@pytest.mark.parametrize(
    ("key", "value"),
    [("test_accuracy", "x"), ("train_loss", [1]), ("epsilon", {"a": 1}), ("seconds", "long"), ("transmissions", 10**400)],
)
def test_a_run_with_values_that_no_run_writes_is_named_and_the_others_are_shown(key: str, value: Any, two: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(two / "ours", bad)
    *rows, last = rows_of(bad)
    rewritten(bad, [*rows, last | {key: value}])
    shown = read([two, bad])
    assert set(shown.runs) == {"ours", "fedavg"} or len(shown.runs) == 2
    assert len(shown.problems) == 1 and "bad" in shown.problems[0]


def test_of_a_sweep_every_folder_that_is_no_run_is_named(two: Path, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    shutil.copytree(two, sweep)
    (sweep / "sweep.toml").touch()
    (sweep / "foreign").mkdir()
    shown = read([sweep])
    assert len(shown.runs) == 2 and len(shown.problems) == 1 and "foreign" in shown.problems[0]


def test_an_unfinished_private_run_says_what_it_has_spent_and_of_what(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "ours", tmp_path / "ours")
    (tmp_path / "ours" / "summary.json").unlink()
    run = Record.read(tmp_path / "ours")
    assert "Unfinished: " in claim(run) and "δ = " in claim(run) and "zero-out adjacency, trust central" in claim(run)
    assert not any("No number on this page" in line for line in voids(run))


def test_how_each_client_fares_is_read_when_it_is_asked_for(two: Path, tmp_path: Path) -> None:
    """The file is large with many clients; one that is damaged ends no report, which does not show it."""
    shutil.copytree(two / "ours", tmp_path / "ours")
    whole, damaged = Record.read(two / "ours"), Record.read(tmp_path / "ours")
    assert whole.clients == json.loads((two / "ours" / "clients.json").read_text())["simulation_only"] != []
    (tmp_path / "ours" / "clients.json").write_text('{"simulation_only": 7}')
    assert write(read([tmp_path / "ours"]))
    with pytest.raises(normec.BadInput, match=r"clients\.json is damaged"):
        print(damaged.clients)


def test_evaluated_rounds_are_drawn_before_others() -> None:
    rows = [{"round": k, "test_accuracy": 0.5 if k % 5 == 0 else None, "train_loss": None} for k in range(301)]
    kept = [row["round"] for row in thinned(rows, 61)]
    assert kept == list(range(0, 301, 5))
    assert len(thinned(rows, 20)) <= 22 and {0, 300} <= {row["round"] for row in thinned(rows, 20)}


def test_the_first_names_of_many_runs_are_shown_and_the_others_on_demand() -> None:
    names = templates().from_string("{% from 'pieces.html' import names %}{{ names(runs) }}")
    shown = names.render(runs=[f"run<{i}>" for i in range(10)])
    assert shown.endswith("run&lt;7&gt;<details><summary>and 2 more</summary>run&lt;8&gt;, run&lt;9&gt;</details>")
    assert names.render(runs=["a", "b"]) == "a, b"
