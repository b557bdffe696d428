"""The model card of a saved folder, and that the code in it runs."""

import pytest
from diffusers import DiffusionPipeline

from groupwise_flow.files.card import card


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("sd3", {}),
        ("sd3", {"lora": {"rank": 2}, "precision": "bf16"}),
        ("sd3 without t5", {"guidance": 2.0}),
        ("sd3 without t5", {"lora": {"rank": 2}}),
        ("sd15", {}),
        ("sd15", {"lora": {"rank": 2}}),
        ("flux", {"lora": {"rank": 2}, "loading": {"use_safetensors": True}}),
    ],
)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_the_code_of_the_card_draws_a_picture_with_the_saved_model(
    lab, architecture, settings, tmp_path
):
    policy = lab.policy(architecture, **settings)
    policy.save_pretrained(tmp_path / "model")
    metadata = policy.card
    assert metadata["base_model"] == str(lab.folders[architecture])
    assert (metadata["library_name"], metadata["pipeline_tag"]) == ("diffusers", "text-to-image")
    assert ("load_lora_weights" in metadata["usage"]) == ("lora" in settings)
    exchanged = architecture == "sd15" and "lora" in settings
    assert ("DDIMScheduler.from_config" in metadata["usage"]) == exchanged
    names = {}
    exec(metadata["usage"].replace("{path}", str(tmp_path / "model")), names)
    assert isinstance(names["pipeline"], DiffusionPipeline)
    assert names["image"].size == (16, 16)


def test_the_code_of_the_card_has_one_dtype_where_the_models_files_have_two(lab, tmp_path):
    absent = {"text_encoder_3": None, "tokenizer_3": None}
    folder = lab.folders["sd3 without t5"]
    pipeline = DiffusionPipeline.from_pretrained(folder, **absent)
    for name in ("text_encoder", "text_encoder_2"):
        getattr(pipeline, name).half()
    pipeline.save_pretrained(tmp_path / "base")
    for number, lora in enumerate(({"rank": 2}, None)):
        policy = lab.policy("sd3 without t5", model=str(tmp_path / "base"), lora=lora)
        policy.save_pretrained(tmp_path / f"model{number}")
        names = {}
        exec(policy.card["usage"].replace("{path}", str(tmp_path / f"model{number}")), names)
        assert names["image"].size == (16, 16)


def test_the_card_names_the_revision_but_no_token_or_local_path(lab):
    policy = lab.policy(lora={"rank": 2})
    loading = {"revision": "fp16", "token": "secret", "cache_dir": "/somewhere"}
    changed = policy.config.model_copy(update={"model": "some/model", "loading": loading})
    metadata = card(changed, policy.adapter)
    assert metadata["base_model"] == "some/model"
    call = "from_pretrained(\"some/model\", revision='fp16', dtype=torch.float32)"
    assert call in metadata["usage"]
    assert "secret" not in str(metadata)
    assert "somewhere" not in str(metadata)
