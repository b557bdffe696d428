"""Columns of rows that look like settings of a picture, and are none."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

SETTINGS: Mapping[str, str] = {
    **{
        name: f"policy.{name}"
        for name in ("height", "width", "steps", "guidance", "negative_prompt", "noise_level")
    },
    "guidance_scale": "policy.guidance",
    "num_inference_steps": "policy.steps",
    "resolution": "policy.height and policy.width",
    "seed": "seed",
}
"""By the name of a column, the setting that all pictures have, as in the calls of pipelines."""


def column_notes(row: Mapping[str, Any] = MappingProxyType({})) -> list[str]:
    """A note on columns that have the names of settings, if a row has any."""
    named = {name: SETTINGS[name] for name in SETTINGS if name in row}
    if not named:
        return []
    settings = ", ".join(dict.fromkeys(named.values()))
    note = (
        f"the rows have {', '.join(map(repr, named))}, which rewards get and pictures do not: all "
        f"are drawn by the configuration ({settings})"
    )
    return [note]
