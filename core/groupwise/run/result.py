"""RunResult: what `train` returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from groupwise.errors import UserError
from groupwise.evaluation import Alarm
from groupwise.policy import Policy


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run: metrics on held-out prompts before and after, the folder, the policies.

    accuracy: the reward whose share of right completions is the accuracy, None if there is none;
    policies: by label, `policy` if there is only one; alarms: by watched reward, those raised at
    the last evaluation.
    """

    before: Mapping[str, float]
    after: Mapping[str, float]
    steps: int
    seconds: float
    folder: Path
    policies: Mapping[str, Policy]
    accuracy: str | None = None
    interrupted: bool = False
    alarms: Mapping[str, Alarm] = field(default_factory=dict)

    @property
    def policy(self) -> Policy:
        """The only policy of the run. Raises UserError if there are several: see `policies`."""
        if len(self.policies) > 1:
            names = ", ".join(f"policies[{label!r}]" for label in self.policies)
            raise UserError(f"this run has several policies: {names}")
        (policy,) = self.policies.values()
        return policy
