"""Sampling, log-probs, gradients and saving on a CUDA device, in float32 and half precision."""

import pytest
import torch

from groupwise.weights import KeptWeights
from groupwise_flow.algorithms.flow_grpo import FlowGRPO

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),
]

PRECISIONS = {"float32": 2e-5, "bf16": 5e-3, "fp16": 5e-3}
SEEDS = range(6)


@pytest.fixture(params=["sd3", "flux"])
def architecture(request):
    return request.param


@pytest.fixture(params=PRECISIONS)
def precision(request):
    return request.param


@pytest.fixture
def make(lab, architecture, precision):
    """make(device, **settings) -> a new policy on that device."""

    def policy(device="cuda", **settings):
        return lab.policy(architecture, precision=precision, guidance=2.0, **settings).to(device)

    return policy


def sample(lab, policy, **more):
    return policy.sample(lab.rows, group_size=3, seeds=SEEDS, **more)


def test_sampling_on_the_device(lab, make, architecture):
    # FLUX has no unconditional pass.
    guided = {"guidance_gradient": "conditional"} if architecture == "sd3" else {}
    policy = make(**guided)
    rollouts = sample(lab, policy)
    for value in (
        rollouts.sampler_log_probs,
        rollouts.mask,
        rollouts.groups,
        rollouts.tensor("first"),
    ):
        assert value.device.type == "cuda"
    assert rollouts.facts["pixels"][0].device.type == "cuda"
    names = {"path", "unconditional"} if guided else {"path"}
    assert names == {"path", "unconditional"} & rollouts.trajectory.keys()
    for name in names:
        assert rollouts.trajectory[name][0].device.type == "cpu"
    assert torch.equal(sample(lab, policy).sampler_log_probs, rollouts.sampler_log_probs)


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_the_ratio_is_one_however_the_batch_is_split(lab, make, precision, lora):
    policy = make(lora=lora, shared_noise=True, window={"kind": "random", "size": 2})
    rollouts = sample(lab, policy)
    for budget, cut in [(1, True), (6, True), (100, False)]:
        for rows, decisions in policy.microbatches(rollouts, budget, cut_decisions=cut):
            current = policy(rollouts.select(rows), decisions).log_probs
            expected = rollouts.sampler_log_probs[rows.cuda()][:, decisions]
            assert (current - expected).abs().max() < PRECISIONS[precision]


def test_gpu_and_cpu_draw_the_same_pictures(lab, make, precision):
    on_gpu, on_cpu = sample(lab, make()), sample(lab, make("cpu"))
    tolerance = 1e-3 if precision == "float32" else 0.1
    assert (lab.images_of(on_gpu) - lab.images_of(on_cpu)).abs().max() < tolerance
    assert (on_gpu.sampler_log_probs.cpu() - on_cpu.sampler_log_probs).abs().max() < tolerance
    on_gpu, on_cpu = (sample(lab, make(device), purpose="evaluate") for device in ("cuda", "cpu"))
    assert (lab.images_of(on_gpu) - lab.images_of(on_cpu)).abs().max() < tolerance


def test_gpu_and_cpu_have_the_same_gradient(lab, make, precision):
    rollouts = sample(lab, make("cpu"))
    gradients = []
    for device in ("cuda", "cpu"):
        policy = make(device)
        (policy(rollouts).log_probs * torch.arange(6, device=device).unsqueeze(1)).sum().backward()
        gradients.append(lab.gradient(policy).cpu())
    assert lab.gap(*gradients) < (1e-3 if precision == "float32" else 0.2)


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_training_step_with_a_reference(lab, make, lora, checkpointing):
    policy = make(lora=lora, gradient_checkpointing=checkpointing)
    kept = KeptWeights(policy)
    kept.keep("reference")
    rollouts = sample(lab, policy)
    algorithm = FlowGRPO(FlowGRPO.Config(beta=0.1))
    updater = lab.updater(policy, algorithm, 8)
    with kept.using("reference"):
        outputs = {"reference_mean": updater.outputs(rollouts, {"mean"})["mean"]}
    outputs["old_log_probs"] = rollouts.sampler_log_probs
    optimizer = torch.optim.AdamW(lab.trained(policy), lr=1e-3)
    metrics = updater.backward(
        scores=lab.scores_of([0.0, 1.0, 2.0] * 2), rollouts=rollouts, outputs=outputs
    )
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-3)
    before = policy(rollouts).log_probs.detach()
    optimizer.step()
    moved = (policy(rollouts).log_probs - before).detach()
    assert moved.isfinite().all()
    assert moved[2::3].mean() > moved[0::3].mean()


def test_saved_weights_draw_the_same_pictures(lab, make, tmp_path, architecture, precision):
    policy = make()
    lab.nudge(policy)
    policy.save_pretrained(tmp_path)
    loaded = lab.policy(architecture, precision=precision, guidance=2.0, model=str(tmp_path)).to(
        "cuda"
    )
    rollouts, expected = (sample(lab, p, purpose="evaluate") for p in (loaded, policy))
    assert (lab.images_of(rollouts) - lab.images_of(expected)).abs().max() < 1e-5


@pytest.mark.parametrize("foreach", [True, False])
def test_a_step_of_the_optimizer_gives_the_weights_a_new_number(lab, make, foreach):
    policy = make()
    before = policy._weights_now.number
    optimizer = torch.optim.AdamW(lab.trained(policy), lr=0.05, foreach=foreach)
    for parameter in lab.trained(policy):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert policy._weights_now.number != before
