"""A reference that becomes the policy, or mixes with it: against a plain restatement."""

import copy

import pytest
import torch

from groupwise.algorithms.grpo import GRPO
from groupwise.config.load import parse_config
from groupwise.errors import UserError
from groupwise.run.parts import build_parts

BETA, RATE = 0.5, 0.3


def restated(lab, policy, batches, *, every, mix):
    """Tables of policy and reference after each step, from GRPO's equation and AdamW's own code.

    batches: rollouts and rewards of each step.
    """
    policy = copy.deepcopy(policy)
    reference = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=RATE, weight_decay=0.0)
    tables = []
    for step, (rollouts, rewards) in enumerate(batches, 1):
        of_group = rewards.view(-1, 4)
        advantages = (of_group - of_group.mean(1, keepdim=True)) / (
            of_group.std(1, keepdim=True) + 1e-4
        )
        log_probs = policy(rollouts).log_probs
        apart = (reference(rollouts).log_probs.detach() - log_probs) * rollouts.mask
        kl = apart.exp() - 1 - apart
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
def test_three_steps_are_those_of_a_plain_restatement(lab, every, mix):
    stated = {} if mix == 1 else {"reference_mix": mix}
    algorithm = GRPO(GRPO.Config(beta=BETA, reference_every=every, **stated))
    trainer = lab.trainer(algorithm=algorithm, learning_rate=RATE)
    policy, batches, tables, logged = copy.deepcopy(trainer.policy), [], [], []
    learn = trainer.learn

    def watched(scored):
        batches.append((scored.rollouts, scored.scores.total))
        return learn(scored)

    trainer.learn = watched
    for _ in range(3):
        logged.append(lab.step(trainer))
        kept = trainer.policy.kept("reference")["table"].clone()
        tables.append((trainer.policy.table.detach().clone(), kept))

    expected = restated(lab, policy, batches, every=every, mix=mix)
    for ours, theirs in zip(tables, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
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
def test_options_that_move_nothing_are_one_message(lab, algorithm, message):
    data = {"policy": "x:y", "prompts": "x:y", "rewards": ["x:y"], "algorithm": algorithm}
    with pytest.raises(UserError, match=message) as caught:
        build_parts(parse_config(data), {})
    assert len(str(caught.value).splitlines()) == 1
