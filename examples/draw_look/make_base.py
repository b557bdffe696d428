"""Make the base models of `examples/draw_look.yaml`: a painter that heeds words, and eyes.

    python examples/draw_look/make_base.py painter
    python examples/draw_look/make_base.py eyes

The painter is that of `examples/shapes`, trained further on captions of which half end in a
complaint that the picture answers ("a red disk left of a blue square no blue square"). The captions
have wrong words as before, and the complaints have none. The eyes are the model of
`examples/count_shapes`, taught further to say what a picture shows and what is wrong with it, with
pictures of the rule's making; they have never seen the painter's. The prompts that `groupwise`
holds out for evaluation are in neither's training.
"""

import argparse
import random
import sys
from copy import deepcopy
from itertools import islice
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "shapes")]

import small_sd3  # noqa: E402
from diffusers import StableDiffusion3Pipeline  # noqa: E402
from draw_look.complaints import WORDS, pairs, remedies, said  # noqa: E402
from shapes import make_base, scenes  # noqa: E402
from small_qwen2_5_vl import inherit, make_model, make_processor, pixels_of, train  # noqa: E402
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402

LENGTH = 16
"""Tokens of a prompt with words, where `shapes` has 12."""
TRAINING = [row for row in scenes.rows() if not held_out(row["prompt"], make_base.HELD_OUT)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=("painter", "eyes"))
    parser.add_argument("--minutes", type=float, default=4.0, help="of the painter")
    parser.add_argument("--steps", type=int, default=700, help="of the eyes")
    parser.add_argument("--pictures", type=int, default=12_000)
    parser.add_argument("--output", type=Path, help="default: beside this script")
    options = parser.parse_args()
    torch.manual_seed(0)
    output = options.output or HERE / options.which
    if options.which == "painter":
        make_painter(options.pictures, options.minutes, output, random.Random(0))
    else:
        make_eyes(options.pictures, options.steps, output, random.Random(0))


def make_painter(count: int, minutes: float, output: Path, chance: random.Random) -> None:
    drawn = make_base.draw_rows(TRAINING, count, chance)
    pictures = torch.stack([small_sd3.to_tensor(scenes.draw(row, chance)) for row in drawn])
    noisy = make_base.Captions(drawn, chance)

    def caption(number: int) -> str:
        words = chance.choice(remedies(drawn[number])) if chance.random() < 0.5 else ""
        return f"{noisy(number)} {words}".strip()

    pipe = small_sd3.load(HERE.parent / "shapes" / "base")
    texts = [*(row["prompt"] for row in scenes.rows()), *WORDS]
    words = small_sd3.tokenizer(texts, LENGTH)
    encoders = {
        name: _lengthened(getattr(pipe, name), pipe.tokenizer, words)
        for name in ("text_encoder", "text_encoder_2")
    }
    parts = {**pipe.components, **encoders, "tokenizer": words, "tokenizer_2": words}
    pipe = StableDiffusion3Pipeline(
        **{
            name: part
            for name, part in parts.items()
            if not name.startswith(("image_", "feature_"))
        }
    )
    latents = small_sd3.encode(pipe.vae, pictures)
    updates = small_sd3.train_flow(pipe, latents, caption, minutes=minutes, rate=5e-4)
    print(f"{updates} updates", flush=True)
    small_sd3.save(pipe, output)


def _lengthened(
    encoder: CLIPTextModelWithProjection, old: CLIPTokenizer, new: CLIPTokenizer
) -> CLIPTextModelWithProjection:
    """The encoder for a tokenizer with more words and longer prompts, with the weights it had."""
    config = CLIPTextConfig(**deepcopy(encoder.config).to_dict())
    config.vocab_size, config.max_position_embeddings = len(new), new.model_max_length
    config.bos_token_id, config.eos_token_id = new.bos_token_id, new.eos_token_id
    config.pad_token_id = new.pad_token_id
    longer = CLIPTextModelWithProjection(config)
    ids = {new_id: old.get_vocab().get(word) for word, new_id in new.get_vocab().items()}
    own, former = longer.state_dict(), encoder.state_dict()
    for name, values in former.items():
        if name.endswith("token_embedding.weight"):
            for new_id, old_id in ids.items():
                if old_id is not None:
                    own[name][new_id] = values[old_id]
        elif name.endswith("position_embedding.weight"):
            own[name][: len(values)] = values
        else:
            own[name] = values
    longer.load_state_dict(own)
    return longer


def make_eyes(count: int, steps: int, output: Path, chance: random.Random) -> None:
    asked, shown = zip(*islice(pairs(TRAINING, chance), count), strict=True)
    processor = make_processor([*WORDS, "a", *scenes.PLURALS.values()])
    model = make_model(processor)
    inherit(model, processor, HERE.parent / "count_shapes" / "base")
    print(f"{model.num_parameters():,} weights, {len(processor.tokenizer)} tokens", flush=True)
    pixels = pixels_of(processor, [scenes.draw(row, chance) for row in shown]).unsqueeze(1)

    def pair(row: int, _: float) -> tuple[str, str]:
        return asked[row]["prompt"], said(asked[row], shown[row])

    train(model, processor, pixels, pair, chance, steps=steps)
    model.save_pretrained(output)
    processor.save_pretrained(output)


if __name__ == "__main__":
    main()
