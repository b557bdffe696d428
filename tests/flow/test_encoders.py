"""Where the text encoders are: always on the device, while they encode, or only before the run."""

from functools import partial
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline
from tests.command_line import call
from torch import nn

from groupwise.kit.errors import UserError
from groupwise_flow.files import loading
from groupwise_flow.policy import FlowPolicy

ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = [{"prompt": f"{letter} cat"} for letter in "abcde"]


def drawn(policy, rows=ROWS[:2], purpose="train"):
    return policy.sample(rows, group_size=2, seeds=range(2 * len(rows)), purpose=purpose)


def loaded_encoders(policy):
    """Names of the encoders in memory."""
    components = policy.adapter.pipeline.components
    return {name for name in ENCODERS if isinstance(components[name], nn.Module)}


def equal(left, right):
    return torch.equal(left.sampler_log_probs, right.sampler_log_probs) and all(
        torch.equal(*pair) for pair in zip(left.facts["pixels"], right.facts["pixels"], strict=True)
    )


def test_offloaded_encoders_are_moved_once_for_all_new_prompts(lab, monkeypatch):
    policy, events = lab.policy(encoders="offload", guidance=2.0), []
    assert not any(name.startswith("text_encoder") for name, _ in policy.named_parameters())
    long_encoder = policy.adapter.pipeline.text_encoder_3
    to, encode = long_encoder.to, policy.adapter.encode
    monkeypatch.setattr(long_encoder, "to", lambda device: events.append(str(device)) or to(device))
    monkeypatch.setattr(
        policy.adapter, "encode", lambda rows: events.append(rows[0]["prompt"]) or encode(rows)
    )
    rollouts = drawn(policy)
    # The second move is for the unconditional prompt.
    assert events == ["cpu", "a cat", "b cat", "cpu", "cpu", "", "cpu"]
    drawn(policy)
    drawn(policy, ROWS[1:3])
    assert events[7:] == ["cpu", "c cat", "cpu"]
    assert equal(rollouts, drawn(lab.policy(guidance=2.0)))


@pytest.mark.parametrize("purpose", ["train", "evaluate"])
def test_cached_encoders_leave_memory_and_change_nothing(lab, purpose):
    settings = {"guidance": 2.0, "negative_prompt": "x"}
    policy = lab.policy(encoders="cached", **settings)
    assert equal(drawn(policy), drawn(lab.policy(**settings)))  # still there: nothing was checked
    policy = lab.policy(encoders="cached", **settings)
    policy.check_prompts(iter(ROWS))
    assert not loaded_encoders(policy)
    expected = drawn(lab.policy(**settings), purpose=purpose)
    assert equal(drawn(policy, purpose=purpose), expected)
    with pytest.raises(
        UserError, match=r"policy\.encoders: cached .* {'prompt': 'a dog'}; set policy.encoders=off"
    ):
        drawn(policy, [{"prompt": "a dog"}])


def test_prompts_that_are_never_drawn_are_not_cached(lab):
    long = {"prompt": " ".join("abcdefghijklmnop")}
    policy = lab.policy(encoders="cached", long_prompts="skip")
    policy.check_prompts([*ROWS, long])
    assert policy.skips(long)
    assert len(policy.guided.encodings._kept) == len(ROWS)
    drawn(policy)


def test_a_cache_that_is_too_small_is_refused(lab):
    config = {"encoders": "cached", "guidance": 2.0, "keep_prompts": 5}
    message = r"keep_prompts: .* all 6 prompts .* at most 5 .* set it to 6 or more"
    with pytest.raises(UserError, match=message):
        FlowPolicy.examine(lab.settings(**config), ROWS)
    with pytest.raises(UserError, match=message):
        lab.policy(**config).check_prompts(ROWS)
    FlowPolicy.examine(lab.settings(**config), [*ROWS[:4], *ROWS[:4]])


@pytest.mark.slow
def test_cached_is_refused_for_a_policy_whose_prompts_another_one_writes():
    line = ["check", str(EXAMPLES / "chain.yaml")]
    assert call(*line).exit_code == 0
    result = call(*line, "players.1.policy.encoders=cached")
    assert result.exit_code == 2
    text = result.stderr.replace("\n", " ")
    assert "policy.encoders: cached encodes the prompts of the data set" in text
    assert "in a chain they are written during the run; set offload or resident" in text


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("architecture", ["sd3", "sd3 without t5", "flux"])
@pytest.mark.parametrize("encoders", ["offload", "cached"])
def test_the_saved_pipeline_has_its_encoders(lab, architecture, encoders, tmp_path, rounding):
    policy = lab.policy(architecture, encoders=encoders)
    policy.check_prompts(ROWS)
    lab.nudge(policy)
    policy.save_pretrained(tmp_path)
    if encoders == "cached":
        assert policy.adapter.pipeline.text_encoder is None
    again = lab.policy(architecture, model=str(tmp_path))
    one, other = (
        partial(lambda each: lab.images_of(drawn(each, purpose="evaluate")), each)
        for each in (again, policy)
    )
    rounding.same(one, other())
    absent = {"text_encoder_3": None, "tokenizer_3": None} if "without" in architecture else {}
    before, after = (
        DiffusionPipeline.from_pretrained(folder, **absent).components
        for folder in (lab.folders[architecture], tmp_path)
    )
    assert list(map(type, before.values())) == list(map(type, after.values()))


def test_saving_adapters_reads_no_encoders(lab, tmp_path, monkeypatch):
    policy = lab.policy(encoders="cached", lora={"rank": 2})
    policy.check_prompts(ROWS)
    monkeypatch.setattr(loading, "DiffusionPipeline", None)
    policy.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_lora_weights.safetensors"]
