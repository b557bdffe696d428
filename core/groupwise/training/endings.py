"""Endings: the words for why episodes ended, where neither their last player nor a failure did."""

from groupwise.environment import ENDED, Columns
from groupwise.errors import UserError
from groupwise.record import Call


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
