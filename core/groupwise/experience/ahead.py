"""Ahead: experience whose rollouts are sampled before the update of the previous step."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from groupwise.experience.experience import Experience, Round
from groupwise.experience.step import Step
from groupwise.record import Group
from groupwise.rewards import RunState


class Ahead(Experience):
    """Samples the rollouts of a step before the update of the previous step.

    So its weights are one step older, and an engine can sample while the update runs. The rewards
    of a step are awaited after the sampling of the next one has begun. Draws and seeds are those of
    `Experience`; with refilling, sampling ahead therefore begins only when the number of refilled
    groups is known. Draws weighted by success, however, use the results of one step less. `next`
    samples nothing ahead if its argument `ahead` is False, as before an evaluation or a checkpoint,
    so that a resumed run samples with the same weights.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._flight: tuple[list[Group], Future[list[Sequence[Group]]]] | None = None
        # An engine can sample while this process computes the update. A policy that samples itself
        # cannot, since the update changes its weights: it samples before the update.
        self._thread = None
        if not self.sampler.policies_sample:
            self._thread = ThreadPoolExecutor(
                1, thread_name_prefix="ahead", initializer=lambda: _use(self.accelerator.device)
            )

    def next(self, state: RunState, *, ahead: bool = False) -> Step:
        if self.refills:
            step = super().next(state)
            if ahead:
                self._send(state.global_step)
            return step
        first, cursor = self._first_round(state), self.prompts.cursor
        if ahead:
            self._send(state.global_step)
        step = self._step(first, state)
        self.prompts_state = {**self.prompts.state_dict(), **cursor}
        return step

    def _first_round(self, state: RunState) -> Round:
        if self._flight is None:
            return super()._first_round(state)
        drawn, flight = self._flight
        with self.clock.time("sample"):
            parts = flight.result()
        self._flight = None
        return self._begun(drawn, iter(parts), state)

    @property
    def calls_at_once(self) -> bool:
        """Not where an engine should first begin to sample the next step."""
        return self._thread is None

    def _send(self, step: int) -> None:
        """Start to sample the next step's rollouts with the weights of this step."""
        drawn = self.prompts.take(self.settings.groups_per_step)
        with self.clock.time("sample"):
            self.sampler.begin(step + 1)
            self.sampler.follow(self.samples_with, step)
            if self._thread is not None:
                self._flight = drawn, self._thread.submit(lambda: [*self.sampler.draw(drawn)])
                return
            done: Future[list[Sequence[Group]]] = Future()
            done.set_result([*map(self._on_cpu, self.sampler.draw(drawn))])
            self._flight = drawn, done

    def _on_cpu(self, groups: Sequence[Group]) -> Sequence[Group]:
        """The same with facts in CPU memory: they wait for the update, which needs the device's."""
        for call in (call for group in groups for call in group.judged):
            call.rollout.move_facts()
        return groups

    def drop(self) -> None:
        """Drop rollouts that are sampled ahead, and restore the position in the prompts."""
        if self._flight is not None:
            self._flight[1].exception()  # wait: weights must not change while it samples
            self._flight = None
            self.prompts.load_state_dict(self.prompts_state)


def _use(device: torch.device) -> None:
    """Set this process's GPU in a new thread, which would use the first one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
