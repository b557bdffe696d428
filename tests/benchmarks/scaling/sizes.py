"""The estimates of `groupwise check` for these models, saved in sizes.json, as they take minutes.

    python tests/benchmarks/scaling measure

runs the estimators of the plugins on the published configurations and writes the file.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import models
from machines import NODE
from models import Image, Text

FILE = Path(__file__).with_name("sizes.json")
GPUS = (1, 8, 16, 32, 64, 128, 512)
DIVIDED = frozenset({"weights", "transformer", "gradients", "optimizer"})
TEXTS = ("Qwen2.5-7B", "Qwen2.5-32B")
IMAGES = {"FLUX.1-dev": (512, 128), "Qwen-Image": (512, 256)}
"""Pixels of a side and tokens of the prompt."""
VIEWS = [*((name, *size) for name, size in IMAGES.items())]
VIEWS += [("FLUX.1-dev", 720, 512), ("FLUX.1-dev", 1024, 512)]
HOW = ("full", "LoRA")
LORA = {"rank": 32}
TOKENS, PICTURES = 16384, 8
"""In a micro-batch."""

Sizes = Mapping[str, Mapping[str, int]]
"""Bytes by purpose: while sampling in process, and while updating."""


def measure() -> None:
    """Writes the estimates for every model, way of training and number of GPUs."""
    rows = {}
    for how in HOW:
        rows |= {f"{name}, {how}": dict(image_sizes(name, how, (1, NODE))) for name in IMAGES}
        rows |= {f"{name}, {how}": dict(text_sizes(name, how, (1, NODE))) for name in TEXTS}
    flops = {
        f"{name}, {side}, {prompt}": _flops(name, side, prompt) for name, side, prompt in VIEWS
    }
    texts = {name: asdict(models.text(name)) for name in models.TEXTS}
    content = {"memory": rows, "texts": texts, "pictures": flops}
    FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@cache
def _saved() -> Any:
    return json.loads(FILE.read_text(encoding="utf-8"))


def of(name: str, how: str, gpus: int) -> Sizes:
    """Bytes on each of `gpus` GPUs; sharded purposes are divided by their number."""
    sizes: Sizes = _saved()["memory"][f"{name}, {how}"][str(min(gpus, NODE))]
    times = max(1, gpus // NODE)
    return {
        phase: {
            purpose: -(-size // (times if purpose in DIVIDED else 1))
            for purpose, size in parts.items()
        }
        for phase, parts in sizes.items()
    }


def text(name: str) -> Text:
    return Text(**_saved()["texts"][name])


def image(name: str, side: int, prompt: int) -> Image:
    return Image(name=name, **_saved()["pictures"][f"{name}, {side}, {prompt}"])


def text_sizes(name: str, how: str, shards: Iterable[int]) -> Iterator[tuple[str, Sizes]]:
    """(number of processes that share the weights, sizes) for each number in `shards`."""
    from groupwise.kit.memory import Workload
    from groupwise_llm.estimates.memory import estimate
    from groupwise_llm.settings import Settings

    settings = Settings.model_validate(
        {
            "model": name,
            "precision": "bf16",
            "max_prompt_tokens": 256,
            "max_new_tokens": 4096,
            "gradient_checkpointing": True,
            **({"lora": LORA, "loading": {"dtype": "bfloat16"}} if how == "LoRA" else {}),
        }
    )
    config = models.text_config(name)
    common = {"rollouts": 256, "group_size": 16, "reference": False, "averages": 0}
    phases = {
        "sampling": {"decisions": 0, "sampled": 256},
        "updating": {"decisions": TOKENS, "sampled": 0},
    }
    for number in shards:
        sizes = {
            phase: dict(
                estimate(
                    config, settings, Workload(**counts, **common, training=True, shards=number)
                )
            )
            for phase, counts in phases.items()
        }
        yield str(number), sizes


def image_sizes(name: str, how: str, shards: Iterable[int]) -> Iterator[tuple[str, Sizes]]:
    from groupwise_flow.activations import of_transformer
    from groupwise_flow.adapters.flux import FluxAdapter
    from groupwise_flow.estimates.memory import of_adapter
    from groupwise_flow.model.trainable import fitted
    from groupwise_flow.settings import FlowSettings

    side, prompt = IMAGES[name]
    settings = FlowSettings.model_validate(
        {
            "model": name,
            "precision": "bf16",
            "height": side,
            "width": side,
            "prompt_tokens": prompt,
            "gradient_checkpointing": True,
            **({"lora": LORA} if how == "LoRA" else {}),
        }
    )

    def activations(self: Any, *, checkpointing: bool) -> float:
        """By formula: these pipelines have no tokenizer, so that their code cannot run."""
        config = self.pipeline.transformer.config
        singles = getattr(config, "num_single_layers", 0)
        return of_transformer(
            width=config.num_attention_heads * config.attention_head_dim,
            layers=config.num_layers + singles,
            tokens=self.image_tokens + prompt,
            checkpointing=checkpointing,
        )

    with models.qwen_adapter() as qwen:
        make, pipeline = (
            (FluxAdapter, models.flux()) if name.startswith("FLUX") else (qwen, models.qwen_image())
        )
        kind = type(make.__name__, (make,), {"activations": activations})
        adapter = fitted(pipeline, kind, settings)
        counts = {"training": True, "reference": False, "averages": 0}
        for number in shards:
            yield (
                str(number),
                {
                    phase: dict(of_adapter(adapter, settings, images=n, shards=number, **counts))
                    for phase, n in [("sampling", 0), ("updating", PICTURES)]
                },
            )


def _flops(name: str, side: int, prompt: int) -> dict[str, float]:
    pipeline = models.flux() if name.startswith("FLUX") else models.qwen_image()
    from groupwise.kit.memory import blocks

    model = pipeline.transformer
    return {
        "weights": sum(p.numel() for p in model.parameters()),
        "blocks": len(list(blocks(model))),
        "flops": models.forward_flops(model, side=side, prompt=prompt),
    }
