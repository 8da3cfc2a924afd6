"""What is promised: the mechanism that keeps it, the first line of its ledger, and the sentence that an auditor can check."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Literal, NamedTuple, TypedDict

from normec.algorithms import Algorithm
from normec.errors import BadInput, plural
from normec.privacy.account import Evaluated
from normec.privacy.accountant import epsilon, realised, within_limit
from normec.privacy.aggregation import Aggregation, lattice_for
from normec.privacy.calibration import affordable_rounds, calibrate
from normec.privacy.discrete_gaussian import LARGEST_SCALE
from normec.privacy.gaussian import Spent
from normec.privacy.mechanism import Adjacency, Mechanism, Privacy
from normec.privacy.noise import LATTICE_GAP, is_independent, lattice_gap
from normec.privacy.participation import OWN, Participation
from normec.privacy.trust import Trust, check_rounds_are_opened

SEEDED = "Seeded noise: for simulation, not for release."
SECURE = "Secure noise, from the operating system's generator."
REFUTED = "Its audit is FLAGGED: the mechanism that ran is not the one that was accounted, and this claim does not hold:"
"""What stands before the claim of a run whose audit has found something."""
EVERY_ROUND: Literal["epsilon_every_round"] = "epsilon_every_round"
"""The key of a summary with ε of a client that the server asks in every round; None where the claim does not rest on whom it asks."""

LARGEST_EPSILON = 1e4
"""That a configuration can ask for."""


class Claim(NamedTuple):
    """What a run promises: ε and δ of all that it releases.

    realised_max: the ε of the client that took part most, where participants add the noise.
    """

    sentence: str
    realised_max: float | None
    spent: Spent
    delta: float


def state_claim(
    mechanism: Mechanism, training: Spent, *, delta: float, exposure: float, limit: float | None, evaluated: Evaluated | None = None
) -> Claim:
    """The claim in words: unit, ε, δ, adjacency, trust, sampling, rounds and accountant; or that there is none.

    training, delta: of the rounds alone. exposure: of all clients, the largest Σ 1/h_k over its rounds, where
    participants add the noise. limit: the client_limit. evaluated: the clients' evaluations, which the claim covers as well.
    """
    spent = evaluated.with_training(training) if evaluated else training
    total = evaluated.with_delta(delta) if evaluated else delta
    if not mechanism.private:
        reason = _why_not(mechanism)
        said = f" The clients evaluate the model {plural(evaluated.number, 'time')}." if evaluated else ""
        return Claim(f"Not private: {reason}, ε = ∞.{said}", None, spent, total)
    per_client = mechanism.trust.per_client
    busiest = realised(mechanism, delta, exposure).epsilon + (evaluated.spent.epsilon if evaluated else 0.0) if per_client else None
    beside = ""
    if busiest is not None:
        seen = f"; realised by the busiest client: ε = {shown_epsilon(busiest)}" if busiest else ""
        own = "training " if evaluated else ""
        silent = f"; each client is silent before its own {own}rounds spend more than ε = {limit:g}" if limit else ""
        beside = f" (before sampling, without amplification{who_draws(mechanism, spent)}{seen}{silent})"
    rate = "" if mechanism.sampling in ("full", OWN) else f" at rate {mechanism.rate:g}"
    pooled = ", of cohorts that participants do not piece together" if mechanism.sampling == "fixed" and mechanism.trust.at_server else ""
    exposed = f" Warning: δ is not below 1/clients = {1 / mechanism.clients:g}." if total >= 1 / mechanism.clients else ""
    sentence = (
        f"Client-level (ε = {shown_epsilon(spent.epsilon)}, δ = {total!r}) differential privacy under {mechanism.adjacency} adjacency, "
        f"trust {mechanism.trust.name} ({mechanism.trust.said}), {mechanism.sampling} sampling{rate}{pooled}, "
        f"{mechanism.rounds} rounds, accountant: {spent.accountant}{beside}. {_of_noise(mechanism)}{exposed}"
        f"{_parts(training, delta, evaluated)}"
    )
    return Claim(sentence, busiest, spent, total)


def _why_not(mechanism: Mechanism) -> str:
    if not mechanism.trust.promises:
        return mechanism.trust.said
    if not mechanism.accountable:
        return "the noise names no event that it could be accounted by"
    return f"a noise multiplier of {mechanism.noise_multiplier:g} is none"


def who_draws(mechanism: Mechanism, spent: Spent) -> str:
    """Who draws the cohorts, where a server that is the adversary could draw others than it says."""
    if spent.every_round is not None:
        return f"; the server draws the cohorts, and a client that it asks in every round has ε = {shown_epsilon(spent.every_round)}"
    return "; each client draws its own coin" if mechanism.own_coins else ""


def _of_noise(mechanism: Mechanism) -> str:
    if is_independent(mechanism.noise):
        return SECURE if mechanism.lattice else SEEDED
    return f"The noise is not this library's own; ε is that of the event which it names. {SEEDED}"


def _parts(training: Spent, delta: float, evaluated: Evaluated | None) -> str:
    """Of what a claim's ε and δ are the sum."""
    if evaluated is None:
        return ""
    return (
        f" Both cover training, (ε = {shown_epsilon(training.epsilon)}, δ = {delta!r}), and {plural(evaluated.number, 'evaluation')} "
        f"by the clients on their own data, (ε = {shown_epsilon(evaluated.spent.epsilon)}, δ = {evaluated.delta!r}) at noise multiplier "
        f"{evaluated.noise_multiplier:.4g}."
    )


class ClaimTable(TypedDict):
    """A claim as the plain values of summary.json; None for what has no meaning without a promise, or is infinite."""

    claim: str
    private: bool
    epsilon: float | None
    epsilon_realised_max: float | None
    epsilon_every_round: float | None
    delta: float | None
    unit: Literal["client"]
    adjacency: Adjacency | None
    trust: Trust
    sampling: str
    rate: float
    accountant: str | None
    noise_multiplier: float
    noise_std: float
    sensitivity: float | None
    noise: str | None


def claim_table(mechanism: Mechanism, claim: Claim, noise: str) -> ClaimTable:
    """A claim as plain values. noise: "seeded" or "secure"."""
    private = mechanism.private
    return {
        "claim": claim.sentence,
        "private": private,
        "epsilon": claim.spent.epsilon if private else None,
        "epsilon_realised_max": claim.realised_max,
        "epsilon_every_round": claim.spent.every_round,
        "delta": claim.delta if private else None,
        "unit": "client",
        "adjacency": mechanism.adjacency if private else None,
        "trust": mechanism.trust.name,
        "sampling": mechanism.sampling,
        "rate": mechanism.rate,
        "accountant": claim.spent.accountant if private else None,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise_std": mechanism.noise_std,
        "sensitivity": mechanism.sensitivity if math.isfinite(mechanism.sensitivity) else None,
        "noise": noise if private else None,
    }


def shown_epsilon(epsilon: float | None) -> str:
    """ε with three decimals (from 1,000 on with none), rounded up, so that the printed number is still a bound.

    epsilon: None, as JSON holds it, is infinite.
    """
    if epsilon is None:
        return "∞"
    if epsilon >= 1000:
        return "∞" if math.isinf(epsilon) else f"{math.ceil(epsilon - 1e-9):,}"
    return f"{math.ceil(epsilon * 1000 - 1e-9) / 1000:.3f}"


def with_every_round(epsilon: float | None, every_round: float | None) -> str:
    """ε as it is shown, and beside it that of a client that the server asks in every round, where it draws the cohorts."""
    return shown_epsilon(epsilon) + ("" if every_round is None else f" ({shown_epsilon(every_round)} if asked in every round)")


def rounded_up(noise: float, digits: int = 5) -> str:
    """A noise multiplier with so many significant digits, rounded up, so that the printed one keeps the ε beside it."""
    if noise == 0 or not math.isfinite(noise):
        return f"{noise:g}"
    shown = Decimal(repr(float(noise))).normalize(Context(prec=digits, rounding=ROUND_CEILING))
    return f"{float(shown):.{digits}g}"


def mechanism_for(
    privacy: Privacy,
    algorithm: Algorithm,
    participation: Participation,
    *,
    clients: int,
    rounds: int,
    d: int,
    server_draws: bool = False,
) -> tuple[Mechanism, float | None]:
    """The mechanism that keeps a promise to so many clients, over so many rounds of a model of d parameters, and δ.

    server_draws: as `Mechanism`; a simulation plays clients that draw their own coins.

    Raises:
        BadInput: for a promise that cannot be kept, naming the setting.
    """
    bound = algorithm.operator.bound
    if privacy.trust != "none" and math.isinf(bound):
        raise BadInput(
            "algorithm.name",
            "bounds no message, so that nothing can be promised",
            value=algorithm.name,
            remedy="Use privacy.trust=none, or another algorithm",
        )
    noise = privacy.noise_model()
    aggregation = lattice_for(bound) if noise.secure else Aggregation()
    mechanism = Mechanism(
        trust=privacy.trust_model,
        adjacency=privacy.adjacency,
        bound=bound + aggregation.lattice * math.sqrt(d) / 2,
        noise_multiplier=privacy.noise_multiplier or 0.0,
        participation=participation,
        clients=clients,
        rounds=rounds,
        noise=noise,
        aggregation=aggregation,
        cohort_memories=bool(algorithm.client_slots) and not algorithm.everyone_computes,
        server_draws=server_draws,
    )
    if mechanism.expected <= 0:
        raise BadInput("participation.rate", "lets nobody take part", value=0, remedy="Raise it")
    if privacy.trust == "none":
        return mechanism, None
    delta = privacy.delta_for(clients)
    check_rounds_are_opened("privacy.min_honest", mechanism.trust, clients)
    if privacy.epsilon is not None:
        mechanism = replace(mechanism, noise_multiplier=calibrate(mechanism, privacy.epsilon, delta))
    check_lattice(mechanism, d, delta)
    if privacy.client_limit is not None:
        mechanism = within_limit(mechanism, privacy.client_limit, delta)
        if mechanism.silences_all:
            raise BadInput(
                "privacy.client_limit",
                "does not allow a client a single round",
                value=privacy.client_limit,
                remedy="Raise it, or add noise",
            )
    if privacy.stop_at is not None:
        mechanism = replace(mechanism, rounds=affordable_rounds(mechanism, privacy.stop_at, delta))
        if not mechanism.rounds:
            raise BadInput("privacy.stop_at", "does not allow a single round", value=privacy.stop_at, remedy="Raise it, or add noise")
    return mechanism, delta


def check_lattice(mechanism: Mechanism, d: int, delta: float, setting: str = "privacy.noise_multiplier") -> None:
    """Refuses secure noise that is too small for its lattice: so small that it differs from the Gaussian that is accounted.

    Not where ε is beyond all that can be asked for, and protects nobody anyway. d: numbers in a release. setting: of the noise.

    Raises:
        BadInput: naming the setting, also for more noise than the lattice has whole numbers for.
    """
    if not mechanism.lattice or not mechanism.private:
        return
    together = math.sqrt(mechanism.honest)  # where participants add noise, that of the honest ones covers a client
    numbers, most = float(d) * mechanism.rounds, mechanism.noise_std * together
    ways = ("", " or a smaller epsilon")  # an evaluation by the clients has secure noise always
    if setting.startswith("privacy."):
        ways = (", or noise=seeded", ", a smaller epsilon, or noise=seeded")

    def gap(std: float) -> float:
        return lattice_gap(std / mechanism.lattice, mechanism.sensitivity / std, numbers)

    if gap(most) > LATTICE_GAP and epsilon(mechanism, delta).epsilon <= LARGEST_EPSILON:
        while gap(most) > LATTICE_GAP:
            most *= 1.1
        least = most / together / mechanism.bound
        raise BadInput(
            setting,
            f"is too small for secure noise on {d:,} numbers over {mechanism.rounds:,} rounds",
            value=float(f"{mechanism.noise_multiplier:.3g}"),
            remedy=f"Use at least {rounded_up(least, 2)}{ways[1]}",
        )
    if mechanism.noise_std * math.sqrt(mechanism.clients) > LARGEST_SCALE * mechanism.lattice:
        raise BadInput(
            setting,
            "is beyond the whole numbers of secure noise",
            value=float(f"{mechanism.noise_multiplier:.3g}"),
            remedy=f"Use less noise{ways[0]}",
        )
