"""The picture of docs/theory.md: what is measured under what is proven, for one problem per corollary.

Heterogeneous quadratics with known constants; the parameters of each corollary at every K; min_k of the mean over seeds of
‖∇f(x^k)‖ beside the theorem's bound in both forms. Every run's own verdict must be that its conditions are met.

    python benchmarks/theory_curves.py [--workers 2] [--draw-only]
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "theory_curves.json"
PICTURE = HERE.parent / "docs" / "images" / "theory_curves.png"
ROUNDS, SEEDS = (30, 100, 300, 1000, 3000), range(4)
CASES: dict[int, tuple[str, dict[str, Any]]] = {
    4: ("Corollary 4: T = 1", {"steps": 1}),
    2: ("Corollary 2: T = 3", {"steps": 3}),
    5: ("Corollary 5: IG", {"method": "ig"}),
    1: ("Corollary 1: T = 1, private", {"steps": 1, "private": True}),
    3: ("Corollary 3: T = 3, private", {"steps": 3, "private": True}),
    6: ("Corollary 6: IG, private", {"method": "ig", "private": True}),
}


def measure(task: tuple[int, int]) -> dict[str, Any]:
    """One corollary at one number of rounds."""
    import numpy as np
    import torch

    import normec
    from normec.models import FlatModel
    from normec.theory.bounds import FORMS, Setting, corollary
    from normec.theory.constants import constants
    from normec.theory.problems import half_squares, linear, quadratics

    number, rounds = task
    _, choices = CASES[number]
    incremental, private = choices.get("method") == "ig", choices.get("private", False)
    data = quadratics(clients=8, d=4, smoothness=1.0, heterogeneity=0.5, samples=8, noise=0.3)
    local = normec.IG(steps=1, lr=1.0, batch_size=4) if incremental else normec.GD(steps=choices["steps"], lr=1.0)
    model = FlatModel(linear((4,)), half_squares, torch.device("cpu"), torch.float64)
    known = constants(model, data, local)
    loss = float(np.mean([0.5 * float(data.client(i)[1].double().square().mean()) for i in range(8)]))
    # c √(log(1/δ)) / ε = 0.02 in the corollaries' σ = c p √((K + 1) log(1/δ)) / ε, of each participant
    noise = 0.02 * 0.5 * math.sqrt(rounds) if private else 0.0
    start = Setting(
        K=rounds - 1, M=8, p=0.5, eta=1.0, gamma=1 / (2 * known.L), alpha=1.0, beta=5.0, R=0.5 if private else 3.0, L=known.L,
        F=loss - known.infimum, heterogeneity=max(known.heterogeneity, 100.0), order_heterogeneity=known.order_heterogeneity, d=4,
        sigma=noise, trust="local" if private else "none", steps=choices.get("steps", 1), method=choices.get("method", "gd"),
    )  # fmt: skip
    s = corollary(start).setting
    init: Any = "zero" if private else "local"
    offset = 0.0 if private else s.R
    step: dict[str, Any] = {"server_lr": s.eta, "server_normalize": True}
    algorithm = normec.FedNormEC(alpha=s.alpha, beta=s.beta, init=init, init_offset=offset, **step)
    privacy = normec.Privacy(trust="local", noise_multiplier=noise) if private else normec.Privacy(trust="none")
    runs = [
        normec.train(
            model=linear, loss=half_squares, data=data, algorithm=algorithm, local=local.model_copy(update={"lr": s.gamma}),
            participation=normec.Poisson(rate=0.5), privacy=privacy, rounds=rounds, seed=seed, theory=normec.Theory(check=True),
            engine=normec.Engine(dtype="float64", eval_every=rounds, backend="loop"),
        )
        for seed in SEEDS
    ]  # fmt: skip
    verdicts = [verdict for run in runs if (verdict := run.summary["theory"])]
    gradients = np.array([[seen["gradient_norm"] for row in run.metrics[:-1] if (seen := row["simulation_only"])] for run in runs])
    found = {"corollary": number, "rounds": rounds, "measured": float(gradients.mean(0).min()), "start": float(gradients[0, 0])}
    totals: dict[str, float] = {form: max(verdict["bound"][form]["total"] for verdict in verdicts) for form in FORMS}
    return {**found, **totals, "verdicts": sorted({verdict["verdict"] for verdict in verdicts})}


def draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 3, figsize=(10, 5.6), sharex=True, layout="constrained")
    for axes, (number, (title, _)) in zip(panels.flat, CASES.items(), strict=True):
        own = [row for row in rows if row["corollary"] == number]
        k = [row["rounds"] for row in own]
        axes.loglog(k, [row["paper"] for row in own], "--", color="#8a7a1f", label="bound, paper's form")
        axes.loglog(k, [row["sharper"] for row in own], "-", color="#c4552d", label="bound, sharper form")
        axes.loglog(k, [row["measured"] for row in own], "o-", color="#0b6e99", label="measured min ‖∇f‖")
        axes.axhline(own[0]["start"], color="grey", linewidth=0.8, linestyle=":", label="‖∇f(x⁰)‖")
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.25, which="major")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[1]:
        axes.set_xlabel("rounds, K + 1")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), frameon=False, fontsize=9, loc="outside lower center", ncol=4)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--draw-only", action="store_true", help="the picture from the saved results")
    options = parser.parse_args()
    if not options.draw_only:
        with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
            rows = pool.map(measure, [(number, rounds) for number in CASES for rounds in ROUNDS], chunksize=1)
        RESULTS.write_text(json.dumps(rows, ensure_ascii=False, indent=0) + "\n")
    rows = json.loads(RESULTS.read_text())
    draw(rows)
    for row in rows:
        print(f"corollary {row['corollary']} K+1={row['rounds']:>5}  {row['measured']:.4f} <= {row['sharper']:.4f}  {row['verdicts']}")


if __name__ == "__main__":
    main()
