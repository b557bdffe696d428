"""References: completions of a run's first evaluation, for rewards that compare."""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise import attachments
from groupwise.prompts.identity import identity
from groupwise.rollouts import Rollouts

Key = tuple[str, int, str]


class References:
    """The completions of the first evaluation, before training, with which relative rewards compare
    those of every evaluation.

    A key is a learner, a draw and its prompt, since another set of held-out prompts may have the
    same numbers. Greedy completions and failed ones are not kept.
    """

    def __init__(self) -> None:
        self._completions: dict[Key, list[Any]] = {}

    def keep(self, rollouts: Rollouts, learner: str) -> None:
        """Keep the completions of whole groups, while the first evaluation goes on."""
        keys, failed = _keys(rollouts, learner), rollouts.failed.tolist()
        self._completions |= {key: [] for key in keys}
        for key, completion, fails in zip(keys, rollouts.completions, failed, strict=True):
            if not fails:
                self._completions[key].append(completion)

    def remember(self, samples: Sequence[Mapping[str, Any]]) -> None:
        """Set them to those among the samples of the first evaluation."""
        self._completions = {}
        for sample in samples:
            if not (sample["greedy"] or sample.get("failed") or sample.get("refused")):
                key = (sample.get("learner", ""), sample["draw"], _words(sample["prompt"]))
                self._completions.setdefault(key, []).append(sample["completion"])

    def of(self, rollouts: Rollouts, learner: str) -> list[list[Any]]:
        """For each rollout, those of its prompt; none if there was none."""
        return [self._completions.get(key, []) for key in _keys(rollouts, learner)]


def _keys(rollouts: Rollouts, learner: str) -> list[Key]:
    prompts = [_words(row["prompt"]) for row in rollouts.prompts]
    draws = rollouts.groups.tolist()
    return [(learner, draw, prompt) for draw, prompt in zip(draws, prompts, strict=True)]


def _words(prompt: Any) -> str:
    """The words of a prompt: in samples that were read, its attachments are other files."""
    return identity(attachments.replaced(prompt, lambda _: None))
