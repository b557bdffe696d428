"""The rewards of CLIP: values, texts, heads, presets, and their use in a run."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml
from pydantic import BaseModel, ValidationError
from torch.nn.functional import relu

from groupwise.config.load import load_config
from groupwise.rewards import Reward, RewardError
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise_clip import plugin
from groupwise_clip.aesthetic import Aesthetic
from groupwise_clip.frame_consistency import FrameConsistency
from groupwise_clip.hps_v3 import HpsV3
from groupwise_clip.image_reward import ImageReward
from groupwise_clip.learned import LearnedImage
from groupwise_clip.preference import PRESETS, Preference
from groupwise_clip.similarity import ClipSimilarity
from groupwise_clip.texts import texts as texts_of
from groupwise_clip.video_reward import VideoReward


def similarity(folder, **settings):
    return ClipSimilarity(ClipSimilarity.Config(model=str(folder), **settings))


def preference(**settings):
    return Preference(Preference.Config(**settings))


def aesthetic(folder, path, **settings):
    return Aesthetic(Aesthetic.Config(model=str(folder), head=str(path), **settings))


def chat(text):
    return [
        {"role": "user", "content": "something else"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": text},
        {"role": "assistant", "content": "prefilled"},
    ]


def test_similarity_is_the_cosine_times_scale(folder, pictures, pil, texts, rounding):
    images = pictures(0, 1, 2, 3)
    reward = similarity(folder)
    values = reward(texts, pil(images))
    rounding.same(lambda: torch.tensor(reward.clip.cosines(images, texts)), torch.tensor(values))
    assert len(set(values)) == 4
    scaled = similarity(folder, scale=2.5)(texts, pil(images))
    assert scaled == pytest.approx([2.5 * value for value in values])


def test_tensors_of_the_images_fact_are_scored_instead_of_completions(
    folder, pictures, pil, texts, rounding
):
    reward, images, others = similarity(folder), pictures(0, 1, 2, 3), pictures(4, 5, 6, 7)
    stated = reward(texts, pil(others), pixels=images, truncated=[False] * 4)
    rounding.same(lambda: torch.tensor(reward(texts, pil(images))), torch.tensor(stated))


def test_texts_of_a_column_and_of_messages(folder, pictures, texts, rounding):
    images, nothing = pictures(0, 1, 2, 3), [None] * 4
    reward = similarity(folder)
    expected = reward(texts, nothing, pixels=images)
    assert reward([chat(text) for text in texts], nothing, pixels=images) == expected
    captioned = similarity(folder, text="caption")
    assert captioned(["p"] * 4, nothing, pixels=images, caption=texts) == expected
    some = captioned(["p"] * 4, nothing, pixels=images, caption=[None, *texts[1:]])
    assert some[0] is None
    rounding.same(
        lambda: torch.tensor(reward(texts, nothing, pixels=images))[1:], torch.tensor(some[1:])
    )
    with pytest.raises(
        ValueError, match=r"'clip_similarity' needs the column 'caption'; .* pixels"
    ):
        captioned(["p"] * 4, nothing, pixels=images)


def test_messages():
    parts = [{"type": "image"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompts = ["plain", [{"role": "user", "content": parts}], None]
    assert texts_of(prompts, {}, None, reward="r") == ["plain", "a\nb", None]
    blank = {"n": ["a", "", " \n", float("nan"), None]}
    # Tokenizers fail on lone surrogates.
    assert texts_of(["a\ud800"], {}, None, reward="r") == ["a\ufffd"]
    assert texts_of(["p"] * 5, blank, "n", reward="r") == ["a", None, None, None, None]
    with pytest.raises(ValueError, match="'r' found no message by the user in the prompt"):
        texts_of([[{"role": "system", "content": "x"}]], {}, None, reward="r")
    with pytest.raises(
        ValueError, match="'r' expected text or messages in the column 'n', found 3"
    ):
        texts_of(["p"], {"n": [3]}, "n", reward="r")


@pytest.mark.parametrize("name", ["head.safetensors", "head.pt"])
@pytest.mark.parametrize(
    ("prefix", "step", "widths"),
    [("layers.", 2, (24, 40, 8, 1)), ("", 1, (24, 8, 1)), ("", 3, (24,) * 14 + (1,))],
)
def test_the_layers_of_a_head_are_inferred(folder, head, pictures, *, name, prefix, step, widths):
    path = head(*widths, prefix=prefix, step=step, name=name)
    reward = aesthetic(folder, path)
    images = pictures(0, 1, 2)
    value = reward.clip.image_features(images)
    for layer in reward.head:
        value = value @ layer.weight.T + layer.bias
    assert [len(reward.head), value.shape[1]] == [len(widths) - 1, 1]
    assert reward([None] * 3, [None] * 3, pixels=images) == pytest.approx(value[:, 0].tolist())
    assert [layer.in_features for layer in reward.head] == list(widths[:-1])


def test_heads_of_one_layer_and_with_activations(folder, head, pictures, pil, tmp_path, rounding):
    images = pictures(0, 1, 2)
    weight, bias = torch.randn(1, 24), torch.randn(1)
    for tensors in ({"weight": weight, "bias": bias}, {"weight": weight}):
        torch.save(tensors, tmp_path / "linear.pt")
        reward = aesthetic(folder, tmp_path / "linear.pt")
        features = reward.clip.image_features(images)
        expected = (features @ weight.T)[:, 0] + tensors.get("bias", torch.zeros(1))
        rounding.same(lambda r=reward: torch.tensor(r(["p"] * 3, pil(images))), expected)
    path = head(24, 16, 1)
    plain, with_relu = aesthetic(folder, path), aesthetic(folder, path, activation="relu")
    first, last = plain.head
    expected = last(relu(first(features)))[:, 0].tolist()
    rounding.same(lambda: torch.tensor(with_relu(["p"] * 3, pil(images))), torch.tensor(expected))
    assert plain(["p"] * 3, pil(images)) != pytest.approx(expected, rel=1e-2)


def test_invalid_heads_are_refused(folder, head, tmp_path):
    with pytest.raises(ValueError, match=r"takes features of 768 numbers, but the .* gives 24"):
        aesthetic(folder, head(768, 16, 1)).load()
    with pytest.raises(ValueError, match="gives 3 numbers for an image, expected 1"):
        aesthetic(folder, head(24, 3)).load()
    heads = {
        "it holds 'conv.kernel', expected names such as": {"conv.kernel": torch.zeros(1)},
        "a layer without a weight": {"0.bias": torch.zeros(1)},
        "or none at all": {},
        r"weights of the shape \[1, 2, 3\]": {"0.weight": torch.zeros(1, 2, 3)},
        r"weights of the shape \[1, 24\] and \[2\]": {
            "weight": torch.zeros(1, 24),
            "bias": torch.zeros(2),
        },
        "one gives 5 numbers, the next takes 4": {
            "0.weight": torch.zeros(5, 24),
            "1.weight": torch.zeros(1, 4),
        },
    }
    for message, tensors in heads.items():
        torch.save(tensors, tmp_path / "wrong.pt")
        with pytest.raises(ValueError, match=message):
            aesthetic(folder, tmp_path / "wrong.pt").load()
    with pytest.raises(ValueError, match="'nowhere' does not exist"):
        aesthetic(folder, "nowhere")


@pytest.mark.parametrize("kind", ["folder", "transformers_folder"])
def test_preference_has_the_scale_of_the_model_or_of_the_settings(
    kind, request, pictures, pil, texts
):
    model_folder, images = str(request.getfixturevalue(kind)), pil(pictures(0, 1, 2, 3))
    reward = preference(model=model_folder)
    cosines = reward.clip.cosines(images, texts)
    assert reward.scale == pytest.approx(1 / 0.07, rel=1e-4)  # the initial scale of CLIP's training
    assert reward(texts, images) == pytest.approx([reward.scale * c for c in cosines])
    assert preference(model=model_folder, scale=100)(texts, images) == pytest.approx(
        [100 * c for c in cosines]
    )
    column = preference(model=model_folder, text="caption")(["p"] * 4, images, caption=texts)
    assert column == pytest.approx(reward(texts, images))


def test_presets_set_defaults():
    config = Preference.Config.model_validate
    assert set(PRESETS) == {"pickscore", "hps", "hps_v2.1"}
    pick = config({"preset": "pickscore"})
    assert (pick.model, pick.scale) == ("yuvalkirstain/PickScore_v1", "model")
    assert pick.processor == "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    assert pick.pretrained is pick.resize is None
    for name, file in (("hps", "HPS_v2"), ("hps_v2.1", "HPS_v2.1")):
        hps = config({"preset": name})
        assert (hps.model, hps.scale, hps.resize) == ("ViT-H-14", 100.0, "longest")
        assert hps.pretrained == f"hf-hub:xswu/HPSv2/{file}_compressed.pt"
    hps = config({"preset": "hps", "pretrained": "here.pt", "scale": 1})
    assert (hps.model, hps.pretrained, hps.scale) == ("ViT-H-14", "here.pt", 1)
    # A local folder has its own weights and its own tokenizer.
    own = config({"preset": "hps", "model": "a/folder"})
    assert (own.pretrained, own.processor, own.scale) == (None, None, 100.0)
    assert own.resize == "longest"
    with pytest.raises(ValidationError, match="set `preset` or `model`"):
        config({"scale": 1})
    with pytest.raises(ValidationError, match="no 'pikscore' here; take one of pickscore, hps"):
        config({"preset": "pikscore"})
    with pytest.raises(ValidationError, match="no 'hpsv3' here; take the reward hps_v3"):
        config({"preset": "hpsv3", "model": "a/folder"})
    for options in ({}, {"preset": "pikscore"}, {"preset": "hps", "scale": "its own"}, [], None):
        with pytest.raises(ValidationError):
            config(options)


def test_the_page_shows_settings_that_exist():
    page = (Path(__file__).parents[2] / "docs" / "clip.md").read_text()
    classes = {
        "clip_similarity": ClipSimilarity,
        "aesthetic": Aesthetic,
        "learned_image": LearnedImage,
        "preference": Preference,
        "image_reward": ImageReward,
        "hps_v3": HpsV3,
        "frame_consistency": FrameConsistency,
        "video_reward": VideoReward,
    }
    shown = set()
    for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        for section in yaml.safe_load(text)["rewards"]:
            if section["name"] == "motion":  # beside `frame_consistency`
                continue
            sections = {"policy": "flow", "prompts": "rows", "rewards": [section]}
            options = load_config(sections).config.rewards[0].options
            classes[section["name"]].Config.model_validate(options)
            shown.add(section["name"])
    assert shown == set(classes)


def rollouts_of(images, texts, completions):
    size = len(texts)
    return Rollouts(
        prompts=[{"prompt": text, "caption": text} for text in texts],
        completions=completions,
        groups=torch.zeros(size, dtype=torch.int64),
        mask=torch.ones(size, 3, dtype=torch.bool),
        truncated=torch.zeros(size, dtype=torch.bool),
        facts={"pixels": images} if images else {},
    )


def test_the_scorer_of_a_run_scores_with_all_rewards(
    folder, transformers_folder, *, head, pictures, pil, texts, rounding
):
    images = pictures(0, 1, 2, 3)
    functions = {
        "clip_similarity": similarity(folder, text="caption"),
        "aesthetic": aesthetic(folder, head(24, 1)),
        "preference": preference(model=str(transformers_folder)),
    }
    rewards = Scorer([Reward(name=name, function=f) for name, f in functions.items()])
    stated = rewards(rollouts_of(images, texts, [None] * 4))
    assert stated.values.shape == (4, 3)
    completed = rewards(rollouts_of([], texts, pil(images)))
    rounding.same(lambda: rewards(rollouts_of(images, texts, [None] * 4)).values, completed.values)
    expected = functions["preference"](texts, pil(images))
    assert completed.column("preference").tolist() == pytest.approx(expected)
    with pytest.raises(RewardError, match=r"image 2: expected a PIL .* str\n  at sample 2 of 4"):
        rewards(rollouts_of([], texts, [*pil(images)[:2], "text", "text"]))


def test_what_is_registered():
    registered = {}

    def register(name, target, *, extra=None):
        registered[name] = (target, extra)

    plugin.register_rewards(register)
    assert registered
    for target, extra in registered.values():
        module, _, attribute = target.partition(":")
        reward = getattr(import_module(module), attribute)
        assert extra == "clip"
        assert reward.__doc__
        assert issubclass(reward.Config, BaseModel)
        assert reward.Config.model_config["extra"] == "forbid"
        assert reward.Config.model_config["frozen"]
        assert all(field.description for field in reward.Config.model_fields.values())
