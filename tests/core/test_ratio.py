"""Law 2: the first update of a step has ratio one, and a sampler that says else is measured."""

import math

import pytest
import torch

from groupwise import train
from groupwise.algorithms.grpo import GRPO
from groupwise.algorithms.gspo import GSPO


def test_clipping_begins_with_the_second_update(lab):
    one, four = lab.trainer(steps=1), lab.trainer(steps=1, epochs=4, learning_rate=0.5)
    assert lab.step(one)["clip_fraction"] == 0.0
    metrics = lab.step(four)
    assert metrics["clip_fraction"] > 0.0
    assert metrics["mismatch/max"] < 1e-12
    assert metrics["trained_decisions"] > 0


@pytest.mark.parametrize("settings", [{}, {"updates_per_rollout": 2}, {"epochs": 2}])
def test_a_sampler_that_says_nothing_trains_alike(lab, settings):
    class Silent(lab.Tabular):
        def sample(self, *arguments, **named):
            rollouts = super().sample(*arguments, **named)
            object.__setattr__(rollouts, "sampler_log_probs", None)
            return rollouts

    plain, silent = lab.trainer(**settings), lab.trainer(Silent(), **settings)
    for _ in range(2):
        one, other = lab.step(plain), lab.step(silent)
        assert "mismatch/mean" not in other
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-12)


@pytest.mark.parametrize("bias", [0.07, -0.07])
def test_a_lie_about_log_probs_is_measured_and_moves_nothing(lab, bias):
    """The policy samples itself, so nothing is corrected; one update needs no old log-probs."""
    liar, honest = lab.trainer(lab.Tabular(bias=bias)), lab.trainer()
    metrics = lab.step(liar)
    assert metrics["mismatch/mean"] == pytest.approx(0.07, rel=1e-6)
    assert metrics["mismatch/max"] == pytest.approx(0.07, rel=1e-6)
    # KL(sampler || policy), k3, of the sampler's samples: e^d - 1 - d, d = policy - sampler.
    assert metrics["mismatch/kl"] == pytest.approx(math.expm1(-bias) + bias, rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(lab.step(honest)["grad_norm"], rel=1e-12)
    assert torch.equal(liar.policy.table, honest.policy.table)


def test_a_sampler_that_is_not_exact_is_asked_of_nothing_old(lab):
    """Where sampling rounds otherwise than training, later updates compare with a pass of it."""

    class Rounds(lab.Tabular):
        exact = False

    settings = {"updates_per_rollout": 2, "epochs": 2}
    liar = lab.trainer(Rounds(bias=0.07), **settings)
    honest = lab.trainer(**settings)
    for _ in range(2):
        one, other = lab.step(liar), lab.step(honest)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-10)
    torch.testing.assert_close(liar.policy.table, honest.policy.table, rtol=0, atol=1e-12)


def test_gspo_clips_nothing_at_the_first_update_whatever_is_rounded(lab):
    """Its clip range is 3e-4, far below the rounding of a sampler in bfloat16."""

    class Rounded(lab.Tabular):
        exact = False

        def sample(self, *arguments, **named):
            rollouts = super().sample(*arguments, **named)
            rounded = rollouts.sampler_log_probs.to(torch.bfloat16).double()
            object.__setattr__(rollouts, "sampler_log_probs", rounded)
            return rollouts

    trainer = lab.trainer(Rounded(), GSPO())
    for _ in range(3):
        metrics = lab.step(trainer)
        assert metrics["clip_fraction"] == 0.0
        assert metrics["mismatch/mean"] > 4e-4


def run(lab, folder, policy, **more):
    return train(
        {
            "policy": policy,
            "prompts": lab.rows(),
            "rewards": [lab.ones],
            "train": {"steps": 2, "groups_per_step": 2, "group_size": 4},
            "evaluation": {"prompts": 1},
            "output": folder,
            **more,
        },
        **{"prompts": lab.rows(), "prompts.held_out": 0.3},
    )


def test_the_run_warns_once_of_a_lie_and_never_of_the_truth(lab, tmp_path, capsys):
    run(lab, tmp_path / "lie", lab.Tabular(bias=0.06))
    shown = " ".join("".join(capsys.readouterr()).split())
    assert shown.count("warning: the sampler's log-probs differ from the policy's by 0.06") == 1
    assert "limit 0.05" in shown
    run(lab, tmp_path / "truth", lab.Tabular())
    assert "log-probs" not in "".join(capsys.readouterr())


def test_the_limit_is_the_algorithms(lab, tmp_path, capsys):
    class Strict(GRPO):
        mismatch_limit = 0.01

    run(lab, tmp_path / "strict", lab.Tabular(bias=0.02), algorithm=Strict())
    assert "limit 0.01" in " ".join("".join(capsys.readouterr()).split())
