"""VLLM: a sampler that gets its completions from vLLM servers."""

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
from accelerate import PartialState

from groupwise.kit import processes, progress
from groupwise.kit.errors import UserError
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise_llm.codec.codec import Codec
from groupwise_llm.codec.contexts import Context, Turn
from groupwise_llm.policy import LanguageModel
from groupwise_llm.sampler import TextSampler
from groupwise_llm.vllm.client import Client
from groupwise_llm.vllm.completion import Completion, read, turn_of, vocabulary_of
from groupwise_llm.vllm.demands import check
from groupwise_llm.vllm.exchange import Exchange, check_newcomer, chosen
from groupwise_llm.vllm.fleet import Fleet
from groupwise_llm.vllm.generation import Generation
from groupwise_llm.vllm.launch import Launch
from groupwise_llm.vllm.nccl import BACKEND
from groupwise_llm.vllm.prompt import Prompt, family_of, prompt_of
from groupwise_llm.vllm.request import AT_ONCE, Request, sampling_of, split, turns
from groupwise_llm.vllm.roster import addresses_at_start, roster_of
from groupwise_llm.vllm.server import Server, ServerInfo
from groupwise_llm.vllm.settings import Settings


class VLLM(TextSampler):
    """vLLM servers sample the completions: quicker for models of some billions of weights.

    The weights are sent to them under a new tag, also while they sample: requests wait meanwhile,
    and go on with the new weights. With each completion a server states which tokens were sampled
    by which tag; a completion by weights older than its request is sampled again.
    """

    concurrency: ClassVar[int] = AT_ONCE
    policy_class: ClassVar[type] = LanguageModel
    requires: ClassVar[frozenset[str]] = frozenset({"log_probs"})
    seeded = False
    timeout = math.inf  # requests have deadlines, `Settings.timeout`
    Config: ClassVar[type[Settings]] = Settings

    @classmethod
    def draws_beside(cls, config: Settings) -> bool:
        """Unless servers sleep during updates, or the run starts one, on its own device."""
        return not config.sleep and config.start is None

    def __init__(self, config: Settings, policy: LanguageModel) -> None:
        self.config, self.policy = config, policy
        self.vocabulary = vocabulary_of(policy)
        self._launch = Launch(config.start, policy, config) if config.start else None
        try:
            urls = addresses_at_start(config)
            if self._launch is not None:
                urls = [processes.first(self._launch.open, patient=True)]
            servers = [Server(Client(url, config)) for url in urls]
            infos = {server: server.info() for server in servers}
            backend = chosen(policy, config, infos)
            for server, info in infos.items():
                check(server, info, policy, config, backend)
            roster = roster_of(config, partial(check_newcomer, policy, config, backend))
            self.fleet = Fleet(infos, fixed=backend == BACKEND, roster=roster)
            self.exchange = Exchange(policy, self.fleet, infos, config, backend)
        except BaseException:
            self._stop()
            raise
        self._thread: threading.Thread | None = None
        self._open = 0
        self._opening = threading.Lock()
        self._turns = 0

    @property
    def codec(self) -> Codec:  # type: ignore[override]
        """The policy's."""
        return self.policy.codec

    @property
    def requested(self) -> frozenset[str]:  # type: ignore[override]
        return self.policy.requested

    @property
    def device(self) -> torch.device:
        return self.policy.device

    @property
    def infos(self) -> Mapping[Server, ServerInfo]:
        return self.fleet.infos

    # ---- weights

    @property
    def tag(self) -> str:
        """Of the weights that all servers have."""
        return self.exchange.tags.last

    @property
    def follows_in_flight(self) -> bool:  # type: ignore[override]
        """A request goes on with a new model, or with the adapters that it began with. Features of
        pictures are not computed anew."""
        return not self.config.sleep and family_of(self.policy) is None

    def follow(self, policy: Any, name: str, version: int) -> None:
        """Send the policy's weights to all servers; returns when all have loaded them."""
        self._thread = threading.current_thread()
        self.fleet.seek()
        self.exchange.follow(policy, name, version, is_drawing=self._open > 0)

    def mismatch(self, version: int) -> Mapping[str, float]:
        """Of a fixed text, as it was scored when these weights were sent."""
        return self.exchange.mismatch.get(version, {})

    # ---- completions

    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
    ) -> Rollouts:
        """Completions with the policy's sampling settings; see `Sampler.sample`.

        Seeds go into the requests, but vLLM's results also depend on how it batches them.
        """
        (rollouts,) = self.stream(
            prompts, group_size=group_size, seeds=seeds, purpose=purpose, most=len(prompts)
        )
        return rollouts

    def stream(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
        most: int,
    ) -> Iterator[Rollouts]:
        """All prompts are requested at once, so that servers never wait for the longest completion
        of a part."""
        if not prompts:
            return
        contexts = self.encode(prompts)
        ids = [context.prompt_ids for context in contexts]
        requests = split(
            ids,
            group_size,
            seeds,
            infos=self.infos,
            policy=self.policy,
            process=(PartialState().process_index, PartialState().num_processes),
            before=self._turns,
        )
        self._turns += len(prompts)
        with (
            nullcontext() if self._open else self.session(),
            self._generation(requests, contexts, purpose) as generation,
        ):
            for start in range(0, len(prompts), most):
                rows = range(len(prompts))[start : start + most]
                owners = [row for row in rows for _ in range(group_size)]
                drawn = zip(owners, generation.completions(rows), strict=True)
                finished = [
                    contexts[row].with_turn(self._turn(completion, purpose))
                    for row, completion in drawn
                ]
                groups = [row - start for row in owners]
                yield self.assemble([prompts[row] for row in owners], finished, groups=groups)

    def draw(
        self,
        contexts: Sequence[Context],
        *,
        seeds: Sequence[int],
        limits: Sequence[int],
        purpose: Purpose = "train",
        stop: Sequence[str] = (),
    ) -> list[Turn]:
        """The next turn in each context, all requested at once; see `TextSampler.draw`. Within a
        session several threads may call it."""
        if not contexts:
            return []
        self.check_draw(contexts, limits)
        requests = turns(
            contexts,
            seeds,
            limits,
            infos=self.infos,
            process=(PartialState().process_index, PartialState().num_processes),
            before=self._turns,
        )
        self._turns += len(contexts)
        with (
            nullcontext() if self._open else self.session(),
            self._generation(requests, contexts, purpose, stop) as generation,
        ):
            drawn = generation.completions(range(len(contexts)))
        return [self._turn(completion, purpose) for completion in drawn]

    @contextmanager
    def session(self) -> Iterator[None]:
        """Servers are awake within it; see `TextSampler.session`."""
        if self.config.sleep and threading.current_thread() is not self._thread:
            raise UserError(
                "sampler.sleep: true and train.ahead: servers that sleep during updates cannot "
                "sample at the same time; unset one of the two"
            )
        self.fleet.seek()
        sleep = self.exchange.sleep
        with sleep.drawing() if sleep else nullcontext():
            self.fleet.each(self.exchange.renew)
            with self._opening:
                self._open += 1
            try:
                yield
            finally:
                with self._opening:
                    self._open -= 1

    def _generation(
        self,
        requests: Sequence[Request],
        contexts: Sequence[Context],
        purpose: Purpose,
        stop: Sequence[str] = (),
    ) -> Generation:
        written = [prompt_of(context, family_of(self.policy)) for context in contexts]
        ask = partial(self._ask, written, sampling_of(self.policy, purpose, stop))
        exchange = self.exchange
        return Generation(requests, self.fleet, tags=exchange.tags, ask=ask, renew=exchange.renew)

    def _ask(
        self,
        prompts: Sequence[Prompt],
        sampling: Mapping[str, Any],
        server: Server,
        request: Request,
    ) -> list[Completion]:
        of_request = {"n": request.count, "seed": request.seed, "max_tokens": request.limit}
        with self.exchange.tags.used() as tag:
            model = self.exchange.transfer.model(tag)
            choices = server.generate(prompts[request.row], {**sampling, **of_request}, model=model)
        if choices is None:  # it restarted, and will be sent the weights again
            return []
        if len(choices) != request.count:
            raise UserError(
                f"sampler: the vLLM server at {server.url} answered with {len(choices)} "
                f"completions, expected {request.count}"
            )
        completions = [
            read(
                choice,
                server.url,
                longest=request.limit,
                vocabulary=self.vocabulary,
                scored=sampling["logprobs"] is not None,
                model=model,
            )
            for choice in choices
        ]
        progress.count("tokens", sum(len(each.ids) for each in completions))
        progress.count("completions", len(completions), early=True)
        return completions

    def _turn(self, completion: Completion, purpose: Purpose) -> Turn:
        return turn_of(completion, self.policy, purpose, version=self.exchange.tags.version)

    def close(self) -> None:
        try:
            self.exchange.transfer.close()
        finally:
            self._stop()

    def _stop(self) -> None:
        if self._launch is not None:
            self._launch.close()
