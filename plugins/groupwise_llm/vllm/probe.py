"""Probe: whether servers compute with the policy's weights, measured on a few tokens."""

from collections.abc import Mapping
from typing import Any

import torch

from groupwise.kit.errors import UserError
from groupwise_llm.codec.contexts import Context
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vision.model import PicturedModel
from groupwise_llm.vllm.completion import Completion, read, turn_of, vocabulary_of
from groupwise_llm.vllm.fleet import Fleet
from groupwise_llm.vllm.prompt import family_of, prompt_of
from groupwise_llm.vllm.request import sampling_of
from groupwise_llm.vllm.server import Server

MAX_GAP = 0.3
"""Largest mean difference, in nats, between a server's and the policy's log-probs: rounding causes
far less, another model far more."""
COMPLETIONS, TOKENS = 8, 16
"""The completions on which this difference is measured, and most tokens of each."""


def check_weights(
    fleet: Fleet,
    policy: LanguageModel,
    *,
    version: int,
    model: str | None,
    most: int = COMPLETIONS,
) -> tuple[Mapping[str, Any], Context, list[int]]:
    """Raise UserError where a server's log-probs are not the policy's: it runs another model, or
    did not load all weights. Returns the row, its context, and the tokens that were drawn in it by
    one server.

    version: of the weights that the servers have loaded; model:
    their name, if they are adapters; most: completions of a request.
    """
    context, row = Context(prompt="0", prompt_ids=torch.tensor([policy.ends[0]])), {"prompt": "0"}
    causal, family = policy.causal, family_of(policy)
    if isinstance(causal, PicturedModel):
        row = {"prompt": f"{causal.family.placeholder}0", "image": causal.sample.image}
        (context,) = policy.codec.encode([row])
    sampling = {
        **sampling_of(policy, "train"),
        "ignore_eos": True,
        "stop_token_ids": [],
        "stop": [],
        "n": min(COMPLETIONS, most),
        "seed": 0,
        "max_tokens": min(TOKENS, policy.config.max_new_tokens),
    }
    drawn: dict[Server, list[Completion]] = {}

    def draw(server: Server) -> None:
        choices = server.generate(prompt_of(context, family), sampling, model=model)
        if choices is None:
            raise UserError(f"sampler: {server.url} does not know the adapters that it has loaded")
        most = {"longest": sampling["max_tokens"], "vocabulary": vocabulary_of(policy)}
        drawn[server] = [read(choice, server.url, **most, scored=True) for choice in choices]

    fleet.each(draw)
    # One pass for all servers, since a sharded policy's is a collective.
    owners, completions = zip(*((s, own) for s, of in drawn.items() for own in of), strict=True)
    turns = [turn_of(own, policy, "train", version=lambda _: version) for own in completions]
    finished = [context.with_turn(turn) for turn in turns]
    rollouts = policy.assemble([row] * len(finished), finished)
    ours = policy(rollouts, outputs=frozenset({"log_probs"})).log_probs
    assert ours is not None
    assert rollouts.sampler_log_probs is not None
    gaps = (ours - rollouts.sampler_log_probs).abs().masked_fill(~rollouts.mask, 0.0)
    for server in drawn:
        own = torch.tensor([owner is server for owner in owners], device=gaps.device)
        gap = float(gaps[own].sum() / rollouts.lengths[own].sum())
        check_gap(server, gap, policy)
    ids = [token for own in next(iter(drawn.values())) for token in own.ids]
    return row, context, ids


def check_gap(server: Server, gap: float, policy: LanguageModel) -> None:
    """Raise UserError where the server's log-probs are so many nats from the policy's that it runs
    another model."""
    if not gap <= MAX_GAP:
        raise UserError(
            f"sampler: the vLLM server at {server.url} has loaded the policy's weights, but "
            f"its log-probs differ from the policy's by {gap:.2g} nats on average: it runs "
            f"another model, or in another precision. Start it with {policy.config.model}, "
            f"and in the policy's precision (--dtype)"
        )
