"""A reference that is replaced by the policy or mixed with it, compared with plain torch."""

import copy

import pytest
import torch

from groupwise import train
from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError

BETA, RATE = 0.5, 0.3


def expected_tables(lab, policy, batches, *, every, mix):
    """Tables of policy and reference after each step, by GRPO's equation and torch's AdamW.

    batches: rollouts and rewards of each step.
    """
    policy = copy.deepcopy(policy)
    reference = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=RATE, weight_decay=0.0)
    tables = []
    for step, (rollouts, rewards) in enumerate(batches, 1):
        grouped = rewards.view(-1, 4)
        advantages = (grouped - grouped.mean(1, keepdim=True)) / (
            grouped.std(1, keepdim=True) + 1e-4
        )
        log_probs = policy(rollouts).log_probs
        difference = (reference(rollouts).log_probs.detach() - log_probs) * rollouts.mask
        kl = difference.exp() - 1 - difference
        ratio = (log_probs - log_probs.detach()).exp()
        loss = (BETA * kl - ratio * advantages.view(-1, 1)) * rollouts.mask
        optimizer.zero_grad()
        (loss.sum(1) / rollouts.lengths).mean().backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if step % every == 0:
            new = mix * policy.table.detach() + (1 - mix) * reference.table.detach()
            reference.table.data = new
        tables.append((policy.table.detach().clone(), reference.table.detach().clone()))
    return tables


@pytest.mark.parametrize(
    ("every", "mix"), [(1, 1.0), (2, 1.0), (1, 0.6)], ids=["each step", "every other", "mixed"]
)
def test_three_steps_match_plain_torch(lab, every, mix):
    options = {} if mix == 1 else {"reference_mix": mix}
    algorithm = GRPO(GRPO.Config(beta=BETA, reference_every=every, **options))
    trainer = lab.trainer(algorithm=algorithm, learning_rate=RATE)
    policy, batches, tables, logged = copy.deepcopy(trainer.policy), [], [], []
    learn = trainer.learn

    def recording_learn(scored):
        batches.append((lab.trained(scored), scored.scores.total))
        return learn(scored)

    trainer.learn = recording_learn
    for _ in range(3):
        logged.append(lab.step(trainer))
        reference = trainer.learner.weights.copies("reference")["table"].clone()
        tables.append((trainer.policy.table.detach().clone(), reference))

    expected = expected_tables(lab, policy, batches, every=every, mix=mix)
    for tensors, expected_tensors in zip(tables, expected, strict=True):
        torch.testing.assert_close(tensors, expected_tensors, rtol=0, atol=1e-6)
    ages = {1: [0, 0, 0], 2: [1, 0, 1]}[every]
    assert [metrics["reference/age"] for metrics in logged] == ages
    before = [policy.table.detach(), *(reference for _, reference in expected)]
    for number, metrics in enumerate(logged):
        if ages[number] == 0:
            moved = (before[number + 1] - before[number]).square().mean().sqrt()
            assert metrics["reference/moved"] == pytest.approx(float(moved), rel=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"reference_every": 5}, "algorithm: reference_every moves .* with beta: 0 there is none"),
        ({"beta": 0.1, "reference_every": 0}, "reference_every: expected at least 1, found 0"),
        ({"beta": 0.1, "reference_every": 5, "reference_mix": 0}, "mix: expected more than 0, fou"),
        ({"beta": 0.1, "reference_every": 5, "reference_mix": 1.5}, "mix: expected at most 1, fou"),
        ({"beta": 0.1, "reference_mix": 0.5}, "without reference_every it never moves; set ref"),
    ],
)
def test_wrong_options_of_the_reference_are_refused_with_one_message(lab, algorithm, message):
    data = {"policy": lab.Tabular(), "prompts": lab.rows(), "rewards": lab.ones}
    with pytest.raises(UserError, match=message) as caught:
        train(**data, algorithm=algorithm)
    assert len(str(caught.value).splitlines()) == 1
