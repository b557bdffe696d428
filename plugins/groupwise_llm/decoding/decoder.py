"""Decoder: everything about decoding that is the same for all turns."""

from dataclasses import dataclass

from torch import Tensor
from transformers import LogitsProcessorList, StopStringCriteria

from groupwise_llm.decoding.prefixes import PrefixCache
from groupwise_llm.decoding.way import Way
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.model.copies import Numerics


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A model, the way in which it decodes, and how tokens are drawn.

    temperature: of the log-probs; sampling_temperature: of the distribution that is drawn from.
    filters: logits processors (top_k and the like) for drawing; log-probs are without them.
    ends: ids of end tokens; stop: tells which rows end with a stop string.
    cache_tokens: most tokens of contexts and turns in the cache at once.
    check_every: tokens between two checks for ended rows.
    prefixes: keeps what was computed for contexts that may go on; None if nothing is kept.
    joins: whether rows that wait may join a batch, so that the caches of both become one.
    strict: raise where a token that is to be captured makes the host wait, as probes require.
    """

    model: CausalModel
    numerics: Numerics
    way: Way
    filters: LogitsProcessorList
    ends: Tensor
    stop: StopStringCriteria | None
    temperature: float
    sampling_temperature: float
    cache_tokens: int
    check_every: int
    prefixes: PrefixCache | None = None
    joins: bool = False
    strict: bool = False
