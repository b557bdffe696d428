"""The ratio is 1 at the first update of a step; wrong log-probs of the sampler are measured."""

import math

import pytest
import torch

from groupwise import train
from groupwise.algorithms.grpo import GRPO
from groupwise_algorithms.gspo import GSPO


def test_nothing_is_clipped_before_the_second_update(lab):
    one, four = lab.trainer(steps=1), lab.trainer(steps=1, epochs=4, learning_rate=0.5)
    assert lab.step(one)["clip_fraction"] == 0.0
    metrics = lab.step(four)
    assert metrics["clip_fraction"] > 0.0
    assert metrics["mismatch/max"] < 1e-12
    assert metrics["trained_decisions"] > 0


@pytest.mark.parametrize("settings", [{}, {"updates_per_rollout": 2}, {"epochs": 2}])
def test_a_sampler_without_log_probs_trains_equally(lab, settings):
    class WithoutLogProbs(lab.Tabular):
        def sample(self, *args, **options):
            rollouts = super().sample(*args, **options)
            object.__setattr__(rollouts, "sampler_log_probs", None)
            return rollouts

    plain, without = lab.trainer(**settings), lab.trainer(WithoutLogProbs(), **settings)
    for _ in range(2):
        one, other = lab.step(plain), lab.step(without)
        assert "mismatch/mean" not in other
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-12)


@pytest.mark.parametrize("bias", [0.07, -0.07])
def test_wrong_log_probs_are_measured_and_do_not_change_training(lab, bias):
    """The policy samples itself: no importance weights, and one update needs no old log-probs."""
    biased, unbiased = lab.trainer(lab.Tabular(bias=bias)), lab.trainer()
    metrics = lab.step(biased)
    assert metrics["mismatch/mean"] == pytest.approx(0.07, rel=1e-6)
    assert metrics["mismatch/max"] == pytest.approx(0.07, rel=1e-6)
    # KL(sampler || policy) by k3: e^d - 1 - d with d = policy - sampler, over its samples.
    assert metrics["mismatch/kl"] == pytest.approx(math.expm1(-bias) + bias, rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(lab.step(unbiased)["grad_norm"], rel=1e-12)
    assert torch.equal(biased.policy.table, unbiased.policy.table)


def test_old_log_probs_are_not_taken_from_an_inexact_sampler(lab):
    """They are computed by a pass, since sampling may round differently."""

    class Rounds(lab.Tabular):
        exact = False

    settings = {"updates_per_rollout": 2, "epochs": 2}
    biased = lab.trainer(Rounds(bias=0.07), **settings)
    unbiased = lab.trainer(**settings)
    for _ in range(2):
        one, other = lab.step(biased), lab.step(unbiased)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-10)
    torch.testing.assert_close(biased.policy.table, unbiased.policy.table, rtol=0, atol=1e-12)


def test_gspo_clips_nothing_at_the_first_update_despite_rounding(lab):
    """Its clip range is 3e-4, far below the rounding of a sampler in bfloat16."""

    class Rounded(lab.Tabular):
        exact = False

        def sample(self, *args, **options):
            rollouts = super().sample(*args, **options)
            rounded = rollouts.sampler_log_probs.to(torch.bfloat16).double()
            object.__setattr__(rollouts, "sampler_log_probs", rounded)
            return rollouts

    trainer = lab.trainer(Rounded(), GSPO())
    for _ in range(3):
        metrics = lab.step(trainer)
        assert metrics["clip_fraction"] == 0.0
        assert metrics["mismatch/mean"] > 4e-4


def run(lab, folder, policy, **sections):
    return train(
        {
            "policy": policy,
            "prompts": lab.rows(),
            "rewards": [lab.ones],
            "train": {"steps": 2, "groups_per_step": 2, "group_size": 4},
            "evaluation": {"prompts": 1},
            "output": folder,
            **sections,
        },
        **{"prompts": lab.rows(), "prompts.held_out": 0.3},
    )


def test_a_run_warns_once_of_wrong_log_probs_and_never_of_right_ones(lab, tmp_path, capsys):
    run(lab, tmp_path / "wrong", lab.Tabular(bias=0.06))
    output = " ".join("".join(capsys.readouterr()).split())
    assert output.count("warning: the sampler's log-probs differ from the policy's by 0.06") == 1
    assert "limit 0.05" in output
    run(lab, tmp_path / "right", lab.Tabular())
    assert "log-probs" not in "".join(capsys.readouterr())


def test_the_limit_of_the_warning_is_that_of_the_algorithm(lab, tmp_path, capsys):
    class Strict(GRPO):
        mismatch_limit = 0.01

    run(lab, tmp_path / "strict", lab.Tabular(bias=0.02), algorithm=Strict())
    assert "limit 0.01" in " ".join("".join(capsys.readouterr()).split())
