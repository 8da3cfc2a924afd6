"""What is proven of a run is said of that run alone: constants of the whole objective, known losses, and one judge of coverage."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import normec
from conftest import Outcome
from normec.algorithms import Descent
from normec.algorithms.base import REGISTRY
from normec.models import FlatModel
from normec.privacy import Mechanism, Nobody, trust_model
from normec.privacy.accountant import epsilon
from normec.privacy.noise import Seeded, is_independent
from normec.privacy.participation import Fixed, Full, Poisson, scheme_of
from normec.theory.constants import Constants, constants, largest_eigenvalue
from normec.theory.guarantees import guarantee
from normec.theory.problems import half_squares, linear, quadratics
from normec.theory.smooth import not_known_smooth

Command = Callable[..., Outcome]
Array = np.ndarray
WITHIN = normec.FedNormEC(alpha=1.0, beta=0.5, server_lr=0.05, server_normalize=True)


def checked(**choices: Any) -> normec.Run:
    defaults: dict[str, Any] = {
        "model": linear, "loss": half_squares, "data": quadratics(clients=6, d=3, heterogeneity=0.2), "algorithm": WITHIN,
        "local": normec.GD(steps=1, lr=0.5), "participation": normec.Full(), "privacy": normec.Privacy(trust="none"), "rounds": 12,
        "theory": normec.Theory(check=True), "engine": normec.Engine(dtype="float64"),
    }  # fmt: skip
    return normec.train(**(defaults | choices))


def of(module: nn.Module, loss: Any, data: normec.Federation, local: Any = None) -> Constants:
    return constants(FlatModel(module.double(), loss, torch.device("cpu"), torch.float64), data, local or normec.GD())


def test_a_certificate_is_about_all_samples_whatever_is_scored() -> None:
    """Client 0's first sample is at its target from the start, the others are not: one scored sample would show F = 0."""
    x, y = np.ones((12, 1)), np.tile([0.0, 3.0, 3.0, 4.5], 3)
    data = normec.Federation.from_arrays(x, y, np.repeat(np.arange(3), 4))
    algorithm = normec.FedNormEC(alpha=1.0, beta=0.5, server_lr=0.02, server_normalize=True)
    run = checked(data=data, algorithm=algorithm, evaluation=normec.Evaluation(samples=3))
    whole = checked(data=data, algorithm=algorithm)
    assert run.metrics[0]["train_loss"] != whole.metrics[0]["train_loss"]
    F = 0.5 * float(np.mean(y**2)) - 0.5 * float(np.var(y))
    assert run.summary["theory"]["constants"]["F"] == pytest.approx(F) and run.summary["theory"] == whole.summary["theory"]
    first = run.metrics[0]["simulation_only"]["objective"]
    assert first == pytest.approx(0.5 * float(np.mean(y**2)))


def several_outputs() -> tuple[Array, Array, normec.Federation]:
    rng = np.random.default_rng(3)
    x, y = rng.uniform(-1, 1, (4, 10, 3)), rng.uniform(-2, 2, (4, 10, 5))
    return x, y, normec.Federation.from_arrays(x.reshape(-1, 3), y.reshape(-1, 5), np.repeat(np.arange(4), 10))


@pytest.mark.parametrize(("loss", "weight"), [(nn.MSELoss(), 2.0), (functional.mse_loss, 2.0), (half_squares, 1.0)])
def test_least_squares_with_several_outputs(loss: Any, weight: float) -> None:
    """f_i = (w / 2nk) ‖A X − B‖²_F for k outputs, each constant by numpy."""
    x, y, data = several_outputs()

    def least(a: Array, b: Array) -> float:
        return float(weight / 2 * np.square(a @ np.linalg.lstsq(a, b, rcond=None)[0] - b).mean())

    module = nn.Linear(3, 5, bias=False)
    nn.init.zeros_(module.weight)
    found = of(module, loss, data)
    best = least(x.reshape(-1, 3), y.reshape(-1, 5))  # clients of one size: f is the mean over all
    largest = max(np.linalg.eigvalsh(a.T @ a / 10)[-1] for a in x) * weight / 5
    assert found.certified
    assert (found.L, found.infimum, found.start) == pytest.approx((largest, best, weight / 2 * float(np.mean(y**2))))
    assert found.heterogeneity == pytest.approx(best - np.mean([least(a, b) for a, b in zip(x, y, strict=True)]))


def test_a_run_with_several_outputs_lies_under_its_bound() -> None:
    x, y, data = several_outputs()
    a, b = np.concatenate([x.reshape(-1, 3), np.ones((40, 1))], axis=1), y.reshape(-1, 5)
    best = float(np.square(a @ np.linalg.lstsq(a, b, rcond=None)[0] - b).mean())
    run = checked(data=data, model=lambda: nn.Linear(3, 5), loss=nn.MSELoss(), local=normec.GD(steps=1, lr=1.0))
    found = run.summary["theory"]
    assert found["verdict"] == "conditions met" and found["gradient_norm_min"] <= found["bound"]["sharper"]["total"]
    assert found["constants"]["F"] == pytest.approx(run.metrics[0]["train_loss"] - best)


LABELLED = normec.Federation.from_arrays(np.random.default_rng(0).uniform(-1, 1, (12, 3)), np.arange(12) % 3, np.arange(12) % 4)
TARGETS = quadratics(clients=3, d=3)


def patched(loss: nn.Module) -> nn.Module:
    loss.forward = lambda outputs, targets: functional.mse_loss(outputs, targets) / 9  # type: ignore[method-assign]
    return loss


def with_hook(loss: nn.Module) -> nn.Module:
    loss.register_forward_hook(lambda module, inputs, output: output / 9)
    return loss


class Weighed(nn.MSELoss):
    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 0.1 * super().forward(outputs, targets)


@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(reduction="sum"), patched(nn.MSELoss()), with_hook(nn.MSELoss()), Weighed(), nn.SmoothL1Loss(), nn.HuberLoss(),
        partial(functional.mse_loss, reduction="sum"), lambda outputs, targets: functional.mse_loss(outputs, targets),
    ],
)  # fmt: skip
def test_squared_losses_with_options_are_not_certified(loss: Any) -> None:
    assert not of(linear((3,)), loss, TARGETS).certified


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0, 1.0]).double()),
        nn.CrossEntropyLoss(ignore_index=1), nn.CrossEntropyLoss(reduction="sum"), nn.NLLLoss(), nn.MultiMarginLoss(),
        partial(functional.cross_entropy, label_smoothing=0.1),
    ],
)  # fmt: skip
def test_cross_entropies_with_options_are_not_certified(loss: Any) -> None:
    assert not of(nn.Linear(3, 3), loss, LABELLED).certified


def test_the_module_of_a_known_loss_is_that_loss() -> None:
    plain, module = (of(nn.Linear(3, 3), loss, LABELLED) for loss in (functional.cross_entropy, nn.CrossEntropyLoss()))
    assert plain.certified and (module.L, module.how) == (plain.L, plain.how)


def test_a_known_loss_that_was_replaced_is_found_by_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    true = functional.mse_loss
    monkeypatch.setattr(functional, "mse_loss", lambda outputs, targets: true(outputs, targets) / 100)
    assert not of(linear((3,)), functional.mse_loss, TARGETS).certified
    assert of(linear((3,)), half_squares, TARGETS).certified


def own_forward() -> nn.Module:
    layer = nn.Linear(3, 3)
    layer.forward = lambda x: functional.linear(x, layer.weight, layer.bias).sin()  # type: ignore[method-assign]
    return layer


def hooked_weight() -> nn.Module:
    layer = nn.Linear(3, 3)
    layer.weight.register_hook(lambda gradient: 7 * gradient)
    return layer


def backward_hooked() -> nn.Module:
    layer = nn.Linear(3, 3)
    layer.register_full_backward_hook(lambda module, inputs, outputs: None)
    return layer


@pytest.mark.parametrize(
    "make", [own_forward, hooked_weight, backward_hooked, lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))]
)
def test_models_with_something_of_their_own_are_not_certified(make: Callable[[], nn.Module]) -> None:
    assert not of(make(), functional.cross_entropy, LABELLED).certified


def test_a_layer_whose_class_was_changed_is_found_by_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 3 * functional.linear(x, self.weight, self.bias))
    assert not of(nn.Linear(3, 3), functional.cross_entropy, LABELLED).certified


@pytest.mark.parametrize(("exact", "factored"), [(10, 100), (10, 20)])
def test_beyond_the_exact_order_an_eigenvalue_is_bounded(monkeypatch: pytest.MonkeyPatch, exact: int, factored: int) -> None:
    features = np.random.default_rng(1).uniform(-1, 1, (60, 40))
    right = float(np.linalg.eigvalsh(features.T @ features / 60)[-1])
    monkeypatch.setattr("normec.theory.constants.LARGEST_EXACT", exact)
    monkeypatch.setattr("normec.theory.constants.LARGEST_FACTORED", factored)
    found = largest_eigenvalue(features)
    assert right <= found <= (1.05 * right if factored == 100 else np.trace(features.T @ features) / 60 * 1.01)
    assert largest_eigenvalue(np.zeros((60, 40))) == 0


@pytest.mark.parametrize(
    ("model", "operation"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)), "relu"),
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(), nn.Linear(4, 3)), "leaky_relu"),
        (lambda: nn.Sequential(nn.Unflatten(1, (1, 3)), nn.MaxPool1d(2, 1), nn.Flatten(), nn.Linear(2, 3)), None),
        (lambda: nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (1, 6)), nn.MaxPool1d(2), nn.Flatten()), "max_pool2d_with_indices"),
    ],
)  # fmt: skip
def test_a_model_that_is_not_smooth_is_outside(model: Callable[[], nn.Module], operation: str | None) -> None:
    found = checked(model=model, loss=functional.cross_entropy, data=LABELLED, rounds=3).summary["theory"]
    if operation is None:  # maxima of the features alone: smooth in the weights
        assert found["verdict"].startswith("estimated")
    else:
        assert (
            found["verdict"] == "outside the theorems"
            and f"not known to be smooth ({operation}" in found["reasons"][0]
            and "bound" not in found
        )


class Rectified(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=0)

    @staticmethod
    def backward(context: Any, *slopes: torch.Tensor) -> torch.Tensor:
        return slopes[0]


def masked_unseen(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        copied = x * 1
    return x * (copied > 0)


def operations(then: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
    """Those that are not known to be smooth in a linear layer followed by a function."""

    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return then(super().forward(x))

    model = FlatModel(Layer(3, 4), functional.cross_entropy, torch.device("cpu"), torch.float32)
    return not_known_smooth(model, model.vector.clone(), (torch.linspace(-1, 1, 12).reshape(4, 3), torch.tensor([0, 1, 2, 3])))[1]


@pytest.mark.parametrize(
    ("then", "named"),
    [
        (functional.selu, "elu"), (partial(functional.elu, alpha=2.0), "elu"), (lambda x: torch.where(x > 0, x, 0 * x), "gt"),
        (lambda x: x * (x > 0), "gt"), (lambda x: x * (x.detach() > 0), "detach"), (lambda x: x * (x.data > 0), "data"),
        (masked_unseen, "no_grad"), (Rectified.apply, "Rectified"), (torch.vmap(functional.relu), "relu"), (lambda x: (x * x).sqrt(), "sqrt"),
        (lambda x: (x * x) ** 0.5, "pow"), (lambda x: x * torch.tensor([[v > 0 for v in row] for row in x.tolist()]), "tolist"),
        (lambda x: x * x.long(), "_to_copy to int64"), (lambda x: x if x.sum().item() > 0 else -x, "_local_scalar_dense"),
        (lambda x: x * torch.gather(x, 1, x.argmax(1, keepdim=True)), "argmax"), (lambda x: x * (x.view(torch.int32) > 0), "view to int32"),
    ],
)  # fmt: skip
def test_what_may_jump_is_not_known_to_be_smooth(then: Callable[[torch.Tensor], torch.Tensor], named: str) -> None:
    assert named in operations(then)


@pytest.mark.parametrize(
    "then",
    [
        torch.tanh, functional.celu, functional.elu, functional.gelu, functional.silu, functional.softplus, partial(functional.dropout, p=0.5),
        lambda x: functional.layer_norm(x, (4,)), lambda x: functional.group_norm(x, 2), lambda x: x**2, torch.vmap(torch.tanh),
        lambda x: torch.where(torch.arange(4) > 1, x, 2 * x), lambda x: torch.cat([x[:, 2:], x[:, :2]], 1).double().float(),
        lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None])[0],
    ],
)  # fmt: skip
def test_smooth_operations_are_known(then: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert operations(then) == []


def test_an_estimated_bound_is_never_said_to_hold() -> None:
    from normec.runs.verdict import lines

    run = checked(model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)), loss=functional.cross_entropy, data=LABELLED)
    text = "\n".join(lines(run.summary["theory"]))
    assert run.summary["theory"]["verdict"].startswith("estimated") and "bounds the expectation" not in text and "would" in text


def test_a_run_in_which_nothing_is_drawn_contradicts_a_bound_it_exceeds(monkeypatch: pytest.MonkeyPatch) -> None:
    from normec.runs import verdict as module

    true = module.bound
    monkeypatch.setattr(module, "bound", lambda s, form: true(s, form)._replace(optimization=0.0, memory=1e-9, step=0.0))
    found = checked().summary["theory"]
    assert found["verdict"] == "contradicted" and "above the bound" in found["reasons"][-1]
    sampled = checked(participation=normec.Poisson(0.5)).summary["theory"]
    assert sampled["verdict"] == "conditions met"  # one draw proves nothing


class Backwards(Descent):
    """A subclass of the plain step."""

    def step(self, x: torch.Tensor, direction: torch.Tensor, lr: float, state: Any) -> Any:
        return x + lr * direction, ()


class First(normec.Poisson):
    """A subclass that always draws the same clients."""

    def cohort(self, clients: int, k: int, streams: Any) -> Array:
        return np.arange(clients) < self.rate * clients


class Everyone(normec.Full):
    def cohort(self, clients: int, k: int, streams: Any) -> Array:
        return np.arange(clients) == 0


class Stride(normec.GD):
    def _batches(self, samples: int, k: int, client: int, streams: Any) -> Any:
        return [slice(0, 1)] * self.steps


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"server": Backwards()}, "a user-defined server step (Backwards)"),
        ({"participation": First(0.5)}, "user-defined cohorts"),
        ({"participation": Everyone()}, "user-defined cohorts"),
        ({"local": Stride(steps=1, lr=0.5)}, "a user-defined local method (Stride)"),
    ],
)  # fmt: skip
def test_subclasses_are_outside(choices: dict[str, Any], reason: str) -> None:
    run = checked(**choices)
    assert reason in run.summary["theory"]["reasons"][0]
    assert reason in checked(**choices, theory=normec.Theory()).summary["convergence"]


def of_run(name: str, participation: Any, local: Any, noise: float = 0.0, trust: Any = "none", **settings: Any) -> str:
    mechanism = Mechanism(
        trust=trust_model(trust, min_honest=2), noise_multiplier=noise, participation=participation, clients=100, rounds=10
    )
    return str(guarantee(REGISTRY[name](**settings), Descent(), local, mechanism))


ONE, FIVE, DRAWN = normec.GD(steps=1, lr=0.1), normec.GD(steps=5, lr=0.1), normec.SGD(steps=1, lr=0.1)
HALF, EVEN = Poisson(0.5), Fixed(0.5)


@pytest.mark.parametrize(
    ("name", "participation", "local", "more", "outside"),
    [
        ("fed-normec", HALF, FIVE, {"server_normalize": True}, None),
        ("fed-normec", Full(), normec.IG(steps=1, lr=0.1), {"server_normalize": True, "noise": 1.0, "trust": "central"}, None),
        ("fed-normec", HALF, FIVE, {}, "plain server step"),
        ("fed-normec", HALF, normec.RR(steps=1, lr=0.1), {"server_normalize": True}, "local method rr"),
        ("fed-normec", EVEN, FIVE, {"server_normalize": True}, "fixed size"),
        ("fed-normec", HALF, FIVE, {"server_normalize": True, "noise": 1.0, "trust": "secagg"}, "given up"),
        ("alpha-normec", HALF, ONE, {}, None), ("alpha-normec", Full(), DRAWN, {}, "local method sgd"),
        ("clip21", Full(), ONE, {}, None), ("clip21", HALF, FIVE, {}, "local method gd with 5 steps"), ("clip21", HALF, ONE, {}, "partial"),
        ("clip21", Full(), ONE, {"noise": 1.0, "trust": "central"}, "privacy noise"),
        ("clip21-sgd2m", Full(), DRAWN, {"noise": 1.0, "trust": "local"}, None), ("clip21-sgd2m", HALF, DRAWN, {}, "partial"),
        ("ef14", Full(), ONE, {}, None), ("ef14", Full(), FIVE, {}, "5 steps"), ("ef14", HALF, ONE, {}, "partial"),
        ("ef21", HALF, ONE, {}, None), ("ef21", EVEN, ONE, {}, "fixed size"), ("ef21", Full(), DRAWN, {}, "sgd"),
        ("ef21-sgdm", Full(), DRAWN, {}, "start at zero"),
        ("dp-normfedavg", Full(), FIVE, {"noise": 1.0, "trust": "central"}, None), ("dp-normfedavg", HALF, FIVE, {}, "partial"),
        ("fedavg", EVEN, FIVE, {}, None), ("fedavg", EVEN, normec.RR(steps=1, lr=0.1), {}, "rr"), ("fedavg", HALF, FIVE, {}, "divides by pM"),
        ("fedprox", EVEN, FIVE, {}, None), ("fedprox", EVEN, FIVE, {"server_lr": 0.5}, "not the mean"), ("fedprox", EVEN, FIVE, {"prox": 0.0}, "prox = 0"),
        ("scaffold", EVEN, FIVE, {}, None), ("scaffold", HALF, FIVE, {}, "divides by pM"), ("scaffold", EVEN, normec.IG(steps=1, lr=0.1), {}, "ig"),
        ("scaffold", EVEN, None, {}, "a user-defined train function"),
    ],
)  # fmt: skip
def test_the_runs_that_each_guarantee_is_about(
    name: str, participation: Any, local: Any, more: dict[str, Any], outside: str | None
) -> None:
    said = of_run(name, participation, local, **more)
    if outside is None:
        assert said.startswith(REGISTRY[name].about.guarantee) and said.endswith("(assumptions not checked)")
    else:
        assert said.startswith("outside the theorems (") and outside in said


@pytest.mark.parametrize("name", ["dp-fedavg-clip", "dp-fedavg-norm", "dp-sgd", "dp-scaffold"])
def test_where_nothing_is_proven_that_is_said(name: str) -> None:
    assert of_run(name, Full(), ONE).startswith("no theorem (none")


class Variant(normec.Clip21):
    def client(self, update: torch.Tensor, memory: Any, context: Any) -> Any:
        return super().client(2 * update, memory, context)


def test_a_variant_inherits_no_guarantee() -> None:
    mechanism = Mechanism(trust=Nobody(), participation=Full(), clients=100, rounds=10)
    said = guarantee(Variant(), Descent(), ONE, mechanism)
    assert not said.covers and str(said) == "outside the theorems (Variant is a variant of clip21)"


def test_a_plan_and_a_certificate_judge_alike(command: Command) -> None:
    arguments = ["plan", "trust=secagg", "rate=0.2", "epsilon=8", "min_honest=5", "clients=100", "parameters=10", "rounds=5"]
    words = command(*arguments).out
    assert "rounds that may be given up" in words and "every condition" not in words
    found = json.loads(command(*arguments, "--json").out)
    assert found["outside"] == ["rounds that may be given up (trust secagg with partial participation)"]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).flatten()


def scaled_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(outputs, targets)


@pytest.mark.parametrize("changed", ["loss", "model"])
def test_a_run_does_not_resume_with_other_code_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    choices: dict[str, Any] = {"model": Scaled, "loss": scaled_loss, "out": tmp_path / "r", "theory": normec.Theory(), "rounds": 4}
    checked(**choices)
    assert checked(**choices, resume=True).metrics
    other: dict[str, Any] = {}
    source = "def scaled_loss(outputs, targets):\n    return 2 * functional.mse_loss(outputs, targets)\n"
    source += "def forward(self, x):\n    return self.layer(x).flatten().sin()\n"
    exec(source, {"functional": functional, "__name__": __name__}, other)
    if changed == "model":
        monkeypatch.setattr(Scaled, "forward", other["forward"])
    with pytest.raises(normec.BadInput, match=f"code.{changed}"):
        checked(**choices | ({"loss": other["scaled_loss"]} if changed == "loss" else {}), resume=True)


def test_code_of_this_library_and_of_torch_is_not_hashed() -> None:
    from normec.models.code import code_of

    assert code_of(functional.cross_entropy) is None and code_of(nn.Linear(2, 1)) is None and code_of(normec.FedNormEC) is None
    assert code_of(partial(functional.cross_entropy, label_smoothing=0.1)) != code_of(
        partial(functional.cross_entropy, label_smoothing=0.2)
    )
    assert code_of(nn.MSELoss(reduction="sum")) != code_of(nn.MSELoss()) and code_of(scaled_loss) == code_of(scaled_loss)
    assert code_of(own_forward()) is not None and code_of(Variant) is not None


class Branching(nn.Module):
    """tanh on what a run shows of itself at first, ReLU elsewhere."""

    calls = 0

    def __init__(self, where: str) -> None:
        super().__init__()
        self.first, self.last, self.where = nn.Linear(3, 4), nn.Linear(4, 3), where
        nn.init.zeros_(self.last.weight)  # so that both agree at the start
        self.seen = 0
        self.register_buffer("counted", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, rectified = self.first(x), False
        if self.where == "many samples":
            rectified = len(x) > 8
        elif self.where == "the last client":
            rectified = bool((x == LATE.x[-1]).all(1).any())
        elif self.where == "evaluation":
            rectified = not self.training
        elif self.where == "later":
            self.seen += 1
            rectified = self.seen > 50
        elif self.where == "a buffer":
            self.counted += 1
            rectified = bool(self.counted > 50)
        elif self.where == "a hook" and h.requires_grad:
            h.register_hook(lambda slope: 7 * slope)
        elif self.where == "chance":
            return self.last(torch.tanh(h) * torch.rand(()))  # type: ignore[no-any-return]
        elif self.where == "chance for the last client" and bool((x == LATE.x[-1]).all(1).any()):
            h = h * torch.rand(())
        return self.last(torch.relu(h) if rectified else torch.tanh(h))  # type: ignore[no-any-return]


LATE = normec.Federation.from_arrays(np.random.default_rng(1).uniform(-1, 1, (48, 3)), np.arange(48) % 3, np.repeat(np.arange(4), 12))


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("many samples", "not known to be smooth (relu)"), ("the last client", "not known to be smooth (relu)"),
        ("evaluation", "something else in evaluation"), ("later", "changes its attribute seen"), ("a buffer", "moves its buffers"),
        ("a hook", "not known to be smooth (register_hook)"), ("chance", "draws random numbers"),
        ("chance for the last client", "draws random numbers"), ("nowhere", None),
    ],
)  # fmt: skip
def test_what_only_some_samples_or_calls_show_is_found(where: str, reason: str | None) -> None:
    engine = normec.Engine(dtype="float64", backend="loop")
    found = checked(model=lambda: Branching(where), loss=functional.cross_entropy, data=LATE, rounds=3, engine=engine).summary["theory"]
    if reason is None:
        assert found["verdict"].startswith("estimated")
    else:
        assert found["verdict"] == "outside the theorems" and reason in found["reasons"][0]


def network(*extra: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(3, 4), *extra, nn.Tanh(), nn.Linear(4, 3))


def with_hooked_weight() -> nn.Module:
    module = network()()
    module[0].weight.register_hook(lambda slope: 7 * slope)  # type: ignore[index, union-attr, operator]
    return module


@pytest.mark.parametrize(
    ("model", "loss", "reason"),
    [
        (network(nn.Dropout()), functional.cross_entropy, "draws random numbers"),
        (network(nn.BatchNorm1d(4)), functional.cross_entropy, "moves its buffers"),
        (with_hooked_weight, functional.cross_entropy, "hooks on the model"),
        (network(nn.BatchNorm1d(4, track_running_stats=False)), functional.cross_entropy, "not the mean of its mini-batches"),
        (network(), nn.CrossEntropyLoss(reduction="sum"), "not the mean of its mini-batches"),
        (network(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0, 1.0])), "not the mean of its mini-batches"),
    ],
)  # fmt: skip
def test_a_loss_that_is_no_function_of_the_parameters_or_no_mean_is_outside(model: Any, loss: Any, reason: str) -> None:
    local = normec.IG(steps=1, lr=0.1, batch_size=4)
    data = normec.Federation.from_arrays(LATE.x, np.random.default_rng(2).integers(0, 3, 48), np.repeat(np.arange(4), 12))
    found = checked(model=model, loss=loss, data=data, local=local, rounds=3).summary["theory"]
    assert found["verdict"] == "outside the theorems" and reason in found["reasons"][0]


def changed_in(thing: Any, name: str, function: Any) -> Any:
    vars(thing)[name] = function
    return thing


def test_an_object_with_another_function_has_no_theorem_and_no_amplification() -> None:
    """Amplification is proved of cohorts that are drawn: without it ε is that of every client in every round."""
    few = changed_in(normec.Poisson(0.1), "cohort", lambda clients, k, streams: np.arange(clients) < clients // 2)
    cases: list[dict[str, Any]] = [
        {"algorithm": changed_in(WITHIN.model_copy(), "server", lambda state, mean, rate: (-mean, state))},
        {"server": changed_in(Descent(), "step", lambda x, direction, lr, state: (x + lr * direction, ()))},
        {"local": changed_in(normec.GD(steps=1, lr=0.5), "_batches", lambda *given: [slice(0, 1)])},
        {"participation": few},
    ]
    for choices in cases:
        assert checked(**choices, rounds=2).summary["theory"]["verdict"] == "outside the theorems"
        assert checked(**choices, rounds=2, theory=normec.Theory()).summary["convergence"].startswith("outside the theorems")
    assert scheme_of(few) == "own" and scheme_of(normec.Poisson(0.1)) == "poisson"
    assert not is_independent(changed_in(Seeded(), "next", lambda state, total, draw: (total, ()))) and is_independent(Seeded())
    released = {"trust": trust_model("central"), "clients": 100, "rounds": 3, "noise_multiplier": 2.0}
    own, full, drawn = (
        epsilon(Mechanism(**released, participation=each), 1e-5).epsilon for each in (few, normec.Full(), normec.Poisson(0.1))
    )
    assert own >= full > drawn


def test_a_class_that_names_a_module_of_this_library_is_a_variant() -> None:
    lying = type("Lying", (normec.FedNormEC,), {"__module__": "normec.algorithms.fed_normec"})
    said = checked(algorithm=lying(alpha=1.0, beta=0.5, server_lr=0.05, server_normalize=True)).summary["theory"]
    assert said["verdict"] == "outside the theorems" and said["reasons"][0].endswith("not Lying")


def test_a_function_of_a_class_that_was_replaced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(rounds=2).summary["theory"]["verdict"] == "conditions met"
    true = normec.FedNormEC.server
    monkeypatch.setattr(normec.FedNormEC, "server", lambda self, state, mean, rate: true(self, state, -mean, rate))
    assert "replaced" in checked(rounds=2).summary["theory"]["reasons"][0]


def test_what_is_estimated_is_not_said_to_be_checked() -> None:
    run = checked(model=network(), loss=functional.cross_entropy, data=LATE, rounds=2)
    assert run.summary["convergence"].startswith("estimated") and run.summary["convergence"].endswith("are not proven)")
