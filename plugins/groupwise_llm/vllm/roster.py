"""Roster: a file that names the servers of a run, while launchers start and replace them."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from groupwise.kit import terminal
from groupwise.kit.errors import UserError, first_line
from groupwise_llm.vllm.client import Client, LostError
from groupwise_llm.vllm.server import Server, ServerInfo
from groupwise_llm.vllm.settings import Settings, address

LOOKS_EVERY = 1.0
"""Least seconds between two looks for a server that replaces the last one."""


class Roster:
    """The file that `sampler.servers` names, with an address a line.

    check: raises UserError where a server was started such that it cannot be used.
    """

    def __init__(self, settings: Settings, check: Callable[[Server, ServerInfo], object]) -> None:
        self.settings, self.check = settings, check
        self._refused: dict[str, str] = {}
        self._looked, self._found = -LOOKS_EVERY, False
        self._lock = threading.Lock()

    def addresses(self) -> list[str]:
        """Those in the file now; see `addresses`."""
        return addresses(self.settings)

    def joining(self, known: Collection[str]) -> Mapping[Server, ServerInfo]:
        """The servers in the file that can be reached and used, without those at known addresses.

        Why a server cannot be used is printed once.
        """
        servers = dict[Server, ServerInfo]()
        for url in self.addresses():
            if url in known:
                continue
            server = Server(Client(url, self.settings))
            server.client.waits = False
            if not server.answers():
                continue
            try:
                info = server.info()
                self.check(server, info)
            except LostError:
                continue
            except UserError as error:
                if self._refused.get(url) != f"{error}":
                    self._refused[url] = f"{error}"
                    terminal.say(f"note: {error}. It is left out")
                continue
            servers[server] = info
        return servers

    def has_another(self, known: Collection[str]) -> bool:
        """Whether any is joining; looks once a second."""
        with self._lock:
            if time.monotonic() - self._looked >= LOOKS_EVERY:
                try:
                    self._found = bool(self.joining(known))
                except UserError:
                    self._found = False
                self._looked = time.monotonic()
            return self._found


def addresses(settings: Settings) -> list[str]:
    """Those of the servers, now. Raises UserError where they are in a file and it has none."""
    if isinstance(settings.servers, list):
        return [*settings.servers]
    path = Path(settings.servers).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        urls = [address(line.strip()) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"sampler.servers: {path}: {first_line(error)}") from error
    if not urls:
        raise UserError(f"sampler.servers: {path} names no server yet")
    return [*dict.fromkeys(urls)]


def roster_of(settings: Settings, check: Callable[[Server, ServerInfo], object]) -> Roster | None:
    """None where the servers are listed."""
    if isinstance(settings.servers, list):
        return None
    return Roster(settings, check)


def addresses_at_start(settings: Settings) -> list[str]:
    """Those of all servers that are listed; of a file those that answer, as others may be there no
    longer, or not yet. Waits for `patience` seconds until any does, then returns all."""
    end = time.monotonic() + settings.patience
    while True:
        urls = addresses(settings)
        if isinstance(settings.servers, list):
            return urls
        answering = [url for url in urls if Client(url, settings).answers()]
        if answering or time.monotonic() >= end:
            return answering or urls
        time.sleep(LOOKS_EVERY)
