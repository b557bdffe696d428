"""The reward `judge`."""

import json

import pytest
from tests.judge.conftest import metric
from tests.judge.stand_in import text_of

from groupwise.rewards import RewardError
from groupwise_judge.grading import Judge

ASPECTS = [
    {"name": "true", "description": "whether it is true", "scale": [0, 10], "weight": 3},
    {"name": "short", "description": "whether it is short"},
]


def judge(server, **options):
    options = {"aspects": ASPECTS, "cache": None, "reasoning": False, **options}
    return Judge(Judge.Config(server=server.address, model="m", **options))


def test_aspects_are_weighted(serve, score):
    server = serve(lambda _: '{"true": 5, "short": 5}')
    scores = score(judge(server), ["a"])
    assert scores.values.tolist() == [[pytest.approx((3 * 0.5 + 1) / 4)]]
    assert metric(scores, "aspect_true") == 5
    assert scores.extra["judge_scores"] == [{"true": 5.0, "short": 5.0}]
    assert "whether it is true" in server.requests[0]["messages"][0]["content"]


def test_several_answers_have_seeds_of_their_own_and_their_mean_counts(serve, score):
    def judges(request):
        return json.dumps({"true": 2 * request.get("seed", 0), "short": 1})

    server = serve(judges)
    scores = score(judge(server, answers=4), ["a"])
    assert scores.extra["judge_scores"] == [{"true": 3.0, "short": 1.0}]
    assert {request["temperature"] for request in server.requests} == {1.0}
    score(judge(server, answers=3, options={"seed": None}), ["b"])
    assert len(server.requests) == 4 + 3


@pytest.mark.parametrize(("unreadable", "fails"), [(1, False), (2, True)])
def test_a_verdict_needs_more_than_half_of_its_answers(serve, score, unreadable, fails):
    def judges(request):
        return "Great!" if request["seed"] < unreadable else '{"true": 10, "short": 5}'

    scores = score(judge(serve(judges), answers=4), ["a"])
    assert scores.failed.tolist() == [fails]
    assert metric(scores, "unreadable_prose") == unreadable / 4


def test_unreadable_answers_are_failed_samples_by_reason_and_never_a_zero(serve, score):
    answers = {
        "prose": "Sure! I give it a 10.",
        "range": '{"true": 11, "short": 5}',
        "fields": '{"true": 10}',
        "right": '{"true": 0, "short": 1}',
    }

    def judges(request):
        return next(answer for word, answer in answers.items() if f"\n{word}\n" in text_of(request))

    scores = score(judge(serve(judges)), list(answers))
    assert scores.failed.tolist() == [True, True, True, False]
    assert scores.values[3].item() == 0.0
    assert [reason and reason.partition("answered ")[2] for reason in scores.reasons] == [
        "'Sure! I give it a 10.', which is not JSON",
        "true: 11, expected an integer from 0 to 10",
        "without 'short'",
        None,
    ]
    assert [metric(scores, f"unreadable_{kind}") for kind in list(answers)[:3]] == [0.25] * 3


def test_the_prompt_and_a_reference_answer_are_shown_if_configured(serve, score):
    server = serve(lambda _: '{"true": 5, "short": 5}')
    rows = [{"prompt": "2 + 3?", "gold": "five"}]
    score(judge(server, reference="gold"), ["5"], rows=rows)
    score(judge(server, prompt=False), ["5"], rows=rows)
    with_all, alone = map(text_of, server.requests)
    assert with_all.index("2 + 3?") < with_all.index("five") < with_all.index("\n5\n")
    assert "2 + 3?" not in alone
    assert "five" not in alone


def test_a_missing_column_is_a_mistake_of_the_configuration(serve, score):
    reward = judge(serve(lambda _: ""), reference="gold")
    with pytest.raises(RewardError, match="the judge needs the column 'gold'"):
        score(reward, ["5"])


def test_it_is_no_measure_of_accuracy(serve):
    assert judge(serve(lambda _: "")).judges is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aspects": None}, r"set either rubric \(a file\) or aspects"),
        ({"rubric": "r.md"}, "set either rubric"),
        ({"server": "localhost:8000"}, "expected an address such as http"),
        ({"server": "http://"}, "expected an address such as http"),
        ({"server": "http://host:port/v1"}, "expected an address such as http"),
        ({"server": "https://api.example.com/v1"}, r"needs a key: set `api_key: \$\{NAME\}`"),
        ({"answers": 3, "temperature": 0}, "would all be the same"),
        ({"options": {"model": "other"}}, "'model' is not a further field"),
        ({"concurrency": 0}, "greater than or equal to 1"),
        ({"sever": "http://x"}, "Extra inputs are not permitted"),
    ],
)
def test_mistakes_in_settings_are_named(options, message):
    settings = {"server": "http://localhost/v1", "model": "m", "aspects": ASPECTS, **options}
    with pytest.raises(ValueError, match=message):
        Judge.Config(**settings)


def test_an_https_server_may_need_no_key():
    Judge.Config(server="https://judge.lan/v1", model="m", aspects=ASPECTS, api_key=None)
