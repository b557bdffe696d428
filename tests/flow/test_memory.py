"""Memory kept for the backward pass, memory estimates, and half precision."""

import pytest
import torch
from diffusers import DiffusionPipeline

from groupwise.kit.memory import Workload
from groupwise_flow.activations import of_transformer
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.estimates.counting import Alive
from groupwise_flow.estimates.sampling_memory import SamplingMemory
from groupwise_flow.files.outline import outline
from groupwise_flow.forward_process import ForwardProcess
from groupwise_flow.policy import FlowPolicy


class Saved:
    """Counts the bytes that autograd saves for the backward pass, weights left out.

    Each storage counts once. peak: the largest count so far; `start` resets the count.
    """

    def __init__(self, policy):
        self.weights = {p.untyped_storage().data_ptr() for p in policy.parameters()}
        self.kept, self.peak = {}, 0

    def keep(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.weights:
            self.kept[storage.data_ptr()] = storage.nbytes()
        self.peak = max(self.peak, sum(self.kept.values()))
        return tensor

    def __enter__(self):
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.keep, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)

    def start(self, *_):
        self.kept.clear()


def update(lab, policy, *, budget=16384):
    """Runs an update; returns the largest number of bytes kept for its backward passes."""
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    saved = Saved(policy)
    policy.register_forward_pre_hook(saved.start)
    with saved:
        lab.update(policy, FlowGRPO(), rollouts, budget=budget)
    return saved.peak


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_memory_does_not_grow_with_the_number_of_trained_steps(lab, guidance):
    peaks = [
        update(lab, lab.policy(guidance=guidance, steps=steps, window={"kind": "fixed", "size": n}))
        for n, steps in [(2, 5), (4, 5), (8, 9)]
    ]
    assert max(peaks) < 1.01 * min(peaks)
    assert min(peaks) > 100_000


def test_memory_is_proportional_to_the_pictures_of_a_micro_batch(lab):
    full = update(lab, lab.policy())
    halved = update(lab, lab.policy(batch=2))
    assert full / 2.5 < halved < full / 1.5
    assert update(lab, lab.policy(), budget=2) == pytest.approx(halved, rel=0.01)


@pytest.mark.parametrize("architecture", ["sd3", "flux"])
@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_gradient_checkpointing_saves_memory_and_changes_no_gradient(
    lab, architecture, lora, rounding
):
    gradients, kept = [], []
    for checkpointing in (False, True):
        policy = lab.policy(architecture, lora=lora, gradient_checkpointing=checkpointing).train()
        rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))

        def gradient(policy=policy, rollouts=rollouts):
            policy.zero_grad()
            policy(rollouts, slice(0, 2)).log_probs.square().sum().backward()
            return lab.gradient(policy)

        with Saved(policy) as saved:
            gradients.append(gradient())
        kept.append(saved.peak)
    rounding.same(gradient, *gradients)
    assert kept[1] < kept[0] / 2


# ---- estimates


def of_a_run(**options):
    counts = {"decisions": 1000, "rollouts": 8, "group_size": 4, "sampled": 0}
    return {**counts, "training": True, **options}


SOME, FEED_FORWARD = {"rank": 2}, {"rank": 3, "targets": ["to_q", "ff.net.2"]}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("architecture", "lora", "precision"),
    [
        *(("sd3", None, "float32"), ("sd3", SOME, "bf16"), ("sd3", FEED_FORWARD, "fp16")),
        *(("sd3 without t5", None, "bf16"), ("sd3 without t5", SOME, "fp16")),
        *(("sd3 without t5", FEED_FORWARD, "float32"), ("flux", None, "fp16")),
        *(("flux", SOME, "float32"), ("flux", FEED_FORWARD, "bf16")),
    ],
)
def test_an_estimate_loads_no_weights_and_counts_them_exactly(
    lab, architecture, lora, precision, monkeypatch
):
    policy = lab.policy(architecture, lora=lora, precision=precision)
    trained = sum(p.numel() for p in lab.trained(policy))
    parts = {
        name: sum(p.numel() * p.element_size() for p in module.parameters())
        for name, module in policy.named_children()
    }
    transformer = parts.pop("transformer") - (4 * trained if lora else 0)

    def refuse(*_, **__):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(DiffusionPipeline, "from_pretrained", refuse)
    sizes = FlowPolicy.estimate(policy.config, Workload(**of_a_run(), reference=True, averages=2))
    activations = sizes["activations"]
    assert activations > 0
    # Float32 weights that compute in half precision have a copy in half precision.
    halved = lora is None and precision != "float32"
    copy = {f"transformer in {precision}": 2 * trained} if halved else {}
    assert dict(sizes) == {
        "frozen models": sum(parts.values()),
        "transformer": transformer,
        "gradients": 4 * trained,
        "optimizer": 8 * trained,
        "activations": activations,
        "reference": 4 * trained,
        "moving average": 2 * 4 * trained,
        **copy,
    }
    plain = FlowPolicy.estimate(policy.config, Workload(**of_a_run(), reference=False, averages=0))
    assert sizes.keys() - plain.keys() == {"reference", "moving average"}
    for name, number in [("decisions", 2), ("rollouts", 2)]:
        fewer = of_a_run(**{name: number})
        smaller = FlowPolicy.estimate(policy.config, Workload(**fewer, reference=False, averages=0))
        assert smaller["activations"] == pytest.approx(activations / 4, abs=1)
    evaluation = FlowPolicy.estimate(
        policy.config, Workload(**of_a_run(training=False), reference=True, averages=1)
    )
    assert dict(evaluation) == {k: sizes[k] for k in ("frozen models", "transformer", *copy)}
    sampling = FlowPolicy.estimate(
        policy.config, Workload(**of_a_run(decisions=0), reference=False, averages=0)
    )
    assert plain.keys() - sampling.keys() == {"activations"}


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_shards_divide_the_trained_weights_and_not_the_frozen_models(lab, lora):
    config = lab.policy("flux", lora=lora, precision="bf16").config
    copies = {"reference": True, "averages": 1}
    full = dict(FlowPolicy.estimate(config, Workload(**of_a_run(), **copies)))
    sharded = dict(FlowPolicy.estimate(config, Workload(**of_a_run(), **copies, shards=3)))
    gathered = {"gathered blocks", "gradients of gathered blocks"}
    assert sharded.keys() - full.keys() == gathered
    assert full.keys() - sharded.keys() == (set() if lora else {"transformer in bf16"})
    for purpose in ("gradients", "optimizer", "reference", "moving average", "transformer"):
        assert sharded[purpose] == pytest.approx(full[purpose] / 3, abs=12)
    for purpose in ("frozen models", "activations"):
        assert sharded[purpose] == full[purpose]
    sampling = FlowPolicy.estimate(config, Workload(**of_a_run(decisions=0), **copies, shards=3))
    assert gathered & sampling.keys() == {"gathered blocks"}


@pytest.mark.slow
def test_the_estimate_of_activations_is_within_a_factor_of_1_5(lab):
    for architecture in ("sd3", "flux", "sdxl"):
        policy = lab.policy(architecture)
        four = of_a_run(decisions=4, rollouts=4)
        sizes = FlowPolicy.estimate(policy.config, Workload(**four, reference=False, averages=0))
        measured = update(lab, policy)
        assert measured / 1.5 < sizes["activations"] < 1.5 * measured
        config = policy.config.model_copy(update={"gradient_checkpointing": True})
        checkpointed = FlowPolicy.estimate(config, Workload(**four, reference=False, averages=0))
        # Beside what is kept, one block of few is computed again at a time.
        kept = update(lab, lab.policy(architecture, gradient_checkpointing=True))
        assert kept < checkpointed["activations"] < measured


def test_an_adapter_may_state_its_activations(lab, monkeypatch):
    """As packages do by `of_transformer`; the estimate is then for 4 pictures in float32."""
    policy = lab.policy("flux", gradient_checkpointing=True)

    def stated(self, *, checkpointing):
        return of_transformer(width=8, layers=2, tokens=10, checkpointing=checkpointing)

    monkeypatch.setattr(type(policy.adapter), "activations", stated)
    four = of_a_run(decisions=4, rollouts=4)
    sizes = FlowPolicy.estimate(policy.config, Workload(**four, reference=False, averages=0))
    assert sizes["activations"] == 4 * 4 * 10 * 2 * (1.5 + 26 / 2) * 8


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_both_branches_of_guidance_take_twice_the_activations(lab, lora):
    """In an update, and in the estimate of one."""
    measured, estimated = {}, {}
    variants = {
        "none": {},
        "conditional": {"guidance": 4.0, "guidance_gradient": "conditional"},
        "both": {"guidance": 4.0},
        "of evaluation": {"guidance": 4.0, "training_guidance": 1.0},
        "in the model": {"architecture": "flux", "guidance": 3.5},
    }
    for name, settings in variants.items():
        policy = lab.policy(lora=lora, **settings)
        sizes = FlowPolicy.estimate(
            policy.config, Workload(**of_a_run(), reference=False, averages=0)
        )
        measured[name], estimated[name] = update(lab, policy), sizes["activations"]
    for sizes in (measured, estimated):
        for one in ("conditional", "of evaluation"):
            assert sizes[one] == pytest.approx(sizes["none"], rel=0.1)
        assert sizes["both"] == pytest.approx(2 * sizes["conditional"], rel=0.1)
    unguided = lab.policy("flux", lora=lora).config
    sizes = FlowPolicy.estimate(unguided, Workload(**of_a_run(), reference=False, averages=0))
    assert sizes["activations"] == estimated["in the model"]


WEIGHTS = {"frozen models", "transformer", "unet", "gradients", "optimizer"}


def estimate_of_sampling(config, sampled):
    """Bytes beside the weights, by purpose."""
    counts = of_a_run(decisions=0, sampled=sampled)
    sizes = FlowPolicy.estimate(config, Workload(**counts, reference=False, averages=0))
    names = {*WEIGHTS, f"transformer in {config.precision}"}
    return {purpose: size for purpose, size in sizes.items() if purpose not in names}


@pytest.mark.parametrize("architecture", ["sd3", "flux", "sdxl"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"guidance": 3.0}, {"window": {"kind": "random", "size": 2}}, {"kind": ForwardProcess}],
)
@pytest.mark.slow(after=1)
def test_the_estimate_of_sampling_is_within_a_factor_of_1_5(lab, architecture, settings):
    """Against the bytes of the tensors that exist while a policy samples, on the CPU."""
    policy = lab.policy(architecture, **settings)
    for count in (8, 24):
        with Alive("cpu") as alive:
            policy.sample(lab.rows, group_size=count // 2, seeds=range(count))
        estimated = sum(estimate_of_sampling(policy.config, count).values())
        assert alive.most / 1.5 < estimated < 1.5 * alive.most


def test_sampling_is_the_moment_that_takes_most(lab):
    sizes = estimate_of_sampling(lab.settings(batch=64), 64)
    assert {"decoding", "pictures of a batch", "latents while sampling"} <= sizes.keys()
    assert sizes["pictures of a batch"] == 64 * 4 * 3 * 16 * 16
    # 2 of the present, 4 of noise, 5 of the path; with guidance 4 more.
    assert sizes["latents while sampling"] == 64 * (2 + 4 + 5) * 4 * 4 * 8 * 8
    for kind, kept in (("both", 0), ("conditional", 4)):
        guided = estimate_of_sampling(
            lab.settings(batch=64, guidance=3.0, guidance_gradient=kind), 64
        )
        assert guided["latents while sampling"] == 64 * (11 + kept) * 4 * 4 * 8 * 8
    # Few pictures, and large encoders that move to the device for a prompt.
    settings = lab.settings(encoders="offload")
    sizes = SamplingMemory(outline(settings), settings).on_device(1, 10**9)
    assert sizes.keys() == {"text encoders while encoding", "encoding a prompt"}
    assert sizes["text encoders while encoding"] == 10**9


@pytest.mark.parametrize("encoders", ["offload", "cached"])
@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_encoders_that_leave_the_device_are_in_the_estimate_only_while_they_encode(
    lab, encoders, precision, monkeypatch
):
    moved = lambda self, rollouts, encoders: {"moved": encoders}  # noqa: E731
    monkeypatch.setattr(SamplingMemory, "on_device", moved)
    policy = lab.policy(precision=precision)
    resident, config = policy.config, policy.config.model_copy(update={"encoders": encoders})
    size = sum(
        p.numel() * p.element_size()
        for name, part in policy.named_children()
        if name in policy.adapter.encoders
        for p in part.parameters()
    )
    copies = {"reference": False, "averages": 0}
    before, after = (
        FlowPolicy.estimate(c, Workload(**of_a_run(), **copies)) for c in (resident, config)
    )
    assert before["frozen models"] - after["frozen models"] == size
    assert estimate_of_sampling(config, 1) == {"moved": size}
    assert estimate_of_sampling(resident, 1) == {"moved": 0}
    cpu = FlowPolicy.estimate_cpu(config, **CPU)
    assert cpu.get("text encoders", 0) == (size if encoders == "offload" else 0)


CPU = {"rollouts": 8, "prompts": 5, "facts": frozenset(), "references": 0}


@pytest.mark.slow(after=2)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize(
    ("architecture", "gradient"), [("sd3", "both"), ("sd3", "conditional"), ("flux", "both")]
)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_estimate_of_cpu_memory_is_what_rollouts_and_encodings_take(
    lab, architecture, gradient, precision
):
    settings = {"precision": precision, "guidance": 3.0, "guidance_gradient": gradient}
    policy = lab.policy(architecture, **settings)
    facts = frozenset({"predictions"})
    policy.prepare(outputs=policy.provides, facts=facts)
    rows = [{"prompt": f"{letter} cat"} for letter in "abcd"]
    rollouts = policy.sample(rows, group_size=2, seeds=range(8))
    more = {"facts": facts, "references": 1, "prompts": len(rows)}
    sizes = FlowPolicy.estimate_cpu(policy.config, **{**CPU, **more})

    def held(tensors):
        return sum(tensor.nbytes for tensor in tensors)

    trajectory, facts = rollouts.trajectory, rollouts.facts
    paths = held(trajectory["path"]) + held(trajectory.get("unconditional", ()))
    kept = [held(c.values()) for c in policy.guided.encodings._kept.values()]
    mean = policy(rollouts).extra["mean"]
    assert dict(sizes) == {
        "latents of a step": paths,
        "pictures of a step": held(facts["pixels"]) * 5 // 4,  # and uint8 in PIL
        "outputs of the reference and other copies": mean.numel() * 4,
        "predictions of a step": held(facts["predictions"]),
        "encoded prompts": 5 * kept[0],  # with the unconditional prompt
    }
    few = {**CPU, **more, "prompts": 10_000}
    config = policy.config.model_copy(update={"keep_prompts": 7})
    assert FlowPolicy.estimate_cpu(config, **few)["encoded prompts"] == 7 * kept[0]


# ---- half precision


# FLUX norms queries by weights that stay float32, which only rules out a fused kernel.
@pytest.mark.slow(after=2)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("architecture", ["sd3", "flux"])
@pytest.mark.parametrize("lora", [None, {"rank": 2}])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_computes_in_half_and_trains_in_float32(
    lab, architecture, lora, precision, rounding
):
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    rounding.needs_attention(half)
    policy = lab.policy(architecture, lora=lora, precision=precision, guidance=2.0)
    for name, parameter in policy.named_parameters():
        # transformers keeps T5's projection `wo` in float32, as it overflows in fp16.
        in_float32 = parameter.requires_grad or name.startswith("vae.")
        in_float32 = in_float32 or (precision == "fp16" and ".wo." in name)
        assert parameter.dtype == (torch.float32 if in_float32 else half), name
    assert policy.scale_loss == (precision == "fp16")
    rollouts = policy.sample(lab.rows, group_size=2, seeds=range(4))
    current = policy(rollouts)
    for name, value in {"log_probs": current.log_probs, **current.extra}.items():
        assert value.dtype == torch.float32, name
    rounding.same(lambda: policy(rollouts).log_probs, rollouts.sampler_log_probs)
    current.log_probs.sum().backward()
    assert 0 < float(lab.gradient(policy).norm()) < float("inf")
    exact = lab.policy(architecture, lora=lora, guidance=2.0)
    reference = exact.sample(lab.rows, group_size=2, seeds=range(4))
    images, reference_images = lab.images_of(rollouts), lab.images_of(reference)
    assert 0 < (images - reference_images).abs().mean() < 0.03
