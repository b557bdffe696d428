"""VLLM: a sampler whose completions are drawn by vLLM servers."""

import math
import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
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
from groupwise_llm.prompts import decode
from groupwise_llm.vllm.client import Client
from groupwise_llm.vllm.completion import Completion, read
from groupwise_llm.vllm.demands import check
from groupwise_llm.vllm.files import Files
from groupwise_llm.vllm.launch import Launch
from groupwise_llm.vllm.nccl import BACKEND, NCCL
from groupwise_llm.vllm.request import Request, sampling_of, spread
from groupwise_llm.vllm.server import Server
from groupwise_llm.vllm.settings import Settings
from groupwise_llm.vllm.sleep import Sleep
from groupwise_llm.vllm.transfer import Transfer

ROUNDS = 3
"""How often completions of other weights are drawn anew."""
AT_ONCE = 256
"""Requests that wait for their answers at once."""
APART = 0.3
"""Nats by which a token's log-prob may differ on average from the policy's after the first
transfer: rounding is far below, another model far above."""
PROBED = 16
"""Tokens that this is looked at on."""


class VLLM(Sampler):
    """vLLM servers draw the completions.

    They take the weights that are followed, under a tag of their own for every change, and say of
    each completion by which tags it was drawn: others are drawn anew.
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
            self.servers = [Server(Client(url, config)) for url in urls]
            self.facts = [server.facts() for server in self.servers]
            backend = self._backend
            for server, facts in zip(self.servers, self.facts, strict=True):
                check(server, facts, policy, config, backend)
            self._transfer = self._way(backend)
            files = self._transfer if isinstance(self._transfer, Files) else None
            self._sleep = Sleep(files) if config.sleep and files else None
        except BaseException:
            self._stop()
            raise
        self._thread: threading.Thread | None = None
        self._probed = False

    # ---- weights

    @property
    def _backend(self) -> str:
        """By what weights get there: by NCCL from a GPU to others."""
        own = self.config
        direct = self.policy.device.type == "cuda" and not own.sleep and own.start is None
        return own.transfer or (BACKEND if direct else "files")

    def _way(self, backend: str) -> Transfer:
        if backend == BACKEND:
            workers = [facts.workers for facts in self.facts]
            return NCCL(self.servers, workers, self.config.address)
        return Files(self.servers, self.config.folder)

    @torch.no_grad()
    def follow(self, policy: Any, name: str, version: int) -> None:
        """Have all servers take the policy's weights; they have taken them when this returns."""
        self._thread = threading.current_thread()
        self.tag = processes.first(lambda: f"{name}-{version}-{uuid.uuid4().hex}")
        if self._sleep is not None:
            processes.first(self._sleep.wake)
        self._transfer.send(policy.weights, self.tag)
        self.version = version
        if not self._probed:
            self._probe(policy)
            self._probed = True
            PartialState().wait_for_everyone()  # whoever is first would send servers to sleep

    def _probe(self, policy: LanguageModel) -> None:
        """Raise UserError where a server answers otherwise than the policy, as another model does,
        or one that did not take all weights."""
        row = {"prompt": "0"}
        ids = torch.tensor([policy.ends[0]])
        sampling = {
            **sampling_of(policy, "train"),
            "ignore_eos": True,
            "stop_token_ids": [],
            "stop": [],
        }
        sampling |= {"n": 1, "seed": 0, "max_tokens": min(PROBED, policy.config.max_new_tokens)}
        for server in self.servers:
            (choice,) = server.generate(ids.tolist(), sampling)
            drawn = read(
                choice,
                server.url,
                longest=sampling["max_tokens"],
                vocabulary=self.vocabulary,
                scored=True,
            )
            rollouts = self._rollouts([row], [ids], 1, [drawn], "train")
            ours = policy(rollouts).log_probs
            assert ours is not None
            assert rollouts.sampler_log_probs is not None
            gap = float((ours - rollouts.sampler_log_probs).abs().mean())
            if not gap <= APART:
                raise UserError(
                    f"sampler: the vLLM server at {server.url} has taken the policy's weights, and "
                    f"its log-probs are {gap:.2g} nats from the policy's on average: it runs "
                    f"another model, or computes otherwise. Start it with {policy.config.model}, "
                    f"and in the policy's precision (--dtype)"
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
        """Completions as the policy would draw them; seeds name the requests, which vLLM answers as
        they come."""
        if self.config.sleep and threading.current_thread() is not self._thread:
            raise UserError(
                "sampler.sleep: true and train.ahead: 1: servers that sleep while training updates "
                "cannot draw meanwhile; unset one of the two"
            )
        ids = [self.policy.prompts.encode(row) for row in prompts]
        requests = spread(
            ids, group_size, seeds, list(zip(self.servers, self.facts, strict=True)), self.policy
        )
        with self._sleep.drawing() if self._sleep else nullcontext():
            drawn = self._drawn(requests, ids, purpose)
        return self._rollouts(prompts, ids, group_size, drawn, purpose)

    def _drawn(
        self, requests: Sequence[Request], ids: Sequence[Tensor], purpose: Purpose
    ) -> list[Completion]:
        """The completions of all requests in their order, all drawn by the weights followed."""
        sampling = sampling_of(self.policy, purpose)
        answers: dict[Request, list[Completion]] = {}
        for _ in range(ROUNDS):
            self._keep()
            due = [request for request in requests if request not in answers]
            with ThreadPoolExecutor(min(len(due), AT_ONCE)) as threads:
                parts = threads.map(lambda request: self._ask(request, ids, sampling), due)
                drawn = dict(zip(due, parts, strict=True))
            answers |= {r: part for r, part in drawn.items() if self._is_present(part)}
            if len(answers) == len(requests):
                return [completion for request in requests for completion in answers[request]]
        other = next(request for request in requests if request not in answers)
        raise UserError(
            f"sampler: the vLLM server at {other.server.url} draws with other weights than those "
            f"that it was sent, however often it gets them again: does another run use it, or does "
            f"it restart?"
        )

    def _keep(self) -> None:
        """Give the weights again to servers that no longer have them, as after a restart."""
        for server in self.servers:
            if server.tag != self.tag:
                self._transfer.again(server, self.tag)

    def _is_present(self, completions: Sequence[Completion]) -> bool:
        return all(completion.tags == {self.tag} for completion in completions)

    def _ask(
        self, request: Request, ids: Sequence[Tensor], sampling: Mapping[str, Any]
    ) -> list[Completion]:
        own = {**sampling, "n": request.count, "seed": request.seed}
        choices = request.server.generate(ids[request.row].tolist(), own)
        if len(choices) != request.count:
            raise UserError(
                f"sampler: the vLLM server at {request.server.url} answered with {len(choices)} "
                f"completions, and {request.count} were asked for"
            )
        return [
            read(
                choice,
                request.server.url,
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
        """What the policy's own `sample` would return of these completions."""
        device, policy = self.policy.device, self.policy
        rows = [row for row in prompts for _ in range(size)]
        tokens = [completion.ids for completion in drawn]
        lengths = torch.tensor([len(own) for own in tokens])
        mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        training = purpose == "train"
        whole = training or policy.config.for_evaluation() == policy.config
        log_probs = [torch.tensor(completion.log_probs) for completion in drawn]
        return Rollouts(
            prompts=rows,
            completions=[
                decode(policy.tokenizer, own, row["prompt"])
                for own, row in zip(tokens, rows, strict=True)
            ],
            groups=torch.arange(len(prompts)).repeat_interleave(size).to(device),
            mask=mask.to(device),
            truncated=torch.tensor([completion.truncated for completion in drawn]).to(device),
            sampler_log_probs=_padded(log_probs).to(device) if training else None,
            versions=torch.full((len(rows),), self.version, dtype=torch.int64),
            facts={
                "completion_ids": tokens,
                "kept_mass": [1.0 if whole else math.nan] * len(rows),
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


def _padded(columns: Sequence[Tensor]) -> Tensor:
    """[B, T] of B tensors, zeros behind those that are shorter."""
    return pad_sequence(list(columns), batch_first=True)
