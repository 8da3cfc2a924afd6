"""The server's half: a Flower strategy that runs one algorithm of the registry, round by round."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from normec.algorithms import Algorithm, Descent, ServerStep
from normec.errors import BadInput, NormecError, TrainingFailed, plural
from normec.flower.evaluation import ClientEvaluation
from normec.flower.keeper import NEVER
from normec.flower.layout import Layout, Model
from normec.flower.roster import Replies, Roster
from normec.flower.server_state import ServerState, begun_with
from normec.flower.terms import Sizes, Terms
from normec.flower.wire import RECORD, Answer, Instruction, Task
from normec.privacy import Mechanism, Privacy
from normec.privacy.participation import Full, Participation
from normec.runs.folder import RunFolder

FlowerRecord = ArrayRecord | ConfigRecord
log = logging.getLogger("flwr")  # whose records Flower shows and sends to `flwr log`

MOST_UNANSWERED = 3
"""Rounds running in which nobody answers, after which a run ends."""

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class Strategy(FlowerStrategy):
    """`normec.train` over a federation of Flower nodes whose apps have a `ClientMod`.

    algorithm, participation, privacy, server: as in `normec.train`; noise is always the operating system's. local_lr: γ, the
    sum of the stepsizes of a client's local steps, by which its update is divided. clients: M, whose number is part of the
    accounting. folder: where the server's state, metrics and ledger lie; an experiment that is there goes on where it
    stands. trained: the names of the model's arrays that are trained, by default all. seed: of the cohorts, without privacy.
    evaluation: what the clients are asked of the model on data of their own, which is accounted by itself; by default nothing.
    own_coins: under trust "local" with Poisson cohorts, whether each client draws for itself who takes part, for which every round asks
    everybody; by default so, and in an older experiment as it began. Otherwise the server draws, and is trusted to.
    wait: seconds until all clients must have connected. moved: names of clients whose node has another key from now on: each
    of them is bound anew, to the first node that says it.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        local_lr: float,
        clients: int,
        privacy: Privacy,
        folder: Path | str,
        participation: Participation | None = None,
        server: ServerStep | None = None,
        trained: Sequence[str] | None = None,
        seed: int = 42,
        wait: float = 600.0,
        moved: Sequence[str] = (),
        evaluation: ClientEvaluation | None = None,
        own_coins: bool | None = None,
    ) -> None:
        self.algorithm, self.privacy, self.participation = algorithm, privacy, participation or Full()
        self.server = server or Descent()
        self.local_lr, self.clients, self.trained, self.seed, self.wait = local_lr, clients, trained, seed, wait
        self.moved, self.evaluation, self.own_coins = frozenset(moved), evaluation, own_coins
        self.folder = RunFolder(Path(folder))
        self.roster = Roster()
        self.sent: dict[int, str] = {}
        self._unanswered = 0
        self.state: ServerState

    def start(
        self,
        grid: Grid,
        initial_arrays: Model,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Runs the experiment for `num_rounds` rounds in all, whichever of them were run before in this folder.

        initial_arrays: the model where it starts. Best its module, of which it is known what is trained (what requires
        gradients) and what is tied, one parameter under several names; or its state dict, or an array record of it.
        timeout: seconds to wait for a round's replies. evaluate_fn: of the server's own data, as in Flower; its numbers
        enter the metrics. Nodes evaluate where `evaluation` says so.

        Raises:
            BadInput: before the first round, for settings or a folder that cannot be used.
            NormecError: where the clients do not come.
            TrainingFailed: where the model is not finite any more.
        """
        self.arrays, self.layout = Layout.of_model(initial_arrays, self.trained)
        sizes = Sizes(local_lr=self.local_lr, clients=self.clients, rounds=num_rounds, parameters=self.layout.d)
        begun = begun_with(self.folder)
        own_coins = begun.get("own_coins", False) if begun is not None and self.own_coins is None else self.own_coins
        self.terms = Terms.settled(self.algorithm, self.participation, self.privacy, sizes, own_coins)
        if self.evaluation is not None:
            self.terms = self.terms.evaluated(self.evaluation)
        result, self.timeout = Result(), timeout
        with self.folder.open(resume=self.folder.holds_run):
            self.state = ServerState.open(self.folder, self.terms, self.server, self.layout, self.layout.flat(self.arrays), self.seed)
            self._check_moved()
            self.summary()
            arrays = self._current()
            owed = self.state.owes_evaluation()
            if owed or self.state.goes_on():
                self.roster = Roster(self.state.clients, {k: v for k, v in self.state.nodes.items() if k not in self.moved})
                self.roster.gather(grid, self._greeting, self.clients, least=1 if self.state.clients else self.clients, wait=self.wait)
                self.state.clients, self.state.nodes = self.roster.clients, self.roster.bound
                self.state.began(lambda: _evaluated(evaluate_fn, 0, arrays, result))
            if owed:
                self._evaluate(grid, arrays, evaluate_config, result)
            while self.state.goes_on():
                current = self.state.rounds_done + 1
                self.roster.gather(grid, self._greeting, 1, least=1, wait=self.wait)
                log.info("round %d of %d", current, self.state.mechanism.rounds)
                replies = grid.send_and_receive(
                    self.configure_train(current, arrays, train_config or ConfigRecord(), grid), timeout=timeout
                )
                arrays, counts = self.aggregate_train(current, replies)
                result.train_metrics_clientapp[current] = counts
                self.state.ended(counts, _evaluated(evaluate_fn, current, arrays, result))
                self._evaluate(grid, arrays, evaluate_config, result)
            log.info("ends after %s", self.state.where())
            summary = self.state.finish(self.folder, self.layout.tensors(arrays))
        log.info(summary["claim"])
        result.arrays = arrays
        return result

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """The instructions of a round, to every client unless it is known who takes part and only those compute; and greetings."""
        greetings = [self._greeting(node) for node in self.roster.strangers(grid)]
        self.state.begin_attempt()
        asked = [
            (client, node)
            for client, node in sorted(self.roster.node_of.items())
            if self.state.transmits(client) or self.state.mechanism.trust.at_server or self.algorithm.everyone_computes
        ]
        self.sent = {node: client for client, node in asked}
        content: dict[str, FlowerRecord] = {"arrays": arrays, "config": ConfigRecord({**config, "server-round": server_round})}
        return [*greetings, *(self._message(node, client, content) for client, node in asked)]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        """Steps 4 and 5 of Algorithm 1: the released sum, the server's state and the model."""
        found = self.roster.collect(self.sent, replies, self._check)
        state, mechanism = self.state, self.state.mechanism
        answered = ((state.transmits(client), answer.message) for client, answer in found.answers.items())
        messages = [message for transmits, message in answered if transmits and message is not None]
        total = mechanism.aggregation.combine(map(mechanism.aggregation.encode, messages), self.layout.d)
        central = mechanism.trust.at_server
        noised = mechanism.noised(total, len(messages), (), state.streams, state.rounds_done)[0] if central else total
        released = mechanism.mean(noised)
        state.step(released, self.sent, found.answers, found.declined)
        self._check_anybody_answers(found)
        answers, refusals = len(found.answers), len(found.refused)
        counts = {"sent": len(self.sent), "answered": answers, "refused": refusals, "absent": found.absent}
        if not central:  # under central who takes part is the server's secret
            counts["participants"] = len(messages)
        return self._current(), MetricRecord({**counts})

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """What every client is asked of the model after a round, where an evaluation is due."""
        state, asked = self.state, sorted(self.roster.node_of.items())
        if state.evaluations is None or not asked or not state.evaluations.due(server_round):
            return []
        state.begin_evaluation(state.evaluations)
        self.sent = {node: client for client, node in asked}
        content: dict[str, FlowerRecord] = {"arrays": arrays, "config": ConfigRecord({**config, "server-round": server_round})}
        return [self._message(node, client, content, task="evaluate") for client, node in asked]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The clients' metrics: their mean over samples without privacy, over clients and with noise otherwise."""
        state, evaluations = self.state, self.state.evaluations
        if evaluations is None:
            return None
        mechanism, found = evaluations.mechanism, self.roster.collect(self.sent, replies, self._check_metrics)
        result = evaluations.end(state.rounds_done - 1, [answer.message for answer in found.answers.values() if answer.message is not None])
        if not result:
            return None
        noise = evaluations.evaluation.noise_std(mechanism, len(found.answers))
        beside = {name: f" (noise ± {std:.2g})" if std else "" for name, std in noise.items()}
        shown = ", ".join(f"{name} {value:.4g}{beside[name]}" for name, value in result.items())
        log.info("evaluated by %s: %s", plural(len(found.answers), "client"), shown)
        return MetricRecord(dict(result))

    def summary(self) -> None:
        """Logs what runs, and what is promised, before anything starts."""
        log.info("experiment %s: %s, in %s", self.state.experiment, self.algorithm.name, self.folder.path)
        if self.state.rounds_done:
            log.info("resumes after %s", self.state.where())
        log.info("planned: %s", self.state.claim().sentence)

    def _evaluate(self, grid: Grid, arrays: ArrayRecord, config: ConfigRecord | None, result: Result) -> None:
        current = self.state.rounds_done
        asked = self.configure_evaluate(current, arrays, config or ConfigRecord(), grid)
        found = self.aggregate_evaluate(current, grid.send_and_receive(asked, timeout=self.timeout)) if asked else None
        if found is not None:
            result.evaluate_metrics_clientapp[current] = found

    def _check_moved(self) -> None:
        if unknown := self.moved - set(self.state.clients):
            raise BadInput(
                "moved",
                f"names {min(unknown)!r:.80}, and the experiment's clients are {', '.join(self.state.clients) or 'not known yet'}",
                remedy="Leave it out",
            )

    def _greeting(self, node: int, patience: float = 0.0) -> Message:
        return self._message(node, None, {}, patience or self.timeout)

    def _message(
        self,
        node: int,
        client: str | None,
        content: Mapping[str, FlowerRecord],
        ttl: float | None = None,
        task: Task = "train",
    ) -> Message:
        state = self.state
        own = self.terms.own_coins and client is not None and task == "train"
        instruction = Instruction(
            task="greet" if client is None else task,
            experiment=state.experiment,
            round=state.rounds_done - 1 if task == "evaluate" else min(state.rounds_done, state.mechanism.rounds - 1),
            attempt=state.attempt,
            settled=NEVER if client is None else state.settled.get(client, NEVER),
            transmits=None if own else client is not None and task == "train" and state.transmits(client),
            names=self.layout.names,
            copies=self.layout.copies,
            terms=self.terms,
        )
        records = RecordDict({**content, RECORD: instruction.record()})
        return Message(records, dst_node_id=node, message_type=task, group_id=str(state.rounds_done + 1), ttl=ttl or self.timeout)

    def _check(self, answer: Answer) -> None:
        """Refuses an answer to something else than this round's training, or a message that no honest client sends."""
        mechanism = self.state.mechanism
        sits_out = mechanism.own_coins and answer.message is None
        wanted = mechanism.trust.at_server or (self.state.transmits(answer.client) and not sits_out)
        self._check_answer(answer, self.state.rounds_done, mechanism, self.layout.d if wanted else None)

    def _check_metrics(self, answer: Answer) -> None:
        """The same of an evaluation."""
        evaluations = self.state.evaluations
        if evaluations is not None:
            weight = 0 if evaluations.mechanism.trust.promises else 1
            number = len(evaluations.evaluation.metrics) + weight
            self._check_answer(answer, self.state.rounds_done - 1, evaluations.mechanism, number)
            if weight and answer.message is not None and not float(answer.message[0]) >= 0:
                raise BadInput("reply", f"holds metrics of {float(answer.message[0]):g} samples")

    def _check_answer(self, answer: Answer, k: int, mechanism: Mechanism, d: int | None) -> None:
        """Refuses an answer to something else than round k, or anything but a message (d,) of a norm that honest clients send.

        Raises:
            BadInput: saying why.
        """
        for name, asked in (("experiment", self.state.experiment), ("attempt", self.state.attempt), ("round", k)):
            if getattr(answer, name) != asked:
                raise BadInput("reply", f"is to another {name} ({getattr(answer, name)!r:.50}, not {asked!r})")
        if (answer.message is not None) != (d is not None):
            raise BadInput("reply", "holds no message" if answer.message is None else "holds a message that nobody asked for")
        if d is not None:
            bound = mechanism.bound if mechanism.trust.promises or mechanism is self.state.mechanism else math.inf
            answer.check_message(d, bound, mechanism.noise_std if mechanism.trust.per_client else 0.0)

    def _check_anybody_answers(self, found: Replies) -> None:
        """Ends a run in which nobody has answered for some rounds: each of them is accounted for, and none learns anything."""
        self._unanswered = 0 if found.answers or not self.sent else self._unanswered + 1
        if self._unanswered >= MOST_UNANSWERED:
            reasons = "".join(f" Client {client!r}: {reason.rstrip('.')}." for client, reason in sorted(found.refused.items()))
            slow = f" A client that is only slow needs a timeout of more than {self.timeout:g} s." if found.absent else ""
            problem = f"in {MOST_UNANSWERED} rounds running no client has given an answer that counts.{reasons}{slow}"
            raise NormecError(f"{problem} The experiment resumes from its folder, in a new run, when they do.")

    def _current(self) -> ArrayRecord:
        if not bool(self.state.server.x.isfinite().all()):
            raise TrainingFailed(f"round {self.state.rounds_done}: the model is not finite. Lower algorithm.server_lr or local_lr.")
        return self.layout.arrays(self.state.server.x, self.arrays)


def _evaluated(evaluate: Evaluate | None, current: int, arrays: ArrayRecord, result: Result) -> dict[str, object]:
    found = evaluate(current, arrays) if evaluate else None
    if found is None:
        return {}
    result.evaluate_metrics_serverapp[current] = found
    return dict(found)
