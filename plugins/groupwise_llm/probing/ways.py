"""Ways: the fastest way of decoding whose log-probs are right for a model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from groupwise.kit.errors import UserError
from groupwise_llm.decoding import batches, drawing
from groupwise_llm.decoding.decoder import Decoder
from groupwise_llm.decoding.prefixes import PrefixCache
from groupwise_llm.decoding.way import Way
from groupwise_llm.decoding.work import Work
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
def gap(trial: Trial, numerics: Numerics, way: Way, **options: Any) -> float:
    """Largest error in nats of the log-probs of tokens decoded this way; one row ends midway.

    Where prompts are padded, a single prompt is tried as well: it is not padded, and so runs
    without a mask. options: of the `Decoder`.
    """
    batches = [trial.prompts, trial.prompts[:1]] if way.padded and way.cached else [trial.prompts]
    decoder = _decoder(trial, numerics, way, **options)
    return max(_gap_of_sampled(trial, decoder, prompts) for prompts in batches)


def _gap_of_sampled(trial: Trial, decoder: Decoder, prompts: Sequence[Tensor]) -> float:
    # Of each three rows two continue, which shows whether dropping one mixes up the others.
    owners = [context for context in range(len(prompts)) for _ in range(3)]
    work = _work(prompts, owners, [STEPS // 2, *[STEPS] * (len(owners) - 1)])
    return _decoded(trial, decoder, work)[0]


@torch.no_grad()
def continues(trial: Trial, numerics: Numerics, way: Way, tolerance: float) -> bool:
    """Whether a KV cache may go on after an observation: log-probs are then right, too.

    Two rows go on after observations of different lengths, beside one that begins.
    """
    prefixes = PrefixCache(2**30)
    decoder = _decoder(trial, numerics, way, prefixes=prefixes)
    try:
        first = _work(trial.prompts, [0, 1], [STEPS // 2, STEPS - 1])
        _, turns = _decoded(trial, decoder, first)
        drawn = [torch.cat(pair) for pair in zip(trial.prompts, turns, strict=True)]
        if len(prefixes) < len(drawn):
            return False
        later = [torch.cat([drawn[0], *trial.prompts]), torch.cat([drawn[1], drawn[0][:1]])]
        contexts, lengths = [*later, trial.prompts[0]], [*map(len, drawn), 0]
        work = replace(_work(contexts, [0, 1, 1, 2], [STEPS] * 4), drawn=lengths)
        return _decoded(trial, decoder, work)[0] <= tolerance
    except Exception:
        trial.model.recover()
        return False


def _decoder(trial: Trial, numerics: Numerics, way: Way, **options: Any) -> Decoder:
    return Decoder(
        model=trial.model,
        numerics=numerics,
        way=way,
        ends=torch.empty(0, dtype=torch.int64, device=trial.model.device),
        temperature=1.0,
        sampling_temperature=1.0,
        cache_tokens=2**30,
        check_every=1,  # also on a GPU: a row that ends must leave the cache
        stop=None,
        **{"filters": LogitsProcessorList(), **options},
    )


def _work(contexts: Sequence[Tensor], owners: Sequence[int], limits: Sequence[int]) -> Work:
    draws = drawing.uniforms(range(len(owners)), [max(limits)] * len(owners))
    return Work(contexts=contexts, owners=owners, limits=limits, draws=draws)


def _decoded(trial: Trial, decoder: Decoder, work: Work) -> tuple[float, list[Tensor]]:
    """The largest error in nats of the log-probs of the tokens drawn; the tokens of each row."""
    sampled = batches.decode(decoder, work)
    rows = [work.contexts[owner] for owner in work.owners]
    right = truth(trial.model, decoder.numerics, rows, sampled.ids, sampled.mask)
    turns = [ids[mask].cpu() for ids, mask in zip(sampled.ids, sampled.mask, strict=True)]
    return gap_of(sampled.log_probs[sampled.mask], right), turns


def description(way: Way) -> str:
    """How completions are decoded, in words for a note."""
    if not way.cached:
        return "without a cache, which is slow"
    parts = [] if way.shared else ["without sharing prompts"]
    return " and ".join([*parts, *([] if way.padded else ["by prompts of equal length"])])
