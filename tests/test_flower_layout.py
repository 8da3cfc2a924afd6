"""A model's arrays as one vector on Flower: tied weights once, buffers and frozen parameters not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import normec
from normec.errors import BadInput, NormecError

pytest.importorskip("flwr", reason="needs the extra normec[flower]")

from flwr.app import ArrayRecord

from federation import Grid, Node, client_app, owner
from normec.flower import Strategy
from normec.flower.layout import Layout

NONE = normec.Privacy(trust="none")
GENERATOR = torch.Generator().manual_seed(3)
SAMPLES = {f"c{i}": (torch.randn(8, 4, generator=GENERATOR), torch.arange(8) % 4) for i in range(2)}


class Tied(nn.Module):
    """Two layers of one weight, a scale that is not trained, a table and a counter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.full((4,), 2.0), requires_grad=False)
        self.register_buffer("table", torch.arange(4.0))
        self.register_buffer("seen", torch.tensor(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x) * self.scale + self.table))


class Pair(nn.Module):
    """Two layers that begin equal, as copies of one layer do, and are two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.load_state_dict(self.first.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def train(directory: Path, module: type[nn.Module], start: Any, **settings: Any) -> tuple[Strategy, dict[str, torch.Tensor]]:
    grid = Grid({i: Node(client_app(module, SAMPLES), owner(directory, name, trust="none")) for i, name in enumerate(SAMPLES)})
    settings = {"privacy": NONE, **settings}
    chosen = Strategy(normec.FedNormEC(beta=0.1, server_lr=1.0), local_lr=0.5, clients=2, folder=directory / "server", wait=0.0, **settings)
    found = chosen.start(grid, start, num_rounds=3)  # type: ignore[arg-type]
    return chosen, dict(found.arrays.to_torch_state_dict())


def simulated(module: type[nn.Module]) -> dict[str, torch.Tensor]:
    data = normec.Federation.from_clients([(x.numpy(), y.numpy()) for x, y in SAMPLES.values()])
    return normec.train(
        model=module, data=data, algorithm=normec.FedNormEC(beta=0.1, server_lr=1.0), local=normec.GD(steps=5, lr=0.5),
        participation=normec.Full(), privacy=NONE, rounds=3,
    ).model.state_dict()  # fmt: skip


TRAINED = ["first.weight", "first.bias", "second.weight", "second.bias"]


@pytest.mark.parametrize(
    ("start", "trained"),
    [(Tied, None), (lambda: Tied().state_dict(), TRAINED), (lambda: ArrayRecord(Tied().state_dict()), TRAINED)],
    ids=["module", "state dict", "array record"],
)
def test_tied_weights_are_one_parameter_as_in_the_simulator(start: Any, trained: list[str] | None, tmp_path: Path) -> None:
    chosen, found = train(tmp_path, Tied, start(), trained=trained)
    assert chosen.layout.d == chosen.terms.sizes.parameters == 16 + 4 + 4  # one weight and two biases
    assert chosen.layout.copies == (("second.weight", "first.weight"),)
    assert torch.equal(found["first.weight"], found["second.weight"])
    for name, value in simulated(Tied).items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found["first.weight"], Tied().first.weight)
    assert [float(found["scale"][0]), float(found["table"][3]), int(found["seen"])] == [2.0, 3.0, 3]


def test_the_noise_of_a_tied_weight_is_drawn_once_and_both_names_carry_it(tmp_path: Path) -> None:
    chosen, found = train(tmp_path, Tied, Tied(), privacy=normec.Privacy(trust="central", noise_multiplier=1.0))
    assert torch.equal(found["first.weight"], found["second.weight"])
    assert chosen.state.server.x.shape == (24,)


def test_of_an_embedding_that_is_used_twice_4746_numbers_are_trained() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(64, 64), "head": nn.Linear(64, 10), "decode": nn.Linear(64, 64, bias=False)})
    model["decode"].weight = model["embed"].weight
    for start in (model, model.state_dict(), ArrayRecord(model.state_dict())):
        assert Layout.of_model(start, None)[1].d == 64 * 64 + 64 * 10 + 10 == 4746
    assert Layout.of_model(model, ["decode.weight"])[1].names == ("embed.weight",)


def test_layers_that_only_begin_equal_are_two_where_the_module_is_given_and_no_silent_mistake_otherwise(tmp_path: Path) -> None:
    chosen, found = train(tmp_path / "module", Pair, Pair())
    assert chosen.layout.d == 40 and not torch.equal(found["first.weight"], found["second.weight"])
    for name, value in simulated(Pair).items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    chosen, found = train(tmp_path / "dict", Pair, Pair().state_dict())
    assert chosen.layout.d == 40
    with pytest.raises(NormecError, match="began equal and count as one parameter, and training has moved them apart"):
        train(tmp_path / "record", Pair, ArrayRecord(Pair().state_dict()))


def test_equal_constants_are_not_taken_for_one_parameter() -> None:
    record = ArrayRecord({"a": torch.zeros(4), "b": torch.zeros(4), "c": torch.ones(1), "d": torch.ones(1)})
    assert Layout.of_model(record, None)[1].d == 10


def test_whole_numbers_are_left_out_of_a_module_and_refused_in_a_record() -> None:
    arrays, layout = Layout.of_model(Tied(), None)
    assert set(layout.names) == {"first.weight", "first.bias", "second.bias"} and "seen" in arrays
    with pytest.raises(BadInput, match=r"'seen' holds int64, .* Give the module itself"):
        Layout.of_model(Tied().state_dict(), None)
    moved = layout.arrays(torch.arange(24.0), arrays)
    assert np.array_equal(moved["second.weight"].numpy(), moved["first.weight"].numpy())
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(BadInput, match="hold nothing to train"):
        Layout.of_model(frozen, None)


def test_layers_that_collect_statistics_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(BadInput, match=r"its layer '1' \(BatchNorm1d\) collects statistics of the data, .* Use GroupNorm"):
        Layout.of_model(model, None)
    assert Layout.of_model(nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2)), None)[1].d == 10


def test_two_parameters_or_a_buffer_on_the_memory_of_one_are_one() -> None:
    w = torch.arange(6.0)
    module = torch.nn.Module()
    module.a, module.b = torch.nn.Parameter(w), torch.nn.Parameter(w)
    module.register_buffer("c", w)
    arrays, layout = Layout.of_model(module, None)
    assert (layout.d, layout.copies) == (6, (("b", "a"), ("c", "a")))
    moved = layout.arrays(layout.flat(arrays) + 1, arrays)
    assert all(moved[name].numpy().tolist() == [1, 2, 3, 4, 5, 6] for name in "abc")


@pytest.mark.parametrize(
    "view", [lambda w: w[3:], lambda w: w.t(), lambda w: w.view(-1), lambda w: w[0]], ids=["part", "turned", "flat", "row"]
)
@pytest.mark.parametrize("kind", ["module", "buffer", "state"])
def test_tensors_that_share_memory_in_part_are_refused_by_name_and_the_remedy_works(kind: str, view: Any) -> None:
    def model(other: torch.Tensor) -> Any:
        if kind == "state":
            return {"a": w, "b": other}
        module = torch.nn.Module()
        module.a = torch.nn.Parameter(w)
        module.register_buffer("b", other) if kind == "buffer" else module.register_parameter("b", torch.nn.Parameter(other))
        return module

    w = torch.arange(25.0).view(5, 5)
    with pytest.raises(BadInput, match="share memory and are not the same tensor") as error:
        Layout.of_model(model(view(w)), None)
    assert "'a'" in str(error.value) and "'b'" in str(error.value)
    assert Layout.of_model(model(view(w).clone()), None)[1].d == 25 + (0 if kind == "buffer" else view(w).numel())
