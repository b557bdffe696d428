"""Make the base model of `examples/nim.yaml`: a Qwen2 of some 35,000 weights that knows the rules.

It is trained on random legal moves, so it plays at random, and seldom breaks a rule.

    python examples/nim/make_base.py
"""

import argparse
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import game  # noqa: E402
from small_qwen2 import batch, make_model  # noqa: E402

END = "<|end|>"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with one token for every word of the game."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    texts = [f"{game.prompt(own)} {game.WORDS[own]}" for own in game.POSITIONS]
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()
    torch.manual_seed(0)
    chance, tokenizer = random.Random(0), make_tokenizer()
    model = make_model(tokenizer, positions=16, width=32, layers=2, spread=0.15)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01, betas=(0.9, 0.98))
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * min(1.0, (step + 1) / 50) * (1 - step / options.steps)
        drawn = chance.choices(game.POSITIONS, k=64)
        moves = [game.WORDS[chance.choice(game.moves(own))] for own in drawn]
        pairs = [
            (game.prompt(own), f" {move}{END}") for own, move in zip(drawn, moves, strict=True)
        ]
        loss = model(**batch(tokenizer, pairs)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)


if __name__ == "__main__":
    main()
