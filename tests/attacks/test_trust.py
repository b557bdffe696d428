"""Code of a model is run only if the configuration trusts it, without a question."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from tests.command_line import call
from transformers import dynamic_module_utils

from groupwise_clip.open_clip_format import OpenClip
from groupwise_clip.transformers_format import Transformers
from groupwise_flow.files import folder as flow
from groupwise_flow.preflight import examine
from groupwise_flow.settings import FlowSettings
from groupwise_verifiable.images.clip_colors import ClipColors
from groupwise_verifiable.images.zero_shot import ZeroShotDetector
from groupwise_verifiable.text.reward_model import RewardModel

PROMISE = "Code of a model is run only if the configuration trusts it, without a question"
BASE = Path(__file__).parents[2] / "examples" / "arithmetic" / "base"
CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Path({mark!r}).touch()


class Config(LlamaConfig):
    model_type = "stranger"


class Model(LlamaForCausalLM):
    config_class = Config


class Tokenizer(PreTrainedTokenizerFast):
    pass
"""
MODELS = [
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForSequenceClassification",
    "AutoModelForZeroShotObjectDetection",
]


class Yes(io.StringIO):
    """A terminal at which somebody answers every question with yes."""

    was_read = False

    def readline(self, *_):
        self.was_read = True
        return "y\n"


@pytest.fixture
def foreign_models(tmp_path, monkeypatch):
    """A folder with a model that needs its own code, and a model whose tokenizer does."""
    mark = tmp_path / "mark"
    for name in ("model", "tokenizer"):
        folder = tmp_path / name
        shutil.copytree(BASE, folder)
        (folder / "stranger.py").write_text(CODE.format(mark=str(mark)))
    _change(
        tmp_path / "model" / "config.json",
        model_type="stranger",
        auto_map={"AutoConfig": "stranger.Config", **dict.fromkeys(MODELS, "stranger.Model")},
    )
    # An architecture for which transformers has no default tokenizer.
    _change(
        tmp_path / "tokenizer" / "config.json", model_type="arcee", architectures=None, num_labels=1
    )
    _change(
        tmp_path / "tokenizer" / "tokenizer_config.json",
        tokenizer_class="StrangersTokenizer",
        auto_map={"AutoTokenizer": ["stranger.Tokenizer", "stranger.Tokenizer"]},
    )
    cache = tmp_path / "cache"
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(cache))
    monkeypatch.setattr(dynamic_module_utils, "TIME_OUT_REMOTE_CODE", 15)
    monkeypatch.setattr(sys, "stdin", Yes())
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def _change(path, **changes):
    data = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(data | changes))


def assert_refused(foreign_models, load):
    """The error of loading a model whose code is not trusted."""
    with pytest.raises(ValueError, match="brings Python code of its own") as caught:
        load()
    assert not sys.stdin.was_read
    assert not (foreign_models / "mark").exists()
    return str(caught.value)


def command(foreign_models, name, model, **loading):
    config = {
        "policy": {"name": "language_model", "model": str(model), "max_new_tokens": 3},
        "prompts": {"name": "rows", "rows": [{"prompt": f"{n} + 1 ="} for n in range(8)]},
        "rewards": ["think_format"],
        "train": {"steps": 0},
        "evaluation": {"prompts": 0},
        "output": str(foreign_models / "run"),
    }
    config["policy"] |= {"loading": loading} if loading else {}
    (foreign_models / "run.yaml").write_text(yaml.safe_dump(config))
    stdin = sys.stdin
    result = call(name, foreign_models / "run.yaml", input="y\n" * 9)
    assert stdin is sys.stdin
    return result


@pytest.mark.attack(PROMISE, "a policy whose model, or whose tokenizer, needs its own code")
@pytest.mark.parametrize("name", ["model", "tokenizer"])
@pytest.mark.parametrize("loading", [{}, {"trust_remote_code": None}, {"trust_remote_code": "no"}])
def test_code_of_policies_is_not_run(foreign_models, name, loading, tries):
    for subcommand in ("check", "train"):
        result = command(foreign_models, subcommand, foreign_models / name, **loading)
        assert result.exit_code == 2, result.output
        assert result.output.startswith("error: policy.model: cannot ")
        assert "runs only with policy.loading.trust_remote_code: true; set" in result.output
        assert "Do you wish" not in result.output
        assert not (foreign_models / "mark").exists()
        tries(1)


@pytest.mark.parametrize("name", ["model", "tokenizer"])
def test_code_of_a_trusted_policy_is_run(foreign_models, name):
    result = command(foreign_models, "check", foreign_models / name, trust_remote_code=True)
    assert result.exit_code == 0, result.output
    assert (foreign_models / "mark").exists()


def test_trust_remote_code_must_be_true_or_false(foreign_models):
    result = command(foreign_models, "check", foreign_models / "model", trust_remote_code="maybe")
    assert result.exit_code == 2
    assert "trust_remote_code: expected true or false, found 'maybe'" in result.output


@pytest.mark.attack(PROMISE, "models of rewards, by transformers and by open_clip")
@pytest.mark.parametrize("name", ["model", "tokenizer"])
def test_code_of_reward_models_is_not_run(foreign_models, name, tries):
    folder = str(foreign_models / name)

    def load_reward_model():
        reward = RewardModel(RewardModel.Config(model=folder))
        reward.load()

    towers = foreign_models / "towers"
    towers.mkdir()
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8}
    text = {"hf_model_name": folder, "hf_tokenizer_name": folder, "hf_model_pretrained": False}
    model = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}
    (towers / "open_clip_config.json").write_text(json.dumps({"model_cfg": model}))
    (towers / "open_clip_model.safetensors").write_bytes(b"")
    loads = [load_reward_model]
    if name == "model":  # these load the model's code before the tokenizer
        loads += [
            lambda: ZeroShotDetector(folder).load(),
            lambda: Transformers(folder),
            lambda: OpenClip(f"local-dir:{towers}"),
            lambda: ClipColors(f"local-dir:{towers}", None).load(),
        ]
    for load in loads:
        assert "cannot be loaded" in assert_refused(foreign_models, load)
        tries(1)


@pytest.mark.attack(PROMISE, "parts of an image pipeline that need their own code")
def test_code_of_image_pipelines_is_not_run(foreign_models, tries):
    folder = foreign_models / "pipeline"
    parts = {
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "tokenizer": ["transformers", "AutoTokenizer"],
        "transformer": ["stranger", "Model"],
    }
    for name in parts:
        (folder / name).mkdir(parents=True)
    shutil.copytree(foreign_models / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)
    shutil.copy(foreign_models / "model" / "stranger.py", folder / "transformer")
    (folder / "scheduler" / "scheduler_config.json").write_text("{}")
    settings = FlowSettings(model=str(folder))
    index = {"_class_name": "StableDiffusion3Pipeline", **parts}
    (folder / "model_index.json").write_text(json.dumps(index))
    assert "transformer: it brings" in assert_refused(
        foreign_models, lambda: flow.read_index(settings)
    )
    del index["transformer"]
    (folder / "model_index.json").write_text(json.dumps(index))
    assert "policy.loading.trust" in assert_refused(
        foreign_models, lambda: list(examine(settings, []))
    )
    tries(2)
