"""FlowDraft: first configurations for image models."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from groupwise.draft import Columns, Draft, read_json


class FlowDraft(Draft):
    """An image model that is rewarded for pictures that people prefer, or for legible words."""

    model = "an image model"
    templates = files("groupwise_flow") / "drafts"

    def settings(self, model: str) -> Mapping[str, Any]:
        """Precision and guidance, which differ between FLUX.1 and Stable Diffusion 3."""
        is_local = Path(model).exists()
        name = read_json(Path(model) / "model_index.json").get("_class_name") if is_local else model
        is_flux = "flux" in str(name).lower()
        return {"precision": "bf16" if is_flux else "fp16", "guidance": 3.5 if is_flux else 4.5}

    def task_of(self, data: Columns) -> str:
        """`writing` if a column `text` may hold the words to write, else `preference`."""
        return "writing" if "text" in data.names and data.prompt != "text" else "preference"
