"""In every reward that checks in workers: a busy machine makes no right answer a wrong one, and an
answer that cannot be checked stays wrong."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from groupwise.rewards import SampleErrors
from groupwise.rewards.deadline import ending_in
from groupwise_verifiable import workers
from groupwise_verifiable.mathematics.length import CosineLength, Length
from groupwise_verifiable.mathematics.reward import MathEquivalence
from groupwise_verifiable.puzzles import reward as puzzles_reward
from groupwise_verifiable.puzzles.reward import ReasoningGymScore

sys.path.insert(0, str(Path(__file__).parent))
import hostile

pytestmark = pytest.mark.slow

PUZZLE = reasoning_gym.create_dataset("polynomial_multiplication", size=1, seed=1)[0]
RIGHT, WRONG, SEVENS, ENDLESS = range(4)
TEXTS = [r"\boxed{\frac{2}{6}}", r"\boxed{\frac{1}{2}}", r"\boxed{777}"]
TEXTS += [r"\boxed{\gcd(10^{9000000},3^{9000000})}"]
ANSWERS = [PUZZLE["answer"], "0", "777", "9**9**9"]

Score = Callable[[Sequence[int], float], list[float]]
"""From answers (of the four above) and the time limit of one, in seconds, to their rewards."""


def of_mathematics(kind: type[Any], rules: str, **settings: float) -> Score:
    def score(answers: Sequence[int], timeout: float) -> list[float]:
        reward = kind(kind.Config(rules=rules, timeout=timeout, **settings))
        size = len(answers)
        columns = {"answer": [r"$\frac{1}{3}$"] * size, "groups": [0] * size}
        ids = [[0] * (10 if answer == RIGHT else 20) for answer in answers]
        texts = [TEXTS[answer] for answer in answers]
        values: list[float] = reward(["p"] * size, texts, completion_ids=ids, **columns)
        return values

    return score


def of_puzzles(answers: Sequence[int], timeout: float) -> list[float]:
    reward = ReasoningGymScore(ReasoningGymScore.Config(timeout=timeout))
    texts = [f"<answer>{ANSWERS[answer]}</answer>" for answer in answers]
    names = ("question", "answer", "metadata")
    columns = {name: [PUZZLE[name]] * len(texts) for name in names}
    return [math.nan if v is None else v for v in reward(texts, texts, **columns)]


REWARDS = {
    "math, trl": of_mathematics(MathEquivalence, "trl"),
    "math, open_r1": of_mathematics(MathEquivalence, "open_r1"),
    "length": of_mathematics(Length, "trl"),
    "cosine_length": of_mathematics(CosineLength, "trl", max_length=20),
    "reasoning_gym": of_puzzles,
}
DIRECT = ("math, trl", "math, open_r1", "reasoning_gym")
every_reward = pytest.mark.parametrize("score", REWARDS.values(), ids=REWARDS)
every_direct_reward = pytest.mark.parametrize(
    "score", [REWARDS[name] for name in DIRECT], ids=DIRECT
)


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has workers call another function in place of each: on that one, the item and more."""
    original = workers.map_each

    def call(other: Callable[[Any], Any], *more: Any) -> None:
        def changed(function: Any, items: Sequence[Any], **how: Any) -> Any:
            return original(other, [(function, item, *more) for item in items], **how)

        for module in (workers, puzzles_reward):
            monkeypatch.setattr(module, "map_each", changed)

    return call


@every_direct_reward
def test_a_busy_machine_changes_no_reward(
    score: Score, instead: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker waits for longer than an answer may compute."""
    monkeypatch.setattr(workers, "_LAST_RESORT", 50)
    before = score([RIGHT, WRONG], 5.0)
    instead(hostile.after_a_wait, 0.9)
    right, wrong, endless = score([RIGHT, WRONG, ENDLESS], 0.6)
    assert [right, wrong] == before
    assert right > wrong == endless


@pytest.mark.parametrize("name", ["math, trl", "reasoning_gym"])
def test_an_answer_that_waits_without_computing_is_wrong(
    name: str, instead: Callable[..., None]
) -> None:
    instead(hostile.sleeping_on_sevens)
    right, wrong, sleeping = REWARDS[name]([RIGHT, WRONG, SEVENS], 0.6)
    assert right > wrong == sleeping


@every_reward
def test_where_no_worker_starts_all_samples_are_failed_and_none_is_wrong(
    score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their values are NaN, which never stops a run."""
    workers._close()
    monkeypatch.setattr(workers, "_limit", hostile.never_starts)
    monkeypatch.setattr(workers, "_STARTING", 0.1)
    with pytest.raises(SampleErrors) as caught:
        score([RIGHT, WRONG], 0.02)
    assert all(map(math.isnan, map(float, caught.value.values)))  # type: ignore[arg-type]
    assert "its worker process did not start" in caught.value.errors[RIGHT]


@every_reward
def test_a_batch_ends_before_the_deadline_of_its_reward(
    score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the deadline the run would stop."""
    seconds, original = [], workers.map_each

    def asked(function: Any, items: Sequence[Any], *, within: float, **how: Any) -> Any:
        seconds.append(within)
        return original(function, items, within=within, **how)

    for module in (workers, puzzles_reward):
        monkeypatch.setattr(module, "map_each", asked)
    with ending_in(100.0):
        score([RIGHT, WRONG], 5.0)
    score([RIGHT, WRONG], 5.0)
    assert 50.0 < seconds[0] < 80.0
    assert seconds[1] == math.inf


def test_a_task_of_a_user_is_imported_before_the_time_of_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module may import whatever it likes."""
    (tmp_path / "slow_task.py").write_text(SLOW_TASK)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("slow_task")
    workers._close()  # workers that are running do not import from this folder
    row = reasoning_gym.create_dataset("slow", size=1, seed=1)[0]
    columns = {name: [row[name]] * 2 for name in ("question", "answer", "metadata")}
    reward = ReasoningGymScore(ReasoningGymScore.Config(timeout=0.3))
    texts = [f"<answer>{answer}</answer>" for answer in "01"]
    assert reward(texts, texts, **columns) == [1.0, 0.0]
    workers._close()


SLOW_TASK = """
import multiprocessing
import time
from dataclasses import dataclass
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import register_dataset

started = time.process_time()
while multiprocessing.parent_process() and time.process_time() < started + 0.6:
    pass


@dataclass
class Config:
    seed: int = 0
    size: int = 10

    def validate(self):
        pass


class Slow(ProceduralDataset):
    def __getitem__(self, index):
        metadata = {"source_dataset": "slow"}
        return {"question": f"Repeat {index}", "answer": str(index), "metadata": metadata}


register_dataset("slow", Slow, Config)
"""
