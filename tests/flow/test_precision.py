"""Half precision: the error of its log-probs is measured."""

from contextlib import nullcontext

import pytest
import torch
from diffusers import DiffusionPipeline

from groupwise.kit.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


def sample(policy, rows):
    policy.begin(0)
    return policy.sample(rows, group_size=2, seeds=range(4))


@pytest.mark.parametrize("architecture", ["sd3", "flux"])
@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_in_float32_computes_the_bf16_weights_exactly(lab, architecture, lora, rounding):
    """The weights are those rounded to bf16, the computation is in float32."""
    half = lab.policy(architecture, precision="bf16", lora=lora, guidance=2.0)
    exact = lab.policy(architecture, lora=lora, guidance=2.0)
    exact.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    x = torch.randn(2, *half.adapter.latent_shape, generator=torch.Generator().manual_seed(0))
    sigma, conditions = torch.tensor([0.9, 0.4]), half.guided.conditions(lab.rows)
    velocities = [half.guided.velocity(x, sigma, conditions, 1.0)[0]]
    with torch.no_grad(), half.guided.in_float32():
        velocities.append(half.guided.velocity(x, sigma, conditions, 1.0)[0])
    wide = {name: value.float() for name, value in conditions.items()}
    expected, _ = exact.guided.velocity(x, sigma, wide, 1.0)
    rounding.same(lambda: exact.guided.velocity(x, sigma, wide, 1.0)[0], velocities[1])
    assert (velocities[0] - expected).abs().max() > 1e-3


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.slow(after=1)
def test_the_rounding_error_of_log_probs_is_logged(lab, precision):
    settings = {"lora": {"rank": 2}, "guidance": 2.0, "guidance_gradient": "conditional"}
    policy = lab.policy(precision=precision, **settings)
    assert policy.logged == {"log_prob_error"} <= policy.facts
    first = sample(policy, lab.rows)
    error = first.facts["log_prob_error"]
    assert len(set(error)) == 1
    with policy.guided.in_float32(), torch.no_grad():
        trajectory = {k: v for k, v in first.trajectory.items() if k != "unconditional"}
        exact = policy(type(first)(**{**vars(first), "trajectory": trajectory})).log_probs
    assert error[0] == pytest.approx(
        float((exact - first.sampler_log_probs)[0].abs().mean()), rel=0.01
    )
    policy._exact_log_probs = None  # measured once a step, for its first rollouts
    again = policy.sample(lab.rows, group_size=2, seeds=range(4, 8))
    assert again.facts["log_prob_error"] == error
    assert "log_prob_error" not in lab.policy().sample(lab.rows, group_size=1, seeds=[0, 1]).facts


def test_the_error_stays_with_the_rollouts_that_it_was_measured_for(lab):
    """Also where the next step is sampled before this one is trained."""
    policy = lab.policy(precision="bf16", lora={"rank": 2})
    first = sample(policy, lab.rows)
    error = first.facts["log_prob_error"]
    lab.nudge(policy, size=0.2)
    later = sample(policy, lab.rows).facts["log_prob_error"]
    assert later != error
    policy(first)
    assert first.facts["log_prob_error"] == error
    policy.begin(2)
    assert sample(policy, lab.rows).facts["log_prob_error"] == later


def test_fp16_is_nearer_to_float32_than_bf16(lab):
    errors = {}
    for precision in ("bf16", "fp16"):
        policy = lab.policy(precision=precision, lora={"rank": 2})
        errors[precision] = sample(policy, lab.rows).facts["log_prob_error"][0]
    assert 0 < errors["fp16"] < errors["bf16"] / 3


def test_outputs_that_are_not_finite_are_failed_samples(lab):
    policy = lab.policy(precision="fp16")
    with torch.no_grad():
        policy.adapter.model.proj_out.bias.fill_(1e6)  # fp16 ends at 65,504
    rollouts = sample(policy, lab.rows)
    assert rollouts.failed.all()
    reason = "the model's outputs in fp16 are not finite; policy.precision: bf16 has a wider range"
    assert set(rollouts.failures) == {reason}
    assert all(row.isfinite().all() for row in rollouts.trajectory["path"])
    assert all(picture.isfinite().all() for picture in rollouts.facts["pixels"])


def test_pictures_are_decoded_in_float32(lab):
    policy = lab.policy(precision="fp16", lora={"rank": 2})
    latents = torch.randn(2, *policy.adapter.latent_shape)
    expected = lab.policy().guided.completions(latents).images
    assert torch.equal(policy.guided.completions(latents).images, expected)


def test_a_precision_that_the_device_lacks_is_refused_before_weights_are_read(lab, monkeypatch):
    def lacking(precision, device):
        raise RuntimeError(f"{device} does not support bfloat16")

    monkeypatch.setattr("groupwise_flow.model.precision.computing", lacking)
    monkeypatch.setattr(DiffusionPipeline, "from_pretrained", None)
    with pytest.raises(UserError, match=r"policy\.precision: the device 'cpu' does not compute in"):
        lab.policy(precision="bf16")
    # Where autocast only warns and is then switched off.
    monkeypatch.setattr("groupwise_flow.model.precision.computing", lambda *_: nullcontext())
    with pytest.raises(UserError, match=r"fp16 \(autocast left .*set float32 or bf16"):
        lab.policy(precision="fp16")
