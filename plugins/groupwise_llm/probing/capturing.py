"""Capturing: whether tokens may be decoded by CUDA graphs, and be compiled for them, tried with a
few of them."""

from dataclasses import replace

import torch
from transformers import LogitsProcessorList

from groupwise_llm.decoding.way import Way
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.model.copies import Numerics
from groupwise_llm.probing import ways
from groupwise_llm.probing.probes import ROUNDED, Ability
from groupwise_llm.probing.trial import TOLERANCE, Trial, short


@torch.no_grad()
def with_graphs(ability: Ability, model: CausalModel, filters: LogitsProcessorList) -> Ability:
    """The ability to decode by CUDA graphs, if the model has it; else a note says why not.

    A model has it if its code for a token never makes the host wait, and its log-probs are right.
    filters: all those that the run may draw with. The model is on a GPU.
    """
    way, trial = ability.decoding, Trial.of(model)
    if not (way.cached and way.padded):
        reason: str | None = f"completions are sampled {ways.description(way)}"
    else:
        way = replace(way, graphs=True)
        # float32 first, where it can be had, since rounding could hide errors.
        exact = replace(ability.numerics, precision="float32", head=None)
        tries = [exact] if ability.numerics == exact else [exact, ability.numerics]
        reasons = (_reason_against(trial, own, way, filters) for own in tries)
        reason = next(filter(None, reasons), None)
    if reason is None:
        return replace(ability, decoding=way)
    return replace(ability, notes=(*ability.notes, f"decoding without CUDA graphs: {reason}"))


@torch.no_grad()
def with_fusion(ability: Ability, model: CausalModel, filters: LogitsProcessorList) -> Ability:
    """The ability to compile norms and rotary embeddings of captured tokens, if the model has it;
    else a note says why not. Without graphs it stays as it is.

    A model has it if its log-probs are right then. filters: as of `with_graphs`.
    """
    if not ability.decoding.graphs:
        return ability
    way = replace(ability.decoding, fused=True)
    # In the run's own precision alone: code is compiled for each. Compiling may make the host wait.
    reason = _reason_against(Trial.of(model), ability.numerics, way, filters, strict=False)
    if reason is None:
        return replace(ability, decoding=way)
    return replace(ability, notes=(*ability.notes, f"captured tokens are not compiled: {reason}"))


def _reason_against(
    trial: Trial,
    numerics: Numerics,
    way: Way,
    filters: LogitsProcessorList,
    *,
    strict: bool = True,
) -> str | None:
    tolerance = ROUNDED if trial.model.rounds(numerics.precision) else TOLERANCE[1]
    try:
        gap = ways.gap(trial, numerics, way, filters=filters, strict=strict)
    except Exception as error:
        trial.model.recover()
        # torch's compiler wraps what its backend raised.
        return short(getattr(error, "inner_exception", error))
    return None if gap <= tolerance else f"log-probs would be off by {gap:.2g}"
