"""Episodes of several turns on the page: conversations, charts of tools, the tables of turns."""

from pathlib import Path
from typing import Any

import pytest
from tests.report.test_report import HOSTILE, Page, page_of, sample, step_row, titles, write_run

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "two"}}}
EPISODE = [
    {"role": "assistant", "content": "<think>\nhm, add\n</think>\nLet me.", "tool_calls": [CALL]},
    {"role": "tool", "name": "add", "content": "3"},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "name": "add", "content": "line\n" * 500},
    {"role": "assistant", "content": "The sum is 3."},
]


def shown(folder: Path, completion: Any, **fields: Any) -> tuple[str, Any]:
    """The page down to its table of completions, which has them again."""
    above = whole(folder, completion, **fields)[0].partition("<section><h2>Completions</h2>")[0]
    return above, Page(above)


def whole(folder: Path, completion: Any, **fields: Any) -> tuple[str, Any]:
    return page_of(write_run(folder, [], after=[sample(1, completion, right=True, **fields)]))


def test_a_conversation_has_calls_and_folded_answers_and_thinking(tmp_path: Path) -> None:
    html, page = shown(tmp_path, EPISODE, ended="turns")
    assert page.text.count('add(a=1, b="two")') == 3
    assert page.count("details") == 2
    assert "<summary>thinking · 7 characters</summary>hm, add</details>Let me." in html
    assert "<summary>tool add · 2,500 characters</summary>line" in html
    assert "<small>tool add</small> 3</div>" in html  # short answers are not folded
    assert "ended: turns" in page.text
    assert "&lt;think&gt;" not in html


def test_rewards_of_turns_stand_beside_them(tmp_path: Path) -> None:
    html, _ = shown(tmp_path, EPISODE, turn_rewards=[0.25, None, -1])
    assert html.count("assistant · reward <b>0.25</b>") == 1
    assert html.count("assistant · reward <b>\N{MINUS SIGN}1</b>") == 1
    assert html.count("<small>assistant</small>") == 1
    assert "its turns" not in html
    _, page = shown(tmp_path, "a text", turn_rewards=[0.25, None])
    assert "its turns 0.25 does not apply" in page.text


def test_what_was_counted_of_an_episode_is_shown(tmp_path: Path) -> None:
    counted = {"turns": 3, "calls": 1, "call_errors": 0, "tool_seconds": 0.25, "tool_tokens": 12}
    _, page = shown(tmp_path, EPISODE, extra=counted)
    assert "correct 13 turns1 call12 tokens of tools0.25 s in tools" in page.text


@pytest.mark.parametrize(
    "calls",
    [
        [{"function": {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}}}],
        [{"function": {"name": "f", "arguments": HOSTILE}}],
        [HOSTILE, None, 3, {HOSTILE: HOSTILE}, {"function": HOSTILE}],
        HOSTILE,
    ],
)
def test_no_part_of_a_conversation_becomes_markup(tmp_path: Path, calls: Any) -> None:
    messages = [
        {"role": "assistant", "content": f"<think>{HOSTILE}</think>{HOSTILE}", "tool_calls": calls},
        {"role": "tool", "name": HOSTILE, "content": HOSTILE},
        {"role": "tool", "name": HOSTILE, "content": HOSTILE * 9},
        {"role": "assistant", "reasoning_content": HOSTILE, "content": None},
    ]
    _, page = whole(tmp_path, messages, turn_rewards=[HOSTILE, HOSTILE], extra={"turns": HOSTILE})
    assert page.count("script") == 1
    assert page.count("img") == page.count("svg") == 0
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    assert page.text.count("<svg/onload=x()>&amp;") > 12


def test_of_a_long_conversation_the_middle_is_left_out(tmp_path: Path) -> None:
    messages = [{"role": "assistant", "content": f"turn <{n}>"} for n in range(100)]
    html, page = shown(tmp_path, messages, turn_rewards=[*range(100)])
    assert "[60 messages left out]" in page.text
    assert all((f"turn <{n}>" in page.text) == (n < 20 or n >= 80) for n in range(100))
    assert "reward <b>99</b></small>\nturn &lt;99&gt;" in html


def test_tools_have_charts_and_turns_a_table(tmp_path: Path) -> None:
    tools = {"environment/calls": 1.5, "environment/won": 0.5, "environment/turns": 2.0}
    tools |= {"turns/as_sampled": 1.0, "turns/parsed": 0.5, "failed": 0, "ended/length": 0.0}
    lost = {"failed": 3.0, "failed/environment/TimeoutError": 2.0}
    steps = [step_row(1, **tools), step_row(2, **tools | lost | {"turns/as_sampled": 0.99996})]
    steps += [step_row(3, **tools | {"failed": 4.0, "failed/exact": 4.0})]
    html, page = page_of(write_run(tmp_path, steps))
    assert titles(html) == ["Reward", "KL", "Failed", "Turns", "Calls of tools", "won"]
    assert "turns whose ids are those sampled99.9 %99.9 %100 %" in page.text
    assert "that look like calls50.0 %50.0 %50.0 %" in page.text
    assert "went on in their rollout" not in page.text


def test_a_run_of_single_completions_has_no_such_section(tmp_path: Path) -> None:
    _, page = page_of(write_run(tmp_path, [step_row(1), step_row(2, **{"failed/exact": 1.0})]))
    assert "Turns and tools" not in page.text
