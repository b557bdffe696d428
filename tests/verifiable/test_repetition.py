"""`repetition`, `token_count` and `soft_overlong`."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from groupwise_verifiable.text.overlong import SoftOverlong
from groupwise_verifiable.text.repetition import Repetition
from groupwise_verifiable.text.token_count import TokenCount


def test_repetition_of_tokens() -> None:
    reward = Repetition(Repetition.Config(size=2, max_penalty=-1.0))
    ids = [[1, 2, 3, 4], [5, 5, 5, 5, 5], [1, 2, 1, 2], [7], []]
    # Distinct pairs of all pairs: 3/3, 1/4, 2/3; then too few tokens for one.
    expected = [0.0, -0.75, pytest.approx(-1 / 3), 0.0, 0.0]
    assert reward(["p"] * 5, ["same same same"] * 5, completion_ids=ids) == expected


def test_repetition_of_words_where_there_are_no_tokens() -> None:
    reward = Repetition(Repetition.Config(size=1, max_penalty=-2.0))
    assert reward(["p"], ["No no NO yes"]) == [-1.0]


def test_over_selects_words_or_tokens() -> None:
    words = Repetition(Repetition.Config(size=1, over="words"))
    assert words(["p"], ["a a"], completion_ids=[[1, 2]]) == [-0.5]
    tokens = Repetition(Repetition.Config(size=1, over="tokens"))
    assert tokens(["p"], ["a a"], completion_ids=[[1, 2]]) == [0.0]
    with pytest.raises(ValueError, match="'repetition' needs the column 'completion_ids'"):
        tokens(["p"], ["a a"])


def test_repetition_is_never_rewarded() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 0"):
        Repetition.Config(max_penalty=0.5)


def test_token_count() -> None:
    ids = [[7, 8, 0], []]
    assert TokenCount()(["p"] * 2, ["ab", ""], completion_ids=ids) == [3.0, 0.0]
    characters = TokenCount(TokenCount.Config(unit="characters"))
    assert characters(["p"] * 2, ["ab", [{"role": "assistant", "content": "c"}]]) == [2.0, 1.0]
    with pytest.raises(ValueError, match="'token_count' needs the column 'completion_ids'"):
        TokenCount()(["p"], ["a"])


def test_soft_overlong() -> None:
    reward = SoftOverlong(SoftOverlong.Config(max_length=100, cache=20))
    ids = [[0] * length for length in (0, 80, 81, 90, 100, 101)]
    assert reward(["p"] * 6, [""] * 6, completion_ids=ids) == [0.0, 0.0, -0.05, -0.5, -1.0, -1.0]


def test_soft_overlong_with_a_cache_of_0_is_a_step() -> None:
    reward = SoftOverlong(SoftOverlong.Config(max_length=10, cache=0))
    assert reward(["p"] * 2, [""] * 2, completion_ids=[[0] * 10, [0] * 11]) == [0.0, -1.0]
    with pytest.raises(ValidationError, match=r"cache \(11\) must not exceed max_length \(10\)"):
        SoftOverlong.Config(max_length=10, cache=11)
