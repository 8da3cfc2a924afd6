"""Who is who at the server: which node speaks for which client, and what becomes of each message."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from normec.errors import BadInput, NormecError, plural
from normec.flower.wire import Answer

log = logging.getLogger("flwr")  # whose records Flower shows and sends to `flwr log`

POLL = 1.0
"""Seconds between two looks for nodes that have connected."""
GREETING = 60.0
"""Seconds that the first answer of a node may take, before it is asked anew with more."""
LAST_CALL = 10.0
"""Seconds that more nodes have to come, once as many as there should be clients have come or refused."""


SILENT = "node {}: it has not answered"
UNAVAILABLE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
"""What a SuperLink answers for a node that has not answered."""


class Replies(NamedTuple):
    """The answers to some messages, by client; and why the other clients' do not count."""

    answers: dict[str, Answer]
    refused: dict[str, str]
    absent: int
    """Messages without a reply in time, or with an error."""
    declined: frozenset[str]
    """Of the refused, the clients that have said so themselves."""


class _TurnedAway(NamedTuple):
    """A node that does not take part.

    stated: whether it, or its answer, gave the reason. times: how often it was asked again; due: the look at which it is asked next.
    """

    reason: str
    stated: bool
    times: int
    due: int


class Roster:
    """The nodes that are connected, and the clients they speak for.

    clients: the names of the experiment's clients, in order; empty until all of them have introduced themselves once.
    bound: by client, the node that has said its name first: its public key, or its id where Flower names no key. No other
    node speaks for the client from then on.
    """

    def __init__(self, clients: Iterable[str] = (), bound: Mapping[str, str] | None = None) -> None:
        self.clients, self.bound = tuple(clients), dict(bound or {})
        self.node_of: dict[str, int] = {}
        self._identity: dict[int, str] = {}
        self._turned_away: dict[int, _TurnedAway] = {}
        self._greeted: list[int] = []
        self._looks = 0

    def strangers(self, grid: Grid, refusing: bool = True) -> list[int]:
        """The nodes to be asked whose they are: new ones, and again, ever more rarely, those that were turned away.

        refusing: also those that have given a reason.
        """
        here = self._look(grid)
        waiting = {node for node, entry in self._turned_away.items() if entry.due > self._looks or (entry.stated and not refusing)}
        self._greeted = sorted(here - set(self.node_of.values()) - waiting)
        return self._greeted

    def _look(self, grid: Grid) -> set[int]:
        """The nodes that are connected; forgets the others."""
        self._identity = {info.node_id: _identity(info.node_id, info.public_key) for info in grid.get_nodes()}
        here = set(self._identity)
        self._looks += 1
        self.node_of = {client: node for client, node in self.node_of.items() if node in here}
        self._turned_away = {node: entry for node, entry in self._turned_away.items() if node in here}
        return here

    def enter(self, replies: Iterable[Message]) -> list[Message]:
        """Takes in what the nodes that were asked have said; returns the replies of other nodes."""
        silent, others = set(self._greeted), []
        for reply in replies:
            node = reply.metadata.src_node_id
            if node in silent:
                silent.discard(node)
                self._introduce(node, reply)
            elif node not in self._greeted:
                others.append(reply)
        for node in silent:
            self._turn_away(node, SILENT.format(node), stated=False)
        self._greeted = []
        return others

    def _introduce(self, node: int, reply: Message) -> None:
        who = f"node {node}"
        try:
            if reply.has_error() and reply.error.code in UNAVAILABLE:
                return self._turn_away(node, SILENT.format(node), stated=False)
            if reply.has_error():
                raise BadInput("it", "has answered with an error; its log says why")
            answer = Answer.read(reply)
            who = f"client {answer.client!r}" if answer.client else who
            if answer.refused:
                raise BadInput("", answer.refused)
            if answer.client in self.node_of:
                raise BadInput("another", f"node speaks for client {answer.client!r} already")
            if self.clients and answer.client not in self.clients:
                raise BadInput("it", "is none of the experiment's clients, whose number is part of the accounting")
            if self.bound.setdefault(answer.client, self._identity.get(node, "")) != self._identity.get(node, ""):
                raise BadInput(
                    "another",
                    f"node has spoken for client {answer.client!r} before, and names stay with a node's key",
                    remedy=f"Start it with that key, or let the name move with Strategy(moved=[{answer.client!r}])",
                )
            self.node_of[answer.client] = node
            self._turned_away.pop(node, None)
        except BadInput as error:
            self._turn_away(node, f"{who}: {error}")
        except Exception as error:  # whatever a stranger's bytes raise
            self._turn_away(node, f"{who}: its answer cannot be read ({type(error).__name__})")

    def _turn_away(self, node: int, reason: str, stated: bool = True) -> None:
        before = self._turned_away.get(node)
        times = before.times + 1 if before else 0
        if before and before.stated and not stated:
            reason, stated = before.reason, True
        if not before or before.reason != reason.rstrip("."):
            log.warning("turned away: %s", reason)
        self._turned_away[node] = _TurnedAway(reason.rstrip("."), stated, times, self._looks + 2 ** min(times, 20))

    def gather(self, grid: Grid, greeting: Callable[[int, float], Message], clients: int, least: int, wait: float) -> None:
        """Asks nodes whose they are until `clients` of them take part, or `wait` seconds are over.

        A node that refuses hardly changes its mind; one that is silent may be starting, and is asked again with twice the
        patience. The first time the clients' names become those of the experiment: of more than are wanted, the first by name.
        greeting: of a node's number, and the seconds that its answer may take.

        Raises:
            NormecError: where fewer than `least` have come, saying who refuses and why.
        """
        begun = time.monotonic()
        end, patience = begun + wait, GREETING
        self._look(grid)
        while len(self.node_of) < clients:
            if strangers := self.strangers(grid, refusing=False):
                timeout = max(min(end - time.monotonic(), patience), POLL)
                self.enter(grid.send_and_receive([greeting(node, timeout) for node in strangers], timeout=timeout))
                patience *= 1 if set(strangers) <= self._settled() else 2
            if len(self._settled()) >= clients:
                end = min(end, time.monotonic() + LAST_CALL)
            if len(self.node_of) >= clients or time.monotonic() > end:
                break
            time.sleep(POLL)
        if len(self.node_of) < least:
            refusals = "".join(f" {entry.reason}." for entry in self._turned_away.values())
            found = f"{plural(len(self.node_of), 'client')} of {clients} came within {time.monotonic() - begun:.0f} s"
            raise NormecError(f"the experiment cannot continue: {found}.{refusals} Start the other nodes, or change what is refused.")
        if not self.clients:
            self.clients = tuple(sorted(self.node_of)[:clients])
            self.bound = {client: self.bound[client] for client in self.clients}
            for client in set(self.node_of) - set(self.clients):
                self._turn_away(self.node_of.pop(client), f"client {client!r}: {plural(clients, 'client')} are wanted, and others came")

    def _settled(self) -> set[int]:
        """The nodes that take part, and those that have said why they do not."""
        return set(self.node_of.values()) | {node for node, entry in self._turned_away.items() if entry.stated}

    def collect(self, sent: dict[int, str], replies: Iterable[Message], check: Callable[[Answer], None]) -> Replies:
        """Sorts the replies to a round's messages. sent: by node, the client that was asked. check: raises BadInput."""
        answers: dict[str, Answer] = {}
        refused: dict[str, str] = {}
        declined = set[str]()
        for reply in self.enter(replies):
            client = sent.get(reply.metadata.src_node_id)
            if client is None or client in answers or client in refused or reply.has_error():
                continue
            try:
                answer = Answer.read(reply)
                if answer.client != client:
                    raise BadInput("reply", f"says that it is of client {answer.client!r:.70}")
                if answer.refused:
                    declined.add(client)
                    raise BadInput("", answer.refused)
                check(answer)
                answers[client] = answer
            except BadInput as error:
                refused[client] = str(error)
            except Exception as error:  # whatever a stranger's bytes raise
                refused[client] = f"its reply cannot be read ({type(error).__name__})"
        for client, reason in sorted(refused.items()):
            log.warning("client %r does not count in this round: %s", client, reason)
        return Replies(dict(sorted(answers.items())), refused, len(sent) - len(answers) - len(refused), frozenset(declined))


def _identity(node: int, public_key: bytes) -> str:
    """Of a node, as long as it lives: its key, which survives restarts and a SuperLink that has lost its database."""
    return f"key {hashlib.blake2b(public_key, digest_size=16).hexdigest()}" if public_key else f"node {node}"
