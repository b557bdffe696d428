"""VLLM: a sampler that gets its completions from vLLM servers."""

import math
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
from accelerate import PartialState
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from groupwise import processes
from groupwise.errors import UserError
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose, Sampler
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.client import Client
from groupwise_llm.vllm.completion import Completion, read
from groupwise_llm.vllm.demands import check
from groupwise_llm.vllm.files import Files
from groupwise_llm.vllm.fleet import Fleet
from groupwise_llm.vllm.generation import Generation
from groupwise_llm.vllm.launch import Launch
from groupwise_llm.vllm.nccl import BACKEND, NCCL
from groupwise_llm.vllm.request import Request, sampling_of, split
from groupwise_llm.vllm.server import Server
from groupwise_llm.vllm.settings import Settings
from groupwise_llm.vllm.sleep import Sleep
from groupwise_llm.vllm.transfer import Transfer

MAX_GAP = 0.3
"""Largest mean difference, in nats, between the server's and the policy's log-probs after the first
transfer: rounding causes far less, another model far more."""
PROBE_TOKENS = 16
"""Tokens on which this difference is measured."""


class VLLM(Sampler):
    """vLLM servers sample the completions: quicker for models of some billions of weights.

    Every update of the weights is sent to them under a new tag, and with each completion a server
    states the tags of the weights that sampled it. Completions by other weights than the current
    ones are sampled again.
    """

    policy_class: ClassVar[type] = LanguageModel
    requires: ClassVar[frozenset[str]] = frozenset({"log_probs"})
    seeded = False
    Config: ClassVar[type[Settings]] = Settings

    def __init__(self, config: Settings, policy: LanguageModel) -> None:
        self.config, self.policy = config, policy
        self.tag, self.version = "", -1
        self.vocabulary = policy.model.get_input_embeddings().num_embeddings
        self._launch = Launch(config.start, policy, config) if config.start else None
        urls = list(config.servers)
        try:
            if self._launch is not None:
                urls = [processes.first(self._launch.open)]
            servers = [Server(Client(url, config)) for url in urls]
            self.facts = {server: server.facts() for server in servers}
            backend = self._backend
            for server, facts in self.facts.items():
                check(server, facts, policy, config, backend)
            self.fleet = Fleet(servers, fixed=backend == BACKEND)
            self._transfer = self._new_transfer(backend)
            files = self._transfer if isinstance(self._transfer, Files) else None
            self._sleep = Sleep(files) if config.sleep and files else None
        except BaseException:
            self._stop()
            raise
        self._thread: threading.Thread | None = None
        self._probed: list[int] = []

    # ---- weights

    @property
    def _backend(self) -> str:
        """How weights are sent: by NCCL from a GPU to servers on other GPUs, else by files."""
        own = self.config
        direct = self.policy.device.type == "cuda" and not own.sleep and own.start is None
        return own.transfer or (BACKEND if direct else "files")

    def _new_transfer(self, backend: str) -> Transfer:
        if backend == BACKEND:
            workers = [facts.workers for facts in self.facts.values()]
            return NCCL(self.fleet, workers, self.config.address)
        return Files(self.fleet, self.config.folder)

    @torch.no_grad()
    def follow(self, policy: Any, name: str, version: int) -> None:
        """Send the policy's weights to all servers; returns when all have loaded them."""
        self._thread = threading.current_thread()
        self.fleet.seek()
        self.tag = processes.first(lambda: f"{name}-{version}-{uuid.uuid4().hex}")
        if self._sleep is not None:
            processes.first(self._sleep.wake)
        self._transfer.send(policy.weights, self.tag)
        self.version = version
        # Again after the first update: before it, adapters add nothing that could be missing.
        if not self._probed or (len(self._probed) == 1 and version > self._probed[0]):
            # On all processes before any goes on, else the fastest would put servers to sleep.
            processes.each(lambda: self._probe(policy))
            self._probed.append(version)

    def _probe(self, policy: LanguageModel) -> None:
        """Raise UserError where a server's log-probs are not the policy's: it runs another model,
        or did not load all weights."""
        row = {"prompt": "0"}
        ids = torch.tensor([policy.ends[0]])
        sampling = {
            **sampling_of(policy, "train"),
            "ignore_eos": True,
            "stop_token_ids": [],
            "stop": [],
        }
        sampling |= {
            "n": 1,
            "seed": 0,
            "max_tokens": min(PROBE_TOKENS, policy.config.max_new_tokens),
        }
        drawn: dict[Server, Completion] = {}

        def draw(server: Server) -> None:
            (choice,) = server.generate(ids.tolist(), sampling)
            drawn[server] = read(
                choice,
                server.url,
                longest=sampling["max_tokens"],
                vocabulary=self.vocabulary,
                scored=True,
            )

        self.fleet.each(draw)
        count = len(drawn)  # one pass for all servers, since a sharded policy's is a collective
        rollouts = self._rollouts([row] * count, [ids] * count, 1, [*drawn.values()], "train")
        ours = policy(rollouts, outputs=frozenset({"log_probs"})).log_probs
        assert ours is not None
        assert rollouts.sampler_log_probs is not None
        gaps = (ours - rollouts.sampler_log_probs).abs().masked_fill(~rollouts.mask, 0.0)
        means = gaps.sum(dim=1) / rollouts.lengths
        for server, gap in zip(drawn, means.tolist(), strict=True):
            if not gap <= MAX_GAP:
                raise UserError(
                    f"sampler: the vLLM server at {server.url} has loaded the policy's weights, "
                    f"but its log-probs differ from the policy's by {gap:.2g} nats on average: it "
                    f"runs another model, or in another precision. Start it with "
                    f"{policy.config.model}, and in the policy's precision (--dtype)"
                )

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
        if self.config.sleep and threading.current_thread() is not self._thread:
            raise UserError(
                "sampler.sleep: true and train.ahead: 1: servers that sleep during updates cannot "
                "sample at the same time; unset one of the two"
            )
        if not prompts:
            return
        ids = [self.policy.prompts.encode(row) for row in prompts]
        requests = split(
            ids,
            group_size,
            seeds,
            facts=self.facts,
            policy=self.policy,
            process=(PartialState().process_index, PartialState().num_processes),
        )
        self.fleet.seek()
        with (
            self._sleep.drawing() if self._sleep else nullcontext(),
            Generation(
                requests,
                self.fleet,
                tag=self.tag,
                ask=partial(self._ask, ids, sampling_of(self.policy, purpose)),
                renew=self._renew,
            ) as generation,
        ):
            for start in range(0, len(prompts), most):
                part = slice(start, start + most)
                drawn = generation.completions(range(len(prompts))[part])
                yield self._rollouts(prompts[part], ids[part], group_size, drawn, purpose)

    def _renew(self, server: Server) -> None:
        """Send the weights again to a server that no longer has them, after a restart."""
        if server.tag != self.tag:
            self._transfer.resend(server, self.tag)

    def _ask(
        self,
        ids: Sequence[Tensor],
        sampling: Mapping[str, Any],
        server: Server,
        request: Request,
    ) -> list[Completion]:
        own = {**sampling, "n": request.count, "seed": request.seed}
        choices = server.generate(ids[request.row].tolist(), own)
        if len(choices) != request.count:
            raise UserError(
                f"sampler: the vLLM server at {server.url} answered with {len(choices)} "
                f"completions, expected {request.count}"
            )
        return [
            read(
                choice,
                server.url,
                longest=self.policy.config.max_new_tokens,
                vocabulary=self.vocabulary,
                scored=sampling["logprobs"] is not None,
            )
            for choice in choices
        ]

    def _rollouts(
        self,
        prompts: Sequence[Mapping[str, Any]],
        ids: Sequence[Tensor],
        size: int,
        drawn: Sequence[Completion],
        purpose: Purpose,
    ) -> Rollouts:
        """The rollouts that the policy's own `sample` would return for these completions."""
        device, policy = self.policy.device, self.policy
        rows = [row for row in prompts for _ in range(size)]
        tokens = [completion.ids for completion in drawn]
        lengths = torch.tensor([len(own) for own in tokens])
        mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        training = purpose == "train"
        whole = training or policy.config.for_evaluation() == policy.config
        log_probs = [torch.tensor(completion.log_probs) for completion in drawn]
        completions, facts = policy.completions_and_facts(tokens, rows)
        return Rollouts(
            prompts=rows,
            completions=completions,
            groups=torch.arange(len(prompts)).repeat_interleave(size).to(device),
            mask=mask.to(device),
            truncated=torch.tensor([completion.truncated for completion in drawn]).to(device),
            sampler_log_probs=_padded(log_probs).to(device) if training else None,
            versions=torch.full((len(rows),), self.version, dtype=torch.int64),
            facts={
                **facts,
                "sampled_mass": [1.0 if whole else math.nan] * len(rows),
                "entropy": [_entropy(own) if training else math.nan for own in log_probs],
            },
            trajectory={
                "prompt_ids": [own for own in ids for _ in range(size)],
                "completion_ids": _padded([torch.tensor(own) for own in tokens]).to(device),
                "attention": mask.to(device),
            },
        )

    def close(self) -> None:
        try:
            self._transfer.close()
        finally:
            self._stop()

    def _stop(self) -> None:
        if self._launch is not None:
            self._launch.close()


def _entropy(log_probs: Tensor) -> float:
    """An unbiased estimate, since an engine returns no distributions: E[-log p] is the entropy."""
    return -float(log_probs.mean())


def _padded(columns: Sequence[Tensor]) -> Tensor:
    """[B, T] of B tensors, padded on the right with zeros."""
    return pad_sequence(list(columns), batch_first=True)
