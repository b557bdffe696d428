"""The card: what a saved folder says of itself, and that its snippet works."""

import pytest
from diffusers import DiffusionPipeline

from groupwise_flow.card import card


@pytest.mark.parametrize(
    ("of", "settings"),
    [
        ("sd3", {}),
        ("sd3", {"lora": {"rank": 2}, "precision": "bf16"}),
        ("sd3 without t5", {"guidance": 2.0}),
        ("sd3 without t5", {"lora": {"rank": 2}}),
        ("flux", {"lora": {"rank": 2}, "loading": {"use_safetensors": True}}),
    ],
)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_the_snippet_draws_a_picture_with_the_saved_model(lab, of, settings, tmp_path):
    policy = lab.policy(of, **settings)
    policy.save_pretrained(tmp_path / "model")
    told = policy.card
    assert told["base_model"] == str(lab.folders[of])
    assert (told["library_name"], told["pipeline_tag"]) == ("diffusers", "text-to-image")
    assert ("load_lora_weights" in told["usage"]) == ("lora" in settings)
    names = {}
    exec(told["usage"].replace("{path}", str(tmp_path / "model")), names)
    assert isinstance(names["pipeline"], DiffusionPipeline)
    assert names["image"].size == (16, 16)


def test_what_it_was_loaded_with_is_told_but_for_what_is_the_machines(lab):
    policy = lab.policy(lora={"rank": 2})
    loading = {"revision": "fp16", "token": "secret", "cache_dir": "/somewhere"}
    changed = policy.config.model_copy(update={"model": "some/model", "loading": loading})
    told = card(changed, policy.adapter)
    assert told["base_model"] == "some/model"
    assert "from_pretrained(\"some/model\", revision='fp16')" in told["usage"]
    assert "secret" not in str(told)
    assert "somewhere" not in str(told)
