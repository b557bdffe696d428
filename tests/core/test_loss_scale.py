"""The scale of a loss whose gradients are computed in float16."""

import math

import pytest
import torch

from groupwise import LogProbs

SMALL = 1e-11
"""A factor on the loss, by which all gradients at scale 65,536 are 0 in float16."""
LARGE = 1e3
"""A factor on the loss, by which gradients at scale 2^24 overflow in float16."""


class Through16(torch.autograd.Function):
    """The identity, whose gradient is rounded to float16 and multiplied by a factor."""

    @staticmethod
    def forward(ctx, values, factor):
        ctx.factor = factor
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.half().to(gradient.dtype) * ctx.factor, None


@pytest.fixture
def make(lab):
    class Half(lab.Tabular):
        """Gradients pass through float16; forward passes and gradients can be spoilt."""

        scale_loss = True
        forward_factor = gradient_factor = 1.0
        passes = 0

        def forward(self, rollouts, decisions=slice(None)):
            output = super().forward(rollouts, decisions)
            if not torch.is_grad_enabled():
                return output
            self.passes += 1
            log_probs = Through16.apply(output.log_probs, self.gradient_factor)
            return LogProbs(log_probs=log_probs * self.forward_factor, entropy=output.entropy)

    def trainer(factor=1.0, *, half=True, **settings):
        policy = Half() if half else lab.Tabular()
        trainer = lab.trainer(policy, max_grad_norm=1e30, held_out=0.0, **settings)
        algorithm, loss = trainer.algorithm, trainer.algorithm.loss
        algorithm.loss = lambda current, batch: loss(current, batch) * factor
        return trainer

    return trainer


def test_small_gradients_are_kept_by_this_scale_and_lost_at_that_of_torch(lab, make):
    exact = lab.step(make(SMALL, half=False))
    assert not {"loss_scale", "zero_gradients", "overflows"} & exact.keys()
    trainer = make(SMALL)
    metrics = lab.step(trainer)
    assert metrics["loss_scale"] == 2**24
    assert metrics["overflows"] == 0
    assert metrics["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.02)
    kept = metrics["zero_gradients"]  # most of the table is of prompts that were not drawn
    assert 0.5 < kept < 1
    assert kept == pytest.approx(float((lab_gradient(make, lab) == 0).double().mean()), abs=0.02)
    trainer = make(SMALL)
    state = trainer.learner.optimizer.state_dict()
    state["scaler"]["scale"] = 2.0**16
    trainer.learner.optimizer.load_state_dict(state)
    lost = lab.step(trainer)
    assert (lost["loss_scale"], lost["grad_norm"], lost["zero_gradients"]) == (2**16, 0, 1)


def lab_gradient(make, lab):
    trainer = make(half=False)
    scored = trainer.experience.next(trainer.state)
    trainer.learner.updater.backward(scores=scored.scores, rollouts=lab.trained(scored), outputs={})
    return lab.gradient(trainer.policy)


def test_after_an_overflow_the_update_is_repeated_and_not_lost(lab, make):
    plain, scaled = make(LARGE, half=False, steps=3), make(LARGE, steps=3)
    overflows = []
    for _ in range(3):
        one, other = lab.step(plain), lab.step(scaled)
        overflows.append(other["overflows"])
        assert other["skipped_updates"] == 0
        for name in ("grad_norm", "loss", "trained_decisions", "clip_fraction"):
            assert other[name] == pytest.approx(one[name], rel=0.01), name
    assert overflows[0] > 3  # each costs a pass, at the start of a run
    assert sum(overflows[1:]) <= 1
    assert other["loss_scale"] == 2.0 ** (24 - sum(overflows))
    assert scaled.policy.passes == 3 + sum(overflows)
    assert scaled.learner.updates == 3
    torch.testing.assert_close(plain.policy.table, scaled.policy.table, rtol=0.01, atol=1e-3)


def test_the_scale_is_doubled_after_some_updates_without_overflow(lab, make):
    trainer = make(SMALL, steps=7)
    trainer.learner.optimizer.scale.set_growth_interval(3)
    scales = [lab.step(trainer)["loss_scale"] for _ in range(7)]
    assert scales == [2**24] * 3 + [2**25] * 3 + [2**26]


def test_a_gradient_that_no_scale_makes_finite_is_skipped_and_the_scale_kept(lab, make):
    trainer = make(SMALL, steps=3)
    policy, optimizer = trainer.policy, trainer.learner.optimizer
    assert lab.step(trainer)["overflows"] == 0
    before = policy.table.detach().clone()
    policy.gradient_factor = math.nan
    metrics = lab.step(trainer)
    assert (metrics["skipped_updates"], optimizer.skipped) == (1, 1)
    assert metrics["overflows"] == 24
    assert torch.equal(policy.table, before)
    policy.gradient_factor = 1.0
    assert lab.step(trainer)["loss_scale"] == 2**24
    assert not torch.equal(policy.table, before)


def test_values_that_are_not_finite_in_the_forward_pass_are_no_overflow(lab, make):
    trainer = make(SMALL, steps=3)
    trainer.policy.forward_factor = math.nan
    metrics = lab.step(trainer)
    assert (metrics["skipped_updates"], metrics["overflows"]) == (1, 0)
    assert trainer.policy.passes == 1
    assert trainer.learner.optimizer.first_nonfinite == "'log_probs' of the policy"
    trainer.policy.forward_factor = 1.0
    assert lab.step(trainer)["loss_scale"] == 2**24


def test_a_resumed_run_keeps_the_scale(lab, make):
    trainer = make(LARGE, steps=2)
    lab.step(trainer)
    state = trainer.learner.state_dict()
    scale = trainer.learner.optimizer.scale.get_scale()
    assert scale < 2**24
    resumed = make(LARGE, steps=2)
    resumed.learner.load_state_dict(state)
    assert resumed.learner.optimizer.scale.get_scale() == scale
    assert lab.step(resumed)["overflows"] == 0
    # A checkpoint of a run whose scale grew every 2,000 updates.
    older = {**state["optimizer"]["scaler"], "growth_interval": 2000, "scale": 2.0**12}
    resumed.learner.optimizer.load_state_dict({"skipped": 0, "scaler": older})
    assert resumed.learner.optimizer.scale.get_scale() == 2**12
    assert resumed.learner.optimizer.scale.get_growth_interval() == 32
