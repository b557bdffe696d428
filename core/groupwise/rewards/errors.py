"""Errors of rewards: on some samples, or one that ends the run."""

from collections.abc import Mapping, Sequence

from groupwise.kit.errors import UserError


class SampleErrors(Exception):  # noqa: N818
    """Raised by a reward that failed on some samples and scored the others.

    values: a reward for each sample, None at the failed ones, or NaN at those that never stop a
    run, whatever `on_error` is; errors: sample index -> reason.
    """

    def __init__(self, values: Sequence[float | None], errors: Mapping[int, str]) -> None:
        super().__init__(f"{len(errors)} of {len(values)} samples failed")
        self.values, self.errors = values, errors


class MissingColumnError(UserError):
    """A reward needs a column that the dataset does not have.

    option: that of the reward which names the column; "" if it is an argument of the function.
    """

    def __init__(self, message: str, *, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class RewardError(UserError):
    """A reward failed, and its `on_error` is "stop"."""
