"""Request: completions of one prompt, at most as many as a server takes in one request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from groupwise.errors import UserError
from groupwise.sampler import Purpose
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.server import Facts, Server

SEEDS = 2**62
"""vLLM's seeds are below 2^63, and it adds a completion's index in its request to the seed."""


@dataclass(frozen=True)
class Request:
    """row: index of the prompt; count: number of completions; seed: of the first completion; turn:
    the number of the prompt among those of all processes, by which servers take turns."""

    row: int
    count: int
    seed: int
    turn: int


def split(
    ids: Sequence[Tensor],
    size: int,
    seeds: Sequence[int],
    *,
    facts: Mapping[Server, Facts],
    policy: LanguageModel,
    process: tuple[int, int],
) -> list[Request]:
    """Requests for `size` completions of each prompt, which any of the servers can take.

    A group becomes several requests where it exceeds the `max_completions` of a server. Raises
    UserError for a prompt that is too long for one.

    process: rank and number of the processes; process r has the prompts r, r + n, ... of a step.
    """
    shortest = min(facts, key=lambda server: facts[server].max_tokens)
    room, most = facts[shortest].max_tokens, min(own.max_completions for own in facts.values())
    rank, world = process
    requests = []
    for row, prompt in enumerate(ids):
        if len(prompt) + policy.config.max_new_tokens > room:
            raise UserError(
                f"sampler: a prompt of {len(prompt)} tokens and policy.max_new_tokens: "
                f"{policy.config.max_new_tokens} are more than the {room} tokens that "
                f"the vLLM server at {shortest.url} takes; start it with a larger --max-model-len, "
                f"or set policy.max_prompt_tokens"
            )
        for start in range(0, size, most):
            seed = seeds[row * size + start] % SEEDS
            requests.append(Request(row, min(most, size - start), seed, rank + row * world))
    return requests


def sampling_of(policy: LanguageModel, purpose: Purpose) -> dict[str, Any]:
    """vLLM's sampling parameters, all set explicitly, since servers may have other defaults.

    Log-probs are requested for training only: evaluations may sample from another distribution than
    the policy's.
    """
    own = policy.config
    choice = own if purpose == "train" else own.for_evaluation()
    return {
        "temperature": 0.0 if purpose == "greedy" else choice.temperature,
        "top_k": choice.top_k,
        "top_p": choice.top_p,
        "min_p": choice.min_p,
        "repetition_penalty": choice.repetition_penalty,
        "max_tokens": own.max_new_tokens,
        "ignore_eos": True,  # stop_token_ids has the policy's own end tokens
        "stop_token_ids": policy.ends,
        "stop": own.stop,
        "detokenize": bool(own.stop),
        "skip_special_tokens": False,  # a stop string may contain one
        "logprobs": 0 if purpose == "train" else None,
    }
