"""The same on a CUDA device, in float32 and under autocast."""

import pytest
import torch

from groupwise_flow.algorithm import FlowGRPO

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),
]

PRECISIONS = {"float32": 2e-5, "bf16": 5e-3, "fp16": 5e-3}
SEEDS = range(6)


@pytest.fixture(params=["sd3", "flux"])
def of(request):
    return request.param


@pytest.fixture(params=PRECISIONS)
def precision(request):
    return request.param


@pytest.fixture
def make(lab, of, precision):
    """make(device, **settings) -> a fresh policy there."""

    def policy(device="cuda", **settings):
        return lab.policy(of, precision=precision, guidance=2.0, **settings).to(device)

    return policy


def sample(lab, policy, **more):
    return policy.sample(lab.rows, group_size=3, seeds=SEEDS, **more)


def test_sampling_on_the_device(lab, make, of):
    policy = make()
    rollouts = sample(lab, policy)
    for value in (
        rollouts.sampler_log_probs,
        rollouts.mask,
        rollouts.groups,
        rollouts.tensor("first"),
    ):
        assert value.device.type == "cuda"
    assert rollouts.facts["images"][0].device.type == "cuda"
    names = {"path", "unconditional"} if of == "sd3" else {"path"}  # flux has one pass alone
    assert names == {"path", "unconditional"} & rollouts.trajectory.keys()
    for name in names:
        assert rollouts.trajectory[name][0].device.type == "cpu"
    assert torch.equal(sample(lab, policy).sampler_log_probs, rollouts.sampler_log_probs)


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_the_ratio_is_one_however_the_batch_is_cut(lab, make, precision, lora):
    policy = make(lora=lora, shared_noise=True, window={"kind": "random", "size": 2})
    rollouts = sample(lab, policy)
    for budget, cut in [(1, True), (6, True), (100, False)]:
        for rows, decisions in policy.microbatches(rollouts, budget, cut_decisions=cut):
            found = policy(rollouts.select(rows), decisions).log_probs
            expected = rollouts.sampler_log_probs[rows.cuda()][:, decisions]
            assert (found - expected).abs().max() < PRECISIONS[precision]


def test_both_devices_agree(lab, make, precision):
    there, here = sample(lab, make()), sample(lab, make("cpu"))
    close = 1e-3 if precision == "float32" else 0.1
    assert (lab.images_of(there) - lab.images_of(here)).abs().max() < close
    assert (there.sampler_log_probs.cpu() - here.sampler_log_probs).abs().max() < close
    there, here = (sample(lab, make(device), purpose="evaluate") for device in ("cuda", "cpu"))
    assert (lab.images_of(there) - lab.images_of(here)).abs().max() < close


def test_both_devices_have_the_same_gradient(lab, make, precision):
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
    policy.keep("reference")
    rollouts = sample(lab, policy)
    algorithm = FlowGRPO(FlowGRPO.Config(beta=0.1))
    updater = lab.updater(policy, algorithm, 8)
    with policy.using("reference"):
        given = {"reference_mean": updater.answers(rollouts, {"mean"})["mean"]}
    given["old_log_probs"] = rollouts.sampler_log_probs
    optimizer = torch.optim.AdamW(lab.trained(policy), lr=1e-3)
    told = updater.backward(rollouts, lab.scores_of([0.0, 1.0, 2.0] * 2), given)
    assert told["kl"] == pytest.approx(0.0, abs=1e-3)
    before = policy(rollouts).log_probs.detach()
    optimizer.step()
    moved = (policy(rollouts).log_probs - before).detach()
    assert moved.isfinite().all()
    assert moved[2::3].mean() > moved[0::3].mean()


def test_saved_weights_are_read_again(lab, make, tmp_path, of, precision):
    policy = make()
    lab.nudge(policy)
    policy.save_pretrained(tmp_path)
    again = lab.policy(of, precision=precision, guidance=2.0, model=str(tmp_path)).to("cuda")
    found, expected = (sample(lab, p, purpose="evaluate") for p in (again, policy))
    assert (lab.images_of(found) - lab.images_of(expected)).abs().max() < 1e-5


@pytest.mark.parametrize("foreach", [True, False])
def test_the_kept_unconditional_branch_goes_when_the_optimizer_steps(lab, make, foreach):
    policy = make()
    before = policy._weights_now.number
    optimizer = torch.optim.AdamW(lab.trained(policy), lr=0.05, foreach=foreach)
    for parameter in lab.trained(policy):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert policy._weights_now.number != before
