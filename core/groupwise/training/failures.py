"""Failures: why completions of a run's policies failed, by cause, for warnings and messages."""

from collections.abc import Mapping, Sequence

from groupwise.rollouts import Rollouts
from groupwise.scoring.outcome import excerpt
from groupwise.training.calls import Episode


def of_policies(sampled: Mapping[str, Rollouts]) -> dict[str, str]:
    """By policy, its first failed completion in one line, with its prompt; causes are `/LABEL`.

    sampled: the rollouts of each policy by label, "" for the only one, with prompts from the
    dataset.
    """
    described = {}
    for label, rollouts in sampled.items():
        for row, reason in enumerate(rollouts.failures or ()):
            if reason is not None:
                which = f"a completion of {label!r}" if label else "a completion"
                prompt = excerpt(rollouts.prompts[row].get("prompt"))
                # A slash, since a reward may have the name of a policy.
                described[f"/{label}"] = f"{which} failed: {reason}, at the prompt {prompt}"
                break
    return described


def of_episodes(lost: Sequence[Episode]) -> dict[str, str]:
    """The same of episodes that failed before any completion; the cause is `/`."""
    if not lost:
        return {}
    prompt = excerpt(lost[0].draw.row.get("prompt"))
    return {"/": f"an episode failed: {lost[0].failure}, at the prompt {prompt}"}
