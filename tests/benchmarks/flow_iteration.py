"""Time of an iteration of Flow-GRPO: fewer steps, a window, and the published procedure.

    python tests/benchmarks/flow_iteration.py steps       # 40 and 10 steps, and a window of 3 of 10
    python tests/benchmarks/flow_iteration.py published   # against the published procedure
    python tests/benchmarks/flow_iteration.py graph       # with and without policy.keep_graph

`steps` runs the model and the settings of examples/shapes.yaml. `published` implements the training
loop of Flow-GRPO's authors, as of July 2025, with plain torch on a random SD3 (guidance in training
without a gradient of its unconditional branch, 9 of 10 steps, a reference pass for every step) and
runs ours with the same LoRA, the same KL, one update per rollout and the same gradient
(`guidance_gradient: conditional`), and with that of both branches, our default. `graph` runs the
latter, for fewer images, with and without a graph that is kept from sampling. All run in turns,
round by round; figures are medians, with `--cpu` of the seconds that the process had on the CPU.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from groupwise.building.build import build_parts, open_trainer
from groupwise.config.load import LoadedConfig, load_config
from groupwise.plugins.resolved import resolve

EXAMPLES = Path(__file__).parents[2] / "examples"
VARIANTS = {
    "40 steps": {"policy.steps": 40, "policy.window": {"kind": "all"}},
    "10 steps": {"policy.steps": 10, "policy.window": {"kind": "all"}},
    "window of 3 of 10": {"policy.steps": 10, "policy.window": {"kind": "random", "size": 3}},
}
IMAGES, STEPS, GUIDANCE, BETA, CLIP, LEVEL = 24, 10, 4.5, 0.04, 1e-4, 0.7
FEW = 6
"""Images of `graph`, whose activations of all steps are in memory at once."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("steps", "published", "graph"))
    parser.add_argument("--cpu", action="store_true", help="seconds on the CPU, not of the clock")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    runs = {"steps": steps, "published": published, "graph": graph}[options.what]()
    clock = time.process_time if options.cpu else time.perf_counter
    seconds = median_seconds(runs, options.rounds, clock)
    slowest = max(seconds.values())
    print("| iteration | seconds | times faster |\n|---|---|---|")
    for name, spent in seconds.items():
        print(f"| {name} | {spent:.2f} | {slowest / spent:.2f} |")


def median_seconds(
    runs: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """The median seconds of each, which run in turns after a round to warm up."""
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            started = clock()
            run()
            if number:
                spent[name].append(clock() - started)
    return {name: statistics.median(values) for name, values in spent.items()}


def steps() -> dict[str, Callable[[], Any]]:
    runs = {}
    for name, changes in VARIANTS.items():
        overrides = [f"{key}={value}" for key, value in changes.items()]
        loaded = load_config(EXAMPLES / "shapes.yaml", ["evaluation.prompts=0", *overrides])
        runs[name] = iteration(loaded)
    return runs


def published() -> dict[str, Callable[[], Any]]:
    folder = Path(tempfile.mkdtemp())
    random_pipeline(folder)
    both = {"training_guidance": GUIDANCE, "window": {"kind": "all"}}
    published_settings = {**both, "guidance_gradient": "conditional"}
    fast_settings = {"training_guidance": 1.0, "window": {"kind": "random", "size": 3}}
    return {
        "published procedure": Published(folder).iteration,
        "ours, same semantics": ours(folder, published_settings, beta=BETA),
        "ours, gradients of both branches": ours(folder, both, beta=BETA),
        "ours, no guidance, window of 3": ours(folder, fast_settings, beta=BETA),
        "ours, no guidance, window of 3, no reference": ours(folder, fast_settings, beta=0.0),
    }


def graph() -> dict[str, Callable[[], Any]]:
    folder = Path(tempfile.mkdtemp())
    random_pipeline(folder)
    settings = {"training_guidance": GUIDANCE, "window": {"kind": "all"}}
    return {
        "both branches, a forward pass in the update": ours(folder, settings, beta=0.0, images=FEW),
        "both branches, graph kept": ours(
            folder, {**settings, "keep_graph": True}, beta=0.0, images=FEW
        ),
    }


def ours(
    folder: Path, policy: dict[str, Any], *, beta: float, images: int = IMAGES
) -> Callable[[], Any]:
    config = {
        "policy": {
            "name": "flow",
            "model": str(folder),
            "lora": {"rank": 32},
            "prompt_tokens": 1,
            "steps": STEPS,
            "batch": images,
            **policy,
        },
        "prompts": {"name": "rows", "rows": [{"prompt": "a cat"}], "held_out": 0.0},
        "rewards": [{"name": f"{__name__}:redness"}],
        "algorithm": {"name": "flow_grpo", "beta": beta},
        "train": {"groups_per_step": 1, "group_size": images, "learning_rate": 1e-5},
        "evaluation": {"prompts": 0},
    }
    return iteration(load_config(config))


def iteration(loaded: LoadedConfig) -> Callable[[], Any]:
    """A function that makes one step: sampling, scoring and the update."""
    trainer = ExitStack().enter_context(open_trainer(build_parts(resolve(loaded)), Accelerator()))

    def run() -> None:
        scored = trainer.experience.next(trainer.state)
        trainer.end_step({**scored.metrics, **trainer.learn(scored)})

    return run


def redness(completions: list[Any], pixels: list[torch.Tensor], **_: Any) -> list[float]:
    return [float(image[0].mean()) for image in pixels]


def random_pipeline(folder: Path) -> None:
    """Saves a random SD3 with 4 layers of width 128, 256 image tokens and 78 text tokens."""
    import sys

    sys.path.insert(0, str(EXAMPLES))
    import small_sd3

    torch.manual_seed(0)
    pipe = small_sd3.pipeline(["a cat"], length=77, width=128, layers=4, side=32)
    pipe.save_pretrained(folder)


class Published:
    """The loop of the authors' train_sd3.py for one batch, in plain torch."""

    def __init__(self, folder: Path) -> None:
        from diffusers import StableDiffusion3Pipeline
        from peft import LoraConfig

        from groupwise_flow.adapters.sd3 import SD3Adapter

        pipe = StableDiffusion3Pipeline.from_pretrained(
            folder, text_encoder_3=None, tokenizer_3=None
        )
        pipe.transformer.requires_grad_(False)
        targets = list(SD3Adapter.targets)
        pipe.transformer.add_adapter(LoraConfig(r=32, lora_alpha=64, target_modules=targets))
        self.pipe, self.model = pipe, pipe.transformer
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-5)
        pipe.scheduler.set_timesteps(STEPS)
        self.sigmas = pipe.scheduler.sigmas
        with torch.no_grad():
            prompt, empty, pooled, no_pooled = pipe.encode_prompt(
                "a cat", None, None, num_images_per_prompt=IMAGES, max_sequence_length=1
            )
        self.embeds, self.pooled = torch.cat([empty, prompt]), torch.cat([no_pooled, pooled])

    def velocity(self, x: torch.Tensor, number: int) -> torch.Tensor:
        """Both branches in one batch, always; the unconditional one has no gradient."""
        time = self.sigmas[number].expand(2 * IMAGES) * 1000
        both = self.model(
            hidden_states=torch.cat([x, x]),
            timestep=time,
            encoder_hidden_states=self.embeds,
            pooled_projections=self.pooled,
            return_dict=False,
        )[0]
        unconditional, conditional = both.chunk(2)
        unconditional = unconditional.detach()
        return unconditional + GUIDANCE * (conditional - unconditional)

    def moments(self, x: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        v, s, after = self.velocity(x, number), self.sigmas[number], self.sigmas[number + 1]
        g = LEVEL * (s / (1 - (after if s == 1 else s))).sqrt()
        dt = after - s
        mean = x * (1 + g**2 * dt / (2 * s)) + v * (1 + g**2 * (1 - s) / (2 * s)) * dt
        return mean, g * (-dt).sqrt()

    def iteration(self) -> None:
        x = torch.randn(IMAGES, 8, 32, 32)
        path, old = [x], []
        with torch.no_grad():
            for number in range(STEPS):
                mean, std = self.moments(x, number)
                x = mean + std * torch.randn_like(x)
                path.append(x)
                old.append(-((x - mean) ** 2).mean(dim=(1, 2, 3)) / (2 * std**2))
            images = self.pipe.vae.decode(x / self.pipe.vae.config.scaling_factor).sample
        rewards = images[:, 0].mean(dim=(1, 2))
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        for number in range(STEPS - 1):
            mean, std = self.moments(path[number], number)
            new = -((path[number + 1] - mean) ** 2).mean(dim=(1, 2, 3)) / (2 * std**2)
            with torch.no_grad():
                self.model.disable_adapters()
                reference, _ = self.moments(path[number], number)
                self.model.enable_adapters()
            ratio = (new - old[number]).exp()
            surrogate = torch.maximum(
                -advantages * ratio, -advantages * ratio.clamp(1 - CLIP, 1 + CLIP)
            )
            kl = ((mean - reference) ** 2).mean(dim=(1, 2, 3)) / (2 * std**2)
            ((surrogate + BETA * kl).mean() / (STEPS - 1)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


if __name__ == "__main__":
    main()
