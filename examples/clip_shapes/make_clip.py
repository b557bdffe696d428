"""Make the small CLIP of `examples/clip_shapes.yaml`, from the scenes of `examples/shapes`.

    python examples/clip_shapes/make_clip.py [--minutes 9]

A small CLIP of transformers is trained on pictures and their prompts. The prompts that `groupwise`
holds out for evaluation are not among them, so its scores for those are generalisation.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTextConfig, CLIPVisionConfig

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "shapes"), str(HERE.parent)]

import make_base as shapes  # noqa: E402
import scenes  # noqa: E402
import small_sd3  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--pictures", type=int, default=24_000)
    parser.add_argument("--output", type=Path, default=HERE / "clip")
    options = parser.parse_args()
    torch.manual_seed(1)
    chance = random.Random(1)
    everything = list(scenes.rows())
    training = [row for row in everything if not held_out(row["prompt"], shapes.HELD_OUT)]
    drawn = shapes.draw_rows(training, options.pictures, chance)
    pictures = torch.stack([small_sd3.to_tensor(scenes.draw(row, chance)) for row in drawn])
    tokenizer = small_sd3.tokenizer([row["prompt"] for row in everything], length=12)
    model = CLIPModel(configuration(tokenizer))
    updates = train(model, tokenizer, pictures, [row["prompt"] for row in drawn], options.minutes)
    unseen = [row for row in everything if row not in training]
    right = accuracy(model, tokenizer, unseen, chance)
    print(f"{updates} updates; the nearest held-out prompt is the right one: {right:.3f}")
    model.half().save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    side = {"height": scenes.SIDE, "width": scenes.SIDE}
    CLIPImageProcessor(size=side, crop_size=side).save_pretrained(options.output)


def configuration(tokenizer: object) -> CLIPConfig:
    words = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id")}
    common = {"hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 3}
    text = CLIPTextConfig(
        **common,
        **words,
        num_hidden_layers=3,
        vocab_size=len(tokenizer),
        max_position_embeddings=12,
    )
    vision = CLIPVisionConfig(
        **common, num_hidden_layers=4, image_size=scenes.SIDE, patch_size=4, num_channels=3
    )
    return CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=64)


def train(
    model: CLIPModel, tokenizer: object, pictures: torch.Tensor, texts: list[str], minutes: float
) -> int:
    """Contrastive training in batches of different prompts; returns the number of updates."""
    by_prompt: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        by_prompt.setdefault(text, []).append(number)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    started, updates = time.monotonic(), 0
    while (share := (time.monotonic() - started) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, share / 0.05) * (1 - share)
        prompts = random.sample(list(by_prompt), BATCH)
        rows = [random.choice(by_prompt[prompt]) for prompt in prompts]
        logits = similarities(model, tokenizer, pictures[rows], prompts)
        target = torch.arange(BATCH)
        loss = cross_entropy(logits, target) + cross_entropy(logits.T, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
        if updates % 100 == 0:
            print(f"  {updates} updates, loss {loss.item():.3f}", flush=True)
    model.eval()
    return updates


def similarities(
    model: CLIPModel, tokenizer: object, pictures: torch.Tensor, prompts: list[str]
) -> torch.Tensor:
    """[pictures, prompts]: the model's own logits."""
    mean = torch.tensor(MEAN).view(3, 1, 1)
    std = torch.tensor(STD).view(3, 1, 1)
    words = tokenizer(prompts, padding="max_length", max_length=12, return_tensors="pt")
    answer = model(
        input_ids=words.input_ids,
        attention_mask=words.attention_mask,
        pixel_values=(pictures - mean) / std,
    )
    return answer.logits_per_image


MEAN = CLIPImageProcessor().image_mean
STD = CLIPImageProcessor().image_std


@torch.no_grad()
def accuracy(
    model: CLIPModel, tokenizer: object, rows: list[scenes.Row], chance: random.Random
) -> float:
    """Share of pictures whose nearest prompt, among all held-out ones, is the right one."""
    pictures = torch.stack([small_sd3.to_tensor(scenes.draw(row, chance)) for row in rows])
    prompts = [row["prompt"] for row in rows]
    logits = similarities(model, tokenizer, pictures, prompts)
    return (logits.argmax(dim=1) == torch.arange(len(rows))).float().mean().item()


if __name__ == "__main__":
    main()
