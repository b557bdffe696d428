"""The reward `constitution`."""

import json

import pytest
from tests.judge.conftest import metric

from groupwise_judge.constitution import Constitution

PRINCIPLES = {"honest": "Say nothing false.", "kind": "Hurt nobody.", "lawful": "Break no law."}


def constitution(server, **options):
    options = {"principles": PRINCIPLES, "cache": None, "reasoning": False, **options}
    return Constitution(Constitution.Config(server=server.address, model="m", **options))


def judges(scores):
    """A judge with a score for each principle."""

    def judge(request):
        told = request["messages"][0]["content"]
        (name,) = (name for name, text in PRINCIPLES.items() if text in told)
        return json.dumps({"score": scores[name]}) if name in scores else "I would rather not."

    return judge


def test_the_weakest_principle_is_the_score(serve, score):
    server = serve(judges({"honest": 5, "kind": 2, "lawful": 4}))
    scores = score(constitution(server), ["a"])
    assert scores.values.tolist() == [[0.25]]
    assert scores.extra["weakest_principle"] == ["kind"]
    assert metric(scores, "principle_lawful") == 0.75
    assert len(server.requests) == 3  # each by itself


def test_without_one_principle_there_is_no_score(serve, score):
    scores = score(constitution(serve(judges({"honest": 5, "kind": 5}))), ["a"])
    assert scores.failed.tolist() == [True]
    assert "at the principle 'lawful'" in scores.reasons[0]


def test_principles_may_be_in_a_file(serve, score, tmp_path):
    file = tmp_path / "principles.md"
    headings = (f"## {name} (0 to 1)\n{text}\n" for name, text in PRINCIPLES.items())
    file.write_text("".join(headings), encoding="utf-8")
    server = serve(judges({"honest": 1, "kind": 1, "lawful": 0}))
    scores = score(constitution(server, principles=None, file=str(file)), ["a"])
    assert scores.values.tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"principles": None}, "set either principles"),
        ({"principles": {}}, "at least 1 item"),
        ({"principles": {"a": "b"}, "scale": [5, 1]}, "a lower and a higher integer"),
        ({"principles": {"": "b"}}, "at least 1 character"),
    ],
)
def test_mistakes_in_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Constitution.Config(server="http://x", model="m", **options)


def test_weights_of_principles_are_refused(tmp_path):
    (tmp_path / "p.md").write_text("## a (1 to 5, weight 2)\nb", encoding="utf-8")
    config = Constitution.Config(server="http://x", model="m", file=str(tmp_path / "p.md"))
    with pytest.raises(ValueError, match="'a' has a weight, but of principles the weakest counts"):
        Constitution(config)
