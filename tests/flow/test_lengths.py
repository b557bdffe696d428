"""Prompts longer than the text encoder allows: refused, skipped or cut, and counted beforehand."""

import pytest
import torch
from diffusers import DiffusionPipeline

from groupwise.kit.errors import UserError
from groupwise_flow.policy import FlowPolicy

LONG = "a b c d e f g h i j k l m n o"
ROWS = [{"prompt": "a cat"}, {"prompt": LONG}, {"prompt": "two dogs"}, {"prompt": "a cat"}]
NOTE = "policy.long_prompts: 1 of 3 prompts have more than 12 tokens and are "


@pytest.fixture
def weightless(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(DiffusionPipeline, "from_pretrained", refuse)


@pytest.mark.parametrize("architecture", ["sd3", "flux"])
@pytest.mark.parametrize(("long", "action"), [("skip", "left out"), ("cut", "cut off there")])
def test_the_check_counts_prompts_that_are_skipped_or_cut(
    lab, architecture, long, action, monkeypatch
):
    policy = lab.policy(architecture, long_prompts=long)
    policy.check_prompts(iter(ROWS))
    assert policy.notes == [NOTE + action]
    assert [policy.skips(row) for row in ROWS] == [False, long == "skip", False, False]
    monkeypatch.setattr(DiffusionPipeline, "from_pretrained", None)
    assert FlowPolicy.examine(policy.config, iter(ROWS)) == (NOTE + action,)
    assert FlowPolicy.examine(policy.config, ROWS[:1]) == ()


@pytest.mark.parametrize("architecture", ["sd3", "flux"])
def test_by_default_a_long_prompt_is_refused(lab, architecture):
    policy = lab.policy(architecture)
    message = r"a prompt has 16 tokens, and policy.prompt_tokens allows 12: .*long_prompts"
    for check in (policy.check_prompts, lambda rows: FlowPolicy.examine(policy.config, rows)):
        with pytest.raises(UserError, match=message):
            check(iter(ROWS))
    assert not policy.skips(ROWS[1])
    assert policy.notes == []


def test_without_t5_the_limit_is_that_of_clip(lab):
    policy = lab.policy("sd3 without t5", long_prompts="cut", prompt_tokens=4)
    policy.check_prompts([*ROWS, {"prompt": "a " * 20}])
    (note,) = policy.notes
    assert "2 of 4 prompts have more than 16 tokens" in note
    assert FlowPolicy.examine(policy.config, [*ROWS, {"prompt": "a " * 20}]) == (note,)


def test_a_cut_prompt_draws_the_picture_of_the_pipeline(lab, rounding):
    policy = lab.policy(guidance=2.0, long_prompts="cut")
    rows = [ROWS[1]]
    rollouts = policy.sample(rows, group_size=1, seeds=[5], purpose="evaluate")
    pipeline = DiffusionPipeline.from_pretrained(lab.folders["sd3"])
    rounding.same(
        lambda: lab.pipelines_images(pipeline, policy, rows, [5]), lab.images_of(rollouts)
    )


def test_examining_refuses_the_settings_that_loading_refuses(lab, weightless):
    schnell = lab.settings("flux unguided", guidance=3.5)
    with pytest.raises(UserError, match=r"policy.guidance: this model takes no guidance"):
        FlowPolicy.examine(schnell, ROWS[:1])
    blur = lab.settings(guidance=2.0, negative_prompt="blur " * 20)
    with pytest.raises(UserError, match="allows 12: 'blur"):
        FlowPolicy.examine(blur, ROWS[:1])


@pytest.mark.parametrize("architecture", ["sd3", "flux"])
def test_examining_allocates_no_adapters(lab, weightless, architecture):
    random_state = torch.get_rng_state()
    lora = {"rank": 10**7, "options": {"init_lora_weights": "gaussian"}}
    assert FlowPolicy.examine(lab.settings(architecture, lora=lora), ROWS[:1]) == ()
    assert torch.equal(torch.get_rng_state(), random_state)


def test_half_precision_without_a_gpu_is_noted_before_and_in_a_run(lab, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    policy = lab.policy(precision="fp16")
    policy.check_prompts(ROWS[:1])
    (note,) = policy.notes
    assert "there is no GPU here" in note
    assert note in FlowPolicy.examine(policy.config, ROWS[:1])
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert FlowPolicy.examine(policy.config, ROWS[:1]) == ()
