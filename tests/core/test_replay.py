"""Replay: earlier right completions in groups that have none; gradient, buffer, resuming."""

import json
from dataclasses import replace
from itertools import product

import pytest
import torch

from groupwise import train
from groupwise.algorithms.dr_grpo import DrGRPO
from groupwise.config.sections import EvaluationSection
from groupwise.config.train import ReplaySection
from groupwise.errors import UserError
from groupwise.rewards import Reward
from groupwise.storage.state import decode, encode
from groupwise.training.judge import Judge
from groupwise.training.replay import Replay


def rare(completions, prompts, **_):
    """Right where the first symbol is 2, which the policies below hardly ever take."""
    return [float(text[0] == "2") for text in completions]


rare.judges = True


def replay_of(**settings):
    judge = Judge(EvaluationSection(), Reward(name="reward", function=rare))
    return Replay(ReplaySection(**settings), judge)


def rollouts_of(lab, policy, chosen, *, version=0, size=None, prompt=0):
    """Groups of `size`, as the policy's own sampler gives them."""
    rows = [lab.rows()[prompt]] * len(chosen)
    drawn = lab.build(rows, chosen, group_size=size or len(chosen))
    with torch.no_grad():
        log_probs = policy(drawn).log_probs
    versions = torch.full((len(chosen),), version)
    return replace(drawn, sampler_log_probs=log_probs, versions=versions)


# ---- the gradient


@pytest.mark.parametrize("size", [2, 3])
def test_the_expected_gradient_keeps_its_direction_and_its_length_is_known(lab, size):
    """Over all groups of a policy that can be enumerated, and all that may be replayed in them."""
    policy = lab.Tabular(prompts=1, symbols=2, length=3, seed=1)
    older = lab.Tabular(prompts=1, symbols=2, length=3, seed=2)
    chosen = list(policy.completions())
    right = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)

    def chances(of):
        everything = lab.build(lab.rows(1) * len(chosen), chosen)
        return of(everything).log_probs.masked_fill(~everything.mask, 0.0).sum(dim=1).exp()

    now, then = chances(policy), chances(older).detach()
    rate, rate_then = (now * right).sum(), float((then * right).sum())
    (true,) = torch.autograd.grad(rate, policy.table, retain_graph=True)
    length = 4
    algorithm = DrGRPO(DrGRPO.Config(length=length, importance="sequence", importance_cap=1e9))
    good = right.nonzero().flatten().tolist()
    total = torch.zeros((), dtype=torch.float64)
    for members in product(range(len(chosen)), repeat=size):
        index = torch.tensor(members)
        group = rollouts_of(lab, policy, [chosen[m] for m in members], version=1)
        scores = lab.scores_of(right[index])
        for earlier in good:
            replay = replay_of()
            kept = rollouts_of(lab, older, [chosen[earlier], chosen[0]])
            replay.fill(kept, lab.scores_of(torch.tensor([1.0, 0.0])))
            filled = replay.fill(group, scores)
            assert int(filled.replayed.sum()) == (right[index].sum() == 0)
            with torch.no_grad():
                old = policy(filled.rollouts).log_probs
            batch = {
                **algorithm.targets(filled.scores, filled.rollouts, {}),
                "mask": filled.rollouts.mask,
                "old_log_probs": old,
                "sampler_log_probs": filled.rollouts.sampler_log_probs,
            }
            loss = algorithm.loss(policy(filled.rollouts), batch).sum()
            chance = now.detach()[index].prod() * then[earlier] / rate_then
            total = total + chance * loss
    (gradient,) = torch.autograd.grad(total * length, policy.table)
    p, q = float(rate.detach()), rate_then
    longer = 1 + (1 - p) ** size / size * (1 / q + 1 / (1 - p))
    assert longer > 1.2
    assert lab.gap(gradient, -(size - 1) / size * longer * true) < 1e-6  # weights are float32


# ---- what is kept, and where it goes

WRONG, RIGHT, OTHER = [1, 0], [2, 1, 0], [2, 0]


def filled(lab, replay, chosen, *, policy=None, prompt=0, version=0):
    policy = policy or lab.Tabular()
    drawn = rollouts_of(lab, policy, chosen, version=version, prompt=prompt)
    values = torch.tensor([float(symbols[0] == 2) for symbols in chosen])
    return replay.fill(drawn, lab.scores_of(values))


def test_a_wrong_completion_gives_way_to_an_earlier_right_one(lab):
    replay, older, newer = replay_of(), lab.Tabular(seed=1), lab.Tabular(seed=2)
    first = filled(lab, replay, [WRONG, RIGHT, WRONG, OTHER], policy=older)
    assert not first.replayed.any()
    assert first.metrics["replay/share"] == 0
    assert first.metrics["replay/kept"] == 1
    assert first.metrics["replay/bytes"] == 3 * (1 + 8 + 8 + 8) + 8  # mask, log-prob, symbols twice
    again = filled(lab, replay, [WRONG] * 4, policy=newer, version=5)
    assert again.replayed.tolist() == [False, False, False, True]
    assert again.metrics["replay/share"] == 0.25
    assert again.scores.total.tolist() == [0.0, 0.0, 0.0, 1.0]
    assert again.rollouts.trajectory["ragged"][3].tolist() == RIGHT
    assert again.rollouts.prompts == [lab.rows()[0]] * 4
    assert again.rollouts.versions.tolist() == [5, 5, 5, 0]
    assert again.rollouts.groups.tolist() == [0] * 4
    with torch.no_grad():
        expected = older(again.rollouts.select([3])).log_probs
    assert torch.equal(again.rollouts.sampler_log_probs[3], expected[0])


def test_nothing_is_replayed_where_something_is_right_or_for_another_prompt(lab):
    replay = replay_of()
    filled(lab, replay, [WRONG, RIGHT, WRONG])
    assert not filled(lab, replay, [OTHER, WRONG, WRONG]).replayed.any()
    assert not filled(lab, replay, [WRONG] * 3, prompt=1).replayed.any()
    assert filled(lab, replay, [WRONG] * 3).replayed.any()


def test_as_many_as_asked_for_are_made_up_to_by_different_ones(lab):
    replay = replay_of(at_least=2)
    filled(lab, replay, [WRONG, WRONG, RIGHT])
    filled(lab, replay, [OTHER, WRONG, WRONG])
    made = filled(lab, replay, [WRONG] * 3)
    texts = [symbols.tolist() for symbols in made.rollouts.trajectory["ragged"]]
    assert texts == [WRONG, RIGHT, OTHER]  # the newest first, from the end


def test_a_prompt_that_is_mostly_right_needs_none(lab):
    replay = replay_of()
    filled(lab, replay, [WRONG, RIGHT, WRONG])
    filled(lab, replay, [RIGHT, RIGHT, WRONG])
    assert not replay.kept
    filled(lab, replay, [RIGHT, RIGHT, RIGHT])
    assert not filled(lab, replay, [WRONG] * 3).replayed.any()


def test_what_is_kept_is_bounded_and_the_oldest_prompt_goes(lab):
    replay = replay_of(size=3)
    for prompt in (0, 1, 2, 0, 3):
        made = filled(lab, replay, [WRONG, RIGHT, WRONG], prompt=prompt)
    assert made.metrics["replay/kept"] == 3
    assert [json.loads(text) for text in replay.kept] == [f"question {n}" for n in (2, 0, 3)]


def test_its_state_is_all_of_it(lab):
    replay, again = replay_of(at_least=2), replay_of(at_least=2)
    for prompt, chosen in enumerate([[WRONG, RIGHT, WRONG], [OTHER, RIGHT, WRONG, WRONG]]):
        filled(lab, replay, chosen, prompt=prompt)
    state, tensors = encode(replay.state_dict(), "replay")
    again.load_state_dict(decode(json.loads(json.dumps(state)), tensors))
    for prompt in range(2):
        left, right = (filled(lab, r, [WRONG] * 4, prompt=prompt) for r in (replay, again))
        assert left.metrics == right.metrics
        assert int(left.replayed.sum()) == prompt + 1
        for name in ("mask", "sampler_log_probs", "versions"):
            assert torch.equal(getattr(left.rollouts, name), getattr(right.rollouts, name))
        for name in ("symbols", "prompt"):
            columns = left.rollouts.tensor(name), right.rollouts.tensor(name)
            assert torch.equal(*columns)
    again.load_state_dict(None)
    assert again.state_dict() is None


# ---- a run


def seldom(lab):
    """A policy whose completions are right once in a dozen."""
    policy = lab.Tabular(prompts=8, seed=3)
    with torch.no_grad():
        policy.table[:, 0, :, 2] -= 3.0
    return policy


def run(lab, folder, *, resume=False, **more):
    settings = {"steps": 8, "groups_per_step": 4, "group_size": 4, "learning_rate": 0.02}
    return train(
        policy=seldom(lab),
        prompts=lab.rows(4),
        rewards=[rare],
        train={**settings, "checkpoint_every": 4, "replay": {}, **more},
        evaluation={"prompts": 0},
        output=folder,
        resume=resume,
        quiet=True,
        **{"prompts.held_out": 0.0},
    )


def lines(folder):
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    read = [line for line in read if "loss" in line]
    return [{k: v for k, v in r.items() if "time" not in k and "second" not in k} for r in read]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_resumed_run_replays_the_same(lab, tmp_path, ahead):
    whole = run(lab, tmp_path / "through", ahead=ahead)
    run(lab, tmp_path / "cut", ahead=ahead, steps=4)
    resumed = run(lab, tmp_path / "cut", ahead=ahead, resume=True)
    made = lines(tmp_path / "through")
    assert made == lines(tmp_path / "cut")
    assert torch.equal(whole.policy.table, resumed.policy.table)
    assert any(line["replay/share"] for line in made[4:])


def test_metrics_are_of_fresh_completions_alone(lab, tmp_path):
    """At a learning rate of 0 two runs sample the same, whatever is replayed."""
    run(lab, tmp_path / "with", learning_rate=0.0)
    run(lab, tmp_path / "without", learning_rate=0.0, replay=None)
    both = zip(lines(tmp_path / "with"), lines(tmp_path / "without"), strict=True)
    seen = 0.0
    for left, right in both:
        for name in ("reward", "accuracy", "length", "zero_variance", "reward_std"):
            assert left[name] == right[name]
        seen += left["replay/share"]
    assert seen > 0


def test_a_replayed_completion_counts_by_its_ratio_and_is_no_mismatch(lab):
    trainer = lab.trainer(
        seldom(lab), reward=rare, learning_rate=0.3, source=lab.rows(2), held_out=0.0, steps=12
    )
    trainer.learner.replay = replay_of()
    trainer.learner.replay.judge = trainer.experience.judge
    steps = []
    assert lab.fit(trainer, lambda _, metrics: steps.append(metrics))
    replayed = [metrics for metrics in steps if metrics["replay/share"]]
    assert replayed
    assert all(metrics["importance"] != 1.0 for metrics in replayed)
    assert all(metrics["mismatch/max"] < 1e-9 for metrics in replayed)
    assert all("importance" not in metrics for metrics in steps if not metrics["replay/share"])


# ---- refused


def graded(completions, **_):
    return [0.25 * len(text) for text in completions]


@pytest.mark.parametrize(
    ("reward", "more", "message"),
    [
        (rare, {"train.replay": {"at_least": 4}}, r"replay\.at_least: 4 right .* no wrong one in"),
        (rare, {"algorithm": {"importance": "none"}}, r"replay: learns .* set algorithm\.importan"),
        (rare, {"algorithm": {"name": "dapo"}}, r"train\.replay: fills .* algorithm\.refill: fal"),
        (graded, {}, r"train\.replay: the first reward gives values other than 0 and 1"),
        (rare, {"train.replay": {"at_least": 3, "size": 2}}, r"size: 2 kept .* fewer than the 3"),
        (graded, {"train.replay": {"size": 0}}, r"train\.replay\.size: expected at least 1, fou"),
    ],
)
def test_contradictions_are_told(lab, tmp_path, reward, more, message):
    with pytest.raises(UserError, match=message):
        train(
            policy=lab.Tabular(),
            prompts=lab.rows(),
            rewards=[reward],
            train={"steps": 1, "groups_per_step": 2, "group_size": 4},
            output=tmp_path / "run",
            quiet=True,
            **{"train.replay": {}, **more},
        )


def test_a_sampler_that_states_no_log_probs_is_refused_at_once(lab):
    replay, drawn = replay_of(), rollouts_of(lab, lab.Tabular(), [WRONG, RIGHT])
    with pytest.raises(UserError, match=r"train\.replay: the sampler gives no log-probs"):
        replay.fill(replace(drawn, sampler_log_probs=None), lab.scores_of(torch.tensor([0.0, 1])))


def test_rewards_of_before_are_left_where_a_resumed_run_has_others(lab):
    replay = replay_of()
    filled(lab, replay, [WRONG, RIGHT, WRONG])
    drawn = rollouts_of(lab, lab.Tabular(), [WRONG] * 3)
    scores = replace(lab.scores_of(torch.zeros(3)), names=("another",))
    assert not replay.fill(drawn, scores).replayed.any()
