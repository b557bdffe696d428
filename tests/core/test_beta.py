"""`beta` by a schedule, or raised and lowered to keep the KL at a target."""

import math

import pytest
import torch
from pydantic import ValidationError

from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError
from groupwise_algorithms.reinforce_pp import ReinforcePP

TARGET = {"target": 0.02, "start": 0.5, "gain": 0.5, "clip": 0.4}
SCHEDULE = {"start": 0.0, "end": 0.6, "steps": 3}


def made(lab, beta, kind=GRPO, **settings):
    settings = {"steps": 5, "learning_rate": 0.3, "updates_per_rollout": 2, **settings}
    return lab.trainer(algorithm=kind(kind.Config(beta=beta)), **settings)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.02, 0.5),
        (0.021, 0.5 * (1 + 0.1 * 0.05)),
        (0.019, 0.5 * (1 - 0.1 * 0.05)),
        (5.0, 0.5 * 1.02),
        (-1.0, 0.5 * 0.98),
        (math.nan, 0.5),
        (math.inf, 0.5),
    ],
)
def test_the_controller_is_proportional_and_clipped(kl, expected):
    """Ziegler et al., section 2.2: e = clip((KL - target) / target, -0.2, 0.2), K = 0.1."""
    target = GRPO.Config(beta={"target": 0.02}).beta
    assert target.after(0.5, kl) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", [GRPO, ReinforcePP])
@pytest.mark.parametrize("beta", [TARGET, SCHEDULE], ids=["target", "schedule"])
def test_each_step_is_that_of_a_run_with_its_beta_as_a_number(lab, tmp_path, beta, kind):
    """So the loss reads the beta that is logged; and the next one follows from the step's KL."""
    moving, expected = made(lab, beta, kind), beta["start"]
    for step in range(4):
        lab.save(moving, tmp_path / "checkpoints")
        metrics = lab.step(moving)
        assert metrics["beta"] == pytest.approx(expected, rel=1e-12)
        if step in (1, 3):
            constant = made(lab, metrics["beta"], kind)
            lab.restore(constant, tmp_path / "checkpoints")
            again = lab.step(constant)
            assert torch.equal(constant.policy.table, moving.policy.table)
            assert again["kl"] == metrics["kl"]
            assert "beta" not in again
        if beta is SCHEDULE:
            expected = 0.6 * min(1.0, (step + 1) / 3)
        else:
            error = (metrics["kl"] - 0.02) / 0.02
            expected *= 1 + 0.5 * max(-0.4, min(0.4, error))
    assert metrics["beta"] != beta["start"]


@pytest.mark.parametrize("beta", [TARGET, SCHEDULE], ids=["target", "schedule"])
def test_a_resumed_run_equals_an_uninterrupted_one(lab, tmp_path, beta):
    uninterrupted, first, second = (made(lab, beta) for _ in range(3))
    for _ in range(4):
        metrics = lab.step(uninterrupted)
    for _ in range(2):
        lab.step(first)
    lab.save(first, tmp_path)
    lab.restore(second, tmp_path)
    for _ in range(2):
        again = lab.step(second)
    assert torch.equal(second.policy.table, uninterrupted.policy.table)
    assert again["beta"] == metrics["beta"]


def test_a_checkpoint_of_another_kind_of_beta_can_be_resumed(lab, tmp_path):
    """A number, then a target, which begins at its start; then a number again."""
    runs = [made(lab, beta) for beta in (0.1, TARGET, 0.2)]
    for number, trainer in enumerate(runs):
        if number:
            lab.restore(trainer, tmp_path)
        metrics = lab.step(trainer)
        assert metrics.get("beta") == (0.5 if number == 1 else None)
        lab.save(trainer, tmp_path)


@pytest.mark.parametrize("start", [0.001, 10.0])
def test_the_kl_comes_to_its_target(start):
    """Where a KL falls as beta rises, from a beta that is far too small, and one far too large."""
    target = GRPO.Config(beta={"target": 0.1, "start": start, "largest": 10.0}).beta
    beta = start
    for _ in range(600):
        beta = target.after(beta, 0.005 / beta)
    assert beta == pytest.approx(0.05, rel=1e-3)
    for _ in range(600):
        beta = target.after(beta, 0.0)
    assert beta == 0.001


def test_only_a_number_of_0_keeps_no_reference(lab):
    assert not GRPO(GRPO.Config(beta=0)).reference
    assert not GRPO().reference
    assert GRPO(GRPO.Config(beta=SCHEDULE)).reference == {"log_probs"}
    assert GRPO(GRPO.Config(beta=TARGET)).reference == {"log_probs"}
    trainer = made(lab, {"start": 0.0, "end": 0.0, "steps": 1})
    assert lab.step(trainer)["beta"] == 0


@pytest.mark.parametrize(
    ("beta", "message"),
    [
        (-0.1, "greater than or equal to 0"),
        ({"target": 0.0}, "greater than 0"),
        ({"target": 0.1, "start": 0.0}, "greater than 0"),
        ({"target": 0.1, "steps": 3}, "Extra inputs"),
        ({"start": 0.1, "end": -0.1, "steps": 3}, "must not be negative"),
        ({"start": 0.1, "end": 0.0}, "steps"),
        ({"target": 0.1, "clip": 1.0}, "less than 1"),
        ({"target": 0.1, "start": 20.0}, "start is 20, least 0.001 and largest 1"),
    ],
)
def test_a_wrong_beta_is_refused_with_one_message(beta, message):
    with pytest.raises(ValidationError, match=message) as caught:
        GRPO.Config(beta=beta)
    assert caught.value.error_count() == 1


def test_a_schedule_that_outlasts_the_run_is_refused(lab):
    with pytest.raises(UserError, match=r"the schedule takes 3 steps, but the run has only 2"):
        made(lab, SCHEDULE, steps=2)
