"""Families of vision-language models against transformers: the table of docs/vision.md.

    python tests/benchmarks/vision_families.py

Tiny models of each type with random weights (float32, on the CPU) sample completions of prompts
with none to three pictures. Errors are the largest differences in nats between the log-probs of
sampling or training and those of a pass of transformers' own model over each row alone.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.llm.vision import reference, standins

from groupwise_llm.vision_language_model import VisionLanguageModel, VisionSettings

NAMES = {
    "qwen2_vl": ("Qwen2-VL", "positions in time, height and width (M-RoPE)"),
    "qwen2_5_vl": ("Qwen2.5-VL", "M-RoPE; the tower attends within windows"),
    "qwen3_vl": ("Qwen3-VL", "M-RoPE; features enter the first layers, too (DeepStack)"),
    "qwen3_vl_moe": ("Qwen3-VL, mixture of experts", "the same"),
    "qwen3_5": ("Qwen3.5", "M-RoPE; layers with recurrent states"),
    "qwen3_5_moe": ("Qwen3.5, mixture of experts", "the same"),
    "gemma3": ("Gemma 3", "attention both ways within a picture; sliding windows"),
    "idefics3": ("Idefics3, SmolVLM", "tiles, each named in the text, and the whole picture"),
    "smolvlm": ("SmolVLM2", "the same; its processor needs the package num2words"),
    "llava_next": ("LLaVA-NeXT", "tiles without their padding; rows end with a learned token"),
    "internvl": ("InternVL", "tiles, and a small picture of the whole"),
}
"""The name of each type, and what is special about it."""
GROUP = 4
TEMPERATURE = 0.8


def measure(model_type: str) -> tuple[float, float, str]:
    """Errors of sampling and of training, and the pass by which the model is trained."""
    settings = VisionSettings(
        model=str(standins.folder(model_type)), max_new_tokens=24, temperature=TEMPERATURE
    )
    policy = VisionLanguageModel(settings)
    policy.place("cpu")
    rows = reference.rows()
    rollouts = policy.sample(rows, group_size=GROUP, seeds=range(GROUP * len(rows)))
    with torch.no_grad():
        trained = policy(rollouts).log_probs
    expected = reference.of_rollouts(policy, rollouts, [row["images"] for row in rollouts.prompts])
    errors = (rollouts.sampler_log_probs - expected, trained - expected)
    sampled, passed = (float(error.abs().max()) for error in errors)
    return sampled, passed, policy.ability.training


def main() -> None:
    print("| models | model type | sampled | trained | training pass | what is special |")
    print("|---|---|---|---|---|---|")
    for model_type, (name, special) in NAMES.items():
        sampled, trained, by = measure(model_type)
        print(f"| {name} | `{model_type}` | {sampled:.0e} | {trained:.0e} | {by} | {special} |")


if __name__ == "__main__":
    main()
