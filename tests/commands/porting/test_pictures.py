"""flow_grpo, UniRL and verl-omni: published settings, restated, become those of our recipes."""

from pathlib import Path
from typing import Any

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


VERL = """
cat <<EOF
it's a note
EOF
LR=1e-5
if [ "$BIG" = 1 ]; then
LR=9e-5
fi
python3 -m verl_omni.trainer.main_diffusion actor_rollout_ref.model.path=a/b \\
  actor_rollout_ref.actor.optim.lr=$LR data.train_files=x.parquet
"""


def test_a_variable_with_two_values_is_not_known_and_documents_are_skipped(
    ported: Ported,
) -> None:
    config, text = ported("verl-omni", "v.sh", VERL)
    assert config["policy"]["model"] == "a/b"
    assert "learning_rate" not in config["train"]
    assert "actor_rollout_ref.actor.optim.lr = $LR" in " ".join(text.replace("#", " ").split())


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("v.sh", "x='\n" + "more lines\n" * 5000, "not a shell script"),
        (
            "v.yaml",
            "actor_rollout_ref:\n  a0: x\n"
            + "".join(
                f"  a{n}: '{' '.join([f'${{actor_rollout_ref.a{n - 1}}}'] * 9)}'\n"
                for n in range(1, 9)
            ),
            "unknown option 'actor_rollout_ref.a0'",
        ),
    ],
)
def test_files_that_grow_when_they_are_read_end_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(text, "utf-8")
    result = call("port", "verl-omni", file)
    assert result.exit_code == 2
    assert message in result.stderr


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


# A recipe of UniRL's for SD3.5 (FlowGRPO with a window), and one of MixGRPO, in their form.
UNIRL: dict[str, Any] = {
    "num_devices": 8,
    "batch_size": 48,
    "adv_use_global_std": True,
    "bundle": {
        "_target_": "unirl.models.sd3.bundle.SD3Bundle.from_config",
        "config": {
            "pretrained_model_ckpt_path": "${oc.env:PRETRAINED_MODEL,stabilityai/sd3.5}",
            "model_precision": "bf16",
        },
    },
    "pipeline": {"strategy": {"_target_": "unirl.sde.kernels.FlowSDEStrategy"}},
    "backend": {
        "fsdp_cfg": {"fsdp_mode": "full"},
        "optimizer_cfg": {"learning_rate": 3e-4, "weight_decay": 1e-4},
        "lora_cfg": {"rank": 32, "alpha": 64, "target_modules": ["attn.to_q"]},
    },
    "rollout": {"_target_": "unirl.rollout.engine.trainside.engine.TrainsideRolloutEngine"},
    "reward": {"backend": {"_target_": "unirl.reward.local.pickscore.PickScoreRewardScorer"}},
    "algorithm": {
        "_target_": "unirl.algorithms.flowgrpo.FlowGRPO",
        "clip_range": 1e-4,
        "beta": 0.01,
        "params": "${sampling}",
    },
    "stack": {"micro_batch_size": 1, "num_updates_per_batch": 2},
    "data_source": {
        "args": {
            "run": {"data_path": "datasets/pickscore/train.txt"},
            "algorithm": {"prompts_per_rollout": "${batch_size}"},
        }
    },
    "sampling": {
        "_target_": "unirl.types.sampling.DiffusionSamplingParams",
        "num_inference_steps": 10,
        "guidance_scale": 1.0,
        "height": 512,
        "width": 512,
        "eta": 0.7,
        "samples_per_prompt": 16,
        "scheduler": {
            "_target_": "unirl.sde.index_schedule.WindowScheduler",
            "num_timesteps": "${..num_inference_steps}",
            "config": {
                "strategy": "progressive",
                "window_size": 4,
                "iters_per_window": 25,
                "overlap_size": 1,
            },
        },
    },
}


def test_a_recipe_of_unirl(ported: Ported) -> None:
    config, text = ported("unirl", "sd3.yaml", yaml.safe_dump(UNIRL))
    policy = config["policy"]
    assert policy["model"] == "stabilityai/sd3.5"
    assert policy["lora"] == {"rank": 32, "alpha": 64, "targets": ["attn.to_q"]}
    assert policy["window"] == {"kind": "sliding", "size": 4, "stride": 3, "every": 25}
    assert (policy["sde"], policy["noise_level"], policy["steps"]) == ("flow", 0.7, 10)
    # Their KL divides by 2 std^2, so it is the exact one, the default.
    assert config["algorithm"] == {
        "name": "flow_grpo",
        "clip_low": 1e-4,
        "beta": 0.01,
        "scale": "batch",
    }
    train = config["train"]
    assert (train["groups_per_step"], train["group_size"]) == (48, 16)
    assert train["updates_per_rollout"] == 2
    assert "Without a counterpart" not in text


def test_a_random_subset_of_steps_is_named(ported: Ported) -> None:
    scheduler = {
        "_target_": "unirl.sde.index_schedule.AllSDEScheduler",
        "num_sde_steps": 3,
        "timestep_fraction": [0, 0.5],
    }
    recipe = {**UNIRL, "sampling": {**UNIRL["sampling"], "scheduler": scheduler}}
    config, text = ported("unirl", "sd3.yaml", yaml.safe_dump(recipe))
    assert config["policy"]["window"] == {"kind": "random", "size": 3, "until": 0.3}
    assert "num_sde_steps: 3: a random subset of the steps there" in text


def test_a_language_model_of_unirl(ported: Ported) -> None:
    recipe = {
        **{key: UNIRL[key] for key in ("batch_size", "stack", "rollout")},
        "normalize_adv_by_std": False,
        "bundle": {"config": {"pretrained_model_ckpt_path": "Qwen/Qwen3-4B-Base"}},
        "pipeline": {"autocast_precision": "bf16"},
        "backend": {"fsdp_cfg": {"fsdp_mode": "full", "activation_checkpointing": True}},
        "reward": {"backend": {"_target_": "unirl.reward.local.mathverify.MathVerifyRewardScorer"}},
        "data_source": {"args": {"run": {"data_path": "${oc.env:DATA_PATH}"}}},
        "algorithm": {
            "_target_": "unirl.algorithms.grpo.GRPO",
            "clip_range": 0.2,
            "clip_range_high": 0.28,
            "loss_agg_mode": "seq-mean-token-sum-norm",
            "horizon": 8192,
        },
        "sampling": {
            "_target_": "unirl.types.sampling.ARSamplingParams",
            "samples_per_prompt": 8,
            "max_new_tokens": 8192,
            "temperature": 1.0,
        },
    }
    config, text = ported("unirl", "qwen3.yaml", yaml.safe_dump(recipe))
    assert config["policy"] == {
        "name": "language_model",
        "model": "Qwen/Qwen3-4B-Base",
        "precision": "bf16",
        "gradient_checkpointing": True,
        "max_new_tokens": 8192,
        "top_p": 0.9,  # theirs unless set
    }
    assert config["algorithm"] == {
        "name": "grpo",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "normalize": "constant",
        "length": 8192,
        "scale": "none",
    }
    assert config["train"]["shard"] is True
    assert "data_source.args.run.data_path = ${oc.env:DATA_PATH}: it is computed" in " ".join(
        text.replace("#", " ").split()
    )


# The command of verl-omni's recipe of Qwen-Image with LoRA, and its variables.
VERL_OMNI = r"""
set -x
WORKSPACE=${WORKSPACE:-$HOME}
data=data/ocr
model_name=Qwen/Qwen-Image
ROLLOUT_N=${ROLLOUT_N:-16}
GPUS=4

python3 -m verl_omni.trainer.main_diffusion \
    data.train_files=$data/train.parquet \
    data.val_files=$WORKSPACE/test.parquet \
    data.train_batch_size=32 \
    actor_rollout_ref.model.path=$model_name \
    actor_rollout_ref.model.lora_rank=64 \
    actor_rollout_ref.model.lora_alpha=128 \
    actor_rollout_ref.model.target_modules="['to_q','to_k']" \
    actor_rollout_ref.actor.optim.lr=3e-4 \
    actor_rollout_ref.actor.optim.weight_decay=0.0001 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.rollout.n=$ROLLOUT_N \
    actor_rollout_ref.rollout.agent.num_workers=$((GPUS / 1)) \
    actor_rollout_ref.rollout.pipeline.true_cfg_scale=4.0 \
    actor_rollout_ref.rollout.pipeline.max_sequence_length=256 \
    actor_rollout_ref.rollout.algo.noise_level=1.2 \
    actor_rollout_ref.rollout.algo.sde_type="sde" \
    actor_rollout_ref.rollout.algo.sde_window_size=2 \
    actor_rollout_ref.rollout.algo.sde_window_range="[0,5]" \
    actor_rollout_ref.rollout.val_kwargs.pipeline.num_inference_steps=50 \
    +actor_rollout_ref.rollout.engine_kwargs.vllm_omni.max_num_seqs=8 \
    reward.custom_reward_function.path=rewards/ocr.py \
    trainer.logger='["console"]' \
    trainer.n_gpus_per_node=$GPUS \
    trainer.test_freq=30 \
    trainer.total_training_steps=300 "$@"
"""


def test_a_script_of_verl_omni(ported: Ported) -> None:
    config, text = ported("verl-omni", "run.sh", VERL_OMNI)
    assert config["policy"] == {
        "name": "flow",
        "model": "Qwen/Qwen-Image",
        "precision": "bf16",
        "lora": {"rank": 64, "alpha": 128, "targets": ["to_q", "to_k"]},
        "gradient_checkpointing": True,
        "height": 512,
        "width": 512,
        "steps": 10,
        "evaluation_steps": 50,
        "prompt_tokens": 256,
        "guidance": 4.0,
        "noise_level": 1.2,
        "sde": "flow",
        "window": {"kind": "random", "size": 2, "until": 0.4},
    }
    assert config["algorithm"] == {
        "name": "flow_grpo",
        "clip_low": 1e-4,
        "scale": "batch",
        "beta": 0.001,
        "kl": "published",
    }
    assert config["train"] == {
        "group_size": 16,
        "groups_per_step": 32,
        "updates_per_rollout": 2,
        "learning_rate": 3e-4,
        "weight_decay": 1e-4,
        "steps": 300,
    }
    assert config["prompts"]["path"] == "data/ocr/train.parquet"
    assert "reward.custom_reward_function: rewards/ocr.py" in text
    assert "num_workers" not in text  # it changes no number


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
        ("unirl", "u.yaml", "learning_rate: 1", "not UniRL's, without algorithm._target_"),
        ("verl-omni", "v.sh", "echo 'one", "v.sh, line 1: not a shell script"),
        ("verl-omni", "v.sh", "echo one", "no setting of actor_rollout_ref; expected a script"),
        ("verl-omni", "v.yaml", "a: 1", "no setting of actor_rollout_ref"),
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
