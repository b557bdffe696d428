"""ImageReward, HPSv3 and aesthetic 2.5 from tiny files of the published formats.

Weights are written under the authors' names, and values compared with what the authors' code
computes, restated here by transformers' own modules.
"""

import re
from itertools import pairwise

import pytest
import torch
from safetensors.torch import save_file
from tests.llm.vision import standins
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
from torchvision.transforms import v2
from transformers import (
    AutoProcessor,
    BlipTextConfig,
    BlipTextModel,
    BlipVisionConfig,
    BlipVisionModel,
    PreTrainedTokenizerFast,
    Qwen2VLForConditionalGeneration,
    SiglipImageProcessor,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from groupwise import testing
from groupwise_clip.aesthetic import Aesthetic
from groupwise_clip.hps_v3 import HpsV3
from groupwise_clip.image_reward import ImageReward

PROMPTS = ["a red disk", "two dogs and a cat", "x"]


def random_weights(module, scale=0.15):
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def linear(*widths):
    return random_weights(nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(widths))))


def published(name):
    """A name of transformers' BLIP, as the authors' ViT has it."""
    for pattern, theirs in {
        r"^encoder\.layers\.": "blocks.",
        r"self_attn\.qkv": "attn.qkv",
        r"self_attn\.projection": "attn.proj",
        r"layer_norm(\d)": r"norm\1",
        r"^post_layernorm": "norm",
        r"^embeddings\.class_embedding": "cls_token",
        r"^embeddings\.position_embedding": "pos_embed",
        r"^embeddings\.patch_embedding": "patch_embed.proj",
    }.items():
        name = re.sub(pattern, theirs, name)
    return name


@pytest.fixture(scope="module")
def blip(tmp_path_factory):
    """(file, tokenizer's folder, vision, text, head): an ImageReward of 128 and 64 numbers."""
    folder = tmp_path_factory.mktemp("blip")
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *alphabet, "[DEC]", "[ENC]"]
    letters += [f"##{letter}" for letter in alphabet]
    raw = Tokenizer(
        models.WordPiece({each: n for n, each in enumerate(letters)}, unk_token="[UNK]")
    )
    raw.normalizer, raw.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    words = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )
    words.save_pretrained(folder)
    vision = random_weights(
        BlipVisionModel(
            BlipVisionConfig(
                hidden_size=128,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                image_size=32,
                patch_size=16,
                layer_norm_eps=1e-6,
            )
        ),
        scale=0.4,
    )
    text = random_weights(
        BlipTextModel(
            BlipTextConfig(
                vocab_size=len(letters),
                hidden_size=64,
                encoder_hidden_size=128,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=1,
                max_position_embeddings=40,
                is_decoder=True,
            ),
            add_pooling_layer=False,
        ),
        scale=0.4,
    )
    score = linear(64, 16, 8, 1)
    state = {f"blip.visual_encoder.{published(n)}": x for n, x in vision.state_dict().items()}
    state |= {f"blip.text_encoder.{n}": x for n, x in text.state_dict().items()}
    state |= {"blip.text_encoder.embeddings.position_ids": torch.arange(40)[None]}
    # Numbers of layers have gaps, where dropout stands.
    places = (0, 2, 3)
    for number, layer in zip(places, score, strict=True):
        state |= {f"mlp.layers.{number}.{n}": x for n, x in layer.state_dict().items()}
    state |= {"blip.vision_proj.weight": torch.zeros(2, 2)}
    torch.save(state, folder / "ImageReward.pt")
    return folder / "ImageReward.pt", folder, vision, text, score


def image_reward(blip, **options):
    file, folder, *_ = blip
    return ImageReward(
        ImageReward.Config(weights=str(file), tokenizer=str(folder), device="cpu", **options)
    )


def test_image_reward_is_the_authors_arithmetic(blip):
    _, folder, vision, text, score = blip
    pictures = [standins.picture(*size) for size in ((40, 32), (32, 64), (64, 64))]
    frame = v2.Compose(
        [
            v2.Resize(32, v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(32),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
        ]
    )
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    expected = []
    for prompt, picture in zip(PROMPTS, pictures, strict=True):
        tokens = words(
            prompt, padding="max_length", truncation=True, max_length=35, return_tensors="pt"
        )
        with torch.no_grad():
            seen = vision(frame(picture)[None]).last_hidden_state
            read = text(
                input_ids=tokens.input_ids,
                attention_mask=tokens.attention_mask,
                encoder_hidden_states=seen,
                encoder_attention_mask=torch.ones(seen.shape[:2]),
                is_decoder=False,
            ).last_hidden_state
            raw = score(read[:, 0]).item()
        expected.append((raw - 0.16717362830052426) / 1.0333394966054072)
    for batch in (1, 3):
        values = image_reward(blip, batch=batch)(PROMPTS, pictures)
        assert values[:2] == pytest.approx(expected[:2], abs=2e-5)
        # This one is resized, and PIL rounds resized pixels to bytes.
        assert values[2] == pytest.approx(expected[2], abs=2e-3)
    # Texts and pictures both count, and are not exchanged for each other's.
    assert abs(expected[0] - expected[1]) > 1e-3
    exchanged = image_reward(blip)(PROMPTS[1::-1], pictures[:2])
    assert min(abs(x - y) for x, y in zip(exchanged, expected, strict=False)) > 1e-4
    assert image_reward(blip)(["", "x"], pictures[:2])[0] is None


def test_laws_of_image_reward(blip):
    rows = [{"prompt": text} for text in PROMPTS]
    pictures = [standins.picture(32, 32 + 8 * n) for n in range(6)]
    testing.check_reward(image_reward(blip), rows, pictures, group_size=2)


def test_a_file_of_something_else_is_refused(blip, tmp_path):
    file, folder, *_ = blip
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")
    config = ImageReward.Config(weights=str(tmp_path / "other.pt"), tokenizer=str(folder))
    with pytest.raises(ValueError, match=r"does not hold the weights of ImageReward: no blip"):
        ImageReward(config).load()
    state = torch.load(file)
    del state["blip.visual_encoder.norm.weight"]
    torch.save(state, tmp_path / "part.pt")
    config = ImageReward.Config(weights=str(tmp_path / "part.pt"), tokenizer=str(folder))
    with pytest.raises(ValueError, match=r"does not hold the weights of ImageReward: .*layernorm"):
        ImageReward(config).load()


@pytest.fixture(scope="module")
def hps(tmp_path_factory):
    """(file, folder, model, head): a Qwen2-VL with one token more, and its head."""
    folder = standins.folder("qwen2_vl")
    processor = AutoProcessor.from_pretrained(folder)
    model = Qwen2VLForConditionalGeneration.from_pretrained(folder)
    processor.tokenizer.add_special_tokens({"additional_special_tokens": ["<|Reward|>"]})
    model.resize_token_embeddings(len(processor.tokenizer))
    width = model.config.get_text_config().hidden_size
    score = random_weights(
        nn.Sequential(
            nn.Linear(width, 16), nn.ReLU(), nn.Dropout(0.05), nn.Linear(16, 8), nn.ReLU()
        ).append(nn.Linear(8, 2))
    )
    state = {name: each.clone() for name, each in model.state_dict().items()}
    state |= {f"rm_head.{name}": each for name, each in score.state_dict().items()}
    file = tmp_path_factory.mktemp("hps") / "HPSv3.safetensors"
    save_file({name: each.contiguous() for name, each in state.items()}, file)
    return file, folder, model.eval(), score, processor


def hps_v3(hps, **options):
    file, folder, *_ = hps
    settings = {"weights": str(file), "model": str(folder), "precision": "float32"}
    settings |= {"instruction": "Rate it for {text_prompt}.", "pixels": 64 * 64, "device": "cpu"}
    return HpsV3(HpsV3.Config.model_validate(settings | options))


def test_hps_v3_reads_its_token_after_the_picture_and_the_instruction(hps):
    _, _, model, score, processor = hps
    pictures = [standins.picture(*size) for size in ((64, 64), (128, 32), (32, 32))]
    processor.image_processor.size = {"shortest_edge": 4096, "longest_edge": 4096}
    expected = []
    for prompt, picture in zip(PROMPTS, pictures, strict=True):
        content = [
            {"type": "image"},
            {"type": "text", "text": f"Rate it for {prompt}.<|Reward|>"},
        ]
        text = processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        inputs = processor(text=[text], images=[picture], return_tensors="pt")
        token = processor.tokenizer.convert_tokens_to_ids("<|Reward|>")
        with torch.no_grad():
            states = model.model(**inputs).last_hidden_state
            expected.append(score(states[inputs.input_ids == token])[0, 0].item())
    for batch in (1, 3):
        values = hps_v3(hps, batch=batch)(PROMPTS, pictures)
        assert values == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert len({round(value, 6) for value in expected}) == 3
    hostile = hps_v3(hps)(["a<|Reward|>b"], pictures[:1])
    assert len(hostile) == 1


def test_laws_of_hps_v3(hps):
    rows = [{"prompt": text} for text in PROMPTS]
    pictures = [standins.picture(32, 32 + 8 * n) for n in range(6)]
    testing.check_reward(hps_v3(hps), rows, pictures, group_size=2)


def test_hps_v3_without_a_place_for_the_prompt_or_a_head_is_refused(hps, tmp_path):
    with pytest.raises(ValueError, match=r"a text with \{text_prompt\} in it"):
        hps_v3(hps, instruction="Rate it.")
    save_file({"lm_head.weight": torch.zeros(2, 2)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"does not hold HPSv3: no rm_head"):
        hps_v3(hps, weights=str(tmp_path / "x.safetensors")).load()


def test_aesthetic_2_5_is_a_head_on_a_siglip(tmp_path):
    """Unit features of the pooled tokens, layers without activations, pictures squashed."""
    config = SiglipVisionConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=32,
        patch_size=16,
    )
    tower = random_weights(SiglipVisionModel(config))
    tower.save_pretrained(tmp_path)
    frame = SiglipImageProcessor(size={"height": 32, "width": 32})
    frame.save_pretrained(tmp_path)
    score = linear(32, 16, 1)
    state = {}
    for number, layer in zip((0, 2), score, strict=True):
        state |= {f"scoring_head.{number}.{n}": x for n, x in layer.state_dict().items()}
    torch.save(state, tmp_path / "aesthetic_predictor_v2_5.pth")
    pictures = [standins.picture(*size) for size in ((32, 32), (64, 32), (32, 96))]
    reward = Aesthetic(
        Aesthetic.Config(
            model=str(tmp_path), head=str(tmp_path / "aesthetic_predictor_v2_5.pth"), device="cpu"
        )
    )
    with torch.no_grad():
        pooled = tower(**frame(images=pictures, return_tensors="pt")).pooler_output
        expected = score(pooled / pooled.norm(dim=1, keepdim=True)).squeeze(1).tolist()
    assert reward(["p"] * 3, pictures) == pytest.approx(expected, abs=1e-2)
    assert max(expected) - min(expected) > 0.02
