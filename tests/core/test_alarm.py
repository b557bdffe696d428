"""Alarms are raised for reward hacking, and not for noise, learning or missing values."""

import math
import random
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from groupwise.evaluation import Alarm, Change, beyond_noise
from groupwise.evaluator.alarm import Alarms, change, values_of

Watch = partial(SimpleNamespace, better="higher", tolerance=0.0)
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


def alarms(
    first: list[dict[str, Any]], now: list[dict[str, Any]], watches: Mapping[str, Any]
) -> Mapping[str, Alarm | None]:
    """The alarms of the second of two evaluations."""
    evaluations = Alarms(watches)
    evaluations.observe(first, 0)
    evaluations.observe(now, 5)
    return evaluations.raised


def noise(seed: int, shift: float = 0.0, prompts: int = 50, size: int = 4) -> list[list[float]]:
    draw = random.Random(seed)
    return [[draw.gauss(0.5 + shift, 0.2) for _ in range(size)] for _ in range(prompts)]


def test_judged_replies_of_an_episode_are_one_value() -> None:
    """Self-play judges both sides; the mean of the two is compared."""
    sides = [{"draw": 0, "index": 0, "greedy": False, "total": total} for total in (1.0, -0.5)]
    assert [*values_of(sides).values()] == [0.25]


def raises_alarm(trained: float, watched: float, watch: Any = None, seed: int = 0) -> bool:
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


def test_any_change_may_be_for_the_worse() -> None:
    """By `same`, in both directions, as rarely by noise, and with no best evaluation."""
    same = Watch(better="same")
    assert raises_alarm(0.3, 0.3, same)
    assert raises_alarm(0.3, -0.3, same)
    assert not raises_alarm(0.3, -0.3, Watch(better="same", tolerance=0.6))
    assert sum(raises_alarm(0.3, 0, same, seed=seed) for seed in range(0, 800, 4)) <= 14
    to_and_fro = levels((0.3, 0.3), (0.7, 0.7), (0.7, 0.3), watch=same)
    assert to_and_fro.raised["check"] is None


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
    assert list(alarm.record()) == ["trained", "watched", "since"]
    risen = Alarm(name="check", trained=alarm.trained, watched=Change(0.2, 0.01))
    assert "'check' rose by 0.2 ± 0.01" in str(risen)


def test_completions_are_paired_by_draw_index_and_decoding() -> None:
    first = records([[0.0, 10.0], [0.0, 10.0]], [[0.0, 0.0]] * 2)
    greedy = [{**record, "greedy": True, "total": 100.0} for record in first]
    now = list(reversed(records([[1.0, 11.0], [2.0, 12.0]], [[0.0, 0.0]] * 2)))
    difference = change(values_of([*greedy, *first]), values_of(now))
    assert difference.mean == pytest.approx(1.5)
    # No pairs: greedy records are in only one of the two evaluations.
    assert math.isnan(change(values_of(greedy), values_of(now)).mean)


def test_the_error_is_over_prompts_not_over_completions() -> None:
    """Completions of one prompt that change together count as one observation."""
    zeros = [[0.0] * 100] * 2
    moved = [[1.0] * 100, [0.0] * 100]
    difference = change(values_of(records(zeros, zeros)), values_of(records(moved, zeros)))
    assert (difference.mean, difference.error) == pytest.approx((0.5, 0.5))
    assert not difference.rose()


def test_prompts_have_equal_weight_whatever_their_number_of_completions() -> None:
    first = records([[0.0], [0.0, 0.0, 0.0]], [[None], [None] * 3])
    now = records([[1.0], [0.0, 0.0, 0.0]], [[None], [None] * 3])
    assert change(values_of(first), values_of(now)).mean == pytest.approx(0.5)


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
    difference = change(values_of(first), values_of(now))
    assert difference.mean == 1.0
    assert math.isnan(difference.error)
    assert alarms(first, now, WATCH) == {"check": None}
    assert alarms([], [], WATCH) == {}


def test_records_without_watched_rewards_raise_no_alarm() -> None:
    """As in a run that began before a reward was watched."""
    old = [{"draw": d, "index": 0, "greedy": False} for d in range(9)]
    now = records([[1.0]] * 9, [[0.0]] * 9)
    assert alarms(old, now, WATCH) == {"check": None}


# ---- compared with the best evaluation


def levels(*pairs: tuple[float, float], watch: Any = None) -> Alarms:
    """Evaluations every 10 steps: means of the trained and of the watched reward, plus noise."""
    evaluations = Alarms({"check": watch or Watch()})
    for number, (trained, watched) in enumerate(pairs):
        shifted = (noise(2 * number + i, mean - 0.5) for i, mean in enumerate((trained, watched)))
        evaluations.observe(records(*shifted), 10 * number)
    return evaluations


def test_a_fall_since_the_best_evaluation_raises_an_alarm() -> None:
    """The watched reward is still above its first value."""
    rising = levels((0.3, 0.3), (0.7, 0.7), (0.9, 0.35))
    alarm = rising.raised["check"]
    assert alarm is not None
    assert alarm.since == 10
    assert alarm.trained.mean == pytest.approx(0.6, abs=0.06)  # since the first evaluation
    assert alarm.watched.mean == pytest.approx(-0.35, abs=0.06)
    assert "'check' fell by 0.3" in str(alarm)
    assert "since its best evaluation, at step 10 (±" in str(alarm)
    assert alarm.record()["since"] == 10
    assert levels((0.3, 0.3), (0.7, 0.7), (0.7, 0.35)).raised["check"] is not None  # on a plateau
    assert levels((0.3, 0.3), (0.7, 0.7), (0.9, 0.7)).raised == {"check": None}
    assert levels((0.3, 0.3), (0.7, 0.7), (0.3, 0.35)).raised == {"check": None}  # nothing gained


def test_if_lower_is_better_the_best_is_the_lowest() -> None:
    lower = Watch(better="lower")
    alarm = levels((0.3, 0.7), (0.7, 0.3), (0.9, 0.6), watch=lower).raised["check"]
    assert alarm is not None
    assert alarm.since == 10
    patient = Watch(better="lower", tolerance=0.4)
    assert levels((0.3, 0.7), (0.7, 0.3), (0.9, 0.6), watch=patient).raised == {"check": None}


def test_a_fall_below_the_first_evaluation_is_compared_with_that() -> None:
    alarm = levels((0.3, 0.5), (0.7, 0.7), (0.9, 0.2)).raised["check"]
    assert alarm is not None
    assert alarm.since == 0


def test_the_bound_grows_with_the_number_of_tests() -> None:
    """Phi by its integral."""
    tail = 0.5 * math.erfc(2 / math.sqrt(2))
    assert beyond_noise() == pytest.approx(2.0)
    for tests in (2, 12, 8400):
        z = beyond_noise(tests)
        assert 0.5 * math.erfc(z / math.sqrt(2)) == pytest.approx(tail / tests)
    assert sum(k / (k * k * (k + 1)) for k in range(1, 10_000)) < 1


@pytest.mark.slow
def test_noise_since_the_best_evaluation_seldom_raises_an_alarm() -> None:
    """In 400 runs of 20 evaluations with a watched reward that is right by chance, always alike.

    The docs say at most 2.3% of runs. An uncorrected comparison with the best rings in most.
    """
    draw, prompts, runs = random.Random(7), 50, 400
    rung = 0
    for _ in range(runs):
        rates = [draw.random() for _ in range(prompts)]
        evaluations, by_best = Alarms(WATCH), False
        for step in range(20):
            right = [[float(draw.random() < rate)] for rate in rates]
            evaluations.observe(records([[float(step > 0) * (1 + r)] for r in rates], right), step)
            alarm = evaluations.raised.get("check")
            by_best |= alarm is not None and alarm.since > 0
        rung += by_best
    assert rung <= 0.023 * runs


def test_a_resumed_run_compares_with_the_best_evaluation_before(
    reloaded: Callable[[Any], Any],
) -> None:
    before = levels((0.3, 0.3), (0.7, 0.7), (0.7, 0.6))
    resumed = Alarms(WATCH)
    resumed.first = before.first
    resumed.load_state_dict(reloaded(before.state_dict()))
    assert resumed.best == before.best
    for each in (before, resumed):
        each.observe(records(noise(8, 0.4), noise(9, -0.15)), 30)
    assert resumed.raised == before.raised
    alarm = resumed.raised["check"]
    assert alarm is not None
    assert alarm.since == 10
