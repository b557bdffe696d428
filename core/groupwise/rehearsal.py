"""Rehearsal: a policy without weights, whose completions are placeholders.

`groupwise check` plays episodes with it: it shows what the policy reads, and calls the rewards.
"""

from typing import Any

from groupwise.kit.errors import UserError
from groupwise.policy import Policy
from groupwise.rollouts import LogProbs


class Rehearsal(Policy):
    """What `Policy.rehearsal` returns: its `sample` (of a `TurnSampler` also its `draw`) writes
    placeholders.

    says: what it writes in place of its placeholder, if set. blank: what that is, in words, where
        it is the empty text.
    transcripts: what was read and written in each rollout, as text, for the person who checks a
        configuration. fault: the first error by which the policy would refuse what it reads.
    """

    greedy = False
    blank = "an empty text"

    def __init__(self) -> None:
        super().__init__()
        self.says: str | None = None
        self.transcripts: list[str] = []
        self.fault: UserError | None = None

    def forward(self, *args: Any, **kwargs: Any) -> LogProbs:
        raise NotImplementedError("a rehearsal has no weights")
