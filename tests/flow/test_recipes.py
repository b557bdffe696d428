"""The recipes for real models: valid keys, published values, and a step on tiny models."""

import json
import shutil
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tests.judge.stand_in import StandIn

from groupwise.config.load import load_config
from groupwise.kit.memory import Workload
from groupwise.run.train import train_from_config
from groupwise_flow.policy import FlowPolicy

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
ROWS = [
    {
        "prompt": f"{letter} cat",
        "include": [{"class": "square", "count": 1, "color": "red"}],
        "text": letter,
    }
    for letter in "abcdefgh"
]
SMALL = (
    "policy.height=16",
    "policy.width=16",
    "policy.prompt_tokens=12",
    "policy.evaluation_steps=3",
    "policy.precision=float32",
    "train.groups_per_step=2",
    "train.group_size=2",
    "train.steps=1",
    "evaluation.prompts=2",
    "evaluation.samples=2",
    "prompts.held_out=0.5",
)
CLIP = {
    "embed_dim": 8,
    "vision_cfg": {
        "image_size": 16,
        "layers": 1,
        "width": 16,
        "head_width": 8,
        "patch_size": 8,
    },
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 1},
}
JUDGED = "flux_unified_reward.yaml"
PUBLISHED = {
    "sd35_geneval.yaml": ("sd3.5", 10, 40, 4.5, 0.7, 0.04, 32, 1e-4),
    "sd35_ocr.yaml": ("sd3.5", 10, 40, 4.5, 0.7, 0.04, 32, 1e-4),
    "sd35_pickscore.yaml": ("sd3.5", 10, 40, 4.5, 0.7, 0.01, 32, 1e-4),
    "flux_pickscore.yaml": ("flux", 6, 28, 3.5, 0.9, 0.0, 64, 1e-4),
    "sd35_geneval_fast.yaml": ("sd3.5", 10, 40, 1.0, 0.8, 0.0, 32, 1e-5),
}
AUTOENCODER = {"block_out_channels": [128, 256, 512, 512], "latent_channels": 16}
CLIP_L = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
CLIP_L |= {"num_attention_heads": 12, "projection_dim": 768}
CLIP_G = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32}
CLIP_G |= {"num_attention_heads": 20, "projection_dim": 1280}
T5_XXL = {"d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_heads": 64, "num_layers": 24}
T5_XXL |= {"feed_forward_proj": "gated-gelu", "vocab_size": 32128}
SD35_MEDIUM = {
    "sample_size": 128,
    "num_layers": 24,
    "num_attention_heads": 24,
    "caption_projection_dim": 1536,
    "pos_embed_max_size": 384,
    "qk_norm": "rms_norm",
    "dual_attention_layers": list(range(13)),
}
REAL = {
    "sd3.5": {
        "_class_name": "StableDiffusion3Pipeline",
        "transformer": ("diffusers", "SD3Transformer2DModel", SD35_MEDIUM),
        "vae": ("diffusers", "AutoencoderKL", AUTOENCODER),
        "text_encoder": ("transformers", "CLIPTextModelWithProjection", CLIP_L),
        "text_encoder_2": ("transformers", "CLIPTextModelWithProjection", CLIP_G),
        "text_encoder_3": ("transformers", "T5EncoderModel", T5_XXL),
    },
    "flux": {
        "_class_name": "FluxPipeline",
        "transformer": ("diffusers", "FluxTransformer2DModel", {"guidance_embeds": True}),
        "vae": ("diffusers", "AutoencoderKL", AUTOENCODER),
        "text_encoder": ("transformers", "CLIPTextModel", CLIP_L),
        "text_encoder_2": ("transformers", "T5EncoderModel", T5_XXL),
    },
}
"""The published configurations of the real models, as far as they set the number of weights."""
PARAMETERS = {"sd3.5": 2.24e9, "flux": 11.9e9}  # without SD3.5's buffer of 0.23e9 positions


OF_MODELS = ("flux2", "flux2_klein", "lumina2", "qwen_image", "sana", "z_image")
OF_VIDEOS = (
    *("wan21_clip_pickscore", "wan21_pickscore", "wan22_pickscore", "wan22_5b_hps_v3"),
    *("hunyuan15_pickscore", "hunyuan15_video_reward"),
)
OF_EDITS = (
    *("kontext_edit_judge", "qwen_image_edit_judge"),
    *("qwen_image_edit_pickscore", "flux2_klein_edit_judge"),
)


def check_stated(name, expected):
    """A recipe has these values, by dotted key."""
    config = load_config(RECIPES / f"{name}.yaml").config
    for key, value in expected.items():
        section, *path = key.split(".")
        own = getattr(config, section)
        own = getattr(own, "options", own)
        for part in path:
            own = own[part] if isinstance(own, dict) else getattr(own, part)
        assert own == value, key


def test_all_recipes_are_tested():
    elsewhere = {
        JUDGED,
        "qwen3_tools.yaml",  # tests/llm/vllm/test_recipe.py
        "qwen3_search.yaml",  # tests/agents/test_search.py
        *("sd15_compressibility.yaml", "sdxl_pickscore.yaml"),  # test_noise_prediction.py
        *(f"{name}_pickscore.yaml" for name in OF_MODELS),  # test_model_recipes.py
        *(f"{name}.yaml" for name in OF_VIDEOS),  # test_video_recipes.py
        *(f"{name}.yaml" for name in OF_EDITS),  # test_edit_recipes.py
    }
    assert {path.name for path in RECIPES.glob("*.yaml")} == PUBLISHED.keys() | elsewhere


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """A dataset with every column, and a random CLIP."""
    folder = tmp_path_factory.mktemp("stand_ins")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "clip").mkdir()
    config = {"model_cfg": CLIP, "preprocess_cfg": {}}
    (folder / "clip" / "open_clip_config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    weights = open_clip.model.CLIP(**CLIP).state_dict()
    save_file(weights, folder / "clip" / "open_clip_model.safetensors")
    return folder


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_states_what_was_published(name):
    config = load_config(RECIPES / name).config
    _, steps, evaluation_steps, guidance, noise, beta, rank, clip = PUBLISHED[name]
    policy, algorithm, train = config.policy.options, config.algorithm.options, config.train
    assert (policy["steps"], policy["evaluation_steps"]) == (steps, evaluation_steps)
    assert (policy["guidance"], policy["noise_level"]) == (guidance, noise)
    assert (policy["lora"]["rank"], policy["lora"]["alpha"]) == (rank, 2 * rank)
    # What the authors' code of the published runs did. FLUX has one branch.
    guided = guidance > 1 and "flux" not in name
    assert policy.get("guidance_gradient") == ("conditional" if guided else None)
    assert policy["prompt_tokens"] == 128
    assert algorithm["clip_low"] == clip
    assert algorithm.get("beta", 0.0) == beta
    assert (train.groups_per_step, train.group_size, train.updates_per_rollout) == (48, 24, 2)
    assert (train.learning_rate, train.weight_decay) == (3e-4, 1e-4)
    # On 32 GPUs the authors average after each batch of an update: 2 batches, 6 with FLUX.
    flux = "flux" in name
    assert (train.ema, train.ema_every) == (pytest.approx(0.9 ** (6 if flux else 2), abs=2e-3), 8)
    precision = "bf16" if flux else "fp16"
    assert (policy["precision"], policy["height"], policy["width"]) == (precision, 512, 512)
    assert policy.get("last_step") == (None if "fast" in name else "noise")
    assert policy.get("long_prompts") == ("cut" if "pickscore" in name else None)
    assert algorithm["scale"] == "batch"
    # The published betas are for this form of the KL.
    assert algorithm.get("kl") == ("published" if beta else None)
    fast = "fast" in name
    assert policy.get("sde") == ("cps" if fast else None)
    window = {"kind": "random", "size": 3, "until": 0.3}
    assert policy.get("window") == (window if fast else None)
    assert len(policy["lora"].get("targets", ())) == (12 if flux else 0)


@pytest.mark.parametrize("name", PUBLISHED)
def test_watched_rewards_have_the_deadline_of_the_trained_ones(name):
    """An evaluation scores 800 pictures one by one; the default, 120 s, leaves 0.15 s for each."""
    config = load_config(RECIPES / name).config
    deadlines = {each.name: each.deadline for each in config.rewards}
    watched = [each for each in config.watch if each.name in deadlines]
    assert [each.deadline for each in watched] == [deadlines[each.name] for each in watched]
    assert watched


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.slow
def test_a_recipe_fits_on_one_gpu_of_80_gb(name, lab, tmp_path):
    model = PUBLISHED[name][0]
    tiny = lab.folders[model]
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)  # to keep its scheduler and tokenizers
    index = json.loads((tiny / "model_index.json").read_text())
    for part, component in REAL[model].items():
        if part == "_class_name":
            index[part] = component
            continue
        library, kind, config = component
        index[part] = [library, kind]
        (tmp_path / part / "config.json").write_text(json.dumps({"_class_name": kind, **config}))
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    loaded = load_config(RECIPES / name)
    settings = FlowPolicy.Config(**{**loaded.config.policy.options, "model": str(tmp_path)})
    for decisions, sampled in [(16384, 0), (0, 512)]:
        load = Workload(
            decisions=decisions,
            rollouts=1152,
            group_size=24,
            sampled=sampled,
            training=True,
            reference=bool(loaded.config.algorithm.options.get("beta")),
            averages=int(loaded.config.train.ema is not None),
        )
        sizes = FlowPolicy.estimate(settings, load)
        assert sizes["transformer"] / 2 == pytest.approx(PARAMETERS[model], rel=0.02)
        # The last quarter is for the reward models and the allocator.
        assert sum(sizes.values()) < 60e9


@pytest.mark.filterwarnings("ignore:reward 'image_contents'. the detector")
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.slow(after=1)
def test_a_step_of_a_recipe_runs_on_tiny_models(name, lab, stand_ins, tmp_path, rounding):
    loaded = load_config(
        RECIPES / name,
        [
            *SMALL,
            f"policy.model={lab.folders[PUBLISHED[name][0]]}",
            f"prompts.path={stand_ins / 'rows.jsonl'}",
            f"output={tmp_path / 'run'}",
            *overrides(RECIPES / name, stand_ins / "clip"),
        ],
    )
    result = train_from_config(loaded, quiet=True)
    assert result.steps == 1
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    bound = rounding.ratio_bound(result.policy, {"prompt": "a cat"})
    assert json.loads(metrics[1])["mismatch/max"] <= bound
    assert json.loads(metrics[1])["grad_norm"] > 0
    assert "watch/image_diversity" in result.after
    assert (tmp_path / "run" / "model" / "pytorch_lora_weights.safetensors").is_file()
    assert len(list((tmp_path / "run" / "samples" / "after").glob("*.png"))) == 4


@pytest.mark.slow
def test_a_step_by_the_wins_that_a_stand_in_for_unified_reward_gives(lab, stand_ins, tmp_path):
    def brightness(block):
        data = b64decode(block["image_url"]["url"].partition(",")[2])
        return sum(Image.open(BytesIO(data)).convert("L").tobytes())

    def judge(request):
        """The brighter picture is better, in the published form."""
        first, second, text = request["messages"][-1]["content"]
        assert "Text Caption: [" in text["text"]
        share = round(brightness(first) / (brightness(first) + brightness(second)), 6)
        scores = f"Image 1: {share:.6f}\n Image 2: {1 - share:.6f}"
        aspects = ("Alignment", "Coherence", "Style")
        return "\n\n".join(f"{aspect} Score:\n {scores}" for aspect in aspects)

    with StandIn(judge) as server:
        loaded = load_config(
            RECIPES / JUDGED,
            [
                *SMALL,
                f"policy.model={lab.folders['flux']}",
                "policy.steps=4",
                "policy.window.size=2",
                f"prompts.path={stand_ins / 'rows.jsonl'}",
                f"rewards.0.server={server.address}",
                "rewards.0.cache=null",
                f"watch.0.model={stand_ins / 'clip'}",
                f"output={tmp_path / 'run'}",
            ],
        )
        result = train_from_config(loaded, quiet=True)
    step = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1])
    assert step["reward"] == pytest.approx(0.5)
    assert step["judge_ranking/contradictions"] == 0
    assert step["grad_norm"] > 0
    assert result.before["reward"] == 0.5  # compared with itself
    assert {"watch/clip_similarity", "watch/image_diversity"} <= result.after.keys()


def overrides(recipe, clip):
    """Options that replace models of the hub by small local ones, and one more reward."""
    config = load_config(recipe).config
    # Random pictures show no objects: all rewards are equal without one that differs.
    yield f"rewards.{len(config.rewards)}=jpeg_size"
    for key, sections in (("rewards", config.rewards), ("watch", config.watch)):
        for number, section in enumerate(sections):
            if "preset" in section.options:
                yield f"{key}.{number}.model={clip}"
            if "detector" in section.options:
                yield f"{key}.{number}.detector=shapes"
                yield f"{key}.{number}.colors=palette"
