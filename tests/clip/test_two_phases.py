"""A reward checks its settings when it is constructed, and reads weights in `load`."""

import huggingface_hub
import open_clip
import pytest
import safetensors.torch
import torch
import transformers

from groupwise_clip import model as module
from groupwise_clip.aesthetic import Aesthetic
from groupwise_clip.preference import Preference
from groupwise_clip.similarity import ClipSimilarity


@pytest.fixture
def nothing_is_read(monkeypatch):
    """Downloads and reading of weights fail."""

    def fail(*arguments, **settings):
        raise AssertionError(arguments)

    for owner, name in (
        (huggingface_hub, "hf_hub_download"),
        (open_clip, "create_model"),
        (open_clip, "get_tokenizer"),
        (safetensors.torch, "load_file"),
        (torch, "load"),
        (torch.cuda, "current_device"),
        (transformers.AutoConfig, "from_pretrained"),
        (transformers.AutoTokenizer, "from_pretrained"),
        (transformers.CLIPModel, "from_pretrained"),
    ):
        monkeypatch.setattr(owner, name, fail)


def made(kind, **settings):
    return kind(kind.Config.model_validate(settings))


@pytest.mark.usefixtures("nothing_is_read")
def test_constructing_a_reward_reads_nothing(folder, transformers_folder, *, head):
    made(ClipSimilarity, model="ViT-bigG-14", pretrained="laion2b_s39b_b160k")
    made(ClipSimilarity, model="hf-hub:nobody/nothing-of-400-GB")
    made(ClipSimilarity, model="nobody/nothing", device="cuda:7")
    for preset in ("pickscore", "hps", "hps_v2.1"):
        made(Preference, preset=preset)
    for where in (folder, transformers_folder):
        made(Preference, model=str(where))
    made(Aesthetic, model="ViT-L-14", pretrained="openai", head="hf-hub:nobody/nothing/head.pt")
    made(Aesthetic, model=str(folder), head=str(head(24, 1)))


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "/no/where"}, "no such file or folder as '/no/where'"),
        ({"model": "local-dir:/no/where"}, "no such file or folder as '/no/where'"),
        ({"model": "ViT-B-33"}, "unknown model 'ViT-B-33', did you mean 'ViT-B-32'"),
        ({"model": "ViT-B-32"}, "'ViT-B-32' needs weights: set `pretrained`"),
        ({"model": "ViT-B-32", "pretrained": "opnai"}, "'opnai' does not exist, and no tag, did"),
        ({"model": "ViT-B-32", "pretrained": "hf-hub:a/b"}, "`pretrained`: expected `hf-hub:OWN"),
        ({"model": "a/b", "pretrained": "openai"}, "`pretrained` must not be set"),
        ({"model": "a/b", "processor": "/no/where"}, "no such file or folder as '/no/where'"),
        ({"model": "a/b", "device": "gpu"}, "unknown device 'gpu'"),
        ({"model": "a/b", "head": "/no/where.pt"}, "no such file or folder as '/no/where.pt'"),
        ({"model": "a/b", "head": "hf-hub:a"}, "`head`: expected `hf-hub:OWNER/NAME/FILE`"),
    ],
)
def test_invalid_settings_are_refused_at_construction(settings, message):
    with pytest.raises(ValueError, match=message):
        made(Aesthetic if "head" in settings else Preference, **settings)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Preference, {"preset": "pickscore"}, "model 'yuvalkirstain/PickScore_v1' cannot be"),
        (Preference, {"preset": "hps"}, "`pretrained`: 'hf-hub:xswu/HPSv2/HPS_v2_compr.* cannot"),
        (ClipSimilarity, {"model": "hf-hub:nobody/nothing"}, "model 'hf-hub:nobody/nothing' can"),
        (Aesthetic, {"model": "a/b", "head": "hf-hub:a/b/c.pt"}, "`head`: 'hf-hub:a/b/c.pt' can"),
    ],
)
def test_missing_models_are_refused_at_load_in_one_line(kind, settings, message):
    reward = made(kind, **settings)
    with pytest.raises(ValueError, match=message) as caught:
        reward.load()
    assert "\n" not in str(caught.value)


def test_it_is_loaded_once(folder, head, pictures, monkeypatch):
    loads, real = [], module.loader

    def counted(*settings):
        load = real(*settings)
        return lambda: loads.append(settings) or load()

    monkeypatch.setattr(module, "loader", counted)
    reward = made(Aesthetic, model=str(folder), head=str(head(24, 1)))
    assert loads == []
    images = pictures(0, 1)
    values = [reward(["p"] * 2, [None] * 2, pixels=images) for _ in range(2)]
    reward.load()
    assert len(loads) == 1
    assert values[0] == pytest.approx(values[1])


@pytest.mark.parametrize("kind", ["folder", "transformers_folder"])
def test_long_texts_are_truncated_as_by_published_code(
    kind, request, load_open_clip, *, pictures, rounding
):
    """PickScore calls `processor(text, truncation=True, max_length=77)`; the context here is 16."""
    model_folder = request.getfixturevalue(kind)
    reward, image = made(Preference, model=str(model_folder), scale=1), pictures(0)
    long = "a red square and two cats that sit on a sofa near the sea and look at a picture of it"
    extended, other = long + " in the evening", long.replace("red", "blue")
    values = [reward([text], [None], pixels=image)[0] for text in (long, extended, other)]
    assert values[0] == values[1]
    assert values[0] != pytest.approx(values[2], abs=1e-5)
    if kind == "folder":
        model, _, tokenize = load_open_clip(model_folder)
        text_features = model.encode_text(tokenize([long]), normalize=True)
    else:
        model = transformers.CLIPModel.from_pretrained(model_folder)
        tokens = transformers.AutoTokenizer.from_pretrained(model_folder)(
            [long], padding=True, truncation=True, max_length=16, return_tensors="pt"
        )
        assert tokens["input_ids"].shape[1] == 16
        features = model.get_text_features(**tokens).pooler_output
        text_features = torch.nn.functional.normalize(features, dim=-1)

    def cosine():
        return (reward.clip.image_features(image) * text_features).sum()

    rounding.same(cosine, values[0])
