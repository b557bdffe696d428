"""Replay puts earlier right completions into groups without any: gradient, buffer, resuming."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from tests.repeated import cut, step_lines

from groupwise import train
from groupwise.kit.errors import UserError
from groupwise.prompts.identity import fingerprint
from groupwise_algorithms.dr_grpo import DrGRPO


def rare(completions, prompts, **_):
    """Right if the first symbol is 2, which the policies below rarely choose."""
    return [float(text[0] == "2") for text in completions]


rare.judges = True


def rollouts_of(lab, policy, chosen, *, version=0, size=None, prompt=0, **columns):
    """Rollouts of these completions in groups of `size`, with log-probs of this policy."""
    rows = [{**lab.rows()[prompt], **columns}] * len(chosen)
    rollouts = lab.build(rows, chosen, group_size=size or len(chosen))
    with torch.no_grad():
        log_probs = policy(rollouts).log_probs
    versions = torch.full((len(chosen),), version)
    return replace(rollouts, sampler_log_probs=log_probs, versions=versions)


# ---- the gradient


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.slow(after=1)
def test_replay_scales_the_expected_gradient_by_a_known_factor(lab, size):
    """Over all groups of a tiny policy, and all completions that may be replayed in them."""
    policy = lab.Tabular(prompts=1, symbols=2, length=3, seed=1)
    older = lab.Tabular(prompts=1, symbols=2, length=3, seed=2)
    chosen = list(policy.completions())
    right = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)

    def probabilities(source):
        all_rollouts = lab.build(lab.rows(1) * len(chosen), chosen)
        return source(all_rollouts).log_probs.masked_fill(~all_rollouts.mask, 0.0).sum(dim=1).exp()

    new_probabilities, older_probabilities = probabilities(policy), probabilities(older).detach()
    rate, older_rate = (new_probabilities * right).sum(), float((older_probabilities * right).sum())
    (true_gradient,) = torch.autograd.grad(rate, policy.table, retain_graph=True)
    length = 4
    algorithm = DrGRPO(DrGRPO.Config(length=length, importance="sequence", importance_cap=1e9))
    right_indices = right.nonzero().flatten().tolist()
    total = torch.zeros((), dtype=torch.float64)
    for members in product(range(len(chosen)), repeat=size):
        index = torch.tensor(members)
        group = rollouts_of(lab, policy, [chosen[m] for m in members], version=1)
        scores = lab.scores_of(right[index])
        for earlier in right_indices:
            replay = lab.replay_of(rare)
            older_group = rollouts_of(lab, older, [chosen[earlier], chosen[0]])
            lab.fill(replay, older_group, lab.scores_of(torch.tensor([1.0, 0.0])), 0)
            filled = lab.fill(replay, group, scores, 1)
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
            probability = (
                new_probabilities.detach()[index].prod() * older_probabilities[earlier] / older_rate
            )
            total = total + probability * loss
    (gradient,) = torch.autograd.grad(total * length, policy.table)
    p, q = float(rate.detach()), older_rate
    factor = 1 + (1 - p) ** size / size * (1 / q + 1 / (1 - p))
    assert factor > 1.2
    expected = -(size - 1) / size * factor * true_gradient
    assert lab.gap(gradient, expected) < 1e-6  # weights are float32


# ---- the buffer

WRONG, RIGHT, OTHER = [1, 0], [2, 1, 0], [2, 0]


def fill(lab, replay, chosen, *, policy=None, prompt=0, version=0, **columns):
    policy = policy or lab.Tabular()
    rollouts = rollouts_of(lab, policy, chosen, version=version, prompt=prompt, **columns)
    values = torch.tensor([float(symbols[0] == 2) for symbols in chosen])
    return lab.fill(replay, rollouts, lab.scores_of(values), version)


def test_a_wrong_completion_is_replaced_by_an_earlier_right_one(lab):
    replay, older, newer = lab.replay_of(rare), lab.Tabular(seed=1), lab.Tabular(seed=2)
    first = fill(lab, replay, [WRONG, RIGHT, WRONG, OTHER], policy=older)
    assert not first.replayed.any()
    assert first.metrics["replay/share"] == 0
    assert first.metrics["replay/kept"] == 1
    assert first.metrics["replay/bytes"] == 3 * (1 + 8 + 8 + 8) + 8  # mask, log-prob, symbols twice
    second = fill(lab, replay, [WRONG] * 4, policy=newer, version=5)
    assert second.replayed.tolist() == [False, False, False, True]
    assert second.metrics["replay/share"] == 0.25
    assert second.scores.total.tolist() == [0.0, 0.0, 0.0, 1.0]
    assert second.rollouts.trajectory["ragged"][3].tolist() == RIGHT
    assert second.rollouts.prompts == [lab.rows()[0]] * 4
    assert second.rollouts.versions.tolist() == [5, 5, 5, 0]
    assert second.rollouts.groups.tolist() == [0] * 4
    with torch.no_grad():
        expected = older(second.rollouts.select([3])).log_probs
    assert torch.equal(second.rollouts.sampler_log_probs[3], expected[0])


def test_nothing_is_replayed_into_a_group_with_a_right_completion_or_of_another_prompt(lab):
    replay = lab.replay_of(rare)
    fill(lab, replay, [WRONG, RIGHT, WRONG])
    assert not fill(lab, replay, [OTHER, WRONG, WRONG]).replayed.any()
    assert not fill(lab, replay, [WRONG] * 3, prompt=1).replayed.any()
    assert fill(lab, replay, [WRONG] * 3).replayed.any()


def test_rows_with_the_same_prompt_keep_their_own_completions(lab):
    """The score of a kept completion is for the gold answer of its own row."""
    replay = lab.replay_of(rare)
    fill(lab, replay, [WRONG, RIGHT, WRONG], answer="4")
    assert not fill(lab, replay, [WRONG] * 3, answer="5").replayed.any()
    assert fill(lab, replay, [WRONG] * 3, answer="4").replayed.any()


def test_kept_completions_have_an_age_limit(lab):
    replay, patient = lab.replay_of(rare, age=10), lab.replay_of(rare, age=None)
    for each in (replay, patient):
        fill(lab, each, [WRONG, RIGHT, WRONG], version=5)
        assert fill(lab, each, [WRONG] * 3, version=15).replayed.any()
    expired = fill(lab, replay, [WRONG] * 3, version=16)
    assert not expired.replayed.any()
    assert (expired.metrics["replay/kept"], expired.metrics["replay/bytes"]) == (0, 0)
    assert fill(lab, patient, [WRONG] * 3, version=1000).replayed.any()


def test_at_least_completions_are_filled_with_different_ones_the_newest_first(lab):
    replay = lab.replay_of(rare, at_least=2)
    fill(lab, replay, [WRONG, WRONG, RIGHT])
    fill(lab, replay, [OTHER, WRONG, WRONG])
    filled = fill(lab, replay, [WRONG] * 3)
    texts = [symbols.tolist() for symbols in filled.rollouts.trajectory["ragged"]]
    assert texts == [WRONG, RIGHT, OTHER]  # the newest first, from the end


def test_completions_of_a_prompt_that_is_mostly_right_are_dropped(lab):
    replay = lab.replay_of(rare)
    fill(lab, replay, [WRONG, RIGHT, WRONG])
    fill(lab, replay, [RIGHT, RIGHT, WRONG])
    assert not replay.kept
    fill(lab, replay, [RIGHT, RIGHT, RIGHT])
    assert not fill(lab, replay, [WRONG] * 3).replayed.any()


def test_the_size_is_bounded_and_the_oldest_prompt_is_dropped(lab):
    replay = lab.replay_of(rare, size=3)
    for prompt in (0, 1, 2, 0, 3):
        filled = fill(lab, replay, [WRONG, RIGHT, WRONG], prompt=prompt)
    assert filled.metrics["replay/kept"] == 3
    assert [*replay.kept] == [fingerprint(lab.rows()[n]) for n in (2, 0, 3)]


def test_a_restored_buffer_replays_the_same(lab, reloaded):
    replay, restored = lab.replay_of(rare, at_least=2), lab.replay_of(rare, at_least=2)
    for prompt, chosen in enumerate([[WRONG, RIGHT, WRONG], [OTHER, RIGHT, WRONG, WRONG]]):
        fill(lab, replay, chosen, prompt=prompt)
    restored.load_state_dict(reloaded(replay.state_dict()))
    for prompt in range(2):
        left, right = (fill(lab, r, [WRONG] * 4, prompt=prompt) for r in (replay, restored))
        assert left.metrics == right.metrics
        assert int(left.replayed.sum()) == prompt + 1
        for name in ("mask", "sampler_log_probs", "versions"):
            assert torch.equal(getattr(left.rollouts, name), getattr(right.rollouts, name))
        for name in ("symbols", "prompt"):
            columns = left.rollouts.tensor(name), right.rollouts.tensor(name)
            assert torch.equal(*columns)
    restored.load_state_dict(None)
    assert restored.state_dict() is None


def test_completions_kept_by_prompt_in_an_earlier_version_are_refused(lab):
    replay = lab.replay_of(rare)
    fill(lab, replay, [WRONG, RIGHT, WRONG])
    state = replay.state_dict()
    state["prompts"] = state.pop("rows")
    with pytest.raises(
        UserError, match=r"train\.replay: .* are by prompt, .* without train\.replay"
    ):
        replay.load_state_dict(state)


# ---- a run


def policy_rarely_right(lab):
    """A policy with about one right completion in twelve."""
    policy = lab.Tabular(prompts=8, seed=3)
    with torch.no_grad():
        policy.table[:, 0, :, 2] -= 3.0
    return policy


def run(lab, folder, *, resume=False, **options):
    settings = {"steps": 8, "groups_per_step": 4, "group_size": 4, "learning_rate": 0.02}
    return train(
        policy=policy_rarely_right(lab),
        prompts=lab.rows(4),
        rewards=[rare],
        train={**settings, "checkpoint_every": 4, "replay": {}, **options},
        evaluation={"prompts": 0},
        output=folder,
        resume=resume,
        quiet=True,
        **{"prompts.held_out": 0.0},
    )


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_resumed_run_replays_the_same(lab, tmp_path, ahead):
    uninterrupted = run(lab, tmp_path / "through", ahead=ahead)
    cut(tmp_path / "through", tmp_path / "cut", step=4)
    resumed = run(lab, tmp_path / "cut", ahead=ahead, resume=True)
    expected = step_lines(tmp_path / "through")
    assert expected == step_lines(tmp_path / "cut")
    assert torch.equal(uninterrupted.policy.table, resumed.policy.table)
    assert any(line["replay/share"] for line in expected[4:])


def test_metrics_are_only_of_sampled_completions(lab, tmp_path):
    """With a learning rate of 0, runs with and without replay sample the same completions."""
    run(lab, tmp_path / "with", learning_rate=0.0)
    run(lab, tmp_path / "without", learning_rate=0.0, replay=None)
    both = zip(step_lines(tmp_path / "with"), step_lines(tmp_path / "without"), strict=True)
    share = 0.0
    for left, right in both:
        for name in ("reward", "accuracy", "length", "zero_variance", "reward_std"):
            assert left[name] == right[name]
        share += left["replay/share"]
    assert share > 0


def test_replayed_completions_have_importance_weights_but_no_mismatch(lab):
    trainer = lab.trainer(
        policy_rarely_right(lab),
        reward=rare,
        learning_rate=0.3,
        source=lab.rows(2),
        held_out=0.0,
        steps=12,
        replay={},
    )
    steps = []
    assert lab.fit(trainer, lambda _, metrics: steps.append(metrics))
    replayed = [metrics for metrics in steps if metrics["replay/share"]]
    assert replayed
    assert all(metrics["importance"] != 1.0 for metrics in replayed)
    assert all(metrics["mismatch/max"] < 1e-9 for metrics in replayed)
    assert all("importance" not in metrics for metrics in steps if not metrics["replay/share"])


# ---- what is refused


def graded(completions, **_):
    return [0.25 * len(text) for text in completions]


@pytest.mark.parametrize(
    ("reward", "sections", "message"),
    [
        (rare, {"train.replay": {"at_least": 4}}, r"replay\.at_least: 4 right .* no wrong one in"),
        (rare, {"algorithm": {"importance": "none"}}, r"replay: learns .* set algorithm\.importan"),
        (rare, {"algorithm": {"name": "dapo"}}, r"train\.replay: fills .* algorithm\.refill: fal"),
        (graded, {}, r"train\.replay: needs .* evaluation\.threshold, the .* `judges = True`"),
        (graded, {"train.replay": {"age": 0}}, r"train\.replay\.age: expected at least 1, found 0"),
        (rare, {"train.replay": {"at_least": 3, "size": 2}}, r"size: 2 kept .* fewer than the 3"),
        (graded, {"train.replay": {"size": 0}}, r"train\.replay\.size: expected at least 1, fou"),
    ],
)
def test_contradicting_settings_are_refused(lab, tmp_path, reward, sections, message):
    with pytest.raises(UserError, match=message):
        train(
            policy=lab.Tabular(),
            prompts=lab.rows(),
            rewards=[reward],
            train={"steps": 1, "groups_per_step": 2, "group_size": 4},
            output=tmp_path / "run",
            quiet=True,
            **{"train.replay": {}, **sections},
        )


def test_a_sampler_without_log_probs_is_refused(lab):
    replay, rollouts = lab.replay_of(rare), rollouts_of(lab, lab.Tabular(), [WRONG, RIGHT])
    with pytest.raises(UserError, match=r"train\.replay: the sampler gives no log-probs"):
        lab.fill(
            replay,
            replace(rollouts, sampler_log_probs=None),
            lab.scores_of(torch.tensor([0.0, 1])),
            0,
        )


def test_completions_scored_by_other_rewards_are_not_replayed(lab):
    replay = lab.replay_of(rare)
    fill(lab, replay, [WRONG, RIGHT, WRONG])
    rollouts = rollouts_of(lab, lab.Tabular(), [WRONG] * 3)
    scores = replace(lab.scores_of(torch.zeros(3)), names=("another",))
    assert not lab.fill(replay, rollouts, scores, 0).replayed.any()


def test_completions_with_other_columns_of_the_trajectory_are_dropped(lab):
    """A resumed run may have a policy that stores fewer."""
    replay = lab.replay_of(rare)
    fill(lab, replay, [WRONG, RIGHT, WRONG])
    rollouts = rollouts_of(lab, lab.Tabular(), [WRONG, RIGHT, WRONG], prompt=1)
    columns = {n: c for n, c in rollouts.trajectory.items() if n != "ragged"}
    scores = lab.scores_of(torch.tensor([0.0, 1, 0]))
    lab.fill(replay, replace(rollouts, trajectory=columns), scores, 0)
    assert replay.state_dict()["trajectory"].keys() == columns.keys()


# ---- what is right


def late_graded(completions, trainer_state, **_):
    """0 or 1 in the first three steps, then also values between."""
    late = trainer_state.global_step >= 3
    return [
        float(text[0] == "2") or (0.5 if late and text[0] == "1" else 0) for text in completions
    ]


late_graded.judges = True


@pytest.mark.parametrize("sections", [{}, {"prompts.weighting": {}, "train.replay": None}])
def test_a_graded_value_in_the_middle_does_not_end_the_run(lab, tmp_path, sections):
    settings = {"steps": 6, "groups_per_step": 4, "group_size": 4, "learning_rate": 0.02}
    result = train(
        policy=policy_rarely_right(lab),
        prompts=lab.rows(4),
        rewards=[late_graded],
        train={**settings, "replay": {}},
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        quiet=True,
        **{"prompts.held_out": 0.0, **sections},
    )
    assert result.steps == 6
    last = step_lines(tmp_path / "run")[-1]
    assert 0 <= last["accuracy"] < last["reward"]  # 0.5 is wrong


def test_whether_the_reward_judges_is_known_at_the_start(lab, tmp_path):
    """Also if its first values are 0 and 1."""

    def undeclared(completions, trainer_state, **_):
        return late_graded(completions, trainer_state)

    def started(**sections):
        return train(
            policy=policy_rarely_right(lab),
            prompts=lab.rows(4),
            rewards=[undeclared],
            train={"steps": 5, "groups_per_step": 2, "group_size": 4, "replay": {}},
            evaluation={"prompts": 0, **sections},
            output=tmp_path / "run",
            quiet=True,
            **{"prompts.held_out": 0.0},
        )

    with pytest.raises(UserError, match=r"train\.replay: .* no reward says that it tells right"):
        started()
    assert not (tmp_path / "run").exists()
    assert started(threshold=1.0).steps == 5
