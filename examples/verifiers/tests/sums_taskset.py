"""A taskset of verifiers: sums, with a reward and a metric."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

__all__ = ["Sums"]


class Sum(vf.TaskData):
    answer: str


class SumTask(vf.Task[Sum, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, trace: Any) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.metric
    async def length(self, trace: Any) -> float:
        return float(len(trace.last_reply))


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[SumTask]:
        number = 0
        while True:
            yield SumTask(Sum(prompt=f"{number}+1=", answer=str(number + 1)), self.config.task)
            number += 1
