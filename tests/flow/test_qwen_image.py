"""The adapter that docs/plugins.md shows, as a plugin's author would write it."""

import importlib
import re
import sys
from pathlib import Path

from diffusers import DiffusionPipeline
from tests.flow.stand_ins import MODELS

from groupwise import testing

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
SOURCE = re.search(r"```python\n(# qwen_image\.py\n.*?)```", PAGE.read_text(), re.DOTALL)[1]


def test_the_adapter_has_at_most_90_lines():
    assert len(SOURCE.splitlines()) <= 90


def test_it_passes_check_adapter_and_a_policy_finds_it_by_its_file(lab, tmp_path, monkeypatch):
    (tmp_path / "qwen_image.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "qwen_image", raising=False)
    policy = lab.policy("qwen_image", adapter="qwen_image:QwenImage")
    assert type(policy.adapter) is importlib.import_module("qwen_image").QwenImage
    pipeline = DiffusionPipeline.from_pretrained(lab.folders["qwen_image"])
    testing.check_adapter(type(policy.adapter), pipeline, **MODELS["qwen_image"].size)
    del sys.modules["qwen_image"]
