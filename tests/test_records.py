"""Bounded sums of records' gradients: the three ways against Opacus, the bound under any scaling, and records that fail."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import opacus
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.nn import functional

from normec.engine.records import BoundedSum, Choice, choose_way
from normec.models import CNN, FlatModel, ResNet20
from normec.operators import Clipping, Radial, SmoothedNormalization

CPU = torch.device("cpu")
CLIENTS, RECORDS = 3, 7
MOST = 1 + 1e-6
"""Of the bound, with rounding."""


class Recurrent(nn.Module):
    """An embedding, one LSTM, a linear layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


class Tied(nn.Module):
    """A weight that two layers share, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(torch.tanh(self.first(torch.tanh(self.first(x))))))


class Tokens(nn.Module):
    """Scores (n, classes, L) for each of L tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(x))).transpose(1, 2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5, bias=False), nn.Tanh(), nn.Linear(5, 3))


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    module[0].weight.requires_grad_(False)
    return module


def one_output() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))


class Case(NamedTuple):
    module: Callable[[], nn.Module]
    features: tuple[int, ...]
    way: str
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
    targets: tuple[int, ...] = ()
    classes: int = 3
    """Of the targets; 0 for real numbers, −1 for real numbers 0 and 1."""
    codes: int = 0
    """Of the features; 0 for real numbers."""
    sound: int | None = None

    def batch(self, dtype: torch.dtype, clients: int = CLIENTS, records: int = RECORDS) -> tuple[Tensor, Tensor]:
        shape, aims = (clients, records, *self.features), (clients, records, *self.targets)
        x = torch.randint(self.codes, shape) if self.codes else torch.randn(shape).to(dtype)
        y = (
            torch.randint(self.classes, aims)
            if self.classes > 0
            else torch.randint(2, aims).to(dtype)
            if self.classes
            else torch.randn(aims).to(dtype)
        )
        return x, y

    def model(self, dtype: torch.dtype) -> FlatModel:
        return FlatModel(self.module(), self.loss, CPU, dtype)


IGNORES = nn.CrossEntropyLoss(ignore_index=4)
CASES = {
    "logistic": Case(lambda: nn.Linear(6, 3), (6,), "written out"),
    "mlp": Case(mlp, (2, 3), "written out"),
    "normalized": Case(normalized, (6,), "vmap"),
    "cnn": Case(lambda: CNN((3, 8, 8), 3), (3, 8, 8), "vmap"),
    "resnet20": Case(lambda: ResNet20((3, 8, 8), 3), (3, 8, 8), "vmap"),
    "lstm": Case(Recurrent, (4,), "one by one", codes=9),
    "tied": Case(Tied, (6,), "vmap"),
    "frozen": Case(frozen, (6,), "vmap"),
    "class weights": Case(normalized, (6,), "vmap", loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.5]))),
    "one logit": Case(one_output, (6,), "vmap", loss=functional.binary_cross_entropy_with_logits, targets=(1,), classes=-1),
    "regression": Case(one_output, (6,), "vmap", loss=functional.mse_loss, targets=(1,), classes=0),
    "tokens": Case(Tokens, (4,), "vmap", loss=IGNORES, targets=(4,), classes=5, codes=9),
}  # fmt: skip
OPERATORS: list[Radial] = [Clipping(0.5), SmoothedNormalization(0.01)]


def opacus_gradients(case: Case, model: FlatModel, vector: Tensor, features: Tensor, targets: Tensor) -> Tensor:
    """Each record's gradient (n, d) in float64, by the hooks of Opacus; ℓ_r is the loss of a batch of one."""
    model.enter(vector, training=True)
    module = copy.deepcopy(model.module)
    if case.module is Recurrent:  # whose LSTM has hooks in Opacus's own form alone
        module.lstm = DPLSTM(4, 5, batch_first=True).double()
        module.lstm.load_state_dict(model.module.lstm.state_dict())
    x = features.double() if features.is_floating_point() else features
    y = targets.double() if targets.is_floating_point() else targets
    loss = copy.deepcopy(model.loss).double() if isinstance(model.loss, nn.Module) else model.loss
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = opacus.GradSampleModule(module.double(), loss_reduction="sum", strict=False)
        outputs = wrapped(x)
        torch.stack([loss(outputs[r : r + 1], y[r : r + 1]) for r in range(len(y))]).sum().backward()
    named = dict(module.named_parameters(recurse=False))
    for name, part in module.named_children():  # each says itself how its parameters are called
        named |= {f"{name}.{own}": parameter for own, parameter in part.named_parameters()}
    names = [name for name, p in model.module.named_parameters() if p.requires_grad]
    return torch.cat([named[name].grad_sample.reshape(len(y), -1) for name in names], dim=1)


def bounded(gradients: Tensor, operator: Radial) -> Tensor:
    """κ(g_r) in float64, written by hand."""
    norms = gradients.double().norm(dim=1, keepdim=True)
    factor = (operator.bound / norms).clamp(max=1) if isinstance(operator, Clipping) else 1 / (operator.alpha + norms)  # type: ignore[attr-defined]
    return gradients.double() * factor


def choices(case: Case, model: FlatModel, features: Tensor, targets: Tensor) -> list[Choice]:
    """The automatic choice, which is checked, and the other ways that can compute the model."""
    chosen = choose_way(model, (features[0, :3], targets[0, :3]), OPERATORS[0])
    assert chosen.way == case.way
    others = [Choice("one by one", chosen.sample)]
    if case.way != "one by one":
        others.append(Choice("vmap", chosen.sample, together=False, numbers=10**6))
    return [chosen, *others]


@pytest.fixture
def nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that raises would be helped out by another one."""

    def refuse(*arguments: Any) -> Tensor:
        raise AssertionError("a way failed")

    monkeypatch.setattr(BoundedSum, "_without_failing", refuse)


@pytest.mark.usefixtures("nothing_fails")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_every_way_is_that_of_opacus(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    case = CASES[name]
    model = case.model(dtype)
    features, targets = case.batch(dtype)
    vectors = model.vector + 0.05 * torch.randn(CLIENTS, model.d, dtype=dtype)
    weights = torch.ones(CLIENTS, RECORDS, dtype=dtype)
    weights[1, 3:], weights[2] = 0.0, 0.0
    gradients = [opacus_gradients(case, model, vectors[i], features[i], targets[i]) for i in range(CLIENTS)]
    norms = torch.cat(gradients).norm(dim=1)
    for operator in (Clipping(float(norms.median())), SmoothedNormalization(0.1 * float(norms.median()))):
        expected = torch.stack([weights[i].double() @ bounded(gradients[i], operator) for i in range(CLIENTS)])
        for choice in choices(case, model, features, targets):
            found = BoundedSum(model, operator, choice)(vectors, features, targets, weights)
            assert found.dtype == torch.float64 and not found[2].any()
            off = (found - expected).norm(dim=1) / expected.norm(dim=1).clamp(min=1e-30)
            assert float(off.max()) < (1e-9 if dtype == torch.float64 else 5e-6), choice


class Guarded(nn.Module):
    """A linear layer that fails on codes it does not know, under vmap too, with dropout where it is asked for."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.drop, self.norm, self.head = nn.Embedding(9, 4), nn.Dropout(drop), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.drop(self.embedding(x).sum(1))))


class Picky(nn.Module):
    """Fails on any batch with a long record, whatever the others; the way through it depends on values, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().abs().max()) > 50:
            raise ArithmeticError("too long")
        return self.linear(x)


BAD = {
    "targets beyond the classes": (CASES["mlp"], lambda x, y: y[1, 4].fill_(7)),
    "unknown codes": (Case(Guarded, (4,), "vmap", codes=9), lambda x, y: x[1, 4].fill_(99)),
    "a model that refuses": (Case(Picky, (6,), "one by one"), lambda x, y: x[1, 4].fill_(60.0)),
    "NaN, written out": (CASES["mlp"], lambda x, y: x[1, 4, 0, 1].fill_(torch.nan)),
    "infinity, written out": (CASES["mlp"], lambda x, y: x[1, 4].fill_(torch.inf)),
    "NaN, vmap together": (CASES["normalized"], lambda x, y: x[1, 4, 2].fill_(torch.nan)),
    "NaN, vmap": (CASES["cnn"], lambda x, y: x[1, 4, 0, 3, 3].fill_(torch.nan)),
    "NaN, one by one": (Case(Picky, (6,), "one by one"), lambda x, y: x[1, 4, 2].fill_(torch.nan)),
    "a gradient of norm 1e31": (CASES["logistic"], lambda x, y: x[1, 4].fill_(1e31)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", BAD)
def test_a_record_that_fails_adds_zero_and_leaves_the_others_as_they_are(name: str, dtype: torch.dtype) -> None:
    """To the bit what the sums are with weight 0 and a sound record in its place."""
    torch.manual_seed(5)
    case, spoil = BAD[name]
    model = case.model(dtype)
    features, targets = case.batch(dtype)
    choice = choose_way(model, (features[0], targets[0]), OPERATORS[0])
    assert choice.way == case.way
    vectors, weights = model.vector + 0.1 * torch.randn(CLIENTS, model.d, dtype=dtype), torch.ones(CLIENTS, RECORDS, dtype=dtype)
    for operator in OPERATORS:
        sums = BoundedSum(model, operator, choice)
        without = weights.clone()
        without[1, 4] = 0.0
        expected = sums(vectors, features, targets, without)
        x, y = features.clone(), targets.clone()
        spoil(x, y)
        assert torch.equal(sums(vectors, x, y, weights), expected)
        assert not torch.equal(sums(vectors, features, targets, weights), expected)


def test_a_sum_of_failing_records_alone_is_zero() -> None:
    case = CASES["mlp"]
    model = case.model(torch.float32)
    features, targets = case.batch(torch.float32)
    choice = choose_way(model, (features[0], targets[0]), OPERATORS[0])
    sums = BoundedSum(model, OPERATORS[0], choice)
    assert not sums(model.vector.expand(CLIENTS, -1), features, targets + 7, torch.ones(CLIENTS, RECORDS)).any()


@pytest.mark.parametrize("way", ["vmap", "one by one"])
def test_a_model_that_draws_gives_each_record_numbers_that_do_not_depend_on_the_others(way: Any) -> None:
    """Also beside a record that fails, after which its mini-batch is computed again; the generator moves on alike."""
    torch.manual_seed(5)
    case = Case(lambda: Guarded(drop=0.4), (4,), "vmap", codes=9)
    model = case.model(torch.float32)
    model.stochastic = True
    features, targets = case.batch(torch.float32)
    sums, x, ones = BoundedSum(model, OPERATORS[1], Choice(way, torch.Size([4]))), model.vector.clone(), torch.ones(CLIENTS, RECORDS)

    def of(features: Tensor, weights: Tensor, targets: Tensor = targets, seed: int = 9) -> tuple[Tensor, Tensor]:
        torch.manual_seed(seed)
        return sums(x.expand(CLIENTS, -1), features, targets, weights), torch.rand(3)

    weights, spoilt, nothing = ones.clone(), features.clone(), 99 * torch.ones_like(features)
    weights[1, 4], spoilt[1, 4] = 0.0, 99
    (expected, after), (found, then) = of(features, weights), of(spoilt, ones)
    assert torch.equal(found, expected) and torch.equal(then, after)
    assert torch.equal(of(nothing, ones)[1], after) and not of(nothing, ones)[0].any()
    assert not torch.equal(of(features, weights, seed=10)[0], expected)
    moved = of(features, ones)[0] - expected
    assert 0.5 < float(moved.norm()) <= MOST and not moved[[0, 2]].any()
    model.module.eval()
    assert torch.equal(of(features, weights)[0], expected)
    alone = torch.zeros(CLIENTS, RECORDS)
    alone[0, 2] = 1.0
    alike = features[:, 2:3].expand(-1, RECORDS, -1), ones, targets[:, 2:3].expand(-1, RECORDS)
    single = of(alike[0], alone, alike[2])[0][0]
    assert not torch.allclose(of(*alike)[0][0], RECORDS * single)  # the same record in other places has other masks


def test_the_memory_that_is_used_again_does_not_grow() -> None:
    case = CASES["mlp"]
    model = case.model(torch.float32)
    features, targets = case.batch(torch.float32)
    sums = BoundedSum(model, OPERATORS[0], Choice("written out", torch.Size([2, 3]), together=True))
    held = set()
    for _ in range(6):
        sums(model.vector.expand(CLIENTS, -1), features, targets, torch.ones(CLIENTS, RECORDS))
        held.add(len(sums.way._values._held))  # type: ignore[attr-defined]
    assert len(held) == 1


@pytest.mark.usefixtures("nothing_fails")
@pytest.mark.parametrize("name", ["mlp", "normalized", "cnn", "lstm"])
def test_filling_up_changes_nothing_but_rounding(name: str) -> None:
    torch.manual_seed(7)
    case = CASES[name]
    model = case.model(torch.float64)
    features, targets = case.batch(torch.float64)
    choice = choose_way(model, (features[0], targets[0]), OPERATORS[0])
    vectors = model.vector.expand(CLIENTS, -1)
    sums = BoundedSum(model, OPERATORS[1], choice)
    expected = sums(vectors, features, targets, torch.ones(CLIENTS, RECORDS))
    more, aims = case.batch(torch.float64)
    weights = torch.cat([torch.ones(CLIENTS, RECORDS), torch.zeros(CLIENTS, RECORDS)], dim=1)
    filled = [
        sums(vectors, torch.cat([features, x], 1), torch.cat([targets, y], 1), weights) for x, y in ((more, aims), (features, targets))
    ]
    torch.testing.assert_close(filled[0], expected, rtol=1e-12, atol=1e-14)
    assert torch.equal(*filled)  # whatever fills up


@pytest.mark.usefixtures("nothing_fails")
@pytest.mark.parametrize("name", ["mlp", "normalized", "cnn"])
def test_pieces_of_a_large_batch_are_added_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    case = CASES[name]
    model = case.model(torch.float64)
    features, targets = case.batch(torch.float64)
    choice = choose_way(model, (features[0], targets[0]), OPERATORS[0])
    sums = BoundedSum(model, OPERATORS[1], choice)
    given = model.vector.expand(CLIENTS, -1), features, targets, torch.ones(CLIENTS, RECORDS)
    expected = sums(*given)
    for most in (1, 3, 15):
        monkeypatch.setattr(sums.way, "at_once", most)
        torch.testing.assert_close(sums(*given), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("nothing_fails")
@pytest.mark.parametrize("name", ["mlp", "normalized"])
@pytest.mark.parametrize("records", [16, 32, 48, 96])
def test_a_sum_is_bit_equal_beside_any_other_clients(name: str, records: int) -> None:
    torch.manual_seed(records)
    case = CASES[name]
    model = case.model(torch.float32)
    features, targets = case.batch(torch.float32, clients=9, records=records)
    choice = choose_way(model, (features[0], targets[0]), OPERATORS[0])
    assert choice.together
    sums = BoundedSum(model, OPERATORS[1], choice)
    vectors, weights = model.vector + 0.1 * torch.randn(9, model.d), (torch.rand(9, records) < 0.8).float()
    together = sums(vectors, features, targets, weights)
    for part in (slice(0, 1), slice(1, 2), slice(2, 4), slice(3, 9)):
        alone = [given[part].clone() for given in (vectors, features, targets, weights)]
        assert torch.equal(sums(*alone), together[part])


def linear() -> nn.Module:
    return nn.Linear(4, 3)


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))


def layered() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 3))


@settings(max_examples=150, deadline=None)
@given(
    module=st.sampled_from([linear, deep, layered]),
    way=st.sampled_from(["written out", "vmap", "one by one"]),
    operator=st.sampled_from([Clipping(0.5), Clipping(1e-10), Clipping(1e10), SmoothedNormalization(0.0), SmoothedNormalization(0.3)]),
    exponents=st.lists(st.floats(-30, 30), min_size=1, max_size=40),
    scale=st.floats(-3, 3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
@example(linear, "written out", SmoothedNormalization(0.0), [-30.0, 30.0] * 20, 0.0, torch.float32, 0)
@example(linear, "vmap", SmoothedNormalization(0.0), [-30.0, 30.0] * 20, 0.0, torch.float32, 0)
def test_one_record_moves_a_sum_by_at_most_the_bound(
    module: Any, way: Any, operator: Radial, exponents: list[float], scale: float, dtype: torch.dtype, seed: int
) -> None:
    """Left out, by weight 0 in its place: C. Replaced by any other one: 2C. For gradients of any length."""
    torch.manual_seed(seed)
    model = FlatModel(module(), functional.cross_entropy, CPU, dtype)
    records, sums = len(exponents), BoundedSum(model, operator, Choice(way, torch.Size([4]), together=way == "written out"))
    features = torch.randn(1, records, 4, dtype=dtype) * torch.tensor(exponents).double().mul(2.302585).exp().to(dtype)[None, :, None]
    targets, vectors = torch.randint(3, (1, records)), 10.0**scale * torch.randn(1, model.d, dtype=dtype)
    weights = torch.ones(1, records, dtype=dtype)
    total = sums(vectors, features, targets, weights)
    assert bool(total.isfinite().all())
    for record in {0, records // 2, records - 1}:
        without, other = weights.clone(), features.clone()
        without[0, record], other[0, record] = 0.0, -1e3 * other[0, record - 1]
        assert float((total - sums(vectors, features, targets, without)).norm()) <= operator.bound * MOST
        assert float((total - sums(vectors, other, targets, weights)).norm()) <= 2 * operator.bound * MOST


@pytest.mark.usefixtures("nothing_fails")
@pytest.mark.parametrize("way", ["written out", "vmap"])
def test_a_sum_of_5000_records_in_float32_keeps_the_bound(way: Any) -> None:
    """All of them along almost one direction, where a sum in float32 loses what a record adds; the exact sum is known."""
    torch.manual_seed(0)
    model = FlatModel(nn.Linear(100, 2), functional.cross_entropy, CPU, torch.float32)
    features = torch.ones(1, 5000, 100) + 1e-4 * torch.randn(1, 5000, 100)
    sums = BoundedSum(model, Clipping(0.1), Choice(way, torch.Size([100]), together=way == "written out"))
    vectors, targets, weights = torch.zeros(1, model.d), torch.zeros(1, 5000, dtype=torch.int64), torch.ones(1, 5000)
    total = sums(vectors, features, targets, weights)
    weights[0, 2500] = 0.0
    moved = total - sums(vectors, features, targets, weights)
    x = torch.cat([features[0, 2500].double(), torch.ones(1, dtype=torch.float64)])
    gradient = torch.stack([-0.5 * x, 0.5 * x])  # softmax of zeros, less the target's indicator, times (x, 1)
    expected = 0.1 * gradient / gradient.norm()
    torch.testing.assert_close(moved, torch.cat([expected[:, :100].reshape(-1), expected[:, 100]])[None], rtol=1e-8, atol=1e-12)
    assert float(moved.norm()) <= 0.1 * MOST
    assert float(total.norm()) == pytest.approx(500.0, rel=1e-6)


def test_what_vmap_computes_otherwise_or_slowly_goes_one_by_one() -> None:
    class Branches(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if float(x.detach().sum()) > 0 else 2 * super().forward(x)

    for module, loss, targets, way in (
        (lambda: Branches(6, 3), functional.cross_entropy, torch.randint(3, (4,)), "one by one"),
        (lambda: nn.GRU(6, 3), lambda y, t: functional.cross_entropy(y[0], t), torch.randint(3, (4,)), "one by one"),
        (lambda: nn.Linear(6, 3), functional.cross_entropy, torch.rand(4, 3, dtype=torch.float64), "vmap"),  # of each class a share
    ):
        model = FlatModel(module(), loss, CPU, torch.float64)
        assert choose_way(model, (torch.randn(4, 6, dtype=torch.float64), targets), OPERATORS[0]).way == way
