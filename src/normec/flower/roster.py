"""Who is who at the server: which node speaks for which client, and what becomes of each message."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from normec.errors import BadInput, NormecError, count
from normec.flower.wire import Answer

log = logging.getLogger("flwr")  # whose records Flower shows and sends to `flwr log`

POLL = 1.0
"""Seconds between two looks for nodes that have connected."""
LAST_CALL = 10.0
"""Seconds that more nodes have to come, once as many as there should be clients have come or refused."""
GREETING = 120.0
"""Seconds that a running experiment waits for a new node to say whose it is."""


class Replies(NamedTuple):
    """The answers to some messages, by client; and why the other nodes' do not count."""

    answers: dict[str, Answer]
    refused: dict[str, str]
    """By client, or by node where that has not said its name."""
    absent: int
    """Messages without a reply in time, or with an error."""


class Roster:
    """The nodes that are connected, and the clients they speak for.

    clients: the names of the experiment's clients, in order; empty until all of them have introduced themselves once.
    """

    def __init__(self, clients: Iterable[str] = ()) -> None:
        self.clients = tuple(clients)
        self.node_of: dict[str, int] = {}
        self._turned_away: dict[int, str] = {}

    def greet(self, grid: Grid, greeting: Callable[[int], Message], timeout: float) -> None:
        """Asks nodes that have newly connected whose they are; forgets those that have left."""
        here = set(grid.get_node_ids())
        self.node_of = {client: node for client, node in self.node_of.items() if node in here}
        self._turned_away = {node: reason for node, reason in self._turned_away.items() if node in here}
        strangers = sorted(here - set(self.node_of.values()) - set(self._turned_away))
        if not strangers:
            return
        for reply in grid.send_and_receive([greeting(node) for node in strangers], timeout=timeout):
            node = reply.metadata.src_node_id
            if node in strangers and not reply.has_error():
                self._enter(node, reply)
        if self.clients:  # the rounds go on without those that do not answer
            silent = set(strangers) - set(self.node_of.values()) - set(self._turned_away)
            self._turned_away |= {node: f"node {node}: it does not answer" for node in silent}

    def _enter(self, node: int, reply: Message) -> None:
        try:
            answer = Answer.read(reply)
            reason = answer.refused
            if not reason and answer.client in self.node_of:
                reason = f"another node speaks for client {answer.client!r} already"
            if not reason and self.clients and answer.client not in self.clients:
                reason = f"client {answer.client!r} is none of the experiment's, whose number is part of its accounting"
            who = f"client {answer.client!r}"
        except BadInput as error:
            reason, who = str(error), f"node {node}"
        if reason:
            self._turned_away[node] = f"{who}: {reason}"
            log.warning("turned away: %s: %s", who, reason)
        else:
            self.node_of[answer.client] = node

    def gather(self, grid: Grid, greeting: Callable[[int], Message], clients: int, wait: float) -> None:
        """Greets nodes until so many clients have said their names, or refused, or `wait` seconds are over.

        Raises:
            NormecError: where not all have come who must, saying who refuses and why.
        """
        end = time.monotonic() + wait
        while len(self.node_of) < clients and time.monotonic() < end:
            self.greet(grid, greeting, max(end - time.monotonic(), POLL))
            if len(self.node_of) + len(self._turned_away) >= clients:  # enough have come; those that refuse will not change their minds
                end = min(end, time.monotonic() + LAST_CALL)
            if len(self.node_of) < clients:
                time.sleep(POLL)
        known = bool(self.clients)
        if len(self.node_of) < (1 if known else clients):
            refusals = "".join(f" {text}." for text in self._turned_away.values())
            found = f"{count(len(self.node_of), 'client')} of {clients} came within {wait:g} s"
            raise NormecError(f"the experiment cannot start: {found}.{refusals} Start the other nodes, or change what is refused.")
        self.clients = self.clients or tuple(sorted(self.node_of))

    def collect(self, sent: dict[int, str], replies: Iterable[Message], check: Callable[[Answer], None]) -> Replies:
        """Sorts the replies to a round's messages. sent: by node, the client that was asked. check: raises BadInput."""
        answers: dict[str, Answer] = {}
        refused: dict[str, str] = {}
        for reply in replies:
            client = sent.get(reply.metadata.src_node_id)
            if client is None or reply.has_error():
                continue
            try:
                answer = Answer.read(reply)
                if answer.client != client:
                    raise BadInput("reply", f" says that it is of client {answer.client!r:.70}.")
                if answer.refused:
                    raise BadInput("refused", f": {answer.refused}")
                check(answer)
                answers[client] = answer
            except BadInput as error:
                refused[client] = str(error)
                log.warning("client %r does not count in this round: %s", client, error)
        return Replies(dict(sorted(answers.items())), refused, len(sent) - len(answers) - len(refused))
