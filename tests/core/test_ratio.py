"""Law 2: the first update after sampling has ratio one, and a run says so when it has not."""

import pytest

from groupwise import train
from groupwise.algorithms.grpo import GRPO


def test_ratio_is_one_at_the_first_update_of_every_step(lab):
    trainer = lab.trainer(steps=4, microbatch=5)
    for _ in range(4):
        metrics = lab.step(trainer)
        assert metrics["ratio_error"] < 1e-12
        assert metrics["clip_fraction"] == 0.0
        assert metrics["trained_decisions"] > 0


def test_later_updates_move_the_ratio_but_not_the_error(lab):
    trainer = lab.trainer(steps=1, epochs=4, learning_rate=0.5)
    metrics = lab.step(trainer)
    assert metrics["clip_fraction"] > 0.0
    assert metrics["ratio_error"] < 1e-12


def test_log_probs_of_a_sampler_that_tells_none_are_computed(lab):
    class Silent(lab.Tabular):
        def sample(self, *arguments, **named):
            rollouts = super().sample(*arguments, **named)
            object.__setattr__(rollouts, "log_probs", None)
            return rollouts

    told, silent = lab.trainer(), lab.trainer(Silent())
    for _ in range(2):
        one, other = lab.step(told), lab.step(silent)
        assert other["ratio_error"] < 1e-12
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-12)


@pytest.mark.parametrize("bias", [0.07, -0.07])
def test_a_lie_about_log_probs_shows(lab, bias):
    trainer = lab.trainer(lab.Tabular(bias=bias))
    assert lab.step(trainer)["ratio_error"] == pytest.approx(0.07, rel=1e-6)


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
    run(lab, tmp_path / "lie", lab.Tabular(bias=0.05))
    told = " ".join("".join(capsys.readouterr()).split())
    assert told.count("warning: the probability ratio at the first update is off by 0.05") == 1
    assert "limit 0.02" in told
    run(lab, tmp_path / "truth", lab.Tabular())
    assert "ratio" not in "".join(capsys.readouterr())


def test_the_limit_is_a_tenth_of_the_clip_range(lab, tmp_path, capsys):
    wide = GRPO(GRPO.Config(clip_low=0.2, clip_high=0.6))
    run(lab, tmp_path / "wide", lab.Tabular(bias=0.05), algorithm=wide)
    assert "ratio" not in "".join(capsys.readouterr())
