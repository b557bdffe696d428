"""VideoDraft: first configurations for video models."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from groupwise.kit.draft import Columns, Draft, read_json

GUIDANCE = {"ltx": 3.0, "hunyuan": 6.0}
"""The usual scales by a part of the name; of others 5."""
TOKENS = {"ltx": 128}
"""The longest prompts that the pipelines' own calls read, likewise; of others 512."""


class VideoDraft(Draft):
    """A video model that is rewarded for frames that people prefer, and for motion."""

    model = "a video model"
    templates = files("groupwise_flow") / "video_drafts"

    def settings(self, model: str) -> Mapping[str, Any]:
        """Guidance and length of prompts, which differ between models."""
        name = str(read_json(Path(model) / "model_index.json").get("_class_name", model)).lower()
        return {
            "guidance": _of(GUIDANCE, name, usual=5.0),
            "prompt_tokens": _of(TOKENS, name, usual=512),
        }

    def task_of(self, data: Columns) -> str:
        return "preference"


def _of(values: Mapping[str, Any], name: str, *, usual: Any) -> Any:
    return next((value for part, value in values.items() if part in name), usual)
