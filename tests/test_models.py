"""The flat vector: what is in it, in which order, and what the built-in models are."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import normec
from conftest import FailsAt
from normec.models import FlatModel, LocalSteps, build
from normec.models.zoo import logistic, mlp

CPU = torch.device("cpu")
X = np.random.default_rng(0).normal(size=(30, 5))
Y = np.random.default_rng(1).integers(0, 3, size=30)


def flat(module: nn.Module, dtype: torch.dtype = torch.float64) -> FlatModel:
    return FlatModel(module, functional.cross_entropy, CPU, dtype)


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(X), torch.from_numpy(Y)


def test_logistic_starts_at_zero_with_weight_then_bias() -> None:
    model = flat(logistic((5,), 3))
    assert model.d == 3 * 5 + 3 and model.vector.abs().max() == 0
    x = torch.arange(18.0, dtype=torch.float64)
    outputs = model.outputs(x, samples()[0][:1])
    np.testing.assert_allclose(outputs.numpy()[0], np.arange(15.0).reshape(3, 5) @ X[0] + [15, 16, 17], rtol=1e-12)


def test_mlp_has_two_layers_of_64() -> None:
    model = flat(mlp((8, 8), 10))
    assert model.d == 64 * 64 + 64 + 64 * 10 + 10
    assert model.outputs(model.vector.clone(), torch.zeros(2, 8, 8, dtype=torch.float64)).shape == (2, 10)


def test_local_update_is_autograd_on_the_module() -> None:
    module = build(mlp, samples()[0][0], 3, seed=1)
    model = flat(module)
    start, out = model.vector.clone(), torch.empty_like(model.vector)
    model.local_update(start, samples(), [slice(None)], LocalSteps(0.1), out)
    twin = build(mlp, samples()[0][0], 3, seed=1).double()
    loss = functional.cross_entropy(twin(samples()[0]), samples()[1])
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(twin.parameters()))])
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-14)


def test_frozen_parameters_and_buffers_stay_outside() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    module[0].weight.requires_grad_(False)
    module.register_buffer("counter", torch.tensor(7))
    frozen = module[0].weight.clone()
    run = normec.train(
        model=lambda: module, data=normec.Federation.from_arrays(X, Y, np.arange(30) % 4), algorithm=normec.FedNormEC(), local=normec.GD(),
        participation=normec.Full(), privacy=normec.Privacy(trust="none"), rounds=3,
    )  # fmt: skip
    assert flat(module).d == 4 + 4 * 3 + 3
    assert torch.equal(run.model[0].weight, frozen) and run.model.counter == 7  # type: ignore[index]


def test_tied_parameters_enter_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    model = flat(Tied())
    assert model.d == 25
    out = torch.empty_like(model.vector)
    model.local_update(model.vector.clone(), samples(), [slice(None)], LocalSteps(0.1), out)
    assert out.abs().max() > 0
    assert model.replica().d == 25


def test_unused_parameters_have_zero_updates() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(5, 3), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model = flat(Half())
    out = torch.empty_like(model.vector)
    model.local_update(model.vector.clone(), samples(), [slice(None)] * 2, LocalSteps(0.1), out)
    assert out[-6:].abs().max() == 0 and out[:18].abs().max() > 0


def test_batch_norm_is_refused_with_the_hint_and_group_norm_trains() -> None:
    choices = {
        "data": normec.Federation.from_arrays(X, Y, np.arange(30) % 4), "algorithm": normec.FedNormEC(), "local": normec.GD(),
        "participation": normec.Full(), "privacy": normec.Privacy(trust="central", epsilon=1.0), "rounds": 2,
    }  # fmt: skip
    with pytest.raises(normec.BadInput, match="GroupNorm"):
        normec.train(model=lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), **choices)  # type: ignore[arg-type]
    normec.train(model=lambda: nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3)), **choices)  # type: ignore[arg-type]


def test_initial_weights_come_from_the_seed() -> None:
    a, b, c = (flat(build(mlp, samples()[0][0], 3, seed)).vector for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_saved_model_is_the_final_model(tmp_path: object) -> None:
    run = normec.train(
        model=mlp, data=normec.Federation.from_arrays(X, Y, np.arange(30) % 4), algorithm=normec.FedNormEC(beta=0.2), local=normec.GD(),
        participation=normec.Full(), privacy=normec.Privacy(trust="none"), rounds=3, out=str(tmp_path),
    )  # fmt: skip
    saved = load_file(f"{tmp_path}/model.safetensors")
    assert saved.keys() == run.model.state_dict().keys()
    assert all(torch.equal(value, run.model.state_dict()[name]) for name, value in saved.items())
    start = build(mlp, torch.zeros(5), 3, 1).state_dict()
    assert any(not torch.equal(value, start[name]) for name, value in saved.items())


def test_zero_update_leaves_the_model_where_it_is() -> None:
    """Clipping bounds the update and never the weights, however large they are."""

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((50,), 10.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.w.detach() * 0 + self.w * 0 + x

    run = normec.train(
        model=Constant, data=normec.Federation.from_arrays(np.ones((4, 50)), np.zeros(4), [0, 1, 2, 3]),
        algorithm=normec.DPFedAvgClip(clip_norm=0.1), local=normec.GD(), participation=normec.Full(),
        privacy=normec.Privacy(trust="none"), rounds=2, loss=lambda outputs, targets: outputs.square().mean(),
    )  # fmt: skip
    assert torch.equal(run.model.w, torch.full((50,), 10.0))  # type: ignore[arg-type]


def test_a_client_that_is_not_finite_ends_a_run_without_privacy() -> None:
    with pytest.raises(normec.TrainingFailed, match="client 9"):
        _nonfinite_run(normec.Privacy(trust="none"))


class Picky(nn.Linear):
    """Fails where any sample's first feature is negative, in training or in evaluation."""

    when = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training == self.when and bool((x[:, 0] < 0).any()):
            raise ValueError("negative")
        return super().forward(x)


def test_a_client_on_which_the_model_fails_is_named() -> None:
    x = np.abs(X)
    x[29] = -1
    data = normec.Federation.from_arrays(x, Y, [*[0] * 29, "odd"])
    with pytest.raises(normec.TrainingFailed, match="round 1: the model fails on the 1 sample of client 'odd'"):
        normec.train(
            model=lambda: Picky(5, 3), data=data, algorithm=normec.FedNormEC(), local=normec.GD(), participation=normec.Full(),
            privacy=normec.Privacy(trust="none"), rounds=2, engine=normec.Engine(backend="loop", eval_every=10),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("local", "sizes"), [(normec.GD(), [29, 1]), (normec.IG(batch_size=4), [25, 5]), (normec.SGD(batch_size=1), [15, 15])]
)
def test_batch_norm_on_a_single_sample_is_refused_before_training(local: normec.GD, sizes: list[int]) -> None:
    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))

    data = normec.Federation.from_arrays(X, Y, np.repeat([0, 1], sizes))
    choices = {
        "model": factory, "algorithm": normec.FedAvg(), "participation": normec.Full(), "privacy": normec.Privacy(trust="none"), "rounds": 1,
    }  # fmt: skip
    with pytest.raises(
        normec.BadInput, match=r"samples of shape \(1, 5\).*more than 1 value.*some client has a mini-batch of 1 sample\. Raise"
    ):
        normec.train(data=data, local=local, **choices)  # type: ignore[arg-type]
    whole = normec.Federation.from_arrays(X, Y, np.repeat([0, 1], [14, 16]))
    normec.train(data=whole, local=normec.IG(batch_size=4), **choices)  # type: ignore[arg-type]


class Counted(nn.Module):
    """BatchNorm with its running statistics, and a counter of its own that no float32 could hold."""

    START = 2**40 + 1

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(5, momentum=0.5), nn.Linear(5, 3)
        self.register_buffer("seen", torch.tensor(self.START))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += len(x)
        return self.out(self.norm(x))


def batch_normed(**choices: object) -> normec.Run:
    data = normec.Federation.from_arrays(X + np.repeat([0.0, 5.0, -3.0], 10)[:, None], Y, np.repeat([0, 1, 2], 10))
    defaults: dict[str, object] = {
        "model": Counted, "data": data, "algorithm": normec.FedAvg(), "local": normec.GD(steps=1, lr=0.1), "rounds": 1,
        "participation": normec.Full(), "privacy": normec.Privacy(trust="none"), "engine": normec.Engine(checkpoint_every=1),
    }  # fmt: skip
    return normec.train(**(defaults | choices))  # type: ignore[arg-type]


def test_running_statistics_are_averaged_over_the_clients_and_counters_are_exact() -> None:
    """Three clients with shifted inputs: the mean of what each one saw, from the common start (0 and 1)."""
    model = batch_normed().model
    x = torch.from_numpy(X).float() + torch.tensor([0.0, 5.0, -3.0]).repeat_interleave(10)[:, None]
    means = torch.stack([part.mean(0) for part in x.split(10)])
    torch.testing.assert_close(model.norm.running_mean, 0.5 * means.mean(0))  # type: ignore[union-attr]
    spread = torch.stack([part.var(0) for part in x.split(10)])
    torch.testing.assert_close(model.norm.running_var, 0.5 + 0.5 * spread.mean(0))  # type: ignore[union-attr]
    assert int(model.seen) == Counted.START + 10 and int(model.norm.num_batches_tracked) == 1  # type: ignore[arg-type,union-attr]


def test_buffers_follow_the_cohort_the_workers_and_a_resume(tmp_path: Path) -> None:
    choices = {"rounds": 6, "participation": normec.Poisson(0.5), "local": normec.GD(steps=2, lr=0.1)}
    whole = batch_normed(**choices).model.state_dict()
    threads = batch_normed(**choices, engine=normec.Engine(workers=3)).model.state_dict()
    with pytest.raises(OSError, match="stopped"):
        batch_normed(**choices, out=tmp_path, observer=FailsAt(4))
    resumed = batch_normed(**choices, out=tmp_path, resume=True).model.state_dict()
    for name, value in whole.items():
        assert torch.equal(value, threads[name]) and torch.equal(value, resumed[name]), name
    assert int(whole["norm.num_batches_tracked"]) % 2 == 0 and int(whole["norm.num_batches_tracked"]) >= 4
    saved = load_file(tmp_path / "model.safetensors")
    assert int(saved["seen"]) == int(whole["seen"]) and saved["seen"].dtype == torch.int64


def test_an_empty_cohort_leaves_the_buffers() -> None:
    run = batch_normed(participation=normec.Poisson(1e-9), rounds=2)
    assert int(run.model.seen) == Counted.START and float(run.model.norm.running_mean.abs().max()) == 0  # type: ignore[arg-type,union-attr]


def test_half_precision_modules_train_in_the_run_s_precision() -> None:
    """Operator, memory and noise in float32; the factory's bfloat16 weights are where it starts."""
    run = batch_normed(model=lambda: nn.Linear(5, 3).to(torch.bfloat16), rounds=2)
    assert all(p.dtype == torch.float32 for p in run.model.parameters())


def test_a_client_whose_loss_overflows_does_not_end_a_private_run() -> None:
    x, y = X.copy(), np.zeros(30)
    y[29] = 1e30  # its squared error is beyond float32
    choices = {
        "model": lambda: nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)), "data": normec.Federation.from_arrays(x, y, np.arange(30)),
        "algorithm": normec.DPFedAvgClip(), "local": normec.GD(), "participation": normec.Full(), "rounds": 3, "loss": nn.MSELoss(),
    }  # fmt: skip
    run = normec.train(privacy=normec.Privacy(trust="central", epsilon=1.0), **choices)  # type: ignore[arg-type]
    assert 0 < run.metrics[-1]["train_loss"] < 100
    with pytest.raises(normec.TrainingFailed, match="round 0: the training loss is inf"):
        normec.train(privacy=normec.Privacy(trust="none"), **choices)  # type: ignore[arg-type]


def test_buffers_carry_nothing_from_client_to_client() -> None:
    """A buffer that starts to collect data after the first calls: it is put back before each use."""

    class Collector(nn.Module):
        seen: list[float] = []  # noqa: RUF012

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 3)
            self.register_buffer("mean", torch.zeros(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Collector.seen.append(float(self.mean.abs().sum()))
            if len(Collector.seen) > 8:
                self.mean = self.mean + x.mean(0)
            return self.linear(x)

    run = normec.train(
        model=Collector, data=normec.Federation.from_arrays(X, Y, np.arange(30) % 4), algorithm=normec.FedNormEC(), local=normec.GD(steps=1),
        participation=normec.Full(), privacy=normec.Privacy(trust="central", epsilon=1.0), rounds=3,
        engine=normec.Engine(backend="loop"),
    )  # fmt: skip
    assert len(Collector.seen) > 12 and set(Collector.seen) == {0.0}
    assert run.model.mean.abs().max() == 0  # type: ignore[operator,union-attr]


def test_a_client_that_is_not_finite_sends_zero_under_privacy() -> None:
    run = _nonfinite_run(normec.Privacy(trust="central", noise_multiplier=0.001))
    assert all(row["simulation_only"]["dropped"] == 1 for row in run.metrics[1:])
    x = next(run.model.parameters()).detach()
    assert bool(x.isfinite().all())


def _nonfinite_run(privacy: normec.Privacy) -> normec.Run:
    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.w.abs()).sqrt()

    x = np.ones((10, 3))
    x[9] = 0.0  # a finite loss, whose gradient is not a number: d sqrt(0·|w|)/dw = 0·∞
    return normec.train(
        model=Steep, data=normec.Federation.from_arrays(x, np.zeros(10), np.arange(10)), algorithm=normec.FedNormEC(), local=normec.GD(steps=1),
        participation=normec.Full(), privacy=privacy, rounds=3, loss=lambda outputs, targets: outputs.mean(),
    )  # fmt: skip


class Keeps(nn.Linear):
    """Holds on to its input in a buffer, in one way or another."""

    def __init__(self, how: str) -> None:
        super().__init__(5, 3)
        self.how = how
        self.register_buffer("last", None if how == "from nothing" else torch.zeros(1) if how == "of another shape" else torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "in evaluation":
            self.last = self.last if self.training else x.detach().mean(0)
        elif self.how == "under a new name":
            self.register_buffer("fresh", x.detach().mean(0))
        elif self.how == "in place":
            x.sub_(1.0)
        else:
            self.last = x.detach().mean(1)[:4] if self.how == "of another shape" else x.detach().mean(0)
        return super().forward(x)


KEPT = {
    "in training": "collects data in its buffer last", "in evaluation": "collects data in its buffer last",
    "from nothing": "makes or removes buffers", "under a new name": "makes or removes buffers",
    "of another shape": "changes the shape or type of its buffer last", "in place": "writes into its input",
}  # fmt: skip


@pytest.mark.parametrize("how", KEPT)
def test_a_model_that_keeps_data_is_refused_under_privacy(how: str) -> None:
    with pytest.raises(normec.BadInput, match=KEPT[how]):
        batch_normed(model=lambda: Keeps(how), privacy=normec.Privacy(trust="central", epsilon=8.0))


def test_results_by_client_leave_nothing_in_the_model(tmp_path: Path) -> None:
    """Without privacy such a buffer is allowed; it is the clients' mean, and not what the last test client left."""
    data = normec.Federation.from_arrays(X, Y, np.arange(30) % 3, test=(X + 9, Y), test_client_ids=np.arange(30) % 3)
    run = batch_normed(model=lambda: Keeps("in evaluation"), data=data, out=tmp_path)
    assert float(run.model.last.abs().max()) == 0  # type: ignore[operator,union-attr]
    assert float(load_file(tmp_path / "model.safetensors")["last"].abs().max()) == 0


class Attributes(nn.Module):
    """Keeps something in a plain attribute of a layer inside it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.inner, self.linear = how, nn.Identity(), nn.Linear(5, 3)
        self.inner.mean, self.inner.queue, self.inner.calls = torch.zeros(5), [], 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "mean" and self.training:
            self.inner.mean = 0.5 * self.inner.mean + 0.5 * x.detach().mean(0)
        elif self.how == "queue":
            self.inner.queue.append(x.detach()[:1])
        elif self.how == "calls":
            self.inner.calls += 1
        elif self.how == "new":
            self.inner.last = x
        return self.linear(x - self.inner.mean)


@pytest.mark.parametrize(("how", "name"), [("mean", "mean"), ("queue", "queue"), ("calls", "calls"), ("new", "last")])
def test_a_model_that_keeps_things_in_attributes_is_refused_under_privacy(how: str, name: str) -> None:
    with pytest.raises(normec.BadInput, match=rf"changes its attribute inner\.{name} in the forward pass"):
        batch_normed(model=lambda: Attributes(how), privacy=normec.Privacy(trust="central", epsilon=8.0))
    alone = batch_normed(model=lambda: Attributes(how), rounds=2)
    assert alone.summary["settings"]["engine"]["backend"] == "loop"
    with pytest.raises(normec.BadInput, match=r"engine\.workers=2: this model changes its attribute"):
        batch_normed(model=lambda: Attributes(how), engine=normec.Engine(workers=2))
    private = {"privacy": normec.Privacy(trust="central", epsilon=8.0), "algorithm": normec.DPFedAvgClip()}
    batch_normed(model=lambda: Attributes("nothing"), **private)


class Careless(nn.Module):
    """Writes or draws where it should not."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.linear = how, nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "evaluation" and not self.training:
            x.mul_(2)
        if self.how == "numpy" and self.training:
            return self.linear(x) * np.random.rand()  # noqa: NPY002
        if self.how == "python" and self.training:
            return self.linear(x) * random.random()
        return {"logits": self.linear(x)} if self.how == "dict" else self.linear(x)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("evaluation", "it writes into its input"),
        ("numpy", "draws from Python's or numpy's own generator"),
        ("python", "draws from Python's or numpy's own generator"),
        ("dict", "it returns dict; return a tensor"),
    ],
)
def test_careless_models_are_refused(how: str, words: str) -> None:
    before = random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    with pytest.raises(normec.BadInput, match=words):
        batch_normed(model=lambda: Careless(how))
    assert (random.getstate(), np.random.get_state()[2]) == before  # noqa: NPY002


def test_a_loss_that_writes_into_its_targets_is_refused() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        targets -= targets.mean()
        return ((outputs[:, 0] - targets) ** 2).mean()

    y = np.arange(30, dtype=np.float32)
    with pytest.raises(normec.BadInput, match="the loss writes into its targets"):
        batch_normed(model=lambda: nn.Linear(5, 1), data=normec.Federation.from_arrays(X, y, np.arange(30) // 10), loss=loss)
    assert y.tolist() == list(range(30))


class Thaws(nn.Module):
    """Makes a frozen parameter trainable once it has been trained for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.head, self.calls = nn.Linear(6, 6), nn.Linear(6, 3), 0
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > 40:
            self.frozen.requires_grad_(True)
        return self.head(self.frozen(x))


def test_a_layer_that_becomes_trainable_during_the_run_ends_it() -> None:
    with pytest.raises(normec.TrainingFailed, match=r"trainable parameters changed during the run\. Fix which ones"):
        normec.train(
            model=Thaws, data=normec.Federation.from_arrays(np.c_[X, Y], Y, np.arange(30) % 3), algorithm=normec.FedAvg(), local=normec.GD(),
            participation=normec.Full(), privacy=normec.Privacy(trust="none"), rounds=60, engine=normec.Engine(backend="loop"),
        )  # fmt: skip
