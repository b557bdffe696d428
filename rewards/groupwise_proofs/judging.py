"""Judging: what both rewards do with a batch: each text once, several at the same time."""

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import nan
from typing import Any, Generic, TypeVar

from groupwise.rewards import SampleErrors, seconds_left
from groupwise_messages.completion import outside_thinking
from groupwise_messages.fences import blocks
from groupwise_proofs.theorem import FormatError
from groupwise_sandbox.process import SandboxError

SHARE = 0.9
"""The part of the time left to a call in which completions are begun."""
_KEPT = 10_000
"""Verdicts that are kept: groups often have the same text twice."""
Case = TypeVar("Case", bound=Hashable)
Left = Callable[[], float]
"""The seconds that the reward's call has left."""


def text_in(completion: str) -> str:
    """The last fenced block outside thinking; without any fence, all that is there."""
    text = outside_thinking(completion)
    found = blocks(text)
    return found[-1][1] if found else text


class Judging(Generic[Case]):
    """Judges cases: a row and a text each."""

    def __init__(self, complaint: Callable[[Case, Left], str | None], parallel: int) -> None:
        """complaint: what is wrong, or None; may raise FormatError, for a row, and SandboxError."""
        self._complaint, self._parallel = complaint, parallel
        self._known = dict[Case, str | None]()

    def values(
        self, cases: Sequence[Case], log: Callable[[Sequence[str | None]], Any] | None
    ) -> list[float | None]:
        """1.0 where there is no complaint, else 0.0; log: receives the complaints.

        Raises SampleErrors for what could not be judged.
        """
        until = time.monotonic() + SHARE * seconds_left()
        with ThreadPoolExecutor(self._parallel) as pool:
            tried = {each: pool.submit(self._judged, each, until) for each in dict.fromkeys(cases)}
        values, complaints, reasons = list[float](), list[str | None](), dict[int, str]()
        for index, each in enumerate(cases):
            complaint: str | None = None
            try:
                complaint = tried[each].result()
                values.append(float(complaint is None))
            except (SandboxError, FormatError) as error:  # the machine's fault, or the row's
                values.append(nan)
                reasons[index] = f"could not be judged: {error}"
            complaints.append(complaint)
        if log is not None:
            log(complaints)
        if reasons:
            raise SampleErrors(values, reasons)
        return list(values)

    def _judged(self, case: Case, until: float) -> str | None:
        """Raises FormatError and SandboxError."""
        if case in self._known:
            return self._known[case]
        if time.monotonic() > until:
            raise SandboxError("the call's time was up before all completions were begun")
        complaint = self._complaint(case, lambda: until - time.monotonic())
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[case] = complaint
        return complaint
