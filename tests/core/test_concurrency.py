"""Which calls of one reward object run at the same time, and which never do."""

import asyncio
import contextlib
import threading
import time

import pytest

from groupwise import train
from groupwise.callback import Callback

HELD = 0.02
"""Seconds that a call takes, so that others would run meanwhile if they could."""


SETTINGS = {
    "groups_per_step": 4,
    "group_size": 2,
    "sample_batch": 2,
    "steps": 3,
    "checkpoint_every": 1,
}


class Watched:
    """Records which pairs of calls of this object ran at the same time, and in which threads.

    A call is named by its purpose and the step; other methods by their names.
    """

    def __init__(self):
        self.running, self.pairs, self.threads = [], set(), {}
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def noted(self, what, step=None):
        with self.lock:
            self.pairs |= {frozenset({(what, step), other}) for other in self.running}
            if (what, step) in self.running:
                self.pairs.add(frozenset({(what, step)}))
            self.running.append((what, step))
            self.threads.setdefault(what, set()).add(threading.current_thread().name)
        try:
            yield
        finally:
            with self.lock:
                self.running.remove((what, step))

    def load(self):
        with self.noted("load"):
            time.sleep(HELD)

    def close(self):
        with self.noted("close"):
            time.sleep(HELD)

    def refresh(self, rollouts, scores):
        with self.noted("refresh"):
            time.sleep(HELD)

    def state_dict(self):
        with self.noted("state_dict"):
            return {}

    def load_state_dict(self, state):
        """Nothing to load."""


class Plain(Watched):
    def __call__(self, completions, purpose, trainer_state):
        with self.noted(purpose, trainer_state.global_step):
            time.sleep(HELD)
            return [float(len(text)) for text in completions]


class Async(Watched):
    async def __call__(self, completions, purpose, trainer_state):
        with self.noted(purpose, trainer_state.global_step):
            await asyncio.sleep(HELD)
            return [float(len(text)) for text in completions]


class Idle(Callback):
    """Notes its own calls in the same record."""

    def __init__(self, reward):
        self.reward = reward

    def on_step(self, step, metrics):
        with self.reward.noted("callback"):
            time.sleep(HELD)


def run(lab, folder, reward, **options):
    train(
        policy=lab.Tabular(),
        prompts={"name": lab.rows(), "held_out": 0.5},
        rewards=[reward],
        train={**SETTINGS, **options},
        evaluation={"prompts": 3, "samples": 2, "every": 2},
        callbacks=[Idle(reward)],
        output=folder,
        quiet=True,
    )


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.slow(after=1)
def test_a_plain_reward_has_one_call_at_a_time_in_the_main_thread(lab, tmp_path, ahead):
    reward = Plain()
    run(lab, tmp_path / "run", reward, ahead=ahead)
    assert not reward.pairs
    names = {"load", "close", "refresh", "state_dict", "train", "evaluate", "greedy", "callback"}
    assert reward.threads == {name: {"MainThread"} for name in names}


@pytest.mark.parametrize("ahead", [0, 1])
def test_calls_of_an_async_reward_overlap_within_a_step_or_an_evaluation_only(lab, tmp_path, ahead):
    reward = Async()
    run(lab, tmp_path / "run", reward, ahead=ahead)
    assert reward.pairs, "batches overlap"
    for pair in reward.pairs:
        assert len({step for _, step in pair}) == 1, "never of two steps"
        purposes = {what for what, _ in pair}
        # Of an evaluation also greedy completions; never of training and evaluation.
        assert purposes == {"train"} or purposes <= {"evaluate", "greedy"}
    assert reward.threads.pop("train") == {"rewards"}
    for name in ("evaluate", "greedy"):
        assert reward.threads.pop(name) == {"rewards"}
    # Its other methods are called in the main thread, and while none of its calls runs.
    assert all(names == {"MainThread"} for names in reward.threads.values())
    assert {"load", "close", "refresh", "state_dict"} <= reward.threads.keys()
