"""Memory of the published models, by their configurations: the tables of docs/models.md.

python tests/benchmarks/image_memory.py
python tests/benchmarks/image_memory.py --videos

For each model and size: by `groupwise check`'s estimate, what an evaluation, Flow-GRPO and a method
of the final latents take, in gigabytes; of videos what Flow-GRPO takes.
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.flow import conftest
from tests.flow.stand_ins import published

from groupwise.kit.memory import Workload
from groupwise_flow.forward_process import ForwardProcess
from groupwise_flow.policy import FlowPolicy

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "sd15": {"precision": "fp16", "sde": "ddim", "noise_level": 1.0, "guidance": 5.0},
    "sdxl": {"precision": "bf16", "sde": "ddim", "noise_level": 1.0, "guidance": 5.0},
    "z_image": {"precision": "bf16", "guidance": 5.0, "prompt_tokens": 512},
    "qwen_image": {"precision": "bf16", "guidance": 4.0, "prompt_tokens": 256},
    "flux2_klein": {"precision": "bf16", "guidance": 4.0, "prompt_tokens": 512},
    "flux2_klein distilled": {"precision": "bf16", "guidance": 1.0, "prompt_tokens": 512},
    "flux2": {"precision": "bf16", "guidance": 4.0, "prompt_tokens": 512},
    "sana": {"precision": "float32", "guidance": 1.0, "prompt_tokens": 300},
    "lumina2": {"precision": "bf16", "guidance": 4.0, "prompt_tokens": 256},
}
VIDEOS = ("wan21 1.3B", "wan22_5b", "wan21", "wan22", "ltx", "hunyuan15")
VIDEO_SETTINGS = {"precision": "bf16", "guidance": 5.0, "prompt_tokens": 512}
PRESENT = (480, 480, 5), (480, 480, 53), (480, 832, 81), (704, 1280, 5)
"""Height, width and frames of published runs; of LTX-Video the next smaller 1 + 8 n."""
OF_STEPS = ("sde", "noise_level")


def gigabytes(policy: Any, folder: Path, settings: Mapping[str, Any], **size: int) -> float:
    """The most that a step takes on one device, with and without an update."""
    config = policy.Config(
        model=str(folder),
        **size,
        batch=1,
        lora={"rank": 32},
        encoders="offload",
        gradient_checkpointing=True,
        **settings,
    )
    counts: dict[str, Any] = {
        "rollouts": 8,
        "group_size": 8,
        "training": True,
        "reference": False,
        "averages": 0,
    }
    loads = (Workload(decisions=1, sampled=0, **counts), Workload(decisions=0, sampled=8, **counts))
    return float(max(sum(policy.estimate(config, load).values()) for load in loads)) / 1e9


def videos() -> None:
    """The table of videos: rows are models, columns sizes."""
    titles = [f"{frames} x {height} x {width}" for height, width, frames in PRESENT]
    print("| model | " + " | ".join(titles) + " |")
    for name in VIDEOS:
        with tempfile.TemporaryDirectory() as root:
            torch.manual_seed(0)
            tiny, folder = Path(root, "tiny"), Path(root, "published")
            conftest.MAKERS[name.partition(" ")[0]]().save_pretrained(tiny)
            published.write(published.MODELS[name], tiny, folder)
            cells = []
            for height, width, frames in PRESENT:
                step = 8 if name == "ltx" else 4
                size = {"height": height, "width": width, "frames": 1 + frames // step * step}
                cells.append(f"{gigabytes(FlowPolicy, folder, VIDEO_SETTINGS, **size):.1f}")
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--models", nargs="+", choices=SETTINGS, default=[*SETTINGS])
    parser.add_argument("--videos", action="store_true")
    options = parser.parse_args()
    sizes = options.sizes
    warnings.simplefilter("ignore")
    if options.videos:
        videos()
        return
    print("| model | method | " + " | ".join(f"{size} px" for size in sizes) + " |")
    for name in options.models:
        settings = SETTINGS[name]
        with tempfile.TemporaryDirectory() as root:
            torch.manual_seed(0)
            conftest.MAKERS[name]().save_pretrained(Path(root, "tiny"))
            folder = published.write(
                published.MODELS[name], Path(root, "tiny"), Path(root, "published")
            )
            final = {key: value for key, value in settings.items() if key not in OF_STEPS}
            for policy, own in ((FlowPolicy, settings), (ForwardProcess, final)):
                cells = [f"{gigabytes(policy, folder, own, height=n, width=n):.1f}" for n in sizes]
                print(f"| {name} | {policy.__name__} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
