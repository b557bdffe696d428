"""An image model as a teacher: the exact KL of its steps' Gaussians to the policy's."""

import json

import pytest
import torch
from torch.distributions import Normal, kl_divergence

import groupwise
from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.forward_process import ForwardProcess
from groupwise_flow.policy import FlowPolicy

WEIGHT = 0.5
WINDOW = {"kind": "fixed", "size": 3}


def update(lab, policy, teacher, rollouts, kind=FlowGRPO):
    """The gradient of an update on equal rewards, in micro-batches, and its metrics."""
    algorithm = kind(kind.Config(teacher_weight=WEIGHT))
    algorithm.take_teacher(policy.provides)
    outputs = lab.updater(policy, algorithm, 4).outputs(rollouts, algorithm.teacher, of=teacher)
    policy.zero_grad()
    metrics = lab.update(
        policy,
        algorithm,
        rollouts,
        values=[0.0] * len(rollouts),
        outputs={"teacher_mean": outputs["mean"]},
        budget=4,
    )
    return lab.gradient(policy), metrics


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("kind", [FlowGRPO, GRPO])
@pytest.mark.parametrize("settings", [{}, {"sde": "cps", "guidance": 3.0}])
def test_the_gradient_is_that_of_the_kl_of_the_gaussians(lab, kind, settings, rounding):
    policy = lab.policy("sd3 without t5", window=WINDOW, **settings)
    teacher = lab.policy("sd3 without t5", window=WINDOW, **settings)
    lab.nudge(teacher)
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    gradient, metrics = update(lab, policy, teacher, rollouts, kind)

    def exact():
        policy.zero_grad()
        current = policy(rollouts)
        with torch.no_grad():
            mean = teacher(rollouts).extra["mean"]
        std = current.extra["std"].view(*current.extra["std"].shape, *[1] * (mean.ndim - 2))
        kl = kl_divergence(Normal(current.extra["mean"], std), Normal(mean, std)).flatten(2).mean(2)
        (WEIGHT * kl.mean()).backward()
        return lab.gradient(policy), kl.mean()

    rounding.same(exact, (gradient, metrics["teacher_kl"]))


def test_a_policy_learns_nothing_from_itself(lab):
    policy, teacher = (lab.policy("sd3 without t5", window=WINDOW) for _ in range(2))
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    gradient, metrics = update(lab, policy, teacher, rollouts)
    assert float(gradient.abs().max()) == 0.0
    assert metrics["teacher_kl"] == 0.0


def test_a_teacher_computes_its_own_unconditional_velocities(lab, rounding):
    """Those of the policy are stored with its rollouts, and are reused by the policy only."""
    settings = {"guidance": 3.0, "guidance_gradient": "conditional", "window": WINDOW}
    policy, teacher = (lab.policy("sd3 without t5", **settings) for _ in range(2))
    lab.nudge(teacher)
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    assert "unconditional" in rollouts.trajectory
    both = lab.policy("sd3 without t5", guidance=3.0, window=WINDOW)
    lab.nudge(both)
    mean = teacher(rollouts).extra["mean"]
    rounding.same(lambda: both(rollouts).extra["mean"], mean)


@pytest.mark.slow
def test_a_run_approaches_its_teacher_and_resumes_exactly(lab, tmp_path):
    teacher = lab.policy("sd3 without t5", window=WINDOW)
    lab.nudge(teacher)
    teacher.save_pretrained(tmp_path / "teacher")

    def train(folder, steps, **options):
        return groupwise.train(
            policy={
                "name": "flow",
                "model": str(lab.folders["sd3 without t5"]),
                "prompt_tokens": 12,
                "height": 16,
                "width": 16,
                "steps": 5,
                "evaluation_steps": 2,
                "window": WINDOW,
            },
            teacher={"model": str(tmp_path / "teacher")},
            algorithm="flow_grpo",
            prompts=[{"prompt": "a cat"}, {"prompt": "two dogs"}],
            rewards=[{"name": "jpeg_size", "weight": 0}],
            train={"steps": steps, "groups_per_step": 2, "group_size": 2, "learning_rate": 3e-3},
            evaluation={"prompts": 0},
            output=tmp_path / folder,
            reports=[],
            quiet=True,
            **options,
        )

    train("whole", 3)
    train("parts", 2)
    train("parts", 3, resume=True)
    weights = "model/transformer/diffusion_pytorch_model.safetensors"
    whole, parts = (tmp_path / folder for folder in ("whole", "parts"))
    assert (parts / weights).read_bytes() == (whole / weights).read_bytes()
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    first, _, last = (line["teacher_kl"] for line in lines if "teacher_kl" in line)
    assert last < 0.9 * first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"noise_level": 0.5},
            "policy's decisions, and noise_level is 0.5 here and 0.7 in the policy",
        ),
        (
            {"steps": 6},
            "policy's decisions, and steps is 6 here and 5 in the policy; leave it out here",
        ),
        ({"height": 24}, "policy's decisions, and height is 24 here and 16 in the policy"),
        ({"architecture": "flux"}, "reads the policy's latents"),
    ],
)
def test_teachers_that_do_not_fit_are_refused(lab, changes, message):
    policy = lab.settings("sd3 without t5")
    changes = {"architecture": "sd3", **changes}
    kind = FlowPolicy
    with pytest.raises(UserError, match=message):
        kind.check_teacher(policy, kind, lab.settings(**changes))


def test_a_size_that_is_unset_is_the_models_own(lab):
    kind = FlowPolicy
    unset, same, larger = (lab.settings("sd3 without t5", height=h) for h in (None, 16, 24))
    kind.check_teacher(unset, kind, same)
    with pytest.raises(UserError, match=r"latents: expected the shape \[4, 8, 8\], found \[4, 12"):
        kind.check_teacher(unset, kind, larger)


def test_a_likelihood_other_than_the_policys_is_refused(lab):
    one, other = (lab.settings(kind=ForwardProcess, likelihood=name) for name in ("x0", "sigma"))
    ForwardProcess.check_teacher(one, ForwardProcess, one)
    with pytest.raises(UserError, match="decisions, and likelihood is sigma here and x0 in the"):
        ForwardProcess.check_teacher(one, ForwardProcess, other)
