"""The models in the box, each on a tiny random pipeline of diffusers' own class."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
)
from PIL import Image
from tests.flow.stand_ins import MODELS
from tests.flow.test_waits import Operations
from torch.overrides import TorchFunctionMode

from groupwise import testing
from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload
from groupwise.registry import installed
from groupwise_flow.passes.guidance import has_two_branches
from groupwise_flow.policy import FlowPolicy
from groupwise_flow.settings import FlowSettings
from groupwise_flow.testing.case import Case
from groupwise_testing.policy import gradients
from groupwise_testing.policy.case import Case as PolicyCase

ROWS = [{"prompt": "a cat"}, {"prompt": "two dogs and a bird"}, {"prompt": "x"}]
LEVELS = (0.7, 0.95)
"""Of noise: of two transformers each runs at one of them."""
PIPELINES = {
    "z_image": "ZImagePipeline",
    "qwen_image": "QwenImagePipeline",
    "flux2": "Flux2Pipeline",
    "flux2_klein": "Flux2KleinPipeline",
    "flux2_klein distilled": "Flux2KleinPipeline",
    "flux2_klein edit": "Flux2KleinPipeline",
    "flux_kontext": "FluxKontextPipeline",
    "qwen_image_edit": "QwenImageEditPlusPipeline",
    "qwen_image_edit 2511": "QwenImageEditPlusPipeline",
    "sana": "SanaPipeline",
    "lumina2": "Lumina2Pipeline",
    "ltx": "LTXPipeline",
    "ltx timed": "LTXPipeline",
    "hunyuan15": "HunyuanVideo15Pipeline",
    "wan21": "WanPipeline",
    "wan22": "WanPipeline",
    "wan22_5b": "WanPipeline",
}
"""The registered name of each model's adapter."""
LARGE = ("hunyuan15",)
"""Models whose estimates of memory count some two thousand tokens."""
SOURCES = {
    "flux_kontext": 1,
    "qwen_image_edit": 1,
    "qwen_image_edit 2511": 1,
    "flux2_klein edit": 2,
}
"""Pictures of each row, of models that edit."""


def rows_of(name):
    """The rows, with pictures of another shape than the results' for models that edit."""
    count = SOURCES.get(name, 0)
    noise = np.random.default_rng(0)

    def picture():
        return Image.fromarray(noise.integers(0, 256, (70, 90, 3), np.uint8))

    return [{**row, "images": [picture() for _ in range(count)]} for row in ROWS]


class Model:
    """A pipeline in memory, which all tests of its model share."""

    def __init__(self, name, folder):
        self.name, self.stand_in = name, MODELS[name]
        self.pipeline = DiffusionPipeline.from_pretrained(folder)
        for attribute, value in self.stand_in.attributes.items():
            setattr(self.pipeline, attribute, value)
        self.pipeline.set_progress_bar_config(disable=True)
        self.kind = installed().load("adapters", PIPELINES[name])

    def case(self, **size):
        options = self.kind.Config(**self.stand_in.options)
        sizes = {**self.stand_in.size, "options": options, **size}
        return Case(self.kind, self.pipeline, rows_of(self.name), sizes)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in MODELS
    ],
)
def model(request, folders):
    return Model(request.param, folders[request.param])


@torch.no_grad()
def same_pictures(rounding, case, scale, negative=""):
    """Latents and pictures are those of the pipeline, both from the same noise."""

    def ours():
        latents = case.latents(scale, negative)
        return case.adapter.output(latents), case.adapter.completions(latents)[1]

    rounding.same(ours, tuple(case.drawn(scale, kind, negative) for kind in ("latent", "pt")))


@pytest.mark.slow(after=1)
def test_without_noise_it_draws_what_the_pipeline_draws(model, rounding):
    """Without guidance and with it, with a negative prompt, and in another size."""
    case = model.case()
    same_pictures(rounding, case, 1.0)
    if not case.adapter.takes_guidance():
        return
    same_pictures(rounding, case, 4.0)
    plain = case.latents(1.0)
    assert (case.latents(4.0) - plain).abs().max() > 1e-3
    if case.adapter.takes_negative_prompt():
        same_pictures(rounding, case, 4.0, "a blurred thing")
        assert (case.latents(4.0, "a blurred thing") - case.latents(4.0)).abs().max() > 1e-3
    height, width = model.stand_in.other
    same_pictures(rounding, model.case(height=height, width=width), 4.0)


@pytest.mark.slow(after=2)
def test_it_passes_check_adapter(model):
    stand_in = model.stand_in
    rows = rows_of(model.name)
    testing.check_adapter(
        model.kind, model.pipeline, rows=rows, options=stand_in.options, **stand_in.size
    )


def settings_of(model, **settings):
    guided = model.case().adapter.takes_guidance()
    return {"guidance": 3.0 if guided else 1.0, "steps": 3, **settings}


@pytest.mark.slow(after=1)
def test_ratios_are_one_gradients_are_true_and_lora_is_read_back_at_the_same_strength(
    model, lab, tmp_path, rounding
):
    policy = lab.policy(
        model.name, **settings_of(model, lora={"rank": 2}, gradient_checkpointing=True)
    )
    lab.nudge(policy, 0.3)
    policy.begin(1)
    rows = rows_of(model.name)[:2]
    rollouts = policy.sample(rows, group_size=2, seeds=range(4))
    with torch.no_grad():
        alone = torch.cat([policy(rollouts.select([n])).log_probs for n in range(4)])
    rounding.same(lambda: policy(rollouts).log_probs, rollouts.sampler_log_probs, alone)
    testing.hold(model.name, gradients.LAWS, PolicyCase(policy, rows, 1, None))
    policy.save_pretrained(tmp_path)
    case = model.case()
    before = case.whole
    for line in policy.adapter.lora_code:
        exec(line.format(path=tmp_path), {"pipeline": model.pipeline})
    try:
        read = [case.velocity(case.start, case.conditions, sigma=level) for level in LEVELS]
    finally:
        for part in case.adapter.models.values():
            part.unload_lora()

    def velocity(level):
        levels = torch.full((len(ROWS),), level)
        return policy.adapter.velocity(case.start, levels, case.conditions, guidance=1.0)

    rounding.same(lambda: tuple(map(velocity, LEVELS)), tuple(read))
    assert (read[0] - before).abs().max() > 1e-2


@pytest.mark.slow(after=2)
def test_its_memory_is_estimated(model, lab, monkeypatch):
    """Of sampling, too, by running the models' own code; of activations within a factor of 1.5, but
    for masks of pairs of tokens, which a layer of HunyuanVideo 1.5 makes numbers of."""
    monkeypatch.setitem(MODELS, model.name, replace(model.stand_in, attributes={}))
    policy = lab.policy(model.name, steps=2, long_prompts="cut")
    counts = {"rollouts": 4, "group_size": 2, "training": True, "reference": False, "averages": 0}
    update = FlowPolicy.estimate(policy.config, Workload(decisions=4, sampled=0, **counts))
    sampling = FlowPolicy.estimate(policy.config, Workload(decisions=0, sampled=4, **counts))
    weights = sum(p.numel() for p in policy.adapter.model.parameters())
    assert update["transformer"] == 4 * weights
    assert not [name for name in sampling if "not counted" in name]
    assert sampling.keys() & {"a pass while sampling", "decoding", "encoding a prompt"}
    full = [  # prompts that fill their tokens
        {**row, "prompt": f"{letter} dog, " * 40}
        for letter, row in zip("ab", rows_of(model.name), strict=False)
    ]
    rollouts = policy.sample(full, group_size=2, seeds=range(4))
    kept, known = {}, {p.untyped_storage().data_ptr() for p in policy.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        is_mask = tensor.ndim == 4 and tensor.shape[1] == 1 and tensor.shape[2] == tensor.shape[3]
        if storage.data_ptr() not in known and not is_mask:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy(rollouts)
    measured = sum(kept.values())
    assert measured / 1.5 < update["activations"] < 1.5 * measured


class Reads(TorchFunctionMode):
    """Notes each time that a tensor's values are read on the host."""

    NAMES = ("tolist", "item", "numpy", "__bool__", "__int__", "__float__")

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        self.names += [name] if name in self.NAMES else []
        return function(*args, **(kwargs or {}))


def test_a_pass_does_not_make_the_host_wait(model):
    """But for Lumina-Image 2.0, whose model itself asks the device how long prompts are, for
    HunyuanVideo 1.5, whose model asks whether there is a first frame, and for two transformers, of
    which the levels choose one."""
    case = model.case()
    assert len(case.conditions) > 0  # encoded before the pass
    operations, reads = Operations(), Reads()
    with operations, reads:
        case.velocity(case.start, case.conditions)
    waits = [*operations.waits(operations.names), *reads.names]
    allowed = {"lumina2": {"tolist"}, "wan22": {"tolist"}}
    allowed["hunyuan15"] = {"__bool__", "aten::_local_scalar_dense"}
    assert {*waits} == allowed.get(model.name, set())


def tokens_read(ids=None, mask=None, **named):
    """Without a mask all but the padding, whose number is 0."""
    mask = named.get("attention_mask", mask)
    return int((ids != 0 if mask is None else mask).sum())


def test_prompts_are_measured_as_the_text_encoder_receives_them(model):
    adapter = model.case().adapter
    limit, read = adapter.limit(), []
    pipeline = adapter.pipeline
    second = limit.tokenizer is getattr(pipeline, "tokenizer_2", None)
    encoder = pipeline.text_encoder_2 if second else pipeline.text_encoder
    hook = encoder.register_forward_pre_hook(
        lambda module, args, named: read.append(tokens_read(*args, **named)),
        with_kwargs=True,
    )
    with torch.no_grad():
        adapter.encode([adapter.columns(row) for row in rows_of(model.name)[:1]])
    hook.remove()
    own = limit.lengths([ROWS[0]["prompt"]])[0] + limit.uncounted
    assert read == [own + adapter.tokens - adapter.prompt_tokens]  # the rest: of pictures
    long = "a" * 2 * limit.most
    with pytest.raises(UserError, match=r"policy\.prompt_tokens allows"):
        limit.check([long])


def test_only_guidance_by_a_second_pass_has_a_negative_prompt(model):
    case = model.case()
    two = has_two_branches(case.adapter, 3.0) and case.adapter.takes_guidance()
    assert two == (model.name not in ("flux2", "flux2_klein distilled", "flux_kontext"))
    is_klein = model.name.startswith("flux2_klein")
    assert case.adapter.takes_negative_prompt() == (two and not is_klein)
    if model.name == "flux2_klein":
        with pytest.raises(UserError, match=r"negative_prompt: the call of Flux2KleinPipeline"):
            case.guided(3.0, "a dog")
    if model.name == "flux2_klein distilled":
        with pytest.raises(UserError, match="this model takes no guidance"):
            case.guided(3.0)


def test_examining_knows_whether_a_model_is_distilled(folders):
    """That stands in the pipeline's index, not among its parts."""
    for name, message in (("flux2_klein distilled", "takes no guidance"), ("flux2_klein", None)):
        settings = FlowSettings(
            model=str(folders[name]), guidance=4.0, **MODELS[name].size, steps=3
        )
        with pytest.raises(UserError, match=message) if message else nullcontext():
            FlowPolicy.examine(settings, ROWS[:1])


@pytest.mark.parametrize(
    ("name", "options"), [("sana", {"instruction": False}), ("lumina2", {"normalization": False})]
)
@pytest.mark.slow(after=1)
def test_options_of_an_adapter_are_those_of_the_pipelines_call(name, options, folders, rounding):
    model = Model(name, folders[name])
    usual = model.case().latents(4.0)
    case = model.case(options=model.kind.Config(**options))
    same_pictures(rounding, case, 4.0)
    assert (case.latents(4.0) - usual).abs().max() > 1e-3


def test_sanas_solver_is_exchanged_for_one_of_first_order_and_others_are_kept(folders):
    adapter = Model("sana", folders["sana"]).case().adapter
    assert type(adapter.own_scheduler) is DPMSolverMultistepScheduler
    config = adapter.pipeline.scheduler.config
    assert (config.solver_order, config.flow_shift) == (1, 3.0)
    assert adapter.own_scheduler.config.solver_order == 2
    assert adapter.exchange(adapter.pipeline.scheduler) is None
    assert adapter.exchange(FlowMatchEulerDiscreteScheduler(shift=3.0)) is None
    assert adapter.exchange(DPMSolverMultistepScheduler()) is None  # refused: not a flow's levels
