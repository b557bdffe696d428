"""What all rewards by a judge's server have in common."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from groupwise.rewards import SampleErrors
from groupwise_judge.server import JudgeServer, Question, Verdict
from groupwise_judge.settings import ServerSettings
from groupwise_judge.usage import Usage

LogMetric = Callable[[str, float], None] | None
LogExtra = Callable[[str, Sequence[Any]], None] | None


class ServerReward:
    """A reward whose values come from a model on a server. Its values are degrees: none of them
    means right."""

    judges = False

    def __init__(self, settings: ServerSettings) -> None:
        self.server = JudgeServer(settings)

    def load(self) -> None:
        """Opens the cache, and checks that the server can be reached and takes the key."""
        self.server.load()

    def close(self) -> None:
        """Closes the cache."""
        self.server.close()

    async def ask(
        self, questions: Sequence[Question], completions: int, log_metric: LogMetric
    ) -> list[Verdict]:
        """The verdicts on a batch of so many completions; logs what they cost."""
        usage, settings = Usage(), self.server.settings
        try:
            return await self.server.verdicts(questions, usage)
        finally:
            usage.log(
                log_metric,
                completions,
                input_price=settings.input_price,
                output_price=settings.output_price,
            )


def checked(values: Sequence[float | None], failures: Mapping[int, str]) -> list[float | None]:
    """The values of a batch; those in `failures` become failed samples, whatever `on_error` is:
    raises SampleErrors with NaN for them."""
    if not failures:
        return list(values)
    raise SampleErrors(
        [math.nan if row in failures else value for row, value in enumerate(values)], failures
    )
