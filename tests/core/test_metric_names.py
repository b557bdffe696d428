"""Names of metrics begin with a family, the label of a learner or the name of a reward."""

import json

import groupwise
from groupwise.kit.metric_names import Family


def logging(completions, log_metric, **_):
    log_metric("seen", float(len(completions)))
    return [float(text.count("1")) for text in completions]


def shorter(completions, **_):
    return [-float(len(text)) for text in completions]


def names_of(result):
    lines = map(json.loads, (result.folder / "metrics.jsonl").read_text().splitlines())
    return {name for line in lines for name in line if "/" in name}


def test_every_metric_belongs_to_a_family_a_learner_or_a_reward(lab, tmp_path):
    common = {
        "prompts": {"name": "rows", "rows": lab.rows(8), "held_out": 0.5, "weighting": {}},
        "rewards": [
            {"name": lab.ones, "weight": {"start": 1.0, "end": 0.5, "steps": 2}},
            {"name": shorter, "constraint": {"at_most": 0.0}},
        ],
        "watch": [logging],
        "evaluation": {"every": 1, "accuracy": "ones", "threshold": 0.5},
        "quiet": True,
    }
    train = {"steps": 2, "groups_per_step": 4, "learning_rate": 0.1}
    alone = groupwise.train(
        **common,
        policy=lab.Tabular(),
        train={**train, "replay": {}},
        algorithm={"beta": 0.1, "reference_every": 1},
        output=tmp_path / "alone",
    )
    pooled = groupwise.train(
        **common,
        environment="pool",
        players=[{"label": label, "policy": lab.Tabular(seed=n)} for n, label in enumerate("ab")],
        train=train,
        output=tmp_path / "pool",
    )
    names = names_of(alone) | names_of(pooled)
    assert {name.partition("/")[0] for name in names} == {*Family, "a", "b"} - {
        # nothing failed, no alarm was raised, and no rollouts are of older weights
        *(Family.FAILED, Family.ALARM_SINCE, Family.STALE, Family.STALENESS),
        # no environment of several turns, or of roles
        *(Family.ENDED, Family.ENVIRONMENT, Family.TURNS, Family.TURN_REWARD, Family.BASELINE),
        Family.WATCH,  # follows `evaluation/`
    }
    assert "evaluation/watch/logging" in names


def test_the_metrics_of_a_family_are_read_without_it():
    metrics = {"rewards/a/b": 1.0, "rewards": 2.0, "rewards_of/a": 3.0, "watch/a": 4.0}
    assert Family.REWARDS.of(metrics) == {"a/b": 1.0}
