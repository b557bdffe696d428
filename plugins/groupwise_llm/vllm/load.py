"""Load: which server gets a request: the one with the least work, or one that has its context.

Work is counted in completions that were asked for and are not answered: their lengths are not known
before. Each process counts its own. Without communication they would all begin with the same
server; so among servers with equal work the number of a request decides, which runs over the
requests of all processes.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)

STAYS = 8
"""By how many completions a GPU a server may have more work than another one and still be asked,
since it has the beginning of the context in its cache (`tests/benchmarks/load.py`)."""
REMEMBERED = 2**16
"""Contexts of which the server is remembered."""


class Load(Generic[S]):
    """The work of servers, and which contexts they have in their caches."""

    def __init__(self) -> None:
        self._work: Counter[S] = Counter()
        self._at: OrderedDict[int, S] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, servers: Mapping[S, int], count: int, *, turn: int, context: int | None) -> S:
        """The server for a request, whose completions are its work from now on.

        servers: those to choose from, and the GPUs of each, by which work is divided; count: of
        completions; turn: the number of the request; context: of its beginning, as in `remember`.
        """
        with self._lock:
            work = {server: self._work[server] / size for server, size in servers.items()}
            order = [*servers]
            ties = order[turn % len(order) :] + order[: turn % len(order)]
            server = min(ties, key=work.__getitem__)
            if context is not None:
                home = self._at.get(context, server)
                if home in work and work[home] <= work[server] + STAYS:
                    server = home
                self._remember(context, server)
            self._work[server] += count
            return server

    def release(self, server: S, count: int) -> None:
        """The request was answered, or its server is lost."""
        with self._lock:
            self._work[server] -= count

    def remember(self, context: int, server: S) -> None:
        """The server has computed this context, given by a number such as a checksum of its ids."""
        with self._lock:
            self._remember(context, server)

    def _remember(self, context: int, server: S) -> None:
        self._at[context] = server
        self._at.move_to_end(context)
        if len(self._at) > REMEMBERED:
            self._at.popitem(last=False)
