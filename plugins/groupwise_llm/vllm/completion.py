"""Completion: one sampled completion, read from a server's answer and checked."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from groupwise.kit.errors import UserError
from groupwise.sampler import Purpose
from groupwise_llm.codec.contexts import Ended, Turn
from groupwise_llm.policy import LanguageModel

ENDED, CUT = "stop", "length"
"""vLLM's finish reasons: an end token or stop string; the limit of tokens."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """ids: including end token and stop string; log_probs: of each id, empty if not requested;
    spans: the tags of the weights that sampled the ids, and how many each, in order; failure: why
    it was given up."""

    ids: list[int]
    log_probs: list[float]
    truncated: bool
    spans: list[tuple[str, int]]
    failure: str | None = None

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.spans}


def read(
    choice: Any,
    url: str,
    *,
    longest: int,
    vocabulary: int,
    scored: bool,
    model: str | None = None,
) -> Completion:
    """The completion in one choice of an answer. Raises UserError where it is incomplete or wrong.

    longest: most tokens allowed; vocabulary: size of the policy's; scored: whether log-probs were
    requested; model: the adapters that it was drawn with, whatever the server has loaded since.
    """
    where = f"sampler: the vLLM server at {url}"
    try:
        ids = [int(token) for token in choice["token_ids"]]
        reason = choice["finish_reason"]
        stated = choice["weight_versions"] or ()
        spans = [(str(own["version"]), int(own["start"]), int(own["end"])) for own in stated]
        scores = choice["logprobs"]["content"] if scored else []
        scored_ids = [score["token_id"] for score in scores]
        log_probs = [float(score["logprob"]) for score in scores]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where} {_missing(choice, scored)}") from error
    if not spans:
        raise UserError(f"{where} does not state a completion's weight version; vLLM 0.32 does")
    if not 0 < len(ids) <= longest:
        raise UserError(
            f"{where} sampled {len(ids)} tokens, expected 1 to {longest} (policy.max_new_tokens)"
        )
    if max(ids) >= vocabulary or min(ids) < 0:
        raise UserError(
            f"{where} sampled token {max(ids)}, and the policy's model has {vocabulary} tokens: "
            f"was the server started with another model?"
        )
    if reason not in (ENDED, CUT) or (reason == CUT and len(ids) < longest):
        raise UserError(
            f"{where} ended a completion after {len(ids)} of {longest} tokens, with neither an end "
            f"token nor a stop string (reason: {reason})"
        )
    starts, ends = [start for _, start, _ in spans], [end for *_, end in spans]
    if [*starts, len(ids)] != [0, *ends]:
        raise UserError(f"{where} sampled {len(ids)} tokens, and states the weights of others")
    if scored and scored_ids != ids:
        raise UserError(f"{where} sampled {len(ids)} tokens and states {len(scores)} log-probs")
    drawn = [(tag, end - start) for tag, start, end in spans]
    return Completion(
        ids=ids,
        log_probs=log_probs,
        truncated=reason == CUT,
        spans=drawn if model is None else [(model, len(ids))],
    )


def vocabulary_of(policy: LanguageModel) -> int:
    """How many tokens its model has."""
    embeddings = policy.model.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    return embeddings.num_embeddings


def _missing(choice: Any, scored: bool) -> str:
    """What is missing in an answer, and what to set."""
    if not isinstance(choice, Mapping):
        return "answers in an unknown format; which version of vLLM is it?"
    if scored and not choice.get("logprobs"):
        return (
            "states no log-probs of its tokens, which training needs for importance sampling; "
            "start it with --logprobs-mode processed_logprobs, and without --max-logprobs 0"
        )
    missing = [n for n in ("token_ids", "finish_reason", "weight_versions") if n not in choice]
    problem = f"without {', '.join(missing)}" if missing else "in an unknown format"
    return f"answers {problem}; it needs vLLM 0.32"


def turn_of(
    completion: Completion,
    policy: LanguageModel,
    purpose: Purpose,
    *,
    version: Callable[[str], int],
) -> Turn:
    """The turn that the policy's own `draw` would return; version: of the weights of a tag."""
    training, log_probs = purpose == "train", completion.log_probs
    own = policy.config
    whole = training or own.for_evaluation() == own
    return Turn(
        ids=tuple(completion.ids),
        text=policy.codec.completions.text(completion.ids),
        ended=_ended(completion),
        log_probs=tuple(log_probs) if training else (),
        sampled_mass=1.0 if whole else math.nan,
        # An unbiased estimate, since an engine returns no distributions: E[-log p] is the entropy.
        entropy=-float(torch.tensor(log_probs or [0.0]).mean()) if training else math.nan,
        spans=tuple((version(tag), count) for tag, count in completion.spans),
        failure=completion.failure,
    )


def _ended(completion: Completion) -> Ended:
    if completion.failure is not None:
        return "failed"
    return "length" if completion.truncated else "stop"
