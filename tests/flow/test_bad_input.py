"""Mistakes in the configuration of a flow policy: one short error names the key and the value."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler
from safetensors.torch import load_file, save_file
from tests import command_line

import groupwise
from groupwise.kit.errors import UserError
from groupwise_flow.forward_process import ForwardProcess
from groupwise_flow.policy import FlowPolicy

PROMPTS = [{"prompt": f"{letter} cat"} for letter in "abcdefgh"]


@pytest.fixture
def config(lab, tmp_path, monkeypatch):
    """A small valid configuration, in its own folder."""
    monkeypatch.chdir(tmp_path)
    Path("red.py").write_text("def red(completions):\n    return [1.0] * len(completions)\n")
    shutil.copytree(lab.folders["sd3"], "model")
    return {
        "policy": {
            "name": "flow",
            "model": "model",
            "height": 16,
            "width": 16,
            "prompt_tokens": 12,
            "steps": 3,
            "evaluation_steps": 2,
        },
        "algorithm": {"name": "flow_grpo"},
        "prompts": {"name": "rows", "rows": PROMPTS, "held_out": 0.5},
        "rewards": ["red:red"],
        "train": {"steps": 1, "groups_per_step": 1, "group_size": 2},
        "evaluation": {"prompts": 1},
    }


def call(config, command):
    Path("run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return command_line.call(command, "run.yaml")


def refused(config, command="train"):
    """The error of a refused command: one message of at most two lines, and no finished run."""
    result = call(config, command)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    message = result.stderr[result.stderr.index("error: ") :].strip()
    assert message.count("error: ") == 1
    assert len(message.splitlines()) <= 2, message
    assert not Path("runs/run/result.json").exists()
    return message


@pytest.mark.parametrize("command", ["train", "check"])
def test_the_configuration_itself_works(config, command):
    result = call(config, command)
    assert result.exit_code == 0, result.output
    if command == "check":
        for purpose in ("transformer", "frozen models", "activations", "gradients", "optimizer"):
            assert purpose in result.output


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("window", "steps"),
    [
        ({"kind": "all"}, range(9)),
        ({"kind": "fixed", "start": 2, "size": 3}, range(2, 5)),
        ({"kind": "random", "size": 3, "until": 0.4}, range(6)),
        ({"kind": "sliding", "size": 2, "stride": 4}, (0, 1, 4, 5)),
        ({"kind": "sliding", "size": 1, "stride": 3}, (0, 3, 6)),
    ],
    ids=str,
)
def test_check_compares_the_two_kls_over_the_trained_steps(config, window, steps):
    config["policy"] |= {"steps": 10, "window": window}
    config["algorithm"] |= {"beta": 0.04, "kl": "exact"}
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(10)
    intervals = -scheduler.sigmas.diff()[list(steps)]
    ratio = f"{float(1 / intervals.max()):.1f} to {float(1 / intervals.min()):.1f} times"
    output = " ".join(call(config, "check").output.split())
    assert (
        f"the exact KL is {ratio} the published one; algorithm.kl is exact: with a beta" in output
    )
    assert "set algorithm.kl: published" in output


@pytest.mark.slow
def test_check_names_the_other_kl_of_the_sde_that_has_two(config):
    assert "published" not in call(config, "check").output  # without a KL
    config["algorithm"] |= {"beta": 0.04, "kl": "published"}
    output = " ".join(call(config, "check").output.split())
    assert "the published one; algorithm.kl is published: with a beta" in output
    assert "set algorithm.kl: exact" in output
    # Published code has the exact KL of other SDEs.
    config["policy"]["sde"], config["algorithm"]["kl"] = "dance", "exact"
    assert "published" not in call(config, "check").output


@pytest.mark.slow
def test_check_warns_of_a_learning_rate_that_is_low_for_adapters(config):
    assert "learning_rate" not in call(config, "check").output
    config["policy"]["lora"] = {"rank": 2}
    assert "learning_rate 1e-06: low for the adapters" in call(config, "check").output
    config["train"]["learning_rate"] = 1e-4
    assert "learning_rate" not in call(config, "check").output


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_custom_adapter_is_imported_from_the_current_folder(config, command):
    Path("adapter_of_ones_own.py").write_text(
        "from groupwise_flow.adapters.sd3 import SD3Adapter\n\n\n"
        "class Mine(SD3Adapter):\n    targets, pipelines = ('attn.to_q',), ()\n"
    )
    index_with(_class_name="SomebodysPipeline") if command == "check" else None
    config["policy"] |= {"adapter": "adapter_of_ones_own:Mine", "lora": {"rank": 2}}
    result = call(config, command)
    assert result.exit_code == 0, result.output
    note = "SomebodysPipeline, or a component of it, is not from diffusers or transformers"
    assert (note in result.output) == (command == "check")


@pytest.mark.slow
def test_check_counts_reference_and_moving_average_of_the_trained_weights(config):
    def memory_by_purpose():
        lines = call(config, "check").output.splitlines()
        return {line.split("  ")[1]: line.split()[-2:] for line in lines if line.startswith("  ")}

    plain = memory_by_purpose()
    assert not {"moving average", "reference"} & plain.keys()
    config["train"]["ema"], config["algorithm"]["beta"] = 0.9, 0.1
    full = memory_by_purpose()
    assert full["moving average"] == full["reference"] == plain["gradients"]
    config["policy"]["lora"] = {"rank": 2}
    adapted = memory_by_purpose()
    assert adapted["moving average"] == adapted["reference"] == adapted["gradients"]
    assert adapted["gradients"] != full["gradients"]


def index_with(**changes):
    path = Path("model/model_index.json")
    index = json.loads(path.read_text())
    path.write_text(json.dumps({**index, **changes}))


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_pipeline_that_is_not_a_flow_model(config, command):
    index_with(scheduler=["diffusers", "DDIMScheduler"])
    message = refused(config, command)
    assert "policy.model: " in message
    assert "not a flow-matching pipeline: DDIMScheduler has no noise levels" in message


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_pipeline_of_unknown_architecture(config, command):
    index_with(_class_name="LuminaPipeline")
    message = refused(config, command)
    assert "policy.model: " in message
    assert (
        "no adapter for LuminaPipeline; registered are adapters for Flux2KleinPipeline, " in message
    )
    assert "docs/plugins.md" in message
    assert "policy.adapter: module:attribute" in message


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_folder_without_a_pipeline(config, command):
    Path("empty").mkdir()
    config["policy"]["model"] = "empty"
    message = refused(config, command)
    assert "policy.model: 'empty': it has no model_index.json" in message
    assert "it is empty" in message


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("folder/pytorch_lora_weights.safetensors", "merge them into the model"),
        ("folder/flux.gguf", "the folder or hub name of the pipeline that it was made from"),
        ("flux.gguf", "the folder or hub name of the pipeline that it was made from"),
        ("sdxl.safetensors", "`from_single_file` of the pipeline's class"),
    ],
)
def test_what_is_not_a_pipelines_folder_names_the_way(config, command, name, way):
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    config["policy"]["model"] = name if path.parent == Path() else "folder"
    message = refused(config, command)
    assert "pickled" not in message
    assert way in message


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_model_that_does_not_exist(config, command):
    config["policy"]["model"] = "nobody/nothing"
    message = refused(config, command)
    assert "policy.model: cannot read a diffusers pipeline from 'nobody/nothing': " in message
    assert "model_index.json" in message


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_pipeline_with_a_part_missing(config, command):
    shutil.rmtree("model/vae")
    message = refused(config, command)
    assert "policy.model: 'model' has no folder 'vae', which its model_index.json names" in message


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("part", ["transformer", "vae", "text_encoder"])
def test_damaged_weights(config, command, part):
    file = next(Path("model", part).glob("*.safetensors"))
    size = len(file.read_bytes())
    file.write_bytes(file.read_bytes()[: size // 2])
    message = refused(config, command)
    assert f"policy.model: 'model', {part}: {file} is cut off: it has " in message
    assert f"of {size:,} bytes" in message
    assert "pickled" not in message


def test_files_that_lack_a_weight(config):
    file = next(Path("model/transformer").glob("*.safetensors"))
    weights = load_file(file)
    del weights["proj_out.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    assert "lack 1 weights of SD3Transformer2DModel, 'proj_out.weight'" in refused(config)


def test_files_that_lack_a_weight_of_a_text_encoder(config):
    """transformers would draw it at random."""
    file = next(Path("model/text_encoder").glob("*.safetensors"))
    weights = load_file(file)
    del weights["text_projection.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    message = refused(config)
    assert "CLIPTextModelWithProjection" in message
    assert "text_projection.weight" in message
    assert "newly initialized" in message or "MISSING" in message


def test_a_misspelt_loading_argument(config):
    for key, value in {"variant": "fp61", "revison": "main"}.items():
        config["policy"]["loading"] = {key: value}
        message = refused(config)
        assert "policy.model: cannot load a diffusers pipeline from" in message
        assert ("fp61" if key == "variant" else "revison") in message


def test_a_misspelt_loading_argument_is_reported_with_logging_switched_off(config):
    config["policy"]["loading"] = {"revison": "main"}
    logging.disable(logging.CRITICAL)
    try:
        assert "revison" in refused(config)
        assert logging.root.manager.disable == logging.CRITICAL
    finally:
        logging.disable(logging.NOTSET)


def test_pickled_weights_are_refused(config):
    file = next(Path("model/transformer").glob("*.safetensors"))
    torch.save(load_file(file), file.with_suffix(".bin"))
    file.unlink()
    message = refused(config)
    assert "policy.model: 'model', transformer: it has no weights as safetensors" in message
    assert "policy.loading.use_safetensors: false" in message


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("name", ["nft", "awm", "flow_dppo"])
def test_sampling_ahead_without_importance_weights(config, command, name):
    config["algorithm"] = {"name": name}
    if name == "flow_dppo":
        config["algorithm"]["importance"] = "none"
    else:
        config["policy"]["name"] = "forward_process"
    config["train"]["ahead"] = 1
    message = refused(config, command)
    assert (
        f"algorithm {name!r} has no importance weights as configured; leave train.ahead" in message
    )
    assert ("algorithm.importance" in message) == (name == "flow_dppo")


def test_the_advice_for_equal_rewards_is_what_the_policy_has():
    assert "temperature" not in FlowPolicy.diversity + ForwardProcess.diversity
    assert FlowPolicy.diversity.removeprefix("a higher ") in FlowPolicy.Config.model_fields


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_noise_level_of_0(config, command):
    config["policy"]["noise_level"] = 0
    message = refused(config, command)
    assert "run.yaml, line" in message
    assert "policy.noise_level: 0 makes every step deterministic" in message


def test_a_noise_level_above_1_with_cps(config):
    config["policy"] |= {"sde": "cps", "noise_level": 1.5}
    message = refused(config, "check")
    assert "policy.noise_level: the noise level must be at most 1 for cps, received 1.5" in message
    config["policy"]["noise_level"] = 1
    assert call(config, "check").exit_code == 0


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_window_beyond_the_steps(config, command):
    config["policy"]["window"] = {"kind": "fixed", "size": 2, "start": 1}
    message = refused(config, command)
    assert "run.yaml, line 9: policy.window: " in message
    assert "ends at step 3, and of 3 steps the first 2 can be decisions" in message


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("sde", "cpc", "policy.sde: expected 'flow', 'cps', 'dance' or 'ddim', found 'cpc'"),
        ("window", {"kind": "fixed"}, "policy.window: kind: fixed needs a size"),
        ("window", {"kind": "all", "sise": 1}, "policy.window.sise: unknown key, did you mean"),
        ("steps", 1, "policy.steps: expected at least 2, found 1"),
        ("guidence", 4, "policy.guidence: unknown key, did you mean 'guidance'?"),
        ("precision", "fp8", "expected 'float32', 'bf16' or 'fp16', found 'fp8'"),
        ("long_prompts", "truncate", "policy.long_prompts: expected 'error', 'skip' or 'cut'"),
        ("adapter", "nowhere.at_all:Thing", "policy.adapter: "),
        ("adapter", "red:blue", "policy.adapter: "),
        (
            "adapter",
            {"name": "StableDiffusionPipeline", "exchnge": False},
            "policy.adapter.exchnge: not an option of SD15Adapter, did you mean 'exchange'?",
        ),
        (
            "window",
            {"kind": "sliding", "size": 2},
            "policy.window: a window of 2 decisions never slides",
        ),
        ("lora", {"rank": 0}, "policy.lora.rank: expected at least 1, found 0"),
        ("lora", {"options": {"lora_dropout": 0.1}}, "lora_dropout is never applied: with dropout"),
    ],
)
def test_invalid_values_are_refused(config, key, value, expected):
    config["policy"][key] = value
    message = refused(config, "check")
    assert "run.yaml, line" in message
    assert expected in message
    if key == "adapter" and isinstance(value, str):
        assert repr(value) in message


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("side", ["height", "width"])
def test_picture_sizes_that_the_model_cannot_draw(config, command, side):
    config["policy"][side] = 18
    message = refused(config, command)
    assert "policy.height, policy.width: " in message
    assert "multiples of 4 pixels" in message
    assert {"height": "18 x 16", "width": "16 x 18"}[side] in message


@pytest.mark.parametrize("command", ["train", "check"])
def test_pictures_above_the_largest_size_of_the_model(config, command):
    config["policy"]["height"] = 64
    message = refused(config, command)
    assert "policy.height, policy.width: " in message
    assert "at most 32 pixels a side, found 64 x 16" in message


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("targets", [["attn.to_query"], ["nothing", "at_all"]])
def test_lora_targets_that_match_nothing(config, command, targets):
    config["policy"]["lora"] = {"rank": 2, "targets": targets}
    message = refused(config, command)
    assert "policy.lora" in message
    assert targets[0] in message


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize(
    ("key", "lora"),
    [
        ("targets", {"targets": ["to_q", "to_kk"]}),
        ("rank_pattern", {"options": {"rank_pattern": {"to_q": 1, "to_kk": 3}}}),
        ("alpha_pattern", {"options": {"alpha_pattern": {"to_kk": 3}}}),
        ("exclude_modules", {"options": {"exclude_modules": ["to_kk"]}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_name_in_lora_that_applies_to_no_layer(config, command, key, lora):
    config["policy"]["lora"] = {"rank": 2, **lora}
    message = refused(config, command)
    assert f"{key}: 'to_kk' applies to no layer, did you mean 'to_k'?" in message


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_lora_option_that_peft_does_not_have(config, command):
    config["policy"]["lora"] = {"rank": 2, "options": {"rang": 3}}
    message = refused(config, command)
    assert "policy.lora" in message
    assert "rang" in message


def test_a_prompt_longer_than_prompt_tokens(config):
    config["prompts"]["rows"] = [{"prompt": f"{letter} cat " * 9} for letter in "abcdefgh"]
    message = refused(config)
    assert "a prompt has 37 tokens, and policy.prompt_tokens allows 12: '" in message
    assert " cat " in message


def test_a_prompt_that_is_too_long_is_refused_before_sampling(config, lab, monkeypatch):
    rows = config["prompts"]["rows"]
    config["prompts"]["rows"] = [*rows, {"prompt": "last cat " * 9}]
    monkeypatch.setattr(FlowPolicy, "sample", None)
    assert "policy.prompt_tokens allows 12: 'last cat" in refused(config)


@pytest.mark.parametrize("command", ["train", "check"])
def test_lora_options_that_train_weights_outside_a_lora_file(config, command):
    config["policy"]["lora"] = {"rank": 2, "options": {"bias": "all"}}
    message = refused(config, command)
    assert (
        "policy.lora.options: bias would train weights that `load_lora_weights` does not read"
        in message
    )


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_dtype_among_the_loading_arguments(config, command):
    config["policy"]["loading"] = {"torch_dtype": "bfloat16"}
    assert "policy.loading: dtypes follow from policy.precision" in refused(config, command)


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_scheduler_with_several_passes_per_step(config, command):
    index_with(scheduler=["diffusers", "FlowMatchHeunDiscreteScheduler"])
    path = Path("model/scheduler/scheduler_config.json")
    settings = json.loads(path.read_text()) | {"_class_name": "FlowMatchHeunDiscreteScheduler"}
    path.write_text(json.dumps(settings))
    message = refused(config, command)
    assert "FlowMatchHeunDiscreteScheduler does not have 3 steps of falling noise" in message


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_negative_prompt_without_guidance(config, command):
    config["policy"] |= {"negative_prompt": "blur"}
    assert (
        "policy.negative_prompt: it has no effect without guidance; set policy.guidance above 1"
        in refused(config, command)
    )


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("folder", ["sd3", "flux"])
def test_a_gradient_of_one_branch_where_there_is_one_only(config, command, folder, lab):
    shutil.rmtree("model")
    shutil.copytree(lab.folders[folder], "model")
    config["policy"] |= {"guidance_gradient": "conditional"}
    if folder == "flux":
        config["policy"] |= {"guidance": 3.5}
    assert "policy.guidance_gradient: conditional has no effect, since training has no" in refused(
        config, command
    )


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_negative_prompt_for_a_model_without_an_unconditional_pass(config, command, lab):
    shutil.rmtree("model")
    shutil.copytree(lab.folders["flux"], "model")
    config["policy"] |= {"negative_prompt": "blur"}
    assert "policy.negative_prompt: this model takes guidance as an input" in refused(
        config, command
    )


ADAPTERS = """
from groupwise_flow.adapter import Adapter
from groupwise_flow.adapters.sd3 import SD3Adapter


class Half(Adapter):
    def encode(self, rows):
        return {}


class Sizeless(SD3Adapter):
    def __init__(self, pipeline, **settings):
        del pipeline.default_sample_size
        super().__init__(pipeline, **settings)
"""


@pytest.mark.parametrize("command", ["train", "check"])
def test_an_adapter_that_lacks_a_method(config, command):
    Path("mine.py").write_text(ADAPTERS)
    config["policy"]["adapter"] = "mine:Half"
    message = refused(config, command)
    assert "policy.adapter: Half lacks decode, latent_shape, velocity" in message


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_pipeline_that_does_not_say_its_size(config, command):
    Path("mine.py").write_text(ADAPTERS)
    config["policy"]["adapter"] = "mine:Sizeless"
    del config["policy"]["height"]
    assert "policy.height, policy.width: set both" in refused(config, command)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize(
    ("policy", "named"), [("flow", "flow_grpo"), ("forward_process", "nft, awm, elbo_grpo")]
)
def test_the_default_algorithm_is_for_tokens(config, command, policy, named):
    del config["algorithm"]
    config["policy"]["name"] = policy
    output = " ".join(call(config, command).output.split())
    assert output.count("so it is grpo, whose settings are for tokens; made for policy") == 1
    assert f"{policy!r}: {named}" in output
    config["algorithm"] = "grpo"
    assert "whose settings are for tokens" not in call(config, command).output


@pytest.mark.parametrize("key", ["guidance", "training_guidance"])
@pytest.mark.slow(after=1)
def test_guidance_for_a_model_without_guidance(config, lab, key):
    shutil.rmtree("model")
    shutil.copytree(lab.folders["flux unguided"], "model")
    for scale in (3.5, 0.0):
        config["policy"][key] = scale
        message = " ".join(refused(config).split())
        assert f"policy.{key}: this model takes no guidance" in message
        assert f"leave it at 1, found {scale:g}" in message
    config["policy"][key] = 1.0
    assert call(config, "train").exit_code == 0


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("key", ["guidance", "training_guidance"])
def test_guidance_below_1_where_it_would_change_nothing(config, lab, key, command):
    for scale in (0.0, 0.5):
        config["policy"][key] = scale
        message = " ".join(refused(config, command).split())
        assert f"policy.{key}: guidance is off at 1" in message
        assert f"set 1 or more, found {scale:g}" in message
    shutil.rmtree("model")
    shutil.copytree(lab.folders["flux"], "model")  # takes the scale as an input
    assert call(config, command).exit_code == 0


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("name", ["sd3", "flux"])
def test_more_prompt_tokens_than_the_pipeline_takes(config, lab, name, command):
    shutil.rmtree("model")
    shutil.copytree(lab.folders[name], "model")
    config["policy"]["prompt_tokens"] = 513
    message = " ".join(refused(config, command).split())
    assert "policy.prompt_tokens: " in message
    assert "Pipeline takes at most 512 (its max_sequence_length), found 513" in message
    # The limit is that of the installed diffusers.
    pipeline = DiffusionPipeline.from_pretrained("model")
    with pytest.raises(ValueError, match="cannot be greater than 512"):
        pipeline("a cat", height=16, width=16, max_sequence_length=513)
    config["policy"]["prompt_tokens"] = 512
    assert call(config, "check").exit_code == 0


def test_a_last_step_with_noise_outside_a_window(config):
    config["policy"] |= {"last_step": "noise", "window": {"kind": "fixed", "size": 1}}
    message = refused(config, "check")
    assert "policy.last_step: noise needs window: {kind: all}" in message


@pytest.mark.slow
def test_a_text_encoder_that_is_set_to_none_may_be_missing(config):
    shutil.rmtree("model/text_encoder_3")
    assert "has no folder 'text_encoder_3'" in refused(config, "check")
    config["policy"]["loading"] = {"text_encoder_3": None, "tokenizer_3": None}
    for command in ("check", "train"):
        result = call(config, command)
        assert result.exit_code == 0, result.output


def test_a_watched_reward_that_applies_to_no_completion(config):
    config["watch"] = [{"name": "image_diversity"}]
    config["evaluation"] = {"prompts": 2, "samples": 1}
    output = call(config, "train").output
    assert "watch/image_diversity is None for every completion" in " ".join(output.split())


def test_a_chat_as_a_prompt(config):
    chat = [[{"role": "user", "content": f"{letter} cat"}] for letter in "abcdefgh"]
    config["prompts"]["rows"] = [{"prompt": messages} for messages in chat]
    message = refused(config)
    assert "must be a text" in message
    assert "'role': 'user'" in message


def test_a_negative_prompt_that_is_too_long(config):
    config["policy"] |= {"guidance": 2.0, "negative_prompt": "blur " * 20}
    assert "policy.prompt_tokens allows 12: 'blur blur" in refused(config)


def test_a_prompt_longer_than_clip_allows_without_t5(config, lab):
    shutil.rmtree("model")
    shutil.copytree(lab.folders["sd3 without t5"], "model")
    config["prompts"]["rows"] = [{"prompt": f"{letter} cat " * 9} for letter in "abcdefgh"]
    message = refused(config)
    assert "a prompt has 38 tokens, and the text encoder allows 16: '" in message


def test_a_mistake_in_a_call_from_python(lab, tmp_path):
    with pytest.raises(UserError, match=r"policy\.noise_level: 0 makes every step"):
        groupwise.train(
            policy={"name": "flow", "model": str(lab.folders["sd3"]), "noise_level": 0},
            algorithm="flow_grpo",
            prompts=PROMPTS,
            rewards=[lab.redness],
            output=tmp_path / "run",
        )


@pytest.mark.slow
def test_columns_that_look_like_settings_get_a_note(config):
    """`check` says what draws the pictures, and each name with its setting."""
    own = {"height": 64, "negative_prompt": "blur", "seed": 3, "guidance_scale": 4.5}
    config["prompts"]["rows"] = [{**row, **own, "answer": "1"} for row in PROMPTS]
    output = " ".join(call(config, "check").output.split())
    assert (
        "note: the rows have 'height', 'negative_prompt', 'guidance_scale', 'seed', which rewards "
        "get and pictures do not: all are drawn by the configuration (policy.height, "
        "policy.negative_prompt, policy.guidance, seed)"
    ) in output
    config["prompts"]["rows"] = PROMPTS
    assert "which rewards get and pictures do not" not in call(config, "check").output
