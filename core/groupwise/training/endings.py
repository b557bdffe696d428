"""Endings: why episodes ended, where neither their last player nor a failure ended them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from groupwise.environment import Columns
from groupwise.errors import UserError
from groupwise.rollouts import Rollouts
from groupwise.training.calls import Call

ENDED = "ended"
"""The column of `Environment.play` with the reason why an episode ended."""
OF_EXCEPTIONS = ("environment", "refused")
"""The words for exceptions that `play` raises; its last completion may have been cut off."""


def word_of(call: Call, columns: Columns) -> str | None:
    """The environment's word for why the episode of a judged call ended; None for its player's own
    end. Raises UserError if it is not a word, or "failed"."""
    word = columns.get(ENDED, call.episode.ended)
    if word is None or word == "stop":
        return None
    if not isinstance(word, str) or not word or word == "failed":
        advice = "; raise an exception to fail the episode" if word == "failed" else ""
        raise UserError(
            f"environment: `play` returned {word!r} as why the episode ended (`{ENDED}`), expected "
            f"a word like 'turns' or 'tool'{advice}"
        )
    return word


def with_endings(
    rollouts: Rollouts, rows: Sequence[Sequence[Call]], words: Mapping[Call, str | None]
) -> Rollouts:
    """The same with why episodes ended.

    "length", and a context without room, truncate a rollout. Any other word of `play` says that its
    last completion was not cut off, though it may have reached a limit that `play` set.

    rows: the calls of each rollout; words: by judged call, `word_of`.
    """
    endings = [next(filter(None, (words.get(call) for call in own)), None) for own in rows]
    cut = rollouts.truncated.tolist()
    for row, (word, calls) in enumerate(zip(endings, rows, strict=True)):
        if word == "length" or calls[-1].is_cut:
            cut[row], endings[row] = True, None
        elif word not in (None, *OF_EXCEPTIONS):
            cut[row] = False
    if cut != rollouts.truncated.tolist():
        truncated = torch.tensor(cut, device=rollouts.truncated.device)
        rollouts = replace(rollouts, truncated=truncated)
    return replace(rollouts, endings=endings) if any(endings) else rollouts
