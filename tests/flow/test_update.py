"""Law 1: the gradient of an update is that of the loss as one expression, however it is cut."""

import pytest
import torch

import groupwise
from groupwise.algorithms.cispo import CISPO
from groupwise.algorithms.reinforce_pp import ReinforcePP
from groupwise_flow.algorithm import FlowGRPO
from groupwise_flow.guard import FlowGuard

FORMS = {
    "plain": ({}, {}),
    "guided, kl": ({"guidance": 4.0}, {"beta": 0.2}),
    "guided, published kl": ({"guidance": 4.0}, {"beta": 0.2, "kl": "published"}),
    "window": (
        {"window": {"kind": "random", "size": 2}, "shared_noise": True},
        {"beta": 0.2, "clip_low": 1e-3},
    ),
    "guard": ({"sde": "dance", "noise_level": 0.3}, {"kind": FlowGuard, "scale": "batch"}),
    "cispo": ({}, {"kind": CISPO, "clip_high": 0.05, "beta": 0.2, "kl": "exact"}),
    "reinforce++": ({}, {"kind": ReinforcePP}),
    "lora": ({"lora": {"rank": 2}, "guidance": 2.0}, {"beta": 0.2}),
    "flux": ({"of": "flux", "guidance": 3.5}, {"beta": 0.2, "normalize": "constant"}),
}
VALUES = [0.5, 0.0, 2.0, 0.0, 1.0, 0.25, 0.3, 0.3, 0.3]  # the last group has nothing to learn


def setting(lab, form):
    """A policy some updates after sampling, rollouts, and what the loss is given."""
    settings, config = FORMS[form]
    kind = config.get("kind", FlowGRPO)
    config = {"clip_low": 0.05, **{key: value for key, value in config.items() if key != "kind"}}
    policy = lab.policy(**settings)
    algorithm = kind(kind.Config(**config))
    algorithm.prepare(policy)
    policy.keep("reference")
    rows = [*lab.rows, {"prompt": "no bird"}]
    rollouts = policy.sample(rows, group_size=3, seeds=range(9))
    given = {"old_log_probs": rollouts.sampler_log_probs}
    with torch.no_grad(), policy.using("reference"):
        given["reference_mean"] = given["old_mean"] = policy(rollouts).extra["mean"]
    lab.nudge(policy, size=0.02)
    return policy, algorithm, rollouts, given


def whole(lab, policy, algorithm, rollouts, given, *, first):
    """The gradient of the update's loss as one expression, nothing skipped, and the loss."""
    policy.zero_grad()
    targets = algorithm.targets(lab.scores_of(VALUES), rollouts, {})
    batch = {**targets, **given, "mask": rollouts.mask}
    current = policy(rollouts)
    assert (current.log_probs - given["old_log_probs"]).abs().max() > 1e-3
    if first:
        batch["old_log_probs"] = current.log_probs.detach()
        batch["old_mean"] = current.extra["mean"].detach()
    loss = algorithm.loss(current, batch).sum()
    loss.backward()
    found = lab.gradient(policy)
    assert float(found.norm()) > 1e-3
    return found, float(loss.detach())


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_any_split_gives_the_gradient_of_the_whole(lab, form, first):
    policy, algorithm, rollouts, given = setting(lab, form)
    expected, loss = whole(lab, policy, algorithm, rollouts, given, first=first)

    def check(budget=16384):
        policy.zero_grad()
        more = {"given": given, "budget": budget, "first": first}
        told = lab.update(policy, algorithm, rollouts, values=VALUES, **more)
        assert lab.gap(lab.gradient(policy), expected) < 1e-5
        assert told["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-6)
        assert ("mismatch/mean" in told) == first

    for budget in (1, 4, 27) if not first else (4,):
        check(budget)

    def anyhow(rollouts, budget, *, cut_decisions):
        order = torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(0))
        steps = rollouts.mask.shape[1]
        pieces = [(order[:4], slice(0, 1)), (order[:4], slice(1, steps))]
        return pieces + [(row.unsqueeze(0), slice(None)) for row in order[4:]]

    policy.microbatches = anyhow
    check()


def test_groups_of_equal_reward_cost_no_pass_but_count(lab):
    policy, algorithm, rollouts, given = setting(lab, "plain")
    sizes = lab.calls(policy)
    told = lab.update(policy, algorithm, rollouts, values=VALUES, given=given)
    assert sum(sizes) == 6 * 4
    assert told["trained_decisions"] == 24


def test_answers_of_all_rollouts_are_put_together_from_parts(lab):
    policy, _, rollouts, given = setting(lab, "guided, kl")
    updater = lab.updater(policy, FlowGRPO(), budget=4)
    with policy.using("reference"):
        found = updater.answers(rollouts, {"mean", "log_probs"})
    assert found["mean"].shape == given["reference_mean"].shape
    torch.testing.assert_close(found["mean"], given["reference_mean"], rtol=0, atol=1e-5)
    torch.testing.assert_close(found["log_probs"], rollouts.sampler_log_probs, rtol=0, atol=1e-5)


def test_the_reference_is_asked_once_for_a_steps_rollouts(lab, tmp_path):
    policy = lab.policy(guidance=2.0, window={"kind": "fixed", "size": 2})
    lab.nudge(policy)
    sizes, asked, using = lab.calls(policy), [], policy.using

    def counted(name):
        asked.append((name, len(sizes)))
        return using(name)

    policy.using = counted
    groupwise.train(
        policy=policy,
        algorithm={"name": "flow_grpo", "beta": 0.1},
        prompts=[{"prompt": f"{letter} cat"} for letter in "abcdef"],
        rewards=[lab.redness],
        train={
            "steps": 2,
            "groups_per_step": 2,
            "group_size": 3,
            "epochs": 2,
            "updates_per_rollout": 2,
            "learning_rate": 1e-3,
        },
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        quiet=True,
    )
    # Ten passes sample and four are the reference's. Of the four updates, of two micro-batches
    # each, the first has the unconditional branch at hand.
    a_step = 10 + 4 + 2 + 3 * 4
    assert asked == [("reference", 10), ("reference", a_step + 10)]
    assert len(sizes) == 2 * a_step


def test_guard_measures_from_where_the_step_began(lab, tmp_path):
    """In a step's first update that is where it stands; for the others it is asked before."""
    policy, twin = (lab.policy(window={"kind": "fixed", "size": 2}) for _ in range(2))
    drawn, sample = [], policy.sample
    policy.sample = lambda *args, **more: drawn.append(sample(*args, **more)) or drawn[-1]
    batches, algorithm = [], FlowGuard(FlowGuard.Config(clip_low=0.1))
    loss = algorithm.loss
    algorithm.loss = lambda current, batch: batches.append((current, batch)) or loss(current, batch)
    groupwise.train(
        policy=policy,
        algorithm=algorithm,
        prompts=[{"prompt": f"{letter} cat"} for letter in "ab"],
        rewards=[lab.redness],
        train={
            "steps": 1,
            "groups_per_step": 2,
            "group_size": 2,
            "updates_per_rollout": 2,
            "learning_rate": 1e-3,
        },
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        quiet=True,
    )
    assert len(batches) == 4  # two updates, a decision at a time
    for current, batch in batches[:2]:
        assert torch.equal(current.extra["mean"], batch["old_mean"])
    with torch.no_grad():
        began = twin(drawn[0]).extra["mean"].flatten(0, 1).flatten(1)
    for current, batch in batches[2:]:
        assert (current.extra["mean"] - batch["old_mean"]).abs().max() > 1e-4
        apart = torch.cdist(batch["old_mean"].flatten(0, 1).flatten(1), began)
        assert apart.amin(dim=1).max() < 1e-3
        assert apart.amax(dim=1).min() > 1


@pytest.mark.parametrize("form", ["plain", "flux", "lora"])
def test_every_trained_weight_gets_a_gradient(lab, form):
    """Processes that train together must all have one for each."""
    policy, algorithm, rollouts, given = setting(lab, form)
    lab.update(policy, algorithm, rollouts, values=VALUES, given=given)
    without = [n for n, p in policy.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []
