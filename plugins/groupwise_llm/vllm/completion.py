"""Completion: what a server drew, read from its answer and looked at."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from groupwise.errors import UserError

ENDED, CUT = "stop", "length"
"""Reasons to end: an end token or a stop string; a limit."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """ids: end token and stop string included; log_probs: of each id, or none were asked for;
    tags: those of all weights that drew any of it."""

    ids: list[int]
    log_probs: list[float]
    truncated: bool
    tags: frozenset[str]


def read(choice: Any, url: str, *, longest: int, vocabulary: int, scored: bool) -> Completion:
    """The completion that a choice of an answer states. Raises UserError where it states none.

    longest: the tokens that were allowed; vocabulary: as many as the policy knows; scored: whether
    log-probs were asked for.
    """
    where = f"sampler: the vLLM server at {url}"
    try:
        ids = [int(token) for token in choice["token_ids"]]
        reason = choice["finish_reason"]
        spans = choice["weight_versions"]
        tags = frozenset(str(span["version"]) for span in spans or ())
        scores = choice["logprobs"]["content"] if scored else []
        scored_ids = [score["token_id"] for score in scores]
        log_probs = [float(score["logprob"]) for score in scores]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where} {_missing(choice, scored)}") from error
    if not tags:
        raise UserError(f"{where} does not say which weights drew a completion; it needs vLLM 0.32")
    if not 0 < len(ids) <= longest:
        raise UserError(
            f"{where} drew {len(ids)} tokens, and 1 to {longest} were asked for "
            f"(policy.max_new_tokens)"
        )
    if max(ids) >= vocabulary or min(ids) < 0:
        raise UserError(
            f"{where} drew token {max(ids)}, and the policy's model knows {vocabulary}: was the "
            f"server started with another model?"
        )
    if reason not in (ENDED, CUT) or (reason == CUT and len(ids) < longest):
        raise UserError(
            f"{where} ended a completion after {len(ids)} of {longest} tokens, with neither an end "
            f"token nor a stop string (reason: {reason})"
        )
    if scored and scored_ids != ids:
        raise UserError(f"{where} states log-probs of {len(scores)} tokens, and drew {len(ids)}")
    return Completion(
        ids=ids,
        log_probs=log_probs,
        truncated=reason == CUT,
        tags=tags,
    )


def _missing(choice: Any, scored: bool) -> str:
    """What an answer lacks."""
    if not isinstance(choice, Mapping):
        return "answers with completions of another form; which version of vLLM is it?"
    if scored and not choice.get("logprobs"):
        return (
            "states no log-probs of what it drew, and training corrects by them; start it with "
            "--logprobs-mode processed_logprobs, and without --max-logprobs 0"
        )
    lacks = [n for n in ("token_ids", "finish_reason", "weight_versions") if n not in choice]
    problem = f"without {', '.join(lacks)}" if lacks else "with completions of another form"
    return f"answers {problem}; it needs vLLM 0.32"
