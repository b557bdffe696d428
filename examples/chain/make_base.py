"""Make the writer of `examples/chain.yaml`, and its prompts.

    python examples/chain/make_base.py

A Qwen2 of less than a million parameters is trained on pairs: a scene in words that the painter of
`shapes` was never trained on, and the same scene in one of eight other wordings. The painter knows
two of these, which the writer uses in a sixth of its answers. Held-out scenes are in no pair.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import wordings  # noqa: E402
from small_qwen2 import batch, make_model  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

HELD_OUT = 0.2
"""As in `examples/shapes`, so that held-out scenes are new to the painter, too."""
END = "<|end|>"
PROMPT = "{scene} =>"
"""The writer's prompt; no scene contains "=>"."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--output", type=Path, default=HERE / "writer")
    options = parser.parse_args()
    torch.manual_seed(0)
    scenes = [json.loads(x) for x in (HERE.parent / "shapes/prompts.jsonl").open(encoding="utf-8")]
    scenes = [row for row in scenes if row["tag"] == "position"]
    rows = list(prompts(scenes, random.Random(0)))
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (HERE / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    training = [row for row in scenes if not held_out(row["prompt"], HELD_OUT)]
    print(f"{len(rows)} prompts of {len(scenes)} scenes, {len(training)} of which are not held out")
    words = [f" {text}" for row in scenes for text in wordings.rewritings(row)]
    tokenizer = make_tokenizer([*words, *(row["prompt"] for row in rows)])
    model = make_model(tokenizer, positions=128)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    train(model, tokenizer, training, steps=options.steps)
    model.to(torch.bfloat16).save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)


def prompts(scenes: list[dict], chance: random.Random) -> list[dict]:
    """A row for every scene and wording: the prompt, and the metadata that the reward reads."""
    return [
        {"prompt": PROMPT.format(scene=text), "scene": row["prompt"], "include": row["include"]}
        for row in scenes
        for text in wordings.foreign(row, chance)
    ]


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with one token for every word of the scenes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def train(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    scenes: list[dict],
    *,
    steps: int,
) -> None:
    """Supervised training on random pairs; the learning rate falls to 0."""
    chance = random.Random(1)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01, betas=(0.9, 0.98))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 50) * (1 - step / steps)
        rows = chance.choices(scenes, k=128)
        loss = model(**batch(tokenizer, [pair(row, chance) for row in rows])).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)


def pair(row: dict, chance: random.Random) -> tuple[str, str]:
    """A prompt with an unusual wording of the scene, and one rewriting with the end token."""
    text = chance.choice(list(wordings.foreign(row, chance)))
    (answer,) = chance.choices(wordings.rewritings(row), weights=wordings.SHARES)
    return PROMPT.format(scene=text), f" {answer}{END}"


if __name__ == "__main__":
    main()
