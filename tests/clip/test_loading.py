"""Loading a CLIP by name or folder: formats, weights, tokenizers, and errors."""

import json
import logging
import shutil
import sys
import warnings

import open_clip
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from groupwise_clip.files import fetched, quiet, read_tensors
from groupwise_clip.loading import load
from groupwise_clip.open_clip_format import OpenClip
from groupwise_clip.settings import ClipSettings
from groupwise_clip.transformers_format import Transformers


@pytest.fixture
def weights(folder):
    return folder / "open_clip_model.safetensors"


class Unpicklable:
    """A class that must not be unpickled."""


def test_formats(folder, transformers_folder, architecture, weights):
    assert isinstance(load(str(folder)), OpenClip)
    assert isinstance(load(f"local-dir:{folder}"), OpenClip)
    assert isinstance(load(str(transformers_folder)), Transformers)
    assert isinstance(load(f"local-dir:{transformers_folder}"), Transformers)
    assert isinstance(load(architecture, str(weights)), OpenClip)
    assert isinstance(load("ViT/Tiny/8", str(weights)), OpenClip)


def test_weights_are_read_from_every_layout_of_checkpoints(architecture, weights, folder, tmp_path):
    tensors = load_file(weights)
    torch.save(tensors, tmp_path / "plain.pt")
    # As in HPS v2's checkpoints, and as data parallel training saves them.
    torch.save({"epoch": 3, "state_dict": tensors}, tmp_path / "nested.pt")
    torch.save({f"module.{name}": t for name, t in tensors.items()}, tmp_path / "parallel.pt")
    expected = load(str(folder)).module.state_dict()
    for file in (weights, *(tmp_path / f"{n}.pt" for n in ("plain", "nested", "parallel"))):
        state = load(architecture, str(file)).module.state_dict()
        assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_pretrained_tags_set_the_activation(architecture, weights, monkeypatch):
    from open_clip import pretrained

    plain = {"file": str(weights)}
    tags = {"ours": plain, "openai": plain | {"quick_gelu": True}}
    monkeypatch.setitem(pretrained._PRETRAINED, architecture, tags)

    def activation(tag):
        return type(load(architecture, tag).module.visual.transformer.resblocks[0].mlp.gelu)

    assert activation("ours") is torch.nn.GELU
    assert activation("openai") is open_clip.transformer.QuickGELU


def test_a_folder_is_relative_to_the_configuration(folder):
    for prefix in ("", "local-dir:"):
        settings = ClipSettings.model_validate(
            {"model": f"{prefix}{folder.name}", "pretrained": "a-tag"},
            context={"folder": folder.parent},
        )
        assert settings.model == f"{prefix}{folder}"
        assert settings.pretrained == "a-tag"


def test_loading_prints_nothing_and_does_not_change_logging(
    folder, transformers_folder, monkeypatch, capfd
):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])  # as outside of a test
    monkeypatch.setattr(root, "level", logging.WARNING)
    for where in (folder, transformers_folder):
        load(str(where))
    assert root.handlers == []
    assert root.manager.disable == 0
    assert capfd.readouterr() == ("", "")


def test_quiet_is_undone_by_an_exception(capfd):
    root = logging.getLogger()
    before = root.handlers[:]

    def fail():
        with quiet():
            logging.getLogger("open_clip").error("silenced")
            print("silenced", file=sys.stderr)
            warnings.warn("silenced", UserWarning, stacklevel=1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert root.handlers == before
    assert root.manager.disable == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ViT-B-33", "unknown model 'ViT-B-33', did you mean 'ViT-B-32'"),
        ("ViT-B/33", r"'ViT-B/33' cannot be loaded by transformers, did you mean 'ViT-B-3\d'"),
        ("nothing/such", "model 'nothing/such' cannot be loaded by transformers: "),
        ("hf-hub:nothing/such", "model 'hf-hub:nothing/such' cannot be loaded: "),
        ("local-dir:/no/where", "the folder '/no/where' does not exist"),
        ("/no/where", "the folder '/no/where' does not exist"),
        ("./where", "the folder './where' does not exist"),
    ],
)
def test_unknown_models_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        load(name)


def test_folders_without_a_model_are_refused(folder, transformers_folder, tmp_path):
    with pytest.raises(ValueError, match=r"holds no model: expected open_clip_config.json"):
        load(str(tmp_path))
    shutil.copy(folder / "open_clip_config.json", tmp_path)
    with pytest.raises(ValueError, match=r"holds no weights: expected open_clip_model.safe"):
        load(str(tmp_path))
    (tmp_path / "open_clip_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"cannot be loaded: .*header"):
        load(str(tmp_path))
    (tmp_path / "open_clip_config.json").write_text("{}")
    with pytest.raises(ValueError, match="missing 'model_cfg'"):
        load(str(tmp_path))
    with pytest.raises(ValueError, match=r"found the file '.*json'; weights are set by `pretr"):
        load(str(transformers_folder / "config.json"))


def test_pickled_weights_of_transformers_are_not_read(transformers_folder, tmp_path):
    folder = shutil.copytree(transformers_folder, tmp_path / "model")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="no weights as safetensors"):
        load(str(folder))


def test_missing_and_mismatching_weights_are_refused(architecture, weights, tmp_path):
    with pytest.raises(ValueError, match=r"'ViT-B-32' needs weights: set `pretrained` .* openai,"):
        load("ViT-B-32")
    with pytest.raises(ValueError, match=r"needs weights: .* tags for 'ViT-Tiny-8' are: none"):
        load(architecture)
    with pytest.raises(ValueError, match=r"'opnai' does not exist, and no tag, did you mean 'ope"):
        load("ViT-B-32", "opnai")
    with pytest.raises(ValueError, match="is a folder, expected a file"):
        load(architecture, str(tmp_path))
    short = {name: t for name, t in load_file(weights).items() if "ln_final" not in name}
    save_file(short, tmp_path / "short.safetensors")
    with pytest.raises(ValueError, match=r"with the weights '.*short.*' cannot .*ln_final"):
        load(architecture, str(tmp_path / "short.safetensors"))
    torch.save({"state_dict": load_file(weights), "of": Unpicklable()}, tmp_path / "code.pt")
    with pytest.raises(ValueError, match=r"holds more than tensors .* convert it to safetensors"):
        load(architecture, str(tmp_path / "code.pt"))


def test_settings_of_the_other_format_are_refused(folder, transformers_folder, weights):
    for where in (folder, transformers_folder):
        with pytest.raises(ValueError, match="its own weights, so `pretrained` must not be set"):
            load(str(where), str(weights))
    with pytest.raises(ValueError, match="`processor` is for models in transformers' format"):
        load(str(folder), processor=str(transformers_folder))


def test_transformers_models_that_are_not_clips_are_refused(transformers_folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(transformers_folder, broken)
    (broken / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ValueError, match="expected a model of type 'clip', found 'gpt2'"):
        load(str(broken))
    shutil.copy(transformers_folder / "config.json", broken)
    tensors = load_file(broken / "model.safetensors")
    del tensors["visual_projection.weight"]
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 of its weights, 'visual_projection.weight'"):
        load(str(broken))


def test_a_tokenizer_from_another_folder_must_match_the_model(transformers_folder, tmp_path, texts):
    bare = tmp_path / "bare"
    shutil.copytree(transformers_folder, bare)
    (bare / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match="no tokenizer and image processor can be loaded from"):
        load(str(bare))
    shutil.copy(transformers_folder / "preprocessor_config.json", bare)
    for file in bare.glob("tokenizer*"):
        file.unlink()
    # transformers then makes an empty tokenizer without a warning.
    with pytest.raises(
        ValueError, match=r"has 2 entries, but the model .* has \d+: set `processor`"
    ):
        load(str(bare))
    cpu = torch.device("cpu")
    expected = load(str(transformers_folder)).encode_texts(texts, cpu)
    features = load(str(bare), processor=str(transformers_folder)).encode_texts(texts, cpu)
    assert torch.equal(expected, features)


def test_files(tmp_path):
    with pytest.raises(
        ValueError, match=r"`head`: expected `hf-hub:OWNER/NAME/FILE`, found 'hf-hub:a/b'"
    ):
        fetched("hf-hub:a/b", setting="head")
    with pytest.raises(ValueError, match=r"`head`: 'hf-hub:a/b/c.pt' cannot be fetched: "):
        fetched("hf-hub:a/b/c.pt", setting="head")
    with pytest.raises(ValueError, match="`head`: the file 'nothing' does not exist"):
        fetched("nothing", setting="head")
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="does not hold weights: expected a dict of named tensors"):
        read_tensors(str(tmp_path / "list.pt"))
    (tmp_path / "text.pt").write_text("text")
    with pytest.raises(ValueError, match="cannot read weights from"):
        read_tensors(str(tmp_path / "text.pt"))


def test_settings():
    for options in ({"batch": 0}, {"precision": "fp16"}, {"resize": "crop"}, {"models": "x"}):
        with pytest.raises(ValidationError):
            ClipSettings(model="ViT-B-32", **options)
    with pytest.raises(ValidationError):
        ClipSettings(model="")
