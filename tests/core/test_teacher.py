"""A teacher, compared with the exact reverse KL, and with plain torch over the steps of a run."""

import copy

import pytest
import torch

import groupwise
from groupwise.algorithms.grpo import GRPO
from groupwise.config.load import load_config
from groupwise.kit.errors import UserError
from groupwise_algorithms.dapo import DAPO

RATE, WEIGHT = 0.3, 0.4
LOG_PROBS = frozenset({"log_probs"})


def taught(**options):
    """GRPO that learns from a teacher's log-probs."""
    algorithm = GRPO(GRPO.Config(teacher_weight=WEIGHT, **options))
    algorithm.take_teacher(LOG_PROBS)
    return algorithm


def with_teacher(teacher):
    """Arguments of `lab.trainer`."""
    return {"sections": {"teacher": "tabular"}, "objects": {("teacher",): teacher}}


def test_the_expected_gradient_is_that_of_the_reverse_kl_of_each_decision(lab):
    """Over all completions, of all decisions that are reached, as often as they are reached."""
    policy, teacher = (lab.Tabular(prompts=1, symbols=3, length=3, seed=seed) for seed in (0, 1))
    chosen = list(policy.completions())
    rollouts = lab.build(lab.rows(1) * len(chosen), chosen)
    current = policy(rollouts)
    probabilities = current.log_probs.masked_fill(~rollouts.mask, 0.0).sum(dim=1).exp().detach()
    batch = {
        "advantages": torch.zeros(len(chosen), dtype=torch.float64),
        "weights": rollouts.mask.double(),
        "mask": rollouts.mask,
        "old_log_probs": current.log_probs.detach(),
        "teacher_log_probs": teacher(rollouts).log_probs.detach(),
    }
    loss = (taught().loss(current, batch).sum(dim=1) * probabilities).sum()
    (gradient,) = torch.autograd.grad(loss, policy.table)

    kl, (ours, theirs) = 0.0, (p.table[0].log_softmax(-1) for p in (policy, teacher))
    for symbols, probability in zip(chosen, probabilities, strict=True):
        for place, previous in enumerate([policy.symbols, *symbols][:-1]):
            mine, other = ours[place, previous], theirs[place, previous].detach()
            kl = kl + probability * (mine.exp() * (mine - other)).sum()
    (expected,) = torch.autograd.grad(WEIGHT * kl, policy.table)
    assert lab.gap(gradient, expected) < 1e-12


def test_the_expected_gradient_is_the_same_on_rollouts_of_older_weights(lab):
    """Of one decision, with the ratio to the weights that drew it, far from any clip."""
    policy, teacher, older = (
        lab.Tabular(prompts=1, symbols=3, length=1, seed=seed) for seed in (0, 1, 2)
    )
    chosen = list(policy.completions())
    rollouts = lab.build(lab.rows(1) * len(chosen), chosen)
    current, drawn = policy(rollouts), older(rollouts).log_probs.detach()
    batch = {
        "advantages": torch.zeros(len(chosen), dtype=torch.float64),
        "weights": rollouts.mask.double(),
        "mask": rollouts.mask,
        "old_log_probs": current.log_probs.detach(),
        "sampler_log_probs": drawn,
        "teacher_log_probs": teacher(rollouts).log_probs.detach(),
    }
    algorithm = taught(importance="ratio", clip_low=1e6, clip_high=1e6)
    loss = (algorithm.loss(current, batch) * drawn.exp()).sum()
    (gradient,) = torch.autograd.grad(loss, policy.table)

    ours, theirs = (p.table[0, 0, -1].log_softmax(-1) for p in (policy, teacher))
    kl = (ours.exp() * (ours - theirs.detach())).sum()
    (expected,) = torch.autograd.grad(WEIGHT * kl, policy.table)
    assert lab.gap(gradient, expected) < 1e-12


def expected_table(policy, teacher, batches, *, updates):
    """The table after all steps, by the formulas and torch's AdamW; batches: rollouts, rewards."""
    policy = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=RATE, weight_decay=0.0)
    for rollouts, rewards in batches:
        grouped = rewards.view(-1, 4)
        relative = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
        old = policy(rollouts).log_probs.detach()
        towards = teacher(rollouts).log_probs.detach() - old
        advantages = relative.view(-1, 1) + WEIGHT * towards
        for rows in torch.arange(len(rewards)).chunk(updates):
            ratio = (policy(rollouts).log_probs - old)[rows].exp()
            gain = torch.minimum(ratio * advantages[rows], ratio.clamp(0.8, 1.2) * advantages[rows])
            per_rollout = (-gain * rollouts.mask[rows]).sum(1) / rollouts.lengths[rows]
            optimizer.zero_grad()
            per_rollout.mean().backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
    return policy.table.detach()


@pytest.mark.parametrize(("updates", "microbatch"), [(1, 16384), (2, 7)])
def test_steps_of_reward_and_teacher_match_plain_torch(lab, updates, microbatch):
    teacher, batches = lab.Tabular(seed=9), []
    trainer = lab.trainer(
        algorithm=GRPO(GRPO.Config(teacher_weight=WEIGHT)),
        learning_rate=RATE,
        updates_per_rollout=updates,
        microbatch=microbatch,
        **with_teacher(teacher),
    )
    policy, learn = copy.deepcopy(trainer.policy), trainer.learn

    def recording_learn(scored):
        batches.append((lab.trained(scored), scored.scores.total))
        return learn(scored)

    trainer.learn = recording_learn
    before = copy.deepcopy(teacher.state_dict())
    for _ in range(2):
        lab.step(trainer)
    expected = expected_table(policy, teacher, batches, updates=updates)
    torch.testing.assert_close(trainer.policy.table.detach(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(teacher.state_dict(), before, rtol=0, atol=0)
    assert teacher.table.grad is None


@pytest.mark.slow
def test_without_a_reward_the_policy_becomes_its_teacher_and_then_stays(lab, tmp_path):
    policy, teacher = lab.Tabular(prompts=2, length=1), lab.Tabular(prompts=2, length=1, seed=4)

    def train(teacher, steps):
        return groupwise.train(
            policy=policy,
            teacher=teacher,
            prompts={"name": lab.rows(2), "held_out": 0},
            rewards=[{"name": lab.ones, "weight": 0}],
            train={
                "steps": steps,
                "groups_per_step": 2,
                "group_size": 64,
                "learning_rate": 0.2,
                "schedule": "linear",
            },
            evaluation={"prompts": 0},
            output=tmp_path / "run",
            reports=[],
            overwrite=True,
            quiet=True,
        )

    def kl():
        ours, theirs = (p.table.detach()[:, 0, -1].log_softmax(-1) for p in (policy, teacher))
        return float((ours.exp() * (ours - theirs)).sum(-1).mean())

    before = kl()
    train(teacher, 25)
    assert kl() < 0.03 * before
    table = policy.table.detach().clone()
    train(copy.deepcopy(policy), 1)
    assert torch.equal(policy.table, table)  # its own teacher: every log-ratio is 0


def test_groups_of_equal_reward_are_not_replaced_since_the_teacher_teaches_them():
    algorithm = DAPO()
    assert algorithm.refills
    algorithm.take_teacher(LOG_PROBS)
    assert not algorithm.refills


def test_the_metric_is_the_kl_on_the_rollouts(lab):
    teacher = lab.Tabular(seed=9)
    trainer = lab.trainer(**with_teacher(teacher))
    policy = copy.deepcopy(trainer.policy)
    scored = trainer.experience.next(trainer.state)
    metrics = trainer.learn(scored)
    rollouts = lab.trained(scored)
    with torch.no_grad():
        ratio = policy(rollouts).log_probs - teacher(rollouts).log_probs
    expected = float(ratio[rollouts.mask].mean())
    assert metrics["teacher_kl"] == pytest.approx(expected, rel=1e-6)
    # With a teacher, groups of equal reward teach, too: no decision is left out.
    assert metrics["trained_decisions"] == int(rollouts.mask.sum())


def test_a_resumed_run_continues_bit_for_bit_without_the_teacher_in_its_checkpoint(lab, tmp_path):
    def trainer():
        return lab.trainer(**with_teacher(lab.Tabular(seed=9)))

    whole = trainer()
    for number in range(3):
        if number == 1:
            folder = lab.save(whole, tmp_path)
        lab.step(whole)
    resumed = trainer()
    lab.restore(resumed, tmp_path)
    for _ in range(2):
        lab.step(resumed)
    assert torch.equal(resumed.policy.table, whole.policy.table)
    assert not list(folder.glob("*teacher*"))


def test_each_learner_has_its_own_teacher(lab, tmp_path):
    one, two = lab.Tabular(seed=1), lab.Tabular(seed=2)
    before = two.table.detach().clone()
    groupwise.train(
        players=[
            {"label": "one", "policy": one, "teacher": lab.Tabular(seed=3)},
            {"label": "two", "policy": two},
        ],
        environment="pool",
        prompts=lab.rows(),
        rewards=[{"name": lab.ones, "weight": 0}],
        train={"steps": 1, "groups_per_step": 2, "group_size": 4, "learning_rate": 0.1},
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        reports=[],
        quiet=True,
    )
    assert not torch.equal(one.table, lab.Tabular(seed=1).table)
    assert torch.equal(two.table, before)


# ---- configuration


def test_a_teacher_has_the_options_of_the_policy_that_it_does_not_set(lab):
    sections = {"prompts": "rows", "rewards": ["ones"]}
    policy = {"name": "language_model", "model": "small", "temperature": 0.7, "lora": {"rank": 4}}
    teacher = {"model": "large", "lora": None}

    def of(**given):
        return load_config({**sections, **given}).config

    merged = {"name": "language_model", "model": "large", "temperature": 0.7, "lora": None}
    assert of(policy=policy, teacher=teacher).teacher.model_dump() == merged
    assert of(policy=policy).teacher is None
    other = {"name": "mine", "model": "large"}
    assert of(policy=policy, teacher=other).teacher.model_dump() == other
    players = [
        {"label": "a", "policy": policy, "teacher": teacher},
        {"label": "b", "policy": policy, "learns": False},
    ]
    learners = of(players=players, environment="pool").learners
    assert learners["a"].teacher.model_dump() == merged
    assert learners["b"].teacher is None
    with pytest.raises(UserError, match=r"players\.1\.teacher: learns: false, so it has no use"):
        of(players=[players[0], {**players[1], "teacher": teacher}], environment="pool")
    with pytest.raises(UserError, match="teacher: each of several players has its own"):
        of(players=players, environment="pool", teacher={"name": "mine"})


def test_teachers_that_do_not_fit_are_refused(lab):
    class Other(lab.Tabular.__base__):
        def sample(self, *_, **__):
            raise NotImplementedError

        def forward(self, *_, **__):
            raise NotImplementedError

    class Deaf(GRPO):
        take_teacher = groupwise.Algorithm.take_teacher

    with pytest.raises(UserError, match=r"teacher: expected a Tabular, as the policy .* Other"):
        lab.trainer(**with_teacher(Other()))
    with pytest.raises(UserError, match="teacher: Deaf does not learn from a teacher; leave"):
        lab.trainer(algorithm=Deaf(), **with_teacher(lab.Tabular()))
