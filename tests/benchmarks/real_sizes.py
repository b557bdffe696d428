"""A step of models of real sizes on a GPU: time and memory of sampling and of the update.

    python tests/benchmarks/real_sizes.py                  # all rows
    python tests/benchmarks/real_sizes.py text --small     # with small models, as a trial on a CPU
    python tests/benchmarks/real_sizes.py images --row window                  # this row, as JSON

Weights are random, with the shapes of Qwen2.5-0.5B and of Stable Diffusion 3.5 Medium with its two
CLIP encoders and without its T5. A row is measured after a step to warm up; the memory is the peak
that torch allocated, next to the estimate of `groupwise check`. `published step` trains 9 of 10
steps with guidance and a KL, as Flow-GRPO's authors do; `without a path` two noised copies of each
picture by `nft`; the others two steps, without guidance and KL.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from works import WORKS, make

from groupwise.building.build import build_parts, open_trainer
from groupwise.cli.memory import Sizes, estimate
from groupwise.config.load import load_config
from groupwise.plugins.resolved import resolve

EXAMPLES = Path(__file__).parents[2] / "examples"
LORA = {"lora": {"rank": 32}}
FROZEN = {"loading": {"dtype": "bfloat16"}}
PUBLISHED = {
    "window": {"kind": "all"},
    "training_guidance": 4.5,
    "guidance_gradient": "conditional",
}
FINISHED = {"name": "forward_process", "decisions": 2}
ROWS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "text": {
        "bf16": {"policy": {"precision": "bf16"}},
        "bf16, recomputed": {"policy": {"precision": "bf16", "gradient_checkpointing": True}},
        "bf16, LoRA": {"policy": {"precision": "bf16", **LORA, **FROZEN}},
        "float32": {},
        "float32, TF32": {"train": {"tf32": True}},
    },
    "images": {
        "window": {"policy": {"batch": 8}},
        "window, recomputed": {"policy": {"gradient_checkpointing": True}},
        "published step": {"policy": {"batch": 8, **PUBLISHED}, "algorithm": {"beta": 0.04}},
        "without a path": {"policy": {"batch": 8, **FINISHED}, "algorithm": {"name": "nft"}},
    },
}
SD35 = {
    "sample_size": 128,
    "num_layers": 24,
    "num_attention_heads": 24,
    "attention_head_dim": 64,
    "in_channels": 16,
    "out_channels": 16,
    "joint_attention_dim": 4096,
    "caption_projection_dim": 1536,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 384,
    "qk_norm": "rms_norm",
    "dual_attention_layers": tuple(range(13)),
}
SMALL_SD = SD35 | {"num_layers": 2, "num_attention_heads": 2, "caption_projection_dim": 128}
SMALL_SD |= {"dual_attention_layers": (0,), "sample_size": 32}
CLIP_L = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
CLIP_G = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32}
HEADS = 64
AUTOENCODER = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "latent_channels": 16,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "scaling_factor": 1.5305,
    "shift_factor": 0.0609,
}


@dataclass(frozen=True)
class Half:
    """Seconds of sampling or of updating, and the peak of allocated bytes."""

    seconds: float
    peak: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", choices=[[], *ROWS], help="all if none")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int, default=2, help="the last of them counts")
    parser.add_argument("--models", type=Path, help="where the models are, made there if missing")
    parser.add_argument("--row", help="print this row's measurements as JSON, and nothing else")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.row:
        (what,) = options.what
        path, _ = saved_model(what, options)
        print(json.dumps(measured(what, path, ROWS[what][options.row], options)))
        return
    gpu = torch.cuda.is_available()
    print(torch.cuda.get_device_name() if gpu else "no GPU", f"; torch {torch.__version__}")
    options.models = options.models or Path(tempfile.mkdtemp())
    for what in options.what or ROWS:
        path, seconds = saved_model(what, options)
        print(f"\n{what}: a model made in {seconds:.0f} s")
        print(
            "\n| row | sampling, s | update, s | sampling: peak GiB | estimated "
            "| update: peak GiB | estimated |\n|---|---|---|---|---|---|---|"
        )
        for name, changes in ROWS[what].items():
            try:
                print(f"| {name} | {line(what, path, changes, options)} |", flush=True)
            except torch.OutOfMemoryError as error:
                print(f"| {name} | {str(error).split('.')[0]} |", flush=True)
            gc.collect()
            torch.cuda.empty_cache()


def saved_model(what: str, options: Any) -> tuple[Path, float]:
    """The folder of the model, and the seconds it took to make, 0 if it was there."""
    started = time.perf_counter()
    folder = options.models or Path(tempfile.mkdtemp())
    path = folder / (f"small {what}" if options.small else what)
    if path.exists():
        return path, 0.0
    partial = path.with_name(f"{path.name}.partial")
    (text_model if what == "text" else image_model)(partial, options.small)
    partial.rename(path)
    gc.collect()
    torch.cuda.empty_cache()
    return path, time.perf_counter() - started


def line(*arguments: Any) -> str:
    """The cells of a row, from the arguments of `measured`."""
    figures, names = measured(*arguments), ("sampling", "update")
    cells = [figures[f"{name} seconds"] for name in names]
    cells += [figures[f"{name} {kind}"] / 2**30 for name in names for kind in ("peak", "estimate")]
    return " | ".join(f"{cell:.2f}" for cell in cells)


def measured(
    what: str, path: Path, changes: Mapping[str, Mapping[str, Any]], options: Any
) -> dict[str, float]:
    """Of both halves of the last step: seconds, bytes at the peak, and bytes estimated."""
    config: dict[str, Any] = (text if what == "text" else images)(path, options.small)
    for section, values in changes.items():
        config[section] = {**config[section], **values}
    if config["policy"]["name"] == "forward_process":
        del config["policy"]["window"]  # it has no path
    parts = build_parts(resolve(load_config(config)))
    with open_trainer(parts, Accelerator()) as trainer:
        ((label, policy),) = trainer.policies.items()
        sizes: Sizes = estimate(parts, label, type(policy), policy.config, processes=1, shards=1)
        trainer.begin()
        for _ in range(options.steps):
            sampling, updating = halves(trainer)
    figures: dict[str, float] = {}
    for name, half, estimated in (
        ("sampling", sampling, sizes.sampling),
        ("update", updating, sizes.updating),
    ):
        figures |= {f"{name} seconds": half.seconds, f"{name} peak": half.peak}
        figures[f"{name} estimate"] = sum(estimated.values())
    return figures


def halves(trainer: Any) -> Iterator[Half]:
    """The halves of one step: sampling and scoring, and the update."""
    started = _start()
    scored = trainer.experience.next(trainer.state)
    yield _end_of_half(started)
    started = _start()
    metrics = trainer.learn(scored)
    if not metrics.get("trained_decisions"):
        sys.exit("the update had nothing to train on, so it took no time and no memory")
    trainer.end_step({**scored.metrics, **metrics})
    yield _end_of_half(started)


def _start() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    return time.perf_counter()


def _end_of_half(started: float) -> Half:
    peak = 0
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    return Half(time.perf_counter() - started, peak)


# ---- the runs


def text(path: Path, small: bool) -> dict[str, Any]:
    """Configuration: 64 completions of 256 tokens, prompts of 128."""
    work, length = WORKS["L"], 16 if small else 256
    return {
        "policy": {
            "name": "language_model",
            "model": str(path),
            "max_new_tokens": length,
            "max_prompt_tokens": work.prompt,
        },
        "prompts": {
            "name": "rows",
            "rows": [{"prompt": prompt} for prompt in work.prompts(32)],
            "held_out": 0.0,
        },
        "rewards": [{"name": f"{__name__}:letters"}],
        "algorithm": {"name": "grpo"},
        "train": {"groups_per_step": 8, "group_size": 8, "learning_rate": 1e-5},
        "evaluation": {"prompts": 0},
    }


def images(path: Path, small: bool) -> dict[str, Any]:
    """Configuration: 24 images of 512 x 512 for one prompt, 10 steps, of which two are trained."""
    side = 64 if small else 512
    return {
        "policy": {
            "name": "flow",
            "model": str(path),
            "precision": "bf16",
            "lora": {"rank": 32},
            "height": side,
            "width": side,
            "prompt_tokens": 128,
            "steps": 10,
            "window": {"kind": "random", "size": 2},
            "batch": 24,
        },
        "prompts": {"name": "rows", "rows": [{"prompt": "a cat"}], "held_out": 0.0},
        "rewards": [{"name": f"{__name__}:varied"}],
        "algorithm": {"name": "flow_grpo"},
        "train": {"groups_per_step": 1, "group_size": 24, "learning_rate": 1e-4},
        "evaluation": {"prompts": 0},
    }


def letters(completions: list[str], **_: Any) -> list[float]:
    return [sum(map(ord, completion)) % 97 / 97 for completion in completions]


def varied(completions: list[Any], **_: Any) -> list[float]:
    """Values that differ in any case: pictures of random weights may all be the same grey, and an
    update whose rewards are equal trains nothing."""
    return [number % 7 / 7 for number in range(len(completions))]


# ---- the models


def text_model(path: Path, small: bool) -> None:
    make(WORKS["tiny L" if small else "L"], path, _device())


def image_model(path: Path, small: bool) -> None:
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler
    from diffusers import SD3Transformer2DModel as Transformer
    from diffusers import StableDiffusion3Pipeline as Pipeline
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    sys.path.insert(0, str(EXAMPLES))
    import small_sd3

    torch.manual_seed(0)
    words = small_sd3.tokenizer(["a cat"], 77)
    with torch.device(_device()):
        encoders = [
            CLIPTextModelWithProjection(
                CLIPTextConfig(
                    **(shape | ({"num_hidden_layers": 2} if small else {})),
                    vocab_size=49_408,
                    num_attention_heads=shape["hidden_size"] // HEADS,
                    projection_dim=shape["hidden_size"],
                    bos_token_id=words.bos_token_id,
                    eos_token_id=words.eos_token_id,
                    pad_token_id=words.pad_token_id,
                )
            )
            for shape in (CLIP_L, CLIP_G)
        ]
        transformer = Transformer(**(SMALL_SD if small else SD35))
        autoencoder = AutoencoderKL(**AUTOENCODER)
    Pipeline(
        transformer=transformer.to(torch.bfloat16),
        vae=autoencoder,
        text_encoder=encoders[0].to(torch.bfloat16),
        text_encoder_2=encoders[1].to(torch.bfloat16),
        text_encoder_3=None,
        tokenizer=words,
        tokenizer_2=words,
        tokenizer_3=None,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    ).save_pretrained(path)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    main()
