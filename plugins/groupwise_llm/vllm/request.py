"""Request: completions of one prompt, as many as a server takes at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from groupwise.errors import UserError
from groupwise.sampler import Purpose
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.server import Facts, Server

SEEDS = 2**62
"""vLLM's seeds are below 2^63, and it adds a completion's number in its request."""


@dataclass(frozen=True)
class Request:
    """row: of the prompt; count: of completions; seed: of the first of them."""

    server: Server
    row: int
    count: int
    seed: int


def spread(
    ids: Sequence[Tensor],
    size: int,
    seeds: Sequence[int],
    servers: Sequence[tuple[Server, Facts]],
    policy: LanguageModel,
) -> list[Request]:
    """`size` completions of each prompt, the prompts spread evenly over the servers, in order.

    Groups are cut where a server takes no more at once. Raises UserError for a prompt that a server
    has no room for.
    """
    requests = []
    for row, prompt in enumerate(ids):
        server, facts = servers[row % len(servers)]
        if len(prompt) + policy.config.max_new_tokens > facts.longest:
            raise UserError(
                f"sampler: a prompt of {len(prompt)} tokens and policy.max_new_tokens: "
                f"{policy.config.max_new_tokens} are more than the {facts.longest} tokens that the "
                f"vLLM server at {server.url} takes; start it with a larger --max-model-len, or "
                f"set policy.max_prompt_tokens"
            )
        for start in range(0, size, facts.widest):
            seed = seeds[row * size + start] % SEEDS
            requests.append(Request(server, row, min(facts.widest, size - start), seed))
    return requests


def sampling_of(policy: LanguageModel, purpose: Purpose) -> dict[str, Any]:
    """vLLM's sampling parameters; whatever a server's own defaults could change is set.

    Log-probs are asked for in training alone: an evaluation's choice of tokens has another
    distribution than the policy's.
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
        "ignore_eos": True,  # the policy's own end tokens take its place
        "stop_token_ids": policy.ends,
        "stop": own.stop,
        "detokenize": bool(own.stop),
        "skip_special_tokens": False,  # a stop string may hold one
        "logprobs": 0 if purpose == "train" else None,
    }
