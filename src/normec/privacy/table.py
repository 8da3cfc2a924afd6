"""Noise ↔ ε for one setting under every trust model: what `normec privacy` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypedDict

from normec.errors import BadInput
from normec.privacy.account import Account, Evaluated
from normec.privacy.accountant import epsilon, within_limit
from normec.privacy.calibration import calibrate
from normec.privacy.gaussian import Spent
from normec.privacy.header import Header
from normec.privacy.ledger import Ledger
from normec.privacy.mechanism import Adjacency, Colluders, Epsilon, Mechanism, NoiseMultiplier, default_delta
from normec.privacy.noise import NOISES
from normec.privacy.participation import OWN, Full, Participation, participation_from_table
from normec.privacy.trust import TRUSTS, Dropouts, SecAgg, Trust, check_rounds_are_opened, trust_model
from normec.settings import Count, OpenUnit, Probability, Rounds, Settings, Switch, Tree

NOISE_UNITS = "noise multiplier: σ / C, of the noise on the sum (central), of each participant (secagg, local)"


class Query(Settings):
    """The arguments of `normec privacy`. Give one of epsilon and noise_multiplier, or epsilon and noise = "paper".

    clients: M. rate: p. rounds: K. trust: the model to show first. min_honest: of secagg, by default pM.
    dropouts: of secagg, none where nobody makes clients drop out.
    client_limit: of secagg and local, what a client's own rounds may spend before it stays silent.
    cohort_memories: whether clients keep memories that move only in the cohort, as in the lazy variants, clip21 and dp-scaffold.
    own_coins: of poisson under secagg and local, whether each client draws for itself who takes part, or else the server.
    noise = "paper": the paper's formula z = p √(K ln(1/δ)) / ε for this ε, to see what it really gives.
    """

    trust: Trust = "central"
    epsilon: Epsilon | None = None
    noise_multiplier: NoiseMultiplier | None = None
    noise: Literal["calibrated", "paper"] = "calibrated"
    clients: Count = 100
    scheme: Literal["poisson", "fixed", "full"] = "poisson"
    rate: Probability | None = None
    rounds: Rounds = 60
    delta: OpenUnit | None = None
    adjacency: Adjacency = "zero-out"
    min_honest: Count | None = None
    colluders: Colluders = 0
    dropouts: Dropouts = "adversarial"
    client_limit: Epsilon | None = None
    cohort_memories: Switch = False
    own_coins: Switch = True

    def __init__(self, /, **values: object) -> None:
        super().__init__(**values)
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise BadInput("epsilon", f"and noise_multiplier={self.noise_multiplier}: give only one", value=self.epsilon)
        if self.noise == "paper" and self.epsilon is None:
            raise BadInput("epsilon", "is missing: noise='paper' is a formula in it", remedy="Give epsilon")
        if self.min_honest is not None:
            check_rounds_are_opened("min_honest", SecAgg(self.min_honest, self.colluders), self.clients)

    @property
    def chosen_delta(self) -> float:
        """δ: the given one, or the default."""
        return self.delta if self.delta is not None else default_delta(self.clients)

    @property
    def participation(self) -> Participation:
        rate = {} if self.rate is None else {"rate": self.rate}
        return participation_from_table({"scheme": self.scheme, **rate})

    def mechanism(self, trust: Trust) -> Mechanism:
        """The mechanism of this setting under a trust model, with the noise given or the paper's, else none yet."""
        participation = self.participation
        expected = participation.expected(self.clients)
        rate = expected / self.clients
        noise = self.noise_multiplier or 0.0
        if self.noise == "paper":
            noise = paper_noise(rate, self.rounds, self.epsilon or math.inf, self.chosen_delta)
        honest = self.min_honest or max(1, round(expected) - self.colluders)
        return Mechanism(
            trust=trust_model(trust, honest, self.colluders, self.dropouts),
            adjacency=self.adjacency,
            noise_multiplier=noise,
            participation=participation,
            clients=self.clients,
            rounds=self.rounds,
            cohort_memories=self.cohort_memories,
            server_draws=not self.own_coins,
        )


def paper_noise(rate: float, rounds: int, epsilon: float, delta: float) -> float:
    """The paper's formula for the noise of a message of norm 1: p √(K ln(1/δ)) / ε."""
    return rate * math.sqrt(rounds * math.log(1 / delta)) / epsilon


class PrivacyRow(TypedDict):
    """A mechanism and what it spends, under one trust model.

    epsilon: None where it is infinite. epsilon_every_round: of a client that the server asks in every round, None where ε does not
    rest on whom it asks. min_honest: of secagg. warnings: what is wrong with a setting that can be accounted all the same.
    """

    trust: Trust
    adjacency: Adjacency
    sampling: str
    rate: float
    clients: int
    rounds: int
    delta: float
    epsilon: float | None
    epsilon_every_round: float | None
    noise_multiplier: float
    accountant: str
    min_honest: int | None
    client_limit: float | None
    warnings: list[str]


def rows(query: Query) -> list[PrivacyRow]:
    """One row a trust model, the asked one first.

    Raises:
        BadInput: for an ε that no noise reaches.
    """
    order = sorted(TRUSTS, key=lambda trust: trust != query.trust)
    return [_row(query, trust) for trust in order]


def _row(query: Query, trust: Trust) -> PrivacyRow:
    mechanism, delta, problems = query.mechanism(trust), query.chosen_delta, cautions(query)
    if trust == "none":
        mechanism = replace(mechanism, noise_multiplier=0.0)
    elif query.noise_multiplier is None and query.noise == "calibrated":
        target = 8.0 if query.epsilon is None else query.epsilon
        mechanism = replace(mechanism, noise_multiplier=calibrate(mechanism, target, delta))
    if query.client_limit is not None and mechanism.trust.per_client:
        mechanism = within_limit(mechanism, query.client_limit, delta)
        if mechanism.silences_all:
            problems.append(f"client_limit = {query.client_limit:g} does not allow a client a single round")
    return _table(mechanism, delta, query.client_limit, problems)


def _table(mechanism: Mechanism, delta: float, client_limit: float | None = None, problems: Sequence[str] = ()) -> PrivacyRow:
    """A mechanism and what it spends, as plain values."""
    spent = epsilon(mechanism, delta)
    return {
        "trust": mechanism.trust.name,
        "adjacency": mechanism.adjacency,
        "sampling": mechanism.sampling,
        "rate": mechanism.rate,
        "clients": mechanism.clients,
        "rounds": mechanism.rounds,
        "delta": delta,
        "epsilon": spent.epsilon if math.isfinite(spent.epsilon) else None,
        "epsilon_every_round": spent.every_round,
        "noise_multiplier": mechanism.noise_multiplier,
        "accountant": spent.accountant,
        "min_honest": mechanism.trust.min_honest if isinstance(mechanism.trust, SecAgg) else None,
        "client_limit": client_limit if mechanism.trust.per_client else None,
        "warnings": list(problems),
    }


def of_ledger(ledger: Ledger) -> list[PrivacyRow]:
    """What the releases that a ledger counts spend, under its own trust model first; of noise that is not ours under that alone."""
    header = Header.read(ledger.lines[0]).of_promised
    if header.noise not in NOISES:
        return [_table(header.mechanism(ledger.counted()), header.delta or 0.0)]
    scheme = Full.scheme if header.scheme == OWN else header.scheme  # as if every client were in every round
    query = Query(
        trust=header.trust,
        adjacency=header.adjacency,
        clients=header.clients,
        scheme=scheme,
        rate=None if scheme == Full.scheme else header.rate,
        rounds=ledger.counted(),
        delta=header.delta,
        noise_multiplier=header.noise_multiplier,
        min_honest=header.min_honest if header.trust == SecAgg.name else None,
        colluders=header.colluders,
        dropouts=header.dropouts,
        client_limit=header.client_limit or None,
        cohort_memories=header.cohort_memories,
        own_coins=header.own_coins or not TRUSTS[header.trust].per_client,
    )
    return rows(query)


def _together(training: PrivacyRow, evaluation: PrivacyRow) -> PrivacyRow:
    """A row of a training and one of its clients' evaluations, under the same trust model: ε and δ add up."""
    spent = [
        Spent(math.inf if row["epsilon"] is None else row["epsilon"], row["accountant"], row["epsilon_every_round"])
        for row in (training, evaluation)
    ]
    evaluated = Evaluated(evaluation["rounds"], evaluation["noise_multiplier"], spent[1], evaluation["delta"])
    whole = evaluated.with_training(spent[0])
    bound = whole.epsilon if math.isfinite(whole.epsilon) else None
    delta = evaluated.with_delta(training["delta"])
    return {**training, "epsilon": bound, "epsilon_every_round": whole.every_round, "delta": delta, "accountant": whole.accountant}


class LedgerOverview(TypedDict):
    """What a verified ledger says. mechanism: its first line.

    spent: what the releases that count spend, None without any; other_trusts: the same releases with this noise under the other
    trust models. retried: rounds, counted from 1, that were begun more than once. epsilon_realised_max: of the client that took part
    most, None where it is infinite or nobody's own rounds are known. torn: whether an incomplete last line was left out.
    """

    lines: int
    torn: bool
    mechanism: Tree
    releases: int
    evaluations: int
    retried: list[int]
    epsilon_realised_max: float | None
    spent: PrivacyRow | None
    other_trusts: list[PrivacyRow]


def ledger_overview(ledger: Ledger, evaluations: Ledger | None = None) -> LedgerOverview:
    """The overview of a ledger. evaluations: the ledger of its clients' evaluations, which every ε covers as well."""
    header = ledger.lines[0]
    busiest = Account.of(ledger, evaluations).realised_max
    spent = of_ledger(ledger) if ledger.counted() else []
    if spent and evaluations and evaluations.counted():
        spent = [_together(*pair) for pair in zip(spent, of_ledger(evaluations), strict=True)]
    return {
        "lines": len(ledger.lines),
        "torn": ledger.torn,
        "mechanism": {name: value for name, value in header.items() if name not in ("kind", "previous", "hash")},
        "releases": ledger.counted(),
        "evaluations": evaluations.counted() if evaluations else 0,
        "retried": [k + 1 for k in ledger.retried()],
        "epsilon_realised_max": busiest if busiest is None or math.isfinite(busiest) else None,
        "spent": spent[0] if spent else None,
        "other_trusts": spent[1:],
    }


def cautions(query: Query) -> list[str]:
    """What is wrong with a setting that can be accounted all the same."""
    if query.chosen_delta >= 1 / query.clients:
        return [f"δ is not below 1/clients = {1 / query.clients:g}: one client may be exposed outright"]
    return []


def notes(query: Query) -> list[str]:
    """What a reader of the table must know: units, warnings, the limits of the paper's formula."""
    lines = [
        f"unit: client; δ = {query.chosen_delta!r}; {query.adjacency} adjacency; {query.rounds} rounds of {query.clients} clients",
        NOISE_UNITS,
    ]
    lines += [f"warning: {text}" for text in cautions(query)]
    if query.scheme == "fixed" and not query.cohort_memories:
        lines.append(
            "fixed cohorts: add cohort_memories=true for the lazy variants, clip21, clip21-sgd2m and dp-scaffold, which take more noise"
        )
    if query.min_honest is None:
        honest = query.mechanism("secagg").honest
        lines.append(f"secagg: min_honest = {honest}, the expected number of participants, is assumed; a sampled round may have fewer")
    lines += _of_draws(query)
    if query.client_limit is not None:
        lines.append(f"secagg, local: each client stays silent before its own rounds spend more than client_limit = {query.client_limit:g}")
    if query.noise == "paper":
        limits = "the theorem that it cites (Abadi et al. 2016) needs p < 1/(16 z)"
        lines.append(f"noise = p √(K ln(1/δ)) / ε claims ε = {query.epsilon:g}; the table shows what it gives: {limits}")
    if isinstance(query.participation, Full) or query.rate == 1:
        lines.append("every client in every round: no amplification")
    return lines


def _of_draws(query: Query) -> list[str]:
    """Who draws the cohorts under secagg and local, where the server is the adversary."""
    mechanism = query.mechanism("local")
    if mechanism.trusts_the_draw:
        return ["secagg, local: the server draws the cohorts; beside ε stands that of a client that it asks in every round"]
    return ["secagg, local: each client draws its own coin, and not the server"] if mechanism.own_coins else []
