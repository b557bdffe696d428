"""`self_correction`: doubt, and then another result."""

import pytest

from groupwise_verifiable.text.self_correction import SelfCorrection


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12 + 34 = 47. Wait, 12 + 34 = 46.\n<answer>\n46</answer>", 1.0),
        ("12 + 34 is 47. Hold on: that is wrong. So the sum is 46", 1.0),
        ("12 + 34 = 47 不对 12加上34等于46", 1.0),
        ("x = 3. Let me re-check. So \\boxed{4}", 1.0),
        ("12 + 34 = 46. Wait, let me check: 46 - 34 = 12, so it is 46.", 0.0),  # confirmed
        ("12 + 34 = 47, 12 + 34 = 46", 0.0),  # no doubt
        ("Wait, 12 + 34 = 46", 0.0),  # nothing before it
        ("12 + 34 = 46. Wait for me!", 0.0),
        ("The waiter said that 1 + 1 = 3 and 1 + 1 = 2", 0.0),
        ("", 0.0),
    ],
)
def test_a_completion_that_changes_a_result(text, value):
    assert SelfCorrection()(["p"], [text]) == [value]
