"""flow_grpo: published settings, restated, become those of our recipes."""

from pathlib import Path

import pytest
import yaml
from tests.command_line import call
from tests.commands.porting.conftest import Ported

from groupwise_flow.settings import FlowSettings

RECIPES = Path(__file__).parents[3] / "examples" / "recipes"

# The facts of flow_grpo's config/grpo.py that matter for numbers, in the form of that file.
FLOW_GRPO = """
import imp, os
base = imp.load_source("base", os.path.join(os.path.dirname(__file__), "base.py"))
open("executed", "w").write("a configuration was run")

def first():
    config = base.get_config()
    config.pretrained.model = "stabilityai/stable-diffusion-3.5-medium"
    config.dataset = os.path.join(os.getcwd(), "dataset/pickscore")
    config.sample.num_steps = 10
    config.sample.eval_num_steps = 40
    config.resolution = 512
    config.prompt_fn = "general_ocr"
    return config

def pickscore_sd3():
    gpu_number = 32
    config = first()
    config.sample.train_batch_size = 9
    config.sample.num_image_per_prompt = 24
    config.sample.num_batches_per_epoch = int(
        48 / (gpu_number * config.sample.train_batch_size / config.sample.num_image_per_prompt)
    )
    assert config.sample.num_batches_per_epoch % 2 == 0, "two updates"
    config.train.gradient_accumulation_steps = config.sample.num_batches_per_epoch // 2
    config.train.timestep_fraction = 0.99
    config.train.beta = 0.01
    config.train.ema = True
    config.sample.global_std = True
    config.reward_fn = {"pickscore": 1.0}
    return config

def geneval_sd3_fast_nocfg():
    config = pickscore_sd3()
    config.dataset = os.path.join(os.getcwd(), "dataset/geneval")
    config.sample.guidance_scale = 1
    config.sample.eval_guidance_scale = 1
    config.train.cfg = False
    config.train.clip_range = 1e-5
    config.train.beta = 0
    config.sample.noise_level = 0.8
    config.sample.sde_window_size = 3
    config.sample.sde_window_range = (0, config.sample.num_steps // 2)
    config.sample.sde_type = "cps"
    config.reward_fn = {"geneval": 1.0}
    config.prompt_fn = "geneval"
    return config

def pickscore_flux():
    gpu_number = 32
    config = first()
    config.pretrained.model = "black-forest-labs/FLUX.1-dev"
    config.sample.num_steps = 6
    config.sample.eval_num_steps = 28
    config.sample.guidance_scale = 3.5
    config.sample.train_batch_size = 3
    config.sample.num_image_per_prompt = 24
    config.sample.num_batches_per_epoch = 12
    config.train.gradient_accumulation_steps = 6
    config.train.timestep_fraction = 0.99
    config.train.ema = True
    config.sample.noise_level = 0.9
    config.mixed_precision = "bf16"
    config.reward_fn = {"pickscore": 1.0}
    return config

def several():
    config = pickscore_sd3()
    config.reward_fn = {"pickscore": 0.5, "ocr": 0.5, "deqa": 1.0}
    config.train.learning_rate = schedule(3)
    config.train.timestep_fraction = 0.5
    config.num_epochs = 100 if config.train.beta == 0 else 200
    return config
"""
CHOSEN = {"adapter", "guidance_gradient", "batch", "gradient_checkpointing"}
"""Keys of a recipe's policy that do not follow from their configuration."""


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("pickscore_sd3", "sd35_pickscore"),
        ("geneval_sd3_fast_nocfg", "sd35_geneval_fast"),
        ("pickscore_flux", "flux_pickscore"),
    ],
)
def test_published_configurations_become_our_recipes(
    ported: Ported, name: str, recipe: str
) -> None:
    """The recipes were written by hand, from the papers and the authors' scripts."""
    config, text = ported("flow_grpo", f"config/grpo.py:{name}", FLOW_GRPO)
    assert not Path("executed").exists()
    ours = yaml.safe_load((RECIPES / f"{recipe}.yaml").read_text("utf-8"))
    kept = {key: each for key, each in ours["policy"].items() if key not in {*CHOSEN, "lora"}}
    fields = FlowSettings.model_fields  # what is not written is our default
    assert {
        key: config["policy"].get(key, getattr(fields.get(key), "default", None)) for key in kept
    } == kept
    for key in ("rank", "alpha"):
        assert config["policy"]["lora"][key] == ours["policy"]["lora"][key]
    assert set(config["policy"]["lora"].get("targets", ())) == set(
        ours["policy"]["lora"].get("targets", ())
    )
    assert float(config["algorithm"].pop("clip_low")) == float(ours["algorithm"].pop("clip_low"))
    assert config["algorithm"] == ours["algorithm"]
    for key in ("groups_per_step", "group_size", "updates_per_rollout", "ema", "ema_every"):
        assert round(config["train"][key], 2) == ours["train"][key], key
    for key in ("learning_rate", "weight_decay"):
        assert float(config["train"][key]) == float(ours["train"][key])
    assert config["rewards"][0]["name"] == ours["rewards"][0]["name"]
    assert config["policy"]["batch"] == (3 if "flux" in name else 9)
    file = "{}_metadata.jsonl" if "geneval" in name else "{}.txt"
    for source, split in (
        (config["prompts"], "train"),
        (config["evaluation"]["source"], "test"),
    ):
        assert Path(source["path"]).name == file.format(split)
    assert "advantages are 0.04% smaller over 1,152 images, 2.1% over 24" in " ".join(
        text.replace("#", " ").split()
    )


def test_qwen_image_has_the_prompts_of_its_script(ported: Ported) -> None:
    text = FLOW_GRPO.replace("stabilityai/stable-diffusion-3.5-medium", "Qwen/Qwen-Image")
    policy = ported("flow_grpo", "config/grpo.py:pickscore_sd3", text)[0]["policy"]
    assert (policy["prompt_tokens"], policy["negative_prompt"]) == (512, " ")


def test_wan_has_frames_and_its_rewards_one_of_them(ported: Ported) -> None:
    video = "config.height = 240\n    config.width = 416\n    config.frames = 33"
    text = FLOW_GRPO.replace("stabilityai/stable-diffusion-3.5-medium", "Wan-AI/Wan2.1-T2V-1.3B")
    text = text.replace("config.resolution = 512", video)
    config, written = ported("flow_grpo", "config/grpo.py:pickscore_sd3", text)
    sizes = {key: config["policy"][key] for key in ("height", "width", "frames")}
    assert sizes == {"height": 240, "width": 416, "frames": 33}
    assert "as the `reward` of per_frame" in written


# The form of DiffusionNFT's config/nft.py: a loop looks for a size of batches.
NFT = """
def _make(base_model="sd3", n_gpus=1, updates=1, dataset="pickscore", reward_fn={}, name=""):
    config = base.get_config()
    if base_model == "sd3":
        config.pretrained.model = "stabilityai/stable-diffusion-3.5-medium"
        config.sample.num_steps = 10
        config.train.beta = 0.0001
        config.sample.noise_level = 0.7
        size = 9
    config.sample.num_image_per_prompt = 24
    while True:
        if 48 * config.sample.num_image_per_prompt % (n_gpus * size) == 0:
            batches = 48 * config.sample.num_image_per_prompt // (n_gpus * size)
            config.sample.train_batch_size = size
            config.sample.num_batches_per_epoch = batches
            config.train.gradient_accumulation_steps = batches // updates
            break
        size -= 1
    config.prompt_fn = "geneval" if dataset == "geneval" else "general_ocr"
    config.save_dir = f"logs/{base_model}/{name}"
    config.reward_fn = reward_fn
    config.decay_type = 1
    config.beta = 1.0
    config.train.adv_mode = "all"
    config.sample.guidance_scale = 1.0
    config.sample.deterministic = True
    config.sample.solver = "dpm2"
    return config

def sd3_ocr():
    reward_fn = {"ocr": 1.0}
    config = _make(n_gpus=8, updates=2, dataset="ocr", reward_fn=reward_fn, name="ocr")
    config.beta = 0.1
    config.decay_type = 2
    return config
"""


def test_files_of_diffusion_nft_become_nft(ported: Ported) -> None:
    config, text = ported("flow_grpo", "config/nft.py:sd3_ocr", NFT)
    assert config["output"] == "logs/sd3/ocr"
    assert config["rewards"][0]["name"] == "image_text"
    policy = {"name": "forward_process", "sde": "ode", "decisions": 10, "guidance": 1.0}
    assert config["policy"] | policy == config["policy"]
    assert "noise_level" not in config["policy"]
    algorithm = {"name": "nft", "b": 0.1, "beta": 1e-4, "scale": "batch"}
    blended = {"decay": 0.999, "decay_rise": 0.0075, "decay_delay": 75}
    assert config["algorithm"] == algorithm | blended
    assert config["train"]["group_size"] == 24
    assert {"groups_per_step", "updates_per_rollout"}.isdisjoint(config["train"])
    words = " ".join(text.replace("#", " ").split())
    line = NFT.splitlines().index("            config.sample.num_batches_per_epoch = batches") + 1
    assert f"num_batches_per_epoch = batches: line {line} computes it" in words
    assert "set `train.groups_per_step`" in words


@pytest.mark.parametrize(
    "statements",
    [
        "for size in sizes:\n        config.sample.train_batch_size = size",
        "while size():\n        config.sample.train_batch_size = 8",
        "with torch.device('meta'):\n        config.sample.train_batch_size = 8",
        "try:\n        config.sample.train_batch_size = 8\n    except ValueError:\n        pass",
        "if torch.cuda.is_available():\n        config.sample.train_batch_size = 8",
        "config.sample.train_batch_size = size()",
        "config.sample.train_batch_size *= size()",
        "size = 8\n    size = look()\n    config.sample.train_batch_size = size",
        "size = 8\n    if look():\n        size = 9\n    config.sample.train_batch_size = size",
        "config.sample.update({'train_batch_size': size()})",
        "own = config.sample = ml_collections.ConfigDict()\n    own.train_batch_size = size()",
    ],
)
def test_what_could_not_be_read_is_no_fact_and_nothing_is_computed_with_it(
    ported: Ported, statements: str
) -> None:
    script = f"{FLOW_GRPO}\n\ndef mine():\n    config = pickscore_sd3()\n    {statements}\n"
    config, text = ported("flow_grpo", "grpo.py:mine", f"{script}    return config\n")
    assert "batch" not in config["policy"]
    assert {"groups_per_step", "updates_per_rollout"}.isdisjoint(config["train"])
    assert "images on" not in text
    assert "sample.train_batch_size =" in text.partition("Left to do:")[2].partition("policy:")[0]


@pytest.mark.parametrize(
    "body",
    [
        "return pickscore_sd3()",
        "config = pickscore_sd3()\n    return config",
        "return within()\n\ndef within():\n    return pickscore_sd3()",
    ],
)
def test_functions_that_return_what_another_one_makes(ported: Ported, body: str) -> None:
    theirs, _ = ported("flow_grpo", "grpo.py:pickscore_sd3", FLOW_GRPO)
    script = f"{FLOW_GRPO}\n\ndef mine():\n    {body}\n"
    assert ported("flow_grpo", "grpo.py:mine", script)[0] == theirs


def test_several_rewards_keep_their_shares(ported: Ported) -> None:
    config, text = ported("flow_grpo", "config/grpo.py:several", FLOW_GRPO)
    assert [(each["name"], each["weight"]) for each in config["rewards"]] == [
        ("preference", round(0.5 / 26, 8)),
        ("image_text", 0.5),
    ]
    assert config["policy"]["window"] == {"kind": "fixed", "size": 5}
    assert config["train"]["steps"] == 200
    words = " ".join(text.replace("#", " ").split())
    assert "theirs is PickScore / 26, ours about 20" in words
    assert "reward_fn: deqa: no such reward" in words
    assert "learning_rate = schedule(3): line 70 computes it" in words


def test_a_base_of_another_name_and_statements_are_no_silence(ported: Ported) -> None:
    script = (
        FLOW_GRPO
        + """

def alias():
    config = pickscore_sd3()
    return config


def mine():
    config = alias()
    config.update({"seed": 3})
    config.train.learning_rate = 7e-5
    if config.seed == 3:
        config.num_epochs = 5
    else:
        config.num_epochs = 6
    tweak(config)
    if config.train.beta:
        config.save_freq = 2
    return config


def other():
    config = elsewhere()
    config.seed = 5
    return config
"""
    )
    theirs, _ = ported("flow_grpo", "grpo.py:pickscore_sd3", script)
    config, text = ported("flow_grpo", "grpo.py:mine", script)
    assert config["policy"]["model"] == theirs["policy"]["model"]
    assert config["train"]["learning_rate"] == 7e-5
    assert (config["seed"], config["train"]["steps"]) == (3, 5)
    assert config["train"]["checkpoint_every"] == 2
    assert "tweak(config)" in text
    _, text = ported("flow_grpo", "grpo.py:other", script)
    assert "config = elsewhere()" in text


def test_base_py_beside_the_file_counts(ported: Ported, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    base = """
def get_config():
    config = ml_collections.ConfigDict()
    config.train = train = ml_collections.ConfigDict()
    config.seed = 42
    train.learning_rate = 1e-4
    train.adam_weight_decay = 1e-4
    return config
"""
    (tmp_path / "config" / "base.py").write_text(base, "utf-8")
    config, _ = ported("flow_grpo", "config/grpo.py:pickscore_sd3", FLOW_GRPO)
    assert config["train"]["learning_rate"] == 1e-4
    assert "seed" not in config  # as published, so it says nothing


@pytest.mark.parametrize(
    ("framework", "file", "text", "message"),
    [
        ("flow_grpo", "config.py", "x = 1", "expected a file of flow_grpo's configurations and a"),
        ("flow_grpo", "c.py:a", "x = 1", "c.py: no function sets `config.…`"),
        ("flow_grpo", "c.py:pickscore", FLOW_GRPO, "no configuration 'pickscore', did you mean"),
        (
            "flow_grpo",
            "c.py:a",
            "def a():\n    config = base.get_config()\n    config.train.betta = 1",
            "unknown option 'train.betta', did you mean 'train.beta'?",
        ),
        ("flow_grpo", "c.py:a", "def a():\n    config = a()\n    config.seed = 1", "without end"),
    ],
)
def test_what_is_not_theirs_is_one_clear_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    framework: str,
    file: str,
    text: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(file.partition(":")[0]).write_text(text, "utf-8")
    result = call("port", framework, file)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
