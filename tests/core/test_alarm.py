"""Alarms are raised for reward hacking, and not for noise, learning or missing values."""

import math
import random
from typing import Any

import pytest

from groupwise.evaluation import Alarm, Change
from groupwise.training.alarm import Watch, alarms, change

WATCH = {"check": Watch()}


def records(
    totals: list[list[float | None]], watched: list[list[float | None]], **fields: Any
) -> list[dict[str, Any]]:
    """One record for each completion: totals and watched values by prompt, then by index."""
    return [
        {"draw": d, "index": i, "greedy": False, "total": t, "watched": {"check": w}, **fields}
        for d, (ts, ws) in enumerate(zip(totals, watched, strict=True))
        for i, (t, w) in enumerate(zip(ts, ws, strict=True))
    ]


def noise(seed: int, shift: float = 0.0, prompts: int = 50, size: int = 4) -> list[list[float]]:
    draw = random.Random(seed)
    return [[draw.gauss(0.5 + shift, 0.2) for _ in range(size)] for _ in range(prompts)]


def raises_alarm(trained: float, watched: float, watch: Watch | None = None, seed: int = 0) -> bool:
    """Whether these shifts of the trained and the watched reward, plus noise, raise an alarm."""
    first = records(noise(seed), noise(seed + 1))
    now = records(noise(seed + 2, trained), noise(seed + 3, watched))
    return alarms(first, now, {"check": watch or Watch()})["check"] is not None


def test_reward_hacking_raises_an_alarm() -> None:
    for seed in range(0, 400, 4):
        assert raises_alarm(0.3, -0.3, seed=seed)


def test_noise_raises_no_alarm() -> None:
    """Both changes must exceed two standard errors: by chance in about one of 1,900 runs."""
    assert sum(raises_alarm(0, 0, seed=seed) for seed in range(0, 4000, 4)) <= 3


def test_a_change_of_only_one_reward_raises_no_alarm() -> None:
    alarm_flags = [raises_alarm(0.3, 0, seed=seed) for seed in range(0, 800, 4)]
    assert sum(alarm_flags) <= 14  # 2.3 % are expected
    assert not any(raises_alarm(0.3, 0.3, seed=seed) for seed in range(0, 400, 4))  # both improve
    assert not any(raises_alarm(-0.3, -0.3, seed=seed) for seed in range(0, 400, 4))  # both worsen
    assert sum(raises_alarm(0, -0.3, seed=seed) for seed in range(0, 800, 4)) <= 14


def test_a_watched_reward_may_be_better_if_lower() -> None:
    lower = Watch(better="lower")
    assert raises_alarm(0.3, 0.3, lower)
    assert not raises_alarm(0.3, -0.3, lower)


def test_the_tolerance_is_added_to_the_noise() -> None:
    first = records([[0.0], [0.0], [0.0], [0.0]], [[1.0], [1.0], [1.0], [1.0]])
    now = records([[1.0]] * 4, [[0.7], [0.9], [0.7], [0.9]])
    error = math.sqrt(4 * 0.01 / 3) / 2
    limit = 0.2 - 2 * error
    for tolerance, expected in (
        (0.0, True),
        (limit - 1e-6, True),
        (limit + 1e-6, False),
    ):
        alarm = alarms(first, now, {"check": Watch(tolerance=tolerance)})["check"]
        assert (alarm is not None) == expected


def test_an_alarm_states_both_changes_with_their_errors() -> None:
    first = records([[0.0], [0.0]], [[0.9], [0.9]])
    now = records([[0.5], [0.7]], [[0.5], [0.5]])
    alarm = alarms(first, now, WATCH)["check"]
    assert alarm is not None
    assert (alarm.trained.mean, alarm.trained.error) == pytest.approx((0.6, 0.1))
    assert (alarm.watched.mean, alarm.watched.error) == pytest.approx((-0.4, 0.0))
    assert "trained reward rose by 0.6 ± 0.1 while the watched 'check' fell by 0.4 ±" in str(alarm)
    assert list(alarm.record()) == ["trained", "watched"]
    risen = Alarm(name="check", trained=alarm.trained, watched=Change(0.2, 0.01))
    assert "'check' rose by 0.2 ± 0.01" in str(risen)


def test_completions_are_paired_by_draw_index_and_decoding() -> None:
    first = records([[0.0, 10.0], [0.0, 10.0]], [[0.0, 0.0]] * 2)
    greedy = [{**record, "greedy": True, "total": 100.0} for record in first]
    now = list(reversed(records([[1.0, 11.0], [2.0, 12.0]], [[0.0, 0.0]] * 2)))
    difference = change([*greedy, *first], now, lambda record: record["total"])
    assert difference.mean == pytest.approx(1.5)
    # No pairs: greedy records are in only one of the two evaluations.
    assert math.isnan(change(greedy, now, lambda record: record["total"]).mean)


def test_the_error_is_over_prompts_not_over_completions() -> None:
    """Completions of one prompt that change together count as one observation."""
    zeros = [[0.0] * 100] * 2
    moved = [[1.0] * 100, [0.0] * 100]
    difference = change(
        records(zeros, zeros), records(moved, zeros), lambda record: record["total"]
    )
    assert (difference.mean, difference.error) == pytest.approx((0.5, 0.5))
    assert not difference.rose()


def test_prompts_have_equal_weight_whatever_their_number_of_completions() -> None:
    first = records([[0.0], [0.0, 0.0, 0.0]], [[None], [None] * 3])
    now = records([[1.0], [0.0, 0.0, 0.0]], [[None], [None] * 3])
    assert change(first, now, lambda record: record["total"]).mean == pytest.approx(0.5)


@pytest.mark.parametrize("missing", [None, math.nan])
def test_values_that_are_none_or_nan_are_left_out(missing: float | None) -> None:
    first = records([[0.0]] * 4, [[1.0], [1.0], [1.0], [missing]])
    now = records([[1.0]] * 4, [[0.0], [0.0], [missing], [0.0]])
    alarm = alarms(first, now, WATCH)["check"]
    assert alarm is not None
    assert alarm.watched.mean == -1.0
    unknown = records([[missing]] * 4, [[0.0]] * 4)
    assert alarms(first, unknown, WATCH) == {"check": None}
    assert alarms(unknown, now, WATCH) == {"check": None}


def test_without_a_standard_error_there_is_no_alarm() -> None:
    first, now = records([[0.0] * 9], [[1.0] * 9]), records([[1.0] * 9], [[0.0] * 9])
    difference = change(first, now, lambda record: record["total"])
    assert difference.mean == 1.0
    assert math.isnan(difference.error)
    assert alarms(first, now, WATCH) == {"check": None}
    assert alarms([], [], WATCH) == {"check": None}


def test_records_without_watched_rewards_raise_no_alarm() -> None:
    """As in a run that began before a reward was watched."""
    old = [{"draw": d, "index": 0, "greedy": False} for d in range(9)]
    now = records([[1.0]] * 9, [[0.0]] * 9)
    assert alarms(old, now, WATCH) == {"check": None}
