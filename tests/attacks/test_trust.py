"""Models that bring code: it is not run, and nobody is asked, unless a configuration trusts it."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from transformers import dynamic_module_utils
from typer.testing import CliRunner

from groupwise.cli import app
from groupwise_clip.open_clip_format import OpenClip
from groupwise_clip.transformers_format import Transformers
from groupwise_flow import loading as flow
from groupwise_flow.examining import examine
from groupwise_flow.settings import Settings as FlowSettings
from groupwise_verifiable.images.clip_colors import ClipColors
from groupwise_verifiable.images.zero_shot import ZeroShotDetector
from groupwise_verifiable.text.reward_model import RewardModel

PROMISE = (
    "Code that a model brings is not run unless the configuration says so, and nobody is asked"
)
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
    """A terminal with somebody before it who says yes to everything."""

    asked = False

    def readline(self, *_):
        self.asked = True
        return "y\n"


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A folder with a model that needs its own code, and one whose tokenizer does."""
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
    # An architecture for which transformers has no tokenizer of its own to fall back on.
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


def refused(stranger, load):
    """What loading says when nobody trusts the code."""
    with pytest.raises(ValueError, match="brings Python code of its own") as caught:
        load()
    assert not sys.stdin.asked
    assert not (stranger / "mark").exists()
    return str(caught.value)


def command(stranger, name, model, **loading):
    config = {
        "policy": {"name": "language_model", "model": str(model), "max_new_tokens": 3},
        "prompts": {"name": "rows", "rows": [{"prompt": f"{n} + 1 ="} for n in range(8)]},
        "rewards": ["think_format"],
        "train": {"steps": 0},
        "evaluation": {"prompts": 0},
        "output": str(stranger / "run"),
    }
    config["policy"] |= {"loading": loading} if loading else {}
    (stranger / "run.yaml").write_text(yaml.safe_dump(config))
    stdin, out = sys.stdin, CliRunner()
    result = out.invoke(app, [name, str(stranger / "run.yaml")], input="y\n" * 9)
    assert stdin is sys.stdin
    return result


@pytest.mark.attack(PROMISE, "a policy whose model, or whose tokenizer, needs its own code")
@pytest.mark.parametrize("name", ["model", "tokenizer"])
@pytest.mark.parametrize("loading", [{}, {"trust_remote_code": None}, {"trust_remote_code": "no"}])
def test_policies(stranger, name, loading, tries):
    for way in ("check", "train"):
        result = command(stranger, way, stranger / name, **loading)
        assert result.exit_code == 2, result.output
        assert result.output.startswith("error: policy.model: cannot ")
        assert "runs only with policy.loading.trust_remote_code: true; set" in result.output
        assert "Do you wish" not in result.output
        assert not (stranger / "mark").exists()
        tries(1)


@pytest.mark.parametrize("name", ["model", "tokenizer"])
def test_a_policy_that_is_trusted(stranger, name):
    result = command(stranger, "check", stranger / name, trust_remote_code=True)
    assert result.exit_code == 0, result.output
    assert (stranger / "mark").exists()


def test_trust_is_true_or_false(stranger):
    result = command(stranger, "check", stranger / "model", trust_remote_code="maybe")
    assert result.exit_code == 2
    assert "trust_remote_code: expected true or false, found 'maybe'" in result.output


@pytest.mark.attack(PROMISE, "models of rewards, by transformers and by open_clip")
@pytest.mark.parametrize("name", ["model", "tokenizer"])
def test_rewards(stranger, name, tries):
    folder = str(stranger / name)

    def judged():
        reward = RewardModel(RewardModel.Config(model=folder))
        reward.load()

    towers = stranger / "towers"
    towers.mkdir()
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8}
    text = {"hf_model_name": folder, "hf_tokenizer_name": folder, "hf_model_pretrained": False}
    model = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}
    (towers / "open_clip_config.json").write_text(json.dumps({"model_cfg": model}))
    (towers / "open_clip_model.safetensors").write_bytes(b"")
    loads = [judged]
    if name == "model":  # these need the model's code before they look at the tokenizer
        loads += [
            lambda: ZeroShotDetector(folder).load(),
            lambda: Transformers(folder),
            lambda: OpenClip(f"local-dir:{towers}"),
            lambda: ClipColors(f"local-dir:{towers}", None).load(),
        ]
    for load in loads:
        assert "cannot be loaded" in refused(stranger, load)
        tries(1)


@pytest.mark.attack(PROMISE, "parts of an image pipeline that need their own code")
def test_pipelines(stranger, tries):
    folder = stranger / "pipeline"
    parts = {
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "tokenizer": ["transformers", "AutoTokenizer"],
        "transformer": ["stranger", "Model"],
    }
    for name in parts:
        (folder / name).mkdir(parents=True)
    shutil.copytree(stranger / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)
    shutil.copy(stranger / "model" / "stranger.py", folder / "transformer")
    (folder / "scheduler" / "scheduler_config.json").write_text("{}")
    settings = FlowSettings(model=str(folder))
    index = {"_class_name": "StableDiffusion3Pipeline", **parts}
    (folder / "model_index.json").write_text(json.dumps(index))
    assert "transformer: it brings" in refused(stranger, lambda: flow.read_index(settings))
    del index["transformer"]
    (folder / "model_index.json").write_text(json.dumps(index))
    assert "policy.loading.trust" in refused(stranger, lambda: list(examine(settings, [])))
    tries(2)
