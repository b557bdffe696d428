"""Ways: the fastest way of decoding whose log-probs are right for a model."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from groupwise.errors import UserError
from groupwise_llm.decoding import drawing, sampling
from groupwise_llm.decoding.stepping import Way
from groupwise_llm.model.copies import Numerics
from groupwise_llm.probing.trial import STEPS, Trial, gap_of, short, truth

WAYS = (
    Way(),
    Way(shared=False),
    Way(padded=False),
    Way(shared=False, padded=False),
    Way(shared=False, padded=False, cached=False),
)
"""From the fastest to the safest."""


@torch.no_grad()
def fastest(trial: Trial, numerics: Numerics, tolerance: float, *, share: bool) -> tuple[Way, str]:
    """The fastest way of decoding whose log-probs are right, and why faster ones are not.

    share: whether ways that share prompts are tried. Raises UserError if no way is right.
    """
    reason = ""
    ways = [way for way in WAYS if share or not way.shared]
    for way in ways:
        if way.cached and trial.model.cache_argument is None:
            reason = reason or "this model takes none of transformers' caches"
            continue
        try:
            off = gap(trial, numerics, way)
        except Exception as error:
            trial.model.recover()
            reason = reason or f"a pass with this model's cache fails ({short(error)})"
            continue
        if off <= tolerance:
            return way, "" if way == ways[0] else reason
        reason = reason or f"log-probs are off by {off:.2g} otherwise"
    hint = "; try policy.lora.merge: false" if trial.model.merge else ""
    raise UserError(
        f"completions of this model cannot be sampled with the log-probs that it is trained on: "
        f"{reason}{hint}"
    )


@torch.no_grad()
def gap(trial: Trial, numerics: Numerics, way: Way) -> float:
    """Largest error in nats of the log-probs of tokens decoded this way; one row ends midway.

    Where prompts are padded, a single prompt is tried as well: it is not padded, and so runs
    without a mask.
    """
    batches = [trial.prompts, trial.prompts[:1]] if way.padded and way.cached else [trial.prompts]
    return max(_gap_of_sampled(trial, numerics, way, prompts) for prompts in batches)


def _gap_of_sampled(trial: Trial, numerics: Numerics, way: Way, prompts: Sequence[Tensor]) -> float:
    def stop(ids: Tensor, _: Any) -> Tensor:
        midway = ids.shape[1] == STEPS // 2
        return (torch.arange(len(ids), device=ids.device) == 0) & midway

    decoder = sampling.Decoder(
        model=trial.model,
        numerics=numerics,
        way=way,
        filters=LogitsProcessorList(),
        ends=torch.empty(0, dtype=torch.int64, device=trial.model.device),
        stop=stop,
        temperature=1.0,
        sampling_temperature=1.0,
        max_new_tokens=STEPS,
        cache_tokens=2**30,
        check_every=1,  # also on a GPU: the row that ends must leave the cache
    )
    # Of each three rows two continue, which shows whether dropping one mixes up the others.
    draws = drawing.uniforms(range(3 * len(prompts)), STEPS)
    sampled = sampling.decode(decoder, prompts, 3, draws)
    rows = [prompt for prompt in prompts for _ in range(3)]
    right = truth(trial.model, numerics, rows, sampled.ids, sampled.mask)
    return gap_of(sampled.log_probs[sampled.mask], right)


def description(way: Way) -> str:
    """How completions are decoded, in words for a note."""
    if not way.cached:
        return "without a cache, which is slow"
    parts = [] if way.shared else ["without sharing prompts"]
    return " and ".join([*parts, *([] if way.padded else ["by prompts of equal length"])])
