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
        """Precision and guidance, which differ between models: distilled ones have no guidance."""
        index = read_json(Path(model) / "model_index.json") if Path(model).exists() else {}
        name = str(index.get("_class_name", model)).lower()
        if "stable" in name:
            return {"precision": "fp16", "guidance": 4.5}
        without = any(part in name for part in ("schnell", "turbo"))
        if index.get("is_distilled", without or ("klein" in name and "base" not in name)):
            return {"precision": "bf16", "guidance": 1.0}
        is_flux_1 = "flux.1" in name or name == "fluxpipeline"
        return {"precision": "bf16", "guidance": 3.5 if is_flux_1 else 4.0}

    def task_of(self, data: Columns) -> str:
        """`writing` if a column `text` may hold the words to write, else `preference`."""
        return "writing" if "text" in data.names and data.prompt != "text" else "preference"
