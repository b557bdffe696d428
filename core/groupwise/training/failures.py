"""Failures: why completions of a run's policies failed, by cause, for warnings and messages."""

from collections.abc import Sequence

from groupwise.config.learners import SOLE
from groupwise.scoring.outcome import excerpt
from groupwise.training.calls import Episode, Rows


def by_cause(rows: Rows, lost: Sequence[Episode]) -> dict[str, str]:
    """The first failed completion of each policy in one line, with its prompt; causes are `/LABEL`,
    `/` for the only policy, and for episodes that failed before any completion.

    rows: the calls of each policy's rollouts; lost: these episodes.
    """
    described = {}
    if lost:
        prompt = excerpt(lost[0].draw.row.get("prompt"))
        described["/"] = f"an episode failed: {lost[0].failure}, at the prompt {prompt}"
    for label, each in rows.items():
        first = next((calls[0] for calls in each if calls[0].failure is not None), None)
        if first is not None:
            which = "a completion" if label == SOLE else f"a completion of {label!r}"
            prompt = excerpt(first.episode.draw.row.get("prompt"))
            # A slash, since a reward may have the name of a policy.
            cause = "/" if label == SOLE else f"/{label}"
            described[cause] = f"{which} failed: {first.failure}, at the prompt {prompt}"
    return described
