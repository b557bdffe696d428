"""Request: completions of one prompt, all of a group or a part of it."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groupwise.kit.errors import UserError
from groupwise.sampler import Purpose
from groupwise_llm.codec.contexts import Context
from groupwise_llm.model.likelihood import LEAST
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.prompt import family_of
from groupwise_llm.vllm.server import Server, ServerInfo

SEEDS = 2**62
"""vLLM's seeds are below 2^63, and it adds a completion's index in its request to the seed."""


AT_ONCE = 256
"""Most requests in flight."""
FOR_EACH = 32
"""Requests that each server is to get of a step, so that long and short ones balance."""
PROMPT_SHARE = 1 / 32
"""How long a prompt may be for being computed by several servers, of the most tokens that a request
of it may draw."""


@dataclass(frozen=True)
class Request:
    """row: index of the prompt; count: number of completions; seed: of the first completion, to
    which a server adds 1 for each further one; turn: the number of the request among those of all
    processes; limit: most tokens of each completion. Of one turn of an episode: context, a checksum
    of its ids, and begun, that of those which a server has computed before, or of the prompt."""

    row: int
    count: int
    seed: int
    turn: int
    limit: int
    context: int = 0
    begun: int | None = None

    def after(self, ids: Sequence[int]) -> int:
        """The checksum of the context with the ids that were drawn in it."""
        return _checksum(torch.tensor(ids, dtype=torch.int64), self.context)


def split(
    ids: Sequence[Tensor],
    size: int,
    seeds: Sequence[int],
    *,
    infos: Mapping[Server, ServerInfo],
    policy: LanguageModel,
    process: tuple[int, int],
    before: int = 0,
) -> list[Request]:
    """Requests for `size` completions of each prompt, which any of the servers can take.

    A group becomes several requests where `part` says so, or where it exceeds the `max_completions`
    of a server. Its completions have the same seeds however it is divided. Raises UserError for a
    prompt that is too long for a server.

    process: rank and number of the processes; process r has the prompts r, r + n, ... of a step;
    before: how many prompts this process had in earlier calls.
    """
    limit = policy.config.max_new_tokens
    most = min(own.max_completions for own in infos.values())
    rank, world = process
    requests = []
    for row, prompt in enumerate(ids):
        _check_length(prompt, limit, infos)
        count = part(
            size,
            len(prompt) / limit,
            groups=len(ids),
            processes=world,
            servers=len(infos),
        )
        count = min(count, most)
        parts = math.ceil(size / count)
        for number in range(parts):
            start = number * count
            seed = seeds[row * size] % SEEDS + start
            turn = (rank + (before + row) * world) * parts + number
            requests.append(Request(row, min(count, size - start), seed, turn, limit))
    return requests


def part(size: int, prompt: float, *, groups: int, processes: int, servers: int) -> int:
    """How many completions of a group are one request.

    All of them have one prompt, which a server computes once. Where servers would get few whole
    groups, some of them long and some short, they are divided, if the prompts are short: so that
    each server gets `FOR_EACH` requests, and no more are made than can be in flight at once.

    size: of a group; prompt: its length, divided by the most tokens of a completion; groups: of
    this process in a step.
    """
    least = max(
        groups * processes * size / (FOR_EACH * servers),
        groups * size / AT_ONCE,
        prompt / PROMPT_SHARE,
    )
    return min(size, max(1, math.ceil(least)))


def turns(
    contexts: Sequence[Context],
    seeds: Sequence[int],
    limits: Sequence[int],
    *,
    infos: Mapping[Server, ServerInfo],
    process: tuple[int, int],
    before: int = 0,
) -> list[Request]:
    """A request for one turn in each context. Raises UserError as `split`.

    process: as of `split`; before: how many contexts this process had in earlier calls.
    """
    rank, world = process
    requests = []
    for row, (context, seed, limit) in enumerate(zip(contexts, seeds, limits, strict=True)):
        ids = context.ids
        _check_length(ids, limit, infos)
        begun = ids[: context.drawn] if context.drawn else context.prompt_ids
        turn, checksums = rank + (before + row) * world, (_checksum(ids), _checksum(begun))
        requests.append(Request(row, 1, seed % SEEDS, turn, limit, *checksums))
    return requests


def _checksum(ids: Tensor, before: int = 0) -> int:
    """Of the ids, or of some ids and these, with the checksum of those before."""
    return zlib.crc32(ids.numpy().tobytes(), before)


def _check_length(prompt: Tensor, limit: int, infos: Mapping[Server, ServerInfo]) -> None:
    """Raise UserError for a prompt that leaves some server no room for a completion."""
    shortest = min(infos, key=lambda server: infos[server].max_tokens)
    if len(prompt) + limit > infos[shortest].max_tokens:
        raise UserError(
            f"sampler: a prompt of {len(prompt)} tokens and policy.max_new_tokens: {limit} are "
            f"more than the {infos[shortest].max_tokens} tokens that the vLLM server at "
            f"{shortest.url} takes; start it with a larger --max-model-len, or set "
            f"policy.max_prompt_tokens"
        )


def sampling_of(
    policy: LanguageModel, purpose: Purpose, stop: Sequence[str] = ()
) -> dict[str, Any]:
    """vLLM's sampling parameters, all set explicitly, since servers may have other defaults; stop:
    strings besides the policy's.

    Log-probs are requested for training only: evaluations may sample from another distribution than
    the policy's.
    """
    own = policy.config
    choice = own if purpose == "train" else own.for_evaluation()
    family = family_of(policy)
    excluded = sorted(family.excluded) if family else []
    return {
        **({"logit_bias": {str(token): LEAST for token in excluded}} if excluded else {}),
        "temperature": 0.0 if purpose == "greedy" else choice.temperature,
        "top_k": choice.top_k,
        "top_p": choice.top_p,
        "min_p": choice.min_p,
        "repetition_penalty": choice.repetition_penalty,
        "max_tokens": own.max_new_tokens,
        "ignore_eos": True,  # stop_token_ids has the policy's own end tokens
        "stop_token_ids": policy.ends,
        "stop": [*own.stop, *stop],
        "detokenize": bool(own.stop or stop),
        "skip_special_tokens": False,  # a stop string may contain one
        "logprobs": 0 if purpose == "train" else None,
    }
