"""Fleet: the servers of a run, of which some may be lost for a while."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from groupwise.kit import terminal
from groupwise_llm.vllm.client import LostError
from groupwise_llm.vllm.completion import Completion
from groupwise_llm.vllm.load import Load
from groupwise_llm.vllm.request import Request
from groupwise_llm.vllm.server import Server, ServerInfo


class Fleet:
    """Servers that replace each other: one that is lost gets no requests until it answers again.

    A request goes to the one with the least work. Only the last one is waited for
    (`sampler.patience`), and its loss ends the run. Each process has a view of its own.

    infos: how each server was started; fixed: no server may be lost, since weights can only be sent
    to all at once (NCCL).
    """

    def __init__(self, infos: Mapping[Server, ServerInfo], *, fixed: bool) -> None:
        self.infos, self.fixed = infos, fixed
        self.load: Load[Server] = Load()
        self._lost: list[Server] = []
        self._lock = threading.Lock()
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
        sizes = {server: self.infos[server].workers for server in self.living}
        return self.load.take(sizes, request.count, turn=request.turn, context=request.begun)

    def release(self, server: Server, request: Request) -> None:
        self.load.release(server, request.count)

    def remember(self, server: Server, request: Request, completions: Sequence[Completion]) -> None:
        """The next turns of the episode should be sent to the server that drew this one."""
        if request.begun is not None:
            for completion in completions:
                self.load.remember(request.after(completion.ids), server)

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
