"""The terms of an experiment: what its server and its clients agree on, and from which each of them makes the mechanism."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property

from normec.algorithms import Algorithm
from normec.algorithms.base import REGISTRY
from normec.errors import BadInput
from normec.flower.evaluation import ClientEvaluation
from normec.privacy import Mechanism, Privacy
from normec.privacy.mechanism import SMALLEST_NOISE
from normec.privacy.participation import Full, Participation, participation_from_table
from normec.privacy.promise import mechanism_for
from normec.settings import Count, Positive, Rounds, Settings, Tree, choose

LONGEST_TERMS = 20_000
"""Characters, above what any algorithm's settings take."""


class Sizes(Settings):
    """local_lr: γ, of a client's whole local update. clients: M. rounds: K. parameters: d."""

    local_lr: Positive
    clients: Count
    rounds: Rounds
    parameters: Count


@dataclass(frozen=True)
class Terms:
    """The settings that decide what a client sends and how it is protected; none of them may change in an experiment.

    own_coins: whether each client draws for itself who takes part. Terms that do not say so leave the draw to the server.
    """

    algorithm: Algorithm
    participation: Participation
    privacy: Privacy
    sizes: Sizes
    evaluation: ClientEvaluation | None = None
    own_coins: bool = False

    @classmethod
    def settled(
        cls, algorithm: Algorithm, participation: Participation, privacy: Privacy, sizes: Sizes, own_coins: bool | None = None
    ) -> Terms:
        """The terms with the noise multiplier that a promised ε needs, and the rounds that `stop_at` leaves.

        own_coins: whether each client draws for itself who takes part; by default wherever the mechanism has such coins.

        Raises:
            BadInput: for terms that no deployment can keep, naming the setting.
        """
        _check_trust(privacy)
        _check_algorithm(algorithm)
        secure = privacy if privacy.trust == "none" else privacy.changed(noise="secure")
        asked = cls(algorithm, participation, secure, sizes, own_coins=own_coins is not False)
        if own_coins:
            asked._check_coins()
        if privacy.trust == "none":
            return replace(asked, own_coins=False)
        mechanism, delta = asked._promise
        found = {"epsilon": None, "stop_at": None, "noise_multiplier": mechanism.noise_multiplier, "delta": delta}
        sizes = sizes.changed(rounds=mechanism.rounds)
        return cls(algorithm, participation, asked.privacy.changed(**found), sizes, own_coins=mechanism.own_coins)

    def evaluated(self, evaluation: ClientEvaluation) -> Terms:
        """The same terms, with evaluations by the clients as well.

        Raises:
            BadInput: for an evaluation that the trust model does not allow.
        """
        return replace(self, evaluation=evaluation.settled(self.privacy, self.sizes.clients, self.sizes.rounds))

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism, which each party makes from the terms itself: nobody has to believe another's bound."""
        return self._promise[0]

    @cached_property
    def _promise(self) -> tuple[Mechanism, float | None]:
        sizes = self.sizes
        return mechanism_for(
            self.privacy,
            self.algorithm,
            self.participation,
            clients=sizes.clients,
            rounds=sizes.rounds,
            d=sizes.parameters,
            server_draws=not self.own_coins,
        )

    def own_account(self) -> Mechanism:
        """The mechanism as a client accounts for it: where it adds the noise itself, it counts its own releases, unsampled."""
        mechanism = self.mechanism
        return replace(mechanism, participation=Full()) if mechanism.trust.per_client else mechanism

    @property
    def evaluation_mechanism(self) -> Mechanism:
        """The mechanism of the evaluations by the clients.

        Raises:
            BadInput: where there are none.
        """
        if self.evaluation is None:
            raise BadInput("instruction", ": it asks for an evaluation, and the terms hold none")
        return self.evaluation.mechanism(self.privacy, self.sizes.clients, self.sizes.rounds)

    def table(self) -> Tree:
        """Plain values, which `read` turns back."""
        return {
            **({"evaluation": self.evaluation.table()} if self.evaluation else {}),
            **({"own_coins": True} if self.own_coins else {}),
            "sizes": self.sizes.table(),
            "algorithm": {"name": self.algorithm.name, **self.algorithm.table()},
            "participation": {"scheme": self.participation.scheme, **self.participation.table()},
            "privacy": self.privacy.table(),
        }

    def text(self) -> str:
        """As JSON."""
        return json.dumps(self.table(), sort_keys=True)

    @classmethod
    def read(cls, text: str) -> Terms:
        """Terms that another party wrote. An algorithm must be registered here already: nothing is imported by its name.

        Raises:
            BadInput: for terms that are malformed, or that no deployment can keep.
        """
        if len(text) > LONGEST_TERMS:
            raise BadInput("terms", f"of {len(text):,} characters are longer than any ({LONGEST_TERMS:,})")
        try:
            table = json.loads(text)
            algorithm = dict(table["algorithm"])
            kind = choose("algorithm.name", algorithm.pop("name", None), REGISTRY)
            terms = cls(
                kind.from_table("algorithm", algorithm),
                participation_from_table(table["participation"]),
                Privacy.from_table("privacy", table["privacy"]),
                Sizes.from_table("sizes", table["sizes"]),
                ClientEvaluation.from_table("evaluation", table["evaluation"]) if "evaluation" in table else None,
                own_coins=table.get("own_coins") is True,
            )
        except BadInput:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadInput("terms", f"are malformed ({type(error).__name__}: {error})") from None
        _check_trust(terms.privacy)
        _check_algorithm(terms.algorithm)
        if terms.privacy.client_limit is not None and (terms.privacy.noise_multiplier or 0.0) < SMALLEST_NOISE:
            raise BadInput(
                "privacy.noise_multiplier",
                f"counts as no noise, with which client_limit={terms.privacy.client_limit:g} allows no round",
                value=terms.privacy.noise_multiplier,
                remedy="Raise it, or leave client_limit out",
            )
        if terms.privacy.epsilon is not None or terms.privacy.stop_at is not None:
            raise BadInput("terms", "name an ε to be calibrated", remedy="Give the noise multiplier")
        if terms.privacy.trust != "none" and terms.privacy.delta is None:
            raise BadInput("privacy.delta", "is missing, at which an ε could be stated", remedy="Give it")
        if terms.evaluation is not None:
            terms.evaluation.check(terms.privacy, terms.sizes.clients, terms.sizes.rounds)
        if terms.privacy.trust != "none" and terms.privacy.noise != "secure":
            raise BadInput(
                "privacy.noise", "is for simulation", value=terms.privacy.noise, remedy="What leaves a process needs noise='secure'"
            )
        terms._check_coins()
        return terms

    def _check_coins(self) -> None:
        """Refuses coins of the clients where none decide."""
        if self.own_coins and not self.mechanism.own_coins:
            raise BadInput(
                "own_coins",
                "acts only with trust='local' and Poisson cohorts of a rate below 1, which clients can draw themselves",
                value=True,
                remedy="Leave it out",
            )


def _check_trust(privacy: Privacy) -> None:
    if privacy.trust == "secagg":
        raise BadInput(
            "privacy.trust",
            (
                "needs a sum that hides every message from the server, and no secure aggregation at hand does so: Flower's "
                "draws its masks from 32-bit seeds"
            ),
            value="secagg",
            remedy="Use 'local' or 'central'",
        )


def _check_algorithm(algorithm: Algorithm) -> None:
    """Refuses what a train function that knows nothing of the algorithm cannot do."""
    if not algorithm.local_rule.is_plain or algorithm.vectors_down > 1:
        raise BadInput(
            "algorithm.name",
            "changes each local step, and a deployment calls the train function as it is",
            value=algorithm.name,
            remedy="Use another algorithm, or simulate it",
        )
    if algorithm.start is not None:
        raise BadInput("algorithm.init", "releases a first update of each client", value="local", remedy="Use init='zero' in a deployment")
