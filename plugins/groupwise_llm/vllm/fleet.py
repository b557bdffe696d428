"""Fleet: the servers of a run, of which some may be lost for a while."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from groupwise.kit import terminal
from groupwise.kit.errors import UserError
from groupwise_llm.vllm.client import LostError
from groupwise_llm.vllm.completion import Completion
from groupwise_llm.vllm.load import Load
from groupwise_llm.vllm.request import Request
from groupwise_llm.vllm.roster import LOOKS_EVERY, Roster
from groupwise_llm.vllm.server import Server, ServerInfo


class Fleet:
    """Servers that replace each other: one that is lost gets no requests until it answers again.

    A request goes to the one with the least work. Only the last one is waited for
    (`sampler.patience`), and its loss ends the run. Each process has a view of its own.

    infos: how each server was started; fixed: no server may be lost, since weights can only be sent
    to all at once (NCCL); roster: a file that names the servers, if they may change.
    """

    def __init__(
        self,
        infos: Mapping[Server, ServerInfo],
        *,
        fixed: bool,
        roster: Roster | None = None,
    ) -> None:
        self.infos, self.fixed, self.roster = infos, fixed, roster
        self.load: Load[Server] = Load()
        self._lost: list[Server] = []
        self._lock, self._seeking = threading.Lock(), threading.Lock()
        self._needs_relief = False
        self._set_patience()

    @property
    def servers(self) -> list[Server]:
        return [*self.infos]

    @property
    def living(self) -> list[Server]:
        return [server for server in self.servers if server not in self._lost]

    @property
    def addresses(self) -> str:
        return ", ".join(server.url for server in self.living)

    def take(self, request: Request) -> Server:
        """The living server that the request is sent to; it has more work until `release`."""
        infos = self.infos
        sizes = {server: infos[server].workers for server in infos if server not in self._lost}
        return self.load.take(sizes, request.count, turn=request.turn, context=request.begun)

    def release(self, server: Server, request: Request) -> None:
        self.load.release(server, request.count)

    def remember(self, server: Server, request: Request, completions: Sequence[Completion]) -> None:
        """The next turns of the episode should be sent to the server that drew this one."""
        if request.begun is not None:
            for completion in completions:
                self.load.remember(request.after(completion.ids), server)

    def lose(self, server: Server, error: LostError, *, replaceable: bool = False) -> None:
        """Leave the server out from now on. If there is no other one, raises the error, or returns
        for another attempt that waits for the server, if this one did not.

        replaceable: return also where the roster has another one, which `relieve` takes up.
        """
        with self._lock:
            if server in self._lost or server not in self.infos:
                return
            if self.fixed or self.living == [server]:
                if replaceable and self._is_replaced():
                    self._needs_relief = True
                    return
                if error.waited:
                    raise error
                return
            self._lost.append(server)
            self._set_patience()
        note = f"note: {error}. The other servers do its work until it is back"
        terminal.say(note)

    def seek(self) -> None:
        """Take back lost servers that answer again, take up those that are new in the roster, and
        leave out those that are no longer there. With a roster it waits until one answers."""
        end = time.monotonic() + self._patience
        if self._look():
            return
        terminal.say(f"note: no vLLM server answers; waiting for {self._patience:g} s for one")
        while time.monotonic() < end and not self._look():
            time.sleep(LOOKS_EVERY)

    def relieve(self, welcome: Callable[[Server], object]) -> None:
        """Take up those that replace the last server, if it is lost; welcome: called with each
        before it gets requests."""
        if self._needs_relief:
            self._needs_relief = False
            self._look(welcome)

    def _look(self, welcome: Callable[[Server], object] = lambda _: None) -> bool:
        """See `seek`; whether a server answers."""
        with self._seeking:
            joining = {server: self.infos[server] for server in self._lost if server.answers()}
            urls = {server.url for server in self.infos}
            if self.roster is not None:
                with suppress(UserError):  # the file is being written: it stays as it was
                    joining |= self.roster.joining(urls)
                    urls = {*self.roster.addresses()}
            for server, info in joining.items():
                with suppress(LostError):
                    welcome(server)
                    self._join(server, info)
            self._leave({server for server in self.infos if server.url not in urls})
            self._set_patience()
            return self.roster is None or any(server.answers() for server in self.living)

    @property
    def _patience(self) -> float:
        return next(iter(self.infos)).client.settings.patience

    def _join(self, server: Server, info: ServerInfo) -> None:
        if server in self._lost:
            self._lost.remove(server)
            terminal.say(f"note: the vLLM server at {server.url} is back")
            return
        self.infos = {**self.infos, server: info}
        terminal.say(f"note: the vLLM server at {server.url} has joined")

    def _leave(self, gone: set[Server]) -> None:
        """The last one that lives stays, until another one has joined."""
        if not {*self.living} - gone:
            return
        for server in gone:
            self.infos = {own: info for own, info in self.infos.items() if own is not server}
            with self._lock:
                self._lost = [own for own in self._lost if own is not server]
            terminal.say(f"note: the vLLM server at {server.url} has left")

    def _is_replaced(self) -> bool:
        known = {server.url for server in self.infos}
        return self.roster is not None and self.roster.has_another(known)

    def each(self, action: Callable[[Server], object]) -> None:
        """Run the action on all living servers at the same time; those that fail are lost.

        The last one is waited for, so its action may run again.
        """
        due = self.living
        while due:
            with ThreadPoolExecutor(len(due)) as threads:
                futures = {server: threads.submit(action, server) for server in due}
            for server, future in futures.items():
                try:
                    future.result()
                except LostError as error:
                    self.lose(server, error)
                    continue
                due.remove(server)
            due = [server for server in due if server in self.living]

    def _set_patience(self) -> None:
        living = self.living
        for server in living:
            server.client.waits = self.fixed or len(living) == 1
            server.client.is_replaced = self._is_replaced
