"""Steps of reasoning: finding them in text, the decision that ends a step, and `stepwise`."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards import Reward, RewardError, SampleErrors
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise_verifiable.steps import Marks, Step, by_decision, region, stepwise

WORKED = "<think>\n1+1=2\n\n2+1=3</think>\n<answer>3</answer>"


def rollouts_of(texts: list[str], ends: list[list[int]] | None = None) -> Rollouts:
    """Completions of one token per character and an end token, unless `ends` is set."""
    if ends is None:
        ends = [[*range(1, len(text) + 1), len(text)] for text in texts]
    lengths = torch.tensor([len(own) for own in ends])
    return Rollouts(
        prompts=[{"prompt": "p", "n": number} for number in range(len(texts))],
        completions=texts,
        groups=torch.zeros(len(texts), dtype=torch.int64),
        mask=torch.arange(int(lengths.max())) < lengths.unsqueeze(1),
        truncated=torch.zeros(len(texts), dtype=torch.bool),
        facts={"character_ends": ends},
    )


def scores_of(function: Any, rollouts: Rollouts, **settings: Any) -> Any:
    return Scorer([Reward(name="judge", function=function, **settings)])(rollouts)


def values_by_decision(scores: Any, row: int = 0) -> dict[int, float]:
    steps = scores.steps[row]
    return {int(n): float(steps[n]) for n in (~steps.isnan()).nonzero().flatten()}


@pytest.mark.parametrize(
    ("marks", "text", "steps"),
    [
        ({"separator": "\n"}, "a\n\n b \nc", [("a", 2), (" b ", 7), ("c", None)]),
        ({"separator": "\n"}, "a\n", [("a", 2)]),
        ({"separator": "\n"}, "", []),
        ({"separator": "\n\n"}, "a\nb\n\nc", [("a\nb", 5), ("c", None)]),
        ({"separator": "\n", "inside": "think"}, WORKED, [("1+1=2", 14), ("2+1=3", 28)]),
        ({"separator": "\n", "inside": "think"}, "a\nb</think>c\n", [("a", 2), ("b", 11)]),
        ({"separator": "\n", "inside": "think"}, "<think>a\nb", [("a", 9), ("b", None)]),
        ({"separator": "\n", "inside": "think"}, "a\nb", []),
        ({"pattern": r"\d\+\d=\d"}, WORKED, [("1+1=2", 13), ("2+1=3", 20)]),
        ({"pattern": r"\d", "inside": "answer"}, WORKED, [("3", 38)]),
        ({"pattern": "x*"}, "ab", []),
        ({"tag": "s"}, "<s>a<s>b</s> c <s> </s><s>d</s><s>e", [("a<s>b", 12), ("d", 31)]),
    ],
)
def test_marks_find_steps(
    marks: dict[str, str], text: str, steps: list[tuple[str, int | None]]
) -> None:
    assert [(step.text, step.end) for step in Marks(**marks).steps(text)] == steps


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ({}, "found none of them"),
        ({"inside": "think"}, "found none of them"),
        ({"separator": ""}, "found none of them"),
        ({"separator": "\n", "tag": "s"}, "found separator and tag"),
        ({"pattern": "("}, r"the pattern '\(' is no regular expression: missing \)"),
    ],
)
def test_invalid_marks_are_refused(marks: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Marks(**marks)


@pytest.mark.parametrize("text", ["<think>" * 10_000, "<s>" * 20_000, "\n" * 50_000])
@pytest.mark.timeout(20)
def test_steps_of_any_text_are_found_in_linear_time(text: str) -> None:
    """Quadratic time would be minutes."""
    assert region(text, "think")[1] == len(text)
    assert not Marks(tag="s").steps(text)
    assert len(Marks(separator="\n").steps(text)) <= 1


@settings(max_examples=150)
@given(
    tokens=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 5), max_size=6),
    left_open=st.booleans(),
)
def test_a_step_ends_at_the_decision_that_writes_its_last_character(
    tokens: list[int], sizes: list[int], *, left_open: bool
) -> None:
    """tokens, sizes: the number of characters of each token and of each step."""
    ends = [sum(tokens[: n + 1]) for n in range(len(tokens))]
    borders = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    steps = [Step(text="", end=border) for border in borders if border <= ends[-1]]
    if left_open:
        steps.append(Step(text="", end=None))
    values = [float(2**number) for number in range(len(steps))]
    rewards = by_decision(steps, values, ends)

    expected: list[float | None] = [None] * len(tokens)
    writers = [number for number, size in enumerate(tokens) for _ in range(size)]
    for step, value in zip(steps, values, strict=True):
        place = len(tokens) - 1 if step.end is None else writers[step.end - 1]
        expected[place] = (expected[place] or 0.0) + value
    assert rewards == expected


def test_a_token_that_ends_a_step_and_begins_the_next() -> None:
    """`1\\n2` is one token; the steps are `a1`, `2b` and `c`, which ends at the end token."""
    text, ends = "a1\n2b\nc", [1, 4, 5, 6, 7, 7]
    steps = Marks(separator="\n").steps(text)
    assert by_decision(steps, [1.0, 2.0, 3.0], ends) == [None, 1.0, None, 2.0, None, 3.0]
    # All of the text in one token, and a completion without decisions.
    assert by_decision(steps, [1.0, None, 3.0], [7]) == [4.0]
    assert by_decision(steps, [1.0, 2.0, 3.0], []) == []


def test_stepwise_makes_a_process_reward() -> None:
    calls: list[Any] = []

    @stepwise(separator="\n")
    def judge(prompts: Any, steps: Any, n: Any, *, factor: float = 1.0) -> Any:
        """Letters."""
        calls.append((prompts, steps, n))
        return [[factor * len(step) for step in own] for own in steps]

    assert judge.__doc__ == "Letters."
    assert judge.judges is False
    scores = scores_of(judge, rollouts_of(["ab\nc", "d"]))
    assert calls == [(["p", "p"], [["ab", "c"], ["d"]], [0, 1])]
    assert scores.judges_steps == {"judge"}
    assert [values_by_decision(scores, row) for row in (0, 1)] == [{2: 2.0, 4: 1.0}, {1: 1.0}]
    # Called as a reward function of TRL, with a setting.
    ends = [[1, 2, 3, 4, 4]]
    values = judge(["p"], ["ab\nc"], character_ends=ends, n=[0], factor=2.0)
    assert values == [[None, None, 4.0, None, 2.0]]


def test_columns_that_a_function_of_steps_needs_are_checked_before_the_run() -> None:
    """The parameters include `character_ends`, which a policy then states, and the columns."""

    @stepwise(tag="step")
    def judge(prompts: Any, steps: Any, answer: Any, **columns: Any) -> Any:
        return [[0.0] * len(own) for own in steps]

    reward = Reward(name="judge", function=judge)
    names, required, takes_all = reward.parameters
    assert {"character_ends", "answer", "completions"} <= names
    assert "steps" not in names
    assert {"character_ends", "answer"} <= required
    assert takes_all
    with pytest.raises(ValueError, match="needs the column 'answer'"):
        reward.check_columns({}, ("character_ends",))


def test_a_function_with_any_columns_gets_all_of_them() -> None:
    @stepwise(separator="\n")
    def judge(steps: Any, **columns: Any) -> Any:
        assert set(columns) == {
            *("prompts", "completions", "groups", "truncated", "ended", "n", "character_ends"),
            *("trainer_state", "log_extra", "log_metric", "purpose"),
        }
        return [[1.0] * len(own) for own in steps]

    assert values_by_decision(scores_of(judge, rollouts_of(["a"]))) == {1: 1.0}


def test_an_async_function_of_messages_with_completions_without_steps() -> None:
    @stepwise(separator="\n")
    async def judge(prompts: Any, steps: Any) -> Any:
        await asyncio.sleep(0)
        return [torch.ones(len(own)) if own else None for own in steps]

    assert inspect.iscoroutinefunction(judge)
    chats: list[Any] = [[{"role": "assistant", "content": text}] for text in ("a\nb", "")]
    scores = scores_of(judge, rollouts_of(chats, [[1, 2, 3], [0]]))
    assert values_by_decision(scores) == {1: 1.0, 2: 1.0}
    assert scores.values[:, 0].isnan().tolist() == [False, True]


def test_mistakes_in_functions_of_steps_are_errors() -> None:
    with pytest.raises(ValueError, match="without has no argument `steps`"):

        @stepwise(separator="\n")
        def without(prompts: Any, completions: Any) -> Any:
            raise AssertionError

    @stepwise(separator="\n")
    def short(prompts: Any, steps: Any) -> Any:
        return [[1.0] for _ in steps]

    with pytest.raises(RewardError, match="short returned 1 values for the 2 steps of completion"):
        scores_of(short, rollouts_of(["a", "a\nb"]))

    @stepwise(separator="\n")
    def flat(prompts: Any, steps: Any) -> Any:
        return [1.0 for _ in steps]

    with pytest.raises(RewardError, match=r"flat returned 1\.0 for the 1 steps of completion 0"):
        scores_of(flat, rollouts_of(["a"]))


def test_failed_completions_do_not_affect_the_steps_of_others() -> None:
    @stepwise(separator="\n")
    def judge(prompts: Any, steps: Any) -> Any:
        raise SampleErrors([[1.0], None], {1: "timed out"})  # type: ignore[list-item]

    scores = scores_of(judge, rollouts_of(["a", "b"]), on_error="skip")
    assert scores.failed.tolist() == [False, True]
    assert values_by_decision(scores) == {1: 1.0}
