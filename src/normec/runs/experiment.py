"""What a user asks for, and the plan it becomes: everything checked and calibrated before training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from normec.algorithms import Algorithm, Descent, ServerStep, check_local
from normec.algorithms.trial import check_functions
from normec.data import Federation
from normec.engine import Backend, Engine, choose_backend
from normec.engine.memory import Layout, layout_for
from normec.errors import BadInput
from normec.evaluation import Evaluation, Metric
from normec.local import LocalMethod
from normec.models import Factory, FlatModel, Loss, build, start_from, start_note
from normec.models.code import code_of
from normec.models.readings import names_two_classes, outputs_asked
from normec.privacy import Mechanism, Privacy, SpentSoFar
from normec.privacy.participation import Participation
from normec.privacy.promise import mechanism_for
from normec.runs.samples import PROBE_SAMPLES, checked_reading, probe_smallest, probed
from normec.settings import Rounds, Seed, Settings, Switch, Tree
from normec.streams import Streams, global_generators_kept

MADE_BY = {"data": ", such as normec.Federation.from_arrays(x, y, client_ids)"}


class Schedule(Settings):
    """The keys at the root of a configuration. rounds: the number of releases (the theorems' K is rounds − 1)."""

    rounds: Rounds = 60
    seed: Seed = 42


class Theory(Settings):
    """The `[theory]` section. check: measure what the theorems speak of in every round, and give a verdict; in simulation only."""

    check: Switch = False


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The choices that make a run. loss: (outputs, targets) → the mean loss of a batch. start: weights that the model starts from."""

    model: Factory
    data: Federation
    algorithm: Algorithm
    local: LocalMethod
    participation: Participation
    privacy: Privacy
    schedule: Schedule
    server: ServerStep = Descent()  # noqa: RUF009 (immutable)
    loss: Loss = functional.cross_entropy
    engine: Engine = Engine()  # noqa: RUF009 (immutable)
    theory: Theory = Theory()  # noqa: RUF009 (immutable)
    evaluation: Evaluation = Evaluation()  # noqa: RUF009 (immutable)
    start: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An experiment that can start: its data on the device, its model flat, its noise calibrated.

    delta: δ, None without privacy. spent: the accountant, which knows the claim for all rounds. start: the parameters
    (d,) as the factory made them; buffers: those that training moves (m,). model_start: a hash of the model as it starts.
    scored: what losses and accuracy are taken on. checks_bound: whether a message beyond the bound ends the run; an audit is to find
    it by itself.
    """

    experiment: Experiment
    federation: Federation
    model: FlatModel
    mechanism: Mechanism
    delta: float | None
    spent: SpentSoFar
    streams: Streams
    backend: Backend
    layout: Layout
    start: Tensor
    buffers: Tensor
    model_start: str
    metrics: dict[str, Metric]
    scored: Federation
    checks_bound: bool = True

    def describe(self, ranks: int = 1) -> Tree:
        """The settings that decide the result, as plain values: equal descriptions give bit-equal runs.

        ranks: the number of processes, which decides in what order sums are rounded.
        """
        chosen, engine = self.experiment, self.experiment.engine.table()
        return {
            **chosen.schedule.table(),
            "algorithm": {"name": chosen.algorithm.name, **chosen.algorithm.table()},
            "local": {"method": chosen.local.method, **chosen.local.table()},
            "server": {"optimizer": chosen.server.optimizer, **chosen.server.table()},
            "participation": {"scheme": chosen.participation.scheme, **chosen.participation.table()},
            "privacy": {**chosen.privacy.table(), "delta": self.delta},
            "theory": chosen.theory.table(),
            "evaluation": chosen.evaluation.table(),
            "data": {"clients": len(self.federation), "fingerprint": chosen.data.fingerprint()},
            "model": {"parameters": self.model.d, "fingerprint": self.model_start},
            "code": self._code(),
            "engine": {"backend": self.backend.name, "ranks": ranks, **{key: engine[key] for key in ("dtype", "device", "eval_every")}},
        }

    def _code(self) -> dict[str, str]:
        """A hash of what is of the user's own making, so that a run does not resume with another function of the same name."""
        chosen = self.experiment
        kinds = {name: type(getattr(chosen, name)) for name in ("algorithm", "local", "server", "participation")}
        found = {name: code_of(each) for name, each in {"model": self.model.module, "loss": self.model.loss, **kinds}.items()}
        return {name: known for name, known in found.items() if known}


def prepare(experiment: Experiment) -> Plan:
    """Checks an experiment, builds its model and calibrates its noise.

    Raises:
        BadInput: for anything that cannot be trained, naming the setting.
    """
    _check_types(experiment)
    engine, algorithm, data = experiment.engine, experiment.algorithm, experiment.data
    _check_numbers(experiment)
    _check_labels(experiment)
    _check_start(experiment)
    streams = Streams(experiment.schedule.seed, secret_cohorts=experiment.privacy.noise == "secure")
    device = engine.torch_device
    classes = len(data.classes) if data.classes else None
    module = build(experiment.model, data.x[0], classes, streams.torch_seed("model"), outputs_asked(experiment.loss, data.y, classes))
    given = None if experiment.start is None else start_from(module, experiment.start)
    model = FlatModel(module, experiment.loss, device, engine.torch_dtype)
    start, fingerprint = model.vector.clone(), "/".join(filter(None, (model.fingerprint(), given)))  # before trials move it
    federation = data.to(device, engine.torch_dtype)
    smallest = min(experiment.local.smallest_batch(federation.sizes), PROBE_SAMPLES)
    with global_generators_kept(device):
        federation, outputs, fit = probed(model, federation, classes)
        samples = federation.x[:PROBE_SAMPLES], federation.y[:PROBE_SAMPLES]
        if smallest < len(samples[1]):
            probe_smallest(model, samples, smallest, classes)
        test = federation.test and (federation.test[0], fit(federation.test[1], engine.torch_dtype))
        federation = replace(federation, y=fit(federation.y, engine.torch_dtype), test=test)
        model.reading = checked_reading(model, outputs.cpu(), federation, classes)
        samples = samples[0], federation.y[:PROBE_SAMPLES]
        model.enter(start, training=True)
        buffers = model.buffers
        if experiment.privacy.trust != "none":
            model.refuse_what_collects_data()
        backend = choose_backend(engine, model, samples)
    if (model.stochastic or model.keeps) and engine.workers > 1:
        does = "draws random numbers" if model.stochastic else f"changes its attribute {model.keeps}"
        raise BadInput(
            "engine.workers",
            f": this model {does} in its forward pass, so that workers would matter",
            value=engine.workers,
            remedy="Use engine.workers=1",
        )
    check_local(algorithm, experiment.local)
    algorithm.check_dimension(model.d)
    if not type(algorithm).__module__.startswith("normec."):
        check_functions(algorithm, model.d, engine.torch_dtype)
    mechanism, delta = mechanism_for(
        experiment.privacy, algorithm, experiment.participation, clients=len(data), rounds=experiment.schedule.rounds, d=model.d
    )
    metrics = experiment.evaluation.build(federation, model.reading)
    experiment.evaluation.larger_is_better(metrics, model.reading, federation.test is not None)  # refuses what cannot be compared
    if experiment.privacy.trust != "none" and _class_weights(experiment.loss) is not None:
        note = "class weights are taken for public constants: computed from the clients' data they would be a release that no ε covers"
        federation = replace(federation, notes=(*federation.notes, note))
    if experiment.start is not None:
        note = start_note(experiment.start, experiment.privacy.trust != "none")
        federation = replace(federation, notes=(*federation.notes, note))
    federation, scored = _scored(federation, experiment.evaluation.samples)
    share = 1.0 if algorithm.everyone_computes or algorithm.start is not None else 1 - (1 - mechanism.rate) ** mechanism.rounds
    limit = None if engine.memory_limit == "auto" else engine.memory_limit
    layout = layout_for(len(algorithm.client_slots), len(data), start, share, limit)
    return Plan(
        experiment=experiment,
        federation=federation,
        model=model,
        mechanism=mechanism,
        delta=delta,
        spent=SpentSoFar(mechanism, delta or 0.0),
        streams=streams,
        backend=backend,
        layout=layout,
        start=start,
        buffers=buffers,
        model_start=fingerprint,
        metrics=metrics,
        scored=scored,
    )


def _scored(federation: Federation, samples: int | None) -> tuple[Federation, Federation]:
    """The federation, with a note where not all of it is scored, and what is."""
    if samples is None:
        return federation, federation
    scored = federation.thinned(samples)
    tested = f" and {len(scored.test[1]):,} of {len(federation.test[1]):,} test" if scored.test and federation.test else ""
    note = f"a round's losses and accuracy are those of {len(scored.y):,} of {len(federation.y):,} training{tested} samples"
    return replace(federation, notes=(*federation.notes, note)), scored


def _kind(value: object) -> str:
    """What a wrong value is, without what it holds: that may be data."""
    return f"the class {value.__name__}, not an object of it" if isinstance(value, type) else f"a {type(value).__name__}"


def _check_types(experiment: Experiment) -> None:
    kinds = {
        "data": Federation,
        "algorithm": Algorithm,
        "local": LocalMethod,
        "participation": Participation,
        "privacy": Privacy,
        "server": ServerStep,
        "engine": Engine,
        "theory": Theory,
        "evaluation": Evaluation,
    }
    for name, kind in kinds.items():
        value = getattr(experiment, name)
        if not isinstance(value, kind):
            raise BadInput(name, f"is {_kind(value)}", remedy=f"Give a normec.{kind.__name__}{MADE_BY.get(name, '')}")
    if type(experiment.privacy) is not Privacy:
        raise BadInput(
            "privacy",
            f"is a {type(experiment.privacy).__name__}, a subclass that may promise something else",
            remedy="Give a normec.Privacy",
        )
    for name, wanted in (("model", "torch.nn.Module, or a function that makes one"), ("loss", "function")):
        if not callable(getattr(experiment, name)):
            raise BadInput(name, "cannot be called", value=getattr(experiment, name), remedy=f"Give a {wanted}")


def _check_numbers(experiment: Experiment) -> None:
    """Refuses numbers that the engine's dtype does not hold: what they would multiply is zero or infinite."""
    kind, held = experiment.engine.dtype, torch.finfo(experiment.engine.torch_dtype)
    for section in ("algorithm", "local", "server"):
        for name, value in getattr(experiment, section).table().items():
            if isinstance(value, float) and value and not held.tiny <= abs(value) <= held.max:
                raise BadInput(
                    f"{section}.{name}", f"is beyond what engine.dtype={kind!r} holds", value=value, remedy="Give a milder number"
                )
    experiment.server.check_dtype(experiment.engine.torch_dtype)


def _check_labels(experiment: Experiment) -> None:
    data = experiment.data
    if experiment.loss is functional.cross_entropy and (data.classes is None or len(data.classes) < 2):
        held = "holds no class labels" if data.classes is None else f"holds one class only ({data.classes[0]!r})"
        raise BadInput("data", held, remedy="The cross-entropy loss needs two classes or more; give another loss for other targets")
    of_torch = getattr(experiment.loss, "__module__", "").startswith("torch.")
    if of_torch and data.classes is not None and len(data.classes) > 2 and names_two_classes(experiment.loss):
        raise BadInput(
            "data", f"holds {len(data.classes)} classes, and the loss tells two apart", remedy="Give cross-entropy, or two classes"
        )
    weight = _class_weights(experiment.loss)
    if weight is not None and data.classes is not None and len(weight) != len(data.classes):
        raise BadInput(
            "model.class_weights",
            f"are {len(weight)} for {len(data.classes)} classes ({', '.join(data.classes[:20])})",
            remedy="Give one for each, in this order",
        )


def _class_weights(loss: Loss) -> Tensor | None:
    found = getattr(loss, "weight", None)
    return found if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and isinstance(found, Tensor) else None


def _check_start(experiment: Experiment) -> None:
    if experiment.algorithm.start is not None and experiment.privacy.trust != "none":
        raise BadInput(
            "algorithm.init",
            "makes the start of the server's estimate a release of its own",
            value="local",
            remedy="Use it with privacy.trust='none' only",
        )
