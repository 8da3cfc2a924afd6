"""Every registered algorithm keeps the eleven points of the contract, and the contract finds who does not."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import normec
from conftest import quadratic
from normec.algorithms import REGISTRY, Algorithm, ClientStep, Context, LocalRule, Slots
from normec.contract import POINTS, ContractBroken, check, example
from normec.operators import Clipping, Operator


@pytest.mark.parametrize("name", sorted(REGISTRY))
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.__name__)
def test_contract(name: str, point: object) -> None:
    point(example(name))  # type: ignore[operator]


class Honest(Algorithm):
    """Clipped mean with an error memory that nobody reads: keeps the contract."""

    client_slots: ClassVar[tuple[str, ...]] = ("v",)
    server_slots: ClassVar[tuple[str, ...]] = ("v_hat",)

    @property
    def operator(self) -> Operator:
        return Clipping(0.5)

    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        message = self.operator(update - memory[0])
        return ClientStep(message, (memory[0] + message,), update - memory[0])

    def server(self, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        v_hat = state[0] + rate * mean
        return v_hat, (v_hat,)


class TooLong(Honest):
    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        step = super().client(update, memory, context)
        return step._replace(message=step.message * 1.001)


class MovesAtZero(Honest):
    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        step = super().client(update, memory, context)
        return step._replace(memory=(step.memory[0] + 1e-9,))


class Drifts(Honest):
    def server(self, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        direction, slots = super().server(state, mean, rate)
        return direction + 0.01, slots


class DoublesItsEstimate(Honest):
    def server(self, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        v_hat = state[0] + 2 * rate * mean
        return v_hat / 2, (v_hat,)


class DrawsByItself(Honest):
    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        message = self.operator(update - memory[0]) * (
            0.9 + 0.1 * torch.from_numpy(np.random.default_rng().random((len(update), 1))).to(update)
        )
        return ClientStep(message, (memory[0] + message,), update)


class CountsOutside(Honest):
    calls: ClassVar[list[int]] = []

    def server(self, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        self.calls.append(1)
        direction, slots = super().server(state, mean, rate)
        return direction * (1 + 0.1 * (len(self.calls) % 8 == 7)), slots


class LosesPrecision(Honest):
    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        step = super().client(update, memory, context)
        return step._replace(message=step.message.float())


class WritesInPlace(Honest):
    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        message = self.operator(update - memory[0])
        return ClientStep(message, (memory[0].add_(message),), update)


class SharesOneFactor(Honest):
    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        residual = update - memory[0]
        message = residual * min(1.0, 0.5 / max(float(residual.norm(dim=1).max()), 1e-30))
        return ClientStep(message, (memory[0] + message,), residual)


class WeighsByPosition(Honest):
    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        weights = torch.linspace(1, 0.5, len(update), dtype=update.dtype)[:, None]
        message = self.operator(update - memory[0]) * weights
        return ClientStep(message, (memory[0] + message,), update)


class DrawsTheSameForEverySeed(Honest):
    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        luck = torch.from_numpy(np.random.default_rng(0).random((len(update), 1))).to(update)
        message = self.operator(update - memory[0]) * (0.9 + 0.1 * luck)
        return ClientStep(message, (memory[0] + message,), update)


class ForgetsTheRate(Honest):
    def server(self, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        v_hat = state[0] + mean
        return v_hat, (v_hat,)


class ScalesBeyondItsBound(Honest):
    tuned: ClassVar[dict[str, tuple[float, float]]] = {"scale": (0.5, 2.0)}
    scale: float = 1.0

    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        step = super().client(update, memory, context)
        return step._replace(message=step.message * self.scale)


class BreaksOnlyAtSomeLengths(Honest):
    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        norms = update.norm(dim=1, keepdim=True)
        step = super().client(update, memory, context)
        return step._replace(message=torch.where((norms > 100) & (norms < 300), 1.5 * step.message, step.message))


class ComputesInFloat32(Honest):
    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        message = self.operator((update - memory[0]).float()).to(update.dtype)
        return ClientStep(message, (memory[0] + message,), update)


class CorrectsInPlace(Honest):
    @property
    def local_rule(self) -> LocalRule:
        return LocalRule(correction=lambda memory, server: memory[0].mul_(2))


class NeverArrives(Honest):
    """Its direction has the length of a step, however near the minimiser is, and it declares no settings without that."""

    def server(self, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        direction, slots = super().server(state, mean, rate)
        return direction / direction.norm().clamp(min=1e-12), slots


BROKEN = [
    (1, TooLong), (1, SharesOneFactor), (1, WeighsByPosition), (1, DrawsTheSameForEverySeed), (1, ScalesBeyondItsBound),
    (1, BreaksOnlyAtSomeLengths), (2, MovesAtZero), (4, Drifts), (4, NeverArrives), (5, DoublesItsEstimate), (5, ForgetsTheRate), (6, DrawsByItself),
    (7, CountsOutside), (8, LosesPrecision), (8, ComputesInFloat32), (9, WritesInPlace), (9, CorrectsInPlace),
]  # fmt: skip


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Algorithm]], str]:
    def enter(kind: type[Algorithm]) -> str:
        monkeypatch.setitem(REGISTRY, kind.__name__.lower(), kind)
        kind.name = kind.__name__.lower()
        return kind.name

    return enter


def test_an_honest_algorithm_keeps_every_point(registered: Callable[[type[Algorithm]], str]) -> None:
    check(registered(Honest))


@pytest.mark.parametrize(("point", "kind"), BROKEN, ids=lambda value: getattr(value, "__name__", str(value)))
def test_each_point_finds_who_breaks_it(point: int, kind: type[Algorithm], registered: Callable[[type[Algorithm]], str]) -> None:
    name = registered(kind)
    with pytest.raises(ContractBroken, match=f"{name} breaks point {point} of the contract"):
        POINTS[point - 1](example(name))
    with pytest.raises((ContractBroken, normec.BadInput)):  # a wrong shape or dtype is found before any point
        check(name)


def test_the_engines_points_find_a_broken_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points 3, 10 and 11 are kept by the engine and the mechanism on every algorithm's behalf."""
    from normec.engine import clients
    from normec.privacy import noise

    algorithm = example("clip21")
    with monkeypatch.context() as patch:
        patch.setattr(
            clients, "client_step", lambda algorithm, update, memory, context, norms: algorithm.client(update.nan_to_num(), memory, context)
        )
        with pytest.raises(ContractBroken, match="point 3"):
            POINTS[2](example("clip21-sgd2m"))
    with monkeypatch.context() as patch:
        original = noise.seeded_gaussian
        patch.setattr(noise, "seeded_gaussian", lambda shape, std, *rest: original(shape, 0.9 * std, *rest))
        with pytest.raises(ContractBroken, match="point 10"):
            POINTS[9](algorithm)
    with monkeypatch.context() as patch:
        patch.setattr(
            clients.Clients,
            "_blocks",
            lambda self, who, d: iter([who[:: self.workers._count], who[1 :: self.workers._count]] if self.workers._count > 1 else [who]),
        )
        with pytest.raises(ContractBroken, match="point 11"):
            POINTS[10](algorithm)


def changed(**attributes: Any) -> type[Algorithm]:
    """Honest, with other attributes; those that are None are Algorithm's own again."""
    held = {key: value if value is not None else inspect.getattr_static(Algorithm, key) for key, value in attributes.items()}
    return type("Changed", (Honest,), held)


def method(self: Any) -> Any:
    return Clipping(0.5)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"operator": method}, "operator is not a property. Write @property above it"),
        ({"everyone_computes": lambda self: True}, "everyone_computes is not a property"),
        ({"operator": None}, "operator is missing. Define it"),
        ({"client": None}, "client is missing"),
        ({"server": None}, "server is missing"),
        ({"start": lambda self, update: (update,)}, "start is not a property. Write @property above it"),
        ({"local_rule": lambda self: LocalRule()}, "local_rule is not a property"),
        ({"client": property(lambda self: None)}, "client is not a function"),
        ({"client_slots": "v"}, "client_slots='v' is no tuple of names"),
        ({"client_slots": ["v"]}, r"client_slots=\['v'\] is no tuple of names"),
        ({"server_slots": (1,)}, r"server_slots=\(1,\) is no tuple of names"),
        ({"server_slots": ("v", "v")}, r"server_slots=\(.v., .v.\) holds a name twice"),
        ({"tuned": {"lr": (1, 2)}}, "tuned names 'lr', which is none of its settings"),
        ({"tuned": {"server_lr": 3}}, "tuned=.* must be a dict of"),
        ({"vectors_down": 0}, "vectors_down=0 must be a whole number"),
        ({"one_gradient": "no"}, "one_gradient='no' must be True or False"),
        ({"about": "a paper"}, "about='a paper' must be a normec.About"),
        ({"small": {"k": 3}}, "small names 'k', which is none of its settings"),
        ({"exact": {"prox": 0.0}}, "exact names 'prox', which is none of its settings"),
    ],
)
def test_what_a_class_declares_is_checked_where_it_is_registered(attributes: dict[str, Any], said: str) -> None:
    with pytest.raises(normec.BadInput, match=rf"algorithm Changed\.{said}"):
        normec.register("changed")(changed(**attributes))
    assert "changed" not in REGISTRY


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("paper", "A paper", r"Write about = normec\.About\(paper=…\)"),
        ("year", 2020, r"Write about = normec\.About\(year=…\)"),
        ("guarantee", "O(1/K)", r"Write about = normec\.About\(guarantee=…\)"),
        ("coverage", None, r"Write about = normec\.About\(coverage=…\)"),
        ("correction", lambda self, memory, server: memory[0], r"Return normec\.LocalRule\(correction=…\), .* from a property local_rule"),
        ("proximal", property(lambda self: 0.1), r"Return normec\.LocalRule\(proximal=…\) from a property local_rule"),
        ("update_scale", lambda self, lr: lr, r"Return normec\.LocalRule\(unit=\"update\"\) from a property local_rule"),
        ("starts_from_updates", property(lambda self: True), "Return the function that makes the first memories, .* from a property start"),
        ("check_local", lambda self, local: None, "Write one_gradient = True"),
    ],
)
@pytest.mark.parametrize("inherited", [False, True])
def test_a_member_that_nothing_reads_is_refused_with_what_to_write_instead(name: str, value: Any, instead: str, inherited: bool) -> None:
    """Also where a mixin holds it, and where the class is never registered."""
    bases = (type("Mixin", (), {name: value}), Honest) if inherited else (Honest,)
    annotated = {"__annotations__": {name: ClassVar[Any]}}
    with pytest.raises(normec.BadInput, match=rf"^algorithm Old\.{name} is no longer read\. {instead}[^.]*\.$"):
        type("Old", bases, {} if inherited else annotated | {name: value})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"proximal": float("nan")}, "proximal=nan must be a number >= 0"),
        ({"proximal": -0.1}, "proximal=-0.1 must be a number >= 0"),
        ({"unit": "model"}, "unit='model' must be 'gradient' or 'update'"),
        ({"correction": 0.5}, "correction=0.5 must be a function of memory and server"),
    ],
)
def test_a_local_rule_is_checked(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(normec.BadInput, match=rf"LocalRule\.{said}"):
        LocalRule(**wrong)


def test_what_a_paper_states_is_checked() -> None:
    with pytest.raises(normec.BadInput, match=r"About\.year='2020' must be a whole number or None"):
        normec.About(year="2020")  # type: ignore[arg-type]
    with pytest.raises(normec.BadInput, match=r"About\.coverage=\{'gd': 1\} must be a normec\.Coverage"):
        normec.About(coverage={"gd": 1})  # type: ignore[arg-type]


def test_only_a_registered_class_is_checked_and_not_the_one_it_derives_from() -> None:
    class Derived(normec.FedAvg):
        def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
            raise RuntimeError

    with pytest.raises(normec.BadInput, match=r"algorithm\.name=.*Derived"):
        check(Derived)


def fails(self: Any, *given: Any) -> Any:
    raise KeyError("v_hut")


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"operator": property(lambda self: 0.5)}, "operator is float. Return a normec.operators.Operator"),
        ({"operator": property(fails)}, r"operator failed on zero rows \(KeyError: 'v_hut'\). Correct it"),
        ({"client": fails}, "client failed on zero rows"),
        ({"client": lambda self, u, m, c: (u, m, u)}, "client returned tuple. Return normec.ClientStep"),
        ({"client": lambda self, u, m, c: ClientStep(u.sum(0), m, u)}, r"client returned message of shape \(12,\)"),
        ({"client": lambda self, u, m, c: ClientStep(u.half(), m, u)}, "client returned message of .*float16. Return a tensor"),
        ({"client": lambda self, u, m, c: ClientStep(u, (), u)}, "client returned a tuple of 0 for its slots. Return a tuple of 1: v"),
        ({"client": lambda self, u, m, c: ClientStep(u, m[0], u)}, "client returned Tensor for its slots"),
        ({"client": lambda self, u, m, c: ClientStep(u, m, None)}, "client returned residual of type NoneType"),
        ({"local_rule": property(lambda self: 0.1)}, "local_rule is a float. Return a normec.LocalRule"),
        (
            {"local_rule": property(lambda self: LocalRule(correction=lambda m, s: m[0].sum(0)))},
            r"local_rule returned correction of shape \(12,\)",
        ),
        ({"local_rule": property(lambda self: LocalRule(correction=lambda m, s: None))}, "local_rule returned correction of type NoneType"),
        ({"start": property(lambda self: lambda update: update)}, "start returned Tensor for its slots"),
        ({"server": lambda self, s, mean, rate: mean}, "server returned Tensor. Return a pair"),
        ({"server": lambda self, s, mean, rate: (mean, mean)}, "server returned Tensor for its slots. Return a tuple of 1: v_hat"),
        ({"server": lambda self, s, mean, rate: (1.0, s)}, "server returned direction of type float"),
    ],
)
def test_what_functions_return_is_checked_before_a_run(monkeypatch: pytest.MonkeyPatch, attributes: dict[str, Any], said: str) -> None:
    monkeypatch.setattr("normec.algorithms.base.REGISTRY", dict(REGISTRY))
    kind = normec.register("changed")(changed(**attributes))
    for call in (lambda: normec.contract.check(kind), lambda: quadratic([np.ones((2, 12))], algorithm=kind())):
        with pytest.raises(normec.BadInput, match=rf"algorithm Changed\.{said}"):
            call()


def test_the_contract_is_found_from_the_package_and_only_when_asked() -> None:
    script = "import sys, normec; assert 'normec.contract' not in sys.modules and 'torch' not in sys.modules; normec.contract.check"
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (Path(normec.__file__).parent / "py.typed").is_file()
    normec.contract.check(normec.FedAvg)
