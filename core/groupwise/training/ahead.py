"""Ahead: experience whose rollouts are sampled before the update of the previous step."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from groupwise.prompts.draws import Draw
from groupwise.rewards import RunState
from groupwise.training.episodes import Episodes
from groupwise.training.experience import Experience, Round, Scored


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
        self._flight: tuple[list[Draw], Future[list[Episodes]]] | None = None
        # An engine can sample while this process computes the update. A policy that samples itself
        # cannot, since the update changes its weights: it samples before the update.
        self._thread = None
        if not self.sampler.policies_sample:
            self._thread = ThreadPoolExecutor(
                1, thread_name_prefix="ahead", initializer=lambda: _use(self.accelerator.device)
            )

    def next(self, state: RunState, *, ahead: bool = False) -> Scored:
        if self.refills:
            experience = super().next(state)
            if ahead:
                self._send(state.global_step)
            return experience
        first, cursor = self._first_round(state), self.prompts.cursor
        if ahead:
            self._send(state.global_step)
        experience = self._scored(first, state)
        self.prompts_state = {**self.prompts.state_dict(), **cursor}
        return experience

    def _first_round(self, state: RunState) -> Round:
        if self._flight is None:
            return super()._first_round(state)
        draws, flight = self._flight
        with self.clock.time("sample"):
            batches = flight.result()
        self._flight = None
        return self._begun(draws, iter(batches), state)

    @property
    def calls_at_once(self) -> bool:
        """Not where an engine should first begin to sample the next step."""
        return self._thread is None

    def _send(self, step: int) -> None:
        """Start to sample the next step's rollouts with the weights of this step."""
        draws = self.prompts.take(self.settings.groups_per_step)
        with self.clock.time("sample"):
            self.sampler.begin(step + 1)
            self.sampler.follow(self.samples_with, step)
            if self._thread is not None:
                self._flight = draws, self._thread.submit(lambda: [*self.sampler.draw(draws)])
                return
            done: Future[list[Episodes]] = Future()
            # They wait for the update, which needs the device's memory.
            done.set_result([*map(_on_cpu, self.sampler.draw(draws))])
            self._flight = draws, done

    def drop(self) -> None:
        """Drop rollouts that are sampled ahead, and restore the position in the prompts."""
        if self._flight is not None:
            self._flight[1].exception()  # wait: weights must not change while it samples
            self._flight = None
            self.prompts.load_state_dict(self.prompts_state)


def _on_cpu(episodes: Episodes) -> Episodes:
    return replace(episodes, judged=episodes.judged.with_facts_on_cpu())


def _use(device: torch.device) -> None:
    """Set this process's GPU in a new thread, which would use the first one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
