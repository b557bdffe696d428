"""The adapter for Qwen-Image that docs/plugins.md shows, as a plugin's author would write it."""

import importlib
import re
import sys
import warnings
from pathlib import Path
from runpy import run_path

import pytest
import torch
from diffusers import DiffusionPipeline

import groupwise
from groupwise.memory import Workload
from groupwise_flow.policy import FlowPolicy

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
SOURCE = re.search(r"```python\n(# qwen_image\.py\n.*?)```", PAGE.read_text(), re.DOTALL)[1]
ROWS = [
    {"prompt": "a cat"},
    {"prompt": "the quick brown fox jumps over the lazy dog, twice and once again"},
    {"prompt": "two dogs"},
]
SEEDS = [5, 6, 7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tiny = run_path(str(Path(__file__).with_name("qwen.py")))
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("qwen") / "model"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny["qwen_image"]().save_pretrained(path)
    return path


@pytest.fixture
def make(lab, folder, tmp_path, monkeypatch):
    """make(**settings) -> a policy with the adapter of the page."""
    (tmp_path / "qwen_image.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "qwen_image", raising=False)
    adapter = importlib.import_module("qwen_image").QwenImage
    usual = {"model": str(folder), "adapter": adapter, "prompt_tokens": 96}
    yield lambda **settings: lab.policy(**{**usual, **settings})
    del sys.modules["qwen_image"]


def test_the_adapter_has_at_most_90_lines():
    assert len(SOURCE.splitlines()) <= 90


@pytest.mark.parametrize(
    ("guidance", "more"),
    [
        (1.0, {}),
        (4.0, {}),
        (4.0, {"negative_prompt": "a blurred picture of nothing at all"}),
        (4.0, {"height": 8, "width": 12}),
    ],
)
def test_latents_are_those_of_the_pipeline(lab, folder, make, guidance, more):
    """Prompts of different lengths, alone and in one batch, in twelve steps."""
    policy = make(guidance=guidance, evaluation_steps=12, **more)
    latents, completions = [], policy.adapter.completions
    policy.adapter.completions = lambda x: latents.append(x) or completions(x)
    policy.sample(ROWS[:1], group_size=1, seeds=SEEDS[:1], purpose="evaluate")
    rollouts = policy.sample(ROWS, group_size=1, seeds=SEEDS, purpose="evaluate")
    pipeline = DiffusionPipeline.from_pretrained(folder)
    expected = lab.pipelines_images(pipeline, policy, ROWS, SEEDS, "latent")
    assert (latents[1] - expected).abs().max() < 1e-5
    assert (latents[0] - expected[:1]).abs().max() < 1e-5
    assert torch.pdist(expected.flatten(1)).min() > 0.1
    images = lab.pipelines_images(pipeline, policy, ROWS, SEEDS)
    assert (lab.images_of(rollouts) - images).abs().max() < 2e-5


def test_guidance_keeps_the_norm_of_the_conditional_velocity(make):
    adapter = make().adapter
    conditional, unconditional = torch.randn(2, 2, 16, 16)
    guided = adapter.guide(conditional, unconditional, 4.0)
    torch.testing.assert_close(guided.norm(dim=-1), conditional.norm(dim=-1))
    assert (guided - (unconditional + 4.0 * (conditional - unconditional))).abs().max() > 1


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_the_ratio_is_one_and_every_weight_learns(lab, make, lora):
    policy = make(guidance=4.0, lora=lora, gradient_checkpointing=True)
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(6))
    for rows in ([0, 1, 2, 3, 4, 5], [2, 3]):
        log_probs = policy(rollouts.select(rows)).log_probs
        expected = rollouts.sampler_log_probs[rows]
        torch.testing.assert_close(log_probs.detach(), expected, rtol=0, atol=1e-5)
    log_probs.sum().backward()
    assert float(lab.gradient(policy).norm()) > 0


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_it_trains_and_the_saved_weights_draw_the_same_pictures(lab, folder, make, tmp_path, lora):
    make()  # its module can be imported by name from here on
    policy = make(adapter="qwen_image:QwenImage", guidance=4.0, steps=4, lora=lora)
    start = policy.sample(ROWS, group_size=1, seeds=SEEDS, purpose="evaluate")
    result = groupwise.train(
        policy=policy,
        algorithm={"name": "flow_grpo", "beta": 0.1},
        prompts=ROWS,
        rewards=[lab.redness],
        train={"steps": 2, "groups_per_step": 2, "group_size": 3, "learning_rate": 1e-2},
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        quiet=True,
    )
    assert result.steps == 2
    model = tmp_path / "run" / "model"
    pipeline = DiffusionPipeline.from_pretrained(folder if lora else model)
    if lora:
        pipeline.load_lora_weights(model)
    end = policy.sample(ROWS, group_size=1, seeds=SEEDS, purpose="evaluate")
    saved = lab.pipelines_images(pipeline, policy, ROWS, SEEDS)
    assert (saved - lab.images_of(end)).abs().max() < 2e-5
    assert (saved - lab.images_of(start)).abs().max() > 1e-3


def test_its_memory_is_estimated(folder, make):
    config = make(lora={"rank": 2}).config
    counts = {"decisions": 8, "rollouts": 8, "group_size": 4, "sampled": 0, "training": True}
    sizes = FlowPolicy.estimate(config, Workload(**counts, reference=True, averages=0))
    assert sizes.keys() == {
        "frozen models",
        "transformer",
        "gradients",
        "optimizer",
        "activations",
        "reference",
    }
    assert FlowPolicy.examine(config, ROWS) == ()


def test_it_passes_check_adapter(folder, make):
    pipeline = DiffusionPipeline.from_pretrained(folder)
    adapter = type(make().adapter)
    groupwise.testing.check_adapter(adapter, pipeline, rows=ROWS, height=16, width=16)
