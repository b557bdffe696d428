"""The reward `judge_ranking`."""

import json
import re
from collections import Counter
from itertools import combinations

import pytest
from PIL import Image
from tests.judge.conftest import metric
from tests.judge.stand_in import text_of

from groupwise_judge.ranking import JudgeRanking


def ranking(server, **options):
    options = {"cache": None, "reasoning": False, **options}
    return JudgeRanking(JudgeRanking.Config(server=server.address, model="m", **options))


def shown(request):
    """Completions A and B of a request."""
    return tuple(
        re.search(rf"completion {letter}>\n(.*)\n</data", text_of(request))[1] for letter in "AB"
    )


def longer(request):
    """Prefers the longer completion."""
    first, second = map(len, shown(request))
    winner = "tie" if first == second else "A" if first > second else "B"
    return json.dumps({"winner": winner})


def values(scores):
    return [round(value, 4) for value in scores.values[:, 0].tolist()]


def test_the_reward_is_the_share_of_the_group_that_a_completion_beats(serve, score):
    server = serve(longer)
    scores = score(ranking(server), ["a", "bb", "ccc", "dd", "e", "ffff"], group_size=3)
    assert values(scores) == [0, 0.5, 1, 0.5, 0, 1]
    assert len(server.requests) == 2 * 3 * 2  # G x (G - 1) for each of two groups
    asked = Counter(map(shown, server.requests))
    assert set(asked) == {
        pair
        for group in (["a", "bb", "ccc"], ["dd", "e", "ffff"])
        for one, other in combinations(group, 2)
        for pair in ((one, other), (other, one))
    }


def test_a_tie_counts_half_and_equal_completions_are_not_asked_about(serve, score):
    server = serve(longer)
    assert values(score(ranking(server), ["aa", "bb", "bb"], group_size=3)) == [0.5] * 3
    assert len(server.requests) == 2


def test_a_judge_that_prefers_what_it_reads_first_has_no_say(serve, score):
    scores = score(ranking(serve(lambda _: '{"winner": "A"}')), ["a", "b", "c"], group_size=3)
    assert values(scores) == [0.5] * 3
    assert metric(scores, "first_wins") == 1
    assert metric(scores, "contradictions") == 1


def test_with_few_opponents_each_completion_has_as_many(serve, score):
    server = serve(longer)
    completions = ["x" * n for n in range(1, 8)]
    scores = score(ranking(server, opponents=4), completions, group_size=7)
    assert len(server.requests) == 7 * 4
    assert set(Counter(text for r in server.requests for text in shown(r)).values()) == {8}
    assert scores.extra["comparisons"] == [4] * 7
    assert values(scores)[0] == 0
    assert values(scores)[-1] == 1


def test_a_comparison_that_cannot_be_read_counts_for_neither(serve, score):
    def judges(request):
        return "B is awful" if "ccc" in shown(request) else longer(request)

    scores = score(ranking(serve(judges)), ["a", "bb", "ccc", "dddd"], group_size=4)
    assert scores.failed.tolist() == [False, False, True, False]
    assert values(scores)[:2] == [0, 0.5]
    assert "answered 'B is awful', which is not JSON" in scores.reasons[2]


def test_a_picture_is_encoded_once_for_all_of_its_comparisons(serve, score, monkeypatch):
    saved, save = [], Image.Image.save
    monkeypatch.setattr(Image.Image, "save", lambda *a, **k: (saved.append(a[0]), save(*a, **k)))
    pictures = [Image.new("RGB", (2, 2), color) for color in ("red", "green", "blue", "white")]
    server = serve(lambda _: '{"winner": "tie"}')
    assert values(score(ranking(server), pictures, group_size=4)) == [0.5] * 4
    assert len(server.requests) == 12
    assert len(saved) == 4
    assert text_of(server.requests[0]).count("[picture]") == 2


def test_the_pixels_of_a_picture_are_read_once_for_all_of_its_questions(serve, score, monkeypatch):
    read, tobytes = [], Image.Image.tobytes
    monkeypatch.setattr(Image.Image, "tobytes", lambda own: (read.append(own), tobytes(own))[1])
    pictures = [Image.new("RGB", (2, 2), color) for color in ("red", "green", "blue", "white")]
    score(ranking(serve(lambda _: '{"winner": "tie"}')), pictures, group_size=4)
    assert sorted(map(tobytes, read)) == sorted(map(tobytes, pictures))


def test_a_completion_alone_has_no_value(serve, score):
    assert score(ranking(serve(longer)), ["a"]).values.isnan().all()


@pytest.mark.parametrize("purpose", ["evaluate", "greedy"])
def test_an_evaluation_compares_with_those_before_the_run(serve, score, purpose):
    references = [["a", "bbbb"], ["cc"], []]
    scores = score(
        ranking(serve(longer)), ["bb", "bbb", "b"], purpose=purpose, references=references
    )
    assert values(scores)[:2] == [0.5, 1]
    assert scores.values[2].isnan()


def test_an_evaluation_compares_with_a_column(serve, score):
    rows = [{"prompt": "p", "earlier": text} for text in ("a", None, "ccc")]
    scores = score(
        ranking(serve(longer), baseline="earlier"), ["bb"] * 3, rows=rows, purpose="evaluate"
    )
    assert [str(value) for value in values(scores)] == ["1.0", "nan", "0.0"]


def test_the_criterion_is_told(serve, score):
    server = serve(longer)
    score(ranking(server, criterion="which one rhymes."), ["a", "bb"], group_size=2)
    told = server.requests[0]["messages"][0]["content"]
    assert "which one is better by this criterion: which one rhymes. Neither" in told


@pytest.mark.parametrize("opponents", [0, 1, 3, -2])
def test_the_number_of_opponents_is_even(opponents):
    with pytest.raises(ValueError, match="expected an even number from 2"):
        JudgeRanking.Config(server="http://x", model="m", opponents=opponents)
