"""Answers count only in their form."""

import time

import pytest

from groupwise_judge.form import Form, UnreadableError

FORM = Form({"correct": range(1, 6), "winner": ("A", "B")})
RIGHT = '{"reasoning": "fine", "correct": 4, "winner": "B"}'


@pytest.mark.parametrize(
    "text",
    [
        RIGHT,
        f"\n {RIGHT}\n",
        f"```json\n{RIGHT}\n```",
        f"```\n{RIGHT}\n```",
        f'<think>\n{{"correct": 1}} or more?\n</think>\n\n{RIGHT}',
        f"[THINK]Well.[/THINK]{RIGHT}",
        '{"winner": "B", "correct": 4}',
    ],
)
def test_one_object_is_read(text):
    values, _ = FORM.read(text)
    assert values == {"correct": 4, "winner": "B"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "prose"),
        ("I would give it a 5.", "prose"),
        (f"Here you are: {RIGHT}", "prose"),
        (f"{RIGHT} {RIGHT}", "prose"),
        (f"[{RIGHT}]", "prose"),
        ("[" * 5000, "prose"),
        ('{"correct": NaN, "winner": "A"}', "prose"),
        ("5", "prose"),
        ('{"correct": 4}', "fields"),
        ('{"correct": 4, "winner": "A", "overall": 5}', "fields"),
        ('{"correct": 1, "correct": 5, "winner": "A"}', "fields"),
        ('{"Correct": 4, "winner": "A"}', "fields"),
        ('{"correct": 6, "winner": "A"}', "range"),
        ('{"correct": 0, "winner": "A"}', "range"),
        ('{"correct": 4.0, "winner": "A"}', "range"),
        ('{"correct": 4.5, "winner": "A"}', "range"),
        ('{"correct": "4", "winner": "A"}', "range"),
        ('{"correct": true, "winner": "A"}', "range"),
        ('{"correct": null, "winner": "A"}', "range"),
        ('{"correct": [5], "winner": "A"}', "range"),
        ('{"correct": 4, "winner": "C"}', "range"),
        ('{"correct": 4, "winner": "a"}', "range"),
        (f"```python\n{RIGHT}\n```", "prose"),
        (f"```json\n{RIGHT}", "prose"),
        (f"<think>{RIGHT}", "prose"),
    ],
)
def test_anything_else_is_unreadable_and_has_a_kind(text, kind):
    with pytest.raises(UnreadableError) as caught:
        FORM.read(text)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    "text",
    [
        "```" + "\n" * 10_000 + "x",
        "{" + ", ".join(f'"{number}": 1' for number in range(100_000)) + "}",
    ],
    ids=["newlines", "keys"],
)
def test_no_answer_takes_long_to_read(text):
    """These take milliseconds; in quadratic time, minutes."""
    began = time.process_time()
    with pytest.raises(UnreadableError):
        FORM.read(text)
    assert time.process_time() - began < 20


def test_the_schema_lists_all_values():
    schema = FORM.schema()
    assert schema["properties"]["correct"] == {"type": "integer", "enum": [1, 2, 3, 4, 5]}
    assert schema["properties"]["winner"] == {"type": "string", "enum": ["A", "B"]}
    assert schema["required"] == ["reasoning", "correct", "winner"]
    assert schema["additionalProperties"] is False
    assert "reasoning" not in Form({"a": (1, 2)}, reasoning=False).schema()["properties"]
