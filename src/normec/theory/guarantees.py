"""The guarantee of convergence that covers a run: the one place that decides it, for every table, summary, report, plan and verdict."""

from __future__ import annotations

import math
from typing import NamedTuple

from normec.algorithms import Algorithm, Descent, ServerStep
from normec.algorithms.about import STEP, About, Coverage
from normec.algorithms.base import REGISTRY
from normec.algorithms.server_steps import SERVER_STEPS
from normec.genuine import genuine
from normec.local import METHODS, LocalMethod
from normec.models import FlatModel
from normec.privacy import Mechanism, SecAgg
from normec.privacy.noise import is_independent

COHORTS = {"poisson": "partial participation", "fixed": "cohorts of a fixed size", "own": "user-defined cohorts"}


class Guarantee(NamedTuple):
    """stated: what is proven of the method; its assumptions and stepsizes are never checked here. outside: why it is not about this
    run, empty where it is; None where nothing is proven of the method at all.
    """

    stated: str
    outside: tuple[str, ...] | None

    @property
    def covers(self) -> bool:
        return self.outside == ()

    def __str__(self) -> str:
        if self.outside is None:
            return f"no theorem ({self.stated})"
        return f"outside the theorems ({'; '.join(self.outside)})" if self.outside else f"{self.stated} (assumptions not checked)"


def guarantee(
    algorithm: Algorithm, server: ServerStep, local: LocalMethod | None, mechanism: Mechanism, model: FlatModel | None = None
) -> Guarantee:
    """The guarantee that is proven for a run. local: None in a deployment, where the clients' app provides the train function.

    model: None where it is not known.

    Only the classes of this library themselves are covered: a subclass may compute anything, and so may an object of which a function
    was replaced. An algorithm of one's own shows what its own class states.
    """
    kind = type(algorithm)
    built_in = genuine(algorithm)
    if not built_in and REGISTRY.get(kind.name) is kind and kind.__module__.startswith("normec."):
        return Guarantee("none is stated", (f"{kind.name} with a function that was replaced",))
    about: About = kind.about if built_in else vars(kind).get("about", About())
    if not about.states_a_guarantee and not built_in:
        parent = next(
            (known for known, base in REGISTRY.items() if base in kind.__mro__[1:] and base.__module__.startswith("normec.")), None
        )
        return Guarantee(about.guarantee, (f"{kind.__name__} is a variant of {parent}",) if parent else None)
    coverage = about.coverage
    if coverage is None:
        return Guarantee(about.guarantee, None)
    parts = _server(server), _local(coverage, local), _rounds(coverage, mechanism), _model(coverage, model)
    return Guarantee(about.guarantee, (*algorithm.uncovered, *(reason for part in parts for reason in part)))


def _server(server: ServerStep) -> list[str]:
    known = SERVER_STEPS.get(server.optimizer) is type(server) and genuine(server)
    if known and type(server) is Descent:
        return []
    return [f"the server optimizer {server.optimizer}" if known else f"a user-defined server step ({type(server).__name__})"]


def _local(coverage: Coverage, local: LocalMethod | None) -> list[str]:
    if local is None:
        return ["a user-defined train function"]
    if not (METHODS.get(local.method) is type(local) and genuine(local)):
        return [f"a user-defined local method ({type(local).__name__})"]
    most = coverage.local.get(local.method, 0)
    if most is None or local.steps == most:
        return []
    return [f"the local method {local.method} with {_steps(local)} ({' or '.join(map(_allowed, coverage.local.items()))})"]


def _steps(local: LocalMethod) -> str:
    several = "passes" if STEP[local.method] == "pass" else "steps"
    return f"{local.steps:,} {several}" if local.steps > 1 else f"one {STEP[local.method]}"


def _allowed(allowed: tuple[str, int | None]) -> str:
    method, steps = allowed
    return method if steps is None else f"{method} with one {STEP[method]}"


def _model(coverage: Coverage, model: FlatModel | None) -> list[str]:
    """What a model does that makes its loss no function of the parameters alone."""
    if model is None:
        return []
    reasons = []
    if model.keeps:
        reasons.append(f"a model whose forward pass changes its attribute {model.keeps}")
    if model.moving:
        reasons.append("a model whose forward pass moves its buffers, such as running statistics")
    if model.stochastic and "sgd" not in coverage.local:
        reasons.append("a model that draws random numbers, such as dropout, where the theorem takes exact gradients")
    return reasons


def _rounds(coverage: Coverage, mechanism: Mechanism) -> list[str]:
    """What the cohorts, the noise and what silences clients take out."""
    reasons = []
    if mechanism.sampling not in coverage.sampling:
        poisson_denominator = mechanism.sampling == "poisson" and "fixed" in coverage.sampling
        divided = " (Poisson cohorts, whose mean divides by pM and not by the participants)" if poisson_denominator else ""
        reasons.append(COHORTS.get(mechanism.sampling, "every client in every round") + divided)
    if mechanism.trust.promises and mechanism.noise_multiplier > 0 and not coverage.noise:
        reasons.append("privacy noise")
    if not is_independent(mechanism.noise):
        reasons.append("noise that may depend on that of earlier rounds")
    if mechanism.most_exposure < math.inf:
        reasons.append("clients that fall silent at client_limit")
    if isinstance(mechanism.trust, SecAgg) and mechanism.sampling != "full":
        reasons.append("rounds that may be given up (trust secagg with partial participation)")
    return reasons
