"""Exchange: the weights of all servers: how they get there, whether they arrived, and again."""

import threading
import uuid
from collections.abc import Mapping
from functools import partial

import torch
from accelerate import PartialState

from groupwise.kit import processes, terminal
from groupwise.kit.errors import UserError
from groupwise.sampler import PRESENT
from groupwise_llm.codec.contexts import Turn
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.adapters import Adapters, obstacle
from groupwise_llm.vllm.canary import Canary, Check
from groupwise_llm.vllm.demands import ADAPTERS, check
from groupwise_llm.vllm.files import Files
from groupwise_llm.vllm.fleet import Fleet
from groupwise_llm.vllm.nccl import BACKEND, NCCL
from groupwise_llm.vllm.probe import check_weights
from groupwise_llm.vllm.server import Server, ServerInfo
from groupwise_llm.vllm.settings import Settings
from groupwise_llm.vllm.sleep import Sleep
from groupwise_llm.vllm.tags import Tags
from groupwise_llm.vllm.transfer import Transfer


def chosen(policy: LanguageModel, config: Settings, infos: Mapping[Server, ServerInfo]) -> str:
    """How weights are sent: adapters alone where that is possible; else by NCCL from a GPU to
    servers on other GPUs, else by files. Raises UserError if adapters are to be sent alone and
    cannot be."""
    # Told by one process: the tags of servers change as soon as one begins to send.
    reason = processes.first(lambda: obstacle(policy, config, infos))
    if reason is None:
        return ADAPTERS
    if config.adapters:
        raise UserError(f"sampler.adapters: true, but {reason}")
    if config.adapters is None and policy.config.lora and PartialState().is_main_process:
        note = f"note: servers get the whole model with adapters merged, since {reason}"
        terminal.say(note)
    direct = policy.device.type == "cuda" and config.has_lasting_servers
    return config.transfer or (BACKEND if direct else "files")


def check_newcomer(
    policy: LanguageModel, config: Settings, backend: str, server: Server, info: ServerInfo
) -> None:
    """Raise UserError where a server that joins the others was started differently."""
    check(server, info, policy, config, backend)
    if backend == ADAPTERS:
        reason = obstacle(policy, config, {server: info})
        if reason is not None:
            raise UserError(f"sampler: servers get adapters alone, but {reason}")


class Exchange:
    """Gives the servers a policy's weights, also while they sample.

    backend: how weights are sent. sleep: of servers that share GPUs with training. mismatch: by
    version, that of a fixed text, as servers scored it when they had these weights.
    """

    def __init__(
        self,
        policy: LanguageModel,
        fleet: Fleet,
        infos: Mapping[Server, ServerInfo],
        config: Settings,
        backend: str,
    ) -> None:
        self.policy, self.fleet, self.infos = policy, fleet, infos
        self.transfer, self.tags = self._transfer(config, backend), Tags()
        files = self.transfer if isinstance(self.transfer, Files) else None
        self.sleep = Sleep(files) if config.sleep and files else None
        self.mismatch: dict[int, Mapping[str, float]] = {}
        self._canary: Canary | None = None
        self._unchecked: tuple[str, int, Check] | None = None
        self._lock = threading.Lock()

    def _transfer(self, config: Settings, backend: str) -> Transfer:
        if backend == ADAPTERS:
            return Adapters(self.fleet, config.folder)
        if backend == BACKEND:
            workers = [info.workers for info in self.infos.values()]
            return NCCL(self.fleet, workers, config.address)
        return Files(self.fleet, config.folder)

    @torch.no_grad()
    def follow(self, policy: LanguageModel, name: str, version: int, *, is_drawing: bool) -> None:
        """Send the policy's weights to all servers; returns when all have loaded them.

        is_drawing: whether requests of this process may be running. The check that the weights
        arrived may have to wait behind those, and then ends before the next weights are sent.
        """
        self._finish_check()
        with self._lock:
            # Gathered: no process still samples and lets servers sleep, nor sends weights again.
            every = processes.each(lambda: (uuid.uuid4().hex, is_drawing, self.tags.in_use))
            tag = f"{self.transfer.prefix}{name}-{version}-{every[0][0]}"
            self.tags.begin(tag, version)
            if self.sleep is not None:
                processes.first(self.sleep.wake)
            self.transfer.send(policy, tag)
            self.tags.finish(tag)
            self.transfer.keep_only({tag}.union(*(in_use for *_, in_use in every)))
        model = self.transfer.model(tag)
        if self._canary is None:
            self._canary = self._probed(policy, version, model)
        self._unchecked = name, version, self._canary.begin(self.transfer.norms, model=model)
        if not any(draws for _, draws, _ in every):
            self._finish_check()

    def renew(self, server: Server) -> None:
        """Send the weights again to a server that no longer has them, after a restart."""
        with self._lock:  # several threads may find it restarted
            if server.tag != self.tags.last:
                self.transfer.resend(server, self.tags.last)

    def _finish_check(self) -> None:
        if self._unchecked is not None:
            (name, version, check), self._unchecked = self._unchecked, None
            measured = check()
            if name == PRESENT:
                self.mismatch[version] = measured

    def _probed(self, policy: LanguageModel, version: int, model: str | None) -> Canary:
        """The text for later transfers: what one server drew when all of them were probed."""
        infos = self.infos.values()
        probe = partial(
            check_weights,
            *(self.fleet, policy),
            version=version,
            model=model,
            most=min(info.max_completions for info in infos),
        )
        # On all processes before any goes on, else the fastest would put servers to sleep.
        row, context, ids = processes.each(probe)[0]
        longest = min(info.max_tokens for info in infos)
        room = min(longest, policy.prompts.longest or longest) - len(context.prompt_ids) - 1
        turn = Turn(ids=tuple(ids[:room]), text="", ended="length")
        return Canary(self.fleet, policy, row, context.with_turn(turn))
