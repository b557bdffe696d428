"""Request: completions of one prompt, at most as many as a server takes in one request."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Request:
    """row: index of the prompt; count: number of completions; seed: of the first completion; turn:
    the number of the prompt among those of all processes, by which servers take turns; limit: most
    tokens of each completion."""

    row: int
    count: int
    seed: int
    turn: int
    limit: int


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

    A group becomes several requests where it exceeds the `max_completions` of a server. Raises
    UserError for a prompt that is too long for one.

    process: rank and number of the processes; process r has the prompts r, r + n, ... of a step;
    before: how many prompts this process had in earlier calls.
    """
    most, limit = min(own.max_completions for own in infos.values()), policy.config.max_new_tokens
    rank, world = process
    requests = []
    for row, prompt in enumerate(ids):
        _check_length(prompt, limit, infos)
        for start in range(0, size, most):
            seed, turn = seeds[row * size + start] % SEEDS, rank + (before + row) * world
            requests.append(Request(row, min(most, size - start), seed, turn, limit))
    return requests


def turns(
    contexts: Sequence[Context],
    seeds: Sequence[int],
    limits: Sequence[int],
    *,
    infos: Mapping[Server, ServerInfo],
) -> list[Request]:
    """A request for one turn in each context. The server is chosen by the prompt, so that it has
    the context's earlier turns in its prefix cache. Raises UserError as `split`."""
    requests = []
    for row, (context, seed, limit) in enumerate(zip(contexts, seeds, limits, strict=True)):
        _check_length(context.ids, limit, infos)
        server = zlib.crc32(context.prompt_ids.numpy().tobytes())
        requests.append(Request(row, 1, seed % SEEDS, server, limit))
    return requests


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
