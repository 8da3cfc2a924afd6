"""Observers: every event of a run reaches each of them, with what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import normec
from conftest import quadratic, x_of
from normec.runs.observers import Audience


class Diary(normec.Observer):
    """Writes down all that it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.seen: dict[str, list[Any]] = {"computed": [], "released": [], "finished": []}

    def started(self, plan: Any) -> None:
        self.events.append("started")

    def computed(self, clients: Sequence[Any], updates: Tensor) -> None:
        self.events.append("computed")
        self.seen["computed"].append(dict(zip(clients, updates.clone(), strict=True)))

    def released(self, rounds_done: int, server: Any, cohort: Any, mean: Tensor | None) -> None:
        self.events.append(f"released {rounds_done}")
        self.seen["released"].append((server.x.clone(), cohort, mean))

    def round(self, row: dict[str, Any]) -> None:
        self.events.append(f"round {row['round']}")

    def finished(self, model: Any, summary: dict[str, Any]) -> None:
        self.events.append("finished")
        self.seen["finished"].append((model, summary))


def test_each_event_of_a_run_is_told_in_order_with_what_it_is_about() -> None:
    diary = Diary()
    run = quadratic([[1.0], [3.0]], algorithm=normec.FedAvg(server_lr=0.5), rounds=2, observer=diary)
    rounds = [["computed", f"released {k}", f"round {k}"] for k in (1, 2)]
    assert diary.events == ["started", "round 0", "released 0", *rounds[0], *rounds[1], "released 2", "finished"]
    states = [(float(x), mean) for x, _, mean in diary.seen["released"]]
    assert states == [(0.0, None), (1.0, torch.tensor([-2.0])), (1.5, torch.tensor([-1.0])), (1.5, None)]  # x ← x − ½ (x − 2)
    assert [cohort if cohort is None else cohort.tolist() for _, cohort, _ in diary.seen["released"]] == [
        None,
        [True] * 2,
        [True] * 2,
        None,
    ]
    gradients = [sorted(float(update) for update in each.values()) for each in diary.seen["computed"]]
    assert gradients == [[-3.0, -1.0], [-2.0, 0.0]]
    ((model, summary),) = diary.seen["finished"]
    assert model is run.model and summary == run.summary


def test_a_round_that_is_given_up_releases_nothing() -> None:
    diary = Diary()
    privacy = normec.Privacy(trust="secagg", noise_multiplier=1.0, min_honest=2)
    choices: dict[str, Any] = {"participation": normec.Poisson(rate=1e-6), "privacy": privacy, "rounds": 1}
    quadratic([[1.0], [3.0], [4.0]], algorithm=normec.FedNormEC(lazy=True), observer=diary, **choices)
    _, (x, cohort, mean), _ = diary.seen["released"]
    assert not cohort.any() and mean is None and not x.any()


class OnlyRounds:
    """Not an `Observer`, and deaf to other events."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def round(self, row: dict[str, Any]) -> None:
        self.rounds.append(row["round"])


def test_several_observers_of_any_class_watch_one_run_and_change_nothing() -> None:
    watchers: list[Any] = [Diary(), OnlyRounds(), Diary()]
    choices: dict[str, Any] = {"algorithm": normec.FedNormEC(), "privacy": normec.Privacy(trust="central", noise_multiplier=1.0)}
    watched = quadratic([[1.0], [3.0]], observer=watchers, **choices)
    assert watchers[1].rounds == [0, 1, 2, 3] and watchers[0].events == watchers[2].events
    np.testing.assert_array_equal(x_of(watched), x_of(quadratic([[1.0], [3.0]], **choices)))


@pytest.mark.parametrize(("observer", "heard"), [(None, False), (normec.Observer(), False), (OnlyRounds(), False), (Diary(), True)])
def test_updates_are_shown_only_where_somebody_looks_at_them(observer: Any, heard: bool) -> None:
    assert (Audience.of(observer).computed is not None) is heard
