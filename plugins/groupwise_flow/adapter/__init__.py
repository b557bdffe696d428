"""Adapter: all code that depends on a pipeline's architecture.

To train another diffusers pipeline, subclass `Adapter` in a package of your own; register it under
the name of the pipeline's class (`register_adapters`), or set `policy.adapter`. Its base classes
`Sizes` and `NoiseLevels` have the parts of an adapter that are about pixels and about noise.

`Conditions` are what `velocity` receives of encoded prompts, `Limit` and `Exchange` what its
methods `limit` and `exchange` return, `LoraWeights` what `save_lora` receives. `VideoAdapter` is
the base for pipelines of videos, `EditingAdapter` for those that read pictures beside a prompt.
"""

from groupwise_flow.adapter.adapter import Adapter
from groupwise_flow.adapter.conditions import MASK, UNCONDITIONAL, Conditions, Row
from groupwise_flow.adapter.editing import REFERENCES, EditingAdapter, beside
from groupwise_flow.adapter.limit import Limit
from groupwise_flow.adapter.lora_files import LoraFiles, LoraWeights
from groupwise_flow.adapter.noise_levels import Exchange, NoiseLevels
from groupwise_flow.adapter.sizes import Sizes
from groupwise_flow.adapter.video import VideoAdapter

__all__ = [
    "MASK",
    "REFERENCES",
    "UNCONDITIONAL",
    "Adapter",
    "Conditions",
    "EditingAdapter",
    "Exchange",
    "Limit",
    "LoraFiles",
    "LoraWeights",
    "NoiseLevels",
    "Row",
    "Sizes",
    "VideoAdapter",
    "beside",
]
