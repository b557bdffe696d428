"""Fleet: the servers of a run, of which some may be lost for a while."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from groupwise.kit import terminal
from groupwise_llm.vllm.client import LostError
from groupwise_llm.vllm.server import Server


class Fleet:
    """Servers that replace each other: one that is lost gets no requests until it answers again.

    Only the last one is waited for (`sampler.patience`), and its loss ends the run. Each process
    has a view of its own.

    fixed: no server may be lost, since weights can only be sent to all at once (NCCL).
    """

    def __init__(self, servers: Sequence[Server], *, fixed: bool) -> None:
        self.servers, self.fixed = servers, fixed
        self._lost: list[Server] = []
        self._lock = threading.Lock()
        self._set_patience()

    @property
    def living(self) -> list[Server]:
        return [server for server in self.servers if server not in self._lost]

    @property
    def addresses(self) -> str:
        return ", ".join(server.url for server in self.living)

    def lose(self, server: Server, error: LostError) -> None:
        """Leave the server out from now on. If there is no other one, raises the error, or returns
        for another attempt that waits for the server, if this one did not."""
        with self._lock:
            if server in self._lost:
                return
            if self.fixed or self.living == [server]:
                if error.waited:
                    raise error
                return
            self._lost.append(server)
            self._set_patience()
        note = f"note: {error}. The other servers do its work until it is back"
        terminal.say(note)

    def seek(self) -> None:
        """Take back lost servers that answer again."""
        for server in [*self._lost]:
            if server.answers():
                self._lost.remove(server)
                terminal.say(f"note: the vLLM server at {server.url} is back")
        self._set_patience()

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
